"""
Restarts of a monitor: what the next process restores and does not report again.
"""

from __future__ import annotations

from twisted.internet.defer import maybeDeferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.fabric.advice import ADVICE, Severity
from txrdma.iba.types import GUID
from txrdma.mad.agent import MADAgent
from txrdma.monitor.diagnosis.findinglog import Entry, FindingEvent, FindingLog, Resumed
from txrdma.monitor.diagnosis.journal import FabricEvent, Journal, MOST_CHANGES
from txrdma.monitor.diagnosis.presence import Presence
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.events.memory import restoreState, secondsToFind
from txrdma.monitor.reading.poller import DEFAULT_RULES, FabricPoller
from txrdma.monitor.series.history import HistoryWriter
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.test.unit.monitor.test_poller import PollerTestCase


class RestartTests(PollerTestCase):
    """Consecutive processes with one history of one fabric."""

    def setUp(self) -> None:
        self.path = self.mktemp()
        super().setUp()

    def made(self) -> FabricPoller:
        """Start a process: its poller, and the state that the previous one has stored."""
        self.store = HistoryStore(self.path)
        self.addCleanup(self.store.close)
        self.writer = HistoryWriter(self.clock, self.store, maybeDeferred, self.clock.seconds)
        self.writer.start()
        poller = super().made()
        self.journal = poller.journal
        began = self.clock.seconds()
        restoreState(
            *(self.store, poller.findingLog, poller.presence, self.journal),
            lambda kind: began + secondsToFind(kind, self.thresholds, self.settings.intervalSeconds),
        )
        self.journal.store = self.writer.append
        return poller

    def received(self, event: FindingEvent) -> None:
        if isinstance(event, Resumed):
            found = event.entry.finding
            self.changes.append((self.clock.seconds(), "resumed", found.kind, found.where))
        else:
            super().received(event)

    def ended(self) -> None:
        """End the process like a kill: nothing more is written."""
        self.poller.stop()
        self.writer.loop.stop()
        self.pump(5.0)
        self.store.close()
        self.agent.close()

    def again(self, seconds: float = 45.0) -> None:
        """Start another process on the same fabric."""
        self.agent = MADAgent(self.clock, self.fabric.attach(self.at), reopen=self.reopened)
        self.addCleanup(self.agent.close)
        self.poller = self.made()
        self.started(seconds)

    def entries(self) -> dict[str, Entry]:
        return {entry.finding.kind: entry for entry in self.poller.findingLog.open.values()}

    def kinds(self) -> list[tuple[str, str]]:
        """Return the changes, each with the name of its location."""
        return [(change.kind, change.where.partition(" (")[0]) for change in self.journal.changes]

    def test_stillThere(self) -> None:
        """A lost node remains lost for the next process, since the same time and without a new report."""
        self.started()
        self.fabric.cut("c")
        self.pump(30.0)
        self.assertEqual(self.output(), [("raised", "node-gone", "c")])
        first, guid = self.entries()["node-gone"].firstSeen, str(self.fabric.node("c").guid)
        (gone,) = self.poller.presence.nodes.values()
        changes = list(self.journal.changes)
        self.assertEqual(self.kinds(), [("node-gone", "c"), ("finding-raised", "c")])
        self.ended()
        self.again()
        self.assertEqual(self.output(), [("resumed", "node-gone", "c")])
        entry = self.entries()["node-gone"]
        self.assertEqual((entry.firstSeen, entry.times, entry.severity), (first, 1, Severity.WARNING))
        self.assertEqual((entry.toDict()["guid"], entry.advice), (guid, ADVICE["node-gone"].text))
        self.assertGreater(entry.lastSeen, first)
        self.assertEqual(list(self.poller.presence.nodes.values()), [gone])
        self.assertEqual(list(self.journal.changes), changes)
        self.fabric.heal("c")
        self.pump(80.0)
        self.assertEqual(self.output(), [("cleared", "node-gone", "c")])
        self.ended()
        self.again()
        self.assertEqual(self.output(), [])
        (closed,) = self.poller.findingLog.closed
        self.assertEqual((closed.firstSeen, closed.clearedAt), (first, entry.clearedAt))
        self.assertEqual(
            self.kinds(),
            [("node-gone", "c"), ("finding-raised", "c"), ("node-came", "c")]
            + [("link-came", "c"), ("finding-cleared", "c")],
        )

    def test_meanwhile(self) -> None:
        """Nodes lost or added while no monitor ran are changes and findings."""
        self.started()
        self.fabric.cut("left", 3)
        self.pump(30.0)
        self.assertEqual(self.output(), [("raised", "link-gone", "left")])
        self.ended()
        self.fabric.cut("c")
        self.fabric.heal("left", 3)
        self.again(80.0)
        self.assertEqual(self.output(), [("raised", "node-gone", "c"), ("cleared", "link-gone", "left")])
        self.assertIn(("node-gone", "c"), self.kinds())
        self.assertIn(("link-came", "left"), self.kinds())
        self.assertNotIn(("link-changed", "left"), self.kinds())

    def test_hours(self) -> None:
        """Findings about error rates are cleared when the new process has counted for the whole window."""
        self.started()
        self.fabric.setCounters("left", 3, symbolErrorCounter=60)
        self.pump(30.0)
        self.assertEqual(self.output(), [("raised", "symbol-errors", "left")])
        self.ended()
        self.again(590.0)
        self.assertEqual(self.output(), [])
        self.assertIn("symbol-errors", self.entries())
        self.pump(60.0)
        self.assertEqual(self.output(), [("cleared", "symbol-errors", "left")])

    def test_ownLink(self) -> None:
        """A process that starts without a link reports no node as lost; faults are reported later."""
        self.started()
        self.ended()
        self.fabric.cut("a")
        self.again(60.0)
        self.assertEqual({kind for _what, kind, _where in self.output()} & {"node-gone", "link-gone"}, set())
        self.assertIsNone(self.poller.fabric)
        self.fabric.heal("a")
        self.pump(60.0)
        self.assertEqual(len(self.sweptFabric.nodes), 6)
        self.assertEqual([kind for kind in self.kinds() if kind[0].startswith("node")], [])

    def test_elsewhere(self) -> None:
        """A process on another fabric does not report the former fabric's nodes as lost."""
        self.started()
        self.ended()
        net = fatTree(4)
        for number, node in enumerate(net.nodes.values()):
            node.guid = GUID.fromInt((1 << 60) + 64 * number)
        self.fabric = SimulatedFabric(self.clock, net)
        self.at = "h00000"
        self.again(60.0)
        self.assertEqual(self.output(), [])
        self.assertEqual(self.poller.presence.nodes, {})
        self.assertEqual(self.kinds(), [])

    def test_nonsense(self) -> None:
        self.started()
        self.store.append([FabricEvent(1.0, "finding-raised", "a", "", subject="x", detail=["nonsense"])])
        self.ended()
        self.assertRaises(DeviceUnavailable, self.made)
        self.store.close()


class BoundTests(SynchronousTestCase):
    def test_changes(self) -> None:
        """The last ten thousand changes are restored in order."""
        store = HistoryStore(self.mktemp())
        self.addCleanup(store.close)
        journal = Journal()
        journal.store = store.append
        for number in range(0, MOST_CHANGES + 300, 100):
            several = range(number, number + 100)
            journal.add([FabricEvent(float(at), "node-came", f"n{at}", "it is there") for at in several])
        self.assertEqual(len(journal.changes), MOST_CHANGES)
        other = Journal()
        restoreState(store, FindingLog(DEFAULT_RULES), Presence(), other, lambda kind: 0.0)
        self.assertEqual(list(other.changes), list(journal.changes))

    def test_held(self) -> None:
        """Findings that are new at every reading are not retained; others as long as necessary."""
        thresholds = ErrorThresholds()
        self.assertEqual(secondsToFind("node-gone", thresholds, 10.0), 0.0)
        self.assertEqual(secondsToFind("symbol-errors", thresholds, 10.0), 3600.0)
        self.assertEqual(secondsToFind("flapping", thresholds, 10.0), 600.0)
        self.assertEqual(secondsToFind("node-silent", thresholds, 60.0), 480.0)
