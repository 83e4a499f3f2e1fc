"""
Memory that connections receive messages in: regions that are cut into parts, which serve one after another.

To register memory takes the software device half a dozen system calls, and a real one pins pages: connections
that come and go are faster without. Peers have no right to these regions, which only receives reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from txrdma.error import ResourceExhausted
from txrdma.iba.verbs import Access, ReceiveRequest, Segment
from txrdma.interfaces import IMemoryRegion, IProtectionDomain

PARTS: Final = 8
"""Connections that have their memory in the same region, at most."""

LARGEST: Final = 4 << 20
"""Bytes of a region of several parts: connections with more memory have a region each."""

SPARE_REGIONS: Final = 4
"""Regions of several parts that are kept for the next connections, when nobody has anything of them."""


class Part:
    """
    Memory for the receives of one connection, in slots of the same length.

    @ivar requests: a receive for each slot; its identifier is the number of the slot.
    """

    __slots__ = ("_region", "_slotBytes", "_view", "requests")

    def __init__(self, region: _Region, begin: int, slots: int, slotBytes: int) -> None:
        """
        @param begin: the offset of the first slot in the region, in bytes.
        """
        self._region, self._slotBytes = region, slotBytes
        memory = region.memory
        self._view = memory.view[begin : begin + slots * slotBytes]
        address, lkey = memory.address + begin, memory.lkey
        self.requests = [
            ReceiveRequest(slot, (Segment(address + slot * slotBytes, slotBytes, lkey),))
            for slot in range(slots)
        ]

    def message(self, slot: int, length: int) -> bytes:
        """The first bytes of a slot."""
        begin = slot * self._slotBytes
        return bytes(self._view[begin : begin + length])

    def giveBack(self) -> None:
        """Leave the memory to other connections; no queue pair may have a receive in it any more."""
        self._region.took(self)

    def forget(self) -> None:
        """Let go of the memory, which is to be deregistered."""
        self._view.release()


class _Region:
    """A region with its parts; those that no connection has are C{free}."""

    def __init__(self, memory: IMemoryRegion, parts: int, slots: int, slotBytes: int, whole: _Pool) -> None:
        self.memory, self._parts, self._whole = memory, parts, whole
        self.free = [Part(self, index * slots * slotBytes, slots, slotBytes) for index in range(parts)]

    @property
    def isWhole(self) -> bool:
        """True if one connection has all of the region."""
        return self._parts == 1

    @property
    def isUnused(self) -> bool:
        """True if no connection has a part."""
        return len(self.free) == self._parts

    def took(self, part: Part) -> None:
        """Take back a part of the region, whose connection is over."""
        self.free.append(part)
        self._whole.settle(self)

    def close(self) -> None:
        """Deregister the region, of which nobody uses a part."""
        for part in self.free:
            part.forget()
        self.memory.close()


class _Pool:
    """The regions whose parts have one size; C{free} are those that have a part to give."""

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
        """Register a region of so many parts, or of half as many while there is not enough memory."""
        while True:
            try:
                return self._allocate(parts * bytesOfPart)
            except ResourceExhausted:
                if parts == 1:
                    raise
                parts //= 2

    def trim(self) -> None:
        """Deregister the regions of which nobody has a part."""
        for region in [each for each in self._free if each.isUnused]:
            self._free.remove(region)
            region.close()

    def settle(self, region: _Region) -> None:
        """A region has another part to give: a few small regions that nobody uses are kept."""
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
    """Memory of a protection domain, for the receives of its connections."""

    def __init__(self, domain: IProtectionDomain) -> None:
        self._domain = domain
        self._pools: dict[tuple[int, int], _Pool] = {}

    def take(self, slots: int, slotBytes: int) -> Part:
        """
        Memory for one connection, until it is given back.

        @raise txrdma.error.RDMAError: the device gives none.
        """
        pool = self._pools.get((slots, slotBytes))
        if pool is None:
            pool = self._pools[slots, slotBytes] = _Pool(slots, slotBytes, self._allocate)
        return pool.take()

    def close(self) -> None:
        """Deregister all memory; all connections have given theirs back."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _allocate(self, length: int) -> IMemoryRegion:
        """Allocate registered memory; if there is too little, close the regions that nobody uses first."""
        try:
            return self._domain.allocateMemory(length, Access.LOCAL_WRITE)
        except ResourceExhausted:
            for pool in self._pools.values():
                pool.trim()
            return self._domain.allocateMemory(length, Access.LOCAL_WRITE)
