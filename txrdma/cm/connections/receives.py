"""
Registered memory for received messages: regions that are divided into parts, one for each connection. The
bytes of reads, writes and atomic operations are in parts as well, while they are posted.

Registering memory takes several system calls on the software device, and pins pages on hardware, so parts are
reused by later connections. Peers have no remote access to these regions. While a connection is idle, its
L{transport <txrdma.cm.connections.transport>} returns the memory of the receives to the system.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from txrdma.error import ResourceExhausted
from txrdma.iba.verbs import Access, Buffer, ReceiveRequest, Segment
from txrdma.interfaces import IMemoryRegion, IProtectionDomain

PARTS: Final = 8
"""Largest number of parts of a region."""

LARGEST: Final = 4 << 20
"""Largest size of a region of several parts, in bytes; larger parts have a region each."""

SPARE_REGIONS: Final = 4
"""Number of unused regions of several parts that stay registered for later connections."""


class Part:
    """
    Memory for the receives of one connection, in slots of the same length.

    @ivar requests: receives of the first slots; the identifier of each is the number of its slot.
    """

    __slots__ = ("_address", "_begin", "_lkey", "_region", "_slotBytes", "requests")

    def __init__(self, region: _Region, begin: int, slotBytes: int) -> None:
        """@param begin: the offset of the first slot in the region, in bytes."""
        self._region, self._begin, self._slotBytes = region, begin, slotBytes
        memory = region.memory
        self._address, self._lkey = memory.address + begin, memory.lkey
        self.requests: list[ReceiveRequest] = []

    def prepare(self, slots: int) -> list[ReceiveRequest]:
        """Return receive requests, one for each slot from the first on; C{slots} is their number."""
        requests, length = self.requests, self._slotBytes
        for slot in range(len(requests), slots):
            segment = Segment(self._address + slot * length, length, self._lkey)
            requests.append(ReceiveRequest(slot, (segment,)))
        return requests[:slots]

    def message(self, slot: int, length: int) -> bytes:
        """The first bytes of a slot."""
        begin = self._begin + slot * self._slotBytes
        return bytes(self._region.memory.view[begin : begin + length])

    def fill(self, data: Buffer, length: int) -> Segment:
        """Copy bytes into the first slot; return the segment of C{length} bytes there."""
        self._region.memory.view[self._begin : self._begin + len(data)] = data
        return Segment(self._address, length, self._lkey)

    def giveBack(self) -> None:
        """Return the memory; no queue pair may have a receive in it any more."""
        self._region.returned(self)


class _Region:
    """A region and its parts, of which those in C{free} are unused."""

    def __init__(self, memory: IMemoryRegion, parts: int, slots: int, slotBytes: int, whole: _Pool) -> None:
        self.memory, self._parts, self._whole = memory, parts, whole
        self.free = [Part(self, index * slots * slotBytes, slotBytes) for index in range(parts)]

    @property
    def isWhole(self) -> bool:
        """Whether the region has one part."""
        return self._parts == 1

    @property
    def isUnused(self) -> bool:
        return len(self.free) == self._parts

    def returned(self, part: Part) -> None:
        """Mark a part as unused."""
        self.free.append(part)
        self._whole.settle(self)

    def close(self) -> None:
        """Deregister the region; all parts are unused."""
        self.memory.close()


class _Pool:
    """The regions whose parts have the same size."""

    def __init__(self, slots: int, slotBytes: int, allocate: Callable[[int], IMemoryRegion]) -> None:
        self._slots, self._slotBytes, self._allocate = slots, slotBytes, allocate
        self._free: list[_Region] = []

    def take(self) -> Part:
        if not self._free:
            bytesOfPart = self._slots * self._slotBytes
            memory = self._grow(max(1, min(PARTS, LARGEST // bytesOfPart)), bytesOfPart)
            parts = memory.length // bytesOfPart
            self._free.append(_Region(memory, parts, self._slots, self._slotBytes, self))
        region = self._free[-1]
        part = region.free.pop()
        if not region.free:
            self._free.pop()
        return part

    def _grow(self, parts: int, bytesOfPart: int) -> IMemoryRegion:
        """Register a region; halve the number of parts until there is enough memory."""
        while True:
            try:
                return self._allocate(parts * bytesOfPart)
            except ResourceExhausted:
                if parts == 1:
                    raise
                parts //= 2

    def trim(self) -> None:
        """Deregister unused regions."""
        for region in [each for each in self._free if each.isUnused]:
            self._free.remove(region)
            region.close()

    def settle(self, region: _Region) -> None:
        """Handle a returned part: deregister the region if it is unused, except a few."""
        if len(region.free) == 1:
            self._free.insert(0, region)
        if region.isUnused and (region.isWhole or sum(each.isUnused for each in self._free) > SPARE_REGIONS):
            self._free.remove(region)
            region.close()

    def close(self) -> None:
        for region in self._free:
            region.close()
        self._free.clear()


class ReceiveMemory:
    """The receive memory of all connections of a protection domain."""

    def __init__(self, domain: IProtectionDomain) -> None:
        self._domain = domain
        self._pools: dict[tuple[int, int], _Pool] = {}

    def take(self, slots: int, slotBytes: int) -> Part:
        """
        Return memory for one connection.

        @raise txrdma.error.RDMAError: the device has no memory left.
        """
        pool = self._pools.get((slots, slotBytes))
        if pool is None:
            pool = self._pools[slots, slotBytes] = _Pool(slots, slotBytes, self._allocate)
        return pool.take()

    def close(self) -> None:
        """Deregister all memory; all parts are unused."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _allocate(self, length: int) -> IMemoryRegion:
        """Allocate registered memory; if that fails, close unused regions and try again."""
        try:
            return self._domain.allocateMemory(length, Access.LOCAL_WRITE)
        except ResourceExhausted:
            for pool in self._pools.values():
                pool.trim()
            return self._domain.allocateMemory(length, Access.LOCAL_WRITE)
