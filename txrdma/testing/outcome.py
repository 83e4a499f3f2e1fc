"""Results of simulations: violated promises, and statistics of successful runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from txrdma.iba.verbs import Status


class Violation(AssertionError):
    """Raised when a simulation violates a promise."""


def check(holds: bool, what: str) -> None:
    """Raise L{Violation} with the message C{what} unless C{holds} is true."""
    if not holds:
        raise Violation(what)


@dataclass
class Outcome:
    """
    Statistics of a successful simulation.

    @ivar completed: number of completed operations; C{atomics}: number of completed atomic operations.
    @ivar failures: statuses with which connections failed.
    """

    seed: int
    completed: int = 0
    atomics: int = 0
    failures: list[Status] = field(default_factory=list)
    packets: int = 0
    dropped: int = 0
    migrations: int = 0
    seconds: float = 0.0

    def counts(self) -> Counter[str]:
        """Return the counts that are added to the totals of many simulations."""
        return Counter(
            completed=self.completed,
            atomics=self.atomics,
            packets=self.packets,
            dropped=self.dropped,
            migrations=self.migrations,
            failures=len(self.failures),
        ) + Counter(status.name for status in self.failures)
