"""
Processes that share port 4791 of an address, killed and stopped at random many times.
"""

from __future__ import annotations

from txrdma.test.integration.soft import test_random_sharing


class RandomTests(test_random_sharing.RandomTests):
    """As many seeds as take about a minute."""

    slowBecause = "it plays 1,500 seeds"
    seeds = range(1000, 2500)
