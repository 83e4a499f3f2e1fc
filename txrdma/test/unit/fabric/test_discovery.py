"""Sweeps by directed routes, by LIDs and from the administration, also of faulty fabrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import CancelledError, Deferred

from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.fabric.discovery import MAX_PER_NODE, Sweep
from txrdma.fabric.health import belowBest, findings
from txrdma.fabric.lidsweep import LIDSweep
from txrdma.fabric.model import described, Fabric, nodeGUIDIn
from txrdma.fabric.sasweep import SASweep
from txrdma.fabric.snapshots import dump, load
from txrdma.iba.path import IBPath
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADError, MADTimeoutError
from txrdma.mad.layouts.attributes import RPCS
from txrdma.mad.layouts.sa import LinkRecord, NodeRecord, PortInfoRecord
from txrdma.mad.layouts.smp import ExtendedPortInfo, NodeInfo
from txrdma.mad.schedule import MADSchedule
from txrdma.sim.fabric.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net, parseNet
from txrdma.test.support.mad.administration import Administration
from txrdma.test.support.mad.simulated import FabricTestCase, names, TWO_SWITCHES


def shape(fabric: Fabric) -> object:
    reported = dump(fabric)
    for node in reported["nodes"]:
        node["route"] = node["nodeInfo"] = None
        for port in node["ports"]:
            port["portInfo"] = None  # the queried port differs
    reported["nodes"].sort(key=lambda node: node["guid"])
    return reported["nodes"]


class SweepTests(FabricTestCase):
    def test_found(self) -> None:
        fabric = self.sweep()
        self.assertEqual(fabric.problems, [])
        self.assertEqual(names(fabric), ["a", "b", "c", "d", "left", "right"])
        self.assertEqual(len(list(fabric.links())), 7)
        for node in fabric.nodes.values():
            simulated = self.fabric.node(node.description)
            self.assertEqual((node.guid, node.isSwitch), (simulated.guid, simulated.isSwitch))
            for port in node.ports.values():
                self.assertEqual(port.lid, simulated.ports[port.number if not node.isSwitch else 0].lid)

    def test_fewQuestions(self) -> None:
        sweep = Sweep(self.agent)
        fabric = self.answerTo(sweep.run())
        switches = list(fabric.switches())
        ports = sum(node.info.numPorts + 1 for node in switches)
        ends = sum(len(node.ports) for node in fabric.nodes.values() if not node.isSwitch)
        most = 1 + len(list(fabric.links())) + len(fabric.nodes) + len(switches) + ports + ends
        self.assertEqual(sweep.asked, most)
        self.assertEqual(sweep.answered, most)
        self.assertEqual(self.fabric.wire.datagrams, most)

    def test_outstanding(self) -> None:
        schedule = MADSchedule(self.agent, 1000)
        self.answerTo(Sweep(schedule, maxOutstanding=5).run())
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
        fabric = self.answerTo(plain.run())
        most: Counter[int] = Counter()
        sweep = Sweep(self.agent)
        issue = self.agent.issue

        def watch(call: Any, path: IBPath) -> None:
            lanes = Counter(id(question.lane) for question in sweep._open if question.lane is not None)
            most.update(lanes.values())
            issue(call, path)

        self.patch(self.agent, "issue", watch)
        self.assertEqual(shape(self.answerTo(sweep.run())), shape(fabric))
        self.assertEqual(max(most.keys()), MAX_PER_NODE)
        self.assertEqual((sweep.asked, sweep.answered), (plain.asked, plain.answered))

    def test_loss(self) -> None:
        self.fabric.wire.loss = 0.2
        windows: list[float] = []
        sweep = Sweep(self.agent, 32, progress=lambda done, count: windows.append(sweep.window))
        self.agent.retries = sweep._retries = 20
        self.assertEqual(self.answerTo(sweep.run(), 1000).problems, [])
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


class DuplicateTests(FabricTestCase):
    def net(self) -> Net:
        return parseNet(
            'Switch 8 "s"\n[1] "a"[1]\n[2] "b"[1]\n[3] "c"[1]\n\n'
            'Hca 1 "a"\n\ncaguid=0x77\nHca 1 "b"\n\ncaguid=0x77\nHca 1 "c"\n'
        )

    def test_duplicate(self) -> None:
        fabric = self.sweep()
        self.assertEqual([problem.kind for problem in fabric.problems], ["duplicate-guid"])
        self.assertIn(str(GUID.fromInt(0x77)), fabric.problems[0].text)
        self.assertEqual(len(fabric.nodes), 3)


class OtherSweepTests(FabricTestCase):
    def net(self) -> Net:
        return fatTree(16, 4)

    def agentAt(self, name: str, number: int | None = None) -> Any:
        return super().agentAt("h00000" if name == "a" else name, number)

    def test_same(self) -> None:
        end = self.agent.port.endPort
        known = shape(self.sweep())
        for sweep in (SASweep(self.agent), LIDSweep(self.agent, end)):
            fabric = self.answerTo(sweep.run())
            self.assertEqual(fabric.problems, [])
            self.assertEqual(shape(fabric), known)

    def test_progress(self) -> None:
        end = self.agent.port.endPort
        for sweep, most in ((SASweep(self.agent), 4), (LIDSweep(self.agent, end), 36)):
            seen: list[tuple[int, int]] = []
            sweep.progress = lambda done, count, seen=seen: seen.append((done, count))
            self.answerTo(sweep.run())
            self.assertEqual(seen, [(done, most) for done in range(1, most + 1)])

    def test_portInfo(self) -> None:
        own = self.sweep()
        reported = self.answerTo(SASweep(self.agent).run())
        for guid, node in own.nodes.items():
            for number, port in node.ports.items():
                other = reported.nodes[guid].ports[number]
                self.assertEqual((port.state, port.lid, port.width), (other.state, other.lid, other.width))
                self.assertEqual(port.laneGigabits, other.laneGigabits)

    def test_unreachable(self) -> None:
        lid = self.lid("h00003")
        done = LIDSweep(self.agent, self.agent.port.endPort)
        self.fabric.node("h00003").isDead = True
        fabric = self.answerTo(done.run(), 600)
        [problem] = described(fabric.problems)
        self.assertTrue(problem.startswith(f"unreachable at lid {lid}: NodeInfo: SubnGet: no answer"))
        self.assertEqual(len(list(fabric.hosts())), 15)


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
        self.assertEqual(self.kinds(fabric), ["duplicate-lid", "incomplete"])
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
        self.assertEqual(self.kinds(fabric), ["contradiction", *["incomplete"] * 2])

    def test_refusedTable(self) -> None:
        refused = MADError(RPCS["SubnAdmGetTable"], IBPath(), 0x0700, b"", b"")
        silent = MADTimeoutError("no answer", RPCS["SubnAdmGetTable"], IBPath())
        fabric = self.swept(NodeRecord=[node(0x10, 1)], LinkRecord=refused, SwitchInfoRecord=silent)
        self.assertEqual(self.kinds(fabric), ["refused", "unreachable", "incomplete"])
        sweep = SASweep(Administration(NodeRecord=refused))
        self.failureResultOf(sweep.run(), MADError)

    def test_cancelled(self) -> None:
        administration = Administration(NodeRecord=None, LinkRecord=None)
        done = SASweep(administration).run()
        done.cancel()
        self.failureResultOf(done, CancelledError)
        for pending in administration.pending:
            self.assertTrue(pending.called)


FDR10 = ExtendedPortInfo(linkSpeedSupported=1, linkSpeedEnabled=1, linkSpeedActive=1).encode()


class FaultTestCase(FabricTestCase):
    options = {"latencySeconds": 0.01}

    def swept(self, during: Callable[[], object] | None = None, after: float = 0.0) -> Fabric:
        done = Sweep(self.agent).run()
        if during is not None:
            self.clock.callLater(after, during)
        fabric: Fabric = self.answerTo(done, 600)
        return fabric

    def kinds(self, fabric: Fabric) -> list[str]:
        return sorted({problem.kind for problem in fabric.problems})


class CallbackTests(FaultTestCase):
    def test_progress(self) -> None:

        def failing(done: int, count: int) -> None:
            raise ZeroDivisionError("a bug")

        fabric = self.sweep(progress=failing)
        self.assertEqual(names(fabric), names(self.swept()))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_oneNode(self) -> None:
        """An exception in the processing of a node's answer affects what only this node leads to."""
        sweep = Sweep(self.agent)
        add = sweep.fabric.add

        def failing(content: bytes, route: Any) -> Any:
            if nodeGUIDIn(content) == self.fabric.node("right").guid.raw:
                raise ZeroDivisionError("a bug")
            return add(content, route)

        self.patch(sweep.fabric, "add", failing)
        fabric = self.answerTo(sweep.run())
        self.assertEqual(sorted(names(fabric)), ["a", "b", "left"])
        [problem] = {(one.kind, one.text) for one in fabric.problems}
        self.assertEqual(problem, ("unprocessed", "NodeInfo: ZeroDivisionError: a bug"))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertIn(" 0 outstanding", repr(self.agent))

    def test_firstNode(self) -> None:
        """A sweep fails with an exception about its first node, also if that was added before."""

        def failing(*arguments: object) -> None:
            raise ZeroDivisionError("a bug")

        for part, name in (("fabric", "add"), ("", "_entered")):
            sweep = Sweep(self.agent)
            self.patch(getattr(sweep, part, sweep), name, failing)
            self.refused(sweep.run(), ZeroDivisionError)
            self.assertIn(" 0 outstanding", repr(self.agent))

    def test_agent(self) -> None:
        """A sweep whose port is lost, or cannot send, fails at once, at any Get, and sends no other."""
        for number in (1, 2, 5):
            for error in (DeviceUnavailable("gone"), ResourceExhausted("no room")):
                issue, calls = self.agent.issue, 0

                def failing(
                    *arguments: Any, number: int = number, issue: Any = issue, error: Exception = error
                ) -> None:
                    nonlocal calls
                    calls += 1
                    if calls == number:
                        raise error
                    issue(*arguments)

                with patch.object(self.agent, "issue", failing):
                    self.refused(Sweep(self.agent).run(), type(error))
                self.assertEqual(calls, number)
                self.assertIn(" 0 outstanding", repr(self.agent))


