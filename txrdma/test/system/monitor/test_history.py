"""The history's stores, also after a kill and with a full disk."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.series.database import SQLite
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.level import Level
from txrdma.test.support.monitor import storecontract
from txrdma.test.support.monitor.storecontract import PORT, reading, SHORT
from txrdma.test.support.processes import printed, started

WRITES = """
import sys
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.test.support.monitor.storecontract import correction, reading
store = HistoryStore(sys.argv[1])
at = int(sys.argv[2])
while True:
    rows = [reading(second, 7) for second in range(at, at + 20)]
    store.write([*rows, correction(at + 19, 5)], at + 20)
    at += 20
    print(at, flush=True)
"""
"""A process that stores readings, and prints up to which one they are committed."""

_FULL_DISK = """
import resource, sys
from functools import partial
from twisted.internet.defer import Deferred
from twisted.internet.task import react
from txrdma.test.support.monitor.service import attachedLater
limit, (_soft, hard) = resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(limit, (0, hard))
written = attachedLater(sys.argv[1], partial(resource.setrlimit, limit, (hard, hard)))
react(lambda _: Deferred.fromCoroutine(written).addCallback(print))
"""
"""A monitor that starts while nothing can be written."""


class FullDiskTests(SynchronousTestCase):
    slowBecause = "it starts a process"

    def places(self, path: str) -> str:
        """Return the location of each change found by a monitor that has started with a full disk."""
        program = printed(_FULL_DISK, os.path.abspath(path))
        self.assertEqual(program.returncode, 0, program)
        return program.stdout

    def test_fullDisk(self) -> None:
        """A monitor starts with a full disk (a limit of the file size), and attaches the history later."""
        path = self.mktemp()
        store = HistoryStore(path)
        store.append([FabricEvent(1.0, "node-came", "a", "it is there")])
        store.close()
        self.assertIn("'a'", self.places(path))

    def test_upgrade(self) -> None:
        """A history of version 1 that cannot be migrated, as the disk is full, is migrated later."""
        path = self.mktemp()
        with closing(sqlite3.connect(path)) as database:
            database.executescript((storecontract.HISTORIES / "version1.sqlite.sql").read_text())
        self.assertEqual(self.places(path).count("0000:0000:0020:0000"), 4)


class StoreTests(storecontract.StoreContract):
    slowBecause = "writes weeks of readings, and kills processes that write"

    def where(self) -> str:
        path: str = self.mktemp()
        return path

    def load(self, version: int) -> None:
        with closing(sqlite3.connect(self.path)) as database:
            database.executescript(self.statements("version1.sqlite.sql"))

    def test_rollUp(self) -> None:
        """The sums of an hour read the rows of that hour, not those of the day before it."""
        steps = []
        for begin in (0, 22 * 3600):
            self.path = self.where()
            store = self.opened()
            store.write([], 600)
            ports = [(PORT[0], number) for number in range(20)]
            for at in range(begin, 23 * 3600, 60):
                rows = [reading(at, 1, portKey=port) for port in ports]
                store.write(rows, at + 60)
            count: list[int] = []
            database = store._database
            assert isinstance(database, SQLite)
            database._connection.set_progress_handler(partial(count.append, 0), 100)
            store.write([], 23 * 3600 + 600)
            steps.append(len(count))
            self.assertEqual(
                store.series(ports[3], "portXmitData", 22 * 3600, 23 * 3600, "hours")[0].grown, 60
            )
        self.assertLess(steps[0], 1.2 * steps[1])

    def test_bounded(self) -> None:
        """Old rows are deleted, level by level, and their space is reused."""
        self.store.close()
        self.store = self.opened(*SHORT)
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

    def test_notAStore(self) -> None:
        """A file that is not a history is refused and not changed."""
        path = self.mktemp()
        Path(path).write_bytes(b"something else" * 100)
        self.assertRaises(DeviceUnavailable, HistoryStore, path)
        self.assertEqual(Path(path).read_bytes(), b"something else" * 100)
        version = "CREATE TABLE history_version (version); INSERT INTO history_version VALUES (99)"
        for text in ("CREATE TABLE mine (a)", "PRAGMA user_version = 99", version):
            path = os.path.abspath(self.mktemp())
            with closing(sqlite3.connect(path)) as other:
                other.executescript(text)
            for where in (path, f"sqlite:///{path}"):
                self.assertRaises(DeviceUnavailable, HistoryStore, where)
        self.assertRaises(DeviceUnavailable, HistoryStore, "/nowhere/at/all")

    def test_killed(self) -> None:
        """After each kill the file is intact, and contains every batch that was reported as written."""
        self.store.close()
        random = Random(6)
        at = 0
        for _ in range(int(os.environ.get("TXRDMA_KILLS", "2"))):
            program = started(self, "-c", WRITES, os.path.abspath(self.path), str(at))
            assert program.stdout is not None
            first = program.stdout.readline()
            time.sleep(random.uniform(0.0, 0.1))  # the time of the kill; a batch takes less
            program.send_signal(signal.SIGKILL)
            reported = [int(line) for line in (first, *program.stdout) if line.endswith("\n")]
            program.wait()
            before = self.contents()
            reader = self.opened(isReader=True)
            read = reader.series(PORT, "portXmitData", 0, 10**9, "readings")
            reader.close()
            self.assertEqual(self.contents(), before)  # a reader has written neither the file nor its log
            self.store = self.opened()
            self.assertEqual([(point.at, point.grown) for point in read], self.sent(0, 10**9, "readings"))
            self.assertEqual(self.store._database.execute("PRAGMA integrity_check"), [("ok",)])
            stored = [second for second, _count in self.sent(0, 10**9, "readings")]
            self.assertIn(stored[-1] + 1, (reported[-1], reported[-1] + 20))
            self.assertEqual(self.corrected(0, 10**9, "readings")[-1][0], stored[-1])
            minutes = self.sent(0, 10**9, "minutes")
            whole = (reported[-1] - 30) // 60
            self.assertEqual(minutes[:whole], [(60 * minute, 420) for minute in range(whole)])
            blocks = [(at, grown) for at, _seconds, grown in self.corrected(0, 10**9, "minutes")]
            self.assertEqual(blocks[:whole], [(60 * minute, 15) for minute in range(whole)])
            at = stored[-1] + 1
            self.store.close()

    def contents(self) -> list[bytes]:
        """Return the contents of the file, and those of its log of transactions."""
        return [Path(self.path + name).read_bytes() for name in ("", "-wal")]


class URLTests(SynchronousTestCase):
    slowBecause = "starts a process"

    def test_sqlite(self) -> None:
        """A file that version 1 has written through SQLAlchemy is continued, by its URL or its path."""
        path = os.path.abspath(self.mktemp())
        with closing(sqlite3.connect(path)) as database:
            database.executescript((storecontract.HISTORIES / "version1.sqlalchemy.sql").read_text())
        for where in (f"sqlite:///{path}", path):
            store = HistoryStore(where)
            self.addCleanup(store.close)
            points = store.series(PORT, "portXmitData", 0, 9999, "hours")
            self.assertEqual([(point.at, point.grown) for point in points], [(0, 756)])

    def test_refused(self) -> None:
        """Invalid URLs, and those of other databases, are refused without showing their passwords."""
        for url, why in (
            ("nonsense://host/x", "nonsense"),
            ("oracle+nodriver://joe:secret@host/x", "nodriver"),
            ("postgresql+psycopg2://joe:secret@127.0.0.1:1/x", ""),
            ("postgresql://joe:secret@host/x?secret=3", ""),
        ):
            error = self.assertRaises(DeviceUnavailable, HistoryStore, url)
            self.assertIn(why, str(error))
            self.assertNotIn("secret", str(error).replace("?secret=3", ""))

    def test_notInstalled(self) -> None:
        output = printed(
            "import sys; sys.modules['psycopg'] = None\n"
            "from txrdma.monitor.series.historystore import HistoryStore\n"
            "try: HistoryStore('postgresql://host/x')\n"
            "except Exception as error: print(type(error).__name__, error)"
        ).stdout
        self.assertIn("HistoryRefused", output)
        self.assertIn("pip install 'txrdma[postgres]'", output)
