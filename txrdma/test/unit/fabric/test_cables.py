"""Cables and optical modules: registers, findings, exchanged cables, and nodes that cannot be read."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric import cables, tables
from txrdma.fabric.cables import (
    Cable,
    CABLE_COLUMNS,
    cableOf,
    cablePorts,
    cableRow,
    CableWatch,
    moduleFindings,
)
from txrdma.fabric.inventory import cablesOf, firmwares
from txrdma.fabric.model import PortKey
from txrdma.fabric.tables import tableFindings, Tables, TableSurvey, UnableNodes
from txrdma.mad.registers import AccessRegister, ModuleInfo, SystemInfo
from txrdma.test.support.mad.simulated import FabricTestCase

DARK = -40 & 0xFFFF
WEAK = -12 & 0xFFFF


class LayoutTests(SynchronousTestCase):
    """Layouts are those of mstflint's C{register_access_table.adb}."""

    def test_module(self) -> None:
        """Offsets in PDDR are those of its page, after 8 octets."""
        raw = bytearray(216)
        for offset, value in (
            *((1, b"\x07"), (2, b"\x40"), (7, b"\x03"), (8 + 4, b"\x21\x45\x06\x08"), (8 + 8, b"\x30")),
            *((8 + 0x14, b"Mellanox        "), (8 + 0x24, b"MMA4Z00-NS      "), (8 + 0x34, b"\0\0A1")),
            *((8 + 0x3C, b"MT2301FT00123   "), (8 + 0x4C, b"\x37\x80"), (8 + 0x50, b"\x00\x01\xff\xfe")),
            *((8 + 0x80, b"\x50\x00"), (8 + 0x8A, b"\xff\xf6"), (8 + 0x9E, b"\x0d")),
        ):
            raw[offset : offset + len(value)] = value
        info = ModuleInfo.decode(bytes(raw))
        self.assertEqual((info.localPort, info.portNumbering, info.page), (7, 1, 3))
        cable = cableOf(info)
        assert cable is not None
        self.assertEqual((cable.kind, cable.vendor), ("optical module", "Mellanox"))
        self.assertEqual(cable.partNumber, "MMA4Z00-NS")
        self.assertEqual((cable.revision, cable.serial), ("A1", "MT2301FT00123"))
        self.assertEqual((cable.metres, cable.watts), (5.0, 12.0))
        self.assertEqual((cable.celsius, cable.hotCelsius), (55.5, 80.0))
        self.assertEqual((cable.receivedDBm[:3], cable.lowDBm), ((1, -2, 0), -10))
        self.assertEqual(info.encode(), bytes(raw))

    def test_system(self) -> None:
        """Offsets in MSGI."""
        raw = b"MT2301X00001".ljust(32, b"\0") + b"MCX75310AC".ljust(24, b"\0") + b"A5\0\0"
        info = SystemInfo.decode(raw.ljust(128, b"\0"))
        self.assertEqual(info.serialNumber.rstrip(b"\0"), b"MT2301X00001")
        self.assertEqual((info.partNumber.rstrip(b"\0"), info.revision), (b"MCX75310AC", b"A5\0\0"))

    def test_access(self) -> None:
        """The register follows the key and a word with the number of the block."""
        raw = AccessRegister(block=1, content=b"\x01" + bytes(219)).encode()
        self.assertEqual((len(raw), raw[8:13]), (232, b"\x00\x01\x00\x00\x01"))

    def test_unplugged(self) -> None:
        """A port without a module has no cable."""
        self.assertIsNone(cableOf(ModuleInfo(kind=4)))

    def test_copper(self) -> None:
        """A copper cable measures nothing; zeros are not taken for measurements."""
        cable = cableOf(ModuleInfo(kind=3, length=2, powerClass=255, serialNumber=b"\x1b[0mX".ljust(16)))
        self.assertEqual(cable, Cable("copper", serial="\\x1b[0mX", metres=2.0))
        self.assertEqual(str(cable), "serial \\x1b[0mX")
        self.assertEqual(str(Cable()), "unknown cable")


