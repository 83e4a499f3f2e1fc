"""
The administration of simulated fabrics answers as OpenSM does over the same net file; and Debian's saquery,
asking ours through ibsim, understands it.

OpenSM's own choices are left out of the comparison, each named in C{CHOICES}.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from twisted.internet.task import Clock

from txrdma.fabric.discovery import Sweep
from txrdma.iba.types import GID, GUID, LID
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADError
from txrdma.mad.layouts import sa, smp
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, Method
from txrdma.mad.server import MADServer
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.netfile import parseNet
from txrdma.test.support.mad.simulated import gmp
from txrdma.test.system.ibsim.fabric import IbsimTestCase

NET = """
width=3
speed=7
extspeed=7

Switch 8 "left"
[1] "a"[1]
[2] "b"[1] w=1
[3] "right"[3]
[4] "right"[4]

Switch 8 "right"
[1] "c"[1]
[2] "d"[1]

Hca 1 "a"
Hca 1 "b"
Hca 1 "c"
Hca 1 "d"
"""

CHOICES: Final = {
    "packetLifeTime": "how long packets live is what a manager says",
    "subnetTimeOut": "likewise; and ibsim keeps 31",
    "localPortNum": "of a switch, it is whichever port the manager's question came in by",
    "lifeTimeValue": "how long a switch keeps packets is what a manager says",
    "hoqLife": "likewise",
}


class AdministrationTestCase(IbsimTestCase):
    """Ours and OpenSM's, with the same LIDs."""

    net = NET
    hasSM = True

    async def prepare(self) -> list[int]:
        """Give ours what theirs have; the LIDs."""
        self.clock = Clock()
        self.ours = SimulatedFabric(self.clock, parseNet(self.net), isManaged=False)
        self.theirAgent = self.agentAt()
        lids: list[int] = []
        found = await Sweep(self.theirAgent).run()
        for node in found.nodes.values():
            name = next(name for name, one in self.ours.nodes.items() if one.guid == node.guid)
            lid = next(port.info.lid for port in node.ports.values() if port.info.lid)
            self.ours.port(name).end.info[16:18] = lid.to_bytes(2, "big")
            lids.append(lid)
        self.ours.manage("d")
        self.ourAgent = MADAgent(self.clock, self.ours.attach("a"), timeoutSeconds=1.0)
        self.addCleanup(self.ourAgent.close)
        self.addCleanup(self.ours.close)
        self.sa = gmp(self.theirAgent.port.refresh().smLID)
        self.assertEqual(self.ourAgent.port.endPort.smLID, self.sa.dlid)
        return lids

    async def both(self, query: Any) -> tuple[Any, Any]:
        """What both say to a question: fields, or a status."""
        call = self.ourAgent.SubnAdmGet(query, self.sa)
        self.clock.pump([0] * 10)
        said: list[Any] = []
        for one in (call, self.theirAgent.SubnAdmGet(query, self.sa)):
            try:
                record: Attribute = await one
                said.append(_flat(record.toDict()))
            except MADError as error:
                said.append(f"status {error.status:#06x}")
        return said[0], said[1]

    async def compare(self, query: Any) -> None:
        ours, theirs = await self.both(query)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            ours = {name: value for name, value in ours.items() if name not in CHOICES}
            theirs = {name: theirs[name] for name in ours}
            different = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
            self.assertEqual(different, {}, query)
        else:
            self.assertEqual(ours, theirs, query)


