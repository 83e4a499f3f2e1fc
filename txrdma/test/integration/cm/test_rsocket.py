"""
rsocket streams on a real reactor: both directions, back pressure, ends, half-closes, TLS, and leftovers.
"""

from __future__ import annotations

import errno
import os
import random
from hashlib import sha256
from typing import Any
from unittest.mock import Mock, patch

from twisted.internet import reactor as theReactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import (
    CannotListenError,
    ConnectError,
    ConnectingCancelledError,
    ConnectionDone,
    ConnectionLost,
    ConnectionRefusedError,
    NoRouteError,
)
from twisted.internet.task import deferLater

from txrdma.cm.connections import adapter as adapters
from txrdma.cm.connections.endpoints import RDMAClientEndpoint
from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.cm.errors import Rejected
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.processes import loopbackAddress
from txrdma.test.support.streaming import StreamCase, StreamContract
from txrdma.testing.protocols import Echo, HalfCloseRecorder, ProducerRecorder, Recorder, Recorders
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor


class SocketCase(StreamCase):
    """rsockets of two new devices."""

    timeout = 30
    more = ""

    def setUp(self) -> None:
        super().setUp()
        self.address, self.source = loopbackAddress(), loopbackAddress()

    def left(self) -> list[object]:
        """Return the adapters of the test's addresses that are still open."""
        return [
            key
            for key in adapters._adapters
            if any(each in str(key[1]) for each in (self.address, self.source))
        ]

    def device(self, address: str) -> str:
        """Return the key for a device at an address."""
        return rf":device=soft\:{address}{self.more}"

    def serverString(self) -> str:
        """Return the string of a server at any port of one of the addresses."""
        return f"rsocket:0{self.device(self.address)}"

    def clientString(self, port: int) -> str:
        """Return the string of a client of that server, from the other address."""
        return f"rsocket:{self.address}:{port}{self.device(self.source)}"


class SharedMemoryTests(StreamContract, SocketCase):
    """The software device's default route on one host."""

    async def test_bothWays(self) -> None:
        """A megabyte is sent in both directions at once, through small buffers with few messages."""

        class Patient(HalfCloseRecorder):
            def readConnectionLost(self) -> None:
                self.transport.loseConnection()

        client, server = await self.both(Patient, Patient, ":receives=16:rcvbuf=5000:sndbuf=3000")
        text = random.Random(3).randbytes(1_000_000)
        for each in (client, server):
            each.transport.write(text)
            each.transport.loseWriteConnection()
        for each in (client, server):
            await each.lost
            self.assertEqual(sha256(each.received).digest(), sha256(text).digest())
            self.assertIs(each.reason.type, ConnectionDone)

    async def test_portInUse(self) -> None:
        """The error of a port that is in use names the address."""
        await self.listen()
        port = self.ports[-1].getHost().port
        again = serverFromString(reactor, f"rsocket:{port}{self.device(self.address)}").listen(Recorders())
        error = await self.assertFailure(again, CannotListenError)
        self.assertIn(f"on soft:{self.address}", str(error))

    async def test_abortedWhilePaused(self) -> None:
        """Data that arrived before the peer's abort can be read afterwards."""
        client, server = await self.both()
        server.transport.pauseProducing()
        client.transport.write(bytes(50_000))
        await waitUntil(reactor, lambda: server.transport.stream._core.unread == 50_000)
        client.transport.abortConnection()
        await client.lost
        await deferLater(reactor, 0.1)
        server.transport.resumeProducing()
        await server.lost
        self.assertEqual(len(server.received), 50_000)
        self.assertIs(server.reason.type, ConnectionLost)

    async def test_producer(self) -> None:
        """A push producer is paused while the peer does not read, and resumed afterwards."""
        # Disables probes, which would resume a stalled stream.
        client, server = await self.both(keys=":keepalive=0")
        producer = ProducerRecorder(client.transport.unregisterProducer)
        server.transport.pauseProducing()
        client.transport.registerProducer(producer, True)
        client.transport.write(bytes(1_500_000))
        client.transport.loseConnection()
        await deferLater(reactor, 0.1)
        self.assertEqual(producer.calls, ["pause"])
        server.transport.resumeProducing()
        await client.lost
        await server.lost
        self.assertEqual((producer.calls, len(server.received)), (["pause", "resume"], 1_500_000))

    async def test_many(self) -> None:
        """Many concurrent connections each carry their own bytes."""
        factory = await self.listen(Echo)
        clients = [await self.connect() for _ in range(30)]
        for number, client in enumerate(clients):
            client.transport.write(b"%03d" % number * 1000)
        for number, client in enumerate(clients):
            self.assertEqual(await client.receiving(3000), b"%03d" % number * 1000)
            client.transport.loseConnection()
        for each in (*clients, *factory.protocols):
            await each.lost


