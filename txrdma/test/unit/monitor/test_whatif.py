"""Evaluations of a history have the alerts of the monitor that has written it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zope.interface import provider

from twisted.logger import formatEvent, globalLogPublisher, ILogObserver, LogEvent

from txrdma.fabric.health import Cause, Finding
from txrdma.fabric.rootcause import explained
from txrdma.mad.agent import MADAgent
from txrdma.monitor import whatif
from txrdma.monitor.config import parseConfig
from txrdma.monitor.diagnosis.findinglog import Action, Annotated, CauseChanged, Cleared, FindingEvent, Raised
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.events.alerts import AlertTracker
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.rows import Row, rowOf, TRAFFIC
from txrdma.monitor.whatif import WhatIf
from txrdma.test.support.mad.simulated import FabricTestCase

CONFIG = """
[poll]
interval = 30
survey = 0
"""
BEGIN = 1_800_000_000.0


class WhatIfTests(FabricTestCase):
    """A monitor polls a fabric, and its journal and readings are stored as a history."""

    slowBecause = "a monitor polls a simulated fabric for hours"

    def setUp(self) -> None:
        super().setUp()
        self.clock.rightNow = BEGIN
        self.config = config = parseConfig(CONFIG)
        self.path = self.mktemp()
        self.store = HistoryStore(self.path)
        self.tracker = AlertTracker(config.alerts, BEGIN)
        self.sent: list[tuple[str, str]] = []
        self.poller = FabricPoller(
            *(self.clock, MADAgent(self.clock, self.fabric.attach("a")), config.settings, config.rules),
            ErrorThresholds(config.limits, config.flaps, config.mostBitErrors),
            notify=self.changed,
            onRound=self.readAll,
        )
        self.poller.findings.journal.store = self.store.append
        self.poller.start()
        self.addCleanup(self.poller.stop)

    def changed(self, event: FindingEvent) -> None:
        if isinstance(event, (CauseChanged, Raised)):
            self.tracker.raised(event.entry, self.clock.seconds())
        elif isinstance(event, Cleared):
            self.tracker.cleared(event.entry, self.clock.seconds())
        elif isinstance(event, Annotated):
            self.tracker.annotated(event.entry)

    def readAll(self, since: float) -> None:
        now = self.clock.seconds()
        rows = (rowOf(TRAFFIC, key, meter, now) for key, meter in self.poller.meters.items())
        self.store.write([row for row in rows if isinstance(row, Row)], int(now))
        self.sent += [
            (one.finding["kind"], one.finding["where"]) for one in self.tracker.take(now) if one.isRaised
        ]

    def flap(
        self, name: str, times: int, downSeconds: float, everySeconds: float = 60.0, number: int = 1
    ) -> None:
        for _time in range(times):
            self.fabric.cut(name, number)
            self.pump(downSeconds)
            self.fabric.heal(name, number)
            self.pump(everySeconds - downSeconds)

    def evaluated(self) -> list[tuple[str, str]]:
        end = self.clock.seconds()
        fabric = self.poller.fabric
        self.pump(180.0)  # until the minutes are complete
        whatIf = WhatIf(self.store, self.config, BEGIN, end, fabric)
        for _at in whatIf.run():
            pass
        return [
            (one.alert.finding["kind"], one.alert.finding["where"])
            for one in whatIf.alerts
            if one.alert.isRaised
        ]

    def assertSent(self, kinds: list[str]) -> None:
        """Assert that alerts of these kinds were sent, and that an evaluation has the same alerts."""
        self.assertEqual([kind for kind, _where in self.sent], kinds)
        self.assertEqual(self.evaluated(), self.sent)

    def lose(self) -> None:
        """Let the link between the switches flap, and then be missing."""
        self.pump(600.0)
        self.flap("left", 3, 30.0, number=3)
        self.fabric.cut("left", 3)

    def gone(self) -> list[str]:
        return [where.partition(" ")[0] for kind, where in self.sent if kind == "node-gone"]

    def test_flapping(self) -> None:
        """A link that flaps is reported as the monitor has reported it: a host's only one as missing."""
        for name, number, kind in (("c", 1, "node-gone"), ("left", 3, "flapping")):
            self.setUp()
            self.pump(600.0)
            self.flap(name, 6, 4.0, number=number)
            self.pump(600.0)
            self.assertSent([kind])

    def test_unseenFlaps(self) -> None:
        """A link of a host that flaps between sweeps, after the first one and a change of name, flaps."""
        self.pump(30.0)
        self.fabric.node("c").description = "c renamed"
        self.pump(60.0)
        self.flap("c", 6, 0.5, 30.0)
        self.pump(600.0)
        self.assertSent(["flapping"])

    def test_flapsAndStaysDown(self) -> None:
        """A link that flaps, and then is missing, is one alert until it would no longer count as flapping."""
        self.lose()
        self.pump(540.0)
        self.assertEqual([kind for kind, _where in self.sent], ["flapping"])
        (lost,) = (one for one in self.poller.findings.log.open.values() if one.finding.kind == "link-gone")
        (flaps,) = (one for one in self.poller.findings.log.open.values() if one.finding.kind == "flapping")
        found = flaps.finding
        self.assertEqual(lost.finding.cause, Cause("flapping", found.where, found.guid, found.port))
        self.pump(240.0)
        self.assertSent(["flapping", "link-gone"])

    def test_endedFlaps(self) -> None:
        """A finding that a link flaps explains no missing link while it only waits to be cleared."""
        self.config = parseConfig(f"{CONFIG}[findings]\nclear = 7200\n")
        self.poller.findings.log.change(self.config.rules)
        self.lose()
        self.pump(780.0)
        self.assertSent(["flapping", "link-gone"])

    def test_manyLinks(self) -> None:
        """Each step of an evaluation compares flaps with all missing links at once."""
        self.lose()
        self.pump(900.0)
        (lost,) = (one for one in self.poller.findings.log.open.values() if one.finding.kind == "link-gone")
        for number in range(10, 60):
            finding = replace(lost.finding, port=number, cause=None)
            entry = replace(lost, key=lost.key._replace(port=number), finding=finding)
            self.poller.findings.journal.findingChanged(Raised(entry), self.clock.seconds())
        calls: list[int] = []

        def counted(found: list[Finding], *rest: Any) -> list[Finding]:
            calls.append(len(found))
            return explained(found, *rest)

        self.patch(whatif, "explained", counted)
        self.pump(60.0)
        self.assertEqual([kind for kind, _where in self.evaluated()], ["flapping", "link-gone"])
        self.assertEqual(max(calls), 51)
        self.assertLess(len(calls), (self.clock.seconds() - BEGIN) / 60)

    def test_errors(self) -> None:
        """Errors, and errors while a link is trained, are judged as the monitor has judged them."""
        self.pump(600.0)
        self.fabric.growCounters("left", 1, symbolErrorCounter=0.2)
        self.flap("b", 2, 4.0)
        self.fabric.growCounters("c", 1, symbolErrorCounter=30.0)
        self.flap("c", 1, 4.0, 20.0)
        self.fabric.growCounters("c", 1, symbolErrorCounter=0.0)
        self.pump(3000.0)
        self.assertEqual(sorted(self.evaluated()), sorted(self.sent))

    def test_causeEnds(self) -> None:
        """Errors are one alert, also if one of their findings is cleared long before another."""
        self.pump(120.0)
        self.fabric.growCounters("c", 1, symbolErrorCounter=30.0)
        self.pump(60.0)
        self.fabric.growCounters("c", 1, symbolErrorCounter=0.0)
        self.pump(300.0)
        kinds = {one.finding.kind for one in self.poller.findings.log.open.values()}
        self.assertEqual(kinds, {"symbol-ber", "symbol-errors"})
        self.pump(7200.0)
        self.assertEqual(self.poller.findings.log.open, {})
        self.assertSent(["symbol-ber"])

    def test_otherCauseEnds(self) -> None:
        """An alert of one end of a link waits when the errors of the other end, which explained it, end."""
        self.config = parseConfig(f"{CONFIG}[alerts]\ndelay = 600\n")
        self.tracker.rules = self.config.alerts
        peer = self.fabric.port("c").neighbor
        assert peer is not None
        self.pump(600.0)
        self.fabric.growCounters("c", 1, symbolErrorCounter=1.0)
        self.pump(60.0)
        self.fabric.growCounters("c", 1, symbolErrorCounter=0.0)
        self.fabric.growCounters(peer.node.identifier, peer.number, symbolErrorCounter=0.1)
        self.pump(900.0)
        self.assertSent(["symbol-ber"])
        self.pump(600.0)
        self.assertSent(["symbol-ber"] * 2)

    def test_ignored(self) -> None:
        """Findings that a configuration ignores explain no others, neither errors nor recorded findings."""
        self.pump(600.0)
        self.fabric.silence("b")
        self.fabric.growCounters("c", 1, symbolErrorCounter=1.0)
        self.pump(900.0)
        self.assertEqual(sorted(kind for kind, _where in self.sent), ["node-silent", "symbol-ber"])
        self.config = parseConfig(f'{CONFIG}[findings]\nignored = ["node-silent", "symbol-ber"]\n')
        kinds = sorted(kind for kind, _where in self.evaluated())
        self.assertEqual(kinds, ["symbol-errors", "unreachable", "unreachable"])

    def test_cause(self) -> None:
        """A node that only a missing switch led to is an alert if it is still missing when that returns."""
        self.pump(600.0)
        for number in (1, 2, 3, 4):
            self.fabric.cut("right", number)
        self.pump(600.0)
        self.assertEqual(self.gone(), ["right"])
        for number in (2, 3, 4):
            self.fabric.heal("right", number)
        self.pump(600.0)
        self.assertEqual(self.gone(), ["right", "c"])
        self.assertEqual(sorted(self.evaluated()), sorted(self.sent))

    def test_operators(self) -> None:
        """Comments do not delay or end an alert; an acknowledged finding is not sent."""
        self.pump(600.0)
        begin = self.clock.seconds()
        for name in ("b", "c"):
            self.fabric.cut(name)
        self.pump(20.0)
        several = {one.finding.where.partition(" ")[0]: one for one in self.poller.findings.log.open.values()}
        self.poller.findings.annotate(several["b"], Action.ACKNOWLEDGE, "alice", "")
        for _minute in range(10):
            self.poller.findings.annotate(several["c"], Action.COMMENT, "alice", "wait")
            self.pump(60.0)
        self.assertEqual(len(self.sent), 1)
        evaluated = WhatIf(self.store, self.config, BEGIN, begin + 300.0, self.poller.fabric)
        self.pump(180.0)
        for _at in evaluated.run():
            pass
        self.assertEqual(
            [(one.alert.finding["kind"], one.alert.finding["where"]) for one in evaluated.alerts], self.sent
        )

    def test_invalidEvents(self) -> None:
        """Invalid events of each kind are logged together."""
        kinds = ("finding-raised", "link-gone")
        logged: list[str] = []

        @provider(ILogObserver)
        def observe(event: LogEvent) -> None:
            logged.append(formatEvent(event))

        globalLogPublisher.addObserver(observe)
        self.addCleanup(globalLogPublisher.removeObserver, observe)
        self.pump(600.0)
        for kind in kinds:
            for number in range(3):
                event = FabricEvent(self.clock.seconds() - 1 - number, kind, "a", "", subject="[]", detail=[])
                self.store.append([event])
        self.evaluated()
        found = [line for line in logged if "invalid" in line]
        begins = sorted(line.partition(" of ")[0] for line in found)
        self.assertEqual(begins, [f"3 invalid events ({kind})" for kind in kinds])
