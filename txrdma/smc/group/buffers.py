"""
Remote memory buffers (RMBs), whose elements are the rings of a link group's connections.

Follows RFC 7609, 3.3 and 4.4.2. An RMB is one memory region with one key, which is announced to the peer
once. Its elements have one size, and each is the ring of one connection. An element is reused after its
connection only if the peer does not write into it any more, which L{txrdma.smc.flow.closing} decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from twisted.internet.defer import Deferred

from txrdma.error import RDMAError, Refused, ResourceExhausted
from txrdma.iba.types import RKey
from txrdma.iba.verbs import Access
from txrdma.interfaces import IMemoryRegion, IProtectionDomain
from txrdma.kit.values import frozen
from txrdma.smc.group._groupstate import Token
from txrdma.smc.wire.clc import Diagnosis

MAX_BUFFERS = 255
"""Largest number of RMBs in a link group (RFC 7609, 3.3)."""

MOST_ELEMENTS = 16
LARGEST_BUFFER = 16 << 20
"""Bytes up to which elements share a buffer; the kernel allocates memory only when it is written."""

PINNED_RING = 256 << 10
"""Bytes of the largest automatic ring if memory is pinned: by default, a process may pin 8 MiB."""

SMALLEST_RING = 16 << 10
"""Bytes of the smallest ring of SMC-R (RFC 7609, A.2.2)."""


@frozen
class Element:
    """The ring of one connection, with its index from 1."""

    buffer: RemoteMemoryBuffer
    index: int

    @property
    def view(self) -> memoryview:
        size = self.buffer.size
        return self.buffer.region.view[(self.index - 1) * size : self.index * size]


class RemoteMemoryBuffer:
    """
    A remote memory buffer (RMB): one memory region, divided into elements.

    @ivar region: the memory, in the protection domain where it was allocated.
    @ivar size: size of an element, in bytes.
    @ivar count: number of elements.
    @ivar isAgreed: the peer knows the key; C{isLeaving}: DELETE RKEY was requested, so no element is taken.
    @ivar _lost: number of elements without a connection, to which the peer may still write.
    """

    def __init__(self, region: IMemoryRegion, domain: IProtectionDomain, size: int) -> None:
        self.region = region
        self.size = size
        self.isAgreed = False
        self.isLeaving = False
        self.count = region.length // size
        self._free = list(range(self.count, 0, -1))
        self._lost = 0
        self._regions = {domain: region}

    @property
    def rkey(self) -> RKey:
        """The remote key of C{region}, which names the buffer in the group; it differs in other domains."""
        return self.region.rkey

    @property
    def used(self) -> int:
        """Number of elements that connections use, or that the peer may still write to."""
        return self.count - len(self._free)

    @property
    def hasFree(self) -> bool:
        return bool(self._free) and not self.isLeaving

    @property
    def isIdle(self) -> bool:
        """Whether no connection uses the buffer; the peer may still write to some elements."""
        return len(self._free) + self._lost == self.count

    @property
    def isWhole(self) -> bool:
        """Whether all elements of the buffer are free."""
        return len(self._free) == self.count

    def on(self, domain: IProtectionDomain) -> IMemoryRegion:
        """Return the memory's region in a protection domain, which has its own key and address."""
        region = self._regions.get(domain)
        if region is None:
            region = domain.registerMemory(self.region.view, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
            self._regions[domain] = region
        return region

    def tokenOn(self, domain: IProtectionDomain) -> Token:
        region = self.on(domain)
        return Token(region.rkey, region.address)

    def close(self) -> None:
        for region in reversed(self._regions.values()):
            region.close()

    def take(self) -> Element:
        return Element(self, self._free.pop())

    def give(self, element: Element, quiet: bool) -> None:
        """Release an element; it is reused only if C{quiet}: the peer will not write into it any more."""
        if quiet:
            self._free.append(element.index)
        else:
            self._lost += 1


class BufferPool:
    """
    The buffers of one link group.

    @cvar total: bytes of the buffers of all groups in this process.
    @ivar announced: buffers that are being announced, by key, with the waiting Deferreds.
    """

    total: ClassVar[int] = 0

    def __init__(self) -> None:
        self.announced: dict[RKey, list[Deferred[None]]] = {}
        self._buffers: dict[RKey, RemoteMemoryBuffer] = {}
        self._mayTrim = False

    def __iter__(self) -> Iterator[RemoteMemoryBuffer]:
        return iter(self._buffers.values())

    def __len__(self) -> int:
        return len(self._buffers)

    @property
    def length(self) -> int:
        """Number of bytes of the group's buffers."""
        return sum(buffer.region.length for buffer in self._buffers.values())

    def withFreeElement(self, size: int) -> RemoteMemoryBuffer | None:
        """Return a buffer with a free element of this size, preferably known to the peer, or None."""
        best = None
        for buffer in self._buffers.values():
            if buffer.size == size and buffer.hasFree:
                if buffer.isAgreed:
                    return buffer
                best = buffer
        return best

    def grow(
        self, size: int, domain: IProtectionDomain, most: int | None = None, isPinned: bool = False
    ) -> RemoteMemoryBuffer:
        """
        Add a buffer with elements of that size, whose key no other local buffer has.

        @param most: limit of the bytes of all buffers of this process; None without one.
        @param isPinned: whether the device pins memory.
        @raise ResourceExhausted: the limit is reached; L{RDMAError} or OSError: there is not enough memory.
        """
        count = max(min(MOST_ELEMENTS, LARGEST_BUFFER // size), 1)
        if isPinned:
            count = min(count, max(len(self._buffers), 1))
        if most is not None:
            count = min(count, (most - BufferPool.total) // size)
            if count < 1:
                raise ResourceExhausted(f"{max(most - BufferPool.total, 0)} bytes are left of the limit")
        while True:
            try:
                return self._allocate(size, count, domain)
            except (RDMAError, OSError):
                if count == 1:
                    raise
                count //= 2

    def _allocate(self, size: int, count: int, domain: IProtectionDomain) -> RemoteMemoryBuffer:
        """Allocate one memory region; if its key is taken, allocate another before that is released."""
        taken: list[IMemoryRegion] = []
        try:
            while True:
                region = domain.allocateMemory(size * count, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
                if region.rkey not in self._buffers:
                    break
                taken.append(region)
        finally:
            for each in taken:
                each.close()
        buffer = self._buffers[region.rkey] = RemoteMemoryBuffer(region, domain, size)
        BufferPool.total += region.length
        return buffer

    # The peer's agreement (CONFIRM RKEY)

    def announce(self, buffer: RemoteMemoryBuffer) -> None:
        """Record that the buffer is being announced to the peer."""
        self.announced[buffer.rkey] = []

    def agreement(self, buffer: RemoteMemoryBuffer) -> Deferred[None]:
        """Return a Deferred that fires when the peer knows the buffer's key, or fails with L{Refused}."""
        waiting = self.announced.get(buffer.rkey)
        if waiting is None:
            raise Refused("the peer rejects a buffer", Diagnosis.ERR_RTOK)
        agreement: Deferred[None] = Deferred(waiting.remove)
        waiting.append(agreement)
        return agreement

    def answered(self, rkey: RKey, refused: Refused | None) -> None:
        """Record the peer's answer to the announcement of a buffer; a refused buffer is dropped."""
        buffer = self._buffers.get(rkey)
        if buffer is not None:
            buffer.isAgreed = refused is None
            self._mayTrim = True
        for waiting in self.announced.pop(rkey, ()):
            if refused is None:
                waiting.callback(None)
            else:
                waiting.errback(refused)
        if refused is not None:
            self.drop(rkey)

    def refuseAll(self, refused: Refused) -> None:
        for rkey in list(self.announced):
            self.answered(rkey, refused)

    def give(self, element: Element, quiet: bool) -> None:
        element.buffer.give(element, quiet)
        self._mayTrim |= element.buffer.isIdle

    def surplus(self) -> RemoteMemoryBuffer | None:
        """Return an unused buffer without free elements, or one of several unused ones of a size, or None."""
        idle = [buffer for buffer in self._buffers.values() if buffer.isIdle and not buffer.isLeaving]
        for buffer in sorted(idle, key=lambda each: each.isWhole):  # those with lost elements first
            if not buffer.hasFree or any(each is not buffer and each.size == buffer.size for each in idle):
                return buffer
        return None

    def trim(self) -> list[RKey]:
        """Mark surplus buffers that the peer knows as leaving, and return their keys."""
        rkeys: list[RKey] = []
        if not self._mayTrim:
            return rkeys
        self._mayTrim = False
        while (buffer := self.surplus()) is not None and buffer.isAgreed:
            buffer.isLeaving = True
            rkeys.append(buffer.rkey)
        return rkeys

    def drop(self, rkey: RKey) -> None:
        """Close a buffer that the peer does not use any more. Unknown keys are ignored."""
        buffer = self._buffers.pop(rkey, None)
        if buffer is not None:
            BufferPool.total -= buffer.region.length
            buffer.close()

    def close(self) -> None:
        for rkey in list(self._buffers):
            self.drop(rkey)
