"""
The send queue of a connection: requests that wait for an entry of the queue, for credits, or for completion.

Follows InfiniBand Architecture vol. 1, 10.8.2. Requests are posted in order. Entries are reserved for those
of the connection itself: credit returns, keepalive probes, and writes that arm an alternate path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from txrdma.cm.connections._credits import Credits
from txrdma.cm.connections.receives import Part, ReceiveMemory
from txrdma.error import ResourceExhausted
from txrdma.iba.verbs import Access, AtomicCapability, Buffer, Operation, Segment, SendRequest
from txrdma.interfaces import IMemoryRegion, IProtectionDomain, IQueuePair

FIRST: Final = 1 << 32
"""The first identifier of send requests; smaller ones are slots of receives."""

OVERHEAD: Final = 4
"""Entries of the send queue for requests of the connection itself."""

_LEAST_BYTES: Final = 64
"""Smallest registered memory for the bytes of a read, a write or an atomic operation."""


class SendRegions:
    """Memory of one connection that its peer may read and write until the connection ends."""

    def __init__(self, domain: IProtectionDomain) -> None:
        self._domain = domain
        self._access = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
        if domain.device.attributes.atomics is not AtomicCapability.NONE:
            self._access |= Access.REMOTE_ATOMIC
        self._regions: dict[IMemoryRegion, bool] = {}  # whether the memory is the program's

    def allocate(self, length: int) -> IMemoryRegion:
        """Allocate zeroed memory, which stays registered until C{free} or C{close}."""
        region = self._domain.allocateMemory(length, self._access)
        self._regions[region] = False
        return region

    def register(self, buffer: memoryview) -> IMemoryRegion:
        """Register memory of the program, whose view is released by C{free} or C{close}."""
        region = self._domain.registerMemory(buffer, self._access)
        self._regions[region] = True
        return region

    def free(self, region: IMemoryRegion) -> None:
        """Deregister memory before the connection ends."""
        isRegistered = self._regions.pop(region, None)
        if isRegistered is not None:
            region.close()
            if isRegistered:
                region.view.release()

    def close(self) -> None:
        """Deregister all memory."""
        for region in list(self._regions):
            self.free(region)


class Request:
    """
    A request of the program until its completion.

    @ivar isCredited: whether it consumes a receive of the peer.
    @ivar data: the bytes of a message or a write until it is posted.
    @ivar result: the number of bytes of a read or an atomic operation; 0 of other requests.
    @ivar memory: the registered memory of a read, a write or an atomic operation, while it is posted.
    @ivar done: fires when the request has completed: with bytes if there is a result, else with None.
    """

    __slots__ = ("data", "done", "isCredited", "memory", "request", "result", "slot")

    def __init__(
        self, request: SendRequest, isCredited: bool, data: Buffer | None = None, result: int = 0
    ) -> None:
        self.request, self.isCredited, self.data, self.result = request, isCredited, data, result
        self.memory: Part | None = None
        self.slot: int | None = None
        self.done: Deferred[Any] | None = None

    @property
    def isMessage(self) -> bool:
        """Whether the bytes are sent from a slot, to a receive of the peer."""
        return self.request.operation in (Operation.SEND, Operation.SEND_WITH_IMMEDIATE)

    def succeed(self) -> None:
        """Report to the program that the request has completed, and return its memory."""
        result = None if self.memory is None or not self.result else self.memory.message(0, self.result)
        self.release()
        done, self.done = self.done, None
        if done is not None:
            done.callback(result)

    def fail(self, failure: Failure) -> None:
        """Report to the program that the request has failed."""
        done, self.done = self.done, None
        if done is not None:
            done.errback(failure)

    def release(self) -> None:
        """Return the memory, which the queue pair does not use any more."""
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.giveBack()


_NONE: Final[deque[Request]] = deque()
"""The waiting requests of all connections without any: an empty deque takes 760 bytes. Never modified."""


class SendQueue:
    """
    The requests of one connection, and the memory slots from which its messages are sent.

    @ivar waiting: requests that are not posted yet.
    @ivar posted: requests that have not completed, by identifier.
    """

    def __init__(self, places: int, memory: ReceiveMemory, allocate: Callable[[int], IMemoryRegion]) -> None:
        """
        @param places: entries of the queue for requests of the program.
        @param memory: registered memory of reads, writes and atomic operations.
        @param allocate: allocates registered memory of a length in bytes.
        """
        self.waiting = _NONE
        self.posted: dict[int, Request] = {}
        self._overhead: set[int] = set()
        self._places = places
        self._parts, self._allocate = memory, allocate
        self._next = FIRST
        self._free: list[int] = []
        self._memory: IMemoryRegion | None = None

    @property
    def isIdle(self) -> bool:
        """Whether all requests of the program have completed."""
        return not (self.waiting or self.posted)

    @property
    def isQuiet(self) -> bool:
        """Whether nothing is posted, so that no completion would report a dead peer."""
        return not (self.posted or self._overhead)

    @property
    def isFull(self) -> bool:
        """Whether producers should pause."""
        return len(self.waiting) >= self._places

    def ask(self, asked: Request) -> int:
        """Append a request, and return its identifier."""
        self._next += 1
        asked.request.identifier = self._next
        if self.waiting is _NONE:
            self.waiting = deque()
        self.waiting.append(asked)
        return self._next

    def post(self, pair: IQueuePair, credits: Credits, slotBytes: int) -> None:
        """
        Post waiting requests while entries, slots and credits last; return credits that are due.

        @param slotBytes: the length of the longest message.
        @raise txrdma.error.RDMAError: the queue pair takes no more requests.
        """
        ready: list[SendRequest] = []
        while self.waiting and len(self.posted) < self._places:
            first = self.waiting[0]
            isMessage = first.isMessage
            if not (self._hasSlot(slotBytes) if isMessage else self._hasMemory(first)):
                break  # until another request completes
            if first.isCredited:
                if not credits.mayPost:
                    break
                credits.posted()
            self.waiting.popleft()
            if isMessage and first.data is not None:
                self._fill(first, first.data, slotBytes)
            self.posted[first.request.identifier] = first
            ready.append(first.request)
        if ready:
            pair.postSend(ready)
        due = credits.due()
        if due:
            returning = SendRequest(0, Operation.RDMA_WRITE_WITH_IMMEDIATE, immediate=due)
            if self.postOverhead(pair, returning):
                credits.sentBack(due)

    def postOverhead(self, pair: IQueuePair, request: SendRequest) -> int:
        """Post a request of the connection itself; its identifier, or 0 if no entry is free."""
        if len(self._overhead) >= OVERHEAD:
            return 0
        self._next += 1
        request.identifier = self._next
        pair.postSend([request])
        self._overhead.add(self._next)
        return self._next

    def completed(self, identifier: int) -> Request | None:
        """Remove a request that succeeded; None for one of the connection itself."""
        self._overhead.discard(identifier)
        request = self.posted.pop(identifier, None)
        if request is not None and request.slot is not None:
            self._free.append(request.slot)
        return request

    def takeAll(self) -> list[Request]:
        """Remove all requests that have not completed, in order, when the connection ends."""
        taken = [*self.posted.values(), *self.waiting]
        self.posted.clear()
        self.waiting.clear()
        return taken

    def _hasSlot(self, slotBytes: int) -> bool:
        """
        Find out whether a slot is free. The first call allocates one for each place, or as many as fit.

        @raise ResourceExhausted: there is no memory for a single slot.
        """
        slots = self._places
        while self._memory is None:
            try:
                self._memory = self._allocate(slots * slotBytes)
                self._free = list(range(slots))
            except ResourceExhausted:
                if slots == 1:
                    raise
                slots //= 2
        return bool(self._free)

    def _hasMemory(self, asked: Request) -> bool:
        """
        Take registered memory for a request, and copy its bytes there.

        @return: False if memory is short, while other requests have some.
        @raise ResourceExhausted: no other request has any.
        """
        data = asked.data or b""
        length = asked.result or len(data)
        if length and asked.memory is None:
            try:
                asked.memory = self._parts.take(1, max(_LEAST_BYTES, 1 << (length - 1).bit_length()))
            except ResourceExhausted:
                if not self.posted:
                    raise
                return False
            asked.request.segments = (asked.memory.fill(data, length),)
            asked.data = None
        return True

    def _fill(self, asked: Request, data: Buffer, slotBytes: int) -> None:
        """Copy a message into a free slot."""
        assert self._memory is not None  # allocated by _hasSlot
        asked.slot = self._free.pop()
        begin = asked.slot * slotBytes
        self._memory.view[begin : begin + len(data)] = data
        if data:
            address, lkey = self._memory.address + begin, self._memory.lkey
            asked.request.segments = (Segment(address, len(data), lkey),)
        asked.data = None
