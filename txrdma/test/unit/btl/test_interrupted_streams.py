"""
Streams of which one call of one function raises an exception: both ends end once, no byte is lost silently,
and a second stream of the same modules is not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHalfCloseableProtocol, IPullProducer
from twisted.internet.protocol import connectionDone, Protocol
from twisted.python.failure import Failure

from txrdma.btl.stream._bytes import ByteStream
from txrdma.btl.stream.end import BTLEnd
from txrdma.btl.stream.endpoints import _AcceptedBTLStreams, _Connecting
from txrdma.btl.transport import BTLMessageTransport
from txrdma.messages.transport import MessageTransport
from txrdma.streams._lifecycle import StreamLife
from txrdma.streams.connection import StreamConnection
from txrdma.streams.endpoints import AcceptedStreams, StreamAttempt
from txrdma.streams.transport import StreamTransport
from txrdma.test.support.btl.hosts import HostsCase
from txrdma.test.support.interruptions import Interruptions
from txrdma.testing.protocols import Recorders

OWNERS: tuple[Any, ...] = (
    *(StreamConnection, BTLEnd, ByteStream, StreamLife, StreamTransport),
    *(
        StreamAttempt,
        _Connecting,
        AcceptedStreams,
        _AcceptedBTLStreams,
        BTLMessageTransport,
        MessageTransport,
    ),
)
"""What a stream consists of, above the connection of messages."""

TRIVIAL = ("connect", "connectionLost", "ended", "_call", "_ended", "_scheduledTurn", "blame", "dismiss")
"""Functions that only call others, and handle their exceptions."""

DATA = bytes(range(256)) * 400
PIECES = 3


@implementer(IHalfCloseableProtocol, IPullProducer)
class Sender(Protocol):
    """Writes, closes its half when everything is written, and closes when the peer has."""

    transport: Any

    def __init__(self) -> None:
        self.received = bytearray()
        self.made = self.raised = self.left = 0
        self.lost: list[Failure] = []

    def do(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a method of the transport; abort the connection if that raises, as a program would."""
        try:
            function(*arguments)
        except ZeroDivisionError:
            self.raised += 1
            self.transport.abortConnection()

    def connectionMade(self) -> None:
        self.made += 1
        self.left = PIECES
        self.do(self.transport.registerProducer, self, False)

    def resumeProducing(self) -> None:
        self.left -= 1
        if self.left:
            self.do(self.transport.write, DATA)
        else:
            self.do(self.transport.writeSequence, [DATA, b""])
            self.do(self.transport.unregisterProducer)
            self.do(self.transport.loseWriteConnection)

    def stopProducing(self) -> None: ...

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def readConnectionLost(self) -> None:
        self.do(self.transport.loseConnection)

    def writeConnectionLost(self) -> None: ...

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost.append(reason)


class Reader(Sender):
    """Reads with pauses, and closes when the peer has closed its half."""

    def connectionMade(self) -> None:
        self.made += 1

    def dataReceived(self, data: bytes) -> None:
        super().dataReceived(data)
        self.do(self.transport.pauseProducing)
        self.do(self.transport.write, data[:1000])
        self.do(self.transport.resumeProducing)


class InterruptionTests(HostsCase):
    """Two streams between the same modules, of which a function of the first one raises once."""

    slowBecause = "it plays two streams for each function"
    STRIDE = 5

    def setUp(self) -> None:
        super().setUp()
        self.isArmed = False
        self.others: list[object] = []
        self.calls = Interruptions(self.patch, OWNERS, self.isVictim, TRIVIAL)

    def isVictim(self, first: object, *others: object) -> bool:
        """Return whether a function is called for the first stream."""
        return self.isArmed and not any(each is first for each in self.others)

    def start(self) -> tuple[Recorders, Recorders, Deferred[Any]]:
        """Start a stream; return the factories of its ends, and the attempt to connect."""
        host, clients, servers = self.hosts[0], Recorders(Sender), Recorders(Reader)
        attempt = _Connecting(host, clients)
        accepting = _AcceptedBTLStreams(self.hosts[1], servers)

        class Endpoint:
            def connect(_, factory: Any) -> Deferred[Any]:
                client, server = self.openBy(factory, accepting)
                server.answer.addErrback(self.rejected.append)
                return client.answer

        return clients, servers, attempt.connect(Endpoint(), None)  # type: ignore[arg-type]  # a fake

    def play(self) -> list[str]:
        """Let two streams work and close, of which the first one may fail; return what is wrong."""
        wrong, outcome = list[str](), list[Any]()
        self.escaped, self.rejected = 0, list[Failure]()
        bystanders = self.start()
        self.waitAnyway(lambda: bystanders[2].called and bystanders[1].protocols)
        ends = [each.protocols[0].transport.stream for each in bystanders[:2]]
        parts = ("_front", "_core", "_life", "_transport")
        self.others = [*ends, *(getattr(each, name) for each in ends for name in parts)]
        self.isArmed = True
        clients, servers, attempt = self.start()
        attempt.addBoth(outcome.append)
        if not self.waitAnyway(lambda: outcome):
            wrong.append("the attempt hangs")
        self.waitAnyway(lambda: self.rejected or (servers.protocols and servers.protocols[0].made))
        made = [each for some in (clients, servers) for each in some.protocols if each.made]
        if not self.waitAnyway(lambda: all(each.lost for each in made)):
            wrong += [f"{type(each).__name__} hangs" for each in made if not each.lost]
        self.isArmed, self.others = False, []
        failures = [each for each in (*outcome, *self.rejected) if isinstance(each, Failure)]
        reported = len([each for each in failures if each.check(ZeroDivisionError)])
        reported += sum(each.raised for each in made)
        wrong += [f"ended by {each.lost}" for each in made if len(each.lost) > 1]
        received = bytes(servers.protocols[0].received) if servers.protocols else b""
        isClean = not failures and not reported and self.isClean(*made)
        if not (DATA * PIECES).startswith(received) or (isClean and len(received) < len(DATA * PIECES)):
            wrong.append(f"{len(received)} bytes have arrived, or other ones")
        if [clients.starts, clients.stops] != [1, 1]:
            wrong.append(f"the factory was stopped {clients.stops} times")
        made = [each.protocols[0] for each in bystanders[:2]]
        self.waitAnyway(lambda: all(each.lost for each in made))
        if made[1].received != DATA * PIECES or not self.isClean(*made):
            wrong.append("the bystander is affected")
        logged = len(self.flushLoggedErrors(ZeroDivisionError)) + self.escaped
        if logged + reported > 1 or (self.calls.hasRaised and not logged + reported):
            wrong.append(f"it was logged {logged} times and reported {reported} times")
        wrong += [f"logged as well: {each.value!r}" for each in self.flushLoggedErrors()]
        self.assertNothingLeft()
        return wrong

    def isClean(self, *ends: Sender) -> bool:
        return all(each.check(ConnectionDone) for end in ends for each in end.lost)

    def test_each(self) -> None:
        """The first, second, and last call of each function."""
        self.assertEqual(self.play(), [])
        self.assertGreater(len(self.calls.counts), 30)
        found = {}
        del self.calls.counts[MessageTransport, "_end"]  # which only handles exceptions of others
        for (owner, name), number in self.calls.each(stride=self.STRIDE):
            if wrong := self.play():
                found[owner.__name__, name, number] = wrong
        self.assertEqual(found, {}, "\n".join(f"{key}: {value}" for key, value in found.items()))
