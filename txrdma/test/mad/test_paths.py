"""
Paths are values with a text that reads back, and resolvers find them from what people type.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.path import IBDRPath, IBPath, MADEndPort
from txrdma.iba.types import GID, GUID, LID, MTU, PKey, QPN
from txrdma.interfaces import IPathResolver
from txrdma.mad.paths import IPPathResolver, parseTarget, SAPathResolver, StaticPathResolver
from txrdma.mad.rpcs import RPCs
from txrdma.mad.sa import componentsOf, LinkRecord, NodeRecord, PathRecord, PortInfoRecord, Query
from txrdma.mad.satransactor import SATransactor
from txrdma.mad.smp import NodeInfo, PortInfo, VendorDiag
from txrdma.mad.values import PathMTU

OURS = GID.fromString("fe80::1")
THEIRS = GID.fromString("fe80::2")
END_PORT = MADEndPort(GUID.fromInt(1), (OURS,), lid=LID(3), smLID=LID(9), smServiceLevel=2)

paths = st.builds(
    IBPath,
    slid=st.integers(0, 0xFFFF),
    dlid=st.integers(0, 0xFFFF),
    serviceLevel=st.integers(0, 15),
    sgid=st.none() | st.builds(GID, st.binary(min_size=16, max_size=16)),
    dgid=st.none() | st.builds(GID, st.binary(min_size=16, max_size=16)),
    flowLabel=st.integers(0, (1 << 20) - 1),
    hopLimit=st.integers(0, 255),
    pkey=st.integers(0, 0xFFFF),
    dqpn=st.integers(0, 0xFFFFFF),
    qkey=st.integers(0, 0xFFFFFFFF),
    mtu=st.none() | st.sampled_from(MTU),
    packetLifeTime=st.none() | st.integers(0, 31),
    reversible=st.booleans(),
)


class TextTests(SynchronousTestCase):
    """What paths look like."""

    @given(paths)
    def test_path(self, path: IBPath) -> None:
        """The text of a path reads back as the same path."""
        self.assertEqual(IBPath.fromString(str(path)), path)

    @given(st.lists(st.integers(1, 254), max_size=63), st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
    def test_route(self, route: list[int], slid: int, dlid: int) -> None:
        """So does that of a directed route."""
        path = IBDRPath(drPath=tuple(route), drSLID=LID(slid), drDLID=LID(dlid))
        self.assertEqual(IBDRPath.fromString(str(path)), path)

    def test_examples(self) -> None:
        """As people know it."""
        self.assertEqual(str(IBPath(dlid=LID(7), serviceLevel=1)), "lid 7 sl 1")
        self.assertEqual(str(IBPath()), "lid 0")
        self.assertEqual(str(IBDRPath(drPath=(1, 3))), "DR 0,1,3")
        self.assertEqual(IBPath.fromString("lid 0x10 pkey 0x7fff"), IBPath(dlid=LID(16), pkey=PKey(0x7FFF)))

    def test_targets(self) -> None:
        """A LID, a GID, a GUID, a route or a path."""
        for text, target in (
            ("7", 7),
            ("lid 7", 7),
            ("LID 0x10", 16),
            ("fe80::2", THEIRS),
            ("::ffff:10.0.0.1", GID.fromIP("10.0.0.1")),
            ("0x0002c90300010002", GUID.fromInt(0x0002C90300010002)),
            ("0002:c903:0001:0002", GUID.fromInt(0x0002C90300010002)),
            ("DR 0,1,3", IBDRPath(drPath=(1, 3))),
            ("0,1,3", IBDRPath(drPath=(1, 3))),
            ("DR 0", IBDRPath()),
            ("lid 7 sl 3", IBPath(dlid=LID(7), serviceLevel=3)),
        ):
            self.assertEqual(parseTarget(text), target, text)

    def test_nonsense(self) -> None:
        """What is none of these is a ValueError."""
        for text in (
            "",
            "x",
            "lid",
            "0",
            "70000",
            "DR 1,2",
            "DR 0,0",
            "DR 0,255",
            "DR",
            "lid 7 sl",
            "up 3",
            "::1::",
        ):
            self.assertRaises(ValueError, parseTarget, text)

    def test_reverse(self) -> None:
        """The way back of the way back is the way."""
        path = IBPath(slid=LID(1), dlid=LID(2), sgid=OURS, dgid=THEIRS, dqpn=QPN(1), sqpn=QPN(5))
        self.assertEqual(path.reverse().reverse(), path)
        self.assertEqual((path.reverse().dlid, path.reverse().dgid, path.reverse().dqpn), (1, OURS, 5))


class Administration(RPCs):
    """Answers from a table, and remembers what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any, IBPath]] = []

    def call(
        self, rpc: str, payload: Any, path: IBPath, attributeModifier: int = 0, **options: Any
    ) -> Deferred[Any]:
        self.asked.append((rpc, payload, path))
        record = payload.record if isinstance(payload, Query) else payload
        answer = self.answers[(record if isinstance(record, type) else type(record)).__name__]
        return succeed(answer(record) if callable(answer) else answer)