class RefusedTests(FaultTestCase):
    """The local port refuses datagrams."""

    def test_each(self) -> None:
        """A sweep completes whichever Get is refused: it is a problem, or the error of the sweep if first."""
        send, sweep = self.agent.port.send, Sweep(self.agent, maxPerNode=2)
        self.answerTo(sweep.run())
        for issue in (lambda schedule: schedule, lambda schedule: self.agent):
            for refused in range(1, sweep.asked + 1):
                sent = iter(range(1, 1000))

                def failing(*what: Any, sent: Any = sent, refused: int = refused) -> None:
                    if next(sent) == refused:
                        raise InvalidRequest("it does not fit")
                    send(*what)

                self.patch(self.agent.port, "send", failing)
                each = Sweep(issue(MADSchedule(self.agent, 1000)), maxPerNode=2)
                outcome: list[Any] = []
                each.run().addBoth(outcome.append)
                self.pump(5.0)
                if refused == 1:
                    outcome[0].trap(InvalidRequest)
                else:
                    self.assertEqual(self.kinds(outcome[0]), ["unprocessed"])
                self.assertComplete(each, refused)

    def assertComplete(self, sweep: Sweep, refused: int) -> None:
        self.assertEqual((sweep._held, sweep._lanes, sweep.asked), (0, {}, sweep.answered), refused)
        self.assertIn(" 0 outstanding", repr(self.agent))

    def test_issue(self) -> None:
        """The same if the agent itself raises, which is logged if it is its fault."""
        whole = Sweep(self.agent, maxPerNode=2)
        self.answerTo(whole.run())
        for refused in range(2, whole.asked + 1):
            for error, logged in ((InvalidRequest("it does not fit"), 0), (ZeroDivisionError("a bug"), 1)):
                issue, asked = self.agent.issue, iter(range(1, 1000))

                def failing(
                    *what: Any, issue: Any = issue, number: Any = asked, at: int = refused, error: Any = error
                ) -> None:
                    if next(number) == at:
                        raise error
                    issue(*what)

                with patch.object(self.agent, "issue", failing):
                    sweep = Sweep(self.agent, maxPerNode=2)
                    fabric = self.answerTo(sweep.run())
                self.assertEqual(self.kinds(fabric), ["unprocessed"])
                self.assertEqual(len(self.flushLoggedErrors(type(error))), logged)
                self.assertComplete(sweep, refused)

    def test_fromSomeTimeOn(self) -> None:
        """A sweep of many nodes completes even if its port refuses all Gets that wait."""
        agent = MADAgent(self.clock, SimulatedFabric(self.clock, fatTree(400)).attach("h00000"))
        self.addCleanup(agent.close)
        send, sent = agent.port.send, iter(range(10_000))

        def failing(*what: Any) -> None:
            if next(sent) > 300:
                raise InvalidRequest("no more")
            send(*what)

        self.patch(agent.port, "send", failing)
        sweep = Sweep(agent, maxPerNode=2)
        fabric = self.answerTo(sweep.run())
        self.assertEqual(self.kinds(fabric), ["unprocessed"])
        self.assertGreater(sweep.asked, 1000)
        self.assertEqual((sweep._held, sweep._lanes, sweep.asked), (0, {}, sweep.answered))


