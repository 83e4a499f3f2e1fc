"""
Table of all events of a fabric, to which rows are only appended.

The state of a subject is its last event. So an event is deleted, when it is old or the table is too large,
only if its subject has a later one, or no state any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.journal import FabricEvent
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
_READ: Final = "at, kind, place, text, guid, port, subject, detail"
_STATELESS: Final = (
    *("node-forgotten", "link-forgotten", "finding-cleared"),
    *("alert-cleared", "notification-sent", "notification-dropped"),
)
"""Kinds of events after which nothing has to be known of their subject."""

_OVERHEAD: Final = 200
"""Octets of an event in the table and its indices, beside its texts."""

_HAS_LATER: Final = (
    "EXISTS (SELECT 1 FROM events AS later"
    " WHERE later.subject = events.subject AND later.number > events.number)"
)


class EventTable:
    """Table of the events of one fabric, in transactions of its caller."""

    def __init__(self, retention: Level) -> None:
        """@param retention: limits of age and size, and the interval at which old events are looked for."""
        self._retention = retention
        self._number = 0
        self._deletedAt: int | None = None

    def prepare(self, database: Database) -> None:
        """Create the table, unless it exists, and read where it ends."""
        database.make(_TABLE, _COLUMNS, ("number",))
        database.makeIndex(_TABLE, ("subject", "number"))
        database.makeIndex(_TABLE, ("kind", "number"))
        self._number = database.execute("SELECT coalesce(max(number), 0) FROM events")[0][0]

    def append(self, database: Database, events: Iterable[FabricEvent]) -> None:
        """Append events."""
        rows = []
        for number, one in enumerate(events, self._number + 1):
            guid = None if one.guid is None else str(one.guid)
            detail = None if one.detail is None else json.dumps(one.detail)
            subject = (number, one.at, EVENT_VERSION, _stored(one.subject))
            rows.append((*subject, one.kind, _stored(one.where), _stored(one.text), guid, one.port, detail))
        if rows:
            database.put(_TABLE, _COLUMNS, rows, ("number",))
            self._number = rows[-1][0]

    def states(self, database: Database, kinds: Sequence[str], most: int) -> list[FabricEvent]:
        """Return the last C{most} events that are the state of a subject, of these kinds, in order."""
        marks = ", ".join("?" * len(kinds))
        return self._found(
            *(database, f"kind IN ({marks}) AND subject <> '' AND NOT {_HAS_LATER}", kinds, most)
        )

    def changes(self, database: Database, most: int) -> list[FabricEvent]:
        """Return the last events that have a text, in order."""
        return self._found(database, "text <> ''", (), most)

    @staticmethod
    def _found(database: Database, where: str, values: Sequence[Any], most: int) -> list[FabricEvent]:
        statement = f"SELECT {_READ} FROM events WHERE {where} ORDER BY number DESC LIMIT ?"
        return [_eventOf(row) for row in reversed(database.execute(statement, *values, most))]

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


def _eventOf(row: Sequence[Any]) -> FabricEvent:
    at, kind, where, text, guid, port, subject, detail = row
    known = None if guid is None else GUID.fromString(guid)
    return FabricEvent(at, kind, where, text, known, port, subject, json.loads(detail or "null"))
