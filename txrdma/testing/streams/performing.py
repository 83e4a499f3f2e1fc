"""
The protocol of a player: it reports each call, and performs the steps of its script.
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final
from typing import Protocol as Shape

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import connectionDone, Protocol
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure

from txrdma.testing.streams import producing, transcript
from txrdma.testing.streams.cues import Cues, Reporter
from txrdma.testing.streams.orders import Order
from txrdma.testing.streams.script import Script, Step
from txrdma.testing.streams.texts import Text

_SENT: Final = "sent"
_AGAIN_SECONDS: Final = 0.01


class Mistake(Exception):
    """Raised by the step C{raise}, like an error of a program."""


class Playing(Shape):
    """
    Interface of a player for the performers of its connections.

    @ivar begun: number of connections that a client has begun.
    @ivar lost: number of connections that were lost.
    """

    order: Order
    reactor: Any
    script: Script
    reporter: Reporter
    cues: Cues
    begun: int
    lost: int

    def connect(self) -> None:
        """Begin one more connection to the other end."""

    def closePort(self) -> None:
        """Close the listening port: accept no more connections."""

    def stop(self) -> None:
        """Stop the player's reactor, unless it is stopping already."""


class Performer(Protocol):
    """
    The protocol of one connection.

    @ivar written: number of bytes given to its transport.
    @ivar received: number of received bytes.
    """

    transport: Any

    def __init__(self, player: Playing, number: int) -> None:
        self._player = player
        self._number = number
        self._reactor = player.reactor
        self._text = Text(player.order.who)
        self._thresholds = list(player.script.thresholds)
        self._crc = 0
        self._isPaused = False
        self._breath: float | None = None
        self._sent: Deferred[None] = Deferred()
        self._held: producing.Holding | None = None
        self.written = self.received = 0

    def report(self, kind: str, about: object = "") -> None:
        """Report an event of this connection."""
        self._player.reporter.report(self._number, kind, about)

    # IProtocol, IHalfCloseableProtocol

    def connectionMade(self) -> None:
        """Report that the connection is made, and perform the steps for it."""
        self.report(transcript.MADE, servedBy(self.transport))
        self._on("made")

    def dataReceived(self, data: bytes) -> None:
        """Report the bytes, and perform the steps that have waited for this many."""
        if self._isPaused:
            self.report(transcript.BROKEN, "dataReceived of a paused transport")
        self.received += len(data)
        self._crc = zlib.crc32(data, self._crc)
        self.report(transcript.DATA, f"{self.received} {self._crc:08x}")
        self._on("data")
        while self._thresholds and self._thresholds[0].size <= self.received:
            self.perform(self._thresholds.pop(0).steps)
        if self._breath is not None:
            self._pause()
            self._reactor.callLater(self._breath, self._resume)

    def readConnectionLost(self) -> None:
        """Report that the peer has closed its half, and perform the steps for it."""
        self.report(transcript.READ_LOST)
        self._on("read-lost")

    def writeConnectionLost(self) -> None:
        """Report that the local half is closed, and perform the steps for it."""
        self.report(transcript.WRITE_LOST)
        self._on("write-lost")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Report the end and its reason, and perform the steps for it."""
        assert reason.type is not None
        self._player.lost += 1
        self.report(transcript.LOST, reason.type.__name__)
        self._on("lost")

    def _on(self, occasion: str) -> None:
        self.perform(self._player.script.on(occasion))

    def perform(self, steps: Sequence[Step]) -> None:
        """Perform steps up to the first that waits; the others follow when it has finished."""
        for number, step in enumerate(steps, 1):
            self.report(transcript.DOES, step.text)
            waiting = _METHODS[step.name](self, *step.values)
            if waiting is not None:
                waiting.addCallback(self._goOn, steps[number:])
                return

    def _goOn(self, _: None, steps: Sequence[Step]) -> None:
        self.perform(steps)

    # Writing

    def take(self, length: int) -> bytes:
        """Return the next bytes of this end's text, which are about to be written."""
        data = self._text.take(self.written, length)
        self.written += length
        self.report(transcript.WROTE, self.written)
        return data

    def _pieces(self, length: int, most: int) -> list[bytes]:
        return [self.take(min(most, length - begin)) for begin in range(0, length, most)]

    def write(self, length: int) -> None:
        """Write the next bytes of the end's text."""
        self.transport.write(self.take(length))

    def _writeBy(self, length: int, most: int) -> None:
        for piece in self._pieces(length, most):
            self.transport.write(piece)

    def _sequenceBy(self, length: int, most: int) -> None:
        self.transport.writeSequence(self._pieces(length, most))

    def _trickle(self, length: int, most: int, seconds: float) -> Deferred[None]:
        done: Deferred[None] = Deferred()

        def turn(left: int) -> None:
            self.write(min(most, left))
            if left > most:
                self._reactor.callLater(seconds, turn, left - most)
            else:
                done.callback(None)

        turn(length)
        return done

    def sent(self) -> None:
        """Note that a producer has written everything."""
        self._sent.callback(None)

    def _push(self, length: int) -> None:
        producing.Pushing(self, self._reactor, length).begin()

    def _pull(self, length: int) -> None:
        producing.Pulling(self, length).begin()

    def _file(self, length: int) -> None:
        producing.sendFile(self, length)

    def _hold(self) -> None:
        self._held = producing.Holding(self)
        self.transport.registerProducer(self._held, True)

    def _release(self) -> None:
        self.transport.unregisterProducer()

    # Reading

    def _pause(self) -> None:
        self._isPaused = True
        self.transport.pauseProducing()

    def _resume(self) -> None:
        self._isPaused = False
        self.transport.resumeProducing()

    def _slowly(self, seconds: float) -> None:
        self._breath = seconds

    # Waiting

    def _wait(self, seconds: float) -> Deferred[None]:
        deferred: Deferred[None] = Deferred()
        self._reactor.callLater(seconds, deferred.callback, None)
        return deferred

    def _delay(self) -> None:
        self._reactor.callLater(0, self.report, transcript.DELAYED)

    def _turn(self) -> Deferred[None]:
        # The first call runs before the reactor polls its descriptors, the second after.
        deferred: Deferred[None] = Deferred()
        self._reactor.callLater(0, self._reactor.callLater, 0, deferred.callback, None)
        return deferred

    def _settle(self) -> Deferred[None]:
        return self._wait(self._player.order.settling)

    def _await(self, cue: str) -> Deferred[None] | None:
        return self._sent if cue == _SENT else self._player.cues.waitFor(cue)

    def _cue(self, cue: str) -> None:
        self.report(transcript.CUE, cue)

    # Ending

    def _lose(self) -> None:
        self.transport.loseConnection()

    def _half(self) -> None:
        self.transport.loseWriteConnection()

    def _abort(self) -> None:
        self.transport.abortConnection()

    def _raise(self) -> None:
        raise Mistake("as the script says")

    # The process

    def _block(self, seconds: float) -> None:
        time.sleep(seconds)

    def _freeze(self, seconds: float) -> None:
        self.report(transcript.FREEZES, seconds)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _again(self) -> None:
        self._reactor.callLater(_AGAIN_SECONDS, self._player.connect)

    def _againUntil(self, count: int) -> None:
        if self._player.begun < count:
            self._player.connect()

    def _closePort(self) -> None:
        self._player.closePort()

    def _fork(self, seconds: float) -> None:
        self._player.reporter.leaveChild(seconds)

    def _stop(self) -> None:
        self._player.stop()

    def _stopAfter(self, count: int) -> None:
        if self._player.lost >= count:
            self._player.stop()

    def _term(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _exit(self) -> None:
        os._exit(0)


@implementer(IHalfCloseableProtocol)
class HalvesPerformer(Performer):
    """A performer that is notified of half-closed connections."""


_METHODS: Final[dict[str, Callable[..., Deferred[None] | None]]] = {
    "write": Performer.write,
    "write by": Performer._writeBy,
    "sequence by": Performer._sequenceBy,
    "trickle by every": Performer._trickle,
    "push": Performer._push,
    "pull": Performer._pull,
    "file": Performer._file,
    "hold": Performer._hold,
    "release": Performer._release,
    "lose": Performer._lose,
    "half": Performer._half,
    "abort": Performer._abort,
    "pause": Performer._pause,
    "resume": Performer._resume,
    "slowly": Performer._slowly,
    "raise": Performer._raise,
    "delay": Performer._delay,
    "turn": Performer._turn,
    "settle": Performer._settle,
    "wait": Performer._wait,
    "await": Performer._await,
    "cue": Performer._cue,
    "block": Performer._block,
    "freeze": Performer._freeze,
    "again": Performer._again,
    "again until": Performer._againUntil,
    "close-port": Performer._closePort,
    "fork": Performer._fork,
    "stop": Performer._stop,
    "stop after": Performer._stopAfter,
    "term": Performer._term,
    "kill": Performer._kill,
    "exit": Performer._exit,
}
"""The methods for L{txrdma.testing.streams.script.STEPS}; one that waits returns a Deferred."""

PERFORMED: Final = frozenset(_METHODS)
"""The names of all steps that can be performed."""


def performerOf(player: Playing, number: int) -> Performer:
    """Create the protocol for a connection with this number."""
    return (HalvesPerformer if player.script.knowsHalves else Performer)(player, number)


def servedBy(transport: Any) -> str:
    """
    Return the name of the transport that is used, below TLS.

    C{TCP} is Twisted's own; C{"TCP after NOSMCDEV"} one that fell back to it; C{"SMC-R shared-memory"} a mode
    and a route; any other has the name of its class.
    """
    while isinstance(transport, Protocol):
        transport = transport.transport
    status = getattr(transport, "smc", None)
    if status is not None:
        reason = status.fallbackReason
        return (
            f"{status.mode} after {getattr(reason, 'name', reason)}"
            if reason
            else f"{status.mode} {status.route}"
        )
    return "TCP" if isinstance(transport, Connection) else type(transport).__name__
