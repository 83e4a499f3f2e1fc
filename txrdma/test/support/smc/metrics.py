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
