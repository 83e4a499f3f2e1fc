"""
The proxy of C{twistd smc-proxy}: in memory, over real sockets, and as the real program.
"""

from __future__ import annotations

import os
import re
import sys
from typing import cast

from zope.interface import implementer

from twisted.application.service import IService, IServiceMaker
from twisted.internet import reactor as installedReactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import ConnectionDone, ConnectionLost, ConnectionRefusedError
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IListeningPort,
    IProtocol,
    IPushProducer,
    IReactorProcess,
    IReactorTCP,
    IReactorTime,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import connectionDone, Factory, ProcessProtocol, Protocol
from twisted.internet.task import deferLater
from twisted.internet.testing import StringTransport
from twisted.logger import globalLogPublisher, ILogObserver, LogEvent
from twisted.plugin import getPlugins
from twisted.python.failure import Failure
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase, TestCase

from txrdma.smc.group.groups import closeLinkGroups
from txrdma.tap.proxy import IStreamTransport, makeService, Options, ProxyFactory, ProxyService


class _Reactor(IReactorTime, IReactorTCP, IReactorProcess):
    """What these tests ask of it."""


reactor = cast(_Reactor, installedReactor)


class MemoryTransport(StringTransport):
    """Remembers how it was ended, and takes producers as TCP does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def loseConnection(self) -> None:
        self.calls.append("lose")

    def abortConnection(self) -> None:
        self.calls.append("abort")

    def loseWriteConnection(self) -> None:
        self.calls.append("loseWrite")


@implementer(IStreamClientEndpoint)
class WaitingEndpoint:
    """Connects when told."""

    def __init__(self) -> None:
        self.cancelled = 0

    def connect(self, factory: object) -> Deferred[IProtocol]:
        self.factory = cast(Factory, factory)
        self.result: Deferred[IProtocol] = Deferred(self._cancel)
        return self.result

    def _cancel(self, _: object) -> None:
        self.cancelled += 1

    def succeed(self) -> MemoryTransport:
        """Now there is a connection."""
        protocol = self.factory.buildProtocol(None)
        assert protocol is not None
        transport = MemoryTransport()
        protocol.makeConnection(transport)
        self.result.callback(protocol)
        return transport


class PairTests(SynchronousTestCase):
    """Two connections, without sockets."""

    def setUp(self) -> None:
        self.target = WaitingEndpoint()
        self.factory = ProxyFactory(self.target, "smc:there:1")
        near = self.factory.buildProtocol(None)
        assert isinstance(near, Protocol)
        self.nearTransport = MemoryTransport()
        near.makeConnection(self.nearTransport)
        [self.pair] = self.factory.pairs

    def connect(self) -> None:
        self.farTransport = self.target.succeed()

    def test_waitsForTheTarget(self) -> None:
        """Nothing is read before there is somebody to pass it on to."""
        self.assertEqual(self.nearTransport.producerState, "paused")
        self.connect()
        self.assertEqual(self.nearTransport.producerState, "producing")

    def test_bothWays(self) -> None:
        """Bytes go both ways and are counted."""
        self.connect()
        self.pair.near.dataReceived(b"question")
        self.pair.far.dataReceived(b"an answer")
        self.assertEqual(self.farTransport.value(), b"question")
        self.assertEqual(self.nearTransport.value(), b"an answer")
        self.end(self.pair.near, ConnectionLost())
        self.end(self.pair.far, ConnectionDone())
        self.assertEqual((self.factory.statistics.forwards, self.factory.statistics.backwards), (8, 9))

    def end(self, side: Protocol, reason: Exception) -> None:
        side.connectionLost(Failure(reason))

    def test_backPressure(self) -> None:
        """Each transport is the producer of the other: who can't write any more stops the other's reading."""
        self.connect()
        for transport, other in (
            (self.nearTransport, self.farTransport),
            (self.farTransport, self.nearTransport),
        ):
            self.assertIs(transport.producer, other)
            assert transport.producer is not None
            transport.producer.pauseProducing()
            self.assertEqual(other.producerState, "paused")
            transport.producer.resumeProducing()
            self.assertEqual(other.producerState, "producing")

    def test_halfClose(self) -> None:
        """The end of one direction is passed on; the other direction goes on, and both ends end it all."""
        self.connect()
        self.pair.near.readConnectionLost()
        self.assertEqual(self.farTransport.calls, ["loseWrite"])
        self.assertEqual(self.nearTransport.calls, [])
        self.pair.far.dataReceived(b"late answer")
        self.assertEqual(self.nearTransport.value(), b"late answer")
        self.pair.far.readConnectionLost()
        self.assertEqual(self.nearTransport.calls, ["lose"])
        self.assertEqual(self.farTransport.calls, ["loseWrite", "lose"])

    def test_abort(self) -> None:
        """A connection that breaks breaks the other one, too."""
        self.connect()
        self.end(self.pair.far, ConnectionLost())
        self.assertEqual(self.nearTransport.calls, ["abort"])
        self.assertIs(self.nearTransport.producer, None)

    def test_cleanEnd(self) -> None:
        """A connection that ends in good order lets the other one finish its writing."""
        self.connect()
        self.end(self.pair.near, ConnectionDone())
        self.assertEqual(self.farTransport.calls, ["lose"])

    def test_refused(self) -> None:
        """A target that can't be reached is logged, counted, and the connection ends."""
        seen: list[LogEvent] = []

        @implementer(ILogObserver)
        def observer(event: LogEvent) -> None:
            seen.append(event)

        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        self.target.result.errback(ConnectionRefusedError())
        self.assertEqual(self.nearTransport.calls, ["abort"])
        self.assertEqual(self.factory.statistics.failed, 1)
        [event] = [event for event in seen if event["log_namespace"] == "txrdma.tap.proxy"]
        self.assertEqual(event["target"], "smc:there:1")
        self.end(self.pair.near, ConnectionLost())
        self.assertEqual(self.factory.pairs, set())

    def test_goneBeforeTheTarget(self) -> None:
        """When the client goes away, the attempt to connect is given up."""
        self.end(self.pair.near, ConnectionLost())
        self.assertEqual(self.target.cancelled, 1)
        self.assertEqual(self.factory.pairs, set())
        self.assertEqual(self.factory.statistics.failed, 0)


