"""
Contract: an error in the application of one message connection does not affect other connections.

Two connections share a listener and an adapter or module. Each callback of the interfaces of message
protocols, their factories and producers raises once, at either end of the second connection, gets wrong
arguments, returns wrong results, and calls the transport. The first one continues to work, and the error is
logged once. L{txrdma.testing.bystanders} is the same contract for streams.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from itertools import product
from random import Random
from typing import Any, ClassVar, Final

from zope.interface import implementer
from zope.interface.interface import Method

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IListeningPort, IPushProducer
from twisted.python.failure import Failure

from txrdma.messages.interfaces import (
    IMessageProtocol,
    IMessageProtocolFactory,
    IMessageTransport,
    IRemoteMemory,
)
from txrdma.testing.bystanders import ApplicationError, call, callbacks, calling, exploding, plain, Source
from txrdma.testing.protocols import MessageRecorder
from txrdma.testing.reactors import Base

MISTAKES: Final[tuple[object, ...]] = (
    *(None, True, -1, 0, 1 << 33, 1 << 70, 1.5, float("nan"), "text", b"", bytes(16), bytes(5000)),
    *((), [1], {}, object(), Exception, memoryview(b"abcd")[::2], array("d", [1.0])),
)
"""Invalid arguments for calls of methods; each is invalid for most methods."""

_CALLS: Final = 40
_RESULTS: Final[tuple[object, ...]] = (None, True, "text")


def parametrized(interface: Any) -> list[str]:
    """Return the names of an interface's methods that have arguments, in alphabetical order."""
    return sorted(
        name
        for name, method in interface.namesAndDescriptions(True)
        if isinstance(method, Method) and method.positional
    )


def returning(kind: type[Any], name: str, value: object) -> type[Any]:
    """Return a subclass in which the first call of one method returns this value."""

    def method(self: Any, *arguments: Any) -> Any:
        result = getattr(kind, name)(self, *arguments)
        if self.hasRaised:
            return result
        self.hasRaised = True
        return value

    return type(kind.__name__, (kind,), {name: method})


class MessageApplication(MessageRecorder):
    """A protocol that records its messages."""

    hasRaised = False


@implementer(IMessageProtocolFactory)
class MessageApplications:
    """
    A factory that builds and stores applications.

    @ivar kind: class of the applications.
    """

    hasRaised = False

    def __init__(self, kind: Callable[[], Any] = MessageApplication) -> None:
        self.kind = kind
        self.built: list[Any] = []

    def buildProtocol(self, peer: object) -> Any:
        self.built.append(self.kind())
        return self.built[-1]


class MessageSource(Source):
    """A push producer of more messages than a paused peer accepts."""

    piece = bytes(1000)
    total = 2_000_000

    def __init__(self, transport: Any) -> None:
        super().__init__(transport, isStreaming=True)

    def send(self) -> None:
        self._transport.sendMessage(self.piece)


