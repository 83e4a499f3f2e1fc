"""
Connections between two processes, over software devices on loopback.
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
    """A server and a client, each in its own process."""

    slowBecause = "two processes start, and wait for queue pairs to migrate"

    def start(self, module: str, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", f"txrdma.test.support.cm.{module}", *words]
        process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def addresses(self, count: int) -> list[str]:
        """Return loopback addresses that are probably unused."""
        random = Random()
        return [f"127.{'.'.join(str(random.randrange(2, 250)) for _ in range(3))}" for _ in range(count)]

    def test_migration(self) -> None:
        """Data continues when the active path fails, and again on a path that was loaded meanwhile."""
        mebibytes = "12"
        addresses = self.addresses(4)
        here, there = ",".join(addresses[:2]), ",".join(addresses[2:])
        server = self.start("migrating", "server", there, here, mebibytes)
        assert server.stdout is not None
        self.assertEqual(server.stdout.readline(), "listening\n")
        client = self.start("migrating", "client", here, there, mebibytes)
        output = [process.communicate(timeout=100)[0].split() for process in (client, server)]
        self.assertEqual(output[0], output[1])
        length, _hash, migrations, end = output[0]
        self.assertGreaterEqual(int(length), int(mebibytes) << 20)
        self.assertGreaterEqual(int(migrations), 2)  # on a busy machine queue pairs may migrate by themselves
        self.assertEqual(end, "ConnectionDone")

    def test_many(self) -> None:
        """A hundred concurrent connections are counted by both processes, and leave nothing."""
        here, there = self.addresses(2)
        server = self.start("player", "server", there, here, "100")
        assert server.stdout is not None
        self.assertEqual(server.stdout.readline(), "listening\n")
        client = self.start("player", "client", here, there, "100")
        for process in (client, server):
            output, _ = process.communicate(timeout=60)
            self.assertEqual((output, process.returncode), ("100 0\n", 0))

    def test_datagrams(self) -> None:
        """A client finds a datagram service and gets an answer to each request, in spite of losses."""
        here, there = self.addresses(2)
        server = self.start("datagramplayer", "server", there, here, "300")
        assert server.stdout is not None
        self.assertEqual(server.stdout.readline(), "listening\n")
        client = self.start("datagramplayer", "client", here, there, "300")
        self.assertEqual(client.communicate(timeout=60)[0], "welcome\n300\n")
        self.assertEqual(server.communicate(timeout=60)[0], "True\n")
