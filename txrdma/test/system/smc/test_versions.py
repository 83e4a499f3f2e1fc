"""
Processes of one host with different versions of the layout of shared memory, as during an upgrade.
"""

from __future__ import annotations

import subprocess
import sys

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.support import CHECKOUT

LATER = """
import runpy, sys
from txrdma.soft.shared import _rendezvous, sharedmemoryport

_rendezvous.VERSION = sharedmemoryport.VERSION = _rendezvous.VERSION + 1
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Run a program as a release with the next version would run it."""


class VersionTests(SynchronousTestCase):
    """A server and a client, of which one has a later version."""

    slowBecause = "each end is a process"

    def converse(self, *versions: list[str]) -> str:
        """Run the example server and client, started with these words; return what the client prints."""
        server, client = (CHECKOUT / "examples" / name for name in ("server.py", "client.py"))
        if not server.exists():
            raise SkipTest("not a checkout")
        serving = [sys.executable, *versions[0], str(server), "smc:0:interface=127.0.0.1"]
        with subprocess.Popen(serving, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as running:
            try:
                assert running.stdout is not None
                port = running.stdout.readline().split()[-1]
                asking = [sys.executable, *versions[1], str(client), f"smc:127.0.0.1:{port}"]
                done = subprocess.run(asking, cwd=CHECKOUT, capture_output=True, text=True, timeout=120)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                return done.stdout
            finally:
                running.terminate()

    def test_clientWithLaterVersionUsesTCP(self) -> None:
        self.assertRegex(self.converse([], ["-c", LATER]), r"\Ahello\nby TCP, ")

    def test_serverWithLaterVersionUsesTCP(self) -> None:
        self.assertRegex(self.converse(["-c", LATER], []), r"\Ahello\nby TCP, ")

    def test_equalVersionsUseSharedMemory(self) -> None:
        self.assertIn("by SMC-R, shared-memory", self.converse(["-c", LATER], ["-c", LATER]))
