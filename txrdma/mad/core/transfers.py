"""
RMPP transfers of one port: those on their way in both directions, and their packets.

Follows InfiniBand Architecture vol. 1, 13.6 (RMPP). L{txrdma.mad.core.rmpp} moves one message; here all are
known, by transaction and direction, and their segments become datagrams. What has ended is remembered for a
while, as the last acknowledgement may be lost. Nothing here reads a clock or a socket.

A request that is a transfer has such an answer (13.6.6.3, double-sided transfers): once the request is
through, the requester opens the window for the answer by an ACK of segment 0. The responder need not wait for
that: until it comes its window is 1, as Linux has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from struct import Struct
from typing import Final, NamedTuple, Union

from txrdma.error import ResourceExhausted
from txrdma.iba.path import IBPath, lifetimeSeconds
from txrdma.iba.types import GID
from txrdma.mad.core.choices import mayBeFrom
from txrdma.mad.core.rmpp import (
    Ended,
    misfit,
    Receiver,
    refusal,
    RESEND_SECONDS,
    said,
    Segment,
    Sender,
    TOTAL_SECONDS,
    WINDOW,
)
from txrdma.mad.layouts.messages import formatOf, MAD_LENGTH, RMPPHeader, RMPPStatus, RMPPType

LINGER_SECONDS: Final = 10.0
"""Seconds for which a completed transfer is remembered."""

IDLE_SECONDS: Final = 40.0
"""Seconds without a segment after which an incoming transfer is given up."""

LONGEST_QUESTION: Final = 1024 * 1024
"""Most bytes of a message in a transfer that another node has begun."""

MOST_QUESTIONS: Final = 128
"""Most transfers of requests that may be coming in at once."""

MOST_REMEMBERED: Final = 8192
"""Most incoming transfers that are known, with those that have ended."""

MOST_ANSWERS: Final = 256
"""Most answers that may be on their way: a requester need not be one who wants them."""

_HEADER_AT: Final = 24
_FLAGS_AT: Final = 26
_ACTIVE: Final = 1
_BODY_AT: Final = 36
_RESPONSE: Final = 0x80
_HEAD: Final = Struct(">xBxBxxxxQ")

RMPP_CLASSES: Final = frozenset(number for number in range(256) if formatOf(number).hasRMPP)  # type: ignore[attr-defined]  # every frame has it


class Received(NamedTuple):
    """
    A whole message has come.

    @ivar first: its first segment, whose headers hold for all.
    @ivar message: the attribute data of all segments, joined.
    """

    first: bytes
    message: bytes


class Delivered(NamedTuple):
    """
    All segments of an outgoing message were acknowledged.

    @ivar isOurs: True if the request of the transaction is ours, and not the peer's.
    """

    transactionID: int
    managementClass: int
    isOurs: bool


class Failed(NamedTuple):
    """
    A transfer, in either direction, has failed.

    @ivar isOurs: True if the request of the transaction is ours, and not the peer's.
    @ivar byPeer: True if the peer has ended the transfer.
    """

    transactionID: int
    managementClass: int
    isOurs: bool
    status: RMPPStatus
    byPeer: bool


Event = Union[Received, Delivered, Failed]


class Packet(NamedTuple):
    """A datagram to send, and its path."""

    datagram: bytes
    path: IBPath


def isRMPP(datagram: bytes) -> bool:
    """True for a packet of an RMPP transfer: its Active flag is set, whatever else its header has."""
    return len(datagram) >= _BODY_AT and datagram[1] in RMPP_CLASSES and datagram[_FLAGS_AT] & _ACTIVE != 0


def _room(managementClass: int) -> tuple[int, int]:
    """Bytes of the attribute in each segment, and bytes between the RMPP header and them."""
    offset: int = formatOf(managementClass).dataOffset  # type: ignore[attr-defined]  # every frame has it
    return MAD_LENGTH - offset, offset - _BODY_AT


def _resendSeconds(path: IBPath) -> float:
    """Seconds to wait for an acknowledgement at first, by the path's packet life time."""
    code = path.packetLifeTime
    return RESEND_SECONDS if code is None else max(RESEND_SECONDS, 2 * lifetimeSeconds(code))


class _Incoming:
    """
    A message that is coming in, or has come.

    @ivar answerWindow: number of segments of the answer that may be sent before the first ACK.
    """

    def __init__(self, managementClass: int, path: IBPath, now: float, longest: int | None) -> None:
        self.path = path
        self.first = b""
        self.receiver = Receiver(*_room(managementClass), longest=longest)
        self.giveUpAt = now + TOTAL_SECONDS
        self.forgetAt = now + IDLE_SECONDS
        self.answerWindow = 1


