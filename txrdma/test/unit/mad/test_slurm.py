"""
Slurm's topology.conf, read back by the rules of its page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.slurm import hostList, slurmText
from txrdma.iba.types import GUID
from txrdma.sim.netfabrics import readFabric
from txrdma.sim.nets.fattree import fatTree

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

    @ivar nodes: by switch; C{switches} likewise.
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
        assert depth < 20, "this is no tree"
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
