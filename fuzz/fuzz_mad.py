"""
Management datagrams: structures, frames, dumps, RMPP transfers; and agents and servers that hear anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from harness import Target

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from txrdma.error import DeviceUnavailable, WireError
from txrdma.iba.path import IBDRPath, IBPath, MADEndPort
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.mad import vendor
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import frame
from txrdma.mad.core.rmpp import Receiver, Sender
from txrdma.mad.core.transfers import isRMPP, RMPPTransfers
from txrdma.mad.errors import MADFailure, MADRefusal
from txrdma.mad.layouts import pma, sa, smp
from txrdma.mad.layouts.attributes import allAttributes, ManagementClass, Method, plain
from txrdma.mad.layouts.dump import dumped
from txrdma.mad.layouts.messages import (
    formatOf,
    MADHeader,
    MADRequest,
    MADStatus,
    Notice,
    RMPPHeader,
    RMPPType,
)
from txrdma.mad.layouts.plain import fromPlain
from txrdma.mad.layouts.traps import describe, detailsOf
from txrdma.mad.server import MADServer
from txrdma.test.support.captures import names, packets
from txrdma.test.support.mad.structures import structures

_STRUCTURES = structures()
_LENGTH = 256


def _structure(raw: bytes) -> None:
    """The first byte says which: it is read, written, told, and read again; or it is a WireError."""
    if not raw:
        return
    kind = _STRUCTURES[raw[0] % len(_STRUCTURES)]
    try:
        value = kind.decode(raw, 1)
    except WireError:
        if len(raw) > kind.size:
            raise
        return
    if kind.decode(value.encode()) != value or value.encode() != raw[1 : 1 + kind.size]:
        raise AssertionError(f"{value!r} is written otherwise")
    str(value)
    repr(value)
    told = json.loads(json.dumps(plain(value)))
    if plain(fromPlain(kind, told)) != told:
        raise AssertionError(f"{told} became another")
    if isinstance(value, Notice):
        describe(value)
        detailsOf(value)


def _json(raw: bytes) -> None:
    """Whatever JSON says, a structure comes of it that can be written, or a ValueError."""
    if not raw:
        return
    kind = _STRUCTURES[raw[0] % len(_STRUCTURES)]
    try:
        values = json.loads(raw[1:])
        if isinstance(values, dict):
            fromPlain(kind, values).encode()
    except (ValueError, RecursionError):
        pass


def _frame(raw: bytes) -> None:
    """Any datagram can be shown; its frame is written as it was read."""
    for level in (1, 2, 3):
        dumped(raw, level)
    if len(raw) > 1:
        try:
            said = formatOf(raw[1]).decode(raw)
        except WireError:
            return
        if said.encode() != raw[:_LENGTH]:
            raise AssertionError(f"{said!r} is written otherwise")
        MADStatus(int.from_bytes(raw[4:6], "big")).words(raw[1])


def _chunks(raw: bytes) -> Iterator[bytes]:
    """Pieces, each after a byte and a half that say how long it is: mostly as long as a datagram."""
    at = 0
    while at + 2 <= len(raw):
        length = int.from_bytes(raw[at : at + 2], "big") & 0x1FF
        length = _LENGTH if length > 300 else length
        yield raw[at + 2 : at + 2 + length]
        at += 2 + length


def _receiver(raw: bytes) -> None:
    """A message is what its segments held, in order, and is there once."""
    receiver = Receiver(200, 20, longest=20_000)
    for piece in _chunks(raw):
        try:
            header = RMPPHeader.decode(piece)
        except WireError:
            continue
        wasDone = receiver.isDone
        ended = receiver.received(header, piece[12:].ljust(220, b"\0"))
        for answer in receiver.outgoing():
            answer.encode()
        if ended is not None:
            return
        if receiver.isDone and not wasDone and len(receiver.take()) > 20_000:
            raise AssertionError("longer than may be")


def _sender(raw: bytes) -> None:
    """Whatever is acknowledged, segments are those of the message, and it ends."""
    message = bytes(number & 0xFF for number in range(3000))
    sender = Sender(message, 200, 20, 0.0)
    now = 0.0
    for piece in _chunks(raw):
        now += 0.01
        try:
            header = RMPPHeader.decode(piece)
        except WireError:
            continue
        if sender.received(header, now) is not None:
            return
        for segment in sender.outgoing(now):
            begin = 200 * (segment.header.data1 - 1)
            if not segment.data or segment.data != message[begin : begin + 200]:
                raise AssertionError(f"segment {segment.header.data1} is not of the message")
    for _ in range(100):
        deadline = sender.deadline()
        if deadline is None or sender.expired(deadline) is not None:
            return
        sender.outgoing(deadline)
    raise AssertionError("it never ends")


_TEMPLATE = frame(ManagementClass.SUBN_ADM, Method.GET_TABLE_RESP, 77, 0x11, 0, b"")
_QUESTION = frame(ManagementClass.SUBN_ADM, Method.GET_MULTI, 78, 0x3A, 0, b"")
_THERE = IBPath(dlid=LID(2), dqpn=QPN(1))
_HERE = IBPath(slid=LID(2), dlid=LID(1), sqpn=QPN(1), dqpn=QPN(1))


def _long(raw: bytes) -> None:
    """All RMPP transfers end, and are forgotten."""
    long = RMPPTransfers(32)
    long.send(_TEMPLATE, bytes(1000), _THERE, 0.0)
    long.send(_QUESTION, bytes(1000), _THERE, 0.0)
    now = 0.0
    for piece in _chunks(raw):
        now += 0.01
        if len(piece) > 1 and isRMPP(piece):
            try:
                long.received(piece, _HERE, now)
            except WireError:
                continue
        for packet in long.outgoing():
            if len(packet.datagram) != _LENGTH:
                raise AssertionError(f"{len(packet.datagram)} bytes are no datagram")
        long.events()
    for _ in range(1000):
        deadline = long.deadline()
        if deadline is None:
            break
        long.expired(deadline)
    if long.deadline() is not None or long._incoming or long._outgoing:
        raise AssertionError("something is left")


class _Port:
    """A port from which only the fuzzer is heard."""

    transactionIDBits = 32
    hasSMI = True
    doesRMPP = False
    name = "fuzz"
    endPort = MADEndPort(portGUID=GUID(bytes(8)), gids=(GID(bytes(16)),), lid=LID(1))

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def start(self, receiver: object) -> None:
        pass

    def serve(self, managementClass: int, methods: Sequence[int], oui: int = 0) -> Any:
        return lambda: None

    def send(self, datagram: bytes, path: IBPath, answerWithin: float = 0.0) -> None:
        if len(datagram) != _LENGTH:
            raise AssertionError(f"{len(datagram)} bytes are no datagram")
        self.sent.append(datagram)

    def isFrom(self, envelope: object, path: IBPath) -> bool:
        return True

    def pathOf(self, envelope: object) -> IBPath:
        assert isinstance(envelope, IBPath)
        return envelope

    def refresh(self) -> MADEndPort:
        return self.endPort

    def close(self) -> None:
        pass


def _agent(raw: bytes) -> None:
    """Every call ends once, in an answer or in an error of its own, and nothing is left."""
    clock, port = Clock(), _Port()
    agent = MADAgent(clock, port, timeoutSeconds=1.0, retries=1)  # type: ignore[arg-type]  # it is one by shape
    calls: list[Deferred[Any]] = [
        agent.SubnGet(smp.NodeInfo, _THERE),
        agent.SubnGet(smp.PortInfo, IBDRPath(drPath=(1, 2)), 3),
        agent.SubnAdmGetTable(sa.NodeRecord, _THERE),
        agent.SubnAdmGetMulti(sa.MultiPathRecord(), _THERE),
        agent.PerformanceGet(pma.PortCounters, _THERE),
        agent.VendGet(vendor.OpenIBPing, _THERE),
        agent.SubnTrap(Notice(), _THERE),
    ]
    ends: list[object] = []
    for call in calls:
        call.addBoth(ends.append)
    asked = list(port.sent)
    for number, piece in enumerate(_chunks(raw)):
        said = bytearray(piece)
        question = asked[number % len(asked)]
        if len(said) > 16 and said[0] & 1:  # as an answer would be
            said[:3] = question[:3]
            said[8:16] = question[8:16]
        agent.received(bytes(said), _HERE)
        clock.advance(0.01)
    for _ in range(80):
        clock.advance(10.0)
    if len(ends) != len(calls) or " 0 outstanding" not in repr(agent) or clock.getDelayedCalls():
        raise AssertionError(f"{len(ends)} of {len(calls)} calls have ended; {clock.getDelayedCalls()}")
    for end in ends:
        error = getattr(end, "value", None)
        if isinstance(error, Exception) and not isinstance(error, (MADFailure, DeviceUnavailable)):
            raise error
        if isinstance(error, MADFailure):
            error.detailed(3)


class _Echo:
    """Answers with what was asked, or not."""

    def handle(self, request: MADRequest) -> object:
        if request.header.transactionID & 7 == 1:
            raise MADRefusal(request.header.attributeModifier & 0xFFFF)
        if request.header.method in (Method.GET_TABLE, Method.GET_MULTI):
            return [request.payload] * (request.header.transactionID & 7)
        return request.payload


def _server(raw: bytes) -> None:
    """Nothing that comes breaks a server, and what it says are answers."""
    clock, port = Clock(), _Port()
    agent = MADAgent(clock, port)  # type: ignore[arg-type]  # the same
    server = MADServer(agent)
    heard: list[Notice] = []
    server.listen(lambda notice, path: heard.append(notice))
    for managementClass in (1, 0x81, 3, 4, 5, 6, 7, 9, 0x10, 0x12, 0x21, 0x32):
        server.handle(managementClass, _Echo(), (1, 2, 3, 0x12, 0x13, 0x14, 0x15), 0x001405)  # type: ignore[arg-type]  # the same
        server.handle(managementClass, _Echo(), (1, 2, 3, 0x12, 0x13, 0x14, 0x15))  # type: ignore[arg-type]  # the same
    for piece in _chunks(raw):
        qpn = QPN(0 if piece[1:2] in (b"\x01", b"\x81") else 1)
        agent.received(piece, IBPath(slid=LID(2), dlid=LID(1), sqpn=qpn, dqpn=qpn))
        clock.advance(0.01)
        said, port.sent = port.sent, []
        for datagram in said:
            header = MADHeader.decode(datagram)
            isAnswer = header.method & 0x80 or header.method == Method.TRAP_REPRESS
            if not isAnswer and not isRMPP(datagram):
                raise AssertionError(f"a server asks: {dumped(datagram, 1)}")
    agent.close()
    if clock.getDelayedCalls():
        raise AssertionError("a timer is left")


def _recorded() -> Iterator[bytes]:
    for name in names():
        if name.startswith("mad"):
            for each in packets(name)[:20]:
                yield each.packet.payload[:_LENGTH]


def _made() -> Iterator[bytes]:
    for (managementClass, identifier), kind in sorted(allAttributes().items()):
        room = _LENGTH - formatOf(managementClass).dataOffset  # type: ignore[attr-defined]  # every frame has it
        content = kind().encode()
        if len(content) <= room and managementClass not in (1, 0x21):
            for method in (Method.GET, Method.GET_RESP):
                yield frame(managementClass, method, 1 << 40 | identifier, identifier, 1, content)


def _frames() -> Iterator[bytes]:
    yield from _recorded()
    yield from _made()


def _structures() -> Iterator[bytes]:
    for number, kind in enumerate(_STRUCTURES):
        yield bytes((number,)) + kind().encode()
        yield bytes((number,)) + bytes(range(1, 256))[: kind.size].ljust(kind.size, b"\xff")


def _told() -> Iterator[bytes]:
    for number, kind in enumerate(_STRUCTURES):
        yield bytes((number,)) + json.dumps(plain(kind())).encode()


def _conversations() -> Iterator[bytes]:
    every = b"".join(b"\x01\xff" + datagram for datagram in _recorded())
    yield every
    for datagram in _frames():
        yield b"\x01\xff" + datagram


def _headers() -> Iterator[bytes]:
    for datagram in _recorded():
        if isRMPP(datagram):
            yield b"\x00\x20" + datagram[24:56]
    yield b"".join(
        b"\x00\x20"
        + RMPPHeader(
            version=1, type=RMPPType(kind), active=True, first=one == 1, last=one == 9, data1=one, data2=two
        )
        .encode()
        .ljust(32, b"\0")
        for kind, one, two in ((1, 1, 0), (1, 2, 0), (2, 1, 64), (2, 2, 64), (1, 9, 60), (4, 0, 0))
    )


TARGETS = {
    "structure": Target(_structure, _structures),
    "structure from JSON": Target(_json, _told),
    "MAD frame": Target(_frame, _frames),
    "RMPP receiver": Target(_receiver, _headers),
    "RMPP sender": Target(_sender, _headers),
    "long messages": Target(_long, _conversations),
    "MAD agent": Target(_agent, _conversations),
    "MAD server": Target(_server, _conversations),
}
