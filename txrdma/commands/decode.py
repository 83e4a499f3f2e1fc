"""C{txrdma decode}: explains management datagrams and SMC conversations."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO, Final, NamedTuple

from twisted.python import usage

from txrdma.commands.common import options
from txrdma.commands.common.attributefields import attributeDict, attributesOf
from txrdma.commands.common.interruption import endedBySignals
from txrdma.commands.common.packets import inBytes, inPacket, Inside, LENGTH
from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.values import count
from txrdma.commands.dissect.capture import Explanation
from txrdma.commands.dissect.words import describeCLC
from txrdma.error import InvalidRequest, WireError
from txrdma.iba.captures import captured, isCapture
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, plain
from txrdma.mad.layouts.dump import dumped, payloadOf
from txrdma.mad.layouts.messages import formatOf, MADFormat, MADHeader, RMPPType, SAFormat
from txrdma.mad.layouts.sa import Record
from txrdma.smc.wire.clc import decode as decodeCLC
from txrdma.smc.wire.clc import Message, SMCD, SMCR

_SEGMENT: Final = 200
_OVERHEAD: Final = 20
_MOST_SEGMENTS: Final = 1 << 16
_MOST_TEXT: Final = 1 << 22
"""Largest number of bytes of hexadecimal text that are read: a datagram has a thousand, devices no end."""


class Found(NamedTuple):
    """A MAD, the headers before it, and the packet of a capture that contains it."""

    where: str
    inside: Inside


class CommandOptions(options.CommandOptions):
    """Options of C{txrdma decode}: hexadecimal digits, a file, or standard input."""

    synopsis = "[options] [HEX... | FILE]"
    longdesc = (
        "Decode management datagrams in hexadecimal, from the command line, a file or standard input, or "
        "all those in a capture (pcap or pcapng; of RoCE v1 or v2, InfiniBand or ERF). Headers of umad, "
        "LRH, GRH, BTH and DETH are recognised and shown. SA records split over several packets are "
        "shown together, after the last of them. SMC is shown as a conversation, from CLC on TCP to LLC "
        "and CDC on RoCE; or decode one CLC message in hexadecimal."
    )
    optFlags = [["json", None, "JSON instead of text."]]
    optParameters = [
        ["level", "l", 2, "1: one line, 2: fields, 3: bytes, too; of SMC, 2: CDC, 3: RDMA writes.", count]
    ]

    def parseArgs(self, *arguments: str) -> None:
        self["arguments"] = arguments

    def postOptions(self) -> None:
        if self["level"] not in (1, 2, 3):
            raise usage.UsageError(f"--level {self['level']}: expected 1, 2 or 3")


async def run(reactor: object, options: CommandOptions) -> None:
    """Run C{txrdma decode}: explain each datagram and conversation."""
    with endedBySignals():  # all of it blocks the reactor
        _decode(options)


def _decode(options: CommandOptions) -> None:
    tuple(attributesOf(None))  # registers all attributes
    if (clc := _clcIn(options["arguments"])) is not None:
        print(describeCLC(clc))
        return
    tables = DecodedTables()
    smc = Explanation()
    decoded = [(each, tables.records(each.inside.datagram)) for each in _found(options["arguments"], smc)]
    if not decoded and not smc.events:
        raise InvalidRequest("it contains neither management datagrams nor SMC")
    if options["json"]:
        datagrams = [_dict(each, records) for each, records in decoded]
        printJSON({"smc": smc.toDict(), "datagrams": datagrams} if smc.events else datagrams)
        return
    if smc.events:
        for line in smc.lines(options["level"]):
            print(line)
        if decoded:
            print()
    for number, (each, records) in enumerate(decoded):
        if options["level"] == 1:
            print(": ".join(part for part in (each.where, *each.inside.front) if part), end="")
            print(f"{': ' if each.where or each.inside.front else ''}{_text(each.inside.datagram, 1)}")
            continue
        if number:
            print()
        for line in (each.where, *each.inside.front):
            if line:
                print(f"# {line}")
        print(_text(each.inside.datagram, options["level"]))
        for record in records or ():
            print(f"# {type(record).__name__}\n{record}")


def _text(datagram: bytes, level: int) -> str:
    """Return the text of a MAD; only its headers for a later segment, whose fields would be misplaced."""
    text = dumped(datagram, level)
    if level >= 2 and _segment(datagram) > 1:
        kind = payloadOf(datagram)
        text = "\n".join(line for line in text.splitlines() if not line.startswith(f"{type(kind).__name__}."))
    return text


def _dict(found: Found, records: list[Attribute] | None) -> dict[str, Any]:
    datagram = found.inside.datagram
    frame = _frame(datagram)
    payload = payloadOf(datagram)
    isWhole = _segment(datagram) <= 1
    fields = plain(frame)
    assert isinstance(fields, dict)
    return {
        "where": found.where,
        "front": list(found.inside.front),
        "frame": {name: value for name, value in fields.items() if name != "payload"},
        "attribute": None if payload is None else type(payload).__name__,
        "fields": None if payload is None or not isWhole else attributeDict(payload),
        "records": None if records is None else [attributeDict(record) for record in records],
    }


def _frame(datagram: bytes) -> MADFormat:
    return formatOf(MADHeader.decode(datagram).managementClass).decode(datagram.ljust(LENGTH, b"\0"))


def _segment(datagram: bytes) -> int:
    """Return the number of an SA's RMPP segment, from 1; 0 for other MADs."""
    if datagram[1] != ManagementClass.SUBN_ADM:
        return 0
    frame = _frame(datagram)
    assert isinstance(frame, SAFormat)
    isPart = frame.rmpp.active and frame.rmpp.type is RMPPType.DATA
    return frame.rmpp.data1 if isPart else 0


