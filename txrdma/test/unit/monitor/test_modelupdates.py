"""Updates of the fabric's model by events: only changed parts are read again."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.managerwatch import ManagerWatch, RECENT_SECONDS, STILL_SECONDS
from txrdma.fabric.model import Fabric
from txrdma.fabric.refreshing import Refresh
from txrdma.iba.types import GID, GUID, LID
from txrdma.kit.rawfields import poke
from txrdma.mad.layouts.messages import Notice
from txrdma.mad.layouts.smp import NodeDescription, PortInfo, SMInfo
from txrdma.mad.layouts.traps import GIDDetails, LocalChangeDetails, Trap
from txrdma.mad.layouts.values import SMState
from txrdma.monitor.reading import changesigns
from txrdma.monitor.reading.changesigns import MOST_UNPLANNED, UNPLANNED_SECONDS
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.sim.fabric.model.nodes import SimulatedPort
from txrdma.sim.nets.netfile import Net, parseNet
from txrdma.test.support import slow
from txrdma.test.support.mad.simulated import FabricTestCase, gmp, names, TWO_SWITCHES
from txrdma.test.unit.monitor.test_poller import PollerTestCase


def changesAt(lid: int, **details: Any) -> Notice:
    """Return a notice about local changes at a LID."""
    raw = LocalChangeDetails(lid=LID(lid), **details).encode()
    return Notice(isGeneric=True, trapNumber=144, details=raw)


class EventTests(PollerTestCase):
    """Events in a fabric whose port states are polled rarely."""

    settings = PollerSettings(sweepSeconds=86400.0, stateSeconds=86400.0)

    def links(self) -> set[tuple[str, int, str, int]]:
        return {
            (one.node.description, one.number, other.node.description, other.number)
            for one, other in self.sweptFabric.links()
        }

    def noticed(self, lid: int, **details: Any) -> None:
        """Let the poller receive a report of local changes at a LID (trap 144)."""
        self.poller._noticeReceived(changesAt(lid, **details), None)  # type: ignore[arg-type]  # not looked at

    def test_link(self) -> None:
        """The loss of a host, or of one of two cables, and its return are noticed without a sweep."""
        self.started()
        links = self.links()
        for place, kind in ((("c", 1), "node-gone"), (("left", 3), "link-gone")):
            began = self.clock.seconds()
            self.fabric.cut(*place)
            self.pump(20.0)
            self.assertEqual(self.output(), [("raised", kind, place[0])])
            self.assertEqual(len(links - self.links()), 1)
            gone, *_ = (
                *self.poller.topologyWatch.missingNodes.values(),
                *self.poller.topologyWatch.missingLinks.values(),
            )
            self.assertIn("right", gone.beyond)
            self.assertLess(gone.since - began, 10.0)
            self.assertEqual(self.rate("c", 1), None if place[0] == "c" else 0.0)
            self.fabric.heal(*place)
            self.pump(20.0)
            self.assertEqual((self.output(), self.poller.topologyWatch.missingNodes), ([], {}))
            self.pump(40.0)
            self.assertEqual(self.output(), [("cleared", kind, place[0])])
            self.assertEqual((self.links(), self.poller.statistics.sweeps), (links, 1))
        self.assertEqual(self.rate("c", 1), 0.0)
        self.assertLess(self.poller.statistics.stateReads, 250)

    def test_part(self) -> None:
        """When a part with a switch is lost, all of it is reported at once, and a sweep confirms it."""
        self.started()
        self.fabric.cut("left", 3)
        self.fabric.cut("left", 4)
        self.fabric.cut("b", 2)
        self.pump(20.0)
        gone = sorted(where for what, kind, where in self.output() if (what, kind) == ("raised", "node-gone"))
        self.assertEqual(gone, ["c", "d", "right"])
        self.assertGreater(self.poller.statistics.sweeps, 1)
        self.fabric.heal("left", 3)
        self.pump(120.0)
        self.assertEqual(len(self.sweptFabric.nodes), 6)

    def test_name(self) -> None:
        """A node that reports a new name (trap 144) is renamed without a sweep."""
        self.started()
        self.fabric.node("c").description = "c-new"
        self.noticed(self.lid("c"), otherLocalChanges=True, nodeDescriptionChange=True)
        self.pump(5.0)
        self.assertIn("c-new", {node.description for node in self.sweptFabric.nodes.values()})
        self.assertEqual((self.poller.statistics.sweeps, self.output()), (1, []))

    def test_storm(self) -> None:
        """A notice from an unknown source causes a sweep; many, which any host can send, only a few."""
        self.started()
        self.noticed(999)
        self.pump(5.0)
        self.assertEqual(self.poller.statistics.sweeps, 2)
        for _ in range(600):
            self.noticed(999)
            self.pump(0.1)
        self.assertLessEqual(self.poller.statistics.sweeps, 1 + MOST_UNPLANNED)
        self.pump(MOST_UNPLANNED * UNPLANNED_SECONDS)
        self.assertLessEqual(self.poller.statistics.sweeps, 2 + MOST_UNPLANNED)

    def test_manyNewNodes(self) -> None:
        """Notices of more unknown nodes than are remembered cause a sweep."""
        self.patch(changesigns, "MOST_NEW", 10)
        self.started()
        for number in range(100):
            gid = GID.fromParts(0xFE80 << 48, GUID.fromInt(0x7000 + number))
            raw = GIDDetails(gid=gid).encode()
            notice = Notice(isGeneric=True, trapNumber=Trap.GID_IN_SERVICE, details=raw)
            self.poller._noticeReceived(notice, None)  # type: ignore[arg-type]  # not looked at
            self.assertLessEqual(len(self.poller._signs.newNodes), 10)
        self.pump(5.0)
        self.assertEqual((self.poller.statistics.sweeps, self.poller._signs.newNodes), (2, set()))

    def test_forged(self) -> None:
        """Reports from hosts other than the SA cause no sweep."""
        self.started()
        notice = changesAt(999)
        forger, sa = self.agentAt("c"), self.agentAt("d")
        for _ in range(20):
            forger.SubnAdmReport(notice, gmp(self.lid("a")))
            self.pump(1.0)
        self.assertEqual((self.poller.statistics.sweeps, self.poller.statistics.notices), (1, 0))
        sa.SubnAdmReport(notice, gmp(self.lid("a")))
        self.pump(5.0)
        self.assertEqual((self.poller.statistics.sweeps, self.poller.statistics.notices), (2, 1))

    def test_unplannedLater(self) -> None:
        """A change after a scheduled sweep that replaced an unscheduled one causes another sweep."""
        self.started()
        for _ in range(MOST_UNPLANNED):
            self.poller._sweepSoon(0.0)
            self.pump(1.0)
        self.poller._sweepSoon(0.0)
        sweeps = self.poller.statistics.sweeps
        self.poller.sweeps.runIn(0.0)
        self.pump(1.0)
        self.poller._sweepSoon(0.0)
        self.pump(2 * MOST_UNPLANNED * UNPLANNED_SECONDS)
        self.assertEqual(self.poller.statistics.sweeps, sweeps + 2)

    @slow("it polls a fabric for an hour")
    def test_lossy(self) -> None:
        """Changes are detected although datagrams are lost, if necessary by sweeps."""
        self.fabric.wire.loss = 0.05
        self.started(60.0)
        for _ in range(5):
            self.fabric.cut("c")
            self.pump(300.0)
            self.assertIn(self.fabric.node("c").guid, self.poller.topologyWatch.missingNodes)
            self.fabric.heal("c")
            self.pump(300.0)
            self.assertEqual(self.poller.topologyWatch.missingNodes, {})


class RefreshTests(FabricTestCase):
    """Refreshes during which a host is moved or replaced."""

    def refreshing(self, fabric: Fabric, *switches: str) -> Deferred[Refresh]:
        """Refresh switches thoroughly."""
        refresh = Refresh(self.agent, self.agent.port.endPort, fabric, 0.5, 0)

        async def run() -> Refresh:
            for name in switches:
                await refresh.refresh(fabric.nodes[self.fabric.node(name).guid], isThorough=True)
            await refresh.finish()
            return refresh

        return Deferred.fromCoroutine(run())

    def test_meanwhile(self) -> None:
        """A host that another refresh removes, before its new link is stored, is in the fabric again."""
        fabric = self.sweep()
        self.fabric.move("right", 1, "left", 7)
        self.fabric.cut("d")
        self.fabric.slow("c", 0.3)
        first = self.refreshing(fabric, "left")
        self.pump(0.45)  # c has answered once
        self.assertTrue(self.answerTo(self.refreshing(fabric, "right"), 0.05).isRelinked)
        self.assertEqual(names(fabric), ["a", "b", "left", "right"])
        self.assertEqual(self.answerTo(first).unclear, "")
        self.assertEqual(names(fabric), ["a", "b", "c", "left", "right"])
        c = fabric.nodes[self.fabric.node("c").guid]
        self.assertEqual([peer.description for peer in c.peers()], ["left"])

    def test_replaced(self) -> None:
        """If a new host at a known port does not answer further requests, a sweep is needed."""
        fabric = self.sweep()
        self.fabric.rename("c", GUID(b"replaced"))
        usual = self.fabric.sma.answer
        asked = NodeDescription.attributeID.to_bytes(2, "big")

        def answer(port: SimulatedPort, datagram: bytes) -> bytearray | None:
            isLost = datagram[16:18] == asked and port.node.identifier == "c"
            return None if isLost else usual(port, datagram)

        self.patch(self.fabric.sma, "answer", answer)
        refresh = self.answerTo(self.refreshing(fabric, "right"))
        self.assertIn("behind right", refresh.unclear)
        self.assertNotIn(GUID(b"replaced"), fabric.nodes)


class OtherPortTests(PollerTestCase):
    """A monitor whose adapter has a second port, nearer to a part of the fabric."""

    settings = PollerSettings(sweepSeconds=86400.0, stateSeconds=86400.0)

    def net(self) -> Net:
        return parseNet(TWO_SWITCHES.replace('[5] "b"[2]', '[5] "b"[2]\n[6] "a"[2]'))

    def test_routes(self) -> None:
        """Routes lead only through the port that sends: nodes return without a sweep."""
        self.started()
        for name in "cd":
            self.fabric.cut(name)
            self.pump(20.0)
            self.fabric.heal(name)
            self.pump(20.0)
            routes = [node.route for node in self.sweptFabric.nodes.values()]
            self.assertEqual({route.drPath[:1] for route in routes if route is not None}, {(), (1,)})
        self.assertEqual((len(self.sweptFabric.nodes), self.poller.statistics.sweeps), (6, 1))


class ManagerTests(PollerTestCase):
    def isSubscribed(self) -> bool:
        return self.poller._subscription is not None and self.poller._subscription.isStanding

    def test_handover(self) -> None:
        """A new master is reported, and the subscription is moved to it."""
        self.fabric.standBy("c")
        self.started()
        self.fabric.silence("d")
        self.pump(40.0)
        self.assertIn(("raised", "sm-changed", "subnet manager"), self.output())
        self.assertTrue(self.isSubscribed())
        self.pump(RECENT_SECONDS + 100.0)
        self.assertIn(("cleared", "sm-changed", "subnet manager"), self.output())

    def swap(self) -> None:
        """Give b and c each other's LIDs; c has counted errors long ago."""
        one, other = self.fabric.port("b", 1).end, self.fabric.port("c", 1).end
        one.lid, other.lid = other.lid, one.lid

    def symbols(self) -> list[int | None]:
        return [self.poller.meters[self.portKey(name, 1)].value("symbolErrorCounter") for name in "bc"]

    def test_otherLIDs(self) -> None:
        """When a restarted manager assigns other LIDs, no node is confused with another one."""
        self.fabric.setCounters("c", 1, symbolErrorCounter=60000)
        self.started(45.0)
        self.assertEqual((self.output(), self.symbols()), ([], [0, 60000]))
        self.swap()
        self.fabric.manage("d")
        self.pump(60.0)
        self.assertEqual((self.output(), self.symbols()), ([], [0, 60000]))
        self.assertTrue(self.isSubscribed())

    def test_otherLIDsWithoutNotice(self) -> None:
        """When LIDs change without a notice, a node with new errors is identified before it is reported."""
        self.fabric.setCounters("c", 1, symbolErrorCounter=60000)
        self.started()
        self.swap()
        self.fabric.sweep()
        self.pump(25.0)
        self.assertEqual((self.output(), self.symbols()), ([], [0, 60000]))
        self.pump(400.0)
        self.assertEqual((self.output(), self.symbols()), ([], [0, 60000]))

    def test_otherLIDsOfTraffic(self) -> None:
        """Decreased traffic counters may belong to another node: no growth is reported for either node."""
        self.fabric.setCounters("b", 1, portXmitPkts=7)
        self.fabric.setCounters("c", 1, portXmitPkts=1000)
        self.started()
        self.swap()
        self.fabric.sweep()
        self.pump(45.0)
        totals = [self.poller.meters[self.portKey(name, 1)].total("portXmitPkts") for name in "bc"]
        self.assertEqual((self.output(), totals), ([], [0, 0]))

    def test_movedLID(self) -> None:
        """A node that has moved to an unknown LID is found by its directed route, and not lost."""
        self.started()
        self.fabric.port("c", 1).end.lid = LID(77)
        self.fabric.sweep()
        self.pump(600.0)
        meter = self.poller.meters[self.portKey("c", 1)]
        self.assertEqual((self.output(), meter.isSilent), ([], False))
        self.assertLess(self.poller.statistics.silences, 3)

    def test_oneLIDForTwo(self) -> None:
        """Two nodes with one LID, which no sweep resolves, do not cause endless sweeps."""
        self.fabric.wire.latencySeconds = 0.4
        self.started(60.0)
        self.fabric.port("b", 1).end.lid = self.fabric.port("c", 1).end.lid
        self.fabric.growCounters("c", 1, symbolErrorCounter=1.0)
        begun, sweeps = self.clock.seconds(), self.poller.statistics.sweeps
        self.pump(1000.0)
        statistics = self.poller.statistics
        self.assertGreater(statistics.sweepSeconds, 1.0)
        most = (self.clock.seconds() - begun) / (3 * statistics.sweepSeconds)
        self.assertLess(statistics.sweeps - sweeps, most)
        self.assertIn("duplicate-lid", {kind for _what, kind, _where in self.output()})

    def test_errorsStay(self) -> None:
        """The error counts and the finding of a node remain when it gets another LID."""
        self.started()
        self.fabric.setCounters("c", 1, symbolErrorCounter=5000)
        self.pump(20.0)
        self.assertEqual(self.output(), [("raised", "symbol-errors", "c")])
        self.swap()
        self.fabric.manage("d")
        self.pump(200.0)
        self.assertEqual(self.output(), [])

    def test_otherStates(self) -> None:
        """Port states from a LID that formerly belonged to another node are not attributed to that node."""
        for port in (self.fabric.port("c", 1), self.fabric.port("right", 1)):
            poke(PortInfo, "linkWidthActive")(port.info, 1)
        self.started(70.0)
        self.assertEqual(self.output(), [("raised", "width", "c")])
        self.swap()
        self.fabric.sweep()
        self.pump(70.0)
        self.assertEqual(self.output(), [])

    def test_silentOnce(self) -> None:
        """A master that does not answer is one finding, although sweeps query it, too."""
        self.started()
        self.fabric.silence("d")
        self.pump(1000.0)
        self.assertGreater(self.poller.statistics.sweeps, 2)
        output = [(what, kind) for what, kind, _where in self.output()]
        self.assertEqual(output.count(("raised", "sm-silent")), 1)
        self.assertNotIn(("cleared", "sm-silent"), output)
        self.assertIn(("raised", "no-notices"), output)

    def test_two(self) -> None:
        """A second master is detected by the next sweep and by the confirming one."""
        self.started()
        other = self.fabric.standBy("c", priority=1)
        other.close()
        other.state = SMState.MASTER
        self.fabric.sma.managers[other.port] = other
        self.pump(700.0)
        self.assertIn("several-sms", {kind for _what, kind, _where in self.output()})


