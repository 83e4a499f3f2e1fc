"""
Failures of either link at either end, at many times during a transfer.
"""

from __future__ import annotations

from txrdma.test.integration.smc import test_failover


class EveryLoadTests(test_failover.LoadTests):
    """Each time, link and end, with transfers of half a megabyte."""

    isExhaustive = True
    repeats = 2000
    slowBecause = "Each of 46 combinations transfers megabytes through a simulated network."
