"""Streams, one function of which raises an exception: see L{InterruptedStreams}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IHalfCloseableProtocol, IPullProducer
from twisted.python.failure import Failure

from txrdma.btl.stream._bytes import ByteStream
from txrdma.btl.stream.end import BTLEnd
from txrdma.btl.stream.endpoints import _AcceptedBTLStreams, _Connecting
from txrdma.btl.transport import BTLMessageTransport
from txrdma.kit.delayedcalls import cancelCall
from txrdma.messages.transport import MessageTransport
from txrdma.streams._lifecycle import StreamLife
from txrdma.streams.connection import StreamConnection
from txrdma.streams.endpoints import AcceptedStreams, StreamAttempt
from txrdma.streams.transport import StreamTransport
from txrdma.test.support.btl.hosts import HostsCase
from txrdma.test.support.interruptedstreams import InterruptedStreams, Peer, SECONDS
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

TRIVIAL = (
    *("connect", "connectionLost", "ended", "_call", "_ended", "_scheduledTurn", "_started"),
    *("_abort", "_cut", "abortConnection", "blame", "dismiss"),
)
"""Functions that only call others, and handle their exceptions."""


@implementer(IHalfCloseableProtocol, IPullProducer)
class Halving(Peer):
    """Writes pieces when it is asked for them, and closes when the peer has closed."""

    def connectionMade(self) -> None:
        self.made += 1
        third = -(-len(self.data) // 3)
        self.pieces = [self.data[begin : begin + third] for begin in range(0, len(self.data), third)]
        self.do("registerProducer", self, False)

    def resumeProducing(self) -> None:
        piece = self.pieces.pop(0)
        if self.pieces:
            self.do("write", piece)
        else:
            self.do("writeSequence", [piece, b""])
            self.do("unregisterProducer")

    def stopProducing(self) -> None: ...

    def readConnectionLost(self) -> None:
        self.do("loseConnection")

    def writeConnectionLost(self) -> None: ...


class Pausing(Peer):
    """Reads with pauses."""

    def dataReceived(self, data: bytes) -> None:
        self.do("pauseProducing")
        super().dataReceived(data)
        self.do("resumeProducing")


class InterruptionTests(InterruptedStreams, HostsCase):
    """Two streams between the same modules, of which a function of the first one raises once."""

    OWNERS = staticmethod(lambda: OWNERS)
    TRIVIAL = TRIVIAL
    EXCEPT = ((MessageTransport, "_end"),)  # which only handles exceptions of others
    LEAST = 30
    TRANSPORT = "BTLTransport"
    DATA = bytes(range(256)) * 1200
    CLIENT, SERVER = Halving, Pausing
    STRIDE = 9

    def begin(self) -> None:
        self.factories: list[Recorders] = []

    def seconds(self) -> float:
        return self.world.clock.seconds()

    def iterate(self) -> bool:
        return self.world.turn()

    def until(self, condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> None:
        call = self.world.clock.callLater(seconds, lambda: None)  # the time passes although nothing happens
        super().until(condition, what, seconds)
        cancelCall(call)

    def attempt(self, client: Peer, server: Peer, isVictim: bool) -> tuple[list[Any], Callable[[], object]]:
        factories = Recorders([client].pop), Recorders([server].pop)
        self.factories += factories
        outcome, accepted = list[Any](), list[Any]()
        attempt, accepting = (
            _Connecting(self.hosts[0], factories[0]),
            _AcceptedBTLStreams(self.hosts[1], factories[1]),
        )

        class Endpoint:
            def connect(_, factory: Any) -> Deferred[Any]:
                openings = self.openBy(factory, accepting)
                openings[1].answer.addErrback(self.rejected).addBoth(accepted.append)
                return openings[0].answer

        endpoint: Any = Endpoint()
        self.isArmed = isVictim
        maybeDeferred(attempt.connect, endpoint, None).addBoth(outcome.append)
        return outcome, lambda: accepted

    def rejected(self, failure: Failure) -> None:
        """Count the exception for which a server has no connection, which its listener would log."""
        if failure.check(ZeroDivisionError):
            self.escaped.append(failure)

    def partsOf(self, transport: Any) -> list[object]:
        stream = transport.stream
        return [stream, *(getattr(stream, name) for name in ("_front", "_core", "_life", "_transport"))]

    def clear(self) -> None:
        self.passTime(200.0)
        try:
            self.assertNothingLeft()
        except self.failureException as error:
            self.wrong.append(f"left: {error}")
        stopped = [each.stops for each in self.factories[::2]]
        if stopped != [1] * len(stopped):
            self.wrong.append(f"factories were stopped {stopped} times")

    def test_half(self) -> None:
        """The client closes its half first."""
        self.playEach("loseWriteConnection")
