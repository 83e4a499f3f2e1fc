"""
Connections for messages whose reactor stops, by the communication manager and by the byte transfer layer.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.test.support.cm.stopping import COUNT

CHECKOUT = Path(txrdma.__file__).parent.parent


class ProcessTests(SynchronousTestCase):
    """A server, and a client whose reactor stops, over each kind of connection."""

    def setUp(self) -> None:
        random = Random()
        here, there = (f"127.{'.'.join(str(random.randrange(2, 250)) for _ in range(3))}" for _ in range(2))
        udp = r"device=soft\:{}\:route=rocev2"
        self.kinds = (
            (f"rdma:{there}:7471", f"rdma:{there}:7471:bindAddress={here}"),
            (f"rdma:7471:{udp.format(there)}", f"rdma:{there}:7471:{udp.format(here)}"),
            (f"btl:0:interface={there}", f"btl:{there}:{{}}"),
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A process of a player."""
        command = [sys.executable, "-m", "txrdma.test.support.cm.stopping", *words]
        process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def check(self, how: str, said: str, heard: str) -> None:
        """Play with each kind of connection: what the client prints, and what the server."""
        for serving, connecting in self.kinds:
            server = self.start("server", serving)
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            client = self.start(how, connecting.format(port))
            self.assertEqual(client.communicate(timeout=60)[0], said, connecting)
            self.assertEqual(server.stdout.readline(), heard, connecting)
            server.kill()

    def test_stops(self) -> None:
        """Who sends and stops its reactor has sent all, and both ends hear of the end."""
        self.check("stops", "ConnectionDone\n", f"{COUNT} ConnectionDone\n")

    def test_closes(self) -> None:
        """Who closes before that does not end twice."""
        self.check("closes", "ConnectionDone\n", f"{COUNT} ConnectionDone\n")

    def test_produces(self) -> None:
        """A producer that is not done is told, and keeps nobody waiting."""
        self.check("produces", "producer stopped\nConnectionDone\n", f"{COUNT} ConnectionDone\n")

    def test_waits(self) -> None:
        """A peer that takes nothing does not keep the process for long."""
        for serving, connecting in self.kinds:
            server = self.start("server", serving)
            assert server.stdout is not None
            client = self.start("waits", connecting.format(server.stdout.readline().strip()))
            self.assertEqual(client.communicate(timeout=60)[0], "ConnectionAborted\n", connecting)
            server.kill()
