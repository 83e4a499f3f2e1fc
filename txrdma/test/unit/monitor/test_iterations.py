"""L{txrdma.monitor.iterations}: what counts as busy, and which reactors are measured."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.monitor import iterations
from txrdma.monitor.iterations import IterationTimes
from txrdma.monitor.process import ProcessMeasures
from txrdma.monitor.series.exposition import exposed
from txrdma.test.unit.monitor.test_exposition import parsed

_NAME = "txrdma_monitor_iteration_seconds"


class Poller:
    """An object that waits for events for ten seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.registered: list[int] = []

    def register(self, descriptor: int) -> None:
        """Wait for events of a descriptor, too."""
        self.registered.append(descriptor)

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        """Return an event after the wait."""
        self.now += 10.0
        if timeout < 0:
            raise OSError("no time")
        return [(most, 1)]


class Reactor(Clock):
    """A reactor on such a poller."""

    def __init__(self) -> None:
        super().__init__()
        self._poller = Poller()


class IterationTests(SynchronousTestCase):
    """A service on that reactor."""

    def setUp(self) -> None:
        self.reactor = Reactor()
        self.poller = self.reactor._poller
        self.patch(iterations, "perf_counter", lambda: self.poller.now)
        self.process = ProcessMeasures(self.reactor)
        self.process.startService()
        self.addCleanup(self.process.stopService)

    def iterate(self, seconds: float, timeout: float = 1.0) -> list[tuple[int, int]]:
        """Wait for an event, then work for some seconds."""
        try:
            return self.reactor._poller.poll(timeout, 7)
        finally:
            self.poller.now += seconds

    def sample(self, name: str) -> float:
        return parsed("".join(exposed(self.process.families())))[f"{_NAME}_{name}", frozenset()]

    def test_waits(self) -> None:
        """Waits do not count, nor does the time before the first one; other methods are the poller's."""
        self.poller.now = 5.0
        self.assertEqual(self.iterate(0.2), [(7, 1)])
        self.assertEqual((self.sample("count"), self.sample("sum")), (0, 0))
        self.iterate(0.3)
        self.iterate(0.0)
        self.assertEqual(self.sample("count"), 2)
        self.assertAlmostEqual(self.sample("sum"), 0.5)
        self.reactor._poller.register(3)
        self.assertEqual(self.poller.registered, [3])

    def test_failedWait(self) -> None:
        """A wait that raises an exception does not count either."""
        self.assertRaises(OSError, self.iterate, 0.2, timeout=-1.0)
        self.iterate(0.0)
        self.assertAlmostEqual(self.sample("sum"), 0.2)

    def test_several(self) -> None:
        """Several services stop in any order; the last one restores the reactor."""
        other, idle = IterationTimes(self.reactor), IterationTimes(self.reactor)
        other.startService()
        self.iterate(0.2)
        self.iterate(0.0)
        idle.stopService()
        self.process.stopService()
        self.iterate(0.4)
        self.iterate(0.0)
        self.assertEqual(self.sample("count"), 1)
        text = "".join(exposed([other.durations.family()]))
        self.assertEqual(parsed(text)[f"{_NAME}_count", frozenset()], 3)
        other.stopService()
        self.assertIs(self.reactor._poller, self.poller)
        self.process.startService()

    def test_absent(self) -> None:
        """Without such an object, as on an event loop of uvloop, only garbage collections are measured."""
        names = [family.name for family in self.process.families()]
        self.assertEqual(names, ["txrdma_monitor_garbage_collection_seconds", _NAME])
        process = ProcessMeasures(Clock())
        process.startService()
        self.addCleanup(process.stopService)
        self.assertEqual([family.name for family in process.families()], names[:1])
        self.assertFalse(IterationTimes(Clock()).isMeasured)
