"""
Simulations of hostile peers of SMC-R listeners, over RoCE and shared memory.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.plantests import playingStored


@playingStored("hostile-smc", "hostile-smc-shared-memory")
class SMCTests(SynchronousTestCase):
    """Hostile peers of an SMC-R listener over RoCE, and hostile processes that use it over shared memory."""
