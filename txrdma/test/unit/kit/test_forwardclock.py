"""L{txrdma.kit.forwardclock}: a clock that never goes back."""

from __future__ import annotations

import gc
from random import Random

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.forwardclock import ForwardClock, sharedForwardClock


class ForwardClockTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = Clock()
        self.reactor.advance(7200.0)
        self.seen: list[float] = []
        self.clock = ForwardClock(self.reactor)
        self.clock.join(lambda: self.seen.append(self.clock.seconds()))
        self.assertEqual(self.clock.seconds(), 7200.0)

    def test_setBack(self) -> None:
        """The clock stands still when the system time is set back, reports that once, and then goes on."""
        for number in (1, 2):
            self.reactor.rightNow -= 3600.0
            self.assertEqual(self.clock.seconds(), 7200.0)
            self.assertEqual(self.seen, [7200.0] * number)
        self.reactor.advance(5.0)
        self.assertEqual(self.clock.seconds(), 7205.0)
        self.assertEqual(len(self.seen), 2)

    def test_readWhenSetBack(self) -> None:
        """The clock does not go back behind a time that was read when it reported that it was set back."""
        self.clock = ForwardClock(self.reactor)
        self.clock.join(self.readLater)
        self.clock.seconds()
        self.reactor.rightNow -= 3600.0
        self.assertEqual(self.clock.seconds(), 7201.0)
        self.assertEqual(self.seen, [7201.0])

    def test_rounding(self) -> None:
        """The rounding of sums is not reported as a clock that was set back: reports would have no end."""
        random = Random(1)
        for _ in range(1000):
            self.reactor.rightNow = 1000.0 * random.random()
            self.clock.seconds()
            self.seen.clear()
            self.reactor.rightNow -= 3600.0 * (1.0 + random.random())
            self.clock.seconds()
            self.assertEqual(len(self.seen), 1)

    def readLater(self) -> None:
        self.reactor.advance(1.0)
        self.seen.append(self.clock.seconds())

    def test_setForward(self) -> None:
        """The clock follows a system time that is set forward, or that returns to the former time."""
        self.reactor.rightNow += 3600.0
        self.assertEqual(self.clock.seconds(), 10800.0)
        self.reactor.rightNow -= 3600.0
        self.assertEqual(self.clock.seconds(), 10800.0)
        self.reactor.rightNow += 3600.0
        self.assertEqual(self.clock.seconds(), 14400.0)
        self.assertEqual(self.seen, [10800.0])

    def test_margin(self) -> None:
        """After the delay until a deadline, with the margin, the clock has reached the deadline."""
        random = Random(1)
        self.assertEqual(self.clock.margin, 0.0)
        for start in (1e3, 1.7e9):
            for _ in range(1000):
                self.reactor.rightNow = start + random.random()
                self.clock.seconds()
                self.reactor.rightNow -= 900.0 * random.random()
                deadline = self.clock.seconds() + random.random()
                call = self.reactor.callLater(
                    deadline - self.clock.seconds() + self.clock.margin, lambda: None
                )
                self.reactor.rightNow = call.getTime()
                self.assertGreaterEqual(self.clock.seconds(), deadline)
                call.cancel()

    def test_shared(self) -> None:
        """Users share the clock of a reactor while any of them uses it; each is notified of a change."""
        clock = sharedForwardClock(self.reactor)
        self.assertIs(sharedForwardClock(self.reactor), clock)
        self.assertIsNot(sharedForwardClock(Clock()), clock)
        clock.seconds()
        notified: list[str] = []
        clock.join(lambda: notified.append("first"))
        clock.join(second := lambda: notified.append("second"))
        clock.leave(second)
        clock.leave(second)
        self.reactor.rightNow -= 3600.0
        self.assertEqual((clock.seconds(), notified), (7200.0, ["first"]))
        del clock
        gc.collect()
        self.assertEqual(sharedForwardClock(self.reactor).seconds(), 3600.0)

    def test_failingUser(self) -> None:
        """An exception of one user reaches neither the others nor whoever reads the clock."""
        notified: list[str] = []
        self.clock.join(lambda: notified.append(str(1 // 0)))
        self.clock.join(lambda: notified.append("second"))
        self.reactor.rightNow -= 3600.0
        self.assertEqual((self.clock.seconds(), notified), (7200.0, ["second"]))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
