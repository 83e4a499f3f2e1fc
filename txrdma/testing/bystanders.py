"""
Contract: an error in the application of one connection does not affect other connections.

Two connections share a listener, and with it a link group, a device or a module. Each callback that an
application implements raises once, at either end of the second connection, and calls each method of its
transport, at both ends. The first one continues to work, and the error is reported once, as over TCP. The
callbacks are those of Twisted's interfaces, so that new ones are covered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import product
from typing import Any, Final

from zope.interface import implementer
from zope.interface.interface import Method

from twisted.internet import reactor as theReactor
from twisted.internet.defer import maybeDeferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import ConnectionDone, NotConnectingError
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IProtocol,
    IProtocolFactory,
    IPullProducer,
    IPushProducer,
    ITCPTransport,
)
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from txrdma.testing.protocols import Recorders, StateRecorder
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor

_SECONDS: Final = 10.0


class ApplicationError(Exception):
    """Raised by the callback under test."""


def exploding(kind: type[Any], name: str) -> type[Any]:
    """Return a subclass in which one method raises L{ApplicationError} at the end of its first call."""

    def method(self: Any, *arguments: Any) -> Any:
        result = getattr(kind, name)(self, *arguments)
        if not self.hasRaised:
            self.hasRaised = True
            raise ApplicationError(name)
        return result

    return type(kind.__name__, (kind,), {name: method})


def plain(*interfaces: Any) -> list[str]:
    """Return the names of the methods without arguments of these interfaces, in alphabetical order."""
    names = {name: interface[name] for interface in interfaces for name in interface.names(all=True)}
    return sorted(name for name, each in names.items() if isinstance(each, Method) and not each.positional)


def call(transport: Any, name: str) -> None:
    """Call a method of a transport without arguments; resume immediately if it pauses."""
    getattr(transport, name)()
    if name == "pauseProducing":
        transport.resumeProducing()


def calling(kind: type[Any], name: str, called: str) -> type[Any]:
    """
    Return a subclass in which the first call of one method also calls a method of the transport.

    An object whose method was called has an attribute C{called}.
    """

    def method(self: Any, *arguments: Any) -> Any:
        result = getattr(kind, name)(self, *arguments)
        if not hasattr(self, "called"):
            self.called = called
            call(self.transport or arguments[0], called)  # the transport is an argument before it is set
        return result

    return type(kind.__name__, (kind,), {name: method})


class Application(StateRecorder):
    """A protocol that closes the connection when the peer has closed its half."""

    hasRaised = False

    def readConnectionLost(self) -> None:
        super().readConnectionLost()
        self.transport.loseConnection()


class Applications(Recorders):
    """A factory that builds and stores applications."""

    hasRaised = False

    def __init__(self) -> None:
        super().__init__(Application)


@implementer(IPushProducer, IPullProducer)
class Source:
    """A push or pull producer of 2 MiB."""

    hasRaised = False
    piece = bytes(1 << 16)
    total = 1 << 21

    def __init__(self, transport: Any, isStreaming: bool) -> None:
        self._transport, self._isStreaming = transport, isStreaming
        self._left = self.total
        self._isPaused = self.isDone = False

    def begin(self) -> None:
        """Register with the transport; a push producer also starts to write."""
        self._transport.registerProducer(self, self._isStreaming)
        if self._isStreaming:
            self.resumeProducing()

    def resumeProducing(self) -> None:
        """Write until C{pauseProducing} as a push producer, or one piece as a pull producer."""
        self._isPaused = False
        while self._left and not (self._isPaused or self.isDone):
            self._left -= len(self.piece)
            self.send()
            if not self._isStreaming:
                break
        if not self._left and not self.isDone:
            self.isDone = True
            self._transport.unregisterProducer()

    def send(self) -> None:
        """Write one piece."""
        self._transport.write(self.piece)

    def pauseProducing(self) -> None:
        self._isPaused = True

    def stopProducing(self) -> None:
        self.isDone = True


def hasRaised(*factories: Applications) -> bool:
    """Return whether one of these factories or their applications has raised."""
    return any(each.hasRaised for factory in factories for each in (factory, *factory.protocols))


def areConnected(server: Applications, client: Applications) -> bool:
    """Return whether both ends of a server's second connection have transports."""
    return [bool(each.transport) for each in client.protocols + server.protocols[1:]] == [True, True]


