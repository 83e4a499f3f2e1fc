"""
Streams of any kind by endpoint strings on the real reactor: a server, its clients, and what remains of them.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from zope.interface.verify import verifyObject

from twisted.internet import reactor as theReactor
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost, NoProtocol
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from txrdma.testing.protocols import Echo, HalfCloseRecorder, Recorder, Recorders

reactor: Any = theReactor


def _refuse(addr: object) -> Any:
    """Return no protocol, as a factory that refuses a connection."""
    return None


_MOST_POLLS = 200
_CHECK_SECONDS = 0.01


class Halves(HalfCloseRecorder):
    """Half-closes, and answers after the peer's half-close."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[str] = []

    def readConnectionLost(self) -> None:
        self.ends.append("read")
        self.transport.write(b"received %d" % len(self.received))
        self.transport.loseConnection()

    def writeConnectionLost(self) -> None:
        self.ends.append("write")


class Raising(Recorder):
    """Raises when it is connected."""

    def connectionMade(self) -> None:
        super().connectionMade()
        raise ZeroDivisionError


class Named(Recorder):
    """Has a custom log prefix."""

    def logPrefix(self) -> str:
        return "a name"


class Unnamed(Recorder):
    """Raises when it is asked for its log prefix."""

    def logPrefix(self) -> str:
        raise ZeroDivisionError


class StreamCase(TestCase):
    """A server and a client; after both have ended, nothing of them remains."""

    def setUp(self) -> None:
        self.ports: list[Any] = []
        self.addCleanup(self._finish)

    async def _finish(self) -> None:
        for port in self.ports:
            await port.stopListening()
        for _ in range(_MOST_POLLS):
            if not self.left():
                break
            await deferLater(reactor, _CHECK_SECONDS)
        self.assertEqual(self.left(), [])

    # What each kind of stream implements.

    def left(self) -> list[object]:
        """Return what is still open on the reactor for the test's connections."""
        raise NotImplementedError

    def serverString(self) -> str:
        """Return the endpoint string of a server."""
        raise NotImplementedError

    def clientString(self, port: int) -> str:
        """Return the endpoint string of a client of the server at this port."""
        raise NotImplementedError

    async def listen(self, kind: Any = Recorder, keys: str = "") -> Recorders:
        """Listen, and return the factory."""
        factory = Recorders(kind)
        self.ports.append(await serverFromString(reactor, self.serverString() + keys).listen(factory))
        return factory

    async def connect(self, kind: Any = Recorder, keys: str = "") -> Any:
        """Connect, and return the client's protocol."""
        text = self.clientString(self.ports[-1].getHost().port) + keys
        return await clientFromString(reactor, text).connect(Recorders(kind))

    async def both(self, kind: Any = Recorder, server: Any = Recorder, keys: str = "") -> tuple[Any, Any]:
        """Connect, and return the protocols of client and server."""
        factory = await self.listen(server, keys)
        there = factory.next()
        return await self.connect(kind, keys), await there

    async def ended(self, client: Any, server: Any, reason: type[Exception] = ConnectionDone) -> None:
        """Wait for the ends of both protocols, which have the same reason."""
        for each in (client, server):
            await each.lost
        for each in (client, server):
            self.assertIs(each.reason.type, reason)


if TYPE_CHECKING:
    Base = StreamCase
else:
    Base = object


