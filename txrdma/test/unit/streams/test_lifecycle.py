"""All sequences of a few events, at the end of a stream over a message connection."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final, Literal

from zope.interface import implementer

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import connectionDone
from twisted.internet.protocol import Protocol as StreamProtocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.stream._bytes import ByteStream, DISCONNECT, SHUTDOWN
from txrdma.streams.connection import StreamConnection
from txrdma.streams.transport import StreamTransport
from txrdma.testing.protocols import ProducerRecorder
from txrdma.testing.reactors import ReactorClock

MOST: Final = 2
"""Number of bytes that each end writes at most, one at a time."""

ENDS: Final = {"ConnectionDone", "ConnectionLost", "ConnectionAborted"}

Carrier = Literal["rsocket", "btl"]
"""Message connections: that of C{btl} is closed behind the close of the stream, which is not acknowledged."""

Reactions = Mapping[str, tuple[str, ...]]
"""For calls of the protocol, the events that they cause; C{resumeProducing} is that of a pull producer."""

REASONS: Final = {
    "dataReceived": {"peerWrites", "peerWritesAndHalfCloses", "peerWritesAndCloses"},
    "readConnectionLost": {"peerHalfCloses", "peerCloses", "peerWritesAndHalfCloses", "peerWritesAndCloses"},
    "resumeProducing": {"register"},
}
"""For calls of the protocol, the events without which they do not happen."""


class Talker(StreamProtocol):
    """
    A protocol that records its calls, and reacts to some.
    """

    def __init__(self, world: World, reactions: Reactions) -> None:
        self.calls: list[str] = []
        self._world, self._reactions = world, reactions

    def called(self, name: str) -> None:
        """Record a call, and react."""
        self.calls.append(name)
        self.react(name)

    def react(self, name: str) -> None:
        """Cause the events that follow a call."""
        for event in self._reactions.get(name, ()):
            self._world.hasReacted = True
            getattr(self._world, event)()

    def dataReceived(self, data: bytes) -> None:
        for _ in data:
            self.called("dataReceived")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.called(type(reason.value).__name__)


@implementer(IHalfCloseableProtocol)
class HalfTalker(Talker):
    """A talker that knows half-closes."""

    def readConnectionLost(self) -> None:
        self.called("readConnectionLost")

    def writeConnectionLost(self) -> None:
        self.called("writeConnectionLost")


class End(StreamConnection[ByteStream, Any]):
    """A stream whose messages the L{World} sends."""

    kind = "test"
    host = peer = None  # type: ignore[assignment]  # used by the log only
    posted = 0

    def __init__(self, world: World) -> None:
        super().__init__(world.clock, True, lambda end: StreamTransport(end, end, world.protocol, "test"))
        self._world = world
        self._core: ByteStream | None = world.core
        self._begun(world)

    def _turn(self) -> None:
        super()._turn()
        self._world.turned()

    def _send(self, core: ByteStream, transport: Any) -> None:
        while (message := core.next()) is not None:
            self.posted += len(message[0])
        if core.hasSentClose and self._world.carrier == "btl":
            transport.loseConnection()


class World:
    """
    A stream, its reactor and its message connection.

    L{possible} returns the events that can happen.

    @ivar owed: number of bytes that were written before the peer closed; C{acknowledged}: that have arrived.
    @ivar lost: "done" or "lost" if the message connection has ended.
    @ivar late: number of bytes that were written after the peer closed, in this iteration of the reactor.
    @ivar isLate: TCP reports that such bytes are lost.
    @ivar hasReacted: the protocol has reacted to a call.
    """

    route = ""

    def __init__(self, kind: type[Talker], reactions: Reactions, carrier: Carrier, events: list[str]) -> None:
        self.carrier = carrier
        self.clock = ReactorClock()
        self.core = ByteStream()
        self.protocol = kind(self, reactions)
        self.isClosing = self.isAborted = self.isLate = self.hasReacted = False
        self.late = 0
        self.peer, self.lost = "open", ""
        self.written = self.owed = self.acknowledged = self.received = 0
        self.producer = ProducerRecorder(lambda: self.protocol.react("resumeProducing"))
        self._isPush = "resumeProducing" not in reactions
        self.done: set[str] = set()
        self.end = End(self)
        self.transport: Any = self.protocol.transport
        for event in events:
            getattr(self, event)()

    # The message connection

    def loseConnection(self) -> None:
        self.isClosing = True

    def abortConnection(self) -> None:
        self.isAborted = True

    # Events of the protocol

    def write(self) -> None:
        if self.written < MOST:
            self.written += 1
            isEarly = not (self.lost or self.core.isOver)
            self.owed += self.end.isOpen and isEarly
            self.late += self.end.isOpen and not isEarly
            self.transport.write(b"w")

    def close(self) -> None:
        self.transport.loseConnection()
        self.done.add("close")

    def closeWriting(self) -> None:
        self.transport.loseWriteConnection()
        self.done.add("closeWriting")

    def abort(self) -> None:
        self.transport.abortConnection()
        self.done.add("abort")

    def pause(self) -> None:
        if self.end.connected and not self.end.isPaused:
            self.transport.pauseProducing()

    def resume(self) -> None:
        self.transport.resumeProducing()

    def register(self) -> None:
        if "register" not in self.done:
            self.done.add("register")
            self.transport.registerProducer(self.producer, self._isPush)

    def unregister(self) -> None:
        self.transport.unregisterProducer()

    def turned(self) -> None:
        """Note what was written late: over TCP it is no loss if the end closes with it."""
        if self.late:
            mayWrite = self.end.hasProducer or "stop" in self.producer.calls
            self.isLate |= mayWrite or not self.done & {"close", "closeWriting"}
            self.late = 0

    # Events of the connection

    def _arrive(self, data: bytes, immediate: int | None) -> None:
        self.received += len(data)
        self.core.arrived(data, immediate)

    def peerWrites(self) -> None:
        self._arrive(b"p", None)
        self.end._turn()

    def _peerCloses(self, immediate: int, data: bytes) -> None:
        self.peer = "closed" if immediate == DISCONNECT else "half-closed"
        if data:
            self._arrive(data, None)
        self._arrive(b"", immediate)
        self.end._turn()

    def peerHalfCloses(self) -> None:
        self._peerCloses(SHUTDOWN, b"")

    def peerWritesAndHalfCloses(self) -> None:
        self._peerCloses(SHUTDOWN, b"p")

    def peerCloses(self) -> None:
        self._peerCloses(DISCONNECT, b"")

    def peerWritesAndCloses(self) -> None:
        self._peerCloses(DISCONNECT, b"p")

    @property
    def _isUnacknowledged(self) -> bool:
        core = self.core
        isNew = core.unacknowledged > 0 or (core.hasSentClose and not core.isCloseDelivered)
        return isNew and not self.lost

    def acknowledge(self) -> None:
        core = self.core
        if self._isUnacknowledged:
            self.acknowledged, core.unacknowledged = self.end.posted, 0
            core.isCloseDelivered = core.hasSentClose and self.carrier == "rsocket"
            self.end._turn()

    def fill(self) -> None:
        self.core.isFull = True
        self.done.add("fill")

    def empty(self) -> None:
        self.core.isFull = False
        self.end._turn()

    def _end(self, outcome: str, reason: Exception) -> None:
        if self.lost:
            return
        self.lost, core = outcome, self.core
        if self.carrier == "btl" and outcome == "done" and core.hasSentClose:
            core.isCloseDelivered = True
            if not core.isOver:
                self.acknowledged, core.unacknowledged = self.end.posted, 0
        self.end._storeRest()
        self.end._lost(Failure(reason))

    def endInOrder(self) -> None:
        if self.isClosing or self.core.isOver:
            self._end("done", ConnectionDone())

    def fail(self) -> None:
        self._end("lost", ConnectionAborted() if self.isAborted else ConnectionLost())

    def iterate(self) -> None:
        self.clock.advance(0)

    # The search

    def possible(self) -> Iterator[str]:
        """Return the events that can happen next."""
        end, core = self.end, self.core
        isReading = not (self.lost or core.isOver)
        isOpen = isReading and self.peer == "open"
        mayWrite = isOpen and self.received < MOST
        isPossible = {
            "write": self.written < MOST,
            "pause": end.connected and not end.isPaused,
            "resume": end.isPaused,
            "unregister": self.transport.producer is not None,
            "peerWrites": mayWrite,
            "peerHalfCloses": isOpen,
            "peerWritesAndHalfCloses": mayWrite,
            "peerCloses": isReading and self.peer != "closed",
            "peerWritesAndCloses": mayWrite,
            "acknowledge": self._isUnacknowledged,
            "empty": core.isFull,
            "endInOrder": (self.isClosing or core.isOver) and not self.lost,
            "fail": not self.lost,
            "iterate": bool(self.clock.getDelayedCalls()),
        }
        once = ("close", "closeWriting", "abort", "register", "fill")
        yield from (event for event in once if event not in self.done)
        yield from (event for event, isNow in isPossible.items() if isNow)

    # The search

    @property
    def state(self) -> Hashable:
        """What the future depends on."""
        end, core = self.end, self.core
        flags = (end.isEnding, end.discardsInput, end.hasProducer, end.isOpen, end.isPaused, end._mustFlush)
        life = [getattr(end._life, name) for name in end._life.__slots__]
        bytes_ = [getattr(core, name) for name in core.__slots__ if name not in ("_unsent", "_read")]
        waiting = (end._rest, end._failure is None, self.transport.producer is None)
        counts = (self.written, self.owed, self.acknowledged, self.received, end.posted)
        calls = (*self.protocol.calls, "", *self.producer.calls)
        late = (self.late, self.isLate)
        outside = (self.peer, self.lost, self.isClosing, self.isAborted, late, frozenset(self.done))
        return (flags, *life, *bytes_, waiting, counts, calls, outside, len(self.clock.getDelayedCalls()))

    def settle(self) -> None:
        """Run the reactor until it is idle."""
        while not self.protocol.calls or self.protocol.calls[-1] not in ENDS:
            if not self.clock.getDelayedCalls():
                break
            self.iterate()

    def finish(self) -> None:
        """Close, and let all that was written arrive."""
        self.unregister()
        for event in ("close", "iterate", "empty", "iterate", "acknowledge", "iterate", "endInOrder"):
            getattr(self, event)()
        if self.isAborted:
            self.fail()
        self.settle()


def problems(world: World) -> Iterator[str]:
    """Return what TCP would not do, when the reactor is idle."""
    calls, end = world.protocol.calls, world.end
    ends = [name for name in calls if name in ENDS]
    reason = ends[0] if ends else ""
    isCut, isDismissed = world.acknowledged < world.owed, end._life.isDismissed
    closes = bool(world.done & {"close", "abort"}) or isDismissed
    if len(ends) > 1 or (ends and calls[-1] != reason):
        yield "calls after the end"
    for name in ("readConnectionLost", "writeConnectionLost"):
        if calls.count(name) > 1:
            yield f"{name} twice"
    if "readConnectionLost" in calls and "dataReceived" in calls[calls.index("readConnectionLost") :]:
        yield "bytes after the end of input"
    if not (closes or end.isPaused) and calls.count("dataReceived") < world.received:
        yield "bytes are not delivered"
    if reason == "ConnectionDone" and isCut and not isDismissed:
        yield "bytes have not arrived"
    if reason == "ConnectionDone" and world.isLate and not isDismissed:
        yield "an end that did not close with its last write ends in order"
    if reason == "ConnectionLost" and closes and world.core.isOver and not (isCut or world.isLate):
        yield "a last answer is lost"
    isHalf = isinstance(world.protocol, HalfTalker) and "closeWriting" in world.done and not closes
    if isHalf and world.core.isOver and not (reason or end.hasProducer or "writeConnectionLost" in calls):
        yield "a half-close after the peer's close is not reported"
    if reason == "ConnectionDone" and not closes:
        yield "a protocol that has not closed ends in order"
    if reason == "ConnectionAborted" and "abort" not in world.done:
        yield "aborted"
    if reason and not world.lost:
        yield "ends before its connection"
    if reason and end.isPaused and not closes and end._life.delivery == "WHOLE":
        yield "a paused protocol is notified"
    if world.lost and closes and not reason:
        yield "a closing protocol is not notified"
    if world.lost and not reason and end._life.delivery != "WHOLE":
        yield "a writing protocol is not notified"
    isOrderly = world.core.isOver or world.core.isCloseDelivered
    if reason == "ConnectionLost" and isDismissed and isOrderly:
        yield "a dismissed protocol is lost"
    if world.lost == "lost" and not (reason or end.isPaused or isOrderly):
        yield "a reading protocol is not notified"


def allProblems(world: World) -> Iterator[str]:
    """Return what TCP would not do, when the reactor is idle, and after the end."""
    world.settle()
    yield from problems(world)
    world.finish()
    if world.end.connected:
        yield "does not end"
    for problem in problems(world):
        yield f"{problem}, after its end"


class SearchTests(SynchronousTestCase):
    """
    The ends of streams, after each sequence of a few events, behind which the reactor runs until it is idle.

    Sequences that lead to the same state are continued once. Each is repeated from the beginning. Where a
    protocol reacts to calls, only sequences in which it can react are checked: others are those of a protocol
    that does not.

    @cvar depth: number of events; C{states}: of different states that follow, at least.
    """

    depth, states = 3, 100

    def search(self, kind: type[Talker], carrier: Carrier = "rsocket", **reactions: tuple[str, ...]) -> None:
        found: dict[str, list[str]] = {}
        states: set[Hashable] = set()
        reasons = {event for name in reactions for event in REASONS[name]}
        sequences: list[tuple[list[str], list[str]]] = [
            ([], [*World(kind, reactions, carrier, []).possible()])
        ]
        for length in range(1, self.depth + 1):
            following = []
            for former, possible in sequences:
                if length == self.depth and reasons.isdisjoint(former):
                    possible = [event for event in possible if not reasons or event in reasons]
                for event in possible:
                    events = [*former, event]
                    world = World(kind, reactions, carrier, events)
                    if (state := world.state) in states:
                        continue
                    states.add(state)
                    following.append((events, [*world.possible()]))
                    for problem in allProblems(world):
                        found.setdefault(problem, events)
                    if world.hasReacted and reasons.isdisjoint(events):
                        found.setdefault("reacts without a reason", events)
            sequences = following
        self.assertGreater(len(states), self.states)
        self.assertEqual(found, {})

    def test_plain(self) -> None:
        self.search(Talker)

    def test_plainOverBTL(self) -> None:
        self.search(Talker, "btl")

    def test_halfClosing(self) -> None:
        self.search(HalfTalker)

    def test_halfClosingOverBTL(self) -> None:
        self.search(HalfTalker, "btl")

    def test_closesAtReadEnd(self) -> None:
        self.search(HalfTalker, readConnectionLost=("close",))

    def test_writesAndClosesAtReadEnd(self) -> None:
        self.search(HalfTalker, readConnectionLost=("write", "close"))

    def test_writesAndClosesAtData(self) -> None:
        self.search(Talker, dataReceived=("write", "close"))

    def test_pausesAtData(self) -> None:
        self.search(Talker, dataReceived=("pause",))

    def test_producerResumes(self) -> None:
        """As over TCP, the producer of an echo server resumes reading."""
        self.search(HalfTalker, resumeProducing=("resume",))

    def test_abortsAtData(self) -> None:
        self.search(Talker, dataReceived=("abort",))

    def test_producerWritesAndClosesAtReadEnd(self) -> None:
        self.search(HalfTalker, readConnectionLost=("register", "write", "close"))

    def test_producerWritesWhenItResumes(self) -> None:
        self.search(HalfTalker, resumeProducing=("write",))
