"""Reactors for tests: a clock in place of a reactor, and helpers that run a real one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TYPE_CHECKING

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.interfaces import IReadDescriptor, IWriteDescriptor
from twisted.internet.task import deferLater

from txrdma.sim.clock import SimulatedClock
from txrdma.verbs.completions import runQueueWait

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase

    Base = SynchronousTestCase
else:
    Base = object
"""Base of classes that use the methods of a test case, and are inherited together with one."""


def unqueuedSeconds() -> float:
    """Return monotonic seconds for limits in tests, without waits of this process for a processor."""
    return time.monotonic() - runQueueWait()


class ReactorClock(SimulatedClock):
    """
    A clock with readers, writers and shutdown triggers: the part of a reactor that simulated time needs.

    @ivar triggers: functions that L{stop} calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[IReadDescriptor] = []
        self.writers: list[IWriteDescriptor] = []
        self.triggers: list[Callable[[], Any]] = []

    def addReader(self, reader: IReadDescriptor) -> None:
        if reader not in self.readers:
            self.readers.append(reader)

    def removeReader(self, reader: IReadDescriptor) -> None:
        if reader in self.readers:
            self.readers.remove(reader)

    def getReaders(self) -> list[IReadDescriptor]:
        return list(self.readers)

    def addWriter(self, writer: IWriteDescriptor) -> None:
        if writer not in self.writers:
            self.writers.append(writer)

    def removeWriter(self, writer: IWriteDescriptor) -> None:
        if writer in self.writers:
            self.writers.remove(writer)

    def step(self) -> None:
        """Advance to the next delayed call, then call C{doRead} of all readers, ready or not."""
        following = min((call.getTime() for call in self.getDelayedCalls()), default=self.rightNow + 0.01)
        self.advance(max(0.0, following - self.rightNow))
        for reader in tuple(self.readers):
            if reader in self.readers:  # another one may have removed it
                reader.doRead()

    def addSystemEventTrigger(self, phase: str, event: str, trigger: Any, *args: Any) -> Callable[[], Any]:
        """Add a function that L{stop} calls."""
        assert phase in ("before", "during") and event == "shutdown"
        self.triggers.append(partial(trigger, *args))
        return self.triggers[-1]

    def removeSystemEventTrigger(self, triggerID: Callable[[], Any]) -> None:
        self.triggers.remove(triggerID)

    def stop(self) -> Deferred[Any]:
        """Call all triggers, and return a Deferred that fires when their Deferreds have."""
        triggers, self.triggers = self.triggers, []
        return DeferredList([maybeDeferred(trigger) for trigger in triggers])


class SteppedTime(Base):
    """
    A mixin for test cases whose time advances only while a test waits.

    @ivar clock: the reactor.
    """

    clock: ReactorClock

    def wait(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Advance the clock until a condition holds; fail if that takes more than this many seconds."""
        end = self.clock.seconds() + seconds
        while not condition() and self.clock.seconds() < end:
            self.clock.step()
        self.assertTrue(condition())

    def pause(self, seconds: float) -> None:
        """Advance the clock by this many seconds."""
        end = self.clock.seconds() + seconds
        while self.clock.seconds() < end:
            self.clock.step()

    def result(self, answer: Deferred[Any], seconds: float = 30.0) -> Any:
        """Return the result of a Deferred, advancing the clock until it fires."""
        self.wait(lambda: answer.called, seconds)
        return self.successResultOf(answer)

    def failure(self, answer: Deferred[Any], kind: type[Exception]) -> Any:
        """Return the exception that a Deferred fails with, advancing the clock until it fires."""
        self.wait(lambda: answer.called)
        return self.failureResultOf(answer, kind).value


class RealTime(Base):
    """
    A mixin for test cases with their own reactor, which runs only while a test waits.

    @ivar reactor: the reactor.
    @cvar slowness: factor for the time limits of L{runUntil} on slow machines.
    """

    reactor: Any
    slowness = 1.0

    def createReactor(self) -> None:
        """Create the reactor; its descriptors are closed after all cleanups that the test adds later."""
        self.reactor = EPollReactor()
        self.addCleanup(self._closeReactor)

    def _closeReactor(self) -> None:
        for reader in tuple(self.reactor._internalReaders):  # its pipe, which nothing else closes
            self.reactor.removeReader(reader)
            reader.connectionLost(None)
        self.reactor._poller.close()

    def runUntil(self, condition: Callable[[], object], seconds: float = 3.0) -> None:
        """Run the reactor until a condition holds; fail if that takes more than this many seconds."""
        deadline = time.monotonic() + seconds * self.slowness
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"{condition} does not hold after {seconds * self.slowness:g} seconds")
            self.reactor.iterate(0.001)

    def runFor(self, seconds: float) -> None:
        """Run the reactor for this many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.reactor.iterate(0.001)


async def waitUntil(
    reactor: Any, condition: Callable[[], object], seconds: float = 30.0, what: str = ""
) -> float:
    """
    Wait until a condition holds while the reactor runs, and return the elapsed seconds.

    @param what: description of the condition for the error.
    """
    begin = reactor.seconds()
    while not condition():
        if reactor.seconds() - begin > seconds:
            raise AssertionError(f"{what or condition} does not hold after {seconds:g} seconds")
        await deferLater(reactor, 0.002)
    return float(reactor.seconds() - begin)
