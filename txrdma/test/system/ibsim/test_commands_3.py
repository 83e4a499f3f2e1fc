"""
The commands for whole fabrics print what infiniband-diags prints in the same ibsim, line by line.

The order of nodes differs. These are the only other differences:

  - C{discover} has no time in its heading.
  - C{errors} prints the GUIDs of hosts, too, and with C{--counters} their ports by the ports' GUIDs.
  - Each request for counters changes those of the ports on its path, so two readings of traffic differ.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from txrdma.fabric.discovery import Sweep
from txrdma.iba.path import IBDRPath
from txrdma.mad.layouts.smp import ExtendedPortInfo
from txrdma.sim.nets.fattree import fatTree
from txrdma.test.support.mad.simulated import TWO_SWITCHES
from txrdma.test.system.ibsim.fabric import EXAMPLE, NO_EXAMPLES
from txrdma.test.system.ibsim.test_commands_2 import CommandsTestCase

_OURS = {"--threshold-file": "--thresholds", "--switch": "--switches", "--ca": "--hosts"}
_HEADING = re.compile(r'^(Errors for) 0x\w+ (".*")$', re.MULTILINE)
_PORT_GUID = re.compile(r"^   GUID 0x\w+ (port \w+: \[Port\w+\])", re.MULTILINE)
_COUNTED = re.compile(r"\[(Port\w*(?:Data|Pkts)) == \d+ \([^)]*\)\]")


def parts(text: str) -> tuple[list[str], list[str]]:
    output, _, summary = text.partition("\n## ")
    output = _HEADING.sub(r"\1 \2", output)
    output = _COUNTED.sub(r"[\1]", output)
    if output.startswith("Data Counters"):
        output = _PORT_GUID.sub(r"   \1", output)
    nodes = re.split(r"\n(?=Errors for|Data Counters for)", "\n" + output.strip("\n"))
    lines = [line.rstrip() for line in summary.splitlines() if line.strip()]
    return sorted(node.strip("\n") for node in nodes if node.strip()), lines


def picked(reported: list[dict[str, Any]], keys: list[str]) -> list[list[Any]]:
    return [[each[key] for key in keys] for each in reported]


class ExactErrorTests(CommandsTestCase):
    async def test_lines(self) -> None:
        nodes = [node["description"] for node in await self.answerTo("nodes", "--hosts")]
        switch = (await self.answerTo("nodes", "--switches"))[0]["description"]
        for place, counter, value in (
            (f'"{nodes[-1]}"[1]', "SymbolErrorCounter", 77),
            (f'"{nodes[0]}"[1]', "VL15Dropped", 3),
            (f'"{switch}"[1]', "PortXmitDiscards", 7),
            (f'"{switch}"[1]', "LinkDownedCounter", 255),
            (f'"{switch}"[2]', "PortRcvSwitchRelayErrors", 5),
        ):
            self.fabric.console(f"PerformanceSet {place} PortCounters.{counter}={value}")
        path = Path(self.mktemp()).absolute()
        path.write_text("# ours\n\nPortXmitDiscards=7\nVL15Dropped=0x2\n")
        for words in (
            (),
            ("--report-port",),
            ("--data",),
            ("--data", "--details", "--report-port"),
            ("--counters",),
            ("--suppress", "PortXmitDiscards,VL15Dropped"),
            ("--suppress-common",),
            ("--threshold-file", str(path)),
            ("--switch",),
            ("--ca",),
        ):
            mine = parts(await self.output("errors", *(_OURS.get(word, word) for word in words)))
            if not words:
                self.assertEqual(self.status, 1)
            self.assertEqual(mine, parts(self.reference("ibqueryerrors", *words)), words)
            self.assertTrue(mine[0], words)


class ExactListingTests(CommandsTestCase):
    async def test_lines(self) -> None:
        ours = sorted((await self.output("links", "--line")).splitlines())
        reference = sorted(line for line in self.reference("iblinkinfo", "-l").splitlines() if line)
        self.assertEqual(ours, reference)

    async def test_heading(self) -> None:
        [ours] = re.findall("^# Initiated.*$", await self.output("discover"), re.MULTILINE)
        [reference] = re.findall("^# Initiated.*$", self.reference("ibnetdiscover"), re.MULTILINE)
        self.assertEqual(ours, reference)

    async def test_datagrams(self) -> None:
        sweep = Sweep(self.agentAt())
        await sweep.run()
        reported = re.search(r"Total MADs used: (\d+)", self.reference("ibnetdiscover", "--max_hops"))
        assert reported is not None
        self.assertLessEqual(sweep.asked, int(reported[1]))
        self.assertGreater(sweep.asked, 10)

    async def test_loaded(self) -> None:
        path = Path(self.mktemp())
        path.write_text(self.reference("ibnetdiscover"))
        for name, keys in (
            ("nodes", ["guid", "name", "numPorts", "lid"]),
            ("links", ["from", "to", "width", "speed"]),
        ):
            ours = await self.answerTo(name)
            reference = await self.answerTo(name, "--load", str(path))
            self.assertEqual(picked(reference, keys), picked(ours, keys))
            self.assertTrue(ours)


class TreeExactErrorTests(ExactErrorTests):
    net = fatTree(40, 8).text()


class ExampleExactListingTests(ExactListingTests):
    net = EXAMPLE
    skip = NO_EXAMPLES


class TreeExactListingTests(ExactListingTests):
    net = fatTree(40, 8).text()


class DevicesTests(CommandsTestCase):
    net = (
        TWO_SWITCHES.replace('Rt 2 "d"', 'Hca 2 "d"')
        .replace("speed=7\nextspeed=7", "speed=7")
        .replace('Switch 8 "', 'vendid=0x2c9\ndevid=0xc738\nsysimgguid=0x99\nSwitch 8 "')
    )

    async def setFDR10(self) -> None:
        """Set FDR10 on one of the two links between the switches; the other one supports it, too."""
        agent = self.agentAt()
        for route in ((1,), (1, 3)):
            for number, active in ((3, 1), (4, 0)):
                info = ExtendedPortInfo(linkSpeedSupported=1, linkSpeedEnabled=1, linkSpeedActive=active)
                await agent.SubnSet(info, IBDRPath(drPath=route), number)

    async def test_fdr10(self) -> None:
        await self.setFDR10()
        ours, reference = await self.output("discover"), self.reference("ibnetdiscover")
        lines = [
            sorted(line for line in text.splitlines() if line.startswith("[")) for text in (ours, reference)
        ]
        self.assertEqual(lines[0], lines[1])
        self.assertEqual(ours.count("4xFDR10"), 2)
        ours = await self.output("links", "--line")
        reference = self.reference("iblinkinfo", "-l")
        mine, found = (sorted(line for line in text.splitlines() if line) for text in (ours, reference))
        confused = " (Found link at QDR but expected speed is FDR10)"
        self.assertEqual(mine, [line.replace(confused, "") for line in found])
        self.assertEqual(ours.count("10.0 Gbps (FDR10)"), 2)
        self.assertEqual(ours.count("Could be FDR10"), 2)
        await ExactListingTests.test_datagrams(self)  # type: ignore[arg-type]  # it is of that kind

    async def test_chassis(self) -> None:
        output = self.reference("ibnetdiscover", "-g")
        found = re.search(r"^Chassis 1 \(guid (\w+)\)$(.*)^Non-Chassis", output, re.MULTILINE | re.DOTALL)
        assert found is not None
        reference = {int(guid, 16) for guid in re.findall(r"^switchguid=0x(\w+)\(", found[2], re.MULTILINE)}
        path = Path(self.mktemp())
        path.write_text(output)
        self.assertEqual(len(await self.answerTo("nodes", "--load", str(path))), 6)
        [ours] = (await self.answerTo("discover"))["chassis"]
        self.assertEqual(int(ours["guid"].replace(":", ""), 16), int(found[1], 16))
        self.assertEqual({int(node["guid"].replace(":", ""), 16) for node in ours["nodes"]}, reference)
