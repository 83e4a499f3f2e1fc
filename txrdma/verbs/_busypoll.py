"""
The time to look for completions before a process sleeps: as long as they have lately taken to come.

To sleep and to be woken costs both processes tens of microseconds, so a process that expects an answer soon
looks for it, as hypervisors poll before they halt a processor (Documentation/virt/kvm/halt-polling.rst of
Linux). Looking is bounded in time, and in its share of the processor, and stops where others want that.

Nothing here reads a clock; times are seconds, and only their differences matter.
"""

from __future__ import annotations

from typing import Final

MOST_SECONDS: Final = 400e-6
"""Seconds of looking at most: completions that take longer to come are waited for asleep."""

_LEARNT_SECONDS: Final = 550e-6
"""The longest wait that counts as short after a sleep, with what waking both ends has taken of it."""

_FIRST_SECONDS: Final = 30e-6
_SPARE_SECONDS: Final = 15e-6
_FORGETTING: Final = 1 / 8
_PATIENCE: Final = 2

FREE_SECONDS: Final = 50e-6
"""Seconds of looking that are not charged: a sleep would cost as much of the processor."""

_SHARE: Final = 0.7
_MOST_CREDIT: Final = 0.02

CROWDED_SECONDS: Final = 20e-6
"""Seconds: a yield of the processor that took so long shows that others want it."""

_LEAST_PAUSE: Final = 2e-3
_MOST_PAUSE: Final = 0.5


class SpinBudget:
    """
    The time that a process may spend on looking: a share of its processor, and nothing while others want it.

    @ivar pollers: how many look at this time.
    """

    def __init__(self) -> None:
        self.pollers = 0
        self._credit = _MOST_CREDIT
        self._at = 0.0
        self._pause = _LEAST_PAUSE
        self._pausedUntil = 0.0

    def window(self, now: float, wanted: float) -> float:
        """The seconds that a reader may look from now on, who wants to do so."""
        if now < self._pausedUntil:
            return 0.0
        if wanted <= FREE_SECONDS:
            return wanted
        self._credit = min(_MOST_CREDIT, self._credit + _SHARE * max(now - self._at, 0.0))
        self._at = now
        return wanted if wanted - FREE_SECONDS <= self._credit else 0.0

    def spent(self, seconds: float) -> None:
        """Count the seconds that a reader has looked."""
        self._credit -= max(seconds - FREE_SECONDS, 0.0)

    def yielded(self, before: float, now: float) -> bool:
        """
        The processor was offered to others from C{before} to C{now}.

        @return: whether they took it: nobody looks for a while then, each time for longer.
        """
        if now - before < CROWDED_SECONDS:
            self._pause = max(_LEAST_PAUSE, self._pause * 0.9)
            return False
        self._pausedUntil = now + self._pause
        self._pause = min(self._pause * 2, _MOST_PAUSE)
        return True


class BusyPoll:
    """
    The time that one reader looks on: a little longer than what it waited for has lately taken to come.

    A wait begins when there is nothing left to do, and ends with what comes, found by looking or by being
    woken. Waits that are too long to be looked out do not count, but when there are only such, nobody looks.
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
        """There is nothing left to do. Tell until when to look for more; it is past when the time is over."""
        if not self._isWaiting:
            self._isWaiting = True
            self._since = self._until = now
            if self._late < _PATIENCE:
                wanted = min(1.5 * self._expected + _SPARE_SECONDS, self._most)
                self._until += self._budget.window(now, wanted)
        return self._until

    def came(self, now: float) -> None:
        """Note that a completion has come, and how long it took."""
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
        """The processor was offered to others; if they took it, and nothing came meanwhile, look no more."""
        if self._budget.yielded(before, now):
            self._until = min(self._until, before)
