"""
How long to busy-poll for completions before a process sleeps: as long as they have lately taken.

Sleeping and waking costs both processes tens of microseconds, so a process that expects an answer soon
busy-polls, as hypervisors do before they halt a processor (Documentation/virt/kvm/halt-polling.rst of Linux).
It is bounded in time and in its share of the processor, and stops where other processes want that.

Nothing here reads a clock; times are seconds, and only their differences matter.
"""

from __future__ import annotations

from typing import Final

MOST_SECONDS: Final = 400e-6
"""Most seconds of busy-polling; completions that take longer are awaited asleep."""

_LEARNT_SECONDS: Final = 550e-6
"""Longest wait in seconds that counts as short after a sleep, including the wakeup of both ends."""

_FIRST_SECONDS: Final = 30e-6
_SPARE_SECONDS: Final = 15e-6
_FORGETTING: Final = 1 / 8
_EMPTY_POLLS: Final = 2

FREE_SECONDS: Final = 50e-6
"""Seconds of busy-polling that are free: a sleep would cost as much processor time."""

_SHARE: Final = 0.7
_MOST_CREDIT: Final = 0.02

CROWDED_SECONDS: Final = 20e-6
"""Seconds of a yield of the processor from which on others are assumed to need it."""

_LEAST_PAUSE: Final = 2e-3
_MOST_PAUSE: Final = 0.5


class SpinBudget:
    """
    The time for busy-polling: a share of the processor, none while others need it; C{pollers} use it now.
    """

    def __init__(self) -> None:
        self.pollers = 0
        self._credit = _MOST_CREDIT
        self._at = 0.0
        self._pause = _LEAST_PAUSE
        self._pausedUntil = 0.0

    def window(self, now: float, wanted: float) -> float:
        """The seconds that a reader may busy-poll from now on, of those it wants."""
        if now < self._pausedUntil:
            return 0.0
        if wanted <= FREE_SECONDS:
            return wanted
        self._credit = min(_MOST_CREDIT, self._credit + _SHARE * max(now - self._at, 0.0))
        self._at = now
        return wanted if wanted - FREE_SECONDS <= self._credit else 0.0

    def spent(self, seconds: float) -> None:
        self._credit -= max(seconds - FREE_SECONDS, 0.0)

    def yielded(self, before: float, now: float) -> bool:
        """Record a yield of the processor; return whether others took it, so that polling pauses."""
        if now - before < CROWDED_SECONDS:
            self._pause = max(_LEAST_PAUSE, self._pause * 0.9)
            return False
        self._pausedUntil = now + self._pause
        self._pause = min(self._pause * 2, _MOST_PAUSE)
        return True


class BusyPoll:
    """
    How long one reader busy-polls: a little longer than completions have lately taken.

    A wait begins when there is nothing left to do, and ends with a completion, found by polling or after a
    wakeup. Waits that are too long for busy-polling do not count; after several in a row it stops.
    """

    def __init__(self, budget: SpinBudget, mostSeconds: float = MOST_SECONDS) -> None:
        self._budget = budget
        self._most = mostSeconds
        self._expected = _FIRST_SECONDS
        self._late = 0
        self._isWaiting = False
        self._since = 0.0
        self._until = 0.0

    def waits(self, now: float) -> float:
        """Begin a wait, or continue it; return the time until which to busy-poll, which may be past."""
        if not self._isWaiting:
            self._isWaiting = True
            self._since = self._until = now
            if self._late < _EMPTY_POLLS:
                wanted = min(1.5 * self._expected + _SPARE_SECONDS, self._most)
                self._until += self._budget.window(now, wanted)
        return self._until

    def came(self, now: float) -> None:
        """End a wait with a completion, and learn from its duration."""
        if not self._isWaiting:
            return
        self._isWaiting = False
        waited = now - self._since
        looked = min(now, self._until) - self._since
        if looked > FREE_SECONDS:
            self._budget.spent(looked)
        if waited > _LEARNT_SECONDS:
            self._late += 1
            return
        self._late = 0
        expected = self._expected
        waited = min(waited, self._most)
        self._expected = waited if waited > expected else expected + (waited - expected) * _FORGETTING

    def yielded(self, before: float, now: float) -> None:
        """Record a yield of the processor; if others took it, stop busy-polling."""
        if self._budget.yielded(before, now):
            self._until = min(self._until, before)
