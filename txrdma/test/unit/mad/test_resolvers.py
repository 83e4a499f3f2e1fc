"""Path resolvers, with a simulated administration."""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.path import IBDRPath, IBPath, MADEndPort
from txrdma.iba.types import GID, GUID, LID, MTU
from txrdma.mad.layouts.sa import NodeRecord, PathRecord
from txrdma.mad.layouts.smp import NodeDescription, NodeInfo
from txrdma.mad.layouts.values import PathMTU
from txrdma.mad.resolvers import IPPathResolver, SAPathResolver, StaticPathResolver
from txrdma.test.support.mad.administration import Administration
from txrdma.test.support.mad.paths import END_PORT, LOCAL, REMOTE


class ResolverTests(SynchronousTestCase):
    def test_administration(self) -> None:
        """A GID or a GUID is resolved by the SA of the agent's port; a LID or a route needs no query."""
        record = PathRecord(
            dgid=REMOTE, sgid=LOCAL, dlid=LID(5), slid=LID(3), mtu=PathMTU.MTU_2048, pkey=0xFFFF
        )
        agent = Administration(PathRecord=record)
        resolver = SAPathResolver(agent, END_PORT)
        for target in (REMOTE, "fe80::2", GUID.fromInt(2), "0x0000000000000002"):
            path = self.successResultOf(resolver.resolve(target))
            self.assertEqual((path.dlid, path.slid, path.mtu, path.dqpn), (5, 3, MTU.MTU_2048, 1))
        for _, query, way, _ in agent.asked:
            self.assertEqual((query.record.sgid, query.record.dgid), (LOCAL, REMOTE))
            self.assertIsNone(way)
        self.assertEqual(len(agent.asked), 4)
        self.assertEqual(self.successResultOf(resolver.resolve(7)).dlid, 7)
        self.assertEqual(self.successResultOf(resolver.resolve("0,1")), IBDRPath(drPath=(1,)))
        for lid in (0, -1, 0xFFFF, 70000):
            failure = self.failureResultOf(resolver.resolve(lid), ValueError)
            self.assertEqual(str(failure.value), f"LIDs are from 1 to 65534, not {lid}")
        self.assertEqual(len(agent.asked), 4)

    def test_nameOfNode(self) -> None:
        """A name is the description of a node, or its first word; the path leads to its first port."""
        nodes = [
            NodeRecord(
                nodeInfo=NodeInfo(portGUID=GUID.fromInt(number)),
                nodeDescription=NodeDescription(nodeString=description),
            )
            for number, description in ((2, b"there mlx5_0"), (3, b"there mlx5_0"), (4, b"there mlx5_1"))
        ]
        agent = Administration(PathRecord=PathRecord(dlid=LID(5)), NodeRecord=nodes)
        resolver = SAPathResolver(agent, END_PORT)
        for name, port in (("there", 2), (" there mlx5_0", 2), ("there mlx5_1", 4)):
            self.successResultOf(resolver.resolve(name))
            _, query, _, _ = agent.asked[-1]
            self.assertEqual(query.record.dgid.guid, GUID.fromInt(port))
        failure = self.failureResultOf(resolver.resolve("nobody"), ValueError)
        self.assertIn("'nobody' is not a port", str(failure.value))

    def test_noPrefix(self) -> None:
        """A GUID is queried with the link-local prefix while the local port has no subnet prefix."""
        agent = Administration(PathRecord=PathRecord(dlid=LID(5)))
        end = replace(END_PORT, gids=(GID.fromParts(0, GUID.fromInt(1)),))
        self.successResultOf(SAPathResolver(agent, end).resolve(GUID.fromInt(2)))
        self.assertEqual([query.record.dgid for _, query, _, _ in agent.asked], [REMOTE])

    def test_newAddress(self) -> None:
        agent = Administration(PathRecord=PathRecord(dlid=LID(5)))
        end = [END_PORT]
        resolver = SAPathResolver(agent, lambda: end[0])
        gids = [LOCAL, GID.fromString("fe80::7")]
        for gid in gids:
            end[0] = replace(END_PORT, gids=(gid,))
            self.successResultOf(resolver.resolve(REMOTE))
        self.assertEqual([query.record.sgid for _, query, _, _ in agent.asked], gids)

    def test_static(self) -> None:
        path = IBPath(dlid=LID(4))
        resolver = StaticPathResolver({REMOTE: path, "storage": path})
        for target in (REMOTE, "fe80::2", "storage"):
            self.assertEqual(self.successResultOf(resolver.resolve(target)), path)
        self.failureResultOf(resolver.resolve(LOCAL), ValueError)
        self.failureResultOf(resolver.resolve("elsewhere"), ValueError)

    def test_thorough(self) -> None:
        record = PathRecord(dlid=LID(5), slid=LID(3), serviceLevel=4, packetLifeTime=17, mtu=PathMTU.MTU_1024)
        agent = Administration(PathRecord=record)
        path = self.successResultOf(SAPathResolver(agent, END_PORT, asksForLIDs=True).resolve("lid 5"))
        self.assertEqual((path.serviceLevel, path.packetLifeTime, path.mtu), (4, 17, MTU.MTU_1024))
        _, query, _, _ = agent.asked[0]
        self.assertEqual((query.record.slid, query.record.dlid), (3, 5))

    def test_scoped(self) -> None:
        agent = Administration(PathRecord=PathRecord(dlid=LID(5)))
        resolver = SAPathResolver(agent, replace(END_PORT, names=("mlx5_0/1",)))
        self.assertEqual(self.successResultOf(resolver.resolve("fe80::2%mlx5_0/1")).dlid, 5)
        self.failureResultOf(resolver.resolve("fe80::2%mlx5_0/2"), ValueError)

    def test_global(self) -> None:
        for hops, isGlobal in ((0, False), (1, False), (64, True)):
            record = PathRecord(
                sgid=LOCAL, dgid=REMOTE, dlid=LID(5), hopLimit=hops, flowLabel=6, trafficClass=7
            )
            resolver = SAPathResolver(Administration(PathRecord=record), END_PORT)
            path = self.successResultOf(resolver.resolve(REMOTE))
            self.assertEqual((path.hasGRH, path.dgid), (isGlobal, REMOTE if isGlobal else None))

    def test_ip(self) -> None:
        port = MADEndPort(GUID.fromInt(1), (LOCAL, GID.fromIP("10.0.0.1")))
        resolver = IPPathResolver(port)
        path = self.successResultOf(resolver.resolve("10.0.0.2"))
        self.assertEqual((path.sgid, path.dgid), (GID.fromIP("10.0.0.1"), GID.fromIP("10.0.0.2")))
        self.assertEqual((path.hasGRH, path.hopLimit), (True, 64))
        self.assertEqual(self.successResultOf(resolver.resolve(REMOTE)).sgid, LOCAL)
        self.assertEqual(self.successResultOf(resolver.resolve("fe80::2%eth7")).sgid, LOCAL)
        self.failureResultOf(resolver.resolve("somewhere"), ValueError)
        self.failureResultOf(IPPathResolver(END_PORT).resolve("10.0.0.2"), DeviceUnavailable)

    def test_source(self) -> None:
        mine = [GID.fromIP(text) for text in ("10.0.0.1", "10.1.0.1", "2001:db8::1", "fe80::1")]
        port = MADEndPort(GUID.fromInt(1), (GID(bytes(16)), *mine))
        routes = {
            "10.1.0.9": "10.1.0.1",
            "2001:db8::9": "2001:db8::1",
            "fe80::9%eth0": "fe80::1",
            "10.9.9.9": "10.9.9.1",
        }
        resolver = IPPathResolver(port, sourceAddress=routes.get)
        for target, source in (
            ("10.1.0.9", "10.1.0.1"),
            ("10.9.9.9", "10.0.0.1"),
            ("10.7.7.7", "10.0.0.1"),
            ("2001:db8::9", "2001:db8::1"),
            ("fe80::9%eth0", "fe80::1"),
            ("fe80::8", "fe80::1"),
            ("2001:db8::7", "2001:db8::1"),
        ):
            self.assertEqual(self.successResultOf(resolver.resolve(target)).sgid, GID.fromIP(source), target)

    def test_scopeOfAddress(self) -> None:
        """The source address is queried with the scope; an unused GID table entry is not a source."""
        asked: list[str] = []

        def source(address: str) -> str | None:
            asked.append(address)
            return None

        gids = (GID(bytes(16)), GID.fromString("fe80::1"), GID.fromString("fe80::7"))
        resolver = IPPathResolver(replace(END_PORT, gids=gids), sourceAddress=source)
        self.assertEqual(self.successResultOf(resolver.resolve("fe80::2%eth0")).sgid, gids[1])
        self.assertEqual(asked, ["fe80::2%eth0"])
        alone = IPPathResolver(replace(END_PORT, gids=gids[:1]), sourceAddress=source)
        self.failureResultOf(alone.resolve("fe80::2"), DeviceUnavailable)
