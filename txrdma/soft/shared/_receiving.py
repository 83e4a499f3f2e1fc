"""
The receiving half of a lane: records into receives, and what the peer may not do.

Keeps the promises of InfiniBand Architecture vol. 1, 9.7 and 10.8.3.2 to whoever posts receives.

Whatever is read from the peer's box is the peer's word: lengths and positions are checked, and one that can't
be ends this queue pair, nothing else.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, TYPE_CHECKING

from txrdma.error import ProtectionError
from txrdma.iba.verbs import (
    AsyncEventKind,
    Completion,
    CompletionOpcode,
    QPState,
    ReceiveRequest,
    Status,
)
from txrdma.soft._route import Owner
from txrdma.soft.shared._atomics import execute
from txrdma.soft.shared._layout import (
    barrier,
    CONSUMED,
    CONTINUED,
    FIRST,
    HEADER_BYTES,
    KIND,
    Kind,
    LENGTH,
    LINE,
    MORE,
    ORDERED,
    PADDING,
    PLAIN,
    PLAIN_SOLICITED,
    RESULT_COUNT,
    RESULTS,
    SOLICITED,
    STALLED,
    Surroundings,
    TOLD_BYTES,
    WAKE,
    Wake,
)
from txrdma.soft.shared._sending import Sending
from txrdma.soft.shared._writer import spread

if TYPE_CHECKING:
    from txrdma.soft.memory import Region

_SUCCESS: Final = Status.SUCCESS
_RECEIVE: Final = CompletionOpcode.RECEIVE
_LOCAL_WRITE: Final = 1
WAKES_SENDER: Final = Wake.SENDS | Wake.ROOM
_LONGEST: Final = 1 << 31
PATIENCE: Final = 16
IDLE: Final = 8
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


class Receiving(Sending):
    """The receiving half, and the sending one."""

    __slots__ = (
        "_at",
        "_begun",
        "_consumed",
        "_established",
        "_executed",
        "_filled",
        "_inBytes",
        "_idle",
        "_inEnd",
        "_deliver",
        "_inRaw",
        "_number",
        "_ready",
        "_short",
        "_receives",
        "_usual",
        "_rungSends",
        "_shared",
        "_shorts",
        "_stalled",
        "_targets",
        "_unsaid",
    )

    def __init__(
        self, owner: Owner, surroundings: Surroundings, box: memoryview, shared: bool = False
    ) -> None:
        """
        @param shared: others take from the owner's receives, too.
        """
        super().__init__(owner, surroundings, box)
        self._inRaw: Any  # the peer's box as it is: slices of a mapping are quicker than those of a view
        self._detach()
        self._consumed = 0
        self._targets: list[memoryview] | None = None
        self._filled = 0
        self._stalled = False
        self._rungSends = 0
        self._unsaid = False
        self._idle = 0  # how often we have looked since something came
        self._executed = 0  # atomics of the peer
        self._established = False  # something has come, or we are in RTS
        self._short: dict[int, tuple[int, int, bool]] = {}  # until then every record is looked at closely
        self._shorts = _SHORT
        self._shared = shared
        self._begun: ReceiveRequest | None = None  # taken from the shared receives, and not yet full
        self._usual = 0  # the length of the latest message
        self._ready: deque[_Ready] = deque()
        self._receives = owner.receives
        self._deliver = owner.receiveCompleted
        self._number = owner.number

    def attributesChanged(self) -> None:
        """Timers, counters or the state are others now."""
        super().attributesChanged()
        if self._owner.attributes.state is QPState.RTS:
            self._establish()

    def _establish(self) -> None:
        self._established = True
        self._short = self._shorts

    def _read(self, box: memoryview, at: int) -> None:
        self._inBytes = box
        self._inRaw = box.obj
        self._inWords = box.cast("Q")
        self._inEnd = len(box) // 8
        self._at = at

    def _detach(self) -> None:
        """Read in a box in which nothing happens."""
        self._read(memoryview(bytes(HEADER_BYTES + LINE)), FIRST)

    def poll(self) -> None:
        """
        Look for what has arrived, and for what the peer has consumed.

        A short SEND for a receive of one segment is nearly all that comes: that is done here, without calls.
        """
        words = self._inWords
        at = self._at
        header = words[at]
        if not header:
            self._idle += 1
            if self._idle > IDLE or self._armed or self._held:
                self._lookBack()
            return
        ready, data, end, consumed = self._ready, self._inRaw, self._inEnd, self._consumed
        if self._shared:
            ready.clear()  # others may have taken it
        before = consumed
        while header:
            short = self._short.get(header)
            if short is not None and ready and self._targets is None:
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
                    self._at = at = after if after != end else FIRST
                    self._consumed = consumed = consumed + (size << 3)
                    self._deliver(completion, solicited)
                    header = words[at]
                    continue
            if not self._special(header):
                break
            at = self._at
            consumed = self._consumed
            header = words[at]
        if self._dead:
            return
        if consumed == before:  # it waits for a receive: there is nothing to tell about that
            self._lookBack()
            return
        if not ORDERED:
            barrier()
        self._outWords[CONSUMED] = consumed
        self._unsaid = True
        self._idle = 0
        if words[WAKE]:
            self._sayConsumed()
        if len(self._outstanding) >= PATIENCE:
            self._lookBack()  # mostly this is left for when nothing arrives

    def _lookBack(self) -> None:
        """
        See what the peer has consumed, and whether it wants to know what we have.

        There is time for that when nothing comes, and it must be done before we sleep.
        """
        outstanding = self._outstanding
        if self._linked and (outstanding or self._held):
            consumed = self._inWords[CONSUMED]
            if self._held or consumed >= outstanding[0][0]:
                self._settle(consumed)
        if self._unsaid and not self._dead:
            self._sayConsumed()

    def _received(self, identifier: int, length: int) -> Completion:
        return _new(Completion, (identifier, _SUCCESS, _RECEIVE, self._number, length, None, 0, False, 0, 0))

    def _sayConsumed(self) -> None:
        """
        Wake the peer's sender when it sleeps and wants to know how far we are.

        C{_unsaid} stays until a fence stood between saying so and looking whether it sleeps: that is done
        when there is time, and before we sleep.
        """
        self._unsaid = False
        barrier()
        wake = self._inWords[WAKE]
        if wake & WAKES_SENDER and wake != self._rungSends:
            self._rungSends = wake
            if wake & Wake.SENDS:
                self._surroundings.ringSends()
            if wake & Wake.ROOM:
                self._surroundings.nudge()

    def _special(self, header: int) -> bool:
        """Consume a record of any kind; False when there is nothing more to consume at present."""
        if self._dead:
            return False
        at = self._at
        control = header >> 24 & 0xFF
        length = header & LENGTH
        size = (length + 71) & -LINE
        after = at + (size >> 3)
        kind = control & KIND
        if control & ~SOLICITED == PLAIN and length <= _SHORT_BYTES and not header >> 32:
            _SHORT[header] = (length, size >> 3, control == PLAIN_SOLICITED)
        if after > self._inEnd or not kind or control > 63:
            self._refuse(Status.REM_INV_REQ_ERR)
            return False
        if kind == PADDING and (after != self._inEnd or at == FIRST):
            self._refuse(Status.REM_INV_REQ_ERR)
            return False
        if kind == Kind.FAULT:
            isAccess = header >> 32 == Status.REM_ACCESS_ERR
            self._refuse(Status.REM_ACCESS_ERR if isAccess else Status.REM_INV_REQ_ERR)
            return False
        if kind == Kind.ATOMIC:
            start = (at << 3) + 8
            if not self._execute(control, header >> 32, self._inBytes[start : start + length]):
                return False
        elif kind == Kind.NOTE:
            start = (at << 3) + 8
            if not self._noted(header >> 32, self._inBytes[start : start + length]):
                return False
        elif kind != PADDING:
            if control & ~SOLICITED == PLAIN and self._shared and self._peeked():
                return True  # now it is as simple as that
            if not self._receives and self._begun is None:
                if not self._stalled:
                    self._stalled = True
                    timer = self._owner.attributes.minRNRTimer or 0
                    self._outWords[STALLED] = (self._consumed + 1) << 8 | timer & 31
                return False
            start = (at << 3) + 8
            if not self._receive(control, header >> 32, self._inBytes[start : start + length]):
                return False
        self._at = after if after != self._inEnd else FIRST
        self._consumed += size
        self._unsaid = True
        if not self._established and kind != PADDING:
            self._establish()
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
            first != (self._targets is None)
            or (part and (not data or kind == Kind.WRITE_WITH_IMMEDIATE))
            or (kind == Kind.WRITE_WITH_IMMEDIATE and len(data) != TOLD_BYTES)
        ):
            self._refuse(Status.REM_INV_REQ_ERR)
            return False
        opcode, length = _RECEIVE, 0
        if kind == Kind.WRITE_WITH_IMMEDIATE:
            opcode = CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE
            length = int.from_bytes(data[:8], "little")
            if length > _LONGEST:
                self._refuse(Status.REM_INV_REQ_ERR)
                return False
        else:
            if sum(segment.length for segment in request.segments) < self._filled + len(data):
                self._unfit(request, Status.LOC_LEN_ERR, Status.REM_INV_REQ_ERR)
                return False
            try:
                if self._targets is None:
                    local, domain = owner.keys.local, owner.domain
                    self._targets = [local(domain, segment, True) for segment in request.segments]
            except ProtectionError:
                self._unfit(request, Status.LOC_PROT_ERR, Status.REM_OP_ERR)
                return False
            spread(self._targets, self._filled, data)
            self._filled += len(data)
            length = self._filled
        if control & MORE:
            if self._shared and self._begun is None:
                self._taken(request)
                self._begun = request
            return True
        self._targets = None
        self._filled = 0
        self._taken(request)
        told = None if kind == Kind.SEND else immediate
        owner.receiveCompleted(
            Completion(request.identifier, _SUCCESS, opcode, owner.number, length, told),
            bool(control & SOLICITED),
        )
        return not self._dead

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
        if control == Kind.ATOMIC and self._targets is None:
            status, before = execute(self._owner, operation, asked)
        if status:
            self._refuse(status)
            return False
        self._outWords[RESULTS + self._executed % RESULT_COUNT] = before
        self._executed += 1
        return True

    def _noted(self, operation: int, told: memoryview) -> bool:
        """The peer has reached our memory, and tells. False: it must not, or nothing more at present."""
        self._refuse(Status.REM_INV_REQ_ERR)
        return False

    def receivesPosted(self) -> None:
        """The receive queue has grown: find out beforehand where messages go, and how it will be told."""
        if self._dead:
            return
        receives, ready, lookup = self._receives, self._ready, self._lookup
        number, usual, domain = self._number, self._usual, self._domain
        new = 0 if self._shared else len(ready) - len(receives)
        for index in range(new, 0):  # counted from the end
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
        if self._stalled:
            self._stalled = False
            self._outWords[STALLED] = 0
            self.poll()

    def _peeked(self) -> bool:
        """
        Find out where a message goes that takes a shared receive; tell whether that was not known.

        What was found out holds for this C{poll}.
        """
        if self._ready or not self._receives:
            return False
        request = self._receives[0]
        identifier, segments = request.identifier, request.segments
        completion = self._received(identifier, self._usual)
        entry: _Ready = identifier, None, 0, -1, completion
        if len(segments) == 1:
            address, room, lkey = segments[0]
            region = self._lookup(lkey)
            if region is not None and region.domain is self._domain and region.rights & _LOCAL_WRITE:
                offset = address - region.address
                if offset >= 0 and offset + room <= region.length:
                    entry = identifier, region, offset, room, completion
        self._ready.append(entry)
        return True

    def _unfit(self, request: ReceiveRequest, ours: Status, theirs: Status) -> None:
        """A posted receive can't take what came: it fails, and the sender's request does."""
        owner = self._owner
        self._tellFault(theirs)
        self._taken(request)
        owner.receiveCompleted(Completion(request.identifier, ours, _RECEIVE, owner.number), True)
        if not self._dead:
            owner.failed(None)

    def _refuse(self, status: Status) -> None:
        """The peer sent what it must not."""
        self._tellFault(status)
        self._owner.failed(_EVENTS[status])

    def _tellFault(self, status: Status) -> None:
        """The peer's oldest request ends like this; our receiving ends with it."""
        self._outWords[CONSUMED] = status << 56 | self._consumed
