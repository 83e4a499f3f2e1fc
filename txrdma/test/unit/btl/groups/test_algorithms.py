"""Algorithms of collective operations, executed in memory and compared with plain Python."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from math import ceil, log2
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.groups import _algorithms
from txrdma.btl.groups._algorithms import Schedule, split, Step
from txrdma.btl.groups._sharedalgorithms import SharedSchedule
from txrdma.btl.groups._slots import Slots, SlotWait
from txrdma.btl.groups.reductions import Elements

SIZES = st.integers(1, 9)
LENGTHS = st.one_of(st.integers(0, 40), st.sampled_from([8191, 8192, 8199, 40_000]))
"""Numbers of 8-byte elements, on both sides of each threshold at which the algorithm changes."""


class Play:
    """
    Executes the schedules of all members.

    @ivar results: return values of the schedules, by rank.
    @ivar steps: number of steps of each member; C{sentBytes}: number of bytes that it sends.
    """

    def __init__(
        self, size: int, make: Callable[[int], SharedSchedule], seed: int = 0, slots: Sequence[Slots] = ()
    ) -> None:
        """
        @param slots: shared-memory slots by rank, if members share memory.
        """
        self._slots = slots
        self.results: list[Any] = [None] * size
        self.steps, self.sentBytes = [0] * size, [0] * size
        self._messages: dict[tuple[int, int], deque[bytes]] = {}
        self._schedules = {rank: make(rank) for rank in range(size)}
        self._waiting: dict[int, Step | SlotWait] = {}
        random = Random(seed)
        for rank in range(size):
            self._continue(rank, None)
        while self._waiting:
            ready = [rank for rank, step in self._waiting.items() if self._isReady(rank, step)]
            if not ready:
                raise AssertionError(f"deadlock: {self._waiting}")
            rank = random.choice(ready)
            self._continue(rank, self._receive(rank, self._waiting.pop(rank)))
        assert not any(self._messages.values()), "messages that no member receives"

    def _continue(self, rank: int, received: list[Any] | None) -> None:
        try:
            step = self._schedules[rank].send(received)  # type: ignore[arg-type]  # None at first
        except StopIteration as end:
            self.results[rank] = end.value
            return
        self.steps[rank] += 1
        for other, data in step.sends if isinstance(step, Step) else ():
            self.sentBytes[rank] += len(data)
            self._messages.setdefault((rank, other), deque()).append(bytes(data))
        self._waiting[rank] = step

    def _isReady(self, rank: int, step: Step | SlotWait) -> bool:
        if isinstance(step, SlotWait):
            return self._slots[rank].missing(step.step, step.ranks) is None
        return all(self._messages.get((other, rank)) for other, _into in step.receives)

    def _receive(self, rank: int, step: Step | SlotWait) -> list[Any]:
        received: list[Any] = []
        for other, into in step.receives if isinstance(step, Step) else ():
            data = self._messages[other, rank].popleft()
            if into is None:
                received.append(data)
            else:
                into[:] = data  # raises unless it has the same length
                received.append(None)
        return received


def numbers(rank: int, length: int) -> array[int]:
    """Return the elements of a member."""
    return array("q", [(rank + 1) * (number % 101 - 50) for number in range(length)])


class AlgorithmTests(SynchronousTestCase):
    """All sizes up to 9, with short and long data, in random orders."""

    slowBecause = "Hypothesis plays hundreds of groups"

    @given(SIZES, st.integers(0, 99))
    def test_barrier(self, size: int, seed: int) -> None:
        """A barrier takes log2 steps."""
        play = Play(size, lambda rank: _algorithms.barrier(rank, size), seed)
        self.assertEqual(play.steps, [ceil(log2(size))] * size)

    @given(SIZES, st.integers(0, 8))
    def test_barrierHolds(self, size: int, missing: int) -> None:
        """No member passes a barrier that another member has not reached."""
        missing %= size
        passed: list[int] = []

        def make(rank: int) -> Schedule:
            if rank == missing:
                yield Step([], [(rank, None)])  # which never arrives
            yield from _algorithms.barrier(rank, size)
            passed.append(rank)

        with self.assertRaisesRegex(AssertionError, "deadlock"):
            Play(size, make)
        self.assertEqual(passed, [])

    @given(SIZES, st.integers(0, 8), st.one_of(st.integers(0, 99), st.sampled_from([262_143, 262_151])))
    def test_broadcast(self, size: int, root: int, length: int) -> None:
        """A broadcast delivers the root's bytes to all members."""
        root %= size
        data = bytes(Random(length).randbytes(length))
        buffers = [bytearray(data if rank == root else length) for rank in range(size)]
        Play(size, lambda rank: _algorithms.broadcast(rank, size, root, memoryview(buffers[rank])))
        self.assertEqual(buffers, [data] * size)

    @given(SIZES, LENGTHS, st.sampled_from(["sum", "min", "max"]), st.integers(0, 99))
    def test_allreduce(self, size: int, length: int, operation: str, seed: int) -> None:
        """An allreduce gives all members the sum, minimum or maximum of each element."""
        found = [Elements(numbers(rank, length), operation) for rank in range(size)]

        def make(rank: int) -> Schedule:
            each = found[rank]
            return _algorithms.allreduce(rank, size, each.bytes, each.unit, each.combine)

        Play(size, make, seed)
        functions: dict[str, Callable[..., int]] = {"sum": sum, "min": min, "max": max}
        columns = zip(*(numbers(rank, length) for rank in range(size)), strict=True)
        expected = array("q", map(functions[operation], columns))
        for each in found:
            self.assertEqual(each.result(), expected)

    @given(SIZES, st.integers(0, 8), LENGTHS, st.integers(0, 99))
    def test_reduce(self, size: int, root: int, length: int, seed: int) -> None:
        root %= size
        found = [Elements(numbers(rank, length), "sum") for rank in range(size)]

        def make(rank: int) -> Schedule:
            each = found[rank]
            return _algorithms.reduce(rank, size, root, each.bytes, each.unit, each.combine)

        Play(size, make, seed)
        total = size * (size + 1) // 2
        self.assertEqual(found[root].result(), array("q", [total * each for each in numbers(0, length)]))

    @given(SIZES, st.integers(0, 8))
    def test_gatherAndScatter(self, size: int, root: int) -> None:
        """Items of different lengths are gathered at the root, and scattered from it."""
        root %= size
        items = [bytes([rank]) * rank for rank in range(size)]
        gathered = Play(size, lambda rank: _algorithms.gather(rank, size, root, items[rank])).results
        self.assertEqual(gathered, [items if rank == root else None for rank in range(size)])
        play = Play(size, lambda rank: _algorithms.scatter(rank, size, root, items if rank == root else []))
        self.assertEqual(play.results, items)

    @given(SIZES, st.integers(0, 99))
    def test_alltoall(self, size: int, seed: int) -> None:
        """An alltoall delivers each member's item to every member."""
        sent = [[b"%d to %d" % (here, there) for there in range(size)] for here in range(size)]
        play = Play(size, lambda rank: _algorithms.alltoall(rank, size, sent[rank]), seed)
        self.assertEqual(play.results, [list(column) for column in zip(*sent, strict=True)])


