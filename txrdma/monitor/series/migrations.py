"""
Migrations of a history from older versions, each in the transaction that opens the history.

Changed counters need none: see L{txrdma.monitor.series.historystore}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.journal import entryOf, FabricEvent, isTime, readValid
from txrdma.monitor.series.database import Database

_TOPOLOGY_KINDS: Final = {
    "nodes": "node-came",
    "nodes-gone": "node-gone",
    "links": "link-came",
    "links-gone": "link-gone",
}

_Stored = tuple[Any, ...]
"""A row of version 1: the kind of state (in the column C{room}), its name, and its value as JSON."""

_Placed = tuple[tuple[float, ...], FabricEvent]
"""Position of an event among those of its kind of state, and the event."""


def eventsOfVersion1(database: Database) -> list[FabricEvent]:
    """
    Return the state that version 1 has stored for the next process, as events; drop its table.

    States that have no time in version 1 get that of the last roll-up or change. Invalid rows are dropped and
    logged.
    """
    if "remembered" not in database.tables():
        return []
    rooms: dict[str, list[_Stored]] = {}
    for row in database.execute("SELECT room, name, value FROM remembered"):
        rooms.setdefault(row[0], []).append(tuple(row))
    changes = _converted(rooms.get("changes", ()), 0.0)
    rolledUp = [until for (until,) in database.execute("SELECT until FROM done") if isTime(until)]
    now = float(max([0, *rolledUp, *(event.at for event in changes)]))
    states = [event for room in _ROOMS if room != "changes" for event in _converted(rooms.get(room, ()), now)]
    database.execute("DROP TABLE remembered")
    return changes + states


def _converted(rows: Iterable[_Stored], now: float) -> list[FabricEvent]:
    """Return the events of the rows of one room, in order."""

    def convert(row: _Stored) -> _Placed:
        room, name, value = row
        position, event = _ROOMS[room](room, name, json.loads(value), now)
        if (event.port is None or event.port in range(256)) and isTime(event.at) and event.kind.isascii():
            return position, event
        raise ValueError(f"{row!r} is not a state of version 1")

    return [event for _position, event in sorted(readValid(rows, convert), key=lambda placed: placed[0])]


def _guidOf(text: str | None) -> GUID | None:
    return None if text is None else GUID.fromString(text)


def _change(room: str, name: str, value: Any, now: float) -> _Placed:
    number, at, kind, where, text, guid, port = value
    return (number,), FabricEvent(at, kind, where, text, _guidOf(guid), port)


def _finding(room: str, name: str, value: Any, now: float) -> _Placed:
    key, (where, text, guid, port), firstSeen, lastSeen, clearedAt, times = value
    kind, at = ("finding-raised", lastSeen) if clearedAt is None else ("finding-cleared", clearedAt)
    detail = [key, text, firstSeen, lastSeen, clearedAt, times]
    event = FabricEvent(at, kind, where, "", _guidOf(guid), port, json.dumps([*key, firstSeen]), detail)
    entry = entryOf(event)
    return (entry.clearedAt or 0.0, entry.firstSeen), event


def _topology(room: str, name: str, value: Any, now: float) -> _Placed:
    place: Any = json.loads(name) if room.startswith("links") else [name, None]
    guid, port, *_peer = place
    where, beyond, *gone = value
    at = gone[0] if gone else now
    event = FabricEvent(at, _TOPOLOGY_KINDS[room], where, "", GUID.fromString(guid), port, name, beyond)
    return (), event


def _alert(room: str, name: str, value: Any, now: float) -> _Placed:
    return (), FabricEvent(now, "alert-raised", value["where"], "", subject=name, detail=value)


def _notification(room: str, name: str, value: Any, now: float) -> _Placed:
    queue, number = json.loads(name)
    return (number,), FabricEvent(now, "notification-queued", queue, "", subject=name, detail=value)


# Each returns the event of a row, or raises an exception.
_ROOMS: Final[dict[str, Callable[[str, str, Any, float], _Placed]]] = {
    "changes": _change,
    "findings": _finding,
    **dict.fromkeys(_TOPOLOGY_KINDS, _topology),
    "told": _alert,
    "notifications": _notification,
}
