"""Fabric checks: links, speeds, identifiers, managers, counters, tables, cables, and differences."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.fabric import errorcounters, pace
from txrdma.fabric.cableplan import cableFindings, parseCables
from txrdma.fabric.differences import differences
from txrdma.fabric.errorcounters import (
    ALL_PORTS,
    CounterReport,
    CounterSurvey,
    parseThresholds,
    readThresholds,
    shownName,
    Thresholds,
)
from txrdma.fabric.health import counterFindings, Finding, findings, managerFindings, recordedManagers
from txrdma.fabric.linkspeeds import (
    activeSpeed,
    enabledSpeeds,
    fastest,
    has,
    LaneSpeed,
    mayHaveFDR10,
    RATES,
    supportedSpeeds,
    wantsAsking,
)
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.rates import added, changed, counterNames, Increase, Rates
from txrdma.fabric.routechecks import RouteCheck, routeFindings
from txrdma.fabric.routeuse import balances
from txrdma.fabric.snapshots import dump, load
from txrdma.fabric.tables import Firmware, tableFindings, Tables, TableSurvey
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import PhysicalState, PortState
from txrdma.kit.rawfields import poke, span
from txrdma.mad.layouts.messages import MADRequest
from txrdma.mad.layouts.pma import PortCounters, PortCountersExtended, PortXmitDataSL
from txrdma.mad.layouts.smp import ExtendedPortInfo, NodeInfo, PKeyTable, PortInfo, SLtoVLMappingTable, SMInfo
from txrdma.mad.layouts.values import EXTENDED_GIGABITS, GIGABITS, PortCapability, SMState
from txrdma.mad.server import MADServer
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.fabric.model.nodes import SimulatedPort
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net, parseNet
from txrdma.test.support.mad.simulated import FabricTestCase, route, TWO_SWITCHES


class HealthTestCase(FabricTestCase):
    def swept(self) -> Fabric:
        return self.sweep(3)

    def kinds(self, found: list[Finding]) -> list[tuple[str, str]]:
        return [(one.kind, one.where.partition(" ")[0]) for one in found]


class FindingTests(HealthTestCase):
    def test_width(self) -> None:
        raw = self.fabric.port("left", 2).info
        far = self.fabric.port("b", 1).info
        raw[31] = far[31] = 1
        found = findings(self.swept())
        self.assertEqual([one.kind for one in found], ["width"])
        self.assertIn("runs with 1 of 4 lanes", found[0].text)
        self.assertIsNotNone(found[0].guid)

    def test_speed(self) -> None:
        wanted = PortInfo(linkSpeedExtEnabled=1)
        self.answerTo(self.agent.SubnSet(wanted, route(1), 2), 1)
        self.agent.SubnSet(PortInfo(portState=PortState.DOWN), route(1), 2)
        self.pump(3)
        self.assertEqual(findings(self.swept()), [])
        self.fabric.port("left", 2).info[63] = 7
        found = findings(self.swept())
        self.assertEqual([one.kind for one in found], ["speed"])
        self.assertIn("14.0625 of 53.125", found[0].text)

    def test_state(self) -> None:
        self.fabric = SimulatedFabric(self.clock, self.net(), isManaged=False)
        self.agent = self.agentAt("a")
        found = findings(self.swept())
        kinds = [one.kind for one in found]
        self.assertEqual((kinds.count("state"), kinds.count("no-lid")), (7, 7))
        self.assertIn("is INIT", next(one.text for one in found if one.kind == "state"))

    def test_mtu(self) -> None:
        self.fabric.port("c").info[36] = 0x20 | self.fabric.port("c").info[36] & 15
        self.assertEqual([one.kind for one in findings(self.swept())], ["mtu"])

    def test_duplicateLID(self) -> None:
        self.answerTo(self.agent.SubnSet(PortInfo(lid=self.lid("c")), route(1, 3, 2)), 1)
        found = findings(self.swept())
        self.assertIn("duplicate-lid", [one.kind for one in found])
        self.answerTo(self.agent.SubnSet(PortInfo(lid=LID(0xBFFF), lmc=1), route(1, 3, 2)), 0.01)
        self.fabric.port("d").info[16:18] = b"\xc0\x00"
        self.assertIn("bad-lid", [one.kind for one in findings(self.swept())])

    def test_duplicatesInAnyOrder(self) -> None:
        """Duplicate LIDs and GUIDs are found at the same ports, in whatever order a sweep finds the nodes."""
        fabric = self.swept()
        one, other = (fabric.portAt(self.fabric.node(name).guid, 1) for name in ("a", "c"))
        assert one is not None and other is not None
        other.setInfo(one.raw)
        other.node.setPortGUID(other.number, one.guid)
        before = findings(fabric)
        self.assertEqual({found.kind for found in before}, {"duplicate-lid", "duplicate-guid"})
        self.assertEqual({found.where for found in before}, {str(other)})
        fabric.nodes = dict(reversed(fabric.nodes.items()))
        self.assertEqual(findings(fabric), before)


class ManagerTests(HealthTestCase):
    def findings(self, fabric: Fabric) -> list[Finding]:
        coroutine = managerFindings(self.agent, self.agent.port.refresh(), fabric)
        found: list[Finding] = self.answerTo(Deferred.fromCoroutine(coroutine), 30)
        return found

    def found(self, fabric: Fabric) -> list[str]:
        return [one.kind for one in self.findings(fabric)]

    def test_none(self) -> None:
        fabric = self.swept()
        other = self.fabric.port("c").info
        other[18:20] = b"\x00\x09"
        self.assertEqual(self.found(self.swept()), ["other-sm"])
        self.fabric.silence("d")
        self.assertEqual(self.found(fabric), ["sm-silent"])
        self.fabric = SimulatedFabric(self.clock, self.net(), isManaged=False)
        self.agent = self.agentAt("a")
        self.assertEqual(self.found(self.swept()), ["no-sm"])

    def test_recorded(self) -> None:
        fabric = self.swept()
        for port in fabric.ports():
            port.raw = port.raw[:18] + bytes(2) + port.raw[20:]
        self.assertEqual([one.kind for one in recordedManagers(fabric)], ["no-sm"])

    def test_several(self) -> None:
        """Several masters are one finding, the same for each order in which they are found."""
        capabilities = self.fabric.port("c").info
        capabilities[23] |= PortCapability.SM
        self.assertEqual(self.found(self.swept()), ["sm-silent"])

        class Manager:
            def handle(self, request: MADRequest) -> SMInfo:
                return SMInfo(guid=GUID.fromInt(7), smState=SMState.MASTER)

        MADServer(self.agentAt("c")).handle(1, Manager(), (1,))  # type: ignore[arg-type]  # it is one by shape
        (before,) = self.findings(self.swept())
        self.assertEqual((before.kind, before.where), ("several-sms", "subnet managers"))
        self.fabric.port("a").info[18:20] = self.lid("c").to_bytes(2, "big")
        self.assertIn(before, self.findings(self.swept()))


class CounterTests(HealthTestCase):
    def counted(self, thresholds: Thresholds | None = None, **options: Any) -> CounterReport:
        fabric = self.swept()
        survey = CounterSurvey(self.agent, self.agent.port.endPort, thresholds, **options)
        report: CounterReport = self.answerTo(survey.run(list(fabric.nodes.values())), 30)
        return report

    def test_errors(self) -> None:
        self.fabric.setCounters("left", 3, portXmitDiscards=7, symbolErrorCounter=2)
        self.fabric.setCounters("c", 1, portRcvErrors=11)
        report = self.counted()
        performanceSet = {(each.node.description, each.number): each.errors for each in report.ports}
        both = {"symbolErrorCounter": 2, "portXmitDiscards": 7}
        self.assertEqual(
            performanceSet, {("left", ALL_PORTS): both, ("left", 3): both, ("c", 1): {"portRcvErrors": 11}}
        )
        self.assertEqual([each.number for each in report.bad if each.node.isSwitch], [3])
        texts = [(one.kind, one.port, one.text) for one in counterFindings(report)]
        self.assertIn(("errors", 3, "SymbolErrorCounter 2, PortXmitDiscards 7"), texts)
        self.assertEqual(len(texts), 2)

    def test_thresholds(self) -> None:
        self.fabric.setCounters("c", 1, portRcvErrors=11, portXmitWait=500)
        self.assertEqual(len(self.counted().ports), 1)
        self.assertEqual(self.counted(parseThresholds("PortRcvErrors=11")).ports, [])
        self.assertEqual(self.counted(Thresholds().suppressing(["PortRcvErrors"])).ports, [])
        waiting = self.counted(parseThresholds("PortRcvErrors = 20\nPortXmitWait=0x1F3  # ticks"))
        self.assertEqual(waiting.ports[0].errors, {"portXmitWait": 500})

    def test_data(self) -> None:
        self.fabric.setCounters("c", 1, portXmitData=1 << 40)
        self.fabric.setCounters("b", 1, portXmitData=1 << 41, portRcvErrors=1)
        report = self.counted(dataOnly=True)
        data = next(each.data for each in report.ports if each.node.description == "c")
        self.assertEqual(data["portXmitData"], 1 << 40)
        self.assertIn("portUnicastRcvPkts", data)
        self.assertEqual(len(report.ports), 2 * 8 + 5)
        self.assertEqual([each.errors for each in report.ports if each.errors], [])
        [bad] = self.counted(withData=True).ports
        self.assertEqual((bad.errors, bad.data["portXmitData"]), ({"portRcvErrors": 1}, 1 << 41))

    def test_announcedInVain(self) -> None:
        """A node that refuses 64-bit counters, or the sum of its ports, is queried for the other counters."""
        agents = self.fabric.wire._pma
        answer = agents.answer

        def refuse(port: SimulatedPort, datagram: bytes) -> bytearray:
            reply = answer(port, datagram)
            isWide = datagram[16:18] == PortCountersExtended.attributeID.to_bytes(2, "big")
            if isWide or datagram[65] == ALL_PORTS:
                reply[4:6] = b"\x00\x0c"
            return reply

        self.patch(agents, "answer", refuse)
        self.fabric.setCounters("left", 3, symbolErrorCounter=2, portXmitData=5)
        for change in (lambda: None, self.fabric.countWide):
            change()
            for withData in (False, True):
                report = self.counted(withData=withData)
                self.assertEqual(report.silent, [])
                [counted] = report.ports
                self.assertEqual((counted.number, counted.errors), (3, {"symbolErrorCounter": 2}))
                self.assertFalse(counted.isWide)
            self.assertEqual(counted.data["portXmitData"], 5)
            report = self.counted(dataOnly=True)
            self.assertEqual((report.silent, len(report.ports)), ([], 2 * 8 + 5))

    def test_silent(self) -> None:
        fabric = self.swept()
        self.fabric.silence("c")
        self.fabric.setCounters("b", 1, portRcvErrors=1)
        survey = CounterSurvey(self.agent, self.agent.port.endPort)
        report = self.answerTo(survey.run(fabric.nodes.values()), 30)
        self.assertEqual([node.description for node, _ in report.silent], ["c"])
        self.assertEqual([each.node.description for each in report.bad], ["b"])
        self.assertEqual([one.kind for one in counterFindings(report)], ["errors", "counters-silent"])

    def test_otherPort(self) -> None:
        """A port of a host without a link, as in a snapshot, does not hide the errors of its other port."""
        fabric = self.swept()
        self.fabric.setCounters("b", 2, portRcvErrors=1)
        self.fabric.cut("b", 1)
        self.pump(2)
        for number in (2, None):
            survey = CounterSurvey(self.agent, self.agent.port.endPort)
            report = self.answerTo(survey.run([fabric.byLID(self.lid("b")).node]), 30)  # type: ignore[union-attr]
            self.assertEqual([each.number for each in report.bad], [number] if number else [])
            texts = ["port 1: PerformanceGet: no answer"] if number else ["PerformanceGet: no answer"]
            self.assertEqual([text for _node, text in report.silent], texts)
            self.fabric.silence("b")

    def test_localPort(self) -> None:
        """The loss of the local port fails the survey, and is not reported as missing answers of nodes."""
        fabric = self.swept()
        survey = CounterSurvey(self.agent, self.agent.port.endPort)
        self.patch(self.agent.port, "send", self.lost)
        self.failureResultOf(survey.run(fabric.nodes.values()), DeviceUnavailable)

    def lost(self, *arguments: object) -> None:
        raise DeviceUnavailable("the port is lost")

    def test_files(self) -> None:
        answer = parseThresholds("# comment\n\nSymbolErrorCounter=10\n#PortXmitWait=1\nVL15Dropped=0x10\n")
        self.assertEqual(answer.limits, {"symbolErrorCounter": 10, "vl15Dropped": 16})
        for wrong in ("Nonsense=1", "PortRcvErrors", "PortRcvErrors=many"):
            error = self.assertRaises(InvalidRequest, parseThresholds, "\n" + wrong, "mine")
            self.assertIn("mine, line 2", str(error))
        path = Path(self.mktemp())
        self.assertRaises(InvalidRequest, readThresholds, str(path))
        path.write_text("LinkDownedCounter=3")
        self.assertEqual(readThresholds(str(path)).limits, {"linkDownedCounter": 3})
        self.patch(errorcounters, "DEFAULT_THRESHOLDS", Path("/" + "x" * 300))  # too long a path
        self.assertEqual(readThresholds(), Thresholds())
        self.assertEqual(
            [shownName(name) for name in ("vl15Dropped", "portRcvErrors")], ["VL15Dropped", "PortRcvErrors"]
        )

    def test_capabilities(self) -> None:
        counters = PortCounters(qp1Dropped=3)
        self.assertEqual(Thresholds().exceeded(counters, 0), {})
        self.assertEqual(Thresholds().exceeded(counters, 1 << 15), {"qp1Dropped": 3})


class DifferenceTests(HealthTestCase):
    def changed(self, before: Fabric) -> list[tuple[str, str, int | None]]:
        after = load(json.loads(json.dumps(dump(self.swept()))))
        return [(one.kind, one.name, one.port) for one in differences(before, after)]

    def test_portChanges(self) -> None:
        before = self.swept()
        self.fabric.port("c").info[16:18] = b"\x00\x77"
        self.fabric.port("left", 2).info[31] = 1
        self.fabric.node("d").description = "router"
        found = self.changed(before)
        self.assertIn(("lid-changed", "c", 1), found)
        self.assertIn(("rate-changed", "left", 2), found)
        self.assertIn(("node-changed", "router", None), found)

    def test_unknownState(self) -> None:
        self.fabric.port("c").info[32] |= 15
        self.assertEqual(self.changed(self.swept()), [])


EXTENDED = PortCapability.EXTENDED_SPEEDS
BOTH = EXTENDED | PortCapability.CAPABILITY_MASK2
XDR = 0x0800
"""CapabilityMask2 of ports that can report XDR."""


def portInfo(**fields: Any) -> bytes:
    return PortInfo(**fields).encode()


class SpeedTests(SynchronousTestCase):
    def test_active(self) -> None:
        able = portInfo(capabilityMask=BOTH, capabilityMask2=XDR)
        for code, name in ((1, "SDR"), (2, "DDR"), (4, "QDR")):
            self.assertEqual(activeSpeed(portInfo(linkSpeedActive=code), able), LaneSpeed[name])
        for code, name in ((1, "FDR"), (2, "EDR"), (4, "HDR"), (8, "NDR")):
            info = portInfo(linkSpeedActive=4, linkSpeedExtActive=code)
            self.assertEqual(activeSpeed(info, able), LaneSpeed[name])
            self.assertEqual(activeSpeed(info, portInfo()), LaneSpeed.QDR)
        info = portInfo(linkSpeedActive=4, linkSpeedExtActive=8, linkSpeedExtActive2=1)
        self.assertEqual(activeSpeed(info, able), LaneSpeed.XDR)
        self.assertEqual(activeSpeed(info, portInfo(capabilityMask=BOTH)), LaneSpeed.NDR)

    def test_sets(self) -> None:
        end = portInfo(capabilityMask=BOTH, capabilityMask2=XDR)
        info = portInfo(
            linkSpeedSupported=7,
            linkSpeedEnabled=3,
            linkSpeedExtSupported=15,
            linkSpeedExtEnabled=3,
            linkSpeedExtSupported2=1,
            linkSpeedExtEnabled2=1,
        )
        names = ["SDR", "DDR", "QDR", "FDR", "EDR", "HDR", "NDR", "XDR"]
        self.assertEqual(has(supportedSpeeds(info, end)), names)
        self.assertEqual(has(enabledSpeeds(info, end)), ["SDR", "DDR", "FDR", "EDR", "XDR"])
        self.assertEqual(fastest(enabledSpeeds(info, end)), LaneSpeed.XDR)
        self.assertEqual(
            has(enabledSpeeds(portInfo(linkSpeedEnabled=7, linkSpeedExtEnabled=30), end)), names[:3]
        )
        self.assertEqual(fastest(0), 0)

    def test_fdr10(self) -> None:
        vendors = ExtendedPortInfo(linkSpeedSupported=1, linkSpeedEnabled=1, linkSpeedActive=1).encode()
        info = portInfo(linkSpeedActive=4, linkSpeedSupported=7, linkSpeedEnabled=7)
        self.assertEqual(activeSpeed(info, info, vendors), LaneSpeed.FDR10)
        self.assertEqual(activeSpeed(portInfo(linkSpeedActive=2), info, vendors), LaneSpeed.DDR)
        self.assertEqual(fastest(supportedSpeeds(info, info, vendors)), LaneSpeed.FDR10)
        self.assertEqual(fastest(enabledSpeeds(info, info, vendors)), LaneSpeed.FDR10)
        self.assertEqual(fastest(enabledSpeeds(info, info)), LaneSpeed.QDR)

    def test_asking(self) -> None:
        up = {"portPhysicalState": PhysicalState.LINK_UP, "linkSpeedActive": 4}
        end = portInfo(capabilityMask=EXTENDED)
        self.assertTrue(wantsAsking(portInfo(**up), b""))
        self.assertTrue(wantsAsking(portInfo(**up, linkSpeedExtActive=1), portInfo()))
        self.assertFalse(wantsAsking(portInfo(**up, linkSpeedExtActive=1), b""))
        self.assertFalse(wantsAsking(portInfo(**up, linkSpeedExtActive=1), end))
        self.assertFalse(wantsAsking(portInfo(linkSpeedActive=4), end))
        self.assertFalse(wantsAsking(portInfo(**{**up, "linkSpeedActive": 2}), end))
        for vendor, device, expected in (
            (0x2C9, 0xC738, True),  # SwitchX
            (0x2C9, 0x1003, True),  # ConnectX-3
            (0x2C9, 0xBD36, False),  # InfiniScale IV, without FDR10
            (0x2C9, 0x673C, False),  # ConnectX-2
            (0x119F, 0x1B02, True),
            (0x2C9, 0x1B02, False),
        ):
            self.assertEqual(mayHaveFDR10(NodeInfo(vendorID=vendor, deviceID=device)), expected, hex(device))

    def test_rates(self) -> None:
        for known in (GIGABITS, EXTENDED_GIGABITS):
            for speed, rate in known.items():
                self.assertEqual(RATES[LaneSpeed[str(speed.name)]], rate)
        self.assertEqual(list(RATES.values()), sorted(RATES.values()))


class CountersTests(SynchronousTestCase):
    def test_added(self) -> None:
        one = PortCounters(portSelect=1, portRcvErrors=65000, linkDownedCounter=3)
        answer = added([one, one], 255)
        self.assertEqual((answer.portSelect, answer.portRcvErrors, answer.linkDownedCounter), (255, 65535, 6))
        lanes = PortXmitDataSL(portXmitDataSL=tuple(range(16)))
        self.assertEqual(added([lanes, lanes], 255).portXmitDataSL, tuple(range(0, 32, 2)))

    def test_changed(self) -> None:
        before = PortCounters(portXmitPkts=10, portRcvPkts=10)
        after = PortCounters(portXmitPkts=15, portRcvPkts=4)
        answer = changed(before, after, ["portXmitPkts", "portRcvPkts"])
        self.assertEqual(answer.counted, {"portXmitPkts": 5, "portRcvPkts": 4})
        self.assertEqual(answer.cleared, ("portRcvPkts",))
        lanes = [PortXmitDataSL(portXmitDataSL=(base, *range(15))) for base in (5, 7)]
        answer = changed(lanes[0], lanes[1], ["portXmitDataSL"])
        self.assertEqual(
            {name: value for name, value in answer.counted.items() if value}, {"portXmitDataSL[0]": 2}
        )

    def test_full(self) -> None:
        top = (1 << 32) - 1
        before = PortCounters(portXmitData=top - 10, portRcvData=top, symbolErrorCounter=65535)
        after = PortCounters(portXmitData=top, portRcvData=3, symbolErrorCounter=65535)
        answer = changed(before, after, ["portXmitData", "portRcvData", "symbolErrorCounter"])
        self.assertEqual(answer.counted, {"portXmitData": 10, "portRcvData": 3, "symbolErrorCounter": 0})
        self.assertEqual(answer.saturated, ("symbolErrorCounter", "portXmitData"))
        self.assertEqual(answer.cleared, ("portRcvData",))

    def test_cleared(self) -> None:
        top = (1 << 32) - 1
        before = PortCounters(portXmitData=top - 99, linkDownedCounter=254, portRcvData=top // 2)
        after = PortCounters(portXmitData=100, linkDownedCounter=1, portRcvData=100)
        answer = changed(before, after, ["portXmitData", "linkDownedCounter", "portRcvData"])
        self.assertEqual(answer.counted, {"portXmitData": 100, "linkDownedCounter": 1, "portRcvData": 100})
        self.assertEqual(answer.cleared, ("linkDownedCounter", "portXmitData", "portRcvData"))

    def test_rates(self) -> None:
        rates = Rates(1, 2.0, Increase({"portXmitData": 100, "portXmitPkts": 8}))
        answer = rates.toDict()
        self.assertEqual((answer["xmitBytesPerSecond"], answer["xmitPktsPerSecond"]), (200.0, 4.0))
        self.assertEqual(answer["rcvBytesPerSecond"], 0.0)
        self.assertEqual(Rates(1, 0.0, Increase({"portXmitData": 1})).perSecond("portXmitData"), 0.0)

    def test_names(self) -> None:
        names = counterNames(PortCountersExtended)
        self.assertEqual(names[0], "portXmitData")
        self.assertFalse({"portSelect", "counterSelect", "counterSelect2"} & set(names))


RING = """
width=3
speed=7

