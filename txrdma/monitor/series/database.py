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
    """The database is another monitor's, or no history of this version: to wait for it changes nothing."""


Columns = Mapping[str, type]
"""Columns of a table: C{int} of 64 bits, C{float}, C{str} or C{bytes}, by their names."""


class Database(Protocol):
    """
    Database of one history. Everything blocks; everything but C{close} is done in a transaction.

    @ivar connections: number of connections so far: another monitor may have written between two of them.
    """

    connections: int

    def transaction(self) -> AbstractContextManager[None]:
        """
        Transaction: all of it is done, or nothing.

        @raise DeviceUnavailable: the database is gone, cannot be written, or its disk is full.
        """

    def claim(self, version: int) -> None:
        """
        Mark a new database as a history of this version; one that is marked is not written.

        @raise HistoryRefused: it has another version, or is a database of something else.
        """

    def own(self) -> None:
        """
        Keep other monitors out, until the database is closed or this process ends. Not in a transaction.

        @raise HistoryRefused: there is another one already.
        """

    def tables(self) -> list[str]:
        """Names of all tables in the database."""

    def make(self, table: str, columns: Columns, key: Sequence[str]) -> None:
        """Create a table, unless it exists, whose primary key has the columns of the key."""

    def put(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Store rows of a table that was made; each takes the place of one with the same key."""

    def execute(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        """Execute a statement, with a value for each question mark; return the rows that it finds."""

    def close(self) -> None:
        """Close the database. Twice is fine."""


IN_USE: Final = "another monitor keeps its history there"

_OWNER: Final = "-owner"
"""End of the name of the file that is locked: to lock the database itself would end SQLite's own locks."""


def ownFile(path: str) -> IO[bytes]:
    """
    Keep other monitors away from a file, until what is returned is closed.

    @raise HistoryRefused: there is another one already.
    @raise DeviceUnavailable: no file can be made beside that one.
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
    Database of SQLite in a file.

    A transaction that was committed is there after the process is killed; after a power failure the last ones
    may be missing. The file is never torn.
    """

    def __init__(self, path: str) -> None:
        """
        @raise HistoryRefused: the file is no database.
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
        """Mark a new database as a history of this version, or find that it is one."""
        ((found,),) = self.execute("PRAGMA user_version")
        if found not in (0, version):
            raise HistoryRefused(f"it has version {found}, and version {version} is known here")
        if not found and self.tables():
            raise HistoryRefused("it is a database of something else")
        if not found:
            self.execute(f"PRAGMA user_version = {version}")

    def own(self) -> None:
        """Lock a file beside the database."""
        self._owner = ownFile(self._path)

    def tables(self) -> list[str]:
        """Read the names of all tables from the database."""
        return [name for (name,) in self.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]

    def make(self, table: str, columns: Columns, key: Sequence[str]) -> None:
        """Make a table with these columns, unless it is there."""
        names = ", ".join(f'"{name}"' for name in columns)  # SQLite's values have types, columns need none
        of = ", ".join(f'"{name}"' for name in key)
        self.execute(f"CREATE TABLE IF NOT EXISTS {table} ({names}, PRIMARY KEY ({of})) WITHOUT ROWID")

    def put(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Store rows in the place of those with the same keys."""
        several = list(rows)
        if several:
            marks = ", ".join("?" * len(several[0]))
            self._connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", several)

    def execute(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        """Execute a statement, with a value for each question mark."""
        return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        """Close the database. Twice is fine."""
        self._connection.close()
        if self._owner is not None:
            self._owner.close()
