"""
The proxy of C{twistd smc-proxy} over real sockets.
"""

from __future__ import annotations

import os
from typing import cast

from zope.interface import implementer

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import IListeningPort, IPushProducer, IStreamServerEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from txrdma.smc.group.groups import closeLinkGroups
from txrdma.tap.proxy import IStreamTransport, makeService, Options, ProxyService
from txrdma.test.support.smc.ends import reactor
from txrdma.testing.protocols import HalfCloseRecorder


@implementer(IPushProducer)
class Flood:
    """A push producer that writes until it is paused or stopped."""

    CHUNK = b"0123456789abcdef" * 4096

    def __init__(self, transport: IStreamTransport, total: int) -> None:
        self._transport = transport
        self._total = total
        self.written = 0
        self._running = True
        transport.registerProducer(self, True)
        self._turn()

    def _turn(self) -> None:
        while self._running and self.written < self._total:
            self._transport.write(self.CHUNK)
            self.written += len(self.CHUNK)
        if self.written >= self._total:
            self._transport.unregisterProducer()
            self._transport.loseWriteConnection()

    def pauseProducing(self) -> None:
        self._running = False

    def resumeProducing(self) -> None:
        self._running = True
        reactor.callLater(0, self._turn)

    def stopProducing(self) -> None:
        self._running = False


@implementer(IStreamServerEndpoint)
class Remembering:
    """An endpoint that records its listening port."""

    def __init__(self, endpoint: IStreamServerEndpoint) -> None:
        self._endpoint = endpoint
        self.listening: Deferred[int] = Deferred()

    def listen(self, factory: object) -> Deferred[IListeningPort]:
        def listens(port: IListeningPort) -> IListeningPort:
            self.listening.callback(cast(IPv4Address, port.getHost()).port)
            return port

        return self._endpoint.listen(factory).addCallback(listens)  # type: ignore[arg-type]


class ProxyTests(TestCase):
    """A proxy over real sockets, with plain TCP on both sides."""

    near = "tcp"
    far = "tcp"
    modes = {"plain": 2}

    async def start(self) -> tuple[HalfCloseRecorder, HalfCloseRecorder]:
        """Start a server, a proxy, and a client of the proxy; return both ends."""
        self.addCleanup(closeLinkGroups, reactor)
        servers: list[HalfCloseRecorder] = []

        def build() -> HalfCloseRecorder:
            servers.append(HalfCloseRecorder())
            return servers[-1]

        server = serverFromString(reactor, f"{self.far}:0:interface=127.0.0.1")
        self.serverPort: IListeningPort = await server.listen(Factory.forProtocol(build))
        self.addCleanup(self.serverPort.stopListening)
        proxy = Remembering(serverFromString(reactor, f"{self.near}:0:interface=127.0.0.1"))
        target = clientFromString(reactor, f"{self.far}:127.0.0.1:{self.serverPort.getHost().port}")
        self.service = ProxyService(reactor, proxy, target, "the server")
        self.service.startService()
        self.addCleanup(lambda: Deferred.fromCoroutine(self.stop()))
        self.port = await proxy.listening
        client = await self.connect()
        while not servers:
            await deferLater(reactor, 0.001)
        return client, servers[0]

    async def connect(self) -> HalfCloseRecorder:
        endpoint = clientFromString(reactor, f"{self.near}:127.0.0.1:{self.port}")
        return cast(HalfCloseRecorder, await endpoint.connect(Factory.forProtocol(HalfCloseRecorder)))

    async def stop(self) -> None:
        if self.service.running:
            await self.service.stopService()

    async def test_halfClose(self) -> None:
        """A server's answer that follows the end of the request arrives completely."""
        question, answer = os.urandom(3_000_000), os.urandom(2_000_000)
        client, server = await self.start()
        client.transport.write(question)
        client.transport.loseWriteConnection()
        await server.readEnded
        self.assertEqual(server.received, question)
        server.transport.write(answer)
        server.transport.loseConnection()
        await client.readEnded
        self.assertEqual(client.received, answer)
        client.transport.loseConnection()
        await client.lost
        await server.lost
        await self.stop()
        statistics = self.service.factory.statistics
        self.assertEqual(
            (statistics.accepted, statistics.failed, statistics.forwards, statistics.backwards),
            (1, 0, len(question), len(answer)),
        )
        self.assertEqual(statistics.modes, self.modes)

    async def test_backPressure(self) -> None:
        """A server that does not read pauses the client through the proxy; then everything arrives."""
        client, server = await self.start()
        server.transport.pauseProducing()
        total = 96 * 1024 * 1024
        flood = Flood(client.transport, total)
        written = -1
        while written != flood.written:
            written = flood.written
            await deferLater(reactor, 0.2)
        self.assertLess(written, total)
        server.transport.resumeProducing()
        await server.readEnded
        received = server.received
        self.assertEqual(len(received), total)
        self.assertEqual(received[-len(flood.CHUNK) :], flood.CHUNK)
        server.transport.loseConnection()
        client.transport.loseConnection()
        await client.lost
        await server.lost

    def test_cannotListen(self) -> None:
        """An address at which listening fails, and a port in use, end C{twistd} with one line."""
        options = Options()
        options.parseOptions(["--listen", "tcp:0:interface=192.0.2.1", "--connect", "tcp:127.0.0.1:1"])
        error = self.assertRaises(SystemExit, makeService(options).privilegedStartService)
        self.assertIn("smc-proxy: Couldn't listen on 192.0.2.1", str(error))
        self.assertIsInstance(error, Exception)  # others leave the PID file, and hang without -n

    async def test_shutdown(self) -> None:
        """Stopping the service closes live connections in order."""
        client, server = await self.start()
        client.transport.write(b"last words")
        while not server.received:
            await deferLater(reactor, 0.001)
        await self.stop()
        await server.readEnded
        self.assertEqual(server.received, b"last words")
        await client.readEnded
        self.assertEqual(client.received, b"")
        server.transport.loseConnection()
        client.transport.loseConnection()
        await client.lost
        await server.lost


class ProxyToSMCTests(ProxyTests):
    """A program without SMC-R reaches a service that supports it."""

    far = "smc"
    modes = {"plain": 1, "SMC-R": 1}


class ProxyFromSMCTests(ProxyTests):
    """A client with SMC-R reaches a service that lacks it."""

    near = "smc"
    modes = {"plain": 1, "SMC-R": 1}
