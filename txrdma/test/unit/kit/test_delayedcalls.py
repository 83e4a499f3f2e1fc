"""L{txrdma.kit.delayedcalls}: delayed calls, timers, and calls in the next iteration."""

from __future__ import annotations

import gc
from math import inf
from typing import Any
from weakref import ref

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.delayedcalls import cancelCall, isPending, nextCalls, READ_SECONDS, Timer
from txrdma.kit.forwardclock import sharedForwardClock


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

    def test_callAfterReading(self) -> None:
        """A call is made a little later than its time, unless what was read meanwhile stops the timer."""
        for isStopped in (False, True):
            self.made.clear()
            self.timer.startAndRead(5, self.made.append, "late")
            self.clock.advance(60)
            self.assertEqual((self.made, self.timer.isPending), ([], True))
            if isStopped:
                self.timer.stop()
            self.clock.advance(READ_SECONDS)
            self.assertEqual((self.made, self.timer.isPending), ([] if isStopped else ["late"], False))

    def test_stoppedOrCancelledByOthers(self) -> None:
        """A call that other code has cancelled is not pending, and can be stopped or replaced."""
        self.timer.start(1, self.made.append, "stopped")
        self.timer.stop()
        self.timer.start(1, self.made.append, "cancelled")
        self.clock.calls[0].cancel()
        self.assertFalse(self.timer.isPending)
        self.timer.stop()
        self.timer.ensure(1, self.made.append, "made")
        self.clock.advance(1)
        self.assertEqual(self.made, ["made"])


class NextCallsTests(SynchronousTestCase):
    """L{txrdma.kit.delayedcalls.NextCalls}, whose calls append to a list."""

    def setUp(self) -> None:
        self.clock: Any = Clock()
        self.calls = nextCalls(self.clock)
        self.made: list[str] = []

    def first(self) -> None:
        self.made.append("first")

    def second(self) -> None:
        self.made.append("second")

    def again(self) -> None:
        """Append to the list, and add this call again once."""
        self.made.append("again")
        if self.made.count("again") < 2:
            self.calls.add(self.again)

    def test_callsShareOneDelayedCall(self) -> None:
        for call in (self.first, self.second, self.first):
            self.calls.add(call)
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)
        self.clock.advance(0)
        self.assertEqual(self.made, ["first", "second"])
        self.clock.advance(0)
        self.assertEqual(self.made, ["first", "second"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_oneInstancePerReactor(self) -> None:
        self.assertIs(nextCalls(self.clock), self.calls)
        self.assertIsNot(nextCalls(Clock()), self.calls)

    def test_instanceIsFreedWithItsUsers(self) -> None:
        clock = Clock()
        freed = ref(clock)
        calls = nextCalls(clock)
        del clock, calls
        gc.collect()
        self.assertIsNone(freed())

    def test_discardedCallIsNotMade(self) -> None:
        self.calls.add(self.first)
        self.calls.add(self.second)
        self.calls.discard(self.first)
        self.calls.discard(self.first)
        self.clock.advance(0)
        self.assertEqual(self.made, ["second"])

    def test_noDelayedCallRemainsAfterTheLastDiscard(self) -> None:
        self.calls.discard(self.first)
        self.calls.add(self.first)
        self.calls.discard(self.first)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_callDiscardedByAnEarlierOneIsNotMade(self) -> None:
        self.calls.add(lambda: self.calls.discard(self.second))
        self.calls.add(self.second)
        self.calls.add(self.first)
        self.clock.advance(0)
        self.assertEqual(self.made, ["first"])

    def test_exceptionEndsOnlyItsOwnCall(self) -> None:
        self.calls.add(lambda: 1 / 0)
        self.calls.add(self.first)
        self.clock.advance(0)
        self.assertEqual(self.made, ["first"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_callsAreMadeAfterOthersCancelledTheDelayedCall(self) -> None:
        self.calls.add(self.first)
        for each in self.clock.getDelayedCalls():
            each.cancel()
        self.calls.add(self.second)
        self.clock.advance(0)
        self.assertEqual(self.made, ["first", "second"])

    def delay(self) -> None:
        """Add a call, and make another one without a delay."""
        self.calls.add(self.first)
        self.clock.rightNow += 1
        self.clock.callLater(0, self.made.append, "delayed")
        self.clock.rightNow += 1

    def test_callsAreMadeAlthoughTheClockWasSetBack(self) -> None:
        """Calls are not late by as much as the clock was set back, once a user of the clock notices it."""
        users = sharedForwardClock(self.clock)
        users.seconds()
        self.calls.add(self.first)
        self.clock.rightNow -= 3600.0
        users.seconds()
        self.clock.advance(0)
        self.assertEqual((self.made, self.clock.getDelayedCalls()), (["first"], []))

    def test_callsAreMadeAlthoughNobodyHadReadTheClock(self) -> None:
        """A user notices that the clock was set back after the call was added, by any amount."""
        users = sharedForwardClock(self.clock)
        for seconds in (3600.0, 60.0):  # the clock was never read, or last read 100 seconds before
            self.calls.add(self.first)
            self.clock.rightNow -= seconds
            users.seconds()
            self.clock.advance(0)
            self.assertEqual((self.made, self.clock.getDelayedCalls()), (["first"], []))
            self.made.clear()
            self.clock.rightNow += 100.0

    def test_postponedCallsAreMadeAfterDelayedOnes(self) -> None:
        self.calls.postpone()
        self.delay()
        self.calls.add(self.second)
        self.calls.postpone()
        self.assertEqual(len(self.clock.getDelayedCalls()), 2)
        self.clock.advance(0)
        self.assertEqual(self.made, ["delayed", "first", "second"])

    def test_postponesOnlyBehindNewCalls(self) -> None:
        """Nothing is done if ours is the last of the calls that the reactor has not seen yet."""
        self.calls.add(self.first)
        timer = self.clock.getDelayedCalls()[0]
        self.clock._newTimedCalls = [timer]
        self.clock.rightNow += 1
        self.calls.postpone()
        self.assertEqual(timer.getTime(), 0)
        delayed = self.clock.callLater(0, self.made.append, "delayed")
        for new in ([timer, delayed], []):
            self.clock._newTimedCalls = new
            self.clock.rightNow += 1
            self.calls.postpone()
            self.assertEqual(timer.getTime(), self.clock.rightNow)
        self.clock.advance(0)
        self.assertEqual(self.made, ["delayed", "first"])

    def test_callsOfTheNextIterationAreMadeAfterDelayedOnes(self) -> None:
        """Calls that are added by calls are made after what these have delayed by 0 seconds."""
        self.calls.add(self.delay)
        self.calls.add(self.again)
        self.clock.advance(0)
        self.assertEqual(self.made, ["again", "delayed", "first", "again"])

    def test_addDoesNotPostpone(self) -> None:
        """Delayed calls that add calls in each iteration do not prevent that calls are made."""
        self.delay()
        self.calls.add(self.second)
        self.clock.advance(0)
        self.assertEqual(self.made, ["first", "second", "delayed"])

    def test_callRunsTheReactor(self) -> None:
        """If a call runs the reactor and another call is added, the reactor makes the remaining calls."""

        def run() -> None:
            self.calls.add(self.second)
            self.clock.advance(0)
            self.made.append("run")

        self.calls.add(run)
        self.calls.add(self.first)
        self.clock.advance(0)
        self.assertEqual(self.made, ["first", "second", "run"])
        self.assertEqual(self.clock.getDelayedCalls(), [])
