"""
RMPP transfers of one port, in both directions, and their packets.

Follows InfiniBand Architecture vol. 1, 13.6 (RMPP). Neither clocks nor sockets are used.

Theory of operation. L{txrdma.mad.core.rmpp} transfers one message. This module has all transfers of a port,
by transaction, class, direction and, for requests of other nodes, the requester; it converts their segments
to datagrams. Ended transfers are remembered for a while, since the last acknowledgement may be lost and the
peer repeats a segment. Every table is bounded, since requesters may be forged, and a requester can use only
its share of each.

In a double-sided transfer (13.6.6.3) both the request and its answer are transfers: when the request is
acknowledged, the requester opens the window for the answer by an ACK of segment 0. The responder need not
wait for that: until then its window is 1, as in Linux.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf
from struct import Struct
from typing import Final, NamedTuple, Union

from txrdma.error import ResourceExhausted
from txrdma.iba.path import IBPath, lifetimeSeconds
from txrdma.iba.types import GID
from txrdma.kit.shares import ByteShares, Shares
from txrdma.kit.values import replace
from txrdma.mad.core.addressing import mayBeFrom
from txrdma.mad.core.rmpp import (
    abortHeader,
    controlHeader,
    headerError,
    RESEND_SECONDS,
    RMPPReceiver,
    RMPPSegment,
    Sender,
    TOTAL_SECONDS,
    TransferEnded,
    WINDOW,
)
from txrdma.mad.layouts.messages import formatOf, MAD_LENGTH, RMPPHeader, RMPPStatus, RMPPType

LINGER_SECONDS: Final = 10.0
"""Seconds for which a completed transfer is remembered."""

IDLE_SECONDS: Final = 40.0
"""Seconds without a segment after which an incoming transfer is aborted."""

LONGEST_REQUEST: Final = 1024 * 1024
"""Maximum length in bytes of a message that another node sends as a request."""

MOST_REQUESTS: Final = 256
"""Maximum number of concurrent incoming transfers of requests."""

MOST_REMEMBERED: Final = 16_384
"""Maximum number of known incoming transfers, including ended ones."""

MOST_REQUEST_BYTES: Final = 32 << 20
"""Maximum number of bytes of all incomplete incoming requests."""

MOST_ANSWERS: Final = 512
"""Maximum number of outgoing answers: a requester's address may be forged."""

MOST_ANSWER_BYTES: Final = 64 << 20
"""Maximum number of bytes of all outgoing answers; a requester's only answer may have any length."""

_HEADER_AT: Final = 24
_FLAGS_AT: Final = 26
_ACTIVE: Final = 1
_BODY_AT: Final = 36
_RESPONSE: Final = 0x80
_HEAD: Final = Struct(">xBxBxxxxQ")

RMPP_CLASSES: Final = frozenset(number for number in range(256) if formatOf(number).hasRMPP)


class TransferReceived(NamedTuple):
    """
    A message was received.

    @ivar first: its first segment, with the headers of all segments.
    @ivar message: the attribute data of all segments, joined.
    """

    first: bytes
    message: bytes


class Delivered(NamedTuple):
    """
    All segments of an outgoing message were acknowledged.

    @ivar isLocal: True if the request of the transaction was sent by this port.
    """

    transactionID: int
    managementClass: int
    isLocal: bool


class TransferFailed(NamedTuple):
    """
    A transfer, in either direction, has failed.

    @ivar isLocal: True if the request of the transaction was sent by this port.
    @ivar byPeer: True if the peer has ended the transfer.
    """

    transactionID: int
    managementClass: int
    isLocal: bool
    status: RMPPStatus
    byPeer: bool


Event = Union[TransferReceived, Delivered, TransferFailed]


class TransferPacket(NamedTuple):
    """A datagram to send, and its path."""

    datagram: bytes
    path: IBPath


def isRMPP(datagram: bytes) -> bool:
    """True for a packet of an RMPP transfer: its Active flag is set, regardless of the rest of its header."""
    return len(datagram) >= _BODY_AT and datagram[1] in RMPP_CLASSES and datagram[_FLAGS_AT] & _ACTIVE != 0


def _segmentSize(managementClass: int) -> tuple[int, int]:
    """Return the bytes of the attribute in each segment, and the bytes between the RMPP header and them."""
    offset = formatOf(managementClass).dataOffset
    return MAD_LENGTH - offset, offset - _BODY_AT