Switch 4 "s0"
[1] "a"[1]
[2] "s1"[3]
Switch 4 "s1"
[1] "h1"[1]
[2] "s2"[3]
Switch 4 "s2"
[1] "h2"[1]
[2] "s0"[3]
Hca 1 "a"
Hca 1 "h1"
Hca 1 "h2"
"""


class SurveyedTestCase(FabricTestCase):
    def surveyed(self, fabric: Fabric) -> Tables:
        tables: Tables = self.answerTo(TableSurvey(self.agent, self.agent.port.endPort, fabric).run())
        return tables

    def found(self) -> list[Finding]:
        fabric = self.sweep()
        return self.judged(fabric, self.surveyed(fabric))

    def judged(self, fabric: Fabric, tables: Tables) -> list[Finding]:
        routes = routeFindings(self.agent, self.agent.port.endPort, fabric, tables.linear)
        found: list[Finding] = self.answerTo(Deferred.fromCoroutine(routes))
        return [*filter(None, tableFindings(fabric, tables))] + found

    def kinds(self) -> list[str]:
        return [one.kind for one in self.found()]


class TableTests(SurveyedTestCase):
    def test_pieces(self) -> None:
        """The check of balanced links pauses after each switch with hosts."""
        fabric = self.sweep()
        found = list(balances(fabric, self.surveyed(fabric).linear))
        self.assertEqual(found[:2], [None, None])
        self.assertEqual([one.node.description for one in found[2:] if one is not None], ["left", "right"])

    def test_steps(self) -> None:
        """The number of links and LIDs that are examined between two pauses has a limit, plus one switch."""
        self.fabric = SimulatedFabric(self.clock, fatTree(64, 8))
        self.agent = self.agentAt("h00000")
        fabric = self.sweep()
        linear = self.surveyed(fabric).linear
        whole = [one for one in balances(fabric, linear) if one is not None]
        work, steps, found = 0, [], []
        linked = Node.linked

        class Table(bytes):
            def __getitem__(self, lid: Any) -> Any:
                nonlocal work
                work += 1
                return super().__getitem__(lid)

        def examined(node: Node) -> list[Port]:
            nonlocal work
            work += len(linked(node))
            return linked(node)

        self.patch(Node, "linked", examined)
        self.patch(pace, "STEP", 40)
        for one in balances(fabric, {guid: Table(table) for guid, table in linear.items()}):
            if one is None:
                steps.append(work)
                work = 0
            else:
                found.append(one)
                work += len(one.groups)
        self.assertEqual(found, whole)
        self.assertGreater(len(steps), 32)
        self.assertLessEqual(max(*steps, work), 40 + 8)

    def test_severalLIDs(self) -> None:
        """The check of routes pauses after each LID, of which a port may have 128."""
        poke(PortInfo, "lmc")(self.fabric.port("c").info, 2)
        fabric = self.sweep()
        check = RouteCheck(fabric, self.surveyed(fabric).linear)
        followed: list[int] = []
        self.patch(check, "_follow", lambda end, lid, sources: followed.append(lid))
        counts = [0, *(len(followed) for _ in check.steps())]
        lid = self.lid("c")
        self.assertLessEqual({lid, lid + 1, lid + 2, lid + 3}, set(followed))
        self.assertEqual({after - before for before, after in pairwise(counts)}, {0, 1})

    def test_pkeys(self) -> None:
        host, switch = self.fabric.port("c"), self.fabric.port("right", 1)
        poke(PortInfo, "partitionEnforcementInbound")(switch.info, 1)
        self.assertEqual(self.found(), [])
        keys = PKeyTable(pkeys=(0xFFFF, 0x8001, 0x0002) + (0,) * 29).encode()
        host.tables = {(PKeyTable.attributeID, 0): keys}
        (found,) = self.found()
        self.assertEqual(
            (found.kind, found.where), ("pkeys", f"right ({self.fabric.node('right').guid}) port 1")
        )
        self.assertIn("0x0001, 0x0002", found.text)
        switch.tables = {(PKeyTable.attributeID, 0): keys}
        self.assertEqual(self.found(), [])

    def test_lanes(self) -> None:
        lanes = SLtoVLMappingTable(vls=(0,) * 16).encode()
        self.fabric.port("c").tables = {(SLtoVLMappingTable.attributeID, 0): lanes}
        (found,) = self.found()
        self.assertEqual(found.kind, "sl-to-vl")
        poke(PortInfo, "operationalVLs")(self.fabric.port("left", 3).info, 1)
        self.assertEqual(sorted(self.kinds()), ["sl-to-vl", "vls"])

    def test_firmware(self) -> None:
        fabric = self.sweep()
        nodes = sorted(fabric.hosts(), key=lambda node: node.guid.raw)
        answer = [
            Firmware("MT_1", (20, 40, 1000)),
            Firmware("MT_1", (20, 39, 9999)),
            Firmware("MT_2", (1, 0, 0)),
        ]
        tables = Tables(firmware={node.guid: one for node, one in zip(nodes, answer, strict=True)})
        (found,) = filter(None, tableFindings(fabric, tables))
        self.assertEqual((found.kind, found.guid), ("firmware", nodes[1].guid))
        self.assertIn("20.39.9999", found.text)

    def test_silent(self) -> None:
        fabric = self.sweep()
        self.fabric.silence("right")
        tables = self.surveyed(fabric)
        self.assertEqual(len(tables.linear), 1)
        self.assertEqual(self.judged(fabric, tables), [])

    def test_names(self) -> None:
        self.assertEqual([one.kind for one in findings(self.sweep())], [])
        place = span(NodeInfo, "systemImageGUID")
        for name in "ab":
            node = self.fabric.node(name)
            raw = bytearray(node.info)
            raw[place] = GUID(b"machine1").raw
            node.info = bytes(raw)
        (found,) = findings(self.sweep())
        self.assertEqual(found.kind, "two-names")
        for name in "ab":
            self.fabric.node(name).description = f"host1 mlx5_{name}"
        self.assertEqual(findings(self.sweep()), [])


class RouteTests(SurveyedTestCase):
    def spoil(self, switch: str, lid: int, port: int) -> None:
        self.fabric.linearOf(self.fabric.node(switch))[lid] = port

    def test_nowhere(self) -> None:
        self.spoil("left", self.lid("c"), 0xFF)
        self.spoil("left", self.lid("d"), 7)
        found = self.found()
        self.assertEqual([one.kind for one in found], ["unreachable-lid"] * 2)
        self.assertEqual({one.guid for one in found}, {self.fabric.node(name).guid for name in "cd"})
        self.assertTrue(all("left" in one.text for one in found))

    def test_silentSwitch(self) -> None:
        """Paths through a switch that does not answer are not judged: it may still forward packets."""
        self.spoil("left", self.lid("b"), 3)
        self.fabric.silence("right")
        self.assertEqual(self.found(), [])
        self.fabric.cut("left", 3)
        self.assertEqual(self.kinds(), ["unreachable-lid"])

    def test_circles(self) -> None:
        self.spoil("left", self.lid("c"), 3)
        self.spoil("right", self.lid("c"), 4)
        self.assertLessEqual({"credit-loop", "unreachable-lid"}, set(self.kinds()))

    def test_uneven(self) -> None:
        for name in "cd":
            self.spoil("left", self.lid(name), 3)
        self.spoil("left", self.lid("b", 2), 3)
        self.assertEqual(self.kinds(), ["unbalanced"])

    def test_unused(self) -> None:
        self.spoil("left", self.lid("right"), 7)
        self.assertEqual(self.found(), [])


class RingTests(SurveyedTestCase):
    def net(self) -> Net:
        return parseNet(RING)

    def test_loop(self) -> None:
        self.assertEqual(self.found(), [])
        for at, host in (("s0", "h2"), ("s1", "a"), ("s2", "h1")):
            self.fabric.linearOf(self.fabric.node(at))[self.lid(host)] = 2
        (found,) = self.found()
        self.assertEqual(found.kind, "credit-loop")
        self.assertTrue(found.text.startswith("3 links"), found.text)


class CableTests(SurveyedTestCase):
    def compared(self, text: str) -> list[tuple[str, str]]:
        found = cableFindings(self.sweep(), parseCables(text))
        return sorted((one.kind, one.where.partition(" (")[0]) for one in found)

    def test_well(self) -> None:
        self.assertEqual(self.compared(TWO_SWITCHES), [])
        guid = self.fabric.node("c").guid.raw.hex()
        self.assertEqual(self.compared(TWO_SWITCHES.replace('"c"', f'"H-{guid}"')), [])

    def test_ownCable(self) -> None:
        """Without a link of the local port, nothing is known about the other nodes."""
        self.fabric.cut("a")
        self.assertEqual(self.compared(TWO_SWITCHES), [])

    def test_chassis(self) -> None:
        """A topology of C{ibnetdiscover -g} also has enclosures and the numbers of their ports."""
        text = "\nChassis 1 (guid 0x8f104004123ff)\n" + TWO_SWITCHES.replace("[3]", "[3][ext 7]")
        self.assertEqual(self.compared(text), [])
        self.assertEqual(parseCables(text), parseCables(TWO_SWITCHES))
        self.assertEqual(parseNet(text), parseNet(TWO_SWITCHES))

    def test_swapped(self) -> None:
        text = (
            TWO_SWITCHES.replace('"a"[1]', '"x"[1]').replace('"c"[1]', '"a"[1]').replace('"x"[1]', '"c"[1]')
        )
        self.assertEqual([kind for kind, _where in self.compared(text)], ["cable-wrong"] * 2)

    def test_missing(self) -> None:
        self.fabric.cut("left", 3)
        self.assertEqual(self.compared(TWO_SWITCHES), [("cable-missing", "left")])
        self.fabric.heal("left", 3)
        self.assertEqual(
            self.compared(TWO_SWITCHES.replace('[4] "right"[4]\n', "")), [("cable-extra", "left")]
        )
        self.assertEqual(self.compared(TWO_SWITCHES.replace('[1] "c"[1]\n', "")), [("cable-extra", "right")])
        switches = 'Switch 8 "left"\n[3] "right"[3]\n[4] "right"[4]\n'
        self.assertEqual(self.compared(switches), [])  # a plan with switches only
        more = TWO_SWITCHES.replace('[5] "b"[2]', '[5] "b"[2]\n[6] "z"[1]')
        self.assertEqual(self.compared(more), [("node-missing", "z")])

    def test_mistakes(self) -> None:
        long = "9" * 5000  # more digits than int converts
        for text in (
            *('Switch 2 "s"\n[1] nothing', 'Switch 2 "s"\n[1] "a"[1]\n[1] "b"[1]', "", '[1] "a"[1]'),
            *(f'Switch 2 "s"\n[{long}] "a"[1]', f'Switch 2 "s"\n[1] "a"[{long}]', f'Switch {long} "s"'),
        ):
            error = self.assertRaises(InvalidRequest, parseCables, text, "my.topology")
            self.assertIn("my.topology", str(error))
