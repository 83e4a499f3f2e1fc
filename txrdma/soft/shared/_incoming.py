"""
The incoming half of a lane: records into receives, and what the peer may not do.

Keeps the promises of InfiniBand Architecture vol. 1, 9.7 and 10.8.3.2 to whoever posts receives.

Whatever is read from the peer's box is the peer's word: lengths and positions are checked, and one that can't
be ends this queue pair, nothing else.
"""

from __future__ import annotations

from collections import deque
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
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.shared._atomics import execute
from txrdma.soft.shared._boxes import spread
from txrdma.soft.shared._layout import (
    barrier,
    CONSUMED,
    CONTINUED,
    FIRST,
    KIND,
    Kind,
    LENGTH,
    LINE,
    MORE,
    NOTICE_BYTES,
    ORDERED,
    PADDING,
    PLAIN,
    PLAIN_SOLICITED,
    RESULT_COUNT,
    RESULTS,
    SOLICITED,
    STALLED,
    WAKE,
)
from txrdma.soft.shared._outgoing import Outgoing

if TYPE_CHECKING:
    from txrdma.soft.core.memory import Region

_SUCCESS: Final = Status.SUCCESS
_RECEIVE: Final = CompletionOpcode.RECEIVE
_LOCAL_WRITE: Final = 1
_LONGEST: Final = 1 << 31
PATIENCE: Final = 16
IDLE: Final = 8
_FIRST_RECEIVES: Final = 4
_new = tuple.__new__

_SHORT_BYTES: Final = 512
_SHORT: Final[dict[int, tuple[int, int, bool]]] = {}
"""
Headers of short SENDs that have been seen: their length, the words they take, whether solicited.

Only those without an immediate, which nothing but a peer's will could bound: there are some thousand others.
"""

_EVENTS: Final = {
    Status.REM_INV_REQ_ERR: AsyncEventKind.QP_REQUEST_ERROR,
    Status.REM_ACCESS_ERR: AsyncEventKind.QP_ACCESS_ERROR,
}
"""The asynchronous event of ours when a request of the peer ends with such a status."""

_Ready = tuple[int, "Region | None", int, int, Completion]
"""Identifier, region, offset, length (-1: not as simple as that), and the completion when all goes well."""


