"""The completion reader: it arms before it polls, delivers batches, and yields to others."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from zope.interface import implementer
from zope.interface.verify import verifyObject

from twisted.internet.base import DelayedCall, ReactorBase
from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import QPN
from txrdma.iba.verbs import Completion, CompletionOpcode, Status
from txrdma.interfaces import ICompletionChannel, ICompletionQueue, IPollable, IReactorPolling
from txrdma.verbs import completions
from txrdma.verbs._busypoll import SpinBudget
from txrdma.verbs._sources import Sources
from txrdma.verbs.completions import CompletionReader


def broken(*arguments: object) -> Any:
    """Raise an exception, instead of a method of a queue."""
    raise ZeroDivisionError


@implementer(ICompletionQueue)
class Queue:
    depth = 1000
    isLive = False

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.waiting: list[Completion] = []

    def put(self, *identifiers: int) -> None:
        self.waiting += [
            Completion(each, Status.SUCCESS, CompletionOpcode.SEND, QPN(5)) for each in identifiers
        ]

    def arm(self, solicitedOnly: bool = False) -> None:
        self.log.append("arm")

    def poll(self, limit: int) -> Sequence[Completion]:
        self.log.append("poll")
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return taken

    def close(self) -> None: ...

    def disarm(self) -> None:
        self.log.append("disarm")


class LiveQueue(Queue):
    """
    A queue that a peer fills during polling.

    @ivar later: number of polls before something arrives.
    """

    isLive = True
    later = 0
    endless = False
    polled: Callable[[], None] = staticmethod(lambda: None)

    def poll(self, limit: int) -> Sequence[Completion]:
        self.polled()
        if self.endless:
            self.put(1)
        if self.later:
            self.later -= 1
            if not self.later:
                self.put(99)
        return super().poll(limit)


@implementer(ICompletionChannel)
class Channel:
    """A channel that always has an event."""

    def __init__(self, queues: Sequence[Queue]) -> None:
        self.queues = queues
        self.taken = 0
        self.isTaken = True
        self.local: Callable[[], object] | None = None

    def fileno(self) -> int:
        return 77

    def takeEvents(self) -> Sequence[ICompletionQueue]:
        self.taken += 1
        self.isTaken = True
        return self.queues

    def callForLocal(self, call: Callable[[], object] | None) -> None:
        self.local = call

    def close(self) -> None: ...


@implementer(IReactorPolling)
class MemoryPollingReactor(MemoryReactorClock):
    def __init__(self) -> None:
        super().__init__()
        self.pollables: list[IPollable] = []

    def addPollable(self, pollable: IPollable) -> None:
        self.pollables.append(pollable)

    def removePollable(self, pollable: IPollable) -> None:
        if pollable in self.pollables:
            self.pollables.remove(pollable)


class CompletionReaderTests(SynchronousTestCase):
    makeReactor: Any = MemoryReactorClock

    def setUp(self) -> None:
        self.reactor = self.makeReactor()
        self.log: list[str] = []
        self.queue: Any = Queue(self.log)
        self.channel = Channel([self.queue])
        self.batches: list[list[int]] = []
        self.reader = CompletionReader(self.reactor, self.channel, [self.queue], self.handle)

    def handle(self, batch: Sequence[Completion]) -> None:
        self.batches.append([completion.identifier for completion in batch])

    def failing(self, handle: Callable[[Sequence[Completion]], None] | None = None) -> CompletionReader:
        """Start a reader that records its failures in C{failures}."""
        self.failures: list[type] = []
        failed = lambda failure: self.failures.append(failure.type)  # noqa: E731
        handle = handle or self.handle
        reader = CompletionReader(self.reactor, self.channel, [self.queue], handle, failed=failed)
        reader.start()
        return reader

    def assertFailed(self, error: type[Exception] = ZeroDivisionError, logged: int = 2) -> None:
        """
        Assert that one error was reported to the owner and logged, and that the reader was removed.

        @param logged: number of logged errors: a call of a queue is repeated after the first one.
        """
        self.assertEqual(self.failures, [error])
        self.assertEqual(len(self.flushLoggedErrors(error)), logged)
        self.assertEqual((self.reactor.getReaders(), self.reactor.getDelayedCalls()), ([], []))

    def test_readerProvidesInterfaces(self) -> None:
        verifyObject(IReadDescriptor, self.reader)
        verifyObject(IPollable, self.reader)
        self.assertEqual(self.reader.fileno(), 77)

    def test_readerIsOnReactorFromStartToStop(self) -> None:
        self.reader.start()
        self.reader.start()
        self.assertEqual(self.reactor.getReaders(), [self.reader])
        self.reader.stop()
        self.reader.stop()
        self.assertEqual(self.reactor.getReaders(), [])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_failingArmStopsReaderAndNotifiesOwner(self) -> None:
        self.queue.arm = broken
        reader = self.failing()
        self.reactor.advance(0)
        if IReactorPolling.providedBy(self.reactor):
            reader.arm()  # like a reactor before it sleeps
        self.assertFailed()

    def test_singleFailuresAreRepeated(self) -> None:
        """Calls of the queue and its channel fail once: they are repeated, and no completion is lost."""
        for owner, name in ((self.queue, "poll"), (self.queue, "arm"), (self.channel, "takeEvents")):
            self.batches.clear()
            usual, calls = getattr(owner, name), list[str]()

            def once(*arguments: Any, usual: Any = usual, name: str = name, calls: Any = calls) -> Any:
                calls.append(name)
                return broken() if len(calls) == 1 else usual(*arguments)

            self.patch(owner, name, once)
            reader = self.failing()
            self.queue.put(1)
            for _ in range(3):
                reader.doRead()
                self.reactor.advance(0)
            reader.arm()  # like a reactor before it sleeps
            self.queue.put(2)
            while reader.poll():
                pass
            self.assertEqual((self.failures, sum(self.batches, [])), ([], [1, 2]), name)
            self.assertGreater(len(calls), 1, name)
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1, name)
            reader.stop()

    def test_mostFailures(self) -> None:
        """A call is repeated so often, and no more before a quiet minute has passed."""
        now, left = 100.0, completions.MOST_FAILURES
        self.patch(completions, "perf_counter", lambda: now)

        def arm() -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                raise ZeroDivisionError

        reader = self.failing()
        self.queue.arm = arm
        reader.arm()
        self.assertEqual((self.failures, left), ([], -1))
        now, left = now + 61.0, completions.MOST_FAILURES
        reader.arm()
        self.assertEqual((self.failures, left), ([], -1))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)
        now, left = now + 59.0, 1
        reader.arm()
        self.assertEqual((self.failures, left), ([ZeroDivisionError], 0))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_eventsCannotBeTaken(self) -> None:
        """The reader stops, and is not polled any more."""
        reader = self.failing()
        self.patch(self.channel, "takeEvents", broken)
        for _ in range(3):
            reader.doRead()
            self.reactor.advance(0)
        self.assertFailed()
        self.assertEqual(getattr(self.reactor, "pollables", []), [])

    def test_abandonedReaderIsFreed(self) -> None:
        """Nothing of the process refers to a reader whose reactor was abandoned."""
        reader = CompletionReader(self.makeReactor(), self.channel, [self.queue], self.handle)
        reader.start()
        reader.doRead()
        abandoned = weakref.ref(reader)
        self.channel.local = None
        del reader
        gc.collect()
        self.assertIsNone(abandoned())

    def test_lostDeviceEndsReadingAtOnce(self) -> None:
        def lost(*_: object) -> None:
            raise DeviceUnavailable("a test's")

        self.queue.arm = lost
        reader = self.failing()
        self.reactor.advance(0)
        reader.arm()
        self.assertFailed(DeviceUnavailable, 1)

    def test_ownerIsNotifiedOfErrorOffReactor(self) -> None:
        reader = self.failing()
        reader.stop()
        self.queue.arm = broken
        reader.attend()
        self.assertFailed()

    def test_closedQueueOfStoppedReaderIsIgnored(self) -> None:
        self.reader.start()
        self.reader.stop()
        self.reader.addSource(broken, self.handle)
        self.assertFalse(self.reader.poll())

    def test_readerRemovedByReactorStops(self) -> None:
        self.reader.start()
        self.reader.connectionLost(Failure(ValueError()))
        self.assertEqual(self.reactor.getReaders(), [])


class SleepingTests(CompletionReaderTests):
    """Readers on a reactor that only waits for descriptors."""

    def test_readerDeliversThenArmsThenPolls(self) -> None:
        self.reader.start()
        self.reactor.advance(0)
        self.assertEqual(self.log, ["poll", "arm", "poll"])
        self.queue.put(1, 2, 3)
        self.log.clear()
        self.reader.doRead()
        self.assertEqual(self.log, ["poll", "poll", "arm", "poll"])
        self.assertEqual(self.batches, [[1, 2, 3]])
        self.assertEqual(self.channel.taken, 1)

    def test_eventOfThisProcessNeedsNoDescriptor(self) -> None:
        self.reader.start()
        self.reactor.advance(0)
        self.queue.put(1)
        self.log.clear()
        assert self.channel.local is not None
        self.channel.local()
        self.channel.local()
        self.assertEqual(self.log, [])  # the device may be handling a packet
        self.reactor.advance(0)
        self.assertEqual((self.batches, self.log), ([[1]], ["poll", "poll", "arm", "poll"]))
        self.assertEqual((self.channel.taken, self.reactor.getDelayedCalls()), (0, []))
        self.reader.stop()
        self.assertIsNone(self.channel.local)

    def test_eventOfPeerAfterCancelledReadIsRead(self) -> None:
        self.reader.start()
        self.reactor.advance(0)
        self.queue.put(1)
        assert self.channel.local is not None
        self.channel.local()
        for call in self.reactor.getDelayedCalls():
            call.cancel()  # as trial does
        self.reader.doRead()
        self.reactor.advance(0)
        self.assertEqual(self.batches, [[1]])

    def test_readerAmongOthersMaySleepAfterEventOfThisProcess(self) -> None:
        self.patch(completions, "_budget", SpinBudget())
        self.reader.start()
        self.reactor.advance(0)
        polls = []
        for number in range(20):
            completions._budget.lastReader = None  # another reader has read
            self.queue.put(number)
            self.log.clear()
            assert self.channel.local is not None
            self.channel.local()
            self.reactor.advance(0)
            polls.append(self.log.index("arm"))
        # Another iteration, in case of an answer; after one in vain, not for some time.
        self.assertEqual(polls[:9], [2, *[1] * 7, 2])

    def test_busyReaderYieldsToReactor(self) -> None:
        self.reader.start()
        self.reactor.advance(0)
        self.queue.put(*range(5000))
        self.reader.doRead()
        first = sum(map(len, self.batches))
        self.assertLess(first, 5000)
        while not self.channel.taken:  # the descriptor stays readable
            self.reader.doRead()
        self.assertEqual(sum(self.batches, []), list(range(5000)))

    def test_readerEmptiesQueueBeforeArmingAgain(self) -> None:
        self.reader.start()
        self.reactor.advance(0)
        arm = self.queue.arm

        def armLate() -> None:
            arm()
            self.queue.put(2)

        self.queue.arm = armLate
        self.queue.put(1)
        self.reader.doRead()
        self.queue.arm = arm
        self.queue.put(3)
        self.log.clear()
        while self.reactor.getDelayedCalls():
            self.reactor.advance(0)
        self.assertEqual(self.log, ["poll", "poll", "arm", "poll"])
        self.assertEqual(self.batches, [[1], [2], [3]])

    def test_readerOfImmediateAnswersYieldsAfterTimeSlice(self) -> None:
        now = 0.0
        handled: list[str] = []
        reactor: Any = SteppedReactor()

        def add(name: str) -> None:
            queue = Queue([])

            def handle(batch: Sequence[Completion]) -> None:
                nonlocal now
                now += 30e-6
                handled.append(name)
                queue.put(1)  # the peer has run, and has sent the next message

            queue.put(1)
            CompletionReader(reactor, Channel([queue]), [queue], handle).start()

        self.patch(completions, "perf_counter", lambda: now)
        self.patch(completions, "_budget", SpinBudget())
        add("one")
        reactor.turn()
        handled.clear()
        reactor.turn()
        self.assertGreater(len(handled), 10)  # it is the only reader
        add("other")
        reactor.turn()
        handled.clear()
        reactor.turn()
        self.assertEqual(sorted(set(handled)), ["one", "other"])
        self.assertLess(max(map(handled.count, handled)), 5, handled)

    def test_expectsAnswer(self) -> None:
        """If there are others, a reader polls once more before it arms, but rarely if that finds nothing."""
        self.patch(completions, "_budget", SpinBudget())
        reactor: Any = SteppedReactor()
        reader = CompletionReader(reactor, self.channel, [self.queue], self.handle)
        reader.start()
        reactor.turn()

        def read(*answers: int) -> list[str]:
            """Read between reads of other readers, while the peer answers; return the calls of the queue."""
            self.log.clear()
            self.queue.put(0)
            completions._budget.lastReader = None
            reader.doRead()
            for answer in answers:
                self.queue.put(answer)
                completions._budget.lastReader = None
                reactor.turn()
            while reactor.getDelayedCalls():
                reactor.turn()
            return list(self.log)

        self.assertEqual(read(1, 2), ["poll", "poll", "poll", "poll", "arm", "poll"])
        self.assertEqual(self.batches, [[0], [1], [2]])
        self.assertEqual(read(), ["poll", "poll", "arm", "poll"])
        for _ in range(7):
            self.assertEqual(read(), ["poll", "arm", "poll"])
        self.assertEqual(read(), ["poll", "poll", "arm", "poll"])

    def test_startedReaderYieldsToOthers(self) -> None:
        self.queue.put(*range(5000))
        self.reader.start()
        self.reactor.advance(0)
        self.assertEqual(sum(self.batches, []), list(range(5000)))
        self.assertEqual((self.channel.taken, self.reactor.getDelayedCalls()), (0, []))

    def test_oneBatchPerIterationAfterReactorStopped(self) -> None:
        reactor: Any = SteppedReactor()

        def handle(batch: Sequence[Completion]) -> None:
            self.handle(batch)
            reactor._justStopped = True

        reader = CompletionReader(reactor, self.channel, [self.queue], handle)
        reader.start()
        self.queue.put(*range(5000))
        for turns in range(1, 4):
            reactor._justStopped = False  # the shutdown waits for a trigger
            reactor.turn()
            self.assertEqual(len(self.batches), turns)
        self.assertEqual((self.channel.taken, len(reactor.getDelayedCalls())), (0, 1))
        while reactor.getDelayedCalls():
            reactor._justStopped = False
            reactor.turn()
        self.assertEqual(sum(self.batches, []), list(range(5000)))

    def test_readsAfterReactorStoppedInDelayedCall(self) -> None:
        """A read that is due when the reactor is stopped follows in the next iteration."""
        reactor: Any = SteppedReactor()
        CompletionReader(reactor, self.channel, [self.queue], self.handle).start()
        reactor._justStopped = True
        reactor.turn()
        self.assertEqual(self.log, [])
        reactor._justStopped = False  # the shutdown waits for a trigger
        reactor.turn()
        self.assertEqual(self.log, ["poll", "arm", "poll"])
        self.assertEqual(reactor.getDelayedCalls(), [])

    def test_raisingHandlerStopsReaderAndNotifiesOwnerOnce(self) -> None:
        def fail(batch: Sequence[Completion]) -> None:
            self.handle(batch)
            raise ValueError("on purpose")

        self.failing(fail)
        self.queue.put(*range(100))
        self.reactor.advance(0)
        self.assertEqual(len(self.batches), 1)
        self.assertFailed(ValueError, 1)

    def test_failingPollStopsReaderAndNotifiesOwner(self) -> None:
        reader = self.failing()
        reader.addSource(broken, self.handle)
        self.reactor.advance(0)
        self.assertFailed()

    def test_removalAtReactorsEndIsNoFailure(self) -> None:
        reader = self.failing()
        reader.connectionLost(Failure(ConnectionLost()))
        self.assertEqual((self.failures, self.reactor.getDelayedCalls()), ([], []))

    def test_exceptionsOfDoReadAreReported(self) -> None:
        reader = self.failing()
        reader.connectionLost(Failure(ZeroDivisionError()))
        self.assertEqual(self.failures, [ZeroDivisionError])

    def test_readerRemovedByOthersIsAddedWhenStarted(self) -> None:
        reader = CompletionReader(self.reactor, self.channel, [self.queue], self.handle)
        reader.start()
        self.reactor.removeAll()
        for call in self.reactor.getDelayedCalls():
            call.cancel()
        reader.start()
        self.queue.put(1)
        self.reactor.advance(0)
        self.assertEqual(self.batches, [[1]])
        self.assertEqual(self.reactor.getReaders(), [reader])


class SteppedReactor(MemoryReactorClock):
    """A reactor that knows its next timeout, like Twisted's reactors, and runs one iteration at a time."""

    def turn(self) -> None:
        """Run calls that are due, but not those scheduled by them, and readers with pending events."""
        for reader in self.getReaders():
            if not reader._channel.isTaken:
                reader.doRead()
        due = [call for call in self.calls if call.getTime() <= self.seconds()]
        for call in sorted(due, key=DelayedCall.getTime):
            self.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)

    def timeout(self) -> float | None:
        return min((call.getTime() - self.seconds() for call in self.getDelayedCalls()), default=None)