class DyingTests(FaultTestCase):
    def test_anyMoment(self) -> None:
        for hundredths in range(1, 8):
            self.fabric.revive("right")
            fabric = self.swept(lambda: self.fabric.silence("right"), hundredths / 100 - 0.005)
            self.assertLessEqual({"a", "b", "left"}, set(names(fabric)) | {""}, hundredths)
            for problem in fabric.problems:
                self.assertEqual(problem.kind, "unreachable")
                self.assertIn("no answer", problem.text)
            self.assertIn(" 0 outstanding", repr(self.agent))
            load(dump(fabric))

    def test_halfKnown(self) -> None:
        fabric = self.swept(lambda: self.fabric.silence("right"), 0.055)
        right = self.fabric.node("right")
        known = fabric.nodes[right.guid]
        self.assertEqual((known.description, known.switchInfo), ("", None))
        self.assertEqual(self.kinds(fabric), ["unreachable"])
        lines = list(described(fabric.problems))
        self.assertEqual(len([line for line in lines if "PortInfo" in line]), 1)
        self.assertIn("(9 times)", next(line for line in lines if "PortInfo" in line))
        self.assertGreater(len(fabric.problems), 9)


class LoopTests(FaultTestCase):
    def net(self) -> Net:
        return parseNet('Switch 8 "s"\n[1] "a"[1]\n[5] "s"[6]\n[7] "s"[7]\n\nHca 1 "a"\n')

    def test_loops(self) -> None:
        fabric = self.swept()
        self.assertEqual((fabric.problems, names(fabric)), ([], ["a", "s"]))
        ends = sorted((one.number, other.number) for one, other in fabric.links() if one.node is other.node)
        self.assertEqual(ends, [(5, 6), (7, 7)])
        again = load(dump(fabric))
        self.assertEqual(dump(again), dump(fabric))


