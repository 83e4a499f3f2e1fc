"""L{txrdma.monitor.iterations} on Twisted's reactors, with a clock that only the tests advance."""

from __future__ import annotations

import asyncio
from typing import Any, TYPE_CHECKING

from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.trial.unittest import SynchronousTestCase

from txrdma.monitor import iterations
from txrdma.monitor.iterations import IterationTimes
from txrdma.monitor.series.exposition import exposed
from txrdma.test.unit.monitor.test_exposition import parsed

_NAME = "txrdma_monitor_iteration_seconds"


if TYPE_CHECKING:

    class _Base(ReactorBuilder, SynchronousTestCase):
        """Mixed into the classes that C{makeTestCaseClasses} creates."""
else:
    _Base = ReactorBuilder


class _Iterations(_Base):
    """A reactor that stops after some delayed calls, each in an iteration of its own."""

    _reactors = [
        "twisted.internet.epollreactor.EPollReactor",
        "twisted.internet.pollreactor.PollReactor",
        "twisted.internet.test.reactormixins.AsyncioSelectorReactor",
        "txrdma.verbs.polling.PollingReactor",
    ]

    def setUp(self) -> None:
        """Set an event loop for the reactor of asyncio: a test that ran before may have unset it."""
        super().setUp()
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self.addCleanup(asyncio.set_event_loop, None)
        self.addCleanup(loop.close)

    def play(self, *durations: float) -> dict[Any, float]:
        """Return the samples after delayed calls that take these times, with the service running."""
        now = 0.0
        left = list(durations)
        reactor: Any = self.buildReactor()
        times = IterationTimes(reactor)
        self.patch(iterations, "perf_counter", lambda: now)

        def work() -> None:
            nonlocal now
            if left:
                now += left.pop(0)
                reactor.callLater(0.0, work)
            else:
                times.stopService()
                reactor.stop()

        reactor.callWhenRunning(times.startService)
        reactor.callWhenRunning(reactor.callLater, 0.0, reactor.callLater, 0.0, work)  # after the first wait
        self.runReactor(reactor)
        self.assertTrue(times.isMeasured)
        return parsed("".join(exposed([times.durations.family()])))

    def test_busy(self) -> None:
        """Each iteration is in the bucket of the time for which it was busy."""
        samples = self.play(0.06, 0.3, 0.06)
        count = samples[f"{_NAME}_count", frozenset()]
        below = {bound: samples[f"{_NAME}_bucket", frozenset({("le", bound)})] for bound in ("0.05", "0.1")}
        self.assertEqual(below, {"0.05": count - 3, "0.1": count - 1})
        self.assertAlmostEqual(samples[f"{_NAME}_sum", frozenset()], 0.42)

    def test_stopped(self) -> None:
        """A service that has stopped leaves the reactor as it was."""
        reactor: Any = self.buildReactor()
        owner = getattr(reactor, "_asyncioEventloop", reactor)
        before = dict(vars(owner))
        times = IterationTimes(reactor)
        times.startService()
        self.assertNotEqual(vars(owner), before)
        times.stopService()
        self.assertEqual(vars(owner), before)


class _Unmeasured(_Base):
    """A reactor without an object that waits."""

    _reactors = ["twisted.internet.selectreactor.SelectReactor"]

    def test_absent(self) -> None:
        """The service changes nothing, and there is no metric."""
        reactor: Any = self.buildReactor()
        before = dict(vars(reactor))
        times = IterationTimes(reactor)
        times.startService()
        self.assertFalse(times.isMeasured)
        self.assertEqual(vars(reactor), before)
        times.stopService()
        self.assertEqual(vars(reactor), before)


globals().update(_Iterations.makeTestCaseClasses())
globals().update(_Unmeasured.makeTestCaseClasses())
