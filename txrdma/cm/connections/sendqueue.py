"""
The send queue of a connection: requests that wait for an entry of the queue, for credits, or for completion.

Follows InfiniBand Architecture vol. 1, 10.8.2. Requests are posted in order. Entries are reserved for those
of the connection itself: credit returns, keepalive probes, and writes that arm an alternate path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred

from txrdma.cm.connections._credits import Credits
from txrdma.error import ResourceExhausted
from txrdma.iba.verbs import Access, Operation, Segment, SendRequest
from txrdma.interfaces import IMemoryRegion, IProtectionDomain, IQueuePair

FIRST: Final = 1 << 32
"""The first identifier of send requests; smaller ones are slots of receives."""

OVERHEAD: Final = 4
"""Entries of the send queue for requests of the connection itself."""

_EVERYTHING: Final = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ


class SendRegions:
    """Memory of one connection that its peer may read and write until the connection ends."""

    def __init__(self, domain: IProtectionDomain) -> None:
        self._domain = domain
        self._regions: list[IMemoryRegion] = []

    def allocate(self, length: int) -> IMemoryRegion:
        """Allocate zeroed memory, which stays registered until C{free} or C{close}."""
        region = self._domain.allocateMemory(length, _EVERYTHING)
        self._regions.append(region)
        return region

    def free(self, region: IMemoryRegion) -> None:
        """Deregister memory before the connection ends."""
        if region in self._regions:
            self._regions.remove(region)
            region.close()

    def close(self) -> None:
        """Deregister all memory."""
        for region in self._regions:
            region.close()
        self._regions.clear()


class Request:
    """
    A request of the program until its completion.

    @ivar isCredited: whether it consumes a receive of the peer.
    @ivar data: the bytes of a message until it is posted; None of a read or a write.
    @ivar done: fires with the completion of a read.
    """

    __slots__ = ("data", "done", "isCredited", "request", "slot")

    def __init__(self, request: SendRequest, isCredited: bool, data: bytes | None = None) -> None:
        self.request, self.isCredited, self.data = request, isCredited, data
        self.slot: int | None = None
        self.done: Deferred[None] | None = None

    @property
    def isWrite(self) -> bool:
        """True if the request is a one-sided write."""
        return self.slot is None and self.request.operation is not Operation.RDMA_READ


_NONE: Final[deque[Request]] = deque()
"""The waiting requests of all connections without any: an empty deque takes 760 bytes. Never modified."""


class SendQueue:
    """
    The requests of one connection, and the memory slots from which its messages are sent.

    @ivar waiting: requests that are not posted yet.
    @ivar posted: requests that have not completed, by identifier.
    """

    def __init__(self, places: int, allocate: Callable[[int], IMemoryRegion]) -> None:
        """
        @param places: entries of the queue for requests of the program.
        @param allocate: allocates registered memory of a length in bytes.
        """
        self.waiting = _NONE
        self.posted: dict[int, Request] = {}
        self._overhead: set[int] = set()
        self._places = places
        self._allocate = allocate
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
            if first.data is not None and not self._hasSlot(slotBytes):
                break  # until a message completes
            if first.isCredited:
                if not credits.mayPost:
                    break
                credits.posted()
            self.waiting.popleft()
            if first.data is not None:
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

    def _fill(self, asked: Request, data: bytes, slotBytes: int) -> None:
        """Copy a message into a free slot."""
        assert self._memory is not None  # allocated by _hasSlot
        asked.slot = self._free.pop()
        begin = asked.slot * slotBytes
        self._memory.view[begin : begin + len(data)] = data
        if data:
            address, lkey = self._memory.address + begin, self._memory.lkey
            asked.request.segments = (Segment(address, len(data), lkey),)
        asked.data = b""
