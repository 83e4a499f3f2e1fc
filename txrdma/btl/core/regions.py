"""
Memory that peers may write to, identified by region numbers. Addresses received from a peer are never used.
"""

from __future__ import annotations

from collections.abc import Hashable

from txrdma.btl.wire import BTLSegment
from txrdma.error import InvalidRequest


class Regions:
    """The registered memory of a module."""

    __slots__ = ("_last", "_regions")

    def __init__(self) -> None:
        self._last = 0
        self._regions: dict[int, tuple[memoryview, Hashable]] = {}

    def register(self, memory: memoryview, peer: Hashable = None) -> int:
        """
        Let peers write into memory.

        @param memory: writable bytes.
        @param peer: the only peer that may write; None for all peers.
        @return: number of the region, which is reused only after 2 to the 32nd others.
        @raise InvalidRequest: the memory is read-only.
        """
        if memory.readonly:
            raise InvalidRequest("memory that peers may write into cannot be read-only")
        while True:
            self._last = (self._last + 1) & 0xFFFFFFFF
            if self._last and self._last not in self._regions:
                self._regions[self._last] = (memory, peer)
                return self._last

    def deregister(self, region: int) -> None:
        """Disable writing to a region. A second call has no effect."""
        self._regions.pop(region, None)

    def find(self, region: int, peer: Hashable) -> memoryview | None:
        """Return the memory of a region; None if it does not exist or this peer has no access."""
        found = self._regions.get(region)
        if found is None or (found[1] is not None and found[1] is not peer):
            return None
        return found[0]

    def write(self, segment: BTLSegment, peer: Hashable) -> bool:
        """Execute a put. Return False if the region is invalid, or the peer has no access."""
        memory = self.find(segment.region, peer)
        end = segment.offset + len(segment.payload)
        if memory is None or end > len(memory):
            return False
        memory[segment.offset : end] = segment.payload
        return True
