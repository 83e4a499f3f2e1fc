"""
Store of what ports have counted, in SQLite: seconds for hours, minutes for weeks, hours for years.

Each level of detail has a table for each of its periods, which is dropped as a whole when it is old. A
coarser level is computed from the finer one, and how far that has come is in the same transaction: whenever
the process ends, the next one goes on there. Everything here blocks, and belongs into a thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GUID
from txrdma.monitor._counters import Meter
from txrdma.monitor.exposition import FAMILIES
from txrdma.monitor.judging import Place
from txrdma.values import frozen

COUNTERS: Final = tuple(FAMILIES)
"""Counters that are kept, data in octets."""

_PEAKS: Final = {"portXmitData": "peakXmit", "portRcvData": "peakRcv"}
_VERSION: Final = 1
_LATE_SECONDS: Final = 30
"""Seconds by which readings may be late, and still count in their minute."""

_MOST: Final = 1 << 50
"""Growth in one reading beyond which a counter is not believed: sums of it would not fit."""

_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR


@frozen
class Level:
    """
    Level of detail of a history.

    @ivar name: name of its tables, with the number of the period behind it.
    @ivar stepSeconds: time that one row of a port stands for; 0 for readings as they came.
    @ivar periodSeconds: time that one table stands for.
    @ivar keepSeconds: time that rows are kept for, at least.
    """

    name: str
    stepSeconds: int
    periodSeconds: int
    keepSeconds: int


DEFAULT_LEVELS: Final = (
    Level("readings", 0, 600, 6 * _HOUR),
    Level("minutes", 60, _DAY, 28 * _DAY),
    Level("hours", _HOUR, 30 * _DAY, 1100 * _DAY),
)
"""Readings of six hours, minutes of four weeks and hours of three years."""


class Row(NamedTuple):
    """
    Growth of a port's counters in a time, to be stored.

    @ivar at: end of that time, in seconds since 1970.
    @ivar values: length of the time in seconds; growth of all counters, None where it is not known; the
        highest rates of data sent and received, in octets each second.
    """

    place: Place
    at: int
    values: tuple[float | None, ...]


class Point(NamedTuple):
    """
    Growth of one counter in a time, as stored.

    @ivar at: time of the reading; of minutes and hours their beginning.
    @ivar seconds: time for which the growth is known.
    @ivar grown: growth, in octets where it is data; None where it is not known.
    @ivar peak: highest rate of data within, in octets each second; None for other counters.
    """

    at: int
    seconds: float
    grown: int | None
    peak: float | None


def rowOf(place: Place, meter: Meter, at: float) -> Row | None:
    """
    Last growth of a port's counters as a row; None without two readings, and in a gap.

    @param at: time of the last reading in seconds since 1970, which is not the reactor's.
    """
    if meter.isSilent or meter.seconds <= 0:
        return None
    layout, grown, values = meter.layout, meter.grown, meter.values
    counts: list[float | None] = [meter.seconds]
    for name in COUNTERS:
        index = layout.places.get(name)
        if index is None or (name in _PEAKS and layout.isFull(index, values[index])):
            counts.append(None)
        else:
            count = grown[index] * layout.unit(name)
            counts.append(count if count < _MOST else None)
    counts += [meter.rate(name) for name in _PEAKS]
    return Row(place, int(at), tuple(counts))


_COLUMNS: Final = ("seconds", *COUNTERS, *_PEAKS.values())
_INSERTED: Final = ", ".join("?" * (2 + len(_COLUMNS)))
_SUMMED: Final = ", ".join(
    [*(f"sum({name})" for name in ("seconds", *COUNTERS)), *(f"max({name})" for name in _PEAKS.values())]
)


class HistoryStore:
    """
    Store of the history of one fabric, in a file.

    A transaction that was committed is there after the process is killed; after a power failure the last ones
    may be missing. The file is never torn.
    """

    def __init__(self, path: str, levels: Sequence[Level] = DEFAULT_LEVELS) -> None:
        """
        @param levels: levels of detail, the finest first.
        @raise DeviceUnavailable: the file cannot be opened, or is not such a store.
        @raise ValueError: a period of a level is no multiple of the next one's step.
        """
        for finer, coarser in zip(levels, levels[1:], strict=False):
            if finer.periodSeconds % coarser.stepSeconds:
                raise ValueError(f"a table of {finer.name} is no whole number of {coarser.name}")
        self._levels = tuple(levels)
        self._ports: dict[Place, int] = {}
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._execute("PRAGMA journal_mode = WAL")
            self._execute("PRAGMA synchronous = NORMAL")
            with self._database:
                self._execute("BEGIN IMMEDIATE")
                self._prepare()
        except sqlite3.Error as error:
            raise DeviceUnavailable(f"history {path}: {error}") from error
        except DeviceUnavailable as error:
            self._database.close()
            raise DeviceUnavailable(f"history {path}: {error}") from None

    def _execute(self, text: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._database.execute(text, values)

    def _prepare(self) -> None:
        (version,) = self._execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise DeviceUnavailable(f"it has version {version}, and version {_VERSION} is known here")
        if not version and self._execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise DeviceUnavailable("it is a database of something else")
        self._execute(f"PRAGMA user_version = {_VERSION}")
        self._execute(
            "CREATE TABLE IF NOT EXISTS ports"
            " (id INTEGER PRIMARY KEY, guid BLOB NOT NULL, number INTEGER NOT NULL, UNIQUE (guid, number))"
        )
        self._execute("CREATE TABLE IF NOT EXISTS done (level TEXT PRIMARY KEY, until INTEGER NOT NULL)")
        for number, guid, port in self._execute("SELECT id, guid, number FROM ports"):
            self._ports[GUID(guid), port] = number

    def close(self) -> None:
        """Close the file. Twice is fine."""
        self._database.close()

    # Writing.

    def write(self, rows: Iterable[Row], now: int) -> None:
        """
        Store readings, all or none of them; compute what of minutes and hours is over; drop what is old.

        @param now: present time, in seconds since 1970: readings come in order of time.
        @raise DeviceUnavailable: the disk is full, or the file cannot be written; nothing has changed then.
        """
        known = dict(self._ports)
        try:
            with self._database:
                self._execute("BEGIN IMMEDIATE")
                self._insert(rows)
                for finer, coarser in zip(self._levels, self._levels[1:], strict=False):
                    self._summarize(finer, coarser, now)
                for level in self._levels:
                    self._dropOld(level, now)
        except sqlite3.Error as error:
            self._ports = known
            raise DeviceUnavailable(f"history: {error}") from error

    def _insert(self, rows: Iterable[Row]) -> None:
        level = self._levels[0]
        tables: dict[int, list[tuple[Any, ...]]] = {}
        for place, at, values in rows:
            row = (self._numberOf(place), at, *values)
            tables.setdefault(at // level.periodSeconds, []).append(row)
        for period, several in tables.items():
            table = self._table(level, period)
            self._database.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({_INSERTED})", several)

    def _numberOf(self, place: Place) -> int:
        number = self._ports.get(place)
        if number is None:
            made = self._execute("INSERT INTO ports (guid, number) VALUES (?, ?)", (place[0].raw, place[1]))
            assert made.lastrowid is not None  # a row was inserted
            number = self._ports[place] = made.lastrowid
        return number

    def _table(self, level: Level, period: int) -> str:
        """Name of a table, which is made if it is not there."""
        table = f"{level.name}_{period}"
        columns = ", ".join(_COLUMNS)
        self._execute(
            f"CREATE TABLE IF NOT EXISTS {table} (port, at, {columns}, PRIMARY KEY (port, at)) WITHOUT ROWID"
        )
        return table

    def _periods(self, level: Level) -> list[int]:
        """Numbers of the periods that a level has tables of, in order."""
        found = self._execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        head = f"{level.name}_"
        return sorted(int(name[len(head) :]) for (name,) in found if name.startswith(head))

    def _summarize(self, finer: Level, coarser: Level, now: int) -> None:
        """Compute the rows of the coarser level whose time is over."""
        step = coarser.stepSeconds
        periods = self._periods(finer)
        if not periods:
            return
        row = self._execute("SELECT until FROM done WHERE level = ?", (coarser.name,)).fetchone()
        done = periods[0] * finer.periodSeconds if row is None else row[0]
        end = (now - finer.stepSeconds - _LATE_SECONDS) // step * step
        begin = min(done, end)  # the clock may have been set back
        for period in periods:
            table = f"{finer.name}_{period}"
            low = max(begin, period * finer.periodSeconds)
            high = min(end, (period + 1) * finer.periodSeconds)
            for at in range(low // step * step, high, step):
                into = self._table(coarser, at // coarser.periodSeconds)
                self._execute(
                    f"INSERT OR REPLACE INTO {into} SELECT port, {at}, {_SUMMED} FROM {table}"
                    " WHERE at >= ? AND at < ? GROUP BY port",
                    (at, at + step),
                )
        if end != done:
            self._execute("INSERT OR REPLACE INTO done VALUES (?, ?)", (coarser.name, end))

    def _dropOld(self, level: Level, now: int) -> None:
        for period in self._periods(level):
            if (period + 1) * level.periodSeconds < now - level.keepSeconds:
                self._execute(f"DROP TABLE {level.name}_{period}")

    # Reading.

    def series(self, place: Place, counter: str, begin: int, end: int, level: str = "") -> list[Point]:
        """
        History of one counter of a port.

        @param begin: beginning of the time asked for, in seconds since 1970; C{end} is its end.
        @param level: name of the level; without one the finest that still has the beginning.
        @raise ValueError: there is no such counter or level.
        """
        if counter not in COUNTERS:
            raise ValueError(f"no history has a counter {counter!r}")
        chosen = self._chosen(level, begin)
        number = self._ports.get(place)
        if number is None:
            return []
        found: list[Point] = []
        peak = _PEAKS.get(counter, "NULL")
        for period in self._periods(chosen):
            if period * chosen.periodSeconds < end and (period + 1) * chosen.periodSeconds > begin:
                rows = self._execute(
                    f"SELECT at, seconds, {counter}, {peak} FROM {chosen.name}_{period}"
                    " WHERE port = ? AND at >= ? AND at < ? ORDER BY at",
                    (number, begin, end),
                )
                found += (Point(*row) for row in rows)
        return found

    def _chosen(self, name: str, begin: int) -> Level:
        if name:
            for level in self._levels:
                if level.name == name:
                    return level
            raise ValueError(f"there is no level {name!r}, but {', '.join(one.name for one in self._levels)}")
        for level in self._levels:
            periods = self._periods(level)
            if periods and periods[0] * level.periodSeconds <= begin:
                return level
        return self._levels[-1]
