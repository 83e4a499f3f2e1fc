"""
The history of all ports' counters in a database: readings for hours, minutes for weeks, hours for years.

Each level of detail has a table for each of its periods, which is dropped as a whole when it is old, or when
the level is too large. Rows of a coarser level are computed from the finer one, and the progress of that is
stored in the same transaction, so that the next process continues where this one has ended. Events of the
fabric have their own table. All calls block, and therefore belong in a thread.

A history of an older version is migrated when it is opened. Changed counters need no new version: missing
columns are added to all tables, those of L{RENAMED} are renamed, and unknown ones remain unchanged.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from twisted.logger import Logger

from txrdma.error import DeviceUnavailable
from txrdma.fabric.model import PortKey
from txrdma.iba.types import GUID
from txrdma.kit.lease import Lease, LEASE_TABLE
from txrdma.kit.logs import errorText
from txrdma.monitor.diagnosis.fabricstate import FabricState, STATE_KINDS
from txrdma.monitor.diagnosis.journal import FabricEvent, KINDS, MOST_CHANGES
from txrdma.monitor.series.database import absolute, Columns, Database, HistoryRefused, IN_USE, openDatabase
from txrdma.monitor.series.eventtable import EventTable, MOST_STATES
from txrdma.monitor.series.level import DEFAULT_LEVELS, EVENTS, indexOf, Level
from txrdma.monitor.series.migrations import eventsOfVersion1
from txrdma.monitor.series.rows import COLUMN_FAMILIES, ColumnFamily, familyOf, RENAMED, Row, TRAFFIC

_log = Logger()

VERSION: Final = 2
"""Version of the tables other than columns of counters; see the migrations in L{HistoryStore}."""

MOST_PORTS: Final = 250_000
"""
Maximum number of ports in a history; a fabric of 10,368 hosts has 65,000. Beyond it, the history of ports
that were added last and are missing is dropped: a broken node may have another GUID each minute.
"""

_IDLE_SECONDS: Final = 3600
"""Seconds without a reading after which a port may be dropped for others."""

_FULL_SECONDS: Final = 60
"""Seconds until the next search for space where there was none."""

_AT_ONCE: Final = 500

_NEWER_SHARE: Final = 8
"""Part of a level's tables that have to be newer before old ones are dropped; C{_FEWEST_NEWER} at least."""

_FEWEST_NEWER: Final = 2


class Point(NamedTuple):
    """
    The growth of one counter during a time, as stored.

    @ivar at: time of the reading; for minutes and hours, their beginning.
    @ivar seconds: duration of the part of this time for which the growth is known.
    @ivar grown: growth, in octets for data; None if unknown.
    @ivar peak: highest rate of data during this time, in octets per second; None for other counters.
    """

    at: int
    seconds: float
    grown: int | None
    peak: float | None

    @property
    def rate(self) -> float | None:
        """The growth per second; None if unknown."""
        return None if self.grown is None or not self.seconds else self.grown / self.seconds


_PORTS: Final[Columns] = {"id": int, "guid": bytes, "number": int}
_DONE: Final[Columns] = {"level": str, "until": int}
_SIZES: Final[Columns] = {"period": str, "octets": int}


def _shown(where: str) -> str:
    """Return the path or URL of a database, without the password."""
    return re.sub(r"(://[^/@]*?):[^/@]*@", r"\1:***@", where)


def free(items: list[Any]) -> None:
    """Free the items of a list in pieces, between which other threads run: a hundred thousand take 50 ms."""
    while items:
        del items[-_AT_ONCE:]


