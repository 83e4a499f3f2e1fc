"""
Fuzz targets of capture files of every format, and of C{txrdma decode}.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stderr
from io import BytesIO, StringIO

from harness import Target

from txrdma.commands import decode
from txrdma.commands.common.attributefields import attributesOf
from txrdma.commands.common.packets import (
    COOKED,
    COOKED2,
    ERF,
    ETHERNET,
    inBytes,
    INFINIBAND,
    inPacket,
    RAW_IP,
)
from txrdma.commands.decode import DecodedTables
from txrdma.commands.dissect.capture import Explanation
from txrdma.error import InvalidRequest, WireError
from txrdma.iba.captures import captured
from txrdma.mad.layouts.dump import dumped
from txrdma.test.support.captures import names, raw, records

tuple(attributesOf(None))  # registers all attributes, as the command does

_LINKS = (ETHERNET, COOKED, COOKED2, ERF, INFINIBAND, RAW_IP[0])

# A pcapng file: section header, interface description (InfiniBand), and one simple packet of four bytes.
_SECTION = bytes.fromhex("0a0d0d0a1c0000004d3c2b1a01000000ffffffffffffffff1c000000")
_INTERFACE = bytes.fromhex("0100000014000000f70000000000000014000000")
_PACKET = bytes.fromhex("0300000014000000040000000102030414000000")


def _readCapture(content: bytes) -> None:
    """A capture file is read to its end or raises WireError, and its packets are bytes of the file."""
    try:
        for packet in captured(BytesIO(content)):
            if packet.data not in content:
                raise AssertionError("the packet is not part of the file")
    except WireError:
        pass


def _findDatagram(content: bytes) -> None:
    """A packet contains a management datagram or none, and any datagram found can be printed."""
    for link in _LINKS:
        try:
            found = inPacket(content, link)
        except WireError:
            continue
        if found is not None:
            _printDatagram(found.datagram, content)
    try:
        _printDatagram(inBytes(content).datagram, content)
    except InvalidRequest:
        pass


def _printDatagram(datagram: bytes, content: bytes) -> None:
    if datagram not in content:
        raise AssertionError("the datagram is not part of the packet")
    dumped(datagram, 3)
    try:
        DecodedTables().records(datagram.ljust(256, b"\0"))
    except WireError:
        pass


def _decodeFile(content: bytes) -> None:
    """C{txrdma decode} finds datagrams in any input, or raises InvalidRequest."""
    with redirect_stderr(StringIO()):
        try:
            for found in decode._inFile(BytesIO(content), Explanation(), "input"):
                dumped(found.inside.datagram, 3)
        except InvalidRequest:
            pass
    try:
        dumped(inBytes(content).datagram, 3)
    except InvalidRequest:
        pass


def _captures() -> Iterator[bytes]:
    yield raw("cm-reject")
    yield _SECTION + _INTERFACE + _PACKET


def _packets() -> Iterator[bytes]:
    for name in names():
        for record in records(name)[:3]:
            yield record.data


def _files() -> Iterator[bytes]:
    for name in names():
        if name.startswith("mad"):
            yield raw(name)
            for record in records(name)[:3]:
                yield record.data[14:]
                yield record.data.hex(" ", 4).encode()


TARGETS = {
    "capture": Target(_readCapture, _captures),
    "management packet": Target(_findDatagram, _packets),
    "decode": Target(_decodeFile, _files),
}
