"""Servers and clients of C{txrdma verify} whose peers do not follow the rules."""

from __future__ import annotations

from io import StringIO
from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import connectProtocol, TCP4ClientEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from txrdma.error import WireError
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.testing.protocols import Greeter, HalfCloseRecorder, ProducerRecorder, Recorder
from txrdma.verify import serving
from txrdma.verify.checks import Reporter
from txrdma.verify.measuring import LimitedRecorder, MeasuringClient, MOST_RECEIVED
from txrdma.verify.serving import ECHO, MessageService, StreamService

_MUCH = 48 << 20
"""More bytes than the kernel buffers in both directions of a connection."""

_MANY = 20_000
"""More messages than both ends of a connection queue."""


class RealReactorCase(TestCase):
    """A connection of TCP on the real reactor."""

    async def connected(self, server: Any, client: Any) -> Any:
        from twisted.internet import reactor

        self.reactor: Any = reactor
        factory: Any = Factory.forProtocol(server)
        port: Any = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        endpoint = TCP4ClientEndpoint(self.reactor, "127.0.0.1", port.getHost().port)
        protocol = await connectProtocol(endpoint, client)
        self.addCleanup(lambda: protocol.lost)
        self.addCleanup(protocol.transport.abortConnection)
        return protocol

    def later(self, seconds: float) -> Deferred[None]:
        return deferLater(self.reactor, seconds)


class StreamServiceTests(RealReactorCase):
    async def test_noReader(self) -> None:
        """The server stops reading while its client does not read; then it echoes everything, and ends."""
        client = await self.connected(lambda: StreamService(set()), HalfCloseRecorder())
        waiting = client.transport
        waiting.pauseProducing()
        waiting.write(ECHO + bytes(_MUCH))
        waiting.loseWriteConnection()
        await self.later(0.5)
        self.assertFalse(client.writeEnded.called)
        waiting.resumeProducing()
        await client.readEnded
        self.assertEqual(len(client.received), _MUCH)

    async def test_most(self) -> None:
        """A connection above the limit is closed, and one that ends makes room for another."""
        self.patch(serving, "MOST_CONNECTIONS", 1)
        connections: set[Any] = set()

        async def connected() -> Any:
            return await self.connected(lambda: StreamService(connections), Recorder())

        async def echoed(client: Any) -> None:
            client.transport.write(ECHO + b"data")
            await client.receiving(4)

        first, second = await connected(), await connected()
        await second.lost
        await echoed(first)
        first.transport.loseConnection()
        while connections:
            await self.later(0)
        await echoed(await connected())


class ClientTests(RealReactorCase):
    async def test_endless(self) -> None:
        """The client aborts a connection on which the server sends more than an offer or an echo."""

        class Endless(Greeter):
            greeting = bytes(4 * MOST_RECEIVED)

        client = await self.connected(Endless, LimitedRecorder())
        await client.lost
        self.assertLessEqual(len(client.received), MOST_RECEIVED)

    async def test_silent(self) -> None:
        """The client waits for an offer as long as for a check, then closes the connection."""
        from twisted.internet import reactor

        silent = Recorder()
        factory: Any = Factory.forProtocol(lambda: silent)
        port: Any = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        client = MeasuringClient(reactor, Reporter(StringIO()), Mock(), "127.0.0.1", 0.0, patience=0.01)
        with self.assertRaisesRegex(WireError, "has not sent it in 0.2 s"):
            await client.run(port.getHost().port)
        await silent.lost


class MessageServiceTests(MessagingCase):
    def test_noReader(self) -> None:
        """The server receives no messages while its client receives none; then it echoes all of them."""
        self.serve(MessageFactory(lambda: MessageService(set())))
        client = self.result(self.ask())
        transport = client.transport
        transport.pauseProducing()
        producer = ProducerRecorder()
        transport.registerProducer(producer, True)
        sent = 0
        while sent < _MANY and producer.calls[-1:] != ["pause"]:
            transport.sendMessage(b"", sent)
            sent += 1
            if producer.calls[-1:] == ["pause"]:
                self.pause(1.0)
        self.assertLess(sent, _MANY)
        transport.resumeProducing()
        self.wait(lambda: len(client.messages) == sent)
        self.assertEqual(client.messages, [(b"", number) for number in range(sent)])
        transport.unregisterProducer()
        transport.loseConnection()
        self.wait(lambda: client.lost)
        self.assertNothingLeft()