class LiarTests(FaultTestCase):
    def change(self, name: str, place: int, value: int) -> None:
        node = self.fabric.node(name)
        node.info = node.info[:place] + bytes((value,)) + node.info[place + 1 :]

    def test_portNumber(self) -> None:
        self.change("b", 3, 1)  # the node reports one port, and has two
        fabric = self.swept()
        self.assertEqual(self.kinds(fabric), ["contradiction"])
        self.assertIn("port 2 of 1", fabric.problems[0].text)
        self.assertEqual(names(fabric), ["a", "b", "c", "d", "left", "right"])

    def test_manyPorts(self) -> None:
        self.change("right", 3, 255)
        fabric = self.swept()
        self.assertEqual(self.kinds(fabric), ["refused"])
        [line] = described(fabric.problems)
        self.assertIn("(247 times)", line)
        self.assertEqual(len(fabric.nodes), 6)

    def test_unknownType(self) -> None:
        self.change("c", 2, 9)
        fabric = self.swept()
        self.assertEqual((fabric.problems, len(fabric.nodes)), ([], 6))
        self.assertEqual(int(fabric.nodes[self.fabric.node("c").guid].type), 9)

    def test_noPorts(self) -> None:
        self.change("c", 3, 0)
        self.fabric.rename("d", GUID(bytes(8)))
        fabric = self.swept()
        self.assertEqual((self.kinds(fabric), len(fabric.nodes)), (["contradiction"], 6))
        self.assertIn("no-guid", [finding.kind for finding in findings(fabric)])

    def test_downEnd(self) -> None:
        self.fabric.port("right", 3).info[33] = 0x20
        fabric = self.swept()
        self.assertEqual(self.kinds(fabric), ["contradiction"])
        self.assertIn("reports no link", fabric.problems[0].text)
        self.assertEqual(len(fabric.nodes), 6)