def _resendSeconds(path: IBPath) -> float:
    """Initial seconds to wait for an acknowledgement, by the path's packet lifetime."""
    code = path.packetLifeTime
    return RESEND_SECONDS if code is None else max(RESEND_SECONDS, 2 * lifetimeSeconds(code))


class _Incoming:
    """
    An incoming message, partial or complete.

    @ivar sender: the requester, for limits; None for the answer to a local request.
    @ivar bytes: number of bytes that count for L{MOST_REQUEST_BYTES}.
    @ivar answerWindow: number of segments of the answer that may be sent before the first ACK.
    """

    def __init__(
        self, managementClass: int, path: IBPath, now: float, longest: int | None, sender: Hashable
    ) -> None:
        self.path = path
        self.sender = sender
        self.bytes = 0
        self.first = b""
        self.receiver = RMPPReceiver(*_segmentSize(managementClass), WINDOW, longest)
        self.giveUpAt = now + TOTAL_SECONDS
        self.forgetAt = now + IDLE_SECONDS
        self.answerWindow = 1


class _Outgoing:
    """
    A message that is being sent, or was sent.

    @ivar template: the frame of each segment.
    @ivar requester: that of an answer, for limits; None for a local request.
    @ivar bytes: number of bytes of the message.
    @ivar forgetAt: time until which a sent message is remembered.
    """

    def __init__(
        self,
        template: bytes,
        message: bytes,
        path: IBPath,
        now: float,
        window: int,
        requester: Hashable,
    ) -> None:
        self.path = path
        self.requester = requester
        self.bytes = len(message)
        self.template = template
        self.sender = Sender(message, *_segmentSize(template[1]), now, _resendSeconds(path), window)
        self.forgetAt = inf

    @property
    def deadline(self) -> float:
        deadline = self.sender.deadline()
        return self.forgetAt if deadline is None else deadline


_Requester = tuple[int, GID | None, int]


class _Key(NamedTuple):
    """Identity of a transfer: transaction, class, direction, and the requester if that is another node."""

    transaction: int
    managementClass: int
    isAnswer: bool
    requester: _Requester | None

    @property
    def opposite(self) -> _Key:
        """Identity of the transfer in the other direction of the same transaction."""
        return self._replace(isAnswer=not self.isAnswer)


