"""Root causes: a dead switch, or a bad cable, is one event."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.advice import Severity
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.health import Cause, Finding
from txrdma.fabric.model import Fabric
from txrdma.fabric.rootcause import causesOfLoss, explained, linkOf
from txrdma.fabric.texts import listed
from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.findinglog import Cleared, FindingEvent, FindingLog, FindingRules
from txrdma.monitor.diagnosis.journal import _findingEvent, entryOf
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.events.alerts import AlertRules, AlertTracker
from txrdma.monitor.files import FileSettings, MaintainedFiles
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.sim.fabric.model.nodes import SimulatedPort
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net
from txrdma.test.support.mad.simulated import FabricTestCase
from txrdma.test.unit.monitor.test_poller import PollerTestCase


def guid(number: int) -> GUID:
    return GUID.fromInt(number)


class LossTests(SynchronousTestCase):
    def causes(self, missing: str, *links: str) -> dict[str, str]:
        """Return the causes of nodes that are named by letters; links are pairs of letters."""
        several = [((guid(ord(pair[0])), 1), (guid(ord(pair[1])), 2)) for pair in links]
        found = causesOfLoss({guid(ord(name)) for name in missing}, several)
        return {chr(int(node)): chr(int(cause)) for node, cause in found.items()}

    def test_causes(self) -> None:
        """A missing switch explains what is missing behind it, and only that."""
        for case, missing, links, expected in (
            ("a leaf switch explains its hosts", "Lab", "La Lb LS", {"a": "L", "b": "L"}),
            ("hosts at a switch that is there, or without a known link", "abc", "La Lb", {}),
            ("a host with another link, to a switch that is there", "La", "La Ma LS", {}),
            ("other switches are behind one, too", "LMab", "LS LM Ma Lb", {"M": "L", "a": "L", "b": "L"}),
            ("two switches share the hosts", "LMab", "LS MS LM Ma Lb", {"a": "M", "b": "L"}),
            ("nothing links an island to the rest of the fabric", "LMab", "LM La Mb", {}),
        ):
            self.assertEqual(self.causes(missing, *links.split()), expected, case)

    def test_names(self) -> None:
        """A list of names is short."""
        self.assertEqual(listed("abc"), "a, b, c")
        self.assertEqual(listed("abcde"), "a, b, c and 2 more")


class LinkTests(FabricTestCase):
    def test_grouped(self) -> None:
        """The worst finding of a link explains the others, but not those of another link or other kinds."""
        fabric: Fabric = self.answerTo(Sweep(self.agent).run(), 3)
        left, b = (self.fabric.node(name).guid for name in ("left", "b"))
        found = [
            Finding("symbol-errors", "b port 1", "", b, 1),
            Finding("flapping", "left port 2", "", left, 2),
            Finding("receive-errors", "left port 2", "", left, 2),
            Finding("receive-errors", "left port 3", "", left, 3),
            Finding("discards", "left port 2", "", left, 2),
            Finding("flapping", "elsewhere", ""),
        ]
        causes = [one.cause for one in explained(found, lambda one: linkOf(fabric, one))]
        cause = Cause("flapping", "left port 2", left, 2)
        self.assertEqual(causes, [cause, None, cause, None, None, None])
        self.assertEqual(str(causes[0]), "flapping at left port 2")


class FormerCauseTests(FabricTestCase):
    """Errors of two ends of a link; the times are in minutes."""

    def setUp(self) -> None:
        super().setUp()
        self.swept: Fabric = self.answerTo(Sweep(self.agent).run(), 3)
        self.thresholds = ErrorThresholds()

    def count(self, name: str, port: int, minute: int, **grown: int) -> None:
        self.thresholds.count((self.fabric.node(name).guid, port), grown, 60.0 * minute)

    def found(self, minute: int, ignored: Collection[str] = ()) -> list[tuple[str, str]]:
        """Return the findings, each with the kind of its cause."""
        several = self.thresholds.findings(self.swept, 60.0 * minute, ignored=ignored)
        return sorted((one.kind, one.cause.kind if one.cause else "") for one in several)

    def flapped(self) -> None:
        """Let the link flap and have errors, which are counted for longer."""
        for minute in (0, 1, 2):
            self.count("b", 1, minute, linkDownedCounter=1)
        self.count("left", 2, 3, symbolErrorCounter=200)
        self.assertEqual(self.found(3), [("flapping", ""), ("symbol-errors", "flapping")])

    def test_errorsStop(self) -> None:
        """Errors are those of the cause that the link had, until they leave their window."""
        self.flapped()
        for minute in range(4, 63):
            expected = [("flapping", "")] * (minute < 11) + [("symbol-errors", "flapping")]
            self.assertEqual(self.found(minute), expected, minute)
        self.assertEqual(self.found(63), [])

    def test_errorsGoOn(self) -> None:
        """A link with errors beyond the limit since its cause has ended is bad by itself."""
        self.flapped()
        for minute in range(4, 120):
            self.count("left", 2, minute, symbolErrorCounter=20)
            expected = "flapping" if minute < 17 else ""
            self.assertEqual(dict(self.found(minute))["symbol-errors"], expected, minute)

    def test_otherErrors(self) -> None:
        """A finding whose cause has ended explains no others."""
        self.flapped()
        self.found(10)
        self.count("b", 1, 20, portRcvErrors=100)
        self.assertEqual(self.found(20), [("receive-errors", ""), ("symbol-errors", "flapping")])

    def test_otherEnd(self) -> None:
        """Errors of one end of a link do not explain those of the other end when they have ended."""
        for name, port, minute in (("left", 2, 0), ("b", 1, 30)):
            self.count(name, port, minute, portRcvErrors=100)
        self.assertEqual(self.found(30), [("receive-errors", ""), ("receive-errors", "receive-errors")])
        self.assertEqual(self.found(61), [("receive-errors", "")])

    def test_ignored(self) -> None:
        """In place of a kind that is ignored, also one that was a cause, the next one explains the others."""
        self.flapped()
        self.count("b", 1, 3, portRcvErrors=100)
        self.assertEqual(dict(self.found(3))["receive-errors"], "flapping")
        others = [("receive-errors", "symbol-errors"), ("symbol-errors", "")]
        self.assertEqual(self.found(3, {"flapping"}), [("flapping", ""), *others])


class InterruptedTests(SynchronousTestCase):
    """Alerts of a finding that another one explains for 40 seconds of each minute."""

    def alerts(self, absentSeconds: float) -> list[float]:
        """Return the times of alerts; the finding is absent for some time at the end of each cause."""
        log, tracker = FindingLog(FindingRules({})), AlertTracker(AlertRules(groupSeconds=0.0), 0.0)
        cause = Cause("node-gone", "leaf", guid(1))
        sent = []
        for second in range(600):
            since = second % 60
            found = Finding("node-gone", "host", "", guid(2), None, cause if since >= 20 else None)
            for event in log.observe("sweep", [found] * (since < 60 - absentSeconds), float(second)):
                tracker.raised(event.entry, float(second))
                stored = _findingEvent(event.entry, "", float(second))
                self.assertEqual(entryOf(stored).foundSince, event.entry.foundSince)
            sent += [float(second) for one in tracker.take(float(second)) if one.isRaised]
        return sent

    def test_stays(self) -> None:
        """The alert is sent when the finding had no cause for a minute in total."""
        self.assertEqual(self.alerts(0.0), [180.0])

    def test_returns(self) -> None:
        """What is absent when its cause is has another minute each time."""
        self.assertEqual(self.alerts(10.0), [])


class LeafTests(PollerTestCase):
    slowBecause = "simulates a fat tree with nodes that hang for ten minutes"

    at = "h00000"
    settings = PollerSettings(intervalSeconds=30.0)

    def net(self) -> Net:
        return fatTree(hosts=24, radix=8)

    def setUp(self) -> None:
        super().setUp()
        self.tracker = AlertTracker(AlertRules(delaySeconds=0.0, groupSeconds=0.0), 0.0)

    def received(self, event: FindingEvent) -> None:
        super().received(event)
        report = self.tracker.cleared if isinstance(event, Cleared) else self.tracker.raised
        report(event.entry, self.clock.seconds())

    def died(self) -> tuple[SimulatedPort, list[str]]:
        """Let a leaf switch die while it is monitored; return its port to a host, and its hosts."""
        self.started(60.0)
        leaf = self.fabric.port("h00016").neighbor
        assert leaf is not None
        nodes = [port.neighbor.node for port in leaf.node.external if port.neighbor is not None]
        for port in leaf.node.external:
            self.fabric.cut(leaf.node.identifier, port.number)
        self.pump(200.0)
        return leaf, sorted(node.description for node in nodes if not node.isSwitch)

    def test_leaf(self) -> None:
        """A dead leaf switch is one alert that names its hosts; each host has a finding that it explains."""
        leaf, names = self.died()
        opened = self.poller.findings.log.open.values()
        gone = [entry for entry in opened if entry.finding.kind == "node-gone"]
        self.assertEqual(len(gone), 1 + len(names))
        (root,) = (entry for entry in gone if not entry.finding.cause)
        self.assertEqual(root.finding.guid, leaf.node.guid)
        self.assertIn(f"and with it {len(names)} nodes behind it: {names[0]}", root.finding.text)
        cause = Cause("node-gone", root.finding.where, leaf.node.guid)
        self.assertEqual({entry.finding.cause for entry in gone if entry is not root}, {cause})
        sent = [one for one in self.tracker.take(self.clock.seconds()) if one.finding["kind"] == "node-gone"]
        self.assertEqual([one.finding["guid"] for one in sent], [str(leaf.node.guid)])
        self.assertEqual({entry.severity for entry in gone}, {Severity.WARNING})
        path = Path(self.mktemp())
        files = MaintainedFiles(self.clock, FileSettings(unfit=str(path)))
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        unfit = [line.partition("\t")[0] for line in path.read_text().splitlines()]
        self.assertEqual(unfit, names)  # jobs must not run there, for any cause

    def test_leafReturns(self) -> None:
        """A switch that returns is found before its hosts, which are no alerts if they return with it."""
        leaf, _names = self.died()
        self.tracker.take(self.clock.seconds())
        self.tracker.rules = AlertRules(groupSeconds=0.0)
        for port in leaf.node.external:
            self.fabric.heal(leaf.node.identifier, port.number)
        raised = []
        for _second in range(200):
            self.pump(1.0)
            raised += [one for one in self.tracker.take(self.clock.seconds()) if one.isRaised]
        self.assertEqual((raised, self.poller.findings.log.open), ([], {}))

    def test_hostStaysAway(self) -> None:
        """A host that is still missing when its switch returns is a separate alert."""
        leaf, _names = self.died()
        self.tracker.take(self.clock.seconds())
        self.assertIsNone(self.tracker.deadline(self.clock.seconds()))
        for port in leaf.node.external:
            if port is not leaf:
                self.fabric.heal(leaf.node.identifier, port.number)
        self.pump(200.0)
        (alert,) = (one for one in self.tracker.take(self.clock.seconds()) if one.isRaised)
        host = self.fabric.node("h00016")
        self.assertEqual((alert.finding["guid"], alert.finding["cause"]), (str(host.guid), ""))

    def toggled(self) -> list[tuple[float, str]]:
        """
        Let a dead leaf switch return and die again each minute, without the host at one of its ports.

        @return: raised alerts of missing nodes: minutes since the first return, and the node.
        """
        self.tracker.rules = AlertRules()
        leaf, _names = self.died()
        self.tracker.take(self.clock.seconds())
        began, found = self.clock.seconds(), []
        for half in range(12):
            for port in leaf.node.external:
                if half % 2:
                    self.fabric.cut(leaf.node.identifier, port.number)
                elif port is not leaf:
                    self.fabric.heal(leaf.node.identifier, port.number)
            for _second in range(60):
                self.pump(1.0)
                found += [
                    ((self.clock.seconds() - began) / 60, one.finding["where"].partition(" ")[0])
                    for one in self.tracker.take(self.clock.seconds())
                    if one.isRaised and one.finding["kind"] == "node-gone"
                ]
        return [one for one in found if one[1] != "leaf0004"]

    def test_toggles(self) -> None:
        """A host that stays away from a toggling switch is one alert soon; those that return are none."""
        ((minutes, name),) = self.toggled()
        self.assertEqual(name, "h00016")
        self.assertLessEqual(minutes, 3.0)

    def test_ignoredCause(self) -> None:
        """Hanging nodes that are ignored explain no others."""
        log = self.poller.findings.log
        log.change(FindingRules(log.rules.raiseSeconds, ignored={"node-silent"}))
        self.started(60.0)
        self.fabric.silence("h00020")
        self.pump(600.0)
        found = [(one.finding.kind, one.finding.cause) for one in log.open.values()]
        self.assertEqual(found, [("unreachable", None)])

    def test_hungHost(self) -> None:
        """A host that hangs, with its link up, is one alert, which explains all that cannot be read."""
        self.checkHung("h00020")

    def test_hungSwitch(self) -> None:
        self.checkHung("leaf0004")

    def checkHung(self, name: str) -> None:
        self.started(60.0)
        node = self.fabric.node(name)
        self.fabric.silence(name)
        self.pump(600.0)
        found = [entry.finding for entry in self.poller.findings.log.open.values()]
        (root,) = (one for one in found if not one.cause)
        self.assertEqual((root.kind, root.guid), ("node-silent", node.guid))
        self.assertIn("it does not answer, and has links at ", root.text)
        causes = {one.cause for one in found if one is not root}
        self.assertEqual(causes, {Cause("node-silent", root.where, node.guid)})
        alerts = [one for one in self.tracker.take(self.clock.seconds()) if one.isRaised]
        self.assertEqual([one.finding["guid"] for one in alerts], [str(node.guid)])
        self.fabric.revive(name)
        self.pump(400.0)
        self.assertEqual(self.poller.findings.log.open, {})
        (alert,) = self.tracker.take(self.clock.seconds())
        self.assertFalse(alert.isRaised)


class ReturnTests(PollerTestCase):
    """Nodes that return, with a pause between the change of a link and the sweep."""

    at = "h00000"
    settings = PollerSettings(intervalSeconds=1.0, settleSeconds=30.0)

    def net(self) -> Net:
        return fatTree(4)

    def test_linkUp(self) -> None:
        """A node whose link is up again does not count as one that hangs before a sweep."""
        self.started(60.0)
        self.fabric.cut("h00002")
        self.pump(100.0)
        self.fabric.heal("h00002")
        self.pump(100.0)
        self.assertEqual(
            self.output(), [("raised", "node-gone", "h00002"), ("cleared", "node-gone", "h00002")]
        )
