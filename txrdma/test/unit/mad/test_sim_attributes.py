"""
Simulated fabrics: attributes that few devices have, M_Key leases, and speeds that are switched off.
"""

from __future__ import annotations

from typing import Any

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID, LID
from txrdma.iba.verbs import NodeType, PortState
from txrdma.mad.core.frames import Keys
from txrdma.mad.errors import MADError, MADTimeoutError
from txrdma.mad.layouts import sa, smp
from txrdma.sim.fabric import SimulatedFabric
from txrdma.test.support.mad.simulated import FabricTestCase, gmp, route


class LightTests(FabricTestCase):
    options = {"hasLEDs": True}

    def test_light(self) -> None:
        for path in (route(1, 3, 1), route(1)):
            self.assertFalse(self.told(self.agent.SubnGet(smp.LedInfo, path)).ledMask)
            self.assertTrue(self.told(self.agent.SubnSet(smp.LedInfo(ledMask=True), path)).ledMask)
            self.assertTrue(self.told(self.agent.SubnGet(smp.LedInfo, path)).ledMask)
        self.assertFalse(self.told(self.agent.SubnGet(smp.LedInfo, route())).ledMask)


class DiagnosisTests(FabricTestCase):
    def test_healthy(self) -> None:
        told = self.told(self.agent.SubnGet(smp.VendorDiag, route(1)))
        self.assertEqual((told.nextIndex, told.diagData), (0, bytes(62)))
        self.assertEqual(self.refused(self.agent.SubnGet(smp.VendorDiag, route(1), 1), MADError).status, 0x1C)


