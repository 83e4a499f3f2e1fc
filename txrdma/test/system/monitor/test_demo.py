"""
The demonstration: its faults, and the command that serves it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import ProcessProtocol
from twisted.python.usage import UsageError
from twisted.trial.unittest import TestCase
from twisted.web.client import Agent, readBody

from txrdma.commands.demo_fabric import CommandOptions

reactor: Any = theReactor


class CommandTests(TestCase):
    """C{txrdma demo-fabric} in a separate process."""

    slowBecause = "starts the demonstration in a process"

    timeout = 120

    def test_hosts(self) -> None:
        """A number of hosts that does not fit a fat tree is refused."""
        for hosts in ("0", "1000000"):
            self.assertRaises(UsageError, CommandOptions().parseOptions, ["--hosts", hosts])

    def test_listen(self) -> None:
        """
        An address other than loopback is refused with the name of the option, because the page has no
        password.
        """
        for listen in ("nonsense", "tcp:0", "tcp:0:interface=0.0.0.0"):
            error = self.assertRaises(UsageError, CommandOptions().parseOptions, ["--listen", listen])
            self.assertIn(f"--listen {listen}: the demonstration is for this host alone", str(error))

    async def test_command(self) -> None:
        """It prints the address of its page, serves it, and ends with Ctrl-C, leaving no files."""
        process = _Demo()
        folder = self.mktemp()
        os.mkdir(folder)
        words = ["demo-fabric", "--hosts", "16", "--listen", "tcp:0:interface=127.0.0.1"]
        command = [sys.executable, "-c", "from txrdma.command import main; main()", *words]
        environment = {**os.environ, "TMPDIR": os.path.abspath(folder)}
        reactor.spawnProcess(process, sys.executable, command, environment)
        url = await process.url
        response: Any = await Agent(reactor).request(b"GET", url.encode())
        body = await readBody(response)
        self.assertEqual((response.code, b"Fabric monitor" in body), (200, True))
        assert process.transport is not None  # it is connected from its start on
        process.transport.signalProcess(signal.SIGINT)
        code = await process.ended
        self.assertEqual((code, os.listdir(folder)), (0, []))


class _Demo(ProcessProtocol):
    def __init__(self) -> None:
        self.url: Deferred[str] = Deferred()
        self.ended: Deferred[int | None] = Deferred()
        self._output = ""

    def outReceived(self, data: bytes) -> None:
        """Find the address of the page."""
        self._output += data.decode()
        if "http://" in self._output and not self.url.called:
            self.url.callback("http://" + self._output.partition("http://")[2].split()[0])

    def processEnded(self, reason: Any) -> None:
        """Report the status, also to a test that waits for the address."""
        self.ended.callback(reason.value.exitCode)
        if not self.url.called:
            self.url.errback(reason)
