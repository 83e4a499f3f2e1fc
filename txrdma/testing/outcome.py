"""Results of simulations: violated promises, and statistics of successful runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


class Violation(AssertionError):
    """Raised when a simulation violates a promise."""


def check(holds: bool, what: str) -> None:
    """Raise L{Violation} with the message C{what} unless C{holds} is true."""
    if not holds:
        raise Violation(what)


@dataclass(frozen=True)
class Outcome:
    """
    The outcome of a successful simulation.

    @ivar counts: statistics by name, which are added to those of other simulations.
    @ivar digest: a value that is equal only if everything happened in the same way.
    """

    counts: Counter[str]
    digest: object = None