class OptionsTests(SynchronousTestCase):
    """The command line."""

    def refusal(self, *arguments: str) -> str:
        return str(self.assertRaises(UsageError, Options().parseOptions, list(arguments)))

    def test_mistakes(self) -> None:
        """Every mistake in a string is a usage error that names the option and the string."""
        good = ("--connect", "tcp:localhost:80")
        self.assertIn("--listen is missing", self.refusal(*good))
        self.assertIn("--connect is missing", self.refusal("--listen", "tcp:0"))
        self.assertIn("--listen tcp:http", self.refusal("--listen", "tcp:http", *good))
        self.assertIn("--listen nonsense:1", self.refusal("--listen", "nonsense:1", *good))
        self.assertIn("--connect tcp:a", self.refusal("--listen", "tcp:0", "--connect", "tcp:a"))
        self.assertIn("--connect smc:a:b", self.refusal("--listen", "tcp:0", "--connect", "smc:a:b"))
        self.assertIn("--listen smc:0:color=red", self.refusal("--listen", "smc:0:color=red", *good))

    def test_service(self) -> None:
        """Good strings make a service."""
        options = Options()
        options.parseOptions(["--listen", "tcp:0", "-c", "tcp:localhost:80"])
        self.assertTrue(IService.providedBy(makeService(options)))

    def test_plugin(self) -> None:
        """twistd knows the service."""
        names = {getattr(maker, "tapname", None) for maker in getPlugins(IServiceMaker)}
        self.assertIn("smc-proxy", names)


@implementer(IHalfCloseableProtocol)
class Gathering(Protocol):
    """Gathers what comes until that direction ends."""

    transport: IStreamTransport

    def __init__(self) -> None:
        self.heard = bytearray()
        self.made: Deferred[None] = Deferred()
        self.read: Deferred[bytes] = Deferred()
        self.gone: Deferred[BaseException | None] = Deferred()

    def connectionMade(self) -> None:
        self.made.callback(None)

    def dataReceived(self, data: bytes) -> None:
        self.heard += data

    def readConnectionLost(self) -> None:
        self.read.callback(bytes(self.heard))

    def writeConnectionLost(self) -> None:
        pass

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.gone.callback(reason.value)


@implementer(IPushProducer)
class Flood:
    """A push producer that writes until told to stop."""

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
    """Tells the port that was opened."""

    def __init__(self, endpoint: IStreamServerEndpoint) -> None:
        self._endpoint = endpoint
        self.listening: Deferred[int] = Deferred()

    def listen(self, factory: object) -> Deferred[IListeningPort]:
        def listens(port: IListeningPort) -> IListeningPort:
            self.listening.callback(cast(IPv4Address, port.getHost()).port)
            return port

        return self._endpoint.listen(factory).addCallback(listens)  # type: ignore[arg-type]


