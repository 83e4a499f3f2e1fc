"""
Statistics of SMC for Prometheus.
"""

from __future__ import annotations

from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from txrdma.test.support.smc.metrics import isMissing, MISSING, samples


class ThreadTests(TestCase):
    """Metrics that are served by a thread."""

    if isMissing:
        skip = MISSING

    async def test_thread(self) -> None:
        """A thread that serves metrics gets what the reactor's thread has read."""
        found = await deferToThread(samples)
        self.assertIn(("txrdma_smc_link_groups", ()), found)