class ResolverTests(SynchronousTestCase):
    """Every resolver."""

    def test_administration(self) -> None:
        """A GID or a GUID is asked for where the subnet's manager is; a LID or a route is not."""
        record = PathRecord(
            dgid=THEIRS, sgid=OURS, dlid=LID(5), slid=LID(3), mtu=PathMTU.MTU_2048, pkey=0xFFFF
        )
        agent = Administration(PathRecord=record)
        resolver = SAPathResolver(agent, END_PORT)
        for target in (THEIRS, "fe80::2", GUID.fromInt(2), "0x0000000000000002"):
            path = self.successResultOf(resolver.resolve(target))
            self.assertEqual((path.dlid, path.slid, path.mtu, path.dqpn), (5, 3, MTU.MTU_2048, 1))
        for _, query, way in agent.asked:
            self.assertEqual((query.record.sgid, query.record.dgid), (OURS, THEIRS))
            self.assertEqual((way.dlid, way.serviceLevel), (9, 2))
        self.assertEqual(len(agent.asked), 4)
        self.assertEqual(self.successResultOf(resolver.resolve(7)).dlid, 7)
        self.assertEqual(self.successResultOf(resolver.resolve("0,1")), IBDRPath(drPath=(1,)))
        self.failureResultOf(resolver.resolve("nobody"), ValueError)
        self.assertEqual(len(agent.asked), 4)

    def test_noManager(self) -> None:
        """Where no manager is known, nobody can be asked."""
        resolver = SAPathResolver(Administration(), MADEndPort(GUID.fromInt(1), (OURS,)))
        self.failureResultOf(resolver.resolve(THEIRS), DeviceUnavailable)

    def test_static(self) -> None:
        """A table is asked by what stands in it, or by its text."""
        path = IBPath(dlid=LID(4))
        resolver = StaticPathResolver({THEIRS: path, "storage": path})
        for target in (THEIRS, "fe80::2", "storage"):
            self.assertEqual(self.successResultOf(resolver.resolve(target)), path)
        self.failureResultOf(resolver.resolve(OURS), ValueError)
        self.failureResultOf(resolver.resolve("elsewhere"), ValueError)

    def test_ip(self) -> None:
        """On RoCE v2 an address is a GID, reached from ours of the same family."""
        port = MADEndPort(GUID.fromInt(1), (OURS, GID.fromIP("10.0.0.1")))
        resolver = IPPathResolver(port)
        path = self.successResultOf(resolver.resolve("10.0.0.2"))
        self.assertEqual((path.sgid, path.dgid), (GID.fromIP("10.0.0.1"), GID.fromIP("10.0.0.2")))
        self.assertEqual(self.successResultOf(resolver.resolve(THEIRS)).sgid, OURS)
        self.failureResultOf(resolver.resolve("somewhere"), ValueError)
        self.failureResultOf(IPPathResolver(END_PORT).resolve("10.0.0.2"), DeviceUnavailable)

    def test_provides(self) -> None:
        """All are resolvers."""
        for resolver in (
            SAPathResolver(Administration(), END_PORT),
            StaticPathResolver({}),
            IPPathResolver(END_PORT),
        ):
            self.assertTrue(IPathResolver.providedBy(resolver))


class SATransactorTests(SynchronousTestCase):
    """C{SubnGet} through the administration."""

    def test_recoded(self) -> None:
        """What is asked of a node is asked of the administration, and the content comes back."""
        info = NodeInfo(numPorts=36)
        agent = Administration(NodeRecord=NodeRecord(nodeInfo=info))
        transactor = SATransactor(agent, END_PORT)
        self.assertEqual(self.successResultOf(transactor.SubnGet(NodeInfo, IBPath(dlid=LID(5)))), info)
        rpc, query, way = agent.asked[0]
        self.assertEqual((rpc, query.mask, query.record.lid, way.dlid), ("SubnAdmGet", 1, 5, 9))

    def test_modifier(self) -> None:
        """The modifier becomes components."""
        agent = Administration(PortInfoRecord=PortInfoRecord())
        self.successResultOf(SATransactor(agent, END_PORT).SubnGet(PortInfo, IBPath(dlid=LID(5)), 3))
        _, query, _ = agent.asked[0]
        masks, _ = componentsOf(PortInfoRecord)
        self.assertEqual((query.record.endPortLID, query.record.portNum), (5, 3))
        self.assertEqual(query.mask, masks["endPortLID"] | masks["portNum"])

    def test_route(self) -> None:
        """A directed route is followed link by link, once."""
        links = {(3, 1): 20, (20, 4): 21}
        agent = Administration(
            LinkRecord=lambda asked: LinkRecord(toLID=LID(links[asked.fromLID, asked.fromPort])),
            NodeRecord=lambda asked: NodeRecord(nodeInfo=NodeInfo(numPorts=asked.lid)),
        )
        transactor = SATransactor(agent, END_PORT)
        for _ in range(2):
            info = self.successResultOf(transactor.SubnGet(NodeInfo, IBDRPath(drPath=(1, 4))))
            self.assertEqual(info.numPorts, 21)
        self.assertEqual(len(agent.asked), 4)
        self.assertEqual(self.successResultOf(transactor.SubnGet(NodeInfo, IBDRPath())).numPorts, 3)

    def test_passed(self) -> None:
        """Everything else passes as it is."""
        agent = Administration(VendorDiag=VendorDiag(nextIndex=1), PortInfo=PortInfo())
        transactor = SATransactor(agent, END_PORT)
        self.assertEqual(self.successResultOf(transactor.SubnGet(VendorDiag, IBDRPath())).nextIndex, 1)
        self.successResultOf(transactor.SubnSet(PortInfo(), IBDRPath()))
        self.assertEqual([rpc for rpc, _, _ in agent.asked], ["SubnGet", "SubnSet"])
