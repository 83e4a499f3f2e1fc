"""Protocols for tests that record what they receive; some also answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.python.failure import Failure

from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.messages.interfaces import IMessageProtocolFactory


class Recorder(Protocol):
    """
    A protocol that records received data and the end of the connection.

    @ivar made: fires with the protocol when it is connected.
    @ivar lost: fires when the connection ends; C{reason}: why it ended.
    @ivar received: all bytes so far.
    """

    transport: Any
    reason: Failure
    greeting = b""
    echoes = False

    def __init__(self) -> None:
        self.made: Deferred[Any] = Deferred()
        self.lost: Deferred[None] = Deferred()
        self.received = bytearray()
        self._waiting: list[tuple[int, Deferred[bytes]]] = []

    def connectionMade(self) -> None:
        """Send the greeting, if there is one."""
        self.smc = getattr(self.transport, "smc", None)
        if self.greeting:
            self.transport.write(self.greeting)
        self.made.callback(self)

    def dataReceived(self, data: bytes) -> None:
        """Record the bytes, and fire the Deferreds of L{receiving}."""
        self.received += data
        if self.echoes:
            self.transport.write(data)
        for entry in list(self._waiting):
            length, deferred = entry
            if len(self.received) >= length:
                self._waiting.remove(entry)
                deferred.callback(bytes(self.received))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.reason = reason
        self.lost.callback(None)

    def receiving(self, length: int) -> Deferred[bytes]:
        """Return a Deferred that fires with all received bytes as soon as there are at least C{length}."""
        deferred: Deferred[bytes] = Deferred()
        if len(self.received) >= length:
            deferred.callback(bytes(self.received))
        else:
            self._waiting.append((length, deferred))
        return deferred


class Greeter(Recorder):
    """A recorder that sends a line when it is connected."""

    greeting = b"220 hello\r\n"


class Echo(Recorder):
    """A recorder that echoes all data."""

    echoes = True


@implementer(IHalfCloseableProtocol)
class HalfCloseRecorder(Recorder):
    """
    A recorder whose connection stays open in one direction when the other one is closed.

    @ivar readEnded: fires when the peer has closed its half; C{writeEnded}: when the local half is closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.readEnded: Deferred[None] = Deferred()
        self.writeEnded: Deferred[None] = Deferred()

    def readConnectionLost(self) -> None:
        self.readEnded.callback(None)

    def writeConnectionLost(self) -> None:
        self.writeEnded.callback(None)


@implementer(IHalfCloseableProtocol)
class StateRecorder(Protocol):
    """
    A protocol that records its state, for tests that poll it.

    @ivar received: number of received bytes; C{digest}: their SHA-256.
    @ivar hasEnded: whether the peer has closed its half; C{hasClosed}: whether the local half is closed.
    @ivar lost: reason of the connection's end, or None.
    """

    transport: Any

    def __init__(self) -> None:
        self.received = 0
        self.digest = hashlib.sha256()
        self.hasEnded = self.hasClosed = False
        self.lost: Failure | None = None

    def dataReceived(self, data: bytes) -> None:
        self.received += len(data)
        self.digest.update(data)

    def readConnectionLost(self) -> None:
        self.hasEnded = True

    def writeConnectionLost(self) -> None:
        self.hasClosed = True

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost = reason


class MessageRecorder(RDMAProtocol):
    """
    A message protocol that records what it receives, over any message transport.

    @ivar answer: private data of the communication manager's REP.
    @ivar writes: lengths and immediate data of the peer's writes.
    @ivar lost: reasons of the connection's end, at most one.
    """

    transport: Any = None

    def __init__(self, answer: bytes = b"") -> None:
        self.answer = answer
        self.isMade = False
        self.messages: list[tuple[bytes, int | None]] = []
        self.writes: list[tuple[int, int]] = []
        self.paths: list[Any] = []
        self.lost: list[Failure] = []

    def connectionMade(self) -> None:
        self.isMade = True

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.messages.append((data, immediate))

    def writeReceived(self, length: int, immediate: int) -> None:
        self.writes.append((length, immediate))

    def pathMigrated(self, path: Any) -> None:
        self.paths.append(path)

    def connectionLost(self, reason: Failure) -> None:
        self.lost.append(reason)

    @property
    def ends(self) -> list[str]:
        """The names of the exceptions in C{lost}."""
        return [type(reason.value).__name__ for reason in self.lost]


@implementer(IMessageProtocolFactory)
class Recorders(Factory):
    """
    A factory that stores the stream or message protocols that it builds.

    @ivar protocols: all protocols so far; C{addresses}: addresses of their peers.
    """

    noisy = False

    def __init__(self, kind: Callable[[], Any] = Recorder) -> None:
        self.kind = kind
        self.protocols: list[Any] = []
        self.addresses: list[Any] = []
        self._waiting: list[Deferred[Any]] = []
        self.starts = self.stops = 0

    def startFactory(self) -> None:
        self.starts += 1

    def stopFactory(self) -> None:
        self.stops += 1

    def buildProtocol(self, addr: Any) -> Any:
        protocol = self.kind()
        self.protocols.append(protocol)
        self.addresses.append(addr)
        waiting, self._waiting = self._waiting, []
        for deferred in waiting:
            protocol.made.chainDeferred(deferred)
        return protocol

    def next(self) -> Deferred[Any]:
        """Return a Deferred that fires with the next protocol when it is connected."""
        deferred: Deferred[Any] = Deferred()
        self._waiting.append(deferred)
        return deferred


@implementer(IPushProducer)
class ProducerRecorder:
    """
    A push producer that records its calls.

    @ivar calls: "pause", "resume" and "stop", in order.
    """

    def __init__(self, resumed: Callable[[], object] = lambda: None) -> None:
        self.calls: list[str] = []
        self._resumed = resumed

    def pauseProducing(self) -> None:
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        self.calls.append("resume")
        self._resumed()

    def stopProducing(self) -> None:
        self.calls.append("stop")
