"""
The producers that scripts can register: they write the text of their end, and report what is asked of them.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from zope.interface import implementer

from twisted.internet.interfaces import IPullProducer, IPushProducer, IReactorTime
from twisted.protocols.basic import FileSender

from txrdma.testing.streams import transcript

CHUNK: Final = 65_536
"""The most that a producer writes at once."""


class Producing(Protocol):
    """The protocol, as its producers see it."""

    transport: Any

    def say(self, kind: str, about: object = "") -> None:
        """Report something about the connection."""

    def write(self, length: int) -> None:
        """Write so many bytes of the text."""

    def take(self, length: int) -> bytes: ...

    def sent(self) -> None:
        """Hear that the producer has written all that it was to write."""


class _Producing:
    """The common part of producers that write so many bytes."""

    def __init__(self, performer: Producing, length: int) -> None:
        self._performer = performer
        self._left = length
        self._isOver = False

    def _produce(self) -> None:
        """Write once; unregister when this was all."""
        performer = self._performer
        length = min(CHUNK, self._left)
        self._left -= length
        performer.write(length)
        if not self._left and not self._isOver:
            self._isOver = True
            performer.transport.unregisterProducer()
            performer.sent()

    def stopProducing(self) -> None:
        """Report that the consumer has gone, and write no more."""
        self._isOver = True
        self._performer.say(transcript.PRODUCER_STOPPED)

    def _asked(self) -> bool:
        """Whether it may write; to ask one that has been stopped breaks the rules."""
        if self._isOver and self._left:
            self._performer.say(transcript.BROKEN, "resumeProducing of a producer that was stopped")
        return not self._isOver


@implementer(IPushProducer)
class Pushing(_Producing):
    """Writes a piece in each turn of the reactor, until it is told to pause."""

    def __init__(self, performer: Producing, reactor: IReactorTime, length: int) -> None:
        super().__init__(performer, length)
        self._reactor = reactor
        self._isPaused = self._isWaiting = False

    def begin(self) -> None:
        """Register with the transport, and begin to write."""
        self._performer.transport.registerProducer(self, True)
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
        """Pause writing, as L{IPushProducer} asks."""
        self._isPaused = True

    def resumeProducing(self) -> None:
        """Resume writing, as L{IPushProducer} asks."""
        self._isPaused = False
        if self._asked():
            self._soon()


@implementer(IPullProducer)
class Pulling(_Producing):
    """Writes a piece when it is asked for one."""

    def begin(self) -> None:
        """Register, which asks for the first piece."""
        self._performer.transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """Write one piece, as L{IPullProducer} asks."""
        if self._asked():
            self._produce()


@implementer(IPushProducer)
class Holding:
    """Never writes: all that can be seen of it is what it is asked."""

    def __init__(self, performer: Producing) -> None:
        self._performer = performer

    def pauseProducing(self) -> None:
        """Report that the transport asks for a pause."""
        self._performer.say(transcript.PRODUCER_PAUSED)

    def resumeProducing(self) -> None:
        """Report that the transport asks for more."""
        self._performer.say(transcript.PRODUCER_RESUMED)

    def stopProducing(self) -> None:
        """Report that the consumer has gone."""
        self._performer.say(transcript.PRODUCER_STOPPED)


class _File:
    """The next bytes of an end's text as a file."""

    def __init__(self, performer: Producing, length: int) -> None:
        self._performer = performer
        self._left = length

    def read(self, most: int) -> bytes:
        """Bytes that are about to be written; none at the end."""
        length = min(most, self._left)
        self._left -= length
        return self._performer.take(length) if length else b""


def sendFile(performer: Producing, length: int) -> None:
    """Have Twisted's L{FileSender} write so much."""
    file: Any = _File(performer, length)  # it only reads
    sending = FileSender().beginFileTransfer(file, performer.transport)
    sending.addCallbacks(lambda _: performer.sent(), lambda _: performer.say(transcript.PRODUCER_STOPPED))
