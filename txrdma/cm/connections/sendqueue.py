"""
The send queue of a connection: requests that wait for an entry of the queue, for credits, or for completion.

Follows InfiniBand Architecture vol. 1, 10.8.2. Requests are posted in order. Entries are reserved for
requests of the connection itself: credit returns, keepalive probes, and writes that arm an alternate path.
Bytes are posted inline if the queue pair accepts that many, as those of software devices do. Others are
copied to registered memory first.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from txrdma.cm.connections._credits import Credits
from txrdma.cm.connections.queuepairs import READABLE, WRITABLE
from txrdma.cm.connections.receives import Part, ReceiveMemory
from txrdma.error import ResourceExhausted
from txrdma.iba.verbs import Access, AtomicCapability, Buffer, Operation, Segment, SendRequest
from txrdma.interfaces import IMemoryRegion, IProtectionDomain, IQueuePair
from txrdma.messages.memory import MemoryName
from txrdma.unix.mapping import releaseView

FIRST: Final = 1 << 32
"""The first identifier of send requests; smaller ones are slots of receives."""

OVERHEAD: Final = 4
"""Entries of the send queue for requests of the connection itself."""

HIGH_WATER: Final = 1 << 20
"""
Bytes of waiting requests at which producers pause. They also pause at a number of requests: C{sends} of
L{Terms<txrdma.cm.terms.Terms>}, 32 by default.
"""

ANNOUNCEMENT: Final = 1 << 31
"""Immediate data of a write before the name of a long message: see L{txrdma.cm.connections.longmessages}."""

OUTSTANDING: Final = 2
"""Long messages whose memory the peer may read at a time."""

_LEAST_BYTES: Final = 64
"""Smallest registered memory for the bytes of a read, a write or an atomic operation."""

_WITHOUT_ATOMICS: Final = WRITABLE | Access.REMOTE_READ


class SendRegions:
    """Memory of one connection that its peer may read and write until the connection ends."""

    __slots__ = ("_access", "_domain", "_regions")

    def __init__(self, domain: IProtectionDomain) -> None:
        self._domain = domain
        hasAtomics = domain.device.attributes.atomics is not AtomicCapability.NONE
        self._access = READABLE if hasAtomics else _WITHOUT_ATOMICS
        self._regions: dict[IMemoryRegion, memoryview | None] = {}  # with the program's view of its memory

    def allocate(self, length: int) -> IMemoryRegion:
        """Allocate zeroed memory, which stays registered until C{free} or C{close}."""
        region = self._domain.allocateMemory(length, self._access)
        self._regions[region] = None
        return region

    def expose(self, data: bytes) -> IMemoryRegion:
        """Copy bytes into memory that the peer may only read."""
        access = Access.LOCAL_WRITE | Access.REMOTE_READ
        try:
            region = self._domain.allocateMemory(len(data), access)
        except ResourceExhausted as error:  # perhaps of descriptors, which this does not need
            try:
                region = self._domain.registerMemory(memoryview(bytearray(data)), access)
            except MemoryError:
                raise error from None
        else:
            region.view[:] = data
        self._regions[region] = None
        return region

    def register(self, buffer: memoryview, view: memoryview) -> IMemoryRegion:
        """Register memory of the program; C{free} or C{close} releases it and the view."""
        region = self._domain.registerMemory(buffer, self._access)
        self._regions[region] = view
        return region

    def free(self, region: IMemoryRegion) -> None:
        """Deregister memory before the connection ends."""
        if region in self._regions:
            view = self._regions.pop(region)
            region.close()
            if view is not None:
                releaseView(view)

    def close(self) -> None:
        for region in list(self._regions):
            self.free(region)


class Request:
    """
    A request of the program until its completion.

    @ivar workRequest: what is posted to the queue pair.
    @ivar isCredited: whether it consumes a receive of the peer.
    @ivar size: the number of bytes of a message or a write.
    @ivar data: these bytes until they are posted; then the name of a long message, until that is posted.
    @ivar isAnnounced: False for a long message of which nothing is posted.
    @ivar exposed: the memory of a long message until the peer has read it.
    @ivar result: the number of bytes of a read or an atomic operation; 0 for other requests.
    @ivar memory: the registered memory of a read, a write or an atomic operation, while it is posted.
    @ivar done: fires when the request has completed: with bytes if there is a result, else with None.
    """

    __slots__ = (
        *("data", "done", "exposed", "isAnnounced", "isCredited", "memory", "result", "size", "slot"),
        "workRequest",
    )

    def __init__(
        self,
        workRequest: SendRequest,
        isCredited: bool,
        data: Buffer | None = None,
        result: int = 0,
        isLong: bool = False,
    ) -> None:
        self.workRequest, self.isCredited, self.data, self.result = workRequest, isCredited, data, result
        self.size = 0 if data is None else len(data)
        self.isAnnounced = not isLong
        self.exposed: IMemoryRegion | None = None
        self.memory: Part | None = None
        self.slot: int | None = None
        self.done: Deferred[Any] | None = None

    @property
    def isMessage(self) -> bool:
        """Whether the bytes are sent to a receive of the peer; if not inline, then from a slot."""
        return self.workRequest.operation in (Operation.SEND, Operation.SEND_WITH_IMMEDIATE)

    def succeed(self) -> None:
        """Report to the program that the request has completed, and return its memory."""
        result = None if self.memory is None or not self.result else self.memory.message(0, self.result)
        self.release()
        done, self.done = self.done, None
        if done is not None:
            done.callback(result)

    def fail(self, failure: Failure) -> None:
        """Report to the program that the request has failed. It may resize its buffer then."""
        self.data, self.workRequest.inline = None, ()
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
    The requests of one connection, and the slots of memory from which messages are sent that are not inline.

    @ivar waiting: requests that are not posted yet.
    @ivar posted: requests that have not completed, by identifier.
    @ivar entries: the maximum number of posted requests.
    """

    __slots__ = (
        *("_behind", "_free", "_memory", "_next", "_overhead", "_parts", "_regions", "_unread"),
        *("_waitingBytes", "entries", "posted", "waiting"),
    )

    def __init__(self, entries: int, memory: ReceiveMemory, regions: SendRegions) -> None:
        """
        @param memory: registered memory of reads, writes and atomic operations.
        @param regions: registered memory of messages.
        """
        self.waiting = _NONE
        self._waitingBytes = 0
        self._unread = _NONE  # long messages that the peer has not read
        self._behind = _NONE  # completed messages, which the peer delivers after these
        self.posted: dict[int, Request] = {}
        self._overhead: list[int] = []
        self.entries = entries
        self._parts, self._regions = memory, regions
        self._next = FIRST
        self._free: list[int] = []
        self._memory: IMemoryRegion | None = None

    @property
    def isIdle(self) -> bool:
        """Whether all requests of the program have completed."""
        return not (self.waiting or self.posted or self._unread)

    @property
    def isQuiet(self) -> bool:
        """Whether nothing is posted, so that no completion would report a dead peer."""
        return not (self.posted or self._overhead)

    @property
    def isFull(self) -> bool:
        """Whether producers should pause."""
        return len(self.waiting) >= self.entries or self._waitingBytes >= HIGH_WATER

    def append(self, request: Request) -> int:
        """Append a request, and return its identifier."""
        self._next += 1
        request.workRequest.identifier = self._next
        if self.waiting is _NONE:
            self.waiting = deque()
        self.waiting.append(request)
        self._waitingBytes += request.size
        return self._next

    def withdraw(self, request: Request) -> bool:
        """Remove a request of which nothing is posted; False if it is posted or has completed."""
        if request not in self.waiting or (request.isAnnounced and request.exposed is not None):
            return False
        self.waiting.remove(request)
        self._waitingBytes -= request.size
        request.data = None
        request.release()
        self._unexpose(request)
        return True

    def _unexpose(self, request: Request) -> None:
        """Deregister the memory of a long message."""
        exposed, request.exposed = request.exposed, None
        if exposed is not None:
            self._regions.free(exposed)

    def post(self, pair: IQueuePair, credits: Credits, slotBytes: int) -> None:
        """
        Post waiting requests while entries, slots and credits last; return credits that are due.

        @param slotBytes: the length of the longest message.
        @raise txrdma.error.RDMAError: the queue pair takes no more requests.
        """
        ready: list[SendRequest] = []
        mostInline = pair.capacity.maxInline
        # A peer that returns credits without reading a long message must not let the list behind it grow.
        while self.waiting and len(self.posted) + len(self._behind) < self.entries:
            first = self.waiting[0]
            if not first.isAnnounced:
                # A long message takes two credits: for its announcement, and for the message with its name
                # behind it.
                if not (credits.mayPost and self._expose(first)):
                    break
                ready.append(self._announce(first))
                credits.posted()
                continue
            data = first.data
            isInline = data is not None and len(data) <= mostInline
            # Memory before the credit, which cannot be returned once it is used.
            if not isInline:
                hasMemory = self._ensureSlot(slotBytes) if first.isMessage else self._takeMemory(first)
                if not hasMemory:
                    break  # until another request completes
            if first.isCredited:
                if not credits.mayPost:
                    break
                credits.posted()
            self.waiting.popleft()
            self._waitingBytes -= first.size
            if data and isInline:
                first.workRequest.inline, first.data = (data,), None
            elif data and first.isMessage:
                self._fill(first, data, slotBytes)
            self.posted[first.workRequest.identifier] = first
            ready.append(first.workRequest)
        if not self.waiting:
            self.waiting = _NONE
        if ready:  # one call for all: each call rings the doorbell of the device
            pair.postSend(ready)
            for each in ready:
                each.inline = ()  # the device has copied the bytes: the program may resize its buffer
        due = credits.due()
        if due:
            returning = SendRequest(0, Operation.RDMA_WRITE_WITH_IMMEDIATE, immediate=due)
            if self.postOverhead(pair, returning):
                credits.sentBack(due)

    def postOverhead(self, pair: IQueuePair, request: SendRequest) -> int:
        """Post a request of the connection itself; return its identifier, or 0 if no entry is free."""
        if len(self._overhead) >= OVERHEAD:
            return 0
        self._next += 1
        request.identifier = self._next
        pair.postSend([request])
        self._overhead.append(self._next)
        return self._next

    def completed(self, identifier: int) -> Request | None:
        """
        Remove a request that succeeded.

        @return: None for one of the connection itself, and for a message that the peer does not deliver yet,
            since it has to read a long one first.
        """
        if identifier in self._overhead:
            self._overhead.remove(identifier)
        request = self.posted.pop(identifier, None)
        if request is not None and request.slot is not None:
            self._free.append(request.slot)
        if request is None or request.exposed is not None:
            return None
        if self._unread and request.isMessage and identifier > self._unread[0].workRequest.identifier:
            if self._behind is _NONE:
                self._behind = deque()
            self._behind.append(request)
            return None
        return request

    def messageRead(self) -> list[Request]:
        """
        Remove the oldest long message, which the peer has read, and completed messages up to the next one.

        @return: these messages; empty if the peer cannot have read any.
        """
        # A long message is in both queues while only its announcement is posted, without its name.
        if not self._unread or (self.waiting and self.waiting[0] is self._unread[0]):
            return []
        self._unexpose(self._unread[0])  # it stays in the queue if that raises an exception
        messages = [self._unread.popleft()]
        end = self._unread[0].workRequest.identifier if self._unread else self._next + 1
        while self._behind and self._behind[0].workRequest.identifier < end:
            messages.append(self._behind.popleft())
        return messages

    def takeAll(self) -> list[Request]:
        """Remove all requests that have not completed, in order, when the connection ends."""
        taken = dict.fromkeys((*self._unread, *self._behind, *self.posted.values(), *self.waiting))
        self.posted.clear()
        for queue in (self._unread, self._behind, self.waiting):
            queue.clear()
        return list(taken)

    def _expose(self, request: Request) -> bool:
        """
        Copy a long message into memory that the peer may read.

        @return: False if the peer has not read earlier ones, or if only other requests have memory.
        @raise ResourceExhausted: no other request has any.
        """
        if len(self._unread) >= OUTSTANDING:
            return False
        if request.exposed is None:
            try:
                request.exposed = region = self._regions.expose(bytes(request.data or b""))
            except ResourceExhausted:
                if not (self.posted or self._unread):
                    raise
                return False
            name = MemoryName(address=region.address, key=region.rkey, length=request.size)
            request.data = name.encode()
        return True

    def _announce(self, request: Request) -> SendRequest:
        """Return the request that announces a long message."""
        announcement = SendRequest(0, Operation.RDMA_WRITE_WITH_IMMEDIATE, immediate=ANNOUNCEMENT)
        self._next += 1
        announcement.identifier = self._next
        self.posted[self._next] = Request(announcement, True)
        request.isAnnounced = True
        if self._unread is _NONE:
            self._unread = deque()
        self._unread.append(request)
        return announcement

    def _ensureSlot(self, slotBytes: int) -> bool:
        """
        Return whether a slot is free. The first call allocates one for each entry, or as many as fit.

        @raise ResourceExhausted: there is no memory for a single slot.
        """
        slots = self.entries
        while self._memory is None:
            try:
                self._memory = self._regions.allocate(slots * slotBytes)
                self._free = list(range(slots))
            except ResourceExhausted:
                if slots == 1:
                    raise
                slots //= 2
        return bool(self._free)

    def _takeMemory(self, request: Request) -> bool:
        """
        Take registered memory for a request, and copy its bytes there.

        @return: False if there is not enough memory, while other requests have some.
        @raise ResourceExhausted: no other request has any.
        """
        data = request.data or b""
        length = request.result or len(data)
        if length and request.memory is None:
            try:
                request.memory = self._parts.take(1, max(_LEAST_BYTES, 1 << (length - 1).bit_length()))
            except ResourceExhausted:
                if not self.posted:
                    raise
                return False
            request.workRequest.segments = (request.memory.fill(data, length),)
            request.data = None
        return True

    def _fill(self, request: Request, data: Buffer, slotBytes: int) -> None:
        """Copy the bytes of a message into a free slot."""
        assert self._memory is not None  # allocated by _ensureSlot
        request.slot = self._free.pop()
        begin = request.slot * slotBytes
        self._memory.view[begin : begin + len(data)] = data
        address, lkey = self._memory.address + begin, self._memory.lkey
        request.workRequest.segments = (Segment(address, len(data), lkey),)
        request.data = None
