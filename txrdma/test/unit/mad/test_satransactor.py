"""Requests to nodes, translated into queries of subnet administration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.discovery import Sweep
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType
from txrdma.mad.errors import MADError, MADTimeoutError
from txrdma.mad.layouts.attributes import Attribute, RPCS
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import (
    componentsOf,
    LinkRecord,
    NodeRecord,
    PortInfoRecord,
    RandomForwardingTableRecord,
    Record,
)
from txrdma.mad.layouts.smp import (
    GUIDInfo,
    LinearForwardingTable,
    MulticastForwardingTable,
    NodeDescription,
    NodeInfo,
    PKeyTable,
    PortInfo,
    RandomForwardingTable,
    SLtoVLMappingTable,
    SMInfo,
    SwitchInfo,
    VendorDiag,
    VLArbitrationTable,
)
from txrdma.mad.paths import toLID
from txrdma.mad.satransactor import SATransactor
from txrdma.mad.schedule import MADSchedule
from txrdma.test.support.mad.administration import Administration
from txrdma.test.support.mad.paths import END_PORT
from txrdma.test.support.mad.simulated import FabricTestCase, links, route

SWITCH = NodeInfo(nodeType=NodeType.SWITCH, numPorts=36)
HOST = NodeInfo(nodeType=NodeType.CHANNEL_ADAPTER, numPorts=2, localPortNum=1, nodeGUID=GUID.fromInt(7))

QUESTIONS: list[tuple[type[Attribute], list[int], list[int]]] = [
    (NodeInfo, [0], [0]),
    (NodeDescription, [0], [0]),
    (PortInfo, [0, 1, 3, 4], [0, 1]),
    (SwitchInfo, [0], []),
    (GUIDInfo, [0], [0]),
    (PKeyTable, [0, 1 << 16, 3 << 16], [0, 1 << 16]),
    (SLtoVLMappingTable, [0x0102, 0x0301, 0x0003], [0, 0x0101]),
    (VLArbitrationTable, [0x10001, 0x30003], [0x10000, 0x30000, 0x10001]),
    (LinearForwardingTable, [0], []),
]
"""Each attribute, with modifiers for switches and for other nodes."""


def noRecord() -> MADError:
    return MADError(RPCS["SubnAdmGet"], IBPath(), 0x0300, b"", b"")


def components(record: type[Record], mask: int) -> set[str]:
    return {name for name, bits in componentsOf(record)[0].items() if mask & bits}


class RecodingTests(SynchronousTestCase):
    def ask(
        self, kind: type[Attribute], modifier: int, record: type[Record], field: str, node: NodeInfo = SWITCH
    ) -> tuple[dict[str, Any], Any]:
        content = kind()
        answer = record(**{field: content})
        # Both may be NodeRecord; then the latter is used.
        agent = Administration(**{"NodeRecord": NodeRecord(nodeInfo=node), record.__name__: answer})
        reported = self.successResultOf(
            SATransactor(agent, END_PORT).SubnGet(kind, IBPath(dlid=LID(5)), modifier)
        )
        self.assertEqual(reported, content)
        rpc, query, way, _ = agent.asked[-1]
        self.assertEqual((rpc, way), ("SubnAdmGet", None))  # the SA of the agent's port
        return {name: getattr(query.record, name) for name in components(record, query.mask)}, query

    def test_every(self) -> None:
        """For each attribute with a record, the modifier becomes the components of the specification."""
        from txrdma.mad.layouts import sa

        for kind, record, field, modifier, output in (
            (NodeInfo, sa.NodeRecord, "nodeInfo", 0, {}),
            (NodeDescription, sa.NodeRecord, "nodeDescription", 0, {}),
            (SwitchInfo, sa.SwitchInfoRecord, "switchInfo", 0, {}),
            (SMInfo, sa.SMInfoRecord, "smInfo", 0, {}),
            (GUIDInfo, sa.GUIDInfoRecord, "guidInfo", 3, {"blockNum": 3}),
            (LinearForwardingTable, sa.LinearForwardingTableRecord, "table", 700, {"blockNum": 700}),
            (RandomForwardingTable, RandomForwardingTableRecord, "table", 9, {"blockNum": 9}),
            (
                MulticastForwardingTable,
                sa.MulticastForwardingTableRecord,
                "table",
                0xF00001FF,
                {"position": 15, "blockNum": 0x1FF},
            ),
            (PKeyTable, sa.PKeyTableRecord, "table", 0x00240002, {"portNum": 36, "blockNum": 2}),
            (
                SLtoVLMappingTable,
                sa.SLtoVLMappingTableRecord,
                "table",
                0x0704,
                {"inputPortNum": 7, "outputPortNum": 4},
            ),
            (
                VLArbitrationTable,
                sa.VLArbitrationTableRecord,
                "table",
                0x00030007,
                {"outputPortNum": 7, "blockNum": 3},
            ),
        ):
            found, _ = self.ask(kind, modifier, record, field)
            self.assertEqual(found, {"lid": 5, **output}, kind.__name__)
        found, _ = self.ask(PortInfo, 0x80000003, PortInfoRecord, "portInfo")
        self.assertEqual(found, {"endPortLID": 5, "portNum": 3}, "other bits of the modifier are ignored")

    def test_noSwitch(self) -> None:
        from txrdma.mad.layouts import sa

        for kind, record, modifier, output in (
            (PKeyTable, sa.PKeyTableRecord, 0x00240002, {"blockNum": 2}),
            (SLtoVLMappingTable, sa.SLtoVLMappingTableRecord, 0x0704, {}),
            (VLArbitrationTable, sa.VLArbitrationTableRecord, 0x00030007, {"blockNum": 3}),
        ):
            found, _ = self.ask(kind, modifier, record, "table", HOST)
            self.assertEqual(found, {"lid": 5, **output}, kind.__name__)

    def test_otherPort(self) -> None:
        """The other port of a host has another LID, which is read from the administration."""

        def ports(asked: PortInfoRecord) -> PortInfoRecord:
            if (asked.endPortLID, asked.portNum) != (6, 2):
                raise noRecord()
            return PortInfoRecord(portInfo=PortInfo(lid=LID(6)))

        def nodes(asked: NodeRecord) -> NodeRecord:
            if asked.lid == 5:
                return NodeRecord(lid=LID(5), nodeInfo=HOST)
            self.assertEqual((asked.nodeInfo.nodeGUID, asked.nodeInfo.localPortNum), (HOST.nodeGUID, 2))
            return NodeRecord(lid=LID(6))

        agent = Administration(PortInfoRecord=ports, NodeRecord=nodes)
        ask = SATransactor(agent, END_PORT).SubnGet
        self.assertEqual(self.successResultOf(ask(PortInfo, IBPath(dlid=LID(5)), 2)).lid, 6)
        for nobodys in (1, 3):
            self.failureResultOf(ask(PortInfo, IBPath(dlid=LID(5)), nobodys), MADError)

    def test_passed(self) -> None:
        agent = Administration(VendorDiag=VendorDiag(nextIndex=1), PortInfo=PortInfo(), PortCounters="count")
        transactor = SATransactor(agent, END_PORT)
        self.assertEqual(self.successResultOf(transactor.SubnGet(VendorDiag, IBDRPath())).nextIndex, 1)
        self.successResultOf(transactor.SubnSet(PortInfo(), IBDRPath(), retries=7))
        way = IBPath(dlid=LID(5))
        self.assertEqual(self.successResultOf(transactor.PerformanceGet(PortCounters, way)), "count")
        self.assertEqual([rpc for rpc, _, _, _ in agent.asked], ["SubnGet", "SubnSet", "PerformanceGet"])
        self.assertEqual(agent.asked[1][3]["retries"], 7)
        self.assertIs(agent.asked[2][2], way)

    def test_options(self) -> None:
        agent = Administration(
            LinkRecord=LinkRecord(toLID=LID(4)),
            NodeRecord=NodeRecord(nodeInfo=HOST),
            PortInfoRecord=PortInfoRecord(),
        )
        transactor = SATransactor(agent, END_PORT)
        self.successResultOf(transactor.SubnGet(PortInfo, IBDRPath(drPath=(1,)), timeoutSeconds=3, retries=9))
        self.assertEqual(
            [(options["timeoutSeconds"], options["retries"]) for _, _, _, options in agent.asked],
            [(3, 9)] * 3,
        )


class RouteTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.links = {(3, 1): 20, (20, 4): 21}
        self.nodes = {3: HOST, 20: SWITCH, 21: HOST}
        self.agent = Administration(LinkRecord=self.link, NodeRecord=self.node)
        self.transactor = SATransactor(self.agent, END_PORT)

    def link(self, asked: LinkRecord) -> LinkRecord:
        try:
            return LinkRecord(toLID=LID(self.links[asked.fromLID, asked.fromPort]))
        except KeyError:
            raise noRecord() from None

    def node(self, asked: NodeRecord) -> NodeRecord:
        if asked.lid not in self.nodes:
            raise noRecord()
        return NodeRecord(lid=asked.lid, nodeInfo=self.nodes[asked.lid])

    def kinds(self) -> list[str]:
        asked = [type(query.record).__name__ for _, query, _, _ in self.agent.asked]
        self.agent.asked.clear()
        return asked

    def ask(self, *ports: int, **values: Any) -> Deferred[NodeInfo]:
        return self.transactor.SubnGet(NodeInfo, IBDRPath(drPath=ports, **values))

    def test_once(self) -> None:
        for expected in (["LinkRecord", "LinkRecord", "NodeRecord"], ["NodeRecord"]):
            self.assertEqual(self.successResultOf(self.ask(1, 4)), HOST)
            self.assertEqual(self.kinds(), expected)
        self.assertEqual(self.successResultOf(self.ask(1)), SWITCH)
        self.assertEqual(self.successResultOf(self.ask()), HOST)
        self.assertEqual(self.kinds(), ["NodeRecord", "NodeRecord"])
        self.transactor.forget()
        self.successResultOf(self.ask(1))
        self.assertEqual(self.kinds(), ["LinkRecord", "NodeRecord"])

    def test_mixed(self) -> None:
        self.successResultOf(self.ask(4, dlid=LID(20), drSLID=LID(3)))
        self.assertEqual(self.agent.asked[-1][1].record.lid, 21)
        self.successResultOf(self.ask(4, drDLID=LID(20)))
        self.assertEqual(self.agent.asked[-1][1].record.lid, 20)

    def test_changed(self) -> None:
        self.successResultOf(self.ask(1, 4))
        self.links = {(3, 1): 30, (30, 4): 31}
        self.nodes = {3: HOST, 30: SWITCH, 31: SWITCH}
        self.kinds()
        self.assertEqual(self.successResultOf(self.ask(1, 4)), SWITCH)
        self.assertEqual(self.kinds(), ["NodeRecord", "LinkRecord", "LinkRecord", "NodeRecord"])

    def test_changedOnTheWay(self) -> None:
        self.successResultOf(self.ask(1))
        self.links = {(3, 1): 30, (30, 4): 31}
        self.nodes = {31: SWITCH}
        self.kinds()
        self.assertEqual(self.successResultOf(self.ask(1, 4)), SWITCH)
        self.assertEqual(self.kinds(), ["LinkRecord"] * 3 + ["NodeRecord"])

    def test_unchanged(self) -> None:
        self.successResultOf(self.ask(1, 4))
        del self.nodes[21]
        self.kinds()
        self.failureResultOf(self.ask(1, 4), MADError)
        self.assertEqual(self.kinds(), ["NodeRecord", "LinkRecord", "LinkRecord"])

    def test_unanswered(self) -> None:
        """After a call without an answer, the facts that it used are queried again."""
        self.successResultOf(self.ask(1))
        self.agent.answers["NodeRecord"] = MADTimeoutError("no answer", RPCS["SubnAdmGet"], IBPath())
        self.failureResultOf(self.ask(1), MADTimeoutError)
        self.agent.answers["NodeRecord"] = self.node
        self.links = {(3, 1): 30}
        self.nodes = {20: HOST, 30: SWITCH}
        self.kinds()
        self.assertEqual(self.successResultOf(self.ask(1)), SWITCH)
        self.assertEqual(self.kinds(), ["LinkRecord", "NodeRecord"])

    def test_newAddress(self) -> None:
        end = [END_PORT]
        self.transactor = SATransactor(self.agent, lambda: end[0])
        self.links[7, 1] = 20
        for lid in (3, 7):
            end[0] = replace(END_PORT, lid=LID(lid))
            self.assertEqual(self.successResultOf(self.ask(1)), SWITCH)
        self.assertEqual([query.record.fromLID for _, query, _, _ in self.agent.asked[::2]], [3, 7])

    def test_nowhere(self) -> None:
        for ports, questions in (((2,), 1), ((1, 5), 2), ((1, 5), 3)):  # 3: the last link is queried again
            self.failureResultOf(self.ask(*ports), MADError)
            self.assertEqual(self.kinds(), ["LinkRecord"] * questions)


class FabricTests(FabricTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.transactor = SATransactor(self.agent, self.agent.port.endPort)

    def test_same(self) -> None:
        compared = 0
        ways: list[tuple[IBPath, bool]] = [
            (route(), False),
            (route(1), True),
            (route(1, 3), True),
            (route(1, 2), False),
            (toLID(self.agent.port.endPort, self.lid("right")), True),
            (toLID(self.agent.port.endPort, self.lid("c")), False),
        ]
        for way, isSwitch in ways:
            for kind, ofSwitch, ofHost in QUESTIONS:
                for modifier in ofSwitch if isSwitch else ofHost:
                    direct = self.answerTo(self.agent.SubnGet(kind, way, modifier))
                    reported = self.answerTo(self.transactor.SubnGet(kind, way, modifier))
                    self.assertEqual(
                        self.plain(reported), self.plain(direct), f"{kind} {modifier:#x} at {way}"
                    )
                    compared += 1
        self.assertEqual(compared, 3 * 17 + 3 * 12)

    @staticmethod
    def plain(reported: Attribute) -> dict[str, Any]:
        output = reported.toDict()
        for name in ("localPortNum", "mkey"):
            output.pop(name, None)
        return output

    def test_sweep(self) -> None:
        direct = self.sweep()
        for agent in (
            self.transactor,
            MADSchedule(self.transactor, 4),
            SATransactor(MADSchedule(self.agent, 4), self.agent.port.endPort),
        ):
            reported = self.answerTo(Sweep(agent).run())
            self.assertEqual(reported.problems, [])
            self.assertEqual(set(reported.nodes), set(direct.nodes))
            self.assertEqual(links(reported), links(direct))
