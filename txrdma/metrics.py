"""
The statistics of C{smc:} connections of this process, as metrics for Prometheus (extra C{prometheus}).

The numbers are those of C{txrdma smc-stats}. A service of Twisted publishes them as a page::

    root.putChild(b"metrics", MetricsResource(reactor))

A process that publishes metrics of its own already adds a collector to their registry::

    registry.register(SMCCollector(reactor))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from twisted.internet.interfaces import IReactorFromThreads
from twisted.internet.threads import blockingCallFromThread
from twisted.python import threadable
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource

from txrdma.smc.status.statistics import statistics

__all__ = ["MetricsResource", "SMCCollector"]

_PREFIX = "txrdma_smc_"


class MetricsResource(Resource):
    """
    A page with metrics in Prometheus's text format.

    @param registry: metrics of the page; without it the page has those of C{smc:} only.
    """

    isLeaf = True

    def __init__(self, reactor: IReactorFromThreads, registry: CollectorRegistry | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._registry = CollectorRegistry() if registry is None else registry
        self._registry.register(SMCCollector(reactor))

    def render_GET(self, request: IRequest) -> bytes:
        """Return the present values."""
        request.setHeader(b"content-type", CONTENT_TYPE_LATEST.encode())
        page: bytes = generate_latest(self._registry)
        return page


class SMCCollector:
    """Collects the statistics of SMC connections when metrics are requested, in the reactor's thread."""

    def __init__(self, reactor: IReactorFromThreads) -> None:
        self._reactor = reactor

    def describe(self) -> list[Any]:
        """Describe no metric beforehand, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metric families of prometheus_client."""
        statistics_ = self._read()
        counters, gauges = statistics_["counters"], statistics_["gauges"]
        yield _labelled(
            CounterMetricFamily, "connections", "Connections made.", counters["connections"], "mode", "role"
        )
        yield _labelled(
            CounterMetricFamily, "fallbacks", "Fallbacks to TCP.", counters["fallbacks"], "role", "reason"
        )
        yield _counts(
            CounterMetricFamily,
            "refused",
            "Connections that might not fall back.",
            counters["refused"],
            "reason",
        )
        yield from _direction("sent", "write", "went to peers' rings at once", counters["sent"])
        yield from _direction("received", "read", "applications got at once", counters["received"])
        sent = counters["sent"]
        yield CounterMetricFamily(
            f"{_PREFIX}write_blocked",
            "Number of times that a write waited for buffer space.",
            value=sent["blocks"],
        )
        yield CounterMetricFamily(
            f"{_PREFIX}write_blocked_seconds",
            "Seconds for which writes waited for buffer space.",
            value=sent["blockedSeconds"],
        )
        yield _labelled(
            GaugeMetricFamily,
            "open_connections",
            "Present connections.",
            gauges["connections"],
            "mode",
            "role",
        )
        yield GaugeMetricFamily(f"{_PREFIX}link_groups", "Link groups.", value=gauges["linkGroups"])
        yield GaugeMetricFamily(f"{_PREFIX}links", "Links of all link groups.", value=gauges["links"])
        yield _counts(GaugeMetricFamily, "rings", "Rings that there are, by bytes.", gauges["rings"], "size")
        yield _counts(GaugeMetricFamily, "rings_used", "Rings in use, by bytes.", gauges["ringsUsed"], "size")
        for name, words in (
            ("ringBytes", "Bytes of all rings."),
            ("ringBytesUsed", "Bytes of the rings in use."),
            ("ringBytesUnread", "Bytes in rings that applications have not got yet."),
        ):
            suffix = name.removeprefix("ringBytes").lower()
            family = "_".join(filter(None, ("ring", suffix, "bytes")))
            yield GaugeMetricFamily(_PREFIX + family, words, value=gauges[name])

    def _read(self) -> dict[str, Any]:
        if threadable.ioThread is None or threadable.isInIOThread():
            return statistics()
        statistics_: dict[str, Any] = blockingCallFromThread(self._reactor, statistics)
        return statistics_


def _labelled(
    family: Any, name: str, words: str, counts: Mapping[str, Mapping[str, float]], outer: str, inner: str
) -> Any:
    """Create a metric with two labels."""
    made = family(_PREFIX + name, words, labels=(outer, inner))
    for first, row in counts.items():
        for second, count in row.items():
            made.add_metric((first, second), count)
    return made


def _counts(family: Any, name: str, words: str, counts: Mapping[str, float], label: str) -> Any:
    """Create a metric with one label."""
    made = family(_PREFIX + name, words, labels=(label,))
    for value, count in counts.items():
        made.add_metric((value,), count)
    return made


def _direction(direction: str, unit: str, words: str, counters: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the metrics of one direction: a histogram of sizes whose sum is all bytes, and messages."""
    buckets, below = [], 0
    for bound, times in counters["sizes"].items():
        below += times
        buckets.append((bound if bound.isdigit() else "+Inf", below))
    yield HistogramMetricFamily(
        f"{_PREFIX}{unit}_bytes", f"Bytes that {words}.", buckets=buckets, sum_value=counters["bytes"]
    )
    yield CounterMetricFamily(
        f"{_PREFIX}messages_{direction}", f"CDC messages {direction}.", value=counters["messages"]
    )
