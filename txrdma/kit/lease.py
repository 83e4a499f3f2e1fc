"""
Leases: the right of one process among several to do something, such as to write to a database.

A lease in a file is a lock of the kernel: it ends with the process, and is valid on one host.
A lease in PostgreSQL is a row that expires by the clock of the server unless it is renewed, so that it ends
with a process that is suspended or cannot reach the server, too. Each time it is taken, it gets another
number, the fencing token. The holder's transactions check the token (L{Lease.permits}), which locks it until
they end: a process that has lost the lease without knowing it changes nothing.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, ExitStack, suppress
from threading import Lock
from typing import Any, Final, IO

from txrdma.error import DeviceUnavailable

LEASE_SECONDS: Final = 5.0
"""Seconds for which a lease in a database is held after it was taken or renewed, at most and by default."""

RENEW_SECONDS: Final = 1.0
"""Seconds between attempts to take or renew a lease, at most and by default."""

_LEAST_SECONDS: Final = 1.0
"""Least duration of a lease: the holder must renew it in time on a busy host."""

_SHARE: Final = 2 / 3
"""Duration of a lease, as a part of the time in which its holder is replaced, renewals included."""

LEASE_TABLE: Final = "lease"
"""Table of a L{RowLease}."""

_MOST_NAME: Final = 63
"""Octets of C{application_name} that PostgreSQL retains."""

_MOST_HOST: Final = 40
_WAIT_SECONDS: Final = 3
"""Seconds to wait for an unreachable server, or for the end of a transaction of the former holder."""


def connectionLimits(seconds: int) -> dict[str, int]:
    """
    Return the parameters of a PostgreSQL connection that ends this long after its server is unreachable.

    Without them, the wait for an answer ends after two hours if the server's host dies meanwhile.
    """
    probes = 3
    keepalives = {"keepalives_idle": seconds, "keepalives_interval": max(1, seconds // probes)}
    return {"tcp_user_timeout": seconds * 1000, **keepalives, "keepalives_count": probes}


Execute = Callable[..., Any]
"""Executes a statement in a transaction, with a value for each question mark, and returns its rows."""


def processName() -> str:
    """Return a unique name of this process: the name of the host, and a random number."""
    host = socket.gethostname().encode("ascii", "replace").decode()[:_MOST_HOST]
    return f"{host}-{secrets.token_hex(4)}"


class Lease:
    """
    A lease that this process may take. Its methods block, and may be called in any thread.

    @ivar name: name of this process.
    @ivar holder: name of the process that held the lease at the last attempt; C{""} for none.
    @ivar isHeld: whether this process held it at the last attempt.
    @ivar seconds: time after which the lease of a process that is killed ends; 0 if it ends at once.
    @ivar renewSeconds: time between attempts.
    """

    seconds = 0.0
    renewSeconds = RENEW_SECONDS

    def __init__(self, name: str = "") -> None:
        self.name = name or processName()
        self.holder = ""
        self.isHeld = False
        self._lock = Lock()

    def replaceWithin(self, seconds: float) -> None:
        """
        Choose the duration of the lease, so that a process that is killed is replaced within a time.

        It applies from the next attempt on. Processes that share a lease may choose different ones.
        """
        share = min(1.0, max(_LEAST_SECONDS, seconds * _SHARE) / LEASE_SECONDS)
        self.renewSeconds = share * RENEW_SECONDS
        if self.seconds:
            self.seconds = share * LEASE_SECONDS

    def attempt(self) -> bool:
        """
        Take the lease, or renew it.

        @return: False if another process holds it; a lost lease is taken again by the next call at the
            earliest.
        @raise DeviceUnavailable: nothing is known about the lease at present.
        """
        with self._lock:
            self.isHeld = self._attempt()
            return self.isHeld

    def _attempt(self) -> bool:
        raise NotImplementedError

    def permits(self, execute: Execute) -> bool:
        """
        Return whether this process holds the lease, until the end of a transaction.

        @param execute: executes a statement in a transaction of the database that contains the lease.
        """
        return self.isHeld

    def release(self) -> None:
        """End the lease, if this process holds it. Idempotent."""
        with self._lock:
            self.isHeld = False
            self._release()

    def _release(self) -> None:
        raise NotImplementedError


def _openForGroup(path: str, flags: int) -> int:
    """Open a file, which is created without rights for other users: whoever can open a file can lock it."""
    return os.open(path, flags, 0o660)


def isInPlace(opened: os.stat_result, path: str) -> bool:
    """Return whether a path still leads to a file that was opened, and not to another one or to none."""
    try:
        return os.path.samestat(opened, os.stat(path))
    except FileNotFoundError:
        return False
    except OSError:
        return True


class FileLease(Lease):
    """A lease among the processes of a host: the lock of a file, which contains the name of the holder."""

    def __init__(self, path: str, name: str = "") -> None:
        super().__init__(name)
        self._path: Final = path
        self._file: IO[bytes] | None = None

    def _attempt(self) -> bool:
        if self._file is not None:
            if isInPlace(os.fstat(self._file.fileno()), self._path):
                return True
            file, self._file = self._file, None  # others lock the file that is there now
            file.close()
            self.isHeld = False  # also if that file cannot be opened
        try:
            with ExitStack() as undo:
                file = undo.enter_context(open(self._path, "a+b", opener=_openForGroup))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    file.seek(0)
                    self.holder = file.read(_MOST_NAME).decode("ascii", "replace")
                    return False
                with suppress(OSError):  # the disk is full: the lock is what counts
                    file.truncate(0)
                    file.write(self.name.encode())
                    file.flush()
                undo.pop_all()
        except OSError as error:
            raise DeviceUnavailable(str(error)) from error
        self._file, self.holder = file, self.name
        return True

    def _release(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.truncate(0)
            with suppress(OSError):  # what could not be written, as the disk is full, is written at the end
                self._file.close()
            self._file = None


class RowLease(Lease):
    """
    A lease among the processes that use a PostgreSQL database: a row of the table C{lease}.

    It has a connection of its own, so that long transactions of the holder do not delay its renewal.

    @ivar token: fencing token; 0 if this process does not hold the lease.
    """

    seconds = LEASE_SECONDS
    _now = "extract(epoch FROM clock_timestamp())"
    _lockRow = " FOR KEY SHARE"  # excludes another token, but not the renewal
    _ends: str = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity, lease"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND application_name = holder AND holder <> '' AND {expired}"
    )
    """Ends connections of the former holder, of which one may be suspended in a transaction."""

    def __init__(self, settings: dict[str, Any], name: str = "") -> None:
        """
        @param settings: parameters of the connection, as for C{psycopg.connect}. The holder's transactions
            need connections with C{application_name} set to L{Lease.name}.
        """
        super().__init__(name)
        self.token = 0
        self._settings: Final = settings
        self._connection: Any = None

    def _connect(self) -> Any:
        import psycopg

        waits = {"connect_timeout": _WAIT_SECONDS, **connectionLimits(_WAIT_SECONDS)}
        settings = {**waits, **self._settings, "application_name": self.name}
        connection = psycopg.connect(**settings, autocommit=True)
        connection.execute(f"SET lock_timeout = '{_WAIT_SECONDS}s'")
        return connection

    @contextmanager
    def _connected(self) -> Generator[None, None, None]:
        """Connect if necessary; an error ends the connection, and the next attempt makes another one."""
        try:
            if self._connection is None:
                self._connection = self._connect()
                columns = "id int PRIMARY KEY, token bigint UNIQUE, holder text, expires double precision"
                self._execute(f"CREATE TABLE IF NOT EXISTS {LEASE_TABLE} ({columns})")
                self._execute(f"INSERT INTO {LEASE_TABLE} VALUES (1, 0, '', 0) ON CONFLICT DO NOTHING")
            yield
        except Exception as error:
            self._close()
            raise DeviceUnavailable(str(error).strip()) from error

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        cursor = self._connection.execute(statement.replace("?", "%s").encode(), values or None)
        return list(cursor.fetchall()) if cursor.description else []

    def _attempt(self) -> bool:
        with self._connected():
            if self.token:
                statement = f"UPDATE lease SET expires = {self._now} + ? WHERE token = ? RETURNING token"
                if not self._execute(statement, self.seconds, self.token):
                    self.token = 0
            else:
                self._take()
        return bool(self.token)

    def _take(self) -> None:
        """Take the lease if it has expired, or ends later than possible: the clock was set back."""
        expired = f"(expires <= {self._now} OR expires > {self._now} + {LEASE_SECONDS})"
        if self._ends:
            self._execute(self._ends.format(expired=expired))
        taken = self._execute(
            f"UPDATE lease SET token = token + 1, holder = ?, expires = {self._now} + ?"
            f" WHERE {expired} RETURNING token",
            *(self.name, self.seconds),
        )
        if taken:
            self.token, self.holder = int(taken[0][0]), self.name
        else:
            self.holder = str(self._execute("SELECT holder FROM lease")[0][0])

    def permits(self, execute: Execute) -> bool:
        """Check the token, which another process cannot change before the end of the transaction."""
        token = self.token
        return bool(token and execute(f"SELECT id FROM lease WHERE token = ?{self._lockRow}", token))

    def _release(self) -> None:
        token, self.token = self.token, 0
        if self._connection is not None:
            if token:
                with suppress(DeviceUnavailable), self._connected():
                    self._execute("UPDATE lease SET expires = 0, holder = '' WHERE token = ?", token)
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()
