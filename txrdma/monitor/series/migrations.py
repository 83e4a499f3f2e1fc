"""
Migrations of a history from older versions, each in the transaction that opens the history.

Changed counters need none: see L{txrdma.monitor.series.historystore}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.series.database import Database

_PRESENCE_KINDS: Final = {
    "nodes": "node-came",
    "nodes-gone": "node-gone",
    "links": "link-came",
    "links-gone": "link-gone",
}


def eventsOfVersion1(database: Database) -> list[FabricEvent]:
    """
    Return the state that version 1 has stored for the next process, as events; drop its table.

    States that have no time in version 1 get that of the last roll-up or change.
    """
    if "remembered" not in database.tables():
        return []
    rooms: dict[str, list[tuple[str, Any]]] = {}
    for room, name, value in database.execute("SELECT room, name, value FROM remembered"):
        rooms.setdefault(room, []).append((name, json.loads(value)))
    ((until,),) = database.execute("SELECT coalesce(max(until), 0) FROM done")
    now = max([float(until), *(value[1] for _name, value in rooms.get("changes", []))])
    events = [event for room, convert in _ROOMS.items() for event in convert(room, rooms.get(room, []), now)]
    database.execute("DROP TABLE remembered")
    return events


def _guidOf(text: str | None) -> GUID | None:
    return None if text is None else GUID.fromString(text)


_Rows = list[tuple[str, Any]]


def _changes(room: str, rows: _Rows, now: float) -> Iterator[FabricEvent]:
    for _name, (_number, at, kind, where, text, guid, port) in sorted(rows, key=lambda row: row[1][0]):
        yield FabricEvent(at, kind, where, text, _guidOf(guid), port)


def _findings(room: str, rows: _Rows, now: float) -> Iterator[FabricEvent]:
    for _name, (key, found, firstSeen, lastSeen, clearedAt, times) in sorted(
        rows, key=lambda row: (row[1][4] or 0.0, row[1][2])
    ):
        where, text, guid, port = found
        kind, at = ("finding-raised", lastSeen) if clearedAt is None else ("finding-cleared", clearedAt)
        detail = [key, text, firstSeen, lastSeen, clearedAt, times]
        subject = json.dumps([*key, firstSeen])
        yield FabricEvent(at, kind, where, "", _guidOf(guid), port, subject, detail)


def _presence(room: str, rows: _Rows, now: float) -> Iterator[FabricEvent]:
    for subject, (where, beyond, *gone) in rows:
        guid, port, *_peer = json.loads(subject) if room.startswith("links") else (subject, None)
        at = gone[0] if gone else now
        yield FabricEvent(at, _PRESENCE_KINDS[room], where, "", _guidOf(guid), port, subject, beyond)


def _alerts(room: str, rows: _Rows, now: float) -> Iterator[FabricEvent]:
    for subject, finding in rows:
        yield FabricEvent(now, "alert-raised", finding["where"], "", subject=subject, detail=finding)


def _notifications(room: str, rows: _Rows, now: float) -> Iterator[FabricEvent]:
    for subject, alert in sorted(rows, key=lambda row: json.loads(row[0])[1]):
        queue, _number = json.loads(subject)
        yield FabricEvent(now, "notification-queued", queue, "", subject=subject, detail=alert)


_ROOMS: Final[dict[str, Callable[[str, _Rows, float], Iterator[FabricEvent]]]] = {
    "changes": _changes,
    "findings": _findings,
    **dict.fromkeys(_PRESENCE_KINDS, _presence),
    "told": _alerts,
    "notifications": _notifications,
}
