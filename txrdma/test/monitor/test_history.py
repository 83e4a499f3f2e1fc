"""
History: what is stored, what minutes and hours make of it, and what is there after a kill.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GUID
from txrdma.monitor._counters import CounterLayout, Meter
from txrdma.monitor.history import HistoryWriter
from txrdma.monitor.historystore import COUNTERS, HistoryStore, Level, Row, rowOf
from txrdma.monitor.judging import Place

PORT: Place = (GUID(bytes(7) + b"\1"), 3)
OTHER: Place = (GUID(bytes(7) + b"\1"), 4)
LAYOUT = CounterLayout(
    {"portXmitData": 32, "symbolErrorCounter": 16, "portRcvData": 64}, {"portXmitData": 4, "portRcvData": 4}
)

WRITES = """
import sys
from txrdma.monitor.historystore import HistoryStore
from txrdma.test.monitor.test_history import reading
store = HistoryStore(sys.argv[1])
at = int(sys.argv[2])
while True:
    store.write([reading(second, 7) for second in range(at, at + 20)], at + 20)
    at += 20
    print(at, flush=True)
"""
"""A process that stores readings, and tells until when they are committed."""


def reading(at: int, octets: int | None, peak: float | None = None, place: Place = PORT) -> Row:
    """A reading of a second, with some data sent."""
    counts: list[float | None] = [0] * len(COUNTERS)
    counts[COUNTERS.index("portXmitData")] = octets
    return Row(place, at, (1.0, *counts, octets if peak is None else peak, 0.0))


class StoreTests(SynchronousTestCase):
    """Readings, and the minutes and hours that are made of them."""

    def setUp(self) -> None:
        self.path = self.mktemp()
        self.store = self.opened()

    def opened(self, *levels: Level) -> HistoryStore:
        store = HistoryStore(self.path, *([levels] if levels else []))
        self.addCleanup(store.close)
        return store

    def sent(self, begin: int, end: int, level: str, place: Place = PORT) -> list[tuple[int, int | None]]:
        points = self.store.series(place, "portXmitData", begin, end, level)
        return [(point.at, point.grown) for point in points]

    def test_rows(self) -> None:
        """A reading is stored as the meter has it: data in octets, and unknown where it is unknown."""
        meter = Meter(LAYOUT)
        meter.read((10, 1, 5), 100.0)
        self.assertIsNone(rowOf(PORT, meter, 5000.0))
        meter.read((30, 4, 5), 110.0)
        row = rowOf(PORT, meter, 5010.7)
        assert row is not None
        self.assertEqual((row.at, row.values[0], row.values[1], row.values[-2]), (5010, 10.0, 80, 8.0))
        self.store.write([row], 5011)
        (point,) = self.store.series(PORT, "symbolErrorCounter", 5000, 6000, "readings")
        self.assertEqual(point, (5010, 10.0, 3, None))
        (point,) = self.store.series(PORT, "vl15Dropped", 5000, 6000, "readings")
        self.assertIsNone(point.grown)
        meter.read((0xFFFF_FFFF, 4, 5), 120.0)
        row = rowOf(PORT, meter, 5020.0)
        assert row is not None
        self.assertEqual((row.values[1], row.values[-2]), (None, None))
        meter.missed()
        self.assertIsNone(rowOf(PORT, meter, 5030.0))

    def test_unbelievable(self) -> None:
        """Growth that no port can have is not stored, since sums of it would break the history."""
        meter = Meter(LAYOUT)
        meter.read((0, 0, 0), 0.0)
        meter.read((0, 0, (1 << 64) - 2), 1.0)
        row = rowOf(PORT, meter, 60.0)
        assert row is not None
        self.store.write([row], 600)
        self.store.write([], 6000)
        (point,) = self.store.series(PORT, "portRcvData", 0, 600, "minutes")
        self.assertIsNone(point.grown)

    def test_minutes(self) -> None:
        """A minute is the sum of its readings, with the highest rate; it is there when it is over."""
        rows = [reading(at, at % 60, 2.0 * (at % 60)) for at in range(600, 720)]
        self.store.write(rows[:90], 690)
        self.assertEqual(self.sent(0, 9999, "minutes"), [(600, 1770)])
        self.store.write(rows[90:], 750)
        self.assertEqual(self.sent(0, 9999, "minutes"), [(600, 1770), (660, 1770)])
        points = self.store.series(PORT, "portXmitData", 0, 9999, "minutes")
        self.assertEqual([(point.seconds, point.peak) for point in points], [(60.0, 118.0)] * 2)

    def test_gap(self) -> None:
        """A time without readings has no rows, and no minute of zeros; a port has its own."""
        self.store.write([reading(600, 1), reading(900, 2), reading(900, 5, place=OTHER)], 1000)
        self.assertEqual(self.sent(0, 9999, "minutes"), [(600, 1), (900, 2)])
        self.assertEqual(self.sent(0, 9999, "minutes", OTHER), [(900, 5)])
        self.assertEqual(self.sent(0, 9999, "minutes", (PORT[0], 99)), [])

    def test_hours(self) -> None:
        """Hours are the sums of minutes, however often the store was opened in between."""
        for at in range(0, 7200, 100):
            self.store.write([reading(second, 1) for second in range(at, at + 100, 10)], at + 100)
            if not at % 500:
                self.store.close()
                self.store = self.opened()
        self.store.write([], 7400)
        self.assertEqual(self.sent(0, 9999, "hours"), [(0, 360), (3600, 360)])

    def test_levels(self) -> None:
        """Without a level the finest is taken that reaches back to the beginning."""
        for at in range(0, 30 * 3600, 300):
            self.store.write([reading(at, 1)], at + 300)
        now = 30 * 3600
        self.assertEqual(len(self.sent(now - 3600, now, "")), 12)
        self.assertEqual(
            [point.seconds for point in self.store.series(PORT, "vl15Dropped", 0, 3600)], [1.0] * 12
        )
        self.assertEqual(self.sent(0, 3600, "readings"), [])
        self.assertRaises(ValueError, self.store.series, PORT, "nonsense", 0, 1)
        self.assertRaises(ValueError, self.store.series, PORT, "vl15Dropped", 0, 1, "weeks")

    def test_bounded(self) -> None:
        """What is old is dropped, level by level, and its room is used again."""
        self.store.close()
        self.store = self.opened(
            Level("readings", 0, 60, 300), Level("minutes", 60, 3600, 7200), Level("hours", 3600, 7200, 36000)
        )
        sizes = []
        for at in range(0, 100_000, 50):
            self.store.write([reading(at + second, 1) for second in range(0, 50, 10)], at + 50)
            if not at % 10_000:
                sizes.append(os.path.getsize(self.path))
        self.assertGreaterEqual(min(at for at, _count in self.sent(0, 200_000, "readings")), 99_500)
        self.assertGreaterEqual(min(at for at, _count in self.sent(0, 200_000, "minutes")), 89_000)
        self.assertLess(max(sizes[5:]), 2 * sizes[3])
        self.assertRaises(
            ValueError, HistoryStore, self.mktemp(), [Level("a", 0, 90, 1), Level("b", 60, 60, 1)]
        )

    def test_clockSetBack(self) -> None:
        """A clock that was wrong for a while does not stop the minutes for ever."""
        self.store.write([reading(600, 1)], 1_000_000)
        self.store.write([reading(6000, 2)], 6100)
        self.store.write([reading(6120, 3)], 6300)
        self.assertIn((6120, 3), self.sent(6000, 9999, "minutes"))

    def test_allOrNothing(self) -> None:
        """A batch that cannot be written leaves nothing, and can be written later."""
        self.store.write([reading(600, 1)], 601)
        broken = Row(OTHER, 700, (1.0,))
        self.assertRaises(DeviceUnavailable, self.store.write, [reading(650, 1, place=OTHER), broken], 700)
        self.assertEqual(self.sent(0, 999, "readings", OTHER), [])
        self.store.write([reading(650, 1, place=OTHER)], 700)
        self.assertEqual(self.sent(0, 999, "readings", OTHER), [(650, 1)])

    def test_notAStore(self) -> None:
        """A file of something else is refused, and left as it is."""
        path = self.mktemp()
        Path(path).write_bytes(b"something else" * 100)
        self.assertRaises(DeviceUnavailable, HistoryStore, path)
        self.assertEqual(Path(path).read_bytes(), b"something else" * 100)
        for text in ("CREATE TABLE mine (a)", "PRAGMA user_version = 99"):
            path = self.mktemp()
            other = sqlite3.connect(path)
            other.execute(text)
            other.commit()
            other.close()
            self.assertRaises(DeviceUnavailable, HistoryStore, path)
        self.assertRaises(DeviceUnavailable, HistoryStore, "/nowhere/at/all")

    def test_killed(self) -> None:
        """After each of several kills the file is whole, and has every batch that was told as written."""
        self.store.close()
        random = Random(6)
        at = 0
        environment = {**os.environ, "PYTHONPATH": str(Path(txrdma.__file__).parent.parent)}
        for _ in range(4):
            program = subprocess.Popen(
                [sys.executable, "-c", WRITES, self.path, str(at)],
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
            )
            assert program.stdout is not None
            first = program.stdout.readline()
            time.sleep(random.uniform(0.0, 0.1))  # the moment of the kill; a batch takes less
            program.send_signal(signal.SIGKILL)
            told = [int(line) for line in (first, *program.stdout) if line.endswith("\n")]
            program.stdout.close()
            program.wait()
            self.store = self.opened()
            check = self.store._database.execute("PRAGMA integrity_check").fetchall()
            self.assertEqual(check, [("ok",)])
            stored = [second for second, _count in self.sent(0, 10**9, "readings")]
            self.assertIn(stored[-1] + 1, (told[-1], told[-1] + 20))
            minutes = self.sent(0, 10**9, "minutes")
            whole = (told[-1] - 30) // 60
            self.assertEqual(minutes[:whole], [(60 * minute, 420) for minute in range(whole)])
            at = stored[-1] + 1
            self.store.close()


class FakeStore:
    """A store that can fail, and remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[Row]] = []
        self.error: Exception | None = None
        self.isClosed = False

    def write(self, rows: list[Row], now: int) -> None:
        if self.error is not None:
            raise self.error
        self.batches.append(rows)

    def close(self) -> None:
        self.isClosed = True


