"""How a member of a group waits for others that share memory with it, by a simulated clock."""

from __future__ import annotations

import mmap
from collections.abc import Callable

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.groups._slots import AREA_BYTES, memoryBytes, Slots, SlotWait
from txrdma.btl.groups.sharing import (
    GroupMemory,
    MOST_PAUSE,
    POLL_SECONDS,
    TURN_SECONDS,
    TURN_WORK,
    WORK_SECONDS,
)

YIELD = 10e-6
"""Seconds that a yield takes."""


class WaitingTests(SynchronousTestCase):
    """One of three members; the tests write the slots of the other two."""

    def setUp(self) -> None:
        self.clock, self.now, self.yields = Clock(), 0.0, 0
        self.others: Callable[[], object] = lambda: None
        memory = mmap.mmap(-1, memoryBytes(3))
        self.memory = GroupMemory(self.clock, memory, 0, 3, lambda: self.now, self.yielded)
        self.slots = self.memory.slots
        self.first, self.second = (Slots(memoryview(memory), rank, 3) for rank in (1, 2))

    def yielded(self) -> None:
        self.yields += 1
        self.now += YIELD
        self.others()

    def publish(self) -> None:
        """Publish the next step of both others."""
        self.first.publish(1, 0)
        self.second.publish(1, 0)

    def wait(self) -> bool:
        """Wait for the next step of both others."""
        return self.memory.poll(SlotWait(self.first.step + 1, self.slots.others))

    def test_found(self) -> None:
        """Members that arrive soon are found by polling, and need not send wakeups."""
        self.others = self.publish
        self.assertTrue(self.wait())
        self.assertEqual(self.yields, 1)
        self.assertEqual([self.first.outgoing(), self.second.outgoing()], [(), ()])

    def test_sleeps(self) -> None:
        """A member that has polled for the maximum time sleeps until a missing member wakes it."""
        self.first.publish(1, 0)
        self.assertFalse(self.memory.poll(SlotWait(1, [1, 2])))
        self.assertAlmostEqual(self.now, POLL_SECONDS, delta=2 * YIELD)
        self.first.publish(1, 0)
        self.second.publish(1, 0)
        self.assertEqual([self.first.outgoing(), self.second.outgoing()], [(), [0]])
        self.assertTrue(self.memory.poll(SlotWait(1, [1, 2])))
        self.second.publish(1, 0)
        self.assertEqual(self.second.outgoing(), ())

    def test_pollSeconds(self) -> None:
        """A group can be set to poll for longer before it sleeps."""
        self.memory.pollSeconds = 4 * POLL_SECONDS
        self.assertFalse(self.wait())
        self.assertAlmostEqual(self.now, 4 * POLL_SECONDS, delta=2 * YIELD)

    def test_progress(self) -> None:
        """The polling time restarts with each member that arrives, and is longer for long data."""
        self.slots.publish(1, AREA_BYTES)
        each = POLL_SECONDS + WORK_SECONDS * self.slots.lastWork

        def come() -> None:
            if self.now > 0.8 * each and not self.first.step:
                self.first.publish(1, 0)

        self.others = come
        self.assertFalse(self.memory.poll(SlotWait(1, [1, 2])))
        self.assertAlmostEqual(self.now, 1.8 * each, delta=3 * YIELD)

    def test_inVain(self) -> None:
        """Polling becomes rarer after late members, until a member is found in time."""
        for _ in range(MOST_PAUSE):
            self.assertFalse(self.wait())
        self.assertLess(self.now, 9 * (POLL_SECONDS + WORK_SECONDS))
        self.others = self.publish
        while not self.yields or not self.first.step:
            self.wait()
        self.assertTrue(self.wait())
        before, self.others = self.now, lambda: None
        self.assertFalse(self.wait())
        self.assertGreater(self.now - before, POLL_SECONDS)

    def test_busyMachine(self) -> None:
        """If other processes occupy the processor, members sleep instead of yielding it."""

        def slow() -> None:
            self.now += 3e-3
            self.publish()

        self.others = slow
        for _ in range(MOST_PAUSE):
            self.wait()
        self.assertLess(self.now, 10 * 3.1e-3)

    def test_turns(self) -> None:
        """The reactor runs other calls after the same operation at all members, or after a time."""
        resumed: list[bool] = []

        def isOver(isComplete: bool) -> bool:
            return self.memory.isTurnOver(lambda: resumed.append(True), isComplete)

        for _ in range(TURN_WORK - 1):
            self.slots.publish(1, 0)
            self.assertFalse(isOver(True))
        self.slots.publish(1, 0)
        self.assertEqual((isOver(True), isOver(False), resumed), (True, False, []))
        self.clock.advance(0)
        self.assertEqual((isOver(True), resumed), (False, [True]))
        self.now += TURN_SECONDS + 1e-6
        self.assertTrue(isOver(False))
        self.memory.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])
