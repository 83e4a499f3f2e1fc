"""
Protocols that use a stream transport in random ways, and check its promises.

Each end writes a part of L{TEXT}, so its peer knows every byte that must arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IPullProducer, IPushProducer
from twisted.internet.protocol import connectionDone, Protocol
from twisted.python.failure import Failure

from txrdma.testing.outcome import Violation
from txrdma.testing.smc.hosts import Host

MOST: Final = 192 * 1024
"""Largest number of bytes that an end writes."""

TEXT: Final = Random(0).randbytes(4 * MOST)

WRITINGS: Final = ("timed", "timed", "once", "push", "pull", "answers")
ENDINGS: Final = ("lose", "lose", "half", "wait")

CALLBACKS: Final = (
    *("connectionMade", "dataReceived", "readConnectionLost", "writeConnectionLost", "connectionLost"),
    *("resumeProducing", "pauseProducing", "stopProducing"),
)
"""Methods of protocols and producers, in which an end may act."""

ACTIONS: Final = ("lose", "half", "abort", "more", "register", "again", "unpause", "raise")
"""
What an end may do in a callback: a close, a half-close, an abort, writes after its end of writing, a new
registration of its producer, twice the same call, a pause with a resume, and an exception.
"""

_ABORT_TIMEOUT: Final = 120.0
"""Seconds after which an end aborts a TCP connection that it has closed, and that does not end."""


@dataclass(frozen=True, slots=True)
class EndPlan:
    """
    The plan of one end: the amount and manner of its writes, and its end.

    @ivar total: number of bytes that it writes.
    @ivar most: largest number of bytes of one write.
    @ivar writing: one of L{WRITINGS}.
    @ivar ending: one of L{ENDINGS}: its action after it has written everything.
    @ivar isEarly: whether it closes immediately, while its producer continues.
    @ivar isHalfCloseable: whether its protocol provides L{IHalfCloseableProtocol}.
    @ivar pausing: probability of a pause when the connection is made, and after received data.
    @ivar pace: approximate number of seconds between two writes.
    @ivar abortAt: seconds after which it aborts the connection, or None.
    @ivar seed: seed of its random decisions.
    @ivar acts: pairs of a callback (see L{CALLBACKS}) and of an action (see L{ACTIONS}), each done once.
    """

    total: int
    most: int
    writing: str
    ending: str
    isEarly: bool = False
    isHalfCloseable: bool = False
    pausing: float = 0.0
    pace: float = 0.0
    abortAt: float | None = None
    seed: float = 0.0
    acts: tuple[tuple[str, str], ...] = ()


def drawEnd(random: Random, longest: int, endings: Sequence[str] = ENDINGS) -> EndPlan:
    """Draw the plan of one end of a connection, which writes fewer bytes than C{longest}."""
    total = random.choice((0, random.randrange(1, 100), random.randrange(longest), random.randrange(longest)))
    plan = EndPlan(
        total=total,
        most=random.choice((1 + total // 200, 1 + total // 20, 100 + total // 10, 5000, 20_000, MOST)),
        writing=random.choice(WRITINGS),
        ending=random.choice(endings),
        isEarly=random.random() < 0.2,
        isHalfCloseable=random.random() < 0.6,
        pausing=random.choice((0.0, 0.0, 0.1, 0.5)),
        pace=random.choice((0.0, 1e-5, 1e-3, 0.05)),
        abortAt=random.random() * 0.3 if random.random() < 0.08 else None,
        seed=random.random(),
    )
    return replace(plan, acts=_drawActs(Random(f"acts {plan.seed}")))


def _drawActs(random: Random) -> tuple[tuple[str, str], ...]:
    count = random.choice((0, 0, 0, 1, 1, 2, 5))
    return tuple((random.choice(CALLBACKS), random.choice(ACTIONS)) for _ in range(count))


class Deliberate(Exception):
    """Raised by a protocol or producer of a simulation, which transports log."""


class Talker(Protocol):
    """
    One end of a simulated connection, which writes and reads according to its plan.

    @ivar written: number of bytes given to the transport.
    @ivar owed: number of those before it ended writing: the peer receives them if the end is in order.
    @ivar received: number of received bytes.
    @ivar hasRaised: whether one of its callbacks has raised.
    @ivar version: SMC-R version of the connection; 0 on TCP.
    @ivar hasQuit: whether it closed before the peer did, or aborted, so that later data may be lost.
    @ivar hasEndedWriting: whether it has ended writing, by a close or half-close.
    @ivar hasHalfClosed: whether it has called C{loseWriteConnection}.
    @ivar hasClosed: whether it has called C{loseConnection}; C{wasFirst}: before the transport closed.
    @ivar sawEndAt: time at which the transport reported the end of the peer's data, or None.
    @ivar lostAt: time of C{connectionLost}, or None.
    """

    transport: Any
    peer: Talker

    def __init__(self, host: Host, name: str, plan: EndPlan) -> None:
        self.host = host
        self.name = name
        self.plan = plan
        self.random = random = Random(plan.seed)
        self.start = random.randrange(len(TEXT) - MOST)
        self.written = self.owed = self.received = 0
        self.acts = list(plan.acts)
        self.hasRaised = self.isActing = False
        self.hasQuit = self.hasEndedWriting = self.hasHalfClosed = self.hasClosed = self.hasAborted = False
        self.wasFirst = False
        self.isMade = self.isFinished = self.isProducing = self.wasStopped = self.isPausing = False
        self.mode = ""
        self.version = 0
        self.sawEndAt: float | None = None
        self.lostAt: float | None = None
        self.reason: type[BaseException | None] | None = None

    def __repr__(self) -> str:
        return (
            f"{self.name} ({self.mode}: {self.written} of {self.plan.total} written, "
            f"{self.received} of {self.peer.written} received, {self.plan})"
        )

    def claim(self, holds: bool, what: str) -> None:
        """Record and raise a L{Violation} of the transport unless C{holds} is true."""
        if not holds:
            violation = Violation(f"{self!r}: {what}")
            self.host.world.complaints.append(violation)  # transports catch exceptions of protocols
            raise violation

    def note(self, what: str) -> None:
        """Add an event to the digest of the run."""
        self.host.world.network.note(f"{self.name} {what}")

    def later(self, delay: float, call: Callable[[], None]) -> None:
        """Call a function after a delay, unless the connection has ended by then."""

        def unlessOver() -> None:
            if self.lostAt is None:
                call()

        self.host.callSteadily(delay, unlessOver)

    # IProtocol

    def connectionMade(self) -> None:
        """Begin to write and read according to the plan."""
        self.claim(not self.isMade, "connected twice")
        self.isMade = True
        self.mode = self.transport.smc.mode
        self.version = self.transport.smc.version
        self.note(f"made {self.mode}")
        self.isActing = True
        plan, random = self.plan, self.random
        if random.random() < plan.pausing:
            self._pause()
        if plan.abortAt is not None:
            self.later(plan.abortAt, self._abort)
        if plan.writing in ("push", "pull"):
            self.isProducing = True
            self._register()
            if plan.isEarly and plan.ending == "lose":
                self._close()
        elif random.random() < 0.5:
            self._turn()
        else:
            self.later(plan.pace * random.random(), self._turn)
        self.isActing = False
        self.act("connectionMade")

    def dataReceived(self, data: bytes) -> None:
        """Check that these are the next bytes of the peer's text."""
        self.claim(self.isMade and self.lostAt is None, "data when there is no connection")
        self.claim(not self.sawEnd, "data after the end")
        self.claim(not self.isPausing, "data while paused")
        begin, self.received = self.received, self.received + len(data)
        peer = self.peer
        self.claim(self.received <= peer.written, "more data than was written")
        self.claim(data == TEXT[peer.start + begin : peer.start + self.received], f"other data at {begin}")
        self.note(f"heard {len(data)}")
        plan, random = self.plan, self.random
        if plan.pausing and random.random() < plan.pausing:
            self._pause()
        if plan.writing == "answers" and not self.hasEndedWriting:
            self._write()
        self.act("dataReceived")

    def readConnectionLost(self) -> None:
        """Check the end of the peer's data, and close the connection after all local data is written."""
        self.claim(not self.sawEnd, "two ends of the peer's data")
        self.claim(self.lostAt is None, "the end of reading after the connection's end")
        self.note("read lost")
        self._end()
        if self.isFinished:
            self._close()
        self.act("readConnectionLost")

    def writeConnectionLost(self) -> None:
        """Check that writing ends only after a half-close, and before the connection's end."""
        self.claim(self.hasHalfClosed, "no half-close was requested")
        self.claim(self.lostAt is None, "the end of writing after the connection's end")
        self.act("writeConnectionLost")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Check the end of the connection, and its reason."""
        self.claim(self.isMade, "lost, but not connected")
        self.claim(self.lostAt is None, "lost twice")
        self.lostAt = self.host.world.clock.seconds()
        error = reason.value
        self.reason = error.__class__
        self.note(f"lost {self.reason.__name__}")
        kinds = (ConnectionDone, ConnectionLost, ConnectionAborted)
        hasRaised = self.hasRaised and self.reason is Deliberate
        self.claim(self.reason in kinds or hasRaised, f"ended by {error!r}")
        self.claim(self.reason is not ConnectionAborted or self.hasAborted, "aborted, but not by this end")
        if self.isDone and not self.hasQuit and not self.sawEnd:
            self._end()
        self._useLost()
        self.act("connectionLost")

    @property
    def sawEnd(self) -> bool:
        """Whether the transport has reported the end of the peer's data."""
        return self.sawEndAt is not None

    @property
    def isDone(self) -> bool:
        """Whether the connection has ended with L{ConnectionDone}."""
        return self.reason is ConnectionDone

    def _end(self) -> None:
        """Check, when the transport reports an orderly end, that all of the peer's data has arrived."""
        self.sawEndAt = self.host.world.clock.seconds()
        peer = self.peer
        if peer.host.isStopped:
            return  # a process that stops ends its connections
        if peer.host.isDead and (self.mode == "TCP" or self.transport.smc.route == "shared-memory"):
            return  # the system closes the connections of a killed process in order
        if self.mode == "TCP" and self.hasEndedWriting and not peer.isMade:
            return  # the local end has ended a handshake
        if not peer.hasEndedWriting:
            ended = self.hasHalfClosed and not peer.plan.isHalfCloseable
            self.claim(ended or peer.hasRaised, "the end of a peer that has not ended")
        elif peer.hasRaised:
            pass  # its unsent data is lost
        elif (peer.wasFirst and self.mode == "SMC-R") or peer.plan.isHalfCloseable or not self.hasHalfClosed:
            # Otherwise this end's half-close has closed the peer, whose protocol is not half-closeable.
            self.claim(self.received >= peer.owed, "the end, but data is missing")

    def _register(self) -> None:
        if self.plan.writing == "pull":
            self.transport.registerProducer(_Pulled(self), False)
        else:
            pushing = _Pushing(self)
            self.transport.registerProducer(pushing, True)
            self.later(self.plan.pace * self.random.random(), pushing.begin)

    # Actions

    def _pause(self) -> None:
        random = self.random
        self.isPausing = True
        self.transport.pauseProducing()
        if random.random() < 0.1:
            self._resume()
        else:
            self.later(random.choice((0.0, 1e-4, 0.01, 0.1, 3.0)) * random.random(), self._resume)

    def _resume(self) -> None:
        self.isPausing = False
        self.transport.resumeProducing()

    def _turn(self) -> None:
        """Write a few times, then schedule the next writes."""
        if self.hasEndedWriting:
            return
        plan, random = self.plan, self.random
        for _ in range(1000 if plan.writing == "once" else random.randrange(1, 4)):
            if not self._write():
                self._finish()
                return
        self.later(plan.pace * random.random() * 2, self._turn)

    def _write(self) -> bool:
        """Write once; return whether there is more to write."""
        plan, random = self.plan, self.random
        length = min(random.randint(1, plan.most), plan.total - self.written)
        if length and not self.wasStopped:
            begin = self.start + self.written
            self.written += length
            if plan.writing != "push" or not self.hasEndedWriting:  # a close does not wait for push producers
                self.owed = self.written
            self.note(f"writes {length}")
            if random.random() < 0.2:
                cut = random.randint(0, length)
                pieces = [TEXT[begin : begin + cut], TEXT[begin + cut : begin + length]]
                self.transport.writeSequence(pieces)
            else:
                self.transport.write(TEXT[begin : begin + length])
        return self.written < plan.total

    def _finish(self) -> None:
        """End the connection according to the plan, because everything is written."""
        if self.isFinished:
            return
        self.isFinished = True
        if self.isProducing:
            self.isProducing = False
            self.transport.unregisterProducer()
        if self.sawEnd or self.plan.ending == "lose":
            self._close()
        elif self.plan.ending == "half":
            self.note("half-closes")
            self.hasEndedWriting = self.hasHalfClosed = True
            self.transport.loseWriteConnection()

    # Actions in callbacks

    def act(self, callback: str) -> None:
        """Do what the plan has for a callback, once; not on TCP, whose transport is Twisted's."""
        if self.acts and self.mode == "SMC-R" and not self.peer.host.isStopped and not self.host.isStopped:
            due = [action for where, action in self.acts if where == callback]
            self.acts = [each for each in self.acts if each[0] != callback]
            wasActing, self.isActing = self.isActing, True
            try:
                for action in sorted(due, key="raise".__eq__):
                    if action != "raise" or not wasActing:  # a callback within another one does not raise
                        self.note(f"{callback}: {action}")
                        getattr(self, f"_act_{action}")()
            finally:
                self.isActing = wasActing

    def _act_lose(self) -> None:
        if self.lostAt is None:
            self._close()

    def _act_half(self) -> None:
        if self.lostAt is None and not self.hasEndedWriting and not self.sawEnd:
            self.isFinished = self.hasEndedWriting = self.hasHalfClosed = True
            if self.isProducing:
                self.isProducing = False
                self.transport.unregisterProducer()
            self.transport.loseWriteConnection()

    def _act_abort(self) -> None:
        if self.lostAt is None:
            self._abort()

    def _act_more(self) -> None:
        """Write after the end of writing, which the peer may receive until the transport has closed."""
        if self.hasEndedWriting and not self.isProducing and self.lostAt is None and self.written < MOST - 9:
            begin = self.start + self.written
            self.written += 9
            self.transport.write(TEXT[begin : begin + 4])
            self.transport.writeSequence([b"", TEXT[begin + 4 : begin + 9]])

    def _act_register(self) -> None:
        if self.isProducing and self.lostAt is None and not self.wasStopped:
            self.transport.unregisterProducer()
            self._register()

    def _act_again(self) -> None:
        if self.lostAt is not None:
            return
        if self.hasHalfClosed:
            self.transport.loseWriteConnection()
        if self.hasClosed:
            self.transport.loseConnection()
        if self.hasAborted:
            self.transport.abortConnection()
        if not self.isProducing:
            self.transport.unregisterProducer()

    def _act_unpause(self) -> None:
        if not self.isPausing and self.lostAt is None:
            self.transport.pauseProducing()
            self.transport.pauseProducing()
            self.transport.resumeProducing()
            self.transport.resumeProducing()

    def _act_raise(self) -> None:
        self.hasRaised = self.hasQuit = True
        raise Deliberate

    def _useLost(self) -> None:
        """Make all calls to a transport that has ended, which has no effect."""
        transport = self.transport
        seen: list[str] = []
        transport.write(b"lost")
        transport.writeSequence([b"lost", b"lost"])
        transport.pauseProducing()
        transport.resumeProducing()
        transport.unregisterProducer()
        if self.mode == "SMC-R":  # Twisted's TCP would use its closed socket
            transport.loseWriteConnection()
        transport.loseConnection()
        transport.abortConnection()
        late = _Late(seen.append)
        transport.registerProducer(late, bool(self.random.getrandbits(1)))
        self.claim(seen == ["stop"], f"a producer that was registered after the end: {seen}")

    def _close(self) -> None:
        if not self.hasClosed:
            self.note("closes")
            self.hasEndedWriting = self.hasClosed = True
            self.hasQuit |= not self.sawEnd
            self.wasFirst = not self.transport.disconnecting
            if self.mode == "TCP":
                self.later(_ABORT_TIMEOUT, self._giveUp)
            self.transport.loseConnection()

    def _giveUp(self) -> None:
        """
        Abort a TCP connection that both ends have closed with more unsent data than the connection holds.

        Twisted's TCP transport stops reading in loseConnection, so each end waits for the other to read (seen
        with real sockets and 100 MB each way). Therefore servers abort closed connections after a time:
        HTTPChannel.abortTimeout of twisted.web. No other long-lasting connection is aborted here.
        """
        if self.peer.hasClosed and self.peer.lostAt is None:
            self._abort()

    def _abort(self) -> None:
        self.note("aborts")
        self.hasQuit = self.hasAborted = True
        self.transport.abortConnection()


