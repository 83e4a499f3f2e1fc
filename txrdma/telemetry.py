"""
The statistics of C{smc:} connections of this process, as metrics of OpenTelemetry (extra C{opentelemetry}).

The numbers are those of C{txrdma smc-stats}. A program that has set a meter provider exports them by::

    instrument(reactor)

L{txrdma.metrics} exports them to Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

try:
    from opentelemetry.metrics import CallbackOptions, get_meter, Meter, Observation
except ImportError as error:
    raise ImportError("txrdma.telemetry needs opentelemetry: pip install 'txrdma[opentelemetry]'") from error

from twisted.internet.interfaces import IReactorFromThreads

from txrdma.smc.status.families import families, MetricKind, readStatistics, Snapshots
from txrdma.smc.status.statistics import statistics

__all__ = ["instrument"]

_PREFIX = "txrdma.smc."


def instrument(reactor: IReactorFromThreads, meter: Meter | None = None) -> None:
    """
    Create instruments whose values are read in the reactor's thread when they are collected.

    Call it once, in the reactor's thread. Counters that only grow are observable counters, others are
    observable gauges. A size distribution is two counters: C{txrdma.smc.write_operations}, writes by their
    size class (attribute C{size}), and C{txrdma.smc.write_bytes}, their bytes; C{read} likewise.

    @param meter: creates the instruments; None uses one of the global meter provider.
    """
    made: Any = get_meter("txrdma") if meter is None else meter
    snapshots = Snapshots(lambda: readStatistics(reactor))

    def observed(name: str, isTotal: bool = False) -> Any:
        def callback(options: CallbackOptions) -> Iterable[Observation]:
            family = snapshots.take(name, f"{name} {isTotal}")
            if isTotal:
                return [Observation(family.total)]
            return [
                Observation(number, dict(zip(family.labels, values, strict=True)))
                for values, number in family.samples
            ]

        return callback

    for family in families(statistics()):
        name, text = _PREFIX + family.name, family.text
        if family.kind is MetricKind.GAUGE:
            made.create_observable_gauge(name, [observed(family.name)], family.unit, text)
            continue
        isTotal = family.kind is MetricKind.SIZES
        made.create_observable_counter(name, [observed(family.name, isTotal)], family.unit, text)
        if isTotal:
            operations = name.replace("_bytes", "_operations")
            made.create_observable_counter(operations, [observed(family.name)], "", text)
