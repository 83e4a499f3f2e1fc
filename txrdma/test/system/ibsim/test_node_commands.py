"""
Commands about single nodes and ports, and their output, compared with infiniband-diags in ibsim.

umad2sim has no RMPP, so only single records are requested; and ibsim supports no routes that begin with a LID
and continue as directed routes.
"""

from __future__ import annotations

import re
from typing import Any

from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.smp import MulticastForwardingTable
from txrdma.mad.paths import toLID
from txrdma.sim.nets.fattree import fatTree
from txrdma.test.system.ibsim.test_commands_2 import CommandsTestCase


class FormTests(CommandsTestCase):
    most = 99
    _filling: MADAgent | None = None

    async def test_numbered(self) -> None:
        lids = (await self.lids())[: self.most]
        for source, target in zip(lids, reversed(lids), strict=True):
            reference = self.reference("ibtracert", "-n", source, target)
            self.assertEqual(await self.output("trace", "-n", source, target), reference)

    async def test_allLIDs(self) -> None:
        [lid, *_] = await self.lids("--switches")
        for low, high in (("1", "6"), ("2", "3")):
            for ours, reference in (((), ()), (("--no-destinations",), ("-n",))):
                reported = self.reference("ibroute", "-a", *reference, lid, low, high)
                output = await self.output("routes", lid, "--all", *ours, "--lids", f"{low}-{high}")
                self.assertEqual(output, reported)

    async def fill(self, lid: int, *masks: int, position: int = 0) -> None:
        agent = self._filling = self._filling or self.agentAt()
        content = MulticastForwardingTable(portMasks=(*masks, *(0,) * (32 - len(masks))))
        await agent.SubnSet(content, toLID(agent.port.endPort, lid), position << 28)

    async def test_multicastTables(self) -> None:
        lid = int((await self.lids("--switches"))[0])
        await self.fill(lid, 0b10_0100, 0, 0b1001)
        reference = self.reference("ibroute", "-M", str(lid))
        self.assertEqual((await self.output("routes", "-M", str(lid))).rstrip("\n"), reference.rstrip("\n"))
        reference = self.reference("ibroute", "-M", str(lid), "0xc001", "0xc002")
        ours = await self.output("routes", "-M", str(lid), "--lids", "0xc001-0xc002")
        self.assertEqual(ours.rstrip("\n"), reference.rstrip("\n"))

    async def test_multicastTrace(self) -> None:
        """C{trace --multicast} prints the hops of C{ibtracert -m}: ports, LIDs and names."""
        hosts = await self.lids("--hosts")
        for target in hosts[1:][-self.most :]:
            unicast = (await self.answerTo("trace", hosts[0], target))["hops"]
            switches = [hop for hop in unicast if hop["type"] == "SWITCH"]
            for hop in switches:
                for position in range(3):
                    mask = sum(1 << p % 16 for p in (hop["entry"], hop["exit"]) if p // 16 == position)
                    await self.fill(hop["lid"], mask, position=position)
            reference = self.reference("ibtracert", "-m", "0xc000", hosts[0], target)
            steps = re.findall(r'\[(\d+)\] -> \w+ 0x(?:\w+)\[(\d+)\] lid (\d+)(?:-\d+)? "(.*)"', reference)
            self.assertEqual(len(steps), len(unicast) - 1)
            hops = (await self.answerTo("trace", "-m", "0xc000", hosts[0], target))["hops"]
            ours = [
                (str(before["exit"]), str(hop["entry"]), str(hop["lid"]), hop["name"])
                for before, hop in zip(hops, hops[1:], strict=False)
            ]
            self.assertEqual(ours, steps)
            for hop in switches:
                for position in range(3):
                    await self.fill(hop["lid"], 0, position=position)
        self.assertIn("failed", self.reference("ibtracert", "-m", "0xc000", hosts[0], hosts[1]))
        self.assertIn("does not reach", str(await self.status_of("trace", "-m0xc000", hosts[0], hosts[1])))

    async def status_of(self, *words: str) -> object:
        await self.output(*words)
        return self.status

    async def test_bytes(self) -> None:
        [lid, *_] = await self.lids("--switches")
        for number, modifier in (("0x11", "0"), ("0x12", "0"), ("0x15", "1")):
            reference = re.sub(r"\s", "", self.reference("smpdump", lid, number, modifier))
            output = await self.output("query", "SubnGet", number, lid, "--modifier", modifier)
            ours = "".join(line.partition("  ")[2] for line in output.splitlines()[1:]).replace(" ", "")
            self.assertEqual((len(ours), ours), (128, reference[:128]))


class SeveralLIDsTests(CommandsTestCase):
    smConfiguration = "lmc 1"

    async def test_routes(self) -> None:
        for lid in await self.lids("--switches"):
            self.assertEqual(
                await self.output("routes", lid), self.reference("ibroute", lid).rstrip("\n") + "\n"
            )
            reference = self.reference("ibroute", "-a", lid, "2")
            ours = await self.output("routes", lid, "--all", "--lids", "2-999")
            self.assertEqual(ours, reference)
            everything = {str(each["lid"]): each for each in await self.answerTo("routes")}
            [alone] = await self.answerTo("routes", lid)
            self.assertEqual(everything[lid]["linear"], alone["linear"])

    async def test_trace(self) -> None:
        hosts = [int(lid) for lid in await self.lids("--hosts")]
        for lid in hosts[1:]:
            for target in (lid, lid + 1):
                reference = self.reference("ibtracert", str(hosts[0]), str(target))
                self.assertEqual(await self.output("trace", str(hosts[0]), str(target)), reference)

    async def test_address(self) -> None:
        lid = (await self.lids("--hosts"))[-1]
        reference = self.reference("ibaddr", lid).rstrip("\n")
        self.assertIn(reference, await self.output("smpquery", "addr", lid))
        self.assertRegex(reference, r"start 0x\w+ end 0x\w*[13579bdf]$")


class FatTreeFormTests(FormTests):
    net = fatTree(40).text()
    most = 6


class AdministrationTests(CommandsTestCase):
    async def test_paths(self) -> None:
        nodes = await self.answerTo("nodes", "--hosts")
        one, other = nodes[0], nodes[-1]
        output = self.reference("saquery", "--src-to-dst", f"{one['lid']}:{other['lid']}")
        reference = dict(re.findall(r"(\w+)\.{2,}(\S+)", output))
        for key in ("lid", "name"):
            [reported] = await self.answerTo(
                "saquery", "PR", "--get", "--from", str(one[key]), "--to", str(other[key])
            )
            ours = reported["fields"]
            for name in ("dlid", "slid", "sgid", "dgid"):
                self.assertEqual(str(ours[name]), reference[name])

    async def test_names(self) -> None:
        [known] = re.findall(r'\d+ +"(.*)"', self.reference("saquery", "-D"))  # without RMPP only this one
        host = next(node for node in await self.answerTo("nodes", "--hosts") if node["name"] == known)
        name, lid = host["name"], str(host["lid"])
        found = await self.output("saquery", "NR", "--get", f"nodeString={name}", "--columns", "lid")
        self.assertEqual(found.split(), ["lid", self.reference("saquery", "-l", name).strip()])
        found = await self.output("saquery", "NR", "--get", lid, "--columns", "name")
        self.assertEqual(found.split(), ["name", self.reference("saquery", "-O", lid).strip()])
        guid = self.reference("saquery", "-G", name).strip()
        [reported] = await self.answerTo("saquery", "NR", "--get", f"nodeString={name}")
        self.assertEqual("0x" + reported["fields"]["nodeInfo"]["portGUID"].replace(":", ""), guid)
        found = await self.output("saquery", "NR", "--get", f"portGUID={guid}", "--columns", "name")
        self.assertEqual(found.split(), ["name", self.reference("saquery", "-U", guid).strip()])


class CounterTests(CommandsTestCase):
    async def test_ports(self) -> None:
        [switch, *_] = await self.lids("--switches")
        nodes = await self.answerTo("nodes", "--hosts")
        host = next(str(node["lid"]) for node in nodes if node["numPorts"] == 1)
        self.fabric.console('PerformanceSet "left"[2] PortCounters.SymbolErrorCounter=7')
        self.fabric.console('PerformanceSet "left"[3] PortCounters.SymbolErrorCounter=5')
        for words in (("-a", "-l", switch), ("-l", switch, "2-4"), ("-a", switch), ("-a", host)):
            reference = re.findall(
                r"^PortSelect:\.+(\d+)$", self.reference("perfquery", *words), re.MULTILINE
            )
            reported = (await self.answerTo("perfquery", *words))["ports"]
            self.assertEqual([str(each["portSelect"]) for each in reported], reference, words)
        [sum] = (await self.answerTo("perfquery", "-a", switch))["ports"]
        self.assertEqual(sum["symbolErrorCounter"], 12)
        self.assertIn("SymbolErrorCounter:..............12\n", self.reference("perfquery", "-a", switch))


class PortTests(CommandsTestCase):
    net = "vendid=0x2c9\ndevid=0xc738\n" + fatTree(8).text()
    hasSM = False

    async def info(self, port: int, name: str = "PI") -> dict[str, Any]:
        reported = await self.answerTo("smpquery", name, "0,1", str(port))
        fields: dict[str, Any] = reported["answers"][0]["fields"]
        return fields

    async def test_changes(self) -> None:
        before = await self.info(3)
        self.assertEqual(before, await self.info(4))
        for words in (
            ("speed", "1"),
            ("espeed", "3"),
            ("width", "1"),
            ("vls", "2"),
            ("mtu", "3"),
            ("disable",),
            ("enable",),
            ("off",),
            ("on",),
            ("down",),
            ("reset",),
            ("arm",),
            ("active",),
            ("fdr10", "0"),
        ):
            output = self.reference("ibportstate", "-D", "0,1", "3", *words)
            await self.output("portstate", "0,1", "4", *words, "--yes")
            self.assertEqual((words, bool(self.status)), (words, "failed" in output))
            reference, ours = await self.info(3), await self.info(4)
            for each in (reference, ours):
                each["lid"] = each["masterSMLID"] = 0  # ibportstate sets some numbers, which ibsim stores
            self.assertEqual(ours, reference, words)
            self.assertEqual(await self.info(3, "MEPI"), await self.info(4, "MEPI"), words)
        self.assertNotEqual(reference, before)

    async def test_ends(self) -> None:
        for number in (3, 4):  # if a port has no LIDs, ibportstate sets its own
            await self.output("portstate", f"0,1,{number}", "1", "lid", "7", "smlid", "8", "--yes")
        for words in (
            ("lid", "0x22"),
            ("smlid", "5"),
            ("lmc", "2"),
            ("mkeylease", "60"),
            ("mkeyprot", "1"),
            ("mkey", "0x1234"),
        ):
            self.reference("ibportstate", "-D", "0,1,3", "1", *words)
            await self.output("portstate", "0,1,4", "1", *words, "--yes")
            reported = [
                await self.answerTo("smpquery", "PI", f"0,1,{at}", "--mkey", "0x1234") for at in (3, 4)
            ]
            reference, ours = (each["answers"][0]["fields"] for each in reported)
            self.assertEqual(ours, reference, words)
