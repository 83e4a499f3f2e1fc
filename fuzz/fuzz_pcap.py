"""
Readers of capture files and of the frames in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

from harness import Target

from txrdma.error import WireError
from txrdma.iba.pcap import Datagram, LinkType, PcapReader, PcapWriter
from txrdma.test.support.captures import names, raw, records


def _file(content: bytes) -> None:
    """A file is read to its end, or is a WireError."""
    try:
        reader = PcapReader(BytesIO(content))
        found = list(reader)
    except WireError:
        return
    out = BytesIO()
    writer = PcapWriter(out, reader.linkType)
    for record in found:
        if record.when >= 0xFFFFFFFF:  # rounding may end in the year 2106
            return
        writer.write(record.data, record.when)
    if [record.data for record in PcapReader(BytesIO(out.getvalue()))] != [record.data for record in found]:
        raise AssertionError("not read again")


def _frame(content: bytes) -> None:
    """A frame is a datagram whose parts are in it, something else, or a WireError."""
    for link in (LinkType.ETHERNET, LinkType.RAW_IP):
        try:
            found = Datagram.decode(content, link)
        except WireError:
            continue
        if found is not None and found.ip.encode() + found.udp.encode() + found.payload not in content:
            raise AssertionError("made up")


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
