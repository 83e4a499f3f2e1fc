"""Text and values of paths, and parsing of targets."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBDRPath, IBPath, MADEndPort
from txrdma.iba.types import GID, GUID, LID, MTU, PKey
from txrdma.mad.paths import parseTarget
from txrdma.test.support.mad.paths import END_PORT, gids, headers, lids, LOCAL, paths, REMOTE, routes

directed = st.builds(IBDRPath, **headers, drPath=routes, drSLID=lids, drDLID=lids)


class TextTests(SynchronousTestCase):
    slowBecause = "Hypothesis runs many examples"

    @given(paths)
    def test_path(self, path: IBPath) -> None:
        self.assertEqual(IBPath.fromString(str(path)), path)

    @given(directed)
    def test_route(self, path: IBDRPath) -> None:
        self.assertEqual(IBDRPath.fromString(str(path)), path)
        self.assertEqual(parseTarget(str(path)), path)

    @given(paths | directed)
    def test_repr(self, path: IBPath) -> None:
        names = {"IBPath": IBPath, "IBDRPath": IBDRPath, "GID": GID, "MTU": MTU}
        self.assertEqual(eval(repr(path), names), path)
        self.assertEqual(parseTarget(repr(path)), path)
        self.assertIs(type(parseTarget(repr(path))), type(path))

    def test_examples(self) -> None:
        self.assertEqual(str(IBPath(dlid=LID(7), serviceLevel=1)), "lid 7 sl 1")
        self.assertEqual(str(IBPath()), "lid 0")
        self.assertEqual(str(IBDRPath(drPath=(1, 3))), "DR 0,1,3")
        self.assertEqual(str(IBDRPath(drPath=(1,), drSLID=LID(4), dlid=LID(9))), "DR 0,1 lid 9 drslid 4")
        self.assertEqual(IBPath.fromString("lid 0x10 pkey 0x7fff"), IBPath(dlid=LID(16), pkey=PKey(0x7FFF)))
        self.assertEqual(
            repr(IBPath(dlid=LID(7), dgid=REMOTE, mtu=MTU.MTU_2048)),
            "IBPath(dlid=7, dgid=GID.fromString('fe80::2'), mtu=MTU.MTU_2048)",
        )

    def test_targets(self) -> None:
        """A target is a LID, a GID, a GUID, a route or a path."""
        guid = GUID.fromInt(0x0002C90300010002)
        for texts, target in (
            ("7|lid 7| lid7 ", 7),
            ("LID 0x10", 16),
            ("fe80::2|FE80:0:0:0:0:0:0:2", REMOTE),
            ("::ffff:10.0.0.1|10.0.0.1", GID.fromIP("10.0.0.1")),
            ("0x0002c90300010002|0002c90300010002|0002:c903:0001:0002", guid),
            ("DR 0,1,3|dr 0,1,3|DR, 0,1,3|DR 0, 1, 3|0,1,3|IBDRPath(drPath=[1, 3])", IBDRPath(drPath=(1, 3))),
            ("0,1,", IBDRPath(drPath=(1,))),
            ("DR 0", IBDRPath()),
            ("0,1 pkey 0x8001", IBDRPath(drPath=(1,), pkey=PKey(0x8001))),
            (
                "lid 7 sl 3|IBPath(dlid=7, serviceLevel=3)|path.IBPath(DLID=7, SL=3)",
                IBPath(dlid=LID(7), serviceLevel=3),
            ),
            ("IBPath(DGID='fe80::2', hop_limit=64)", IBPath(dgid=REMOTE, hopLimit=64)),
        ):
            for text in texts.split("|"):
                self.assertEqual(parseTarget(text), target, text)

    def test_long(self) -> None:
        """A text much longer than any path is not parsed: Python 3.10 would crash with SIGSEGV."""
        for text in ("a" + ".b" * 1_000_000 + "()", "IBPath(dlid=1" + "+1" * 1_000_000 + ")"):
            error = self.assertRaises(ValueError, IBPath.fromString, text)
            self.assertLess(len(str(error)), 100)

    def test_scope(self) -> None:
        port = replace(END_PORT, names=("mlx5_0/1", "ib0"))
        for scope in ("mlx5_0/1", "ib0", "0x0000000000000001", "0000:0000:0000:0001", "fe80::1"):
            self.assertEqual(parseTarget(f"fe80::2%{scope}", port), REMOTE, scope)
        self.assertEqual(parseTarget("fe80::2%elsewhere"), REMOTE)
        for scope in ("mlx5_1/1", "fe80::2", "0x0000000000000002", ""):
            self.assertRaises(ValueError, parseTarget, f"fe80::2%{scope}", port)

    def test_nonsense(self) -> None:
        texts = (
            "|x|lid|0|70000|700000|0x12345|DR 1,2|DR 0,0|DR 0,255|DR 0,x|DR 0,1 drslid|DR|lid 7 sl|up 3|::1::"
            "|lid 70000 sl 1|lid 7 sl 16|lid 7 drslid 3|lid -1 sl 1|10.0.0.256|IBPath(|IBPath(7)"
            "|IBDRPath(drPath=(1, .2))|IBDRPath(drPath=(0,))|IBDRPath(drPath=1)|IBPath(sgid=7)|IBPath(mtu=7)"
            "|IBPath(dlid=True)|IBPath(reversible=3)|IBPath(lids=7)|IBPath(dlid=70000)|IBPath(dlid=lid)"
            "|IBPath(dlid='x')|IBPath(drPath=(1,))|IBPath(mtu=MTU.MTU_3)|print(dlid=7)|__import__('os').abort()"
        )
        nested = [f"IBPath(dlid={'-' * depth}1)" for depth in (3000, 100_000)]
        for text in (*texts.split("|"), *nested):
            self.assertRaises(ValueError, parseTarget, text)
        self.assertRaises(ValueError, IBDRPath.fromString, "IBPath(dlid=7)")

    def test_reason(self) -> None:
        """The message for an invalid C{repr} has an example, and the reason if there is one."""
        for text, end in (("IBPath(7)", "(dlid=7)"), ("IBPath(lids=7)", "(dlid=7): there is no field lids")):
            error = self.assertRaises(ValueError, IBPath.fromString, text)
            self.assertEqual(str(error), f"{text!r} is not a path, such as IBPath{end}")

    @settings(max_examples=30)
    @given(st.text(max_size=40) | st.text("0123456789abcdefx:.,% lidDR()=", max_size=20))
    def test_anything(self, text: str) -> None:
        try:
            target = parseTarget(text)
        except ValueError:
            return
        self.assertIsInstance(target, (int, GID, GUID, IBPath))


class ValueTests(SynchronousTestCase):
    port = MADEndPort(
        GUID.fromInt(1),
        (LOCAL, GID.fromString("fec0::1")),
        lid=LID(0x24),
        lidMask=2,
        pkeys=(PKey(0xFFFF), PKey(0x8001)),
        subnetTimeout=17,
    )

    @given(paths | directed)
    def test_reverse(self, path: IBPath) -> None:
        if not path.reversible:
            self.assertRaises(ValueError, path.reverse)
            return
        back = path.reverse()
        self.assertIs(type(back), type(path))
        self.assertEqual(back.reverse(), path)
        self.assertEqual(
            (back.slid, back.dlid, back.sgid, back.dgid, back.sqpn, back.dqpn),
            (path.dlid, path.slid, path.dgid, path.sgid, path.dqpn, path.sqpn),
        )
        same = "serviceLevel trafficClass flowLabel hopLimit pkey qkey sqpsn mtu packetLifeTime".split()
        self.assertEqual([getattr(back, name) for name in same], [getattr(path, name) for name in same])

    def test_globalReverse(self) -> None:
        there = IBPath(slid=LID(1), dlid=LID(2), sgid=LOCAL, dgid=REMOTE, flowLabel=5, hopLimit=64)
        self.assertTrue(there.hasGRH)
        self.assertTrue(there.reverse().hasGRH)
        self.assertEqual((there.reverse().dgid, there.reverse().flowLabel), (LOCAL, 5))
        self.assertFalse(IBPath(dlid=LID(2)).reverse().hasGRH)

    def test_routeBack(self) -> None:
        there = IBDRPath(drPath=(1, 3), drSLID=LID(5), slid=LID(5), dlid=LID(9))
        back = there.reverse()
        self.assertEqual((back.drPath, back.drSLID, back.slid, back.dlid), ((1, 3), 5, 9, 5))

    def test_index(self) -> None:
        port = self.port
        one = IBPath.fromPort(port, pkeyIndex=1, gidIndex=1, lidBits=3, dlid=LID(9))
        other = IBPath(slid=LID(0x27), sgid=port.gids[1], pkey=port.pkeys[1], dlid=LID(9), packetLifeTime=17)
        self.assertEqual(one, other)
        reported = one.pkeyIndexAt(port), one.sgidIndexAt(port), one.slidBitsAt(port)
        self.assertEqual(reported, (1, 1, 3))
        back = one.reverse()
        self.assertEqual((back.pkeyIndexAt(port), back.dgidIndexAt(port), back.dlidBitsAt(port)), reported)
        self.assertEqual(
            IBPath.toPort(port, pkeyIndex=1, gidIndex=1, lidBits=3, slid=LID(9)), replace(back, hopLimit=0)
        )
        self.assertEqual(IBPath.fromPort(port, dlid=LID(9)).slid, 0x24)
        self.assertEqual(IBPath.toPort(port, slid=LID(9)).dlid, 0x24)

    @given(st.data())
    def test_anyIndex(self, data: st.DataObject) -> None:
        port = MADEndPort(
            GUID.fromInt(1),
            tuple(data.draw(st.lists(gids, min_size=1, max_size=8, unique=True))),
            lid=LID(data.draw(st.integers(1, 0xBFFF))),
            lidMask=data.draw(st.integers(0, 7)),
            pkeys=tuple(
                data.draw(st.lists(st.integers(0, 0xFFFF).map(PKey), min_size=1, max_size=8, unique=True))
            ),
        )
        at = (
            data.draw(st.integers(0, len(port.pkeys) - 1)),
            data.draw(st.integers(0, len(port.gids) - 1)),
            data.draw(st.integers(0, (1 << port.lidMask) - 1)),
        )
        there = IBPath.fromPort(port, pkeyIndex=at[0], gidIndex=at[1], lidBits=at[2])
        self.assertEqual((there.pkeyIndexAt(port), there.sgidIndexAt(port), there.slidBitsAt(port)), at)
        back = there.reverse()
        self.assertEqual((back.pkeyIndexAt(port), back.dgidIndexAt(port), back.dlidBitsAt(port)), at)
        self.assertEqual(IBPath.toPort(port, pkeyIndex=at[0], gidIndex=at[1], lidBits=at[2]), back)

    def test_routeFromPort(self) -> None:
        route = IBDRPath.fromPort(self.port, pkeyIndex=1, drPath=(1,))
        self.assertEqual((route.slid, route.pkey, route.drPath), (0xFFFF, 0x8001, (1,)))

    def test_noEntry(self) -> None:
        port = self.port
        for values in (
            {"pkeyIndex": 2},
            {"pkeyIndex": -1},
            {"gidIndex": 2},
            {"lidBits": 4},
            {"lidBits": -1},
            {"pkeyIndex": 0, "pkey": 0xFFFF},
            {"gidIndex": 0, "sgid": LOCAL},
            {"lidBits": 0, "slid": 0x24},
            {"dlid": 0x10000},
            {"serviceLevel": 16},
        ):
            self.assertRaises(ValueError, IBPath.fromPort, port, **values)
        path = IBPath(slid=LID(0x28), dlid=LID(0x23), pkey=PKey(0x7FFF), sgid=REMOTE)
        for ask in (path.pkeyIndexAt, path.sgidIndexAt, path.dgidIndexAt, path.slidBitsAt, path.dlidBitsAt):
            self.assertRaises(ValueError, ask, port)

    def test_times(self) -> None:
        path = IBPath(packetLifeTime=10, responseTime=12)
        self.assertAlmostEqual(path.packetLifeTimeSeconds, 4.096e-6 * 1024)
        self.assertAlmostEqual(path.madTimeoutSeconds, 4.096e-6 * (2 * 1024 + 4096))
        self.assertEqual(path.qpTimeout(), 11)
        self.assertEqual(path.qpTimeout(ackDelay=11), 12)
        self.assertEqual(path.qpTimeout(ackDelay=3), 12)
        self.assertEqual(IBPath(packetLifeTime=31).qpTimeout(), 31)
        self.assertAlmostEqual(IBPath().madTimeoutSeconds, 4.096e-6 * (2 << 18) + 4.096e-6 * (1 << 16))


class SenderTests(SynchronousTestCase):
    """The identity of a sender, for limits."""

    def test_lid(self) -> None:
        """On InfiniBand it is the LID: neither path bits nor GIDs make another sender of a port."""
        port = replace(END_PORT, lid=LID(8), lidMask=2)
        senders = [
            port.senderOf(IBPath(slid=LID(lid), sgid=gid))
            for lid in range(12, 16)
            for gid in (None, LOCAL, REMOTE)
        ]
        self.assertEqual(len(set(senders)), 1)
        self.assertNotEqual(port.senderOf(IBPath(slid=LID(16))), senders[0])

    def test_gid(self) -> None:
        """On RoCE, where a completion may report any LID, it is the GID."""
        port = replace(END_PORT, lid=LID(0))
        found = [port.senderOf(IBPath(slid=LID(lid), sgid=gid)) for lid in (0, 7) for gid in (LOCAL, REMOTE)]
        self.assertEqual(found, [LOCAL, REMOTE] * 2)
        self.assertEqual(port.senderOf(IBPath()), 0)
