"""
The receiving half of a lane: copies records into receives, and validates the peer's data.

Implements the responder of InfiniBand Architecture vol. 1, 9.7 and 10.8.3.2.

Theory of operation. C{poll} reads the header of the next record; zero means that there is none. It copies the
payload into the oldest receive, advances C{consumed}, and publishes that once per poll: the peer then reuses
the space and completes its requests. Publishing needs no system call, unless the peer sleeps until its
requests are complete; the fence that this check needs is deferred to idle polls.

A record without a receive stays where it is, and the C{STALLED} word reports it to the sender, whose RNR
timer runs from then on. From the first SEND on, the oldest receives are prepared when posted (region checked,
completion made), so that a short SEND needs no calls; C{_ready} is parallel to the front of the receive
queue. A queue pair with shared receives prepares the oldest one for a single poll, because another queue pair
may take it afterwards.

The peer's box is untrusted: each length and position is read once and then checked, and an impossible one
fails this queue pair only. A refusal is the top byte of the C{CONSUMED} word; it fails the sender's oldest
outstanding request.
"""

from __future__ import annotations

from sys import byteorder
from typing import Final, TYPE_CHECKING

from txrdma.error import ProtectionError
from txrdma.iba.verbs import (
    AsyncEventKind,
    Completion,
    CompletionOpcode,
    QPState,
    ReceiveRequest,
    Status,
)
from txrdma.soft.core.pieces import scatter
from txrdma.soft.shared._atomics import execute
from txrdma.soft.shared._layout import (
    CONSUMED,
    CONTINUED,
    FIRST,
    KIND,
    Kind,
    LENGTH,
    LINE,
    MORE,
    NOTICE,
    NOTICE_BYTES,
    PADDING,
    PLAIN,
    PLAIN_SOLICITED,
    RESULT_COUNT,
    RESULTS,
    SOLICITED,
    STALLED,
    WAKE,
)
from txrdma.soft.shared._outgoing import LaneSender
from txrdma.soft.shared._wakeups import WAKES_SENDER
from txrdma.unix.fences import barrier, ORDERED

if TYPE_CHECKING:
    from txrdma.soft.core.memory import Region
    from txrdma.soft.core.queuepair import SoftQueuePair

_SUCCESS: Final = Status.SUCCESS
_RECEIVE: Final = CompletionOpcode.RECEIVE
_WRITTEN: Final = CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE
_LOCAL_WRITE: Final = 1
_LONGEST: Final = 1 << 31
UNCOMPLETED_SENDS: Final = 16
IDLE_POLLS: Final = 8

PREPARED: Final = 16
"""Largest number of prepared receives: each takes 250 bytes."""

_FIRST_PREPARED: Final = 2
"""Number of receives that are prepared at first; it doubles when a burst of messages uses all of them."""

_LOWER_HALF: Final = (1 << 32) - 1
_new = tuple.__new__

_SHORT_BYTES: Final = 512
_SHORT: Final[dict[int, tuple[int, int, bool]]] = {}
"""Cache of headers of short SENDs without immediates: length, size in words, whether solicited."""

_EVENTS: Final = {
    Status.REM_INV_REQ_ERR: AsyncEventKind.QP_REQUEST_ERROR,
    Status.REM_ACCESS_ERR: AsyncEventKind.QP_ACCESS_ERROR,
}
"""Asynchronous events for requests of the peer that end with these statuses."""

_WRONG_TYPE: Final = (TypeError, ValueError, AttributeError, LookupError)
"""Exceptions raised by a segment of a wrong type in a receive, which fails its queue pair only."""

_Ready = tuple[int, "Region | None", int, int, Completion]
"""Identifier, region, offset, length (-1: not a single segment), and the prepared completion."""

_NONE: Final[list[_Ready]] = []
"""The prepared receives of all lanes without any. Never modified."""


