"""
Reader of capture files of tcpdump and Wireshark: pcap of either byte order, and pcapng.

Follows draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng. The byte order may differ between sections, so
wire layouts, which have a fixed one, are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final, NamedTuple

from txrdma.error import WireError

_CLASSIC: Final = {
    b"\xd4\xc3\xb2\xa1": ("little", 1_000_000),
    b"\x4d\x3c\xb2\xa1": ("little", 1_000_000_000),
    b"\xa1\xb2\xc3\xd4": ("big", 1_000_000),
    b"\xa1\xb2\x3c\x4d": ("big", 1_000_000_000),
}
"""Magic numbers of pcap files: byte order, and units of time per second."""

_SECTION: Final = b"\x0a\x0d\x0d\x0a"
_ORDERS: Final = {b"\x4d\x3c\x2b\x1a": "little", b"\x1a\x2b\x3c\x4d": "big"}
_INTERFACE: Final = 1
_OLD_PACKET: Final = 2
_SIMPLE_PACKET: Final = 3
_PACKET: Final = 6
_RESOLUTION: Final = 9
_OFFSET: Final = 14
_LONGEST: Final = 1 << 24


class Captured(NamedTuple):
    """
    A packet of a capture.

    @ivar when: time in seconds since 1970; 0 if the file has none.
    @ivar linkType: type of its first header, as numbered at U{https://www.tcpdump.org/linktypes.html}.
    """

    when: float
    linkType: int
    data: bytes


def isCapture(start: bytes) -> bool:
    """Return whether a file with these first bytes, at least four, is a capture."""
    return start[:4] in _CLASSIC or start[:4] == _SECTION


def captured(file: BinaryIO) -> Iterator[Captured]:
    """
    Yield the packets of a capture file, in order.

    @raise WireError: the file is not a capture; or, after the readable packets, it is malformed or truncated.
    """
    magic = file.read(4)
    if magic in _CLASSIC:
        return _classic(file, *_CLASSIC[magic])
    if magic == _SECTION:
        return _sections(file)
    raise WireError("Capture", 0, f"not a capture file: it begins with {magic.hex() or 'nothing'}")


def _classic(file: BinaryIO, order: str, units: int) -> Iterator[Captured]:
    head = _exactly(file, 20)
    # The upper bits are the length of a frame check sequence.
    linkType = _number(head[16:20], order) & 0x0FFFFFFF
    while raw := file.read(16):
        if len(raw) < 16:
            raise WireError("Capture", 0, f"a truncated record header: {len(raw)} of 16 bytes")
        seconds, fraction, length = (_number(raw[at : at + 4], order) for at in (0, 4, 8))
        yield Captured(seconds + fraction / units, linkType, _exactly(file, length))


class _Interface(NamedTuple):
    """An interface: its link type, its units of time per second, its offset in seconds, and its limit."""

    linkType: int
    units: float
    offset: int
    snapLength: int


@dataclass
class _Section:
    """Context of packets: the byte order, and the interfaces."""

    order: str
    interfaces: list[_Interface] = field(default_factory=list)


def _sections(file: BinaryIO) -> Iterator[Captured]:
    section = _begun(file)
    while raw := file.read(4):
        if raw == _SECTION:
            section = _begun(file)
            continue
        kind = _number(raw, section.order)
        length = _number(_exactly(file, 4), section.order)
        if length < 12 or length % 4:
            raise WireError("Capture", 4, f"a block of {length} bytes")
        body = _exactly(file, length - 8)[:-4]
        if kind == _INTERFACE:
            section.interfaces.append(_interface(body, section.order))
        elif kind in (_PACKET, _OLD_PACKET, _SIMPLE_PACKET):
            yield _packet(section, kind, body)


def _begun(file: BinaryIO) -> _Section:
    raw = _exactly(file, 8)
    order = _ORDERS.get(raw[4:])
    if order is None:
        raise WireError("Capture", 8, f"an unknown byte order magic {raw[4:].hex()}")
    length = _number(raw[:4], order)
    if length < 28 or length % 4:
        raise WireError("Capture", 4, f"a section header of {length} bytes")
    _exactly(file, length - 12)
    return _Section(order)


def _interface(body: bytes, order: str) -> _Interface:
    if len(body) < 8:
        raise WireError("Capture", 8, f"an interface description of {len(body)} bytes")
    units, offset, at = 1e6, 0, 8
    while at + 4 <= len(body):
        code, length = _number(body[at : at + 2], order), _number(body[at + 2 : at + 4], order)
        value = body[at + 4 : at + 4 + length]
        if not code:
            break
        if len(value) < length:
            raise WireError("Capture", 8, f"an option of {length} bytes, of which the block has {len(value)}")
        if code == _RESOLUTION and length == 1:
            units = 2.0 ** (value[0] & 0x7F) if value[0] & 0x80 else 10.0 ** value[0]
        elif code == _OFFSET and length == 8:
            offset = _number(value, order, isSigned=True)
        at += 4 + length + -length % 4
    return _Interface(_number(body[:2], order), units, offset, _number(body[4:8], order))


def _packet(section: _Section, kind: int, body: bytes) -> Captured:
    order = section.order
    if kind == _SIMPLE_PACKET:
        linkType, _, _, snapLength = _interfaceOf(section, 0)
        length = min(_number(body[:4], order), snapLength or _LONGEST)  # padding follows
        return Captured(0.0, linkType, body[4 : 4 + length])
    if len(body) < 20:
        raise WireError("Capture", 8, f"a packet block of {len(body)} bytes")
    which = _number(body[: 4 if kind == _PACKET else 2], order)
    linkType, units, offset, _ = _interfaceOf(section, which)
    high, low, length = (_number(body[at : at + 4], order) for at in (4, 8, 12))
    if length > len(body) - 20:
        raise WireError("Capture", 20, f"a truncated packet: {len(body) - 20} of {length} bytes")
    return Captured((high << 32 | low) / units + offset, linkType, body[20 : 20 + length])


def _interfaceOf(section: _Section, number: int) -> _Interface:
    if number >= len(section.interfaces):
        raise WireError("Capture", 8, f"a packet of interface {number}, which was not described")
    return section.interfaces[number]


def _exactly(file: BinaryIO, length: int) -> bytes:
    if length > _LONGEST:
        raise WireError("Capture", 0, f"{length} bytes exceed the limit of {_LONGEST} bytes")
    data = file.read(length)
    if len(data) < length:
        raise WireError("Capture", 0, f"a truncated file: {len(data)} of {length} bytes")
    return data


def _number(raw: bytes, order: str, isSigned: bool = False) -> int:
    return int.from_bytes(raw, "big" if order == "big" else "little", signed=isSigned)
