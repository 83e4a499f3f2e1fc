"""
How long to busy-poll for completions before a process sleeps.

Theory of operation. To sleep and to be woken takes tens of microseconds, of elapsed time and of processor
time. So a process that expects an answer soon polls for it instead, as hypervisors do before they halt a
processor (Documentation/virt/kvm/halt-polling.rst of Linux). It polls a little longer than answers have
recently taken.

Polling must pay for itself. A reader has a credit of processor time. Polling costs its duration. If it finds
an answer, it earns the processor time of the sleep that it replaced (or more, if low latency is preferred).
If answers take longer than that, or if the peer's process has no processor to answer, the credit is soon used
up, and the reader sleeps. From then on a small share of all time, which all readers of the process have in
common, pays for attempts.

On a busy machine, polling takes processor time from others, perhaps from the peer. So no reader polls while
the process often has to wait for a processor.

A peer that polls at this moment will answer soon, since it need not be woken. In this case the reader may
overdraw its credit: a single attempt of one end is enough for both to begin.

Clocks are arguments; times are seconds, and only their differences matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from txrdma.verbs._sources import Sources

SLEEP_SECONDS: Final = 25e-6
"""Processor time that two processes need for a sleep and a wakeup."""

MOST_SECONDS: Final = 100e-6
"""Maximum seconds of busy-polling for one answer; L{LOW_LATENCY_SECONDS} if low latency is preferred."""

LOW_LATENCY_SECONDS: Final = 400e-6

_TURN_SECONDS: Final = 400e-6
"""Longest time of busy-polling in one reactor iteration, even if answers come."""

_SLICE_SECONDS: Final = 40e-6
"""Longest time of busy-polling without an answer in one reactor iteration."""

_POLLS: Final = range(8)
"""Polls between two readings of the clock."""

SHARE: Final = 0.005
"""The share of time for attempts that do not pay for themselves."""

CROWDED_SHARE: Final = 0.05
"""Share of time that a process waits for a processor, above which the machine is busy."""

_SAMPLE_SECONDS: Final = 2e-3

_AVERAGED_SECONDS: Final = 30e-3
"""
Seconds over which that share is averaged: several time slices of the scheduler. A process that shares its
processor with a busy one runs alone for milliseconds, and then waits as long.
"""

_MOST_POOL: Final = 2e-3
_FIRST_CREDIT: Final = 200e-6
_MOST_CREDIT: Final = 2e-3
_LEAST_CREDIT: Final = -1e-3
_ATTEMPT: Final = 100e-6
_OVERDRAFT: Final = -300e-6

_LEARNT_SECONDS: Final = 550e-6
"""Longest wait in seconds that counts as short after a sleep, including the wakeup of both ends."""

_FIRST_SECONDS: Final = 30e-6
_SPARE_SECONDS: Final = 15e-6
_FORGETTING: Final = 1 / 8
_LATE_WAITS: Final = 2


def _unknown() -> float:
    return 0.0


class SpinBudget:
    """
    The processor time that all readers of a process may spend on busy-polling beyond what it saves.

    It also determines whether other processes need the processor.

    @ivar pollers: number of readers that are busy-polling now.
    @ivar lastReader: the mark of the reader that has read last.
    @ivar waitShare: the share of recent time for which the process waited for a processor.
    """

    def __init__(self, runQueueWait: Callable[[], float] = _unknown) -> None:
        """
        @param runQueueWait: returns the seconds for which this process was runnable and had no processor.
        """
        self.pollers = 0
        self.lastReader: object = None
        self._pool = _MOST_POOL
        self._at = 0.0
        self._runQueueWait = runQueueWait
        self._wait = 0.0
        self._sampledAt = -_SAMPLE_SECONDS
        self.waitShare = 0.0

    def isCrowded(self, now: float) -> bool:
        """Return whether other processes have recently kept this one from running."""
        elapsed = now - self._sampledAt
        if elapsed >= _SAMPLE_SECONDS:
            wait = self._runQueueWait()
            waited = (wait - self._wait) / elapsed
            self.waitShare += (waited - self.waitShare) * min(1.0, elapsed / _AVERAGED_SECONDS)
            self._wait = wait
            self._sampledAt = now
        return self.waitShare > CROWDED_SHARE

    def draw(self, now: float, wanted: float) -> float:
        """Take processor time, in seconds; return what there is, up to C{wanted}."""
        pool = min(_MOST_POOL, self._pool + SHARE * max(now - self._at, 0.0))
        self._at = now
        drawn = min(pool, wanted)
        self._pool = pool - drawn
        return drawn


class BusyPoll:
    """
    How long one reader busy-polls: a little longer than answers have recently taken.

    A wait begins when there is nothing left to do, and ends with a completion, found by polling or after a
    wakeup. Waits that are too long for busy-polling do not count; after several in a row it stops.

    @ivar isWaiting: a wait has begun, and not ended; C{since}: when the latest one began.
    """

    def __init__(self, budget: SpinBudget, sleepSeconds: float = SLEEP_SECONDS) -> None:
        """@param sleepSeconds: processor time that a sleep and a wakeup take of both processes."""
        self._budget = budget
        self._most = MOST_SECONDS
        self._worth = sleepSeconds
        self._credit = _FIRST_CREDIT
        self._expected = _FIRST_SECONDS
        self._late = 0
        self.isWaiting = False
        self.since = 0.0
        self._until = 0.0

    def preferLatency(self) -> None:
        """Count a found answer as worth all the time that was spent on polling for it."""
        self._most = self._worth = LOW_LATENCY_SECONDS

    def wait(self, now: float, isPeerPolling: bool = False) -> float:
        """Begin a wait, or continue it; return the time until which to busy-poll, which may be past."""
        if not self.isWaiting:
            self.isWaiting = True
            self.since = self._until = now
            if self._late < _LATE_WAITS and not self._budget.isCrowded(now):
                credit = self._credit
                if credit <= 0:
                    self._credit = credit = credit + self._budget.draw(now, _ATTEMPT - credit)
                if credit > 0 or (isPeerPolling and credit > _OVERDRAFT):
                    self._until += min(1.5 * self._expected + _SPARE_SECONDS, self._most)
        return self._until

    def foundAtOnce(self) -> None:
        """End a wait, since the completion was there before it began."""
        self.isWaiting = False

    def found(self, now: float) -> None:
        """End a wait with a completion, and learn from its duration."""
        if not self.isWaiting:
            return
        self.isWaiting = False
        since, until = self.since, self._until
        waited = now - since
        if until > since:
            if now <= until:
                self._credit = min(_MOST_CREDIT, self._credit + self._worth - waited)
            else:
                self._credit = max(_LEAST_CREDIT, self._credit - (until - since))
        if waited > _LEARNT_SECONDS:
            self._late += 1
            return
        self._late = 0
        expected = self._expected
        waited = min(waited, self._most)
        self._expected = waited if waited > expected else expected + (waited - expected) * _FORGETTING

    def poll(
        self,
        sources: Sources,
        now: float,
        until: float,
        clock: Callable[[], float],
        reactorSleep: Callable[[], float | None],
        isEnding: Callable[[], bool],
    ) -> bool:
        """
        Busy-poll for a slice of time after each answer: later, an answer is unlikely to come soon.

        @param until: what L{wait} has returned.
        @param reactorSleep: returns 0 if the reactor has work.
        @param isEnding: returns whether the reactor stops.
        @return: whether there is time left for busy-polling in the next reactor iteration.
        """
        began = now
        end = now + _SLICE_SECONDS
        while sources.isRunning and now < end and now < until and reactorSleep() != 0:
            for number in _POLLS:
                if sources.poll():
                    # The first poll of a wait finds what was there before, which does not show how long
                    # answers take.
                    if number or now > self.since:
                        self.found(now)
                    else:
                        self.foundAtOnce()
                    now = clock()
                    until = self.wait(now, True)
                    end = now + _SLICE_SECONDS
                    if now - began > _TURN_SECONDS or isEnding():
                        return now < until
                    break
                if not sources.isRunning:  # the handler may have closed the queues
                    return False
            else:
                now = clock()
        return now < until
