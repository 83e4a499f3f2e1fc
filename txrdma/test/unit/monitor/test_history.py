"""The writer of the history: batches, failures of the disk, and the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from sqlite3 import connect
from typing import Any
from unittest.mock import Mock, patch

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GUID
from txrdma.kit.lease import LEASE_SECONDS
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.series import history
from txrdma.monitor.series.database import HistoryRefused, leaseOf, PostgreSQL, SQLite
from txrdma.monitor.series.eventtable import EventTable
from txrdma.monitor.series.history import HistoryWriter
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.rows import COUNTERS, Row
from txrdma.test.support.extras import needs
from txrdma.test.support.monitor.storecontract import PORT, reading


class FakeStore:
    """A store that records its batches and can fail."""

    def __init__(self) -> None:
        self.batches: list[list[Row]] = []
        self.events: list[FabricEvent] = []
        self.error: Exception | None = None
        self.isClosed = False

    def write(self, rows: list[Row], now: int, events: list[FabricEvent]) -> int:
        if self.error is not None:
            raise self.error
        self.batches.append(list(rows))
        self.events += events
        return 0

    def append(self, events: list[FabricEvent]) -> None:
        if self.error is not None:
            raise self.error
        self.events += events

    def close(self) -> None:
        self.isClosed = True


class WriterTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.patch(history, "MOST_EVENTS", 200)
        self.patch(history, "MOST_ROWS", 4)
        self.clock = Clock()
        self.store = FakeStore()
        self.waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = []
        self.writer = HistoryWriter(
            *(self.clock, self.store, self.inThread, self.clock.seconds),  # type: ignore[arg-type]  # a fake
        )
        self.writer.start()

    def inThread(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.waiting.append((partial(function, *args), done))
        return done

    def work(self) -> None:
        """Run the queued work of the thread."""
        while self.waiting:
            function, done = self.waiting.pop(0)
            maybeDeferred(function).chainDeferred(done)

    def writeBatch(self) -> None:
        """Wait for the next batch, and write it."""
        self.clock.advance(5.0)
        self.work()

    def test_batches(self) -> None:
        """Rows are written in batches; while the disk is busy they wait for the next batch."""
        self.writer.add([reading(1, 1), reading(2, 1)])
        self.clock.advance(5.0)
        self.writer.add([reading(3, 1)])
        self.clock.advance(5.0)
        self.assertEqual(len(self.waiting), 1)
        self.work()
        self.writeBatch()
        self.assertEqual([[row.at for row in batch] for batch in self.store.batches], [[1, 2], [3]])

    def test_fullDisk(self) -> None:
        """A full disk is a finding until writing succeeds again; the oldest queued rows are dropped."""
        self.store.error = DeviceUnavailable("history: database or disk is full")
        self.writer.add([reading(1, 1), reading(2, 1)])
        self.writeBatch()
        (found,) = self.writer.findings()
        self.assertEqual((found.kind, found.text), ("history-stopped", "history: database or disk is full"))
        self.writer.add([reading(at, 1) for at in (3, 4, 5)])
        self.assertEqual(self.writer.dropped, 1)
        self.store.error = None
        self.writeBatch()
        self.assertEqual(self.writer.findings(), [])
        self.assertEqual([row.at for row in self.store.batches[0]], [2, 3, 4, 5])

    def test_manyEvents(self) -> None:
        """Queued events are bounded, too, also while the disk is full: the oldest are dropped."""
        most = history.MOST_EVENTS
        self.writer.append(FabricEvent(at, "node-came", "a", "") for at in range(most + 2))
        self.store.error = DeviceUnavailable("history: database or disk is full")
        self.writeBatch()
        self.writer.append([FabricEvent(most + 2, "node-came", "a", "")])
        self.store.error = None
        self.writeBatch()
        self.assertEqual([one.at for one in self.store.events], [*range(3, most + 3)])

    def test_order(self) -> None:
        """An alert is never stored before its finding: another process would report that as a new one."""
        events = [FabricEvent(1.0, kind, "a", "") for kind in ("finding-raised", "alert-raised")]
        self.writer.append(events[:1])
        stored = self.writer.appendNow(events[1:])
        self.work()
        self.successResultOf(stored)
        self.assertEqual(self.store.events, events)

    def written(self, fails: int) -> list[str]:
        """
        Append an event at once, while a batch is written and another event is queued.

        @param fails: number of calls of the store that fail.
        @return: kinds of the events in the order in which they are stored.
        """
        batch, queued, now = (FabricEvent(1.0, kind, "a", "") for kind in ("batch", "queued", "now"))
        self.writer.append([batch])
        self.clock.advance(5.0)
        self.writer.append([queued])
        stored = self.writer.appendNow([now])
        self.store.error = DeviceUnavailable("history: the connection is lost") if fails else None
        for _ in range(fails):
            function, done = self.waiting.pop(0)
            maybeDeferred(function).chainDeferred(done)
        self.store.error = None
        self.work()
        if fails > 1:
            self.failureResultOf(stored, DeviceUnavailable)
        else:
            self.successResultOf(stored)
        self.writeBatch()
        return [one.kind for one in self.store.events]

    def test_orderInBatch(self) -> None:
        """Events appended during a batch are stored after its events, and before those queued since."""
        self.assertEqual(self.written(0), ["batch", "queued", "now"])

    def test_orderAfterFailure(self) -> None:
        """Events of a batch that fails are stored once, before those that were appended during it."""
        self.assertEqual(self.written(1), ["batch", "queued", "now"])

    def test_appendFails(self) -> None:
        """If events cannot be appended at once, the caller retains them, and queued ones are stored later."""
        self.assertEqual(self.written(2), ["batch", "queued"])

    def test_appendCancelled(self) -> None:
        """Events whose append is cancelled while it waits for a batch are not stored; queued ones are."""
        self.clock.advance(5.0)
        self.writer.append([FabricEvent(1.0, "queued", "a", "")])
        stored = self.writer.appendNow([FabricEvent(1.0, "now", "a", "")])
        stored.cancel()
        self.failureResultOf(stored, CancelledError)
        self.work()
        self.writeBatch()
        self.assertEqual([one.kind for one in self.store.events], ["queued"])

    def test_bug(self) -> None:
        """An unexpected exception is logged and does not stop the writer."""
        self.store.error = KeyError("oops")
        self.writeBatch()
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)
        self.assertEqual(len(self.writer.findings()), 1)
        self.store.error = None
        self.writeBatch()
        self.assertEqual(self.writer.findings(), [])

    def test_stop(self) -> None:
        """At the end the remaining rows are written after the current batch, and the store is closed."""
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

    def test_stopAfterException(self) -> None:
        """The remaining rows are written, and the store is closed, even if the loop cannot be stopped."""
        self.writer.add([reading(1, 1)])
        self.patch(self.writer.loop, "stop", Mock(side_effect=ZeroDivisionError("simulated")))
        stopped = self.writer.stop()
        self.work()
        self.successResultOf(stopped)
        self.assertEqual(([len(batch) for batch in self.store.batches], self.store.isClosed), ([1], True))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)


class DiskTests(SynchronousTestCase):
    """Files of a store, and a store on a full disk, as reported by SQLite."""

    def test_otherUsers(self) -> None:
        """Other users cannot open the files, since a reader can lock them."""
        path: str = self.mktemp()
        self.addCleanup(os.umask, os.umask(0))
        for _ in range(2):
            store = HistoryStore(path)
            self.addCleanup(store.close)
            modes = [os.stat(f"{path}{end}").st_mode & 0o777 for end in ("", "-shm", "-wal")]
            self.assertEqual(modes, [0o660] * 3)

    def test_cannotBePrepared(self) -> None:
        """A database whose contents cannot be read is closed."""
        closed: list[SQLite] = []
        close = SQLite.close

        def closing(database: SQLite) -> None:
            closed.append(database)
            close(database)

        def prepare(*_values: object) -> None:
            raise ValueError("they are invalid")

        self.patch(EventTable, "prepare", prepare)
        self.patch(SQLite, "close", closing)
        error = self.assertRaises(HistoryRefused, HistoryStore, self.mktemp())
        self.assertIn("its contents are invalid: they are invalid", str(error))
        self.assertEqual(len(closed), 1)

    def test_damagedRows(self) -> None:
        """A history with numbers that cannot be right is refused."""
        for damage in ("ports VALUES (1, 4611686018427387904, 1)", "sizes VALUES ('readings_1', 9e999)"):
            path: str = self.mktemp()
            HistoryStore(path).close()
            with closing(connect(path)) as connection, connection:
                connection.execute(f"INSERT INTO {damage}")
            error = self.assertRaises(HistoryRefused, HistoryStore, path)
            self.assertIn("its contents are invalid", str(error))

    def test_damagedSchema(self) -> None:
        """A file that is damaged is refused, whatever it contains in place of the names of its tables."""
        path: str = self.mktemp()
        HistoryStore(path).close()
        content = Path(path).read_bytes()
        Path(path).write_bytes(content.replace(b"tableportsports", b"table\xadorts\xadorts"))
        self.assertRaises(HistoryRefused, HistoryStore, path)

    def test_notUnicode(self) -> None:
        """Texts that are not UTF-8, as another program may have written them, do not prevent reading."""
        path: str = self.mktemp()
        store = HistoryStore(path)
        store.append([FabricEvent(1.0, "node-came", "leaf", "it is there")])
        with store._transaction():
            store._database.execute("UPDATE events SET place = CAST(? AS TEXT)", b"le\xffaf")
        store.close()
        store = HistoryStore(path)
        self.addCleanup(store.close)
        self.assertEqual([one.where for one in store.changes()], ["le\\xffaf"])

    def test_paths(self) -> None:
        """Any path of a file is that of a history, which is written and then read."""
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        for path in (f"{folder}/a %41?b#c:&", f"/{folder}/b", f"{folder}/{os.fsdecode(bytes([255]))}"):
            HistoryStore(path).close()
            HistoryStore(path, isReader=True).close()
            self.assertTrue(os.path.getsize(path))

    def test_readerLeavesNothing(self) -> None:
        """A reader of an unused history leaves no files, which the monitor might be unable to open."""
        folder = Path(self.mktemp())
        folder.mkdir()
        HistoryStore(f"{folder}/history").close()
        reader = HistoryStore(f"{folder}/history", isReader=True)
        event = FabricEvent(1.0, "node-came", "a", "")
        self.assertRaises(DeviceUnavailable, reader.append, [event])
        self.assertEqual(reader.changes(), [])
        reader.close()
        self.assertEqual(os.listdir(folder), ["history"])

    def test_notHistory(self) -> None:
        """A file of another program is refused with the same reason, whether it is to be written or read."""
        path = Path(self.mktemp())
        path.write_bytes(b"of another program " * 1000)
        for isReader in (False, True):
            with self.assertRaisesRegex(HistoryRefused, "the file is damaged, or of another program"):
                HistoryStore(str(path), isReader=isReader)

    def test_replaced(self) -> None:
        """If the file is deleted or replaced while it is open, the history continues in that at its path."""
        path = Path(self.mktemp())
        store = HistoryStore(str(path))
        self.addCleanup(store.close)
        store.append([FabricEvent(1.0, "node-came", "a", "first")])
        other: str = self.mktemp()
        replacement = HistoryStore(other)
        replacement.append([FabricEvent(2.0, "node-came", "a", "second")])
        replacement.close()
        for end in ("-wal", "-shm"):
            os.unlink(f"{path}{end}")
        os.replace(other, path)
        with capturedLogs() as logs:
            self.assertEqual([one.text for one in store.changes()], ["second"])
        self.assertIn("deleted or replaced", formatEvent(logs[0]))
        for end in ("", "-wal", "-shm"):
            os.unlink(f"{path}{end}")
        store.append([FabricEvent(3.0, "node-came", "a", "third")])
        again = HistoryStore(str(path))
        self.addCleanup(again.close)
        self.assertEqual([one.text for one in again.changes()], ["third"])

    def test_movedAway(self) -> None:
        """A history whose folder is missing for a while continues when it is back."""
        folder = Path(self.mktemp())
        folder.mkdir()
        store = HistoryStore(str(folder / "history"))
        self.addCleanup(store.close)
        store.append([FabricEvent(1.0, "node-came", "a", "first")])
        away = folder.rename(self.mktemp())
        self.assertRaises(DeviceUnavailable, store.append, [FabricEvent(2.0, "node-came", "a", "lost")])
        away.rename(folder)
        store.append([FabricEvent(3.0, "node-came", "a", "second")])
        self.assertEqual([one.text for one in store.changes()], ["first", "second"])

    def test_backup(self) -> None:
        """A copy that VACUUM INTO makes while the history is written takes its place, and is continued."""
        path, copy = self.mktemp(), self.mktemp()
        store = HistoryStore(path)
        store.write([reading(600, 1)], 601, [FabricEvent(600.0, "node-gone", "leaf 1", "it is gone")])
        with closing(connect(path)) as connection:
            connection.execute("VACUUM INTO ?", (copy,))
        store.write([reading(610, 2)], 611, [FabricEvent(610.0, "node-came", "leaf 1", "it is there")])
        store.close()
        os.replace(copy, path)
        restored = HistoryStore(path)
        self.addCleanup(restored.close)
        restored.write([reading(620, 3)], 621)
        points = restored.series(PORT, "portXmitData", 0, 999, "readings")
        self.assertEqual([(one.at, one.grown) for one in points], [(600, 1), (620, 3)])
        self.assertEqual([one.text for one in restored.changes()], ["it is gone"])

    def test_full(self) -> None:
        """A batch that does not fit is not stored at all; writing continues when there is space."""
        store = HistoryStore(self.mktemp())
        self.addCleanup(store.close)
        portKey = (GUID(b"leaf0001"), 1)

        def rows(at: int) -> list[Row]:
            values = (1.0, *([at] * len(COUNTERS)), None, None)
            return [Row(portKey, at * 1000 + second, values) for second in range(500)]

        ((pages,),) = store._database.execute("PRAGMA page_count")
        store._database.execute(f"PRAGMA max_page_count = {pages + 40}")
        at = 0
        with self.assertRaises(DeviceUnavailable) as context:
            for at in range(1, 1000):
                store.write(rows(at), at * 1000 + 500)
        self.assertIn("full", str(context.exception))
        self.assertEqual(len(store.series(portKey, "portXmitPkts", 0, 1 << 40, "readings")), 500 * (at - 1))
        store._database.execute("PRAGMA max_page_count = 1000000")
        store.write(rows(at), at * 1000 + 500)
        self.assertEqual(len(store.series(portKey, "portXmitPkts", 0, 1 << 40, "readings")), 500 * at)

    def test_numbersAfterFailure(self) -> None:
        """A store whose transaction has failed reads the numbers of ports again before it uses them."""
        where, other = self.mktemp(), (GUID(b"another!"), 1)
        with closing(HistoryStore(where)) as store, closing(HistoryStore(where)) as another:
            with patch.object(EventTable, "append", side_effect=ZeroDivisionError):
                self.assertRaises(ZeroDivisionError, store.write, [reading(1000, 1, portKey=other)], 1000)
            another.write([reading(1000, 5)], 1000)
            self.assertEqual(store.series(other, "portXmitData", 0, 2000, "readings"), [])


class ConnectionTests(SynchronousTestCase):
    """Connections to PostgreSQL, which is not there."""

    def test_unreachable(self) -> None:
        """Connections end soon after the server's host has died, unless the URL has other limits."""
        needs("psycopg", "postgres")
        import psycopg

        connected: list[dict[str, Any]] = []

        def connect(**settings: Any) -> None:
            connected.append(settings)
            raise psycopg.OperationalError("it is not there")

        self.patch(psycopg, "connect", connect)
        url = "postgresql://a@db/x?keepalives_count=7"
        self.assertRaises(DeviceUnavailable, PostgreSQL(url).transaction().__enter__)
        self.assertRaises(DeviceUnavailable, leaseOf(url).attempt)
        for settings, most in zip(connected, (60, LEASE_SECONDS), strict=True):
            self.assertLessEqual(settings["keepalives_idle"], most)
            self.assertLessEqual(settings["tcp_user_timeout"], most * 1000)
            self.assertEqual(settings["keepalives_count"], "7")
