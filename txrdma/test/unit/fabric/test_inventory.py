"""Inventory: firmware, boards and uptime of devices, as table, CSV and JSON."""

from __future__ import annotations

import csv
import json
from io import StringIO
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.inventory import firmwares, INVENTORY, inventoryRow
from txrdma.fabric.tables import Firmware, TableSurvey
from txrdma.iba.types import GUID
from txrdma.mad.vendor import MlxGeneralInfo, MlxGeneralInfoExtended
from txrdma.test.support.mad.simulated import FabricTestCase

PSID = b"MT_0000000223".ljust(16, b"\0")


def info(**fields: Any) -> MlxGeneralInfoExtended:
    """Return the revisions of a current device."""
    values: dict[str, Any] = {
        "deviceID": 0x101B,
        "hwRevision": 0,
        "uptime": 864000,
        "fwMajor": 20,
        "fwMinor": 39,
        **fields,
    }
    dates = {"fwYear": 0x2024, "fwMonth": 0x01, "fwDay": 0x31}
    extended = {"extMajor": 20, "extMinor": 39, "extSubMinor": 3004}
    return MlxGeneralInfoExtended(**{"fwPSID": PSID, **dates, **extended, **values})


class LayoutTests(SynchronousTestCase):
    """The layout is that of vendstat in infiniband-diags: is4_general_info_t."""

    def test_offsets(self) -> None:
        """Fields are where the structures of vendstat have them, after 8 reserved octets."""
        raw = bytearray(140)
        for offset, value in (
            *((8, b"\x00\xa0"), (10, b"\xd2\xf0"), (36, b"\x00\x0d\x2f\x00"), (41, b"\x1b\x0b\x10")),
            *((48, b"\x01\x31\x20\x24"), (56, PSID), (72, b"\x00\x00\x00\x04"), (76, b"\x00\x00\x00\x1b")),
            *((80, b"\x00\x00\x07\xd8"), (84, b"\x00\x00\x0b\xbc"), (105, b"\x03\x02\x01")),
        ):
            raw[offset : offset + len(value)] = value
        answer = MlxGeneralInfoExtended.decode(bytes(raw))
        self.assertEqual((answer.hwRevision, answer.deviceID, answer.uptime), (0xA0, 0xD2F0, 864000))
        self.assertEqual((answer.fwMajor, answer.fwMinor, answer.fwSubMinor), (27, 11, 16))
        self.assertEqual((answer.fwMonth, answer.fwDay, answer.fwYear), (0x01, 0x31, 0x2024))
        self.assertEqual((answer.fwPSID, answer.fwINIFileVersion), (PSID, 4))
        self.assertEqual((answer.extMajor, answer.extMinor, answer.extSubMinor), (27, 2008, 3004))
        self.assertEqual((answer.swMajor, answer.swMinor, answer.swSubMinor), (3, 2, 1))
        self.assertEqual(answer.encode(), bytes(raw))

    def test_older(self) -> None:
        """The older layout has the same fields, up to the version of the configuration."""
        self.assertEqual(MlxGeneralInfo.decode(info().encode()[:108]).fwPSID, PSID)


class InventoryTests(FabricTestCase):
    """Firmware of a simulated fabric."""

    def setUp(self) -> None:
        super().setUp()
        self.fabric.haveFirmware("left", info(deviceID=0xD2F0))
        self.fabric.haveFirmware("b", info(extSubMinor=1002))
        self.fabric.haveFirmware("c", info(deviceID=47396, fwMajor=1, fwMinor=0, fwSubMinor=5))
        self.swept = self.sweep()

    def guid(self, name: str) -> GUID:
        return self.fabric.node(name).guid

    def found(self) -> dict[GUID, Firmware]:
        end = self.agent.port.endPort
        work = firmwares(self.agent, end, self.swept.nodes.values(), 16)
        found: dict[GUID, Firmware] = self.answerTo(Deferred.fromCoroutine(work))
        return found

    def test_firmware(self) -> None:
        """Versions have 32 bits on current devices, 8 on InfiniScale III; other vendors are not queried."""
        found = self.found()
        self.assertEqual(set(found), {self.guid(name) for name in ("left", "b", "c")})
        left = found[self.guid("left")]
        self.assertEqual((str(left), left.board), ("20.39.3004", "MT_0000000223"))
        self.assertEqual((left.built, left.uptimeSeconds), ("2024-01-31", 864000))
        self.assertEqual([str(found[self.guid(name)]) for name in "bc"], ["20.39.1002", "1.0.5"])

    def test_unprintable(self) -> None:
        """The name of a board cannot control a terminal."""
        self.fabric.haveFirmware("b", info(fwPSID=b"MT\x1b[31m\xff".ljust(16, b"\0")))
        self.assertEqual(self.found()[self.guid("b")].board, "MT\\x1b[31m\\xff")

    def test_survey(self) -> None:
        """A survey of the tables contains the same firmware."""
        tables = self.answerTo(TableSurvey(self.agent, self.agent.port.endPort, self.swept).run())
        self.assertEqual(tables.firmware, self.found())

    def test_rows(self) -> None:
        """Rows have a cell for each column, and are unchanged after CSV and JSON."""
        found = self.found()
        rows = [inventoryRow(node, found.get(node.guid)) for node in self.swept.ordered()]
        self.assertEqual({len(row) for row in rows}, {len(INVENTORY)})
        text = StringIO()
        csv.writer(text).writerows([INVENTORY, *rows])
        text.seek(0)
        table = {row["name"]: row for row in csv.DictReader(text)}
        self.assertEqual((table["b"]["firmware"], table["b"]["uptimeSeconds"]), ("20.39.1002", "864000"))
        self.assertEqual((table["a"]["firmware"], table["a"]["type"]), ("", "channel_adapter"))
        self.assertEqual(json.loads(json.dumps(rows)), rows)
