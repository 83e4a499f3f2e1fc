"""
Log of findings: when each was first and last seen, and whether it is still open.

Several sources report findings; each report lists all current findings of its source. The time is an
argument. There is no timer, because nothing changes between two reports.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from enum import Enum
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from txrdma.error import InvalidRequest
from txrdma.fabric.advice import adviceOn, Severity
from txrdma.fabric.health import Finding
from txrdma.kit.values import frozen, record

_MOST_TEXTS: Final = 3
_MOST_DOUBLINGS: Final = 10
MOST_CLEARED: Final = 1000
"""Maximum number of cleared findings that are retained."""

MOST_COMMENTS: Final = 50
"""Maximum number of comments on a finding; further ones are refused."""

LONGEST_COMMENT: Final = 1000
"""Maximum number of characters of a comment; longer ones are refused."""


class Action(Enum):
    """What an operator does about a finding."""

    ACKNOWLEDGE = "acknowledge"
    UNACKNOWLEDGE = "unacknowledge"
    COMMENT = "comment"


class Comment(NamedTuple):
    """Comment of an operator, with its time in seconds since 1970."""

    at: float
    user: str
    text: str


class Acknowledgement(NamedTuple):
    """An operator knows of a finding, which had this severity then."""

    at: float
    user: str
    severity: Severity


class Key(NamedTuple):
    """
    Identity of a finding, independent of its text.

    @ivar location: GUID of the finding's node as text; a description if it does not concern a node.
    @ivar port: port number of the finding; None if it does not concern a port.
    """

    source: str
    kind: str
    location: str
    port: int | None

    @classmethod
    def fromStored(cls, values: Any) -> Key:
        """Return a stored key, or raise an exception of any type if it is invalid."""
        key = cls(*values)
        hash(key)  # not that of a list
        return key


@frozen
class FindingRules:
    """
    Rules for raising and clearing findings.

    @ivar raiseSeconds: time for which a finding must be reported before it is raised, by source; findings of
        other sources are raised at once.
    @ivar clearSeconds: time for which a finding must be absent before it is cleared. Each return within
        C{returnSeconds} doubles it, up to C{mostClearSeconds}, so that flapping findings stay open.
    @ivar returnSeconds: time after which a finding that returns is a new one.
    @ivar ignored: kinds of findings that are dropped, and explain no others.
    @ivar severities: severities by kind that replace the default ones.
    """

    raiseSeconds: Mapping[str, float]
    clearSeconds: float = 30.0
    mostClearSeconds: float = 3600.0
    returnSeconds: float = 3600.0
    ignored: Collection[str] = frozenset()
    severities: Mapping[str, Severity] = MappingProxyType({})


@record
class Entry:
    """
    Entry of the log: a finding from its raising to its clearing.

    @ivar finding: the finding as it was last seen.
    @ivar advice: one sentence of advice.
    @ivar firstSeen: time at which it was first seen; C{lastSeen} is the last one.
    @ivar clearedAt: time at which it was cleared; None while it is open.
    @ivar times: number of times that it was raised.
    @ivar awaySince: time since which it is no longer found; None while it is found.
    @ivar foundSince: time since which each report has it; C{firstSeen} unless it was absent since.
    @ivar isRestored: True for a finding of a former process, until it is found again.
    @ivar heldUntil: time until which its absence is ignored: faults that take hours are not found at once.
    @ivar acknowledgement: who has acknowledged it, since it was raised last; None if nobody has.
    @ivar comments: comments of operators, in order.
    """

    key: Key
    finding: Finding
    severity: Severity
    advice: str
    firstSeen: float
    lastSeen: float
    clearedAt: float | None = None
    times: int = 1
    awaySince: float | None = None
    isRestored: bool = False
    heldUntil: float = 0.0
    acknowledgement: Acknowledgement | None = None
    comments: tuple[Comment, ...] = ()
    foundSince: float = 0.0
    _identity: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.foundSince = self.foundSince or self.firstSeen

    @property
    def identity(self) -> str:
        """Identity of the finding for links, from its first raising on."""
        if not self._identity:  # a search among thousands computed all of them
            self._identity = blake2b(
                json.dumps([*self.key, self.firstSeen]).encode(), digest_size=8
            ).hexdigest()
        return self._identity

    def toDict(self) -> dict[str, Any]:
        """Return the entry as a dictionary for JSON."""
        found, cause = self.finding, self.finding.cause
        return {
            "kind": found.kind,
            "severity": self.severity.name.lower(),
            "where": found.where,
            "guid": None if found.guid is None else str(found.guid),
            "port": found.port,
            "text": found.text,
            "cause": "" if cause is None else str(cause),
            "causeKind": None if cause is None else cause.kind,
            "causeGuid": None if cause is None or cause.guid is None else str(cause.guid),
            "causePort": None if cause is None else cause.port,
            "advice": self.advice,
            "firstSeen": self.firstSeen,
            "lastSeen": self.lastSeen,
            "clearedAt": self.clearedAt,
            "times": self.times,
            "acknowledgedBy": None if self.acknowledgement is None else self.acknowledgement.user,
            "acknowledgedAt": None if self.acknowledgement is None else self.acknowledgement.at,
            "comments": [comment._asdict() for comment in self.comments],
        }


@frozen
class FindingEvent:
    """A finding was raised, cleared or found again."""

    entry: Entry


class Raised(FindingEvent):
    """A finding was raised, for the first time or again."""


class Cleared(FindingEvent):
    """A finding was absent long enough to be cleared."""


class Resumed(FindingEvent):
    """A finding that a previous process had raised was found again."""


class CauseChanged(FindingEvent):
    """Another finding explains an open one now, or none does."""


class Annotated(FindingEvent):
    """An operator has acknowledged or commented a finding."""


class SeverityChanged(FindingEvent):
    """A finding that was acknowledged has another severity, which ends the acknowledgement."""


class FindingLog:
    """
    Log of all findings: the open ones, and the last ones that were cleared.

    @ivar rules: rules for raising and clearing, which L{change} replaces.
    @ivar open: entries that were raised and are not cleared, in order of their raising.
    """

    def __init__(self, rules: FindingRules) -> None:
        self.rules = rules
        self._pending: dict[Key, float] = {}
        self.open: dict[Key, Entry] = {}
        self._closed: dict[int, Entry] = {}  # by id(), so that thousands that return are found at once
        self._returning: dict[Key, Entry] = {}

    @property
    def closed(self) -> list[Entry]:
        """Return the last entries that were cleared, in order of clearing."""
        return list(self._closed.values())

    def observe(
        self,
        source: str,
        found: Iterable[Finding],
        now: float,
        isUnknown: Callable[[Key], bool] = lambda key: False,
    ) -> list[FindingEvent]:
        """
        Process a report: all current findings of a source.

        @param source: name of the source; findings of other sources do not change.
        @param isUnknown: called with the keys of findings that are missing in the report; returns True where
            the source could not check. These findings stay as they are.
        @return: findings that were raised, cleared or found again, or have another cause.
        """
        seen = self._merged(source, found)
        events: list[FindingEvent] = []
        for key, finding in seen.items():
            entry = self.open.get(key)
            if entry is not None:
                hasSameCause = entry.finding.cause == finding.cause
                if entry.awaySince is not None:
                    entry.foundSince = now
                entry.finding, entry.lastSeen, entry.awaySince = finding, now, None
                if entry.isRestored:
                    entry.isRestored = False
                    events.append(Resumed(entry))
                if not hasSameCause:
                    events.append(CauseChanged(entry))
            elif now - self._pending.setdefault(key, now) >= self.rules.raiseSeconds.get(source, 0.0):
                events.append(Raised(self._raise(key, finding, now)))
        for key in [key for key in self._pending if key.source == source and key not in seen]:
            if not isUnknown(key):
                del self._pending[key]
        for key, entry in [
            one for one in self.open.items() if one[0].source == source and one[0] not in seen
        ]:
            if not isUnknown(key) and self._isCleared(entry, now):
                events.append(Cleared(entry))
        return events

    def restore(self, entries: Iterable[Entry], heldUntil: Callable[[str], float]) -> None:
        """
        Add entries of a previous process; their kinds are not cleared before C{heldUntil}.

        L{change} reports which acknowledgements end because the rules of that process were others.
        """
        for entry in sorted(entries, key=lambda one: (one.clearedAt or 0.0, one.firstSeen)):
            if entry.clearedAt is None:
                entry.isRestored, entry.heldUntil = True, heldUntil(entry.finding.kind)
                entry.severity = self.severityOf(entry.finding)
                self.open[entry.key] = entry
            else:
                self._close(entry)

    def inherit(self, other: FindingLog) -> None:
        """Add findings of another log that this one does not have: the next report of them raises them."""
        found = {**other._pending, **{key: one.firstSeen for key, one in other.open.items()}}
        self._pending.update((key, at) for key, at in found.items() if key not in self.open)

    def change(self, rules: FindingRules) -> list[FindingEvent]:
        """
        Replace the rules; open findings remain open, with the severities of the new rules.

        @return: acknowledged findings whose severity has changed, which ends the acknowledgement.
        """
        self.rules = rules
        changed: list[FindingEvent] = []
        for entry in self.open.values():
            entry.severity = self.severityOf(entry.finding)
            if entry.acknowledgement is not None and entry.acknowledgement.severity != entry.severity:
                entry.acknowledgement = None
                changed.append(SeverityChanged(entry))
        return changed

    def find(self, identity: str) -> Entry | None:
        """Return the open or cleared finding with an identity, or None."""
        return next((one for one in (*self.open.values(), *self.closed) if one.identity == identity), None)

    def annotate(self, entry: Entry, action: Action, user: str, text: str, now: float) -> Annotated:
        """
        Acknowledge a finding, end its acknowledgement, or only comment it.

        @param text: the comment, on one line; C{""} for none.
        @raise InvalidRequest: the comment is too long, or missing, or one too many; or the state of the
            finding does not permit this action.
        """
        if len(text) > LONGEST_COMMENT:
            raise InvalidRequest(f"a comment has at most {LONGEST_COMMENT} characters, not {len(text)}")
        if text and len(entry.comments) >= MOST_COMMENTS:
            raise InvalidRequest(f"the finding has {MOST_COMMENTS} comments, which is the limit")
        if action is Action.COMMENT and not text:
            raise InvalidRequest("the comment is missing")
        if action is Action.ACKNOWLEDGE and entry.clearedAt is not None:
            raise InvalidRequest("the finding is cleared: it can only be commented")
        if action is Action.UNACKNOWLEDGE and entry.acknowledgement is None:
            raise InvalidRequest("the finding is not acknowledged")
        if action is not Action.COMMENT:
            isKnown = action is Action.ACKNOWLEDGE
            entry.acknowledgement = Acknowledgement(now, user, entry.severity) if isKnown else None
        if text:
            entry.comments = (*entry.comments, Comment(now, user, text))
        return Annotated(entry)

    def worst(self) -> Severity | None:
        """Return the highest severity of all open findings, or None if there are none."""
        return max((entry.severity for entry in self.open.values()), default=None)

    def settlesIn(self, source: str, now: float) -> float | None:
        """Return the seconds until another report of a source can raise a finding; None if none can."""
        waits = [
            since + self.rules.raiseSeconds.get(source, 0.0)
            for key, since in self._pending.items()
            if key.source == source
        ]
        return max(0.0, min(waits) - now) if waits else None

    def isPending(self, source: str, locations: Collection[str]) -> bool:
        """Return whether a finding at one of these locations was reported, but is not raised yet."""
        return any(key.source == source and key.location in locations for key in self._pending)

    def current(self, kind: str) -> dict[Key, Entry]:
        """Return open findings of a kind without those that are missing in the last report."""
        return {key: one for key, one in self.open.items() if key.kind == kind and one.awaySince is None}

    def isClearing(self, source: str) -> bool:
        """Return whether an open finding is missing in the last report, but is not cleared yet."""
        return any(entry.awaySince is not None for key, entry in self.open.items() if key.source == source)

    def _merged(self, source: str, found: Iterable[Finding]) -> dict[Key, Finding]:
        """Return findings by identity; several of one kind at one location are merged."""
        several: dict[Key, list[Finding]] = {}
        for one in found:
            if one.kind not in self.rules.ignored:
                key = Key(source, one.kind, one.where if one.guid is None else str(one.guid), one.port)
                several.setdefault(key, []).append(one)
        return {key: _joined(ones) for key, ones in several.items()}

    def _raise(self, key: Key, finding: Finding, now: float) -> Entry:
        since = self._pending.pop(key)
        entry = self._returning.pop(key, None)
        if entry is not None and now - (entry.clearedAt or 0.0) < self.rules.returnSeconds:
            del self._closed[id(entry)]
            entry.finding, entry.lastSeen, entry.clearedAt, entry.awaySince = finding, now, None, None
            entry.severity, entry.times = self.severityOf(finding), entry.times + 1
            entry.acknowledgement, entry.foundSince = None, since
        else:
            advice = adviceOn(finding.kind).text
            entry = Entry(key, finding, self.severityOf(finding), advice, since, now)
        self.open[key] = entry
        return entry

    def severityOf(self, finding: Finding) -> Severity:
        """Return the severity of a finding by the current rules."""
        return self.rules.severities.get(finding.kind, adviceOn(finding.kind).severity)

    def _awaySeconds(self, entry: Entry) -> float:
        """Return how long a finding must be absent before it is cleared: longer each time it returns."""
        rules = self.rules
        longer = rules.clearSeconds * (1 << min(entry.times - 1, _MOST_DOUBLINGS))
        return min(longer, max(rules.mostClearSeconds, rules.clearSeconds))

    def _isCleared(self, entry: Entry, now: float) -> bool:
        """Clear an entry whose finding is absent, if it has been absent for long enough."""
        if now < entry.heldUntil:
            return False
        if entry.awaySince is None:
            entry.awaySince = now
        if now - entry.awaySince < self._awaySeconds(entry):
            return False
        del self.open[entry.key]
        entry.clearedAt = now
        self._close(entry)
        return True

    def _close(self, entry: Entry) -> None:
        if len(self._closed) == MOST_CLEARED:
            oldest = self._closed.pop(next(iter(self._closed)))
            if self._returning.get(oldest.key) is oldest:
                del self._returning[oldest.key]
        self._closed[id(entry)] = entry
        self._returning[entry.key] = entry


def _joined(ones: list[Finding]) -> Finding:
    if len(ones) == 1:
        return ones[0]
    texts = list(dict.fromkeys(one.text for one in ones))
    text = "; ".join(texts[:_MOST_TEXTS]) + ("; ..." if len(texts) > _MOST_TEXTS else "")
    first = ones[0]
    return replace(first, text=text)
