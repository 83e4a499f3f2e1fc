"""The contract of all stores of a history."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.fabric.errorcorrection import CORRECTED, SYMBOLS
from txrdma.fabric.errorcounters import UNCORRECTABLE
from txrdma.fabric.health import Cause
from txrdma.fabric.model import PortKey
from txrdma.fabric.portcounters import CounterLayout, Meter
from txrdma.iba.types import GUID
from txrdma.kit.lease import Lease
from txrdma.monitor.diagnosis.fabricstate import LinkState, NodeState, stateEvent
from txrdma.monitor.diagnosis.findinglog import Acknowledgement, Action, FindingLog, FindingRules, Key
from txrdma.monitor.diagnosis.journal import FabricEvent, Journal
from txrdma.monitor.diagnosis.topologywatch import TopologyWatch
from txrdma.monitor.events.notificationqueue import QUEUED, restored
from txrdma.monitor.events.restoring import restoreState
from txrdma.monitor.reading.poller import DEFAULT_RULES
from txrdma.monitor.series import historystore
from txrdma.monitor.series import rows as columns
from txrdma.monitor.series.database import HistoryRefused, leaseOf, openDatabase
from txrdma.monitor.series.eventtable import MOST_STATES
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.level import DEFAULT_LEVELS, Level
from txrdma.monitor.series.rows import ColumnFamily, CORRECTIONS, COUNTERS, Row, rowOf, TRAFFIC
from txrdma.test.support.monitor.alerts import entryOf

PORT: PortKey = (GUID(bytes(7) + b"\1"), 3)
OTHER: PortKey = (GUID(bytes(7) + b"\1"), 4)
CORRECTION_LAYOUT = CounterLayout({UNCORRECTABLE: 32, CORRECTED: 32, SYMBOLS: 32, "unknownBlockCounter": 16})
LAYOUT = CounterLayout(
    {"portXmitData": 32, "symbolErrorCounter": 16, "portRcvData": 64}, {"portXmitData": 4, "portRcvData": 4}
)

HISTORIES = Path(__file__).parent / "histories"
"""Dumps of histories that older versions have written."""

SHORT = (
    *(Level("readings", 0, 60, 300), Level("minutes", 60, 3600, 7200)),
    Level("hours", 3600, 7200, 36000),
)
"""Levels with short retention."""


def reading(at: int, octets: int | None, peak: float | None = None, portKey: PortKey = PORT) -> Row:
    """Return a reading of one second with some sent data."""
    counts: list[float | None] = [0] * len(COUNTERS)
    counts[COUNTERS.index("portXmitData")] = octets
    return Row(portKey, at, (1.0, *counts, octets if peak is None else peak, 0.0))


def correction(at: int, blocks: int | None, portKey: PortKey = PORT) -> Row:
    """Return one minute's growth of error correction counters."""
    return Row(portKey, at, (60.0, 0, blocks, None), CORRECTIONS)


