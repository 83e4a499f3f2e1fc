"""
Long messages of one port: which of them are on their way, and what packets they make.

Follows InfiniBand Architecture vol. 1, 13.6 (RMPP). L{txrdma.mad._rmpp} moves one message; this knows them
all, by transaction and direction, makes datagrams of their segments, and remembers for a while what has
ended, as the last acknowledgement may be lost. Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, Union

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID
from txrdma.mad._rmpp import abort, Ended, Receiver, Segment, Sender
from txrdma.mad.messages import formatOf, MAD_LENGTH, RMPPHeader, RMPPStatus, RMPPType

LINGER_SECONDS: Final = 10.0
"""How long a message that has come is remembered."""

IDLE_SECONDS: Final = 40.0
"""How long one is remembered whose sender has fallen silent."""

_HEADER_AT: Final = 24
_BODY_AT: Final = 36
_RESPONSE: Final = 0x80
_HEAD: Final = Struct(">xBxBxxxxQ")

RMPP_CLASSES: Final = frozenset(number for number in range(256) if formatOf(number).hasRMPP)  # type: ignore[attr-defined]  # every frame has it


class Received(NamedTuple):
    """
    A whole message.

    @ivar first: its first segment, whose headers hold for all.
    @ivar message: what the segments hold for the attribute, one after the other.
    """

    first: bytes
    message: bytes


class Delivered(NamedTuple):
    """A message of ours has arrived."""

    transactionID: int


class Failed(NamedTuple):
    """A message, of ours or the peer's, has not."""

    transactionID: int
    status: RMPPStatus


Event = Union[Received, Delivered, Failed]


class Packet(NamedTuple):
    """A datagram to send."""

    datagram: bytes
    path: IBPath


def isLong(datagram: bytes) -> bool:
    """Whether this is a packet of a long message."""
    return (
        datagram[1] in RMPP_CLASSES
        and len(datagram) >= _BODY_AT
        and datagram[_HEADER_AT] == 1
        and datagram[_HEADER_AT + 1] != 0
    )


def _room(managementClass: int) -> tuple[int, int]:
    """Bytes for the attribute in each segment, and those between the RMPP header and them."""
    offset: int = formatOf(managementClass).dataOffset  # type: ignore[attr-defined]  # every frame has it
    return MAD_LENGTH - offset, offset - _BODY_AT


class _Incoming:
    """A message that is coming in."""

    def __init__(self, managementClass: int, path: IBPath, now: float) -> None:
        self.path = path
        self.first = b""
        self.receiver = Receiver(*_room(managementClass))
        self.forgetAt = now + IDLE_SECONDS


class _Outgoing:
    """A message that is going out. C{template} is the frame of each segment."""

    def __init__(self, template: bytes, message: bytes, path: IBPath, now: float) -> None:
        self.path = path
        self.template = template
        self.sender = Sender(message, *_room(template[1]), now)


_Party = tuple[int, GID | None, int]

_Key = tuple[int, int, bool, _Party | None]
"""The transaction, its class, whether the message is an answer, and who asks, if not we."""


