"""
Databases of SQLAlchemy, such as PostgreSQL.

SQLAlchemy is imported only if a configuration requires it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, IO

from txrdma.error import DeviceUnavailable
from txrdma.monitor.series.database import Columns, HistoryRefused, IN_USE, lockFile

try:
    import sqlalchemy
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
except ImportError as error:
    raise HistoryRefused(f"it needs SQLAlchemy ({error}): pip install 'txrdma[postgres]'") from error

_VERSIONS: Final = "history_version"
_KINDS: Final = {
    int: sqlalchemy.BigInteger,
    float: sqlalchemy.Double,
    str: sqlalchemy.Text,
    bytes: sqlalchemy.LargeBinary,
}
_TAKE_LOCK: Final = "SELECT pg_try_advisory_lock(7526476587173962094)"
"""Takes a lock of PostgreSQL's for the connection: the number is ours, and means nothing."""

_INSERTS: Final = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
"""Dialects that can replace a row, with their functions for that."""

_CONNECT_SECONDS: Final = 10
"""Seconds to wait for a connection to PostgreSQL, where the URL has no C{connect_timeout}."""


def _patient(url: str) -> sqlalchemy.URL:
    """
    Parse a URL, and limit the time that libpq waits for a server.

    @raise ArgumentError: the URL is invalid.
    """
    parsed = sqlalchemy.make_url(url)
    isLibpq = parsed.drivername in ("postgresql", "postgresql+psycopg", "postgresql+psycopg2")
    if isLibpq and "connect_timeout" not in parsed.query:
        parsed = parsed.update_query_dict({"connect_timeout": str(_CONNECT_SECONDS)})
    return parsed


class SQLDatabase:
    """A database of SQLAlchemy at a URL. The next transaction restores a lost connection."""

    def __init__(self, url: str) -> None:
        """@raise HistoryRefused: the URL is invalid, or no driver for its database is installed."""
        try:
            self._engine: Final = sqlalchemy.create_engine(_patient(url), pool_pre_ping=True, pool_size=1)
        except (ArgumentError, NoSuchModuleError) as error:
            raise HistoryRefused(str(error)) from error
        except ImportError as error:
            raise HistoryRefused(f"its driver is not installed: {error}") from error
        self.connections = 0
        sqlalchemy.event.listen(self._engine, "connect", self._connected)
        name = self._engine.dialect.name
        if name not in _INSERTS:
            self._engine.dispose()
            raise HistoryRefused(
                f"of {' and '.join(_INSERTS)} it is known how to keep a history, not of {name}"
            )
        self._insert: Final[Any] = _INSERTS[name]  # the two have no type in common
        self._made: dict[str, sqlalchemy.Table] = {}
        self._there: set[str] = set()
        self._connection: sqlalchemy.Connection | None = None
        self._owner: IO[bytes] | None = None

    def _connected(self, connection: object, record: object) -> None:
        self.connections += 1

    @property
    def _current(self) -> sqlalchemy.Connection:
        assert self._connection is not None, "this is not within a transaction"
        return self._connection

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction, which is committed or rolled back at its end."""
        try:
            with self._engine.begin() as self._connection:
                yield
        except SQLAlchemyError as error:
            self._there.clear()  # those that were made in it are not
            cause = getattr(error, "orig", None)
            raise DeviceUnavailable(str(cause or error).strip()) from error
        finally:
            self._connection = None

    def claim(self, version: int) -> None:
        """
        Mark an empty database as a history of this version, or check the mark.

        @raise HistoryRefused: it has another version, or belongs to another application.
        """
        known = self.tables()
        if _VERSIONS not in known and known:
            raise HistoryRefused("it belongs to another application: a history needs its own database")
        self.make(_VERSIONS, {"version": int}, ("version",))
        found = [row[0] for row in self.execute(f"SELECT version FROM {_VERSIONS}")]
        if found and found != [version]:
            raise HistoryRefused(f"it has version {found[0]}, but this monitor needs version {version}")
        if not found:
            self.put(_VERSIONS, [(version,)])

    def lock(self) -> None:
        """
        Take the database's advisory lock; with SQLite, lock a file.

        A restored connection must take the lock again. Nothing is read or written until it has it: another
        monitor may have the lock, or the server may not have noticed yet that the former connection is lost.
        """
        if self._engine.dialect.name == "sqlite":
            self._owner = lockFile(self._engine.url.database or "")
            return
        self._engine.dispose()  # so that the next connection is one that takes the lock

        def connected(connection: Any, record: object) -> None:
            with connection.cursor() as cursor:
                isTaken = cursor.execute(_TAKE_LOCK).fetchone()[0]
            connection.commit()
            if not isTaken:
                connection.close()
                raise HistoryRefused(IN_USE)

        sqlalchemy.event.listen(self._engine, "connect", connected)
        try:
            with self.transaction():
                pass
        except DeviceUnavailable:
            sqlalchemy.event.remove(self._engine, "connect", connected)
            raise

    def tables(self) -> list[str]:
        """Read the names of all tables from the database."""
        return sqlalchemy.inspect(self._current).get_table_names()

    def make(self, table: str, columns: Columns, key: Sequence[str]) -> None:
        """Create a table with these columns, unless it exists."""
        if table not in self._there:
            made = sqlalchemy.Table(
                *(table, sqlalchemy.MetaData()),
                *(
                    sqlalchemy.Column(name, _KINDS[kind], primary_key=name in key, autoincrement=False)
                    for name, kind in columns.items()
                ),
            )
            made.create(self._current, checkfirst=True)
            self._made[table] = made
            self._there.add(table)

    def put(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Store rows; each replaces the one with the same key."""
        made = self._made[table]
        names = [column.name for column in made.columns]
        several = [dict(zip(names, row, strict=True)) for row in rows]
        if several:
            insert = self._insert(made)
            keys = [column.name for column in made.primary_key]
            others = {name: insert.excluded[name] for name in names if name not in keys}
            if others:
                insert = insert.on_conflict_do_update(index_elements=keys, set_=others)
            else:
                insert = insert.on_conflict_do_nothing(index_elements=keys)
            self._current.execute(insert, several)

    def execute(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        """Execute a statement, with a value for each question mark."""
        parts = statement.split("?")
        text = parts[0] + "".join(f":value{at}{part}" for at, part in enumerate(parts[1:]))
        named = {f"value{at}": value for at, value in enumerate(values)}
        found = self._current.execute(sqlalchemy.text(text), named)
        return [tuple(row) for row in found] if found.returns_rows else []

    def close(self) -> None:
        """Close the database. Idempotent."""
        self._engine.dispose()
        if self._owner is not None:
            self._owner.close()
