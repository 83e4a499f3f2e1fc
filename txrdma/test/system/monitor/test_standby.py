"""Two monitors in processes, with one history: when one is killed or suspended, the other one reports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twisted.python.filepath import FilePath
from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.kit.lease import LEASE_TABLE
from txrdma.kit.passwords import PasswordHash
from txrdma.test.support.monitor.pair import CUT
from txrdma.test.support.monitor.postgres import sharedServer, why

CONFIG = """
[web]
listen = "unix:{folder}/{host}"
users = "{folder}/users"

[history]
{history}
standby = true

[poll]
interval = 4
sweep = 10
settle = 0.1
survey = 0
notices = false

[alerts]
delay = 0.1
group = 0
log = '{folder}/log'
"""
LOGIN = {"Authorization": "Basic " + b64encode(b"alice:right one").decode()}
PATIENCE_SECONDS = 60.0
ROOT = FilePath(txrdma.__file__).parent().parent().path


class Monitor:
    """A monitor in a process."""

    def __init__(self, folder: str, host: str, history: str) -> None:
        self.path = f"{folder}/{host}"
        config = f"{self.path}.toml"
        Path(config).write_text(CONFIG.format(folder=folder, host=host, history=history))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "txrdma.test.support.monitor.pair", config, host], cwd=ROOT
        )

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the body of a page; 0 while the monitor does not listen."""
        return self.ask("GET", path)

    def acknowledge(self, identity: str) -> int:
        """Acknowledge a finding; return the status of the answer."""
        return self.ask("POST", f"/api/v1/findings/{identity}", json.dumps({"action": "acknowledge"}))[0]

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        connection = HTTPConnection("localhost", timeout=PATIENCE_SECONDS)
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.connect(self.path)
            heads = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, body, {**LOGIN, **heads})
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def isReady(self) -> bool:
        return self.get("/readyz")[0] == 200

    def isStandby(self) -> bool:
        return self.get("/readyz") == (503, "standby\n")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class PairTests(SynchronousTestCase):
    """Two processes with a history in a file."""

    slowBecause = "starts processes, and waits for the end of a lease"

    def setUp(self) -> None:
        temporary = TemporaryDirectory()  # names of sockets are short
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name
        users = Path(self.folder, "users")
        users.write_text(f"alice:{PasswordHash.of(b'right one', 4)}:operator\n")
        users.chmod(0o600)
        self.history = self.historyIn(self.folder)
        self.first = self.started("h00000")
        self.until(self.first.isReady)
        self.second = self.started("h00001")
        self.until(self.second.isStandby)

    def historyIn(self, folder: str) -> str:
        return f"file = '{folder}/history.db'"

    def expire(self) -> None:
        """End the lease of a killed monitor, as time does; that of a file has ended with its process."""

    def stopped(self) -> None:
        """Called when the active monitor has received a signal; C{continues}, when it was replaced."""

    continues = stopped

    def started(self, host: str) -> Monitor:
        monitor = Monitor(self.folder, host, self.history)
        self.addCleanup(monitor.end)
        return monitor

    def until(self, isTrue: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not isTrue():
            self.assertLess(time.monotonic(), end, isTrue)
            time.sleep(0.05)

    def sent(self) -> list[dict[str, str]]:
        log = Path(self.folder) / "log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def replaced(self, number: int) -> None:
        """Send the active monitor a signal; the other one reports a fault of that time."""
        self.until(lambda: "infiniband_" in self.first.get("/metrics")[1])
        self.assertNotIn("infiniband_", self.second.get("/metrics")[1])
        os.kill(self.first.process.pid, number)
        os.waitid(os.P_PID, self.first.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.stopped()
        os.kill(self.second.process.pid, signal.SIGUSR1)
        self.until(self.second.isReady)
        self.continues()
        self.until(lambda: any(one["where"].startswith(CUT) for one in self.sent()))
        self.assertIn("infiniband_", self.second.get("/metrics")[1])

    def test_killed(self) -> None:
        """The standby reports for a killed monitor, which is the standby when it is started again."""
        self.replaced(signal.SIGKILL)
        self.first.process.wait()
        first = self.started("h00000")
        self.until(first.isStandby)
        self.assertTrue(self.second.isReady())
        ids = [one["id"] for one in self.sent()]
        self.assertEqual(len(ids), len(set(ids)))

    def test_acknowledged(self) -> None:
        """The standby of a killed monitor knows what an operator has acknowledged, and does not send it."""
        for monitor in (self.first, self.second):
            os.kill(monitor.process.pid, signal.SIGUSR1)
        self.until(self.sent)
        (found,) = json.loads(self.first.get("/api/v1/findings?isOpen=true")[1])["rows"]
        self.assertEqual(self.first.acknowledge(found["id"]), 200)
        self.first.end()
        self.expire()
        self.until(self.second.isReady)
        path = f"/api/v1/findings/{found['id']}"
        self.until(lambda: self.second.get(path)[0] == 200)
        row = json.loads(self.second.get(path)[1])
        self.assertEqual((row["isOpen"], row["acknowledgedBy"]), (True, "alice"))
        self.assertEqual(len(self.sent()), 1)


class PostgresPairTests(PairTests):
    """Two processes with a history in PostgreSQL."""

    if why():
        skip = why()

    def historyIn(self, folder: str) -> str:
        self.url = sharedServer().newURL()
        return f"url = '{self.url}'"

    def executed(self, statement: str) -> Any:
        """Execute a statement; return the first value of its result, if there is one."""
        import psycopg

        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchone()[0] if cursor.description else None  # type: ignore[index]  # it has a row

    def expire(self) -> None:
        self.executed(f"UPDATE {LEASE_TABLE} SET expires = 0")

    def stopped(self) -> None:
        self.expires = self.executed(f"SELECT expires FROM {LEASE_TABLE}")

    def continues(self) -> None:
        self.assertGreater(self.executed("SELECT extract(epoch FROM clock_timestamp())"), self.expires)

    def test_killed(self) -> None:
        """The standby reports for a monitor that was killed, not before its lease has expired."""
        self.replaced(signal.SIGKILL)

    def test_suspended(self) -> None:
        """The standby reports for a monitor that was suspended, which is the standby when it continues."""
        self.replaced(signal.SIGSTOP)
        before = self.sent()
        os.kill(self.first.process.pid, signal.SIGCONT)
        self.until(self.first.isStandby)
        self.assertTrue(self.second.isReady())
        self.assertEqual(self.sent(), before)
