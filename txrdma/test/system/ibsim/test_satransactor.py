"""
C{SATransactor} with OpenSM returns what the nodes of ibsim answer.
"""

from __future__ import annotations

from typing import Any, Final

from txrdma.fabric.discovery import Sweep
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GID, LID
from txrdma.mad.core.frames import Keys
from txrdma.mad.errors import MADError
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.sa import MCMemberRecord
from txrdma.mad.layouts.smp import (
    GUIDInfo,
    LinearForwardingTable,
    MulticastForwardingTable,
    NodeDescription,
    NodeInfo,
    PKeyTable,
    PortInfo,
    SLtoVLMappingTable,
    SwitchInfo,
    VLArbitrationTable,
)
from txrdma.mad.paths import toLID, toSA
from txrdma.mad.resolvers import SAPathResolver
from txrdma.mad.satransactor import SATransactor
from txrdma.mad.schedule import MADSchedule
from txrdma.test.support.mad.simulated import TWO_SWITCHES
from txrdma.test.system.ibsim.fabric import Ibsim, IbsimTestCase

SWITCHES: Final[dict[type[Attribute], list[int]]] = {
    NodeInfo: [0],
    NodeDescription: [0],
    SwitchInfo: [0],
    PortInfo: [0, 1, 2, 3, 4],  # OpenSM stores little about ports without a link
    LinearForwardingTable: [0],
    PKeyTable: [0, 1 << 16, 3 << 16],
    SLtoVLMappingTable: [0x0103, 0x0301],
    VLArbitrationTable: [0x10001, 0x30003],
}
HOSTS: Final[dict[type[Attribute], list[int]]] = {
    NodeInfo: [0],
    NodeDescription: [0],
    PortInfo: [0, 1],
    GUIDInfo: [0],
    PKeyTable: [0],
    SLtoVLMappingTable: [0],
    VLArbitrationTable: [0x10000, 0x30000],
}
"""Attributes that are requested from each kind of node, with their modifiers."""

BROADCAST: Final = GID.fromString("ff12:401b:ffff::ffff:ffff")
"""The group of IP over InfiniBand, which OpenSM creates automatically."""

TRUSTED: Final = Keys(smKey=1)
"""OpenSM's default key; requests without it get no P_Keys."""

CHANGING: Final = {
    "localPortNum": "is the port that the question came in by",
    "mkey": "the administration returns keys to trusted requesters only",
    "lifeTimeValue": "OpenSM returns the value that it requests, ibsim the stored one",
}


NET: Final = TWO_SWITCHES.replace('Rt 2 "d"', 'Hca 2 "d"')


class SATransactorTests(IbsimTestCase):
    def setUp(self) -> None:
        self.fabric = Ibsim(NET, True, "qos TRUE")  # otherwise OpenSM does not read VL tables
        self.addCleanup(self.fabric.stop)

    async def compare(
        self, agent: Any, transactor: SATransactor, kind: type[Attribute], way: IBPath, modifier: int
    ) -> None:
        output = []
        for each in (agent, transactor):
            try:
                reported = (await each.SubnGet(kind, way, modifier, keys=TRUSTED)).toDict()
                output.append({name: value for name, value in reported.items() if name not in CHANGING})
            except MADError as error:
                output.append({"refused": str(error)})
        self.assertEqual(output[1], output[0], f"{kind.__name__} {modifier:#x} at {way}")

    async def test_same(self) -> None:
        agent = self.agentAt("a")
        transactor = SATransactor(agent, agent.port.refresh())
        fabric = await Sweep(agent).run()
        for node in fabric.nodes.values():
            assert node.route is not None
            for way in (node.route, toLID(agent.port.endPort, node.lid)):
                for kind, modifiers in (SWITCHES if node.isSwitch else HOSTS).items():
                    for modifier in modifiers:
                        await self.compare(agent, transactor, kind, way, modifier)

    async def test_otherPort(self) -> None:
        agent = self.agentAt("a")
        transactor = SATransactor(agent, agent.port.refresh())
        await self.compare(agent, transactor, PortInfo, IBDRPath(drPath=(1, 2)), 2)

    async def test_multicast(self) -> None:
        for name in ("a", "c"):
            agent = self.agentAt(name)
            end = agent.port.refresh()
            query = MCMemberRecord.query(mgid=BROADCAST, portGID=end.gids[0], joinState=1)
            joined = await agent.SubnAdmSet(query, toSA(end))
        transactor = SATransactor(agent, end)
        block = joined.mlid - 0xC000 >> 5
        for way in (IBDRPath(drPath=(1,)), IBDRPath(drPath=(1, 3))):
            while not any((await agent.SubnGet(MulticastForwardingTable, way, block)).portMasks):
                pass  # OpenSM programs the routes after its answer
            await self.compare(agent, transactor, MulticastForwardingTable, way, block)

    async def test_sweep(self) -> None:
        agent = self.agentAt("a")
        end = agent.port.refresh()
        direct = await Sweep(agent).run()
        for other in (SATransactor(agent, end), SATransactor(MADSchedule(agent, 4), end)):
            reported = await Sweep(other).run()
            self.assertEqual(reported.problems, [])
            self.assertEqual(set(reported.nodes), set(direct.nodes))
            self.assertEqual(
                {frozenset(map(str, link)) for link in reported.links()},
                {frozenset(map(str, link)) for link in direct.links()},
            )

    async def test_portGUID(self) -> None:
        for name in ("a", "b", "left"):
            agent = self.agentAt(name)
            info = await agent.SubnGet(NodeInfo, IBDRPath())
            self.assertEqual(agent.port.endPort.portGUID, info.portGUID, name)
            self.assertEqual(agent.port.endPort.gids[0].guid, info.portGUID, name)

    async def test_paths(self) -> None:
        agent = self.agentAt("a")
        end = agent.port.refresh()
        fabric = await Sweep(agent).run()
        other = next(node for node in fabric.nodes.values() if node.description == "c")
        lid, guid = other.lid, next(iter(other.ports.values())).node.portGUIDs[1]
        thorough = SAPathResolver(agent, end, asksForLIDs=True)
        for target in (str(lid), str(guid), f"fe80::{guid}", f"fe80::{guid}%{end.portGUID}"):
            path = await thorough.resolve(target)
            self.assertEqual((path.slid, path.dlid, path.reversible), (end.lid, lid, True), target)
            self.assertIsNotNone(path.mtu)
            self.assertIsNotNone(path.packetLifeTime)
            self.assertEqual((await agent.SubnGet(NodeInfo, path)).nodeGUID, other.guid)
        self.assertEqual(await SAPathResolver(agent, end).resolve(lid), toLID(end, LID(lid)))