class LaneReceiver:
    """
    Records of the peer, and the receives of one queue pair.

    @ivar consumed: the position up to which the peer's records are consumed.
    @ivar idle: polls since the last record.
    @ivar isUnannounced: the peer was not woken for C{consumed}: the necessary fence is deferred to idle
        polls, or until this process sleeps.
    @ivar targets: receive buffers of a partly received message.
    @ivar expected: the header of messages that need no receives; -1 (no valid header) if there are none.
    """

    __slots__ = (
        *("_begun", "_deliver", "_domain", "_established", "_executed", "_filled", "_latestLength"),
        *("_lookup", "_messageHeader", "_mostPrepared", "_notice", "_number", "_outgoing", "_owner"),
        *("_ready", "_receives", "_rings", "_shared", "_short", "_stalled", "_takesSends", "_wakeups"),
        *("consumed", "expected", "idle", "isUnannounced", "targets"),
    )

    def __init__(self, owner: SoftQueuePair, outgoing: LaneSender, shared: bool) -> None:
        self.consumed = 0
        self.idle = 0
        self.isUnannounced = False
        self.targets: list[memoryview] | None = None
        self.expected = -1
        self._owner = owner
        self._domain = owner.domain
        self._lookup = owner.keys.lookup
        self._receives = owner.receives
        self._deliver = owner.receiveCompleted
        self._number = owner.number
        self._rings = outgoing.rings
        self._wakeups = outgoing.wakeups
        self._outgoing = outgoing
        self._shared = shared
        self._filled = 0
        self._stalled = False
        self._executed = 0  # atomics of the peer
        self._established = False  # a record has arrived, or the queue pair is in RTS
        self._messageHeader = -1  # the value of C{expected} from then on
        # empty until then, so that each record takes the general path
        self._short: dict[int, tuple[int, int, bool]] = {}
        self._begun: ReceiveRequest | None = None  # taken from the shared receives, and not yet full
        self._latestLength = 0  # the length of the latest message
        self._notice = -1  # L{NOTICE} from then on, unless receives are shared
        self._takesSends = False  # a SEND has used a receive: receives are prepared when posted from then on
        self._mostPrepared = _FIRST_PREPARED
        self._ready = _NONE  # then a list, since a deque takes 0.7 KiB

    def expect(self, header: int) -> None:
        """Leave records with this header to C{Lane.takeMessages}, once the connection is established."""
        self._messageHeader = header
        if self._established:
            self.expected = header

    def establish(self) -> None:
        """Mark the connection established: the peer has sent a record, or the queue pair is in RTS."""
        self._established = True
        self.expected = self._messageHeader
        self._short = _SHORT
        if not self._shared:
            self._notice = NOTICE

    def poll(self) -> None:
        """
        Process records of the peer, and complete sends that it has consumed.

        Fast path: a short SEND into a receive of one segment, and the notice of an RDMA WRITE with immediate
        data, nearly all traffic, are done without calls. For such a notice the general path needs about a
        dozen.
        """
        rings = self._rings
        words = rings.peerWords
        at = rings.readIndex
        header = words[at]
        if not header:
            self.idle += 1
            # Few polls read the position of the peer, a cache miss, while nobody waits for completions.
            if self.idle > IDLE_POLLS or self._wakeups.armed or self._outgoing.isSuspended:
                self.pollSends()
            return
        ready, data, end, consumed = self._ready, rings.peerBuffer, rings.peerEnd, self.consumed
        receives, number = self._receives, self._number
        if self._shared:
            ready.clear()  # another queue pair may have taken the receive
        before = consumed
        # Each fast iteration uses a receive, so that a broken peer cannot keep this loop running.
        while header:
            short = self._short.get(header)
            if short is not None and ready and self.targets is None:
                if not ORDERED:
                    barrier()
                length, size, solicited = short
                identifier, region, offset, capacity, completion = ready[0]
                after = at + size
                # The peer wrote the header: a record must end within its ring, where padding precedes a wrap.
                if length <= capacity and after <= end and region is not None and region.valid:
                    start = (at << 3) + 8
                    region.view[offset : offset + length] = data[start : start + length]
                    if completion[4] != length:  # it was prepared with the length of the message before
                        self._latestLength = length
                        completion = self._received(identifier, length)
                    del ready[0]
                    receives.popleft()
                    rings.readIndex = at = after if after != end else FIRST
                    self.consumed = consumed = consumed + (size << 3)
                    self._deliver(completion, solicited)
                    header = words[at]
                    continue
            elif header & _LOWER_HALF == self._notice and receives and self.targets is None:
                if not ORDERED:
                    barrier()
                after = at + LINE // 8
                length = words[at + 1]
                if after <= end and length <= _LONGEST:
                    identifier = receives.popleft().identifier
                    if ready:
                        del ready[0]
                    rings.readIndex = at = after if after != end else FIRST
                    self.consumed = consumed = consumed + LINE
                    self._deliver(
                        _new(
                            Completion,
                            (identifier, _SUCCESS, _WRITTEN, number, length, header >> 32, 0, False, 0, 0),
                        ),
                        False,
                    )
                    header = words[at]
                    continue
            if not self._consumeAny(header) or self.consumed - before > rings.ring:
                break  # more than a ring of records is a broken peer's: let others run
            ready = self._ready  # the first SEND creates it
            at = rings.readIndex
            consumed = self.consumed
            header = words[at]
        outgoing = self._outgoing
        if outgoing.isClosed:
            return
        if consumed == before:  # waits for a receive: nothing to acknowledge
            self.pollSends()
            return
        if not ORDERED:
            barrier()
        rings.localWords[CONSUMED] = consumed
        self.isUnannounced = True
        self.idle = 0
        # Without a fence this read may be too early; then an idle poll finds the wake word.
        wake = words[WAKE]
        if wake and wake != self._wakeups.wokenSends and wake & WAKES_SENDER:
            self.announce()
        if len(outgoing.outstanding) >= UNCOMPLETED_SENDS:
            self.pollSends()  # otherwise left for idle polls

    def pollSends(self) -> None:
        """Complete consumed sends, and wake a peer that waits until this end has read more."""
        outgoing = self._outgoing
        if outgoing.isLinked and (outgoing.outstanding or outgoing.isSuspended):
            consumed = self._rings.peerWords[CONSUMED]
            if outgoing.isSuspended or consumed >= outgoing.outstanding[0][0]:
                outgoing.peerConsumed(consumed)
        if self.isUnannounced and not outgoing.isClosed:
            self.announce()

    def announce(self) -> None:
        """Wake the peer if it waits until this end has read more of the ring."""
        self.isUnannounced = False
        self._wakeups.consumed()

    def _received(self, identifier: int, length: int) -> Completion:
        return _new(Completion, (identifier, _SUCCESS, _RECEIVE, self._number, length, None, 0, False, 0, 0))

    def _consumeAny(self, header: int) -> bool:
        """Consume a record of any kind; False when no more can be consumed now."""
        if self._outgoing.isClosed:
            return False
        rings = self._rings
        at = rings.readIndex
        end = rings.peerEnd
        control = header >> 24 & 0xFF
        length = header & LENGTH
        # Header (8 bytes) and payload, rounded up to cache lines.
        size = (length + 71) & -LINE
        after = at + (size >> 3)
        kind = control & KIND
        if control & ~SOLICITED == PLAIN and length <= _SHORT_BYTES and not header >> 32:
            _SHORT[header] = (length, size >> 3, control == PLAIN_SOLICITED)
        isKnown = 0 < kind <= Kind.ATOMIC and control <= 63
        # Records do not wrap: padding fills the rest of a ring, but never all of it.
        if after > end or not isKnown or (kind == PADDING and (after != end or at == FIRST)):
            return self._refuse(Status.REM_INV_REQ_ERR)
        if kind == Kind.FAULT:
            # The peer does its RDMA itself, and has found a request that this end would have to refuse.
            isAccess = header >> 32 == Status.REM_ACCESS_ERR
            return self._refuse(Status.REM_ACCESS_ERR if isAccess else Status.REM_INV_REQ_ERR)
        if kind != PADDING:
            if kind != Kind.ATOMIC:
                if control & ~SOLICITED == PLAIN and self._prepareOldest():
                    return True  # the fast path takes it now
                if not self._receives and self._begun is None:
                    if not self._stalled:
                        self._stalled = True  # the RNR timer of the sender runs from now on
                        timer = self._owner.attributes.minRNRTimer or 0
                        rings.localWords[STALLED] = (self.consumed + 1) << 8 | timer & 31
                    return False
            if not ORDERED:
                barrier()
            start = (at << 3) + 8
            content = rings.peerBytes[start : start + length]
            take = self._execute if kind == Kind.ATOMIC else self._receive
            if not take(control, header >> 32, content):
                return False
        rings.readIndex = after if after != end else FIRST
        self.consumed += size
        self.isUnannounced = True
        if not self._established and kind != PADDING:
            self.establish()
            if self._owner.attributes.state is QPState.RTR:
                self._owner.raiseEvent(AsyncEventKind.COMMUNICATION_ESTABLISHED)
        return True

    def _receive(self, control: int, immediate: int, data: memoryview) -> bool:
        """Put a record, or the next part of a message, into the oldest receive."""
        owner = self._owner
        request = self._begun or owner.receives[0]
        kind = control & KIND
        first = not control & CONTINUED
        part = control & (MORE | CONTINUED)
        # A part must continue a message exactly if one has begun; only SENDs have parts, none of them empty.
        if (
            first != (self.targets is None)
            or (part and (not data or kind == Kind.WRITE_WITH_IMMEDIATE))
            or (kind == Kind.WRITE_WITH_IMMEDIATE and len(data) != NOTICE_BYTES)
        ):
            return self._refuse(Status.REM_INV_REQ_ERR)
        opcode, length = _RECEIVE, 0
        if kind == Kind.WRITE_WITH_IMMEDIATE:
            opcode = _WRITTEN
            length = int.from_bytes(data[:8], byteorder)
            if length > _LONGEST:
                return self._refuse(Status.REM_INV_REQ_ERR)
        else:
            try:
                if sum(segment.length for segment in request.segments) < self._filled + len(data):
                    self._rejectReceive(request, Status.LOC_LEN_ERR, Status.REM_INV_REQ_ERR)
                    return False
                if self.targets is None:
                    local, domain = owner.keys.local, owner.domain
                    self.targets = [local(domain, segment, True) for segment in request.segments]
            except ProtectionError:
                self._rejectReceive(request, Status.LOC_PROT_ERR, Status.REM_OP_ERR)
                return False
            except _WRONG_TYPE:
                self._rejectReceive(request, Status.LOC_QP_OP_ERR, Status.REM_OP_ERR)
                return False
            scatter(self.targets, self._filled, data)
            self._filled += len(data)
            length = self._filled
        if control & MORE:
            if self._shared and self._begun is None:
                # Other queue pairs must not take the receive of a message that has begun.
                self._removeReceive(request)
                self._begun = request
            return True
        self.targets = None
        self._filled = 0
        self._removeReceive(request)
        value = None if kind == Kind.SEND else immediate
        owner.receiveCompleted(
            Completion(request.identifier, _SUCCESS, opcode, owner.number, length, value),
            bool(control & SOLICITED),
        )
        return not self._outgoing.isClosed  # by an overrun of the completion queue

    def _removeReceive(self, request: ReceiveRequest) -> None:
        """Remove a used receive from the queue."""
        begun, self._begun = self._begun, None
        receives = self._receives
        if begun is None and receives and receives[0] is request:
            receives.popleft()
            if self._ready:
                del self._ready[0]

    def _execute(self, control: int, operation: int, asked: memoryview) -> bool:
        """Execute an atomic; the old value is in the local box before the record counts as consumed."""
        status, before = Status.REM_INV_REQ_ERR, 0
        if control == Kind.ATOMIC and self.targets is None:
            status, before = execute(self._owner, operation, asked)
        if status:
            return self._refuse(status)
        self._rings.localWords[RESULTS + self._executed % RESULT_COUNT] = before
        self._executed += 1
        return True

    def receivesPosted(self) -> None:
        """Prepare targets and completions of newly posted receives."""
        if self._outgoing.isClosed:
            return
        if self._takesSends and not self._shared:
            self._prepare(len(self._ready), min(len(self._receives), self._mostPrepared))
        if self._stalled:
            self._stalled = False
            self._rings.localWords[STALLED] = 0
            self.poll()

    def _prepare(self, first: int, after: int) -> None:
        """Prepare the receives from index C{first} to C{after} (exclusive)."""
        if self._ready is _NONE:
            self._ready = []
        receives, ready, lookup = self._receives, self._ready, self._lookup
        number, usual, domain = self._number, self._latestLength, self._domain
        for index in range(first, after):
            request = receives[index]
            identifier = request.identifier
            completion = _new(
                Completion, (identifier, _SUCCESS, _RECEIVE, number, usual, None, 0, False, 0, 0)
            )
            segments = request.segments
            if len(segments) == 1:
                try:
                    address, capacity, lkey = segments[0]
                    region = lookup(lkey)
                    if region is not None and region.domain is domain and region.rights & _LOCAL_WRITE:
                        offset = address - region.address
                        if type(offset) is int and offset >= 0 and offset + capacity <= region.length:
                            ready.append((identifier, region, offset, capacity, completion))
                            continue
                except _WRONG_TYPE:
                    region = None  # L{_receive} rejects the request
            ready.append((identifier, None, 0, -1, completion))

    def _prepareOldest(self) -> bool:
        """Prepare the oldest receives, if none is prepared. A shared one is prepared for one poll only."""
        if self._ready or not self._receives:
            return False
        if self._takesSends:  # all that were prepared have been used
            self._mostPrepared = min(2 * self._mostPrepared, PREPARED)
        self._takesSends = True
        self._prepare(0, 1 if self._shared else min(len(self._receives), self._mostPrepared))
        return True

    def trim(self) -> bool:
        """Discard prepared receives until the next SEND; return whether the oldest one is partly filled."""
        self._ready, self._takesSends, self._mostPrepared = _NONE, False, _FIRST_PREPARED
        return self.targets is not None

    def _rejectReceive(self, request: ReceiveRequest, local: Status, remote: Status) -> None:
        """Fail a receive that can't take the message, and the sender's request."""
        owner = self._owner
        self._writeFault(remote)
        self._removeReceive(request)
        owner.receiveCompleted(Completion(request.identifier, local, _RECEIVE, owner.number), True)
        if not self._outgoing.isClosed:
            owner.failed(None)

    def _refuse(self, status: Status) -> bool:
        """Fail the connection because the peer broke the protocol; always False."""
        self._writeFault(status)
        self._owner.failed(_EVENTS[status])
        return False

    def _writeFault(self, status: Status) -> None:
        """Write the status with which the peer's oldest request ends."""
        self._rings.localWords[CONSUMED] = status << 56 | self.consumed

    def close(self) -> ReceiveRequest | None:
        """Stop, and return a partly filled receive that was taken from the shared queue."""
        self.targets = None
        self._ready.clear()
        begun, self._begun = self._begun, None
        return begun
