"""
Connections between two processes, through software devices on loopback.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

from twisted.trial.unittest import TestCase

import txrdma

CHECKOUT = Path(txrdma.__file__).parent.parent


class ProcessTests(TestCase):
    """A server and a client, each with a reactor of its own."""

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A process of the player."""
        command = [sys.executable, "-m", "txrdma.test.cm.player", *words]
        process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_many(self) -> None:
        """A hundred connections are made and ended at once; both processes count them, and keep nothing."""
        random = Random()
        parts = [".".join(str(random.randrange(2, 250)) for _ in range(3)) for _ in range(2)]
        here, there = (f"127.{part}" for part in parts)
        server = self.start("server", there, here, "100")
        assert server.stdout is not None
        self.assertEqual(server.stdout.readline(), "listening\n")
        client = self.start("client", here, there, "100")
        for process in (client, server):
            said, _ = process.communicate(timeout=60)
            self.assertEqual((said, process.returncode), ("100 0\n", 0))
