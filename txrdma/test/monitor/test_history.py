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
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.error import DeviceUnavailable
from txrdma.monitor.history import HistoryWriter
from txrdma.monitor.historystore import HistoryStore, Level, Remembered
from txrdma.monitor.rows import Row
from txrdma.test.monitor import storecontract
from txrdma.test.monitor.storecontract import reading, SHORT

WRITES = """
import sys
from txrdma.monitor.historystore import HistoryStore
from txrdma.test.monitor.storecontract import correction, reading
store = HistoryStore(sys.argv[1])
at = int(sys.argv[2])
while True:
    rows = [reading(second, 7) for second in range(at, at + 20)]
    store.write([*rows, correction(at + 19, 5)], at + 20)
    at += 20
    print(at, flush=True)
"""
"""A process that stores readings, and tells until when they are committed."""


class StoreTests(storecontract.StoreContract):
    """A store in a file of SQLite."""

    def where(self) -> str:
        path: str = self.mktemp()
        return path

    def test_bounded(self) -> None:
        """What is old is dropped, level by level, and its room is used again."""
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
        for _ in range(int(os.environ.get("TXRDMA_KILLS", "4"))):
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
            check = self.store._database.execute("PRAGMA integrity_check")
            self.assertEqual(check, [("ok",)])
            stored = [second for second, _count in self.sent(0, 10**9, "readings")]
            self.assertIn(stored[-1] + 1, (told[-1], told[-1] + 20))
            self.assertEqual(self.corrected(0, 10**9, "readings")[-1][0], stored[-1])
            minutes = self.sent(0, 10**9, "minutes")
            whole = (told[-1] - 30) // 60
            self.assertEqual(minutes[:whole], [(60 * minute, 420) for minute in range(whole)])
            blocks = [(at, grown) for at, _seconds, grown in self.corrected(0, 10**9, "minutes")]
            self.assertEqual(blocks[:whole], [(60 * minute, 15) for minute in range(whole)])
            at = stored[-1] + 1
            self.store.close()


class GenericStoreTests(storecontract.StoreContract):
    """The same in a file by way of SQLAlchemy, which has no need of a server."""

    if find_spec("sqlalchemy") is None:
        skip = "SQLAlchemy is not installed"

    def where(self) -> str:
        return f"sqlite:///{os.path.abspath(self.mktemp())}"

    def test_refused(self) -> None:
        """URLs that mean nothing, or need what is not there, are refused, without their passwords."""
        for url, why in (
            ("nonsense://host/x", "nonsense"),
            ("oracle+nodriver://joe:secret@host/x", "nodriver"),
            ("postgresql+psycopg2://joe:secret@127.0.0.1:1/x", ""),
        ):
            error = self.assertRaises(DeviceUnavailable, HistoryStore, url)
            self.assertIn(why, str(error))
            self.assertNotIn("secret", str(error))

    def test_notAHistory(self) -> None:
        """A database of something else is refused, and so is another version's."""
        for text in ("CREATE TABLE mine (a)", "CREATE TABLE history_version (version)"):
            path = os.path.abspath(self.mktemp())
            other = sqlite3.connect(path)
            other.execute(text)
            if "version" in text:
                other.execute("INSERT INTO history_version VALUES (99)")
            other.commit()
            other.close()
            self.assertRaises(DeviceUnavailable, HistoryStore, f"sqlite:///{path}")

    def test_notInstalled(self) -> None:
        """Without SQLAlchemy a URL is refused, with what to do."""
        program = (
            "import sys; sys.modules['sqlalchemy'] = None\n"
            "from txrdma.monitor.historystore import HistoryStore\n"
            "try: HistoryStore('postgresql://host/x')\n"
            "except Exception as error: print(type(error).__name__, error)"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(txrdma.__file__).parent.parent)}
        said = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
        self.assertIn("DeviceUnavailable", said)
        self.assertIn("pip install 'txrdma[postgres]'", said)


class FakeStore:
    """A store that can fail, and remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[Row]] = []
        self.error: Exception | None = None
        self.isClosed = False

    def write(self, rows: list[Row], now: int, remembered: list[Remembered]) -> int:
        if self.error is not None:
            raise self.error
        self.batches.append(rows)
        return 0

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
