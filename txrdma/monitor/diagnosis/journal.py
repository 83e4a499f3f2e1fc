"""
Events of a fabric: nodes and links that appear or disappear, findings, notifications, and operators' actions.

Events are appended to the history and never changed. The last event of each subject is its state, from which
the next process continues. Those with a text are changes, which pages show.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any, Final, TypeVar

from twisted.logger import Logger

from txrdma.fabric.advice import adviceOn, Severity
from txrdma.fabric.health import Cause, Finding
from txrdma.iba.types import GUID
from txrdma.kit.logs import errorText
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.findinglog import (
    Acknowledgement,
    Action,
    CauseChanged,
    Cleared,
    Comment,
    Entry,
    FindingEvent,
    Key,
    Raised,
)

_log = Logger()

_ACTIONS: Final = {
    Action.ACKNOWLEDGE: "operator-acknowledged",
    Action.UNACKNOWLEDGE: "operator-unacknowledged",
    Action.COMMENT: "operator-commented",
}

Stored = TypeVar("Stored")
Read = TypeVar("Read")

KINDS: Final = (
    *("node-came", "node-gone", "link-came", "link-gone", "link-changed"),
    *("finding-raised", "finding-cleared", "operator-reloaded", *_ACTIONS.values()),
)
"""Kinds of changes: the events that pages show."""

MOST_CHANGES: Final = 10_000
"""Maximum number of changes in a journal; the oldest are dropped."""

_END_OF_TIME: Final = 253_402_300_800
"""Beginning of the year 10000, in seconds since 1970, which C{datetime} cannot represent."""


@frozen
class FabricEvent:
    """
    An event, as it is stored.

    @ivar at: time at which it was seen, in seconds since 1970.
    @ivar kind: one of L{KINDS}; C{node-forgotten}, C{link-forgotten}; C{cable}, C{cable-forgotten};
        C{link-fault}, C{link-fault-forgotten}; C{alert-raised}, C{alert-cleared}; C{notification-queued},
        C{notification-sent} or C{notification-dropped}.
    @ivar where: readable name of the node, port or channel; C{guid} and C{port} identify it for programs.
    @ivar text: description of a change; C{""} if only the state of the subject is new.
    @ivar subject: identity of the subject with a new state; C{""} for an event that is not a state.
    @ivar detail: further values of the state, which JSON can represent.
    """

    at: float
    kind: str
    where: str
    text: str
    guid: GUID | None = None
    port: int | None = None
    subject: str = ""
    detail: Any = None


class Journal:
    """
    Journal of the most recent events of one fabric.

    @ivar changes: the last changes, in chronological order.
    @ivar number: number of events so far.
    @ivar store: stores new events; a monitor without a history drops them.
    """

    def __init__(self) -> None:
        self.number = 0
        self.changes: deque[FabricEvent] = deque(maxlen=MOST_CHANGES)
        self.store: Callable[[Sequence[FabricEvent]], object] = len

    def add(self, events: Sequence[FabricEvent]) -> None:
        """Add events, in chronological order."""
        self.changes.extend(event for event in events if event.text)
        self.number += len(events)
        self.store(events)

    def since(self, at: float) -> list[FabricEvent]:
        """Return the changes since a time, the latest first."""
        return list(takewhile(lambda change: change.at >= at, reversed(self.changes)))

    def findingChanged(self, event: FindingEvent, now: float) -> None:
        """Add a finding that was raised or cleared, or its state when its cause has changed."""
        if isinstance(event, (Cleared, Raised)):
            found = event.entry.finding
            self.add([_findingEvent(event.entry, f"{found.kind}: {found.text}", now)])
        elif isinstance(event, CauseChanged):
            self.stateChanged(event.entry, now)

    def annotated(self, entry: Entry, action: Action, user: str, text: str, now: float) -> None:
        """Add an operator's action on a finding, and the state of the finding after it."""
        found = entry.finding
        kind = _ACTIONS[action]
        shown = f"{user} {kind.partition('-')[2]} {found.kind}: {text or found.text}"
        detail = {"user": user, "comment": text}
        acted = FabricEvent(now, kind, found.where, shown, found.guid, found.port, detail=detail)
        self.add([acted, _findingEvent(entry, "", now)])

    def stateChanged(self, entry: Entry, now: float) -> None:
        """Store the state of a finding, which is not a change that pages show."""
        self.add([_findingEvent(entry, "", now)])


def _findingEvent(entry: Entry, text: str, at: float) -> FabricEvent:
    found = entry.finding
    kind = "finding-raised" if entry.clearedAt is None else "finding-cleared"
    detail: list[Any] = [list(entry.key), found.text, entry.firstSeen, entry.lastSeen, entry.clearedAt]
    detail.append(entry.times)
    cause, isFirst = found.cause, entry.foundSince == entry.firstSeen
    if entry.acknowledgement is not None or entry.comments or cause is not None or not isFirst:
        guid = None if cause is None or cause.guid is None else str(cause.guid)
        stored = None if cause is None else [cause.kind, cause.where, guid, cause.port]
        detail.append([entry.acknowledgement, entry.comments, stored, entry.foundSince])
    subject = json.dumps([*entry.key, entry.firstSeen])
    return FabricEvent(at, kind, found.where, text, found.guid, found.port, subject, detail)


def readValid(rows: Iterable[Stored], read: Callable[[Stored], Read]) -> list[Read]:
    """Return what is read from stored rows; those that raise an exception are ignored and logged."""
    found, errors = [], []
    for row in rows:
        try:
            found.append(read(row))
        except Exception as error:
            errors.append(errorText(error))
    if errors:
        values = {"number": len(errors), "first": errors[0]}
        _log.warn("{number} invalid events of the history are ignored; the first one: {first}", **values)
    return found


def isTime(value: object) -> bool:
    """Return whether a stored value is a time in seconds since 1970; infinity and NaN are not."""
    return isinstance(value, (float, int)) and 0 <= value < _END_OF_TIME


def entryOf(event: FabricEvent) -> Entry:
    """Return the entry of a finding by its last event, or raise an exception of any type if it is invalid."""
    values, text, first, last, clearedAt, times, *notes = event.detail
    known, comments, cause, foundSince = (*notes[0], first)[:4] if notes else (None, (), None, first)
    if not all(map(isTime, (first, last, foundSince, clearedAt or 0.0))):
        raise ValueError(f"{event.detail!r} is not a finding")
    key = Key.fromStored(values)
    advice = adviceOn(key.kind)
    finding = Finding(key.kind, event.where, text, event.guid, event.port, _causeOf(cause))
    entry = Entry(key, finding, advice.severity, advice.text, first, last, clearedAt, times)
    if known:
        at, user, severity = known
        entry.acknowledgement = Acknowledgement(at, user, Severity(severity))
    entry.comments = tuple(Comment(*one) for one in comments)
    entry.foundSince = foundSince
    return entry


def _causeOf(stored: Any) -> Cause | None:
    """Return a stored cause; 1.0.0rc1 stored only its text."""
    if not stored:
        return None
    if isinstance(stored, str):
        kind, _at, where = stored.partition(" at ")
        return Cause(kind, where)
    kind, where, guid, port = stored
    return Cause(kind, where, None if guid is None else GUID.fromString(guid), port)