class CableTests(FabricTestCase):
    """Cables of a simulated fabric, of which only some can be read."""

    def setUp(self) -> None:
        super().setUp()
        for name, number in (("left", 1), ("left", 3), ("right", 3), ("b", 1), ("b", 2)):
            self.fabric.haveModule(name, number)

    def survey(self, unable: UnableNodes | None = None) -> Tables:
        self.swept = self.sweep()
        end = self.agent.port.endPort
        tables: Tables = self.answerTo(TableSurvey(self.agent, end, self.swept, unable=unable).run())
        return tables

    def at(self, name: str, number: int) -> PortKey:
        return self.fabric.node(name).guid, number

    def test_read(self) -> None:
        """Cables of ports with a link are read; both ends of a cable have one serial number."""
        cables = self.survey().cables
        ports = (("left", 1), ("left", 3), ("right", 3), ("b", 1), ("b", 2))
        self.assertEqual(set(cables), {self.at(*port) for port in ports})
        left, right = cables[self.at("left", 3)], cables[self.at("right", 3)]
        self.assertEqual(left.serial, right.serial)
        self.assertNotEqual(left.serial, cables[self.at("left", 1)].serial)
        self.assertEqual((left.vendor, left.metres, left.celsius), ("Mellanox", 10.0, 45.0))

    def test_serial(self) -> None:
        """The inventory has the serial numbers of devices with registers."""
        swept = self.sweep()
        work = firmwares(self.agent, self.agent.port.endPort, swept.nodes.values(), 16)
        found = self.answerTo(Deferred.fromCoroutine(work))
        left = found[self.fabric.node("left").guid]
        self.assertTrue(left.hasRegisters)
        self.assertTrue(left.serial.startswith("SN"))
        self.assertEqual(left.partNumber, "SIMULATED")

    def test_rows(self) -> None:
        """The table has a row for each end of a cable; what is unknown is None."""
        swept = self.sweep()
        work = cablesOf(self.agent, self.agent.port.endPort, swept.nodes.values(), 16)
        cables = self.answerTo(Deferred.fromCoroutine(work))
        self.assertEqual(cables, self.survey().cables)
        rows = {
            (row["name"], row["port"]): row
            for port in cablePorts(swept.ordered())
            for cells in [cableRow(port, cables.get((port.node.guid, port.number)), str)]
            for row in [dict(zip(CABLE_COLUMNS, cells, strict=True))]
        }
        known = next(row for (name, port), row in rows.items() if str(name).startswith("left") and port == 3)
        self.assertEqual((known["receivedDBm"], known["lowDBm"], known["watts"]), (0, -10, 3.5))
        unknown = next(row for (name, _number), row in rows.items() if str(name).startswith("a "))
        self.assertEqual((unknown["serial"], unknown["celsius"]), (None, None))

    def test_findings(self) -> None:
        """Hot modules, and those with little light in one of the port's lanes, are findings."""
        cables = self.survey().cables
        self.assertEqual(list(moduleFindings(self.swept, cables)), [])
        self.fabric.haveModule("left", 3, temperature=76 << 8)
        self.fabric.haveModule("right", 3, rxPower=(0, WEAK, 0, 0, *[DARK] * 4))
        self.fabric.haveModule("b", 1, rxPower=(0, 0, 0, 0, 0, 0, 0, DARK))
        found = list(moduleFindings(self.swept, self.survey().cables))
        self.assertEqual(
            [(one.kind, one.guid, one.port) for one in found],
            [("module-hot", *self.at("left", 3)), ("receive-power", *self.at("right", 3))],
        )
        self.assertIn("has 76 degrees Celsius; its alarm is at 75", found[0].text)
        self.assertIn("receives -12 dBm; its alarm is at -10", found[1].text)

    def test_pieces(self) -> None:
        """Findings of tables are made in pieces, and are the same; the watch of cables pauses, too."""
        self.fabric.haveModule("left", 3, temperature=76 << 8)
        found = self.survey()
        whole = [one for one in tableFindings(self.swept, found) if one is not None]
        self.assertEqual([one.kind for one in whole], ["module-hot"])
        for module in (tables, cables):
            self.patch(module, "_PIECE", 1)
        several = list(tableFindings(self.swept, found))
        self.assertEqual([one for one in several if one is not None], whole)
        pieces = len(list(self.swept.links())) + len(found.cables)
        self.assertEqual(several.count(None), pieces)
        watch = cables.CableWatch()
        self.assertEqual(len(list(watch.reading(found.cables, self.swept.nodes, 0.0))), len(found.cables))
        self.assertEqual(watch.cables, found.cables)

    def test_limit(self) -> None:
        """A module without an alarm is hot from 70 degrees on."""
        self.fabric.haveModule("left", 3, temperature=70 << 8, highTemperature=0)
        cables = self.survey().cables
        (found,) = moduleFindings(self.swept, cables)
        self.assertIn("has 70 degrees Celsius; 70", found.text)

    def test_unable(self) -> None:
        """A node that refuses is queried once, one that is silent three times, until it leaves the fabric."""
        for port in self.fabric.node("left").external:
            port.module = b""
        unable = UnableNodes()
        self.survey(unable)
        left = self.fabric.node("left").guid
        self.assertTrue(unable.isUnable(left, "cables"))
        self.assertFalse(unable.isUnable(left, "firmware"))
        self.assertFalse(unable.isUnable(self.fabric.node("b").guid, "cables"))
        self.fabric.haveModules()
        self.assertNotIn(self.at("left", 3), self.survey(unable).cables)
        unable.retain(())
        self.assertIn(self.at("left", 3), self.survey(unable).cables)

    def test_silent(self) -> None:
        """A node that ignores the class of its vendor is not queried a fourth time."""
        self.fabric.node("b").generalInfo = b""
        unable, guid = UnableNodes(), self.fabric.node("b").guid
        for number in range(4):
            self.assertEqual(unable.isUnable(guid, "firmware"), number >= 3)
            self.survey(unable)

    def test_silentForAWhile(self) -> None:
        """A node whose answers were lost is queried again later, once if it is still silent."""
        self.patch(tables, "_RESTED_SURVEYS", 5)
        b = self.fabric.node("b")
        usual, b.generalInfo = b.generalInfo, b""
        unable, known = UnableNodes(), {b.guid}
        asked = []
        for number in range(20):
            asked.append(not unable.isUnable(b.guid, "firmware"))
            if number == 10:
                b.generalInfo = usual
            found = b.guid in self.survey(unable).firmware
            unable.retain(known)
        self.assertEqual((asked[:3], sum(asked[3:10])), ([True] * 3, 1))
        self.assertTrue(found)