class TwistedReactor(ReactorBase):
    """The delayed calls of Twisted's own reactors, with a clock that advances at each look."""

    now = 0.0

    def __init__(self) -> None:
        self.readers: dict[Any, None] = {}
        super().__init__()

    def installWaker(self) -> None: ...

    def _initThreads(self) -> None: ...

    def seconds(self) -> float:
        self.now += 1e-6
        return self.now

    def addReader(self, reader: Any) -> None:
        self.readers[reader] = None

    def removeReader(self, reader: Any) -> None:
        self.readers.pop(reader, None)

    def turn(self) -> None:
        """Run one iteration of the main loop."""
        self.runUntilCurrent()
        self.timeout()
        for reader in tuple(self.readers):
            if not reader._channel.isTaken:
                reader.doRead()


class EagerReactor(TwistedReactor):
    """A reactor that asks for its next timeout at each delayed call, as those of asyncio and GLib do."""

    def callLater(
        self, delay: float, callable: Callable[..., Any], *arguments: Any, **more: Any
    ) -> DelayedCall:
        call = super().callLater(delay, callable, *arguments, **more)
        self.timeout()
        return call


class DelayedCallsTests(SynchronousTestCase):
    """Calls that handlers delay by 0 seconds run before these handlers are called again."""

    makeReactor: Any = TwistedReactor

    def setUp(self) -> None:
        self.patch(completions, "_budget", SpinBudget())
        self.reactor = self.makeReactor()
        self.reported: list[str] = []

    def add(self, queue: Queue, handle: Callable[[Sequence[Completion]], None]) -> Channel:
        channel = Channel([queue])
        CompletionReader(self.reactor, channel, [queue], handle).start()
        return channel

    def report(self, queue: Queue) -> Callable[[Sequence[Completion]], None]:
        """Return a handler whose peer answers at once."""

        def handle(batch: Sequence[Completion]) -> None:
            self.reported.append("handled")
            self.reactor.callLater(0, self.reported.append, "delayed")
            queue.put(1)

        return handle

    def check(self) -> None:
        for _ in range(8):
            self.reactor.turn()
        count = len(self.reported) // 2
        self.assertGreater(count, 3)
        self.assertEqual(self.reported[: 2 * count], ["handled", "delayed"] * count)

    def test_immediateAnswer(self) -> None:
        queue = Queue([])
        channel = self.add(queue, self.report(queue))
        self.reactor.turn()
        queue.put(1)
        channel.isTaken = False
        self.check()

    def test_severalReaders(self) -> None:
        """Also if an earlier reader has scheduled the next reads already."""
        busy, queue = Queue([]), Queue([])
        channels = (self.add(busy, lambda batch: busy.put(1)), self.add(queue, self.report(queue)))
        self.reactor.turn()
        for each, channel in zip((busy, queue), channels, strict=True):
            each.put(1)
            channel.isTaken = False
        self.check()

    def test_armed(self) -> None:
        """Also if completions are found when queues are armed, after the reactor has seen the calls."""
        busy, queue = Queue([]), Queue([])
        channel, other = self.add(busy, lambda batch: None), self.add(queue, self.report(queue))
        self.reactor.turn()
        for each in (busy, queue):
            each.arm = partial(each.put, 1)  # type: ignore[method-assign]
        channel.isTaken = other.isTaken = False
        self.check()