class LongMessages:
    """
    The long messages of one port.

    An answer and a request of the same transaction are two messages. Identifiers of our requests are ours
    alone; those of others' requests are told apart by who asks.
    """

    def __init__(self, transactionIDBits: int = 64) -> None:
        """
        @param transactionIDBits: how many low bits of our transaction IDs come back as we sent them.
        """
        self._ours = (1 << transactionIDBits) - 1
        self._incoming: dict[_Key, _Incoming] = {}
        self._outgoing: dict[_Key, _Outgoing] = {}
        self._packets: list[Packet] = []
        self._events: list[Event] = []

    def send(self, template: bytes, message: bytes, path: IBPath, now: float) -> None:
        """
        Send a message.

        @param template: a whole datagram: its headers are those of each segment.
        """
        key = self._keyOfOurs(template, path)
        self._outgoing[key] = _Outgoing(template, message, path, now)
        self._advance(key, now)

    def received(self, datagram: bytes, path: IBPath, now: float) -> None:
        """A packet for which L{isLong} holds, and the way that it took."""
        header = RMPPHeader.decode(datagram, _HEADER_AT)
        key = self._keyOf(datagram, path)
        if header.type is RMPPType.DATA:
            self._data(key, datagram, header, path, now)
            return
        transaction, managementClass, isResponse, party = key
        opposite = (transaction, managementClass, not isResponse, party)
        if opposite in self._outgoing:  # about what we send
            self._about(opposite, header, now)
        elif key in self._incoming and header.type is not RMPPType.ACK:  # the sender gives up
            self._incoming.pop(key)
            self._events.append(Failed(transaction, header.status))

    def expects(self, datagram: bytes, path: IBPath) -> bool:
        """Whether a packet belongs to something that is known here."""
        transaction, managementClass, isResponse, party = key = self._keyOf(datagram, path)
        return (
            key in self._incoming or (transaction, managementClass, not isResponse, party) in self._outgoing
        )

    def turn(self, datagram: bytes, path: IBPath) -> None:
        """Our long request is through, a long answer is to come: tell the window for it (IBA 13.6.3.1)."""
        header = RMPPHeader(
            version=1, type=RMPPType.ACK, responseTime=0x1F, active=True, data1=0, data2=Receiver(1, 0).window
        )
        self._packets.append(Packet(_controlled(datagram, header, flip=False), path))

    def forget(self, datagram: bytes) -> None:
        """Nobody wants the answer to this request any more: tell who sends it."""
        managementClass, _, transaction = _HEAD.unpack_from(datagram)
        transaction &= self._ours
        self._outgoing.pop((transaction, managementClass, False, None), None)
        incoming = self._incoming.pop((transaction, managementClass, True, None), None)
        if incoming is not None and incoming.receiver.message is None:
            header = abort(RMPPStatus.UNSPECIFIED)
            self._packets.append(
                Packet(_controlled(incoming.first, header, flip=True), incoming.path.reverse())
            )

    def deadline(self) -> float | None:
        """When to call L{expired}; None for never."""
        deadlines = [incoming.forgetAt for incoming in self._incoming.values()]
        for outgoing in self._outgoing.values():
            deadline = outgoing.sender.deadline()
            if deadline is not None:
                deadlines.append(deadline)
        soonest = min(deadlines, default=float("inf"))
        return None if soonest == float("inf") else soonest

    def expired(self, now: float) -> None:
        """The time of L{deadline} has come."""
        for key, incoming in tuple(self._incoming.items()):
            if incoming.forgetAt <= now:
                del self._incoming[key]
        for key, outgoing in tuple(self._outgoing.items()):
            ended = outgoing.sender.expired(now)
            if ended is None:
                self._advance(key, now)
            else:
                self._end(key, ended)

    def outgoing(self) -> Sequence[Packet]:
        """What to send."""
        packets, self._packets = self._packets, []
        return packets

    def events(self) -> Sequence[Event]:
        """What has happened."""
        events, self._events = self._events, []
        return events

    def _keyOf(self, datagram: bytes, path: IBPath) -> _Key:
        """Of a packet that has come."""
        managementClass, method, transaction = _HEAD.unpack_from(datagram)
        if method & _RESPONSE:
            return transaction & self._ours, managementClass, True, None
        return transaction, managementClass, False, (path.slid, path.sgid, path.sqpn)

    def _keyOfOurs(self, template: bytes, path: IBPath) -> _Key:
        """Of a message that we send."""
        managementClass, method, transaction = _HEAD.unpack_from(template)
        if method & _RESPONSE:
            return transaction, managementClass, True, (path.dlid, path.dgid, path.dqpn)
        return transaction & self._ours, managementClass, False, None

    def _data(self, key: _Key, datagram: bytes, header: RMPPHeader, path: IBPath, now: float) -> None:
        incoming = self._incoming.get(key)
        if incoming is None:
            if header.data1 != 1:
                return  # the rest of something that we know nothing of
            incoming = self._incoming[key] = _Incoming(datagram[1], path, now)
        if header.data1 == 1 and not incoming.first:
            incoming.first = datagram
        receiver = incoming.receiver
        wasWhole = receiver.message is not None
        if not wasWhole:
            incoming.forgetAt = now + IDLE_SECONDS
        offset: int = formatOf(datagram[1]).dataOffset  # type: ignore[attr-defined]  # every frame has it
        ended = receiver.received(header, datagram[offset:])
        for answer in receiver.outgoing():
            self._packets.append(Packet(_controlled(datagram, answer, flip=True), path.reverse()))
        if ended is not None:
            del self._incoming[key]
            self._events.append(Failed(key[0], ended.status))
        elif receiver.message is not None and not wasWhole:
            incoming.forgetAt = now + LINGER_SECONDS
            self._events.append(Received(incoming.first, receiver.message))

    def _about(self, key: _Key, header: RMPPHeader, now: float) -> None:
        outgoing = self._outgoing[key]
        ended = outgoing.sender.received(header, now)
        if ended is not None:
            self._end(key, ended, told=header.type is not RMPPType.ACK)
        elif outgoing.sender.isDone:
            del self._outgoing[key]
            self._events.append(Delivered(key[0]))
        else:
            self._advance(key, now)

    def _advance(self, key: _Key, now: float) -> None:
        outgoing = self._outgoing[key]
        for segment in outgoing.sender.outgoing(now):
            self._packets.append(Packet(_segmented(outgoing.template, segment), outgoing.path))

    def _end(self, key: _Key, ended: Ended, told: bool = False) -> None:
        outgoing = self._outgoing.pop(key)
        if not told:
            header = abort(ended.status)
            self._packets.append(Packet(_controlled(outgoing.template, header, flip=False), outgoing.path))
        self._events.append(Failed(key[0], ended.status))


def _segmented(template: bytes, segment: Segment) -> bytes:
    """A segment as a datagram."""
    offset: int = formatOf(template[1]).dataOffset  # type: ignore[attr-defined]  # every frame has it
    head = template[:_HEADER_AT] + segment.header.encode() + template[_BODY_AT:offset]
    return (head + segment.data).ljust(MAD_LENGTH, b"\0")


def _controlled(about: bytes, header: RMPPHeader, flip: bool) -> bytes:
    """
    An ACK, a STOP or an ABORT: the headers of what it is about, and nothing behind.

    @param flip: whether that is the peer's, so that ours goes the other way.
    """
    method = about[3] ^ _RESPONSE if flip else about[3]
    head = about[:3] + bytes((method,)) + bytes(2) + about[6:_HEADER_AT]
    return (head + header.encode()).ljust(MAD_LENGTH, b"\0")
