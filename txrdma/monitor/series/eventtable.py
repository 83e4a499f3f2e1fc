"""
Table of all events of a fabric, to which rows are only appended.

When the answer to a COMMIT is lost, the events may be stored, and their writer appends them again. So events
stored since the last append that is known to be committed are read, and not stored twice.

The state of a subject is its last event. So an event is deleted, when it is old or the table is too large,
only if its subject has a later one, or no longer has a state.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.journal import FabricEvent, isTime, readValid
from txrdma.monitor.series.database import Columns, Database
from txrdma.monitor.series.level import Level

EVENT_VERSION: Final = 1
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
    *("node-forgotten", "link-forgotten", "finding-cleared"),
    *("alert-cleared", "notification-sent", "notification-dropped"),
)
"""Kinds of events after which their subject has no state."""

_OVERHEAD: Final = 200
"""Octets of an event in the table and its indices, beside its texts."""

_HAS_LATER: Final = (
    "EXISTS (SELECT 1 FROM events AS later"
    " WHERE later.subject = events.subject AND later.number > events.number)"
)


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
        unneeded = f"(subject = '' OR kind IN {_STATELESS!r} OR {_HAS_LATER})"
        database.execute(f"DELETE FROM events WHERE at < ? AND {unneeded}", now - retention.retentionSeconds)
        texts = " + ".join(f"length({name})" for name in ("subject", "place", "text"))
        ((count, octets),) = database.execute(
            f"SELECT count(*), sum({_OVERHEAD} + {texts} + length(coalesce(detail, ''))) FROM events"
        )
        if count and octets > retention.mostOctets:
            excess = int(count * (1 - retention.mostOctets / octets)) + 1
            oldest = f"SELECT number FROM events WHERE {unneeded} ORDER BY number LIMIT ?"
            database.execute(f"DELETE FROM events WHERE number IN ({oldest})", excess)


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
