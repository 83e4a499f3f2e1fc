"""
Checks of tables and cables: forwarding tables, P_Keys, virtual lanes, firmware, and a plan of cables.
"""

from __future__ import annotations

from txrdma.error import InvalidRequest
from txrdma.fabric.cabling import cableFindings, parseCables
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.health import Finding, findings
from txrdma.fabric.model import Fabric
from txrdma.fabric.routechecks import routeFindings
from txrdma.fabric.tables import Firmware, tableFindings, Tables, TableSurvey
from txrdma.iba.types import GUID
from txrdma.kit.rawfields import poke, span
from txrdma.mad.layouts.smp import NodeInfo, PKeyTable, PortInfo, SLtoVLMappingTable
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net, parseNet
from txrdma.test.support.mad.simulated import FabricTestCase, TWO_SWITCHES

RING = """
width=3
speed=7

Switch 4 "s0"
[1] "a"[1]
[2] "s1"[3]
Switch 4 "s1"
[1] "h1"[1]
[2] "s2"[3]
Switch 4 "s2"
[1] "h2"[1]
[2] "s0"[3]
Hca 1 "a"
Hca 1 "h1"
Hca 1 "h2"
"""


class SurveyedTestCase(FabricTestCase):
    def swept(self) -> Fabric:
        fabric: Fabric = self.told(Sweep(self.agent).run())
        return fabric

    def surveyed(self, fabric: Fabric) -> Tables:
        tables: Tables = self.told(TableSurvey(self.agent, self.agent.port.endPort, fabric).run())
        return tables

    def found(self) -> list[Finding]:
        fabric = self.swept()
        tables = self.surveyed(fabric)
        return tableFindings(fabric, tables) + routeFindings(fabric, tables.linear)

    def kinds(self) -> list[str]:
        return [one.kind for one in self.found()]


class TableTests(SurveyedTestCase):
    def test_well(self) -> None:
        self.assertEqual(self.found(), [])

    def test_pkeys(self) -> None:
        host, switch = self.fabric.port("c"), self.fabric.port("right", 1)
        poke(PortInfo, "partitionEnforcementInbound")(switch.info, 1)
        self.assertEqual(self.found(), [])
        keys = PKeyTable(pkeys=(0xFFFF, 0x8001, 0x0002) + (0,) * 29).encode()
        host.tables = {(PKeyTable.attributeID, 0): keys}
        (found,) = self.found()
        self.assertEqual(
            (found.kind, found.where), ("pkeys", f"right ({self.fabric.node('right').guid}) port 1")
        )
        self.assertIn("0x0001, 0x0002", found.text)
        switch.tables = {(PKeyTable.attributeID, 0): keys}
        self.assertEqual(self.found(), [])

    def test_lanes(self) -> None:
        lanes = SLtoVLMappingTable(vls=(0,) * 16).encode()
        self.fabric.port("c").tables = {(SLtoVLMappingTable.attributeID, 0): lanes}
        (found,) = self.found()
        self.assertEqual(found.kind, "sl-to-vl")
        poke(PortInfo, "operationalVLs")(self.fabric.port("left", 3).info, 1)
        self.assertEqual(sorted(self.kinds()), ["sl-to-vl", "vls"])

    def test_firmware(self) -> None:
        fabric = self.swept()
        nodes = sorted(fabric.hosts(), key=lambda node: node.guid.raw)
        told = [
            Firmware("MT_1", (20, 40, 1000)),
            Firmware("MT_1", (20, 39, 9999)),
            Firmware("MT_2", (1, 0, 0)),
        ]
        tables = Tables(firmware={node.guid: one for node, one in zip(nodes, told, strict=True)})
        (found,) = tableFindings(fabric, tables)
        self.assertEqual((found.kind, found.guid), ("firmware", nodes[1].guid))
        self.assertIn("20.39.9999", found.text)

    def test_silent(self) -> None:
        fabric = self.swept()
        self.fabric.silence("right")
        tables = self.surveyed(fabric)
        self.assertEqual(len(tables.linear), 1)
        self.assertEqual(tableFindings(fabric, tables) + routeFindings(fabric, tables.linear), [])

    def test_names(self) -> None:
        self.assertEqual([one.kind for one in findings(self.swept())], [])
        place = span(NodeInfo, "systemImageGUID")
        for name in "ab":
            node = self.fabric.node(name)
            raw = bytearray(node.info)
            raw[place] = GUID(b"machine1").raw
            node.info = bytes(raw)
        (found,) = findings(self.swept())
        self.assertEqual(found.kind, "two-names")
        for name in "ab":
            self.fabric.node(name).description = f"host1 mlx5_{name}"
        self.assertEqual(findings(self.swept()), [])


