"""
Tests for a separate trial process: the first one fails with live connections, and the others pass.

The string of the server's endpoint is in the environment variable C{SERVER}, that of the client, with C{%d}
in place of the port, in C{CLIENT}.
"""

from __future__ import annotations

import os
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.messages.protocol import MessageFactory
from txrdma.testing.protocols import Echo, Recorder


class Asking(Recorder):
    """Sends a request, and records the answer."""

    greeting = b"hello"


class MessageAsking(RDMAProtocol):
    """Sends a request as a message, and records the answer and the end."""

    def __init__(self) -> None:
        self.received: Deferred[bytes] = Deferred()
        self.lost: Deferred[None] = Deferred()

    def receiving(self, length: int) -> Deferred[bytes]:
        """Return a Deferred that fires with the answer."""
        return self.received

    def connectionMade(self) -> None:
        self.transport.sendMessage(b"hello")

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.received.callback(data)

    def connectionLost(self, reason: Failure) -> None:
        self.lost.callback(None)


class MessageAnswering(RDMAProtocol):
    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.transport.sendMessage(data, immediate)


class LeftoverTests(TestCase):
    """Conversations between two endpoints of this process."""

    timeout = 10

    async def converse(self) -> tuple[Any, Any]:
        """Return a listening port, and a client that has received its answer."""
        here, there = os.environ["SERVER"], os.environ["CLIENT"]
        port: Any
        asking: Any
        answering: Any
        asked: Any
        if here.startswith("rdma:"):
            answering, asked = MessageFactory(MessageAnswering), MessageFactory(MessageAsking)
        else:
            answering, asked = Factory.forProtocol(Echo), Factory.forProtocol(Asking)
        port = await serverFromString(reactor, here).listen(answering)
        asking = await clientFromString(reactor, there % port.getHost().port).connect(asked)
        self.assertEqual(await asking.receiving(5), b"hello")
        return port, asking

    async def test_1(self) -> None:
        """Fail, and leave everything open."""
        await self.converse()
        self.fail("as intended")

    async def usual(self) -> None:
        """Hold a conversation that ends in order."""
        port, asking = await self.converse()
        asking.transport.loseConnection()
        await asking.lost
        await port.stopListening()

    async def test_2(self) -> None:
        """The test after the failed one passes."""
        await self.usual()

    async def test_3(self) -> None:
        """Later tests pass as well."""
        await self.usual()
