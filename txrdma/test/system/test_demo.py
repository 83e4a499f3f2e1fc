"""The demonstration as a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase


class DemonstrationTests(SynchronousTestCase):
    """The command with a small amount of data."""

    slowBecause = "the demonstration starts servers and clients for each transport"

    def setUp(self) -> None:
        self.scratch = Path(self.mktemp()).resolve()
        self.scratch.mkdir()
        self.environment = {**os.environ, "TMPDIR": str(self.scratch)}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "txrdma.demo", *arguments]

    def test_runs(self) -> None:
        """The command succeeds, shows both transports, and removes its files."""
        done = subprocess.run(
            self.command("--large", "2", "--files", "20"),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        for words in ("SMC-R", "shared-memory", "RDMA writes", "CDC messages", "p99", "CPU seconds per GB"):
            self.assertIn(words, done.stdout)
        self.assertNotIn("\r", done.stdout)
        self.assertEqual(list(self.scratch.iterdir()), [])

    def test_interrupted(self) -> None:
        """Ctrl-C ends the command and its processes immediately, and its files are removed."""
        with subprocess.Popen(
            self.command("--large", "2000"), env=self.environment, stdout=subprocess.PIPE
        ) as process:
            while not list(self.scratch.glob("*/files")):
                try:
                    self.fail(f"ended with {process.wait(0.01)}")
                except subprocess.TimeoutExpired:
                    pass
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(60), 130)
        self.assertEqual(list(self.scratch.iterdir()), [])

    def test_nonsense(self) -> None:
        """Invalid options are refused."""
        done = subprocess.run(self.command("--large", "0"), capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("1 or more", done.stderr)
