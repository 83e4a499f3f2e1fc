"""
C{discover} and the commands for single nodes report what infiniband-diags reports in the same ibsim.

Differences, where infiniband-diags is wrong or incomplete:

  - C{perfquery} reads QP1Dropped where VL15Dropped is.
  - C{smpquery} does not show M_Keys.
  - C{ibnetdiscover} does not look for a host's own name in the node-name map, only for those of its peers.
  - Each datagram changes the counters of the ports on its path, so two readings of traffic differ.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from txrdma.sim.nets.fattree import fatTree
from txrdma.test.support.mad.structures import alike
from txrdma.test.system.ibsim.fabric import EXAMPLES, IbsimTestCase
from txrdma.test.system.ibsim.test_commands_2 import CommandsTestCase

_SYNONYMS = {
    ("portPhysicalState", "PhysLinkState"),
    ("initTypeReply", "InitReply"),
    ("inboundEnforcementCap", "InboundPartEnf"),
    ("outboundEnforcementCap", "OutboundPartEnf"),
    ("localPhyErrors", "LocalPhysErr"),
}
_TRAFFIC = {"portXmitData", "portRcvData", "portXmitPkts", "portRcvPkts"}


def rows(text: str) -> list[tuple[str, str]]:
    found = re.findall(r"^\s*(\w[\w. ]*?):\.+(.*)$", text, re.MULTILINE)
    return [(name, value) for name, value in found if not re.search(r"linkSpeedExt\w+2$", name)]


def values(text: str) -> list[str]:
    return [value for _, value in rows(text)]


def plainly(text: str) -> object:
    output = re.sub(r"\s*\(.*\)$", "", text).lower()
    if output == "no extended speed":
        return 0
    if " or " in output:
        return set(output.split(" or "))
    output = output.replace("_", "").replace(" ", "").removeprefix("mtu")
    try:
        return int(output, 0)
    except ValueError:
        return output


def topology(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith("#")]
    return sorted("\n".join(lines).strip().split("\n\n"))


class DiscoverTests(IbsimTestCase):
    net = fatTree(16).text()

    def begin(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "txrdma", "discover", "-d", "ibsim", *arguments]
        environment = self.fabric.environment
        return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=100)

    def ours(self, *arguments: str) -> str:
        done = self.begin(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def same(self, net: str, hasSM: bool = True) -> None:
        self.fabric.stop()
        self.fabric = type(self.fabric)(net, hasSM)
        self.addCleanup(self.fabric.stop)
        reference = topology(self.fabric.run("ibnetdiscover"))
        self.assertEqual(topology(self.ours()), reference)
        self.assertGreater(len(reference), 2)

    def test_tree(self) -> None:
        self.same(fatTree(128).text())

    def test_examples(self) -> None:
        nets = sorted(EXAMPLES.glob("net*"))
        self.assertTrue(nets)
        for path in nets:
            self.same(path.read_text())

    def test_unmanaged(self) -> None:
        self.same(fatTree(8).text(), hasSM=False)

    def test_names(self) -> None:
        path = Path(self.mktemp()).absolute()
        path.write_text('# ours\n0x200000 "the leaf"\n')
        reference = self.fabric.run("ibnetdiscover", "--node-name-map", str(path))
        self.assertEqual(topology(self.ours("--node-names", str(path))), topology(reference))
        self.assertIn('"the leaf"', reference)


class QueryTests(CommandsTestCase):
    async def setLIDs(self) -> None:
        nodes = json.loads(await self.output("discover", "--json"))["nodes"]
        self.switch = next(str(node["lid"]) for node in nodes if node["name"] == "left")
        self.host = next(str(node["lid"]) for node in nodes if node["name"] == "c")

    async def test_single(self) -> None:
        await self.setLIDs()
        for name, target, port in (
            ("NI", self.switch, ""),
            ("NI", self.host, ""),
            ("ND", self.switch, ""),
            ("PI", self.switch, "0"),
            ("PI", self.switch, "3"),
            ("PI", self.switch, "8"),
            ("PI", self.host, "1"),
            ("SI", self.switch, ""),
            ("MEPI", self.switch, "2"),
        ):
            reference = self.fabric.run("smpquery", name, *[word for word in (target, port) if word])
            ours = await self.output("smpquery", name, *[word for word in (target, port) if word])
            self.compare(ours, reference)
            if name != "ND":
                self.sameNames(ours, reference)
        for name, port in (("NI", ""), ("PI", "3"), ("SI", "")):
            words = [word for word in (name, "0,1", port) if word]
            self.compare(await self.output("smpquery", *words), self.fabric.run("smpquery", "-D", *words))

    def compare(self, ours: str, reference: str) -> None:
        mine = [plainly(text) for text in values(ours)]
        found = [plainly(text) for text in values(reference)]
        for index, (one, other) in enumerate(zip(mine, found, strict=True)):
            if other != "<notdisplayed>":
                self.assertEqual(one, other, f"{index}: {ours.splitlines()[index]}")

    def sameNames(self, ours: str, reference: str) -> None:
        for (one, _), (other, _) in zip(rows(ours), rows(reference), strict=True):
            self.assertTrue(alike(one, other) or (one, other) in _SYNONYMS, f"{one}, {other}")

    async def test_tables(self) -> None:
        await self.setLIDs()
        for name, target, port in (
            ("pkeys", self.host, "0"),
            ("pkeys", self.switch, "2"),
            ("GI", self.host, ""),
            ("sl2vl", self.host, ""),
            ("sl2vl", self.switch, "2"),
        ):
            words = [word for word in (name, target, port) if word]
            reference, ours = self.fabric.run("smpquery", *words), await self.output("smpquery", *words)
            self.assertEqual(self.rows(ours), self.rows(reference), name)

    @staticmethod
    def rows(text: str) -> list[list[str]]:
        lines = [line for line in text.splitlines() if not line.startswith("#") and "capacity" not in line]
        return [re.findall(r"0x[0-9a-f]+|\d+", line) for line in lines]

    async def test_arbitration(self) -> None:
        await self.setLIDs()
        reference = self.fabric.run("smpquery", "vlarb", self.host)
        weights = [re.findall(r"0x\w+", line) for line in reference.splitlines() if line.startswith("WEIGHT")]
        reported = await self.answerTo("smpquery", "vlarb", self.host)
        for found, answer in zip(weights, reported["answers"], strict=True):
            ours = [hex(entry["weight"]) for entry in answer["fields"]["entries"]]
            self.assertEqual(ours[: len(found)], found)

    async def test_manager(self) -> None:
        pattern = re.compile(r"activity count \d+ ")
        reference = pattern.sub("", self.fabric.run("sminfo").strip())
        self.assertEqual(pattern.sub("", (await self.output("sminfo")).strip()), reference)

    async def test_portInfoRecord(self) -> None:
        await self.setLIDs()
        reference = self.fabric.run("saquery", "PIR", f"{self.host}/1")
        ours = await self.output("saquery", "PIR", f"{self.host}/1", "--get")
        content = "\n".join(line for line in ours.splitlines() if line.startswith("portInfo."))
        self.compare(content, reference[reference.index("PortInfo dump") :])

    async def test_counters(self) -> None:
        """Errors equal those that C{perfquery} shows."""
        await self.setLIDs()
        for number, name in enumerate(
            ("SymbolErrorCounter", "LinkDownedCounter", "PortRcvErrors", "PortXmitDiscards", "VL15Dropped"), 3
        ):
            self.fabric.console(f'PerformanceSet "c"[1] PortCounters.{name}={number}')
        for options in ((), ("-x",)):
            reference = self.counted(self.fabric.run("perfquery", *options, self.host, "1"))
            reported = await self.answerTo("perfquery", *options, self.host, "1")
            ours = {name: value for name, value in reported["ports"][0].items() if name.lower() in reference}
            for name, value in ours.items():
                if name not in _TRAFFIC and name != "qp1Dropped":
                    self.assertEqual(value, reference[name.lower()], name)
            self.assertEqual({name.lower() for name in ours}, set(reference))
        self.assertEqual(reported["ports"][0]["portSelect"], 1)

    @staticmethod
    def counted(text: str) -> dict[str, int]:
        pairs = (line.split(":", 1) for line in text.splitlines() if ":." in line)
        return {name.lower(): int(value.lstrip("."), 0) for name, value in pairs}