class EagerDelayedCallsTests(DelayedCallsTests):
    makeReactor = EagerReactor


class NextCallTests(SynchronousTestCase):
    """Calls before the read that is due in the next iteration, or in a delayed call."""

    def setUp(self) -> None:
        self.patch(completions, "_budget", SpinBudget())
        self.reactor = TwistedReactor()
        self.reported: list[str] = []
        self.delayed: Callable[[], None] = lambda: None
        self.called: Callable[[], None] = lambda: None
        self.handled: Callable[[], object] = lambda: None
        self.queue = Queue([])
        self.channel = Channel([self.queue])
        reactor: Any = self.reactor
        self.reader = CompletionReader(reactor, self.channel, [self.queue], self.handle)
        self.reader.start()
        self.reactor.turn()

    def handle(self, batch: Sequence[Completion]) -> None:
        self.reported.append("handled")
        self.reactor.callLater(0, self.delay)
        self.handled()

    def delay(self) -> None:
        self.reported.append("delayed")
        self.delayed()

    def call(self) -> None:
        self.reported.append("called")
        self.called()

    def read(self) -> None:
        """Read a completion; the handler delays a call, so that another read is due."""
        self.queue.put(1)
        self.channel.isTaken = False
        self.reactor.turn()

    def test_callPrecedesDueRead(self) -> None:
        """It takes no delayed call, and precedes completions that have come meanwhile."""
        self.delayed = lambda: self.reader.callNext(self.call)
        self.read()
        self.queue.put(2)
        self.reactor.runUntilCurrent()
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.reader.doRead()
        self.assertEqual(self.reported, ["handled", "delayed", "called", "handled"])

    def test_delayedCallsOfCallPrecedeNextBatch(self) -> None:
        self.delayed = lambda: self.reader.callNext(self.call)

        def call() -> None:
            self.delayed = lambda: None
            self.handle([])

        self.called = call
        self.read()
        self.queue.put(2)
        for _ in range(3):
            self.reactor.turn()
        expected = ["handled", "delayed", "called", "handled", "delayed", "handled", "delayed"]
        self.assertEqual(self.reported, expected)

    def test_callWithoutDueReadIsDelayed(self) -> None:
        """Also after a read that has taken the event."""
        self.read()
        for _ in range(2):
            self.reactor.turn()
        self.assertTrue(self.channel.isTaken)
        self.reader.callNext(self.call)
        self.assertEqual(self.reported, ["handled", "delayed"])
        self.reactor.turn()
        self.assertEqual(self.reported, ["handled", "delayed", "called"])

    def test_callOfStoppedReaderIsDelayed(self) -> None:
        """Whether it was scheduled before the reader was stopped, or after that."""
        for isFirst in (True, False):
            self.reported.clear()
            self.reader.start()
            self.read()
            if isFirst:
                self.reader.callNext(self.call)
            self.reader.stop()
            if not isFirst:
                self.reader.callNext(self.call)
            self.reactor.turn()
            self.assertEqual(self.reported, ["handled", "delayed", "called"])

    def test_callIsDelayedIfHandlerHasStoppedReader(self) -> None:
        self.handled = self.reader.stop
        self.read()
        self.reader.callNext(self.call)
        self.reactor.turn()
        self.assertEqual(self.reported, ["handled", "delayed", "called"])

    def test_callThatSchedulesItselfIsMadeTwice(self) -> None:
        """The second time in a delayed call, since the reader reads and sleeps after the first."""

        def call() -> None:
            self.called = lambda: None
            self.reader.callNext(self.call)

        self.called = call
        self.delayed = lambda: self.reader.callNext(self.call)
        self.read()
        for _ in range(3):
            self.reactor.turn()
        self.assertEqual(self.reported, ["handled", "delayed", "called", "called"])

    def test_discardedCall(self) -> None:
        self.read()
        self.reader.callNext(self.call)
        self.reader.discardNext(self.call)
        for _ in range(3):
            self.reactor.turn()
        self.reader.callNext(self.call)
        self.reader.discardNext(self.call)
        self.reactor.turn()
        self.assertEqual(self.reported, ["handled", "delayed"])

    def test_callAfterNestedReadHasTakenEvent(self) -> None:
        """A handler that runs the reactor until it sleeps leaves no event, so that no read is due."""

        def run() -> None:
            self.delayed = lambda: None
            for _ in range(3):
                self.reactor.turn()
            self.assertTrue(self.channel.isTaken)
            self.reported.clear()
            self.queue.log.clear()

        self.called = run
        self.delayed = lambda: self.reader.callNext(self.call)
        self.read()
        self.reactor.turn()
        self.assertEqual(self.queue.log, [])  # a read that polls for longer would not see the next event
        self.reader.callNext(self.call)
        self.called = lambda: None
        self.reactor.turn()
        self.assertEqual(self.reported, ["called"])

    def test_callInNestedIterationThatReadHasOutlived(self) -> None:
        """A read whose handler has run the reactor delays calls that precede the next read, and sleeps."""

        def run() -> None:
            self.handled = lambda: None
            self.queue.put(2)
            self.reactor.turn()
            self.reader.callNext(self.call)  # by a reader that follows in the same iteration

        self.handled = run
        self.read()
        for _ in range(3):
            self.reactor.turn()
        self.assertEqual(self.reported.count("called"), 1, self.reported)

    def test_callInNestedIterationOfCall(self) -> None:
        """The same if a call runs the reactor."""

        def run() -> None:
            self.called = self.delayed = lambda: None
            self.queue.put(2)
            self.reactor.turn()
            self.reactor.runUntilCurrent()
            self.reader.callNext(self.call)

        self.called = run
        self.delayed = lambda: self.reader.callNext(self.call)
        self.read()
        for _ in range(4):
            self.reactor.turn()
        self.assertEqual(self.reported.count("called"), 2, self.reported)

    def test_failingCallIsLogged(self) -> None:
        self.called = lambda: print(1 // 0)
        self.read()
        self.reader.callNext(self.call)
        self.queue.put(2)
        self.reactor.turn()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.reported, ["handled", "delayed", "called", "handled"])


