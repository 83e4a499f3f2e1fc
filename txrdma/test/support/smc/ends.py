"""
Servers and clients of C{smc} endpoints on the real reactor, for tests.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from txrdma.smc.group.groups import closeLinkGroups

reactor: Any = theReactor


class Recorder(Protocol):
    """Remembers all that it hears."""

    transport: Any
    greeting = b""
    echoes = False

    def __init__(self) -> None:
        self.made: Deferred[Recorder] = Deferred()
        self.lost: Deferred[None] = Deferred()
        self.heard = b""
        self._waiting: list[tuple[int, Deferred[bytes]]] = []

    def connectionMade(self) -> None:
        self.smc = getattr(self.transport, "smc", None)
        if self.greeting:
            self.transport.write(self.greeting)
        self.made.callback(self)

    def dataReceived(self, data: bytes) -> None:
        self.heard += data
        if self.echoes:
            self.transport.write(data)
        for entry in list(self._waiting):
            length, deferred = entry
            if len(self.heard) >= length:
                self._waiting.remove(entry)
                deferred.callback(self.heard)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.reason = reason
        self.lost.callback(None)

    def hearing(self, length: int) -> Deferred[bytes]:
        """That many bytes, in all."""
        deferred: Deferred[bytes] = Deferred()
        if len(self.heard) >= length:
            deferred.callback(self.heard)
        else:
            self._waiting.append((length, deferred))
        return deferred


class Greeter(Recorder):
    """Speaks first."""

    greeting = b"220 hello\r\n"


class Echo(Recorder):
    """Says what it hears."""

    echoes = True


class Recorders(Factory):
    """Remembers its protocols."""

    noisy = False

    def __init__(self, kind: type[Recorder] = Recorder) -> None:
        self.kind = kind
        self.protocols: list[Recorder] = []
        self._waiting: list[Deferred[Recorder]] = []
        self.starts = self.stops = 0

    def startFactory(self) -> None:
        self.starts += 1

    def stopFactory(self) -> None:
        self.stops += 1

    def buildProtocol(self, addr: Any) -> Recorder:
        protocol = self.kind()
        self.protocols.append(protocol)
        waiting, self._waiting = self._waiting, []
        for deferred in waiting:
            protocol.made.chainDeferred(deferred)
        return protocol

    def next(self) -> Deferred[Recorder]:
        """The next protocol, when it is connected."""
        deferred: Deferred[Recorder] = Deferred()
        self._waiting.append(deferred)
        return deferred


class EndsTestCase(TestCase):
    """A test with servers and clients; all of that is gone when it ends."""

    timeout = 20

    def setUp(self) -> None:
        self.addCleanup(self._finish)
        self._ended: list[Recorder] = []

    async def _finish(self) -> None:
        closeLinkGroups(reactor)
        # TCP connections that were left alone close in a turn or two.
        for _ in range(50):
            internal = set(reactor._internalReaders)
            if not any(reader not in internal for reader in reactor.getReaders()):
                break
            await deferLater(reactor, 0.01)

    async def listening(
        self, kind: type[Recorder] = Recorder, text: str = "smc:127.0.0.1:0"
    ) -> tuple[Any, int, Any]:
        """A listening factory, the number of its port, and the port."""
        factory = Recorders(kind)
        port = await serverFromString(reactor, text).listen(factory)
        self.addCleanup(port.stopListening)
        return factory, port.getHost().port, port

    async def serve(self, text: str = "smc:127.0.0.1:0", kind: type[Recorder] = Recorder) -> tuple[Any, int]:
        """A listening factory, and the number of its port."""
        factory, number, _ = await self.listening(kind, text)
        return factory, number

    async def connect(self, text: str, kind: type[Recorder] = Recorder) -> Any:
        """A connected protocol."""
        protocol = await clientFromString(reactor, text).connect(Recorders(kind))
        self.addCleanup(self._disconnect, protocol)
        return protocol

    async def _disconnect(self, protocol: Any) -> None:
        if protocol.transport is not None and not protocol.lost.called:
            protocol.transport.abortConnection()
            await protocol.lost
