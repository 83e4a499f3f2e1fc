"""
Hostile peers of listeners for SMC-R: simulations of fixed seeds, by RoCE and by shared memory.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.plantests import playingStored, playSeeds


@playingStored("hostile-smc")
class SMCTests(SynchronousTestCase):
    """A hostile peer of a listener for SMC-R by RoCE."""

    def test_seeds(self) -> None:
        """Peers of fixed seeds disturb nobody."""
        self.assertTrue(playSeeds("hostile-smc", range(5))["heard"])


@playingStored("hostile-smc-shared-memory")
class SMCMemoryTests(SynchronousTestCase):
    """A hostile process with SMC-R by shared memory."""

    def test_seeds(self) -> None:
        """Peers of fixed seeds disturb nobody."""
        self.assertTrue(playSeeds("hostile-smc-shared-memory", range(5))["heard"])