class ProxyTests(TestCase):
    """A proxy over real sockets; here all of it is plain TCP."""

    near = "tcp"
    far = "tcp"
    modes = {"plain": 2}

    async def start(self) -> tuple[Gathering, Gathering]:
        """A server, a proxy before it, and a client of the proxy: both ends."""
        self.addCleanup(closeLinkGroups, reactor)
        servers: list[Gathering] = []

        def build() -> Gathering:
            servers.append(Gathering())
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

    async def connect(self) -> Gathering:
        endpoint = clientFromString(reactor, f"{self.near}:127.0.0.1:{self.port}")
        return cast(Gathering, await endpoint.connect(Factory.forProtocol(Gathering)))

    async def stop(self) -> None:
        if self.service.running:
            await self.service.stopService()

    async def test_halfClose(self) -> None:
        """A server that answers after the end of the question is heard whole."""
        question, answer = os.urandom(3_000_000), os.urandom(2_000_000)
        client, server = await self.start()
        client.transport.write(question)
        client.transport.loseWriteConnection()
        self.assertEqual(await server.read, question)
        server.transport.write(answer)
        server.transport.loseConnection()
        self.assertEqual(await client.read, answer)
        client.transport.loseConnection()
        await client.gone
        await server.gone
        await self.stop()
        statistics = self.service.factory.statistics
        self.assertEqual(
            (statistics.accepted, statistics.failed, statistics.forwards, statistics.backwards),
            (1, 0, len(question), len(answer)),
        )
        self.assertEqual(statistics.modes, self.modes)

    async def test_backPressure(self) -> None:
        """A server that does not read stops the client, through the proxy; then everything arrives."""
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
        heard = await server.read
        self.assertEqual(len(heard), total)
        self.assertEqual(heard[-len(flood.CHUNK) :], flood.CHUNK)
        server.transport.loseConnection()
        client.transport.loseConnection()
        await client.gone
        await server.gone

    async def test_abort(self) -> None:
        """A connection that is aborted on one side ends as a loss on the other."""
        client, server = await self.start()
        client.transport.abortConnection()
        self.assertNotIsInstance(await server.gone, ConnectionDone)
        await client.gone

    async def test_refused(self) -> None:
        """When the server has gone, clients of the proxy see their connections end."""
        client, server = await self.start()
        await maybeDeferred(self.serverPort.stopListening)
        late = await self.connect()
        await late.gone
        self.assertEqual(self.service.factory.statistics.failed, 1)
        client.transport.loseConnection()
        server.transport.loseConnection()
        await client.gone
        await server.gone

    async def test_shutdown(self) -> None:
        """Stopping the service ends live connections in good order."""
        client, server = await self.start()
        client.transport.write(b"last words")
        while not server.heard:
            await deferLater(reactor, 0.001)
        await self.stop()
        self.assertEqual(await server.read, b"last words")
        self.assertEqual(await client.read, b"")
        server.transport.loseConnection()
        client.transport.loseConnection()
        await client.gone
        await server.gone


class ProxyToSMCTests(ProxyTests):
    """A program without SMC-R reaches a service that has it."""

    far = "smc"
    modes = {"plain": 1, "SMC-R": 1}


class ProxyFromSMCTests(ProxyTests):
    """A service without SMC-R is reached by a client that has it."""

    near = "smc"
    modes = {"plain": 1, "SMC-R": 1}


class Twistd(ProcessProtocol):
    """A C{twistd} that runs until the end of a test."""

    def __init__(self, *arguments: str) -> None:
        self.output = ""
        self.listening: Deferred[int] = Deferred()
        self.ended: Deferred[None] = Deferred()
        command = [sys.executable, "-m", "twisted", "--log-format=text", *arguments]
        self.process = reactor.spawnProcess(self, command[0], command, os.environ)

    def outReceived(self, data: bytes) -> None:
        self.output += data.decode()
        found = re.search(r"starting on (\d+)", self.output)
        if found and not self.listening.called:
            self.listening.callback(int(found[1]))

    errReceived = outReceived

    def processEnded(self, reason: Failure) -> None:
        if not self.listening.called:
            self.listening.errback(RuntimeError(self.output))
        self.ended.callback(None)

    async def stop(self) -> str:
        """End it as an administrator does."""
        if not self.ended.called:
            self.process.signalProcess("TERM")
        await self.ended
        return self.output


class ProcessTests(TestCase):
    """The program itself, twice in a row: C{tcp} to C{smc} to C{tcp}."""

    timeout = 60

    async def test_chain(self) -> None:
        """A plain client and a plain server talk through two proxies, with SMC-R between them."""
        heard = Gathering()
        server = serverFromString(reactor, "tcp:0:interface=127.0.0.1")
        serverPort = await server.listen(Factory.forProtocol(lambda: heard))
        self.addCleanup(serverPort.stopListening)
        target = f"tcp:127.0.0.1:{serverPort.getHost().port}"
        far = Twistd("smc-proxy", "--listen", "smc:127.0.0.1:0", "--connect", target)
        self.addCleanup(lambda: Deferred.fromCoroutine(far.stop()))
        middle = await far.listening
        near = Twistd(
            "smc-proxy", "--listen", "tcp:0:interface=127.0.0.1", "--connect", f"smc:127.0.0.1:{middle}"
        )
        self.addCleanup(lambda: Deferred.fromCoroutine(near.stop()))
        endpoint = clientFromString(reactor, f"tcp:127.0.0.1:{await near.listening}")
        client = cast(Gathering, await endpoint.connect(Factory.forProtocol(Gathering)))
        question = os.urandom(5_000_000)
        client.transport.write(question)
        client.transport.loseWriteConnection()
        self.assertEqual(await heard.read, question)
        heard.transport.write(b"thanks")
        heard.transport.loseConnection()
        self.assertEqual(await client.read, b"thanks")
        client.transport.loseConnection()
        for output in (await near.stop(), await far.stop()):
            self.assertIn("1 connections accepted, 0 not passed on", output)
            self.assertIn("5000000 bytes forwards, 6 bytes back; 1 SMC-R, 1 plain", output)
