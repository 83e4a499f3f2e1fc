"""
The history's stores, also after a kill and with a full disk.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from random import Random

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.error import DeviceUnavailable
from txrdma.monitor.series.historystore import HistoryStore, Level
from txrdma.test.support.monitor import storecontract
from txrdma.test.support.monitor.storecontract import reading, SHORT

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
from txrdma.error import DeviceUnavailable
from txrdma.monitor.config import parseConfig
from txrdma.tap.monitor import MonitorService
from twisted.internet import reactor
_soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
text = 'port = "sim:fattree:4"\\n[web]\\nlisten = ""\\n[history]\\nfile = "%s"'
service = MonitorService(reactor, parseConfig(text % sys.argv[1]))
store = service._writer._store
try:
    store.remember([("room", "other", "value")])
except DeviceUnavailable:
    refused = "refused"
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print(refused)
print(store.remembered("room"))
"""
"""A monitor that starts while nothing can be written."""


class FullDiskTests(SynchronousTestCase):
    """A monitor on a full disk."""

    slowBecause = "it starts a process"

    def test_fullDisk(self) -> None:
        """
        A monitor starts with a full disk (here a limit of the file size) and attaches the history later.
        """
        path = self.mktemp()
        store = HistoryStore(path)
        store.remember([("room", "name", "value")])
        store.close()
        environment = {**os.environ, "PYTHONPATH": str(Path(txrdma.__file__).parent.parent)}
        program = subprocess.run(
            *([sys.executable, "-c", _FULL_DISK, path],),
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        self.assertEqual((program.stdout, program.returncode), ("refused\n[('name', 'value')]\n", 0), program)


class StoreTests(storecontract.StoreContract):
    """A store in an SQLite file."""

    slowBecause = "writes weeks of readings, and kills processes that write"

    def where(self) -> str:
        path: str = self.mktemp()
        return path

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
        for text in ("CREATE TABLE mine (a)", "PRAGMA user_version = 99"):
            path = self.mktemp()
            other = sqlite3.connect(path)
            other.execute(text)
            other.commit()
            other.close()
            self.assertRaises(DeviceUnavailable, HistoryStore, path)
        self.assertRaises(DeviceUnavailable, HistoryStore, "/nowhere/at/all")

    def test_killed(self) -> None:
        """
        After each of several kills the file is intact and contains every batch that was reported as written.
        """
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
            reported = [int(line) for line in (first, *program.stdout) if line.endswith("\n")]
            program.stdout.close()
            program.wait()
            self.store = self.opened()
            check = self.store._database.execute("PRAGMA integrity_check")
            self.assertEqual(check, [("ok",)])
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


class GenericStoreTests(storecontract.StoreContract):
    """The same in a file through SQLAlchemy."""

    slowBecause = "writes weeks of readings through SQLAlchemy"

    if find_spec("sqlalchemy") is None:
        skip = "SQLAlchemy is not installed"

    def where(self) -> str:
        return f"sqlite:///{os.path.abspath(self.mktemp())}"

    def test_refused(self) -> None:
        """Invalid URLs, and those whose driver is missing, are refused without showing their passwords."""
        for url, why in (
            ("nonsense://host/x", "nonsense"),
            ("oracle+nodriver://joe:secret@host/x", "nodriver"),
            ("postgresql+psycopg2://joe:secret@127.0.0.1:1/x", ""),
        ):
            error = self.assertRaises(DeviceUnavailable, HistoryStore, url)
            self.assertIn(why, str(error))
            self.assertNotIn("secret", str(error))

    def test_notAHistory(self) -> None:
        """A database that is not a history, or of another version, is refused."""
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
        """Without SQLAlchemy a URL is refused with advice."""
        program = (
            "import sys; sys.modules['sqlalchemy'] = None\n"
            "from txrdma.monitor.series.historystore import HistoryStore\n"
            "try: HistoryStore('postgresql://host/x')\n"
            "except Exception as error: print(type(error).__name__, error)"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(txrdma.__file__).parent.parent)}
        output = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
        self.assertIn("HistoryRefused", output)
        self.assertIn("pip install 'txrdma[postgres]'", output)
