"""
Migrations of a history from older versions, each in the transaction that opens the history.

Changed counters need none: see L{txrdma.monitor.series.historystore}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.journal import entryOf, FabricEvent, isPort, isTime, KINDS, readValid
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
        if isinstance(name, str) and isinstance(value, str):
            position, event = _ROOMS[room](room, name, json.loads(value), now)
            if (event.port is None or isPort(event.port)) and isTime(event.at):
                return position, event
        raise _invalid(row)

    return [event for _position, event in sorted(readValid(rows, convert), key=lambda placed: placed[0])]


def _invalid(stored: object) -> ValueError:
    return ValueError(f"{stored!r} is not a state of version 1")


def _guidOf(text: str | None) -> GUID | None:
    return None if text is None else GUID.fromString(text)


def _change(room: str, name: str, value: Any, now: float) -> _Placed:
    match value:
        case [int(number), at, kind, str(where), str(text), str() | None as guid, port] if kind in KINDS:
            return (number,), FabricEvent(at, kind, where, text, _guidOf(guid), port)
    raise _invalid(value)


def _finding(room: str, name: str, value: Any, now: float) -> _Placed:
    match value:
        case [
            list(key),
            [str(where), str(text), str() | None as guid, port],
            firstSeen,
            lastSeen,
            clearedAt,
            times,
        ]:
            kind, at = ("finding-raised", lastSeen) if clearedAt is None else ("finding-cleared", clearedAt)
            detail = [key, text, firstSeen, lastSeen, clearedAt, times]
            subject = json.dumps([*key, firstSeen])
            event = FabricEvent(at, kind, where, "", _guidOf(guid), port, subject, detail)
            entry = entryOf(event)
            return (entry.clearedAt or 0.0, entry.firstSeen), event
    raise _invalid(value)


def _topology(room: str, name: str, value: Any, now: float) -> _Placed:
    place: Any = json.loads(name) if room.startswith("links") else [name, None]
    match place, value:
        case [str(guid), port, *_peer], [str(where), str(beyond), *gone]:
            at, kind = gone[0] if gone else now, _TOPOLOGY_KINDS[room]
            return (), FabricEvent(at, kind, where, "", GUID.fromString(guid), port, name, beyond)
    raise _invalid(value)


def _alert(room: str, name: str, value: Any, now: float) -> _Placed:
    match value:
        case {"where": str(where)}:
            return (), FabricEvent(now, "alert-raised", where, "", subject=name, detail=value)
    raise _invalid(value)


def _notification(room: str, name: str, value: Any, now: float) -> _Placed:
    match json.loads(name):
        case [str(queue), int(number)]:
            event = FabricEvent(now, "notification-queued", queue, "", subject=name, detail=value)
            return (number,), event
    raise _invalid(name)


# Each returns the event of a row, or raises ValueError if the row is not what version 1 stored.
_ROOMS: Final[dict[str, Callable[[str, str, Any, float], _Placed]]] = {
    "changes": _change,
    "findings": _finding,
    **dict.fromkeys(_TOPOLOGY_KINDS, _topology),
    "told": _alert,
    "notifications": _notification,
}
