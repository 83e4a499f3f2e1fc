"""Recently released numbers, which are not assigned again yet: a peer may still use them."""

from __future__ import annotations


class RecentNumbers:
    """The latest released numbers, up to a limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: dict[int, None] = {}  # ordered; a deque would be slow to search

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def add(self, number: int) -> None:
        """Add a number, and drop the oldest above the limit."""
        numbers = self._numbers
        numbers[number] = None
        if len(numbers) > self._most:
            del numbers[next(iter(numbers))]
