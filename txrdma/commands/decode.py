"""
C{txrdma decode}: management datagrams explained.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple

from txrdma.commands import options
from txrdma.commands.attributefields import attributeDict, attributesOf
from txrdma.commands.fabrics import count, tellJSON
from txrdma.error import InvalidRequest, WireError
from txrdma.iba.headers import BTH, DETH, GRH, Opcode
from txrdma.iba.pcap import Datagram, LinkType, PcapReader
from txrdma.iba.roce import ROCE_PORT
from txrdma.mad.dump import dumped, payloadOf
from txrdma.mad.messages import formatOf, MADHeader
from txrdma.wire import Layout

LENGTH: Final = 256
_INFINIBAND: Final = 247
_ERF: Final = 197
_ERF_INFINIBAND: Final = 21
_UMAD: Final = (64, 56)
_LRH: Final = 8
_MAGICS: Final = (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1")


class Found(NamedTuple):
    """A datagram, and where it was."""

    where: str
    datagram: bytes


class CommandOptions(options.CommandOptions):
    """What to explain."""

    synopsis = "[options] [HEX... | FILE]"
    longdesc = (
        "Explain a management datagram that is given in hexadecimal, on the command line or on standard "
        "input, or all those in a capture file (pcap: RoCE v2, InfiniBand or ERF). Headers of umad, LRH, "
        "GRH, BTH and DETH in front are found and skipped."
    )
    optFlags = [["json", None, "JSON instead of text."]]
    optParameters = [["level", "l", 2, "1 is a line, 2 shows the fields, 3 the bytes, too.", count]]

    def parseArgs(self, *arguments: str) -> None:
        self["arguments"] = arguments


async def carryOut(reactor: object, options: CommandOptions) -> None:
    """C{txrdma decode}."""
    tuple(attributesOf(None))  # all are known from here on
    found = list(_found(options["arguments"]))
    if not found:
        raise InvalidRequest("there is no management datagram in it")
    if options["json"]:
        tellJSON([_dict(each) for each in found])
        return
    for number, each in enumerate(found):
        if number:
            print()
        if each.where:
            print(f"# {each.where}")
        print(dumped(each.datagram, options["level"]))


def _dict(found: Found) -> dict[str, Any]:
    header = MADHeader.decode(found.datagram)
    frame = formatOf(header.managementClass).decode(found.datagram.ljust(LENGTH, b"\0"))
    payload = payloadOf(found.datagram)
    return {
        "where": found.where,
        "frame": {name: value for name, value in _fields(frame).items() if name != "payload"},
        "attribute": None if payload is None else type(payload).__name__,
        "fields": None if payload is None else attributeDict(payload),
    }


def _fields(layout: Layout) -> dict[str, Any]:
    from txrdma.mad.attributes import plain

    told = plain(layout)
    assert isinstance(told, dict)
    return told


def _found(arguments: tuple[str, ...]) -> Iterator[Found]:
    if len(arguments) == 1 and arguments[0] != "-" and os.path.isfile(arguments[0]):
        with open(arguments[0], "rb") as file:
            yield from _inFile(file)
    elif arguments and arguments != ("-",):
        yield Found("", stripped(_bytes(" ".join(arguments))))
    else:
        yield Found("", stripped(_bytes(sys.stdin.read())))


def _inFile(file: BinaryIO) -> Iterator[Found]:
    magic = file.read(4)
    file.seek(0)
    if magic not in _MAGICS:
        yield Found("", stripped(_bytes(file.read().decode("utf-8", "replace"))))
        return
    reader = PcapReader(file)
    for number, record in enumerate(reader, 1):
        try:
            datagram = inPacket(record.data, reader.linkType)
        except WireError:
            continue  # somebody else's packet
        if datagram is not None:
            yield Found(f"packet {number} at {record.when:.6f}", datagram)


def _bytes(text: str) -> bytes:
    """
    Bytes from what people copy: blanks, colons, C{0x} and the offsets of dumps don't matter.

    @raise InvalidRequest: it is not hexadecimal.
    """
    lines = [re.sub(r"^\s*(0x)?[0-9a-fA-F]{4,8}:?\s\s+", "", line) for line in text.splitlines()]
    digits = re.sub(r"0x|[\s:,]", "", " ".join(lines))
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise InvalidRequest(f"{text.strip()[:60]!r} is neither a file nor hexadecimal") from None


def stripped(data: bytes) -> bytes:
    """
    The datagram alone.

    @raise InvalidRequest: there is none.
    """
    for header in _UMAD:
        if len(data) == header + LENGTH and _looksLike(data[header:]):
            return data[header:]
    if len(data) >= 24 and _looksLike(data):
        return data[:LENGTH]
    for read in (_inInfiniBand, _inTransport):
        try:
            found = read(data)
        except WireError:
            continue
        if found is not None and _looksLike(found):
            return found
    raise InvalidRequest(f"these {len(data)} bytes are no management datagram")


def _looksLike(data: bytes) -> bool:
    """A base version that there is, and a class version that the class has."""
    return len(data) >= 24 and data[0] == 1 and data[2] in (1, 2) and data[1] != 0


def inPacket(data: bytes, linkType: int) -> bytes | None:
    """
    The datagram in a packet of a capture; None when it is something else.

    @raise WireError: the packet contradicts itself.
    """
    if linkType == _INFINIBAND:
        return _inInfiniBand(data)
    if linkType == _ERF:
        return _inERF(data)
    datagram = Datagram.decode(data, LinkType(linkType))
    if datagram is None or datagram.udp.destinationPort != ROCE_PORT:
        return None
    return _inTransport(datagram.payload)


def _inERF(data: bytes) -> bytes | None:
    """Extensible record format: 16 bytes, extensions of 8 as long as the type's highest bit is set."""
    if len(data) < 16 or data[8] & 0x7F != _ERF_INFINIBAND:
        return None
    offset, more = 16, data[8] & 0x80
    while more and offset + 8 <= len(data):
        more = data[offset] & 0x80
        offset += 8
    return _inInfiniBand(data[offset:])


def _inInfiniBand(data: bytes) -> bytes | None:
    """From LRH on (IBA 7.7); its two lowest bits of byte 1 tell what comes next."""
    if len(data) < _LRH or data[1] & 3 not in (2, 3):
        return None
    return _inTransport(data[_LRH + (GRH.size if data[1] & 3 == 3 else 0) :])


def _inTransport(data: bytes) -> bytes | None:
    """From BTH on: a datagram to queue pair 0 or 1, or with the key of queue pair 1."""
    bth = BTH.decode(data)
    if bth.opcode is not Opcode.UD_SEND_ONLY:
        return None
    deth = DETH.decode(data, BTH.size)
    datagram = data[BTH.size + DETH.size :][:LENGTH]
    if bth.destination > 1 and deth.qkey != 0x80010000:
        return None
    return datagram if _looksLike(datagram) else None
