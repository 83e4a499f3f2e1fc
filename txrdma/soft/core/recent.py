"""
Numbers that were given up not long ago, and are not to be given out again: a peer may still believe in them.
"""

from __future__ import annotations


class Recent:
    """The numbers that were given up last, as many as are remembered."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: dict[int, None] = {}  # in order; to look for one in a deque of thousands takes long

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def add(self, number: int) -> None:
        """Remember one number more, and forget the oldest if there are too many."""
        numbers = self._numbers
        numbers[number] = None
        if len(numbers) > self._most:
            del numbers[next(iter(numbers))]
