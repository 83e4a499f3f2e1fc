"""
C{txrdma rping} as a command.
"""

from __future__ import annotations

import subprocess

from twisted.python.usage import UsageError
from twisted.trial.unittest import TestCase

from txrdma.cm.rping import pingFor, textOf
from txrdma.command import TxrdmaOptions
from txrdma.test.support.processes import loopbackAddress, started


class CommandTests(TestCase):
    """C{txrdma rping}: two processes."""

    slowBecause = "starts processes"

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a process of the command."""
        return started(self, "-m", "txrdma", "rping", *words, stderr=subprocess.PIPE)

    def listening(self, *words: str) -> subprocess.Popen[str]:
        """Start a server, and wait until it listens."""
        server = self.start("-s", "-d", *words)
        assert server.stderr is not None
        self.assertIn("listening", server.stderr.readline())
        return server

    def test_sameAddress(self) -> None:
        """A client that knows only the address of a server on this host chooses its own address."""
        there = loopbackAddress()
        server = self.listening("-a", there)
        client = self.start("-c", "-a", there, "-C", "2", "-v")
        output, complaints = client.communicate(timeout=60)
        self.assertEqual((client.returncode, output.count("ping data"), complaints), (0, 2, ""))
        server.communicate(timeout=60)
        self.assertEqual(server.returncode, 0)

    def test_addressTaken(self) -> None:
        """A second server at the same address and port fails with an error that names the reason."""
        there = loopbackAddress()
        self.listening("-P", "-a", there)
        second = self.start("-s", "-a", there)
        output, complaints = second.communicate(timeout=60)
        self.assertEqual((second.returncode, output), (1, ""))
        self.assertIn(f"of {there} is in use by another program", complaints)

    def test_once(self) -> None:
        """A server for one client exits with it; both print the pings."""
        here, there = loopbackAddress(), loopbackAddress()
        server = self.listening("-a", there, "-v")
        client = self.start("-c", "-a", there, "-I", here, "-C", "3", "-S", "64", "-v", "-V")
        output, complaints = client.communicate(timeout=60)
        self.assertEqual((client.returncode, complaints), (0, ""))
        self.assertEqual(output, "".join(f"ping data: {textOf(pingFor(n, 64))}\n" for n in range(3)))
        reported, noted = server.communicate(timeout=60)
        self.assertEqual(server.returncode, 0)
        self.assertEqual(reported, "".join(f"server {line}\n" for line in output.splitlines()))
        self.assertIn(f"asked by {here}", noted)
        self.assertIn("disconnected after 3 pings", noted)

    def test_persistent(self) -> None:
        """A persistent server serves concurrent and consecutive clients, and exits on Ctrl-C."""
        there, *sources = (loopbackAddress() for _ in range(4))
        server = self.listening("-a", there, "-P")
        clients = [self.start("-c", "-a", there, "-I", each, "-C", "5", "-V") for each in sources]
        for client in clients:
            self.assertEqual(client.communicate(timeout=60)[1], "")
        again = self.start("-c", "-a", there, "-I", sources[0], "-C", "2")
        again.communicate(timeout=60)
        self.assertEqual(again.returncode, 0)
        server.terminate()
        self.assertIn("disconnected after 2 pings", server.communicate(timeout=60)[1])

    def test_rejected(self) -> None:
        """Without a listener at the port the client reports it."""
        here, there = loopbackAddress(), loopbackAddress()
        self.listening("-a", there)
        client = self.start("-c", "-a", there, "-I", here, "-p", "9", "-C", "1")
        _, complaints = client.communicate(timeout=60)
        self.assertEqual(client.returncode, 1)
        self.assertIn("INVALID_SERVICE_ID", complaints)

    def test_mistakes(self) -> None:
        """Invalid options are refused with a reason."""
        for words, reason in (
            ((), "-s for the server"),
            (("-s", "-c"), "-s for the server"),
            (("-c",), "-a"),
            (("-s", "-S", "65537"), "65536"),
            (("-s", "-p", "0"), "65535"),
        ):
            error = self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["rping", *words])
            self.assertIn(reason, str(error))

    def test_usualSize(self) -> None:
        """Pings have 64 bytes by default, which is the memory of librdmacm's server."""
        options = TxrdmaOptions()
        options.parseOptions(["rping", "-c", "-a", "127.0.0.1"])
        self.assertEqual(options.subOptions["size"], 64)
