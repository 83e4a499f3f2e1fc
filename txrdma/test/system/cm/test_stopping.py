"""
Message connections whose reactor stops, with the communication manager and the byte transfer layer.
"""

from __future__ import annotations

import subprocess

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.cm.stopping import COUNT
from txrdma.test.support.processes import loopbackAddress, started


class ProcessTests(SynchronousTestCase):
    """A server, and a client whose reactor stops, over each kind of connection at once."""

    slowBecause = "three pairs of processes start, and send megabytes"

    def setUp(self) -> None:
        one, two, here, there = (loopbackAddress() for _ in range(4))
        udp = r"device=soft\:{}\:route=rocev2"
        self.kinds = (
            (f"rdma:{two}:7471", f"rdma:{two}:7471:bindAddress={one}"),
            (f"rdma:7471:{udp.format(there)}", f"rdma:{there}:7471:{udp.format(here)}"),
            (f"btl:0:interface={there}:messages=yes", f"btl:{there}:{{}}:messages=yes"),
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return started(self, "-m", "txrdma.test.support.cm.stopping", *words)

    def check(self, how: str, output: str, received: str) -> None:
        """Play with each kind of connection; check the output of client and server."""
        for server, client, kind in self.pairs(how):
            self.assertEqual(client.communicate(timeout=60)[0], output, kind)
            assert server.stdout is not None
            self.assertEqual(server.stdout.readline(), received, kind)

    def pairs(self, how: str) -> list[tuple[subprocess.Popen[str], subprocess.Popen[str], str]]:
        """Return a server and a client for each kind of connection."""
        servers = [self.start("server", serving) for serving, _ in self.kinds]
        pairs = []
        for server, (_, connecting) in zip(servers, self.kinds, strict=True):
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            pairs.append((server, self.start(how, connecting.format(port)), connecting))
        return pairs

    def test_stops(self) -> None:
        """An end that sends and stops its reactor has delivered everything, and both ends report the end."""
        self.check("stops", "ConnectionDone\n", f"{COUNT} ConnectionDone\n")

    def test_closes(self) -> None:
        """An end that has closed before is not notified twice."""
        self.check("closes", "ConnectionDone\n", f"{COUNT} ConnectionDone\n")

    def test_produces(self) -> None:
        """An unfinished producer is stopped, and does not delay the end."""
        self.check("produces", "producer stopped\nConnectionDone\n", f"{COUNT} ConnectionDone\n")

    def test_waits(self) -> None:
        """A peer that receives nothing delays the end for a short time only."""
        for _, client, kind in self.pairs("waits"):
            self.assertEqual(client.communicate(timeout=60)[0], "ConnectionAborted\n", kind)
