"""
Fuzz targets of management datagrams (MADs): structures, frames, RMPP transfers, the agent and the server.
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
from txrdma.mad.core.rmpp import RMPPReceiver, Sender
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
from txrdma.mad.layouts.traps import describe, detailsOf
from txrdma.mad.server import MADServer
from txrdma.test.support.captures import names, packets
from txrdma.test.support.mad.structures import structures

_STRUCTURES = structures()
_MAD_BYTES = 256
_SEGMENT_BYTES = 200
_LONGEST = 20_000


def _decodeStructure(raw: bytes) -> None:
    """
    A structure encodes to the bytes it was decoded from, and can be printed and converted to JSON.

    The first byte selects the type of the structure.
    """
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
        raise AssertionError(f"{value!r} does not encode to the same bytes")
    str(value)
    repr(value)
    json.dumps(plain(value))
    if isinstance(value, Notice):
        describe(value)
        detailsOf(value)


def _decodeFrame(raw: bytes) -> None:
    """Any datagram can be printed, and its frame encodes to the bytes it was decoded from."""
    for level in (1, 2, 3):
        dumped(raw, level)
    if len(raw) > 1:
        try:
            decoded = formatOf(raw[1]).decode(raw)
        except WireError:
            return
        if decoded.encode() != raw[:_MAD_BYTES]:
            raise AssertionError(f"{decoded!r} does not encode to the same bytes")
        MADStatus(int.from_bytes(raw[4:6], "big")).words(raw[1])


def _split(raw: bytes) -> Iterator[bytes]:
    """
    Split the input into datagrams; two bytes before each are its length.

    Only nine bits of the length count, and more than 300 means a whole datagram, so that most are whole.
    """
    at = 0
    while at + 2 <= len(raw):
        length = int.from_bytes(raw[at : at + 2], "big") & 0x1FF
        length = _MAD_BYTES if length > 300 else length
        yield raw[at + 2 : at + 2 + length]
        at += 2 + length


def _rmppReceiver(raw: bytes) -> None:
    """A receiver accepts any segments, and returns no message beyond its limit."""
    receiver = RMPPReceiver(_SEGMENT_BYTES, 20, longest=_LONGEST)
    for packet in _split(raw):
        try:
            header = RMPPHeader.decode(packet)
        except WireError:
            continue
        wasDone = receiver.isDone
        ended = receiver.received(header, packet[RMPPHeader.size :].ljust(220, b"\0"))
        for answer in receiver.outgoing():
            answer.encode()
        if ended is not None:
            return
        if receiver.isDone and not wasDone and len(receiver.take()) > _LONGEST:
            raise AssertionError("the message is longer than the limit")


_MESSAGE = bytes(number & 0xFF for number in range(3000))


def _rmppSender(raw: bytes) -> None:
    """A sender sends only segments of its message, whatever is acknowledged, and ends."""
    sender = Sender(_MESSAGE, _SEGMENT_BYTES, 20, 0.0)
    now = 0.0
    for packet in _split(raw):
        now += 0.01
        try:
            header = RMPPHeader.decode(packet)
        except WireError:
            continue
        if sender.received(header, now) is not None:
            return
        for segment in sender.outgoing(now):
            begin = _SEGMENT_BYTES * (segment.header.data1 - 1)
            if not segment.data or segment.data != _MESSAGE[begin : begin + _SEGMENT_BYTES]:
                raise AssertionError(f"segment {segment.header.data1} is not part of the message")
    for _ in range(100):
        deadline = sender.deadline()
        if deadline is None or sender.expired(deadline) is not None:
            return
        sender.outgoing(deadline)
    raise AssertionError("the sender never ends")


_RESPONSE = frame(ManagementClass.SUBN_ADM, Method.GET_TABLE_RESP, 77, 0x11, 0, b"")
_REQUEST = frame(ManagementClass.SUBN_ADM, Method.GET_MULTI, 78, 0x3A, 0, b"")
_TO_PEER = IBPath(dlid=LID(2), dqpn=QPN(1))
_FROM_PEER = IBPath(slid=LID(2), dlid=LID(1), sqpn=QPN(1), dqpn=QPN(1))


def _rmppTransfers(raw: bytes) -> None:
    """All RMPP transfers of a port end, whatever it receives, and none is retained."""
    transfers = RMPPTransfers(32)
    transfers.send(_RESPONSE, bytes(1000), _TO_PEER, 0.0)
    transfers.send(_REQUEST, bytes(1000), _TO_PEER, 0.0)
    now = 0.0
    for datagram in _split(raw):
        now += 0.01
        if len(datagram) > 1 and isRMPP(datagram):
            try:
                transfers.received(datagram, _FROM_PEER, now)
            except WireError:
                continue
        for packet in transfers.outgoing():
            if len(packet.datagram) != _MAD_BYTES:
                raise AssertionError(f"{len(packet.datagram)} bytes are not a management datagram")
        transfers.events()
    for _ in range(1000):
        deadline = transfers.deadline()
        if deadline is None:
            break
        transfers.expired(deadline)
    if transfers.deadline() is not None or transfers._incoming or transfers._outgoing:
        raise AssertionError("a transfer has not ended")


class _Port:
    """A port that records what is sent; the fuzzer calls the agent with what it receives."""

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
        if len(datagram) != _MAD_BYTES:
            raise AssertionError(f"{len(datagram)} bytes are not a management datagram")
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
    """Every call of an agent ends once, with an answer or an MAD error, whatever the agent receives."""
    clock, port = Clock(), _Port()
    agent = MADAgent(clock, port, timeoutSeconds=1.0, retries=1)  # type: ignore[arg-type]  # not declared an implementer
    calls: list[Deferred[Any]] = [
        agent.SubnGet(smp.NodeInfo, _TO_PEER),
        agent.SubnGet(smp.PortInfo, IBDRPath(drPath=(1, 2)), 3),
        agent.SubnAdmGetTable(sa.NodeRecord, _TO_PEER),
        agent.SubnAdmGetMulti(sa.MultiPathRecord(), _TO_PEER),
        agent.PerformanceGet(pma.PortCounters, _TO_PEER),
        agent.VendGet(vendor.OpenIBPing, _TO_PEER),
        agent.SubnTrap(Notice(), _TO_PEER),
    ]
    results: list[object] = []
    for call in calls:
        call.addBoth(results.append)
    requests = list(port.sent)
    for number, datagram in enumerate(_split(raw)):
        answer = bytearray(datagram)
        request = requests[number % len(requests)]
        if len(answer) > 16 and answer[0] & 1:  # give it the class and transaction ID of a request
            answer[:3] = request[:3]
            answer[8:16] = request[8:16]
        agent.received(bytes(answer), _FROM_PEER)
        clock.advance(0.01)
    for _ in range(80):
        if not clock.getDelayedCalls():
            break
        clock.advance(10.0)
    if len(results) != len(calls) or " 0 outstanding" not in repr(agent) or clock.getDelayedCalls():
        raise AssertionError(f"{len(results)} of {len(calls)} calls have ended; {clock.getDelayedCalls()}")
    for result in results:
        error = getattr(result, "value", None)
        if isinstance(error, Exception) and not isinstance(error, (MADFailure, DeviceUnavailable)):
            raise error
        if isinstance(error, MADFailure) and error.reply:  # others print only our own request
            error.detailed(3)


class _Handler:
    """Answers with the request's payload, with several of them, or with an error."""

    def handle(self, request: MADRequest) -> object:
        if request.header.transactionID & 7 == 1:
            raise MADRefusal(request.header.attributeModifier & 0xFFFF)
        if request.header.method in (Method.GET_TABLE, Method.GET_MULTI):
            return [request.payload] * (request.header.transactionID & 7)
        return request.payload


