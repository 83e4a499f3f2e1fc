"""
The statistics of C{smc:} connections of this process, as metrics for Prometheus (extra C{prometheus}).

The numbers are those of C{txrdma smc-stats}. A service of Twisted publishes them as a page::

    root.putChild(b"metrics", MetricsResource(reactor))

A process that publishes metrics of its own already adds a collector to their registry::

    registry.register(SMCCollector(reactor))

L{txrdma.telemetry} exports them to OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

try:
    from prometheus_client import CollectorRegistry, CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ImportError as error:
    raise ImportError("txrdma.metrics needs prometheus_client: pip install 'txrdma[prometheus]'") from error

from twisted.internet.interfaces import IReactorFromThreads
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource

from txrdma.smc.status.families import families, MetricFamily, MetricKind, readStatistics

__all__ = ["MetricsResource", "SMCCollector"]

_PREFIX = "txrdma_smc_"


class MetricsResource(Resource):
    """
    A page with metrics in Prometheus's text format. Several pages may have one registry.

    @param registry: metrics of the page; without it the page has those of C{smc:} only.
    """

    isLeaf = True

    def __init__(self, reactor: IReactorFromThreads, registry: CollectorRegistry | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._registry = CollectorRegistry() if registry is None else registry
        with suppress(ValueError):  # the registry has a collector already
            self._registry.register(SMCCollector(reactor))

    def render_GET(self, request: IRequest) -> bytes:
        """Return the current values."""
        request.setHeader(b"content-type", CONTENT_TYPE_LATEST.encode())
        page: bytes = generate_latest(self._registry)
        return page


class SMCCollector:
    """Collects the statistics of SMC connections when metrics are requested, in the reactor's thread."""

    def __init__(self, reactor: IReactorFromThreads) -> None:
        self._reactor = reactor

    def describe(self) -> list[Any]:
        """Describe one metric, without collecting: a registry refuses another collector with its name."""
        return [GaugeMetricFamily(f"{_PREFIX}link_groups", "")]

    def collect(self) -> Iterator[Any]:
        """Yield the metric families of prometheus_client."""
        return map(_converted, families(readStatistics(self._reactor)))


def _converted(family: MetricFamily) -> Any:
    """Convert a family to one of prometheus_client."""
    name = _PREFIX + family.name
    if family.kind is MetricKind.SIZES:
        buckets, below = [], 0.0
        for (bound,), times in family.samples:
            below += times
            buckets.append((bound if bound.isdigit() else "+Inf", below))
        return HistogramMetricFamily(name, family.text, buckets=buckets, sum_value=family.total)
    made = (CounterMetricFamily if family.kind is MetricKind.COUNTER else GaugeMetricFamily)(
        name, family.text, labels=family.labels
    )
    for values, number in family.samples:
        made.add_metric(values, number)
    return made
