"""Fabrics as files: snapshots, net files, listings, C{topology.conf}; memory use, and chassis."""

from __future__ import annotations

import gc
import json
import re
import sysconfig
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.formats.ibnetdiscover import listing
from txrdma.fabric.chassis import chassis, positionOf
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.model import Fabric, Problem
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.recording import Recording
from txrdma.fabric.slurm import hostList, slurmText, slurmYAML
from txrdma.fabric.snapshots import dump, load
from txrdma.fabric.texts import readText
from txrdma.iba.path import IBDRPath
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType, PortState
from txrdma.mad.layouts.smp import NodeInfo, PortInfo, SwitchInfo
from txrdma.sim.netfabrics import readFabric
from txrdma.sim.nets import netfile
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net, NetFileError, parseNet
from txrdma.test.support.mad.simulated import FabricTestCase

BYTES_PER_PORT = 280 if sysconfig.get_config_var("Py_GIL_DISABLED") else 250
"""
Largest memory in bytes for each port, including hosts, switches and their names. Numbers and strings of
free-threaded builds are larger by 16 bytes.
"""


class RecordingTests(SynchronousTestCase):
    def test_partialTable(self) -> None:
        """A forwarding table of which a block was not read is unknown: it does not lack routes."""
        fabric = Fabric()
        node, _isNew = fabric.add(NodeInfo(nodeType=NodeType.SWITCH, numPorts=2, nodeGUID=GUID.fromInt(1)))
        node.port(0).setInfo(PortInfo(lid=LID(9)).encode())
        node.switchInfo = SwitchInfo(linearFDBTop=LID(100))
        blocks: dict[tuple[int, int], Any] = {(9, 1): bytes([2]) * 64}
        recording = Recording(fabric, answers={("SubnGet", "LinearForwardingTable"): blocks})
        self.assertEqual(recording.linearTables(), {})
        blocks[9, 0] = bytes([1]) * 64
        self.assertEqual(recording.linearTables(), {node.guid: bytes([1]) * 64 + bytes([2]) * 64})


class MemoryTests(FabricTestCase):
    def net(self) -> Net:
        return fatTree(128)

    def agentAt(self, name: str, number: int | None = None) -> object:  # type: ignore[override]  # only its own here
        return super().agentAt("h00000" if name == "a" else name, number)

    def test_memory(self) -> None:
        self.sweep()  # allocates what is created once
        gc.collect()
        tracemalloc.start()
        try:
            fabric = self.sweep()
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        ports = sum(1 for _ in fabric.ports())
        self.assertEqual(ports, 128 + 17 * 37)
        self.assertLess(taken / ports, BYTES_PER_PORT)


