"""Blast radius: hosts, paths, bandwidth and jobs that are lost without cables or switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from random import Random
from typing import Any, TypeVar

from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.blastradius import BlastRadius, Element, Jobs, Loss, Rank
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.routing import NO_PORT
from txrdma.fabric.tables import TableSurvey
from txrdma.iba.verbs import NodeType
from txrdma.kit.graphs import distances
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net
from txrdma.test.support.mad.simulated import FabricTestCase

T = TypeVar("T")


def completed(steps: Generator[Any, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def named(nodes: Iterable[Node]) -> list[str]:
    return [node.description for node in nodes]


class RadiusTestCase(FabricTestCase):
    """A swept fabric with its forwarding tables."""

    swept: Fabric
    linear: dict[Any, bytes]
    paths: dict[tuple[Port, Port], list[Port]]

    def survey(self) -> BlastRadius:
        self.swept, self.paths = self.sweep(), {}
        tables = self.answerTo(TableSurvey(self.agent, self.agent.port.endPort, self.swept).run())
        self.linear = dict(tables.linear)
        return self.radius()

    def radius(self) -> BlastRadius:
        radius = BlastRadius(self.swept, self.linear)
        completed(radius.steps())
        return radius

    def node(self, name: str) -> Node:
        return next(node for node in self.swept.nodes.values() if node.description == name)

    def port(self, name: str, number: int) -> Port:
        return self.node(name).port(number)

    def loss(self, radius: BlastRadius, *elements: Element, jobs: Jobs = ()) -> Loss:
        return completed(radius.without(elements, jobs))

    def ends(self) -> list[Port]:
        return [port for port in self.swept.endPorts() if not port.node.isSwitch and port.peer is not None]

    def path(self, source: Port, target: Port) -> list[Port]:
        """Return the ports by which a packet leaves nodes, by the tables."""
        known = self.paths.get((source, target))
        if known is None:
            known = self.paths[source, target] = self.follow(source, target)
        return known

    def follow(self, source: Port, target: Port) -> list[Port]:
        path = [source]
        node = source.peer.node if source.peer is not None else source.node
        while node.isSwitch:
            table = self.linear.get(node.guid, b"")
            out = table[target.lid] if target.lid < len(table) else NO_PORT
            if out in (0, NO_PORT) or node.port(out) in path:
                break
            path.append(node.port(out))
            peer = path[-1].peer
            assert peer is not None
            node = peer.node
        return path

    def expected(
        self, *elements: Element, jobs: Jobs = ()
    ) -> tuple[int, set[str], dict[str, int], list[int]]:
        """Return lost paths, hosts that are cut off, and lost paths of hosts and jobs, by following all."""
        cut: set[Port] = set()
        for element in elements:
            ports = element.linked() if isinstance(element, Node) else [element]
            cut |= {end for port in ports for end in (port, port.peer) if end is not None}
        paths, hosts = 0, Counter[str]()
        ofJobs = [0] * len(jobs)
        members = [{node for host in job for node in host} for job in jobs]
        for source in self.ends():
            for target in self.ends():
                if source.node is not target.node and not cut.isdisjoint(self.path(source, target)):
                    paths += 1
                    hosts.update((source.node.description, target.node.description))
                    for number, nodes in enumerate(members):
                        ofJobs[number] += {source.node, target.node} <= nodes
        return paths, self.unreached(cut, elements), dict(hosts), ofJobs

    def unreached(self, cut: set[Port], elements: Iterable[Element]) -> set[str]:
        """Return the hosts without a link to the part with the most hosts; hosts forward nothing."""

        def beside(node: Node) -> Iterator[Node]:
            return (
                port.peer.node
                for port in node.linked()
                if node.isSwitch
                and port not in cut
                and port.peer is not None
                and port.peer.node not in elements
            )

        left = [node for node in self.swept.switches() if node not in elements]
        hosts = [
            {each.description for each in distances([node], beside) if not each.isSwitch} for node in left
        ]
        return {node.description for node in self.swept.nodes.values() if not node.isSwitch} - max(
            hosts, key=len, default=set()
        )


class TwoSwitchTests(RadiusTestCase):
    """Two switches with two cables; b has a port at both."""

    def setUp(self) -> None:
        super().setUp()
        self.whole = self.survey()

    def test_hostCable(self) -> None:
        """The only cable of a host cuts it off; one of two leaves half of the bandwidth."""
        loss = self.loss(self.whole, self.port("c", 1))
        self.assertEqual((named(loss.cutOff), named(loss.slower)), (["c"], []))
        self.assertEqual({host.description: paths for host, paths in loss.byHost}["c"], loss.paths)
        loss = self.loss(self.whole, self.port("left", 2))
        self.assertEqual((loss.cutOff, named(loss.slower), loss.reduced[0].share), ([], ["b"], 0.5))

    def test_together(self) -> None:
        """Several elements are removed together: two redundant cables are a cut."""
        cables = self.port("left", 3), self.port("right", 4)
        one, both = self.loss(self.whole, cables[0]), self.loss(self.whole, *cables)
        self.assertEqual(one.cutOff, [])
        self.assertEqual([each.share for each in one.reduced], [0.5, 0.5])
        self.assertEqual(named(both.cutOff), ["a"])  # b has ports at both, and forwards nothing
        b = self.node("b")
        self.assertEqual(sorted(named(self.loss(self.whole, *cables, b).cutOff)), ["a", "b"])

    def test_paths(self) -> None:
        """The numbers of lost paths are those of following each path."""
        elements: list[Element] = [*self.swept.nodes.values()]
        elements += [one for one, _other in self.swept.links()]
        for element in elements:
            loss = self.loss(self.whole, element)
            paths, off, hosts, _jobs = self.expected(element)
            self.assertEqual(loss.paths, paths, element)
            self.assertEqual({host.description: count for host, count in loss.byHost}, hosts, element)
        self.assertEqual(self.whole.total, len(self.ends()) * (len(self.ends()) - 1) - 2)

    def test_circle(self) -> None:
        """Tables with a loop end the computation, too."""
        for name in ("left", "right"):
            table = bytearray(self.linear[self.node(name).guid])
            table[self.port("c", 1).lid] = 3
            self.linear[self.node(name).guid] = bytes(table)
        radius = self.radius()
        self.assertGreater(self.loss(radius, self.port("left", 3)).paths, 0)
        self.assertTrue(completed(radius.ranking()))

    def test_noLink(self) -> None:
        """A port without a link has no cable."""
        self.assertTrue(self.whole.has(self.port("left", 3)))
        self.assertFalse(self.whole.has(self.port("left", 8)))


class FatTreeTests(RadiusTestCase):
    """Losses in a fat tree, one element at a time, in comparison with following each path."""

    hosts, radix = 32, 8

    def net(self) -> Net:
        return fatTree(self.hosts, self.radix)

    def setUp(self) -> None:
        super().setUp()
        self.whole = self.survey()

    def agentAt(self, name: str, number: int | None = None) -> Any:
        return super().agentAt("h00000" if name == "a" else name, number)

    def elements(self) -> list[Element]:
        found: list[Element] = [node for node in self.swept.nodes.values() if node.isSwitch]
        return found + [one for one, _other in self.swept.links()]

    def jobs(self) -> Jobs:
        random, hosts = Random(1), [node for node in self.swept.nodes.values() if not node.isSwitch]
        return [[[host] for host in random.sample(hosts, count)] for count in (1, 2, 4, 16)]

    def test_each(self) -> None:
        """Each element by itself is the same in the ranking, as a single loss, and by following each path."""
        jobs = self.jobs()
        ranks = completed(self.whole.ranking(jobs))
        self.assertEqual(len(ranks), len(self.elements()))
        for rank in ranks:
            self.check(rank, jobs)
        self.assertEqual(ranks, sorted(ranks, key=lambda one: one.key))
        first = ranks[0].element
        self.assertTrue(isinstance(first, Node) and first.description.startswith("leaf"))

    def check(self, rank: Rank, jobs: Jobs) -> None:
        element = rank.element
        loss = self.loss(self.whole, element, jobs=jobs)
        paths, off, hosts, ofJobs = self.expected(element, jobs=jobs)
        self.assertEqual((loss.paths, rank.paths), (paths, paths), element)
        self.assertEqual((set(named(loss.cutOff)), rank.cutOff), (off, len(off)), element)
        self.assertEqual({host.description: count for host, count in loss.byHost}, hosts)
        self.assertEqual([sum(one.paths for one in loss.jobs if one.job == job) for job in range(4)], ofJobs)
        self.assertEqual(rank.jobsWithPaths, sum(map(bool, ofJobs)))
        self.assertEqual(rank.jobsCutOff, sum(bool(one.cutOff) for one in loss.jobs))
        self.assertAlmostEqual(rank.share, min((one.share for one in loss.reduced), default=1.0))
        self.assertEqual(rank.slower, len(loss.slower))

    def test_uplink(self) -> None:
        """An uplink is a share of the bandwidth of the hosts at its leaf."""
        leaf = self.node("leaf0000")
        (port, *_more) = (port for port in leaf.linked() if port.peer is not None and port.peer.node.isSwitch)
        loss = self.loss(self.whole, port)
        self.assertEqual(loss.cutOff, [])
        (reduced, *_upper) = loss.reduced
        self.assertEqual((named(reduced.nodes), len(reduced.hosts)), (["leaf0000"], self.radix // 2))
        self.assertAlmostEqual(reduced.share, 1 - 1 / (self.radix // 2))


class ThreeLevelTests(FatTreeTests):
    """The same with three levels of switches."""

    slowBecause = "each cable and switch of a larger fabric is removed"

    hosts, radix = 40, 6

    def test_core(self) -> None:
        """Without a link to a core switch, all hosts of the pod share fewer links."""
        core = self.node("core0000")
        loss = self.loss(self.whole, core.linked()[0])
        self.assertEqual((loss.cutOff, len(loss.reduced)), ([], 1))
        self.assertEqual(len(loss.reduced[0].nodes), self.radix // 2)
        self.assertGreater(len(loss.reduced[0].hosts), self.radix // 2)


class ChainTests(RadiusTestCase):
    """Four switches in a row, of which two have two cables: a fabric with single points of failure."""

    def net(self) -> Net:
        net = Net()
        for number, hosts in enumerate((6, 2, 1, 1)):
            net.add(NodeType.SWITCH, 12, f"s{number}")
            for host in range(hosts):
                name = "a" if number == host == 0 else f"h{number}{host}"
                net.add(NodeType.CHANNEL_ADAPTER, 2, name)
                net.link(name, 1, f"s{number}", host + 1)
        for one, other in ((0, 1), (1, 2), (2, 3)):
            net.link(f"s{one}", 10, f"s{other}", 11)
        net.link("s1", 9, "s2", 9)
        net.link("h20", 2, "s3", 9)  # a host with two switches
        return net

    def test_singlePoints(self) -> None:
        """Switches and cables that separate parts of the fabric cut off the hosts of the smaller one."""
        whole = self.survey()
        ranks = completed(whole.ranking([[[self.node("h10")], [self.node("h30")]]]))
        self.assertEqual(len(ranks), 4 + 11 + 4)
        for rank in ranks:
            element = rank.element
            ports = element.linked() if isinstance(element, Node) else [element]
            cut = {end for port in ports for end in (port, port.peer) if end is not None}
            expected = self.unreached(cut, [element])
            self.assertEqual(set(named(self.loss(whole, element).cutOff)), expected, element)
            self.assertEqual(rank.cutOff, len(expected), element)
            self.assertEqual(rank.jobsCutOff, not expected.isdisjoint({"h10", "h30"}), element)
        self.assertEqual([str(rank.element).partition(" ")[0] for rank in ranks[:3]], ["s0", "s1", "s0"])


class LMCTests(RadiusTestCase):
    """Hosts with several LIDs, of which the base LIDs count."""

    options = {"lmc": 2}

    def test_paths(self) -> None:
        self.whole = self.survey()
        for port, _peer in self.swept.links():
            self.assertEqual(self.loss(self.whole, port).paths, self.expected(port)[0], port)


class SingleSwitchTests(RadiusTestCase):
    """A fabric of one switch."""

    def net(self) -> Net:
        return fatTree(3)

    def agentAt(self, name: str, number: int | None = None) -> Any:
        return super().agentAt("h00000" if name == "a" else name, number)

    def test_all(self) -> None:
        """Without the only switch, no host reaches another one."""
        radius = self.survey()
        self.assertEqual(len(self.loss(radius, self.node("leaf0000")).cutOff), 3)
        first = completed(radius.ranking())[0]
        self.assertEqual((first.element, first.cutOff), (self.node("leaf0000"), 3))


class EmptyTests(SynchronousTestCase):
    def test_empty(self) -> None:
        """An empty fabric has no ranking."""
        radius = BlastRadius(Fabric(), {})
        completed(radius.steps())
        self.assertEqual(completed(radius.ranking()), [])