class StreamContract(Base):
    """The promises of every kind of stream; a suite inherits this and L{StreamCase}."""

    async def test_echo(self) -> None:
        """Echoed bytes return, and both ends report an orderly end."""
        client, server = await self.both(server=Echo)
        verifyObject(ITCPTransport, client.transport)
        client.transport.write(b"hello ")
        client.transport.writeSequence([b"wor", b"ld"])
        self.assertEqual(await client.receiving(11), b"hello world")
        self.assertEqual(server.transport.getPeer(), client.transport.getHost())
        client.transport.loseConnection()
        await self.ended(client, server)

    async def test_halves(self) -> None:
        """A half-close is reported to the peer, which can still answer."""
        client, server = await self.both(Halves, Halves)
        client.transport.write(bytes(200_000))
        client.transport.loseWriteConnection()
        await client.lost
        await server.lost
        self.assertEqual((client.ends[0], client.received), ("write", b"received 200000"))
        self.assertEqual(server.ends, ["read"])
        for each in (client, server):
            self.assertIs(each.reason.type, ConnectionDone)

    async def test_paused(self) -> None:
        """Data for a paused protocol is delayed, and so is the end after it."""
        client, server = await self.both()
        server.transport.pauseProducing()
        client.transport.write(bytes(60_000))
        client.transport.loseConnection()
        await deferLater(reactor, 0.3)
        self.assertEqual((server.received, server.lost.called), (b"", False))
        server.transport.resumeProducing()
        await server.lost
        await client.lost
        self.assertEqual(len(server.received), 60_000)

    async def test_abort(self) -> None:
        """An abort is reported locally as aborted, and to the peer as a lost connection."""
        client, server = await self.both()
        client.transport.write(bytes(5_000_000))
        client.transport.abortConnection()
        await client.lost
        await server.lost
        self.assertIs(client.reason.type, ConnectionAborted)
        self.assertIs(server.reason.type, ConnectionLost)

    async def test_noProtocol(self) -> None:
        """A factory that makes no protocol ends a server's connection in order, and a client's attempt."""
        (await self.listen()).buildProtocol = _refuse  # type: ignore[method-assign]  # one that refuses
        client = await self.connect()
        await client.lost
        self.assertIs(client.reason.type, ConnectionDone)
        refusing = Recorders()
        refusing.buildProtocol = _refuse  # type: ignore[method-assign]  # so does this
        endpoint = clientFromString(reactor, self.clientString(self.ports[-1].getHost().port))
        await self.assertFailure(endpoint.connect(refusing), NoProtocol)
        await deferLater(reactor, 0)  # as over TCP, the factory is stopped after the result
        self.assertEqual((refusing.starts, refusing.stops), (1, 1))

    async def test_raisesWhenMade(self) -> None:
        """As over TCP, a server whose C{connectionMade} raises stays connected; a client is disconnected."""
        client, server = await self.both(Echo, Raising)
        server.transport.write(b"still open")
        await server.receiving(10)
        server.transport.loseConnection()
        await self.ended(client, server)
        failed = await self.connect(Raising)
        await failed.lost
        failed.reason.trap(ZeroDivisionError)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 3)

    async def test_logPrefix(self) -> None:
        """Log prefixes are those of TCP: a server's has the number of its connection, and the peer's host."""
        servers = await self.listen(Named)
        found = []
        for _ in range(2):
            there = servers.next()
            client = await self.connect()
            server = await there
            found += [each.transport.logPrefix() for each in (client, server)]
            client.transport.loseConnection()
            await self.ended(client, server)
        host = server.transport.getPeer().host
        self.assertEqual(
            found, ["Recorder,client", f"a name,0,{host}", "Recorder,client", f"a name,1,{host}"]
        )

    async def test_sessionNumber(self) -> None:
        """A server's transports have C{sessionno}, as in Twisted; some programs (Cowrie) read it."""
        servers = await self.listen()
        for number in range(2):
            there = servers.next()
            client = await self.connect()
            server = await there
            self.assertEqual(server.transport.sessionno, number)
            self.assertFalse(hasattr(client.transport, "sessionno"))
            client.transport.loseConnection()
            await self.ended(client, server)

    async def test_raisingLogPrefix(self) -> None:
        """An attempt whose protocol's C{logPrefix} raises fails, and its factory is stopped."""
        there = (await self.listen()).next()
        failing = Recorders(Unnamed)
        endpoint = clientFromString(reactor, self.clientString(self.ports[-1].getHost().port))
        await self.assertFailure(endpoint.connect(failing), ZeroDivisionError)
        await deferLater(reactor, 0)
        self.assertEqual((failing.starts, failing.stops), (1, 1))
        await (await there).lost

    async def test_cancelledWhileMade(self) -> None:
        """An attempt that C{buildProtocol} cancels leaves no connection."""

        def cancel(addr: object) -> Recorder:
            connecting.cancel()
            return unused

        unused, client, there = Recorder(), Recorders(), (await self.listen()).next()
        client.buildProtocol = cancel  # type: ignore[method-assign]  # one that cancels
        text = self.clientString(self.ports[-1].getHost().port)
        connecting = clientFromString(reactor, text).connect(client)
        await self.assertFailure(connecting, Exception)
        server = await there
        await server.lost
        self.assertIs(server.reason.type, ConnectionLost)
        self.assertFalse(unused.made.called)
        self.assertEqual((client.starts, client.stops), (1, 1))

    async def test_cancelledWhenMade(self) -> None:
        """An attempt that C{connectionMade} cancels ends the connection, which counts once in the factory."""

        class Cancelling(Recorder):
            def connectionMade(self) -> None:
                super().connectionMade()
                connecting.cancel()

        client, there = Recorders(Cancelling), (await self.listen()).next()
        client.doStart()  # for another connection
        text = self.clientString(self.ports[-1].getHost().port)
        connecting = clientFromString(reactor, text).connect(client)
        await self.assertFailure(connecting, Exception)
        server = await there
        for each in (server, client.protocols[0]):
            await each.lost
            self.assertIs(each.reason.type, ConnectionLost)
        self.assertEqual((client.starts, client.stops), (1, 0))
        client.doStop()
        self.assertEqual(client.stops, 1)