class ManagerWatchTests(SynchronousTestCase):
    """Answers of a master and missing answers."""

    info = SMInfo(guid=GUID(b"12345678"), actCount=7, smState=SMState.MASTER)

    def kinds(self, watch: ManagerWatch, now: float) -> list[str]:
        return [finding.kind for finding in watch.findings(now)]

    def test_still(self) -> None:
        """A manager whose activity count does not change is reported until it does."""
        watch = ManagerWatch()
        watch.answered(1, self.info, 0.0)
        watch.answered(1, self.info, STILL_SECONDS)
        self.assertEqual(self.kinds(watch, STILL_SECONDS), ["sm-still"])
        watch.answered(1, self.info.replace(actCount=8), STILL_SECONDS + 1.0)
        self.assertEqual(self.kinds(watch, STILL_SECONDS + 1.0), [])

    def test_states(self) -> None:
        """A missing manager, one that is not master, and one that does not answer twice are reported."""
        watch = ManagerWatch()
        self.assertEqual(self.kinds(watch, 0.0), [])
        watch.silent(0, "")
        self.assertEqual(self.kinds(watch, 0.0), ["no-sm"])
        watch.answered(1, self.info.replace(smState=SMState.STANDBY), 1.0)
        self.assertEqual(self.kinds(watch, 1.0), ["no-sm"])
        watch.answered(1, self.info, 2.0)
        watch.silent(1, "no answer")
        self.assertEqual(self.kinds(watch, 3.0), [])
        watch.silent(1, "no answer")
        self.assertEqual(self.kinds(watch, 4.0), ["sm-silent"])
        self.assertTrue(watch.answered(1, self.info.replace(guid=GUID(b"87654321")), 5.0))
        self.assertEqual(self.kinds(watch, 5.0), ["sm-changed"])