# An OUI belongs to the vendor classes from 0x30 on only.
_SERVED = (*((number, 0) for number in (1, 0x81, 3, 4, 5, 6, 7, 9, 0x10, 0x12, 0x21, 0x32)), (0x32, 0x001405))


def _server(raw: bytes) -> None:
    """A server accepts any datagram, and sends only responses and RMPP packets."""
    clock, port = Clock(), _Port()
    agent = MADAgent(clock, port)  # type: ignore[arg-type]  # not declared an implementer
    server = MADServer(agent)
    server.listen(lambda notice, path: None)
    for managementClass, oui in _SERVED:
        server.handle(managementClass, _Handler(), (1, 2, 3, 0x12, 0x13, 0x14, 0x15), oui)  # type: ignore[arg-type]
    for datagram in _split(raw):
        qpn = QPN(0 if datagram[1:2] in (b"\x01", b"\x81") else 1)
        agent.received(datagram, IBPath(slid=LID(2), dlid=LID(1), sqpn=qpn, dqpn=qpn))
        clock.advance(0.01)
        sent, port.sent = port.sent, []
        for answer in sent:
            header = MADHeader.decode(answer)
            isResponse = header.method & 0x80 or header.method == Method.TRAP_REPRESS
            if not isResponse and not isRMPP(answer):
                raise AssertionError(f"the server sent a request: {dumped(answer, 1)}")
    agent.close()
    if clock.getDelayedCalls():
        raise AssertionError("a timer is still running after close")


