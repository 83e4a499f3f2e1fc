"""Subnet administration of simulated fabrics, and several subnet managers."""

from __future__ import annotations

from typing import Any

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.mad.core.frames import Keys
from txrdma.mad.errors import MADError
from txrdma.mad.layouts import sa, smp
from txrdma.mad.layouts.messages import InformInfo, Notice, ReportedNotice
from txrdma.mad.layouts.smp import GUIDInfo
from txrdma.mad.layouts.values import PathMTU, PortCapability, Rate, Selector, SMState
from txrdma.mad.server import MADServer
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.fabric.agents.sminfo import ACKNOWLEDGE, DISABLE, HANDOVER, STANDBY
from txrdma.sim.fabric.sm.sagroups import IPOIB_BROADCAST
from txrdma.test.support.mad.simulated import FabricTestCase, gmp

EVERYTHING = sa.NodeRecord, sa.PortInfoRecord, sa.SwitchInfoRecord, sa.LinearForwardingTableRecord
TABLES = sa.PKeyTableRecord, sa.SLtoVLMappingTableRecord, sa.VLArbitrationTableRecord, sa.GUIDInfoRecord


class AdministrationTestCase(FabricTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.sa = gmp(self.agent.port.endPort.smLID)

    def table(self, payload: Any, **options: Any) -> list[Any]:
        records: list[Any] = self.answerTo(self.agent.SubnAdmGetTable(payload, self.sa, **options))
        return records

    def one(self, payload: Any) -> Any:
        return self.answerTo(self.agent.SubnAdmGet(payload, self.sa))

    def gid(self, name: str) -> GID:
        return GID.fromParts(0xFE80000000000000, self.fabric.port(name).end.guid)


class RecordTests(AdministrationTestCase):
    def test_statuses(self) -> None:
        for query, status in (
            (sa.NodeRecord.query(lid=LID(999)), 0x0300),
            (sa.NodeRecord, 0x0400),
            (sa.PathRecord.query(sgid=self.gid("a"), dgid=GID(bytes(16))), 0x0300),
            (sa.PathRecord.query(numbPath=1), 0x0600),
            (sa.LinkSpeedWidthPairsTableRecord, 0x000C),
        ):
            error = self.refused(self.agent.SubnAdmGet(query, self.sa), MADError)
            self.assertEqual(error.status, status, query)
        self.assertEqual(self.table(sa.NodeRecord.query(lid=LID(999))), [])

    def test_all(self) -> None:
        for kind in (*EVERYTHING, *TABLES, sa.SMInfoRecord):
            masks, _ = sa.componentsOf(kind)
            records = self.table(kind)
            self.assertTrue(records, kind)
            some = records[len(records) // 2]
            names = [field.name for field in kind.fields if field.type in (int, LID) and not field.reserved]
            query = kind.query(**{name: getattr(some, name) for name in names if name in masks})
            self.assertEqual(self.table(query), [some])

    def test_aliases(self) -> None:
        """A port gets alias GUIDs, is found by them, and loses them; its own GUID remains."""
        guids = tuple(GUID.fromInt(number) for number in range(0x50, 0x58))
        record = sa.GUIDInfoRecord(lid=self.lid("c"), guidInfo=GUIDInfo(guids=guids))
        mask = 0b11 | 0b10 << 4  # the LID, the block, and the second GUID
        asked = self.agent.SubnAdmSet(record, self.sa, componentMask=mask | 1 << 4)
        self.assertEqual(self.refused(asked, MADError).status, 0x0200)  # the first GUID is the port's own
        reported = self.answerTo(self.agent.SubnAdmSet(record, self.sa, componentMask=mask))
        own = self.fabric.port("c").guid
        self.assertEqual(reported.guidInfo.guids[:3], (own, guids[1], GUID(bytes(8))))
        alias = GID.fromParts(0xFE80000000000000, guids[1])
        path = self.one(sa.PathRecord.query(sgid=self.gid("a"), dgid=alias))
        self.assertEqual(path.dlid, self.lid("c"))
        self.answerTo(self.agent.SubnAdmDelete(record, self.sa, componentMask=mask))
        self.refused(
            self.agent.SubnAdmGet(sa.PathRecord.query(sgid=self.gid("a"), dgid=alias), self.sa), MADError
        )


class PathTests(AdministrationTestCase):
    def path(self, **wanted: Any) -> sa.PathRecord:
        path: sa.PathRecord = self.one(sa.PathRecord.query(sgid=self.gid("a"), dgid=self.gid("c"), **wanted))
        return path

    def test_selectors(self) -> None:
        """A path satisfies requests for at most its own MTU and rate."""
        self.assertEqual(self.path(mtuSelector=Selector.GREATER, mtu=PathMTU.MTU_1024).mtu, 4)
        self.assertEqual(self.path(rateSelector=Selector.LESS, rate=Rate.GBPS_400).rate, Rate.GBPS_200)
        self.assertEqual(self.path(rateSelector=Selector.LESS, rate=Rate.GBPS_200).rate, Rate.GBPS_168)
        self.assertEqual(self.path(mtuSelector=Selector.LESS, mtu=PathMTU.MTU_2048).mtu, 3)
        self.assertEqual(self.path(mtuSelector=Selector.EXACTLY, mtu=PathMTU.MTU_256).mtu, 1)
        for wanted in (
            {"mtuSelector": Selector.GREATER, "mtu": PathMTU.MTU_2048},
            {"rateSelector": Selector.EXACTLY, "rate": Rate.GBPS_100},
            {"rateSelector": Selector.LESS, "rate": Rate.GBPS_2_5},
            {"mtuSelector": Selector.LESS, "mtu": PathMTU.MTU_256},
            {"rateSelector": Selector.EXACTLY, "rate": Rate.GBPS_400},
            {"pkey": 0x1234},
        ):
            query = sa.PathRecord.query(sgid=self.gid("a"), dgid=self.gid("c"), **wanted)
            self.assertEqual(self.refused(self.agent.SubnAdmGet(query, self.sa), MADError).status, 0x0300)

    def test_sourceLID(self) -> None:
        """A path may begin at any LID of a host with several, also if it leads to a switch, which has one."""
        self.fabric = SimulatedFabric(self.clock, self.net(), lmc=1)
        self.agent = self.agentAt("a")
        self.sa = gmp(self.agent.port.endPort.smLID)
        for offset in range(2):
            slid = LID(self.lid("a") + offset)
            self.assertEqual(self.one(sa.PathRecord.query(slid=slid, dlid=self.lid("right"))).slid, slid)


class TraceTests(AdministrationTestCase):
    def trace(self, **wanted: Any) -> list[tuple[str, int, int]]:
        query = sa.PathRecord.query(**wanted, numbPath=1)
        asked = Filled(query.record.encode())
        call = self.agent.SubnAdmGetTraceTable(asked, self.sa, componentMask=query.mask)
        names = {int(node.guid): node.identifier for node in self.fabric.nodes.values()}
        return [(names[one.nodeID], one.entryPort, one.exitPort) for one in self.answerTo(call)]

    def test_nowhere(self) -> None:
        self.assertEqual(self.trace(slid=self.lid("a"), dlid=LID(999)), [])


class Filled(sa.TraceRecord):
    __slots__ = ("path",)

    def __init__(self, path: bytes) -> None:
        super().__init__()
        self.path = path

    def encode(self) -> bytes:
        return self.path


class GroupTests(AdministrationTestCase):
    group: dict[str, Any] = {
        "mgid": GID(bytes.fromhex("ff12601bffff00000000000000000001")),
        "qkey": 7,
        "trafficClass": 0,
        "serviceLevel": 0,
        "flowLabel": 0,
        "pkey": 0xFFFF,
    }

    def join(self, name: str, **values: Any) -> sa.MCMemberRecord:
        query = sa.MCMemberRecord.query(portGID=self.gid(name), joinState=1, **values)
        joined: sa.MCMemberRecord = self.answerTo(self.agent.SubnAdmSet(query, self.sa))
        return joined

    def test_lifecycle(self) -> None:
        first = self.join("a", **self.group)
        second = self.join("c", mgid=first.mgid)
        self.assertEqual((first.mlid, second.mlid, second.qkey), (0xC001, 0xC001, 7))
        members = self.table(sa.MCMemberRecord.query(mgid=first.mgid), keys=Keys(smKey=1))
        self.assertEqual({one.portGID for one in members}, {self.gid("a"), self.gid("c")})
        (group,) = self.table(sa.MCMemberRecord.query(mgid=first.mgid))
        self.assertEqual((group.portGID, group.joinState), (GID(bytes(16)), 0))
        for name in ("a", "c"):
            query = sa.MCMemberRecord.query(mgid=first.mgid, portGID=self.gid(name), joinState=1)
            self.answerTo(self.agent.SubnAdmDelete(query, self.sa))
        self.assertEqual([one.mgid for one in self.table(sa.MCMemberRecord)], [IPOIB_BROADCAST])

    def test_multicastTables(self) -> None:
        self.join("a", **self.group)
        self.join("c", mgid=self.group["mgid"])
        records = {record.lid: record for record in self.table(sa.MulticastForwardingTableRecord)}
        left, right = records[self.lid("left")], records[self.lid("right")]
        out = self.fabric.linearOf(self.fabric.node("right"))[self.lid("a")]
        self.assertEqual(left.table.portMasks[1], 1 << 1 | 1 << out)
        self.assertEqual(right.table.portMasks[1], 1 << 1 | 1 << out)

    def test_refusedCreation(self) -> None:
        """A request whose components contradict the group that it would create leaves no group."""
        query = sa.MCMemberRecord.query(
            portGID=self.gid("a"),
            joinState=1,
            mtu=PathMTU.MTU_2048,
            mtuSelector=Selector.GREATER,
            **self.group,
        )
        self.refused(self.agent.SubnAdmSet(query, self.sa), MADError)
        self.assertEqual([one.mgid for one in self.table(sa.MCMemberRecord)], [IPOIB_BROADCAST])

    def test_refused(self) -> None:
        self.join("a", **self.group)
        mgid = self.group["mgid"]
        for call, values, status in (
            ("SubnAdmSet", {"mgid": GID(b"\xff" * 16), "portGID": self.gid("a"), "joinState": 1}, 0x0600),
            ("SubnAdmSet", {"mgid": mgid, "portGID": self.gid("c"), "joinState": 1, "qkey": 8}, 0x0200),
            ("SubnAdmSet", {"mgid": mgid, "portGID": mgid, "joinState": 1}, 0x0500),
            ("SubnAdmDelete", {"mgid": mgid, "portGID": self.gid("c"), "joinState": 1}, 0x0200),
        ):
            query = sa.MCMemberRecord.query(**values)
            error = self.refused(getattr(self.agent, call)(query, self.sa), MADError)
            self.assertEqual(error.status, status, values)


class ServiceTests(AdministrationTestCase):
    def test_service(self) -> None:
        offer: dict[str, Any] = {
            "serviceID": 77,
            "serviceGID": self.gid("a"),
            "serviceName": b"files".ljust(64, b"\0"),
        }
        self.answerTo(self.agent.SubnAdmSet(sa.ServiceRecord.query(**offer), self.sa))
        self.assertEqual(self.one(sa.ServiceRecord.query(serviceID=77)).serviceGID, self.gid("a"))
        (association,) = self.table(sa.ServiceAssociationRecord)
        self.assertEqual(association.serviceName, offer["serviceName"])
        self.answerTo(self.agent.SubnAdmDelete(sa.ServiceRecord.query(**offer), self.sa))
        self.assertEqual(self.table(sa.ServiceRecord), [])

    def test_lease(self) -> None:
        offer = sa.ServiceRecord.query(serviceID=77, serviceGID=self.gid("a"), serviceLease=60)
        self.answerTo(self.agent.SubnAdmSet(offer, self.sa), 0)
        self.pump(20)
        self.assertEqual(self.one(sa.ServiceRecord.query(serviceID=77)).serviceLease, 40)
        self.pump(40)
        self.assertEqual(self.table(sa.ServiceRecord), [])


class SubscriptionTests(AdministrationTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.reports: list[Notice] = []
        server = MADServer(self.agent)
        self.agent.port.serve(0x03, (0x06,))
        server.listen(lambda notice, request: self.reports.append(notice))

    def subscribe(self, trap: int = 0xFFFF, subscribe: int = 1) -> None:
        info = InformInfo(
            lidRangeBegin=LID(0xFFFF),
            isGeneric=1,
            subscribe=subscribe,
            type=0xFFFF,
            trapNumber=trap,
            producerType=0xFFFFFF,
            qpn=QPN(1),
        )
        self.answerTo(self.agent.SubnAdmSet(info, self.sa), 0)

    def test_link(self) -> None:
        self.subscribe(128)
        self.fabric.cut("right", 1)
        self.pump(0)
        self.assertEqual([notice.issuerLID for notice in self.reports], [self.lid("right")])
        (report,) = self.reports
        assert isinstance(report, ReportedNotice)
        self.assertEqual(self.fabric.nodes["right"].guid.raw, report.issuerGID.raw[8:])
        (record,) = self.table(sa.InformInfoRecord)
        self.assertEqual((record.subscriberGID, record.informInfo.trapNumber), (self.gid("a"), 128))
        self.subscribe(128, subscribe=0)
        self.fabric.heal("right", 1)
        self.pump()
        self.assertEqual(len(self.reports), 1)

    def test_group(self) -> None:
        self.subscribe(66)
        joining = sa.MCMemberRecord.query(portGID=self.gid("a"), joinState=1, **GroupTests.group)
        self.answerTo(self.agent.SubnAdmSet(joining, self.sa))
        (notice,) = self.reports
        self.assertEqual((notice.trapNumber, notice.details[6:22]), (66, GroupTests.group["mgid"].raw))

    def test_comingAndGoing(self) -> None:
        self.subscribe(65)
        self.subscribe(64)
        self.fabric.cut("c", 1)
        self.pump()
        self.fabric.heal("c", 1)
        self.pump()
        reported = [(notice.trapNumber, notice.details[6:22]) for notice in self.reports]
        self.assertEqual(reported, [(65, self.gid("c").raw), (64, self.gid("c").raw)])


class StandbyTests(FabricTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.other = self.fabric.standBy("c")
        self.addCleanup(self.fabric.close)

    def state(self, name: str) -> SMState:
        info: smp.SMInfo = self.answerTo(self.agent.SubnGet(smp.SMInfo, IBPath(dlid=self.lid(name))), 0)
        return info.smState

    def states(self) -> tuple[str, str]:
        return self.state("c").name, self.state("d").name

    def command(self, name: str, command: int, state: SMState = SMState.MASTER) -> Any:
        return self.agent.SubnSet(smp.SMInfo(smState=state), IBPath(dlid=self.lid(name)), command)

    def smLID(self, name: str) -> int:
        return int.from_bytes(self.fabric.port(name).end.info[18:20], "big")

    def test_death(self) -> None:
        lids = {name: self.lid(name) for name in ("a", "b", "c", "left", "right")}
        self.fabric.silence("d")
        self.pump(5)
        self.assertEqual(self.state("c"), SMState.MASTER)
        self.assertEqual({name: self.lid(name) for name in lids}, lids)
        self.assertEqual({self.smLID(name) for name in lids}, {lids["c"]})
        path = IBPath(dlid=lids["b"])
        self.assertEqual(self.answerTo(self.agent.SubnGet(smp.NodeDescription, path)).text, "b")
        (record,) = self.answerTo(
            self.agent.SubnAdmGetTable(sa.NodeRecord.query(lid=lids["b"]), gmp(self.smLID("a")))
        )
        self.assertEqual(record.nodeDescription.text, "b")

    def test_return(self) -> None:
        self.fabric.silence("d")
        self.pump(5)
        self.fabric.revive("d")
        self.assertEqual(self.states(), ("MASTER", "MASTER"))
        self.pump(10)
        self.assertEqual(self.states(), ("STANDBY", "MASTER"))
        self.assertEqual({self.smLID(name) for name in "abcd"}, {self.lid("d")})

    def test_unknownMaster(self) -> None:
        self.fabric.port("c").end.info[18:20] = bytes(2)
        self.pump(30)
        self.assertEqual(self.states(), ("STANDBY", "MASTER"))

    def test_guid(self) -> None:
        third = self.fabric.standBy("b", priority=4)
        self.assertLess(int(third.port.guid), int(self.fabric.port("d").guid))
        self.pump(10)
        self.assertEqual((self.state("b"), self.state("d")), (SMState.MASTER, SMState.STANDBY))

    def test_priority(self) -> None:
        self.fabric.standBy("b", priority=9)
        self.assertEqual(self.state("d"), SMState.MASTER)
        self.pump(5)
        self.assertEqual((self.state("b"), self.state("d")), (SMState.MASTER, SMState.STANDBY))
        self.assertEqual(self.smLID("left"), self.lid("b"))

    def test_apart(self) -> None:
        for number in (3, 4):
            self.fabric.cut("left", number)
        self.fabric.cut("b", 2)
        third = self.fabric.standBy("a")
        self.pump(5)
        self.assertEqual((third.state, self.state("a")), (SMState.MASTER, SMState.MASTER))
        self.fabric.heal("b", 2)
        self.fabric.heal("left", 3)
        self.pump(20)
        states = [one.state.name for one in (third, self.other)]
        self.assertEqual(sorted([*states, self.state("d").name]), ["MASTER", "STANDBY", "STANDBY"])
        self.assertEqual(len({self.smLID(name) for name in "abcd"}), 1)

    def test_replaced(self) -> None:
        """Only ports with an SM have the capability IsSM (IBA 14.2.5.6), also after all SMs are replaced."""

        def isSM(name: str) -> bool:
            return bool(self.fabric.port(name).end.capabilities & PortCapability.SM)

        self.assertEqual([isSM(name) for name in "abcd"], [False, False, True, True])
        self.fabric.manage("a")
        self.assertEqual([isSM(name) for name in "abcd"], [True, False, False, False])

    def test_commands(self) -> None:
        for command in (ACKNOWLEDGE, STANDBY, 0, 9):
            self.assertEqual(self.refused(self.command("c", command), MADError, 0).status, 0x1C)
        self.assertEqual(self.refused(self.command("d", DISABLE), MADError, 0).status, 0x1C)
        self.assertEqual(self.refused(self.command("c", DISABLE, SMState.STANDBY), MADError, 0).status, 0x1C)
        self.assertEqual(self.refused(self.command("a", HANDOVER), MADError, 0).status, 0x0C)
        self.assertEqual(self.answerTo(self.command("c", DISABLE), 0).smState, SMState.NOT_ACTIVE)
        self.fabric.silence("d")
        self.pump(10)
        self.assertEqual(self.state("c"), SMState.NOT_ACTIVE)
        self.assertEqual(self.answerTo(self.command("c", STANDBY), 0).smState, SMState.STANDBY)
        self.pump(5)
        self.assertEqual(self.state("c"), SMState.MASTER)

    def test_unasked(self) -> None:
        self.answerTo(self.command("c", HANDOVER), 0)
        self.assertEqual(self.state("c"), SMState.MASTER)

    def test_twice(self) -> None:
        for name in ("c", "d"):
            self.assertRaises(ValueError, self.fabric.standBy, name)
