"""
Tests to be run by a trial of their own: the first one fails with live connections, and the others pass.

The string of the server's endpoint is in the environment variable C{SERVER}, that of the client, with C{%d}
in place of the port, in C{CLIENT}.
"""

from __future__ import annotations

import os
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.messages.protocol import MessageFactory


class Asking(Protocol):
    """Ask, and note the answer and the end."""

    def __init__(self) -> None:
        self.received: Deferred[bytes] = Deferred()
        self.ended: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.write(b"hello")

    def dataReceived(self, data: bytes) -> None:
        self.received.callback(data)

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008  # as Twisted's
        self.ended.callback(None)


class Answering(Protocol):
    """Send back what comes."""

    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


class MessageAsking(RDMAProtocol):
    """Ask by a message, and note the answer and the end."""

    def __init__(self) -> None:
        self.received: Deferred[bytes] = Deferred()
        self.ended: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        self.transport.sendMessage(b"hello")

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.received.callback(data)

    def connectionLost(self, reason: Failure) -> None:
        self.ended.callback(None)


class MessageAnswering(RDMAProtocol):
    """Send messages back."""

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.transport.sendMessage(data, immediate)


class LeftoverTests(TestCase):
    """Conversations between two endpoints of this process."""

    timeout = 10

    async def converse(self) -> tuple[Any, Any]:
        """A listening port, and a client that has had its answer."""
        here, there = os.environ["SERVER"], os.environ["CLIENT"]
        port: Any
        asking: Any
        answering: Any
        asked: Any
        if here.startswith("rdma:"):
            answering, asked = MessageFactory(MessageAnswering), MessageFactory(MessageAsking)
        else:
            answering, asked = Factory.forProtocol(Answering), Factory.forProtocol(Asking)
        port = await serverFromString(reactor, here).listen(answering)
        asking = await clientFromString(reactor, there % port.getHost().port).connect(asked)
        self.assertEqual(await asking.received, b"hello")
        return port, asking

    async def test_1(self) -> None:
        """This one fails, and leaves all open."""
        await self.converse()
        self.fail("as intended")

    async def usual(self) -> None:
        """A conversation that is ended in order."""
        port, asking = await self.converse()
        asking.transport.loseConnection()
        await asking.ended
        await port.stopListening()

    async def test_2(self) -> None:
        """The first one afterwards is clean."""
        await self.usual()

    async def test_3(self) -> None:
        """So is the next one."""
        await self.usual()
