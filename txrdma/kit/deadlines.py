"""
A timer wheel: thousands of deadlines on one timer.

A deadline is rounded up to the next slot, so it expires at most one slot late and never early.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

Notch = dict[int, T]
"""Entries that expire together, by key."""


class Wheel(Generic[T]):
    """Entries with deadlines."""

    __slots__ = ("_notchSeconds", "_notches", "_order")

    def __init__(self, notchSeconds: float) -> None:
        self._notchSeconds = notchSeconds
        self._notches: dict[int, Notch[T]] = {}
        self._order: list[int] = []

    def add(self, key: int, thing: T, deadline: float) -> Notch[T]:
        """
        Add an entry that L{expired} returns after its deadline.

        @return: its slot; delete the key from it to cancel the deadline.
        """
        number = int(deadline / self._notchSeconds) + 1
        notch = self._notches.get(number)
        if notch is None:
            notch = self._notches[number] = {}
            heappush(self._order, number)
        notch[key] = thing
        return notch

    def deadline(self) -> float | None:
        """The time of the next slot; None if there are no entries."""
        return self._order[0] * self._notchSeconds if self._order else None

    def expired(self, now: float) -> list[T]:
        """Remove and return the expired entries, earliest slot first."""
        due: list[T] = []
        while self._order and self._order[0] * self._notchSeconds <= now:
            due += self._notches.pop(heappop(self._order)).values()
        return due

    def clear(self) -> None:
        """Remove all entries."""
        self._notches.clear()
        self._order.clear()
