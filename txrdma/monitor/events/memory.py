"""
State of a monitor that is stored for the next process: findings, changes, nodes and links.

It is stored beside the history with the same bounds as in memory: the latest changes, the latest cleared
findings, and nodes and links for a week after they have disappeared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Union

from txrdma.error import DeviceUnavailable
from txrdma.fabric.advice import adviceOn
from txrdma.fabric.health import Finding
from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.findinglog import Entry, FindingLog, Key
from txrdma.monitor.diagnosis.journal import Change, Journal, MOST_CHANGES
from txrdma.monitor.diagnosis.managers import STILL_SECONDS
from txrdma.monitor.diagnosis.presence import Gone, Link, Presence
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.reading.counterreader import SILENT_TIMES
from txrdma.monitor.reading.poller import UNHEARD_SECONDS
from txrdma.monitor.series.history import HistoryWriter
from txrdma.monitor.series.historystore import HistoryStore, Remembered

_FINDINGS: Final = "findings"
_CHANGES: Final = "changes"
_NODES: Final = "nodes"
_LINKS: Final = "links"
_NODES_GONE: Final = "nodes-gone"
_LINKS_GONE: Final = "links-gone"

_FEWEST: Final = 2
"""Fewest nodes of a fabric that is remembered: who sees one alone has lost its own link."""


def secondsToFind(kind: str, thresholds: ErrorThresholds, intervalSeconds: float) -> float:
    """
    Return the seconds in which a process finds a fault that began before it started; 0 if one sweep is
    enough.
    """
    several = {
        "node-silent": intervalSeconds * (1 << SILENT_TIMES),  # it is asked more and more seldom
        "sm-still": STILL_SECONDS + 2 * intervalSeconds,
        "no-notices": UNHEARD_SECONDS + 2 * intervalSeconds,
    }
    return max(thresholds.periodOf(kind), several.get(kind, 0.0))


class MonitorMemory:
    """The state that a previous process has stored, and that this one stores for the next."""

    def __init__(
        self,
        store: HistoryStore,
        writer: HistoryWriter,
        findingLog: FindingLog,
        presence: Presence,
        journal: Journal,
    ) -> None:
        """@param store: read only by L{restore}; the history's writer stores everything later."""
        self._store = store
        self._writer = writer
        self._findingLog = findingLog
        self._presence = presence
        self._journal = journal
        self._number = 0
        self._entries: dict[_Name, _State] = {}
        self._seen: dict[str, Mapping[Any, Any]] = {}

    # From the former process.

    def restore(self, heldUntil: Callable[[str], float]) -> None:
        """
        Restore the state of a previous process, before the first sweep. Blocks.

        @param heldUntil: as for L{FindingLog.restore}.
        @raise DeviceUnavailable: the store cannot be read.
        """
        try:
            nodes = {GUID.fromString(name): value for name, value in self._read(_NODES)}
            links = {_linkOf(name): value for name, value in self._read(_LINKS)}
            nodesGone = {GUID.fromString(name): _goneOf(value) for name, value in self._read(_NODES_GONE)}
            linksGone = {_linkOf(name): _goneOf(value) for name, value in self._read(_LINKS_GONE)}
            entries = [_entryOf(value) for _name, value in self._read(_FINDINGS)]
            changes = sorted(value for _name, value in self._read(_CHANGES))
        except (ValueError, TypeError, KeyError) as error:
            raise DeviceUnavailable(f"what the history remembers has no meaning: {error!r}") from error
        present = {guid: (name, beyond) for guid, (name, beyond) in nodes.items()}
        linked = {link: (name, beyond) for link, (name, beyond) in links.items()}
        self._seen = {_NODES: present, _LINKS: linked, _NODES_GONE: nodesGone, _LINKS_GONE: linksGone}
        if len(present) >= _FEWEST:
            self._presence.restore(present, linked, nodesGone, linksGone)
        self._number = changes[-1][0] if changes else 0
        self._journal.restore((_changeOf(each) for _n, *each in changes), self._number)
        self._entries = {_nameOf(entry): _stateOf(entry) for entry in entries}
        self._findingLog.restore(entries, heldUntil)

    def _read(self, category: str) -> Iterator[tuple[str, Any]]:
        return ((name, json.loads(value)) for name, value in self._store.remembered(category))

    def skip(self, now: float) -> None:
        """Ignore the state of a previous process."""
        self._number = self._journal.number = int(now)

    # For the next process.

    def update(self) -> None:
        """Store what has changed since the last call."""
        stored = [*self._newFindings(), *self._newChanges()]
        presence = self._presence
        if len(presence.present) >= _FEWEST:
            stored += self._differences(_NODES, presence.present, list)
            stored += self._differences(_LINKS, presence.linked, list)
            stored += self._differences(_NODES_GONE, dict(presence.nodes), _goneRow)
            stored += self._differences(_LINKS_GONE, dict(presence.links), _goneRow)
        if stored:
            self._writer.remember(stored)

    def _newFindings(self) -> Iterator[Remembered]:
        findingLog, before = self._findingLog, self._entries
        self._entries = {}
        for entry in (*findingLog.closed, *findingLog.open.values()):
            name, state = _nameOf(entry), _stateOf(entry)
            self._entries[name] = state
            if before.pop(name, None) != state:
                yield _FINDINGS, json.dumps(name), json.dumps(_entryRow(entry))
        for name in before:
            yield _FINDINGS, json.dumps(name), None

    def _newChanges(self) -> Iterator[Remembered]:
        journal = self._journal
        new = min(journal.number - self._number, len(journal.changes))
        for number, change in enumerate(
            islice(journal.changes, len(journal.changes) - new, None), journal.number - new + 1
        ):
            yield _CHANGES, str(number % MOST_CHANGES), json.dumps([number, *_changeRow(change)])
        self._number = journal.number

    def _differences(
        self, category: str, now: Mapping[Any, Any], row: Callable[[Any], list[Any]]
    ) -> Iterator[Remembered]:
        before, self._seen[category] = self._seen.get(category, {}), now
        if before is now or before == now:
            return
        for name in before.keys() - now.keys():
            yield category, _textOf(name), None
        for name, value in now.items():
            if before.get(name) != value:
                yield category, _textOf(name), json.dumps(row(value))


