"""Limits of sweeps when an agent or an administration invents nodes."""

from __future__ import annotations

from inspect import signature
from typing import Any

from txrdma.error import WireError
from txrdma.fabric import sweepbounds
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.health import findings
from txrdma.fabric.lidsweep import LIDSweep
from txrdma.fabric.model import Fabric
from txrdma.fabric.neighbourhood import Neighbourhood
from txrdma.fabric.sasweep import SASweep
from txrdma.fabric.snapshots import dump, load
from txrdma.fabric.sweepbounds import LEFT_OUT, MOST_HOPS, MOST_NODES, MOST_PROBLEMS
from txrdma.iba.path import IBPath
from txrdma.mad.core.answers import MOST_RECORDS, Records
from txrdma.mad.layouts.sa import LinkRecord, NodeRecord
from txrdma.sim.nets.netfile import Net, parseNet
from txrdma.test.support.mad.administration import Administration
from txrdma.test.support.mad.mirages import Mirage
from txrdma.test.support.mad.simulated import FabricTestCase, links, names, route
from txrdma.test.unit.fabric.test_discovery import node

HONEST = ["a", "b", "c", "d", "left", "right"]


class BoundsTestCase(FabricTestCase):
    def swept(self, **options: Any) -> Fabric:
        self.work = Sweep(self.agent, **options)
        fabric: Fabric = self.answerTo(self.work.run(), 600)
        self.assertIn(" 0 outstanding", repr(self.agent))
        return fabric

    def leftOut(self, fabric: Fabric) -> list[tuple[str, str]]:
        return [(each.where, each.text) for each in fabric.problems if each.kind == LEFT_OUT]


class MirageTests(BoundsTestCase):
    def test_branch(self) -> None:
        self.fabric.cut("b", 1)
        honest = self.swept()
        self.fabric.heal("b", 1)
        Mirage(self.fabric, (1, 2), ports=20)
        fabric = self.swept(mostNodes=100)
        self.assertEqual(names(fabric), HONEST)
        [(where, text)] = self.leftOut(fabric)
        self.assertEqual(where, "DR 0,1,2")
        self.assertRegex(text, r"behind port 2 of left \(.*\): what is behind it is left out")
        self.assertEqual({node.guid for node in fabric.nodes.values()}, {*honest.nodes})
        self.assertEqual(links(fabric), links(honest))

    def test_otherNames(self) -> None:
        mirage = Mirage(self.fabric, (1, 2), ports=20, isFresh=True)
        for _ in range(2):
            self.assertEqual(names(self.swept(mostNodes=100)), HONEST)
        self.assertLess(mirage.asked, 10_000)

    def test_several(self) -> None:
        Mirage(self.fabric, (1, 2), (1, 3, 1), ports=20)
        fabric = self.swept(mostNodes=100)
        self.assertEqual({where for where, _text in self.leftOut(fabric)}, {"DR 0,1,2", "DR 0,1,3,1"})
        self.assertEqual(names(fabric), ["a", "b", "d", "left", "right"])

    def test_mostBranches(self) -> None:
        """Beyond some omitted branches, the sweep ends at the limit of its nodes."""
        self.patch(sweepbounds, "_MOST_CUTS", 1)
        Mirage(self.fabric, (1, 2), (1, 3, 1), ports=20)
        fabric = self.swept(mostNodes=100)
        self.assertEqual((len(self.work.bounds.cuts), len(fabric.nodes)), (1, 100))
        self.assertTrue(self.work.bounds.isFull)

    def test_everywhere(self) -> None:
        Mirage(self.fabric, (1,), ports=10)
        fabric = self.swept(mostNodes=50)
        self.assertEqual(len(fabric.nodes), 50)
        self.assertTrue(self.work.bounds.isFull)
        [(where, text)] = self.leftOut(fabric)
        self.assertIn("others are left out", text)
        [found] = [one for one in findings(fabric) if one.kind == LEFT_OUT]
        self.assertEqual((found.where, found.text), (where, text))

    def test_ports(self) -> None:
        self.patch(sweepbounds, "_MOST_PORTS", 4_000)
        self.patch(sweepbounds, "_PORTS_OF_NODE", 0)
        mirage = Mirage(self.fabric, (1, 2))
        fabric = self.swept()
        self.assertEqual(names(fabric), HONEST)
        self.assertLess(mirage.asked, 2_000)

    def test_neighbourhood(self) -> None:
        mirage = Mirage(self.fabric, (1, 2), ports=20, isFresh=True)
        search = Neighbourhood(self.agent, self.agent.port.endPort, MOST_HOPS, mostNodes=100)
        fabric: Fabric = self.answerTo(search.run(route(1)), 60)
        self.assertEqual(len(fabric.nodes), 100)
        [(_where, text)] = self.leftOut(fabric)
        self.assertIn("others are left out", text)
        self.assertLess(mirage.asked, 10_000)

    def test_neighbourhoodOfChain(self) -> None:
        Mirage(self.fabric, (1, 2), ports=2)
        search = Neighbourhood(self.agent, self.agent.port.endPort, MOST_HOPS + 10)
        fabric: Fabric = self.answerTo(search.run(route(1)), 600)
        longest = max(len(each.route.drPath) for each in fabric.nodes.values() if each.route is not None)
        self.assertEqual(longest, MOST_HOPS)

    def test_chain(self) -> None:
        Mirage(self.fabric, (1, 2), ports=2)
        fabric = self.swept()
        self.assertEqual(len(fabric.nodes), 68)
        [(_where, text)] = self.leftOut(fabric)
        self.assertEqual(text, "1 ports with links are 63 hops away: all behind them is left out")

    def test_hops(self) -> None:
        self.assertEqual(signature(Sweep).parameters["maxHops"].default, MOST_HOPS)
        self.assertEqual(self.leftOut(self.swept(maxHops=1)), [])
        [(_where, text)] = self.leftOut(self.swept(maxHops=1, isWhole=True))
        self.assertIn("1 hops away", text)