class RandomTableTests(FabricTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.fabric.haveRandomTable("left", 64)

    def table(self) -> Any:
        return self.told(self.agent.SubnGet(smp.RandomForwardingTable, route(1)))

    def test_ways(self) -> None:
        for name in ("b", "c", "d", "left", "right"):
            told = self.told(self.agent.SubnGet(smp.NodeDescription, IBPath(dlid=self.lid(name))), 0)
            self.assertEqual(told.text, name)
        entries = {entry.lid: entry.port for entry in self.table().entries if entry.valid}
        self.assertEqual((entries[self.lid("a")], entries[self.lid("left")]), (1, 0))
        self.assertIn(entries[self.lid("c")], (3, 4))

    def test_set(self) -> None:
        c, d = self.lid("c"), self.lid("d")
        entries = [smp.LIDPort()] * 16
        entries[13] = smp.LIDPort(lid=self.lid("a"), valid=True, port=1)
        entries[5] = smp.LIDPort(lid=LID(c & ~7), valid=True, lmc=3, port=3)
        table = smp.RandomForwardingTable(entries=tuple(entries))
        self.assertEqual(self.told(self.agent.SubnSet(table, route(1))), table)
        self.assertEqual(d & ~7, c & ~7)
        self.assertEqual(self.told(self.agent.SubnGet(smp.NodeDescription, IBPath(dlid=d)), 0).text, "d")
        entries[5] = smp.LIDPort(lid=c, port=3)
        self.told(self.agent.SubnSet(smp.RandomForwardingTable(entries=tuple(entries)), route(1)), 0)
        self.refused(self.agent.SubnGet(smp.NodeDescription, IBPath(dlid=c), retries=0), MADTimeoutError)

    def test_default(self) -> None:
        empty = smp.RandomForwardingTable(
            entries=(smp.LIDPort(lid=self.lid("a"), valid=True, port=1),) + (smp.LIDPort(),) * 15
        )
        self.told(self.agent.SubnSet(smp.SwitchInfo(defaultPort=4), route(1)), 0)
        self.told(self.agent.SubnSet(empty, route(1)), 0)
        lid = self.lid("c")
        self.assertEqual(self.told(self.agent.SubnGet(smp.NodeDescription, IBPath(dlid=lid)), 0).text, "c")

    def test_room(self) -> None:
        for kind, modifier, path, status in (
            (smp.RandomForwardingTable, 4, route(1), 0x1C),
            (smp.LinearForwardingTable, 0, route(1), 0x0C),
            (smp.RandomForwardingTable, 0, route(1, 3), 0x0C),
            (smp.RandomForwardingTable, 0, route(), 0x0C),
        ):
            error = self.refused(self.agent.SubnGet(kind, path, modifier), MADError)
            self.assertEqual(error.status, status)

    def test_records(self) -> None:
        (record,) = self.told(self.agent.SubnAdmGetTable(sa.RandomForwardingTableRecord, gmp(self.lid("d"))))
        self.assertEqual((record.lid, record.table), (self.lid("left"), self.table()))

    def test_swept(self) -> None:
        self.fabric.cut("left", 3)
        self.pump(2)
        entries = {entry.lid: entry.port for entry in self.table().entries if entry.valid}
        self.assertEqual(entries[self.lid("c")], 4)
        info = self.told(self.agent.SubnGet(smp.SwitchInfo, route(1)))
        self.assertEqual((info.linearFDBCap, info.randomFDBCap, info.linearFDBTop), (0, 64, 0))


class SpeedTests(FabricTestCase):
    def info(self, path: IBPath, port: int) -> tuple[int, int, int]:
        told = self.told(self.agent.SubnGet(smp.PortInfo, path, port))
        return told.linkSpeedActive, told.linkSpeedExtActive, told.linkSpeedExtEnabled

    def vendors(self, path: IBPath, port: int) -> tuple[int, int, int]:
        told = self.told(self.agent.SubnGet(smp.ExtendedPortInfo, path, port))
        return told.linkSpeedSupported, told.linkSpeedEnabled, told.linkSpeedActive

    def test_none(self) -> None:
        set = smp.PortInfo(linkSpeedExtEnabled=30)
        self.assertEqual(self.told(self.agent.SubnSet(set, route(1), 2)).linkSpeedExtEnabled, 30)
        self.assertEqual(self.info(route(1), 2), (4, 4, 30))
        self.told(self.agent.SubnSet(smp.PortInfo(portState=PortState.DOWN), route(1), 2))
        self.assertEqual(self.info(route(1), 2), (4, 0, 30))
        self.told(
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
        self.assertEqual(self.told(self.agent.SubnSet(off, route(1), 2)).linkSpeedEnabled, 0)
        self.told(self.agent.SubnSet(smp.PortInfo(portState=PortState.DOWN), route(1), 2))
        self.assertEqual(self.vendors(route(1), 2), (1, 0, 0))
        self.assertEqual(self.vendors(route(1, 2), 1), (1, 1, 0))
        unknown = smp.ExtendedPortInfo(stateChangeEnable=1, linkSpeedEnabled=2)
        self.assertEqual(self.refused(self.agent.SubnSet(unknown, route(1), 2), MADError).status, 0x1C)


class LeaseTests(FabricTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.there = route(1, 3, 1)
        info = smp.PortInfo(mkey=42, lid=self.lid("c"), mkeyProtectBits=2, mkeyLeasePeriod=10)
        self.told(self.agent.SubnSet(info, self.there))

    def look(self, key: int = 0) -> Any:
        return self.agent.SubnGet(smp.PortInfo, self.there, keys=Keys(mkey=key), retries=0)

    def test_end(self) -> None:
        self.pump(100)
        self.refused(self.look(), MADTimeoutError, 5)
        self.refused(self.look(1), MADTimeoutError, 4)
        self.pump(2)
        told = self.told(self.look())
        self.assertEqual((told.mkey, told.mkeyProtectBits, told.mkeyViolations), (42, 0, 2))
        self.refused(self.agent.SubnSet(smp.PortInfo(), self.there, retries=0), MADTimeoutError)
        self.told(self.agent.SubnSet(smp.PortInfo(mkey=7), self.there, keys=Keys(mkey=42)))

    def test_renewed(self) -> None:
        self.refused(self.look(), MADTimeoutError, 5)
        self.assertEqual(self.told(self.look(42), 0).mkey, 42)
        self.pump(8)
        self.refused(self.look(), MADTimeoutError, 5)


class RouterTests(FabricTestCase):
    def test_path(self) -> None:
        away = GID.fromParts(0xFEC0 << 48, GUID.fromInt(5))
        mine = GID.fromParts(0xFE80 << 48, self.fabric.port("a").guid)
        query = sa.PathRecord.query(sgid=mine, dgid=away, numbPath=1)
        told = self.told(self.agent.SubnAdmGet(query, gmp(self.lid("d"))))
        self.assertEqual((told.dlid, told.dgid, told.hopLimit), (self.lid("d"), away, 255))
        net = self.net()
        net.nodes["d"].kind = NodeType.CHANNEL_ADAPTER
        self.fabric = SimulatedFabric(self.clock, net)
        refused = self.agentAt("a").SubnAdmGet(query, gmp(self.lid("d")))
        self.assertEqual(self.refused(refused, MADError).status, 0x0300)