class MessageBystanderContract(Base):
    """
    Promises of message endpoints about errors of applications, for a C{SynchronousTestCase}.

    @cvar PROTOCOL: interface of the protocols; each of its methods raises in turn.
    @cvar APPLICATION: class of the applications, which implements it.
    @cvar NEVER_CALLED: methods that one end never calls, each a name and whether it is the server's end.
    @cvar METHODS: names of methods of the transport besides those of the interfaces.
    """

    PROTOCOL: ClassVar[Any] = IMessageProtocol
    APPLICATION: ClassVar[type[Any]] = MessageApplication
    NEVER_CALLED: ClassVar[set[tuple[str, bool]]] = set()
    METHODS: ClassVar[tuple[str, ...]] = ()

    def listenWith(self, factory: Any) -> IListeningPort:
        raise NotImplementedError

    def connectWith(self, factory: Any) -> Deferred[Any]:
        """Connect a factory to the listener."""
        raise NotImplementedError

    def waitUntil(self, condition: Callable[[], object]) -> None:
        """Let time pass until a condition is true; fail after a time limit."""
        raise NotImplementedError

    def assertClean(self) -> None:
        """Assert that all connections have released their resources."""
        raise NotImplementedError

    def exchange(self, client: Any, server: Any) -> None:
        """Trigger each callback of the second connection's protocols, except those at its end."""
        for here, there in ((client, server), (server, client)):
            here.transport.sendMessage(b"hello")
            self.waitUntil(lambda there=there: there.messages or client.lost or server.lost)  # type: ignore[misc]

    def finish(self, client: Any, server: Any) -> None:
        """Exchange messages, then close the connection."""
        self.exchange(client, server)
        client.transport.loseConnection()
        self.waitUntil(lambda: client.lost and server.lost)

    @contextmanager
    def bystander(self, server: Any) -> Iterator[tuple[Any, Any]]:
        """
        Connect a bystander to a server, and check afterwards that it ends in order, and that nothing is left.

        @return: both ends.
        """
        kind, server.kind, server.hasRaised = server.kind, self.APPLICATION, True
        port = self.listenWith(server)
        clientEnd = self.protocolOf(self.connectWith(MessageApplications(self.APPLICATION)))
        self.waitUntil(lambda: server.built and server.built[0].isMade)
        serverEnd = server.built[0]
        server.kind, server.hasRaised = kind, False
        yield clientEnd, serverEnd
        clientEnd.transport.loseConnection()
        self.waitUntil(lambda: clientEnd.lost and serverEnd.lost)
        for end in (clientEnd, serverEnd):
            self.assertIsInstance(end.lost[0].value, ConnectionDone)
        port.stopListening()
        self.assertClean()

    def noteRaised(self, failure: Failure) -> None:
        """Record an error of the application that a caller gets, instead of the log."""
        if failure.check(ApplicationError):
            self.raised.append(str(failure.value))

    def check(self, what: str, server: Any, client: Any, play: Callable[[Any, Any], object]) -> None:
        """Use a connection whose application raises, and check that another connection is not affected."""
        self.raised: list[str] = []
        with self.bystander(server) as bystander:
            self.checkBeside(bystander, what, server, client, play)

    def checkBeside(
        self,
        bystander: tuple[Any, Any],
        what: str,
        server: Any,
        client: Any,
        play: Callable[[Any, Any], object],
    ) -> None:
        """Use a connection whose application raises, and check that the bystander's is not affected."""
        connecting: Deferred[Any] = self.connectWith(client)
        outcome: list[Any] = []
        connecting.addBoth(outcome.append)  # errors differ; only the bystander is checked
        self.waitUntil(lambda: outcome and (isinstance(outcome[0], Failure) or server.built[1:]))
        if isinstance(outcome[0], Failure):
            self.noteRaised(outcome[0])
        else:
            self.waitUntil(lambda: server.built[1].isMade or client.built[0].lost)
            if not client.built[0].lost and not server.built[1].lost:
                play(client.built[0], server.built[1])
        for end in client.built + server.built[1:]:
            if end.isMade and not end.lost:
                end.transport.abortConnection()
        self.waitUntil(lambda: all(end.lost for end in client.built + server.built[1:] if end.isMade))
        for here, there in (bystander, reversed(bystander)):
            here.transport.sendMessage(b"still there")
            self.waitUntil(lambda there=there: there.messages)  # type: ignore[misc]
            self.assertEqual(there.messages, [(b"still there", None)], what)
            there.messages.clear()

    def protocolOf(self, connecting: Deferred[Any]) -> Any:
        """Wait for a connection, and return its protocol."""
        self.waitUntil(lambda: connecting.called)
        return self.successResultOf(connecting)

    def assertLogged(self, what: str) -> None:
        """Assert that the application's error was logged or raised once, and that no other was logged."""
        errors = [str(failure.value) for failure in self.flushLoggedErrors(ApplicationError)] + self.raised
        self.assertEqual(errors, [what.split()[0]], what)
        self.assertEqual(self.flushLoggedErrors(), [], what)

    def test_bystanderOfProtocol(self) -> None:
        """An exception in any callback of a protocol, at either end, affects no other connection."""
        for name in callbacks(self.PROTOCOL):
            for isServer in (True, False):
                if (name, isServer) in self.NEVER_CALLED:
                    continue
                what = f"{name} of the {'server' if isServer else 'client'}'s protocol"
                server, client = (MessageApplications(self.APPLICATION) for _ in range(2))
                (server if isServer else client).kind = exploding(self.APPLICATION, name)
                self.check(what, server, client, self.finish)
                self.assertTrue(any(each.hasRaised for each in server.built + client.built), what)
                self.assertLogged(what)

    def test_bystanderOfFactory(self) -> None:
        """An exception in any callback of a factory, at either end, affects no other connection."""
        for name in callbacks(IMessageProtocolFactory):
            for isServer in (True, False):
                what = f"{name} of the {'server' if isServer else 'client'}'s factory"
                kinds = MessageApplications, exploding(MessageApplications, name)
                server, client = kinds[isServer](self.APPLICATION), kinds[not isServer](self.APPLICATION)
                self.check(what, server, client, self.finish)
                self.assertTrue(server.hasRaised if isServer else client.hasRaised, what)
                self.assertLogged(what)

    def test_bystanderOfMistakes(self) -> None:
        """Wrong arguments of any method of a transport affect no other connection."""
        random = Random(1)

        def play(client: Any, server: Any, name: str) -> None:
            values = (*MISTAKES, server.transport.share(64).name)
            for _ in range(_CALLS):
                method = getattr(client.transport, name)
                count = random.randint(1, len(signature(method).parameters))
                try:
                    result = method(*random.choices(values, k=count))
                except Exception:
                    continue
                if isinstance(result, Deferred):
                    result.addErrback(lambda _: None)
            client.transport.sendMessage(b"after them")
            self.waitUntil(lambda: (b"after them", None) in server.messages or client.lost or server.lost)

        for name in (*parametrized(IMessageTransport), *parametrized(IRemoteMemory), *self.METHODS):
            server, client = (MessageApplications(self.APPLICATION) for _ in range(2))
            self.check(f"{name} with wrong arguments", server, client, partial(play, name=name))
            self.flushLoggedErrors()

    def test_bystanderOfResults(self) -> None:
        """A wrong result of any callback of a protocol or a factory, at either end, affects no other one."""

        def play(client: Any, server: Any) -> None:
            MessageBystanderContract.exchange(self, client, server)
            client.transport.loseConnection()
            self.waitUntil(lambda: client.lost and server.lost)

        names = (*callbacks(self.PROTOCOL), *callbacks(IMessageProtocolFactory))
        for name, value, isServer in product(names, _RESULTS, (True, False)):
            server, client = (MessageApplications(self.APPLICATION) for _ in range(2))
            if hasattr(MessageApplications, name):
                kinds = MessageApplications, returning(MessageApplications, name, value)
                server, client = kinds[isServer](self.APPLICATION), kinds[not isServer](self.APPLICATION)
            else:
                (server if isServer else client).kind = returning(self.APPLICATION, name, value)
            self.check(f"{name} returns {value!r}", server, client, play)
            self.flushLoggedErrors()

    def test_bystanderOfCalls(self) -> None:
        """Each callback of a protocol may call any method of its transport: the connection ends in order."""
        server = MessageApplications(self.APPLICATION)
        with self.bystander(server) as bystander:
            for name, called, isServer in product(
                callbacks(self.PROTOCOL), plain(IMessageTransport), (True, False)
            ):
                if (name, isServer) in self.NEVER_CALLED:
                    continue
                what = f"{called} in {name} of the {'server' if isServer else 'client'}"
                del server.built[1:]
                client = MessageApplications(self.APPLICATION)
                server.kind = self.APPLICATION
                (server if isServer else client).kind = calling(self.APPLICATION, name, called)
                self.checkBeside(bystander, what, server, client, self.finish)
                self.assertTrue(any(hasattr(each, "called") for each in server.built + client.built), what)
                ends = [len(each.lost) for each in server.built[1:] + client.built if each.isMade]
                self.assertEqual(ends, [1] * len(ends), what)
                self.assertEqual(self.flushLoggedErrors(), [], what)

    def test_bystanderOfAnswers(self) -> None:
        """The callback of a request may call any method of the transport, and cancel all other requests."""

        def play(client: Any, server: Any, called: str) -> None:
            transport, name = client.transport, server.transport.share(64).name
            requests: list[Deferred[Any]] = []

            def done(_: object) -> None:
                for each in requests[1:]:
                    each.cancel()
                call(transport, called)

            for _ in range(3):
                requests += transport.read(name, 8), transport.write(name, b"hello")
            for each in requests[1:]:
                each.addErrback(lambda _: None)
            requests[0].addBoth(done)
            self.waitUntil(lambda: all(each.called for each in requests))
            self.finish(client, server)

        for called in plain(IMessageTransport):
            server, client = (MessageApplications(self.APPLICATION) for _ in range(2))
            self.check(f"{called} after an answer", server, client, partial(play, called=called))
            ends = [len(each.lost) for each in server.built[1:] + client.built]
            self.assertEqual(ends, [1, 1], called)
            self.assertEqual(self.flushLoggedErrors(), [], called)

    def test_bystanderOfProducer(self) -> None:
        """An exception in any callback of a producer affects no other connection."""
        for name in callbacks(IPushProducer):
            what = f"{name} of a producer"
            made: list[Any] = []

            def produce(client: Any, server: Any, name: str = name, made: list[Any] = made) -> None:
                server.transport.pauseProducing()
                source = exploding(MessageSource, name)(client.transport)
                made.append(source)
                client.transport.registerProducer(source, True)
                source.hasRaised = name == "resumeProducing"  # only calls of the transport raise
                source.resumeProducing()
                source.hasRaised = source.hasRaised and name != "resumeProducing"
                if name == "stopProducing":
                    client.transport.abortConnection()
                server.transport.resumeProducing()
                self.waitUntil(lambda: source.hasRaised or source.isDone)

            server, client = (MessageApplications(self.APPLICATION) for _ in range(2))
            self.check(what, server, client, produce)
            self.assertTrue(made[0].hasRaised, what)
            self.assertLogged(what)


__all__ = ["MessageBystanderContract"]