# Values as JSON can carry them.

_Name = tuple[Key, float]
_State = tuple[Union[float, None], int]


def _nameOf(entry: Entry) -> _Name:
    return entry.key, entry.firstSeen


def _stateOf(entry: Entry) -> _State:
    """
    Return those attributes of an entry whose change requires storing it again; its last occurrence does not.
    """
    return entry.clearedAt, entry.times


def _textOf(name: GUID | Link) -> str:
    if isinstance(name, GUID):
        return str(name)
    (guid, port), (peer, peerPort) = name
    return json.dumps([str(guid), port, str(peer), peerPort])


def _linkOf(name: str) -> Link:
    guid, port, peer, peerPort = json.loads(name)
    return (GUID.fromString(guid), port), (GUID.fromString(peer), peerPort)


def _guidText(guid: GUID | None) -> str | None:
    return None if guid is None else str(guid)


def _guidOf(text: str | None) -> GUID | None:
    return None if text is None else GUID.fromString(text)


def _goneRow(gone: Gone) -> list[Any]:
    return [gone.where, gone.beyond, gone.since, str(gone.guid), gone.port]


def _goneOf(row: list[Any]) -> Gone:
    where, beyond, since, guid, port = row
    return Gone(where, beyond, since, GUID.fromString(guid), port)


def _changeRow(change: Change) -> list[Any]:
    return [change.at, change.kind, change.where, change.text, _guidText(change.guid), change.port]


def _changeOf(row: list[Any]) -> Change:
    at, kind, where, text, guid, port = row
    return Change(at, kind, where, text, _guidOf(guid), port)


def _entryRow(entry: Entry) -> list[Any]:
    found = entry.finding
    columns = [found.where, found.text, _guidText(found.guid), found.port]
    return [list(entry.key), columns, entry.firstSeen, entry.lastSeen, entry.clearedAt, entry.times]


def _entryOf(row: list[Any]) -> Entry:
    """Return an entry of the finding log, with the severity and advice of this process."""
    key, (where, text, guid, port), firstSeen, lastSeen, clearedAt, times = row
    finding = Finding(key[1], where, text, _guidOf(guid), port)
    advice = adviceOn(finding.kind)
    return Entry(Key(*key), finding, advice.severity, advice.text, firstSeen, lastSeen, clearedAt, times)
