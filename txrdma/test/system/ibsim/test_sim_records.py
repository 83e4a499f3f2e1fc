"""
The subnet administration of a simulated fabric has the same records as OpenSM's of the same fabric.

Single records of every supported kind are compared, but no tables: through ibsim's library only the part of a
table that fits into a datagram arrives. These are not compared:

  - fields in C{CHOICES}: values that a manager chooses, that ibsim does not store, or that depend on the port
    at which a request of the manager arrived;
  - random forwarding tables, which OpenSM does not know;
  - ports without a link, and lanes of port 0 of a switch: OpenSM has zeros, as it does not read them;
  - access: OpenSM returns P_Keys only to requests with its SM_Key, the simulated one to all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from twisted.internet.defer import Deferred

from txrdma.error import RDMAError
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import Keys, NO_KEYS
from txrdma.mad.layouts import sa
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.messages import InformInfo
from txrdma.mad.layouts.values import PathMTU, Rate, Selector, SMState
from txrdma.sim.fabric.sm.election import ManagerCandidate
from txrdma.sim.fabric.sm.manager import GID_PREFIX
from txrdma.sim.fabric.sm.sa import SubnetAdministration
from txrdma.sim.fabric.sm.sagroups import IPOIB_BROADCAST
from txrdma.sim.nets.fattree import fatTree
from txrdma.test.support.mad.simulated import gmp, TWO_SWITCHES
from txrdma.test.system.ibsim.fabric import example, NO_EXAMPLES
from txrdma.test.system.ibsim.test_sim_answers import differences
from txrdma.test.system.ibsim.test_sim_managed import ManagedTestCase, Place
from txrdma.test.unit.sim import test_sa

TRUSTED: Final = Keys(smKey=1)
CHOICES: Final = frozenset(
    ("subnetTimeOut", "localPortNum", "packetLifeTime", "actCount", "responseTimeValue")
)


class RecordsTestCase(ManagedTestCase):
    net = TWO_SWITCHES
    hasSM = True
    smConfiguration = "qos TRUE\nsm_priority 4"

    async def administer(self) -> list[Place]:
        places = await self.prepare()
        self.sa = gmp(self.theirAgent.port.refresh().smLID)
        at = self.ours.portOf(self.sa.dlid)
        assert at is not None
        candidate = ManagerCandidate(self.ours, at, self.ours.lead)
        candidate.state = SMState.MASTER
        manager = self.ours.manager = candidate.manager
        ends = (port for node in self.ours.nodes.values() for port in node.ports if port.info and port.lid)
        manager.ports = {port.lid: port for port in ends}
        self.ours.sa = SubnetAdministration(self.ours, at)
        self.addCleanup(self.ours.close)
        return places

    async def both(self, ask: Callable[[MADAgent], Deferred[Any]]) -> tuple[Any, Any]:
        calls = ask(self.ourAgent), ask(self.theirAgent)
        self.clock.pump([0] * 10)
        ours, reference = [await _outcome(call) for call in calls]
        return ours, reference

    async def alike(
        self,
        queries: Iterable[Any],
        rpc: str = "SubnAdmGet",
        keys: Keys = TRUSTED,
        leaveOut: Iterable[str] = (),
    ) -> int:
        unequal = CHOICES.union(leaveOut)
        different: list[str] = []
        count = 0
        for query in queries:
            count += 1

            def ask(agent: MADAgent, query: Any = query) -> Deferred[Any]:
                return agent.call(rpc, query, self.sa, keys=keys)

            ours, reference = await self.both(ask)
            different += (f"{answerTo(query)}: {line}" for line in differences(ours, reference, unequal))
        self.assertEqual(different, [])
        return count


async def _outcome(call: Deferred[Any]) -> object:
    try:
        return _fields(await call)
    except RDMAError as error:
        return str(error)


def _fields(record: Attribute) -> dict[str, object]:
    flat: dict[str, Any] = {}
    for name, value in record.toDict().items():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat


def answerTo(query: Any) -> str:
    """Return a request in short form: its numbers that are not 0."""
    record = getattr(query, "record", query)
    if isinstance(record, type):
        return record.__name__
    output = {
        name: value for name, value in record.toDict().items() if isinstance(value, int | str) and value
    }
    return f"{type(record).__name__} {output}"


class SingleTests(RecordsTestCase):
    async def test_nodes(self) -> None:
        places = await self.administer()
        asked = await self.alike(query for place in places for query in records(place))
        self.assertGreater(asked, 20 * len(places))
        nobody = LID(4000)
        missing = (
            sa.NodeRecord.query(lid=nobody),
            sa.PortInfoRecord.query(endPortLID=nobody, portNum=1),
            sa.LinkRecord.query(fromLID=nobody, fromPort=1),
            sa.SMInfoRecord.query(lid=nobody),
            sa.NodeRecord,
            sa.PortInfoRecord,
        )
        await self.alike(missing)


def records(place: Place) -> Iterator[Any]:
    lid = place.info.lid
    yield sa.NodeRecord.query(lid=lid)
    yield sa.NodeRecord.query(nodeGUID=place.guid)
    yield sa.SwitchInfoRecord.query(lid=lid)
    yield sa.SMInfoRecord.query(lid=lid)
    for block in range(3):
        yield sa.LinearForwardingTableRecord.query(lid=lid, blockNum=block)
        yield sa.MulticastForwardingTableRecord.query(lid=lid, blockNum=block, position=0)
    for block in range(5):
        yield sa.GUIDInfoRecord.query(lid=lid, blockNum=block)
    for number in (*place.linked, place.ports + 1):
        yield sa.PortInfoRecord.query(endPortLID=lid, portNum=number)
        yield sa.LinkRecord.query(fromLID=lid, fromPort=number)
        yield sa.PKeyTableRecord.query(lid=lid, portNum=number, blockNum=0)
        for block in (1, 3):
            yield sa.VLArbitrationTableRecord.query(lid=lid, outputPortNum=number, blockNum=block)
        for incoming in place.linked if number in place.linked else ():  # OpenSM crashes with others
            if not place.isSwitch or incoming != number and incoming in place.incoming():
                yield sa.SLtoVLMappingTableRecord.query(lid=lid, inputPortNum=incoming, outputPortNum=number)


class OwnManagerTests(RecordsTestCase):
    smConfiguration = ""

    async def test_records(self) -> None:
        places = [Place(node) for _route, node in await self.places()]
        for place in places:
            self.ours.port(place.name(self.ours)).end.info[16:18] = place.info.lid.to_bytes(2, "big")
        self.ours.manage("d")
        self.addCleanup(self.ours.close)
        self.sa = gmp(self.theirAgent.port.refresh().smLID)
        queries: list[Any] = []
        for place in places:
            lid = place.info.lid
            queries += (sa.NodeRecord.query(lid=lid), sa.SwitchInfoRecord.query(lid=lid))
            for number in place.linked:
                queries.append(sa.PortInfoRecord.query(endPortLID=lid, portNum=number))
                queries.append(sa.LinkRecord.query(fromLID=lid, fromPort=number))
            for other in places:
                queries.append(
                    sa.PathRecord.query(sgid=gidOf(place), dgid=gidOf(other), reversible=True, numbPath=1)
                )
        await self.alike(queries, leaveOut={"lifeTimeValue", "hoqLife"})


class PathTests(RecordsTestCase):
    step = 1

    async def test_pairs(self) -> None:
        ends = [(gidOf(place), place.info.lid) for place in await self.administer()][:: self.step]
        pairs: list[Any] = []
        for sgid, slid in ends:
            for dgid, dlid in ends:
                pairs += (
                    sa.PathRecord.query(sgid=sgid, dgid=dgid, reversible=True, numbPath=1),
                    sa.PathRecord.query(slid=slid, dlid=dlid, reversible=True, numbPath=1),
                    sa.PathRecord.query(sgid=sgid, dlid=dlid, numbPath=1),
                )
        await self.alike(pairs)


class WantedPathTests(RecordsTestCase):
    async def test_wanted(self) -> None:
        places = {place.name(self.ours): place for place in await self.administer()}
        a, c = gidOf(places["a"]), gidOf(places["c"])
        wanted: list[dict[str, Any]] = [
            {"pkey": 0xFFFF},
            {"pkey": 0x7FFF},
            {"pkey": 0x1234},
            {"serviceLevel": 0},
            {"serviceLevel": 3},
            {"trafficClass": 7},
            {"flowLabel": 9},
            {"hopLimit": 1},
            {"serviceID": 5},
            {"reversible": False},
            {"mtuSelector": Selector.LARGEST, "mtu": PathMTU.MTU_256},
            {"rateSelector": Selector.LARGEST, "rate": Rate.GBPS_2_5},
        ]
        for selector in (Selector.GREATER, Selector.LESS, Selector.EXACTLY):
            wanted += ({"mtuSelector": selector, "mtu": PathMTU(mtu)} for mtu in range(1, 6))
            rates = (Rate.GBPS_2_5, Rate.GBPS_56, Rate.GBPS_200, Rate.GBPS_400)
            wanted += ({"rateSelector": selector, "rate": rate} for rate in rates)
        await self.alike(sa.PathRecord.query(sgid=a, dgid=c, numbPath=1, **output) for output in wanted)
        nobody = GID.fromParts(GID_PREFIX, GUID(b"\1" * 8))
        await self.alike(
            (
                sa.PathRecord.query(sgid=a, dgid=nobody, numbPath=1),
                sa.PathRecord.query(sgid=nobody, dgid=a, numbPath=1),
                sa.PathRecord.query(sgid=a, dgid=c, slid=LID(4000), numbPath=1),
                sa.PathRecord.query(slid=LID(4000), dgid=c, numbPath=1),
            )
        )


class ExampleSingleTests(SingleTests):
    net = example("net.2sw2path4hca2port")
    skip = NO_EXAMPLES


class TreeSingleTests(SingleTests):
    net = fatTree(40, 8).text()


class TreePathTests(PathTests):
    net = TreeSingleTests.net
    step = 7


class RouterTests(RecordsTestCase):
    def setUp(self) -> None:
        file = Path(self.mktemp())
        file.write_text("* *\n")
        self.smConfiguration += f"\nprefix_routes_file {file.absolute()}"
        super().setUp()

    async def test_paths(self) -> None:
        ends = [gidOf(place) for place in await self.administer()]
        away = GID.fromParts(0xFEC0 << 48, GUID.fromInt(5))
        await self.alike(sa.PathRecord.query(sgid=sgid, dgid=away, numbPath=1) for sgid in ends)


class GroupTests(RecordsTestCase):
    def setUp(self) -> None:
        file = Path(self.mktemp())
        file.write_text("Default=0x7fff,ipoib:ALL=full;\n")
        self.smConfiguration += f"\npartition_config_file {file.absolute()}"
        super().setUp()

    async def test_groups(self) -> None:
        gids = {place.name(self.ours): gidOf(place) for place in await self.administer()}
        mgid = GID(bytes.fromhex("ff151234" + "0" * 23 + "1"))
        group = {**test_sa.GroupTests.group, "mgid": mgid}

        def member(name: str, state: int = 1, **values: Any) -> Any:
            return sa.MCMemberRecord.query(portGID=gids[name], joinState=state, **{"mgid": mgid, **values})

        await self.alike([sa.MCMemberRecord.query(mgid=IPOIB_BROADCAST)], keys=NO_KEYS)
        for query in (
            *(member("a"), member("a", 2, **group), member("a", **group), member("c"), member("c", 4)),
            *(member("d", qkey=8), member("d", pkey=0x1234), member("d", 0)),
            member("d", mtuSelector=Selector.GREATER, mtu=PathMTU.MTU_4096),
            member("b", mgid=IPOIB_BROADCAST),
        ):
            await self.alike([query], "SubnAdmSet", NO_KEYS, {"scope"})
            await self.alike([sa.MCMemberRecord.query(mgid=mgid)], "SubnAdmGet", NO_KEYS, {"scope"})

    async def test_left(self) -> None:
        gids = {place.name(self.ours): gidOf(place) for place in await self.administer()}
        mgid = GID(bytes.fromhex("ff151234" + "0" * 23 + "1"))
        joined = {**test_sa.GroupTests.group, "mgid": mgid, "joinState": 1}
        await self.alike(
            (sa.MCMemberRecord.query(portGID=gids[name], **joined) for name in "ac"),
            *("SubnAdmSet", NO_KEYS, {"scope"}),
        )
        others = {field.name for field in sa.MCMemberRecord.fields} - {"mgid", "portGID", "joinState"}
        for name, state in (("d", 1), ("c", 2), ("c", 1), ("a", 1), ("a", 1)):
            query = sa.MCMemberRecord.query(portGID=gids[name], mgid=mgid, joinState=state)
            await self.alike([query], "SubnAdmDelete", NO_KEYS, others)
            await self.alike([sa.MCMemberRecord.query(mgid=mgid)], "SubnAdmGet", NO_KEYS, {"scope"})


class ServiceTests(RecordsTestCase):
    async def test_services(self) -> None:
        """A service can be registered, found and deleted. The last bytes of OpenSM's record are undefined."""
        (gid,) = (gidOf(place) for place in await self.administer() if place.name(self.ours) == "a")
        offer: dict[str, Any] = {
            "serviceID": 77,
            "serviceGID": gid,
            "serviceName": b"files".ljust(64, b"\0"),
            "serviceLease": 0xFFFFFFFF,
            "servicePKey": 0xFFFF,
        }
        found, other = sa.ServiceRecord.query(serviceID=77), sa.ServiceRecord.query(serviceID=78)
        for rpc, query in (
            *(("SubnAdmGet", found), ("SubnAdmSet", found)),
            *(("SubnAdmSet", sa.ServiceRecord.query(**offer)), ("SubnAdmGet", found)),
            ("SubnAdmGet", sa.ServiceRecord.query(serviceName=offer["serviceName"])),
            *(("SubnAdmDelete", other), ("SubnAdmDelete", found), ("SubnAdmGet", found)),
            *(("SubnAdmDelete", sa.ServiceRecord.query(**offer)), ("SubnAdmGet", found)),
        ):
            await self.alike([query], rpc, leaveOut={"data64"})

    async def test_subscriptions(self) -> None:
        (gid,) = (gidOf(place) for place in await self.administer() if place.name(self.ours) == "a")

        def inform(subscribe: int, trap: int, qpn: int = 0) -> InformInfo:
            return InformInfo(
                lidRangeBegin=LID(0xFFFF),
                isGeneric=True,
                subscribe=subscribe,
                type=0xFFFF,
                trapNumber=trap,
                producerType=0xFFFFFF,
                qpn=QPN(qpn),
            )

        listed = (sa.InformInfoRecord, sa.InformInfoRecord.query(subscriberGID=gid))
        for info in (
            *(inform(1, 64), inform(0, 64), inform(0, 65, 1)),
            *(inform(1, 65), inform(1, 65), inform(0, 64, 1), inform(0, 64, 1), inform(0, 65, 1)),
        ):
            await self.alike([info], "SubnAdmSet")
            await self.alike(listed)


def gidOf(place: Place) -> GID:
    number = 0 if place.isSwitch else place.entry
    return GID.fromParts(GID_PREFIX, GUID.fromInt(int(place.guid) + number))
