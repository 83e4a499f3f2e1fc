"""
The data path of two reliable queue pairs on one host.

Keeps the promises of InfiniBand Architecture vol. 1, 9.7 (reliable connections) without packets: a SEND is a
record in a ring that its receiver consumes into a posted receive; an RDMA WRITE is one copy into the peer's
mapped memory. L{txrdma.soft._box} tells how that memory looks. Nothing here makes a system call; see
L{txrdma.soft.sharedmemory} for the rest.

Whatever is read from the peer's box is the peer's word: lengths and positions are checked, and one that can't
be ends this queue pair, nothing else.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, TYPE_CHECKING

from txrdma.error import ProtectionError
from txrdma.iba.verbs import AsyncEventKind, Completion, CompletionOpcode, ReceiveRequest, Status
from txrdma.soft._box import (
    barrier,
    COMPLETION_OF,
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
    ringBytes,
    SOLICITED,
    STALLED,
    Surroundings,
    TOLD_BYTES,
    WAKE,
    Wake,
)
from txrdma.soft._route import Owner
from txrdma.soft._sending import Sending
from txrdma.soft._writer import spread

if TYPE_CHECKING:
    from txrdma.soft.memory import Region

_SUCCESS: Final = Status.SUCCESS
_RECEIVE: Final = CompletionOpcode.RECEIVE
_LOCAL_WRITE: Final = 1
_WAKES_SENDER: Final = Wake.SENDS | Wake.ROOM
_LONGEST: Final = 1 << 31
_PATIENCE: Final = 16
_IDLE: Final = 8
_new = tuple.__new__

_SHORT_BYTES: Final = 512
_SHORT: Final[dict[int, tuple[int, int, bool]]] = {}
"""Headers of short SENDs that have been seen: their length, the words they take, whether solicited."""

_Ready = tuple[int, "Region | None", int, int, Completion]
"""Identifier, region, offset, length (-1: not as simple as that), and the completion when all goes well."""


class Lane(Sending):
    """Both directions of one queue pair over shared memory: a L{Route <txrdma.soft._route.Route>}."""

    __slots__ = (
        "__weakref__",
        "_at",
        "_consumed",
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
        "_stalled",
        "_targets",
        "_unsaid",
    )

    name = "shared-memory"
    polled = True

    def __init__(self, owner: Owner, surroundings: Surroundings, box: memoryview) -> None:
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
        self._short = _SHORT
        self._usual = 0  # the length of the latest message
        self._ready: deque[_Ready] = deque()
        self._receives = owner.receives
        self._deliver = owner.receiveCompleted
        self._number = owner.number

    @property
    def wantsNotes(self) -> bool:
        """Whether the peer is to tell us of each access to our memory."""
        return False

    def attach(self, box: memoryview, notes: bool = False) -> None:
        """
        The peer's box has come: begin.

        @param notes: the peer wants a note of each access to its memory.
        @raise ValueError: this is none.
        """
        ringBytes(len(box))
        self._read(box)
        self._linked = True
        self._notes = notes
        self.attributesChanged()
        self._resume()

    def _read(self, box: memoryview) -> None:
        self._inBytes = box
        self._inRaw = box.obj
        self._inWords = box.cast("Q")
        self._inEnd = len(box) // 8
        self._at = FIRST

    def _detach(self) -> None:
        """Read in a box in which nothing happens."""
        self._read(memoryview(bytes(HEADER_BYTES + LINE)))

    # Receiving

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
            if self._idle > _IDLE or self._armed or self._held:
                self._lookBack()
            return
        ready, data, end, consumed = self._ready, self._inRaw, self._inEnd, self._consumed
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
        if len(self._outstanding) >= _PATIENCE:
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
        return _new(Completion, (identifier, _SUCCESS, _RECEIVE, self._number, length, None, 0, False))

    def _sayConsumed(self) -> None:
        """
        Wake the peer's sender when it sleeps and wants to know how far we are.

        C{_unsaid} stays until a fence stood between saying so and looking whether it sleeps: that is done
        when there is time, and before we sleep.
        """
        self._unsaid = False
        barrier()
        wake = self._inWords[WAKE]
        if wake & _WAKES_SENDER and wake != self._rungSends:
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
        if control & ~SOLICITED == PLAIN and length <= _SHORT_BYTES:
            _SHORT[header] = (length, size >> 3, control == PLAIN_SOLICITED)
        if after > self._inEnd or not 1 <= kind <= Kind.NOTE or control > 63:
            self._invalid(Status.REM_INV_REQ_ERR, AsyncEventKind.QP_REQUEST_ERROR)
            return False
        if kind == PADDING and (after != self._inEnd or at == FIRST):
            self._invalid(Status.REM_INV_REQ_ERR, AsyncEventKind.QP_REQUEST_ERROR)
            return False
        if kind == Kind.FAULT:
            self._invalid(Status.REM_ACCESS_ERR, AsyncEventKind.QP_ACCESS_ERROR)
            return False
        if kind == Kind.NOTE:
            start = (at << 3) + 8
            if not self._noted(header >> 32, self._inBytes[start : start + length]):
                return False
        elif kind != PADDING:
            if not self._owner.receives:
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
        return True

    def _receive(self, control: int, immediate: int, data: memoryview) -> bool:
        """Put a record, or the next part of a message, into the oldest receive."""
        owner = self._owner
        request = owner.receives[0]
        kind = control & KIND
        first = not control & CONTINUED
        part = control & (MORE | CONTINUED)
        if (
            first != (self._targets is None)
            or (part and (not data or kind == Kind.WRITE_WITH_IMMEDIATE))
            or (kind == Kind.WRITE_WITH_IMMEDIATE and len(data) != TOLD_BYTES)
        ):
            self._invalid(Status.REM_INV_REQ_ERR, AsyncEventKind.QP_REQUEST_ERROR)
            return False
        opcode, length = _RECEIVE, 0
        if kind == Kind.WRITE_WITH_IMMEDIATE:
            opcode = CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE
            length = int.from_bytes(data[:8], "little")
            if length > _LONGEST:
                self._invalid(Status.REM_INV_REQ_ERR, AsyncEventKind.QP_REQUEST_ERROR)
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
            return True
        self._targets = None
        self._filled = 0
        owner.receives.popleft()
        self._ready.popleft()
        told = None if kind == Kind.SEND else immediate
        owner.receiveCompleted(
            Completion(request.identifier, _SUCCESS, opcode, owner.number, length, told),
            bool(control & SOLICITED),
        )
        return not self._dead

    def _noted(self, operation: int, told: memoryview) -> bool:
        """The peer has reached our memory, and tells. False: it must not, or nothing more at present."""
        self._invalid(Status.REM_INV_REQ_ERR, AsyncEventKind.QP_REQUEST_ERROR)
        return False

    def receivesPosted(self) -> None:
        """The receive queue has grown: find out beforehand where messages go, and how it will be told."""
        if self._dead:
            return
        receives, ready, lookup = self._receives, self._ready, self._lookup
        number, usual, domain = self._number, self._usual, self._domain
        for index in range(len(ready) - len(receives), 0):  # the new ones, counted from the end
            request = receives[index]
            identifier = request.identifier
            completion = _new(Completion, (identifier, _SUCCESS, _RECEIVE, number, usual, None, 0, False))
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

    def _unfit(self, request: ReceiveRequest, ours: Status, theirs: Status) -> None:
        """A posted receive can't take what came: it fails, and the sender's request does."""
        owner = self._owner
        self._tellFault(theirs)
        if owner.receives and owner.receives[0] is request:
            owner.receives.popleft()
            self._ready.popleft()
        owner.receiveCompleted(Completion(request.identifier, ours, _RECEIVE, owner.number), True)
        if not self._dead:
            owner.failed(None)

    def _invalid(self, status: Status, event: AsyncEventKind) -> None:
        """The peer sent what it must not."""
        self._tellFault(status)
        self._owner.failed(event)

    def _tellFault(self, status: Status) -> None:
        """The peer's oldest request ends like this; our receiving ends with it."""
        self._outWords[CONSUMED] = status << 56 | self._consumed

    # Waking and ending

    def arm(self, sends: bool, receives: bool, solicitedOnly: bool) -> None:
        """Be woken for these from now on; look once more after this."""
        if self._dead:
            return
        self._armed = (Wake.SENDS if sends else 0) | (
            (Wake.SOLICITED if solicitedOnly else Wake.RECEIVES) if receives else 0
        )
        self._sayWake()
        if sends and self._outstanding and self._inWords[WAKE] & 3 == Wake.SOLICITED:
            self._surroundings.nudge()  # it would not look at what is not solicited

    def peerGone(self, event: AsyncEventKind | None) -> None:
        """
        The peer's queue pair, or its whole process, is no more.

        @param event: fail at once, and tell this, even when nothing is outstanding.
        """
        before = -1
        while not self._dead and before != self._consumed:
            before = self._consumed
            self.poll()
        if not self._dead and self._linked:
            self._settle(self._inWords[CONSUMED])
        if self._dead:
            return
        self._gone = self._held = True
        self._detach()
        self._targets = None
        self.regions.clear()
        self._linked = False
        if self._outstanding or self._waiting or event is not None:
            self._fail(Status.RETRY_EXC_ERR, event)

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        """Stop; what is not completed, oldest first."""
        left = [(identifier, opcode) for _, identifier, opcode, _, _ in self._outstanding]
        left += [(request.identifier, COMPLETION_OF[request.operation]) for request in self._waiting]
        self.close()
        return left

    def close(self) -> None:
        """Let go of all memory. Twice is fine."""
        if self._dead:
            return
        self._dead = self._held = True
        self._linked = False
        self._outstanding.clear()
        self._waiting.clear()
        self._targets = None
        self._outWords[WAKE] = 0
        self._detach()
        self.regions.clear()
        self._ready.clear()
        self._outBytes = self._outWords = memoryview(b"")
        self._surroundings.left()