class CostTests(SynchronousTestCase):
    def allreduce(self, size: int, length: int) -> Play:
        def make(rank: int) -> Schedule:
            each = Elements(array("q", bytes(8 * length)), "sum")
            return _algorithms.allreduce(rank, size, each.bytes, each.unit, each.combine)

        return Play(size, make)

    def test_short(self) -> None:
        """A short reduction takes the logarithm of the group's size in steps, and at most two more."""
        self.assertEqual(self.allreduce(8, 1).steps, [3] * 8)
        self.assertEqual(max(self.allreduce(7, 1).steps), 4)

    def test_long(self) -> None:
        """In a long reduction each member sends less than twice the data, for any size of the group."""
        for size in (3, 4, 8, 9):
            sent = self.allreduce(size, 9072).sentBytes
            self.assertEqual(sent, [2 * 9072 * 8 * (size - 1) // size] * size)

    def test_broadcastTree(self) -> None:
        """The root of a short broadcast sends as many messages as the tree is deep."""
        buffers = [bytearray(10) for _ in range(8)]
        play = Play(8, lambda rank: _algorithms.broadcast(rank, 8, 3, memoryview(buffers[rank])))
        self.assertEqual((play.sentBytes[3], sum(play.sentBytes)), (30, 70))

    def test_split(self) -> None:
        """Data is split between elements, into parts whose lengths differ by at most one element."""
        parts = split(memoryview(bytes(range(40))), 3, 8)
        self.assertEqual([len(each) for each in parts], [8, 16, 16])
        self.assertEqual(b"".join(parts), bytes(range(40)))