class DecodedTables:
    """Reassembles records that are split over several packets (IBA 13.6, 15.2.1.1)."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], dict[int, bytes]] = {}

    def records(self, datagram: bytes) -> list[Attribute] | None:
        """Add a packet, and return the records of the table that it completes; None if it completes none."""
        number = _segment(datagram)
        if not 0 < number <= _MOST_SEGMENTS:
            return None
        frame = _frame(datagram)
        assert isinstance(frame, SAFormat)
        key = frame.header.transactionID, int(frame.header.method)
        if number == 1:
            self._parts[key] = {}
        parts = self._parts.setdefault(key, {})
        parts[number] = datagram[SAFormat.dataOffset :].ljust(_SEGMENT, b"\0")
        if not frame.rmpp.last:
            return None
        del self._parts[key]
        if not len(parts) == max(parts) == number:
            return None
        length = min(_SEGMENT, max(0, frame.rmpp.data2 - _OVERHEAD))
        whole = b"".join(parts[at] for at in range(1, number)) + parts[number][:length]
        kind = type(payloadOf(datagram))
        distance = frame.attributeOffset * 8
        if not issubclass(kind, Record) or distance < kind.size:
            return None
        last = len(whole) - kind.size
        return [kind.decode(whole, at) for at in range(0, last + 1, distance)]


def _clcIn(arguments: tuple[str, ...]) -> Message | None:
    """Return the CLC message in hexadecimal arguments, or None if they are not one."""
    text = "".join(arguments).lower().removeprefix("0x")
    if not text.startswith((SMCR.hex(), SMCD.hex())):
        return None
    try:
        return decodeCLC(_bytes(" ".join(arguments)))
    except WireError as error:
        raise InvalidRequest(str(error)) from error


def _found(arguments: tuple[str, ...], smc: Explanation) -> Iterator[Found]:
    path = arguments[0] if len(arguments) == 1 else "-"
    if path != "-" and os.path.exists(path) and not os.path.isdir(path):
        try:
            with open(path, "rb") as file:
                yield from _inFile(file if file.seekable() else _readable(file), smc, path)
        except OSError as error:
            raise InvalidRequest(f"{path}: {error.strerror}") from error
    elif arguments and arguments != ("-",):
        yield Found("", inBytes(_bytes(" ".join(arguments))))
    else:
        yield from _inFile(_standardInput(), smc, "standard input")


def _standardInput() -> BinaryIO:
    raw = getattr(sys.stdin, "buffer", None)
    return BytesIO(sys.stdin.read().encode()) if raw is None else _readable(raw)


def _readable(file: BinaryIO) -> BinaryIO:
    """Return what a pipe contains; only the beginning if it is no capture."""
    content = file.read(_MOST_TEXT + 1)
    return BytesIO(content + file.read() if isCapture(content[:4]) else content)


def _inFile(file: BinaryIO, smc: Explanation, name: str) -> Iterator[Found]:
    start = file.read(4)
    file.seek(0)
    if not isCapture(start):
        content, complaint = file.read(_MOST_TEXT + 1), f"{name} contains neither packets nor hexadecimal"
        if len(content) > _MOST_TEXT:
            raise InvalidRequest(complaint)
        yield Found("", inBytes(_bytes(content.decode("utf-8", "replace"), complaint)))
        return
    packets = captured(file)
    number = 0
    while True:
        number += 1
        try:
            packet = next(packets, None)
        except WireError as error:
            print(f"packet {number}: {error}; nothing was read from there on", file=sys.stderr)
            return
        if packet is None:
            return
        smc.add(packet)
        try:
            inside = inPacket(packet.data, packet.linkType)
        except WireError:
            continue  # not a MAD
        if inside is not None:
            yield Found(f"packet {number} at {packet.when:.6f}", inside)


def _bytes(text: str, complaint: str = "") -> bytes:
    """
    Parse hexadecimal text; spaces, colons, commas, C{0x} and the offsets of dumps are ignored.

    @param complaint: the error message; by default, that this text is neither a file nor hexadecimal.
    @raise InvalidRequest: the text is not hexadecimal.
    """
    lines = [re.sub(r"^\s*(0x)?[0-9a-fA-F]{4,8}:?\s\s+", "", line) for line in text.splitlines()]
    digits = re.sub(r"0x|[\s:,]", "", " ".join(lines))
    try:
        return bytes.fromhex(digits)
    except ValueError:
        message = complaint or f"{text.strip()[:60]!r} is neither a file nor hexadecimal"
        raise InvalidRequest(message) from None
