"""
Simulations of hostile peers of SMC-R listeners, over RoCE and shared memory; of announcements and neighbours.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.plantests import playingStored


@playingStored(
    "hostile-smc", "hostile-smc-announcements", "hostile-smc-neighbours", "hostile-smc-shared-memory"
)
class SMCTests(SynchronousTestCase):
    """Hostile peers over RoCE, and hostile processes that share memory or announce connections."""
