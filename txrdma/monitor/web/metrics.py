"""
Metrics of a monitor for Prometheus: C{/metrics}.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import nsmallest
from typing import Final

from twisted.web.resource import Resource
from twisted.web.server import Request

from txrdma.fabric.advice import Severity
from txrdma.fabric.metricnames import METRICS
from txrdma.fabric.steadynames import SteadyNames
from txrdma.monitor.series.exposition import (
    causeText,
    CONTENT_TYPE,
    CounterExposition,
    fabricTexts,
    family,
    guidText,
    labels,
)
from txrdma.monitor.web.watch import Watch

MOST_FINDINGS: Final = 1000
"""
Largest number of findings with a series of their own: the most severe, then the oldest. A broken node may
have a new GUID each minute, and each GUID is a new series.
"""

_HEALTH: Final = (
    ("readings", "readings_total", "counter", "Ports whose counters were read"),
    ("silences", "silences_total", "counter", "Nodes that did not answer when they were asked"),
    ("turns", "rounds_total", "counter", "Rounds of readings"),
    ("overruns", "overruns_total", "counter", "Intervals in which the round before was not done"),
    ("turnSeconds", "round_seconds", "gauge", "Duration of the last round"),
    ("sweeps", "sweeps_total", "counter", "Whole sweeps"),
    ("sweepSeconds", "sweep_seconds", "gauge", "Duration of the last sweep"),
    ("requests", "requests_total", "counter", "Datagrams with requests that were sent"),
    ("timeouts", "timeouts_total", "counter", "Requests without an answer in time"),
    ("notices", "notices_total", "counter", "Notices that the subnet administration has reported"),
)
"""Statistics of a poller, their names and types for Prometheus, and what they are."""


class Metrics(Resource):
    """C{/metrics}: the counters, states and findings of a fabric, and the monitor's own work."""

    isLeaf = True

    def __init__(
        self,
        watch: Watch,
        counters: tuple[str, ...] = METRICS,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._watch = watch
        self._common = {"fabric": watch.fabric} if watch.fabric else {}
        self._names = SteadyNames()
        self._wanted = counters
        self._counters = CounterExposition(counters, self._common)
        self._corrections = CounterExposition(counters, self._common)
        self._version = 0
        self._fabricTexts: list[str] = []

    def render_GET(self, request: Request) -> bytes:
        request.setHeader("Content-Type", CONTENT_TYPE)
        return "".join(self.parts()).encode("utf-8", "replace")

    def parts(self) -> Iterator[str]:
        yield from self._ownParts()
        if self._watch.isActive:
            yield from self._fabricParts()

    def _fabricParts(self) -> Iterator[str]:
        """Series of the fabric, which one of several monitors exports."""
        poller, common = self._watch.poller, self._common
        yield from self._counters.families(poller.meters)
        yield from self._corrections.families(poller.corrections.meters)
        yield from causeText(poller.details.causes, self._wanted, self._common)
        fabric = poller.fabric
        if fabric is not None:
            now = self._watch.seconds()
            if poller.version != self._version or now >= self._names.dueAt:
                self._names.observe(fabric.nodes.values(), now)
                self._version = poller.version
                self._fabricTexts = fabricTexts(fabric, self._names.of, self._common)
            yield from self._fabricTexts
        waits = [
            (labels(**common, guid=guidText(guid), port=number), f"{wait.share:.4f}")
            for (guid, number), wait in poller.congestion.waits.items()
        ]
        text = "Share of time in which the port had data to send and no credits"
        yield family("infiniband_port_transmit_wait_ratio", "gauge", text, waits)
        entries = poller.findingLog.open.values()
        found, each = dict.fromkeys(Severity, 0), Counter[str]()
        for entry in entries:
            found[entry.severity] += 1
        for entry in nsmallest(MOST_FINDINGS, entries, key=lambda one: (-one.severity, one.firstSeen)):
            one, severity = entry.finding, entry.severity.name.lower()
            guid = "" if one.guid is None else guidText(one.guid)
            port = "" if one.port is None else one.port
            each[labels(**common, kind=one.kind, severity=severity, guid=guid, port=port)] += 1
        severities = [
            (labels(**common, severity=level.name.lower()), count) for level, count in found.items()
        ]
        yield family("txrdma_monitor_findings", "gauge", "Findings that are there", severities)
        text = "Findings that are there, by what they are about"
        yield family("txrdma_monitor_finding", "gauge", text, each.items())

    def _ownParts(self) -> Iterator[str]:
        """Series of the monitor's own work."""
        poller, writer, remote = self._watch.poller, self._watch.history, self._watch.remote
        common, alone = self._common, labels(**self._common)
        text = "Whether the monitor is active: 1, or a standby: 0"
        yield family("txrdma_monitor_active", "gauge", text, [(alone, int(self._watch.isActive))])
        for name, short, kind, text in _HEALTH:
            series = [(alone, getattr(poller.statistics, name))]
            yield family(f"txrdma_monitor_{short}", kind, text, series)
        ages = [(labels(**common, loop=name), f"{age:.3f}") for name, age in poller.supervisor.ages()]
        text = "Seconds since a loop of the monitor has last done its work"
        yield family("txrdma_monitor_loop_age_seconds", "gauge", text, ages)
        if writer is not None:
            dropped = [(alone, writer.dropped)]
            text = "Readings dropped because the history's queue was full"
            yield family("txrdma_monitor_history_dropped_total", "counter", text, dropped)
        if remote is not None:
            sender = remote.sender
            lost = [(labels(**common, reason=why), count) for why, count in sender.lost.items()]
            for short, kind, text, series in (
                ("sent_samples_total", "counter", "Samples that the engine accepted", [(alone, sender.sent)]),
                ("lost_samples_total", "counter", "Samples that were lost", lost),
                ("waiting_samples", "gauge", "Samples that are not sent yet", [(alone, sender.waiting)]),
                ("spill_bytes", "gauge", "Octets of samples on disk", [(alone, sender.spilledOctets)]),
                ("oldest_seconds", "gauge", "Age of samples to send", [(alone, int(sender.oldestSeconds()))]),
            ):
                yield family(f"txrdma_monitor_remote_write_{short}", kind, text, series)