@implementer(IHalfCloseableProtocol)
class HalfCloseableTalker(Talker):
    """A talker whose protocol provides L{IHalfCloseableProtocol}."""


def makeTalker(host: Host, name: str, plan: EndPlan) -> Talker:
    """Make a talker of the class that its plan requires."""
    return (HalfCloseableTalker if plan.isHalfCloseable else Talker)(host, name, plan)


class _Producer:
    """Common base of push and pull producers."""

    def __init__(self, talker: Talker) -> None:
        self.talker = talker
        self.isPaused = self.isOver = False

    def stopProducing(self) -> None:
        """Stop producing, and check that this is called only once."""
        self.talker.claim(not self.isOver, "stopped twice")
        self.isOver = self.talker.wasStopped = True
        self.talker.act("stopProducing")

    def _produce(self) -> bool:
        talker = self.talker
        if self.isOver or not talker.isProducing:
            return False
        if not talker._write():
            talker._finish()
            return False
        return True


@implementer(IPushProducer)
class _Late:
    """A producer that is registered after the end of the connection."""

    def __init__(self, seen: Callable[[str], None]) -> None:
        self._seen = seen

    def pauseProducing(self) -> None:
        self._seen("pause")

    def resumeProducing(self) -> None:
        self._seen("resume")

    def stopProducing(self) -> None:
        self._seen("stop")


