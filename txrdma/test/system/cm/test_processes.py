"""
A connection between two processes, over software devices on loopback.
"""

from __future__ import annotations

import subprocess

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import loopbackAddress, started


class ProcessTests(SynchronousTestCase):
    """A server and a client, each in its own process."""

    slowBecause = "two processes start, and wait for queue pairs to migrate"
    MEBIBYTES = 12

    def start(self, role: str, *addresses: str) -> subprocess.Popen[str]:
        module = "txrdma.test.support.cm.migrating"
        return started(self, "-m", module, role, *addresses, str(self.MEBIBYTES))

    def test_migration(self) -> None:
        """Data continues when the active path fails, and again on a path that was loaded meanwhile."""
        addresses = [loopbackAddress() for _ in range(4)]
        here, there = ",".join(addresses[:2]), ",".join(addresses[2:])
        server = self.start("server", there, here)
        assert server.stdout is not None
        self.assertEqual(server.stdout.readline(), "listening\n")
        client = self.start("client", here, there)
        output = [process.communicate(timeout=100)[0].split() for process in (client, server)]
        self.assertEqual(output[0], output[1])
        length, _hash, migrations, end = output[0]
        self.assertGreaterEqual(int(length), self.MEBIBYTES << 20)
        self.assertGreaterEqual(int(migrations), 2)  # on a busy machine queue pairs may migrate by themselves
        self.assertEqual(end, "ConnectionDone")
