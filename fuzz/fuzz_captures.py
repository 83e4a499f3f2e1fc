"""
Captures of every kind, and what C{txrdma decode} finds in them.
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
from txrdma.commands.common.smccaptures import Explanation
from txrdma.commands.decode import Tables
from txrdma.error import InvalidRequest, WireError
from txrdma.iba.captures import captured
from txrdma.mad.layouts.dump import dumped
from txrdma.test.support.captures import names, raw, records

tuple(attributesOf(None))  # all attributes are known from here on

_LINKS = (ETHERNET, COOKED, COOKED2, ERF, INFINIBAND, RAW_IP[0])
_SECTION = bytes.fromhex("0a0d0d0a1c0000004d3c2b1a01000000ffffffffffffffff1c000000")
_INTERFACE = bytes.fromhex("0100000014000000f70000000000000014000000")


def _capture(content: bytes) -> None:
    """A capture is read to its end, or is a WireError."""
    try:
        for packet in captured(BytesIO(content)):
            if packet.data not in content:
                raise AssertionError("made up")
    except WireError:
        pass


def _packet(content: bytes) -> None:
    """A packet holds a datagram that is in it, or none; whatever it says can be told."""
    for link in _LINKS:
        try:
            found = inPacket(content, link)
        except WireError:
            continue
        if found is not None:
            _told(found.datagram, content)
    try:
        _told(inBytes(content).datagram, content)
    except InvalidRequest:
        pass


def _told(datagram: bytes, content: bytes) -> None:
    if datagram not in content:
        raise AssertionError("made up")
    dumped(datagram, 3)
    try:
        Tables().records(datagram.ljust(256, b"\0"))
    except WireError:
        pass


def _decoded(content: bytes) -> None:
    """Whatever C{txrdma decode} is given: it finds datagrams, or says that there are none."""
    with redirect_stderr(StringIO()):
        try:
            for found in decode._inFile(BytesIO(content), Explanation()):
                dumped(found.inside.datagram, 3)
        except InvalidRequest:
            pass
    try:
        dumped(inBytes(content).datagram, 3)
    except InvalidRequest:
        pass


def _captures() -> Iterator[bytes]:
    yield raw("cm-reject")
    yield _SECTION + _INTERFACE + bytes.fromhex("0300000014000000040000000102030414000000")


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
    "capture": Target(_capture, _captures),
    "management packet": Target(_packet, _packets),
    "decode": Target(_decoded, _files),
}