def _recorded() -> Iterator[bytes]:
    for name in names():
        if name.startswith("mad"):
            for captured in packets(name)[:20]:
                yield captured.packet.payload[:_MAD_BYTES]


def _frames() -> Iterator[bytes]:
    """Recorded datagrams, and a request and a response for each attribute."""
    yield from _recorded()
    for (managementClass, identifier), kind in sorted(allAttributes().items()):
        room = _MAD_BYTES - formatOf(managementClass).dataOffset
        content = kind().encode()
        if len(content) <= room and managementClass not in (1, 0x21):
            for method in (Method.GET, Method.GET_RESP):
                yield frame(managementClass, method, 1 << 40 | identifier, identifier, 1, content)


def _structures() -> Iterator[bytes]:
    for number, kind in enumerate(_STRUCTURES):
        yield bytes((number,)) + kind().encode()
        yield bytes((number,)) + bytes(range(1, 256))[: kind.size].ljust(kind.size, b"\xff")


def _datagrams() -> Iterator[bytes]:
    """Frames one by one, all recorded ones together, and BUSY responses, with lengths for L{_split}."""
    yield b"".join(b"\x01\xff" + datagram for datagram in _recorded())
    response = frame(ManagementClass.SUBN_ADM, Method.GET_RESP, 79, 0x11, 0, b"")
    yield (b"\x01\xff" + response[:4] + b"\x00\x01" + response[6:]) * 7
    for datagram in _frames():
        yield b"\x01\xff" + datagram


def _rmppPackets() -> Iterator[bytes]:
    """Recorded RMPP headers with some data, and a transfer of data, acknowledgements and an abort."""
    for datagram in _recorded():
        if isRMPP(datagram):
            yield b"\x00\x20" + datagram[24:56]
    packets = []
    for kind, segment, data2 in ((1, 1, 0), (1, 2, 0), (2, 1, 64), (2, 2, 64), (1, 9, 60), (4, 0, 0)):
        header = RMPPHeader(
            version=1,
            type=RMPPType(kind),
            active=True,
            first=segment == 1,
            last=segment == 9,
            data1=segment,
            data2=data2,
        )
        packets.append(b"\x00\x20" + header.encode().ljust(32, b"\0"))
    yield b"".join(packets)


TARGETS = {
    "structure": Target(_decodeStructure, _structures),
    "MAD frame": Target(_decodeFrame, _frames),
    "RMPP receiver": Target(_rmppReceiver, _rmppPackets),
    "RMPP sender": Target(_rmppSender, _rmppPackets),
    "RMPP transfers": Target(_rmppTransfers, _datagrams),
    "MAD agent": Target(_agent, _datagrams),
    "MAD server": Target(_server, _datagrams),
}
