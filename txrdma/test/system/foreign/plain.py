"""
A suite as users write it, with servers and clients by endpoint strings and the usual clean-up of TCP.

The environment variable C{SCHEME} is C{tcp} or C{smc}.
"""

from __future__ import annotations

import os
from typing import Any, Final

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

SCHEME: Final = os.environ.get("SCHEME", "smc")

reactor: Any = theReactor


class Talker(Protocol):
    """Waits for a number of bytes, and for the end of its connection."""

    transport: Any

    def __init__(self, expected: int) -> None:
        self.made: Deferred[Talker] = Deferred()
        self.lost: Deferred[None] = Deferred()
        self.received: Deferred[None] = Deferred()
        self._missing = expected

    def connectionMade(self) -> None:
        self.made.callback(self)

    def dataReceived(self, data: bytes) -> None:
        self._missing -= len(data)
        if not self._missing:
            self.received.callback(None)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost.callback(None)


class TalkTests(TestCase):
    """Listen, connect, exchange data, and close, by either end and in each way."""

    timeout = 20

    async def talk(self, size: int, closer: str, close: str) -> None:
        server, client = Talker(size), Talker(size)
        factory = Factory.forProtocol(lambda: server)
        port = await serverFromString(reactor, f"{SCHEME}:0:interface=127.0.0.1").listen(factory)
        self.addCleanup(port.stopListening)
        endpoint = clientFromString(reactor, f"{SCHEME}:127.0.0.1:{port.getHost().port}")
        await connectProtocol(endpoint, client)
        await server.made
        for each in (server, client):
            each.transport.write(b"x" * size)
        await gatherResults([server.received, client.received])
        getattr((server if closer == "server" else client).transport, close)()
        await gatherResults([server.lost, client.lost])


class RemovingTests(TalkTests):
    """The same tests, each of which removes everything from the reactor at its end."""

    def setUp(self) -> None:
        self.addCleanup(reactor.removeAll)


def _add(size: int, closer: str, close: str) -> None:
    async def test(self: TalkTests) -> None:
        await self.talk(size, closer, close)

    setattr(TalkTests, f"test_{closer}_{close}_{size}", test)


for _size in (1, 1000, 100_000, 1_000_000, 10_000_000):
    for _closer in ("server", "client"):
        for _close in ("loseConnection", "abortConnection"):
            _add(_size, _closer, _close)
