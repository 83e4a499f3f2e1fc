"""
Statistics of SMC for OpenTelemetry.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from txrdma.smc.status import families
from txrdma.smc.status.statistics import statistics
from txrdma.test.support.smc.metrics import Points, valuesOf
from txrdma.test.support.smc.races import Listener, RaceTestCase

try:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import (
        InMemoryMetricReader,
        MetricExporter,
        MetricExportResult,
        MetricsData,
        PeriodicExportingMetricReader,
    )

    from txrdma import telemetry
    from txrdma.telemetry import instrument
except ImportError:
    isMissing = True
else:
    isMissing = False

MISSING = "opentelemetry-sdk is not installed: pip install 'txrdma[opentelemetry]'"
reactor: Any = theReactor


def points(data: Any) -> Points:
    """Return the values of all data points, by name of the metric and values of the attributes."""
    return {
        (metric.name, *map(str, point.attributes.values())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def expected(found: dict[str, Any]) -> Points:
    """Return the values that statistics lead to."""
    return {(f"txrdma.smc.{name}", *labels): value for (name, *labels), value in valuesOf(found).items()}


class TelemetryTests(RaceTestCase):
    """Metrics of connections in simulated time."""

    if isMissing:
        skip = MISSING

    def test_eachCollectionHasNumbersOfSMCStatsOnly(self) -> None:
        reader = InMemoryMetricReader()
        provider = MeterProvider([reader])
        self.addCleanup(provider.shutdown)
        instrument(reactor, provider.get_meter("test"))
        here, there = self.pair(Listener(), Listener())
        before = 0.0
        for length in (100_000, 10):
            here.transport.write(bytes(length))
            self.wait(0.1)
            found = points(reader.get_metrics_data())
            self.assertEqual(found, expected(statistics()))
            self.assertGreaterEqual(found["txrdma.smc.write_bytes",], before + length)
            before = found["txrdma.smc.write_bytes",]

    def test_collectionReadsStatisticsOnce(self) -> None:
        calls: list[None] = []

        def read(_: object) -> dict[str, Any]:
            calls.append(None)
            return statistics()

        self.patch(telemetry, "readStatistics", read)
        reader = InMemoryMetricReader()
        provider = MeterProvider([reader])
        self.addCleanup(provider.shutdown)
        instrument(reactor, provider.get_meter("test"))
        for times in (1, 2):
            reader.get_metrics_data()
            self.assertEqual(len(calls), times)


class ThreadTests(TestCase):
    """An exporter with a separate thread, in which it collects."""

    if isMissing:
        skip = MISSING

    def setUp(self) -> None:
        exported: list[Points] = []

        class Exporter(MetricExporter):
            def export(self, metrics_data: MetricsData, *_: Any, **__: Any) -> MetricExportResult:
                exported.append(points(metrics_data))
                return MetricExportResult.SUCCESS

            def shutdown(self, *_: Any, **__: Any) -> None: ...

            def force_flush(self, *_: Any, **__: Any) -> bool:
                return True

        self.exported = exported
        self.provider = MeterProvider([PeriodicExportingMetricReader(Exporter(), 3_600_000)])
        instrument(reactor, self.provider.get_meter("test"))

    async def test_statisticsAreReadInReactorsThread(self) -> None:
        flushing: Deferred[Any] = deferToThread(self.provider.force_flush)
        await flushing
        self.addCleanup(deferToThread, self.provider.shutdown)
        self.assertEqual(self.exported, [expected(statistics())])

    def test_lastExportHasStatistics(self) -> None:
        self.patch(families, "BLOCKED_SECONDS", 0.1)
        self.provider.shutdown()
        self.assertEqual(self.exported, [expected(statistics())])