class BusyPollingTests(SynchronousTestCase):
    """Queues that readers poll without events; each poll takes a microsecond."""

    def setUp(self) -> None:
        self.now = 1.0
        self.patch(completions, "perf_counter", lambda: self.now)
        self.waited = 0.0
        self.patch(completions, "_budget", SpinBudget(lambda: self.waited))
        self.handled: Callable[[], None] = lambda: None
        self.reactor: Any = SteppedReactor()
        self.log: list[str] = []
        self.queue = LiveQueue(self.log)
        self.queue.polled = self.pass_
        self.found: list[int] = []
        self.channels: list[Channel] = []
        self.isPeerPolling = False
        self.reader = self.make()
        self.reader.start()
        self.settle()

    def pass_(self) -> None:
        self.now += 1e-6

    def make(self, busyPolls: bool = True) -> CompletionReader:
        channel = Channel([self.queue])
        self.channels.append(channel)
        reader = CompletionReader(self.reactor, channel, [self.queue], self.handle, busyPolls=busyPolls)
        reader.addSource(lambda limit: (), self.handle, None, lambda: self.isPeerPolling)
        return reader

    def handle(self, batch: Sequence[Completion]) -> None:
        self.found += [completion.identifier for completion in batch]
        self.handled()

    def settle(self) -> int:
        """Run the reactor until it may sleep; return the number of iterations."""
        for turns in range(1000):
            if not self.reactor.getDelayedCalls() and all(channel.isTaken for channel in self.channels):
                self.assertEqual(completions._budget.pollers, 0)
                return turns
            self.reactor.turn()
        raise AssertionError("the reader polls without end")

    def wake(self, reader: CompletionReader | None = None) -> None:
        reader = reader or self.reader
        reader._channel.isTaken = False  # type: ignore[attr-defined]  # the test's channel
        reader.doRead()

    def read(self) -> int:
        """Raise an event, and return the number of polls until the reactor may sleep."""
        self.log.clear()
        self.wake()
        self.settle()
        return self.log.count("poll")

    def test_completionWithinMicrosecondsNeedsNoEvent(self) -> None:
        self.queue.put(1)
        self.queue.later = 5
        self.read()
        self.assertEqual(self.found, [1, 99])
        self.assertEqual(self.log.count("arm"), 1)
        self.assertEqual(self.log[-2:], ["arm", "poll"])

    def test_delayedReadBusyPolls(self) -> None:
        """Otherwise each further message would take a reactor iteration."""
        arm = self.queue.arm

        def armLate(*_: object) -> None:
            del self.queue.arm  # once
            arm()
            self.queue.put(2)  # a message comes as the reader falls asleep

        self.queue.arm = armLate  # type: ignore[method-assign, assignment]  # the reader passes no argument
        self.wake()
        while not self.found:
            self.reader.doRead()
        self.queue.put(3)
        self.queue.later = 5
        self.reactor.turn()
        self.assertEqual(self.found, [2, 3, 99])
        self.queue.later = 45  # after the first slice of time
        self.log.clear()
        self.settle()
        self.assertEqual(self.found, [2, 3, 99, 99])
        self.assertEqual(self.log.count("arm"), 1)

    def test_pollingReaderDisarmsFirst(self) -> None:
        self.queue.put(1)
        self.queue.later = 5
        self.read()
        self.assertEqual(self.log[:3], ["poll", "poll", "disarm"])

    def test_readerReturnsAfterEachSlice(self) -> None:
        self.reader.preferLatency()
        for later in (40, 80, 120, 150):
            self.queue.put(1)
            self.queue.later = later
            self.read()
        self.queue.put(1)
        self.queue.later = 180
        self.log.clear()
        self.wake()
        for _ in range(2):
            before, polls = self.now, self.log.count("poll")
            self.reactor.turn()
            self.assertLess(self.now - before, 60e-6)
            self.assertGreater(self.log.count("poll"), polls + 10)
        self.settle()
        self.assertEqual(self.found[-2:], [1, 99])
        self.assertEqual(self.log.count("arm"), 1)

    def test_dueCallsLimitReaderToOnePoll(self) -> None:
        """It continues when they have run."""
        call = self.reactor.callLater(0, lambda: None)
        self.queue.put(1)
        self.log.clear()
        self.wake()
        self.assertEqual(self.log, ["poll"])
        call.cancel()
        self.assertGreater(self.settle(), 0)

    def test_callDelayedWhilePollingIsMadeFirst(self) -> None:
        """Also if the reader will not poll any longer."""

        def handled() -> None:
            if self.found == [1, 99]:  # others have had the processor; the peer answers before the sleep
                self.now += 40e-3
                self.waited += 30e-3
                self.reactor.callLater(0, self.found.append, 100)
                self.queue.arm = lambda *_: self.queue.put(2)  # type: ignore[method-assign]

        self.handled = handled
        self.queue.put(1)
        self.queue.later = 5
        self.wake()
        self.reactor.advance(0)
        self.assertEqual(self.found, [1, 99, 100])

    def test_handlerThatRunsReactor(self) -> None:
        """A reader whose event another read has taken meanwhile reads again without one."""

        def handled() -> None:
            if self.found == [1]:
                self.wake()
                self.settle()  # until the reader sleeps
                self.log.clear()

        self.handled = handled
        self.queue.put(1)
        self.wake()
        self.settle()
        self.assertEqual(self.log[-2:], ["arm", "poll"])

    def test_severalReadersPollOncePerIteration(self) -> None:
        other = self.make()
        other.start()
        self.settle()
        self.queue.put(1)
        self.wake()
        self.wake(other)
        self.assertEqual(completions._budget.pollers, 2)
        self.log.clear()
        self.reactor.turn()
        self.assertEqual(completions._budget.pollers, 2)
        self.assertEqual(self.log, ["poll"] * 2)
        self.settle()

    def test_pollingPeerMakesReaderPoll(self) -> None:
        self.queue.later = 0
        for _ in range(40):
            self.now += 300e-6
            self.queue.put(1)
            self.read()
            if self.log.count("poll") == 3:
                break
        self.assertEqual(self.log, ["poll", "poll", "arm", "poll"])
        self.isPeerPolling = True
        counts = []
        for _ in range(16):
            self.queue.put(1)
            counts.append(self.read())
        self.assertGreater(max(counts), 10)

    def test_readerWithEndlessCompletionsReturns(self) -> None:
        self.queue.endless = True
        self.wake()
        self.queue.endless = False
        self.assertGreater(self.settle(), 0)

    def test_readerStoppedWhilePollingIsRemoved(self) -> None:
        self.queue.put(1)
        self.wake()
        self.assertEqual(completions._budget.pollers, 1)
        self.reader.stop()
        self.assertEqual(completions._budget.pollers, 0)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_readerStoppedByHandlerWhilePolling(self) -> None:
        """Its queues may have been closed: they are not polled any more."""

        def handled() -> None:
            if self.found[-1] == 99:
                self.reader.stop()
                self.log.clear()
                self.queue.put(2)

        self.handled = handled
        self.queue.put(1)
        self.queue.later = 5
        self.wake()
        self.assertEqual((self.found, self.log), ([1, 99], []))

    def test_failingDisarmStopsReader(self) -> None:
        self.queue.disarm = broken  # type: ignore[method-assign]
        self.queue.put(1)
        self.log.clear()
        self.wake()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)
        self.assertEqual((completions._budget.pollers, self.log.count("poll")), (0, 2))

    def test_failingArmEndsReading(self) -> None:
        def arm(*_: object) -> None:
            self.queue.put(1)
            raise ZeroDivisionError

        self.queue.arm = arm  # type: ignore[method-assign, assignment]  # the reader passes no argument
        self.wake()
        while not self.channels[0].isTaken:
            self.reader.doRead()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)
        self.assertEqual(self.found, [])

    def test_handlerExitsInDelayedRead(self) -> None:
        """Reading continues: the queues are disarmed, so that no event would follow."""

        def handled() -> None:
            if self.found[-1] == 99:
                raise SystemExit

        self.handled = handled
        self.reader.stop()
        self.queue.put(1)
        completions._budget.lastReader = self.reader._mark
        self.reader.start()
        self.queue.later = 5
        self.reactor.turn()
        self.assertEqual(len(self.flushLoggedErrors(SystemExit)), 1)
        self.queue.put(2)
        self.settle()
        self.assertEqual(self.found, [1, 99, 2])

    def test_queueThatNeedsEventsAgain(self) -> None:
        """When its last connection has ended, the reader is no longer counted as polling."""

        def handled() -> None:
            self.queue.isLive = self.found[-1] != 99

        self.handled = handled
        self.queue.put(1)
        self.queue.later = 5
        self.read()
        self.assertEqual(self.found, [1, 99])

    def test_readerWithoutBusyPollsArmsFirst(self) -> None:
        self.reader.stop()
        self.reader = self.make(busyPolls=False)
        self.reader.start()
        self.settle()
        self.queue.put(1)
        self.read()
        self.assertEqual(self.log, ["poll", "poll", "arm", "poll"])


