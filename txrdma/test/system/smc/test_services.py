"""
SMC-R between real processes, whose scheduling varies.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.trial.unittest import TestCase

from txrdma.smc.group.groups import closeLinkGroups

SERVE = """
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory
from twisted.protocols.wire import Echo

listening = serverFromString(reactor, "smc:0:interface=127.0.0.1").listen(Factory.forProtocol(Echo))
listening.addCallback(lambda port: print(port.getHost().port, flush=True))
reactor.run()
"""

CONNECT = """
import sys
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.internet.task import react

async def main(reactor, string):
    protocol = await connectProtocol(clientFromString(reactor, string), Protocol())
    print(protocol.transport.smc.mode)

react(main, sys.argv[1:])
"""


class ProcessTests(TestCase):
    slowBecause = "each test starts a server process"

    timeout = 60

    def setUp(self) -> None:
        self.addCleanup(closeLinkGroups, reactor)
        self.server = subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE)
        self.addCleanup(self._stop)
        assert self.server.stdout is not None
        port = int(self.server.stdout.readline())
        self.string = f"smc:127.0.0.1:{port}"

    def _stop(self) -> None:
        self.server.kill()
        self.server.wait()
        assert self.server.stdout is not None
        self.server.stdout.close()

    async def connect(self) -> str:
        """Return the mode of a new connection."""
        transport = (await connectProtocol(clientFromString(reactor, self.string), Protocol())).transport
        return str(cast(Any, transport).smc.mode)  # transports of smc: endpoints have it

    def test_firstContacts(self) -> None:
        """Processes that meet for the first time use SMC-R, whichever is faster at each step."""
        modes = []
        for _ in range(10):
            command = [sys.executable, "-c", CONNECT, self.string]
            done = subprocess.run(command, capture_output=True, text=True, timeout=50)
            modes.append(done.stdout + done.stderr)
        self.assertEqual(modes, ["SMC-R\n"] * 10)

    async def test_atOnce(self) -> None:
        """Connections that all begin before there is a link group use SMC-R."""
        modes = await gatherResults([Deferred.fromCoroutine(self.connect()) for _ in range(20)])
        self.assertEqual(modes, ["SMC-R"] * 20)