class TwinTests(FaultTestCase):
    def net(self) -> Net:
        return parseNet(
            'Switch 8 "s"\n[1] "a"[1]\n[2] "t"[1]\n[3] "u"[2]\n\n'
            'switchguid=0x77\nSwitch 8 "t"\n[3] "b"[1]\n\n'
            'switchguid=0x77\nSwitch 4 "u"\n[3] "c"[1]\n\nHca 1 "a"\n\nHca 1 "b"\n\nHca 1 "c"\n'
        )

    def test_otherKind(self) -> None:
        fabric = self.swept()
        self.assertEqual(self.kinds(fabric), ["duplicate-guid"])
        self.assertIn("here is another one", fabric.problems[0].text)
        self.assertEqual(len(fabric.nodes), 4)
        self.assertIsNone(fabric.nodes[self.fabric.node("s").guid].port(3).peer)

    def test_byLID(self) -> None:
        end = self.agent.port.endPort
        for sweep in (LIDSweep(self.agent, end), SASweep(self.agent)):
            fabric = self.answerTo(sweep.run(), 600)
            self.assertIn("duplicate-guid", self.kinds(fabric), type(sweep).__name__)
            self.assertGreaterEqual(len(fabric.nodes), 4)


class PartialTests(FaultTestCase):
    def test_refusedPort(self) -> None:
        guid = self.fabric.node("left").guid
        node = self.fabric.node("left")
        node.info = node.info[:3] + b"\x0a" + node.info[4:]  # two ports more than the node has
        fabric = self.answerTo(LIDSweep(self.agent, self.agent.port.endPort).run(), 600)
        self.assertEqual(self.kinds(fabric), ["refused"])
        self.assertEqual(len(fabric.nodes[guid].ports), 11)
        self.assertEqual(sum(1 for port in fabric.nodes[guid].ports.values() if port.raw), 9)
        self.assertEqual(len(list(fabric.links())), 7)


