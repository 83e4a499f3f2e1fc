"""
Alerts that the thresholds of a configuration would have raised in a time of which there is a history.

Findings of error counters are computed from their growth, minute by minute. Other findings are those that
were recorded, with the severities, silences and delays of the configuration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from math import ceil, floor
from typing import Any, Final, TypeVar

from twisted.logger import Logger

from txrdma.error import InvalidRequest
from txrdma.fabric.model import Fabric, PortKey
from txrdma.fabric.rootcause import explained
from txrdma.iba.types import GUID
from txrdma.kit.logs import errorText
from txrdma.kit.values import frozen
from txrdma.monitor.config import MonitorConfig
from txrdma.monitor.diagnosis.fabricstate import linkOf, TOPOLOGY_KINDS
from txrdma.monitor.diagnosis.findinglog import CauseChanged, Cleared, Entry, FindingLog, Raised
from txrdma.monitor.diagnosis.journal import entryOf, FabricEvent
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds, KINDS_OF_ERRORS
from txrdma.monitor.diagnosis.topologywatch import TopologyWatch
from txrdma.monitor.events.alerts import Alert, AlertTracker
from txrdma.monitor.events.notifier import RAISED
from txrdma.monitor.series.historystore import HistoryStore

_log = Logger()
_Read = TypeVar("_Read")

STEP_SECONDS: Final = 60
_LEVEL: Final = "minutes"
_READ_SECONDS: Final = 3600
"""Time of which a history is read at once: an hour of 65,000 ports takes less than a second."""
_LOST: Final = "link-gone"
_FINDINGS: Final = ("finding-raised", "finding-cleared")
_CHANGES: Final = ("node-came", "node-gone", "link-came", _LOST)


@frozen
class PastAlert:
    """
    An alert that would have been sent.

    @ivar at: time at which it would have been sent, in seconds since 1970.
    """

    at: float
    alert: Alert


class WhatIf:
    """
    Evaluation of a history by a configuration. L{run} does the work.

    @ivar alerts: alerts that would have been sent. C{sent}: numbers of those that were sent, by kind.
    @ivar fabric: nodes of the findings.
    """

    def __init__(
        self,
        store: HistoryStore,
        config: MonitorConfig,
        begin: float,
        end: float,
        fabric: Fabric | None = None,
    ) -> None:
        """
        @param begin: beginning of the time, in seconds since 1970; C{end} is its end.
        @param fabric: the fabric, with the speeds that bit error rates need; by default the last nodes and
            links in the history, without speeds.
        @raise InvalidRequest: the history has no nodes.
        """
        self.alerts: list[PastAlert] = []
        self.sent: dict[str, int] = {}
        self._store = store
        self._begin = floor(begin / STEP_SECONDS) * STEP_SECONDS
        self._end = end
        if fabric is None:
            topologyWatch = TopologyWatch()
            topologyWatch.restore(store.states(*TOPOLOGY_KINDS))
            fabric = topologyWatch.remembered
        if fabric is None:
            raise InvalidRequest("the history has no nodes: give a snapshot, too")
        self.fabric: Fabric = fabric
        self._thresholds = ErrorThresholds(config.limits, config.flaps, config.mostBitErrors)
        self._log = FindingLog(config.rules)
        self._rules = config.rules
        self._tracker = AlertTracker(config.alerts, begin)
        self._links: dict[Any, tuple[PortKey, PortKey]] = {}  # the last one of each port
        self._gone: set[GUID] = set()
        self._recorded: dict[str, Entry] = {}
        self._invalid: Counter[str] = Counter()  # numbers of events, by kind
        self._firstErrors: dict[str, str] = {}

    def run(self) -> Generator[tuple[int, int], None, None]:
        """Evaluate the history, and yield the numbers of hours done and of all."""
        hours = ceil((self._end - self._begin) / _READ_SECONDS)
        for hour in range(hours):
            begin = self._begin + hour * _READ_SECONDS
            self._evaluate(begin, min(self._end, begin + _READ_SECONDS))
            yield hour + 1, hours
        self._logInvalid()
        for event in self._store.eventsBetween((RAISED,), self._begin, self._end):
            kind = event.detail.get("kind", "") if isinstance(event.detail, dict) else ""
            self.sent[kind] = self.sent.get(kind, 0) + 1

    def _evaluate(self, begin: float, end: float) -> None:
        grown = self._store.growth(self._thresholds.counters, int(begin), int(end), _LEVEL)
        events = self._store.eventsBetween((*_FINDINGS, *_CHANGES), begin, end)
        grown.reverse()
        events.reverse()
        now = begin
        while now < end:
            now += STEP_SECONDS
            while events and events[-1].at < now:
                self._process(events.pop())
            while grown and grown[-1][0] < now:
                at, portKey, counters = grown.pop()
                self._thresholds.count(portKey, counters, at + STEP_SECONDS)
            self._judge(now)

    def _judge(self, now: float) -> None:
        if len(self._thresholds) or self._log.open:
            found = self._thresholds.findings(self.fabric, now, self._links, ignored=self._rules.ignored)
            for event in self._log.observe("counters", found, now):
                if isinstance(event, (CauseChanged, Raised)):
                    self._tracker.raised(event.entry, now)
                elif isinstance(event, Cleared):
                    self._tracker.cleared(event.entry, now)
        self._explainLost(now)
        self.alerts += (PastAlert(now, one) for one in self._tracker.take(now))

    def _explainLost(self, now: float) -> None:
        """Let links that flap explain the recorded findings that they are missing."""
        lost = [one for one in self._recorded.values() if one.finding.kind == _LOST]
        flapping = [one.finding for one in self._log.current("flapping").values()]
        several = [replace(one.finding, cause=None) for one in lost]
        several = explained(
            *(several, lambda one: self._links.get((one.guid, one.port)), flapping, self._rules.ignored)
        )
        for entry, found in zip(lost, several, strict=True):
            if found.cause != entry.finding.cause:
                entry.finding = found
                self._tracker.raised(entry, now)

    def _process(self, event: FabricEvent) -> None:
        """Process a recorded finding, or a change of a node or link."""
        if event.kind in _FINDINGS:
            self._findingChanged(event)
        elif event.kind == "node-gone" and event.guid is not None:
            self._gone.add(event.guid)
        elif event.kind == "node-came":
            if event.guid in self._gone:  # otherwise it is new, or has another name or link
                self._gone.discard(event.guid)
                self._thresholds.restarted(event.guid, event.at)
        elif event.subject:
            link = self._read(event, linkOf)
            if link is not None:
                isLost = event.kind == _LOST
                self._thresholds.linksChanged({link} if isLost else (), () if isLost else {link}, event.at)
                self._links.update(dict.fromkeys(link, link))

    def _read(self, event: FabricEvent, read: Callable[[FabricEvent], _Read]) -> _Read | None:
        """Return what is read from an event; None if it is invalid, which L{run} logs."""
        try:
            return read(event)
        except Exception as error:
            self._invalid[event.kind] += 1
            self._firstErrors.setdefault(event.kind, errorText(error))
            return None

    def _logInvalid(self) -> None:
        for kind, number in self._invalid.items():
            _log.warn(
                "{number} invalid events ({kind}) of the history are ignored; the first one: {first}",
                number=number,
                kind=kind,
                first=self._firstErrors[kind],
            )

    def _findingChanged(self, event: FabricEvent) -> None:
        """Process a recorded finding that was raised or cleared, or another state: of its cause, or noted."""
        entry = self._read(event, entryOf) if event.subject else None
        if entry is None:
            return
        kind = entry.finding.kind
        if kind in KINDS_OF_ERRORS or kind in self._rules.ignored:
            return
        if entry.finding.cause is not None and entry.finding.cause.kind in self._rules.ignored:
            entry.finding = replace(entry.finding, cause=None)
        entry.severity = self._rules.severities.get(kind, entry.severity)
        known = self._recorded.get(event.subject)
        if kind == _LOST:  # whose cause follows from the present thresholds
            entry.finding = replace(entry.finding, cause=known.finding.cause if known else None)
        if not event.text and (known is None or known.finding.cause == entry.finding.cause):
            if known is not None:
                known.acknowledgement, known.comments = entry.acknowledgement, entry.comments
                self._tracker.annotated(known)
        elif event.kind == "finding-raised":
            self._recorded[event.subject] = entry
            self._tracker.raised(entry, event.at)
        else:
            self._recorded.pop(event.subject, None)
            self._tracker.cleared(entry, event.at)


def sentByKind(alerts: list[PastAlert]) -> Mapping[str, int]:
    """Return the numbers of raised findings in alerts, by kind."""
    found: dict[str, int] = {}
    for one in alerts:
        if one.alert.isRaised:
            kind = one.alert.finding["kind"]
            found[kind] = found.get(kind, 0) + 1
    return found
