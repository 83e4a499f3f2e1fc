"""
Sweeps: by directed routes, by LIDs, and from the administration.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail, succeed

from txrdma.error import DeviceUnavailable
from txrdma.fabric.discovery import MAX_PER_NODE, Sweep
from txrdma.fabric.lidsweep import LIDSweep
from txrdma.fabric.model import described, Fabric
from txrdma.fabric.sasweep import SASweep
from txrdma.fabric.snapshots import dump
from txrdma.iba.path import IBPath
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType
from txrdma.mad.errors import MADError, MADTimeoutError
from txrdma.mad.layouts.attributes import RPCS
from txrdma.mad.layouts.sa import LinkRecord, NodeRecord, PortInfoRecord
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net
from txrdma.test.support.mad.simulated import FabricTestCase


def shape(fabric: Fabric) -> object:
    told = dump(fabric)
    for node in told["nodes"]:
        node["route"] = node["nodeInfo"] = None
        for port in node["ports"]:
            port["portInfo"] = None  # which port was asked is not the same
    told["nodes"].sort(key=lambda node: node["guid"])
    return told["nodes"]


class SweepTests(FabricTestCase):
    def sweep(self, **options: Any) -> Fabric:
        fabric: Fabric = self.told(Sweep(self.agent, **options).run())
        return fabric

    def test_found(self) -> None:
        fabric = self.sweep()
        self.assertEqual(fabric.problems, [])
        names = sorted(node.description for node in fabric.nodes.values())
        self.assertEqual(names, ["a", "b", "c", "d", "left", "right"])
        self.assertEqual(len(list(fabric.links())), 7)
        for node in fabric.nodes.values():
            simulated = self.fabric.node(node.description)
            self.assertEqual((node.guid, node.isSwitch), (simulated.guid, simulated.isSwitch))
            for port in node.ports.values():
                self.assertEqual(port.lid, simulated.ports[port.number if not node.isSwitch else 0].lid)

    def test_fewQuestions(self) -> None:
        sweep = Sweep(self.agent)
        fabric = self.told(sweep.run())
        switches = list(fabric.switches())
        ports = sum(node.info.numPorts + 1 for node in switches)
        ends = sum(len(node.ports) for node in fabric.nodes.values() if not node.isSwitch)
        most = 1 + len(list(fabric.links())) + len(fabric.nodes) + len(switches) + ports + ends
        self.assertEqual(sweep.asked, most)
        self.assertEqual(sweep.answered, most)
        self.assertEqual(self.fabric.wire.datagrams, most)

    def test_outstanding(self) -> None:
        schedule = MADSchedule(self.agent, 1000)
        self.told(Sweep(schedule, maxOutstanding=5).run())
        self.assertEqual(schedule.progress.most, 5)

    def test_order(self) -> None:
        routes: list[bytes] = []
        send = self.agent.port.send

        def watched(datagram: bytes, *rest: Any) -> None:
            routes.append(datagram[129 : 129 + datagram[7]])
            send(datagram, *rest)

        self.patch(self.agent.port, "send", watched)
        self.sweep(maxOutstanding=3)
        self.assertEqual([len(each) for each in routes], sorted(len(each) for each in routes))
        changes = sum(1 for one, other in zip(routes, routes[1:], strict=False) if one != other)
        self.assertLessEqual(changes, 2 * len(set(routes)))
        self.assertGreater(len(routes), 2 * changes)

    def test_perNode(self) -> None:
        plain = Sweep(self.agent, maxPerNode=1000)
        fabric = self.told(plain.run())
        most: Counter[int] = Counter()
        sweep = Sweep(self.agent)
        issue = self.agent.issue

        def watch(call: Any, path: IBPath) -> None:
            lanes = Counter(id(question.lane) for question in sweep._open if question.lane is not None)
            most.update(lanes.values())
            issue(call, path)

        self.patch(self.agent, "issue", watch)
        self.assertEqual(shape(self.told(sweep.run())), shape(fabric))
        self.assertEqual(max(most.keys()), MAX_PER_NODE)
        self.assertEqual((sweep.asked, sweep.answered), (plain.asked, plain.answered))

    def test_loss(self) -> None:
        self.fabric.wire.loss = 0.2
        windows: list[float] = []
        sweep = Sweep(self.agent, 32, progress=lambda done, count: windows.append(sweep.window))
        self.agent.retries = sweep._retries = 20
        fabric = self.told(sweep.run(), 1000)
        self.assertEqual(fabric.problems, [])
        self.assertLess(min(windows), 17)
        self.assertGreaterEqual(min(windows), 8)
        for _ in range(1000):
            sweep._pace(False)
        self.assertEqual(sweep.window, 32)

    def test_agentGone(self) -> None:
        done = Sweep(self.agent).run()
        self.agent.close()
        self.failureResultOf(done, DeviceUnavailable)
        self.failureResultOf(Sweep(self.agent).run(), DeviceUnavailable)


class SlowTests(FabricTestCase):
    options = {"latencySeconds": 0.01}

    def test_cancelled(self) -> None:
        for agent in (self.agent, MADSchedule(self.agent)):
            sweep = Sweep(agent)
            done = sweep.run()
            self.clock.pump([0.011] * 3)
            self.assertGreater(sweep.asked, 3)
            done.cancel()
            self.failureResultOf(done, CancelledError)
            self.assertIn(" 0 outstanding", repr(self.agent))
            asked = sweep.asked
            self.pump()
            self.assertEqual(sweep.asked, asked)


class OtherWaysTests(FabricTestCase):
    def net(self) -> Net:
        return fatTree(16, 4)

    def agentAt(self, name: str, number: int | None = None) -> Any:
        return super().agentAt("h00000" if name == "a" else name, number)

    def test_same(self) -> None:
        end = self.agent.port.endPort
        known = shape(self.told(Sweep(self.agent).run()))
        for sweep in (SASweep(self.agent), LIDSweep(self.agent, end)):
            fabric = self.told(sweep.run())
            self.assertEqual(fabric.problems, [])
            self.assertEqual(shape(fabric), known)

    def test_progress(self) -> None:
        end = self.agent.port.endPort
        for sweep, most in ((SASweep(self.agent), 4), (LIDSweep(self.agent, end), 36)):
            seen: list[tuple[int, int]] = []
            sweep.progress = lambda done, count, seen=seen: seen.append((done, count))
            self.told(sweep.run())
            self.assertEqual(seen, [(done, most) for done in range(1, most + 1)])

    def test_portInfo(self) -> None:
        own = self.told(Sweep(self.agent).run())
        told = self.told(SASweep(self.agent).run())
        for guid, node in own.nodes.items():
            for number, port in node.ports.items():
                other = told.nodes[guid].ports[number]
                self.assertEqual((port.state, port.lid, port.width), (other.state, other.lid, other.width))
                self.assertEqual(port.laneGigabits, other.laneGigabits)

    def test_unreachable(self) -> None:
        lid = self.lid("h00003")
        done = LIDSweep(self.agent, self.agent.port.endPort)
        self.fabric.node("h00003").isDead = True
        fabric = self.told(done.run(), 600)
        [problem] = described(fabric.problems)
        self.assertTrue(problem.startswith(f"unreachable at lid {lid}: NodeInfo: SubnGet: no answer"))
        self.assertEqual(len(list(fabric.hosts())), 15)


class Administration(RPCs):
    """
    Answers with tables that it was given.

    @ivar tables: records, or an exception, by kind.
    """

    def __init__(self, **tables: Any) -> None:
        self.tables = tables
        self.pending: list[Deferred[Any]] = []

    def call(
        self, rpc: str, payload: Any, path: Any = None, attributeModifier: int = 0, **options: Any
    ) -> Deferred[Any]:
        told = self.tables.get(payload.__name__, [])
        if told is None:
            waiting: Deferred[Any] = Deferred()
            self.pending.append(waiting)
            return waiting
        return fail(told) if isinstance(told, Exception) else succeed(told)


def node(number: int, lid: int, kind: NodeType = NodeType.CHANNEL_ADAPTER) -> NodeRecord:
    own, port = GUID.fromInt(number), GUID.fromInt(number + 1)
    info = NodeInfo(nodeType=kind, numPorts=2, nodeGUID=own, portGUID=port)
    return NodeRecord(lid=LID(lid), nodeInfo=info)


class ContradictionTests(FabricTestCase):
    def swept(self, **tables: Any) -> Fabric:
        done: Deferred[Fabric] = SASweep(Administration(**tables)).run()
        return self.successResultOf(done)

    def kinds(self, fabric: Fabric) -> list[str]:
        return [problem.kind for problem in fabric.problems]

    def test_duplicateLID(self) -> None:
        fabric = self.swept(NodeRecord=[node(0x10, 1), node(0x20, 1)])
        self.assertEqual(self.kinds(fabric), ["duplicate-lid"])
        self.assertEqual(len(fabric.nodes), 2)

    def test_unknownEnds(self) -> None:
        link = LinkRecord(fromLID=LID(1), fromPort=1, toPort=1, toLID=LID(9))
        port = PortInfoRecord(endPortLID=LID(8))
        fabric = self.swept(NodeRecord=[node(0x10, 1)], LinkRecord=[link], PortInfoRecord=[port])
        self.assertEqual(self.kinds(fabric), ["contradiction", "contradiction", *["incomplete"] * 2])
        self.assertIn("lid 9", next(described(fabric.problems)))

    def test_twoPeers(self) -> None:
        links = [LinkRecord(fromLID=LID(1), fromPort=1, toPort=1, toLID=LID(lid)) for lid in (2, 3)]
        fabric = self.swept(NodeRecord=[node(16 * lid, lid) for lid in (1, 2, 3)], LinkRecord=links)
        self.assertEqual(self.kinds(fabric), ["contradiction", "incomplete"])

    def test_refusedTable(self) -> None:
        refused = MADError(RPCS["SubnAdmGetTable"], IBPath(), 0x0700, b"", b"")
        silent = MADTimeoutError("no answer", RPCS["SubnAdmGetTable"], IBPath())
        fabric = self.swept(NodeRecord=[node(0x10, 1)], LinkRecord=refused, SwitchInfoRecord=silent)
        self.assertEqual(self.kinds(fabric), ["refused", "unreachable"])
        sweep = SASweep(Administration(NodeRecord=refused))
        self.failureResultOf(sweep.run(), MADError)

    def test_cancelled(self) -> None:
        administration = Administration(NodeRecord=None, LinkRecord=None)
        done = SASweep(administration).run()
        done.cancel()
        self.failureResultOf(done, CancelledError)
        for pending in administration.pending:
            self.assertTrue(pending.called)