class StoreContract(SynchronousTestCase):
    """Readings, and their sums over minutes and hours, in any database."""

    def where(self) -> str:
        """Return the path or URL of a new database."""
        raise NotImplementedError

    def setUp(self) -> None:
        self.path = self.where()
        self.store = self.opened()

    def opened(
        self, *levels: Level, isOwner: bool = False, lease: Lease | None = None, **more: Any
    ) -> HistoryStore:
        lease = leaseOf(self.path) if isOwner else lease
        store = HistoryStore(self.path, levels or DEFAULT_LEVELS, lease=lease, **more)
        self.addCleanup(store.close)
        return store

    def reopen(self, *levels: Level, **options: Any) -> None:
        self.store.close()
        self.store = self.opened(*levels, **options)

    def sent(self, begin: int, end: int, level: str, portKey: PortKey = PORT) -> list[tuple[int, int | None]]:
        points = self.store.series(portKey, "portXmitData", begin, end, level)
        return [(point.at, point.grown) for point in points]

    def test_rows(self) -> None:
        """A reading is stored with data in octets, and unknown values as unknown."""
        meter = Meter(LAYOUT)
        meter.read((10, 1, 5), 100.0)
        self.assertIsNone(rowOf(TRAFFIC, PORT, meter, 5000.0))
        meter.read((30, 4, 5), 110.0)
        row = rowOf(TRAFFIC, PORT, meter, 5010.7)
        assert row is not None
        self.assertEqual((row.at, row.values[0], row.values[1], row.values[-2]), (5010, 10.0, 80, 8.0))
        self.store.write([row], 5011)
        (point,) = self.store.series(PORT, "symbolErrorCounter", 5000, 6000, "readings")
        self.assertEqual(point, (5010, 10.0, 3, None))
        (point,) = self.store.series(PORT, "vl15Dropped", 5000, 6000, "readings")
        self.assertIsNone(point.grown)
        meter.read((0xFFFF_FFFF, 4, 5), 120.0)
        row = rowOf(TRAFFIC, PORT, meter, 5020.0)
        assert row is not None
        self.assertEqual((row.values[1], row.values[-2]), (None, None))
        meter.missed()
        self.assertIsNone(rowOf(TRAFFIC, PORT, meter, 5030.0))

    def test_unbelievable(self) -> None:
        """Impossible growth is not stored, because it would distort sums and peaks."""
        meter = Meter(LAYOUT)
        meter.read((0, 0, 0), 0.0)
        meter.read((0, 0, (1 << 64) - 2), 1.0)
        row = rowOf(TRAFFIC, PORT, meter, 60.0)
        assert row is not None
        self.store.write([row], 600)
        self.store.write([], 6000)
        (point,) = self.store.series(PORT, "portRcvData", 0, 600, "minutes")
        self.assertEqual((point.grown, point.peak), (0, 0.0))

    def test_correctionRows(self) -> None:
        """Error correction counters are stored as rows; missing and full counters are unknown."""
        meter = Meter(CORRECTION_LAYOUT)
        meter.read((0, 10, 20, 0), 100.0)
        self.assertIsNone(rowOf(CORRECTIONS, PORT, meter, 5000.0))
        meter.read((1, 15, 0xFFFF_FFFF, 0), 160.0)
        row = rowOf(CORRECTIONS, PORT, meter, 5060.5)
        self.assertEqual(row, (PORT, 5060, (60.0, 1, 5, None), CORRECTIONS))
        older = Meter(CounterLayout({UNCORRECTABLE: 32, CORRECTED: 32}))
        older.read((0, 0), 0.0)
        older.read((0, 4), 60.0)
        row = rowOf(CORRECTIONS, PORT, older, 60.0)
        assert row is not None
        self.assertEqual(row.values, (60.0, 0, 4, None))
        meter.missed()
        self.assertIsNone(rowOf(CORRECTIONS, PORT, meter, 5120.0))

    def corrected(self, begin: int, end: int, level: str) -> list[tuple[int, float, int | None]]:
        points = self.store.series(PORT, CORRECTED, begin, end, level)
        return [(point.at, point.seconds, point.grown) for point in points]

    # Other releases.

    def test_reader(self) -> None:
        """A reader beside the writer gets averages, the times of growth, and events of a time."""
        self.store.write([reading(600 + 10 * number, 50) for number in range(6)], 660)
        self.store.write([reading(605, 7, portKey=OTHER), correction(620, 3)], 800)
        self.store.append([self.event(at, "node-gone", "x") for at in (600.0, 700.0)])
        reader = self.opened(isReader=True)
        self.assertEqual(reader.span("minutes"), (600, 720))
        self.assertIsNone(reader.span("hours"))
        rates = reader.rates(600, 660, "minutes")
        self.assertEqual((rates[PORT]["portXmitData"], rates[OTHER]["portXmitData"]), (50.0, 7.0))
        self.assertEqual(rates[PORT][CORRECTED], 3 / 60)
        self.assertEqual(reader.rates(0, 600, "minutes"), {})
        expected = [(600, PORT, {"portXmitData": 300}), (600, OTHER, {"portXmitData": 7})]
        found = reader.growth(["portXmitData"], 0, 900, "minutes")
        self.assertEqual(sorted(found, key=repr), sorted(expected, key=repr))
        self.assertEqual(reader.growth(["symbolErrorCounter"], 0, 900, "minutes"), [])
        self.assertEqual([one.at for one in reader.eventsBetween(("node-gone",), 650.0, 750.0)], [700.0])

    def test_readerWithoutIndex(self) -> None:
        """A reader of a history of an older release, without one of the indices, does not wait to write."""
        database = self.store._database
        self.store.append([self.event(600.0, "node-gone", "x")])
        with database.transaction():
            database.execute("DROP INDEX events_kind_at")
        with database.transaction():
            reader = self.opened(isReader=True)
            self.assertEqual([one.at for one in reader.eventsBetween(("node-gone",), 0.0, 700.0)], [600.0])

    def test_readerOfOlder(self) -> None:
        """A reader of a history of an older release has null for missing counters, and changes nothing."""
        self.store.write([reading(at, 1) for at in range(0, 7200, 10)], 7300)
        others = ["sentOctets" if name == "vl15Dropped" else name for name in COUNTERS]
        family = ColumnFamily(TRAFFIC.head, ("newCounter", *others), TRAFFIC.peaks)
        for module in (historystore, columns):
            self.patch(module, "COLUMN_FAMILIES", (family, CORRECTIONS))
        self.patch(historystore, "RENAMED", {"vl15Dropped": "sentOctets"})
        with self.store._transaction():  # the writer may write meanwhile
            reader = self.opened(isReader=True)
            for counter, expected in (("newCounter", None), ("sentOctets", 0), ("portXmitData", 6)):
                points = reader.series(PORT, counter, 540, 600, "minutes")
                self.assertEqual([point.grown for point in points], [expected], counter)
            rates = reader.rates(0, 3600, "minutes")[PORT]
            self.assertEqual((rates["newCounter"], rates["portXmitData"]), (0.0, 1.0))
            self.assertEqual(reader.growth(["newCounter", "sentOctets"], 0, 7200, "minutes"), [])
            grown = reader.growth(["newCounter", "portXmitData"], 0, 60, "minutes")
            self.assertEqual(grown, [(0, PORT, {"portXmitData": 6})])
            self.assertRaises(DeviceUnavailable, reader.append, [self.event(600.0, "node-gone", "x")])
        with self.store._transaction():
            self.assertNotIn("newCounter", self.store._database.columns("minutes_0"))

    def test_growthByHours(self) -> None:
        """Growth within complete hours, and after them, is that of the minutes."""
        rows = [reading(at, 5 * (at % 7200 == 600)) for at in range(600, 4 * 3600, 600)]
        self.store.write(rows, 4 * 3600)
        self.store.write([reading(4 * 3600 + 600, 9)], 4 * 3600 + 900)
        reader = self.opened(isReader=True)
        expected = [(600, PORT, 5), (7800, PORT, 5), (15000, PORT, 9)]
        for step in (1800, 3600, 5400, 86400):
            found = [
                (at, portKey, grown["portXmitData"])
                for begin in range(0, 18000, step)
                for at, portKey, grown in reader.growth(["portXmitData"], begin, begin + step, "minutes")
            ]
            self.assertEqual(found, expected, step)

    def load(self, version: int) -> None:
        """Load a history that an older version has written into the new database."""
        raise NotImplementedError

    def statements(self, name: str) -> str:
        """Return a dump of a history."""
        return (HISTORIES / name).read_text()

    def releasedWith(self, *counters: str, renamed: Mapping[str, str] = MappingProxyType({})) -> ColumnFamily:
        """Open the history by a release with other counters."""
        self.store.close()
        family = ColumnFamily(TRAFFIC.head, counters, TRAFFIC.peaks)
        for module in (historystore, columns):
            self.patch(module, "COLUMN_FAMILIES", (family, CORRECTIONS))
        self.patch(historystore, "RENAMED", renamed)
        self.store = self.opened()
        return family

    def test_counterAdded(self) -> None:
        """A history continues with an added counter, which is unknown in earlier rows of all levels."""
        self.store.write([reading(at, 1) for at in range(600)], 601)
        family = self.releasedWith("newCounter", *COUNTERS)
        self.assertEqual(self.store.series(PORT, "newCounter", 100, 101)[0].grown, None)
        rows = [
            Row(PORT, at, (1.0, 3, *row.values[1:]), family)
            for at, row in ((at, reading(at, 2)) for at in range(600, 7200))
        ]
        self.store.write(rows, 7300)
        minutes = self.store.series(PORT, "newCounter", 540, 660, "minutes")
        self.assertEqual([point.grown for point in minutes], [None, 180])
        hours = self.store.series(PORT, "newCounter", 0, 7200, "hours")
        self.assertEqual([point.grown for point in hours], [9000, 10800])
        self.assertEqual(self.sent(540, 660, "minutes"), [(540, 60), (600, 120)])

    def test_counterRemoved(self) -> None:
        """A history continues without a counter, whose earlier values return with it."""
        self.store.write([reading(at, 1) for at in range(600)], 601)
        family = self.releasedWith(*(name for name in COUNTERS if name != "symbolErrorCounter"))
        self.assertRaises(InvalidRequest, self.store.series, PORT, "symbolErrorCounter", 0, 1)
        index = 1 + COUNTERS.index("symbolErrorCounter")
        values = [reading(at, 2).values for at in range(600, 900)]
        rows = [
            Row(PORT, at, (*one[:index], *one[index + 1 :]), family) for at, one in enumerate(values, 600)
        ]
        self.store.write(rows, 1000)
        self.assertEqual(self.sent(540, 660, "minutes"), [(540, 60), (600, 120)])
        self.releasedWith(*COUNTERS)
        points = self.store.series(PORT, "symbolErrorCounter", 480, 600, "minutes")
        self.assertEqual([point.grown for point in points], [0, None])

    def test_counterRenamed(self) -> None:
        """A renamed counter has its earlier values under its new name."""
        self.store.write([reading(at, 1) for at in range(600)], 601)
        names = ["sentOctets" if name == "vl15Dropped" else name for name in COUNTERS]
        family = self.releasedWith(*names, renamed={"vl15Dropped": "sentOctets"})
        self.store.write([Row(PORT, at, reading(at, 2).values, family) for at in range(600, 900)], 1000)
        points = self.store.series(PORT, "sentOctets", 540, 660, "minutes")
        self.assertEqual([point.grown for point in points], [0, 0])
        self.assertEqual(self.sent(540, 660, "minutes"), [(540, 60), (600, 120)])

    def test_version1(self) -> None:
        """A history of version 1 is migrated, and continued with all its data."""
        self.path = self.where()
        self.load(1)
        self.reopen()
        for _ in range(2):
            self.assertEqual(
                self.sent(3000, 3660, "readings"),
                [(at + second, 1 + second) for at in (3000, 3300, 3600) for second in (0, 20, 40)],
            )
            self.assertEqual(self.sent(3000, 3660, "minutes"), [(3000, 63), (3300, 63), (3600, 63)])
            self.assertEqual(
                self.sent(0, 3600, "readings", OTHER), [(at + 5, 7) for at in range(0, 3600, 300)]
            )
            self.assertEqual(self.sent(0, 9999, "hours"), [(0, 756)])
            self.assertEqual(self.corrected(0, 9999, "hours"), [(0, 720.0, 24)])
            self.reopen()
        self.store.write([reading(5400, 4), correction(5430, 5)], 7300)
        self.assertEqual(self.sent(0, 9999, "hours"), [(0, 756), (3600, 382)])
        self.assertEqual(self.corrected(0, 9999, "hours"), [(0, 720.0, 24), (3600, 420.0, 17)])

    def test_notes(self) -> None:
        """Acknowledgements and comments of operators are read as they were stored, with any characters."""
        journal, findingLog = Journal(), FindingLog(DEFAULT_RULES)
        journal.store = self.store.append
        entry = entryOf()
        text = "cable 'ordered' \\ {\N{SNOWMAN}} \N{GRINNING FACE} %s ? :x"
        for action, user in ((Action.ACKNOWLEDGE, "alice"), (Action.COMMENT, "bob"), (Action.COMMENT, "a'b")):
            findingLog.annotate(entry, action, user, text, 1500.25)
            journal.annotated(entry, action, user, text, 1500.25)
        self.reopen()
        journal.store = self.store.append
        restoreState(self.store, findingLog, TopologyWatch(), journal, lambda kind: 0.0)
        (after,) = findingLog.open.values()
        self.assertEqual(after.acknowledgement, Acknowledgement(1500.25, "alice", entry.severity))
        self.assertEqual([one.user for one in after.comments], ["alice", "bob", "a'b"])
        self.assertEqual(after.comments, entry.comments)
        self.assertEqual(after.identity, entry.identity)
        kinds = [one.kind for one in self.store.changes()]
        self.assertEqual(kinds, ["operator-acknowledged", "operator-commented", "operator-commented"])
        findingLog.annotate(after, Action.UNACKNOWLEDGE, "bob", "", 1600.0)
        journal.annotated(after, Action.UNACKNOWLEDGE, "bob", "", 1600.0)
        findingLog = FindingLog(DEFAULT_RULES)
        restoreState(self.store, findingLog, TopologyWatch(), journal, lambda kind: 0.0)
        (after,) = findingLog.open.values()
        self.assertEqual((after.acknowledgement, after.comments), (None, entry.comments))

    def test_causesAsTexts(self) -> None:
        """Causes that 1.0.0rc1 has stored as texts are shown; a process that finds them stores identities."""
        with self.store._transaction():
            for statement in self.statements("version2.causes.sql").splitlines():
                self.store._database.execute(statement)
        self.reopen()
        findingLog, journal = FindingLog(FindingRules({})), Journal()
        journal.store = self.store.append
        restoreState(self.store, findingLog, TopologyWatch(), journal, lambda kind: 0.0)
        entries = {one.finding.kind: one for one in findingLog.open.values() if one.finding.cause}
        self.assertEqual(
            {kind: str(one.finding.cause) for kind, one in entries.items()},
            {"node-gone": "node-gone at leaf 1", "symbol-errors": "symbol-ber at leaf 2 port 4"},
        )
        self.assertEqual([one.user for one in entries["symbol-errors"].comments], ["alice"])
        bad = replace(entries["symbol-errors"].finding, kind="symbol-ber", cause=None)
        cause = Cause(bad.kind, bad.where, bad.guid, bad.port)
        found = replace(entries["symbol-errors"].finding, cause=cause)
        for _report in range(2):
            for event in findingLog.observe("counters", [bad, found], 1100.0):
                journal.findingChanged(event, 1100.0)
        restored = FindingLog(FindingRules({}))
        restoreState(self.store, restored, TopologyWatch(), Journal(), lambda kind: 0.0)
        after = restored.open[entries["symbol-errors"].key]
        self.assertEqual((after.finding, after.comments), (found, entries["symbol-errors"].comments))
        self.assertEqual(len(self.store.eventsBetween(("finding-raised",), 1100.0, 1101.0)), 1)

    def test_version1Events(self) -> None:
        """State that version 1 has stored for the next process is available as events."""
        self.path = self.where()
        self.load(1)
        self.reopen()
        self.assertVersion1Events()

    def assertVersion1Events(self) -> None:
        findingLog, topologyWatch, journal = FindingLog(DEFAULT_RULES), TopologyWatch(), Journal()
        restoreState(self.store, findingLog, topologyWatch, journal, lambda kind: 0.0)
        lost = Key("sweep", "node-gone", "0000:0000:0010:0006", None)
        self.assertEqual([(key, one.firstSeen) for key, one in findingLog.open.items()], [(lost, 337.0)])
        (cleared,) = findingLog.closed
        self.assertEqual((cleared.finding.kind, cleared.finding.port), ("link-gone", 3))
        self.assertEqual((cleared.firstSeen, cleared.clearedAt), (40.0, 170.0))
        self.assertEqual(
            [(one.at, one.kind) for one in journal.changes],
            [(40.0, "link-gone"), (44.33, "finding-raised"), (137.0, "link-came"), (170.0, "finding-cleared")]
            + [(337.0, "node-gone"), (339.0, "finding-raised")],
        )
        self.assertEqual((len(topologyWatch.present), len(topologyWatch.linked)), (5, 6))
        (gone,) = topologyWatch.missingNodes.values()
        self.assertEqual((gone.where, gone.since), ("c (0000:0000:0010:0006)", 337.0))
        self.assertEqual([one.since for one in topologyWatch.missingLinks.values()], [337.0])
        (raised,) = self.store.states("alert-raised")
        self.assertEqual(Key(*json.loads(raised.subject)), lost)
        (queued,) = restored(self.store.states(QUEUED))["recorded"].values()
        self.assertEqual((queued.key, queued.isRaised, queued.finding), (lost, True, raised.detail))

    def test_version1InvalidRows(self) -> None:
        """Invalid rows of version 1 are dropped and logged; the others are migrated."""
        self.path = self.where()
        self.load(1)
        finding = '["sweep", "width", "leaf", 7]'
        several = {
            "changes": [
                *(("7", "{"), ("8", "null"), ("9", "[9, 50.0]")),
                ("11", '[11, "today", "link-gone", "a", "b", null, 1]'),
                ("13", '[13, 50.0, "link-gone", "a", "b", null, 18446744073709551616]'),
                ("16", '[16, 50.0, "\\ud800", "a", "b", null, 1]'),
            ],
            "findings": [
                ("f1", "[]"),
                ("f2", f'[{finding}, ["leaf", "slow", null, 7], 1.0, NaN, null, 1]'),
            ],
            "nodes": [("x", '["a", ""]')],
            "nodes-gone": [("0000:0000:0010:0009", '["a", "", "yesterday"]')],
            "links": [("x", '["a", "b"]')],
            "told": [("x", "[]")],
            "notifications": [("x", "[]")],
        }
        database = openDatabase(self.path)
        self.addCleanup(database.close)
        with database.transaction():
            for room, rows in several.items():
                for name, value in rows:
                    database.execute("INSERT INTO remembered VALUES (?, ?, ?)", room, name, value)
            database.execute("INSERT INTO done VALUES (?, ?)", "level", 1 << 60)
        with capturedLogs() as logged:
            self.reopen()
        self.assertVersion1Events()
        lines = [formatEvent(one) for one in logged]
        numbers = [int(line.partition(" invalid")[0]) for line in lines if " invalid" in line]
        self.assertEqual(numbers, [len(rows) for rows in several.values()])

    def test_otherTables(self) -> None:
        """Tables of an operator, such as copies, are ignored, whatever their names begin with."""
        with self.store._transaction():
            for name in ("readings_backup", "minutes_", "hours_1_2"):
                self.store._database.make(name, {"a": int}, ("a",))
        self.reopen()
        self.store.write([reading(100, 7)], 100)
        self.assertEqual(len(self.store.series(PORT, "portXmitData", 0, 200, "readings")), 1)

    def test_newerVersion(self) -> None:
        """A history of a newer version is refused and not changed."""
        with self.store._transaction():
            self.store._database.setVersion(historystore.VERSION + 1)
        self.store.close()
        error = self.assertRaises(DeviceUnavailable, self.opened)
        self.assertIn(f"it has version {historystore.VERSION + 1}", str(error))

    # Levels.

    def test_size(self) -> None:
        """A level that is larger than it may be loses its oldest tables, whatever their age."""
        self.store.write([reading(at, 1) for at in range(0, 3000, 10)], 3000)
        self.assertEqual(self.store._sizes, {})  # not measured while small, which would read its tables
        self.path = self.where()
        levels = Level("readings", 0, 60, 86400, 150_000), *DEFAULT_LEVELS[1:]
        self.reopen(*levels)
        for at in range(0, 3000, 60):
            self.store.write([reading(second, 1) for second in range(at, at + 60)], at + 60)
        for _ in range(50):  # each batch measures one table
            self.store.write([], 3000)
        with self.store._transaction():
            sizes = {
                name: self.store._database.octets(name)
                for name in self.store._database.tables()
                if re.fullmatch(r"readings_\d+", name)
            }
        older = sorted(sizes, key=lambda name: int(name.rpartition("_")[2]))[:-2]
        self.assertLessEqual(sum(sizes[name] for name in older), 150_000)
        self.assertGreater(sum(sizes.values()), 50_000)
        self.assertEqual(self.sent(2940, 3000, "readings")[-1], (2999, 1))
        self.assertEqual(self.sent(0, 60, "readings"), [])
        self.assertEqual(self.sent(0, 60, "minutes"), [(0, 60)])
        self.reopen(*levels)
        self.store.write([reading(second, 1) for second in range(3000, 3060)], 3060)
        self.assertEqual(self.sent(2940, 3060, "readings")[-1], (3059, 1))

    def test_levels(self) -> None:
        """Without a given level, the finest one that reaches back to the start is used."""
        now = 10 * 3600
        for begin in range(0, now, 3600):
            self.store.write([reading(at, 1) for at in range(begin, begin + 3600, 300)], begin + 3600)
        self.assertEqual(len(self.sent(now - 3600, now, "")), 12)
        self.assertEqual(
            [point.seconds for point in self.store.series(PORT, "vl15Dropped", 0, 3600)], [1.0] * 12
        )
        self.assertEqual(self.sent(0, 3600, "readings"), [])

    def test_clockSetBack(self) -> None:
        """A clock that was wrong temporarily does not stop the sums of minutes."""
        self.store.write([reading(600, 1)], 1_000_000)
        self.store.write([reading(6000, 2)], 6100)
        self.store.write([reading(6120, 3)], 6300)
        self.assertIn((6120, 3), self.sent(6000, 9999, "minutes"))

    def test_clockSetForward(self) -> None:
        """A clock that is a year ahead temporarily deletes no data."""
        for begin in range(0, 7200, 600):
            self.store.write([reading(at, 1) for at in range(begin, begin + 600, 60)], begin + 600)
        events = [self.event(at, "node-came", "a", f"at {at}") for at in (600.0, 1200.0)]
        self.store.append(events)
        before = [self.sent(0, 9999, level.name) for level in DEFAULT_LEVELS]
        self.assertTrue(all(before))
        year = 401 * 86400
        for at in range(year, year + 1200, 60):
            self.store.write([reading(at, 1)], at + 60, [self.event(at, "node-came", "b")])
        self.store.write([reading(7200, 1)], 7260)
        self.assertEqual(self.store.changes(), events)
        self.assertEqual(self.store.changeTimes(0.0, 9999.0, 9)[0], 600.0)
        for level, rows in zip(DEFAULT_LEVELS, before, strict=True):
            self.assertEqual(self.sent(0, 7200, level.name)[: len(rows)], rows)

    def test_longPause(self) -> None:
        """When a monitor restarts after a year, old data is deleted as soon as there is newer data."""
        year = 400 * 86400
        for begin in (*range(0, 7200, 600), *range(year, year + 7200, 600)):
            self.store.write([reading(at, 1) for at in range(begin, begin + 600, 60)], begin + 600)
        self.assertEqual(self.sent(0, 9999, "readings"), [])
        self.assertEqual(len(self.sent(0, 9999, "hours")), 2)

    def test_owned(self) -> None:
        """A history is locked by one monitor, and available to another one when the first has closed it."""
        self.store = self.opened(isOwner=True)
        error = self.assertRaises(DeviceUnavailable, self.opened, isOwner=True)
        self.assertIn("another monitor", str(error))
        self.store.write([reading(600, 1)], 601)
        self.reopen(isOwner=True)
        self.assertEqual(self.sent(0, 999, "readings"), [(600, 1)])

    def test_lost(self) -> None:
        """A monitor that has lost its lease writes nothing, although its database is open."""
        self.store = self.opened(isOwner=True)
        assert self.store._lease is not None
        with patch.object(self.store._lease, "permits", return_value=False):
            self.assertRaises(HistoryRefused, self.store.write, [reading(600, 1)], 601)
            self.assertRaises(HistoryRefused, self.store.append, [self.event(600.0, "node-gone", "x")])
        self.store.write([reading(610, 2)], 611)
        self.assertEqual(self.sent(0, 999, "readings"), [(610, 2)])

    def test_allOrNothing(self) -> None:
        """A batch that cannot be written leaves no rows, and can be written later."""
        self.store.write([reading(600, 1)], 601)
        broken = reading(700, 1, portKey=OTHER)
        broken = Row(OTHER, 700, (*broken.values[:-1], object()))  # type: ignore[arg-type]  # that is the point
        self.assertRaises(DeviceUnavailable, self.store.write, [reading(650, 1, portKey=OTHER), broken], 700)
        self.assertEqual(self.sent(0, 999, "readings", OTHER), [])
        self.store.write([reading(650, 1, portKey=OTHER)], 700)
        self.assertEqual(self.sent(0, 999, "readings", OTHER), [(650, 1)])

    # Events.

    def event(self, at: float, kind: str, subject: str = "", text: str = "") -> FabricEvent:
        return FabricEvent(at, kind, f"at {subject}", text, PORT[0], 3, subject, [subject, {"at": at}])

    def test_events(self) -> None:
        """The last event of each subject is its state for the next process; those with a text are changes."""
        first = self.event(1.0, "node-came", "a")
        second = self.event(2.0, "node-came", "b", "it is there")
        third = self.event(3.0, "node-gone", "a", "it is gone")
        self.store.append([first, second])
        self.assertEqual(self.store.states("node-came"), [first, second])
        self.store.write([reading(600, 1)], 601, [third, self.event(4.0, "node-forgotten", "b")])
        for _ in range(2):
            self.assertEqual(self.store.states("node-came", "node-gone"), [third])
            self.assertEqual(self.store.states("node-came"), [])
            self.assertEqual(self.store.changes(), [second, third])
            self.reopen()
        fourth, fifth = self.event(5.0, "node-came", "c"), self.event(6.0, "node-came", "d")
        self.store.append([fourth, fifth])
        self.assertEqual(signature(self.store.states).parameters["most"].default, MOST_STATES)
        self.assertEqual(self.store.states("node-came", most=1), [fifth])

    def test_states(self) -> None:
        """At each time the state of a subject is its last event until then."""
        events = [
            self.event(1.0, "node-came", "a"),
            self.event(2.0, "node-came", "b"),
            self.event(3.0, "node-gone", "a", "it is gone"),
            self.event(4.0, "node-forgotten", "b"),
            self.event(5.0, "node-came", "a", "it is there"),
        ]
        self.store.append(events)
        states = [self.statesAt(at) for at in (0.5, 1.0, 2.5, 3.0, 4.5, 9.0)]
        numbers = [[events.index(one) for one in found] for found in states]
        self.assertEqual(numbers, [[], [0], [0, 1], [1, 2], [2], [4]])
        self.assertEqual(self.store.changeTimes(0.0, 10.0, 100), (1.0, [(3.0, 1), (5.0, 1)]))
        self.assertEqual(self.store.changeTimes(3.0, 10.0, 1), (1.0, [(5.0, 1)]))
        self.assertEqual(self.store.changeTimes(0.0, 10.0, 1), (1.0, [(5.0, 2)]))

    def statesAt(self, at: float) -> list[FabricEvent]:
        return self.store.statesAt(("node-came", "node-gone"), at)

    def test_stateAt(self) -> None:
        """A state has nodes, links, missing links and open findings; there is none without events."""
        self.assertIsNone(self.store.stateAt(5.0))
        self.assertEqual(self.store.changeTimes(0.0, 9.0, 9), (None, []))
        one, other = GUID(bytes(7) + b"\1"), GUID(bytes(7) + b"\2")
        link = (one, 1), (other, 2)
        node, state = NodeState("node", "", 2), LinkState("node/1", "node/2", 4, "HDR")
        key = ["sweep", "link-gone", str(one), 1]
        self.store.append(
            [
                *(stateEvent(2.0, "came", guid, node) for guid in (one, other)),
                stateEvent(2.0, "came", link, state),
                stateEvent(3.0, "gone", link, state, "it is gone"),
                FabricEvent(4.0, "finding-raised", "node/1", "x", one, 1, "f", [key, "x", 4.0, 4.0, None, 1]),
            ]
        )
        found = [self.store.stateAt(at) for at in (1.0, 2.0, 3.0, 4.0)]
        self.assertEqual([one.at for one in found if one], [2.0, 2.0, 3.0, 4.0])
        self.assertEqual([len(one.links) for one in found if one], [1, 1, 0, 0])
        last = found[-1]
        assert last is not None
        self.assertEqual((last.nodes, last.missing), ({one: node, other: node}, {link: state}))
        self.assertEqual([entry.key.kind for entry in last.findings], ["link-gone"])

    def test_statesDeleted(self) -> None:
        """When events were deleted because of their age, states since then are complete."""
        self.reopen(events=Level("events", 0, 100, 1000))
        came, back = (self.event(at, "node-came", "a") for at in (10.0, 300.0))
        gone, still = self.event(200.0, "node-gone", "a"), self.event(1500.0, "node-gone", "a")
        self.store.append([came, gone, back, still])
        self.store.write([], 1250)
        self.assertEqual((self.statesAt(260.0), self.statesAt(300.0)), ([gone], [back]))
        self.assertEqual(self.store.changeTimes(0.0, 9e9, 1)[0], 250.0)
        self.store.write([], 1400)
        self.assertEqual((self.statesAt(400.0), self.statesAt(1500.0)), ([back], [still]))
        self.assertEqual(self.store.changeTimes(0.0, 9e9, 1)[0], 400.0)
        self.store.write([], 1600)  # nothing more is deleted, except for the former time
        self.assertEqual(self.statesAt(1400.0), [back])

    def test_statesSize(self) -> None:
        """When events were deleted because of their size, states since then are complete."""
        self.reopen(events=Level("events", 0, 100, 10**9, 100_000))
        steady = self.event(1.0, "node-came", "a")
        flapping = [self.event(at, ("node-came", "node-gone")[at % 2], "b") for at in range(2, 1002)]
        late = self.event(990.0, "node-gone", "a")
        self.store.append([steady, *flapping[:-12], late, *flapping[-12:]])
        self.store.write([], 2000)
        since, _times = self.store.changeTimes(0.0, 9e9, 1)
        assert since is not None
        self.assertGreater(since, 500.0)
        self.assertLess(since, 900.0)
        for at in (int(since), int(since) + 1, 989):
            self.assertEqual(self.statesAt(at), [steady, flapping[at - 2]])
        self.assertEqual(self.statesAt(2000.0), [late, flapping[-1]])

    def test_eventTexts(self) -> None:
        """Names that a database could not store do not prevent others from being stored."""
        self.store.append([FabricEvent(1.0, "node-came", "a\0\udcff\n", "it's \u00e9")])
        (found,) = self.store.changes()
        self.assertEqual((found.where, found.text), ("a\\x00\\udcff\n", "it's \u00e9"))

    def test_answerLost(self) -> None:
        """Events whose COMMIT was not answered are stored once, however often they are appended again."""
        events = [FabricEvent(number / 7, "node-came", "a", f"text {number}") for number in range(6)]
        self.store.append(events[:1])
        database = self.store._database
        execute = database.execute

        areCommitted = iter((True, False, True, True))

        def failing(statement: str, *values: Any) -> Any:
            if statement != "COMMIT":
                return execute(statement, *values)
            if next(areCommitted):
                execute(statement)
            raise database._errors[0]("the connection is lost")

        for last in (3, 4, 5, 5):
            patched = self.patch(database, "execute", failing)
            self.assertRaises(DeviceUnavailable, self.store.write, [], 1, events[1:last])
            patched.restore()
            self.store.changes()
        self.store.write([], 1, events[1:])
        self.store.append([*events[1:2], *events[1:2]])  # later ones may be equal
        self.assertEqual(self.store.changes(), [*events, *events[1:2], *events[1:2]])

    def test_eventsAge(self) -> None:
        """Old events are deleted, except for the last state of a subject that still has one."""
        self.reopen(events=Level("events", 0, 100, 1000))
        kept = [self.event(10.0, "node-came", "a"), self.event(20.0, "node-gone", "b")]
        self.store.append([self.event(5.0, "node-came", "b", "old"), *kept])
        self.store.append([self.event(30.0, "finding-cleared", "f", "old"), self.event(40.0, "x", "", "old")])
        recent = [self.event(at, "finding-cleared", "g", "recent") for at in (1700.0, 1900.0)]
        self.store.write([], 1950, recent)
        self.assertEqual(self.store.changes(), recent)
        self.assertEqual(self.store.states("node-came", "node-gone"), kept)

    def test_eventsSize(self) -> None:
        """If events exceed their size, the oldest that are not needed are deleted."""
        self.reopen(events=Level("events", 0, 100, 10**9, 100_000))
        kept = self.event(1.0, "node-came", "a")
        self.store.append([kept, *(self.event(at, "x", "", "often") for at in range(1000))])
        self.store.write([], 2000)
        left = self.store.changes()
        self.assertGreater(len(left), 200)
        self.assertLess(len(left), 500)
        self.assertEqual(left[-1].at, 999.0)
        self.assertEqual(self.store.states("node-came"), [kept])

    def test_dropped(self) -> None:
        """Old data is deleted, level by level, and so are rows of error correction."""
        self.reopen(*SHORT)
        for begin in range(0, 20_000, 1000):
            step, longer = (250, 500) if begin < 19_000 else (50, 60)
            rows = [reading(at, 1) for at in range(begin, begin + 1000, step)]
            rows += [correction(at, 1) for at in range(begin, begin + 1000, longer)]
            self.store.write(rows, begin + 1000)
        for level, first in (("readings", 19_500), ("minutes", 9_000)):
            self.assertGreaterEqual(min(at for at, _count in self.sent(0, 200_000, level)), first)
            self.assertGreaterEqual(self.corrected(0, 200_000, level)[0][0], first)
        self.assertEqual(self.sent(0, 200_000, "hours")[0], (0, 15))
        self.assertEqual(self.corrected(0, 200_000, "hours")[0], (0, 8 * 60.0, 8))

    def test_manyPorts(self) -> None:
        """At the limit, lost ports are removed for new ones; ports that are read remain."""
        self.patch(historystore, "MOST_PORTS", 10)
        self.reopen()

        def port(number: int) -> PortKey:
            return GUID(number.to_bytes(8, "big")), 1

        def written(at: int, *numbers: int) -> int:
            return self.store.write([reading(at, 1, portKey=port(each)) for each in numbers], at)

        self.assertEqual(written(10_000, *range(12)), 2)
        self.assertEqual(written(12_000, *range(5), 20), 1)  # it is not known yet which ports are lost
        self.assertEqual(written(15_000, *range(5), 20, 21), 0)
        self.assertEqual(written(15_010, *range(5), 20, 21, 22, 23, 24), 0)
        self.assertEqual(written(15_020, 25), 1)
        known = {number for number in range(30) if self.sent(0, 20_000, "readings", port(number))}
        self.assertEqual(known, {*range(5), 20, 21, 22, 23, 24})
        self.assertEqual(len(self.sent(0, 20_000, "readings", port(0))), 4)
        self.reopen()
        self.assertEqual(written(15_030, 30), 1)
        self.assertEqual(len(self.sent(0, 20_000, "readings", port(24))), 1)