class LateAnswerTests(BoundsTestCase):
    """Leaves that two spines lead to, one of them by a longer way; hosts at the switch in the middle."""

    leaves, hosts, ours = range(1, 7), range(2, 6), range(5, 13)

    def net(self) -> Net:
        links = {
            'Switch 36 "middle"': ['[1] "a"[1]', '[2] "near"[36]', '[3] "between"[1]']
            + [f'[{port}] "o{port}"[1]' for port in self.ours],
            'Switch 36 "between"': ['[1] "middle"[3]', '[2] "far"[36]'],
            'Switch 36 "near"': [f'[{leaf}] "leaf{leaf}"[1]' for leaf in self.leaves],
            'Switch 36 "far"': [f'[{leaf}] "leaf{leaf}"[12]' for leaf in self.leaves],
        }
        for leaf in self.leaves:
            links[f'Switch 12 "leaf{leaf}"'] = [f'[{port}] "h{leaf}{port}"[1]' for port in self.hosts]
        hosts = ["a", *(f"o{port}" for port in self.ours)]
        hosts += [f"h{leaf}{port}" for leaf in self.leaves for port in self.hosts]
        parts = ["\n".join([node, *ports]) for node, ports in links.items()]
        return parseNet("\n\n".join([*parts, *(f'Hca 1 "{host}"' for host in hosts)]) + "\n")

    def test_late(self) -> None:
        """Late answers that an omitted branch leads to link nothing to it."""
        self.fabric.wire.latencySeconds = 0.001
        self.fabric.node("far").delaySeconds = 0.05
        fabric = self.swept(mostNodes=42)
        self.assertEqual({each.kind for each in fabric.problems}, {LEFT_OUT})
        for port in fabric.ports():
            if port.peer is not None:
                self.assertIs(fabric.nodes.get(port.peer.node.guid), port.peer.node)
        self.assertEqual(names(load(dump(fabric))), names(fabric))


class TwinTests(BoundsTestCase):
    def test_problems(self) -> None:
        sweep = Sweep(self.agent)
        for _ in range(MOST_PROBLEMS + 7):
            sweep._problem("contradiction", IBPath(), "x")
        fabric: Fabric = self.answerTo(sweep.run())
        self.assertEqual(len(fabric.problems), MOST_PROBLEMS + 1)
        self.assertEqual(self.leftOut(fabric)[0][1], "there are 7 problems more than are listed")


class TableTests(FabricTestCase):
    def test_nodes(self) -> None:
        self.assertEqual(signature(SASweep).parameters["mostNodes"].default, MOST_NODES)
        records = [node(2 * number, number) for number in range(1, 100)]
        fabric: Fabric = self.answerTo(SASweep(Administration(NodeRecord=records), mostNodes=30).run())
        self.assertEqual(len(fabric.nodes), 30)
        [problem] = [each for each in fabric.problems if each.kind == LEFT_OUT]
        self.assertIn("others are left out", problem.text)

    def test_byLID(self) -> None:
        fabric: Fabric = self.answerTo(LIDSweep(self.agent, self.agent.port.endPort, mostNodes=3).run(), 60)
        self.assertEqual(len(fabric.nodes), 3)
        self.assertEqual([each.kind for each in fabric.problems if each.kind == LEFT_OUT], [LEFT_OUT])

    def test_records(self) -> None:
        size = LinkRecord.size
        first = bytearray(256)
        with self.assertRaises(WireError) as caught:
            Records(LinkRecord, bytes(first), bytes((MOST_RECORDS + 1) * -(-size // 8) * 8))
        self.assertIn("more than", str(caught.exception))
        self.assertEqual(Records(NodeRecord, bytes(first), bytes(112)).count, 1)
