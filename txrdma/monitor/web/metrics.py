"""Metrics of a monitor for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import nsmallest
from typing import Final

from txrdma.fabric.advice import Severity
from txrdma.fabric.metricnames import METRICS
from txrdma.fabric.steadynames import SteadyNames
from txrdma.monitor.series.exposition import (
    causeFamilies,
    CounterExposition,
    fabricFamilies,
    Family,
    family,
    guidText,
    labels,
    PIECE,
)
from txrdma.monitor.web.watch import Watch

MOST_FINDINGS: Final = 1000
"""
Largest number of findings with a separate series: the most severe, then the oldest. A broken node may
have a new GUID each minute, and each GUID is a new series.
"""

_TRUTHS: Final = {False: "false", True: "true"}
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
"""Statistics of a poller, with their names, types and help text for Prometheus."""


COLLECTORS: Final = ("monitor", "counters", "error-correction", "causes", "links", "congestion", "findings")
"""Parts of a scrape, which C{collect[]} selects."""


class Metrics:
    """The counters, states and findings of a fabric, and the monitor's own work, as metrics."""

    def __init__(self, watch: Watch, counters: tuple[str, ...] = METRICS) -> None:
        self.watch = watch
        self._common = {"fabric": watch.fabric} if watch.fabric else {}
        self._names = SteadyNames()
        self._counters = CounterExposition(counters, self._common)
        self._corrections = CounterExposition(counters, self._common)
        self._version = 0
        self._fabricFamilies: list[Family] = []
        poller, common = watch.poller, self._common
        parts: tuple[Callable[[], Iterable[Family | None]], ...] = (
            self._work,
            lambda: self._counters.families(poller.meters),
            lambda: self._corrections.families(poller.corrections.meters),
            lambda: causeFamilies(poller.details.causes, counters, common),
            *(self._links, self._waits, self._findings),
        )
        self._parts = dict(zip(COLLECTORS, parts, strict=True))

    def families(self, collectors: Collection[str] = COLLECTORS) -> Iterator[Family | None]:
        """Yield metric families, and None for pauses; a standby has only those of its own work."""
        isLarge = len(self.watch.poller.meters) > PIECE
        for name, part in self._parts.items():
            if name in collectors and (name == COLLECTORS[0] or self.watch.isActive):
                yield from part()
                if isLarge:
                    yield None

    def _links(self) -> list[Family]:
        poller, now = self.watch.poller, self.watch.seconds()
        fabric = poller.fabric
        if fabric is None:
            return []
        if poller.version != self._version or now >= self._names.dueAt:
            self._names.observe(fabric.nodes.values(), now)
            self._version = poller.version
            self._fabricFamilies = fabricFamilies(fabric, self._names.of, self._common)
        return self._fabricFamilies

    def _waits(self) -> Iterator[Family]:
        waits = (
            (labels(**self._common, guid=guidText(guid), port=number), f"{wait.share:.4f}")
            for (guid, number), wait in self.watch.poller.congestion.current().items()
        )
        text = "Share of time in which the port had data to send and no credits"
        yield family("infiniband_port_transmit_wait_ratio", "gauge", text, waits)

    def _findings(self) -> Iterator[Family]:
        """
        Yield the numbers of findings by severity and acknowledgement, and the most severe ones as series of
        their own.
        """
        common = self._common
        entries = self.watch.poller.findings.log.open.values()
        found = {(level, text): 0 for level in Severity for text in _TRUTHS.values()}
        each = Counter[str]()
        for entry in entries:
            found[entry.severity, _TRUTHS[entry.acknowledgement is not None]] += 1
        for entry in nsmallest(MOST_FINDINGS, entries, key=lambda one: (-one.severity, one.firstSeen)):
            one, severity = entry.finding, entry.severity.name.lower()
            guid = "" if one.guid is None else guidText(one.guid)
            port = "" if one.port is None else one.port
            known = _TRUTHS[entry.acknowledgement is not None]
            given = {
                "kind": one.kind,
                "severity": severity,
                "guid": guid,
                "port": port,
                "acknowledged": known,
            }
            each[labels(**common, **given)] += 1
        severities = [
            (labels(**common, severity=level.name.lower(), acknowledged=known), count)
            for (level, known), count in found.items()
        ]
        yield family("txrdma_monitor_findings", "gauge", "Findings that are there", severities)
        text = "Findings that are there, by what they are about"
        yield family("txrdma_monitor_finding", "gauge", text, each.items())

    def _work(self) -> Iterator[Family]:
        """Yield the families of the monitor's own work."""
        poller, writer, remote = self.watch.poller, self.watch.history, self.watch.remote
        common, alone = self._common, labels(**self._common)
        text = "Whether the monitor is active: 1, or a standby: 0"
        yield family("txrdma_monitor_active", "gauge", text, [(alone, int(self.watch.isActive))])
        for name, short, kind, text in _HEALTH:
            series = [(alone, getattr(poller.statistics, name))]
            yield family(f"txrdma_monitor_{short}", kind, text, series)
        ages = [(labels(**common, loop=name), f"{age:.3f}") for name, age in poller.supervisor.ages()]
        text = "Seconds since a loop of the monitor has last done its work, or has had some to do"
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
