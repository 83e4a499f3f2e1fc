"""
Databases that store the history: SQLite, and PostgreSQL through psycopg.

Statements use what both have in common, with a question mark for each value; column names are in double
quotes, since PostgreSQL folds other names to lower case. Both classes commit explicitly.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, ExitStack, suppress
from typing import Any, Final
from urllib.parse import quote

from twisted.logger import Logger

from txrdma.error import DeviceUnavailable
from txrdma.kit.lease import connectionLimits, FileLease, isInPlace, Lease, RowLease

_log = Logger()


class HistoryRefused(DeviceUnavailable):
    """The database is used by another monitor, or its history is incompatible: retrying does not help."""


Columns = Mapping[str, type]
"""Columns of a table: C{int} of 64 bits, C{float}, C{str} or C{bytes}, by their names."""

IN_USE: Final = "another monitor keeps its history there"

_VERSIONS: Final = "history_version"
_TYPES: Final = {int: "bigint", float: "double precision", str: "text", bytes: "bytea"}
_KEY: Final = ("port", "at")
"""Primary key of tables of time series."""

_ROW_OCTETS: Final = 100
"""Octets of a row of a time series, where SQLite cannot measure tables: the mean of busy and idle ports."""

_OWNER: Final = "-owner"
"""End of the name of the file that is locked: locking the database itself would end SQLite's own locks."""

_CONNECT_SECONDS: Final = 10
"""Seconds to wait for a connection to PostgreSQL, where the URL has no C{connect_timeout}."""

_LOCK_MILLISECONDS: Final = 50
"""Milliseconds to wait for the lock of a table that is dropped: other programs wait for it meanwhile."""

_UNREACHABLE_SECONDS: Final = 15
"""Seconds after which a connection to an unreachable PostgreSQL ends."""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