class PollingReactorReaderTests(CompletionReaderTests):
    """Queues on a reactor that polls by itself."""

    makeReactor = MemoryPollingReactor

    def test_queueIsPolledFromStartToStop(self) -> None:
        self.reader.start()
        self.assertEqual(self.reactor.pollables, [self.reader])
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.assertFalse(self.reader.poll())
        self.queue.put(1)
        self.assertTrue(self.reader.poll())
        self.assertEqual(self.batches, [[1]])
        self.assertEqual(self.log, ["poll", "poll"])
        self.reader.stop()
        self.assertEqual(self.reactor.pollables, [])

    def test_failingDisarmStopsReader(self) -> None:
        self.queue = Queue(self.log)
        self.queue.disarm = broken
        reader = self.failing()
        reader.arm()
        self.queue.put(1)
        reader.poll()
        self.assertFailed()
        self.assertEqual(self.reactor.pollables, [])

    def test_firstCompletionAfterSleepDisarmsDoorbells(self) -> None:
        self.reader.start()
        self.reader.arm()
        self.assertFalse(self.reader.poll())
        self.assertEqual(self.log, ["arm", "poll"])
        self.queue.put(1)
        self.log.clear()
        self.reader.doRead()
        self.assertEqual(self.log, ["poll", "disarm"])
        self.queue.put(2)
        self.reader.poll()
        self.assertEqual(self.log, ["poll", "disarm", "poll"])


