"""
Alerts: the selection of findings to send to channels, and its timing.

A finding is sent once, after it has been open for a while, together with others of about the same time.
Findings that a previous process has sent are not sent again, unless it ended before that was stored. The time
is an argument.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import date, datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import blake2b
from math import inf
from typing import Any, Final, NamedTuple

from twisted.logger import Logger

from txrdma.fabric.advice import Severity
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.findinglog import Entry, Key

_log = Logger()

GRACE_SECONDS: Final = 900.0
"""Seconds after which a finding that a previous process has sent, and that is not found again, is cleared."""

_WEEK: Final = 7 * 86400.0


@frozen
class WeeklyTime:
    """
    A time that recurs on days of the week, in the local time of this host.

    @ivar weekdays: numbers of the days on which it begins; 0 is Monday.
    @ivar begin: minute of the day; C{end}: likewise, of the next day if it is not later than C{begin}.
    """

    weekdays: tuple[int, ...]
    begin: int
    end: int

    def endOf(self, at: float) -> float:
        """Return the end of the window that includes a time; the time itself if none does."""
        today = datetime.fromtimestamp(at).date()
        for day in (today, today - timedelta(1)):
            if day.weekday() in self.weekdays and _minuteOf(day, self.begin) <= at:
                isNext = self.end <= self.begin
                end = _minuteOf(day + timedelta(1) if isNext else day, self.end)
                if at < end:
                    return end
        return at


def _minuteOf(day: date, minute: int) -> float:
    """Return a minute of a day in seconds since 1970."""
    return datetime(day.year, day.month, day.day, *divmod(minute, 60)).timestamp()


@frozen
class Silence:
    """
    Findings that are not sent for some time.

    @ivar kind: pattern for kinds of findings, with C{*}; C{where} likewise for their locations.
    @ivar until: end of the silence, in seconds since 1970; may be infinite.
    @ivar times: windows in which it holds, until then; without any it always holds.
    """

    kind: str = "*"
    where: str = "*"
    until: float = inf
    times: tuple[WeeklyTime, ...] = ()

    def endOf(self, at: float) -> float:
        """Return when the silence ends that holds at a time; the time itself if it does not hold then."""
        if at >= self.until or not self.times:
            return max(at, self.until)
        return min(self.until, max(window.endOf(at) for window in self.times))

    def holds(self, entry: Entry) -> bool:
        """Return whether the silence applies to a finding, regardless of the time."""
        found = entry.finding
        return fnmatchcase(found.kind, self.kind) and fnmatchcase(found.where, self.where)


@frozen
class AlertRules:
    """
    Rules for sending findings.

    @ivar delaySeconds: time for which a finding must be open before it is sent.
    @ivar groupSeconds: time in which findings are collected for one message.
    @ivar least: lowest severity that is sent.
    """

    delaySeconds: float = 60.0
    groupSeconds: float = 10.0
    least: Severity = Severity.WARNING
    silences: tuple[Silence, ...] = ()


@frozen
class Alert:
    """
    A finding that was raised or cleared, to be sent.

    @ivar finding: the finding as a JSON object.
    """

    key: Key
    isRaised: bool
    finding: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """Identity of the notification, by which receivers recognize duplicates."""
        fabric = [self.finding["fabric"]] if "fabric" in self.finding else []
        finding = self.finding
        severity = finding["severity"]  # another one after an acknowledgement is sent as another alert
        occurrence = (*self.key, finding["firstSeen"], finding["times"], severity, self.isRaised, *fabric)
        return blake2b(json.dumps(occurrence).encode(), digest_size=8).hexdigest()


class FormerAlerts(NamedTuple):
    """
    Alerts of a previous process.

    @ivar sent: open findings that were sent, as JSON objects.
    @ivar queued: alerts that channels have not sent, by the names of their queues and by their numbers.
    """

    sent: Mapping[Key, Mapping[str, Any]]
    queued: Mapping[str, dict[int, Alert]]


class _Waiting:
    """
    A finding that is sent when it was open for a while without a cause, and after its silences have ended.

    Causes only interrupt that while, unless the finding was absent meanwhile: a switch that comes and goes
    delays alerts of what stays away from it, and not those of what returns with it.
    """

    __slots__ = ("_end", "_ours", "_silenced", "_since", "_spent", "due", "entry", "foundSince")

    def __init__(self, entry: Entry, now: float) -> None:
        self.due = now
        self.entry = entry
        self.foundSince = entry.foundSince
        self._since: float | None = None  # without a cause
        self._spent = 0.0
        self._silenced: tuple[Sequence[Silence], str] | None = None
        self._ours: Sequence[Silence] = ()

    def update(self, entry: Entry, now: float, delaySeconds: float) -> None:
        """Process a finding whose cause may have changed."""
        self.entry = entry
        if entry.finding.cause is not None:
            self._spent += 0.0 if self._since is None else now - self._since
            self._since = None
            return
        if self._since is None:
            self._since, self._silenced = now, None
        due = self._since + max(0.0, delaySeconds - self._spent)  # not before silences of the present
        if due != self.due:
            self.due, self._silenced = due, None

    def end(self, silences: Sequence[Silence], now: float) -> float:
        """
        Return when the finding may be sent: after its silences, and not while another finding explains it or
        it is acknowledged. If it was not sent then, a silence that has begun meanwhile delays it, too.

        @param silences: silences, which are compared only once with a finding.
        """
        found = self.entry.finding
        if found.cause is not None or self.entry.acknowledgement is not None:
            return inf
        known, where = self._silenced or (None, "")
        isNew = known is not silences or where != found.where
        if isNew:
            self._silenced, self._ours, self._end = (silences, found.where), silences, self.due
        if isNew or (self._ours and now >= self._end):
            ours, self._ours = self._ours, ()
            with _log.failuresHandled("silences of {where} are ignored, after an error", where=found.where):
                if isNew:
                    ours = [one for one in silences if one.until > self.due and one.holds(self.entry)]
                at = max(self._end, now)
                end = _silentUntil(ours, at)
                self._end, self._ours = (end if end > at else self._end), ours
        return self._end


def _silentUntil(silences: Sequence[Silence], at: float) -> float:
    """
    Return when none of these silences holds; the time itself if none does then. One may begin before another
    ends, without an end: more than a week is not examined.
    """
    latest = at + _WEEK
    while silences and at < latest and (end := max(one.endOf(at) for one in silences)) > at:
        at = end
    return at


class AlertTracker:
    """
    Findings that wait to be sent, and open findings that were sent.

    @ivar rules: rules for sending, which L{change} replaces.
    @ivar sent: open findings that were sent, as JSON objects.
    """

    def __init__(self, rules: AlertRules, now: float) -> None:
        self.rules = rules
        self.sent: dict[Key, Mapping[str, Any]] = {}
        self._unseen: dict[Key, None] = {}
        self._waiting: dict[Key, _Waiting] = {}
        self._leaving: dict[Key, tuple[float, Mapping[str, Any]]] = {}
        self._graceEnd = now + GRACE_SECONDS

    def restore(
        self, sent: Mapping[Key, Mapping[str, Any]], openKeys: Container[Key], ended: Iterable[Entry]
    ) -> None:
        """
        Add the findings that a previous process has sent.

        @param openKeys: open findings: the log will report whether they are cleared.
        @param ended: the last ones that were cleared, whose end that process may not have sent.
        """
        entries = {one.key: one for one in ended}
        for key, finding in sent.items():
            if key in entries and key not in openKeys:
                self._leave(entries[key].lastSeen, entries[key], finding)
            else:
                self.sent[key] = finding
                if key not in openKeys:
                    self._unseen[key] = None

    def change(self, rules: AlertRules, openEntries: Iterable[Entry], now: float) -> None:
        """
        Replace the rules, which may select other ones of the open findings that were not sent.

        Those whose severity is another one than was sent are sent like other findings.
        """
        self.rules = rules
        for entry in openEntries:
            self.raised(entry, now)

    def raised(self, entry: Entry, now: float) -> None:
        """Process a finding that was raised, or that is still open: update its alert, or schedule one."""
        key, severity = entry.key, entry.severity.name.lower()
        self._unseen.pop(key, None)
        if key in self._leaving and self._leaving[key][1]["severity"] == severity:  # its end was not sent
            self.sent[key] = self._leaving.pop(key)[1]
            self._waiting.pop(key, None)
        sent = self.sent.get(key)
        if sent is None:
            self._wait(entry, now)
        elif sent["severity"] != severity:
            self.severityChanged(entry, now)
        else:
            self.annotated(entry)

    def _wait(self, entry: Entry, now: float) -> None:
        """Schedule the alert of a finding, or cancel it if the finding is not severe enough."""
        if entry.severity < self.rules.least:
            self._waiting.pop(entry.key, None)
        else:
            waiting = self._waiting.get(entry.key)
            if waiting is None or waiting.foundSince != entry.foundSince:
                waiting = self._waiting[entry.key] = _Waiting(entry, now)
            waiting.update(entry, now, self.rules.delaySeconds)

    def annotated(self, entry: Entry) -> None:
        """Process a finding that an operator has acknowledged or commented: its repetitions include that."""
        sent = self.sent.get(entry.key)
        if sent is not None and entry.clearedAt is None:  # else it may be that of a later occurrence
            self.sent[entry.key] = {**entry.toDict(), "severity": sent["severity"]}

    def severityChanged(self, entry: Entry, now: float) -> None:
        """End the alert of a finding whose severity has changed, and schedule one with the new severity."""
        key = entry.key
        sent = self.sent.pop(key, None)
        if sent is not None:
            self._leave(now, entry, sent)
        self._waiting.pop(key, None)
        self._wait(entry, now)

    def cleared(self, entry: Entry, now: float) -> None:
        """Process a finding that was cleared; this is sent if its raising was."""
        key = entry.key
        self._unseen.pop(key, None)
        self._waiting.pop(key, None)
        sent = self.sent.pop(key, None)
        if sent is not None:
            self._leave(now, entry, sent)

    def _leave(self, at: float, entry: Entry, sent: Mapping[str, Any]) -> None:
        """Send the end of a finding, with the severity that was sent: receivers identify alerts by it."""
        finding = {**entry.toDict(), "severity": sent["severity"]}
        self._leaving[entry.key] = (at, {**finding, "clearedAt": entry.clearedAt or at})

    def deadline(self, now: float) -> float | None:
        """Return the time at which L{take} may return alerts; None without pending alerts."""
        dues = [one.end(self.rules.silences, now) for one in self._waiting.values()]
        dues += [due for due, _finding in self._leaving.values()]
        first = min(dues, default=inf) + self.rules.groupSeconds
        if self._unseen:
            first = min(first, self._graceEnd)
        return None if first == inf else max(first, now)

    def take(
        self, now: float, step: Callable[[str], AbstractContextManager[None]] = lambda where: nullcontext()
    ) -> list[Alert]:
        """
        Return the alerts of a group that is due, and count them as sent.

        @param step: is entered for each alert with its location; an exception that it suppresses delays only
            this alert.
        """
        deadline = self.deadline(now)
        if deadline is None or deadline > now:
            return []
        if self._unseen and now >= self._graceEnd:
            for key in self._unseen:
                self._leaving[key] = (now, {**self.sent.pop(key), "clearedAt": now})
            self._unseen.clear()
        raised = []
        for key, one in self._waiting.items():
            with step(one.entry.finding.where):
                if one.end(self.rules.silences, now) <= now:
                    raised.append(Alert(key, True, one.entry.toDict()))
        for alert in raised:
            del self._waiting[alert.key]
            self.sent[alert.key] = alert.finding
        # Ends come first: another severity of the same finding may follow, whose state is the one to store.
        ended = [Alert(key, False, finding) for key, (_due, finding) in self._leaving.items()]
        self._leaving.clear()
        return ended + raised