@implementer(IPullProducer)
class _Pulled(_Producer):
    """A pull producer of a talker's text."""

    def resumeProducing(self) -> None:
        """Write one piece, and check that the producer was not stopped."""
        self.talker.claim(not self.isOver, "resumed after the end")
        self._produce()
        self.talker.act("resumeProducing")


@implementer(IPushProducer)
class _Pushing(_Producer):
    """A push producer of a talker's text."""

    _isWaiting = False

    def begin(self) -> None:
        """Start to write the text, unless the transport has paused this producer already."""
        if not self.isPaused:
            self._resend()

    def pauseProducing(self) -> None:
        """Stop writing until L{resumeProducing}, and act by the plan, but not raise: the talker writes."""
        self.isPaused = True
        if ("pauseProducing", "raise") not in self.talker.acts:
            self.talker.act("pauseProducing")

    def resumeProducing(self) -> None:
        self.isPaused = False
        self._resend()
        self.talker.act("resumeProducing")

    def _resend(self) -> None:
        talker = self.talker
        for _ in range(talker.random.randrange(1, 5)):
            if self.isPaused or not self._produce():
                return
        if not self._isWaiting and not self.isPaused:
            self._isWaiting = True
            talker.later(talker.plan.pace * talker.random.random(), self._again)

    def _again(self) -> None:
        self._isWaiting = False
        if not self.isPaused:
            self._resend()
