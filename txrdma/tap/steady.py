"""
Clock of a service that is to run for years: the time of day, but it never runs back.

Reactors of Twisted keep their timers by the time of day: where that is set back by an hour, nothing that is
due is done for an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_SLOW: Final = 0.9
"""Seconds that pass in a second while the clock waits for the time of day."""


class SteadyClock:
    """
    Clock in seconds since 1970.

    Where the time of day is set back, this clock goes more slowly until that has caught up with it; where it
    is set forward, so is this clock.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        """
        @param wall: returns the time of day in seconds since 1970.
        @param steady: returns a time that nobody sets.
        """
        self._wall = wall
        self._steady = steady
        self._told = wall()
        self._isSlow = False
        self._from = (0.0, 0.0)

    def __call__(self) -> float:
        """Tell the time."""
        now = self._wall()
        if now < self._told or self._isSlow:
            now = self._waited(now)
        self._told = now
        return now

    def aheadSeconds(self) -> float:
        """Seconds by which this clock is ahead of the time of day, which was set back."""
        return max(0.0, self._told - self._wall())

    def _waited(self, now: float) -> float:
        """Time while this clock waits for the time of day."""
        steady = self._steady()
        if not self._isSlow:
            self._isSlow = True
            self._from = (self._told, steady)
        begun, since = self._from
        slow = begun + _SLOW * (steady - since)
        self._isSlow = slow > now
        return max(slow, now)
