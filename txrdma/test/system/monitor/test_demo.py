"""The demonstration: its faults, and the command that serves it."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.python.usage import UsageError
from twisted.trial.unittest import TestCase
from twisted.web.client import Agent, readBody

from txrdma.commands.demo_fabric import CommandOptions
from txrdma.test.support.processes import Program

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
        """An address other than loopback is refused with the option's name, as the page has no password."""
        for listen in ("nonsense", "tcp:0", "tcp:0:interface=0.0.0.0"):
            error = self.assertRaises(UsageError, CommandOptions().parseOptions, ["--listen", listen])
            self.assertIn(f"--listen {listen}: the demonstration is for this host alone", str(error))

    async def test_command(self) -> None:
        """The command prints the address of its page, serves it, and ends with Ctrl-C, leaving no files."""
        folder = f"{self.mktemp()}'s"
        os.mkdir(folder)
        words = ["demo-fabric", "--hosts", "16", "--listen", "tcp:0:interface=127.0.0.1"]
        command = [sys.executable, "-c", "from txrdma.command import main; main()", *words]
        process = Program.start(self, *command, TMPDIR=os.path.abspath(folder))
        while "http://" not in (line := await process.line()):
            pass
        url = "http://" + line.partition("http://")[2].split()[0]
        response: Any = await Agent(reactor).request(b"GET", url.encode())
        body = await readBody(response)
        self.assertEqual((response.code, b"Fabric monitor" in body), (200, True))
        process.transport.signalProcess(signal.SIGINT)
        await process.ended
        self.assertEqual((process.status, os.listdir(folder)), (130, []))
