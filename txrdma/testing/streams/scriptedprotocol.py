"""One end of a conversation: a protocol that reports each call, and performs the steps of its script."""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, cast, Final

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, quoteStringArgument, serverFromString
from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.kit.logs import errorText
from txrdma.testing.streams import producing, transcript
from txrdma.testing.streams.orders import Order, SERVER
from txrdma.testing.streams.reporting import NamedEvents, Reporter
from txrdma.testing.streams.script import parse, Step
from txrdma.testing.streams.texts import Text
from txrdma.testing.streams.transcript import PROCESS

_log = Logger()

_SENT: Final = "sent"
_AGAIN_SECONDS: Final = 0.01


OF_TRANSPORT: Final = {
    "release": "unregisterProducer",
    "lose": "loseConnection",
    "half": "loseWriteConnection",
    "abort": "abortConnection",
}
"""The steps that are a call of the transport."""


def methodName(step: str) -> str:
    """Return the name of the protocol's method for a step."""
    return f"step_{step.replace(' ', '_').replace('-', '_')}"


class Mistake(Exception):
    """Raised by the step C{raise}, like an error of a program."""


class ScriptedProtocol(Protocol):
    """
    The protocol of one connection.

    @ivar written: number of bytes given to its transport.
    @ivar received: number of received bytes.
    """

    transport: Any

    def __init__(self, player: Player, number: int) -> None:
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
        self._player.reporter.report(self._number, kind, about)

    # IProtocol, IHalfCloseableProtocol

    def connectionMade(self) -> None:
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
            self.step_pause()
            self._reactor.callLater(self._breath, self.step_resume)

    def readConnectionLost(self) -> None:
        self.report(transcript.READ_LOST)
        self._on("read-lost")

    def writeConnectionLost(self) -> None:
        self.report(transcript.WRITE_LOST)
        self._on("write-lost")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
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
            waiting = self._method(step.name)(*step.values)
            if waiting is not None:
                waiting.addCallback(self._goOn, steps[number:])
                return

    def _method(self, step: str) -> Callable[..., Deferred[None] | None]:
        """Return the method for a step, C{step_...} or the transport's; one that waits returns a Deferred."""
        name = OF_TRANSPORT.get(step)
        found: Any = getattr(self.transport, name) if name else getattr(self, methodName(step))
        return cast("Callable[..., Deferred[None] | None]", found)

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

    step_write = write

    def step_write_by(self, length: int, most: int) -> None:
        for piece in self._pieces(length, most):
            self.transport.write(piece)

    def step_sequence_by(self, length: int, most: int) -> None:
        self.transport.writeSequence(self._pieces(length, most))

    def step_trickle_by_every(self, length: int, most: int, seconds: float) -> Deferred[None]:
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

    def step_push(self, length: int) -> None:
        producing.Pushing(self, self._reactor, length).begin()

    def step_pull(self, length: int) -> None:
        producing.Pulling(self, length).begin()

    def step_file(self, length: int) -> None:
        producing.sendFile(self, length)

    def step_hold(self) -> None:
        self._held = producing.Holding(self)
        self.transport.registerProducer(self._held, True)

    # Reading

    def step_pause(self) -> None:
        self._isPaused = True
        self.transport.pauseProducing()

    def step_resume(self) -> None:
        self._isPaused = False
        self.transport.resumeProducing()

    def step_slowly(self, seconds: float) -> None:
        self._breath = seconds

    # Waiting

    def step_wait(self, seconds: float) -> Deferred[None]:
        deferred: Deferred[None] = Deferred()
        self._reactor.callLater(seconds, deferred.callback, None)
        return deferred

    def step_delay(self) -> None:
        self._reactor.callLater(0, self.report, transcript.DELAYED)

    def step_turn(self) -> Deferred[None]:
        # The first call runs before the reactor polls its descriptors, the second after.
        deferred: Deferred[None] = Deferred()
        self._reactor.callLater(0, self._reactor.callLater, 0, deferred.callback, None)
        return deferred

    def step_settle(self) -> Deferred[None]:
        return self.step_wait(self._player.order.settling)

    def step_await(self, event: str) -> Deferred[None] | None:
        return self._sent if event == _SENT else self._player.events.waitFor(event)

    def step_event(self, event: str) -> None:
        self.report(transcript.EVENT, event)

    # Ending

    def step_raise(self) -> None:
        raise Mistake("as the script says")

    # The process

    def step_block(self, seconds: float) -> None:
        time.sleep(seconds)

    def step_freeze(self, seconds: float) -> None:
        self.report(transcript.FREEZES, seconds)
        os.kill(os.getpid(), signal.SIGSTOP)

    def step_again(self) -> None:
        self._reactor.callLater(_AGAIN_SECONDS, self._player.connect)

    def step_again_until(self, count: int) -> None:
        if self._player.begun < count:
            self._player.connect()

    def step_close_port(self) -> None:
        self._player.closePort()

    def step_fork(self, seconds: float) -> None:
        self._player.reporter.leaveChild(seconds)

    def step_stop(self) -> None:
        self._player.stop()

    def step_stop_after(self, count: int) -> None:
        if self._player.lost >= count:
            self._player.stop()

    def step_term(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def step_kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def step_exit(self) -> None:
        os._exit(0)


@implementer(IHalfCloseableProtocol)
class HalfCloseScriptedProtocol(ScriptedProtocol):
    """A protocol that is notified of half-closed connections."""


class Player:
    """
    A process in a conversation: its endpoint, its connections and their common state.

    @ivar script: script of its end.
    @ivar begun: number of connections that a client has begun.
    @ivar lost: number of connections that were lost.
    """

    def __init__(self, order: Order, reactor: Any, reporter: Reporter) -> None:
        self.order = order
        self.reactor = reactor
        self.reporter = reporter
        self.script = parse(order.script)
        self.events = NamedEvents(reporter.socket)
        self.begun = self.lost = 0
        self._connections = 0
        self._port: Any = None
        self._factory = Factory.forProtocol(self._protocol)

    def _protocol(self) -> ScriptedProtocol:
        self._connections += 1
        kind = HalfCloseScriptedProtocol if self.script.knowsHalves else ScriptedProtocol
        return kind(self, self._connections - 1)

    def begin(self) -> None:
        """Begin to listen as a server, or to connect as a client."""
        self.reporter.report(PROCESS, transcript.RUNS, type(self.reactor).__name__)
        self.reactor.addReader(self.events)
        if self.order.who == SERVER:
            endpoint: Any = serverFromString(self.reactor, self.order.listen)
            if self.order.tls:
                from twisted.internet.endpoints import wrapServerTLS  # needs pyOpenSSL

                endpoint = wrapServerTLS(_certificate(self.order.tls).options(), endpoint)
            endpoint.listen(self._factory).addCallbacks(self._listening, self._failed)
        else:
            self.connect()

    def connect(self) -> None:
        """Begin one more connection to the server."""
        self.begun += 1
        text = self.order.connect
        if self.order.tls:
            inner = quoteStringArgument(text)
            text = f"tls:localhost:443:trustRoots={quoteStringArgument(self.order.tls)}:endpoint={inner}"
        clientFromString(self.reactor, text).connect(self._factory).addErrback(self._failed)

    def _listening(self, port: Any) -> None:
        self._port = port
        self.reporter.report(PROCESS, transcript.LISTENING, port.getHost().port)

    def _failed(self, failure: Failure) -> None:
        assert failure.type is not None
        _log.info("failed: {reason}", reason=errorText(failure.value))
        self.reporter.report(PROCESS, transcript.FAILED, failure.type.__name__)
        ScriptedProtocol(self, PROCESS).perform(self.script.on("failed"))

    def closePort(self) -> None:
        """Close the listening port, and report when that is done."""
        self._port.stopListening().addCallback(
            lambda _: self.reporter.report(PROCESS, transcript.EVENT, "closed")
        )

    def stop(self) -> None:
        """Stop the reactor, unless it is stopping already."""
        try:
            self.reactor.stop()
        except ReactorNotRunning:
            pass


def _certificate(folder: str) -> Any:
    from twisted.internet.ssl import PrivateCertificate

    with open(os.path.join(folder, "server.pem"), "rb") as file:
        return PrivateCertificate.loadPEM(file.read())


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
