"""
Failures of either link at either end, at each of many moments of a transfer.
"""

from __future__ import annotations

from txrdma.test.integration.smc import test_failover


class EveryLoadTests(test_failover.LoadTests):
    """Each moment, with each link at each end, and with transfers of half a megabyte."""

    isExhaustive = True
    repeats = 2000
    slowBecause = "Each of 46 combinations transfers megabytes through a simulated network."
