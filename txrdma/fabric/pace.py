"""Pauses in long computations about a fabric, between which the reactor runs other work."""

from __future__ import annotations

from typing import Final

STEP: Final = 10_000
"""Number of links and LIDs that are examined between two pauses."""


class Pace:
    """Divides work into steps of milliseconds."""

    def __init__(self) -> None:
        self._done = 0

    def isDue(self, units: int) -> bool:
        """Return whether to pause before some more work: the number of links and LIDs that it examines."""
        self._done += units
        if self._done <= STEP:
            return False
        self._done = units
        return True