class Database:
    """
    The database of one history. All calls block, and all except C{close} belong in a transaction.

    @ivar lease: lease that each transaction needs; None for none.
    @ivar connections: number of connections so far; another monitor may have written between two of them.
    """

    _errors: tuple[type[Exception], ...]
    _begins: str  # this and the following are statements of each kind of database
    _beginsToRead: str
    _tables: str
    _columns: str
    _size: str

    def __init__(self, lease: Lease | None = None, isReader: bool = False) -> None:
        self.lease = lease
        self.connections = 0
        self._isReader: Final = isReader

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """
        Begin a transaction, which is committed or rolled back at its end.

        @raise HistoryRefused: another monitor has the lease.
        @raise DeviceUnavailable: the database cannot be reached or written, or its disk is full.
        """
        try:
            self._begin()
            try:
                if self.lease is not None and not self.lease.permits(self.execute):
                    raise HistoryRefused(IN_USE)
                yield
                self.execute("COMMIT")
            except BaseException:
                with suppress(*self._errors):
                    self.execute("ROLLBACK")
                raise
        except self._errors as error:
            raise DeviceUnavailable(str(error).strip()) from error

    def _begin(self) -> None:
        self.execute(self._beginsToRead if self._isReader else self._begins)

    def version(self) -> int:
        """Version of the history in the database; 0 if there is none."""
        known = _VERSIONS in self.tables()
        return int(self.execute(f"SELECT version FROM {_VERSIONS}")[0][0]) if known else 0

    def setVersion(self, version: int) -> None:
        """Store the version of the history."""
        self.make(_VERSIONS, {"version": int}, ("version",))
        self.execute(f"DELETE FROM {_VERSIONS}")
        self.execute(f"INSERT INTO {_VERSIONS} VALUES (?)", version)

    def tables(self) -> list[str]:
        """Return the names of all tables in the database."""
        return [name for (name,) in self.execute(self._tables)]

    def columns(self, table: str) -> set[str]:
        """Read the names of a table's columns from the database."""
        return {name for (name,) in self.execute(self._columns, table)}

    def size(self) -> int:
        """Return the octets of the whole database on disk, without reading it."""
        return int(self.execute(self._size)[0][0])

    def octets(self, table: str) -> int:
        """Return the octets of a table with its indices on disk."""
        raise NotImplementedError

    def make(self, table: str, columns: Columns, key: Sequence[str], options: str = "") -> None:
        """Create a table with these columns and this primary key, unless it exists."""
        declared = ", ".join(f'"{name}" {_TYPES[kind]}' for name, kind in columns.items())
        primary = f", PRIMARY KEY ({_quoted(key)})"
        self.execute(f"CREATE TABLE IF NOT EXISTS {table} ({declared}{primary}){options}")

    def makeIndex(self, table: str, columns: Sequence[str]) -> None:
        """Create an index of a table, unless it exists."""
        name = "_".join((table, *columns))
        self.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {table} ({_quoted(columns)})")

    def makePeriod(self, series: str, period: str, begin: int, end: int, columns: Columns) -> None:
        """Create the table C{period} of a time series, for times from C{begin} to before C{end}."""
        raise NotImplementedError

    def drop(self, table: str) -> bool:
        """Drop a table; return False if it is in use, and cannot be dropped now."""
        self.execute(f"DROP TABLE {table}")
        return True

    def change(self, table: str, columns: Columns, renamed: Mapping[str, str]) -> None:
        """Add missing columns to a table, and rename old ones; unknown columns remain."""
        known = self.columns(table)
        for old, new in renamed.items():
            if old in known and new not in known:
                self.execute(f'ALTER TABLE {table} RENAME COLUMN "{old}" TO "{new}"')
                known.add(new)
        for name, kind in columns.items():
            if name not in known:
                self.execute(f'ALTER TABLE {table} ADD COLUMN "{name}" {_TYPES[kind]}')

    def source(self, table: str, columns: Columns, renamed: Mapping[str, str]) -> str:
        """
        Return SQL that reads a table as if L{change} had changed it: missing columns have null.

        @return: a table, or a query, in a C{FROM} clause.
        """
        known = self.columns(table)
        if known.issuperset(columns):
            return table
        former = {new: f'"{old}"' for old, new in renamed.items() if old in known}
        missing = {name: former.get(name, f"CAST(NULL AS {_TYPES[kind]})") for name, kind in columns.items()}
        read = (f'"{name}"' if name in known else f'{missing[name]} AS "{name}"' for name in columns)
        return f"(SELECT {', '.join(read)} FROM {table}) AS {table}"

    def put(self, table: str, columns: Columns, rows: Iterable[Sequence[Any]], key: Sequence[str]) -> None:
        """Store rows of values for these columns; each replaces a row with the same key."""
        raise NotImplementedError

    def execute(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        """Execute a statement, with a value for each question mark, and return the rows that it finds."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the database. Idempotent."""
        raise NotImplementedError


def _create(path: str) -> None:
    """
    Create an empty file, unless there is one, without rights for other users: whoever can open it can lock
    it.

    SQLite's other files have its rights. It is opened only if it is new: closing a descriptor would end all
    locks of the process on the file.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660))


class SQLite(Database):
    """
    A database of SQLite in a file.

    Committed transactions survive when the process is killed; after a power failure the last ones may be
    missing, but the file is always consistent.
    """

    # If a damaged schema is not UTF-8, neither is the text of SQLite's error.
    _errors = (sqlite3.Error, UnicodeDecodeError)
    _begins = "BEGIN IMMEDIATE"
    _beginsToRead = "BEGIN"
    _tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    _columns = "SELECT name FROM pragma_table_info(?)"
    _size = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"

    def __init__(self, path: str, lease: Lease | None = None, isReader: bool = False) -> None:
        """
        @raise HistoryRefused: the file is not a database.
        @raise DeviceUnavailable: the file cannot be opened; for a reader, also if there is none.
        """
        super().__init__(lease, isReader)
        self._path: Final = path
        self._connect()

    def _connect(self) -> None:
        """
        Open the file that is at the path now, and create it if there is none, unless it is only read.

        Who opens it read-only leaves a log, which the user of the monitor may be unable to open. Thus that is
        only done if there is a log, which the last one to close it would write to the file otherwise.
        """
        path = self._path
        isInLog = False
        with suppress(FileNotFoundError):
            isInLog = self._isReader and os.stat(f"{path}-wal").st_size > 0
        uri = f"file://{quote(os.fsencode(os.path.abspath(path)))}?mode={'ro' if isInLog else 'rw'}"
        with ExitStack() as undo:
            try:
                if not self._isReader:
                    _create(path)
                self._connection = undo.enter_context(
                    closing(sqlite3.connect(uri, isolation_level=None, check_same_thread=False, uri=True))
                )
                # Other programs may have stored texts that are not UTF-8.
                self._connection.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
                if self._isReader:
                    self._connection.execute("PRAGMA query_only = ON")
                    self._connection.execute("PRAGMA schema_version")  # which fails if it is no database
                else:
                    self._connection.execute("PRAGMA journal_mode = WAL")
                    self._connection.execute("PRAGMA synchronous = NORMAL")
                self._stat = os.stat(path)
            except (OSError, sqlite3.OperationalError) as error:
                raise DeviceUnavailable(str(error)) from error
            except self._errors as error:
                raise HistoryRefused(f"the file is damaged, or of another program: {error}") from error
            undo.pop_all()
        self.connections += 1

    def _begin(self) -> None:
        """Begin a transaction in the file that is at the path now: SQLite would write to a deleted one."""
        if not isInPlace(self._stat, self._path):
            _log.warn("{path} was deleted or replaced; it is opened again", path=self._path)
            former = self._connection  # which is used again if it was only moved away for a while
            self._connect()
            former.close()
        super()._begin()

    def version(self) -> int:
        """Version in the header of the file, or in the table of a history created through SQLAlchemy."""
        ((found,),) = self.execute("PRAGMA user_version")
        return int(found) or super().version()

    def setVersion(self, version: int) -> None:
        self.execute(f"PRAGMA user_version = {version}")
        self.execute(f"DROP TABLE IF EXISTS {_VERSIONS}")

    def octets(self, table: str) -> int:
        """Measure a table by reading it, or estimate it if SQLite was compiled without C{dbstat}."""
        try:
            ((octets,),) = self.execute("SELECT sum(pgsize) FROM dbstat WHERE name = ?", table)
        except sqlite3.OperationalError:
            ((rows,),) = self.execute(f"SELECT count(*) FROM {table}")
            octets = rows * _ROW_OCTETS
        return int(octets or 0)

    def makePeriod(self, series: str, period: str, begin: int, end: int, columns: Columns) -> None:
        """Create a table that is clustered by port and time."""
        self.make(period, columns, _KEY, " WITHOUT ROWID")

    def put(self, table: str, columns: Columns, rows: Iterable[Sequence[Any]], key: Sequence[str]) -> None:
        """Store rows one by one, which is fastest in SQLite."""
        marks = ", ".join("?" * len(columns))
        statement = f"INSERT OR REPLACE INTO {table} ({_quoted(columns)}) VALUES ({marks})"
        self._connection.executemany(statement, rows)

    def execute(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        self._connection.close()


class PostgreSQL(Database):
    """
    Database of PostgreSQL at a URL; time series are partitioned by time.

    The next transaction restores a lost connection.
    """

    _begins = "BEGIN"
    _beginsToRead = "BEGIN READ ONLY"
    _tables = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    _columns = (
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND table_name = ?"
    )
    _size = "SELECT pg_database_size(current_database())"

    def __init__(self, url: str, lease: Lease | None = None, isReader: bool = False) -> None:
        """@raise HistoryRefused: psycopg is not installed, or the URL is invalid."""
        super().__init__(lease, isReader)
        name = {} if lease is None else {"application_name": lease.name}
        waits = {"connect_timeout": _CONNECT_SECONDS, **connectionLimits(_UNREACHABLE_SECONDS)}
        self._settings: Final = {**waits, **_settingsOf(url), **name}
        import psycopg

        self._psycopg: Final = psycopg
        self._errors = (psycopg.Error,)
        self._connection: psycopg.Connection | None = None

    def _connect(self) -> None:
        self._connection = self._psycopg.connect(**self._settings, autocommit=True)
        self.connections += 1

    def _begin(self) -> None:
        if self._connection is not None:
            with suppress(*self._errors):
                super()._begin()
                return
            self.close()
        self._connect()
        super()._begin()

    def octets(self, table: str) -> int:
        return int(self.execute("SELECT pg_total_relation_size(CAST(? AS regclass))", table)[0][0])

    def makePeriod(self, series: str, period: str, begin: int, end: int, columns: Columns) -> None:
        """Create a partition. Tables of version 1 are not partitions: attaching them would read all rows."""
        self.make(series, columns, _KEY, " PARTITION BY RANGE (at)")
        self.makeIndex(series, ("at",))  # BRIN would read what autovacuum has not summarized yet
        # CREATE TABLE ... PARTITION OF would wait until a backup, which has locked all tables, ends.
        self.execute(f"CREATE TABLE {period} (LIKE {series} INCLUDING ALL)")
        span = f"FOR VALUES FROM ({begin:d}) TO ({end:d})"
        self.execute(f"ALTER TABLE {series} ATTACH PARTITION {period} {span}")

    def drop(self, table: str) -> bool:
        self.execute("SAVEPOINT dropping")
        self.execute(f"SET LOCAL lock_timeout = '{_LOCK_MILLISECONDS}ms'")
        try:
            super().drop(table)
        except self._psycopg.errors.LockNotAvailable:
            self.execute("ROLLBACK TO SAVEPOINT dropping")
            return False
        self.execute("SET LOCAL lock_timeout TO DEFAULT")
        return True

    def put(self, table: str, columns: Columns, rows: Iterable[Sequence[Any]], key: Sequence[str]) -> None:
        """Copy rows into a temporary table, and from there into the destination."""
        several = {row[: len(key)]: row for row in rows}  # the key comes first
        if several:
            names, staged = _quoted(columns), f"incoming_{table.rpartition('_')[0] or table}"
            self.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {staged} (LIKE {table})")
            self.execute(f"TRUNCATE {staged}")
            assert self._connection is not None, "this is not within a transaction"
            with self._connection.cursor().copy(f"COPY {staged} ({names}) FROM STDIN".encode()) as copy:
                for row in several.values():
                    copy.write_row(row)
            replaced = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in key)
            self.execute(
                f"INSERT INTO {table} ({names}) SELECT {names} FROM {staged}"
                f" ON CONFLICT ({_quoted(key)}) DO UPDATE SET {replaced}"
            )

    def execute(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        assert self._connection is not None, "this is not within a transaction"
        cursor = self._connection.execute(statement.replace("?", "%s").encode(), values or None)
        return list(cursor.fetchall()) if cursor.description else []

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _settingsOf(url: str) -> dict[str, Any]:
    """Return the parameters of a connection; raise L{HistoryRefused} for an invalid URL, or no psycopg."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise HistoryRefused(f"it needs psycopg ({error}): pip install 'txrdma[postgres]'") from error
    try:
        return dict(conninfo_to_dict(f"postgresql://{url.partition('://')[2]}"))
    except psycopg.Error:
        raise HistoryRefused("it is not a URL of PostgreSQL") from None  # the error may show the password


def _fileOf(where: str) -> str:
    """
    Return the path of a database in a file; C{""} for one of PostgreSQL.

    @param where: path of a file, or a URL: C{postgresql://...} or C{sqlite:///PATH}; the name of a driver
        after C{+} is ignored.
    @raise HistoryRefused: the URL is of another database.
    """
    scheme, isURL, rest = where.partition("://")
    kind = scheme.partition("+")[0]
    if not isURL:
        return where
    if kind not in ("sqlite", "postgresql", "postgres"):
        raise HistoryRefused(f"a history can be in SQLite or PostgreSQL, not in {scheme}")
    return rest.partition("/")[2] if kind == "sqlite" else ""


def absolute(where: str) -> str:
    """Return the path or URL of a database so that it does not depend on the folder of the process."""
    path = _fileOf(where)
    return os.path.abspath(path) if path else where


def openDatabase(where: str, lease: Lease | None = None, isReader: bool = False) -> Database:
    """
    Open the database of a history at a path or URL.

    @param isReader: whether it is only read: it is never written, and transactions do not delay the monitor.
    @raise DeviceUnavailable: it cannot be opened; for a reader, also if there is no such file.
    """
    path = _fileOf(where)
    if path and isReader and not os.path.exists(path):
        raise DeviceUnavailable("there is no such file")
    return SQLite(path, lease, isReader) if path else PostgreSQL(where, lease, isReader)


def leaseOf(where: str) -> Lease:
    """Return the lease of the only writer of a history; an invalid URL raises L{HistoryRefused}."""
    path = _fileOf(where)
    return FileLease(os.path.realpath(path) + _OWNER) if path else RowLease(_settingsOf(where))