def _flat(said: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record, those of its content among them."""
    flat: dict[str, Any] = {}
    for name, value in said.items():
        if isinstance(value, dict):
            flat |= value
        else:
            flat[name] = value
    return flat


class RecordTests(AdministrationTestCase):
    """One record each."""

    async def test_records(self) -> None:
        """Nodes, ports, links, switches, and what is not there."""
        lids = await self.prepare()
        for lid in (*lids, 4000):
            await self.compare(sa.NodeRecord.query(lid=LID(lid)))
            await self.compare(sa.SwitchInfoRecord.query(lid=LID(lid)))
            owner = self.ours.portOf(lid)
            linked = [0] if owner is None else [port.number for port in owner.node.external if port.way]
            for port in linked:
                await self.compare(sa.PortInfoRecord.query(endPortLID=LID(lid), portNum=port))
                await self.compare(sa.LinkRecord.query(fromLID=LID(lid), fromPort=port))
        await self.compare(sa.NodeRecord)
        await self.compare(sa.ServiceRecord.query(serviceID=1))

    async def test_paths(self) -> None:
        """Between all pairs of ports: LIDs, MTU, rate, P_Key."""
        await self.prepare()
        names = "abcd"
        for one in names:
            for other in names:
                sgid, dgid = self.gid(one), self.gid(other)
                await self.compare(sa.PathRecord.query(sgid=sgid, dgid=dgid, reversible=True, numbPath=1))
        for nobody in (GID.fromParts(0xFE80 << 48, GUID(b"\1" * 8)), GID(b"\1" * 16)):
            await self.compare(sa.PathRecord.query(sgid=self.gid("a"), dgid=nobody, numbPath=1))
            await self.compare(sa.PathRecord.query(sgid=nobody, dgid=self.gid("a"), numbPath=1))

    def gid(self, name: str) -> GID:
        return GID.fromParts(0xFE80 << 48, self.ours.port(name).guid)


class SaqueryTests(IbsimTestCase):
    """Debian's saquery asks ours."""

    net = NET

    async def test_saquery(self) -> None:
        """It prints the path and the node that ours tell."""
        from twisted.internet import reactor

        ours = SimulatedFabric(reactor, parseNet(self.net), managerAt="a", resweepSeconds=None)
        self.addCleanup(ours.close)
        agent = MADAgent(reactor, self.portAt("a", isSM=True), timeoutSeconds=2.0)
        self.addCleanup(agent.close)
        await self.copy(ours, agent)
        assert ours.sa is not None
        MADServer(agent).handle(ManagementClass.SUBN_ADM, ours.sa, (Method.GET, Method.GET_TABLE))
        c, d = ours.port("c").lid, ours.port("d").lid
        out, errors, status = await self.fabric.spawn("saquery", "--src-to-dst", f"{c}:{d}", host="b")
        self.assertEqual((status, ours.sa.asked > 0), (0, True), errors)
        said = dict(reversed(list(_printed(out.decode()))))  # the first one: without RMPP it invents others
        self.assertEqual((said["slid"], said["dlid"]), (str(c), str(d)))
        self.assertIn("0x84", said["mtu"])

    async def copy(self, ours: SimulatedFabric, agent: MADAgent) -> None:
        """Make ibsim's nodes what ours have become by their manager: we are the manager there, too."""
        found = await Sweep(agent).run()
        for node in found.nodes.values():
            mine = next(one for one in ours.nodes.values() if one.guid == node.guid)
            route = node.route
            assert route is not None
            ends = mine.ports[:1] if mine.isSwitch else [mine.ports[1]]
            for end in ends:
                await agent.SubnSet(_stateless(smp.PortInfo.decode(end.info)), route, end.number)
            if mine.isSwitch:
                table = bytes(ours.linearOf(mine)).ljust(64, b"\xff")[:64]
                await agent.SubnSet(smp.LinearForwardingTable(ports=table), route)
                await agent.SubnSet(smp.SwitchInfo.decode(mine.switchInfo), route)
        for state in (3, 4):
            for node in found.nodes.values():
                assert node.route is not None
                for port in node.ports.values():
                    if port.number and port.peer is not None:
                        info = await agent.SubnGet(smp.PortInfo, node.route, port.number)
                        changed = _stateless(info, state)
                        await agent.SubnSet(changed, node.route, port.number)


def _stateless(info: smp.PortInfo, state: int = 0) -> smp.PortInfo:
    """To be set: the states as they are, or this one."""
    fields = {field.name: getattr(info, field.name) for field in info.fields}
    return smp.PortInfo(**{**fields, "portState": state, "portPhysicalState": 0})


def _printed(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.strip().partition("...")
        if value:
            yield name, value.strip(".")