class WatchTests(FabricTestCase):
    """Cables that are exchanged."""

    def setUp(self) -> None:
        super().setUp()
        self.fabric.haveModules()
        self.watch = CableWatch()
        self.found()

    def found(self, now: float = 0.0) -> list[tuple[str, int | None, str]]:
        swept = self.sweep()
        tables = self.answerTo(TableSurvey(self.agent, self.agent.port.endPort, swept).run())
        list(self.watch.reading(tables.cables, swept.nodes, now))
        return [(str(one.where), one.port, one.text) for one in self.watch.findings(swept)]

    def test_exchanged(self) -> None:
        """Another serial number is a finding at the port for a day."""
        self.assertEqual(self.found(), [])
        self.fabric.haveModule("left", 3, serialNumber=b"NEW1".ljust(16))
        ((where, port, text),) = self.found(now=10.0)
        self.assertEqual(port, 3)
        self.assertIn("left", where)
        self.assertIn("serial NEW1 now, and was Mellanox MFS1S00-H010V serial MT", text)
        self.assertEqual(len(self.found(now=86400.0)), 1)
        self.assertEqual(self.found(now=86500.0), [])

    def test_followed(self) -> None:
        """The finding says where the former cable is now."""
        old = ModuleInfo.decode(self.fabric.port("left", 3).module).serialNumber
        for name in ("left", "right"):
            other = ModuleInfo.decode(self.fabric.port(name, 4).module).serialNumber
            self.fabric.haveModule(name, 3, serialNumber=other)
            self.fabric.haveModule(name, 4, serialNumber=old)
        texts = [text for _where, port, text in self.found() if port == 3]
        self.assertEqual(len(texts), 2)
        for text in texts:
            self.assertRegex(text, "which is at left .* port 4 and right .* port 4 now")

    def test_link(self) -> None:
        """A cable that was unplugged and returns is no exchange; another one in its place is."""
        self.fabric.cut("left", 3)
        self.assertEqual(self.found(), [])
        self.fabric.heal("left", 3)
        self.assertEqual(self.found(), [])
        self.fabric.cut("left", 3)
        self.found()
        self.fabric.heal("left", 3)
        self.fabric.haveModule("right", 3, serialNumber=b"NEW2".ljust(16))
        self.assertEqual([port for _where, port, _text in self.found()], [3])

    def test_doubtful(self) -> None:
        """After a link came up, the serial number counts only when a later survey has read it."""
        swept = self.sweep()
        port = swept.nodes[self.fabric.node("left").guid].ports[3]
        portKey = port.node.guid, 3
        read = self.watch.cables[portKey]
        self.assertEqual(self.watch.serialOf(port), read.serial)
        self.watch.cameUp([portKey], 5.0)
        for several, now in (({portKey: read}, 4.0), ({}, 6.0)):
            list(self.watch.reading(several, swept.nodes, now))
            self.assertIsNone(self.watch.serialOf(port))
        new = replace(read, serial="NEW")
        list(self.watch.reading({portKey: new}, swept.nodes, 7.0))
        self.assertEqual(self.watch.serialOf(port), "NEW")
        self.assertEqual([one.kind for one in self.watch.findings(swept)], ["cable-changed"])

    def test_unread(self) -> None:
        """A cable in doubt that surveys do not read for a day is forgotten; others are known."""
        swept = self.sweep()
        port, other = (swept.nodes[self.fabric.node("left").guid].ports[number] for number in (3, 4))
        self.watch.cameUp([(port.node.guid, 3)], 5.0)
        for now, serial in ((6.0, None), (86000.0, None), (86500.0, "")):
            list(self.watch.reading({}, swept.nodes, now))
            self.assertEqual(self.watch.serialOf(port), serial)
        self.assertTrue(self.watch.serialOf(other))
        self.assertIn((port.node.guid, 3), self.watch.takeChanged(100))

    def test_unreadMeasures(self) -> None:
        """Of a cable that the last survey has not read, temperature and light are unknown."""
        self.fabric.cut("left", 3)
        swept = self.sweep()
        portKey = swept.nodes[self.fabric.node("left").guid].guid, 3
        before = self.watch.cables[portKey]
        self.assertTrue(before.celsius and before.receivedDBm and before.sentDBm)
        self.found()
        unmeasured = replace(before, celsius=None, receivedDBm=(), sentDBm=())
        self.assertEqual(self.watch.cables[portKey], unmeasured)

    def test_forgotten(self) -> None:
        """Ports of nodes that have left the fabric are forgotten."""
        list(self.watch.reading({}, (), 0.0))
        self.assertEqual(self.watch.cables, {})
