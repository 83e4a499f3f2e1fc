"""Subnet management agents of simulated fabrics, M_Keys, and rarely supported attributes."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GID, GUID, LID
from txrdma.iba.verbs import NodeType, PortState
from txrdma.mad.core.frames import Keys
from txrdma.mad.errors import MADError, MADTimeoutError
from txrdma.mad.layouts import sa, smp
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.fabric.wire.timetable import SimulatedTimetable
from txrdma.test.support.mad.simulated import FabricTestCase, gmp, route


class DirectedRouteTests(FabricTestCase):
    options = {"isManaged": False}

    def test_nowhere(self) -> None:
        for wrong in (route(2), route(1, 8), route(1, 77), route(1, 2, 2), route(1, 0)):
            self.refused(self.agent.SubnGet(smp.NodeInfo, wrong, retries=0), MADTimeoutError)

    def test_statuses(self) -> None:
        switchInfo = self.refused(self.agent.SubnGet(smp.SwitchInfo, route()), MADError)
        badPort = self.refused(self.agent.SubnGet(smp.PortInfo, route(1), 9), MADError)
        unknown = self.refused(self.agent.SubnGet(smp.LedInfo, route(1)), MADError)
        self.assertEqual((switchInfo.status, badPort.status, unknown.status), (0x0C, 0x1C, 0x0C))

    def test_method(self) -> None:
        answers: list[bytes] = []
        port = self.fabric.attach("c")

        class Receiver:
            def received(self, datagram: bytes, envelope: object) -> None:
                answers.append(datagram)

        port.start(Receiver())  # type: ignore[arg-type]  # nothing else comes
        datagram = bytes((1, 0x81, 1, 0x11)) + bytes(28) + b"\xff" * 4 + bytes(220)
        port.send(datagram, IBDRPath())
        port.send(bytes((1, 0x81, 7, 1)) + datagram[4:], IBDRPath())
        self.pump()
        self.assertEqual([answer[3:6].hex() for answer in answers], ["818008", "818004"])


class ManagedTests(FabricTestCase):
    def test_top(self) -> None:
        lid = self.lid("c")
        self.answerTo(self.agent.SubnSet(smp.SwitchInfo(linearFDBTop=LID(lid - 1)), route(1)))
        lost = self.agent.SubnGet(smp.NodeDescription, IBPath(dlid=lid), retries=0)
        self.refused(lost, MADTimeoutError)
        self.answerTo(self.agent.SubnSet(smp.SwitchInfo(linearFDBTop=lid), route(1)))
        self.assertEqual(self.answerTo(self.agent.SubnGet(smp.NodeDescription, IBPath(dlid=lid))).text, "c")

    def test_noReturnPath(self) -> None:
        broken = bytearray(self.fabric.linearOf(self.fabric.node("right"))).ljust(64, b"\xff")
        broken[self.lid("a")] = 0xFF
        there = IBPath(dlid=self.lid("c"))
        self.assertEqual(self.answerTo(self.agent.SubnGet(smp.NodeDescription, there)).text, "c")
        self.answerTo(self.agent.SubnSet(smp.LinearForwardingTable(ports=bytes(broken)), route(1, 3)))
        self.refused(self.agent.SubnGet(smp.NodeDescription, there, retries=0), MADTimeoutError)

    def test_lmc(self) -> None:
        fabric = self.fabric = SimulatedFabric(self.clock, self.net(), lmc=2)
        agent = self.agentAt("a")
        lid = fabric.port("c").lid
        self.assertEqual((lid % 4, agent.port.endPort.lidMask), (0, 2))
        for path in range(4):
            reported = self.answerTo(agent.SubnGet(smp.NodeDescription, IBPath(dlid=LID(lid + path))))
            self.assertEqual(reported.text, "c")

    def test_mixedRoute(self) -> None:
        begun = IBDRPath(dlid=self.lid("right"), drSLID=self.lid("right"), drPath=(1,))
        self.assertEqual(self.answerTo(self.agent.SubnGet(smp.NodeDescription, begun)).text, "c")
        ended = IBDRPath(drPath=(1,), drDLID=self.lid("d"))
        self.assertEqual(self.answerTo(self.agent.SubnGet(smp.NodeDescription, ended)).text, "d")


class SettingTests(FabricTestCase):
    def info(self, path: IBPath, port: int = 0) -> smp.PortInfo:
        reported: smp.PortInfo = self.answerTo(self.agent.SubnGet(smp.PortInfo, path, port))
        return reported

    def test_lid(self) -> None:
        self.agent.SubnSet(smp.PortInfo(lid=LID(99)), route(1, 3), 0)
        self.assertEqual(self.info(route(1, 3)).lid, 99)
        self.agent.SubnSet(smp.PortInfo(lid=LID(98)), route(1, 3), 1)
        self.assertEqual(self.info(route(1, 3), 1).lid, 0)
        refusal = self.agent.SubnSet(smp.PortInfo(lid=LID(0xC000)), route(1, 3), 0)
        self.assertEqual(self.refused(refusal, MADError).status, 0x1C)

    def test_tables(self) -> None:
        for content, modifier in (
            (smp.PKeyTable(pkeys=(0x8001,) * 32), 3 << 16),
            (smp.SLtoVLMappingTable(vls=(1,) * 16), 0x0203),
            (smp.VLArbitrationTable(entries=(smp.VLWeight(vl=1, weight=9),) * 32), 3 << 16 | 4),
            (smp.LinearForwardingTable(ports=bytes(range(8)) * 8), 9),
            (smp.MulticastForwardingTable(portMasks=(5,) * 32), 3),
            (smp.SwitchInfo(linearFDBTop=LID(70), lifeTimeValue=9), 0),
        ):
            set = self.answerTo(self.agent.SubnSet(content, route(1), modifier))
            reported = self.answerTo(self.agent.SubnGet(type(content), route(1), modifier))
            self.assertEqual(set, reported)
            if not isinstance(content, smp.SwitchInfo):
                self.assertEqual(reported, content)
        other = self.answerTo(self.agent.SubnGet(smp.SLtoVLMappingTable, route(1), 0x0303))
        self.assertEqual(other.vls, (*range(15), 7))

    def test_blocks(self) -> None:
        for kind, modifier in (
            (smp.PKeyTable, 2),
            (smp.PKeyTable, 9 << 16),
            (smp.GUIDInfo, 9),
            (smp.VLArbitrationTable, 5 << 16),
            (smp.SLtoVLMappingTable, 0x0900),
            (smp.LinearForwardingTable, 480),
            (smp.MulticastForwardingTable, 32),
        ):
            error = self.refused(self.agent.SubnGet(kind, route(1), modifier), MADError)
            self.assertEqual(error.status, 0x1C, kind)


class ManagementKeyTests(FabricTestCase):
    def protect(self, bits: int) -> None:
        self.agent.SubnSet(smp.PortInfo(mkey=42, lid=self.lid("c"), mkeyProtectBits=bits), route(1, 3, 1))
        self.pump(1)

    def test_set(self) -> None:
        self.protect(0)
        self.refused(self.agent.SubnSet(smp.PortInfo(), route(1, 3, 1), retries=1), MADTimeoutError)
        reported = self.answerTo(self.agent.SubnGet(smp.PortInfo, route(1, 3, 1)))
        self.assertEqual((reported.mkeyViolations, reported.mkey), (2, 42))
        self.answerTo(self.agent.SubnSet(smp.PortInfo(mkey=43), route(1, 3, 1), keys=Keys(mkey=42)))
        self.assertEqual(self.answerTo(self.agent.SubnGet(smp.PortInfo, route(1, 3, 1))).mkey, 43)

    def test_hidden(self) -> None:
        self.protect(1)
        self.assertEqual(self.answerTo(self.agent.SubnGet(smp.PortInfo, route(1, 3, 1))).mkey, 0)
        reported = self.answerTo(self.agent.SubnGet(smp.PortInfo, route(1, 3, 1), keys=Keys(mkey=42)))
        self.assertEqual(reported.mkey, 42)

    def test_closed(self) -> None:
        self.protect(2)
        self.refused(self.agent.SubnGet(smp.NodeInfo, route(1, 3, 1), retries=0), MADTimeoutError)
        reported = self.answerTo(self.agent.SubnGet(smp.NodeInfo, route(1, 3, 1), keys=Keys(mkey=42)))
        self.assertEqual(reported.nodeType, NodeType.CHANNEL_ADAPTER)


class TimetableTests(SynchronousTestCase):
    def test_stall(self) -> None:
        clock = SimulatedClock()
        table = SimulatedTimetable(clock)
        done: list[float] = []

        def again() -> None:
            done.append(clock.seconds())
            table.later(0.01, again)

        table.later(0.01, again)
        clock.advance(100)
        self.assertLess(len(done), 15)
        table.clear()

    def test_order(self) -> None:
        clock = SimulatedClock()
        table = SimulatedTimetable(clock)
        done: list[str] = []
        table.later(2, done.append, "late")
        table.later(1, lambda: table.later(0, done.append, "brought"))
        table.later(1, done.append, "first")
        table.later(1, done.append, "second")
        clock.advance(1)
        self.assertEqual(done, ["first", "second", "brought"])
        clock.advance(1)
        self.assertEqual((done[3:], len(table)), (["late"], 0))

    def test_failure(self) -> None:
        clock = SimulatedClock()
        table = SimulatedTimetable(clock)
        done: list[int] = []
        table.later(1, int, "no number")
        table.later(1, done.append, 1)
        self.assertRaises(ValueError, clock.advance, 1)
        clock.advance(0)
        self.assertEqual(done, [1])


class SpeedTests(FabricTestCase):
    def info(self, path: IBPath, port: int) -> tuple[int, int, int]:
        reported = self.answerTo(self.agent.SubnGet(smp.PortInfo, path, port))
        return reported.linkSpeedActive, reported.linkSpeedExtActive, reported.linkSpeedExtEnabled

    def vendors(self, path: IBPath, port: int) -> tuple[int, int, int]:
        reported = self.answerTo(self.agent.SubnGet(smp.ExtendedPortInfo, path, port))
        return reported.linkSpeedSupported, reported.linkSpeedEnabled, reported.linkSpeedActive

    def test_none(self) -> None:
        set = smp.PortInfo(linkSpeedExtEnabled=30)
        self.assertEqual(self.answerTo(self.agent.SubnSet(set, route(1), 2)).linkSpeedExtEnabled, 30)
        self.assertEqual(self.info(route(1), 2), (4, 4, 30))
        self.answerTo(self.agent.SubnSet(smp.PortInfo(portState=PortState.DOWN), route(1), 2))
        self.assertEqual(self.info(route(1), 2), (4, 0, 30))
        self.answerTo(
            self.agent.SubnSet(smp.PortInfo(portState=PortState.DOWN, linkSpeedExtEnabled=31), route(1), 2)
        )
        self.assertEqual(self.info(route(1), 2), (4, 4, 7))

    def test_unsupported(self) -> None:
        for wrong in (8, 16, 29):
            asked = self.agent.SubnSet(smp.PortInfo(linkSpeedExtEnabled=wrong), route(1), 2)
            self.assertEqual(self.refused(asked, MADError).status, 0x1C)

    def test_disabled(self) -> None:
        self.fabric.runFDR10()
        off = smp.ExtendedPortInfo(stateChangeEnable=1)
        self.assertEqual(self.answerTo(self.agent.SubnSet(off, route(1), 2)).linkSpeedEnabled, 0)
        self.answerTo(self.agent.SubnSet(smp.PortInfo(portState=PortState.DOWN), route(1), 2))
        self.assertEqual(self.vendors(route(1), 2), (1, 0, 0))
        self.assertEqual(self.vendors(route(1, 2), 1), (1, 1, 0))
        unknown = smp.ExtendedPortInfo(stateChangeEnable=1, linkSpeedEnabled=2)
        self.assertEqual(self.refused(self.agent.SubnSet(unknown, route(1), 2), MADError).status, 0x1C)


class LeaseTests(FabricTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.there = route(1, 3, 1)
        info = smp.PortInfo(mkey=42, lid=self.lid("c"), mkeyProtectBits=2, mkeyLeasePeriod=10)
        self.answerTo(self.agent.SubnSet(info, self.there))

    def readPort(self, key: int = 0) -> Any:
        return self.agent.SubnGet(smp.PortInfo, self.there, keys=Keys(mkey=key), retries=0)

    def test_end(self) -> None:
        self.pump(100)
        self.refused(self.readPort(), MADTimeoutError, 5)
        self.refused(self.readPort(1), MADTimeoutError, 4)
        self.pump(2)
        reported = self.answerTo(self.readPort())
        self.assertEqual((reported.mkey, reported.mkeyProtectBits, reported.mkeyViolations), (42, 0, 2))
        self.refused(self.agent.SubnSet(smp.PortInfo(), self.there, retries=0), MADTimeoutError)
        self.answerTo(self.agent.SubnSet(smp.PortInfo(mkey=7), self.there, keys=Keys(mkey=42)))

    def test_renewed(self) -> None:
        self.refused(self.readPort(), MADTimeoutError, 5)
        self.assertEqual(self.answerTo(self.readPort(42), 0).mkey, 42)
        self.pump(8)
        self.refused(self.readPort(), MADTimeoutError, 5)


class RouterTests(FabricTestCase):
    def test_path(self) -> None:
        away = GID.fromParts(0xFEC0 << 48, GUID.fromInt(5))
        mine = GID.fromParts(0xFE80 << 48, self.fabric.port("a").guid)
        query = sa.PathRecord.query(sgid=mine, dgid=away, numbPath=1)
        reported = self.answerTo(self.agent.SubnAdmGet(query, gmp(self.lid("d"))))
        self.assertEqual((reported.dlid, reported.dgid, reported.hopLimit), (self.lid("d"), away, 255))
        net = self.net()
        net.nodes["d"].kind = NodeType.CHANNEL_ADAPTER
        self.fabric = SimulatedFabric(self.clock, net)
        refused = self.agentAt("a").SubnAdmGet(query, gmp(self.lid("d")))
        self.assertEqual(self.refused(refused, MADError).status, 0x0300)
