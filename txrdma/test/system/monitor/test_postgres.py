"""A history in PostgreSQL: the contract of stores on a real server, and lost connections."""

from __future__ import annotations

import subprocess
import time
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any, Final

from twisted.trial.unittest import TestCase

from txrdma.error import DeviceUnavailable
from txrdma.kit.lease import Lease, RowLease
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.series.database import HistoryRefused, leaseOf
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.test.support.monitor import storecontract
from txrdma.test.support.monitor.postgres import Postgres, programs, sharedServer, why
from txrdma.test.support.monitor.service import attachedLater
from txrdma.test.support.monitor.storecontract import OTHER, PORT, reading, SHORT
from txrdma.test.unit.monitor import test_history_reader, test_past

SEED: Final = 29
KILLS: Final = 8
INTERVAL: Final = 2.0
PATIENCE_SECONDS: Final = 60.0


def newURL() -> str:
    """Return the URL of a new database of the shared server."""
    return sharedServer().newURL()


class ReaderTests(test_history_reader.DatabaseReaderTests):
    """The contract of readers on a PostgreSQL database."""

    if why():
        skip = why()

    def where(self) -> str:
        return newURL()


class PastTests(test_past.PastTests):
    """Earlier topologies, and their differences, from a PostgreSQL database."""

    slowBecause = "writes thousands of events into a PostgreSQL server"

    if why():
        skip = why()

    def where(self) -> str:
        return newURL()


class MonitorTests(TestCase):
    slowBecause = "a monitor waits for a PostgreSQL server"

    if why():
        skip = why()

    async def test_later(self) -> None:
        """A monitor starts before the server of its history, and attaches it later."""
        folder, name = str(sharedServer().folder), newURL().partition("@/")[2].partition("?")[0]
        with TemporaryDirectory() as temporary:  # names of sockets are short
            link = Path(temporary) / "server"
            url = f"postgresql+psycopg://txrdma@/{name}?host={link}"
            await attachedLater(url, partial(link.symlink_to, folder))


