"""
Simulations of hostile peers of SMC-R listeners with fixed seeds, over RoCE and shared memory.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.plantests import playingStored, playSeeds


@playingStored("hostile-smc")
class SMCTests(SynchronousTestCase):
    """Hostile peers of an SMC-R listener over RoCE."""

    def test_seeds(self) -> None:
        """Hostile peers of fixed seeds do not affect other connections."""
        self.assertTrue(playSeeds("hostile-smc", range(5))["received"])


@playingStored("hostile-smc-shared-memory")
class SMCMemoryTests(SynchronousTestCase):
    """Hostile processes that use SMC-R over shared memory."""

    def test_seeds(self) -> None:
        """Hostile peers of fixed seeds do not affect other connections."""
        self.assertTrue(playSeeds("hostile-smc-shared-memory", range(5))["received"])
