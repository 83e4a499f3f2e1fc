"""L{txrdma.kit.delayedcalls}: calls that are made, cancelled by others, or still to be made."""

from __future__ import annotations

from math import inf

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.delayedcalls import cancelCall, isPending, Timer


class DelayedCallTests(SynchronousTestCase):
    def test_onlyPendingCallIsCancelled(self) -> None:
        clock = Clock()
        made: list[int] = []
        calls = [None, *(clock.callLater(number, made.append, number) for number in range(3))]
        clock.advance(0)
        cancelled = calls[2]
        assert cancelled is not None
        cancelled.cancel()
        self.assertEqual([isPending(call) for call in calls], [False, False, False, True])
        for call in calls:
            cancelCall(call)
        self.assertEqual([isPending(call) for call in calls], [False] * 4)
        clock.advance(3)
        self.assertEqual(made, [0])


class TimerTests(SynchronousTestCase):
    """A L{Timer} that appends to a list."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.timer = Timer(self.clock)
        self.made: list[str] = []

    def test_startReplacesThePendingCall(self) -> None:
        self.timer.start(1, self.made.append, "replaced")
        self.timer.start(2, self.made.append, "made")
        self.assertEqual((self.timer.isPending, self.timer.dueAt), (True, 2))
        self.clock.advance(2)
        self.assertEqual((self.made, self.timer.isPending, self.timer.dueAt), (["made"], False, inf))

    def test_earlierOfTwoEnsuredCallsIsMade(self) -> None:
        for seconds in (2, 1, 3):
            self.timer.ensure(seconds, self.made.append, f"after {seconds}")
        self.clock.pump([1, 1, 1])
        self.assertEqual(self.made, ["after 1"])

    def test_stoppedOrCancelledByOthers(self) -> None:
        """A call that other code has cancelled is no longer pending, and can be stopped or replaced."""
        self.timer.start(1, self.made.append, "stopped")
        self.timer.stop()
        self.timer.start(1, self.made.append, "cancelled")
        self.clock.calls[0].cancel()
        self.assertFalse(self.timer.isPending)
        self.timer.stop()
        self.timer.ensure(1, self.made.append, "made")
        self.clock.advance(1)
        self.assertEqual(self.made, ["made"])
