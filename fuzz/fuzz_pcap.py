"""
Fuzz targets of the reader of pcap files, and of the decoder of Ethernet frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

from harness import Target

from txrdma.error import WireError
from txrdma.iba.captures import captured
from txrdma.iba.pcap import CapturedDatagram, LinkType, PcapWriter
from txrdma.test.support.captures import names, raw, records


def _file(content: bytes) -> None:
    """A pcap file is read to its end or raises WireError, and its packets are equal after writing them."""
    try:
        found = list(captured(BytesIO(content)))
    except WireError:
        return
    if not found or content[:1] == b"\n":  # pcapng, whose packets may have different headers
        return
    out = BytesIO()
    writer = PcapWriter(out, LinkType(found[0].linkType))
    for record in found:
        if record.when >= 0xFFFFFFFF:  # rounded, it may not fit into 32 bits
            return
        writer.write(record.data, record.when)
    if [record.data for record in captured(BytesIO(out.getvalue()))] != [record.data for record in found]:
        raise AssertionError("the packets differ after writing and reading them")


def _frame(content: bytes) -> None:
    """A frame contains a UDP datagram or none, or raises WireError; the datagram is part of the frame."""
    for link in (LinkType.ETHERNET, LinkType.RAW_IP):
        try:
            found = CapturedDatagram.decode(content, link)
        except WireError:
            continue
        if found is not None and found.ip.encode() + found.udp.encode() + found.payload not in content:
            raise AssertionError("the datagram is not part of the frame")


def _files() -> Iterator[bytes]:
    for name in ("tcp-client", "cm-reject", "verbs"):
        yield raw(name)


def _frames() -> Iterator[bytes]:
    for name in names():
        for record in records(name)[:5]:
            yield record.data
            yield record.data[14:]


TARGETS = {
    "capture file": Target(_file, _files),
    "frame": Target(_frame, _frames),
}
