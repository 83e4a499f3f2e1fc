"""
Programs that use connections of C{rdma:} and C{rsocket:} at random, and check their promises.

L{txrdma.testing.cm.scenario} runs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import (
    ConnectionAborted,
    ConnectionDone,
    ConnectionLost,
)
from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import connectionDone, Protocol
from twisted.python.failure import Failure

from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.cm.layouts.messages import CMPath, DREQ_PRIVATE_BYTES, REP_PRIVATE_BYTES, REQ_PRIVATE_BYTES
from txrdma.cm.rsocket.messages import LENGTH, SEQUENCE
from txrdma.error import InvalidRequest, RDMAError, ResourceExhausted
from txrdma.iba.verbs import MigrationState, QPAttributes, QPState
from txrdma.messages.memory import SharedMemory
from txrdma.testing.cm.userplans import (
    Act,
    ActPlan,
    EndPlan,
    When,
)
from txrdma.testing.programs import ProgramError
from txrdma.testing.smc.hosts import Host

_TEXT: Final = Random(0).randbytes(1 << 18) * 2
"""Each end writes these bytes again and again, from its own beginning on."""

_NUMBER: Final = 4
_SHARED: Final = 1 << 15
_PATTERN: Final = 256
_MAPPED: Final = 1 << 14
_HEADER: Final = 36
_GREETING: Final = 16
_LOSSES: Final = (ConnectionLost, ConnectionDone, ConnectionAborted)


@dataclass
class Sending:
    """
    A message that a program has sent.

    @ivar isCancelled: whether it may not be sent, as it was cancelled, or refused; C{isDone}: whether its
        Deferred has fired; C{deliveries}: number of its deliveries.
    """

    number: int
    data: bytes
    immediate: int | None
    isCancelled: bool = False
    isDone: bool = False
    deliveries: int = 0


@dataclass
class Shared:
    """
    Memory that a program shares: a number, bytes that stay as they are, and bytes that the peer writes.

    @ivar view: its bytes, also after the end.
    @ivar number: value of the number after all requests; C{isKnown}: False if one of them may have been
        cancelled; C{written}: end of the bytes that were written.
    """

    memory: SharedMemory
    view: memoryview
    number: int = 0
    isKnown: bool = True
    written: int = _PATTERN


class User:
    """
    The program at one end of a connection.

    @ivar isMade: whether C{connectionMade} was called; C{lost}: the reason of C{connectionLost}.
    @ivar wasPaused: whether it was ever paused; C{isProbing}: whether an idle peer is probed;
        C{isLate}: whether its reactor was stopping already; C{isTrickling}: whether it is still writing.
    @ivar due: number of its acts whose time has not come.
    @ivar pending: results that have not fired, with their acts; C{results}: all.
    @ivar isEnding: whether it has closed the connection or its write side; C{hasClosed}: the connection,
        before the transport did so as the peer has ended; C{isBroken}: whether data of either end may be
        lost.
    @cvar isStream: whether it has a stream; C{hasTLS}: whether the stream is encrypted.
    """

    transport: Any = None
    isStream = hasTLS = False

    def __init__(self, connection: Any, host: Host, end: int, terms: EndPlan) -> None:
        """@param connection: of L{txrdma.testing.cm.scenario}, which imports this module."""
        self.connection, self.scenario = connection, connection.scenario
        self.host, self.end, self.terms = host, end, terms
        self.isMade = self.isEnding = self.hasClosed = self.isBroken = self.isPaused = False
        self.wasPaused = self.isLate = self.isTrickling = False
        self.isProbing = True
        self.due = 0
        self.lost: Failure | None = None
        self.producer: Producer | None = None
        self.results: list[Deferred[Any]] = []
        self.pending: dict[Deferred[Any], Act] = {}
        self.shared: list[Shared] = []

    def __repr__(self) -> str:
        return f"end {self.end} of connection {self.connection.number}"

    @property
    def other(self) -> User | None:
        """The program at the other end, if there is one."""
        other: User | None = self.connection.users[1 - self.end]
        return other

    def require(self, holds: bool, what: str) -> None:
        """Record a violation, since transports contain exceptions of programs."""
        self.scenario.require(holds, f"{self!r}: {what}")

    def react(self, when: When) -> None:
        """Act in a callback."""
        self.scenario.react(when, self.connection, self.end, self)

    # Callbacks

    def connectionMade(self) -> None:
        self.require(not self.isMade, "is made twice")
        self.isMade, self.isLate = True, self.host.isStopped
        if self.isLate:  # the transport closes it
            self.noteClose()
        self.scenario.began(self)
        self.react(When.MADE)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.require(self.isMade and self.lost is None, "connectionLost without a connection")
        self.lost = reason
        self.connection.isDisturbed |= self.connection.isBroken
        self.require(
            reason.check(ConnectionDone, ConnectionLost) is not None
            or (self.isBroken and reason.check(ConnectionAborted, ProgramError) is not None)
            or (self.host.isStopped and reason.check(ConnectionAborted) is not None),
            f"ends by {reason!r}",
        )
        self.react(When.LOST)

    # Acts

    def act(self, plan: ActPlan) -> None:
        """Make an act."""
        acts: dict[Act, Callable[[ActPlan], object]] = {
            Act.WRITE: self.write,
            Act.SEND: self.send,
            Act.MANY: self._many,
            Act.TRICKLE: lambda plan: self._trickle(plan, plan.number),
            Act.PUSH: self._produce,
            Act.PULL: self._produce,
            Act.SECOND: self._second,
            Act.SWITCH: self._switch,
            Act.UNREGISTER: lambda plan: self.unregister(),
            Act.PAUSE: self._pause,
            Act.RESUME: lambda plan: self.resume(),
            Act.SHARE: self._share,
            Act.UNSHARE: self._unshare,
            Act.READ: self._read,
            Act.PUT: self._put,
            Act.ADD: self._change,
            Act.SWAP: self._change,
            Act.ALTERNATE: self._loadAlternate,
            Act.MIGRATE: self._loadAlternate,
            Act.CANCEL: self._cancel,
            Act.CLOSE: self._close,
            Act.HALF: lambda plan: self.half(),
            Act.QUIT: lambda plan: self.close(self.transport.stopProducing),
            Act.ABORT: self._abort,
            Act.FAIL: self._fail,
        }
        act = acts.get(plan.act)
        if act is not None:
            act(plan)
        elif self.isStream:
            self.actOfStream(plan)

    def actOfStream(self, plan: ActPlan) -> None:
        """Make an act that only streams have."""

    def write(self, plan: ActPlan) -> None:
        raise NotImplementedError

    def send(self, plan: ActPlan) -> None:
        raise NotImplementedError

    def half(self) -> None:
        """Close the write side, if there are two."""

    @property
    def memory(self) -> Any:
        """The transport's access to memory."""
        raise NotImplementedError

    @property
    def hasReceived(self) -> bool:
        """Whether everything that the peer has sent was received."""
        raise NotImplementedError

    @property
    def wasCut(self) -> bool:
        """Whether bytes were written that the peer has not received, such as those after its close."""
        return False

    @property
    def isQuiet(self) -> bool:
        """Whether there are no results to come, no producer, and nothing to receive."""
        waiting = [act for act in self.pending.values() if act is not Act.WAIT_MAPPED]
        isBusy = waiting or self.due or self.isTrickling or self.producer is not None
        return not isBusy and self.isMade and self.hasReceived

    def watch(
        self,
        result: Deferred[Any],
        plan: ActPlan,
        got: Callable[[Any], object] = lambda result: None,
    ) -> None:
        """
        Record the result of a request, and react to it.

        @param got: called with the result, or with a failure.
        """
        self.results.append(result)
        self.pending[result] = plan.act

        def fired(value: Any) -> None:
            del self.pending[result]
            if isinstance(value, Failure):
                mayFail = self.connection.isDisturbed or self.connection.isBroken
                isEnd = value.check(*_LOSSES, RDMAError) is not None and mayFail
                isCancelled = value.check(CancelledError) is not None
                isEnd |= plan.act in (Act.ALTERNATE, Act.MIGRATE) and value.check(InvalidRequest) is not None
                self.require(isEnd or isCancelled, f"{plan.act.name} fails: {value!r}")
            got(value)
            self.react(When.RESULT)

        def failed(failure: Failure) -> None:
            if not self.scenario.caught(failure.value):
                self.scenario.broken(failure)

        result.addBoth(fired).addErrback(failed)

    def _many(self, plan: ActPlan) -> None:
        for _ in range(plan.number):
            self.write(plan)

    def _trickle(self, plan: ActPlan, left: int) -> None:
        """
        Write in each of the next iterations, so that each write is a message of its own, until the producer
        raises an exception in C{pauseProducing}.
        """
        self.isTrickling = left > 0 and self.isOpen
        if self.isTrickling:
            try:
                self.write(replace(plan, size=min(plan.size, 60)))
            except Exception as error:
                self.isTrickling = False
                if not self.scenario.caught(error):
                    raise
            else:
                self.host.callSteadily(1e-6, lambda: self._trickle(plan, left - 1))

    def _produce(self, plan: ActPlan) -> None:
        if self.producer is None:
            self.producer = producer = Producer(self, plan)
            if producer.isPush or self.isStream:
                self.transport.registerProducer(producer, producer.isPush)
                self.require(producer.isOver or self.lost is None, "a producer is not stopped after the end")
                producer.begin()
            else:
                self._refused(self.transport.registerProducer, producer, False)
                self.producer = None

    def _second(self, plan: ActPlan) -> None:
        if self.producer is not None:
            try:
                self.transport.registerProducer(Producer(self, plan), True)
            except RuntimeError:
                return
            self.require(False, "has two producers")

    def _switch(self, plan: ActPlan) -> None:
        former = self.producer
        self.unregister()
        isPull = former is not None and former.isPush
        self._produce(replace(plan, act=Act.PULL if isPull else Act.PUSH))

    def _refused(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            call(*arguments)
        except InvalidRequest:
            return
        self.require(False, f"{call} does not raise InvalidRequest")

    def unregister(self) -> None:
        """Unregister the producer, if there is one."""
        if self.producer is not None:
            self.producer.isOver, self.producer = True, None
        self.transport.unregisterProducer()

    def _pause(self, plan: ActPlan) -> None:
        if not self.scenario.isFinishing:
            self.isPaused = self.wasPaused = True
            self.transport.pauseProducing()
            self.host.callSteadily(min(abs(plan.seconds), 2.0), self.resume)

    def resume(self) -> None:
        """Receive data again."""
        self.isPaused = False
        self.transport.resumeProducing()

    def _share(self, plan: ActPlan) -> None:
        buffer = bytearray(_SHARED)
        try:
            memory = self.memory.share(_SHARED if plan.number else buffer)
        except (InvalidRequest, ResourceExhausted):
            mayFail = self.connection.isDisturbed or self.connection.isBroken
            self.require(mayFail, "cannot share memory")
            return
        memory.view[8:_PATTERN] = bytes((self.end + 1,)) * (_PATTERN - 8)
        self.shared.append(Shared(memory, memory.view if plan.number else memoryview(buffer)))

    def _unshare(self, plan: ActPlan) -> None:
        if self.shared:
            self.connection.isDisturbed = self.isBroken = True
            self.shared.pop().memory.close()

    def _request(
        self, plan: ActPlan, begin: Callable[[Shared], Any], got: Callable[[Any, Shared], Any]
    ) -> None:
        """Make a request to memory of the peer, if it shares some."""
        shared = self.other.shared[-1] if self.other is not None and self.other.shared else None
        if shared is None:
            return
        try:
            result = begin(shared)
        except InvalidRequest as error:
            mayRead = plan.act is Act.PUT or self.memory.agreed.initiatorDepth > 0
            self.require(not mayRead, f"{plan.act.name}: {error}")
        else:
            self.watch(result, plan, lambda value: got(value, shared))

    def _read(self, plan: ActPlan) -> None:
        length = plan.size % (_PATTERN - 8)

        def got(value: Any, shared: Shared) -> None:
            isRight = isinstance(value, Failure) or value == bytes((2 - self.end,)) * length
            self.require(isRight, "has read other bytes")

        self._request(plan, lambda shared: self.memory.read(shared.memory.name, length, 8), got)

    def _put(self, plan: ActPlan) -> None:
        data = Random(plan.size).randbytes(plan.size % 9000)

        def begin(shared: Shared) -> Any:
            at = shared.written if shared.written + len(data) <= _SHARED else _SHARED
            put = data[: _SHARED - at]
            shared.written = at + len(put)
            written = shared.view[at : at + len(put)]
            checks.append(lambda: written == put)
            return self.put(shared.memory.name, put, at, plan.number if put else 0)

        checks: list[Callable[[], bool]] = []
        self._request(
            plan,
            begin,
            lambda value, shared: self.require(
                isinstance(value, Failure) or checks[0](), "has written other bytes"
            ),
        )

    def put(self, name: bytes, data: bytes, at: int, immediate: int) -> Deferred[None]:
        """Write into memory of the peer; with immediate data if it can be received."""
        result: Deferred[None] = self.memory.write(name, data, at)
        return result

    def _change(self, plan: ActPlan) -> None:
        before: list[int] = []

        def begin(shared: Shared) -> Any:
            name, number = shared.memory.name, shared.number
            if plan.act is Act.ADD:
                result = self.memory.fetchAndAdd(name, plan.number)
                changed = number + plan.number
            else:
                expected = number if plan.number % 2 else number + 1
                result = self.memory.compareAndSwap(name, expected, plan.size)
                changed = plan.size if expected == number else number
            before.append(number)
            shared.number = changed
            return result

        def got(value: Any, shared: Shared) -> None:
            shared.isKnown &= not isinstance(value, Failure)
            self.require(not shared.isKnown or value == before[0], f"the number was {value}, not {before[0]}")

        self._request(plan, begin, got)

    def _loadAlternate(self, plan: ActPlan) -> None:
        if self.scenario.isPathDown:  # the queue pair is disarmed
            self.connection.isCut = True

        def got(path: object) -> None:
            if not isinstance(path, Failure):
                connection, isDown = self.connection, self.scenario.isPathDown
                mayFail = connection.isDisturbed or connection.isBroken or isDown
                self.require(connection.canMigrate or mayFail, "an end is not armed")
                if plan.act is Act.MIGRATE:
                    self.scenario.cutPath(connection)

        with suppress(InvalidRequest):  # only clients load paths, one at a time
            self.watch(self.memory.loadAlternatePath(), plan, got)

    @property
    def isArmed(self) -> bool:
        """Whether the queue pair can migrate to another path."""
        pair = self.memory._pair if self.isOpen else None
        return pair is not None and pair.query().migrationState is MigrationState.ARMED

    def checkPath(self) -> None:
        """Check that the communication manager knows the path that the queue pair uses."""
        transport = self.memory
        path = transport.adapter.addressOf(transport.path)
        self.require(transport._pair.query().address == path, f"migrated without notice: {path}")

    def checkProgress(self) -> None:
        """Check, outside of all callbacks, that everything is done that can be done now."""
        raise NotImplementedError

    def _cancel(self, plan: ActPlan) -> None:
        if plan.number < len(self.results):
            self.results[-1 - plan.number].cancel()
        else:
            for result in list(self.pending):
                result.cancel()

    def _close(self, plan: ActPlan) -> None:
        self.close()

    def close(self, close: Callable[[], object] | None = None) -> None:
        """Close the connection."""
        self.connection.isDisturbed = True
        if self.lost is None:
            self.noteClose()
        (close or self.transport.loseConnection)()

    def noteClose(self) -> None:
        """Note that the connection is closed in order."""
        self.endWriting()
        self.hasClosed |= not getattr(self.transport, "disconnecting", False)

    def endWriting(self) -> None:
        """Note that nothing more is written."""
        self.isEnding = True

    @property
    def isOpen(self) -> bool:
        """Whether the program runs, and has a connection."""
        return self.isMade and self.lost is None and not self.host.isDead

    def _abort(self, plan: ActPlan) -> None:
        self.breakConnection()
        self.transport.abortConnection()

    def _fail(self, plan: ActPlan) -> None:
        pair = getattr(self.memory, "_pair", None)
        if pair is not None:
            self.breakConnection()
            pair.modify(QPAttributes(state=QPState.ERR))

    def breakConnection(self) -> None:
        """Note that data of either end may be lost."""
        self.connection.isDisturbed = self.isBroken = True

    def finish(self) -> None:
        """Receive everything, and forget about memory that the peer does not map."""
        self.resume()
        for result, act in list(self.pending.items()):
            if act is Act.WAIT_MAPPED:
                result.cancel()

    def conclude(self) -> None:
        """Close the connection, unless the program has done so, and unregister a producer that has failed."""
        if self.lost is None:
            if not self.hasClosed:
                self.close()
            self.unregister()


class StreamUser(User, Protocol):
    """
    The program at one end of a stream.

    @ivar start: where its text begins; C{written}: number of written bytes; C{owed}: of those before it has
        ended writing; C{promised}: before it has closed the connection, unless the peer did so first;
        C{received}: number of received bytes.
    @ivar stored: number of bytes that the peer has written to this end's memory.
    @ivar sawEnd: whether C{readConnectionLost} was called.
    """

    isStream = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.start = Random(f"{self!r}").randrange(len(_TEXT))
        self.written = self.promised = self.received = self.stored = 0
        self.owed: int | None = None
        self.sawEnd = self.hasHalfClosed = False
        self.mapped: list[Any] = []
        self.mappedPuts: list[tuple[int, memoryview, bytes]] = []
        self.mappedEnd: Counter[Any] = Counter()

    @property
    def memory(self) -> Any:
        return self.transport.remoteMemory

    @property
    def hasReceived(self) -> bool:
        return isinstance(self.other, StreamUser) and self.received == self.other.written

    @property
    def wasCut(self) -> bool:
        return isinstance(self.other, StreamUser) and self.written > self.other.received

    @property
    def _core(self) -> Any:
        return self.transport.stream._core

    def checkProgress(self) -> None:
        """Check that the peer has no more credits than receives that are free here."""
        other = self.other
        if isinstance(other, StreamUser) and self.isOpen and other.isOpen and self._core and other._core:
            receiving = self._core._receiving
            credits = other._core._sending._limit - receiving._sequence & SEQUENCE
            self.require(credits <= receiving._credits, f"the peer has {credits} credits")

    def endWriting(self) -> None:
        if self.owed is None:
            self.owed = self.written
        super().endWriting()

    def noteClose(self) -> None:
        hasPeerClosed = self.sawEnd or (self.other is not None and self.other.hasClosed)
        if not (self.hasClosed or hasPeerClosed or self.transport.disconnecting):
            self.promised = self.written if self.owed is None else self.owed
        super().noteClose()

    # Callbacks

    def connectionMade(self) -> None:
        core = self._core
        if core is not None:
            arrived = core.arrived

            def noteArrival(number: int, length: int) -> None:
                arrived(number, length)
                self.stored += number if number <= LENGTH else 0

            core.arrived = noteArrival
        super().connectionMade()

    def dataReceived(self, data: bytes) -> None:
        """Check that these are the next bytes of the peer's text."""
        other = self.other
        assert isinstance(other, StreamUser)
        self.require(self.isMade and self.lost is None and not self.sawEnd, "data after the end")
        self.require(self.hasTLS or not self.isPaused, "data while paused")
        begin, self.received = self.received, self.received + len(data)
        self.require(len(data) > 0 and self.received <= other.written, "data that was not written")
        self.require(data == other.text(begin, len(data)), f"other data at {begin}")
        for position, written, expected in other.mappedPuts:
            isBehind = position >= self.received or self.connection.isBroken
            self.require(isBehind or written == expected, "data before an earlier write to mapped memory")
        self.react(When.RECEIVED)

    def readEnded(self) -> None:
        """Check the end of the peer's data."""
        self.require(self.isMade and self.lost is None and not self.sawEnd, "readConnectionLost")
        self.sawEnd = True
        self.checkWhole("readConnectionLost")
        self.react(When.READ_LOST)
        if self.scenario.isFinishing:
            self.conclude()

    def writeEnded(self) -> None:
        """Check that writing ends after a half-close."""
        self.require(self.hasHalfClosed and self.lost is None, "writeConnectionLost")
        self.react(When.WRITE_LOST)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if reason.check(ConnectionDone) is not None:
            self.checkWhole("ConnectionDone")
        super().connectionLost(reason)

    def checkWhole(self, what: str) -> None:
        """Check that all data has arrived that the peer wrote before it closed in order."""
        other = self.other
        if self.connection.isBroken or self.hasClosed or self.connection.hasRefused:
            return
        assert isinstance(other, StreamUser)
        if other.host.isStopped and (self.wasPaused or self.scenario.isLossy or self.scenario.troubleSeconds):
            return  # it does not wait for long
        if other.owed is None:
            self.require(
                self.hasHalfClosed and not other.terms.isHalfCloseable, f"{what}, but the peer has not ended"
            )
        elif other.terms.isHalfCloseable or not self.hasHalfClosed or other.hasClosed:
            self.require(self.received >= other.owed, f"{what} after {self.received} of {other.owed} bytes")

    # Acts

    def text(self, begin: int, length: int) -> bytes:
        """Return bytes of the text."""
        begin = (self.start + begin) % (len(_TEXT) // 2)
        return _TEXT[begin : begin + length]

    def take(self, size: int) -> bytes:
        """Return the next bytes of the text. After a close, the transport may send or drop them."""
        begin, self.written = self.written, self.written + size
        return self.text(begin, size)

    def write(self, plan: ActPlan) -> None:
        self.transport.write(self.take(plan.size))

    def send(self, plan: ActPlan) -> None:
        data = self.take(plan.size)
        self.transport.writeSequence([data[: plan.number], b"", data[plan.number :]])

    def finish(self) -> None:
        super().finish()
        if self.sawEnd:
            self.conclude()

    def conclude(self) -> None:
        """Probe the peer, too: without that, bytes may wait for one that was killed."""
        if self.lost is None and not self.isProbing:
            self.isProbing = True
            self.transport.setTcpKeepAlive(True)
        super().conclude()

    def half(self) -> None:
        self.connection.isDisturbed = True
        if self.lost is None:
            self.endWriting()
            self.hasHalfClosed = True
        self.transport.loseWriteConnection()

    def actOfStream(self, plan: ActPlan) -> None:
        act, transport = plan.act, self.transport
        if act is Act.KEEPALIVE:
            self.isProbing = plan.number % 2 == 0
            transport.setTcpKeepAlive(self.isProbing)
        elif act is Act.MAP:
            with suppress(InvalidRequest, ResourceExhausted):  # closed, or too many
                self.mapped.append(transport.mapMemory(_MAPPED, plan.number * _MAPPED))
        elif act is Act.UNMAP and self.mapped:
            self.breakConnection()
            self.mapped.pop().close()
        elif act is Act.WAIT_MAPPED:
            self.watch(transport.whenMapped(plan.number * _MAPPED), plan)
        elif act is Act.PUT_MAPPED:
            self._putMapped(plan)

    def _putMapped(self, plan: ActPlan) -> None:
        other = self.other
        if not isinstance(other, StreamUser) or not other.mapped:
            return
        mapped = other.mapped[-1]
        at = other.mappedEnd[mapped]
        data = Random(plan.size).randbytes(min(plan.size, _MAPPED - at))
        isThere = any(mapped.offset in each for each in self.transport.peerMappings)
        if not data or not isThere:
            return
        other.mappedEnd[mapped] += len(data)
        put = self.written, mapped.buffer[at : at + len(data)], data
        self.mappedPuts.append(put)

        def got(value: Any) -> None:
            if isinstance(value, Failure):
                self.mappedPuts.remove(put)
            else:
                self.require(put[1] == data, "has written other bytes to mapped memory")

        self.watch(self.transport.writeMapped(mapped.offset + at, data), plan, got)


@implementer(IHalfCloseableProtocol)
class HalfCloseableUser(StreamUser):
    """A program whose protocol provides L{IHalfCloseableProtocol}."""

    readConnectionLost = StreamUser.readEnded
    writeConnectionLost = StreamUser.writeEnded


class MessageUser(User, RDMAProtocol):
    """
    The program at one end of a connection of messages.

    @ivar sent: its messages; C{latest}: number of the last received message of the peer.
    @ivar puts: lengths and immediate data of writes that the peer has not received.
    """

    transport: Any = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.answer = privateData(self.connection, self.end)
        self.sent: list[Sending] = []
        self.latest = -1
        self.puts: list[tuple[int, int]] = []

    @property
    def memory(self) -> Any:
        return self.transport

    @property
    def hasReceived(self) -> bool:
        other = self.other
        return isinstance(other, MessageUser) and all(
            each.deliveries or each.isCancelled for each in other.sent
        )

    def connectionMade(self) -> None:
        other = self.other
        if other is not None:
            host, peer = self.transport.getHost(), self.transport.getPeer()
            expected = privateData(self.connection, other.end)
            self.require(peer.privateData == expected, f"private data {peer.privateData!r}")
            if other.isMade and other.lost is None:
                isSame = (host, peer) == (other.transport.getPeer(), other.transport.getHost())
                self.require(isSame, f"addresses {host}, {peer}")
        super().connectionMade()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Check that the message is the next one."""
        other = self.other
        assert isinstance(other, MessageUser)
        self.require(self.isMade and self.lost is None, "a message after the end")
        self.require(not self.isPaused, "a message while paused")
        number = int.from_bytes(data[:_NUMBER], "big")
        self.require(self.latest < number < len(other.sent), f"message {number} after {self.latest}")
        for skipped in other.sent[self.latest + 1 : number]:
            self.require(skipped.isCancelled, f"message {skipped.number} is missing before {number}")
        message, self.latest = other.sent[number], number
        message.deliveries += 1
        self.require(
            data == message.data and immediate == message.immediate, f"message {number} is different"
        )
        self.react(When.RECEIVED)

    def writeReceived(self, length: int, immediate: int) -> None:
        """Check that the peer has written this; earlier writes may be cancelled."""
        other = self.other
        assert isinstance(other, MessageUser)
        self.require(not self.isPaused and self.lost is None, "a write while paused")
        written = (length, immediate)
        self.require(written in other.puts, f"a write of {length} bytes with {immediate}")
        del other.puts[: other.puts.index(written) + 1]
        self.react(When.RECEIVED)

    def pathMigrated(self, path: CMPath) -> None:
        """Count migrations, which only connections with an alternate path make."""
        self.require(self.scenario.plan.ports > 1, f"has migrated to {path}")
        self.scenario.counts["migrations"] += 1

    def put(self, name: bytes, data: bytes, at: int, immediate: int) -> Deferred[None]:
        if immediate:
            self.puts.append((len(data), immediate))
        result: Deferred[None] = self.memory.write(name, data, at, immediate or None)
        return result

    def checkProgress(self) -> None:
        """Check that no request waits that can be posted, no producer without reason, and no close."""
        transport = self.transport
        if self.lost is not None or transport._isProcessing or not transport._life.mayPost:
            return
        sends, credits, producer = transport._sends, transport._credits, self.producer
        waitingBytes = sum(each.size for each in sends.waiting)
        self.require(sends._waitingBytes == waitingBytes, "a cancelled request is still counted")
        if not sends.waiting:
            self.require(producer is None or not producer.isPaused, "a producer is paused without reason")
        elif not (self.scenario.plan.inline or self.scenario.isTroubled):
            first = sends.waiting[0]
            count = len(sends.posted) + len(sends._behind)
            mayPost = count < sends.entries and (credits.mayPost or not first.isCredited)
            self.require(not (first.isAnnounced and mayPost), "a request waits without reason")
        if transport._life.isLosing and sends.isIdle and producer is None and transport._reader is None:
            self.require(transport._cm.state != "ESTABLISHED", "a close waits without reason")
        if sends.isIdle:
            expected = len(self.shared) + (sends._memory is not None)
            self.require(len(transport._regions._regions) == expected, "memory of a request is not freed")

    @property
    def _longest(self) -> int:
        """Bytes of the longest message: without credits, this end does not know what the peer can receive."""
        ends = self.terms, self.connection.plan.terms, self.connection.service.plan.terms
        if all(each.usesCredits for each in ends):
            return len(_TEXT)
        return min(each.messageBytes for each in ends)

    def _message(self, plan: ActPlan) -> Sending:
        number = len(self.sent)
        size = max(min(plan.size, self._longest), _NUMBER)
        data = number.to_bytes(_NUMBER, "big") + Random(number).randbytes(size - _NUMBER)
        immediate = plan.number or None
        # When the reactor stops, the program may send until its transport closes: in stopProducing, say.
        mayStillSend = self.host.isStopped and self.transport._life.isOpen
        isOver = self.isEnding and not mayStillSend
        # A peer may have closed: callbacks before C{connectionLost}, such as stopProducing, send in vain.
        hasEnded = self.lost is not None or self.transport._life.isClosed
        message = Sending(number, data, immediate, isCancelled=isOver or hasEnded)
        self.sent.append(message)
        return message

    def _send(self, plan: ActPlan, send: Callable[[bytes, int | None], Any]) -> tuple[Sending, Any]:
        message = self._message(plan)
        try:
            return message, send(message.data, message.immediate)
        except InvalidRequest as error:
            message.isCancelled = True
            self.require(len(message.data) > self.transport.agreed.longest, f"cannot send: {error}")
            return message, None

    def write(self, plan: ActPlan) -> None:
        self._send(plan, self.transport.sendMessage)

    def _close(self, plan: ActPlan) -> None:
        """Close with private data, first with too much of it."""
        if plan.number > 1:
            self._refused(self.transport.loseConnection, bytes(DREQ_PRIVATE_BYTES + 1))
        self.close(partial(self.transport.loseConnection, b"x" * min(plan.size, DREQ_PRIVATE_BYTES)))

    def send(self, plan: ActPlan) -> None:
        message, result = self._send(plan, self.transport.send)

        def got(value: Any) -> None:
            if isinstance(value, Failure):
                message.isCancelled = True
            else:
                self.require(not message.isCancelled, "a message is sent after the end")
                message.isDone = True

        if result is not None:
            self.watch(result, plan, got)


@implementer(IPushProducer)
class Producer:
    """A producer of some bytes or messages, which unregisters after the last one, at once or later."""

    def __init__(self, user: User, plan: ActPlan) -> None:
        self._user, self._plan, self._left = user, plan, plan.number
        self.isPush = plan.act is Act.PUSH
        self.isOver = self.isPaused = False

    def begin(self) -> None:
        """Begin to produce, if that is for the producer to do."""
        if self.isPush and not self.isPaused:
            self._run()

    def resumeProducing(self) -> None:
        """Produce until this is paused; a pull producer produces once."""
        self._user.require(not self.isOver, "a producer is resumed after its end")
        self.isPaused = False
        self._run()
        self._user.react(When.RESUME)

    def _run(self) -> None:
        user = self._user
        while self._left and not (self.isPaused or self.isOver):
            self._left -= 1
            user.write(self._plan if self._plan.size else replace(self._plan, size=1))
            if not self.isPush:
                break
        if not (self._left or self.isOver):
            if self.isPush and self._plan.seconds >= 1.0:
                user.host.callSteadily(1.0, self._end)
            else:
                user.unregister()

    def _end(self) -> None:
        """Unregister after some time in which there was nothing to produce."""
        if self._user.producer is self:
            self._user.unregister()

    def pauseProducing(self) -> None:
        self.isPaused = True
        # Twisted's TLS writes what waits for its handshake when the transport is lost, also over TCP.
        mayPause = not self.isOver or self._user.hasTLS
        self._user.require(self.isPush and mayPause, "a producer is paused")
        self._user.react(When.PAUSE)

    def stopProducing(self) -> None:
        """Note the end: the producer is not registered any more."""
        self._user.require(self._user.producer is self, "a producer is stopped twice")
        self.isOver, self._user.producer = True, None
        self._user.react(When.STOP)


def privateData(connection: Any, end: int) -> bytes:
    """Return the private data of an end: at most what fits beside the header and the greeting."""
    client, server = connection.plan.terms, connection.service.plan.terms
    hasGreeting = client.usesCredits and (not end or server.usesCredits)
    most = (REP_PRIVATE_BYTES if end else REQ_PRIVATE_BYTES - _HEADER) - (_GREETING if hasGreeting else 0)
    terms: EndPlan = server if end else client
    return bytes((end + 1,)) * min(terms.private, most)