class WriterTests(SynchronousTestCase):
    """Batches in a thread, one at a time."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.store = FakeStore()
        self.waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = []
        self.writer = HistoryWriter(
            *(self.clock, self.store, self.inThread, self.clock.seconds),  # type: ignore[arg-type]  # a fake
            batchSeconds=5.0,
            mostRows=4,
        )
        self.writer.start()

    def inThread(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.waiting.append((partial(function, *args), done))
        return done

    def work(self) -> None:
        """Let the thread do what waits for it."""
        while self.waiting:
            function, done = self.waiting.pop(0)
            maybeDeferred(function).chainDeferred(done)

    def test_batches(self) -> None:
        """Rows are written together, now and then; while the disk is busy they wait for the next batch."""
        self.writer.add([reading(1, 1), reading(2, 1)])
        self.clock.advance(5.0)
        self.writer.add([reading(3, 1)])
        self.clock.advance(5.0)
        self.assertEqual(len(self.waiting), 1)
        self.work()
        self.clock.advance(5.0)
        self.work()
        self.assertEqual([[row.at for row in batch] for batch in self.store.batches], [[1, 2], [3]])

    def test_fullDisk(self) -> None:
        """A full disk is a finding, until it is written again; the oldest rows make room."""
        self.store.error = DeviceUnavailable("history: database or disk is full")
        self.writer.add([reading(1, 1), reading(2, 1)])
        self.clock.advance(5.0)
        self.work()
        (found,) = self.writer.findings()
        self.assertEqual((found.kind, found.text), ("history-stopped", "history: database or disk is full"))
        self.writer.add([reading(at, 1) for at in (3, 4, 5)])
        self.assertEqual(self.writer.dropped, 1)
        self.store.error = None
        self.clock.advance(5.0)
        self.work()
        self.assertEqual(self.writer.findings(), [])
        self.assertEqual([row.at for row in self.store.batches[0]], [2, 3, 4, 5])

    def test_bug(self) -> None:
        """A mistake of ours is logged, and does not stop the writer, either."""
        self.store.error = KeyError("oops")
        self.clock.advance(5.0)
        self.work()
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)
        self.assertEqual(len(self.writer.findings()), 1)
        self.store.error = None
        self.clock.advance(5.0)
        self.work()
        self.assertEqual(self.writer.findings(), [])

    def test_stop(self) -> None:
        """At the end what is left is written, after what is being written, and the store is closed."""
        self.writer.add([reading(1, 1)])
        self.clock.advance(5.0)
        self.writer.add([reading(2, 1)])
        stopped = self.writer.stop()
        self.assertNoResult(stopped)
        self.work()
        self.successResultOf(stopped)
        self.assertEqual([[row.at for row in batch] for batch in self.store.batches], [[1], [2]])
        self.assertTrue(self.store.isClosed)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.successResultOf(self.writer.stop())
