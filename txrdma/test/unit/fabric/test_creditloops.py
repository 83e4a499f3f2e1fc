"""
Credit loops by service levels and virtual lanes, on tori with several routings.

The reference for acyclic routings is C{graphlib} of the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric import creditloops
from txrdma.fabric.creditloops import cycle, cyclic
from txrdma.fabric.health import Finding
from txrdma.fabric.recorder import record
from txrdma.fabric.recording import RecordedRPCs
from txrdma.fabric.routechecks import routeFindings
from txrdma.fabric.snapshots import dumpRecording, loadRecording
from txrdma.fabric.tables import TableSurvey
from txrdma.mad.layouts.smp import SLtoVLMappingTable
from txrdma.sim.fabric.agents.sma import LANES
from txrdma.sim.fabric.model.nodes import SimulatedPort
from txrdma.sim.nets.netfile import Net, parseNet
from txrdma.test.support import slow
from txrdma.test.support.mad.simulated import FabricTestCase

SIZE = 4
HOST = 5
Switch = tuple[int, int]
Link = tuple[Switch, int]


class GraphTests(SynchronousTestCase):
    @slow("Hypothesis generates many graphs")
    @settings(max_examples=200, deadline=None)
    @given(st.dictionaries(st.integers(0, 8), st.sets(st.integers(0, 8), min_size=1)))
    def test_cycle(self, graph: dict[int, set[int]]) -> None:
        """A cycle is found if and only if there is no topological order, and each of its steps is an edge."""
        try:
            TopologicalSorter(graph).prepare()
            isCyclic = False
        except CycleError:
            isCyclic = True
        found: list[int] = []

        def steps() -> Iterator[None]:
            found.extend(cycle((yield from cyclic(graph))))

        for _ in steps():
            pass
        self.assertEqual(bool(found), isCyclic)
        for one, other in zip(found, found[1:] + found[:1], strict=True):
            self.assertIn(other, graph[one])


class TorusTests(FabricTestCase):
    """A torus of 4 by 4 switches with a host each, routed by dimension: first along x, then along y."""

    def net(self) -> Net:
        lines = ["width=3", "speed=7"]
        for x in range(SIZE):
            for y in range(SIZE):
                right, up = ((x + 1) % SIZE, y), (x, (y + 1) % SIZE)
                lines += [
                    f'Switch 8 "s{x}{y}"',
                    f'[1] "s{right[0]}{right[1]}"[2]',
                    f'[3] "s{up[0]}{up[1]}"[4]',
                    f'[{HOST}] "{self.host((x, y))}"[1]',
                    "",
                ]
        lines += [f'Hca 1 "{self.host((x, y))}"\n' for x in range(SIZE) for y in range(SIZE)]
        return parseNet("\n".join(lines))

    @staticmethod
    def host(switch: Switch) -> str:
        return "a" if switch == (0, 0) else f"h{switch[0]}{switch[1]}"

    @staticmethod
    def switches() -> Iterator[Switch]:
        return ((x, y) for x in range(SIZE) for y in range(SIZE))

    def setUp(self) -> None:
        super().setUp()
        self.lids: dict[int, Switch] = {self.lid(self.host(switch)): switch for switch in self.switches()}
        for switch in self.switches():
            table = self.fabric.linearOf(self.fabric.node(f"s{switch[0]}{switch[1]}"))
            for lid, target in self.lids.items():
                links = self.links(switch, target)
                table[lid] = links[0][1] if links else HOST

    @staticmethod
    def links(source: Switch, target: Switch) -> list[Link]:
        """Return the links of a path, each by its switch and output port."""
        at = list(source)
        found: list[Link] = []
        for dimension in (0, 1):
            distance = (target[dimension] - at[dimension]) % SIZE
            isUp = distance <= SIZE // 2
            for _hop in range(distance if isUp else SIZE - distance):
                found.append(((at[0], at[1]), 1 + 2 * dimension + (not isUp)))
                at[dimension] = (at[dimension] + (1 if isUp else -1)) % SIZE
        return found

    def serve(self, levelOf: Callable[[Switch, Switch], int]) -> None:
        """Let the SA return these service levels."""
        sa = self.fabric.sa
        assert sa is not None

        def level(port: SimulatedPort, dlid: int) -> int:
            source, target = self.lids.get(port.lid), self.lids.get(dlid)
            return 0 if source is None or target is None else levelOf(source, target)

        sa.paths.levelOf = level

    def map(self, lanesOf: Callable[[int, int], tuple[int, ...]]) -> None:
        """Let all switches have these virtual lanes, by input and output port."""
        for switch in self.switches():
            for port in self.fabric.node(f"s{switch[0]}{switch[1]}").external:
                port.tables = {
                    (LANES, entry): SLtoVLMappingTable(vls=lanesOf(entry, port.number)).encode()
                    for entry in range(9)
                }

    def found(self) -> list[Finding]:
        fabric = self.sweep(60)
        end = self.agent.port.endPort
        tables = self.answerTo(TableSurvey(self.agent, end, fabric).run(), 60)
        routes = routeFindings(self.agent, end, fabric, tables.linear)
        found: list[Finding] = self.answerTo(Deferred.fromCoroutine(routes), 60)
        return [one for one in found if one.kind != "unbalanced"]

    def recordedFindings(self) -> list[str]:
        """Record the fabric, and return the kinds of the findings of its routes, from the recording alone."""
        fabric, end = self.sweep(60), self.agent.port.endPort
        recording = self.answerTo(Deferred.fromCoroutine(record(self.agent, end, fabric, 1.0, 64)), 60)
        again = loadRecording(json.loads(json.dumps(dumpRecording(recording))))
        rpcs = RecordedRPCs(again)
        tables = self.successResultOf(TableSurvey(rpcs, again.endPort, again.fabric).run())
        routes = routeFindings(rpcs, again.endPort, again.fabric, tables.linear)
        found = self.successResultOf(Deferred.fromCoroutine(routes))
        return [one.kind for one in found if one.kind != "unbalanced"]

    def test_recorded(self) -> None:
        """A recording has the service levels and lanes that decide whether its routing has a loop."""
        self.assertEqual(self.recordedFindings(), ["credit-loop"])
        self.serve(lambda source, target: int(source > target))
        self.map(lambda entry, out: (0, 1) * 8)
        self.assertEqual(self.recordedFindings(), [one.kind for one in self.found()])
        for switch in self.switches():
            if switch != (1, 1):  # around the ring
                self.fabric.linearOf(self.fabric.node(f"s{switch[0]}{switch[1]}"))[self.lid("h11")] = 1
        self.assertIn("unreachable-lid", self.recordedFindings())

    def test_oneLane(self) -> None:
        """On one lane the rings of a torus are credit loops, whatever the service levels are."""
        self.serve(lambda source, target: source[0])
        self.map(lambda entry, out: (0,) * 16)
        (found,) = self.found()
        self.assertEqual(found.kind, "credit-loop")
        self.assertRegex(
            found.text, "^4 links wait for each other on these virtual lanes: s.. .* port . VL 0"
        )

    def test_datelines(self) -> None:
        """Paths that cross the end of a dimension use another lane in it, by service level: no loop."""

        def levelOf(source: Switch, target: Switch) -> int:
            links = self.links(source, target)
            crossed = [((SIZE - 1, 1), (0, 2)), ((SIZE - 1, 3), (0, 4))]
            return sum(
                1 << dimension
                for dimension, ends in enumerate(crossed)
                if any((switch[dimension], out) in ends for switch, out in links)
            )

        self.serve(levelOf)
        self.map(lambda entry, out: tuple(level >> (out > 2) & 1 for level in range(16)))
        self.assertEqual(self.found(), [])

    def test_oneHostOfEach(self) -> None:
        """With many hosts, the paths of one host at each switch are followed, and their lanes count."""
        self.patch(creditloops, "MOST_SOURCES", 2)
        self.test_datelines()
        self.map(lambda entry, out: (0,) * 16)
        self.assertEqual([one.kind for one in self.found()], ["credit-loop"])

    def test_mostPaths(self) -> None:
        """The number of queried paths is limited; unless all are queried, no loop is ruled out."""
        self.patch(creditloops, "MOST_PATHS", 1)
        self.map(lambda entry, out: (0,) * 16)
        sa = self.fabric.sa
        assert sa is not None
        before = sa.asked
        (found,) = self.found()
        self.assertIn("unless their virtual lanes differ (the fabric has more than 1 paths)", found.text)
        self.assertLessEqual(sa.asked - before, 4)

    def test_byInputPort(self) -> None:
        """The lane depends on the input port as well: only ports at which packets arrive count."""
        self.test_datelines()
        for inputs, kinds in (((1, 3, 4), []), ((2, HOST), ["credit-loop"])):
            isMapped = frozenset(inputs)
            self.map(
                lambda entry, out, isMapped=isMapped: tuple(  # type: ignore[misc]  # bound in the loop
                    0 if entry in isMapped and out == 1 else level >> (out > 2) & 1 for level in range(16)
                )
            )
            self.assertEqual([one.kind for one in self.found()], kinds)

    def test_noAnswer(self) -> None:
        """Without the mappings of the switches, the finding states that it depends on the lanes."""
        agents: Any = self.fabric.wire._sma
        answer = agents.answer

        def refuse(port: Any, datagram: bytes, *rest: Any) -> Any:
            isLanes = int.from_bytes(datagram[16:18], "big") == LANES
            return None if isLanes else answer(port, datagram, *rest)

        agents.answer = refuse
        (found,) = self.found()
        self.assertRegex(found.text, "^4 links wait for each other, unless their virtual lanes differ")
