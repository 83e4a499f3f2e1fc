"""The poller on simulated fabrics: readings, findings and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, patch

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater

from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.fabric import health, refreshing
from txrdma.fabric.cableplan import cableFindings, parseCables
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.health import Finding
from txrdma.fabric.model import Fabric, isSame, nodeGUIDIn, PortKey
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.verbs import Buffer
from txrdma.interfaces import IMADPort
from txrdma.kit.rawfields import poke
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.attributes import Attribute, ManagementClass
from txrdma.mad.layouts.messages import ClassPortInfo, MADStatus
from txrdma.mad.layouts.pma import PortRcvErrorDetails, PortXmitDiscardDetails
from txrdma.mad.layouts.smp import PortInfo
from txrdma.monitor.collecting.pool import CollectorPool
from txrdma.monitor.diagnosis import fabricdiagnosis, topologywatch
from txrdma.monitor.diagnosis.findinglog import CauseChanged, FindingEvent, FindingLog, Raised
from txrdma.monitor.diagnosis.journal import Journal
from txrdma.monitor.diagnosis.tallies import TallyLimit
from txrdma.monitor.diagnosis.thresholds import DEFAULT_LIMITS, ErrorThresholds
from txrdma.monitor.diagnosis.topologywatch import TopologyWatch
from txrdma.monitor.reading import poller
from txrdma.monitor.reading.poller import DEFAULT_RULES, FabricPoller
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.fabric.agents import pma
from txrdma.sim.fabric.model.nodes import SimulatedPort
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net
from txrdma.tap.steadyclock import SteadyClock
from txrdma.test.support.mad.simulated import FabricTestCase, TWO_SWITCHES


def withStatus(datagram: bytes | None, status: int) -> bytes | None:
    """Return an answer with another status; None is returned unchanged."""
    return None if datagram is None else datagram[:4] + status.to_bytes(2, "big") + datagram[6:]


class PollerTestCase(FabricTestCase):
    """A poller at node C{a} of a fabric, and its recorded reports."""

    at = "a"
    settings = PollerSettings()
    limits: Sequence[TallyLimit] = (TallyLimit("symbolErrorCounter", 10, 600.0),)
    mostBitErrors: float | None = None

    def setUp(self) -> None:
        self.clock = SimulatedClock()
        self.fabric = SimulatedFabric(self.clock, self.net(), **self.options)
        self.isPulled = False
        self.agent = MADAgent(self.clock, self.fabric.attach(self.at), reopen=self.reopened)
        self.addCleanup(self.agent.close)
        self.changes: list[tuple[float, str, str, str]] = []
        self.poller = self.made()

    def made(self) -> FabricPoller:
        self.thresholds = ErrorThresholds(self.limits, mostBitErrors=self.mostBitErrors)
        return FabricPoller(
            *(self.clock, self.agent, self.settings),
            thresholds=self.thresholds,
            notify=self.received,
            collectors=self.madeCollectors(),
        )

    def madeCollectors(self) -> CollectorPool | None:
        return None

    @property
    def sweptFabric(self) -> Fabric:
        assert self.poller.fabric is not None
        return self.poller.fabric

    def answering(self, answer: Callable[[SimulatedPort, int, Any], Any]) -> Callable[[], None]:
        """
        Replace answers of performance management, until the returned function is called.

        @param answer: gets the port, the number of the attribute and the usual answer.
        """
        agents: Any = self.fabric.wire._pma
        usual = agents.answer
        restore: Callable[[], None] = self.patch(
            *(agents, "answer"),
            lambda port, datagram: answer(
                port, int.from_bytes(datagram[16:18], "big"), usual(port, datagram)
            ),
        ).restore
        return restore

    def refuse(self, status: int, *kinds: type[Attribute]) -> Callable[[], None]:
        """Let all nodes refuse attributes, until the returned function is called."""
        refused = [kind.attributeID for kind in kinds]
        return self.answering(
            lambda _, number, reply: withStatus(reply, status) if number in refused else reply
        )

    def reopened(self) -> IMADPort:
        if self.isPulled:
            raise DeviceUnavailable("it is pulled out")
        return self.fabric.attach(self.at)

    def received(self, event: FindingEvent) -> None:
        if isinstance(event, CauseChanged):
            return
        what = "raised" if isinstance(event, Raised) else "cleared"
        found = event.entry.finding
        self.changes.append((self.clock.seconds(), what, found.kind, found.where))

    def output(self) -> list[tuple[str, str, str]]:
        """Return findings since the last call."""
        output = [(what, kind, where.partition(" (")[0]) for _now, what, kind, where in self.changes]
        self.changes.clear()
        return output

    def started(self, seconds: float = 35.0) -> None:
        self.poller.start()
        self.pump(seconds)

    def failingRefresh(self, name: str) -> None:
        """Raise an exception whenever a refresh processes a NodeInfo of this node; sweeps do not."""
        guid = self.fabric.node(name).guid.raw

        def failing(raw: bytes, other: bytes) -> bool:
            if nodeGUIDIn(raw) == guid:
                raise ZeroDivisionError("a bug")
            return isSame(raw, other)

        self.patch(refreshing, "isSame", failing)

    def loseHost(self) -> None:
        """Let a host disappear, and wait until that is found."""
        self.fabric.cut("c")
        self.pump(30.0)

    def portKey(self, name: str, number: int) -> PortKey:
        return self.fabric.node(name).guid, number

    def rate(self, name: str, number: int, counter: str = "portXmitData") -> float | None:
        return self.poller.meters[self.portKey(name, number)].rate(counter)


class PieceTests(PollerTestCase):
    """A poller that pauses after each node and link, as after thousands of a large fabric."""

    def setUp(self) -> None:
        super().setUp()
        self.pauses = self.endingAt = 0
        for module in (health, topologywatch, fabricdiagnosis, poller):
            self.patch(module, "_PIECE", 1)

        def paused(*arguments: Any) -> Any:
            self.pauses += 1
            if self.pauses == self.endingAt:
                self.clock.callLater(0.0, self.poller.sweeps.cancel)
            return deferLater(*arguments)

        for module in (fabricdiagnosis, poller):
            self.patch(module, "deferLater", paused)

    def test_pieces(self) -> None:
        """Sweeps, changes and their findings are the same with pauses, in which other work is done."""
        self.started(45.0)
        self.assertEqual((len(self.sweptFabric.nodes), self.output()), (6, []))
        self.assertEqual(len(self.poller.topologyWatch.linked), len(list(self.sweptFabric.links())))
        self.assertGreater(self.pauses, 50)
        self.fabric.cut("b")
        self.pump(60.0)
        self.assertEqual(self.output(), [("raised", "link-gone", "b")])
        self.fabric.heal("b")
        self.pump(60.0)
        self.assertEqual(self.output(), [("cleared", "link-gone", "b")])
        self.assertEqual(self.poller.supervisor.findings(), [])

    def test_ended(self) -> None:
        """A poller stopped in a pause does nothing more; the next sweep detects what this one has not."""
        self.endingAt = 3
        self.started(0.01)
        self.assertEqual(self.pauses, 3)
        self.assertEqual(self.poller.topologyWatch.linked, {})
        self.poller.sweeps.runNow()
        self.pump(45.0)
        self.assertEqual(len(self.poller.topologyWatch.linked), len(list(self.sweptFabric.links())))
        self.assertEqual(self.output(), [])


class PollerTests(PollerTestCase):
    def test_healthy(self) -> None:
        """All ports of a healthy fabric are read in each interval, and there are no findings."""
        self.started(45.0)
        self.assertEqual(len(self.sweptFabric.nodes), 6)
        self.assertEqual(len(self.poller.meters), 8 + 8 + 5)
        statistics = self.poller.statistics
        linked = 2 * len(list(self.sweptFabric.links()))
        self.assertEqual(statistics.turns, 5)
        self.assertGreaterEqual(statistics.readings, 21 + 4 * linked)
        self.assertLess(statistics.readings, 5 * 21)  # ports without links are not read each time
        self.assertEqual((statistics.sweeps, statistics.overruns, statistics.silences), (1, 0, 0))
        self.assertGreaterEqual(statistics.requests, statistics.readings)
        self.assertEqual(statistics.timeouts, 0)
        self.assertEqual((self.output(), self.poller.findings.log.worst()), ([], None))

    def test_first(self) -> None:
        """The first readings follow the first sweep at once; later sweeps cause none."""
        self.started(0.01)
        self.assertEqual((self.poller.statistics.sweeps, self.poller.statistics.turns), (1, 1))
        self.assertEqual(len(self.poller.meters), 21)
        self.poller.sweeps.runNow()
        self.pump(0.01)
        self.assertEqual((self.poller.statistics.sweeps, self.poller.statistics.turns), (2, 1))

    def test_rates(self) -> None:
        """Rates equal the traffic in octets, and totals continue."""
        self.fabric.growCounters("left", 2, portXmitData=1000.0, portXmitPkts=10.0)
        self.started()
        self.assertEqual(self.rate("left", 2), 4000.0)
        self.assertEqual(self.rate("left", 2, "portXmitPkts"), 10.0)
        self.assertEqual(self.rate("left", 1), 0.0)
        meter = self.poller.meters[self.portKey("left", 2)]
        self.assertEqual(meter.total("portXmitData"), 120000)

    def test_clockSet(self) -> None:
        """Rates are correct while the clock follows a system time that was set back, or forward."""
        clock, changes = self.clock, [0.0]
        seconds = SteadyClock(lambda: clock.seconds() + changes[-1], clock.seconds)
        self.clock = cast("SimulatedClock", SimpleNamespace(seconds=seconds, callLater=clock.callLater))
        self.poller, self.clock = self.made(), clock
        self.fabric.growCounters("left", 2, portXmitData=1000.0)
        self.started()
        for change in (-3600.0, 3600.0):
            changes.append(change)
            self.pump(40.0)
            self.assertAlmostEqual(self.rate("left", 2) or 0.0, 4000.0)

    def asked(self, seconds: float = 60.0) -> int:
        """Return the number of requests in a period."""
        before = self.agent.sent
        self.pump(seconds)
        return self.agent.sent - before

    def test_causes(self) -> None:
        """The causes of dropped packets are read once each time that their number grows."""
        self.fabric.setCounters("left", 2, portRcvErrors=7, portLocalPhysicalErrors=5, portLoopingErrors=2)
        self.fabric.setCounters("right", 1, portXmitDiscards=3, portInactiveDiscards=3)
        self.started(100.0)
        causes = self.poller.details.causes
        self.assertEqual(set(causes), {self.portKey("left", 2), self.portKey("right", 1)})
        reported = causes[self.portKey("left", 2)]
        self.assertEqual((reported["portLocalPhysicalErrors"], reported["portLoopingErrors"]), (5, 2))
        self.assertEqual(causes[self.portKey("right", 1)]["portInactiveDiscards"], 3)
        usual = self.asked()
        self.fabric.setCounters("left", 2, portRcvErrors=8, portLocalPhysicalErrors=6)
        self.assertEqual(self.asked(), usual + 1)
        self.assertEqual(causes[self.portKey("left", 2)]["portLocalPhysicalErrors"], 6)

    def test_causesCleared(self) -> None:
        """The causes of packets whose counter was cleared are no longer shown; those of others are."""
        both = {"portRcvErrors": 7, "portLocalPhysicalErrors": 5, "portXmitDiscards": 3}
        self.fabric.setCounters("left", 2, **both, portInactiveDiscards=3)
        self.started(100.0)
        self.fabric.setCounters("left", 2, portRcvErrors=0, portLocalPhysicalErrors=0)
        self.pump(100.0)
        causes = self.poller.details.causes[self.portKey("left", 2)].items()
        self.assertEqual([one for one in causes if one[1]], [("portInactiveDiscards", 3)])
        self.fabric.setCounters("left", 2, portXmitDiscards=0, portInactiveDiscards=0)
        self.pump(100.0)
        self.assertEqual(self.poller.details.causes, {})

    def test_noClassPortInfo(self) -> None:
        """A node without ClassPortInfo is not silent: its mandatory counters are read."""
        self.refuse(MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE, ClassPortInfo)
        self.started(100.0)
        self.assertEqual((self.output(), self.poller.statistics.silences), ([], 0))
        self.assertEqual(self.rate("left", 2), 0.0)
        self.assertNotIn("portUnicastXmitPkts", self.poller.meters[self.portKey("left", 2)].layout.names)

    def test_classPortInfoLater(self) -> None:
        """A node that refuses its ClassPortInfo temporarily is not silent, and is read when it answers."""
        end = self.refuse(MADStatus.INVALID_FIELD, ClassPortInfo)
        self.started(100.0)
        self.assertEqual((self.output(), self.poller.statistics.silences), ([], 0))
        end()
        self.pump(30.0)
        self.assertEqual(self.rate("left", 2), 0.0)

    def test_redirected(self) -> None:
        """A node that redirects each request is read in each round: the limit of redirections is per call."""
        self.fabric.redirect("left", 0x04, to="right")
        self.started(300.0)
        self.assertEqual((self.output(), self.poller.statistics.silences), ([], 0))
        self.assertEqual(self.rate("left", 2), 0.0)

    def test_causesRefused(self) -> None:
        """A node that refuses the causes once is queried again when more packets are dropped."""
        end = self.refuse(MADStatus.INVALID_FIELD, PortRcvErrorDetails)
        self.fabric.setCounters("left", 2, portRcvErrors=7, portLocalPhysicalErrors=5)
        self.started(100.0)
        self.assertEqual(self.poller.details.causes, {})
        end()
        self.fabric.setCounters("left", 2, portRcvErrors=8, portLocalPhysicalErrors=6)
        self.pump(100.0)
        self.assertEqual(self.poller.details.causes[self.portKey("left", 2)]["portLocalPhysicalErrors"], 6)

    def test_causesUnknown(self) -> None:
        """A node without the optional counters is queried only once for them."""
        optional = (PortRcvErrorDetails.attributeID, PortXmitDiscardDetails.attributeID)
        self.patch(pma, "GROUPS", {key: one for key, one in pma.GROUPS.items() if key not in optional})
        self.started(100.0)
        usual = self.asked()
        for errors in (7, 8):
            self.fabric.setCounters("left", 2, portRcvErrors=errors)
            self.assertEqual(self.asked(), usual + (errors == 7))
        self.assertEqual(self.poller.details.causes, {})

    def test_silentHostIsCut(self) -> None:
        """A silent host is gone soon after its cable was cut: it has no link any more."""
        self.started()
        self.fabric.silence("c")
        self.pump(700.0)
        self.assertIn(("raised", "node-silent", "c"), self.output())
        self.fabric.cut("c")
        self.pump(90.0)
        changes = self.output()
        self.assertIn(("raised", "node-gone", "c"), changes)
        self.assertIn(("cleared", "node-silent", "c"), changes)
        self.assertEqual([key.kind for key in self.poller.findings.log.open], ["node-gone"])

    def test_errorsOfLostHost(self) -> None:
        """Findings of the errors of a node keep its name when it is gone."""
        self.started()
        self.fabric.setCounters("c", 1, symbolErrorCounter=60)
        self.pump(60.0)
        before = {entry.finding.where for entry in self.poller.findings.log.open.values()}
        self.loseHost()
        self.pump(20.0)
        after = {entry.finding.where for key, entry in self.poller.findings.log.open.items() if key.port}
        self.assertEqual((len(before), after), (1, before))

    def test_silentHost(self) -> None:
        """A host that hangs has a gap, and is queried less frequently until it answers again."""
        self.fabric.growCounters("b", 1, portXmitData=1000.0)
        self.started()
        self.fabric.silence("b")
        self.pump(60.0)
        self.assertIn(("raised", "node-silent", "b"), self.output())
        self.assertIsNone(self.rate("b", 1))
        self.assertGreaterEqual(self.poller.statistics.timeouts, 3)
        before = self.poller.statistics.silences
        self.pump(600.0)
        self.assertLess(self.poller.statistics.silences - before, 8)
        self.assertEqual(self.poller.statistics.overruns, 0)
        self.output()
        self.fabric.revive("b")
        self.pump(400.0)
        self.assertEqual(self.rate("b", 1), 4000.0)
        self.assertEqual(self.poller.findings.log.open, {})
        self.assertTrue(all(what == "cleared" for what, _kind, _where in self.output()))

    def unprocessed(self, name: str) -> Any:
        """Return a context in which each NodeInfo of a node raises an exception."""
        guid, add = self.fabric.node(name).guid.raw, Fabric.add

        def failing(fabric: Fabric, content: bytes, route: Any) -> Any:
            if nodeGUIDIn(content) == guid:
                raise ZeroDivisionError("a bug")
            return add(fabric, content, route)

        return patch.object(Fabric, "add", failing)

    def test_unprocessed(self) -> None:
        """Nodes are not missing because an answer that led to them before cannot be processed."""
        self.fabric.growCounters("a", 1, portXmitData=1000.0)
        self.started()
        for name in ("b", "right", "left"):
            with self.unprocessed(name):
                self.pump(400.0)
            self.assertEqual({(what, kind) for what, kind, _ in self.output()}, {("raised", "unprocessed")})
            self.assertTrue(self.flushLoggedErrors(ZeroDivisionError))
            self.assertEqual(len(self.sweptFabric.nodes), 6)
            self.assertEqual(self.rate("a", 1), 4000.0)
            self.pump(400.0)
            self.assertEqual(self.poller.findings.log.open, {})
            self.output()

    def test_refused(self) -> None:
        """A datagram that the local port refuses affects only its node, in a sweep as in a refresh."""
        self.started(65.0)
        port, guid = self.agent.port, self.fabric.node("right").guid
        node = self.sweptFabric.nodes[guid]
        assert node.route is not None
        hops, lid = bytes(node.route.drPath), node.lid
        send = port.send

        def failing(datagram: Any, path: Any, answerWithin: float = 0.0) -> None:
            isOfNode = bytes(path.drPath) == hops if isinstance(path, IBDRPath) else path.dlid == lid
            if isOfNode and datagram[1] & 0x7F == ManagementClass.SUBN_LID:
                raise InvalidRequest("it does not fit")
            send(datagram, path, answerWithin)

        refusal = self.patch(port, "send", failing)
        self.poller._sign(guid)
        self.pump(4.0)
        self.assertEqual({(what, kind) for what, kind, _ in self.output()}, {("raised", "unprocessed")})
        self.assertEqual(self.poller._refreshes.problem, "")
        sweeps = self.poller.statistics.sweeps
        self.pump(400.0)
        self.assertGreater(self.poller.statistics.sweeps, sweeps)
        self.assertEqual(self.poller.sweeps.problem, "")
        found = {(kind, where) for what, kind, where in self.output() if what == "raised"}
        self.assertLessEqual(found, {("unprocessed", "right"), ("loop-failed", "round")})
        self.assertEqual(len(self.sweptFabric.nodes), 6)
        self.assertTrue(self.flushLoggedErrors(InvalidRequest))
        refusal.restore()
        self.pump(400.0)
        self.assertEqual(self.poller.findings.log.open, {})

    def test_alwaysUnprocessed(self) -> None:
        """A node that is never known conceals no others: missing ones are reported, and new ones found."""
        with self.unprocessed("b"):
            self.started()
            self.fabric.cut("c")
            self.pump(400.0)
        kinds = {(kind, where) for what, kind, where in self.output() if what == "raised"}
        self.assertLessEqual({("unprocessed", "right"), ("node-gone", "c")}, kinds)
        self.pump(400.0)
        self.assertTrue(self.flushLoggedErrors(ZeroDivisionError))
        self.assertIn(self.fabric.node("b").guid, self.sweptFabric.nodes)

    def test_unprocessedRefresh(self) -> None:
        """An exception in a refresh affects only its node, is logged once, and a sweep follows."""
        self.started(65.0)
        sweepSoon = self.patch(self.poller, "_sweepSoon", lambda seconds: None)
        self.failingRefresh("left")
        self.fabric.cut("c")
        for _ in range(3):
            for name in ("left", "right"):
                self.poller._sign(self.fabric.node(name).guid)
            self.pump(4.0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(set(self.output()), {("raised", "unprocessed", "a"), ("raised", "node-gone", "c")})
        self.assertEqual(self.poller._refreshes.problem, "")
        sweepSoon.restore()
        sweeps = self.poller.statistics.sweeps
        self.poller._sign(self.fabric.node("left").guid)
        self.pump(8.0)
        self.assertEqual(self.poller.statistics.sweeps, sweeps + 1)
        self.pump(90.0)
        self.assertEqual(self.output(), [("cleared", "unprocessed", "a")])

    def test_unprocessedOthers(self) -> None:
        """A refresh logs the first exception at a node that has raised none since the last sweep."""
        self.started(65.0)
        fabric = self.sweptFabric
        for count, names in ((1, ("left",)), (1, ("left", "right", "c")), (0, ("left", "right", "c"))):
            refresh = self.poller._refreshOf(Mock(), fabric)
            for name in names:
                with refresh._isolated(fabric.nodes[self.fabric.node(name).guid]):
                    raise ZeroDivisionError("a bug")
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), count)
        self.assertEqual(len(fabric.problems), 3)

    def test_refreshWithoutBuffers(self) -> None:
        """A refresh whose port cannot send fails: no node is the reason, and a sweep follows."""
        self.started(65.0)
        sweeps, full = self.poller.statistics.sweeps, ResourceExhausted("no room")
        failing = self.patch(self.agent.port, "send", Mock(side_effect=full))
        self.poller._sign(self.fabric.node("left").guid)
        self.pump(2.5)
        self.assertIn("no room", self.poller._refreshes.problem)
        failing.restore()
        self.pump(8.0)
        self.assertGreater(self.poller.statistics.sweeps, sweeps)
        self.assertEqual(self.output(), [])

    def test_silentWithoutLID(self) -> None:
        """Nodes that were silent and lost their LIDs do not count when all others seem to be silent."""
        for name in ("c", "d"):
            poke(PortInfo, "lid")(self.fabric.port(name, 1).info, 0)
            for _ in range(6):
                self.poller._reader.backOff.silent(self.fabric.node(name).guid, 0.0)
        self.started(75.0)  # the missing LIDs are settled findings then
        statistics = self.poller.statistics
        silences, sweeps = statistics.silences, statistics.sweeps
        self.fabric.silence("b")
        self.pump(20.0)
        self.assertEqual((statistics.silences - silences, statistics.sweeps - sweeps), (1, 0))

    def test_changesInOrder(self) -> None:
        """Changes that were followed while another fabric had the lock are in the journal in their order."""
        self.started()
        whole, part = self.sweptFabric, Fabric()
        part.nodes.update(list(whole.nodes.items())[:-1])
        diagnosis, journal = self.poller.diagnosis, self.poller.findings.journal
        lock = diagnosis._lock
        lock.acquire()
        for fabric in (part, whole):
            Deferred.fromCoroutine(diagnosis.follow(fabric, self.clock.seconds()))
        lock.release()
        kinds = [change.kind for change in journal.changes if change.kind.startswith("node")]
        self.assertEqual(kinds, ["node-gone", "node-came"])

    def test_flappingLink(self) -> None:
        """A flapping link is one finding, even if it is down each time that its ends are read."""
        self.started()
        for _ in range(6):
            self.fabric.cut("left", 4)
            self.pump(25.0)
            self.fabric.heal("left", 4)
            self.pump(5.0)
        where = {location for _now, what, kind, location in self.changes if kind == "flapping"}
        self.assertEqual([each.partition(" (")[0] for each in where], ["left"])
        self.pump(1200.0)
        reported = [(what, kind) for _now, what, kind, _place in self.changes if kind == "flapping"]
        self.assertEqual(reported, [("raised", "flapping"), ("cleared", "flapping")])
        self.assertEqual(len(self.poller._thresholds), 0)

    def test_twins(self) -> None:
        """Two hosts with one GUID are reported as such, and neither is lost and added in each sweep."""
        self.fabric.duplicate("c", "b")
        self.started()
        self.pump(1500.0)
        self.assertGreater(self.poller.statistics.sweeps, 4)
        output = self.output()
        self.assertIn("duplicate-guid", {kind for _what, kind, _where in output})
        self.assertEqual([one for one in output if one[0] == "cleared" or output.count(one) > 1], [])
        self.assertEqual(
            (self.poller.topologyWatch.missingNodes, self.poller.topologyWatch.missingLinks), ({}, {})
        )

    def test_port(self) -> None:
        """The loss of the local port is reported until its return, and not attributed to other nodes."""
        self.started()
        self.isPulled = True
        port = self.agent.port
        port.lose("pulled out")  # type: ignore[attr-defined]  # a simulated port
        self.pump(60.0)
        self.assertEqual([each[:2] for each in self.output()], [("raised", "port-lost")])
        self.assertIsNone(self.rate("left", 2))
        self.isPulled = False
        self.pump(60.0)
        self.assertEqual([each[:2] for each in self.output()], [("cleared", "port-lost")])
        self.assertEqual(self.rate("left", 2), 0.0)

    def test_portLostInFirstRound(self) -> None:
        """Rounds continue after the first request of the first one has shown that the port is lost."""
        port, lost = self.agent.port, DeviceUnavailable("the device is gone")
        usual = port.send

        def send(datagram: Buffer, path: IBPath, answerWithin: float = 0.0) -> None:
            if self.poller.rounds.isRunning:
                self.agent.portLost(str(lost))
                raise lost
            usual(datagram, path, answerWithin)

        self.patch(port, "send", send)
        self.started()
        self.assertIsNot(self.agent.port, port)
        self.pump(60.0)
        self.assertGreater(self.poller.statistics.turns, 0)
        self.assertTrue(self.poller.meters)

    def test_ownCable(self) -> None:
        """The loss of the local cable does not make other nodes lost."""
        self.started()
        self.fabric.cut("a")
        self.pump(30.0)
        self.assertEqual(self.output(), [("raised", "no-link", "a")])
        self.pump(900.0)
        self.assertEqual(self.output(), [])
        self.assertIsNone(self.rate("left", 2))
        self.fabric.heal("a")
        self.pump(100.0)
        self.assertEqual(self.output(), [("cleared", "no-link", "a")])
        self.assertEqual(self.rate("left", 2), 0.0)

    def test_unreachedOnce(self) -> None:
        """A node with a link that one sweep does not reach is not reported: datagrams are lost."""
        self.started(65.0)
        self.fabric.silence("c")
        self.poller.sweeps.runNow()
        while self.poller.sweeps.isRunning:
            self.pump(0.1)
        self.fabric.revive("c")
        self.assertIn(self.fabric.node("c").guid, self.poller.topologyWatch.missingNodes)
        self.pump(60.0)
        self.assertEqual(self.output(), [])

    def cutInSweep(self, seconds: float) -> list[tuple[str, str]]:
        """Cut the local cable for some seconds during a sweep; returns what is reported."""
        self.started(65.0)
        self.fabric.wire.latencySeconds = 0.01
        self.poller.sweeps.runNow()
        self.pump(0.1)
        self.fabric.cut("a")
        self.pump(seconds)
        self.fabric.heal("a")
        self.pump(200.0)
        return [(kind, where) for what, kind, where in self.output() if what == "raised"]

    def test_ownCableInSweep(self) -> None:
        """Nodes that a sweep did not reach, because the local link was down meanwhile, are not reported."""
        self.assertEqual(self.cutInSweep(5.0), [])
        self.assertEqual(len(self.sweptFabric.nodes), 6)

    def test_ownCableSinceSweep(self) -> None:
        """The loss of the local cable during a sweep does not make other nodes lost."""
        self.assertEqual(self.cutInSweep(100.0), [("no-link", "a")])

    def test_ownCableOfPlan(self) -> None:
        """The loss of the local cable does not make the nodes of the topology file missing."""
        plan = parseCables(TWO_SWITCHES)

        def check(fabric: Fabric) -> Iterator[Finding | None]:
            return chain(health.locatedFindings(fabric), cableFindings(fabric, plan))

        self.poller.change(self.settings, DEFAULT_RULES, check)
        self.started()
        self.fabric.cut("a")
        self.pump(900.0)
        self.assertEqual(self.output(), [("raised", "no-link", "a")])
        self.fabric.cut("b")
        self.fabric.heal("a")
        self.pump(100.0)
        self.assertIn(("raised", "cable-missing", "left"), self.output())

    def test_duringSweep(self) -> None:
        """A sweep that failed because of the local port is repeated when the port is back."""
        self.fabric.wire.latencySeconds = 0.1
        self.poller.start()
        self.pump(0.25)
        self.agent.port.lose("pulled out")  # type: ignore[attr-defined]  # a simulated port
        self.pump(60.0)
        self.assertEqual(len(self.sweptFabric.nodes), 6)
        self.assertEqual([each[1] for each in self.output()], ["port-lost", "port-lost"])

    def test_resumed(self) -> None:
        """Until a sweep ends, the state of another process is not contradicted, as it may be newer."""
        self.started()
        log, state = FindingLog(DEFAULT_RULES), TopologyWatch()
        found = Finding("width", "right", "", self.fabric.node("right").guid, 1)
        for at in (1.0, 2.0):
            log.observe("sweep", [found], at)
        self.poller.findings.report("sweep", [found])  # not raised yet
        ending = self.patch(Sweep, "run", lambda sweep: Deferred())
        self.poller.resume(log, state, Journal())
        self.fabric.cut("left", 4)
        self.poller.change(self.settings, DEFAULT_RULES, health.locatedFindings)
        self.pump(60.0)
        self.assertEqual([(key.kind, entry.awaySince) for key, entry in log.open.items()], [("width", None)])
        self.assertEqual(state.present, {})
        self.assertIsNone(log.settlesIn("sweep", self.clock.seconds()))
        ending.restore()
        self.poller.sweeps.cancel()
        self.poller.sweeps.runNow()
        self.pump(60.0)
        self.assertEqual(len(state.present), len(self.sweptFabric.nodes))
        self.assertEqual(self.output(), [("cleared", "width", "right")])

    def test_lossy(self) -> None:
        """A fabric that loses datagrams is polled without findings and without lasting gaps."""
        self.fabric.wire.loss = 0.02
        self.started(600.0)
        self.assertGreater(self.poller.statistics.turns, 50)
        self.assertEqual(self.output(), [])

    def test_overrun(self) -> None:
        """A round that takes longer than an interval is not started twice."""
        self.fabric.wire.latencySeconds = 0.4
        self.started(200.0)
        self.assertGreater(self.poller.statistics.overruns, 0)
        self.assertGreater(self.poller.statistics.turns, 0)

    def test_stop(self) -> None:
        """A stopped poller leaves no delayed calls, in any phase."""
        for seconds in (0.0, 0.05, 5.0, 10.01, 33.0):
            self.fabric.wire.latencySeconds = 0.01
            poller = self.made()
            poller.start()
            self.pump(seconds)
            stopped = poller.stop()
            self.pump(5.0)
            self.successResultOf(stopped)
            read = poller.statistics.readings
            self.pump(100.0)
            self.assertEqual(poller.statistics.readings, read)
        self.assertEqual(self.flushLoggedErrors(), [])


class OwnPortTests(PollerTestCase):
    """A local port that is not active: directed routes work, and nothing that is sent by LID."""

    def lose(self) -> None:
        """Let the local port wait for a subnet manager that does not sweep."""
        self.fabric._resweepSeconds = None
        self.fabric.cut("a")
        self.fabric.heal("a")

    def test_withoutLID(self) -> None:
        """If only the local node answers, no other node is silent."""
        self.started(65.0)
        self.fabric.silence("c")
        self.pump(300.0)
        self.assertIn(("raised", "node-silent", "c"), self.output())
        self.lose()
        self.pump(600.0)
        changes = self.output()
        self.assertNotIn("node-silent", {kind for _what, kind, _where in changes})
        self.assertIn(("raised", "counters-silent", "sim:node=a"), changes)
        self.fabric.sweep()
        self.pump(400.0)
        self.assertIn(("cleared", "counters-silent", "sim:node=a"), self.output())
        self.assertEqual(self.rate("left", 2), 0.0)
        self.fabric.silence("d")
        self.pump(60.0)
        self.assertIn(("raised", "node-silent", "d"), self.output())

    def test_localSilence(self) -> None:
        """Nodes are silent if another one answers, even if the local one does not."""
        self.started(65.0)
        self.answering(lambda port, _number, reply: reply if port.node.identifier == "left" else None)
        self.pump(100.0)
        raised = {(kind, where) for what, kind, where in self.output() if what == "raised"}
        self.assertEqual(raised, {("node-silent", name) for name in "abcd"} | {("node-silent", "right")})

    def test_managers(self) -> None:
        """No other subnet manager is silent while the master does not answer, either."""
        self.fabric.standBy("b")
        self.started(65.0)
        self.lose()
        self.pump(300.0)
        changes = self.output()
        self.assertIn(("raised", "sm-silent", "LID 5"), changes)
        self.assertNotIn(("raised", "sm-silent", "b"), changes)

    def test_otherManager(self) -> None:
        """If the local port still has a former subnet manager, others do not have a wrong one."""
        self.started(65.0)
        self.fabric._resweepSeconds = None
        self.fabric.cut("a")
        self.fabric.manage("b")
        self.fabric.heal("a")
        self.pump(300.0)
        self.assertNotIn("other-sm", {kind for _what, kind, _where in self.output()})


class GapTests(PollerTestCase):
    """Errors that are rarer than their limits, and a gap of hours without readings."""

    limits = DEFAULT_LIMITS
    mostBitErrors = 1e-12

    def setUp(self) -> None:
        super().setUp()
        self.fabric.growCounters("c", 1, symbolErrorCounter=72 / 3600)
        self.fabric.growCounters("right", 2, portXmitDiscards=360 / 600)
        self.started(1200.0)
        self.assertEqual(self.output(), [])

    def test_lostPort(self) -> None:
        """After the local port was away for hours, the errors of hours do not count as those of minutes."""
        self.isPulled = True
        self.agent.port.lose("pulled out")  # type: ignore[attr-defined]  # a simulated port
        self.pump(4 * 3600.0)
        self.fabric.setCounters("left", 2, linkDownedCounter=2)
        self.isPulled = False
        self.pump(1200.0)
        self.assertEqual({kind for _what, kind, _where in self.output()}, {"port-lost"})

    def test_stopped(self) -> None:
        """Nor do those of some minutes or hours in which this process was stopped."""
        for seconds in (500.0, 4 * 3600.0):
            self.clock.advance(seconds)
            self.pump(1200.0)
        self.assertLessEqual({kind for _what, kind, _where in self.output()}, {"loop-late"})


class OwnLinkTests(PollerTestCase):
    """The link of the local port goes down during a sweep."""

    at = "h00000"
    options = {"latencySeconds": 0.001}

    def net(self) -> Net:
        return fatTree(36)

    def interrupted(self) -> None:
        """Cut the local link when a sweep has found a part of the fabric."""
        self.poller.sweeps.runNow()
        self.pump(0.01)
        self.assertTrue(self.poller.sweeps.isRunning)
        self.fabric.cut(self.at)

    def test_interrupted(self) -> None:
        """A sweep during which the local link was down shortly is repeated: no node is missing."""
        self.started(60.0)
        nodes = self.sweptFabric.nodes.keys()
        self.interrupted()
        self.pump(3.0)
        self.fabric.heal(self.at)
        self.pump(100.0)
        self.assertEqual(self.output(), [])
        self.assertEqual(self.sweptFabric.nodes.keys(), nodes)
        self.assertEqual(list(self.poller.findings.journal.changes), [])

    def test_stays(self) -> None:
        """If the local link stays down, that is reported, and no node is missing."""
        self.started(60.0)
        nodes = self.sweptFabric.nodes.keys()
        self.interrupted()
        self.pump(400.0)
        self.assertEqual(self.output(), [("raised", "no-link", "h00000")])
        self.fabric.heal(self.at)
        self.pump(100.0)
        self.assertEqual(self.output(), [("cleared", "no-link", "h00000")])
        self.assertEqual(self.sweptFabric.nodes.keys(), nodes)
        self.assertNotIn("node-gone", {one.kind for one in self.poller.findings.journal.changes})

    def test_neighbour(self) -> None:
        """If each sweep ends without an answer of the neighbour, that is reported in place of its results."""
        self.started(60.0)
        self.fabric.silence("h00001")
        with patch.object(self.poller, "_isCutOff", lambda fabric: succeed(True)):
            self.poller.sweeps.runNow()
            self.pump(60.0)
        self.assertEqual(self.output(), [("raised", "unreachable", "h00000")])
        self.pump(400.0)
        output = self.output()
        self.assertIn(("cleared", "unreachable", "h00000"), output)
        self.assertIn(("raised", "node-silent", "h00001"), output)


class WithoutNoticesTests(PollerTestCase):
    """A poller without notices, which detects changes by polling."""

    settings = PollerSettings(wantsNotices=False)

    def test_cutBetweenSwitches(self) -> None:
        """A lost link is detected when its switch is polled."""
        self.started()
        self.fabric.cut("left", 3)
        self.pump(75.0)
        self.assertEqual(self.output(), [("raised", "link-gone", "left")])
        self.fabric.heal("left", 3)
        self.pump(120.0)
        self.assertEqual(self.output(), [("cleared", "link-gone", "left")])

    def test_unprocessed(self) -> None:
        """An exception in the processing of a node's port states affects only that node."""
        self.started(65.0)
        self.patch(self.poller, "_sweepSoon", lambda seconds: None)
        self.failingRefresh("left")
        self.fabric.cut("b")
        self.fabric.cut("c")
        self.pump(100.0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        expected = {("unprocessed", "a"), ("node-gone", "c"), ("node-silent", "b")}
        self.assertEqual({(kind, where) for _, kind, where in self.output()}, expected)
        self.assertEqual(self.poller.rounds.problem, "")

    def test_linkDowned(self) -> None:
        """A link that went down between two polls is detected by LinkDowned."""
        self.started()
        stateReads = self.poller.statistics.stateReads
        self.pump(10.0)
        usual = self.poller.statistics.stateReads - stateReads
        for name in ("left", "right"):
            self.fabric.setCounters(name, 3, linkDownedCounter=1)
        stateReads = self.poller.statistics.stateReads
        self.pump(10.0)
        self.assertEqual(self.poller.statistics.refreshes, 1)
        self.assertGreater(self.poller.statistics.stateReads - stateReads, usual)


class RandomFaultTests(PollerTestCase):
    """Half an hour of faults: the poller reports each once, and its memory does not grow."""

    at = "h00000"
    options = {"latencySeconds": 0.0001}
    hosts = 8
    faults = 4
    slowBecause = "Simulates half an hour of a fabric that is polled every ten seconds."

    def net(self) -> Net:
        return fatTree(self.hosts)

    def test_failingHosts(self) -> None:
        """Each fault of the simulation's record is raised and cleared once."""
        self.started()
        hosts = sorted(name for name, node in self.fabric.nodes.items() if not node.isSwitch)[1:-1]
        record: list[tuple[str, str, str]] = []
        sizes = []
        # A finding that returns soon is one finding, so each host fails once.
        seconds = cycle((63.7, 71.9, 128.1, 145.2, 199.3))
        for name in hosts:
            where = self.fabric.node(name).description
            self.fabric.cut(name)
            self.pump(next(seconds))
            record.append(("raised", "node-gone", where))
            self.fabric.heal(name)
            self.pump(next(seconds))
            record.append(("cleared", "node-gone", where))
            sizes.append(len(self.poller.meters) + len(self.poller._thresholds) + len(self.clock.calls))
        self.assertEqual(self.output(), record)
        self.assertEqual(self.poller.findings.log.open, {})
        self.pump(900.0)
        self.assertEqual(self.output(), [])
        self.assertLessEqual(max(sizes) - min(sizes), 10)
        self.assertEqual(self.poller.statistics.overruns, 0)

    def test_mixedFaults(self) -> None:
        """With hanging hosts, bad cables and packet loss, each fault is reported once, and no other."""
        self.fabric.wire.loss = 0.001
        self.started()
        hosts = sorted(name for name, node in self.fabric.nodes.items() if not node.isSwitch)[1:-1]
        record = set()
        for number, name in enumerate(hosts[: self.faults]):
            where = self.fabric.node(name).description
            if number % 2:
                self.fabric.silence(name)
                self.pump(400.0 + 97.3 * (number % 3))  # until the next whole sweep, as its link is up
                self.fabric.revive(name)
                record.add(("node-silent", where))
            else:
                self.fabric.growCounters(name, 1, symbolErrorCounter=0.5)
                self.pump(60.0 + 69.1 * (number % 3))
                self.fabric.growCounters(name, 1, symbolErrorCounter=0.0)
                record.add(("symbol-errors", where))
            self.pump(300.0 + 49.7 * number)
        self.pump(1500.0)
        raised = [(kind, where) for _now, what, kind, where in self.changes if what == "raised"]
        cleared = [(kind, where) for _now, what, kind, where in self.changes if what == "cleared"]
        # A hanging host also causes findings at its switch port.
        about = {(kind, where.partition(" (")[0]) for kind, where in raised if kind != "unreachable"}
        self.assertEqual(about, record)
        self.assertEqual(len(raised), len(set(raised)))
        self.assertEqual(sorted(raised), sorted(cleared))
        self.assertEqual(self.poller.findings.log.open, {})
