"""Reports of findings: the log of findings and the journal follow them, and the owner receives the events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from twisted.logger import Logger

from txrdma.fabric.health import Finding
from txrdma.monitor.diagnosis.findinglog import Action, Entry, FindingEvent, FindingLog, FindingRules, Key
from txrdma.monitor.diagnosis.journal import Journal

_log = Logger()


class FindingReports:
    """
    Processes what the parts of a monitor report.

    @ivar log: findings; C{journal} has changes of the fabric and of its findings.
    """

    def __init__(
        self, rules: FindingRules, seconds: Callable[[], float], notify: Callable[[FindingEvent], object]
    ) -> None:
        """
        @param seconds: returns the time.
        @param notify: called with each event of a finding; its exceptions are logged.
        """
        self.log = FindingLog(rules)
        self.journal = Journal()
        self._seconds = seconds
        self._notify = notify

    def change(self, rules: FindingRules) -> None:
        """Apply new rules, which may change the severity of open findings."""
        for event in self.log.change(rules):
            self.journal.stateChanged(event.entry, self._seconds())
            self._send(event)

    def resume(self, log: FindingLog, journal: Journal) -> None:
        """Continue from the log and the journal of another process, with the findings reported so far."""
        log.inherit(self.log)
        self.log, self.journal = log, journal

    def report(
        self,
        source: str,
        found: Iterable[Finding],
        silent: Collection[str] = (),
        isUnknown: Callable[[Key], bool] = lambda key: False,
    ) -> None:
        """
        Report the findings of a part of the monitor.

        @param source: name of that part.
        @param found: all of its current findings; earlier ones that are missing are cleared in time.
        @param silent: GUIDs of nodes that did not answer, as text: their findings remain.
        @param isUnknown: returns True for other findings that could not be checked, and remain.
        """
        now = self._seconds()
        events = self.log.observe(
            *(source, found, now),
            lambda key: isUnknown(key) or (key.location in silent and key.kind != "node-silent"),
        )
        for event in events:
            self.journal.findingChanged(event, now)
            self._send(event)

    def annotate(self, entry: Entry, action: Action, user: str, text: str) -> None:
        """Acknowledge or comment a finding: see L{FindingLog.annotate}."""
        now = self._seconds()
        event = self.log.annotate(entry, action, user, text, now)
        self.journal.annotated(entry, action, user, text, now)
        self._send(event)

    def _send(self, event: FindingEvent) -> None:
        try:
            self._notify(event)
        except Exception:
            _log.failure("reporting {event!r} failed", event=event)
