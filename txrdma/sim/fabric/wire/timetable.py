"""Timetable of a simulation: thousands of scheduled calls on one timer."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock

from txrdma.kit.delayedcalls import Timer

LATENESS_SECONDS: Final = 0.1
"""Most lateness that is compensated. Timers are late by up to a millisecond, under load by much more."""


class SimulatedTimetable:
    """
    Scheduled calls in the order of their times; calls with equal times in the order in which they were added.

    A real reactor's timers are late. So all calls that are due are made together, and calls that they add are
    scheduled relative to the time when the adding call was due. Delays do not accumulate.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._seconds = clock.seconds
        self._isReal = not isinstance(clock, Clock)
        self._due: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._number = count()
        self._timer = Timer(clock)
        self._base: float | None = None

    def __len__(self) -> int:
        return len(self._due)

    def later(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        """Schedule a call after some seconds."""
        base = self._base
        at = (self._seconds() if base is None else base) + seconds
        heappush(self._due, (at, next(self._number), call, args))
        if base is None:
            self._timer.ensure(max(0.0, seconds), self._turn)

    def clear(self) -> None:
        """Remove all calls, and cancel the timer."""
        self._due.clear()
        self._timer.stop()

    def _turn(self) -> None:
        due = self._due
        now = self._seconds()
        earliest = now - LATENESS_SECONDS if self._isReal else now
        last = next(self._number)  # calls that are added now are made in the next turn
        try:
            while due and due[0][0] <= now and due[0][1] < last:
                at, _number, call, args = heappop(due)
                self._base = at if at > earliest else earliest
                call(*args)
        finally:
            self._base = None
            if due:
                self._timer.ensure(max(0.0, due[0][0] - self._seconds()), self._turn)
