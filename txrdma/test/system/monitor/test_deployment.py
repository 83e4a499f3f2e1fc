"""The unit for systemd, verified by systemd-analyze, and a real C{twistd} that sends notifications."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import txrdma

EXAMPLES = Path(txrdma.__file__).parent.parent / "examples" / "fabric-monitor"
PATIENCE_SECONDS = 60.0
WATCHDOG_SECONDS = 1.5

CONFIG = """
port = "sim:fattree:4"
web.listen = ""
poll.interval = 0.2
poll.notices = false
"""


class UnitTests(SynchronousTestCase):
    def setUp(self) -> None:
        if not EXAMPLES.exists():
            raise SkipTest("the examples are not here: this is not a checkout")

    def test_verified(self) -> None:
        analyze = shutil.which("systemd-analyze")
        if analyze is None:
            raise SkipTest("systemd-analyze is not here: apt-get install systemd")
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        text = (EXAMPLES / "fabric-monitor.service").read_text()
        self.assertIn("/opt/txrdma/bin/twistd", text)
        unit = folder / "fabric-monitor.service"
        unit.write_text(text.replace("/opt/txrdma/bin/twistd", sys.executable))
        done = subprocess.run(
            [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
        )
        ours = [line for line in done.stderr.splitlines() if "fabric-monitor" in line]
        self.assertEqual((done.returncode, ours), (0, []))
        unit.write_text(text.replace("WatchdogSec=60", "WatchdogSec=often"))
        done = subprocess.run(
            [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
        )
        self.assertIn("often", done.stderr)  # mistakes are detected


class NotifiedTests(SynchronousTestCase):
    """Notifications of a real C{twistd}, received like systemd."""

    slowBecause = "starts twistd in a process"

    def test_notified(self) -> None:
        """The process reports that it is ready, alive, reloading and stopping."""
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        (folder / "monitor.toml").write_text(CONFIG)
        name = f"@txrdma-deployment-{os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind("\0" + name[1:])
            listener.settimeout(PATIENCE_SECONDS)
            environment = {
                **os.environ,
                "PYTHONPATH": str(Path(txrdma.__file__).parent.parent),
                "NOTIFY_SOCKET": name,
                "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6)),
            }
            environment.pop("WATCHDOG_PID", None)
            words = ["--nodaemon", "--pidfile=", f"--logfile={folder / 'log'}", "fabric-monitor"]
            run = "from twisted.scripts.twistd import run; run()"
            program = subprocess.Popen(
                [sys.executable, "-c", run, *words, "--config", str(folder / "monitor.toml")],
                cwd=folder,
                env=environment,
            )
            try:
                self.until(listener, "READY=1\nSTATUS=5 nodes: all is well")
                self.until(listener, "WATCHDOG=1")
                program.send_signal(signal.SIGHUP)
                self.assertIn("\nMONOTONIC_USEC=", self.until(listener, "RELOADING=1"))
                self.until(listener, "READY=1")
                self.until(listener, "WATCHDOG=1")
                program.send_signal(signal.SIGTERM)
                self.until(listener, "STOPPING=1")
                self.assertIn(program.wait(PATIENCE_SECONDS), (0, -signal.SIGTERM))
            finally:
                program.kill()
                program.wait()

    def until(self, listener: socket.socket, beginning: str) -> str:
        """Receive notifications until one begins with this text."""
        while True:
            output = listener.recv(4096).decode()
            if output.startswith(beginning):
                return output