class RoCETests(SharedMemoryTests):
    """By RoCE v2, over UDP."""

    more = r"\:route=rocev2"


class OpeningTests(SocketCase):
    async def test_cancelled(self) -> None:
        """An attempt that is cancelled fails as with TCP, immediately or when its protocol is connected."""

        class Cancelling(Recorder):
            def connectionMade(self) -> None:
                super().connectionMade()
                connecting.cancel()

        await self.listen()
        port = self.ports[-1].getHost().port
        factory = Recorders(Cancelling)
        for count in (0, 1):
            connecting = clientFromString(reactor, self.clientString(port)).connect(factory)
            if count == 0:
                connecting.cancel()
            error = await self.assertFailure(connecting, ConnectingCancelledError)
            self.assertEqual(error.address, IPv4Address("TCP", self.address, port))
            self.assertEqual(len(factory.protocols), count)
        await factory.protocols[0].lost

    async def test_refused(self) -> None:
        """Without a listener the error is that of TCP."""
        await self.listen()
        self.ports[0]._port._end()
        await self.assertFailure(Deferred.fromCoroutine(self.connect()), ConnectionRefusedError)

    async def test_noRoute(self) -> None:
        """A string for a host without a route is valid; connecting fails with TCP's error."""
        for error, expected in ((errno.ENETUNREACH, NoRouteError), (errno.EINVAL, ConnectError)):
            client = clientFromString(reactor, "rsocket:192.0.2.1:1")
            with patch("socket.socket.connect", Mock(side_effect=OSError(error, os.strerror(error)))):
                connecting = client.connect(Recorders())
            failure = await self.assertFailure(connecting, ConnectError)
            self.assertIs(type(failure), expected)
            self.assertIn("there is no route to 192.0.2.1", str(failure))

    async def test_name(self) -> None:
        """A string may name a host; C{localhost} is this one."""
        port = await serverFromString(reactor, "rsocket:0:interface=127.0.0.1").listen(Recorders(Echo))
        self.addCleanup(port.stopListening)
        number = port.getHost().port
        client = await clientFromString(reactor, f"rsocket:localhost:{number}").connect(Recorders())
        client.transport.write(b"hello")
        self.assertEqual(await client.receiving(5), b"hello")
        self.assertEqual(client.transport.getPeer(), IPv4Address("TCP", "127.0.0.1", number))
        client.transport.loseConnection()
        await client.lost

    async def test_noConnectionData(self) -> None:
        """A peer without connection data is rejected."""
        await self.listen()
        port = self.ports[0].getHost().port
        unknownPeer = RDMAClientEndpoint(reactor, self.address, port, f"soft:{self.source}")
        await self.assertFailure(unknownPeer.connect(MessageFactory(RDMAProtocol)), Rejected)

    async def test_strings(self) -> None:
        """An invalid string is refused with a reason."""
        for text in (
            "rsocket::1",
            "rsocket:127.0.0.1:0",
            "rsocket:127.0.0.1:1:sends=3",
            "rsocket:::1:x=1",
        ):
            self.assertRaises(ValueError, clientFromString, reactor, text)
        for text in ("rsocket:x", "rsocket:1:2:3", "rsocket:70000", "rsocket:1:rcvbuf=none"):
            self.assertRaises(ValueError, serverFromString, reactor, text)