class CutTablesTests(FaultTestCase):
    def cut(self, kind: type, keep: Callable[[Any], bool]) -> Any:
        """Return an agent whose tables of one kind lack some records."""
        agent = self.agent
        plain = agent.call

        def call(rpc: str, payload: Any, *arguments: Any, **options: Any) -> Deferred[Any]:
            answer: Deferred[Any] = plain(rpc, payload, *arguments, **options)
            if payload is kind:
                answer.addCallback(lambda records: [record for record in records if keep(record)])
            return answer

        self.patch(agent, "call", call)
        return agent

    def texts(self, sweep: SASweep | LIDSweep) -> list[str]:
        fabric = self.answerTo(sweep.run(), 600)
        return [problem.text for problem in fabric.problems if problem.kind == "incomplete"]

    def test_links(self) -> None:
        lid = self.lid("c")
        agent = self.cut(LinkRecord, lambda record: lid not in (record.fromLID, record.toLID))
        end = agent.port.endPort
        for sweep in (LIDSweep(agent, end), SASweep(agent)):
            [text] = self.texts(sweep)
            self.assertIn("table of links lacks", text)
            self.assertIn("right", text)

    def test_oneDirection(self) -> None:
        lid = self.lid("c")
        agent = self.cut(LinkRecord, lambda record: record.fromLID != lid)
        [text] = self.texts(SASweep(agent))
        self.assertIn("in one direction only", text)

    def test_ports(self) -> None:
        agent = self.cut(PortInfoRecord, lambda record: record.portNum < 3)
        texts = self.texts(SASweep(agent))
        self.assertIn("table of ports lacks some: left", texts[0])

    def test_empty(self) -> None:
        """An empty table is a problem, too."""
        for kind, text in ((LinkRecord, "table of links lacks"), (PortInfoRecord, "table of ports lacks")):
            self.assertIn(text, self.texts(SASweep(self.cut(kind, lambda record: False)))[0])


class FDR10Tests(FaultTestCase):
    def net(self) -> Net:
        text = TWO_SWITCHES.replace("speed=7\nextspeed=7", "speed=7")
        for name in ("left", "right"):
            text = text.replace(f'Switch 8 "{name}"', f'vendid=0x2c9\ndevid=0xc738\nSwitch 8 "{name}"')
        return parseNet(text)

    def addNode(self, name: str, number: int) -> None:
        self.fabric.port(name, number).tables = {(0xFF90, 0): FDR10}

    def test_shown(self) -> None:
        for name in ("left", "right"):
            self.addNode(name, 3)
        for sweep in (Sweep(self.agent), LIDSweep(self.agent, self.agent.port.endPort)):
            fabric = self.answerTo(sweep.run(), 600)
            self.assertEqual(fabric.problems, [])
            port = fabric.nodes[self.fabric.node("left").guid].port(3)
            self.assertEqual((port.speed, port.laneGigabits), ("FDR10", 10.3125))
            self.assertEqual(fabric.nodes[port.node.guid].port(4).speed, "QDR")
            self.assertEqual(belowBest(port), ["12X"])
            again = load(dump(fabric))
            self.assertEqual(again.nodes[port.node.guid].port(3).speed, "FDR10")

    def test_couldBe(self) -> None:
        able = ExtendedPortInfo(linkSpeedSupported=1, linkSpeedEnabled=1).encode()
        for name in ("left", "right"):
            self.fabric.port(name, 4).tables = {(0xFF90, 0): able}
        port = self.swept().nodes[self.fabric.node("left").guid].port(4)
        self.assertEqual((port.speed, belowBest(port)), ("QDR", ["12X", "FDR10"]))

    def test_unknown(self) -> None:
        del self.fabric.sma._gets[0xFF90]
        for sweep in (Sweep(self.agent), LIDSweep(self.agent, self.agent.port.endPort)):
            fabric = self.answerTo(sweep.run(), 600)
            self.assertEqual(fabric.problems, [])
            self.assertEqual(fabric.nodes[self.fabric.node("left").guid].port(3).speed, "QDR")
