"""
Statistics of SMC for Prometheus.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from twisted.internet.threads import deferToThread
from twisted.python.threadable import isInIOThread
from twisted.trial.unittest import TestCase
from twisted.web.test.requesthelper import DummyRequest

from txrdma.smc.status import families
from txrdma.smc.status.statistics import statistics
from txrdma.test.support.smc.metrics import isMissing, MISSING, reactor, samples, valuesOf
from txrdma.test.support.smc.races import Listener, RaceTestCase

if not isMissing:
    from prometheus_client import CollectorRegistry, Counter

    from txrdma.metrics import MetricsResource, SMCCollector


class MetricsTests(RaceTestCase):
    """Metrics of connections in simulated time."""

    if isMissing:
        skip = MISSING

    def test_scrapeHasConnectionsByModeAndRoleAndBytesBySize(self) -> None:
        before = samples()

        def counted(name: str, *labels: str) -> float:
            return samples()[f"txrdma_smc_{name}", labels] - before.get((f"txrdma_smc_{name}", labels), 0)

        here, there = self.pair(Listener(), Listener())
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

    def test_scrapeHasNumbersOfSMCStats(self) -> None:
        here, there = self.pair(Listener(), Listener())
        here.transport.write(bytes(100_000))
        self.wait(0.1)
        found, expected = samples(), valuesOf(statistics())
        self.assertGreaterEqual(expected["write_bytes",], 100_000)
        for (name, *labels), value in expected.items():
            if not name.endswith("_operations"):  # these are buckets, tested above
                names = f"{name}_total", f"{name}_sum", name
                keys = product(names, (labels, labels[::-1]))  # the labels are sorted here
                values = [found.get((f"txrdma_smc_{key}", tuple(order))) for key, order in keys]
                self.assertIn(value, values, name)

    def test_pagesHaveMetricsOnceBesideRegistrys(self) -> None:
        registry = CollectorRegistry()
        Counter("served", "Requests.", registry=registry).inc()
        request = DummyRequest([b""])
        MetricsResource(reactor, registry)
        page = MetricsResource(reactor, registry).render(request)
        self.assertIn(b"served_total 1.0\n", page)
        self.assertEqual(page.count(b"\ntxrdma_smc_link_groups "), 1)
        self.assertRaises(ValueError, registry.register, SMCCollector(reactor))
        kinds = request.responseHeaders.getRawHeaders("content-type", [])
        self.assertEqual([kind.partition(";")[0] for kind in kinds], ["text/plain"])


class ThreadTests(TestCase):
    if isMissing:
        skip = MISSING

    async def test_valuesAreReadInReactorsThread(self) -> None:
        areInReactorThread: list[bool] = []

        def read() -> dict[str, Any]:
            areInReactorThread.append(isInIOThread())
            return statistics()

        self.patch(families, "statistics", read)
        found = await deferToThread(samples)
        self.assertIn(("txrdma_smc_link_groups", ()), found)
        self.assertEqual(areInReactorThread, [True])
