"""
Databases that store the history: the interface used by L{txrdma.monitor.series.historystore}, and SQLite.

Statements use what SQLite and PostgreSQL have in common; column names are in double quotes, since PostgreSQL
folds other names to lower case.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, ExitStack
from typing import Any, Final, IO, Protocol

from txrdma.error import DeviceUnavailable


class HistoryRefused(DeviceUnavailable):
    """The database is used by another monitor, or is not a history of this version: waiting does not help."""


Columns = Mapping[str, type]
"""Columns of a table: C{int} of 64 bits, C{float}, C{str} or C{bytes}, by their names."""


class Database(Protocol):
    """
    The database of one history. All calls block, and all except C{close} belong in a transaction.

    @ivar connections: number of connections so far; another monitor may have written between two of them.
    """

    connections: int

    def transaction(self) -> AbstractContextManager[None]:
        """
        A transaction: all statements take effect, or none.

        @raise DeviceUnavailable: the database cannot be reached or written, or its disk is full.
        """

    def claim(self, version: int) -> None:
        """
        Mark an empty database as a history of this version; a marked one is only checked.

        @raise HistoryRefused: it has another version, or belongs to another application.
        """

    def lock(self) -> None:
        """
        Lock the database against other monitors, until it is closed or this process ends. Not in a
        transaction.

        @raise HistoryRefused: another monitor has locked it.
        """

    def tables(self) -> list[str]:
        """Return the names of all tables in the database."""

    def make(self, table: str, columns: Columns, key: Sequence[str]) -> None:
        """Create a table with these columns and this primary key, unless it exists."""

    def put(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Store rows of a table; each replaces the one with the same key."""

    def execute(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        """Execute a statement, with a value for each question mark, and return the rows that it finds."""

    def close(self) -> None:
        """Close the database. Idempotent."""


IN_USE: Final = "another monitor keeps its history there"

_OWNER: Final = "-owner"
"""End of the name of the file that is locked: to lock the database itself would end SQLite's own locks."""


def lockFile(path: str) -> IO[bytes]:
    """
    Lock a file against other monitors, until the returned object is closed.

    @raise HistoryRefused: another monitor has locked it.
    @raise DeviceUnavailable: the lock file beside it cannot be created.
    """
    try:
        owner = open(os.path.realpath(path) + _OWNER, "ab")  # it is closed with the database
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner.close()
            raise
    except BlockingIOError as error:
        raise HistoryRefused(IN_USE) from error
    except OSError as error:
        raise DeviceUnavailable(str(error)) from error
    return owner


class SQLite:
    """
    A database of SQLite in a file.

    Committed transactions survive when the process is killed; after a power failure the last ones may be
    missing, but the file is always consistent.
    """

    def __init__(self, path: str) -> None:
        """
        @raise HistoryRefused: the file is not a database.
        @raise DeviceUnavailable: the file cannot be opened.
        """
        self.connections = 1
        self._path: Final = path
        self._owner: IO[bytes] | None = None
        with ExitStack() as undo:
            try:
                self._connection: Final = undo.enter_context(
                    closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
                )
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
            except sqlite3.OperationalError as error:
                raise DeviceUnavailable(str(error)) from error
            except sqlite3.Error as error:
                raise HistoryRefused(str(error)) from error
            undo.pop_all()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction, which is committed or rolled back at its end."""
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
        except sqlite3.Error as error:
            raise DeviceUnavailable(str(error)) from error

    def claim(self, version: int) -> None:
        """
        Mark an empty database as a history of this version, or check the mark.

        @raise HistoryRefused: it has another version, or belongs to another application.
        """
        ((found,),) = self.execute("PRAGMA user_version")
        if found not in (0, version):
            raise HistoryRefused(f"it has version {found}, but this monitor needs version {version}")
        if not found and self.tables():
            raise HistoryRefused("it belongs to another application")
        if not found:
            self.execute(f"PRAGMA user_version = {version}")

    def lock(self) -> None:
        """Lock a file beside the database."""
        self._owner = lockFile(self._path)

    def tables(self) -> list[str]:
        """Read the names of all tables from the database."""
        return [name for (name,) in self.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]

    def make(self, table: str, columns: Columns, key: Sequence[str]) -> None:
        """Create a table with these columns, unless it exists."""
        names = ", ".join(f'"{name}"' for name in columns)  # SQLite's values have types, columns need none
        of = ", ".join(f'"{name}"' for name in key)
        self.execute(f"CREATE TABLE IF NOT EXISTS {table} ({names}, PRIMARY KEY ({of})) WITHOUT ROWID")

    def put(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Store rows; each replaces the one with the same key."""
        several = list(rows)
        if several:
            marks = ", ".join("?" * len(several[0]))
            self._connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", several)

    def execute(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        """Execute a statement, with a value for each question mark."""
        return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        """Close the database. Idempotent."""
        self._connection.close()
        if self._owner is not None:
            self._owner.close()