class HistoryStore:
    """The history of one fabric in a database."""

    def __init__(
        self,
        where: str,
        levels: Sequence[Level] = DEFAULT_LEVELS,
        lease: Lease | None = None,
        events: Level = EVENTS,
        isReader: bool = False,
    ) -> None:
        """
        @param where: path of a file, or URL of a database.
        @param isReader: whether it is only read, beside the monitor that writes to it.
        @param levels: levels of detail, the finest first.
        @param lease: lease that each transaction needs, and which is taken first. With it, a database that
            cannot be opened now, because the disk is full or its server is not reachable, is opened by the
            next call that needs it.
        @param events: retention of events.
        @raise HistoryRefused: the database is not such a store, or another monitor writes to it.
        @raise DeviceUnavailable: the database cannot be opened.
        @raise ValueError: a period of a level is not a multiple of the next one's step.
        """
        for finer, coarser in zip(levels, levels[1:], strict=False):
            if finer.periodSeconds % coarser.stepSeconds:
                raise ValueError(f"a table of {finer.name} is not a whole number of {coarser.name}")
        self._levels = tuple(levels)
        self._events = EventTable(events)
        self._ports: dict[PortKey, int] = {}
        self._next = 1
        self._last: dict[int, int] = {}
        self._since: int | None = None
        self._fullAt = -_FULL_SECONDS
        self._isReader = isReader
        self._where = absolute(where)
        self._name = f"history {_shown(where)}"
        self._lease = lease
        self._connections = 0
        self._known: dict[str, list[int]] = {}
        self._sources: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._opened: Database | None = None
        try:
            self.attach()
        except Exception as error:
            mayRecover = isinstance(error, DeviceUnavailable) and not isinstance(error, HistoryRefused)
            if lease is None or not mayRecover:
                self.close()
                raise
            _log.warn("{why}; it is tried again", why=errorText(error))

    @property
    def isOpen(self) -> bool:
        """Whether the database could be used in the last transaction."""
        return self._connections > 0

    @property
    def _database(self) -> Database:
        """The database, which is opened if necessary."""
        if self._opened is None:
            lease = self._lease
            if lease is not None and not lease.isHeld and not lease.attempt():
                raise HistoryRefused(IN_USE)
            self._opened = openDatabase(self._where, lease, self._isReader)
        return self._opened

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Begin a transaction, the first one of each connection with what the database already has."""
        try:
            with self._database.transaction():
                if self._database.connections != self._connections:
                    try:
                        self._prepare(self._database)
                    except (TypeError, ValueError, OverflowError) as error:
                        raise HistoryRefused(f"its contents are invalid: {error}") from error
                yield
        except BaseException as error:
            self._connections = 0  # cached numbers may not be in the database
            if isinstance(error, DeviceUnavailable):
                raise type(error)(f"{self._name}: {error}") from error
            raise

    def _prepare(self, database: Database) -> None:
        """Migrate the database to this version, and read its contents."""
        version, tables = database.version(), [one for one in database.tables() if one != LEASE_TABLE]
        if version > VERSION:
            raise HistoryRefused(f"it has version {version}, but this monitor knows versions up to {VERSION}")
        if self._isReader and version != VERSION:
            raise HistoryRefused(f"it has version {version}: a monitor of this release has to open it first")
        if not version and tables:
            raise HistoryRefused("it belongs to another application: a history needs its own database")
        if not self._isReader:  # which would wait for the writer, or may have no right to write
            database.make("ports", _PORTS, ("id",))
            database.make("done", _DONE, ("level",))
            database.make("sizes", _SIZES, ("period",))
            self._events.prepare(database)
        self._known, self._sources = {}, {}
        for family in COLUMN_FAMILIES:
            for level in self._levels:
                self._arrange(database, tables, family, level)
        if version == 1:
            self._events.append(database, eventsOfVersion1(database))
        if version != VERSION:
            database.setVersion(VERSION)
        self._ports = {
            (GUID(bytes(memoryview(guid))), port): number  # bytes of a large number would fill the memory
            for number, guid, port in database.execute("SELECT id, guid, number FROM ports")
        }
        self._sizes = {str(name): int(octets) for name, octets in database.execute("SELECT * FROM sizes")}
        self._connections = database.connections
        self._next = max(self._ports.values(), default=0) + 1

    def _arrange(self, database: Database, tables: list[str], family: ColumnFamily, level: Level) -> None:
        """
        Add or rename columns, so that the tables of a level have the columns of this release.

        For a reader, queries take the place of tables with others.
        """
        head = family.head + level.name
        numbers = {name: re.fullmatch(rf"{head}_([0-9]+)", name) for name in tables}
        periods = {name: int(number[1]) for name, number in numbers.items() if number is not None}
        for name in ([head] if head in tables else []) + list(periods):  # the partitioned table first
            if self._isReader:
                self._sources[name] = database.source(name, family.columns, RENAMED)
            else:
                database.change(name, family.columns, RENAMED)
        self._known[head] = sorted(periods.values())

    def detach(self) -> None:
        """
        Close the database until L{attach}, or the next call that needs it; the lease remains.

        The process may fork in between. Otherwise SQLite's locks would be lost, and the next program that
        closes the file would delete the log of transactions, to which this process would continue to write.
        """
        database, self._opened = self._opened, None
        self._connections = 0
        if database is not None:
            database.close()

    def attach(self) -> None:
        """Open the database again, or raise L{DeviceUnavailable}."""
        with self._transaction():
            pass

    def close(self) -> None:
        """Close the database, and end the lease. Idempotent."""
        if self._opened is not None:
            self._opened.close()
        if self._lease is not None:
            self._lease.release()

    # Events.

    def states(self, *kinds: str, most: int = MOST_STATES) -> list[FabricEvent]:
        """Return the last events that are states, of these kinds, or raise L{DeviceUnavailable}."""
        with self._transaction():
            return self._events.states(self._database, kinds, most)

    def statesAt(self, kinds: Sequence[str], at: float) -> list[FabricEvent]:
        """Return the last events that were states at a time, of these kinds. Blocks."""
        with self._transaction():
            return self._events.statesAt(self._database, kinds, at, MOST_STATES)

    def changes(self) -> list[FabricEvent]:
        """Return the last changes, in order, or raise L{DeviceUnavailable}."""
        with self._transaction():
            return self._events.changes(self._database, MOST_CHANGES)

    def stateAt(self, at: float) -> FabricState | None:
        """Return the fabric at a time, or at the earliest one that is known; None if there are no events."""
        with self._transaction():
            since = self._events.completeSince(self._database)
            if since is None:
                return None
            at = max(at, since)
            return FabricState.of(at, self._events.statesAt(self._database, STATE_KINDS, at, MOST_STATES))

    def changeTimes(
        self, begin: float, end: float, most: int
    ) -> tuple[float | None, list[tuple[float, int]]]:
        """
        Return the time from which on states are known (None: they are not), and when how much has changed.

        @return: for the latter at most C{most} pairs of a time and a number of changes.
        """
        with self._transaction():
            since = self._events.completeSince(self._database)
            begin = max(begin, since or 0.0)
            return since, self._events.changeTimes(self._database, KINDS, begin, end, most)

    def append(self, events: Iterable[FabricEvent]) -> None:
        """Append all events, or none and raise L{DeviceUnavailable}."""
        with self._transaction():
            self._events.append(self._database, events)

    # Writing.

    def write(self, rows: Iterable[Row], now: int, events: Iterable[FabricEvent] = ()) -> int:
        """
        Store readings and events, all or nothing; compute complete minutes and hours; drop old rows.

        @param now: current time, in seconds since 1970; readings must be in order of time.
        @return: number of readings that were dropped because there are too many ports.
        @raise DeviceUnavailable: the disk is full, or the database cannot be written; nothing has changed.
        """
        with self._transaction():
            dropped = self._insert(rows)
            self._events.append(self._database, events)
            self._events.deleteOld(self._database, now)
            size = self._database.size()
            for family in COLUMN_FAMILIES:
                for finer, coarser in zip(self._levels, self._levels[1:], strict=False):
                    self._summarize(family, finer, coarser, now)
                for level in self._levels:
                    self._dropOld(family, level, now, size)
        return dropped

    def _insert(self, rows: Iterable[Row]) -> int:
        """Store readings in the tables of their periods; return the number of those of too many ports."""
        level = self._levels[0]
        dropped = 0
        added: list[tuple[int, bytes, int]] = []
        tables: dict[tuple[ColumnFamily, int], list[tuple[Any, ...]]] = {}
        for portKey, at, values, family in rows:
            number = self._numberOf(portKey, at, added)
            if number is None:
                dropped += 1
            else:
                tables.setdefault((family, at // level.periodSeconds), []).append((number, at, *values))
        self._database.put("ports", _PORTS, added, ("id",))
        for (family, period), several in tables.items():
            self._database.put(self._table(family, level, period), family.columns, several, ("port", "at"))
            free(several)
        return dropped

    def _numberOf(self, portKey: PortKey, at: int, added: list[tuple[int, bytes, int]]) -> int | None:
        """Return the number of a port, and put the row of a new one into C{added}; None for too many."""
        if self._since is None:
            self._since = at
        number = self._ports.get(portKey)
        if number is None:
            if len(self._ports) >= MOST_PORTS and not self._makeSpace(at):
                return None
            number = self._ports[portKey] = self._next
            self._next += 1
            added.append((number, portKey[0].raw, portKey[1]))
        self._last[number] = at
        return number

    def _makeSpace(self, at: int) -> bool:
        """Drop the history of ports that were added last and are no longer read; False if there are none."""
        quiet = at - _IDLE_SECONDS
        if self._since is None or self._since > quiet or at - self._fullAt < _FULL_SECONDS:
            return False
        idle = [portKey for portKey, number in self._ports.items() if self._last.get(number, 0) < quiet]
        idle.sort(key=lambda portKey: self._ports[portKey])
        dropped = idle[-max(1, MOST_PORTS // 10) :]
        if not dropped:
            self._fullAt = at
            return False
        numbers = [self._ports.pop(portKey) for portKey in dropped]
        tables = [f"{head}_{period}" for head, periods in self._known.items() for period in periods]
        for begin in range(0, len(numbers), _AT_ONCE):
            some = numbers[begin : begin + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            for table in tables:
                self._database.execute(f"DELETE FROM {table} WHERE port IN ({marks})", *some)
            self._database.execute(f"DELETE FROM ports WHERE id IN ({marks})", *some)
        for number in numbers:
            self._last.pop(number, None)
        return True

    def _table(self, family: ColumnFamily, level: Level, period: int) -> str:
        """Return the name of a table, which is created if necessary."""
        head = family.head + level.name
        table, periods = f"{head}_{period}", self._known[head]
        if period not in periods:
            self._database.makePeriod(head, table, *level.span(period), family.columns)
            insort(periods, period)
        return table

    def _source(self, table: str) -> str:
        """Return what is read as a table: a query, if it lacks columns and must not be changed."""
        return self._sources.get(table, table)

    def _summarize(self, family: ColumnFamily, finer: Level, coarser: Level, now: int) -> None:
        """Compute the rows of a level from those of the next finer one, for all steps that have ended."""
        step = coarser.stepSeconds
        periods = self._known[family.head + finer.name]
        if not periods:
            return
        database = self._database
        name = f"{family.head}{coarser.name}"
        known = database.execute("SELECT until FROM done WHERE level = ?", name)
        done = known[0][0] if known else periods[0] * finer.periodSeconds
        end = coarser.completeUntil(finer, now)
        begin = min(done, end)  # the clock may have been set back
        for period in periods:
            table = f"{family.head}{finer.name}_{period}"
            first, last = finer.span(period)
            for at in range(max(begin, first) // step * step, min(end, last), step):
                into = self._table(family, coarser, at // coarser.periodSeconds)
                # By ports, so that SQLite, whose rows are sorted by port, reads the rows of that time only.
                database.execute(
                    f"INSERT INTO {into} ({family.names}) SELECT id, CAST(? AS BIGINT), {family.summed}"
                    f" FROM ports CROSS JOIN {table}"
                    f" WHERE port = id AND at >= ? AND at < ? GROUP BY id {family.replaced}",
                    *(at, at, at + step),
                )
        if end != done:
            database.put("done", _DONE, [(name, end)], ("level",))

    def _dropOld(self, family: ColumnFamily, level: Level, now: int, size: int) -> None:
        """Drop tables that are old, and the oldest ones while the level is too large."""
        head = family.head + level.name
        periods = self._known[head]
        # The clock may be wrong for a while, so old tables are dropped only if there are several newer ones.
        old = [each for each in periods if level.span(each)[1] < now - level.retentionSeconds]
        fewest = max(_FEWEST_NEWER, level.retentionSeconds // level.periodSeconds // _NEWER_SHARE)
        dropped = old if len(periods) - len(old) >= fewest else []
        # In a small database no table has to be measured: SQLite would read it.
        excess = self._octets(head) - level.mostOctets if size > level.mostOctets else 0
        for period in periods[:-_FEWEST_NEWER]:
            if excess <= 0:
                break
            excess -= self._sizes.get(f"{head}_{period}", 0)
            if period not in dropped:
                dropped.append(period)
        for period in dropped:
            if not self._database.drop(f"{head}_{period}"):
                break
            periods.remove(period)
            if self._sizes.pop(f"{head}_{period}", None) is not None:
                self._database.execute("DELETE FROM sizes WHERE period = ?", f"{head}_{period}")

    def _octets(self, head: str) -> int:
        """Return the size of a level without its newest table. Each call measures at most one table."""
        tables = [f"{head}_{period}" for period in self._known[head][:-1]]
        for table in reversed(tables):
            if table not in self._sizes:
                self._sizes[table] = self._database.octets(table)
                self._database.put("sizes", _SIZES, [(table, self._sizes[table])], ("period",))
                break
        return sum(self._sizes.get(table, 0) for table in tables)

    # Reading.

    def series(self, portKey: PortKey, counter: str, begin: int, end: int, level: str = "") -> list[Point]:
        """
        Return the history of one counter of a port.

        @param begin: beginning of the requested time, in seconds since 1970; C{end} is its end.
        @param level: name of the level; by default the finest one that still has the beginning.
        @raise InvalidRequest: the counter or level is unknown.
        """
        family = familyOf(counter)
        found: list[Point] = []
        peak = f'"{family.peaks[counter]}"' if counter in family.peaks else "NULL"
        with self._transaction():  # which reads the numbers again after a failed one
            number = self._ports.get(portKey)
            chosen = self._chosen(family, level, begin)
            for period in self._known[family.head + chosen.name] if number is not None else ():
                first, last = chosen.span(period)
                if first < end and last > begin:
                    source = self._source(f"{family.head}{chosen.name}_{period}")
                    rows = self._database.execute(
                        f'SELECT at, seconds, "{counter}", {peak} FROM {source}'
                        " WHERE port = ? AND at >= ? AND at < ? ORDER BY at",
                        *(number, begin, end),
                    )
                    found += (Point(*row) for row in rows)
        return found

    def span(self, level: str) -> tuple[int, int] | None:
        """Return the time of which a computed level has rows, by its beginning and end; None without any."""
        chosen = self._levels[indexOf(level, self._levels)]
        name = TRAFFIC.head + chosen.name
        with self._transaction():
            periods = self._known[name]
            known = self._database.execute("SELECT until FROM done WHERE level = ?", name)
            began = self._events.begin(self._database)
        if not periods or not known:
            return None
        first, end = int(began or 0) // chosen.stepSeconds * chosen.stepSeconds, int(known[0][0])
        begin = max(chosen.span(periods[0])[0], first)
        return (begin, end) if begin < end else None

    def rates(self, begin: int, end: int, level: str) -> dict[PortKey, dict[str, float]]:
        """Return the average growth of all counters of all ports per second; data in octets. Blocks."""
        found: dict[PortKey, dict[str, float]] = {}
        for family in COLUMN_FAMILIES:
            sums = ", ".join(f'sum("{counter}")' for counter in ("seconds", *family.counters))
            totals: dict[PortKey, list[float]] = {}
            for portKey, *values in self._rows(family, level, begin, end, sums, "GROUP BY port"):
                before = totals.setdefault(portKey, [0.0] * len(values))
                totals[portKey] = [one + float(more or 0) for one, more in zip(before, values, strict=True)]
            for portKey, (seconds, *grown) in totals.items():
                if seconds:
                    counted = zip(family.counters, grown, strict=True)
                    found.setdefault(portKey, {}).update((name, more / seconds) for name, more in counted)
        return found

    def growth(
        self, counters: Sequence[str], begin: int, end: int, level: str
    ) -> list[tuple[int, PortKey, dict[str, int]]]:
        """Return the times and ports at which any of some counters have grown, and by how much. Blocks."""
        found: list[tuple[int, PortKey, dict[str, int]]] = []
        for family in COLUMN_FAMILIES:
            names = [name for name in family.counters if name in counters]
            if not names:
                continue
            any_ = " OR ".join(f'"{name}" > 0' for name in names)
            columns = ", ".join(["at", *(f'"{name}"' for name in names)])
            some = self._portsWith(family, level, any_, begin, end)
            for portKey, at, *values in self._rows(family, level, begin, end, columns, f"AND ({any_})", some):
                grown = {name: int(more) for name, more in zip(names, values, strict=True) if more}
                found.append((int(at), portKey, grown))
        return sorted(found, key=lambda one: one[0])

    def _portsWith(
        self, family: ColumnFamily, level: str, condition: str, begin: int, end: int
    ) -> tuple[str, tuple[int, ...]]:
        """
        Return SQL for a table of the ports with growth in a time by the next coarser level, and its values.

        Most ports have no errors in most hours. These are all ports where the coarser level has no such rows.
        """
        index = indexOf(level, self._levels) + 1
        for coarser in self._levels[index : index + 1]:
            head = f"{family.head}{coarser.name}"
            first = begin // coarser.stepSeconds * coarser.stepSeconds
            period = first // coarser.periodSeconds
            with self._transaction():
                known = self._database.execute("SELECT until FROM done WHERE level = ?", head)
            isComplete = bool(known) and end <= min(known[0][0], coarser.span(period)[1])
            if isComplete and period in self._known[head]:
                table = self._source(f"{head}_{period}")
                source = f"FROM ports CROSS JOIN {table} WHERE port = id AND at >= ? AND at < ?"
                return f"(SELECT id {source} AND ({condition}) GROUP BY id) AS ports", (first, end)
        return "ports", ()

    def _rows(
        self,
        family: ColumnFamily,
        level: str,
        begin: int,
        end: int,
        columns: str,
        rest: str,
        some: tuple[str, tuple[int, ...]] = ("ports", ()),
    ) -> Iterator[tuple[Any, ...]]:
        """
        Yield the ports and some columns of the rows of a time.

        @param some: SQL for the table of the ports, and its values.
        """
        chosen = self._levels[indexOf(level, self._levels)]
        ports = {number: portKey for portKey, number in self._ports.items()}
        for period in list(self._known[family.head + chosen.name]):
            first, last = chosen.span(period)
            if first < end and last > begin:
                table = self._source(f"{family.head}{chosen.name}_{period}")
                # By ports, so that SQLite, whose rows are sorted by port, reads the rows of that time only.
                source = f"FROM {some[0]} CROSS JOIN {table} WHERE port = id AND at >= ? AND at < ?"
                statement = f"SELECT port, {columns} {source} {rest}"
                with self._transaction():
                    rows = self._database.execute(statement, *some[1], begin, end)
                yield from ((ports[row[0]], *row[1:]) for row in rows if row[0] in ports)

    def eventsBetween(self, kinds: Sequence[str], begin: float, end: float) -> list[FabricEvent]:
        """Return the events of some kinds in a time, in order, or raise L{DeviceUnavailable}. Blocks."""
        with self._transaction():
            return self._events.between(self._database, kinds, begin, end)

    def _chosen(self, family: ColumnFamily, name: str, begin: int) -> Level:
        if name:
            return self._levels[indexOf(name, self._levels)]
        for level in self._levels:
            periods = self._known[family.head + level.name]
            if periods and periods[0] * level.periodSeconds <= begin:
                return level
        return self._levels[-1]
