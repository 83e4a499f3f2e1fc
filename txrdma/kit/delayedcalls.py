"""Delayed calls that other code may have cancelled: trial cancels all of them after a failed test."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final
from weakref import WeakValueDictionary

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from txrdma.kit.forwardclock import sharedForwardClock

_log = Logger()

READ_SECONDS: Final = 0.1
"""Seconds for a busy reactor to read what has arrived, after a time limit has passed."""


def isPending(call: IDelayedCall | None) -> bool:
    """Return whether a delayed call is pending."""
    return call is not None and call.active()


def cancelCall(call: IDelayedCall | None) -> None:
    """Cancel a delayed call if it is pending."""
    if call is not None and call.active():
        call.cancel()


class Timer:
    """At most one delayed call at a time."""

    __slots__ = ("_call", "_clock", "_due")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._call: IDelayedCall | None = None
        self._due = inf

    @property
    def isPending(self) -> bool:
        """Whether a call is pending."""
        call = self._call
        return call is not None and call.active()

    @property
    def dueAt(self) -> float:
        """Time of the call; infinite if none is pending."""
        call = self._call
        return inf if call is None or not call.active() else self._due

    def start(self, seconds: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function after a time, in place of a pending call."""
        self.stop()
        self._due = self._clock.seconds() + seconds
        self._call = self._clock.callLater(seconds, function, *arguments)

    def ensure(self, seconds: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function after a time, unless a pending call is due by then."""
        call = self._call
        if call is None or self._due > self._clock.seconds() + seconds or not call.active():
            self.start(seconds, function, *arguments)

    def startAndRead(self, seconds: float, function: Callable[..., object], *arguments: Any) -> None:
        """
        Call a function after a time, and after the reactor has read what had arrived by then.

        A reactor makes delayed calls before it reads. So after a process was busy or stopped, a time limit
        would end an exchange whose last message has already arrived.
        """
        self.start(seconds, self.start, READ_SECONDS, function, *arguments)

    def stop(self) -> None:
        """Cancel the pending call. Idempotent."""
        call, self._call = self._call, None
        if call is not None and call.active():
            call.cancel()


class NextCalls:
    """
    Calls in the next iteration of a reactor, all made by one delayed call.

    A process with many busy connections needs them in every iteration, and each delayed call costs several
    microseconds.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock, self._forwardClock = clock, sharedForwardClock(clock)
        self._calls: dict[Callable[[], object], None] = {}
        self._running: dict[Callable[[], object], None] = {}
        self._timer: IDelayedCall | None = None
        # When the system time is set back, the reactor makes its delayed calls late by that.
        self._forwardClock.join(self._reset)

    def add(self, call: Callable[[], object]) -> None:
        """Make a call in the next iteration; only once if it is added again before that."""
        self._calls[call] = None
        timer = self._timer
        if timer is None or not timer.active():
            self._forwardClock.seconds()  # else it might not notice that it was set back after this
            self._timer = self._clock.callLater(0, self._run)

    def postpone(self) -> None:
        """
        Make the calls after all that were delayed by 0 seconds until now.

        Not for use in delayed calls, which might postpone these calls again in each iteration.
        """
        new = getattr(self._clock, "_newTimedCalls", ())  # until the reactor asks for its timeout
        if not new or new[-1] is not self._timer:
            self._reset()

    def _reset(self) -> None:
        timer = self._timer
        if timer is not None and timer.active():
            timer.reset(0)

    def discard(self, call: Callable[[], object]) -> None:
        """Do not make a call. Idempotent."""
        self._running.pop(call, None)
        if call in self._calls:
            del self._calls[call]
            if not self._calls:
                cancelCall(self._timer)
                self._timer = None

    def _run(self) -> None:
        self._timer = None
        running = self._running  # has calls already if one of them runs the reactor
        running.update(self._calls)
        self._calls.clear()
        for call in list(running):
            if running.pop(call, call) is None:  # otherwise an earlier one has discarded it
                try:
                    call()
                except BaseException:  # as the reactor does
                    _log.failure("Unexpected error in {call}", call=call)
        self.postpone()  # which is safe here: the reactor makes new delayed calls in the next iteration


_nextCalls: Final[WeakValueDictionary[int, NextCalls]] = WeakValueDictionary()
"""The objects in use, by C{id(reactor)}; each refers to its reactor."""


def nextCalls(clock: IReactorTime) -> NextCalls:
    """Return the calls in the next iteration of this reactor; the caller keeps them."""
    calls = _nextCalls.get(id(clock))
    if calls is None:
        calls = _nextCalls[id(clock)] = NextCalls(clock)
    return calls
