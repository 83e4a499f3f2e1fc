"""
Algorithms for members that share memory, executed by views of one memory and compared with plain Python.
"""

from __future__ import annotations

import mmap
from array import array
from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.groups import reductions
from txrdma.btl.groups._sharedalgorithms import Mismatch, SharedAlgorithms, SharedSchedule, SHORT_REDUCTION
from txrdma.btl.groups._slots import AREA_BYTES, memoryBytes, Slots, SlotWait
from txrdma.btl.groups.reductions import Elements
from txrdma.test.unit.btl.groups.test_algorithms import Play

SIZES = st.integers(2, 9)
LENGTHS = st.sampled_from([0, 1, 5, SHORT_REDUCTION // 8, SHORT_REDUCTION // 8 + 1, 10_007])
"""Numbers of elements of 8 bytes."""

LONG = (AREA_BYTES + AREA_BYTES // 2) // 8 + 11
"""A number of 8-byte elements that are transferred in several pieces."""


class Members:
    """Members that share memory."""

    def __init__(self, size: int) -> None:
        memory = memoryview(mmap.mmap(-1, memoryBytes(size)))
        self.size = size
        self.slots = [Slots(memory, rank, size) for rank in range(size)]
        self.algorithms = [SharedAlgorithms(each, size) for each in self.slots]

    def play(self, make: Any, seed: int = 0) -> list[Any]:
        """Execute the schedules that a function creates from ranks and algorithms; return the results."""
        play = Play(self.size, lambda rank: make(rank, self.algorithms[rank]), seed, self.slots)
        return play.results

    def allreduce(self, data: list[Any], operation: Any, seed: int = 0) -> list[Any]:
        """Reduce data, and return the results of all members."""
        elements = [Elements(each, operation) for each in data]
        into = [memoryview(bytearray(len(each.bytes))) for each in elements]
        self.play(lambda rank, each: each.allreduce(elements[rank], into[rank]), seed)
        return [each.result(found) for each, found in zip(elements, into, strict=True)]


def floats(rank: int, length: int) -> array[float]:
    """Return elements whose sum depends on the order."""
    return array("d", [(rank + 1) * 0.1 + number % 17 * 1e15 for number in range(length)])


class SharedAlgorithmTests(SynchronousTestCase):
    """Successive operations of groups of up to 9 members, in random orders."""

    slowBecause = "Hypothesis plays hundreds of groups"

    @given(SIZES, LENGTHS, st.sampled_from(["sum", "min", "max"]), st.integers(0, 99))
    def test_allreduce(self, size: int, length: int, operation: str, seed: int) -> None:
        """All members get identical bits: the elements combined in the order of ranks."""
        members = Members(size)
        data = [floats(rank, length) for rank in range(size)]
        function: Any = {"sum": lambda one, other: one + other, "min": min, "max": max}[operation]
        expected = array("d", [reduce(function, column) for column in zip(*data, strict=True)])
        for _ in range(3):
            self.assertEqual(members.allreduce(data, operation, seed), [expected] * size)

    def test_long(self) -> None:
        """Arrays of several pieces are reduced, also in place and by functions, and without NumPy."""

        def plus(one: Any, other: Any) -> Any:
            return [first + second for first, second in zip(one, other, strict=True)]

        self.assertGreater(8 * LONG, AREA_BYTES)
        self.inPlace(2, "sum")
        self.inPlace(5, "sum")
        self.inPlace(2, plus)
        self.patch(reductions, "_numpy", lambda: None)
        self.inPlace(2, "sum")

    def inPlace(self, size: int, operation: Any) -> None:
        """Reduce long arrays in place."""
        data = [array("q", [rank]) * LONG for rank in range(size)]
        elements = [Elements(each, operation) for each in data]
        Members(size).play(lambda rank, each: each.allreduce(elements[rank], elements[rank].bytes))
        self.assertEqual(data, [array("q", [size * (size - 1) // 2]) * LONG] * size)

    @given(SIZES, st.integers(0, 8), LENGTHS, st.integers(0, 99))
    def test_reduce(self, size: int, root: int, length: int, seed: int) -> None:
        """The root gets the sum, and the buffers of all members are unchanged."""
        root %= size
        members = Members(size)
        data = [array("q", [rank]) * length for rank in range(size)]
        elements = [Elements(each, "sum") for each in data]
        into = memoryview(bytearray(8 * length))
        for _ in range(3):
            into[:] = bytes(8 * length)
            members.play(
                lambda rank, each: each.reduce(root, elements[rank], into if rank == root else None), seed
            )
            self.assertEqual(into.cast("q").tolist(), [size * (size - 1) // 2] * length)
        self.assertEqual(data, [array("q", [rank]) * length for rank in range(size)])

    @given(SIZES, st.integers(0, 8), st.sampled_from([0, 1, 100]), st.integers(0, 99))
    def test_broadcast(self, size: int, root: int, length: int, seed: int) -> None:
        """All members get the root's bytes, however many operations the root is ahead."""
        root %= size
        members = Members(size)

        def several(rank: int, each: SharedAlgorithms) -> SharedSchedule:
            found = []
            for number in range(5):
                buffer = bytearray(bytes([number]) * length if rank == root else length)
                yield from each.broadcast(root, memoryview(buffer))
                found.append(bytes(buffer))
            return found

        expected = [bytes([number]) * length for number in range(5)]
        self.assertEqual(members.play(several, seed), [expected] * size)

    def test_longBroadcast(self) -> None:
        """A broadcast takes several steps if it is longer than an area."""
        members = Members(3)
        buffers = [bytearray(2 * AREA_BYTES + 1) for _ in range(3)]
        buffers[1][:] = bytes(range(256)) * (2 * AREA_BYTES // 256) + b"!"
        members.play(lambda rank, each: each.broadcast(1, memoryview(buffers[rank])))
        self.assertEqual([each.step for each in members.slots], [3] * 3)
        self.assertTrue(buffers[0] == buffers[1] == buffers[2])

    @given(SIZES, st.integers(0, 99))
    def test_barrier(self, size: int, seed: int) -> None:
        """No member passes a barrier before all members have reached it."""
        begun: set[tuple[int, int]] = set()
        members = Members(size)

        def make(rank: int, each: SharedAlgorithms) -> SharedSchedule:
            for number in range(3):
                begun.add((number, rank))
                yield from each.barrier()
                self.assertEqual({other for known, other in begun if known == number}, set(range(size)))

        members.play(make, seed)
        self.assertEqual([each.step for each in members.slots], [3] * size)

    @given(SIZES, st.integers(0, 8), st.integers(0, 99))
    def test_items(self, size: int, root: int, seed: int) -> None:
        """Items of different lengths, some too long for an area, are gathered, scattered and exchanged."""
        root %= size
        members = Members(size)
        items = [bytes([rank]) * (AREA_BYTES if rank == size - 2 else rank) for rank in range(size)]
        expected = [items if rank == root else None for rank in range(size)]
        gathered = members.play(lambda rank, each: each.gather(root, items[rank]), seed)
        self.assertTrue(gathered == expected)  # assertEqual would format megabytes
        found = members.play(lambda rank, each: each.scatter(root, items if rank == root else []), seed)
        self.assertTrue(found == items)
        sent = [[b"%d to %d" % (here, there) for there in range(size)] for here in range(size)]
        sent[0][1] = bytes(AREA_BYTES)
        found = members.play(lambda rank, each: each.alltoall(sent[rank]), seed)
        self.assertTrue(found == [list(column) for column in zip(*sent, strict=True)])


class RuleTests(SynchronousTestCase):
    """Members that violate the protocol, and members that sleep."""

    def setUp(self) -> None:
        self.members = Members(2)
        self.slots, self.others = self.members.slots

    def test_mismatch(self) -> None:
        """A different operation, length, or element type is detected."""
        here, there = (Elements(array("i", [1, 2]), "sum"), Elements(array("q", [1]), "sum"))
        into, short = memoryview(bytearray(8)), Elements(array("i", [1]), "sum")
        for other, text in (
            (lambda each: each.barrier(), "another operation"),
            (lambda each: each.allreduce(there, into), "elements of another type"),
            (lambda each: each.allreduce(Elements(b"123", "sum"), into), "another type"),
            (lambda each: each.allreduce(short, into), "4 bytes, and the buffer 8"),
        ):
            members = Members(2)
            next(other(members.algorithms[1]))
            with self.assertRaisesRegex(Mismatch, text) as caught:
                list(members.algorithms[0].allreduce(here, into))
            self.assertEqual(caught.exception.rank, 1)

    def test_itemOutside(self) -> None:
        """An item outside its member's area is detected."""
        for at, length in ((AREA_BYTES + 1, 0), (32, AREA_BYTES), (1 << 63, 1 << 63), (0, 1 << 40)):
            members = Members(2)
            next(members.algorithms[1].alltoall([b"a", b"b"]))
            members.slots[1].current()[1][:16] = array("Q", [at, length]).tobytes()
            with self.assertRaisesRegex(Mismatch, "outside of its memory"):
                list(members.algorithms[0].alltoall([b"a", b"b"]))

    def test_changed(self) -> None:
        """Arbitrary values in a slot raise Mismatch."""
        members = Members(2)
        members.slots[1].publish(3, 1 << 62)
        members.slots[1].publish((1 << 64) - 1, (1 << 64) - 1)
        with self.assertRaises(Mismatch):
            list(members.algorithms[0].barrier())

    def test_sleep(self) -> None:
        """A member that publishes a step wakes only the members that sleep until then."""
        self.assertEqual(self.slots.missing(1, [1]), 1)
        self.slots.sleep(1)
        self.others.publish(1, 0)
        self.assertEqual(self.others.outgoing(), [0])
        self.assertEqual(self.others.outgoing(), ())
        self.assertIsNone(self.slots.missing(1, [1]))
        self.slots.awake()
        self.others.publish(1, 0)
        self.slots.publish(1, 0)
        self.assertEqual([self.others.outgoing(), self.slots.outgoing()], [(), ()])

    def test_ahead(self) -> None:
        """A member starts a step only after the others have read its data of the step before the last."""
        reached = []

        def ahead() -> SharedSchedule:
            for number in range(4):
                yield from self.members.algorithms[0].broadcast(0, memoryview(b"%d" % number))
                reached.append(number)

        schedule = ahead()
        self.assertEqual(next(schedule), SlotWait(1, [1]))
        self.assertEqual(reached, [0])
        self.others.publish(1, 0)
        self.assertEqual(next(schedule), SlotWait(2, [1]))
        self.assertEqual(reached, [0, 1])