class RoundTripTests(FabricTestCase):
    def test_json(self) -> None:
        fabric = self.answerTo(Sweep(self.agent).run(IBDRPath(drPath=(1,), drSLID=LID(7))))
        fabric.problems.append(Problem("unreachable", "DR 0,9", "nobody"))
        again = load(json.loads(json.dumps(dump(fabric))))
        self.assertEqual(dump(again), dump(fabric))
        self.assertEqual(again.problems, fabric.problems)
        for guid, node in fabric.nodes.items():
            self.assertEqual((again.nodes[guid].info, again.nodes[guid].route), (node.info, node.route))
            self.assertEqual(again.nodes[guid].portGUIDs, node.portGUIDs)

    def test_notJSON(self) -> None:
        whole = dump(self.sweep())
        changes: tuple[dict[str, Any], ...] = (
            {"nodes": 7},
            {"problems": [{}]},
            {"nodes": whole["nodes"] * 2},
            {"nodes": whole["nodes"][:1]},
            {"nodes": [{**whole["nodes"][0], "nodeInfo": "00"}]},
            {"nodes": [{**whole["nodes"][0], "nodeInfo": "zz"}]},
            {"nodes": [{**whole["nodes"][0], "ports": [{"number": -1}]}]},
            {"nodes": [{**whole["nodes"][0], "ports": [{"number": 999}]}]},
        )
        for change in changes:
            self.assertRaises(ValueError, load, {**whole, **change})
        others: tuple[Any, ...] = ([], None, "nodes")
        for other in others:
            self.assertRaises(ValueError, load, other)

    def test_unprintable(self) -> None:
        """Names and problems of a snapshot cannot control the terminal on which they are printed."""
        changed = dump(self.sweep())
        changed["nodes"][0]["description"] = "leaf\x1b[31m\nlink"
        changed["problems"] = [{"kind": "a\x1b", "where": "b\x9b", "text": "c\u202e\nd"}]
        fabric = load(changed)
        self.assertIn("leaf [31m link", {node.description for node in fabric.nodes.values()})
        self.assertEqual(fabric.problems, [Problem("a ", "b ", "c  d")])

    def test_otherPeers(self) -> None:
        reported = dump(self.sweep())
        switch = next(node for node in reported["nodes"] if node["type"] == "SWITCH")
        switch["ports"][1]["peer"], switch["ports"][2]["peer"] = switch["ports"][2]["peer"], None
        self.assertRaises(ValueError, load, reported)

    def test_text(self) -> None:
        fabric = self.sweep()
        text = "\n".join(listing(fabric, NodeNames()))
        again = readFabric(text)
        without = [line for line in text.splitlines() if "Initiated" not in line]
        self.assertEqual("\n".join(listing(again, NodeNames())).splitlines()[1:], without[2:])
        self.assertEqual(
            sorted((str(a), str(b)) for a, b in again.links()),
            sorted((str(a), str(b)) for a, b in fabric.links()),
        )
        for guid, node in fabric.nodes.items():
            self.assertEqual(again.nodes[guid].lid, node.lid)
        self.assertEqual({one.state for one, _ in again.links()}, {PortState.ACTIVE})

    def test_rates(self) -> None:
        for rate in ("1xSDR", "4xDDR", "8xQDR", "12xFDR10", "4xFDR", "4xEDR", "2xHDR", "4xNDR", "4xXDR"):
            text = (
                f'Switch\t2 "s"\n[1]\t"h"[1]\t# "h" lid 1 {rate}\n\nCa\t1 "h"\n[1]\t"s"[1]\t# lid 1 {rate}\n'
            )
            fabric = readFabric(text)
            for one, other in fabric.links():
                self.assertEqual({f"{end.width}x{end.speed}" for end in (one, other)}, {rate})

    def test_longLine(self) -> None:
        """A line of any characters is read in a time that is proportional to its length."""
        text = 'Switch\t2 "s"\n[1]\t"h"[1]\t{}\n\nCa\t1 "h"\n[1]\t"s"[1]\t# lid 1 4xEDR\n'
        for part in ("#", "# 1", " 1x", "1x", " ", "# lid 1 ", "lid 1 lmc "):
            began = time.process_time()
            readFabric(text.format("#" + part * (40_000 // len(part))))
            self.assertLess(time.process_time() - began, 1.0, part)

    def test_enhanced(self) -> None:
        text = (
            'switchguid=0x10(11)\nSwitch\t2 "s"\t# "s" enhanced port 0 lid 3 lmc 0\n[1]\t"h"[1](99)\n\n'
            'caguid=0x20\nCa\t1 "h"\t# "h"\n[1](99)\t"s"[1]\t\t# lid 1 lmc 2 "s" lid 3 4xEDR\n'
        )
        fabric = readFabric(text)
        switch, host = fabric.nodes[GUID.fromInt(0x10)], fabric.nodes[GUID.fromInt(0x20)]
        assert switch.switchInfo is not None
        self.assertTrue(switch.switchInfo.enhancedPort0)
        self.assertEqual((switch.portGUID(0), host.portGUID(1)), (GUID.fromInt(0x11), GUID.fromInt(0x99)))
        self.assertEqual((host.lid, host.port(1).info.lmc), (1, 2))
        self.assertIs(fabric.byLID(4), host.port(1))
        self.assertIs(fabric.byGUID(GUID.fromInt(0x99)), host.port(1))

    def test_unprintableNames(self) -> None:
        """Control characters in names are replaced by spaces, as in snapshots."""
        fabric = readFabric('Hca 2 "h\0\1x"\n[1] "s"[1]\n\nSwitch 2 "s"\n')
        self.assertEqual([node.description for node in fabric.nodes.values()], ["h  x", "s"])
        self.assertEqual(dump(load(dump(fabric))), dump(fabric))

    def test_twoOfOne(self) -> None:
        text = 'switchguid=0x1\nSwitch 2 "a"\n[1] "b"[1]\n\nswitchguid=0x1\nSwitch 2 "b"\n'
        self.assertIn("same GUID", str(self.assertRaises(ValueError, readFabric, text)))

    def test_longGUID(self) -> None:
        text = 'Switch 2 "a"\n[1](12345678901234567) "a"[2]\n'
        self.assertIn("is not a port GUID", str(self.assertRaises(ValueError, readFabric, text)))


class TextTests(SynchronousTestCase):
    """Text files that users name."""

    def test_unprintable(self) -> None:
        """Unprintable characters of a file are read as spaces, and line lengths do not change."""
        path: str = self.mktemp()
        with open(path, "w", encoding="utf-8") as file:
            file.write('0x1\t"leaf\x1b[31m\x85"\r\n\n0x2 "\u2028é"\n')
        self.assertEqual(readText("map", path), '0x1 "leaf [31m "\n\n0x2 " é"\n')


def made(fabric: Fabric, guid: int, vendor: int, device: int, system: int, name: str = "") -> None:
    """Return a fabric with one more switch."""
    info = NodeInfo(
        nodeType=NodeType.SWITCH,
        numPorts=4,
        nodeGUID=GUID.fromInt(guid),
        portGUID=GUID.fromInt(guid),
        systemImageGUID=GUID.fromInt(system),
        vendorID=vendor,
        deviceID=device,
    )
    node, _ = fabric.add(info)
    node.description = name
    node.switchInfo = SwitchInfo()
    node.port(0).setInfo(PortInfo().encode())


class ChassisTests(SynchronousTestCase):
    def groups(self, fabric: Fabric) -> list[tuple[int, Sequence[int]]]:
        return [(int(each.guid), [int(node.guid) for node in each.nodes]) for each in chassis(fabric)]

    def test_system(self) -> None:
        fabric = Fabric()
        for guid, system in ((1, 0x50), (2, 0x50), (3, 0x60), (4, 0), (5, 0)):
            made(fabric, guid, 0x2C9, 0xC738, system)
        self.assertEqual(self.groups(fabric), [(0x50, [1, 2])])

    def test_slots(self) -> None:
        fabric = Fabric()
        for guid, vendor in ((1, 0x5AD), (2, 0x5AD), (3, 0x2C9), (4, 0x2C9)):
            made(fabric, guid, vendor, 1, 0x0005AD0001000000 | guid << 24)
        self.assertEqual(self.groups(fabric), [(0x0005AD0000000000, [1, 2])])

    def test_places(self) -> None:
        fabric = Fabric()
        made(fabric, 1, 0x2C9, 0xC738, 9, "MF0;core1:SX6536/L02/U1")
        made(fabric, 2, 0x2C9, 0xC738, 9, "MF0;core1:SX6536/S01/U2")
        [one] = chassis(fabric)
        self.assertEqual(one.kind, "SX6536")
        places = [positionOf(node) for node in one.nodes]
        self.assertEqual(
            [(each.board, each.slot, each.chip) for each in places if each is not None],
            [("line", 2, 1), ("spine", 1, 2)],
        )
        lines = "\n".join(listing(fabric, NodeNames(), chassis(fabric))).splitlines()
        self.assertIn("# Chassis 1 (guid 0x9) SX6536", lines)
        self.assertIn("switchguid=0x1(1)\t# SX6536 line 2 chip 1", lines)
        self.assertIsNone(positionOf(fabric.nodes[GUID.fromInt(1)].__class__(NodeInfo())))


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
        """Fat trees have the expected switches and links, and use every port at most once."""
        for hosts, radix, switches, links in ((8, 36, 1, 8), (128, 36, 17, 272), (1024, 36, 306, 3616)):
            net = fatTree(hosts, radix)
            kinds = [node.kind for node in net.nodes.values()]
            self.assertEqual(kinds.count(NodeType.CHANNEL_ADAPTER), hosts)
            self.assertEqual(kinds.count(NodeType.SWITCH), switches)
            self.assertEqual(sum(len(node.links) for node in net.nodes.values()) // 2, links)
            self.assertEqual(parseNet(net.text()), net)
        for hosts, radix in ((0, 36), (3, 3), (36 * 18 * 18 + 1, 36), (1, 256), (1 << 60, 36)):
            self.assertRaises(ValueError, fatTree, hosts, radix)

    def test_tooManyPorts(self) -> None:
        """A net with more ports than a fabric may have is refused with the line that exceeds the limit."""
        self.patch(netfile, "MOST_PORTS", 600)
        text = "\n".join(f'Switch 254 "s{number}"' for number in range(3))
        error = self.assertRaises(NetFileError, parseNet, text, "big.net")
        self.assertEqual(str(error), "big.net, line 3: a fabric has at most 600 ports here")
        error = self.assertRaises(ValueError, fatTree, 4_000_000, 254)
        self.assertIn("at most 500,000 ports", str(error))


_LINE = re.compile(r"SwitchName=([\w.-]{1,63}) (Nodes|Switches)=(\S+)")


def expanded(text: str) -> Iterator[str]:
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text):
        prefix, bracket, inside = part.partition("[")
        if not bracket:
            yield prefix
            continue
        for span in inside.rstrip("]").split(","):
            low, _, high = span.partition("-")
            for number in range(int(low), int(high or low) + 1):
                yield f"{prefix}{number:0{len(low)}}"


class Topology:
    """
    A C{topology.conf}.

    @ivar nodes: nodes by switch; C{switches}: switches by switch.
    """

    def __init__(self, lines: Iterator[str]) -> None:
        self.nodes: dict[str, list[str]] = {}
        self.switches: dict[str, list[str]] = {}
        for line in lines:
            match = _LINE.fullmatch(line)
            assert match is not None, line
            assert match[1] not in self.nodes and match[1] not in self.switches, f"{match[1]} is there twice"
            kind = self.nodes if match[2] == "Nodes" else self.switches
            kind[match[1]] = list(expanded(match[3]))

    def under(self, name: str, depth: int = 0) -> set[str]:
        assert depth < 20, "this is not a tree"
        if name in self.nodes:
            return set(self.nodes[name])
        return set().union(*(self.under(child, depth + 1) for child in self.switches[name]))

    def tops(self) -> list[str]:
        every = set().union(*map(set, self.nodes.values()))
        return [name for name in [*self.nodes, *self.switches] if self.under(name) == every]


def topology(text: str, names: NodeNames | None = None) -> Topology:
    return Topology(slurmText(readFabric(text), names or NodeNames()))


def pair(one: str, other: str) -> str:
    switches = (
        f'Switch 4 "{one}"\n[1] "h{one}"[1]\n[2] "{other}"[2]\n\nSwitch 4 "{other}"\n[1] "h{other}"[1]\n'
    )
    return f'{switches}\nHca 1 "h{one}"\n\nHca 1 "h{other}"\n'


class SlurmTests(SynchronousTestCase):
    def test_trees(self) -> None:
        for hosts, radix in ((40, 36), (128, 36), (16, 4)):
            found = topology(fatTree(hosts, radix).text())
            every = [host for each in found.nodes.values() for host in each]
            self.assertEqual(sorted(every), [f"h{number:05}" for number in range(hosts)])
            self.assertTrue(found.tops(), (hosts, radix))
            self.assertNotIn("fabric", found.switches)

    def test_hostAtSpine(self) -> None:
        found = topology(
            'Switch 4 "s"\n[1] "a"[1]\n[2] "fabric"[1]\n\nSwitch 4 "t"\n[1] "b"[1]\n[2] "fabric"[2]\n\n'
            'Switch 4 "fabric"\n[3] "sm"[1]\n\nHca 1 "a"\n\nHca 1 "b"\n\nHca 1 "sm"\n'
        )
        self.assertEqual(found.nodes["fabric"], ["sm"])
        self.assertEqual(found.tops(), ["fabric2"])

    def test_islands(self) -> None:
        found = topology(pair("s1", "s2") + "\n" + pair("s3", "s4"))
        self.assertEqual(found.switches, {"fabric": ["s1", "s2"], "fabric2": ["s3", "s4"]})

    def test_noHosts(self) -> None:
        found = topology(
            'Switch 8 "s"\n[1] "a"[1]\n[2] "r"[1]\n[3] "x"[1]\n[4] "t"[1]\n\nSwitch 8 "t"\n[2] "a"[2]\n\n'
            'Hca 2 "a"\t# "a mlx5_0"\n\nRt 1 "r"\n\nHca 1 "x"\t# "Mellanox Technologies Aggregation Node"\n'
        )
        self.assertEqual(found.nodes, {"s": ["a"], "t": ["a"]})

    def test_names(self) -> None:
        text = "\n\n".join(
            f'switchguid=0x{number}\nSwitch 4 "{number}"\t# "{name}"\n[1] "h{number}"[1]\n\nHca 1 "h{number}"'
            for number, name in enumerate((*["MF0;core:SX6036/U1"] * 2, "", *["x" * 64] * 2), 1)
        )
        found = topology(text, NodeNames({GUID.fromInt(3): "the third, [1]"}))
        names = list(found.nodes)
        self.assertEqual(len(set(names)), 5)
        self.assertIn("MF0_core_SX6036_U1", names)
        self.assertIn("the_third_1_", names)

    def test_yaml(self) -> None:
        """The tree of topology.yaml is that of topology.conf; each host is in one block, that of a leaf."""
        text = (
            'Switch 4 "s"\n[1] "a"[1]\n[2] "7"[1]\n[3] "t"[3]\n\nSwitch 4 "t"\n[1] "a"[2]\n[2] "b"[1]\n\n'
            'Hca 2 "a"\n\nHca 1 "7"\n\nHca 1 "b"\n'
        )
        self.assertEqual(
            list(slurmYAML(readFabric(text), NodeNames())),
            [
                *("- topology: tree", "  cluster_default: true", "  tree:", "    switches:"),
                *(
                    '      - switch: "s"',
                    '        nodes: "7,a"',
                    '      - switch: "t"',
                    '        nodes: "a,b"',
                ),
                *('      - switch: "fabric"', '        children: "s,t"'),
                *("- topology: block", "  cluster_default: false", "  block:", "    block_sizes: [1]"),
                *("    blocks:", '      - block: "s"', '        nodes: "7,a"'),
                *('      - block: "t"', '        nodes: "b"'),
            ],
        )

    def test_hostList(self) -> None:
        for names in (
            ["h3", "h1", "h2", "h5"],
            ["h01", "h1", "h001"],
            ["login", "n09", "n10", "a-1"],
            ["node" + "9" * 30, "7", "8", "x1y2", "x1y3"],
            [f"r{rack}n{node:02}" for rack in range(3) for node in range(12)],
        ):
            self.assertEqual(sorted(expanded(hostList(names))), sorted(names))
        self.assertEqual(hostList(["h3", "h1", "h2", "h5"]), "h[1-3,5]")
        self.assertEqual(hostList(["h01", "h1"]), "h01,h1")
        self.assertEqual(hostList(["login", "n09", "n10", "a-1"]), "a-1,n[09-10],login")
