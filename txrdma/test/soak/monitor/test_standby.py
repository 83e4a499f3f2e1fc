"""
Two monitors with one history: many random suspensions, kills and jumps of the database's clock.
"""

from __future__ import annotations

from txrdma.test.unit.monitor import test_standby


class LongTests(test_standby.RandomTests):
    """More scenarios than those of each commit."""

    SEEDS = range(60)
