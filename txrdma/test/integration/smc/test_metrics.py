"""
Statistics of SMC for Prometheus.
"""

from __future__ import annotations

from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from txrdma.test.support.smc.metrics import isMissing, MISSING, samples
from txrdma.test.support.smc.races import Listener, RaceTestCase


class MetricsTests(RaceTestCase):
    """Metrics of connections in simulated time."""

    if isMissing:
        skip = MISSING

    def test_scraped(self) -> None:
        """A scrape has connections by mode and role, and bytes as a histogram by size."""
        before = samples()

        def counted(name: str, *labels: str) -> float:
            return samples()[f"txrdma_smc_{name}", labels] - before.get((f"txrdma_smc_{name}", labels), 0)

        here, there, _ = self.connect(Listener(), Listener())
        self.until(lambda: here.mode and there.mode)
        for length in (10, 10_000):
            here.transport.write(bytes(length))
            self.wait(0.1)
        self.assertEqual(counted("connections_total", "SMC-R 1", "client"), 1)
        self.assertEqual(counted("open_connections", "SMC-R 1", "server"), 1)
        for unit in ("write", "read"):
            self.assertEqual(counted(f"{unit}_bytes_sum"), 10_010)
            self.assertEqual(counted(f"{unit}_bytes_count"), 2)
            buckets = [counted(f"{unit}_bytes_bucket", bound) for bound in ("8192", "16384", "+Inf")]
            self.assertEqual(buckets, [1, 2, 2])
        self.assertEqual(counted("ring_used_bytes"), 2 * 16_384)
        here.transport.abortConnection()
        self.until(lambda: here.reason and there.reason)
        self.assertEqual(counted("open_connections", "SMC-R 1", "server"), 0)
        self.assertEqual(counted("write_bytes_sum"), 10_010)


class ThreadTests(TestCase):
    if isMissing:
        skip = MISSING

    async def test_thread(self) -> None:
        """A thread that serves metrics gets values read in the reactor's thread."""
        found = await deferToThread(samples)
        self.assertIn(("txrdma_smc_link_groups", ()), found)
