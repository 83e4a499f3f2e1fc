"""
A timer wheel: thousands of deadlines on one timer.

A deadline is rounded up to the next slot, so it expires at most one slot late and never early.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

Slot = dict[int, T]
"""Entries that expire together, by key."""


class TimerWheel(Generic[T]):
    """Entries with deadlines, grouped in time slots of equal length."""

    __slots__ = ("_slotSeconds", "_slots", "_order")

    def __init__(self, slotSeconds: float) -> None:
        self._slotSeconds = slotSeconds
        self._slots: dict[int, Slot[T]] = {}
        self._order: list[int] = []

    def add(self, key: int, value: T, deadline: float) -> Slot[T]:
        """
        Add an entry that L{expired} returns after its deadline.

        @return: the slot of the entry; delete the key from it to cancel the deadline.
        """
        number = int(deadline / self._slotSeconds) + 1
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
            heappush(self._order, number)
        slot[key] = value
        return slot

    def deadline(self) -> float | None:
        """Return the time of the earliest slot; None if there is none."""
        return self._order[0] * self._slotSeconds if self._order else None

    def expired(self, now: float) -> list[T]:
        """Remove and return the expired entries, earliest slot first."""
        due: list[T] = []
        while self._order and self._order[0] * self._slotSeconds <= now:
            due += self._slots.pop(heappop(self._order)).values()
        return due

    def clear(self) -> None:
        self._slots.clear()
        self._order.clear()