class RouteTests(SurveyedTestCase):
    def spoil(self, switch: str, lid: int, port: int) -> None:
        self.fabric.linearOf(self.fabric.node(switch))[lid] = port

    def test_nowhere(self) -> None:
        self.spoil("left", self.lid("c"), 0xFF)
        self.spoil("left", self.lid("d"), 7)
        found = self.found()
        self.assertEqual([one.kind for one in found], ["unreachable-lid"] * 2)
        self.assertEqual({one.guid for one in found}, {self.fabric.node(name).guid for name in "cd"})
        self.assertTrue(all("left" in one.text for one in found))

    def test_circles(self) -> None:
        self.spoil("left", self.lid("c"), 3)
        self.spoil("right", self.lid("c"), 4)
        self.assertLessEqual({"credit-loop", "unreachable-lid"}, set(self.kinds()))

    def test_uneven(self) -> None:
        for name in "cd":
            self.spoil("left", self.lid(name), 3)
        for lid in (self.lid("b", 2),):
            self.spoil("left", lid, 3)
        self.assertEqual(self.kinds(), ["unbalanced"])

    def test_unused(self) -> None:
        self.spoil("left", self.lid("right"), 7)
        self.assertEqual(self.found(), [])


class RingTests(SurveyedTestCase):
    def net(self) -> Net:
        return parseNet(RING)

    def test_loop(self) -> None:
        self.assertEqual(self.found(), [])
        for at, host in (("s0", "h2"), ("s1", "a"), ("s2", "h1")):
            self.fabric.linearOf(self.fabric.node(at))[self.lid(host)] = 2
        (found,) = self.found()
        self.assertEqual(found.kind, "credit-loop")
        self.assertTrue(found.text.startswith("3 links"), found.text)


class TreeTests(SurveyedTestCase):
    def net(self) -> Net:
        return parseNet(fatTree(64).text().replace('"h00000"', '"a"'))

    def test_well(self) -> None:
        self.assertEqual(self.found(), [])


class CableTests(SurveyedTestCase):
    def compared(self, text: str) -> list[tuple[str, str]]:
        found = cableFindings(self.swept(), parseCables(text))
        return sorted((one.kind, one.where.partition(" (")[0]) for one in found)

    def test_well(self) -> None:
        self.assertEqual(self.compared(TWO_SWITCHES), [])
        guid = self.fabric.node("c").guid.raw.hex()
        self.assertEqual(self.compared(TWO_SWITCHES.replace('"c"', f'"H-{guid}"')), [])

    def test_swapped(self) -> None:
        text = (
            TWO_SWITCHES.replace('"a"[1]', '"x"[1]').replace('"c"[1]', '"a"[1]').replace('"x"[1]', '"c"[1]')
        )
        self.assertEqual([kind for kind, _where in self.compared(text)], ["cable-wrong"] * 2)

    def test_missing(self) -> None:
        self.fabric.cut("left", 3)
        self.assertEqual(self.compared(TWO_SWITCHES), [("cable-missing", "left")])
        self.fabric.heal("left", 3)
        self.assertEqual(
            self.compared(TWO_SWITCHES.replace('[4] "right"[4]\n', "")), [("cable-extra", "left")]
        )
        self.assertEqual(self.compared(TWO_SWITCHES.replace('[1] "c"[1]\n', "")), [("cable-extra", "right")])
        switches = 'Switch 8 "left"\n[3] "right"[3]\n[4] "right"[4]\n'
        self.assertEqual(self.compared(switches), [])  # a plan of switches alone
        more = TWO_SWITCHES.replace('[5] "b"[2]', '[5] "b"[2]\n[6] "z"[1]')
        self.assertEqual(self.compared(more), [("node-missing", "z")])

    def test_mistakes(self) -> None:
        for text in ('Switch 2 "s"\n[1] nothing', 'Switch 2 "s"\n[1] "a"[1]\n[1] "b"[1]', "", '[1] "a"[1]'):
            error = self.assertRaises(InvalidRequest, parseCables, text, "my.topology")
            self.assertIn("my.topology", str(error))
