"""
A wheel of deadlines: thousands of timeouts for the price of one timer.

A deadline is rounded up to the next notch, so it comes at most one notch late, and never early.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

Notch = dict[int, T]
"""What comes back at the same time, by a number of its own."""


class Wheel(Generic[T]):
    """Things with deadlines."""

    __slots__ = ("_notchSeconds", "_notches", "_order")

    def __init__(self, notchSeconds: float) -> None:
        self._notchSeconds = notchSeconds
        self._notches: dict[int, Notch[T]] = {}
        self._order: list[int] = []

    def add(self, key: int, thing: T, deadline: float) -> Notch[T]:
        """
        Bring it back when the time has come.

        @return: where it is until then: who is done with it takes it out by its key.
        """
        number = int(deadline / self._notchSeconds) + 1
        notch = self._notches.get(number)
        if notch is None:
            notch = self._notches[number] = {}
            heappush(self._order, number)
        notch[key] = thing
        return notch

    def deadline(self) -> float | None:
        """When L{expired} may have something next; None for never."""
        return self._order[0] * self._notchSeconds if self._order else None

    def expired(self, now: float) -> list[T]:
        """What was to come back by now, oldest notch first."""
        due: list[T] = []
        while self._order and self._order[0] * self._notchSeconds <= now:
            due += self._notches.pop(heappop(self._order)).values()
        return due

    def clear(self) -> None:
        """Forget all of it."""
        self._notches.clear()
        self._order.clear()
