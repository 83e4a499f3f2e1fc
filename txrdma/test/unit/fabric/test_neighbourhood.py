"""Sweeps of a node and its neighbours, and the number of requests they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater

from txrdma.fabric.discovery import Sweep
from txrdma.fabric.model import Fabric, Node
from txrdma.fabric.neighbourhood import around, Neighbourhood
from txrdma.iba.path import IBDRPath, IBPath, MADEndPort
from txrdma.iba.types import LID
from txrdma.mad.agent import MADAgent
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs
from txrdma.mad.satransactor import SATransactor
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.netfile import Net, parseNet
from txrdma.test.support import slow
from txrdma.test.support.mad.simulated import FabricTestCase, links, names, route

RING = """
Switch 8 "one"
[1] "a"[1]
[2] "two"[1]
[3] "four"[2]

Switch 8 "two"
[2] "three"[1]

Switch 8 "three"
[2] "four"[1]
[3] "far"[1]

Switch 8 "four"
[3] "near"[1]

Hca 1 "a"
Hca 1 "far"
Hca 1 "near"
"""


def answerTo(node: Node) -> dict[int, bytes]:
    return {port.number: port.raw[:28] + port.raw[29:] for port in node.ports.values()}


class NeighbourhoodCase(FabricTestCase):
    @property
    def endPort(self) -> MADEndPort:
        end: MADEndPort = self.agent.port.endPort
        return end

    def to(self, name: str) -> IBPath:
        return toLID(self.endPort, self.lid(name))

    def found(self, start: IBPath, hops: int = 0, **options: Any) -> Fabric:
        return self.search(start, hops, **options).fabric

    def search(self, start: IBPath, hops: int = 0, **options: Any) -> Neighbourhood:
        search = Neighbourhood(self.agent, self.endPort, hops, **options)
        self.assertIs(self.answerTo(search.run(start), 300), search.fabric)
        return search


class NeighbourhoodTests(NeighbourhoodCase):
    def test_everything(self) -> None:
        whole = self.sweep()
        for start in (IBDRPath(), route(1), route(1, 3), self.to("left"), self.to("c")):
            for options in ({}, {"byLIDs": True}):
                fabric = self.found(start, 5, **options)
                self.assertEqual(fabric.problems, [], (start, options))
                self.assertEqual((names(fabric), links(fabric)), (names(whole), links(whole)))
                for guid, node in fabric.nodes.items():
                    other = whole.nodes[guid]
                    self.assertEqual(answerTo(node), answerTo(other))
                    self.assertEqual(node.lid, other.lid)
                    self.assertEqual(node.switchInfo, other.switchInfo)

    def test_host(self) -> None:
        for start in (route(1, 3, 1), self.to("c")):
            search = self.search(start)
            first = search.first
            assert first is not None
            self.assertEqual((first.description, names(search.fabric)), ("c", ["c", "right"]))
            port = first.ports[1]
            peer = port.peer
            assert peer is not None
            self.assertEqual((peer.node.description, peer.number), ("right", 1))
            self.assertEqual(peer.lid, self.lid("right"))
            self.assertEqual([each.number for each in peer.node.ports.values()], [0, 1])
            self.assertEqual(search.fabric.problems, [])

    def test_withoutLinks(self) -> None:
        for name, questions in (("right", 4), ("c", 3)):
            before = self.fabric.wire.datagrams
            fabric = self.found(self.to(name), withLinks=False)
            self.assertEqual((names(fabric), fabric.problems), ([name], []))
            self.assertEqual(self.fabric.wire.datagrams - before, questions)
            [node] = fabric.nodes.values()
            self.assertEqual(node.lid, self.lid(name))
            self.assertEqual(node.switchInfo is not None, node.isSwitch)

    def test_administered(self) -> None:
        search = Neighbourhood(SATransactor(self.agent, self.endPort), self.endPort, 1, byLIDs=True)
        fabric = self.answerTo(search.run(route(1, 3)))
        self.assertEqual((names(fabric), fabric.problems), (["a", "b", "c", "d", "left", "right"], []))
        self.assertEqual(links(fabric), links(self.found(self.to("right"), 1)))

    def test_dead(self) -> None:
        self.fabric.silence("c")
        fabric = self.found(self.to("right"))
        self.assertEqual(names(fabric), ["b", "d", "left", "right"])
        [problem] = fabric.problems
        self.assertEqual(problem.kind, "unreachable")
        search = self.search(self.to("c"))
        self.assertEqual((search.first, len(search.fabric.problems)), (None, 1))

    def test_twin(self) -> None:
        self.fabric.duplicate("c", "d")
        self.assertIn("duplicate-guid", {problem.kind for problem in self.found(self.to("right")).problems})

    def test_progress(self) -> None:
        seen: list[tuple[int, int]] = []
        search = Neighbourhood(self.agent, self.endPort, 1)
        search.progress = lambda done, known: seen.append((done, known))
        self.answerTo(search.run(route(1)))
        self.assertEqual([done for done, _ in seen], list(range(1, len(seen) + 1)))
        self.assertEqual(seen[-1][0], seen[-1][1])

    def test_cancelled(self) -> None:
        done = Neighbourhood(self.agent, self.endPort, 1).run(route(1))
        done.cancel()
        self.failureResultOf(done, CancelledError)
        before = self.fabric.wire.datagrams
        self.pump()
        self.assertEqual(self.fabric.wire.datagrams, before)


class UnmanagedTests(NeighbourhoodCase):
    def endPortWithout(self) -> MADEndPort:
        return replace(self.endPort, smLID=LID(0))

    def test_host(self) -> None:
        search = Neighbourhood(self.agent, self.endPortWithout())
        fabric = self.answerTo(search.run(self.to("c")))
        self.assertEqual(names(fabric), ["c"])
        self.assertEqual([problem.kind for problem in fabric.problems], ["incomplete"])
        fabric = self.answerTo(Neighbourhood(self.agent, self.endPortWithout()).run(route(1, 3, 1)))
        self.assertEqual((names(fabric), fabric.problems), (["c", "right"], []))


class LateAgent(RPCs):
    """
    An agent whose answers arrive with different delays.

    @ivar late: delay of the answer by path, in seconds.
    """

    def __init__(self, agent: MADAgent, clock: SimulatedClock, late: Callable[[IBPath], float]) -> None:
        self.agent = agent
        self.clock = clock
        self.late = late

    def call(self, rpc: str, payload: Any, path: Any = None, *more: Any, **options: Any) -> Deferred[Any]:
        return deferLater(self.clock, self.late(path), self.agent.call, rpc, payload, path, *more, **options)


class RingTests(NeighbourhoodCase):
    def net(self) -> Net:
        return parseNet(RING)

    def setUp(self) -> None:
        super().setUp()
        self.late = LateAgent(self.agent, self.clock, lambda path: float(path == route(1, 3)))

    def test_late(self) -> None:
        search = Neighbourhood(self.late, self.endPort, 1)
        fabric = self.answerTo(search.run(route(1)), 300)
        assert search.first is not None
        near = sorted(node.description for node in around(search.first, 1))
        self.assertEqual(near, ["a", "four", "one", "two"])
        self.assertEqual(names(fabric), ["a", "four", "near", "one", "three", "two"])
        self.assertEqual(len(fabric.nodes[self.fabric.node("four").guid].ports), 9)
        self.assertEqual(sorted(fabric.nodes[self.fabric.node("three").guid].ports), [0, 1, 2])

    def test_sweep(self) -> None:
        for hops, expected in (
            (2, ["a", "four", "near", "one", "three", "two"]),
            (3, ["a", "far", "four", "near", "one", "three", "two"]),
        ):
            for most in (1, 16):
                sweep = Sweep(self.late, most, maxHops=1 + hops)
                fabric = self.answerTo(sweep.run(route(1)), 300)
                self.assertEqual((names(fabric), fabric.problems), (expected, []))


class RandomTests(NeighbourhoodCase):
    seeds = 3

    def net(self) -> Net:
        return parseNet(RING)

    @slow("it sweeps many random fabrics")
    def test_distances(self) -> None:
        for seed in range(self.seeds):
            self.fabric = SimulatedFabric(self.clock, parseNet(scrambled(seed)))
            self.agent = self.agentAt("a")
            generator = Random(seed)
            late = LateAgent(self.agent, self.clock, lambda path, of=generator: of.random())  # type: ignore[misc]  # of this turn
            whole = self.sweep(300)
            first = next(iter(whole.nodes.values()))
            for hops in range(7):
                expected = sorted(node.description for node in around(first, hops))
                swept = self.answerTo(Sweep(late, maxHops=hops).run(), 300)
                self.assertEqual((names(swept), swept.problems), (expected, []), (seed, hops))
                search = Neighbourhood(late, self.endPort, hops, withLinks=False)
                found = self.answerTo(search.run(IBDRPath()), 300)
                self.assertEqual((names(found), found.problems), (expected, []), (seed, hops))


def scrambled(seed: int) -> str:
    """Return a net file with a dozen switches and some redundant links."""
    generator, used = Random(seed), [2] + [1] * 11
    lines = ['Switch 30 "s0"\n[1] "a"[1]', *(f'Switch 30 "s{number}"' for number in range(1, 12))]
    pairs = [(number, generator.randrange(number)) for number in range(1, 12)]
    pairs += [(generator.randrange(6, 12), generator.randrange(6)) for _ in range(5)]
    for one, other in pairs:
        lines[one] += f'\n[{used[one]}] "s{other}"[{used[other]}]'
        used[one] += 1
        used[other] += 1
    return "\n\n".join([*lines, 'Hca 1 "a"', ""])