class RMPPTransfers:
    """
    RMPP transfers of one port.

    A request and its response are two transfers. Transaction IDs of local requests are unique; those of
    other nodes' requests are qualified by the requester.
    """

    def __init__(
        self,
        transactionIDBits: int = 64,
        senderOf: Callable[[IBPath], Hashable] = lambda path: path.sgid or path.slid,
    ) -> None:
        """
        @param transactionIDBits: low bits of local transaction IDs that answers contain unchanged.
        @param senderOf: returns the identity of the sender of a request that was received on a path.
        """
        self._senderOf = senderOf
        self._localMask = (1 << transactionIDBits) - 1
        self._incoming: dict[_Key, _Incoming] = {}
        self._outgoing: dict[_Key, _Outgoing] = {}
        # Of other nodes' requests: known and incomplete incoming transfers, and answers.
        self._remembered, self._requests, self._answers = Shares[_Key](), Shares[_Key](), Shares[_Key]()
        self._requestBytes, self._answerBytes = ByteShares(), ByteShares()
        self._deadline = inf
        self._packets: list[TransferPacket] = []
        self._events: list[Event] = []

    def send(self, template: bytes, message: bytes, path: IBPath, now: float) -> None:
        """
        Start to send a message.

        A partly acknowledged answer continues when its request is received again.

        @param template: a datagram whose headers are those of all segments.
        @raise ResourceExhausted: too many answers are outstanding.
        """
        key, requester = self._keyOfSent(template, path), None
        if key.isAnswer:
            before = self._outgoing.get(key)
            if before is not None and before.sender.acknowledged and not before.sender.isDone:
                return
            requester = self._senderOf(replace(path, slid=path.dlid, sgid=path.dgid))
            if before is None and len(self._outgoing) >= MOST_ANSWERS:
                raise ResourceExhausted(f"{len(self._outgoing)} RMPP transfers are in progress")
            self._removeOutgoing(key)
            if before is None and self._answers.isUsed(requester, MOST_ANSWERS):
                raise ResourceExhausted("the requester has its share of all answers in progress")
            if not self._answerBytes.hasRoom(requester, len(message), MOST_ANSWER_BYTES):
                raise ResourceExhausted("answers in progress have too many bytes")
            self._answers.add(requester, key)
            self._answerBytes.add(requester, len(message))
        request = self._incoming.get(key.opposite)
        window = 1 if request is None else request.answerWindow
        self._outgoing[key] = _Outgoing(template, message, path, now, window, requester)
        self._advance(key, now)

    def received(self, datagram: bytes, path: IBPath, now: float) -> bool:
        """
        Process a packet for which L{isRMPP} is true.

        @param path: the path on which it was received.
        @return: True if it advanced a transfer.
        """
        header = RMPPHeader.decode(datagram, _HEADER_AT)
        key = self._keyOf(datagram, path)
        if header.type is RMPPType.DATA:
            return self._dataReceived(key, datagram, header, path, now)
        if key.opposite in self._outgoing:
            return self._receiverControl(key.opposite, header, now)
        if key in self._incoming:
            self._senderControl(key, datagram, header)
        elif key.isAnswer and (ended := headerError(header)) is not None and ended.byPeer:
            self._events.append(_failed(key, ended))  # aborted before the first segment
        return False

    def expects(self, datagram: bytes, path: IBPath) -> bool:
        """True if a packet belongs to a known transfer, and is from its peer."""
        key = self._keyOf(datagram, path)
        incoming, outgoing = self._incoming.get(key), self._outgoing.get(key.opposite)
        if incoming is not None:
            return (incoming.path.slid, incoming.path.sgid) == (path.slid, path.sgid)
        return outgoing is not None and mayBeFrom(outgoing.path, path.slid, path.sgid, 0)

    def isAnswering(self, datagram: bytes) -> bool:
        """True if the transfer of the response to this local request has begun."""
        return self._keyOfAnswer(datagram) in self._incoming

    def forget(self, datagram: bytes) -> None:
        """Cancel the transfers of a local request, with an ABORT if they are incomplete."""
        key = self._keyOfAnswer(datagram)
        outgoing = self._removeOutgoing(key.opposite)
        incoming = self._incoming.pop(key, None)
        header = abortHeader(RMPPStatus.UNSPECIFIED)
        if incoming is not None and not incoming.receiver.isDone:
            self._reply(incoming.first, incoming.path, header)
        elif outgoing is not None and not outgoing.sender.isDone:
            self._control(outgoing, header)

    def withdraw(self, template: bytes, path: IBPath) -> None:
        """Cancel the transfer of an answer without notifying its receiver."""
        self._removeOutgoing(self._keyOfSent(template, path))

    def deadline(self) -> float | None:
        """Time at which to call L{expired}, or an earlier one; None for never."""
        if not self._incoming and not self._outgoing:
            self._deadline = inf
        return None if self._deadline == inf else self._deadline

    def expired(self, now: float) -> None:
        """Resend segments, or fail transfers; called at the time of L{deadline}."""
        for key, incoming in tuple(self._incoming.items()):
            if min(incoming.forgetAt, incoming.giveUpAt) <= now:
                self._expireIncoming(key, incoming)
        for key, outgoing in tuple(self._outgoing.items()):
            if outgoing.forgetAt <= now:
                self._removeOutgoing(key)
                continue
            ended = outgoing.sender.expired(now)
            if ended is None:
                self._advance(key, now)
            else:
                self._endOutgoing(key, ended)
        incomings, outgoings = self._incoming.values(), self._outgoing.values()
        self._deadline = min(
            min((min(incoming.forgetAt, incoming.giveUpAt) for incoming in incomings), default=inf),
            min((outgoing.deadline for outgoing in outgoings), default=inf),
        )

    def outgoing(self) -> Sequence[TransferPacket]:
        """Take the packets to send."""
        packets, self._packets = self._packets, []
        return packets

    def events(self) -> Sequence[Event]:
        """Take the events since the last time."""
        events, self._events = self._events, []
        return events

    def _reply(self, received: bytes, path: IBPath, header: RMPPHeader) -> None:
        """Send an ACK, a STOP or an ABORT to the sender of an incoming message."""
        self._packets.append(TransferPacket(_controlDatagram(received, header, flip=True), path.reverse()))

    def _control(self, outgoing: _Outgoing, header: RMPPHeader) -> None:
        """Send an ACK, a STOP or an ABORT to the receiver of an outgoing message."""
        self._packets.append(
            TransferPacket(_controlDatagram(outgoing.template, header, flip=False), outgoing.path)
        )

    # Identities of transfers.

    def _keyOf(self, datagram: bytes, path: IBPath) -> _Key:
        """Identity of the transfer of a received packet."""
        managementClass, method, transaction = _HEAD.unpack_from(datagram)
        if method & _RESPONSE:
            return _Key(transaction & self._localMask, managementClass, True, None)
        return _Key(transaction, managementClass, False, (path.slid, path.sgid, path.sqpn))

    def _keyOfSent(self, template: bytes, path: IBPath) -> _Key:
        """Identity of the transfer of an outgoing message."""
        managementClass, method, transaction = _HEAD.unpack_from(template)
        if method & _RESPONSE:
            return _Key(transaction, managementClass, True, (path.dlid, path.dgid, path.dqpn))
        return _Key(transaction & self._localMask, managementClass, False, None)

    def _keyOfAnswer(self, datagram: bytes) -> _Key:
        """Identity of the transfer of the response to a local request."""
        managementClass, _, transaction = _HEAD.unpack_from(datagram)
        return _Key(transaction & self._localMask, managementClass, True, None)

    # Incoming transfers.

    def _dataReceived(self, key: _Key, datagram: bytes, header: RMPPHeader, path: IBPath, now: float) -> bool:
        """Process a DATA segment; True if it is a new one."""
        incoming = self._incoming.get(key)
        if incoming is None:
            if header.data1 != 1:
                return False  # a segment of an unknown transfer
            sender = None if key.requester is None else self._senderOf(path)
            if key.requester is not None and not self._hasCapacity(sender):
                self._reply(datagram, path, abortHeader(RMPPStatus.RESOURCES_EXHAUSTED))
                return False
            incoming = self._beginIncoming(key, datagram, path, now, sender)
        receiver = incoming.receiver
        wasDone, before = receiver.isDone, receiver.accepted
        offset = formatOf(datagram[1]).dataOffset
        ended = receiver.received(header, datagram[offset:])
        for answer in receiver.outgoing():
            self._reply(datagram, path, answer)
        if ended is None and key.requester is not None and receiver.accepted > before and not receiver.isDone:
            ended = self._segmentStored(incoming, (receiver.accepted - before) * (MAD_LENGTH - offset))
        if ended is not None:
            self._endIncoming(key, ended)
        elif receiver.isDone and not wasDone:
            # Later duplicates of segments are acknowledged again, so the transfer is remembered for a while.
            incoming.forgetAt = now + LINGER_SECONDS
            incoming.giveUpAt = inf
            self._deadline = min(self._deadline, incoming.forgetAt)
            self._requestEnded(key, incoming)
            self._events.append(TransferReceived(incoming.first, receiver.take()))
        elif receiver.accepted > before:
            incoming.forgetAt = now + IDLE_SECONDS
        return receiver.accepted > before

    def _segmentStored(self, incoming: _Incoming, length: int) -> TransferEnded | None:
        """Count the bytes of a request's segment; stop the request if its sender has too many now."""
        incoming.bytes += length
        self._requestBytes.add(incoming.sender, length)
        if self._requestBytes.hasRoom(incoming.sender, 0, MOST_REQUEST_BYTES):
            return None
        self._reply(incoming.first, incoming.path, abortHeader(RMPPStatus.RESOURCES_EXHAUSTED))
        return TransferEnded(RMPPStatus.RESOURCES_EXHAUSTED)

    def _beginIncoming(
        self, key: _Key, datagram: bytes, path: IBPath, now: float, sender: Hashable
    ) -> _Incoming:
        """Begin an incoming transfer with its first segment."""
        longest = None if key.requester is None else LONGEST_REQUEST
        incoming = self._incoming[key] = _Incoming(datagram[1], path, now, longest, sender)
        incoming.first = datagram
        self._deadline = min(self._deadline, incoming.forgetAt)
        if key.requester is not None:
            self._remembered.add(sender, key)
            self._requests.add(sender, key)
        else:
            self._removeOutgoing(key.opposite)  # the response acknowledges the request
        return incoming

    def _hasCapacity(self, sender: Hashable) -> bool:
        """Return whether the limits allow a requester another incoming RMPP request."""
        isRemembered = len(self._incoming) < MOST_REMEMBERED and not self._remembered.isUsed(
            sender, MOST_REMEMBERED
        )
        return isRemembered and self._requests.hasRoom(sender, MOST_REQUESTS)

    def _requestEnded(self, key: _Key, incoming: _Incoming) -> None:
        """Release what counts for a request while it is incomplete."""
        if key.requester is not None:
            self._requests.remove(incoming.sender, key)
            self._requestBytes.add(incoming.sender, -incoming.bytes)
            incoming.bytes = 0

    def _endIncoming(self, key: _Key, ended: TransferEnded) -> None:
        """End an incoming transfer that either end has stopped or aborted."""
        incoming = self._incoming.pop(key)
        self._remembered.remove(incoming.sender, key)
        if not incoming.receiver.isDone:
            self._requestEnded(key, incoming)
            self._events.append(_failed(key, ended))

    def _senderControl(self, key: _Key, datagram: bytes, header: RMPPHeader) -> None:
        """Process an ACK (which opens the local answer's first window), STOP or ABORT of a sender."""
        incoming = self._incoming[key]
        ended = headerError(header)
        if ended is None:
            if incoming.receiver.isDone and header.data1 == 0:
                incoming.answerWindow = header.data2
            return
        if not ended.byPeer:
            self._reply(datagram, incoming.path, abortHeader(ended.status))
        self._endIncoming(key, ended)

    def _expireIncoming(self, key: _Key, incoming: _Incoming) -> None:
        """Abort an incomplete incoming transfer; forget a complete one."""
        if not incoming.receiver.isDone:
            self._reply(incoming.first, incoming.path, abortHeader(RMPPStatus.TOTAL_TIME_TOO_LONG))
        self._endIncoming(key, TransferEnded(RMPPStatus.TOTAL_TIME_TOO_LONG))

    # Outgoing transfers.

    def _receiverControl(self, key: _Key, header: RMPPHeader, now: float) -> bool:
        """Process an ACK, STOP or ABORT for an outgoing message; True if it acknowledges more segments."""
        outgoing = self._outgoing[key]
        sender = outgoing.sender
        wasDone, before = sender.isDone, sender.acknowledged
        ended = sender.received(header, now)
        if ended is not None:
            self._endOutgoing(key, ended)
        elif not sender.isDone:
            self._advance(key, now)
        else:
            if key.isAnswer:
                self._removeOutgoing(key)
            else:  # also when it is acknowledged again: then the ACK below was lost
                outgoing.forgetAt = now + LINGER_SECONDS
                self._deadline = min(self._deadline, outgoing.forgetAt)
                # An ACK of segment 0 reverses the direction: it opens the window of the response.
                self._control(outgoing, controlHeader(RMPPType.ACK, RMPPStatus.NORMAL, 0, WINDOW))
            if not wasDone:
                self._events.append(Delivered(key.transaction, key.managementClass, key.requester is None))
        return sender.acknowledged > before

    def _advance(self, key: _Key, now: float) -> None:
        """Send the segments of an outgoing message that its window allows."""
        outgoing = self._outgoing[key]
        for segment in outgoing.sender.outgoing(now):
            self._packets.append(TransferPacket(_segmentDatagram(outgoing.template, segment), outgoing.path))
        self._deadline = min(self._deadline, outgoing.deadline)

    def _removeOutgoing(self, key: _Key) -> _Outgoing | None:
        outgoing = self._outgoing.pop(key, None)
        if outgoing is not None and key.isAnswer:
            self._answers.remove(outgoing.requester, key)
            self._answerBytes.add(outgoing.requester, -outgoing.bytes)
        return outgoing

    def _endOutgoing(self, key: _Key, ended: TransferEnded) -> None:
        """End an outgoing transfer, with a STOP or an ABORT unless the peer has ended it."""
        outgoing = self._outgoing[key]
        self._removeOutgoing(key)
        if not ended.byPeer:
            self._control(outgoing, abortHeader(ended.status))
        if ended.byPeer or not outgoing.sender.isDone:
            self._events.append(_failed(key, ended))


def _failed(key: _Key, ended: TransferEnded) -> TransferFailed:
    return TransferFailed(
        key.transaction, key.managementClass, key.requester is None, ended.status, ended.byPeer
    )


def _segmentDatagram(template: bytes, segment: RMPPSegment) -> bytes:
    offset = formatOf(template[1]).dataOffset
    head = template[:_HEADER_AT] + segment.header.encode() + template[_BODY_AT:offset]
    return (head + segment.data).ljust(MAD_LENGTH, b"\0")


def _controlDatagram(about: bytes, header: RMPPHeader, flip: bool) -> bytes:
    """
    Datagram of an ACK, a STOP or an ABORT: the headers of the transfer, and no data.

    @param flip: True for a transfer from the peer, whose direction is reversed.
    """
    method = about[3] ^ _RESPONSE if flip else about[3]
    head = about[:3] + bytes((method,)) + bytes(2) + about[6:_HEADER_AT]
    return (head + header.encode()).ljust(MAD_LENGTH, b"\0")
