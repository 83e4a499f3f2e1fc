"""
Whole SMC connections on a simulated network, by seeds. There is no real reactor and no socket in these.
"""

from __future__ import annotations

import os
from collections import Counter

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.streams import simulate

SEEDS = int(os.environ.get("TXRDMA_STREAM_SEEDS", "600"))


class SimulationTests(SynchronousTestCase):
    """Every byte arrives once and in order, or the connection fails: on any network."""

    def test_seeds(self) -> None:
        """The promises of L{txrdma.testing.streams} hold, and most connections come to a good end."""
        ends: Counter[tuple[str | None, str | None]] = Counter()
        for seed in range(SEEDS):
            ends.update(simulate(seed).ends)
        self.assertGreater(ends["ConnectionDone", "ConnectionDone"], sum(ends.values()) * 3 // 4)
        self.assertGreater(len(ends), 3)

    def test_repeatable(self) -> None:
        """A seed does the same again."""
        for seed in (3, 17, 99):
            self.assertEqual(simulate(seed).ends, simulate(seed).ends)
