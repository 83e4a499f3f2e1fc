"""
Arithmetic of statistics.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.common.counted import added, differences
from txrdma.smc.common import counting
from txrdma.smc.status.statistics import BOUNDS, statistics


class ArithmeticTests(SynchronousTestCase):
    """Statistics of many processes, and of two times."""

    def test_nestedSums(self) -> None:
        one, two = {"a": 1, "b": {"c": 2}}, {"a": 10, "b": {"d": 5}}
        self.assertEqual(added([one, two]), {"a": 11, "b": {"c": 2, "d": 5}})
        self.assertEqual(one, {"a": 1, "b": {"c": 2}})

    def test_differencesPerSecond(self) -> None:
        self.assertEqual(differences({"a": 9, "b": {"c": 4}}, {"a": 1, "b": {}}, 2), {"a": 4, "b": {"c": 2}})

    def test_sizeClasses(self) -> None:
        before = statistics()["counters"]["sent"]["sizes"]
        for bound in BOUNDS[1:]:
            for size in (bound, bound + 1):
                counting.written[(size - 1).bit_length()] += 1
                counting.ended["flushes"] += 1
        after = statistics()["counters"]["sent"]["sizes"]
        changes = [after[name] - before[name] for name in after]
        self.assertEqual(changes, [0, 1, *[2] * (len(BOUNDS) - 2), 1])
