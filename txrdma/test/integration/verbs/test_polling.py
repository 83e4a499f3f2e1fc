"""The polling reactor: low latency, exact timers, and no load when idle."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

from zope.interface import implementer
from zope.interface.verify import verifyObject

from twisted.application.reactors import IReactorInstaller
from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.internet.test.test_core import SystemEventTestsBuilder
from twisted.internet.test.test_fdset import ReactorFDSetTestsBuilder
from twisted.internet.test.test_tcp import TCPConnectionTestsBuilder
from twisted.internet.test.test_threads import ThreadTestsBuilder
from twisted.internet.test.test_time import TimeTestsBuilder
from twisted.plugin import getPlugins
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.interfaces import IPollable, IReactorPolling
from txrdma.testing.reactors import unqueuedSeconds
from txrdma.verbs.polling import PollingReactor


@implementer(IPollable)
class Polled:
    """A polled object, which reports the events that C{give} has left."""

    def __init__(self) -> None:
        self.there = 0
        self.log: list[str] = []
        self.polls = 0
        self.handler: Callable[[], Any] = lambda: None

    def poll(self) -> bool:
        self.polls += 1
        self.log.append("poll")
        if self.there:
            self.there -= 1
            self.handler()
            return True
        return False

    def arm(self) -> None:
        self.log.append("arm")


class Polling(ReactorBuilder):
    """Twisted's own tests of reactors, with a polled object."""

    _reactors = ["txrdma.verbs.polling.PollingReactor"]

    def buildReactor(self) -> Any:
        reactor = super().buildReactor()
        reactor.addPollable(Polled())
        return reactor


class PollingTime(Polling, TimeTestsBuilder): ...


class PollingThreads(Polling, ThreadTestsBuilder): ...


class PollingEvents(Polling, SystemEventTestsBuilder): ...


class PollingDescriptors(Polling, ReactorFDSetTestsBuilder):
    def test_lostFileDescriptor(self) -> None:
        """Skip: epoll does not report a descriptor that was closed elsewhere."""
        self.skipTest("epoll does not report it")


class PollingTCP(Polling, TCPConnectionTestsBuilder): ...


for builder in (PollingTime, PollingThreads, PollingEvents, PollingDescriptors, PollingTCP):
    globals().update(builder.makeTestCaseClasses())
del builder


@implementer(IReadDescriptor)
class Reader:
    """Calls a function when its socket is readable."""

    def __init__(self, sock: socket.socket, received: Callable[[bytes], None]) -> None:
        self.sock = sock
        self.received = received

    def fileno(self) -> int:
        return self.sock.fileno()

    def logPrefix(self) -> str:
        return "test"

    def doRead(self) -> None:
        self.received(self.sock.recv(100))

    def connectionLost(self, reason: Failure) -> None: ...


class PollingReactorTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = PollingReactor()
        self.polled = Polled()
        self.reactor.addPollable(self.polled)
        self.addCleanup(self.reactor.removeAll)
        self.reactor.callLater(30, self.reactor.stop)

    def run_(self) -> float:
        """Run until stopped; return the CPU seconds."""
        began = time.process_time()
        self.reactor.run(installSignalHandlers=False)
        return time.process_time() - began

    def runWith(self, handle: Callable[[], object]) -> None:
        """Run until stopped, with an event that is handled by a function."""
        self.polled.handler, self.polled.there = handle, 1
        self.run_()

    def test_reactorProvidesInterfaces(self) -> None:
        verifyObject(IReactorPolling, self.reactor)

    def test_twistdFindsReactor(self) -> None:
        found: list[Any] = list(getPlugins(IReactorInstaller))
        names = {each.shortName: each.moduleName for each in found}
        self.assertEqual(names["txrdma"], "txrdma.verbs.polling")

    def test_eventDuringPollingNeedsNoSystemCall(self) -> None:
        times: list[float] = []

        def handle() -> None:
            times.append(time.perf_counter())
            if len(times) < 1000:
                self.polled.there += 1
            else:
                self.reactor.stop()

        self.runWith(handle)
        self.assertEqual(len(times), 1000)
        gaps = sorted(after - before for before, after in pairwise(times))
        self.assertLess(gaps[500], 20e-6)

    def test_reactorArmsAndPollsBeforeSleep(self) -> None:
        logs: list[list[str]] = []

        def handle() -> None:
            logs.append(self.polled.log[-2:])
            self.reactor.stop()

        self.polled.handler = handle
        arm = self.polled.arm

        def armed() -> None:
            arm()
            self.polled.there = not logs

        self.polled.arm = armed  # type: ignore[method-assign]  # for the test
        self.run_()
        self.assertEqual(logs, [["arm", "poll"]])

    def test_timerFiresInTimeWithoutEvents(self) -> None:
        late: list[float] = []

        def fired(due: float) -> None:
            late.append(unqueuedSeconds() - due)

        for delay in (0.0005, 0.003, 0.02):
            self.reactor.callLater(delay, fired, unqueuedSeconds() + delay)
        self.reactor.callLater(0.05, self.reactor.stop)
        self.run_()
        self.assertEqual(len(late), 3)
        self.assertLess(min(late), 0.05)

    def test_permanentPolledEventsStarveNothing(self) -> None:
        reading, writing = socket.socketpair()
        self.addCleanup(reading.close)
        self.addCleanup(writing.close)
        received: list[object] = []

        def note(what: object) -> None:
            received.append(what)
            if len(received) == 4:
                self.reactor.stop()

        def more() -> None:
            self.polled.there += 1
            if self.polled.polls == 50:
                writing.send(b"socket")
                self.reactor.callLater(0, note, "soon")
                self.reactor.callLater(0.01, note, "timer")
                threading.Thread(target=self.reactor.callFromThread, args=(note, "thread")).start()

        self.reactor.addReader(Reader(reading, note))
        self.runWith(more)
        self.assertEqual(set(received), {b"socket", "soon", "timer", "thread"})

    def test_timerMovedEarlierFiresInTime(self) -> None:
        call = self.reactor.callLater(20, self.reactor.stop)

        def more() -> None:
            self.polled.there += 1
            if self.polled.polls == 50:
                call.reset(0.001)

        began = time.monotonic()
        self.runWith(more)
        self.assertLess(time.monotonic() - began, 10)

    def test_threadWakesSleepingReactor(self) -> None:
        threading.Timer(0.1, self.reactor.callFromThread, (self.reactor.stop,)).start()
        began = time.monotonic()
        self.run_()
        self.assertLess(time.monotonic() - began, 10)

    def test_signalEndsSleepingReactor(self) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        handler = signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
        self.addCleanup(signal.signal, signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began = time.monotonic()
        self.reactor.run()
        self.assertLess(time.monotonic() - began, 10)

    def test_idleReactorUsesAlmostNoCPUTime(self) -> None:
        self.reactor.callLater(1.0, self.reactor.stop)
        self.assertLess(self.run_(), 0.05)
        self.assertLess(self.polled.polls, 20000)

    def test_unsuccessfulPollingIsReducedUntilSuccess(self) -> None:
        turns = 0

        def tick() -> None:
            nonlocal turns
            turns += 1
            if turns == 40:
                windows.append(self.reactor._window())
                self.polled.there = 1
            elif turns == 42:
                windows.append(self.reactor._window())
                self.reactor.stop()
            self.reactor.callLater(0.001, tick)

        windows: list[float] = []
        self.reactor.callLater(0.001, tick)
        self.run_()
        self.assertLessEqual(windows[0], self.reactor.spinSeconds / 2)
        self.assertEqual(windows[1], self.reactor.spinSeconds)

    def test_removedObjectIsNotPolledAgain(self) -> None:
        def once() -> None:
            self.polled.there = 1
            self.reactor.removePollable(self.polled)
            self.reactor.callLater(0.01, self.reactor.stop)

        self.runWith(once)
        self.assertEqual(self.polled.there, 1)
        self.reactor.removePollable(self.polled)

    def test_raisingObjectIsLoggedAndRemoved(self) -> None:
        other = Polled()
        other.handler = self.reactor.stop
        self.reactor.addPollable(other)

        def fail() -> None:
            other.there = 1
            raise ValueError("on purpose")

        self.polled.handler = fail
        self.polled.there = 5
        self.run_()
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assertEqual(self.polled.there, 4)
        other.there = 0
        self.reactor.addPollable(Polled())
        self.reactor._pollSources()
        self.assertEqual(self.polled.there, 4)

    def test_objectThatCannotBeArmedIsRemoved(self) -> None:
        other = Polled()
        self.reactor.addPollable(other)
        self.patch(self.polled, "arm", Mock(side_effect=ValueError("on purpose")))
        self.patch(other, "arm", lambda: self.reactor.callLater(0, self.reactor.stop))
        self.run_()
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_idleObjectsAreArmedInsteadOfPolled(self) -> None:
        quiet = [Polled() for _ in range(1000)]
        for each in quiet:
            self.reactor.addPollable(each)
        counts: list[int] = []
        turns = 0

        def more() -> None:
            nonlocal turns
            turns += 1
            self.polled.there += 1
            if turns in (1000, 20000):
                counts.append(sum(each.polls for each in quiet))
            if turns == 20000:
                self.polled.there = 0
                self.reactor.stop()

        self.runWith(more)
        self.assertEqual(counts[0], counts[1])
        self.assertEqual({each.log[-2] for each in quiet}, {"arm"})
        self.assertEqual({each.log[-1] for each in quiet}, {"poll"})

    def test_eventDuringArmingIsFound(self) -> None:
        late = Polled()
        received: list[int] = []

        def arm() -> None:
            late.there = not received

        def came() -> None:
            received.append(late.polls)
            self.reactor.callLater(0, self.reactor.stop)

        late.arm, late.handler = arm, came  # type: ignore[method-assign]  # for the test
        self.reactor.addPollable(late)
        self.runWith(lambda: setattr(self.polled, "there", 1))
        self.polled.there = 0
        self.assertEqual(len(received), 1)
        polls = late.polls
        self.reactor._pollSources()
        self.assertEqual(late.polls, polls + 1)

    def test_armedObjectIsPolledWhenAddedAgain(self) -> None:
        quiet = Polled()
        self.reactor.addPollable(quiet)
        self.reactor._sweep()
        self.reactor._sweep()
        polls = quiet.polls
        self.reactor._pollSources()
        self.assertEqual(quiet.polls, polls)
        self.reactor.addPollable(quiet)
        self.reactor._pollSources()
        self.assertEqual(quiet.polls, polls + 1)
        self.reactor.removePollable(quiet)
        self.reactor._pollSources()
        self.assertEqual(quiet.polls, polls + 1)

    def test_reactorStoppedWhileArmingDoesNotSleep(self) -> None:
        late = Polled()
        late.handler = self.reactor.stop

        def arm() -> None:
            late.there = 1

        late.arm = arm  # type: ignore[method-assign]  # for the test
        self.reactor.addPollable(late)
        self.reactor.removePollable(self.polled)
        self.reactor._hits.clear()
        self.reactor._rounds = 1000
        began = time.monotonic()
        self.run_()
        self.assertLess(time.monotonic() - began, 10)
