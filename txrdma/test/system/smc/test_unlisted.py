"""
Attributes of Twisted's TCP ports and transports that programs use although no interface lists them.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.task import deferLater

import txrdma
from txrdma.test.support.processes import Program
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.testing.protocols import Echo, Greeter

ADOPTING = """
import sys
from socket import AF_INET
from twisted.internet import reactor
from twisted.internet.protocol import Factory, Protocol

class Greeter(Protocol):
    def connectionMade(self):
        self.transport.write(b"adopted")

reactor.adoptStreamPort(int(sys.argv[1]), AF_INET, Factory.forProtocol(Greeter))
print("listening", flush=True)
reactor.run()
"""


class PortTests(EndsTestCase):
    async def test_adopted(self) -> None:
        """Another process serves plain TCP on the port's descriptor, to clients of both kinds."""
        _, number, port = await self.listening(Greeter)
        process = Program()
        descriptor = port.fileno()
        above = {**os.environ, "PYTHONPATH": str(Path(txrdma.__file__).parent.parent)}
        words = [sys.executable, "-c", ADOPTING, str(descriptor)]
        descriptors: Any = {0: "w", 1: "r", 2: "r", descriptor: descriptor}
        reactor.spawnProcess(process, sys.executable, words, above, childFDs=descriptors)
        self.assertEqual(await process.line(), "listening")
        port.pauseProducing()  # so that the other process accepts
        try:
            for kind in ("tcp", "smc"):
                one = await self.connect(f"{kind}:127.0.0.1:{number}")
                self.assertEqual(await one.receiving(7), b"adopted")
        finally:
            await process.kill()

    async def test_pausedPortAcceptsNobodyUntilResumed(self) -> None:
        factory, number, port = await self.listening(Greeter)
        self.assertTrue(IPushProducer.providedBy(port))
        port.pauseProducing()
        connecting = Deferred.fromCoroutine(self.connect(f"tcp:127.0.0.1:{number}"))
        await deferLater(reactor, 0.02)
        self.assertEqual(factory.protocols, [])
        port.resumeProducing()
        waited = await connecting
        self.assertEqual(await waited.receiving(11), b"220 hello\r\n")
        after = await self.connect(f"smc:127.0.0.1:{number}")
        self.assertEqual(after.smc.mode, "SMC-R")

    async def test_socketOfPortIsListeningOne(self) -> None:
        _, number, port = await self.listening(Echo)
        self.assertEqual(port.socket.getsockname(), ("127.0.0.1", number))
        self.assertEqual(port.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN), 1)
        await port.stopListening()
        self.assertEqual(port.fileno(), -1)
