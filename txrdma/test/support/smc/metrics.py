"""
Metrics of SMC, as C{prometheus_client} exports them.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as theReactor

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    from txrdma.metrics import SMCCollector
except ImportError:
    isMissing = True
else:
    isMissing = False

MISSING = "prometheus_client is not installed: pip install 'txrdma[prometheus]'"
reactor: Any = theReactor

Points = dict[tuple[str, ...], float]


def samples() -> dict[tuple[str, tuple[str, ...]], float]:
    """Return all samples of a scrape, by name and label values."""
    registry = CollectorRegistry()
    registry.register(SMCCollector(reactor))
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def valuesOf(found: dict[str, Any]) -> Points:
    """Return the values of metrics that statistics lead to, by the metric's name and labels."""
    counters, gauges = found["counters"], found["gauges"]
    sent, received = counters["sent"], counters["received"]
    made: Points = {
        ("messages_sent",): sent["messages"],
        ("messages_received",): received["messages"],
        ("write_bytes",): sent["bytes"],
        ("read_bytes",): received["bytes"],
        ("write_blocked",): sent["blocks"],
        ("write_blocked_seconds",): sent["blockedSeconds"],
        ("link_groups",): gauges["linkGroups"],
        ("links",): gauges["links"],
        ("ring_bytes",): gauges["ringBytes"],
        ("ring_used_bytes",): gauges["ringBytesUsed"],
        ("ring_unread_bytes",): gauges["ringBytesUnread"],
    }
    for name, counts in (
        ("refused", counters["refused"]),
        ("write_operations", sent["sizes"]),
        ("read_operations", received["sizes"]),
        ("rings", gauges["rings"]),
        ("rings_used", gauges["ringsUsed"]),
    ):
        made.update({(name, key): count for key, count in counts.items()})
    for name, rows in (
        ("connections", counters["connections"]),
        ("fallbacks", counters["fallbacks"]),
        ("open_connections", gauges["connections"]),
    ):
        made.update({(name, one, other): n for one, row in rows.items() for other, n in row.items()})
    return made
