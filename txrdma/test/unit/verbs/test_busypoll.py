"""
How long readers look on before they sleep: tables of arrivals, and what comes of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from twisted.trial.unittest import SynchronousTestCase

from txrdma.verbs._busypoll import (
    BusyPoll,
    CROWDED_SECONDS,
    FREE_SECONDS,
    MOST_SECONDS,
    SpinBudget,
)

US = 1e-6


class LookoutTests(SynchronousTestCase):
    """A reader that waits for what comes at given times."""

    def setUp(self) -> None:
        self.budget = SpinBudget()
        self.busyPoll = BusyPoll(self.budget)
        self.now = 1000.0
        self.looked = 0.0
        self.waited = 0.0

    def arrivals(self, waits: Iterable[float], work: float = 10 * US, waking: float = 60 * US) -> list[bool]:
        """
        Wait so long each time, and work for a while when it has come.

        @param waking: what it takes longer after a sleep.
        @return: of each arrival, whether it was found by looking.
        """
        found = []
        for wait in waits:
            until = self.busyPoll.waits(self.now)
            arrival = self.now + wait
            found.append(arrival < until)
            self.looked += min(until, arrival) - self.now
            came = arrival if found[-1] else arrival + waking
            self.busyPoll.came(came)
            self.waited += came - self.now
            self.now = came + work
        return found

    def test_quick(self) -> None:
        """Quick answers are found from the first one on."""
        self.assertTrue(all(self.arrivals(repeat(10 * US, 100))))

    def test_workAtThePeer(self) -> None:
        """What takes longer, since the peer has to work for it, is found when that has been seen once."""
        for work in (20, 60, 100, 200, 250):
            self.setUp()
            found = self.arrivals(repeat((work + 10) * US, 100), work=work * US)
            self.assertTrue(all(found[1:]), work)

    def test_uneven(self) -> None:
        """Where answers take now long and now short, the long ones are found, too."""
        found = self.arrivals([20 * US, 150 * US, 30 * US] * 100, work=50 * US)
        self.assertTrue(all(found[3:]))

    def test_rare(self) -> None:
        """What comes each millisecond is not looked for: by far the most of the time this process sleeps."""
        found = self.arrivals(repeat(1e-3, 1000))
        self.assertFalse(any(found))
        self.assertLess(self.looked, 500 * US)

    def test_nothing(self) -> None:
        """A wait without an end is looked at for a bounded time, once."""
        until = self.busyPoll.waits(self.now)
        self.assertLessEqual(until - self.now, MOST_SECONDS)
        self.assertEqual(self.busyPoll.waits(self.now + 5), until)

    def test_again(self) -> None:
        """After a pause of the application looking pays again, and is done again."""
        self.arrivals(repeat(10 * US, 100))
        self.arrivals(repeat(0.1, 10))
        self.assertFalse(any(self.arrivals([0.1])))
        found = self.arrivals(repeat(10 * US, 10))
        self.assertTrue(all(found[1:]))

    def test_bursts(self) -> None:
        """A pause between bursts costs no more than the answers in a burst have lately taken."""
        waits = [*repeat(10 * US, 9), 0.01] * 50
        found = self.arrivals(waits)
        self.assertEqual(found.count(True), 9 * 50)
        self.assertLess(self.looked, 50 * (9 * 10 + 100) * US)

    def test_forgets(self) -> None:
        """When answers have become quicker, it does not look for as long as it did before."""
        self.arrivals(repeat(300 * US, 20), work=300 * US)
        self.arrivals(repeat(10 * US, 40))
        self.assertLess(self.busyPoll.waits(self.now) - self.now, 50 * US)

    def test_share(self) -> None:
        """Who has next to nothing to do but to look does not have the processor for itself by that."""
        self.arrivals(repeat(390 * US, 10_000), work=10 * US)
        began, self.looked = self.now, 0.0
        found = self.arrivals(repeat(390 * US, 10_000), work=10 * US)
        self.assertLess(self.looked / (self.now - began), 0.85)
        self.assertGreater(found.count(True), 5_000)

    def test_shared(self) -> None:
        """All readers of a process have one share of its processor."""
        others = [BusyPoll(self.budget) for _ in range(4)]
        looked = 0.0
        began = self.now
        for turn in range(20_000):
            busyPoll = others[turn % 4]
            until = busyPoll.waits(self.now)
            looked += min(max(until - self.now - FREE_SECONDS, 0.0), 350 * US)
            self.now += 400 * US
            busyPoll.came(self.now)
        self.assertLess(looked / (self.now - began), 0.72)

    def test_crowded(self) -> None:
        """Where others want the processor nobody looks, for a while; quick answers are slept for, too."""
        self.arrivals(repeat(100 * US, 10))
        until = self.busyPoll.waits(self.now)
        self.busyPoll.yielded(self.now, self.now + 3e-3)
        self.now += 3e-3
        self.assertLess(self.busyPoll.waits(self.now), self.now)
        self.assertLess(self.busyPoll.waits(self.now), until)
        other = BusyPoll(self.budget)
        self.assertEqual(other.waits(self.now), self.now)

    def test_crowdedForLong(self) -> None:
        """The longer others want it, the more seldom it is tried."""
        tries = 0
        while self.now < 1010:
            if self.busyPoll.waits(self.now) > self.now:
                tries += 1
                self.busyPoll.yielded(self.now, self.now + 3e-3)
                self.now += 3e-3
            self.busyPoll.came(self.now)
            self.now += 100 * US
        self.assertLess(tries, 40)
        self.assertGreater(tries, 5)

    def test_notCrowded(self) -> None:
        """When nobody took the processor it goes on."""
        until = self.busyPoll.waits(self.now)
        self.busyPoll.yielded(self.now, self.now + CROWDED_SECONDS / 2)
        self.assertEqual(self.busyPoll.waits(self.now), until)
        self.assertGreater(until, self.now)

    def test_freeOfCrowd(self) -> None:
        """When the others have gone it is tried as soon as at first, after some time."""
        for _ in range(10):
            self.now += 1
            self.assertTrue(self.budget.yielded(self.now, self.now + 3e-3))
        for _ in range(200):
            self.now += 1
            self.assertFalse(self.budget.yielded(self.now, self.now + US))
        self.budget.yielded(self.now, self.now + 3e-3)
        self.assertGreater(self.budget.window(self.now + 6e-3, 30 * US), 0)
