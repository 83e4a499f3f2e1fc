"""Restarts of a monitor: what the next process restores and does not report again."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from math import inf, nan

from twisted.internet.defer import maybeDeferred
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.advice import ADVICE, Severity
from txrdma.fabric.cables import Cable, CableWatch
from txrdma.fabric.health import Finding, locatedFindings
from txrdma.fabric.model import Fabric
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.mad.agent import MADAgent
from txrdma.monitor.diagnosis import cablestates, topologywatch
from txrdma.monitor.diagnosis.cablemoves import CableMoves, FAULT, REMEMBERED_SECONDS
from txrdma.monitor.diagnosis.cablestates import CABLE, cableEvents, formerCables
from txrdma.monitor.diagnosis.fabricstate import fabricOf, Link, NodeState
from txrdma.monitor.diagnosis.findinglog import (
    Action,
    Entry,
    FindingEvent,
    FindingLog,
    FindingRules,
    Key,
    Resumed,
)
from txrdma.monitor.diagnosis.journal import FabricEvent, Journal, MOST_CHANGES
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.diagnosis.topologywatch import TopologyWatch
from txrdma.monitor.events.alerts import Alert, FormerAlerts
from txrdma.monitor.events.restoring import restoreState, secondsToFind
from txrdma.monitor.reading.poller import DEFAULT_RULES, FabricPoller
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.series.history import HistoryWriter
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.test.support.monitor.alerts import entryOf
from txrdma.test.unit.monitor.test_cablemoves import CableTestCase
from txrdma.test.unit.monitor.test_poller import PollerTestCase

ONE, OTHER = "0x00000000000000a1", "0x00000000000000a2"


class RestartTestCase(PollerTestCase):
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
        self.journal = poller.findings.journal
        began = self.clock.seconds()
        restoreState(
            *(self.store, poller.findings.log, poller.topologyWatch, self.journal),
            lambda kind: began + secondsToFind(kind, self.thresholds, self.settings),
        )
        poller.cables.former = formerCables(self.store.states(CABLE))
        self.thresholds.moves.restore(self.store.states(FAULT))
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
        return {entry.finding.kind: entry for entry in self.poller.findings.log.open.values()}

    def kinds(self) -> list[tuple[str, str]]:
        """Return the changes, each with the name of its location."""
        return [(change.kind, change.where.partition(" (")[0]) for change in self.journal.changes]


class MovedCableTests(CableTestCase, RestartTestCase):
    """Cables between two switches, of which one has errors, that are moved while no process runs."""

    def setUp(self) -> None:
        super().setUp()
        self.ended()

    def moved(self, *moves: tuple[str, int, int]) -> None:
        """Move cables at a switch from a port to another one, and start the next process."""
        for name, number, to in moves:
            self.fabric.move(name, number, name, to)
        self.again(0.0)
        self.surveyed(0.0)

    def test_oneEnd(self) -> None:
        """The fault follows the cable of which one end was moved."""
        self.moved(("left", 3, 7))
        self.assertRegex(self.textAt("left", 7), "; the fault follows the cable: left .* port 3 had")

    def test_bothEnds(self) -> None:
        """The fault follows the cable of which both ends were moved, which its serial number shows."""
        self.moved(("left", 3, 7), ("right", 3, 7))
        self.assertRegex(self.textAt("left", 7), "; the fault follows the cable: (left|right) .* port 3 had")

    def test_otherCable(self) -> None:
        """The fault stays with the port, which has another cable now, for a day also after more restarts."""
        self.moved(("left", 3, 7), ("left", 4, 3))
        self.assertRegex(self.textAt("left", 3), "; the fault stays with the port: left .* port 3 had")
        for _ in range(2):
            changed = self.entries()["cable-changed"].finding
            self.assertIn("now, and was", changed.text)
            self.assertEqual((changed.guid, changed.port), self.portKey("left", 3))
            self.ended()
            self.again(0.0)
            self.surveyed(0.0)

    def test_unread(self) -> None:
        """Before the first survey nothing is reported of cables whose serial number must be read."""
        self.fabric.move("left", 3, "left", 7)
        self.again()
        self.assertNotIn("the fault", self.textAt("left", 7))

    def test_forgotten(self) -> None:
        """Faults of a week ago are forgotten, by the history as well."""
        self.again()
        self.assertTrue(self.store.states(FAULT))
        moves = self.thresholds.moves
        at = self.clock.seconds() + REMEMBERED_SECONDS
        moves.explained(self.sweptFabric, [], at)
        self.writer.append(moves.events(self.sweptFabric, at))
        self.pump(5.0)
        self.assertEqual(self.store.states(FAULT), [])

    def test_invalid(self) -> None:
        """Invalid events of cables and faults are ignored, and the others restored."""
        self.again()
        faults, cables = self.store.states(FAULT), self.store.states(CABLE)
        for kind, details in (
            (FAULT, (None, [], [["symbol-errors"]], [["a", ["x", 1], "b", True, "c", 1.0]])),
            (CABLE, (None, [["copper"], None], [["", "", "", "", "", 1.0], [inf, []]])),
        ):
            for number, detail in enumerate(details):
                subject = f"{kind} {number}"
                self.store.append([FabricEvent(1.0, kind, "x", "", subject=subject, detail=detail)])
        moves = CableMoves()
        with capturedLogs() as logged:
            moves.restore(self.store.states(FAULT))
            watch = formerCables(self.store.states(CABLE))
        self.assertEqual([formatEvent(one)[:9] for one in logged], ["4 invalid", "3 invalid"])
        self.assertEqual((len(moves), len(watch.cables)), (len(faults), len(cables)))
        self.assertEqual(watch.cables, formerCables(cables).cables)


class CableEventTests(SynchronousTestCase):
    def test_interrupted(self) -> None:
        """When the storage of cables ends early, as by a reload, the next one stores the others."""
        self.patch(cablestates, "_PIECE", 2)
        watch, fabric = CableWatch(), Fabric()
        cables = {(GUID.fromInt(7), number): Cable(serial=f"S{number}") for number in range(5)}
        list(watch.reading(cables, [GUID.fromInt(7)], 0.0))
        stored = [*next(cableEvents(watch, fabric, 0.0)), *chain(*cableEvents(watch, fabric, 1.0))]
        self.assertEqual({(one.guid, one.port) for one in stored}, cables.keys())
        self.assertEqual((len(stored), list(cableEvents(watch, fabric, 2.0))), (5, []))


class RestartTests(RestartTestCase):
    def test_causeChanged(self) -> None:
        """A cause that has ended while no process ran is stored as such."""
        self.started()
        for number in (1, 2, 3, 4):
            self.fabric.cut("right", number)
        self.pump(60.0)
        cause = "node-gone", self.fabric.node("right").guid
        self.assertEqual(self.causes(), {"right": None, "c": cause, "d": cause})
        self.ended()
        for number in (2, 3, 4):
            self.fabric.heal("right", number)
        self.again()
        self.pump(30.0)
        self.assertEqual(self.causes(), {"c": None})

    def causes(self) -> dict[str, tuple[str, GUID | None] | None]:
        """Return the causes of missing nodes in the history, each with the name of its node."""
        restored = FindingLog(DEFAULT_RULES)
        restoreState(self.store, restored, TopologyWatch(), Journal(), lambda kind: 0.0)
        several = [entry.finding for entry in restored.open.values() if entry.finding.kind == "node-gone"]
        return {
            one.where.partition(" ")[0]: (one.cause.kind, one.cause.guid) if one.cause else None
            for one in several
        }

    def test_stillThere(self) -> None:
        """A lost node remains lost for the next process, since the same time and without a new report."""
        self.started()
        self.loseHost()
        self.assertEqual(self.output(), [("raised", "node-gone", "c")])
        first, guid = self.entries()["node-gone"].firstSeen, str(self.fabric.node("c").guid)
        (gone,) = self.poller.topologyWatch.missingNodes.values()
        changes = list(self.journal.changes)
        self.assertEqual(self.kinds(), [("node-gone", "c"), ("finding-raised", "c")])
        self.ended()
        self.again()
        self.assertEqual(self.output(), [("resumed", "node-gone", "c")])
        entry = self.entries()["node-gone"]
        self.assertEqual((entry.firstSeen, entry.times, entry.severity), (first, 1, Severity.WARNING))
        self.assertEqual((entry.toDict()["guid"], entry.advice), (guid, ADVICE["node-gone"].text))
        self.assertGreater(entry.lastSeen, first)
        self.assertEqual(list(self.poller.topologyWatch.missingNodes.values()), [gone])
        self.assertEqual(list(self.journal.changes), changes)
        self.fabric.heal("c")
        self.pump(80.0)
        self.assertEqual(self.output(), [("cleared", "node-gone", "c")])
        self.ended()
        self.again()
        self.assertEqual(self.output(), [])
        (closed,) = self.poller.findings.log.closed
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

    def test_congestion(self) -> None:
        """Congestion is not reported again by the next process, which reads optional counters in rotation."""
        self.fabric.countWide()
        self.fabric.growCounters("left", 2, portXmitWait=25e9 / 8 / 32)
        self.started(400.0)
        self.assertEqual(self.output(), [("raised", "slow-receiver", "left")])
        self.ended()
        self.settings = PollerSettings(stateSeconds=600.0)
        self.again(300.0)
        self.assertEqual(self.output(), [("resumed", "slow-receiver", "left")])

    def test_collectorsRemoved(self) -> None:
        """What was found about collectors is cleared by a process that has none."""
        self.started()
        self.poller.findings.report("collectors", [Finding("collector-missing", "b", "there is none")])
        self.pump(6.0)
        self.ended()
        self.again(90.0)
        output = [("raised", "collector-missing", "b"), ("cleared", "collector-missing", "b")]
        self.assertEqual(self.output(), output)

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
        self.assertEqual(self.poller.topologyWatch.missingNodes, {})
        self.assertEqual(self.kinds(), [])


class OperatorRestartTests(RestartTestCase):
    """What operators have noted survives the process."""

    def acted(self) -> Entry:
        self.started()
        self.loseHost()
        entry = self.entries()["node-gone"]
        self.poller.findings.annotate(entry, Action.ACKNOWLEDGE, "alice", "power supply ordered")
        self.poller.findings.annotate(entry, Action.COMMENT, "bob", "thank you")
        self.pump(6.0)
        self.changes.clear()
        return entry

    def test_restored(self) -> None:
        """The next process knows the acknowledgement and the comments of an open finding."""
        before = self.acted()
        self.ended()
        self.again()
        after = self.entries()["node-gone"]
        self.assertIsNot(after, before)
        self.assertEqual(after.acknowledgement, before.acknowledgement)
        self.assertEqual(after.comments, before.comments)
        self.assertEqual([one.user for one in after.comments], ["alice", "bob"])
        kinds = [kind for kind, _where in self.kinds()]
        self.assertEqual(kinds[-2:], ["operator-acknowledged", "operator-commented"])

    def test_cleared(self) -> None:
        """So do those of a cleared finding, also when they came after its end."""
        self.acted()
        self.fabric.heal("c")
        self.pump(80.0)
        (entry,) = self.poller.findings.log.closed
        self.poller.findings.annotate(entry, Action.COMMENT, "alice", "replaced")
        self.pump(6.0)
        self.ended()
        self.again()
        (entry,) = self.poller.findings.log.closed
        self.assertEqual([one.text for one in entry.comments][-1], "replaced")
        self.assertEqual(len(entry.comments), 3)

    def test_severity(self) -> None:
        """Another severity, as of a configuration that is read again, ends it for the next process, too."""
        self.acted()
        rules = FindingRules(DEFAULT_RULES.raiseSeconds, severities={"node-gone": Severity.CRITICAL})
        self.poller.change(self.settings, rules, locatedFindings)
        self.pump(6.0)
        self.assertIsNone(self.entries()["node-gone"].acknowledgement)
        self.ended()
        self.again()
        self.assertIsNone(self.entries()["node-gone"].acknowledgement)


class InvalidRowTests(SynchronousTestCase):
    """Invalid rows of the history cost nothing else, and are logged once."""

    def setUp(self) -> None:
        self.store = HistoryStore(self.mktemp())
        self.addCleanup(self.store.close)
        self.findingLog, self.topologyWatch, self.journal = (
            FindingLog(DEFAULT_RULES),
            TopologyWatch(),
            Journal(),
        )
        self.key = ["sweep", "width", "leaf", 7]
        self.finding = entryOf().toDict()
        self.store.append(
            [
                self.event("finding-raised", [*self.key, 1.0], [self.key, "it is slow", 1.0, 2.0, None, 1]),
                self.event("alert-raised", self.key, self.finding),
                self.event("notification-queued", ["mail", 4], [self.key, True, self.finding]),
                *(FabricEvent(1.0, "node-came", "n", "", subject=text, detail="") for text in (ONE, OTHER)),
                self.event("link-came", [ONE, 1, OTHER, 2], "n/P2"),
                FabricEvent(1.0, "operator-reloaded", "the monitor", "the configuration was read again"),
            ]
        )

    @staticmethod
    def event(kind: str, subject: object, detail: object) -> FabricEvent:
        return FabricEvent(1.0, kind, "leaf", "", subject=json.dumps(subject), detail=detail)

    def restored(self) -> tuple[FormerAlerts, list[str]]:
        """Restore the state; return the alerts, and what was logged."""
        with capturedLogs() as logged:
            former = restoreState(
                self.store, self.findingLog, self.topologyWatch, self.journal, lambda kind: 0.0
            )
        return former, [formatEvent(one) for one in logged]

    def assertRestored(self, former: FormerAlerts) -> None:
        key = Key(*("sweep", "width", "leaf", 7))
        self.assertEqual(list(self.findingLog.open), [key])
        self.assertEqual(former.sent, {key: self.finding})
        self.assertEqual(former.queued, {"mail": {4: Alert(key, True, self.finding)}})
        one, other = GUID.fromString(ONE), GUID.fromString(OTHER)
        self.assertEqual(set(self.topologyWatch.present), {one, other})
        self.assertEqual(list(self.topologyWatch.linked), [((one, 1), (other, 2))])
        self.assertEqual([change.kind for change in self.journal.changes], ["operator-reloaded"])

    def test_invalid(self) -> None:
        """Events whose contents have other types, or are missing."""
        key, finding = self.key, self.finding
        entry, unhashable = [key, "it is slow", 1.0, 2.0, None, 1], [["counters"], *key[1:]]
        several: dict[str, list[tuple[object, object]]] = {
            "finding-raised": [
                *(("f1", None), ("f2", ["nonsense"]), ("f3", [[*key, 1], *entry[1:]])),
                *((f"first {at}", [*entry[:2], at, *entry[3:]]) for at in ("yesterday", inf, nan, 10**400)),
                *((f"last {at}", [*entry[:3], at, *entry[4:]]) for at in ("then", None)),
                *((f"notes {notes}", [*entry, notes]) for notes in ([], [[1.0, "a", 99], [], ""])),
                *((f"since {at}", [*entry, [None, [], None, at]]) for at in ("then", None)),
                ("no key", [unhashable, *entry[1:]]),
            ],
            "finding-cleared": [("f4", [*entry[:4], inf, 1])],
            "alert-raised": [("alert", finding), (unhashable, finding)],
            "notification-queued": [
                *(("mail", [key, True, finding]), (["mail", 7], [key, True])),
                (["mail", 8], [unhashable, True, finding]),
            ],
            "node-came": [("n1", ""), (["n2"], "")],
            "node-gone": [("0xa3", None)],
            "link-came": [("link", ""), ([ONE, 1, OTHER], ""), ([ONE, 3, OTHER, 3], None)],
        }
        for kind, rows in several.items():
            self.store.append([self.event(kind, subject, detail) for subject, detail in rows])
        former, logged = self.restored()
        self.assertRestored(former)
        numbers = [int(line.partition(" invalid")[0]) for line in logged]
        self.assertEqual(sum(numbers), sum(map(len, several.values())))
        self.assertEqual(len(logged), 4)  # of findings, sent alerts, queued ones, and nodes with links

    def test_damaged(self) -> None:
        """Rows that are no events."""
        damages = "detail = '{'", "guid = '0xyz'", "at = NULL", "at = 9e999", "port = 'seven'", "text = x'ff'"
        database = self.store._database
        for number, damage in enumerate(damages):
            event = replace(self.event("finding-raised", f"x{number}", None), text="it is damaged")
            self.store.append([event])
            with database.transaction():
                database.execute(f"UPDATE events SET {damage} WHERE subject = ?", event.subject)
        former, logged = self.restored()
        self.assertRestored(former)
        self.assertEqual(len(logged), 2)  # once as states of findings, once as changes
        self.assertTrue(all(line.startswith(f"{len(damages)} invalid") for line in logged), logged)


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
        restoreState(store, FindingLog(DEFAULT_RULES), TopologyWatch(), other, lambda kind: 0.0)
        self.assertEqual(list(other.changes), list(journal.changes))

    def test_gone(self) -> None:
        """Of many missing nodes and links those are remembered that were present for the longest time."""
        self.patch(topologywatch, "MOST_GONE", 3)
        topologyWatch = TopologyWatch()
        root, *others = (GUID(bytes(7) + bytes([number])) for number in range(1, 12))
        nodes = {root: NodeState("root", "", int(NodeType.SWITCH))}
        links: list[Link] = []
        for number, guid in enumerate(others, 1):
            nodes[guid] = NodeState(f"n{number}", "", int(NodeType.CHANNEL_ADAPTER))
            links.append(((root, number), (guid, 1)))
            list(topologyWatch.follow(fabricOf(nodes, links), float(number)))
        self.assertEqual((topologyWatch.missingNodes, topologyWatch.missingLinks), ({}, {}))
        events = list(topologyWatch.follow(fabricOf({root: nodes[root]}, []), 20.0))
        self.assertEqual(list(topologyWatch.missingNodes), others[:3])
        self.assertEqual(list(topologyWatch.missingLinks), links[:3])
        forgotten = [one.kind for one in events if one is not None and one.kind.endswith("-forgotten")]
        self.assertEqual(sorted(forgotten), ["link-forgotten"] * 7 + ["node-forgotten"] * 7)

    def test_held(self) -> None:
        """Findings that are new at every reading are not retained; others as long as necessary."""
        thresholds = ErrorThresholds()
        for kind, expected in (
            *(("node-gone", 0.0), ("symbol-errors", 3600.0), ("flapping", 600.0)),
            *(("node-silent", 80.0), ("collector-missing", 50.0), ("congestion", 100.0)),
        ):
            self.assertEqual(secondsToFind(kind, thresholds, PollerSettings()), expected, kind)
