"""Leases: of a file, and of a row in a simulated database with a clock that jumps."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import deque
from itertools import permutations
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.kit.lease import FileLease, LEASE_SECONDS, processName, RENEW_SECONDS, RowLease


class FileLeaseTests(SynchronousTestCase):
    """The lock of a file."""

    def test_twoProcesses(self) -> None:
        """One process holds the lease; another one reads its name, and gets the lease when it is released."""
        path = self.mktemp()
        first, second = FileLease(path, "first"), FileLease(path, "second")
        self.addCleanup(second.release)
        self.assertEqual((first.attempt(), second.attempt(), first.attempt()), (True, False, True))
        self.assertEqual((first.holder, second.holder), ("first", "first"))
        self.assertEqual((first.permits(self.fail), second.permits(self.fail)), (True, False))
        first.release()
        first.release()
        self.assertFalse(first.permits(self.fail))
        self.assertTrue(second.attempt())
        self.assertFalse(first.attempt())
        self.assertEqual(first.holder, "second")

    def test_otherUsers(self) -> None:
        """Other users cannot open the file, because everyone who can read it can lock it."""
        path = self.mktemp()
        lease = FileLease(path)
        self.addCleanup(os.umask, os.umask(0))
        self.assertTrue(lease.attempt())
        lease.release()
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o660)

    def test_noFolder(self) -> None:
        """If the file cannot be created, C{attempt} raises an exception."""
        self.assertRaises(DeviceUnavailable, FileLease(f"{self.mktemp()}/none/lease").attempt)

    def test_names(self) -> None:
        """Each process has a different name, which PostgreSQL does not truncate."""
        names = {processName() for _ in range(10)}
        self.assertEqual(len(names), 10)
        self.assertLess(max(map(len, names)), 64)


class ReplacedFileTests(SynchronousTestCase):
    def leases(self) -> tuple[str, FileLease, FileLease]:
        """Return a path, and two leases of it, of which the first is held."""
        path: str = self.mktemp()
        first, second = FileLease(path), FileLease(path)
        for lease in (first, second):
            self.addCleanup(lease.release)
        self.assertTrue(first.attempt())
        return path, first, second

    def test_replaced(self) -> None:
        """A lease whose file was deleted is taken again, unless another process has taken it meanwhile."""
        path, first, second = self.leases()
        os.unlink(path)
        self.assertTrue(first.attempt())
        self.assertFalse(second.attempt())
        os.unlink(path)
        self.assertTrue(second.attempt())
        self.assertFalse(first.attempt())
        self.assertEqual((first.isHeld, second.isHeld, first.holder), (False, True, second.name))

    def test_replacedByUnavailableFile(self) -> None:
        """A lease whose file was replaced is lost, although the process cannot open the file there now."""
        path, first, second = self.leases()
        os.unlink(path)
        self.assertTrue(second.attempt())
        refused = OSError(errno.EMFILE, "simulated")
        with patch.object(os, "open", Mock(side_effect=refused)):
            self.assertRaises(DeviceUnavailable, first.attempt)
        self.assertEqual((first.permits(self.fail), second.permits(self.fail)), (False, True))


class SimulatedRow(RowLease):
    """A row of SQLite, where transactions of several connections exclude each other."""

    _now = "now_seconds()"
    _lockRow = ""
    _ends = ""

    def __init__(self, name: str, connect: Any) -> None:
        super().__init__({}, name)
        self.connectBy = connect

    def _connect(self) -> Any:
        return self.connectBy()

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        return list(self._connection.execute(statement, values))


class State(NamedTuple):
    """
    State of a row and two processes, relative to the clock and the token of the row.

    @ivar expires: seconds until the lease expires; C{holder}: name in the row.
    @ivar tokens: tokens of the processes, minus that of the row; None for a process without one.
    """

    expires: float
    holder: str
    tokens: tuple[int | None, ...]


class RowLeaseTests(SynchronousTestCase):
    """A row in a database, with two processes that are suspended or killed, and a clock that jumps."""

    NAMES = ("a", "b")
    JUMPS = (RENEW_SECONDS, LEASE_SECONDS - RENEW_SECONDS, LEASE_SECONDS, 3600.0, -2.0, -3600.0)
    BASE = 1000
    within: tuple[float, ...] = ()
    """Seconds within which the holder is replaced, chosen by each process; by default those of a lease."""

    def setUp(self) -> None:
        self.now = 1e6
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        self.addCleanup(self.database.close)
        self.database.create_function("now_seconds", 0, lambda: self.now)
        self.leases = [SimulatedRow(name, lambda: self.database) for name in self.NAMES]
        for lease, seconds in zip(self.leases, self.within, strict=False):
            lease.replaceWithin(seconds)

    def execute(self, statement: str, *values: Any) -> list[Any]:
        return list(self.database.execute(statement, values))

    def test_renewed(self) -> None:
        """A lease is held while it is renewed; after it has expired, another process gets it."""
        first, second = self.leases
        self.assertTrue(first.attempt())
        for _ in range(20):
            self.now += RENEW_SECONDS
            self.assertEqual((first.attempt(), second.attempt()), (True, False))
        self.assertEqual((second.holder, first.token), ("a", 1))
        self.now += LEASE_SECONDS
        self.assertTrue(first.permits(self.execute))  # no other process holds it
        self.assertTrue(second.attempt())
        self.assertEqual(second.token, 2)
        self.assertFalse(first.permits(self.execute))
        self.assertEqual((first.attempt(), first.isHeld, first.attempt()), (False, False, False))
        self.assertEqual(first.holder, "b")

    def test_released(self) -> None:
        """A released lease is available immediately; its former holder is not permitted to write."""
        first, second = self.leases
        first.attempt()
        self.patch(first, "_close", lambda: None)  # the processes of this test share a connection
        first.release()
        self.assertTrue(second.attempt())
        self.assertFalse(first.permits(self.execute))

    def test_unreachable(self) -> None:
        """While the database is unreachable the lease is unknown; afterwards it is renewed."""
        first, _second = self.leases
        first.attempt()
        first._connection = None
        connect = first.connectBy
        first.connectBy = Mock(side_effect=OSError("it is away"))
        self.assertRaises(DeviceUnavailable, first.attempt)
        self.assertTrue(first.isHeld)
        first.connectBy = connect
        self.assertTrue(first.attempt())
        self.assertEqual(first.token, 1)

    def restored(self, state: State) -> None:
        """Set the row and the processes to a state."""
        self.now = 1e6
        values = self.BASE, state.holder, self.now + state.expires
        self.execute("UPDATE lease SET token = ?, holder = ?, expires = ?", *values)
        for lease, token in zip(self.leases, state.tokens, strict=True):
            lease.token = 0 if token is None else self.BASE + token
            lease.isHeld = bool(lease.token)

    def stored(self) -> State:
        ((token, holder, expires),) = self.execute("SELECT token, holder, expires FROM lease")
        tokens = (max(lease.token - token, -2) if lease.token else None for lease in self.leases)
        left = min(max(expires - self.now, -3.0), LEASE_SECONDS + 3.0)  # larger values are equivalent
        return State(left, holder, tuple(tokens))

    def explored(self) -> set[State]:
        """Return all states that two processes reach by attempts, suspensions, restarts and clock jumps."""
        self.leases[0].attempt()
        first = self.stored()
        known, waiting = {first}, deque([first])

        def jump(seconds: float) -> None:
            self.now += seconds

        def killed(index: int) -> None:
            self.leases[index].token = 0

        actions: list[tuple[Any, Any]] = [(jump, seconds) for seconds in self.JUMPS]
        actions += [(lambda index: self.leases[index].attempt(), index) for index in range(2)]
        actions += [(killed, index) for index in range(2)]
        while waiting:
            state = waiting.popleft()
            for act, argument in actions:
                self.restored(state)
                act(argument)
                after = self.stored()
                if after not in known:
                    known.add(after)
                    waiting.append(after)
        return known

    def test_everyState(self) -> None:
        """In all states at most one process, with the current token, may write; a single one may soon."""
        states = self.explored()
        self.assertGreater(len(states), 100)
        for state in states:
            self.restored(state)
            permitted = [lease for lease in self.leases if lease.permits(self.execute)]
            self.assertEqual([lease.token for lease in permitted], [self.BASE] * len(permitted))
            self.assertLessEqual(len(permitted), 1)
            for running, suspended in permutations(range(2)):
                self.restored(state)
                waited = 0.0
                while not self.leases[running].attempt():
                    self.now += RENEW_SECONDS
                    waited += RENEW_SECONDS
                    self.assertLessEqual(waited, LEASE_SECONDS + RENEW_SECONDS, state)
                self.assertTrue(self.leases[running].permits(self.execute))
                self.assertFalse(self.leases[suspended].permits(self.execute))


class ShortRowLeaseTests(RowLeaseTests):
    """Two processes with short leases."""

    within = (2.0, 2.0)
    JUMPS = (0.25, 1.0, 2.0, 3600.0, -2.0, -3600.0)

    def test_renewed(self) -> None:
        """A short lease is held while it is renewed, and replaced in time when it is not."""
        first, second = self.leases
        self.assertTrue(first.attempt())
        for _ in range(20):
            self.now += first.renewSeconds
            self.assertEqual((first.attempt(), second.attempt()), (True, False))
        at = self.now
        while not second.attempt():
            self.now += second.renewSeconds
        self.assertLess(self.now - at, 2.0)

    def test_durations(self) -> None:
        """The duration has a minimum and a maximum, and permits some renewals."""
        (lease, _other), file = self.leases, FileLease("")
        for within, seconds in ((0.1, 1.0), (1.5, 1.0), (3.0, 2.0), (60.0, LEASE_SECONDS)):
            for one in (lease, file):
                one.replaceWithin(within)
            self.assertAlmostEqual(lease.seconds, seconds)
            self.assertAlmostEqual(lease.renewSeconds, seconds / 5)
            self.assertEqual((file.seconds, file.renewSeconds), (0.0, lease.renewSeconds))


class MixedRowLeaseTests(RowLeaseTests):
    """Two processes with different durations, as while their configuration is changed."""

    within = (60.0, 2.0)