class PostgresTests(storecontract.StoreContract):
    slowBecause = "writes weeks of readings into a PostgreSQL server"

    if why():
        skip = why()

    def where(self) -> str:
        return newURL()

    def connected(self) -> Any:
        """Connect to the database, independently of the history."""
        import psycopg

        return psycopg.connect(self.path.replace("+psycopg", ""))

    def load(self, version: int) -> None:
        with self.connected() as connection:
            connection.execute(self.statements(f"version{version}.postgresql.sql").encode())

    def test_partitions(self) -> None:
        """Each level is one table, partitioned by time, also in a history that version 1 has begun."""
        for isOlder in (False, True):
            self.path = self.where()
            if isOlder:
                self.load(1)
            store = self.opened()
            store.write([reading(at, 1) for at in range(5400, 6600, 10)], 6700)
            with self.connected() as connection:
                found = connection.execute(
                    "SELECT count(*), count(DISTINCT tableoid) FROM readings"
                ).fetchall()
            self.assertEqual(found, [(120, 2)])
            store.close()

    def test_rollUp(self) -> None:
        """The sums of an hour read the rows of that hour, not those of the day."""
        ports = [(PORT[0], number) for number in range(50)]
        for begin in range(0, 86400, 3600):
            rows = [reading(at, 1, portKey=port) for at in range(begin, begin + 3600, 60) for port in ports]
            self.store.write(rows, begin + 3600)
        executed: list[tuple[Any, ...]] = []
        execute = self.store._database.execute

        def recorded(*words: Any) -> Any:
            executed.append(words)
            return execute(*words)

        self.patch(self.store._database, "execute", recorded)
        self.store.write([], 90_000)
        statement, *values = next(one for one in executed if one[0].startswith("INSERT INTO hours_"))
        with self.connected() as connection:
            connection.execute("ANALYZE minutes_0")
            explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.replace('?', '%s')}"
            ((plans,),) = connection.execute(explained.encode(), values).fetchall()
        read, nodes = [], [plans[0]["Plan"]]
        for node in nodes:
            nodes += node.get("Plans", [])
            if node.get("Relation Name") == "minutes_0":
                read.append(node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        self.assertEqual(read, [60 * len(ports)])

    def test_again(self) -> None:
        """A history can be opened again; two histories need two databases."""
        self.store.write([reading(600, 1)], 601)
        other = self.opened()
        self.assertEqual(
            other.series((reading(0, 0).portKey), "portXmitData", 0, 999, "readings")[0].grown, 1
        )

    def test_failover(self) -> None:
        """A monitor that has lost its expired lease to another one writes only when it has it again."""
        first = self.opened(isOwner=True)
        first.write([reading(600, 1)], 601)
        self.assertRaises(DeviceUnavailable, self.opened, isOwner=True)
        other = self.opened(lease=self.expired())
        for _ in range(2):
            self.assertRaises(DeviceUnavailable, first.write, [reading(650, 2)], 651)
        other.write([reading(660, 3, portKey=OTHER)], 661)
        other.close()
        first.close()
        self.store = self.opened(isOwner=True)
        self.store.write([reading(670, 4)], 671)
        self.assertEqual(self.sent(0, 999, "readings"), [(600, 1), (670, 4)])
        self.assertEqual(self.sent(0, 999, "readings", OTHER), [(660, 3)])

    def expired(self) -> Lease:
        """Return a lease that replaces an expired one."""
        with self.connected() as connection:
            connection.execute("UPDATE lease SET expires = 1")
        lease = leaseOf(self.path)
        self.assertTrue(lease.attempt())
        return lease

    def test_shortInterval(self) -> None:
        """
        A lease for a short interval ends by the clock of the server before the interval is over. Then another
        monitor takes it, not before, and the former holder does not write; a longer one is respected.
        """
        lease, other = leaseOf(self.path), leaseOf(self.path)
        self.addCleanup(other.release)
        store = self.opened(lease=lease)
        other.replaceWithin(INTERVAL)
        self.assertFalse(other.attempt())
        self.assertGreater(self.leftSeconds(), INTERVAL)
        lease.replaceWithin(INTERVAL)
        self.assertTrue(lease.attempt())
        self.assertLessEqual(self.leftSeconds() + other.renewSeconds, INTERVAL)
        while not other.attempt():
            self.assertGreater(self.leftSeconds(), -PATIENCE_SECONDS)
            time.sleep(other.renewSeconds)
        self.assertRaises(HistoryRefused, store.append, [self.event(600.0, "node-gone", "x")])
        self.assertRaises(DeviceUnavailable, lease.attempt)  # its connections were ended
        self.assertEqual([lease.attempt(), other.attempt()], [False, True])

    def leftSeconds(self) -> float:
        """Return the seconds until the lease expires, by the clock of the server."""
        left = "SELECT expires - extract(epoch FROM clock_timestamp()) FROM lease"
        with self.connected() as connection:
            return float(connection.execute(left).fetchone()[0])

    def test_suspended(self) -> None:
        """A monitor suspended in a transaction loses its lease, and the transaction has no effect."""
        first = self.opened(isOwner=True)
        with self.assertRaises(DeviceUnavailable), first._transaction():
            first._insert([reading(600, 1)])
            self.store = self.opened(lease=self.expired())
        self.store.write([reading(610, 2)], 611)
        self.assertRaises(DeviceUnavailable, first.write, [reading(620, 3)], 621)
        self.assertEqual(self.sent(0, 999, "readings"), [(610, 2)])

    def test_longTransaction(self) -> None:
        """A lease is renewed while a transaction of its holder takes longer than the lease."""
        lease = leaseOf(self.path)
        assert isinstance(lease, RowLease)
        self.store = self.opened(lease=lease)
        other = leaseOf(self.path)
        self.addCleanup(other.release)
        with self.store._transaction():
            self.store._insert([reading(600, 1)])
            self.assertTrue(lease.attempt())
            self.assertFalse(other.attempt())
            self.assertEqual(other.holder, lease.name)
        self.assertEqual(self.sent(0, 999, "readings"), [(600, 1)])

    def test_backup(self) -> None:
        """While a backup reads all tables, which pg_dump locks, readings are stored in new ones."""
        with self.connected() as connection:
            name = self.path.partition("@/")[2].partition("?")[0]
            connection.execute(f"ALTER DATABASE {name} SET lock_timeout = '5s'".encode())
        self.reopen(*SHORT)
        self.store.write([reading(at, 1) for at in range(0, 180, 10)], 180)
        dumping = self.connected()
        self.addCleanup(dumping.close)
        dumping.execute("SELECT * FROM events, ports")
        for table in ("readings", "minutes", "readings_0"):
            dumping.execute(f"SELECT * FROM {table}".encode())
        for at in range(180, 1200, 60):
            self.store.write([reading(second, 1) for second in range(at, at + 60, 10)], at + 60)
        found = self.sent(0, 1200, "readings")
        self.assertEqual((found[0][0], found[-1][0]), (0, 1190))
        dumping.commit()
        self.store.write([], 1200)
        found = self.sent(0, 1200, "readings")
        self.assertEqual((found[0][0], found[-1][0]), (840, 1190))

    def test_restored(self) -> None:
        """What pg_dump saves while the history is written fills an empty database, and is continued there."""
        first = self.opened(isOwner=True)
        first.write([reading(600, 1)], 601, [FabricEvent(600.0, "node-gone", "leaf 1", "it is gone")])
        dump = str(Path(self.mktemp()).absolute())
        self.spawn("pg_dump", "-Fc", "-f", dump, self.path)
        first.write([reading(650, 2)], 651, [FabricEvent(650.0, "node-came", "leaf 1", "it is there")])
        self.path = self.where()
        self.spawn("pg_restore", "-d", self.path, dump)
        self.store = self.opened(lease=self.expired())
        self.store.write([reading(660, 3)], 661)
        self.assertEqual(self.sent(0, 999, "readings"), [(600, 1), (660, 3)])
        self.assertEqual([one.text for one in self.store.changes()], ["it is gone"])

    def spawn(self, program: str, *words: str) -> None:
        """Run a program of PostgreSQL with URLs of databases."""
        folder = programs()
        assert folder is not None
        command = [str(folder / program), *(word.replace("+psycopg", "") for word in words)]
        subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)

    def test_connectionLost(self) -> None:
        """If the connection is lost, the lease remains, and a batch is written completely or not at all."""
        self.store = self.opened(isOwner=True)
        self.store.write([reading(600, 1)], 601)
        self.ended()
        self.assertRaises(DeviceUnavailable, self.opened, isOwner=True)
        try:
            self.store.write([reading(650, 2)], 651)
        except DeviceUnavailable:
            self.store.write([reading(650, 2)], 651)
        self.assertEqual(self.sent(0, 999, "readings"), [(600, 1), (650, 2)])

    def test_later(self) -> None:
        """A server that starts later is used as soon as it runs."""
        folder, name = str(sharedServer().folder), self.path.partition("@/")[2].partition("?")[0]
        temporary = TemporaryDirectory()  # names of sockets are short
        self.addCleanup(temporary.cleanup)
        link = Path(temporary.name) / "server"
        url = f"postgresql+psycopg://txrdma@/{name}?host={link}"
        store = HistoryStore(url, lease=leaseOf(url))
        self.addCleanup(store.close)
        self.assertFalse(store.isOpen)
        self.assertRaises(DeviceUnavailable, store.write, [reading(600, 1)], 601)
        link.symlink_to(folder)
        store.write([reading(600, 1)], 601)
        self.assertTrue(store.isOpen)
        self.assertRaises(DeviceUnavailable, self.opened, isOwner=True)

    def ended(self) -> None:
        """Let the server close all connections to the database, as in a restart."""
        import psycopg

        with psycopg.connect(host=str(sharedServer().folder), user="txrdma", dbname="postgres") as connection:
            name = self.path.partition("@/")[2].partition("?")[0]
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", (name,)
            )

    def test_serverGone(self) -> None:
        """A stopped server is reported as the reason, and is used again after its restart."""
        gone = Postgres()
        self.addCleanup(gone.stop)
        self.path = gone.newURL()
        store = self.opened()
        gone.stop()
        error = self.assertRaises(DeviceUnavailable, store.write, [reading(600, 1)], 601)
        self.assertIn("history postgresql", str(error))
        self.assertRaises(DeviceUnavailable, self.opened)

    def test_killed(self) -> None:
        """A server that is killed at random moments has each reading and event once in the end."""
        server = Postgres(isDurable=True)
        self.addCleanup(server.stop)
        self.path = server.newURL()
        self.store = self.opened(isOwner=True)
        random, at, failures = Random(SEED), 0, 0
        while failures < KILLS:
            killer = Timer(random.uniform(0.0, 0.1), server.kill)
            killer.start()
            hasFailed = False
            while not hasFailed:
                rows, event = [reading(at, at)], FabricEvent(at, "noted", "leaf 1", str(at))
                try:
                    self.store.write(rows, at, [event])
                except DeviceUnavailable:
                    hasFailed = True
                    failures += 1
                    killer.join()
                    server.start()
                    self.store.write(rows, at, [event])
                at += 10
        wanted = list(range(0, at, 10))
        self.assertEqual(self.sent(0, at, "readings"), [(each, each) for each in wanted])
        events = self.store.eventsBetween(("noted",), 0, at)
        self.assertEqual([event.at for event in events], wanted)
