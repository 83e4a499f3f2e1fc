"""
Connections between two processes, and the examples, with software devices on loopback.
"""

from __future__ import annotations

import re
import subprocess
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.btl.player import COUNT
from txrdma.test.support.processes import CHECKOUT, firstLine, started

LIMITED = """
import resource
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol

opened = serverFromString(reactor, "btl:127.0.0.1:0").listen(Factory.forProtocol(Protocol))
opened.addCallback(lambda port: print(port.getHost().port, flush=True))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
reactor.run()
"""

ASKING = """
import sys
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import react

def main(reactor, port):
    endpoint = clientFromString(reactor, f"btl:127.0.0.1:{port}")
    return endpoint.connect(Factory.forProtocol(Protocol)).addBoth(print)

react(main, sys.argv[1:])
"""


class ProcessTests(SynchronousTestCase):
    slowBecause = "two processes start, and send up to 50 MB"

    def play(
        self, role: str, interfaces: str = "", route: str = "auto"
    ) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
        """Run a server, and a client in a role, with these interfaces and this route."""
        module = ("-m", "txrdma.test.support.btl.player")
        server = started(self, *module, "server", "0", interfaces, route)
        return server, started(self, *module, role, firstLine(server), interfaces, route)

    def assertDelivered(self, count: int, *arguments: str) -> None:
        """Assert that a client in a role, which is the first argument, delivers this many messages."""
        server, client = self.play(*arguments)
        self.assertEqual(client.communicate(timeout=60)[0], "ConnectionDone\n")
        self.assertEqual(server.communicate(timeout=60)[0], f"{count} none ConnectionDone receive-buffer\n")

    def test_sendsAndExits(self) -> None:
        """A sender of 50 MB that closes and exits at once has delivered everything."""
        self.assertDelivered(COUNT, "sender")

    def test_byRDMA(self) -> None:
        """A sender of 50 MB that closes and exits at once has delivered everything without shared memory."""
        self.assertDelivered(COUNT, "sender", "", "rocev2")

    def test_busy(self) -> None:
        """A sender of 50 MB continues after its peer was busy."""
        self.assertDelivered(COUNT + 1, "patient")

    def test_severalModules(self) -> None:
        """A sender with two modules that closes and exits at once has delivered everything."""
        self.assertDelivered(COUNT, "sender", "127.0.0.1,127.0.0.2")

    def test_severalKilled(self) -> None:
        """A killed peer with two modules is reported quickly."""
        server, client = self.play("victim", "127.0.0.1,127.0.0.2")
        self.assertEqual(firstLine(client), "in the middle")
        client.kill()
        # On a busy machine the peer's receive buffer may come too late for the few messages.
        self.assertRegex(
            server.communicate(timeout=20)[0], r"^1 MessageFailed ConnectionLost (receive-buffer|packets)\n$"
        )

    def test_killed(self) -> None:
        """A killed peer is reported quickly, and the message fails."""
        server, client = self.play("victim")
        self.assertEqual(firstLine(client), "in the middle")
        client.kill()
        self.assertEqual(server.communicate(timeout=20)[0], "1 MessageFailed ConnectionLost receive-buffer\n")

    def test_noMemory(self) -> None:
        """A client can connect although the system refuses shared memory to the server."""
        server = started(self, "-c", LIMITED)
        client = started(self, "-c", ASKING, firstLine(server))
        self.assertRegex(client.communicate(timeout=60)[0], "Protocol object")

    def example(self, name: str) -> str:
        """Return the path of an example."""
        path = CHECKOUT / "examples" / name
        if not path.exists():
            raise SkipTest("not a checkout")
        return str(path)

    def test_allreduce(self) -> None:
        """The allreduce example sums arrays of three ranks like NumPy."""
        try:
            import numpy  # noqa: F401  # the example imports it
        except ImportError:
            raise SkipTest("NumPy is not installed") from None
        command = (self.example("allreduce.py"), "--elements", "20001", "--rounds", "2")
        output = started(self, "-m", "txrdma", "btl-run", "-n", "3", *command).communicate(timeout=100)[0]
        self.assertRegex(output, r"^3 ranks, 20001 elements: as NumPy has it, [0-9.]+ ms\nmpi4py")

    def test_amp(self) -> None:
        path = self.example("btl_amp.py")
        server = started(self, path, "server")
        port = firstLine(server).split()[-1]
        client = started(self, path, "client", port)
        self.assertEqual(client.communicate(timeout=60)[0], "94 by BTLTransport\n")

    def test_arrays(self) -> None:
        """Arrays are sent, received and squared, over shared memory and over UDP."""
        path = self.example("btl_arrays.py")
        for route in ("auto", "rocev2"):
            server = started(self, path, "server", "0", route)
            port = firstLine(server).split()[-1]
            client = started(self, path, "client", port, route)
            output = "squares 2.25 9.0\ntotal 504950.0 with 100 rows\n"
            self.assertEqual(client.communicate(timeout=60)[0], output)

    def test_ping(self) -> None:
        """C{txrdma btl-ping} measures with C{--server}, and fails without it."""
        server = started(self, "-m", "txrdma", "btl-ping", "--server", "-p", "0", "-I", "127.0.0.1")
        port = firstLine(server).split()[-1]
        words = ("-m", "txrdma", "btl-ping", "127.0.0.1", "-p", port, "-c", "3", "-i", "0.01")
        output = started(self, *words).communicate(timeout=60)[0]
        self.assertEqual(len(re.findall(r"^64 bytes from 127\.0\.0\.1: \d+ us$", output, re.M)), 3, output)
        asking = started(self, *words, "--json", "-s", "5000")
        self.assertIn('"pings": 3', asking.communicate(timeout=60)[0])
        nobody = started(self, "-m", "txrdma", "btl-ping", "127.0.0.1", "-p", "1")
        nobody.communicate(timeout=60)
        self.assertEqual(nobody.returncode, 1)

    def test_pingsOfEndedServer(self) -> None:
        """C{txrdma btl-ping} fails if the server ends between two pings."""
        server = started(self, "-m", "txrdma", "btl-ping", "--server", "-p", "0", "-I", "127.0.0.1")
        port = firstLine(server).split()[-1]
        client = started(self, "-m", "txrdma", "btl-ping", "127.0.0.1", "-p", port, "-c", "3", "-i", "2")
        firstLine(client)
        server.kill()
        client.communicate(timeout=60)
        self.assertEqual(client.returncode, 1)
