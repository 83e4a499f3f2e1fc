"""Replays of histories by the monitor of a twin."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.monitor.series.historystore import HistoryStore
from txrdma.sim.twin import Twin
from txrdma.tap.replay import HistoryReplay


class FakeTwin:
    """Records the rates at which counters grow."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.rates: list[Any] = []

    def growAs(self, rates: Any, speed: float) -> None:
        self.rates.append(rates)


class HistoryReplayTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.twin = FakeTwin(self.clock)
        self.reads: list[Deferred[Any]] = []
        store = cast(HistoryStore, None)  # it is used in threads only
        self.replay = HistoryReplay(cast(Twin, self.twin), store, 0, 600, 60.0, self.inThread)
        self.replay.start()
        self.reads[0].callback(({}, []))

    def inThread(self, function: Any, *arguments: Any) -> Deferred[Any]:
        self.reads.append(Deferred())
        return self.reads[-1]

    def test_slow(self) -> None:
        """A minute is read when the one before has been read, so that slow reads do not accumulate."""
        self.clock.pump([0.5] * 10)
        self.assertEqual(len(self.reads), 2)
        self.reads[1].callback(({}, []))
        self.clock.advance(0.0)
        self.assertEqual(len(self.reads), 3)

    def test_failed(self) -> None:
        """A minute that cannot be read is logged, and the next one is read."""
        self.clock.advance(1.0)
        self.reads[1].errback(ValueError("no minute"))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.clock.advance(1.0)
        self.assertEqual(len(self.reads), 3)
