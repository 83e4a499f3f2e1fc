"""
Message connections whose reactor stops, with the communication manager and the byte transfer layer.
"""

from __future__ import annotations

import subprocess

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.cm.stopping import COUNT
from txrdma.test.support.processes import firstLine, loopbackAddress, started


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

    def serve(self) -> list[tuple[subprocess.Popen[str], str]]:
        """Return a server, and the string of its clients, for each kind of connection."""
        servers = [self.start("server", serving) for serving, _ in self.kinds]
        ports = [firstLine(server) for server in servers]
        strings = [text.format(port) for (_, text), port in zip(self.kinds, ports, strict=True)]
        return list(zip(servers, strings, strict=True))

    def test_delivered(self) -> None:
        """
        An end that sends and stops its reactor has delivered everything, and both ends report the end. An end
        that has closed before is not notified twice. An unfinished producer is stopped, and does not delay
        the end.
        """
        servers = self.serve()
        for how, output in (("stops", ""), ("closes", ""), ("produces", "producer stopped\n")):
            clients = [self.start(how, text) for _, text in servers]
            for (server, text), client in zip(servers, clients, strict=True):
                self.assertEqual(client.communicate(timeout=60)[0], f"{output}ConnectionDone\n", (how, text))
                self.assertEqual(firstLine(server), f"{COUNT} ConnectionDone", (how, text))

    def test_waits(self) -> None:
        """A peer that receives nothing delays the end for a short time only."""
        clients = [(self.start("waits", text), text) for _, text in self.serve()]
        for client, text in clients:
            self.assertEqual(client.communicate(timeout=60)[0], "ConnectionAborted\n", text)
