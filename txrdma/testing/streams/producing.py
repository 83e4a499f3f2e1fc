"""The producers that scripts can register: they write the text of their end, and report their calls."""

from __future__ import annotations

from typing import Any, Final, Protocol

from zope.interface import implementer

from twisted.internet.interfaces import IPullProducer, IPushProducer, IReactorTime
from twisted.protocols.basic import FileSender

from txrdma.testing.streams import transcript

CHUNK: Final = 65_536
"""Largest number of bytes of one write of a producer."""


class Producing(Protocol):
    """Interface of a protocol for its producers."""

    transport: Any

    def report(self, kind: str, about: object = "") -> None:
        """Report an event of the connection."""

    def write(self, length: int) -> None:
        """Write this many bytes of the text."""

    def take(self, length: int) -> bytes: ...

    def sent(self) -> None:
        """Note that the producer has written everything."""


class _Producing:
    """Common base of producers that write a number of bytes."""

    def __init__(self, protocol: Producing, length: int) -> None:
        self._protocol = protocol
        self._left = length
        self._isOver = False

    def _produce(self) -> None:
        """Write once, and unregister after the last byte."""
        protocol = self._protocol
        length = min(CHUNK, self._left)
        self._left -= length
        protocol.write(length)
        if not self._left and not self._isOver:
            self._isOver = True
            protocol.transport.unregisterProducer()
            protocol.sent()

    def stopProducing(self) -> None:
        """Report the call, and write no more."""
        self._isOver = True
        self._protocol.report(transcript.PRODUCER_STOPPED)

    def _asked(self) -> bool:
        """Return whether the producer may write; report a violation if it was stopped before."""
        if self._isOver and self._left:
            self._protocol.report(transcript.BROKEN, "resumeProducing of a producer that was stopped")
        return not self._isOver


@implementer(IPushProducer)
class Pushing(_Producing):
    """Writes a piece in each iteration of the reactor, until it is paused."""

    def __init__(self, protocol: Producing, reactor: IReactorTime, length: int) -> None:
        super().__init__(protocol, length)
        self._reactor = reactor
        self._isPaused = self._isWaiting = False

    def begin(self) -> None:
        """Register with the transport, and start to write."""
        self._protocol.transport.registerProducer(self, True)
        self._turn()

    def _turn(self) -> None:
        self._isWaiting = False
        if not self._isPaused and not self._isOver:
            self._produce()
            self._soon()

    def _soon(self) -> None:
        if not self._isWaiting and not self._isOver:
            self._isWaiting = True
            self._reactor.callLater(0, self._turn)

    def pauseProducing(self) -> None:
        self._isPaused = True

    def resumeProducing(self) -> None:
        self._isPaused = False
        if self._asked():
            self._soon()


@implementer(IPullProducer)
class Pulling(_Producing):
    """Writes one piece for each call of C{resumeProducing}."""

    def begin(self) -> None:
        """Register with the transport, which requests the first piece."""
        self._protocol.transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        if self._asked():
            self._produce()


@implementer(IPushProducer)
class Holding:
    """Never writes, and only reports its calls."""

    def __init__(self, protocol: Producing) -> None:
        self._protocol = protocol

    def pauseProducing(self) -> None:
        self._protocol.report(transcript.PRODUCER_PAUSED)

    def resumeProducing(self) -> None:
        self._protocol.report(transcript.PRODUCER_RESUMED)

    def stopProducing(self) -> None:
        self._protocol.report(transcript.PRODUCER_STOPPED)


class _File:
    """The next bytes of an end's text as a file object."""

    def __init__(self, protocol: Producing, length: int) -> None:
        self._protocol = protocol
        self._left = length

    def read(self, most: int) -> bytes:
        """Return bytes that are about to be written; none at the end."""
        length = min(most, self._left)
        self._left -= length
        return self._protocol.take(length) if length else b""


def sendFile(protocol: Producing, length: int) -> None:
    """Write this many bytes by Twisted's L{FileSender}."""
    file: Any = _File(protocol, length)  # FileSender only reads it
    sending = FileSender().beginFileTransfer(file, protocol.transport)
    sending.addCallbacks(lambda _: protocol.sent(), lambda _: protocol.report(transcript.PRODUCER_STOPPED))
