"""Faults of simulated fabrics, and fabric strings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.iba.path import IBPath
from txrdma.iba.types import LID, PKey
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADTimeoutError
from txrdma.mad.layouts import pma, sa, smp
from txrdma.mad.layouts.messages import MADRequest, Notice
from txrdma.mad.layouts.traps import BadKeyDetails, detailsOf
from txrdma.mad.ports import openMADPort
from txrdma.mad.server import MADServer
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.faultplan import Fault, FaultPlan
from txrdma.sim.strings import fabricOf
from txrdma.test.support.mad.simulated import FabricTestCase, gmp, route, TWO_SWITCHES


class FaultTests(FabricTestCase):
    options = {"latencySeconds": 0.001}

    def test_silent(self) -> None:
        self.fabric.silence("right")
        self.refused(self.agent.SubnGet(smp.NodeInfo, route(1, 3), retries=0), MADTimeoutError)
        self.refused(self.agent.SubnGet(smp.NodeInfo, route(1, 3, 1), retries=0), MADTimeoutError)
        byLID = self.agent.SubnGet(smp.NodeInfo, IBPath(dlid=self.lid("c")), retries=0)
        self.assertEqual(self.answerTo(byLID).numPorts, 1)
        self.fabric.revive("right")
        self.assertEqual(self.answerTo(self.agent.SubnGet(smp.NodeInfo, route(1, 3, 1))).numPorts, 1)

    def test_silentSwitch(self) -> None:
        """A sweep of the manager omits a switch that does not answer although its links are up."""
        self.fabric.manage("a")
        self.fabric.silence("right")
        self.fabric.cut("b", 2)
        self.pump(2)
        out = self.fabric.linearOf(self.fabric.node("left"))
        self.assertEqual((out[self.lid("a")], out[self.lid("b")], out[self.lid("c")]), (1, 2, 0xFF))

    def test_cut(self) -> None:
        out = self.fabric.linearOf(self.fabric.node("left"))[self.lid("c")]
        self.fabric.cut("left", out)
        lost = self.agent.SubnGet(smp.NodeInfo, IBPath(dlid=self.lid("c")), retries=0, timeoutSeconds=0.1)
        self.refused(lost, MADTimeoutError, 0.5)
        self.pump(1)
        other = self.fabric.linearOf(self.fabric.node("left"))[self.lid("c")]
        self.assertEqual({out, other}, {3, 4})
        self.assertEqual(
            self.answerTo(self.agent.SubnGet(smp.NodeInfo, IBPath(dlid=self.lid("c")))).numPorts, 1
        )

    def test_apart(self) -> None:
        before = self.lid("c")
        self.fabric.cut("c", 1)
        self.pump()
        query = sa.NodeRecord.query(lid=before)
        self.assertEqual(self.answerTo(self.agent.SubnAdmGetTable(query, gmp(self.lid("d")))), [])
        self.fabric.heal("c", 1)
        self.pump()
        (record,) = self.answerTo(self.agent.SubnAdmGetTable(query, gmp(self.lid("d"))))
        self.assertEqual((record.lid, record.nodeDescription.text), (before, "c"))

    def test_loss(self) -> None:
        lost = []
        for seed in (1, 1, 2):
            fabric = self.fabric = SimulatedFabric(self.clock, self.net(), loss=0.2, seed=seed)
            agent = self.agentAt("a")
            calls = [agent.SubnGet(smp.NodeInfo, route(1), retries=20) for _ in range(100)]
            self.pump(100)
            for call in calls:
                self.successResultOf(call)
            lost.append(fabric.wire.lost)
        self.assertGreater(lost[0], 20)
        self.assertEqual(lost[0], lost[1])

    def test_latency(self) -> None:
        call = self.agent.SubnGet(smp.NodeInfo, route(1))
        self.clock.advance(0.0009)
        self.assertNoResult(call)
        self.clock.advance(0.0002)
        self.successResultOf(call)
        self.fabric.slow("left", 0.1)
        call = self.agent.SubnGet(smp.NodeInfo, route(1))
        quick = self.agent.SubnGet(smp.NodeInfo, route(1, 3))
        self.pump(0.1)
        self.assertNoResult(call)
        self.successResultOf(quick)
        self.pump(0.1)
        self.successResultOf(call)

    def test_jitter(self) -> None:
        self.fabric.wire.jitterSeconds = 0.01
        came: list[float] = []
        for _ in range(50):
            call = self.agent.SubnGet(smp.NodeInfo, route(1))
            call.addCallback(lambda _info: came.append(self.clock.seconds()))
        self.pump(1)
        self.assertEqual(len(came), 50)
        self.assertGreater(came[0], 0.001)
        self.assertLess(came[0], 0.004)
        self.assertGreater(came[-1], 0.008)
        self.assertLessEqual(came[-1], 0.011)

    def test_busy(self) -> None:
        self.fabric.busy("c", 2)
        call = self.agent.PerformanceGet(pma.PortCounters(portSelect=1), gmp(self.lid("c")))
        self.assertEqual(self.answerTo(call).portSelect, 1)
        self.assertEqual(self.fabric.node("c").busyFor, 0)
        self.fabric.busy("c", 1)
        self.assertEqual(self.answerTo(self.agent.SubnGet(smp.NodeInfo, route(1, 3, 1))).numPorts, 1)

    def test_redirect(self) -> None:
        self.fabric.redirect("a", 0x04, to="c")
        self.fabric.setCounters("c", 1, portXmitPkts=42)
        call = self.agentAt("b").PerformanceGet(pma.PortCounters(portSelect=1), gmp(self.lid("a")))
        self.assertEqual(self.answerTo(call).portXmitPkts, 42)

    def test_names(self) -> None:
        self.assertIs(self.fabric.node("0x0000000000200000"), self.fabric.node("left"))
        for wrong in (("e", None), ("c", 2), ("c", 0), ("left", 9)):
            self.assertRaises(ValueError, self.fabric.port, *wrong)


class Echo:
    def handle(self, request: MADRequest) -> object:
        return smp.NodeDescription(nodeString=b"served".ljust(64, b"\0"))


class ServingTests(FabricTestCase):
    def test_directed(self) -> None:
        server = MADServer(self.agentAt("c"))
        ends = [server.handle(number, Echo(), (1,)) for number in (0x81, 0x01)]  # type: ignore[arg-type]  # provides it
        for path in (route(1, 3, 1), IBPath(dlid=self.lid("c"))):
            self.assertEqual(self.answerTo(self.agent.SubnGet(smp.NodeDescription, path)).text, "served")
        for end in ends:
            end()
        self.assertEqual(self.answerTo(self.agent.SubnGet(smp.NodeDescription, route(1, 3, 1))).text, "c")

    def test_trap(self) -> None:
        fabric = self.fabric = SimulatedFabric(self.clock, self.net())
        assert fabric.sa is not None
        fabric.sa.close()
        manager = self.agentAt("d")
        reports: list[Notice] = []
        server = MADServer(manager)
        manager.port.serve(0x01, (5,))
        server.listen(lambda notice, request: reports.append(notice))
        agent = self.agentAt("a")
        fabric.cut("b", 2)
        self.pump(0)
        info = smp.PortInfo(mkey=9, lid=self.lid("c"), masterSMLID=self.lid("d"))
        self.answerTo(agent.SubnSet(info, route(1, 3, 1)))
        agent.SubnSet(smp.PortInfo(), route(1, 3, 1), retries=0).addErrback(lambda failure: None)
        self.pump()
        self.assertEqual(
            [(notice.trapNumber, notice.issuerLID) for notice in reports],
            [(128, self.lid("right")), (256, self.lid("c"))],
        )


class KeyTests(FabricTestCase):
    def ask(self, **values: Any) -> Any:
        path = replace(gmp(self.lid("c")), **values)
        return self.agent.PerformanceGet(pma.PortCounters(portSelect=1), path, retries=0)

    def violations(self) -> tuple[int, int]:
        info = self.answerTo(self.agent.SubnGet(smp.PortInfo, route(1, 3, 1)))
        return info.pkeyViolations, info.qkeyViolations

    def test_pkey(self) -> None:
        self.refused(self.ask(pkey=PKey(0x8001)), MADTimeoutError)
        self.assertEqual(self.violations(), (1, 0))
        self.assertEqual(self.answerTo(self.ask(pkey=PKey(0x7FFF))).portSelect, 1)
        self.agent.SubnSet(smp.PKeyTable(pkeys=(0x0001,) * 32), route(1, 3, 1))
        self.pump()
        self.refused(self.ask(), MADTimeoutError)
        self.refused(self.ask(pkey=PKey(0x0001)), MADTimeoutError)
        self.assertEqual(self.answerTo(self.ask(pkey=PKey(0x8001))).portSelect, 1)

    def test_qkey(self) -> None:
        self.refused(self.ask(qkey=5), MADTimeoutError)
        self.assertEqual(self.violations(), (0, 1))

    def test_trap(self) -> None:
        reports: list[Notice] = []
        assert self.fabric.sa is not None
        self.patch(self.fabric.sa, "report", reports.append)
        self.refused(self.ask(pkey=PKey(0x8001)), MADTimeoutError)
        (notice,) = reports
        details = detailsOf(notice)
        assert isinstance(details, BadKeyDetails)
        self.assertEqual(notice.trapNumber, 257)
        self.assertEqual((details.lid1, details.lid2, details.key), (self.lid("a"), self.lid("c"), 0x8001))


class PortTests(FabricTestCase):
    def test_wrongLength(self) -> None:
        self.assertRaises(InvalidRequest, self.agent.port.send, bytes(255), IBPath())


class StringTests(SynchronousTestCase):
    def open(self, description: str) -> Any:
        self.clock = Clock()
        port = openMADPort(self.clock, description)
        self.addCleanup(port.close)
        return port

    def test_noSuchNode(self) -> None:
        clock = Clock()
        self.assertRaises(ValueError, openMADPort, clock, "sim:standby=h00003:node=nobody")
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_file(self) -> None:
        name = self.mktemp()
        with open(name, "w") as file:
            file.write(TWO_SWITCHES)
        port = self.open(f"sim:{name}:node=b/2:latency=0.25:loss=0.5:managed=no")
        wire = fabricOf(port).wire
        self.assertEqual((port.port.number, wire.latencySeconds, wire.loss), (2, 0.25, 0.5))
        self.assertIsNone(fabricOf(port).manager)

    def test_notUnicode(self) -> None:
        """Names in a net file may have any bytes, are sent unchanged, and may follow a byte order mark."""
        name = self.mktemp()
        Path(name).write_bytes(TWO_SWITCHES.encode("utf-8-sig") + b'Hca 1 "lonely" # "m\xfcller"\n')
        port = self.open(f"sim:{name}:node=lonely")
        agent = MADAgent(self.clock, port)
        described = agent.SubnGet(smp.NodeDescription, route())
        self.clock.advance(0.0)
        self.assertEqual(self.successResultOf(described).nodeString.rstrip(b"\0"), b"m\xfcller")

    def test_faults(self) -> None:
        """Fabric strings may contain hanging nodes, varying delays and changing counters."""
        port = self.open("sim:fattree:40:8:jitter=0.5:dead=h00003+leaf0001:errors=2:traffic=1000")
        fabric = fabricOf(port)
        dead = [name for name, node in fabric.nodes.items() if node.isDead]
        self.assertEqual((dead, fabric.wire.jitterSeconds), (["h00003", "leaf0001"], 0.5))
        self.clock.advance(1000)
        counted = [
            end.count().value(name, 1000.0)
            for node in fabric.nodes.values()
            for end in node.external
            if end.neighbor is not None
            for name in ("symbolErrorCounter", "portXmitData")
        ]
        errors, data = counted[::2], counted[1::2]
        self.assertAlmostEqual(sum(errors) / len(errors) / 2000, 1, 0)
        self.assertAlmostEqual(sum(data) / len(data) / 1e6, 1, 0)
        self.assertGreater(max(errors), min(errors))

    def test_equipment(self) -> None:
        port = self.open("sim:fattree:40:8:manager=h00001:standby=h00002:fdr10=yes")
        managers: dict[Any, Any] = dict(fabricOf(port).sma.managers)
        states = {end.node.identifier: one.state.name for end, one in managers.items()}
        self.assertEqual(states, {"h00001": "MASTER", "h00002": "STANDBY"})
        agent = MADAgent(self.clock, port)
        calls: list[Deferred[Any]] = [
            agent.SubnGet(kind, route(1), modifier)
            for kind, modifier in ((smp.ExtendedPortInfo, 1), (smp.PortInfo, 1))
        ]
        self.clock.advance(0)
        extended, info = (self.successResultOf(call) for call in calls)
        self.assertEqual((extended.linkSpeedActive, info.linkSpeedActive, info.linkSpeedExtActive), (1, 4, 0))
        agent.close()

    def test_shared(self) -> None:
        clock = Clock()
        one = openMADPort(clock, "sim:fattree:20:node=h00001")
        two = openMADPort(clock, "sim:fattree:20:node=h00002")
        fabric = fabricOf(one)
        self.assertIs(fabricOf(two), fabric)
        one.close()
        two.close()
        three = openMADPort(clock, "sim:fattree:20")
        self.assertIsNot(fabricOf(three), fabric)
        three.close()
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_nonsense(self) -> None:
        for wrong, word in (
            ("sim:fattree:0", "0"),
            ("sim:fattree:x", "x"),
            ("sim:fattree:8:36:1", "too many"),
            ("sim:torus:3", "sim:torus:3: too many arguments; a fabric is fattree:HOSTS:RADIX or FILE"),
            ("sim:/no/such/file.net", "file"),
            ("sim:/dev/null", "no nodes"),
            ("sim:fattree:8:traffic=inf", "traffic"),
            ("sim:fattree:8:errors=nan", "errors"),
            ("sim:fattree:8:loss=2", "loss"),
            ("sim:fattree:8:colour=red", "colour"),
            ("sim:fattree:8:managed=maybe", "managed"),
            ("sim:fattree:8:fdr10=2", "fdr10"),
            ("sim:fattree:8:dead=h00001+nobody", "nobody"),
            ("sim:fattree:8:standby=nobody", "nobody"),
            ("sim:fattree:8:jitter=-1", "jitter"),
            ("sim:fattree:8:node=nobody", "nobody"),
            ("sim:fattree:8:node=h00000/x", "slash"),
            ("sim:fattree:8:node=h00000/\u00b2", "slash"),
            ("ibsim:x:y:maybe", "sm"),
            ("ibsim:colour=red", "colour"),
            ("carrier-pigeon:1", "carrier-pigeon"),
            ("sim:loss=0.1:loss=0.2", "given twice"),
        ):
            error = self.assertRaises(ValueError, openMADPort, Clock(), wrong)
            self.assertIn(word, str(error))


class NonsenseTests(FabricTestCase):
    options = {"latencySeconds": 0.001, "jitterSeconds": 0.001}

    def setUp(self) -> None:
        super().setUp()
        self.fabric.runFDR10("b")
        self.fabric.standBy("c")
        self.addCleanup(self.fabric.close)

    def check(self) -> None:
        self.pump(1)
        for node in self.fabric.nodes.values():
            self.assertEqual(len(node.switchInfo), 20 if node.isSwitch else 0)
            for port in node.external:
                self.assertEqual(len(port.info), 64)
                for content in (port.tables or {}).values():
                    self.assertIsInstance(content, bytes)

    @example([(bytes((1, 0x81, 1, 1, 0, 0, 5)) + bytes(249), 1)])
    @given(st.lists(st.tuples(st.binary(min_size=256, max_size=256), st.integers(0, 12)), max_size=4))
    @settings(max_examples=50, deadline=None)
    def test_noise(self, datagrams: list[tuple[bytes, int]]) -> None:
        for datagram, lid in datagrams:
            self.agent.port.send(datagram, IBPath(dlid=LID(lid)))
        self.check()

    @example(managementClass=0x01, method=2, attribute=0x15, modifier=0x30, rest=b"", hops=[])
    @given(
        managementClass=st.sampled_from([0x01, 0x81, 0x03, 0x04, 0x06, 0x07, 0x21, 0x32, 0x33, 0xFF]),
        method=st.sampled_from([*range(8), 0x12, 0x14, 0x15, 0x81, 0x92]),
        attribute=st.sampled_from([*range(0x40), 0xF3, 0xFF90, 0xFFFF]),
        modifier=st.one_of(st.integers(0, 0x30), st.integers(0, 0xFFFFFFFF)),
        rest=st.binary(max_size=232),
        hops=st.lists(st.integers(0, 9), max_size=4),
    )
    @settings(max_examples=100, deadline=None)
    def test_anything(
        self, managementClass: int, method: int, attribute: int, modifier: int, rest: bytes, hops: list[int]
    ) -> None:
        version = 2 if managementClass in (0x03, 0x06, 0x21) else 1
        head = bytearray((1, managementClass, version, method)) + bytes(20)
        head[16:18] = attribute.to_bytes(2, "big")
        head[20:24] = modifier.to_bytes(4, "big")
        datagram = bytearray((head + rest).ljust(256, b"\0"))
        datagram[6:8] = bytes(2)
        if managementClass == 0x81:
            datagram[7] = len(hops)
            datagram[32:36] = b"\xff" * 4
            datagram[129 : 129 + len(hops)] = bytes(hops)
        for lid in (1, 4, 7):
            self.agent.port.send(datagram, IBPath(dlid=LID(lid)))
        self.check()


class PlanTests(FabricTestCase):
    """Faults of a plan that overlap: each lasts for its own time."""

    def planned(self, *faults: Fault) -> None:
        FaultPlan(self.fabric, faults).start()

    def isUp(self, name: str) -> bool:
        return self.fabric.port(name, 1).neighbor is not None

    def test_link(self) -> None:
        """A link is down until the last of its faults ends, whichever end they name."""
        self.planned(
            Fault("cut", 1.0, "left", 1, forSeconds=5.0),
            Fault("lost", 2.0, "a", forSeconds=10.0),
            Fault("flap", 3.0, "a", 1, times=2, everySeconds=2.0, downSeconds=1.0),
            Fault("cut", 20.0, "a", forSeconds=1.0),
        )
        for seconds, isUp in ((0.5, True), (3.0, False), (3.0, False), (5.0, False), (1.0, True)):
            self.pump(seconds)
            self.assertEqual(self.isUp("a"), isUp, self.clock.seconds())
        self.pump(8.0)
        self.assertFalse(self.isUp("a"))
        self.pump(1.0)
        self.assertTrue(self.isUp("a"))

    def test_agent(self) -> None:
        """A node does not answer until the last of its faults ends."""
        self.planned(
            Fault("hang", 1.0, "c", forSeconds=2.0),
            Fault("hang", 2.0, "c", forSeconds=4.0),
        )
        self.pump(4.0)
        self.assertTrue(self.fabric.node("c").isDead)
        self.pump(3.0)
        self.assertFalse(self.fabric.node("c").isDead)
