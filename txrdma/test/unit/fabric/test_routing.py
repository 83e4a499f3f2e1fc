"""Routes by forwarding tables of a simulated fabric, read from nodes and from the administration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twisted.internet.defer import Deferred

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.fabric import routing
from txrdma.fabric.routing import DirectView, Hop, NO_PORT, NoRoute, SAView, SurveyView
from txrdma.fabric.tables import TableSurvey
from txrdma.iba.path import IBPath
from txrdma.iba.types import LID
from txrdma.mad.layouts.smp import LinearForwardingTable, MulticastForwardingTable, SwitchInfo
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.test.support.mad.simulated import FabricTestCase, route


def output(hops: list[Hop]) -> list[tuple[str, int, int]]:
    return [(hop.stop.description, hop.stop.entry, hop.exit) for hop in hops]


class RouteTestCase(FabricTestCase):
    def ran(self, coroutine: Any) -> Any:
        return self.answerTo(Deferred.fromCoroutine(coroutine), 1)

    def failed(self, coroutine: Any, kind: type[Exception] = NoRoute) -> Any:
        return self.refused(Deferred.fromCoroutine(coroutine), kind, 1)

    def set(self, name: str, lid: int, port: int) -> None:
        """Set the port of a LID in a switch's table."""
        path = IBPath(dlid=self.lid(name))
        block = self.answerTo(self.agent.SubnGet(LinearForwardingTable, path, lid // 64), 1)
        entries = bytearray(block.ports)
        entries[lid % 64] = port
        self.answerTo(self.agent.SubnSet(LinearForwardingTable(ports=bytes(entries)), path, lid // 64), 1)


class DirectTests(RouteTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.view = DirectView(self.agent)

    def test_others(self) -> None:
        hops = self.ran(routing.trace(self.view, self.lid("d"), self.lid("c")))
        self.assertEqual(output(hops), [("c", 1, 1), ("right", 1, 2), ("d", 1, 0)])
        hops = self.ran(routing.trace(self.view, self.lid("a"), self.lid("right")))
        self.assertEqual([name for name, _, _ in output(hops)], ["right", "left", "a"])
        self.assertEqual(output(hops)[0][1], 0 if hops[0].stop.route == route() else hops[0].stop.entry)
        hops = self.ran(routing.trace(self.view, self.lid("right"), self.lid("b", 2)))
        self.assertEqual(output(hops), [("b", 2, 2), ("right", 5, 0)])

    def test_everybody(self) -> None:
        self.fabric = SimulatedFabric(self.clock, fatTree(720))
        agent = self.agentAt("h00000")
        view = DirectView(agent)
        lengths = []
        for name in ("h00000", "h00001", "h00040", "h00700"):
            hops = self.ran(routing.trace(view, self.lid(name)))
            self.assertEqual(hops[-1].stop.description, name)
            lengths.append(len(hops))
        self.assertEqual(lengths, [1, 3, 5, 7])

    def test_dropped(self) -> None:
        self.set("right", self.lid("c"), NO_PORT)
        error = self.failed(routing.trace(self.view, self.lid("c")))
        self.assertIn("right", str(error))
        self.assertEqual([name for name, _, _ in output(error.hops)], ["a", "left", "right"])
        self.failed(routing.trace(self.view, 0x9999))

    def test_circle(self) -> None:
        for name in ("left", "right"):
            self.set(name, self.lid("c"), 3)
        error = self.failed(routing.trace(self.view, self.lid("c")))
        self.assertIn("loops", str(error))

    def test_wrongHost(self) -> None:
        self.set("right", self.lid("c"), 2)
        self.assertIn("not a switch", str(self.failed(routing.trace(self.view, self.lid("c")))))

    def test_cut(self) -> None:
        self.set("left", self.lid("c"), 8)
        self.assertIn("has no link", str(self.failed(routing.trace(self.view, self.lid("c")))))

    def test_linearTable(self) -> None:
        table = self.ran(routing.linearTable(self.agent, route(1)))
        info = self.answerTo(self.agent.SubnGet(SwitchInfo, route(1)))
        self.assertEqual(len(table), info.linearFDBTop + 1)
        self.assertEqual((table[self.lid("a")], table[self.lid("left")]), (1, 0))

    def group(self, name: str, mlid: int, *exits: int) -> None:
        """Set the ports of a multicast group in a switch's table."""
        block, offset = divmod(mlid - 0xC000, 32)
        masks = [0] * 32
        masks[offset] = sum(1 << port for port in exits)
        content = MulticastForwardingTable(portMasks=tuple(masks))
        self.answerTo(self.agent.SubnSet(content, IBPath(dlid=self.lid(name)), block), 1)

    def test_multicast(self) -> None:
        self.group("left", 0xC003, 1, 2, 3)
        self.group("right", 0xC003, 3, 1)
        hops = self.ran(routing.traceMulticast(self.view, 0xC003))
        self.assertEqual(
            [(name, exit, hop.depth) for (name, _, exit), hop in zip(output(hops), hops, strict=True)],
            [("a", 1, 0), ("left", 2, 1), ("left", 3, 1), ("b", 0, 2), ("right", 1, 2), ("c", 0, 3)],
        )
        self.assertEqual([hop.parent for hop in hops], [-1, 0, 0, 1, 2, 4])
        table = self.ran(routing.multicastTable(self.agent, route(1), 8))
        self.assertEqual(table, {0xC003: [1, 2, 3]})

    def test_multicastCircle(self) -> None:
        self.group("left", 0xC000, 1, 3, 4)
        self.group("right", 0xC000, 3, 4)
        self.assertIn("twice", str(self.failed(routing.traceMulticast(self.view, 0xC000))))
        self.failed(routing.traceMulticast(self.view, 7), InvalidRequest)

    def test_ports(self) -> None:
        self.assertEqual(routing.ports(0b1000_0000_0000_0011, 1), [16, 17, 31])
        self.assertEqual([routing.positions(number) for number in (8, 15, 16, 36)], [1, 1, 2, 3])


class AdministeredTests(RouteTestCase):
    def test_same(self) -> None:
        direct, view = DirectView(self.agent), SAView(self.agent, self.agent.port.endPort)
        for source, target in (("a", "c"), ("c", "d"), ("right", "a"), ("a", "a")):
            lids = self.lid(target), self.lid(source)
            fromView, fromFabric = (
                self.ran(routing.trace(view, *lids)),
                self.ran(routing.trace(direct, *lids)),
            )
            self.assertEqual(output(fromView)[1:], output(fromFabric)[1:])
            guids = [[hop.stop.info.nodeGUID for hop in hops] for hops in (fromView, fromFabric)]
            self.assertEqual(*guids)

    def test_nobody(self) -> None:
        port = self.agent.port
        self.patch(port, "endPort", replace(port.endPort, smLID=LID(0)))
        way = routing.trace(SAView(self.agent, port.endPort), self.lid("c"), self.lid("a"))
        self.refused(Deferred.fromCoroutine(way), DeviceUnavailable, 0.0)


class SurveyTests(RouteTestCase):
    """Paths in a swept fabric by tables that were read before."""

    def view(self) -> SurveyView:
        swept = self.sweep()
        self.tables = self.answerTo(TableSurvey(self.agent, self.agent.port.endPort, swept).run())
        return SurveyView(swept, self.tables.linear, self.tables.adaptive)

    def test_same(self) -> None:
        """Paths are those of the fabric, without a query, and with the choices of adaptive routing."""
        self.fabric.routeAdaptively("left", {self.lid("c"): (3, 4)})
        view, direct = self.view(), DirectView(self.agent)
        ends = [self.lid(name) for name in ("a", "b", "c", "d", "left", "right")] + [self.lid("b", 2)]
        for source in ends:
            for target in ends:
                sent = self.agent.sent
                hops = self.successResultOf(Deferred.fromCoroutine(routing.trace(view, target, source)))
                self.assertEqual(self.agent.sent, sent)
                expected = self.ran(routing.trace(direct, target, source))
                self.assertEqual(output(hops)[1:], output(expected)[1:])
                for one, other in zip(hops, expected, strict=True):
                    self.assertEqual(replace(one, stop=other.stop), other)
                    self.assertEqual((one.stop.lid, one.stop.lmc), (other.stop.lid, other.stop.lmc))

    def test_unknown(self) -> None:
        """A path ends where the table was not read, or the link is gone; a LID may have no port."""
        view = self.view()
        table = self.tables.linear.pop(self.fabric.node("right").guid)
        error = self.failed(routing.trace(view, self.lid("c"), self.lid("a")))
        self.assertIn("was not read", str(error))
        self.assertEqual([name for name, _, _ in output(error.hops)], ["a", "left", "right"])
        self.failed(routing.trace(view, self.lid("c"), 0x999), InvalidRequest)
        self.tables.linear[self.fabric.node("right").guid] = table[: self.lid("c")]
        self.assertIn("no port for", str(self.failed(routing.trace(view, self.lid("c"), self.lid("a")))))