class _Outgoing:
    """
    A message that is going out, or has gone.

    @ivar template: the frame of each segment.
    @ivar forgetAt: until when one that has gone is remembered.
    """

    def __init__(self, template: bytes, message: bytes, path: IBPath, now: float, window: int) -> None:
        self.path = path
        self.template = template
        self.sender = Sender(message, *_room(template[1]), now, _resendSeconds(path), window)
        self.forgetAt = inf

    @property
    def deadline(self) -> float:
        deadline = self.sender.deadline()
        return self.forgetAt if deadline is None else deadline


_Party = tuple[int, GID | None, int]


class _Key(NamedTuple):
    """Identity of a transfer: transaction, class, direction, and the requester if that is not we."""

    transaction: int
    managementClass: int
    isAnswer: bool
    party: _Party | None

    @property
    def opposite(self) -> _Key:
        """Identity of the transfer in the other direction of the same transaction."""
        return self._replace(isAnswer=not self.isAnswer)


class RMPPTransfers:
    """
    RMPP transfers of one port.

    An answer and a request of the same transaction are two transfers. Transaction IDs of our requests are
    ours alone; those of others' requests are told apart by the requester.
    """

    def __init__(self, transactionIDBits: int = 64) -> None:
        """
        @param transactionIDBits: number of low bits of our transaction IDs that return as they were sent.
        """
        self._ours = (1 << transactionIDBits) - 1
        self._incoming: dict[_Key, _Incoming] = {}
        self._outgoing: dict[_Key, _Outgoing] = {}
        self._questions = 0
        self._soonest = inf
        self._packets: list[Packet] = []
        self._events: list[Event] = []

    def send(self, template: bytes, message: bytes, path: IBPath, now: float) -> None:
        """
        Begin to send a message.

        An answer of which a part was acknowledged goes on, though its request came again.

        @param template: a whole datagram, whose headers all segments get.
        @raise ResourceExhausted: too many answers are on their way.
        """
        key = self._keyOfOurs(template, path)
        if key.isAnswer:
            before = self._outgoing.get(key)
            if before is not None and before.sender.acknowledged and not before.sender.isDone:
                return
            if before is None and len(self._outgoing) >= MOST_ANSWERS:
                raise ResourceExhausted(f"{len(self._outgoing)} RMPP transfers are on their way")
        question = self._incoming.get(key.opposite)
        window = 1 if question is None else question.answerWindow
        self._outgoing[key] = _Outgoing(template, message, path, now, window)
        self._advance(key, now)

    def received(self, datagram: bytes, path: IBPath, now: float) -> bool:
        """
        Take a packet for which L{isRMPP} is true, and the path that it took.

        @return: True if it brought a transfer forward.
        """
        header = RMPPHeader.decode(datagram, _HEADER_AT)
        key = self._keyOf(datagram, path)
        if header.type is RMPPType.DATA:
            return self._data(key, datagram, header, path, now)
        if key.opposite in self._outgoing:
            return self._about(key.opposite, header, now)
        if key in self._incoming:
            self._fromSender(key, datagram, header)
        elif key.isAnswer and (ended := misfit(header)) is not None and ended.byPeer:
            self._events.append(_failed(key, ended))  # it gives up before it begins
        return False

    def expects(self, datagram: bytes, path: IBPath) -> bool:
        """True if a packet belongs to a known transfer, and comes from its peer."""
        key = self._keyOf(datagram, path)
        incoming, outgoing = self._incoming.get(key), self._outgoing.get(key.opposite)
        if incoming is not None:
            return (incoming.path.slid, incoming.path.sgid) == (path.slid, path.sgid)
        return outgoing is not None and mayBeFrom(outgoing.path, path.slid, path.sgid, 0)

    def isAnswering(self, datagram: bytes) -> bool:
        """True if a transfer of the answer to this request of ours has begun."""
        return self._keyOfAnswer(datagram) in self._incoming

    def forget(self, datagram: bytes) -> None:
        """Give up the transfers of a request of ours, and send an ABORT for those on their way."""
        key = self._keyOfAnswer(datagram)
        outgoing = self._outgoing.pop(key.opposite, None)
        incoming = self._incoming.pop(key, None)
        header = refusal(RMPPStatus.UNSPECIFIED)
        if incoming is not None and not incoming.receiver.isDone:
            answer = _controlled(incoming.first, header, flip=True)
            self._packets.append(Packet(answer, incoming.path.reverse()))
        elif outgoing is not None and not outgoing.sender.isDone:
            self._packets.append(Packet(_controlled(outgoing.template, header, flip=False), outgoing.path))

    def deadline(self) -> float | None:
        """Time at which to call L{expired}, or an earlier one; None for never."""
        if not self._incoming and not self._outgoing:
            self._soonest = inf
        return None if self._soonest == inf else self._soonest

    def expired(self, now: float) -> None:
        """Send segments again, and give transfers up; called at the time of L{deadline}."""
        for key, incoming in tuple(self._incoming.items()):
            if min(incoming.forgetAt, incoming.giveUpAt) <= now:
                self._giveUp(key, incoming)
        for key, outgoing in tuple(self._outgoing.items()):
            if outgoing.forgetAt <= now:
                del self._outgoing[key]
                continue
            ended = outgoing.sender.expired(now)
            if ended is None:
                self._advance(key, now)
            else:
                self._end(key, ended)
        incomings, outgoings = self._incoming.values(), self._outgoing.values()
        self._soonest = min(
            min((min(incoming.forgetAt, incoming.giveUpAt) for incoming in incomings), default=inf),
            min((outgoing.deadline for outgoing in outgoings), default=inf),
        )

    def outgoing(self) -> Sequence[Packet]:
        """Take the packets that are to be sent."""
        packets, self._packets = self._packets, []
        return packets

    def events(self) -> Sequence[Event]:
        """Take the events since the last time."""
        events, self._events = self._events, []
        return events

    # Whose packets are whose.

    def _keyOf(self, datagram: bytes, path: IBPath) -> _Key:
        """Identity of the transfer of a received packet."""
        managementClass, method, transaction = _HEAD.unpack_from(datagram)
        if method & _RESPONSE:
            return _Key(transaction & self._ours, managementClass, True, None)
        return _Key(transaction, managementClass, False, (path.slid, path.sgid, path.sqpn))

    def _keyOfOurs(self, template: bytes, path: IBPath) -> _Key:
        """Identity of the transfer of a message that we send."""
        managementClass, method, transaction = _HEAD.unpack_from(template)
        if method & _RESPONSE:
            return _Key(transaction, managementClass, True, (path.dlid, path.dgid, path.dqpn))
        return _Key(transaction & self._ours, managementClass, False, None)

    def _keyOfAnswer(self, datagram: bytes) -> _Key:
        """Identity of the transfer of the answer to a request of ours."""
        managementClass, _, transaction = _HEAD.unpack_from(datagram)
        return _Key(transaction & self._ours, managementClass, True, None)

    # What comes in.

    def _data(self, key: _Key, datagram: bytes, header: RMPPHeader, path: IBPath, now: float) -> bool:
        incoming = self._incoming.get(key)
        if incoming is None:
            if header.data1 != 1:
                return False  # the rest of something that we know nothing of
            if key.party is not None and not self._hasRoom():
                refused = _controlled(datagram, refusal(RMPPStatus.RESOURCES_EXHAUSTED), flip=True)
                self._packets.append(Packet(refused, path.reverse()))
                return False
            incoming = self._begin(key, datagram, path, now)
        receiver = incoming.receiver
        wasDone, before = receiver.isDone, receiver.kept
        offset: int = formatOf(datagram[1]).dataOffset  # type: ignore[attr-defined]  # every frame has it
        ended = receiver.received(header, datagram[offset:])
        for answer in receiver.outgoing():
            self._packets.append(Packet(_controlled(datagram, answer, flip=True), path.reverse()))
        if ended is not None:
            self._drop(key, ended)
        elif receiver.isDone and not wasDone:
            incoming.forgetAt = now + LINGER_SECONDS
            incoming.giveUpAt = inf
            self._soonest = min(self._soonest, incoming.forgetAt)
            self._questions -= key.party is not None
            self._events.append(Received(incoming.first, receiver.take()))
        elif receiver.kept > before:
            incoming.forgetAt = now + IDLE_SECONDS
        return receiver.kept > before

    def _begin(self, key: _Key, datagram: bytes, path: IBPath, now: float) -> _Incoming:
        longest = None if key.party is None else LONGEST_QUESTION
        incoming = self._incoming[key] = _Incoming(datagram[1], path, now, longest)
        incoming.first = datagram
        self._soonest = min(self._soonest, incoming.forgetAt)
        if key.party is not None:
            self._questions += 1
        elif key.opposite in self._outgoing:
            del self._outgoing[key.opposite]  # who answers has got the question
        return incoming

    def _hasRoom(self) -> bool:
        return self._questions < MOST_QUESTIONS and len(self._incoming) < MOST_REMEMBERED

    def _drop(self, key: _Key, ended: Ended) -> None:
        """End an incoming transfer, of which the peer knows already."""
        incoming = self._incoming.pop(key)
        if not incoming.receiver.isDone:
            self._questions -= key.party is not None
            self._events.append(_failed(key, ended))

    def _fromSender(self, key: _Key, datagram: bytes, header: RMPPHeader) -> None:
        """
        Take an ACK, a STOP or an ABORT from the sender of an incoming message: an ACK gives our answer's
        first window.
        """
        incoming = self._incoming[key]
        ended = misfit(header)
        if ended is None:
            if incoming.receiver.isDone and header.data1 == 0:
                incoming.answerWindow = header.data2
            return
        if not ended.byPeer:
            refused = _controlled(datagram, refusal(ended.status), flip=True)
            self._packets.append(Packet(refused, incoming.path.reverse()))
        self._drop(key, ended)

    def _giveUp(self, key: _Key, incoming: _Incoming) -> None:
        """Give up an incoming transfer, with an ABORT if it is not complete; forget one that is."""
        if not incoming.receiver.isDone:
            header = refusal(RMPPStatus.TOTAL_TIME_TOO_LONG)
            refused = _controlled(incoming.first, header, flip=True)
            self._packets.append(Packet(refused, incoming.path.reverse()))
        self._drop(key, Ended(RMPPStatus.TOTAL_TIME_TOO_LONG))

    # What goes out.

    def _about(self, key: _Key, header: RMPPHeader, now: float) -> bool:
        """
        Take an ACK, a STOP or an ABORT from the receiver of a message of ours; True if more is acknowledged
        now.
        """
        outgoing = self._outgoing[key]
        sender = outgoing.sender
        wasDone, before = sender.isDone, sender.acknowledged
        ended = sender.received(header, now)
        if ended is not None:
            self._end(key, ended)
        elif not sender.isDone:
            self._advance(key, now)
        else:
            if key.isAnswer:
                del self._outgoing[key]
            else:  # also when it is acknowledged once more: then our ACK was lost
                outgoing.forgetAt = now + LINGER_SECONDS
                self._soonest = min(self._soonest, outgoing.forgetAt)
                header = said(RMPPType.ACK, RMPPStatus.NORMAL, 0, WINDOW)
                self._packets.append(Packet(_controlled(outgoing.template, header, False), outgoing.path))
            if not wasDone:
                self._events.append(Delivered(key.transaction, key.managementClass, key.party is None))
        return sender.acknowledged > before

    def _advance(self, key: _Key, now: float) -> None:
        outgoing = self._outgoing[key]
        for segment in outgoing.sender.outgoing(now):
            self._packets.append(Packet(_segmented(outgoing.template, segment), outgoing.path))
        self._soonest = min(self._soonest, outgoing.deadline)

    def _end(self, key: _Key, ended: Ended) -> None:
        """End an outgoing transfer, and send a STOP or an ABORT if the peer does not know."""
        outgoing = self._outgoing.pop(key)
        if not ended.byPeer:
            header = refusal(ended.status)
            self._packets.append(Packet(_controlled(outgoing.template, header, flip=False), outgoing.path))
        if ended.byPeer or not outgoing.sender.isDone:
            self._events.append(_failed(key, ended))


def _failed(key: _Key, ended: Ended) -> Failed:
    return Failed(key.transaction, key.managementClass, key.party is None, ended.status, ended.byPeer)


def _segmented(template: bytes, segment: Segment) -> bytes:
    """Datagram of one segment."""
    offset: int = formatOf(template[1]).dataOffset  # type: ignore[attr-defined]  # every frame has it
    head = template[:_HEADER_AT] + segment.header.encode() + template[_BODY_AT:offset]
    return (head + segment.data).ljust(MAD_LENGTH, b"\0")


def _controlled(about: bytes, header: RMPPHeader, flip: bool) -> bytes:
    """
    Datagram of an ACK, a STOP or an ABORT: the headers of what it is about, and no data.

    @param flip: True if that came from the peer, so that this goes the other way.
    """
    method = about[3] ^ _RESPONSE if flip else about[3]
    head = about[:3] + bytes((method,)) + bytes(2) + about[6:_HEADER_AT]
    return (head + header.encode()).ljust(MAD_LENGTH, b"\0")
