"""
Net files say what fabrics are, and read back as what was written.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net, NetFileError, parseNet


class NetFileTests(SynchronousTestCase):
    @given(st.integers(0, 31), st.integers(0, 7), st.integers(0, 15), st.integers(0, 0xBFFF))
    def test_roundTrip(self, width: int, speed: int, extendedSpeed: int, lid: int) -> None:
        net = Net(width=3)
        switch = net.add(NodeType.SWITCH, 4, "s1")
        switch.description, switch.guid, switch.lid = "first switch", GUID.fromInt(7), lid
        net.add(NodeType.CHANNEL_ADAPTER, 1, "h1")
        net.link("s1", 2, "h1", 1)
        link = switch.links[2]
        link.width, link.speed, link.extendedSpeed = width, speed, extendedSpeed
        self.assertEqual(parseNet(net.text()), net)

    def test_lanes(self) -> None:
        for text, mask in (("1", 1), ("4", 2), ("8", 4), ("12", 8), ("3", 3), ("0xc", 12)):
            net = parseNet(f'Switch 2 "a"\n[1] "b"[1] w={text}\n\nHca 1 "b"\n[1] "a"[1]\n')
            self.assertEqual(net.nodes["a"].links[1].width, mask, text)

    def test_oneEnd(self) -> None:
        net = parseNet('Switch 2 "a"\n[2] "b"\n\nHca 1 "b"\n')
        self.assertEqual((net.nodes["b"].links[1].peer, net.nodes["b"].links[1].peerPort), ("a", 2))

    def test_nonsense(self) -> None:
        for text, line in (
            ("nonsense", 1),
            ('[1] "a"[1]', 1),
            ('Switch 2 "a"\n[3] "a"[1]', 2),
            ('Switch 2 "a"\n[1] "b"[1]', 2),
            ('Switch 255 "a"', 1),
            ('Hca 1 "a"\n\nHca 1 "a"', 3),
            ('Switch 2 "a"\n[1] "b"[1]\n\nHca 1 "b"\n[1] "a"[2]', 2),
            ("module x", 1),
            ("speed=0x10", 1),
            ("width=256", 1),
            ("switchguid=0x10000000000000000", 1),
            ('devid=0x10000\nHca 1 "a"', 1),
            ('Hca 1 "a" # "a" lid 65536', 1),
            ('Hca 1 "a" # "a" lid 1 lmc 8', 1),
            ('Switch 2 "a"\n[1] "a"[2] w=256', 2),
            ('Switch 2 "a"\n[1] "a"[2] s=16', 2),
            ('Switch 2 "a"\n[1] "a"[2] e=0x1f', 2),
        ):
            error = self.assertRaises(NetFileError, parseNet, text)
            self.assertIn(f"line {line}:", str(error), text)

    def test_descriptions(self) -> None:
        net = parseNet('Hca 1 "a" # " lid 7 lmc 1" lid 2\n\nHca 1 "b" # " lid 9"\n\nvendid=010\nHca 1 "c"\n')
        self.assertEqual([(node.lid, node.lmc) for node in net.nodes.values()], [(2, 0), (0, 0), (0, 0)])
        self.assertEqual(net.nodes["c"].vendorID, 10)
        self.assertEqual(parseNet(net.text()), net)

    def test_fatTrees(self) -> None:
        """Fat trees have the switches and links that they should, every port at most once."""
        for hosts, radix, switches, links in ((8, 36, 1, 8), (128, 36, 17, 272), (1024, 36, 306, 3616)):
            net = fatTree(hosts, radix)
            kinds = [node.kind for node in net.nodes.values()]
            self.assertEqual(kinds.count(NodeType.CHANNEL_ADAPTER), hosts)
            self.assertEqual(kinds.count(NodeType.SWITCH), switches)
            self.assertEqual(sum(len(node.links) for node in net.nodes.values()) // 2, links)
            self.assertEqual(parseNet(net.text()), net)
        for hosts, radix in ((0, 36), (3, 3), (36 * 18 * 18 + 1, 36)):
            self.assertRaises(ValueError, fatTree, hosts, radix)