def callbacks(*interfaces: Any) -> Iterator[str]:
    """Yield the names of the methods of these interfaces."""
    for interface in interfaces:
        yield from sorted(name for name in interface.names(all=True) if isinstance(interface[name], Method))


class BystanderContract:
    """
    Promises of stream endpoints about errors of applications, for a C{TestCase}.

    @ivar LISTEN: the server's endpoint string, with port 0.
    @ivar CONNECT: the client's endpoint string, with C{{port}}.
    @ivar MAY_STAY: whether a connection may stay open after its application has raised (as Twisted's TCP does
        after C{stopProducing}).
    @ivar MAY_RAISE: whether methods of the transport may raise near the end (as those of Twisted's TCP).
    """

    slowBecause = "each callback of an application opens two connections on the real reactor"
    LISTEN: str
    CONNECT: str
    MAY_STAY = MAY_RAISE = False

    def setUp(self) -> None:
        self.raised: list[str] = []  # errors of the application that callers get, instead of the log

    def noteRaised(self, failure: Failure) -> None:
        """Record an error of the application that a caller gets."""
        if failure.check(ApplicationError):
            self.raised.append(str(failure.value))

    async def until(self: Any, condition: Callable[[], Any], what: str) -> None:
        """Wait until a condition is true; fail with the message C{what} after 10 seconds."""
        await waitUntil(reactor, condition, _SECONDS, what)

    @asynccontextmanager
    async def bystander(
        self: Any, server: Applications
    ) -> AsyncIterator[tuple[int, Application, Application]]:
        """
        Connect a bystander to a server, and check afterwards that it ends in order.

        @return: the server's port, and both ends.
        """
        kind, server.kind, server.hasRaised = server.kind, Application, True
        listening = await serverFromString(reactor, self.LISTEN).listen(server)
        try:
            port = listening.getHost().port
            connect = clientFromString(reactor, self.CONNECT.format(port=port))
            clientEnd = await connect.connect(Factory.forProtocol(Application))
            await self.until(lambda: server.protocols and server.protocols[0].transport, "the bystander")
            serverEnd = server.protocols[0]
            server.kind, server.hasRaised = kind, False
            yield port, clientEnd, serverEnd
            clientEnd.transport.loseConnection()
            await self.until(lambda: clientEnd.lost and serverEnd.lost, "bystander's end")
            for end in (clientEnd, serverEnd):
                assert end.lost is not None
                self.assertIsInstance(end.lost.value, ConnectionDone)
        finally:
            await maybeDeferred(listening.stopListening).addErrback(self.noteRaised)

    async def check(
        self: Any,
        what: str,
        server: Applications,
        client: Applications,
        play: Callable[[Application, Application], Any],
    ) -> None:
        """Use a connection whose application raises, and check that another connection is not affected."""
        async with self.bystander(server) as bystander:
            await self.checkBeside(bystander, what, server, client, play)

    async def checkBeside(
        self: Any,
        bystander: tuple[int, Application, Application],
        what: str,
        server: Applications,
        client: Applications,
        play: Callable[[Application, Application], Any],
    ) -> None:
        """Use a connection whose application raises, and check that the bystander's is not affected."""
        port, clientEnd, serverEnd = bystander
        connecting = clientFromString(reactor, self.CONNECT.format(port=port)).connect(client)
        connecting.addErrback(self.noteRaised)  # errors differ; only the bystander is checked
        await self.until(lambda: hasRaised(server, client) or areConnected(server, client), what)
        if areConnected(server, client):
            await play(client.protocols[0], server.protocols[1])
        ends = lambda: client.protocols + server.protocols[1:]  # noqa: E731
        for application in ends():
            if application.transport is not None and application.lost is None:
                application.transport.abortConnection()
        with suppress(NotConnectingError):
            connecting.cancel()
        await self.until(
            lambda: self.MAY_STAY or all(end.lost for end in ends() if end.transport),
            f"{what}: the end of its connection",
        )
        for end, other in ((clientEnd, serverEnd), (serverEnd, clientEnd)):
            received = other.received
            end.transport.write(bytes(5000))
            await self.until(
                lambda other=other, received=received: other.received == received + 5000,
                f"{what}: bystander",
            )

    def reported(self: Any, what: str, times: int = 1) -> None:
        """Check that the application's error was logged or raised this many times; no other was logged."""
        errors = [str(failure.value) for failure in self.flushLoggedErrors(ApplicationError)]
        errors += self.raised
        self.raised.clear()
        self.assertEqual(len(errors), times, f"{what}: {errors}")
        self.assertEqual(self.flushLoggedErrors(), [], what)

    async def exchange(self: Any, here: Application, there: Application) -> None:
        """Send a message, half-close the client's end, and wait until the connection has ended."""
        here.transport.write(b"question")
        await self.until(lambda: here.lost or there.lost or there.received, "a message")
        if here.lost is None:
            here.transport.loseWriteConnection()
        await self.until(lambda: here.lost or there.lost, "the end")

    async def produce(
        self: Any,
        kind: type[Any],
        isStreaming: bool,
        made: list[Any],
        isAborted: bool,
        here: Application,
        there: Application,
    ) -> None:
        """Produce more than a paused peer accepts; then resume the peer, or abort."""
        there.transport.pauseProducing()
        source = kind(here.transport, isStreaming)
        made.append(source)
        try:
            source.begin()
        except ApplicationError:
            self.noteRaised(Failure())
        if isAborted:
            here.transport.abortConnection()
        there.transport.resumeProducing()
        await self.until(lambda: source.isDone or here.lost or source.hasRaised, "what a producer does")

    async def test_protocol(self: Any) -> None:
        """An exception in any callback of a protocol, at either end, affects no other connection."""
        for name in callbacks(IProtocol, IHalfCloseableProtocol):
            for isServer in (True, False):
                what = f"{name} of the {'server' if isServer else 'client'}'s protocol"
                server, client = Applications(), Applications()
                (server if isServer else client).kind = exploding(Application, name)
                await self.check(what, server, client, self.exchange)
                self.reported(what, sum(each.hasRaised for each in server.protocols + client.protocols))

    async def test_calls(self: Any) -> None:
        """Each callback of a protocol may call any method of its transport, also after the end."""
        methods = plain(ITCPTransport, IPushProducer)
        server = Applications()
        async with self.bystander(server) as bystander:
            for name, called in product(callbacks(IProtocol, IHalfCloseableProtocol), methods):
                del server.protocols[1:]
                client = Applications()
                server.kind, client.kind = (calling(Application, name, called) for _ in range(2))
                what = f"{called} in {name}"
                await self.checkBeside(bystander, what, server, client, self.exchange)
                errors = self.flushLoggedErrors()
                if not self.MAY_RAISE:
                    self.assertEqual(errors, [], what)

    async def test_factory(self: Any) -> None:
        """An exception in any callback of a factory, at either end, affects no other connection."""
        for name in callbacks(IProtocolFactory):
            for isServer in (True, False):
                if isServer and name == "doStart":
                    continue  # the listener does not start then
                what = f"{name} of the {'server' if isServer else 'client'}'s factory"
                kind = exploding(Applications, name)
                server, client = (kind(), Applications()) if isServer else (Applications(), kind())
                await self.check(what, server, client, self.exchange)
                self.reported(what)

    async def test_producers(self: Any) -> None:
        """An exception in any callback of a push or pull producer affects no other connection."""
        for isStreaming, interface in ((True, IPushProducer), (False, IPullProducer)):
            for name in callbacks(interface):
                what = f"{name} of a {'push' if isStreaming else 'pull'} producer"
                kind = exploding(Source, name)
                made: list[Any] = []
                play = partial(self.produce, kind, isStreaming, made, name == "stopProducing")
                await self.check(what, Applications(), Applications(), play)
                self.assertTrue(made[0].hasRaised, what)
                self.reported(what)


__all__ = ["BystanderContract"]
