"""
Table of all events of a fabric, to which rows are only appended.

When the answer to a COMMIT is lost, the events may be stored, and their writer appends them again. So events
stored since the last append that is known to be committed are read, and not stored twice.

The state of a subject is its last event; at an earlier time, its last event until then. When events are old
and there are newer ones, or the table is too large, those before a time are deleted, except for the last one
of each subject that has a state at that time: since then, the states at all times are complete. The time is
stored as an event.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any, Final

from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.journal import FabricEvent, isTime, readValid
from txrdma.monitor.series.database import Columns, Database
from txrdma.monitor.series.level import Level

EVENT_VERSION: Final = 2
"""Version of the details of an event, stored with each."""

MOST_STATES: Final = 250_000
"""Maximum number of states of a kind that are read, the latest: a fabric of 10,368 hosts has 32,000 links."""

_TABLE: Final = "events"
_COLUMNS: Final[Columns] = {
    "number": int,
    "at": float,
    "version": int,
    **dict.fromkeys(("subject", "kind", "place", "text", "guid"), str),
    "port": int,
    "detail": str,
}
_CONTENT: Final = ", ".join(list(_COLUMNS)[1:])
_READ: Final = "at, kind, place, text, guid, port, subject, detail"
_STATELESS: Final = (
    *("node-forgotten", "link-forgotten", "link-fault-forgotten", "cable-forgotten", "finding-cleared"),
    *("alert-cleared", "notification-sent", "notification-dropped"),
)
"""Kinds of events after which their subject has no state."""

_OVERHEAD: Final = 200
"""Octets of an event in the table and its indices, beside its texts."""

_NEWER_SHARE: Final = 8
"""Part of the retention that newer events have to cover before old ones are deleted because of their age."""

_LATER: Final = "FROM events AS later WHERE later.subject = events.subject AND later.number > events.number"
_HAS_LATER: Final = f"EXISTS (SELECT 1 {_LATER})"
_HAS_LATER_UNTIL: Final = f"EXISTS (SELECT 1 {_LATER} AND later.at <= ?)"
_IS_STATELESS: Final = f"(subject = '' OR kind IN {_STATELESS!r})"
_ENDS: Final = f"CASE WHEN {_IS_STATELESS} THEN at ELSE (SELECT at {_LATER} ORDER BY number LIMIT 1) END"
"""Time from which an event is no longer a state."""

_DELETED: Final = "deleted"
"""Kind and subject of the event whose detail is the time before which superseded events were deleted."""


class EventTable:
    """Table of the events of one fabric, in transactions of its caller."""

    def __init__(self, retention: Level) -> None:
        """@param retention: limits of age and size, and the interval of searches for old events."""
        self._retention = retention
        self._number = 0
        self._confirmed: int | None = None
        self._isConfirmed = False
        self._uncertain: Counter[tuple[Any, ...]] = Counter()
        self._deletedAt: int | None = None

    def prepare(self, database: Database) -> None:
        """
        Create the table, unless it exists, and find its end. Call this first, and again after each failed
        transaction, which may or may not have been committed.
        """
        database.make(_TABLE, _COLUMNS, ("number",))
        database.makeIndex(_TABLE, ("subject", "number"))
        database.makeIndex(_TABLE, ("kind", "number"))
        database.makeIndex(_TABLE, ("kind", "at"))
        self._number = database.execute("SELECT coalesce(max(number), 0) FROM events")[0][0]
        if self._confirmed is None:
            self._confirmed = self._number
        self._isConfirmed = False
        statement = f"SELECT {_CONTENT} FROM events WHERE number > ?"
        self._uncertain = Counter(map(tuple, database.execute(statement, self._confirmed)))

    def append(self, database: Database, events: Iterable[FabricEvent]) -> None:
        """Append events, except for those that a failed transaction has stored."""
        rows = [_rowOf(one) for one in events]
        if not rows:
            return
        if self._isConfirmed:
            self._confirmed = self._number
            self._uncertain.clear()
        self._isConfirmed = True  # unless this transaction fails, after which the table is prepared again
        stored = self._uncertain.copy()
        added = []
        for row in rows:
            if stored[row]:
                stored[row] -= 1
            else:
                self._number += 1
                added.append((self._number, *row))
        database.put(_TABLE, _COLUMNS, added, ("number",))

    def states(self, database: Database, kinds: Sequence[str], most: int) -> list[FabricEvent]:
        """Return the last C{most} events that are the state of a subject, of these kinds, in order."""
        marks = ", ".join("?" * len(kinds))
        where = f"kind IN ({marks}) AND subject <> '' AND NOT {_HAS_LATER}"
        return self._found(database, where, kinds, most)

    def statesAt(self, database: Database, kinds: Sequence[str], at: float, most: int) -> list[FabricEvent]:
        """Return the last C{most} events of these kinds that were states at a time, in order."""
        marks = ", ".join("?" * len(kinds))
        last = "SELECT max(number) FROM events WHERE subject <> '' AND at <= ? GROUP BY subject"
        return self._found(database, f"kind IN ({marks}) AND number IN ({last})", (*kinds, at), most)

    @staticmethod
    def begin(database: Database) -> float | None:
        """Return the time of the first event; None without events."""
        found = database.execute("SELECT at FROM events ORDER BY number LIMIT 1")
        return float(found[0][0]) if found else None

    @classmethod
    def completeSince(cls, database: Database) -> float | None:
        """Return the time since which states are complete: none has been deleted. None without events."""
        time = "CAST(detail AS double precision)"
        deleted = f"SELECT {time} FROM events WHERE kind = ? ORDER BY number DESC LIMIT 1"
        found = database.execute(deleted, _DELETED)
        return float(found[0][0]) if found else cls.begin(database)

    @staticmethod
    def changeTimes(
        database: Database, kinds: Sequence[str], begin: float, end: float, most: int
    ) -> list[tuple[float, int]]:
        """
        Return the times of changes of these kinds, those of each C{most}-th part of the time together: the
        last one, and their number.
        """
        marks, seconds = ", ".join("?" * len(kinds)), max(1, ceil((end - begin) / most))
        rows = database.execute(
            f"SELECT max(at), count(*) FROM events WHERE text <> '' AND kind IN ({marks})"
            f" AND at > ? AND at <= ? GROUP BY CAST(at AS bigint) / {seconds:d} ORDER BY 1",
            *(*kinds, begin, end),
        )
        return [(float(at), int(count)) for at, count in rows]

    def changes(self, database: Database, most: int) -> list[FabricEvent]:
        """Return the last events that have a text, in order."""
        return self._found(database, "text <> ''", (), most)

    def between(
        self, database: Database, kinds: Sequence[str], begin: float, end: float
    ) -> list[FabricEvent]:
        """Return the events of these kinds in a time, in order."""
        marks = ", ".join("?" * len(kinds))
        where = f"kind IN ({marks}) AND at >= ? AND at < ?"
        statement = f"SELECT {_READ} FROM events WHERE {where} ORDER BY number"
        return readValid(database.execute(statement, *kinds, begin, end), _eventOf)

    @staticmethod
    def _found(database: Database, where: str, values: Sequence[Any], most: int) -> list[FabricEvent]:
        statement = f"SELECT {_READ} FROM events WHERE {where} ORDER BY number DESC LIMIT ?"
        return readValid(reversed(database.execute(statement, *values, most)), _eventOf)

    def deleteOld(self, database: Database, now: int) -> None:
        """Delete old events, and the oldest of too many, except for those that are the state of a subject."""
        retention = self._retention
        if self._deletedAt is not None and 0 <= now - self._deletedAt < retention.periodSeconds:
            return
        self._deletedAt = now
        until = now - retention.retentionSeconds
        ((first, last),) = database.execute("SELECT min(at), max(at) FROM events WHERE at > ?", until)
        # The clock may be wrong for a while, so old events are deleted only if newer ones cover some time.
        if first is not None and last - first >= retention.retentionSeconds / _NEWER_SHARE:
            self._deleteBefore(database, until, now)
        texts = " + ".join(f"length({name})" for name in ("subject", "place", "text"))
        ((count, octets),) = database.execute(
            f"SELECT count(*), sum({_OVERHEAD} + {texts} + length(coalesce(detail, ''))) FROM events"
        )
        if count and octets > retention.mostOctets:
            excess = int(count * (1 - retention.mostOctets / octets)) + 1
            ended = f"SELECT {_ENDS} AS ended FROM events"
            first = f"SELECT ended FROM ({ended}) AS ends WHERE ended IS NOT NULL ORDER BY ended LIMIT ?"
            ((until,),) = database.execute(f"SELECT max(ended) FROM ({first}) AS earliest", excess)
            if until is not None:
                self._deleteBefore(database, until, now)

    def _deleteBefore(self, database: Database, until: float, now: float) -> None:
        """Delete the events that are no longer a state at a time, and store that time if there were some."""
        where = f"at <= ? AND ({_IS_STATELESS} OR {_HAS_LATER_UNTIL})"
        if database.execute(f"SELECT 1 FROM events WHERE {where} LIMIT 1", until, until):
            database.execute(f"DELETE FROM events WHERE {where}", until, until)
            self._number += 1
            event = FabricEvent(now, _DELETED, "history", "", subject=_DELETED, detail=until)
            database.put(_TABLE, _COLUMNS, [(self._number, *_rowOf(event))], ("number",))


def _stored(text: str) -> str:
    """Return text that a database can store: names of nodes may have surrogates and NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _rowOf(event: FabricEvent) -> tuple[Any, ...]:
    """Return the columns of an event's row in the table, except for the first, its number."""
    guid = None if event.guid is None else str(event.guid)
    detail = None if event.detail is None else json.dumps(event.detail)
    texts = event.kind, _stored(event.where), _stored(event.text)
    return event.at, EVENT_VERSION, _stored(event.subject), *texts, guid, event.port, detail


def _eventOf(row: Sequence[Any]) -> FabricEvent:
    """Return the event of a row, or raise C{ValueError}."""
    at, kind, where, text, guid, port, subject, detail = row
    match where, text, guid, port, detail:
        case [str(), str(), str() | None, int() | None, str() | None] if isTime(at):
            known = None if guid is None else GUID.fromString(guid)
            return FabricEvent(at, kind, where, text, known, port, subject, json.loads(detail or "null"))
    raise ValueError(f"{row!r} is not an event")
