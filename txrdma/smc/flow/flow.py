"""
The bytes of one SMC-R connection: what was written and is not posted, what has arrived and is not read.

Follows RFC 7609, 4.7 (data flow). A L{Flow} knows cursors, buffers and messages. Its link decides when it
posts (L{txrdma.smc.group.sendscheduler}), its stream how it ends (L{txrdma.smc.stream.stream}).

On a queue pair with a direct lane, bytes go straight into the peer's buffer, and messages into what both ends
map; elsewhere they are work requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from txrdma.error import WireError
from txrdma.iba.types import RKey
from txrdma.iba.verbs import Operation, SendRequest
from txrdma.smc.common.counting import read, SMALL, written
from txrdma.smc.flow.owner import DataReceiver, FlowOwner
from txrdma.smc.flow.ring import DATA, Ring, SPACE, spans, UPDATE
from txrdma.smc.flow.sendqueue import cut, LinkSendQueue, RemoteBuffer, SIGNAL_EVERY, Unacknowledged
from txrdma.smc.wire.cdc import ProducerFlags, StateFlags

DELIVERY: Final = 256 * 1024
"""The most bytes for one C{dataReceived}."""

ENDS: Final = int(StateFlags.CLOSED | StateFlags.ABNORMAL_CLOSE)
"""The state flags of a peer after which there is nobody to write to."""

_EARLY: Final = 64
"""Messages that may come before the handshake is over here."""

_NEWS: Final = SPACE | UPDATE
_FAILOVER: Final = int(ProducerFlags.FAILOVER_VALIDATION) << 8
_SIGNAL_MASK: Final = SIGNAL_EVERY - 1

_INVALID: Final = memoryview(b"\0")
"""Mark of a peer's ring that no bytes may be put into directly; that of one that takes them is 1."""

_EMPTY: Final = memoryview(b"")

_NOTHING: Final[list[bytes | memoryview]] = []
"""The bytes of a flow that has none to keep, which is nearly every one: nobody may change this."""


