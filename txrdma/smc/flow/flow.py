"""
The bytes of one SMC-R connection, in both directions (RFC 7609, 4.7).

Theory of operation. Each end owns a ring buffer that the peer writes into by RDMA. A CDC message follows each
write: it carries the producer cursor (where the written bytes end) and the consumer cursor (how far the
sender of the message has read its own ring). L{Ring <txrdma.smc.flow.ring.Ring>} keeps these four cursors as
totals.

Sending: C{write} only appends to C{pending} and marks the flow dirty. The send scheduler of the link
(L{txrdma.smc.group.sendscheduler}) later calls C{send} of each dirty flow, which handles the common case (a
few bytes, contiguous free space, shared memory), and C{fill} in all other cases. Both take free space from
the ring, write the bytes there, and send one message. Bytes that do not fit stay in C{pending} until a
message from the peer frees space.

Receiving: the link passes each CDC message to C{received}. The common case (a few contiguous bytes, nothing
else to do) is handled in place; C{_receivedOther} handles all messages. Bytes are copied out of the ring
once, and the consumer cursor is reported when that is due.

Ending: the flow knows only flags. The stream decides how a connection ends, as the flow's
L{FlowOwner <txrdma.smc.flow.owner.FlowOwner>}.

Failover (RFC 7609, 4.6): while a group has more than one link, the queue retains unacknowledged messages, and
C{move} rebinds the flow to another link. The first message there requests validation of the last sequence
number that is known to have arrived; then all unacknowledged bytes are written again to the same offsets.

With a direct lane (shared memory), bytes are stored in the peer's ring and messages in memory that both ends
map. Otherwise both are work requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TYPE_CHECKING

from txrdma.error import WireError
from txrdma.iba.types import RKey
from txrdma.iba.verbs import Operation, SendRequest
from txrdma.smc.common.counting import read, SMALL, written
from txrdma.smc.flow.owner import FlowOwner
from txrdma.smc.flow.ring import DATA, Ring, SPACE, spans, UPDATE
from txrdma.smc.flow.sendqueue import cut, LinkSendQueue, RemoteBuffer, SIGNAL_EVERY, Unacknowledged
from txrdma.smc.wire.cdc import ProducerFlags, StateFlags

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocol

DELIVERY: Final = 256 * 1024
"""Largest number of bytes passed to one C{dataReceived}."""

ENDS: Final = int(StateFlags.CLOSED | StateFlags.ABNORMAL_CLOSE)
"""State flags after which the peer reads no more."""

_EARLY: Final = 64
"""Largest number of messages that are queued until the local handshake completes."""

_NEWS: Final = SPACE | UPDATE
_FAILOVER: Final = int(ProducerFlags.FAILOVER_VALIDATION) << 8
_SIGNAL_MASK: Final = SIGNAL_EVERY - 1

_INVALID: Final = memoryview(b"\0")
"""Validity mark of a ring that must not be written directly. The mark of a writable ring is 1."""

_EMPTY: Final = memoryview(b"")

_NOTHING: Final[list[bytes | memoryview]] = []
"""Shared empty list for flows that retain no bytes, which is nearly every flow. Never modified."""


class Flow:
    """
    Both directions of one connection.

    @ivar ring: the cursors.
    @ivar protocol: receives the bytes; C{context} is its logging context.
    @ivar pending: bytes written and not yet posted, oldest first; C{backlog} is their number.
    @ivar flags: local state flags, sent in every message.
    @ivar peerState: state flags of the peer.
    @ivar early: messages received before C{begin}; None if they are not queued.
    @ivar isOpen: the application may write.
    @ivar isPaused: the application has paused reading.
    @ivar discardsInput: the application will not read any more: received bytes are dropped.
    @ivar isEnding: the application will not write any more; C{owner.finish} is called on each flush.
    @ivar hasProducer: C{owner.wasFlushed} is called after each flush, because there is a producer.
    @ivar confirmsEach: request a completion for each message.
    @ivar isDirty: the flow is in L{LinkSendQueue.dirty <txrdma.smc.flow.sendqueue.LinkSendQueue.dirty>}.
    @ivar isBlocked: the backlog exceeds the free space of the peer's ring.
    @ivar dropped: number of received bytes that were not delivered to the application.
    @ivar written: number of the last message that announced new bytes; C{last}: of the last message; 0: none.
    @ivar writes: number of writes to the peer's ring; C{wraps}: those that wrapped, and took two RDMA writes.
    @ivar remoteBuffer: the peer's ring on the current link; None before C{attach}.
    @ivar confirmed: sequence number and produced total of the last acknowledged message, while the link
        retains unacknowledged messages; C{posted}: bytes that the next message announces.
    """

    __slots__ = (
        *("ring", "protocol", "context", "pending", "backlog", "flags", "peerState", "early", "owner"),
        *(
            "isOpen",
            "isPaused",
            "discardsInput",
            "isEnding",
            "hasProducer",
            "confirmsEach",
            "isDirty",
            "isBlocked",
        ),
        *("dropped", "written", "last", "writes", "wraps", "messagesSent", "queue"),
        *("_quickReads", "_slowReads", "_others"),
        *("_view", "_mask", "_contexts", "_isBegun", "_isReading", "_mustSend"),
        *("_address", "_rkey", "_message", "_write", "_target", "_valid"),
        *("remoteBuffer", "confirmed", "posted", "_isMoved", "_isNew", "_toResend"),
    )

    def __init__(self, queue: LinkSendQueue, view: memoryview, contexts: list[Any], owner: FlowOwner) -> None:
        """
        @param view: local ring buffer, written by the peer.
        @param contexts: stack of logging contexts of the reactor's thread.
        """
        self.queue = queue
        self.owner = owner
        self.ring = Ring(view.nbytes, view.nbytes, 0)  # until the peer's end is known
        self.protocol: IProtocol | None = None
        self.context: dict[Any, Any] = {}
        self.pending: list[bytes | memoryview] = []
        self.backlog = self.flags = self.peerState = 0
        self.early: list[tuple[int, ...]] | None = []
        self.isOpen = self.isPaused = self.discardsInput = False
        self.isEnding = self.hasProducer = self.confirmsEach = self.isDirty = self.isBlocked = False
        self.dropped = 0
        self.written = self.last = self.writes = self.wraps = self.messagesSent = 0
        # Messages delivered by the fast path, other deliveries, other messages. No message is counted twice.
        self._quickReads = self._slowReads = self._others = 0
        self._view = view
        self._mask = view.nbytes - 1
        self._contexts = contexts
        self._isBegun = self._isReading = self._mustSend = False
        self._address = 0
        self._rkey = RKey(0)
        # Requests are created on first use; flows with a direct lane may never need them.
        self._message: SendRequest | None = None
        self._write: SendRequest | None = None
        self._target: memoryview | None = None
        self._valid = _INVALID
        self.remoteBuffer: RemoteBuffer | None = None
        self.confirmed = (0, 0)
        self._isMoved = self._isNew = False
        self.posted = self._toResend = _NOTHING

    # Begin and end

    def attach(self, remoteBuffer: RemoteBuffer, size: int, token: int) -> None:
        """Set the peer's buffer, its size in bytes, and the peer's alert token."""
        self.ring = Ring(self._view.nbytes, size, token)
        self._bind(remoteBuffer)

    def _bind(self, remoteBuffer: RemoteBuffer) -> None:
        self.remoteBuffer = remoteBuffer
        self.queue = remoteBuffer.queue
        self._address = remoteBuffer.address
        self._rkey = remoteBuffer.rkey
        if self._write is not None:
            self._write.rkey = remoteBuffer.rkey
        self._target = None

    def move(self, remoteBuffer: RemoteBuffer, unacknowledged: Sequence[Unacknowledged]) -> None:
        """
        Continue on another link: validate what the peer has received, then resend the rest (RFC 7609, 4.6).

        @param unacknowledged: unacknowledged messages of this flow on the failed link, oldest first.
        """
        self._bind(remoteBuffer)
        ring = self.ring
        toResend: list[bytes | memoryview] = []
        for each in unacknowledged:
            toResend += each[4]
        toResend += self.posted
        toResend += self._toResend  # not yet resent when the previous link failed
        length = sum(map(len, toResend))
        read = ring.peerConsumed - ring.produced + length
        if read > 0:
            cut(toResend, read)  # the peer has consumed these, so they need not be resent
        self._toResend = toResend
        self.posted = _NOTHING
        self._isMoved = self._isNew = True
        self.last = self.written = remoteBuffer.queue.sent + 1  # the validation message
        self.touch()

    def retain(self) -> None:
        """
        Retain posted bytes until they are acknowledged, from now on.

        Bytes posted earlier have arrived before another link becomes usable: ADD LINK is posted after them,
        and the new link is confirmed only after the peer has answered it.
        """
        if not self._isMoved:  # else the peer may not have received all messages up to this number
            self.confirmed = (self.ring.sequence, self.ring.produced)
        self.posted = _NOTHING

    def arrived(self, sequence: int, produced: int) -> None:
        """Record the last acknowledged message: its sequence number, and the total of bytes up to it."""
        self.confirmed = (sequence, produced)

    def begin(self) -> None:
        """Process messages from now on, beginning with early ones."""
        early, self.early = self.early, None
        self._isBegun = True
        for message in early or ():
            try:
                self.received(message)
            except Exception:
                self.owner.abortOnError()

    def drop(self) -> None:
        """Discard bytes that are not posted, and accept no more."""
        self.isOpen = False
        if self.isBlocked:
            self._unblock()
        self.pending.clear()
        self.backlog = 0

    def release(self) -> None:
        self._view = _EMPTY
        self._target = self.remoteBuffer = None
        self._valid = _INVALID

    @property
    def reads(self) -> int:
        return self._quickReads + self._slowReads

    @property
    def messagesReceived(self) -> int:
        return self._quickReads + self._others

    @property
    def unread(self) -> int:
        """Number of unread received bytes; at least 1 while paused, so that end-of-file waits, too."""
        return self.isPaused or self.ring.arrived - self.ring.consumed

    # Receiving: always called by the link, never inside a call of the application

    def received(self, message: tuple[int, ...]) -> None:
        """
        Process a CDC message, and deliver the bytes that it announces.

        The fast path handles a few contiguous bytes and an ordinary consumer cursor. It inlines
        C{Ring.received} and C{deliver}, whose rules it must follow, and saves 8 % of an echo of 64 bytes.
        """
        if not self._isBegun:
            self._queueEarly(message)
            return
        _, sequence, _, wrap, count, ackWrap, ackCount, flags = message
        ring = self.ring
        protocol = self.protocol
        consumed = ring.consumed
        arrived = ring.base + count
        read = ring.ackBase + ackCount
        offset = consumed & self._mask
        end = offset + arrived - consumed
        # Anything unusual takes the slow path, which also reports violations: changed or special flags, a
        # cursor in another round or out of range, an old message, bytes that wrap, a blocked writer, no
        # reader.
        if (
            flags != self.peerState
            or ring.peerFlags
            or wrap != ring.wrap
            or ackWrap != ring.ackWrap
            or (sequence - ring.receivedSequence) & 0x8000
            or end > self._mask
            or end - offset > SMALL
            or ackCount >= ring.peerSize
            or not ring.arrived < arrived <= ring.mayArrive
            or not ring.peerConsumed <= read <= ring.produced
            or self.isBlocked
            or self.isPaused
            or self.discardsInput
            or protocol is None
        ):
            self._receivedOther(message)
            return
        ring.receivedSequence = sequence
        if read != ring.peerConsumed:
            ring.peerConsumed = read
            ring.blocked = False
        data = self._view[offset:end].tobytes()  # faster than bytes()
        self._quickReads += 1
        # Consumed before the call: the application may write in dataReceived, and its message carries the
        # cursor.
        ring.arrived = ring.consumed = arrived
        if arrived > ring.dueAbove and ring.updateDue:
            self.update()
        contexts = self._contexts
        contexts.append(self.context)
        try:
            protocol.dataReceived(data)
        except BaseException:
            self.owner.blame("dataReceived")
        finally:
            contexts.pop()

    def _receivedOther(self, message: tuple[int, ...]) -> None:
        """Process a CDC message of any kind."""
        self._others += 1
        flags = message[7]
        try:
            what = self.ring.received(message)
        except WireError as error:
            # A failover message may overtake messages of the link that has failed, which were received there
            # but not processed yet.
            if not flags & _FAILOVER or not self._hasCaughtUp(message):
                self.owner.violated(str(error))
                return
            what = 0
        if what & DATA and not self.isPaused:
            self.deliver()  # first, since an answer of the application also carries the consumer cursor
        if what & _NEWS:
            if what & UPDATE:
                self._mustSend = True
            if self.isBlocked and what & SPACE:
                self._unblock()
            if not self.isDirty and (what & UPDATE or self.backlog):
                self.touch()
        # After the bytes that precede an end. Failover messages carry no state.
        if flags & 0xFF != self.peerState and not flags & _FAILOVER:
            self.owner.stateReceived(flags & 0xFF)

    def _hasCaughtUp(self, message: tuple[int, ...]) -> bool:
        """Poll the other links; return whether the messages before a failover have arrived there."""
        self.owner.pollOtherLinks()
        try:
            self.ring.received(message)
        except WireError:
            return False
        return True

    def _queueEarly(self, message: tuple[int, ...]) -> None:
        """Queue a message that overtook the end of the handshake on TCP."""
        early = self.early
        if early is not None:
            if len(early) == _EARLY:
                early.pop()  # cursors are totals, so the newer message replaces it
            early.append(message)

    def deliver(self) -> None:
        """Deliver received bytes to the application, until the ring is empty or the application pauses."""
        ring = self.ring
        if self._isReading:
            return  # called from dataReceived: the running loop continues
        size = ring.size
        contexts = self._contexts
        contexts.append(self.context)
        self._isReading = True
        try:
            while not self.isPaused:
                consumed = ring.consumed
                length = ring.arrived - consumed
                if not length:
                    break
                protocol = self.protocol
                if self.discardsInput or protocol is None:  # drop the bytes, to free space for the peer
                    self.dropped += length
                    if ring.consume(length):
                        self.update()
                    break
                offset = consumed & (size - 1)
                length = min(length, DELIVERY, size - offset)
                # No variable for the view: a traceback would retain the memory with the frame.
                data = bytes(self._view[offset : offset + length])
                self._slowReads += 1
                if length > SMALL:
                    read[(length - 1).bit_length()] += 1
                if ring.consume(length):
                    self.update()
                protocol.dataReceived(data)
        except BaseException:
            self.owner.blame("dataReceived")
        finally:
            self._isReading = False
            contexts.pop()
        self.owner.drained()

    # Sending

    def write(self, data: bytes) -> int:
        """Queue bytes for sending; return the backlog in bytes."""
        self.pending.append(data)
        self.backlog = backlog = self.backlog + len(data)
        if not self.isDirty:  # inlined touch
            self.isDirty = True
            queue = self.queue
            queue.dirty.append(self)
            if not queue.isBusy:
                queue.schedule()
        return backlog

    def update(self) -> None:
        """Send a message on the next flush, with or without data."""
        self._mustSend = True
        if not self.isDirty:
            self.touch()

    def touch(self) -> None:
        """Mark the flow dirty, and schedule a flush of its link."""
        self.isDirty = True
        queue = self.queue
        queue.dirty.append(self)
        if not queue.isBusy:
            queue.schedule()

    def send(self, requests: list[SendRequest]) -> bool:
        """
        Send the backlog through the direct lane in the common case: a few bytes, contiguous free space for
        them, room for a message, and nothing else to do. This saves 5 % of an echo of 64 bytes.

        @param requests: empty; the message is appended if the lane does not accept it, and must be posted
            now.
        @return: True if sent; the flow is not dirty any more. False: call C{fill}.
        """
        queue = self.queue
        lane = queue.direct
        target = self._target
        ring = self.ring
        offset = ring.at
        length = self.backlog
        produced = ring.produced + length
        size = ring.peerSize
        if (
            lane is None
            or target is None
            or not 0 < length <= SMALL
            or offset + length >= size
            or produced - ring.peerConsumed >= size
            or self.isEnding
            or self.confirmsEach
            or self.peerState & ENDS
            or queue.sent >= queue.limit
            or self._valid[0] != 1
        ):
            return False
        pending = self.pending
        for piece in pending:
            end = offset + len(piece)
            target[offset:end] = piece
            offset = end
        ring.at = offset
        ring.produced = produced
        ring.blocked = False
        message = ring.message(self.flags)
        self.last = self.written = number = queue.sent = queue.sent + 1
        pending.clear()
        self.backlog = 0
        self._mustSend = False
        self.writes += 1
        self.messagesSent += 1
        signaled = not number & _SIGNAL_MASK or queue.isSignaling
        if not lane.putMessage(number, signaled, message):
            self._request(requests, number, signaled, message)
        self.isDirty = False
        if self.hasProducer:
            queue.flushed.append(self)
        return True

    def fill(self, requests: list[SendRequest]) -> None:
        """
        Send queued bytes and one message, directly or by work requests.

        @param requests: requests to post at once; those of this flow are appended. Not empty if other flows
            of the same flush came first.
        """
        ring = self.ring
        queue = self.queue
        if self._isMoved:
            self._resend(requests)
            return
        # The lane would overtake requests that are not posted yet, but completions assume that messages leave
        # in the order of their numbers.
        lane = None if requests else queue.lane
        backlog = self.backlog
        mustSend = self._mustSend
        hasWritten = False
        if backlog:
            if self.peerState & ENDS or queue.isOver:
                self._endBacklog()
                return
            # The number of bytes that may be sent now is limited by the staging memory of adapters here, and
            # by the free space of the peer's ring in take().
            most = backlog
            if queue.isStaged:
                most = queue.most(backlog)
                if most < backlog:  # stay dirty: continue when completions free staging memory
                    queue.isShort = self.isDirty = True
                    queue.dirty.append(self)
            offset, first, second = ring.take(backlog, most)
            if first != backlog:
                self._noteDivided(first, second, most)
            if first:
                mustSend = hasWritten = True
                self.writes += 1
                if first > SMALL:
                    self._noteLarge(first + second)
                # Three ways to write, cheapest first: copy into shared memory; one request that refers to the
                # chunks of pending (the caller clears pending after posting); or pieces, for bytes that wrap,
                # a partial write, staging memory, or bytes retained for failover.
                if lane is not None and self._writeDirect(lane, offset, first, second):
                    pass
                elif first == backlog and not queue.isStaged and queue.unacknowledged is None:
                    self.backlog = 0
                    write = self._write or self._newWrite()
                    write.remoteAddress = self._address + offset
                    requests.append(write)
                else:
                    self._fillPieces(requests, offset, first, second)
        # The owner may end the write side only now, since it must know whether anything is left to send. New
        # state flags are sent in the same message.
        isLast = False
        if self.isEnding:
            isLast = self.owner.finish()
            mustSend |= isLast
            queue.flushed.append(self)
        elif self.hasProducer or self.confirmsEach:
            queue.flushed.append(self)
        if mustSend:
            self._mustSend = False
            self.messagesSent += 1
            self.last = number = queue.sent = queue.sent + 1
            signaled = not number & _SIGNAL_MASK or isLast or self.confirmsEach or queue.isSignaling
            if hasWritten:
                self.written = number
            message = ring.message(self.flags)
            if lane is None or requests or not lane.putMessage(number, signaled, message):
                self._request(requests, number, signaled, message)
            if queue.unacknowledged is not None:  # a failover may have to send this again
                queue.unacknowledged.append((number, self, ring.sequence, ring.produced, self.posted))
                self.posted = _NOTHING

    def rewind(self, produced: int, posted: list[bytes | memoryview]) -> None:
        """
        Undo a L{fill} that an exception has interrupted, before its bytes are announced to the peer.

        @param produced: C{Ring.produced} before it; C{posted}: the attribute of this name before it.
        """
        self.ring.rewind(produced)
        self.posted = posted

    def _endBacklog(self) -> None:
        """Handle a backlog that the peer will not read, or that no link can send."""
        mustSend = self._mustSend
        self.owner.peerHasClosed()  # drops the backlog or aborts; both end in another flush
        if mustSend and not (self.backlog or self.isDirty or self.queue.isOver):
            self.touch()  # the peer waits for the answer to its abort, which nothing else sends again

    def _noteDivided(self, first: int, second: int, most: int) -> None:
        """Count a write that wraps around the end of the ring; block the flow if the ring is full."""
        if second:
            self.wraps += 1
            if first <= SMALL:
                self._noteLarge(first + second)
        if first + second < most and not self.isBlocked:
            self.isBlocked = True  # the next consumer cursor unblocks the flow (see _receivedOther)
            self.owner.blocked()

    def _request(self, requests: list[SendRequest], number: int, signaled: bool, message: bytes) -> None:
        request = self._message or self._newMessage()
        request.identifier = number
        request.signaled = signaled
        request.inline = (message,)
        if self.queue.isStaged:
            self.queue.mark()
        requests.append(request)

    def _newMessage(self) -> SendRequest:
        self._message = message = self.queue.newMessage()
        return message

    def _newWrite(self) -> SendRequest:
        """Create the request that writes C{pending} itself, a list that is never replaced."""
        write = SendRequest(0, Operation.RDMA_WRITE, inline=self.pending, rkey=self._rkey, signaled=False)
        self._write = write
        return write

    def _noteLarge(self, length: int) -> None:
        """Count a write by its size, unless it is a small one."""
        if length > SMALL:
            written[(length - 1).bit_length()] += 1

    def _unblock(self) -> None:
        self.isBlocked = False
        self.owner.unblocked()

    def resign(self) -> None:
        """End the write side without a message: the window is full, and the peer has closed."""
        if self.peerState & ENDS:
            if self.backlog:
                self.owner.peerHasClosed()
            elif self.isEnding:
                self._mustSend |= self.owner.finish()
                self.queue.flushed.append(self)

    def _writeDirect(self, lane: Any, offset: int, first: int, second: int) -> bool:
        """Copy bytes into the peer's ring; return False if it is not mapped, or not valid any more."""
        target = self._target
        if target is None:
            found = lane.targetOf(self._rkey, self._address, self.ring.peerSize)
            if found is None:
                return False
            self._target, self._valid = target, _ = found
        if self._valid[0] != 1:
            return False
        pending = self.pending
        if first == self.backlog:
            for piece in pending:
                end = offset + len(piece)
                target[offset:end] = piece
                offset = end
            pending.clear()
            self.backlog = 0
            return True
        for at, length in ((offset, first), (0, second)):
            for piece in cut(pending, length) if length else ():
                end = at + len(piece)
                target[at:end] = piece
                at = end
        self.backlog -= first + second
        return True

    def _fillPieces(self, requests: list[SendRequest], offset: int, first: int, second: int) -> None:
        """Append write requests for one or two pieces at the front of C{pending}."""
        queue = self.queue
        pending = self.pending
        address, rkey = self._address, self._rkey
        chunks = cut(pending, first)
        requests.append(queue.write(address + offset, rkey, chunks, first))
        if queue.unacknowledged is not None:
            self.posted = self.posted + chunks
        if second:
            chunks = cut(pending, second)
            requests.append(queue.write(address, rkey, chunks, second))
            if queue.unacknowledged is not None:
                self.posted = self.posted + chunks
        self.backlog -= first + second

    def _resend(self, requests: list[SendRequest]) -> None:
        """
        Append the first requests after a failover: validation, then the unacknowledged bytes.

        If an exception interrupts it, the next flush begins again.
        """
        queue, ring = self.queue, self.ring
        if self._isNew:
            message = self._message or self._newMessage()
            queue.number(message)
            message.inline = (ring.validation(self.confirmed[0]),)
            requests.append(message)
        toResend = [] if self.peerState & ENDS else [*self._toResend]  # the peer reads no more
        length = sum(map(len, toResend))
        most = queue.most(length) if queue.isStaged else length
        if most:
            offset, first, second = spans(ring.produced - length, most, ring.peerSize)
            for at, count in ((offset, first), (0, second)):
                if count:
                    chunks = cut(toResend, count)
                    requests.append(queue.write(self._address + at, self._rkey, chunks, count))
                    if queue.unacknowledged is not None:
                        self.posted = self.posted + chunks
        self._isNew = False
        self._toResend = toResend
        if most < length:
            queue.isShort = True
        else:
            self._isMoved = False
            self._mustSend = True
        self.touch()
