"""Garbage collection of a monitor: which objects are frozen, and that all are freed finally."""

from __future__ import annotations

import gc
from typing import Any
from unittest import skipUnless
from weakref import ref

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.model import Node
from txrdma.monitor import garbage
from txrdma.monitor.garbage import COMPLETE_SECONDS, GarbageCollection
from txrdma.monitor.reading import poller, replaced
from txrdma.monitor.series.exposition import exposed
from txrdma.test.support.monitor.fetching import Connection
from txrdma.test.unit.monitor.test_exposition import parsed
from txrdma.test.unit.monitor.test_poller import PollerTestCase
from txrdma.test.unit.monitor.test_rest import SiteTestCase


class Cycle:
    """An object that only a garbage collection frees."""

    def __init__(self) -> None:
        self.itself = self


@skipUnless(hasattr(gc, "freeze"), "this Python cannot freeze objects")
class GarbageCollectionTests(SynchronousTestCase):
    """A service that is started, and limits of some thousand objects."""

    def setUp(self) -> None:
        self.patch(garbage, "MOST_UNFROZEN", 2000)
        self.patch(garbage, "MOST_GROWTH", 1.1)
        gc.collect()
        self.clock = Clock()
        self.before = gc.get_threshold()
        self.service = GarbageCollection(self.clock)
        self.service.startService()
        self.addCleanup(self.stop)
        self.check()

    def stop(self) -> None:
        if self.service.running:
            self.service.stopService()

    def check(self) -> None:
        """Collect a young generation, and run the service's next check."""
        gc.collect(0)
        self.clock.advance(1.0)

    def hour(self) -> None:
        self.clock.advance(COMPLETE_SECONDS)

    def cycles(self, count: int) -> list[Cycle]:
        """Return new cycles, which are frozen."""
        made = [Cycle() for _ in range(count)]
        self.check()
        self.assertLess(len(gc.get_objects()), 2000)
        return made

    def test_frozen(self) -> None:
        """Many objects that survive are excluded from collections, and freed when they are unreferenced."""
        before = gc.get_freeze_count()
        made: list[Any] = [[None] for _ in range(5000)]
        self.check()
        self.assertGreaterEqual(gc.get_freeze_count(), before + 5000)
        made.clear()
        self.assertLess(gc.get_freeze_count(), before + 1000)

    def test_garbage(self) -> None:
        """Cycles that are garbage before they are frozen are freed, and do not count."""
        before = gc.get_freeze_count()
        died = ref(Cycle())
        for _ in range(3000):
            Cycle()
        self.check()
        self.assertIsNone(died())
        self.assertLess(gc.get_freeze_count(), before + 1000)

    def test_burst(self) -> None:
        """Very many objects are frozen without a collection that would block for long."""
        self.patch(garbage, "MOST_COLLECTED", 4000)
        made = [Cycle() for _ in range(5000)]
        gc.collect(0)
        died = ref(made[0])
        made.clear()
        self.clock.advance(1.0)
        self.assertIsNotNone(died())
        self.assertLess(len(gc.get_objects()), 2000)

    def test_complete(self) -> None:
        """Frozen cycles that are garbage are freed when they exceed the number of used objects."""
        self.hour()  # objects frozen so far are in use
        died = ref(self.cycles(2500)[0])
        self.hour()
        self.assertIsNotNone(died())
        self.assertEqual(self.service.complete, 0)
        self.cycles(gc.get_freeze_count() // 5)
        before = gc.get_freeze_count()
        self.hour()
        self.assertIsNone(died())
        self.assertEqual(self.service.complete, 1)
        self.assertLess(gc.get_freeze_count(), 0.95 * before)

    def test_used(self) -> None:
        """Objects that are in use cause one complete collection when they have grown, and no further ones."""
        self.hour()
        made = self.cycles(gc.get_freeze_count() // 5)
        for _ in range(3):
            self.hour()
        self.assertEqual(self.service.complete, 1)
        self.assertIs(made[0].itself, made[0])

    def test_metrics(self) -> None:
        """Each collection is in the histogram of pauses."""
        none: frozenset[tuple[str, str]] = frozenset()
        name = "txrdma_monitor_garbage_collection_seconds"
        samples = parsed("".join(exposed([self.service.pauses.family()])))
        count = samples[f"{name}_count", none]
        self.assertEqual(samples[f"{name}_bucket", frozenset({("le", "+Inf")})], count)
        self.check()
        samples = parsed("".join(exposed([self.service.pauses.family()])))
        self.assertGreater(samples[f"{name}_count", none], count)
        self.assertGreater(samples[f"{name}_sum", none], 0.0)

    def test_stopped(self) -> None:
        """A service that has stopped leaves Python's settings as they were."""
        self.assertNotEqual(gc.get_threshold(), self.before)
        self.service.stopService()
        self.assertEqual(gc.get_threshold(), self.before)
        self.assertEqual(gc.get_freeze_count(), 0)
        self.assertNotIn(self.service._collected, gc.callbacks)
        self.assertEqual(self.clock.getDelayedCalls(), [])


class ReplacedFabricTests(PollerTestCase):
    """A poller that sweeps a changing fabric again and again while nothing collects garbage."""

    def test_replaced(self) -> None:
        """The models of earlier sweeps are freed without a garbage collection."""
        self.addCleanup(gc.enable if gc.isenabled() else gc.disable)
        gc.collect()
        gc.disable()
        self.started()
        before = self.nodes()
        for turn in range(4):
            (self.fabric.heal if turn % 2 else self.fabric.cut)("b")
            self.poller.sweeps.runNow()
            self.pump(20.0)
            self.assertLessEqual(self.nodes(), before)
        self.assertGreater(self.poller.statistics.sweeps, 4)
        self.assertEqual(len(self.sweptFabric.nodes), 6)

    def nodes(self) -> int:
        """Return the number of nodes of all models."""
        return sum(type(one) is Node for one in gc.get_objects())


class ReplacedInPiecesTests(ReplacedFabricTests):
    """A poller of a changing fabric, with pauses after each node, as in a large fabric."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(replaced, "_FREED", 1)
        self.patch(poller, "_SWITCHES", 1)


class ConnectionTests(SiteTestCase):
    def test_ended(self) -> None:
        """Connections and requests that have ended are freed without a garbage collection."""
        self.addCleanup(gc.enable if gc.isenabled() else gc.disable)
        gc.collect()
        gc.disable()
        self.started()
        for path in ("/", "/nodes", "/api/v1/ports", "/api/v1/events", "/metrics", "/static/monitor.css"):
            with self.subTest(path):
                connection = Connection(self.site.factory)
                connection.ask(path)
                self.pump(1.0)
                died = ref(connection.protocol)
                connection.close()
                connection.transport.producer = None  # other transports drop this reference as well
                del connection
                self.assertIsNone(died())