class SleepingReaderTests(SynchronousTestCase):
    """A reader that waits for events also on a reactor that polls by itself."""

    def test_queueIsArmedAndReadByEventsOnly(self) -> None:
        reactor: Any = MemoryPollingReactor()
        log: list[str] = []
        queue = Queue(log)
        found: list[int] = []
        reader = CompletionReader(
            *(reactor, Channel([queue]), [queue], lambda batch: found.extend(c.identifier for c in batch)),
            busyPolls=False,
        )
        reader.start()
        reactor.advance(0)
        self.assertEqual(log, ["poll", "arm", "poll"])
        self.assertEqual((reactor.pollables, reactor.getDelayedCalls()), ([], []))
        log.clear()
        queue.put(1)
        reader.doRead()
        self.assertEqual((found, log), ([1], ["poll", "poll", "arm", "poll"]))
        self.assertEqual((reactor.pollables, reactor.getDelayedCalls()), ([], []))
        reader.stop()
        self.assertEqual(reactor.getReaders(), [])


class SourcesTests(SynchronousTestCase):
    """Handlers that stop their reader, and close its queues."""

    def test_firstSourceIsRepeatedIfItMayBe(self) -> None:
        for isRepeatable in (False, True):
            calls: list[str] = []

            def mayRetry() -> bool:
                calls.append("retry")  # noqa: B023
                return True

            sources = Sources(lambda: calls.append("failed"), mayRetry)  # noqa: B023
            sources.isRunning = True
            sources.addFirst(broken, lambda batch: None, [], isRepeatable)
            self.assertIs(sources.poll(), isRepeatable)
            self.assertEqual(calls, ["retry" if isRepeatable else "failed"])

    def test_nothingIsCalledAfterHandlerStoppedReader(self) -> None:
        for isFirst in (False, True):
            calls: list[Any] = []
            sources = Sources(self.fail, lambda: False)
            sources.isRunning = sources.isArmed = True

            def stop(batch: Sequence[Any]) -> None:
                calls.append(batch)  # noqa: B023
                sources.isRunning = False  # noqa: B023

            sources.disarmBy(lambda: calls.append("disarm"))  # noqa: B023
            sources.add(lambda limit: ["other"], calls.append)
            if isFirst:
                sources.addFirst(lambda limit: ["first"], stop, ["unread"], False)
            else:
                sources.add(lambda limit: ["first"], stop)
            self.assertFalse(sources.poll())
            self.assertEqual(calls, [["first"]])
