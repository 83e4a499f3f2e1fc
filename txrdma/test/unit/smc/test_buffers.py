"""
Remote memory buffers when memory is scarce, because adapters pin it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import ResourceExhausted
from txrdma.iba.verbs import Access
from txrdma.smc.group.buffers import BufferPool, PINNED_RING


class Domain:
    """A protection domain of a process with a limit of pinned memory."""

    def __init__(self, limit: int) -> None:
        self.left, self.key = limit, 0

    def allocateMemory(self, length: int, access: Access) -> Any:
        """Pin memory, up to the limit."""
        if length > self.left:
            raise ResourceExhausted("ulimit -l")
        self.left -= length
        self.key += 1
        return SimpleNamespace(
            length=length, rkey=self.key, view=memoryview(bytearray(length)), close=lambda: None
        )


class ScarceTests(SynchronousTestCase):
    """A process that may lock 8 MiB, as an unprivileged user by default."""

    def setUp(self) -> None:
        self.patch(BufferPool, "total", 0)
        self.pool, self.domain = BufferPool(), Domain(8 << 20)

    def grow(self, size: int = PINNED_RING, isPinned: bool = True) -> int:
        """Return the number of rings of a new buffer."""
        domain: Any = self.domain
        return self.pool.grow(size, domain, isPinned=isPinned).count

    def test_pinnedBuffersGrowWithConnections(self) -> None:
        self.domain.left = 1 << 30
        self.assertEqual([self.grow() for _ in range(6)], [1, 1, 2, 3, 4, 5])
        self.assertEqual([self.grow() for _ in range(16)][-1], 16)

    def test_unpinnedBufferHasSixteenRings(self) -> None:
        self.assertEqual(self.grow(isPinned=False), 16)

    def test_halvedWhenMemoryIsScarce(self) -> None:
        self.domain.left = 1 << 20
        self.assertEqual(self.grow(isPinned=False), 4)
        self.assertRaises(ResourceExhausted, self.grow)

    def test_lostRings(self) -> None:
        """A buffer with rings that a peer may still write to is deleted when it has no other ring."""
        self.grow(1 << 20, isPinned=False)
        (buffer,) = self.pool
        for left in reversed(range(buffer.count)):
            self.pool.give(buffer.take(), quiet=False)
            self.assertIs(self.pool.surplus(), None if left else buffer)
