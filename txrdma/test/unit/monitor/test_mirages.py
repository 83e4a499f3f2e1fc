"""The monitor of a fabric in which an agent invents switches."""

from __future__ import annotations

from txrdma.fabric.health import Finding, locatedFindings
from txrdma.monitor.diagnosis.findinglog import FindingLog
from txrdma.monitor.diagnosis.journal import Journal
from txrdma.monitor.reading.poller import DEFAULT_RULES
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.test.support import slow
from txrdma.test.support.mad.mirages import Mirage
from txrdma.test.unit.monitor.test_poller import PollerTestCase

HONEST = ["a", "b", "c", "d", "left", "right"]


class MirageTests(PollerTestCase):
    """Endless invented switches behind one port or all ports."""

    settings = PollerSettings(sweepSeconds=30.0, mostNodes=60)

    def names(self) -> list[str]:
        return sorted(node.description for node in self.sweptFabric.nodes.values())

    @slow("it sweeps many invented switches")
    def test_takeover(self) -> None:
        """After a takeover, findings are judged again although sweeps are not complete."""
        self.poller.start()
        self.pump(90)
        Mirage(self.fabric, *((1, number) for number in range(1, 7)), ports=20)
        self.pump(60)
        log = FindingLog(DEFAULT_RULES)
        for at in (1.0, 2.0):
            log.observe("sweep", [Finding("width", "right", "", self.fabric.node("right").guid, 1)], at)
        self.poller.resume(log, self.poller.topologyWatch, Journal())
        self.pump(60)
        self.assertNotIn(("cleared", "width", "right"), self.output())
        self.poller.change(self.settings, DEFAULT_RULES, locatedFindings)
        self.pump(60)
        self.assertIn(("cleared", "width", "right"), self.output())

    def test_branch(self) -> None:
        """Invented switches are a finding with their location; the rest is monitored, and no node is lost."""
        self.poller.start()
        self.pump(90)
        self.assertEqual(([*self.poller.findings.log.open], self.names()), ([], HONEST))
        self.output()
        mirage = Mirage(self.fabric, (1, 2), ports=20, isFresh=True)
        self.pump(120)
        self.assertEqual(self.names(), HONEST)
        reported = self.output()
        self.assertIn(("raised", "left-out", "left"), reported)
        self.assertNotIn("node-gone", {kind for _what, kind, _where in reported})
        mirage.isOn = False
        self.pump(120)
        self.assertIn(("cleared", "left-out", "left"), self.output())
        self.assertEqual(list(self.poller.findings.log.open), [])

    def test_everywhere(self) -> None:
        """If invented switches are everywhere, the monitor retains the known fabric."""
        self.poller.start()
        self.pump(90)
        known = self.poller.fabric
        mirage = Mirage(self.fabric, (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), ports=20)
        self.pump(120)
        self.assertIs(self.poller.fabric, known)
        reported = self.output()
        self.assertIn(("raised", "left-out", "the sweep"), reported)
        self.assertNotIn("node-gone", {kind for _what, kind, _where in reported})
        mirage.isOn = False
        self.pump(120)
        self.assertEqual(list(self.poller.findings.log.open), [])
        self.assertEqual(self.names(), HONEST)

    @slow("it sweeps many invented switches")
    def test_ownLink(self) -> None:
        """After the local link was down, counters are read again although sweeps are not complete."""
        self.poller.start()
        self.pump(90)
        mirage = Mirage(self.fabric, *((1, number) for number in range(1, 7)), ports=20)
        mirage.isOn = False
        self.fabric.cut("a")
        self.pump(60)
        self.assertEqual(self.output(), [("raised", "no-link", "a")])
        mirage.isOn = True
        self.fabric.heal("a")
        turns = self.poller.statistics.turns
        self.pump(120)
        self.assertGreater(self.poller.statistics.turns, turns)
        self.assertIn(("cleared", "no-link", "a"), self.output())

    def test_restartedManager(self) -> None:
        """After a restart of the subnet manager, errors are found again although sweeps are not complete."""
        self.poller.start()
        self.pump(90)
        Mirage(self.fabric, *((1, number) for number in range(1, 7)), ports=20)
        self.pump(60)
        answered = iter([True])
        self.patch(self.poller.manager, "answered", lambda *_: next(answered, False))
        self.pump(60)
        self.fabric.setCounters("left", 3, symbolErrorCounter=60)
        self.pump(60)
        self.assertIn(("raised", "symbol-errors", "left"), self.output())


class RareSweepTests(PollerTestCase):
    """Invented switches, and sweeps that are rarer than changes of links."""

    settings = PollerSettings(sweepSeconds=300.0, mostNodes=60)

    def test_refreshed(self) -> None:
        """That a sweep was not complete remains a finding after nodes were refreshed."""
        self.started(90.0)
        Mirage(self.fabric, *((1, number) for number in range(3, 7)), ports=20)
        self.pump(650.0)
        self.assertEqual(self.output(), [("raised", "left-out", "the sweep")])
        refreshes = self.poller.statistics.refreshes
        for downs in range(5):
            self.fabric.setCounters("left", 3, linkDownedCounter=1 + downs)
            self.pump(30.0)
        self.assertGreater(self.poller.statistics.refreshes, refreshes)
        self.assertNotIn(("cleared", "left-out", "the sweep"), self.output())
