"""
Simulations of hostile peers of SMC-R listeners with fixed seeds, over RoCE and shared memory.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.plantests import playingHostile


@playingHostile("hostile-smc", 5)
class SMCTests(SynchronousTestCase):
    """Hostile peers of an SMC-R listener over RoCE."""


@playingHostile("hostile-smc-shared-memory", 5)
class SMCMemoryTests(SynchronousTestCase):
    """Hostile processes that use SMC-R over shared memory."""
