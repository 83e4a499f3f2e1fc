"""
Commands report about one node and its neighbours what infiniband-diags reports, line by line.

These are the only differences:

  - C{iblinkinfo} prints the port through which a directed route to a host has entered the switch, because it
    does not know the switch port of that host.
  - In ibsim neither C{iblinkinfo} finds the peers of a switch that is named by its GUID, nor txrdma those of
    C{'7 0,1'}: ibsim has no directed routes with LID-routed parts. txrdma then queries the administration.
  - Those of L{txrdma.test.system.ibsim.test_commands_3}.
"""

from __future__ import annotations

import re
from typing import Any

from txrdma.test.system.ibsim.fabric import EXAMPLE, NO_EXAMPLES
from txrdma.test.system.ibsim.test_commands_2 import CommandsTestCase
from txrdma.test.system.ibsim.test_commands_3 import parts


def lines(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line)


def near(line: str) -> str:
    return line.partition("==>")[0]


class PartTests(CommandsTestCase):
    async def places(self) -> list[dict[str, Any]]:
        """Return a node of each kind at each distance, with routes that infiniband-diags accepts."""
        reported = (await self.answerTo("discover"))["nodes"]
        nodes = [node for node in reported if node["lid"]]
        nodes.sort(key=lambda node: (len(node["route"]), node["type"], node["route"]))
        kinds = {(len(node["route"].split(",")), node["type"]): node for node in nodes}
        self.assertGreaterEqual(len(kinds), 3)
        return list(kinds.values())

    async def test_links(self) -> None:
        for node in await self.places():
            route = node["route"].removeprefix("DR ")
            reference = lines(self.reference("iblinkinfo", "-l", "-D", route))
            if node["type"] != "SWITCH":
                reference = [line for line in reference if f'"{node["description"]:>30}"' in line]
            guid = next(port["guid"] for port in node["ports"] if port["guid"])
            names = [f"DR {route}", str(node["lid"]), f"0x{guid.replace(':', '')}"]
            if node["type"] == "SWITCH":  # tables, as of names that several ports have, are not delivered
                names.append(node["description"])
            for target in names:
                ours = lines(await self.output("links", target, "--line"))
                self.assertEqual(self.status, 0)
                self.assertTrue(ours)
                if node["type"] == "SWITCH":
                    self.assertEqual(ours, reference, target)
                else:
                    self.assertEqual(list(map(near, ours)), list(map(near, reference)), target)
                whole = lines(await self.output("links", "--line"))
                self.assertEqual(ours, [line for line in whole if line in set(ours)])

    async def test_errors(self) -> None:
        """Errors of one node, with and without links and data; hosts by their GUID, too."""
        places = await self.places()
        for node in places:
            self.fabric.console(f'PerformanceSet "{node["description"]}"[1] PortCounters.LinkDownedCounter=7')
        for node in places:
            route = node["route"].removeprefix("DR ")
            isSwitch = node["type"] == "SWITCH"
            for words in ((), ("--data",), ("--details",), ("--counters",), ("--report-port",)):
                if words == ("--report-port",) and not isSwitch:
                    continue
                reference = parts(self.reference("ibqueryerrors", "-D", route, *words))
                for target in (f"DR {route}", str(node["lid"])):
                    self.assertEqual(
                        parts(await self.output("errors", target, *words)), reference, (target, words)
                    )
                self.assertTrue(reference[0], words)
            if not isSwitch:
                guid = next(port["guid"] for port in node["ports"] if port["guid"])
                target = f"0x{guid.replace(':', '')}"
                reference = parts(self.reference("ibqueryerrors", "-G", target))
                self.assertEqual(parts(await self.output("errors", target)), reference)
                self.assertTrue(re.search("LinkDowned", str(reference[0])))


class ExamplePartTests(PartTests):
    net = EXAMPLE
    skip = NO_EXAMPLES