class Incoming:
    """
    Records of the peer, and the receives of one queue pair.

    @ivar consumed: the position up to which the peer's records are consumed.
    @ivar idle: how often we have looked since something came.
    @ivar unsaid: no fence stood yet between saying how far we are and looking whether the peer sleeps: that
        is done when there is time, and before we sleep.
    @ivar targets: of a message that has come in part, where it goes.
    @ivar expected: the header of messages that need no receives; -1, which none has, while there are none.
    """

    def __init__(self, owner: SoftQueuePair, outgoing: Outgoing, shared: bool) -> None:
        """
        @param outgoing: completes what the peer has consumed, when nothing comes.
        @param shared: others take from the owner's receives, too.
        """
        self.consumed = 0
        self.idle = 0
        self.unsaid = False
        self.targets: list[memoryview] | None = None
        self.expected = -1
        self._owner = owner
        self._domain = owner.domain
        self._lookup = owner.keys.lookup
        self._receives = owner.receives
        self._deliver = owner.receiveCompleted
        self._number = owner.number
        self._boxes = outgoing.boxes
        self._bells = outgoing.bells
        self._outgoing = outgoing
        self._shared = shared
        self._filled = 0
        self._stalled = False
        self._executed = 0  # atomics of the peer
        self._established = False  # something has come, or we are in RTS
        self._messageHeader = -1  # what is to be expected from then on
        self._short: dict[int, tuple[int, int, bool]] = {}  # until then every record is looked at closely
        self._begun: ReceiveRequest | None = None  # taken from the shared receives, and not yet full
        self._usual = 0  # the length of the latest message
        self._ready: deque[_Ready] = deque()

    def expect(self, header: int) -> None:
        """Leave records with this header to others, as soon as the connection is established."""
        self._messageHeader = header
        if self._established:
            self.expected = header

    def establish(self) -> None:
        """Take the connection for established: the peer has sent something, or the queue pair is in RTS."""
        self._established = True
        self.expected = self._messageHeader
        self._short = _SHORT

    def poll(self) -> None:
        """
        Look for what has arrived, and for what the peer has consumed.

        A short SEND for a receive of one segment is nearly all that comes: that is done here, without calls.
        """
        boxes = self._boxes
        words = boxes.theirs
        at = boxes.at
        header = words[at]
        if not header:
            self.idle += 1
            if self.idle > IDLE or self._bells.armed or self._outgoing.isHeld:
                self.lookBack()
            return
        ready, data, end, consumed = self._ready, boxes.raw, boxes.theirEnd, self.consumed
        if self._shared:
            ready.clear()  # others may have taken it
        before = consumed
        while header:
            short = self._short.get(header)
            if short is not None and ready and self.targets is None:
                if not ORDERED:
                    barrier()
                length, size, solicited = short
                identifier, region, offset, room, completion = ready[0]
                after = at + size
                if length <= room and after <= end and region is not None and region.valid:
                    start = (at << 3) + 8
                    region.view[offset : offset + length] = data[start : start + length]
                    if completion[4] != length:
                        self._usual = length
                        completion = self._received(identifier, length)
                    ready.popleft()
                    self._receives.popleft()
                    boxes.at = at = after if after != end else FIRST
                    self.consumed = consumed = consumed + (size << 3)
                    self._deliver(completion, solicited)
                    header = words[at]
                    continue
            if not self._special(header) or self.consumed - before > boxes.ring:
                break  # more than a ring of them cannot be from a peer that follows the rules
            at = boxes.at
            consumed = self.consumed
            header = words[at]
        outgoing = self._outgoing
        if outgoing.isOver:
            return
        if consumed == before:  # it waits for a receive: there is nothing to tell about that
            self.lookBack()
            return
        if not ORDERED:
            barrier()
        boxes.words[CONSUMED] = consumed
        self.unsaid = True
        self.idle = 0
        if words[WAKE]:
            self.say()
        if len(outgoing.outstanding) >= PATIENCE:
            self.lookBack()  # mostly this is left for when nothing arrives

    def lookBack(self) -> None:
        """
        See what the peer has consumed, and whether it wants to know what we have.

        There is time for that when nothing comes, and it must be done before we sleep.
        """
        outgoing = self._outgoing
        if outgoing.isLinked and (outgoing.outstanding or outgoing.isHeld):
            consumed = self._boxes.theirs[CONSUMED]
            if outgoing.isHeld or consumed >= outgoing.outstanding[0][0]:
                outgoing.settle(consumed)
        if self.unsaid and not outgoing.isOver:
            self.say()

    def say(self) -> None:
        """Look whether the peer sleeps until we are as far as we are."""
        self.unsaid = False
        self._bells.consumed()

    def _received(self, identifier: int, length: int) -> Completion:
        return _new(Completion, (identifier, _SUCCESS, _RECEIVE, self._number, length, None, 0, False, 0, 0))

    def _special(self, header: int) -> bool:
        """Consume a record of any kind; False when there is nothing more to consume at present."""
        if self._outgoing.isOver:
            return False
        boxes = self._boxes
        at = boxes.at
        end = boxes.theirEnd
        control = header >> 24 & 0xFF
        length = header & LENGTH
        size = (length + 71) & -LINE
        after = at + (size >> 3)
        kind = control & KIND
        if control & ~SOLICITED == PLAIN and length <= _SHORT_BYTES and not header >> 32:
            _SHORT[header] = (length, size >> 3, control == PLAIN_SOLICITED)
        isKnown = 0 < kind <= Kind.ATOMIC and control <= 63
        if after > end or not isKnown or (kind == PADDING and (after != end or at == FIRST)):
            return self._refuse(Status.REM_INV_REQ_ERR)
        if kind == Kind.FAULT:
            isAccess = header >> 32 == Status.REM_ACCESS_ERR
            return self._refuse(Status.REM_ACCESS_ERR if isAccess else Status.REM_INV_REQ_ERR)
        if kind != PADDING:
            if kind != Kind.ATOMIC:
                if control & ~SOLICITED == PLAIN and self._peeked():
                    return True  # now it is as simple as that
                if not self._receives and self._begun is None:
                    if not self._stalled:
                        self._stalled = True
                        timer = self._owner.attributes.minRNRTimer or 0
                        boxes.words[STALLED] = (self.consumed + 1) << 8 | timer & 31
                    return False
            start = (at << 3) + 8
            content = boxes.theirBytes[start : start + length]
            take = self._execute if kind == Kind.ATOMIC else self._receive
            if not take(control, header >> 32, content):
                return False
        boxes.at = after if after != end else FIRST
        self.consumed += size
        self.unsaid = True
        if not self._established and kind != PADDING:
            self.establish()
            if self._owner.attributes.state is QPState.RTR:
                self._owner.told(AsyncEventKind.COMMUNICATION_ESTABLISHED)
        return True

    def _receive(self, control: int, immediate: int, data: memoryview) -> bool:
        """Put a record, or the next part of a message, into the oldest receive."""
        owner = self._owner
        request = self._begun or owner.receives[0]
        kind = control & KIND
        first = not control & CONTINUED
        part = control & (MORE | CONTINUED)
        if (
            first != (self.targets is None)
            or (part and (not data or kind == Kind.WRITE_WITH_IMMEDIATE))
            or (kind == Kind.WRITE_WITH_IMMEDIATE and len(data) != NOTICE_BYTES)
        ):
            return self._refuse(Status.REM_INV_REQ_ERR)
        opcode, length = _RECEIVE, 0
        if kind == Kind.WRITE_WITH_IMMEDIATE:
            opcode = CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE
            length = int.from_bytes(data[:8], "little")
            if length > _LONGEST:
                return self._refuse(Status.REM_INV_REQ_ERR)
        else:
            if sum(segment.length for segment in request.segments) < self._filled + len(data):
                self._unfit(request, Status.LOC_LEN_ERR, Status.REM_INV_REQ_ERR)
                return False
            try:
                if self.targets is None:
                    local, domain = owner.keys.local, owner.domain
                    self.targets = [local(domain, segment, True) for segment in request.segments]
            except ProtectionError:
                self._unfit(request, Status.LOC_PROT_ERR, Status.REM_OP_ERR)
                return False
            spread(self.targets, self._filled, data)
            self._filled += len(data)
            length = self._filled
        if control & MORE:
            if self._shared and self._begun is None:
                self._taken(request)
                self._begun = request
            return True
        self.targets = None
        self._filled = 0
        self._taken(request)
        told = None if kind == Kind.SEND else immediate
        owner.receiveCompleted(
            Completion(request.identifier, _SUCCESS, opcode, owner.number, length, told),
            bool(control & SOLICITED),
        )
        return not self._outgoing.isOver

    def _taken(self, request: ReceiveRequest) -> None:
        """Remove a receive from the queue, because it is used up."""
        begun, self._begun = self._begun, None
        receives = self._receives
        if begun is None and receives and receives[0] is request:
            receives.popleft()
            if self._ready:
                self._ready.popleft()

    def _execute(self, control: int, operation: int, asked: memoryview) -> bool:
        """An atomic: what was there before stands in our box by the time its record is consumed."""
        status, before = Status.REM_INV_REQ_ERR, 0
        if control == Kind.ATOMIC and self.targets is None:
            status, before = execute(self._owner, operation, asked)
        if status:
            return self._refuse(status)
        self._boxes.words[RESULTS + self._executed % RESULT_COUNT] = before
        self._executed += 1
        return True

    def receivesPosted(self) -> None:
        """The receive queue has grown: find out beforehand where messages go, and how it will be told."""
        if self._outgoing.isOver:
            return
        if not self._shared:
            ready, posted = len(self._ready), len(self._receives)
            self._prepare(ready, posted if self._established else min(posted, _FIRST_RECEIVES))
        if self._stalled:
            self._stalled = False
            self._boxes.words[STALLED] = 0
            self.poll()

    def _prepare(self, first: int, after: int) -> None:
        """Find out where messages go that take these receives, and how it will be told."""
        receives, ready, lookup = self._receives, self._ready, self._lookup
        number, usual, domain = self._number, self._usual, self._domain
        for index in range(first, after):
            request = receives[index]
            identifier = request.identifier
            completion = _new(
                Completion, (identifier, _SUCCESS, _RECEIVE, number, usual, None, 0, False, 0, 0)
            )
            segments = request.segments
            if len(segments) == 1:
                address, room, lkey = segments[0]
                region = lookup(lkey)
                if region is not None and region.domain is domain and region.rights & _LOCAL_WRITE:
                    offset = address - region.address
                    if offset >= 0 and offset + room <= region.length:
                        ready.append((identifier, region, offset, room, completion))
                        continue
            ready.append((identifier, None, 0, -1, completion))

    def _peeked(self) -> bool:
        """
        Find out where a message goes that takes the oldest receive; tell whether that was not known.

        Of shared receives that is the only one, and what was found out holds for this C{poll}.
        """
        if self._ready or not self._receives:
            return False
        self._prepare(0, 1 if self._shared else len(self._receives))
        return True

    def _unfit(self, request: ReceiveRequest, ours: Status, theirs: Status) -> None:
        """A posted receive can't take what came: it fails, and the sender's request does."""
        owner = self._owner
        self._tellFault(theirs)
        self._taken(request)
        owner.receiveCompleted(Completion(request.identifier, ours, _RECEIVE, owner.number), True)
        if not self._outgoing.isOver:
            owner.failed(None)

    def _refuse(self, status: Status) -> bool:
        """The peer sent what it must not; False, because nothing more is consumed."""
        self._tellFault(status)
        self._owner.failed(_EVENTS[status])
        return False

    def _tellFault(self, status: Status) -> None:
        """The peer's oldest request ends like this; our receiving ends with it."""
        self._boxes.words[CONSUMED] = status << 56 | self.consumed

    def close(self) -> ReceiveRequest | None:
        """Stop; the receive that was taken from shared ones, and is not full."""
        self.targets = None
        self._ready.clear()
        begun, self._begun = self._begun, None
        return begun