class Flow:
    """
    Both directions of one connection.

    @ivar ring: the cursors.
    @ivar protocol: takes what arrives; C{context} is its logging context.
    @ivar pending: what has been written and not yet posted, oldest first; C{backlog} is its length.
    @ivar flags: our state flags, for every message.
    @ivar peerState: the peer's.
    @ivar early: messages that came before C{begin}; None when nobody waits for them.
    @ivar isOpen: the application may write.
    @ivar isPaused: the application does not want to read at present.
    @ivar isDeaf: the application will never read again: what arrives is dropped.
    @ivar isEnding: nothing will be written any more; when all is posted, the owner hears it.
    @ivar isNoticed: the owner wants to know whenever something is posted.
    @ivar confirmsEach: see of each message whether it arrives.
    @ivar isDirty: the flow is in L{LinkSendQueue.dirty <txrdma.smc.flow.sendqueue.LinkSendQueue.dirty>}.
    @ivar isBlocked: there is more to write than the peer's ring has room for.
    @ivar written: number of the last message that told of new bytes; C{last}: of the last of all; 0: none.
    @ivar writes: how often bytes went to the peer's ring; C{wraps}: how often by two RDMA writes, as the ring
        wraps, and not by one.
    @ivar bearing: the way of the bytes; None before C{attach}.
    @ivar confirmed: sequence number and bytes produced of the last message that is known to have arrived,
        where a link keeps what has not.
    """

    __slots__ = (
        *("ring", "protocol", "context", "pending", "backlog", "flags", "peerState", "early", "owner"),
        *("isOpen", "isPaused", "isDeaf", "isEnding", "isNoticed", "confirmsEach", "isDirty", "isBlocked"),
        *("written", "last", "writes", "wraps", "messagesSent", "queue"),
        *("_quickReads", "_slowReads", "_others"),
        *("_view", "_mask", "_contexts", "_isBegun", "_isReading", "_mustSend"),
        *("_address", "_rkey", "_message", "_write", "_target", "_valid"),
        *("bearing", "confirmed", "_isMoved", "_isNew", "_posted", "_again"),
    )

    def __init__(self, queue: LinkSendQueue, view: memoryview, contexts: list[Any], owner: FlowOwner) -> None:
        """
        @param view: our buffer, where the peer writes.
        @param contexts: the stack of logging contexts of the reactor's thread.
        """
        self.queue = queue
        self.owner = owner
        self.ring = Ring(view.nbytes, view.nbytes, 0)  # until the peer's end is known
        self.protocol: DataReceiver | None = None
        self.context: dict[Any, Any] = {}
        self.pending: list[bytes | memoryview] = []
        self.backlog = self.flags = self.peerState = 0
        self.early: list[tuple[int, ...]] | None = []
        self.isOpen = self.isPaused = self.isDeaf = False
        self.isEnding = self.isNoticed = self.confirmsEach = self.isDirty = self.isBlocked = False
        self.written = self.last = self.writes = self.wraps = self.messagesSent = 0
        # Messages that were read at once, reads besides, messages besides: no message is counted twice.
        self._quickReads = self._slowReads = self._others = 0
        self._view = view
        self._mask = view.nbytes - 1
        self._contexts = contexts
        self._isBegun = self._isReading = self._mustSend = False
        self._address = 0
        self._rkey = RKey(0)
        # Made when they are needed: with a direct lane that may be never.
        self._message: SendRequest | None = None
        self._write: SendRequest | None = None
        self._target: memoryview | None = None
        self._valid = _INVALID
        self.bearing: RemoteBuffer | None = None
        self.confirmed = (0, 0)
        self._isMoved = self._isNew = False
        self._posted = self._again = _NOTHING

    # Begin and end

    def attach(self, bearing: RemoteBuffer, size: int, token: int) -> None:
        """The peer's buffer, of that size, and its alert token are known."""
        self.ring = Ring(self._view.nbytes, size, token)
        self._bind(bearing)

    def _bind(self, bearing: RemoteBuffer) -> None:
        self.bearing = bearing
        self.queue = bearing.queue
        self._address = bearing.address
        self._rkey = bearing.rkey
        if self._write is not None:
            self._write.rkey = bearing.rkey
        self._target = None

    def move(self, bearing: RemoteBuffer, kept: Sequence[Unacknowledged]) -> None:
        """
        Go on by another link: first the peer is asked whether it has what we think that it has, then all that
        is not known to have arrived is sent again (RFC 7609, 4.6).

        @param kept: what the link that has failed has kept of this flow.
        """
        self._bind(bearing)
        ring = self.ring
        again: list[bytes | memoryview] = []
        for each in kept:
            again += each[4]
        again += self._posted
        again += self._again  # where that was not the first link to fail
        length = sum(map(len, again))
        read = ring.peerConsumed - ring.produced + length
        if read > 0:
            cut(again, read)
        self._again = again
        self._posted = _NOTHING
        self._isMoved = self._isNew = True
        self.last = self.written = bearing.queue.sent + 1  # which is not posted yet
        self.touch()

    def retain(self) -> None:
        """
        Keep what is posted from now on until it has arrived, as the link does.

        What was posted before has arrived by the time another link may be used: an end posts its ADD LINK
        behind it, and the other link is confirmed later than the peer has answered that.
        """
        if not self._isMoved:  # else there are numbers that the peer may not have had
            self.confirmed = (self.ring.sequence, self.ring.produced)
        self._posted = _NOTHING

    def arrived(self, sequence: int, produced: int) -> None:
        """The peer's adapter has our message of this number, and so many bytes."""
        self.confirmed = (sequence, produced)

    def begin(self) -> None:
        """Take messages, those first that came early."""
        early, self.early = self.early, None
        self._isBegun = True
        for message in early or ():
            self.received(message)

    def drop(self) -> None:
        """Forget what is not posted, and take no more."""
        self.isOpen = False
        if self.isBlocked:
            self._unblock()
        self.pending.clear()
        self.backlog = 0

    def release(self) -> None:
        """Let go of both buffers."""
        self._view = _EMPTY
        self._target = self.bearing = None
        self._valid = _INVALID

    @property
    def reads(self) -> int:
        """Number of times that the application was given bytes."""
        return self._quickReads + self._slowReads

    @property
    def messagesReceived(self) -> int:
        """CDC messages that were taken in."""
        return self._quickReads + self._others

    @property
    def unread(self) -> int:
        """Bytes that arrived and were not read. To who has paused the end is as unread as data would be."""
        return self.isPaused or self.ring.arrived - self.ring.consumed

    # What arrives: always in the link's turn, never inside a call of the application

    def received(self, message: tuple[int, ...]) -> None:
        """Take in a CDC message, and give out what it tells of."""
        if not self._isBegun:
            self._queueEarly(message)
            return
        # All that is here is C{Ring.received}'s and C{deliver}'s: some bytes in one piece, and no other news.
        _, sequence, _, wrap, count, ackWrap, ackCount, flags = message
        ring = self.ring
        protocol = self.protocol
        consumed = ring.consumed
        arrived = ring.base + count
        read = ring.ackBase + ackCount
        offset = consumed & self._mask
        end = offset + arrived - consumed
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
            or self.isDeaf
            or protocol is None
        ):
            self._receivedOther(message)
            return
        ring.receivedSequence = sequence
        if read != ring.peerConsumed:
            ring.peerConsumed = read
            ring.blocked = False
        data = self._view[offset:end].tobytes()  # quicker than bytes()
        self._quickReads += 1
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
        """Take in a message of any kind."""
        self._others += 1
        flags = message[7]
        try:
            what = self.ring.received(message)
        except WireError as error:
            if not flags & _FAILOVER or not self._hasCaughtUp(message):
                self.owner.violated(str(error))
                return
            what = 0
        if what & DATA and not self.isPaused:
            self.deliver()
        if what & _NEWS:
            if what & UPDATE:
                self._mustSend = True
            if self.isBlocked and what & SPACE:
                self._unblock()
            if not self.isDirty and (what & UPDATE or self.backlog):
                self.touch()
        if flags & 0xFF != self.peerState and not flags & _FAILOVER:
            self.owner.stateReceived(flags & 0xFF)

    def _hasCaughtUp(self, message: tuple[int, ...]) -> bool:
        """Whether what the peer, on another link now, thinks that we have had come by the old one."""
        self.owner.pollOtherLinks()
        try:
            self.ring.received(message)
        except WireError:
            return False
        return True

    def _queueEarly(self, message: tuple[int, ...]) -> None:
        """The peer is quicker here than over TCP."""
        early = self.early
        if early is not None:
            if len(early) == _EARLY:
                early.pop()  # the next one says the same, and more
            early.append(message)

    def deliver(self) -> None:
        """Give out what is in our buffer."""
        ring = self.ring
        if self._isReading:
            return  # the loop that runs already will see it
        view = self._view
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
                if self.isDeaf or protocol is None:  # nobody wants it, but the peer needs the room
                    if ring.consume(length):
                        self.update()
                    break
                offset = consumed & (size - 1)
                length = min(length, DELIVERY, size - offset)
                data = bytes(view[offset : offset + length])
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

    # What goes out

    def write(self, data: bytes) -> int:
        """
        Write, some time soon and in order.

        @return: the backlog.
        """
        self.pending.append(data)
        self.backlog = backlog = self.backlog + len(data)
        if not self.isDirty:  # as in C{touch}
            self.isDirty = True
            queue = self.queue
            queue.dirty.append(self)
            if not queue.isBusy:
                queue.schedule()
        return backlog

    def writeSequence(self, chunks: Sequence[bytes]) -> None:
        """Write all of these chunks, some time soon and in order."""
        self.pending += chunks
        self.backlog += sum(map(len, chunks))
        if not self.isDirty:
            self.touch()

    def update(self) -> None:
        """Let the peer hear what we consumed, or how we end, with data or without."""
        self._mustSend = True
        if not self.isDirty:
            self.touch()

    def touch(self) -> None:
        """There is something to do when the link posts."""
        self.isDirty = True
        queue = self.queue
        queue.dirty.append(self)
        if not queue.isBusy:
            queue.schedule()

    def send(self, requests: list[SendRequest]) -> bool:
        """
        Send what there is directly, where that is as it mostly is: a few bytes, room for them in one piece
        and for a message, and nothing else to see to.

        @param requests: empty; the message is appended when the lane does not take it, to be posted now.
        @return: whether that was done; then the flow is not dirty any more. Else it is for C{fill}.
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
            or self.isNoticed
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
        return True

    def fill(self, requests: list[SendRequest]) -> None:
        """Send whatever there is, directly, or append requests that have to be posted now."""
        ring = self.ring
        queue = self.queue
        if self._isMoved:
            self._resend(requests)
            return
        # Nothing overtakes what is to be posted: messages have numbers in the order in which they go out.
        lane = None if requests else queue.lane
        backlog = self.backlog
        mustSend = self._mustSend
        hasWritten = False
        if backlog:
            if self.peerState & ENDS or queue.isOver:
                self.owner.peerHasClosed()
                return
            most = backlog
            if queue.isStaged:
                most = queue.most(backlog)
                if most < backlog:
                    queue.isShort = self.isDirty = True
                    queue.dirty.append(self)
            offset, first, second = ring.take(backlog, most)
            if first != backlog:
                if second:
                    self.wraps += 1
                    if first <= SMALL:
                        self._noteLarge(first + second)
                if first + second < most and not self.isBlocked:
                    self.isBlocked = True
                    self.owner.blocked()
            if first:
                mustSend = hasWritten = True
                self.writes += 1
                if first > SMALL:
                    self._noteLarge(first + second)
                if lane is not None and self._writeDirect(lane, offset, first, second):
                    pass
                elif first == backlog and not queue.isStaged and queue.unacknowledged is None:
                    self.backlog = 0
                    write = self._write or self._newWrite()
                    write.remoteAddress = self._address + offset
                    requests.append(write)
                else:
                    self._fillPieces(requests, offset, first, second)
        isLast = False
        if self.isEnding:
            isLast = self.owner.finish()
            mustSend |= isLast
            queue.flushed.append(self)
        elif self.isNoticed or self.confirmsEach:
            queue.flushed.append(self)
        if mustSend:
            self._mustSend = False
            self.messagesSent += 1
            self.last = number = queue.sent = queue.sent + 1
            signaled = not number & _SIGNAL_MASK or isLast or self.confirmsEach or queue.isSignaling
            if hasWritten:
                self.written = number
            message = ring.message(self.flags)
            if queue.unacknowledged is not None:
                queue.unacknowledged.append((number, self, ring.sequence, ring.produced, self._posted))
                self._posted = _NOTHING
            if lane is None or requests or not lane.putMessage(number, signaled, message):
                self._request(requests, number, signaled, message)

    def _request(self, requests: list[SendRequest], number: int, signaled: bool, message: bytes) -> None:
        """Append the request for a message."""
        request = self._message or self._newMessage()
        request.identifier = number
        request.signaled = signaled
        request.inline = (message,)
        if self.queue.isStaged:
            self.queue.mark()
        requests.append(request)

    def _newMessage(self) -> SendRequest:
        """Make the request for messages."""
        self._message = message = self.queue.newMessage()
        return message

    def _newWrite(self) -> SendRequest:
        """Make the request by which C{pending} goes out as it stands: its list is this one's, no other."""
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
        """There is no room for a message: end what needs none, when the peer reads no more."""
        if self.peerState & ENDS:
            if self.backlog:
                self.owner.peerHasClosed()
            elif self.isEnding:
                self._mustSend |= self.owner.finish()
                self.queue.flushed.append(self)

    def _writeDirect(self, lane: Any, offset: int, first: int, second: int) -> bool:
        """Write into the peer's buffer, where that is mapped, and still the peer's."""
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
        """Append requests for what does not go out as it stands, in one piece."""
        queue = self.queue
        pending = self.pending
        address, rkey = self._address, self._rkey
        chunks = cut(pending, first)
        requests.append(queue.write(address + offset, rkey, chunks, first))
        if queue.unacknowledged is not None:
            self._posted = self._posted + chunks
        if second:
            chunks = cut(pending, second)
            requests.append(queue.write(address, rkey, chunks, second))
            if queue.unacknowledged is not None:
                self._posted = self._posted + chunks
        self.backlog -= first + second

    def _resend(self, requests: list[SendRequest]) -> None:
        """Append what goes first on another link: whether all is there, then what is sent again."""
        queue, ring = self.queue, self.ring
        if self._isNew:
            self._isNew = False
            message = self._message or self._newMessage()
            queue.number(message)
            message.inline = (ring.validation(self.confirmed[0]),)
            requests.append(message)
        again = [] if self.peerState & ENDS else self._again  # nobody reads it any more
        length = sum(map(len, again))
        most = queue.most(length) if queue.isStaged else length
        if most:
            offset, first, second = spans(ring.produced - length, most, ring.peerSize)
            for at, count in ((offset, first), (0, second)):
                if count:
                    chunks = cut(again, count)
                    requests.append(queue.write(self._address + at, self._rkey, chunks, count))
                    if queue.unacknowledged is not None:
                        self._posted = self._posted + chunks
        if most < length:
            queue.isShort = True
        else:
            self._isMoved = False
            self._mustSend = True
        self.touch()
