"""
Results of simulations: promises that were broken, and statistics of those that held.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from txrdma.iba.verbs import Status


class Violation(AssertionError):
    """Raised when a simulation has broken a promise."""


def check(holds: bool, what: str) -> None:
    """Say what does not hold."""
    if not holds:
        raise Violation(what)


@dataclass
class Outcome:
    """
    Statistics of a simulation that has come to its end.

    @ivar completed: operations; C{atomics} of them were atomic ones.
    @ivar failures: how connections ended that had to.
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
        """Counts for the totals of many simulations."""
        return Counter(
            completed=self.completed,
            atomics=self.atomics,
            packets=self.packets,
            dropped=self.dropped,
            migrations=self.migrations,
            failures=len(self.failures),
        ) + Counter(status.name for status in self.failures)
