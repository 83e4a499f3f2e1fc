"""
A clock for long-running services: the system time, but never decreasing.

Twisted's reactors schedule delayed calls by the system time: if that is set back by an hour, none is called
for an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_SLOW: Final = 0.9
"""Speed of the clock while it is ahead of the system time."""


class SteadyClock:
    """
    A clock in seconds since 1970.

    If the system time is set back, the clock runs more slowly until the system time has caught up. If the
    system time is set forward, so is the clock.

    @ivar steadySeconds: returns monotonic time in seconds, for intervals.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        """
        @param wall: returns the system time in seconds since 1970.
        @param steady: returns monotonic time in seconds.
        """
        self._wall = wall
        self.steadySeconds = steady
        self._last = wall()
        self._isSlow = False
        self._from = (0.0, 0.0)

    def __call__(self) -> float:
        """Return the time in seconds since 1970."""
        now = self._wall()
        if now < self._last or self._isSlow:
            now = self._slowed(now)
        self._last = now
        return now

    def aheadSeconds(self) -> float:
        """Return the seconds by which the clock is ahead of the system time."""
        return max(0.0, self._last - self._wall())

    def _slowed(self, now: float) -> float:
        """Return the time while the clock is ahead of the system time."""
        steady = self.steadySeconds()
        if not self._isSlow:
            self._isSlow = True
            self._from = (self._last, steady)
        begun, since = self._from
        slow = begun + _SLOW * (steady - since)
        self._isSlow = slow > now
        return max(slow, now)
