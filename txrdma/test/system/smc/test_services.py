"""
SMC-R between real processes, whose scheduling varies.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.trial.unittest import TestCase

from txrdma.smc.group.groups import closeLinkGroups
from txrdma.test.support.processes import printed, serving

SERVE = """
from twisted.protocols.wire import Echo
from txrdma.test.support.processes import serve

serve(Echo)
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
        with ExitStack() as stack:
            _, port = stack.enter_context(serving(SERVE, "smc:0:interface=127.0.0.1"))
            self.addCleanup(stack.pop_all().close)
        self.string = f"smc:127.0.0.1:{port}"

    async def connect(self) -> str:
        """Return the mode of a new connection."""
        transport = (await connectProtocol(clientFromString(reactor, self.string), Protocol())).transport
        return str(cast(Any, transport).smc.mode)  # transports of smc: endpoints have it

    def test_firstContacts(self) -> None:
        """Processes that meet for the first time use SMC-R, whichever is faster at each step."""
        modes = []
        for _ in range(10):
            done = printed(CONNECT, self.string)
            modes.append(done.stdout + done.stderr)
        self.assertEqual(modes, ["SMC-R\n"] * 10)

    async def test_atOnce(self) -> None:
        """Connections that all begin before there is a link group use SMC-R."""
        modes = await gatherResults([Deferred.fromCoroutine(self.connect()) for _ in range(20)])
        self.assertEqual(modes, ["SMC-R"] * 20)
