"""Two monitors with one history: one is active, and the other one takes its place."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from weakref import ref

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.fabric.advice import Severity
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.health import Finding
from txrdma.fabric.model import Fabric
from txrdma.fabric.portcounters import intervalClock
from txrdma.iba.types import GUID
from txrdma.interfaces import IMADPort
from txrdma.kit.lease import Execute, FileLease, Lease, LEASE_SECONDS, RENEW_SECONDS
from txrdma.monitor.config import parseConfig
from txrdma.monitor.diagnosis.findinglog import Action
from txrdma.monitor.events import notifier
from txrdma.monitor.events.alerts import Alert
from txrdma.monitor.events.channels import LineChannel
from txrdma.monitor.garbage import GarbageCollection
from txrdma.monitor.series.history import HistoryWriter
from txrdma.monitor.series.rows import Row
from txrdma.monitor.supervisor import CHECK_SECONDS, LATE_SECONDS
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.tap import duty, monitor
from txrdma.tap.duty import Threads
from txrdma.tap.monitor import MonitorService
from txrdma.tap.steadyclock import SteadyClock
from txrdma.test.support.monitor.fetching import Answer, Connection, fetch
from txrdma.test.unit.kit.test_lease import SimulatedRow

CONFIG = """
[web]
listen = ""

[history]
file = '{folder}/history.db'
standby = true

[poll]
interval = 1
sweep = 10
settle = 0.1
survey = 0
notices = false

[findings]
clear = 1

[alerts]
delay = 1
group = 0
severity = "info"
log = '{folder}/log'
"""
STEP = 0.5
INTERVAL = 1.0


class _Row(SimulatedRow):
    """A lease in a database beside that of the history."""

    def permits(self, execute: Execute) -> bool:
        return super().permits(self._execute)


class Process:
    """A monitor with a clock of its own: while it is suspended that stops, and datagrams wait."""

    def __init__(self, world: World, host: str, more: str = "") -> None:
        self.host = host
        self.isSuspended = False
        self.clock = SimulatedClock()
        self.clock.advance(world.clock.seconds())
        self._fabric = world.fabric
        self._waiting: list[Callable[[], None]] = []
        config = parseConfig(CONFIG.format(folder=world.folder) + more)
        self.service = MonitorService(self.clock, config, self._attach)
        self.service.startService()

    def _attach(self) -> IMADPort:
        port = self._fabric.attach(self.host)
        deliver = port.deliver

        def arrived(datagram: bytes, envelope: object) -> None:
            if self.isSuspended:
                self._waiting.append(lambda: deliver(datagram, envelope))
            else:
                deliver(datagram, envelope)

        port.deliver = arrived  # type: ignore[method-assign]  # a buffer of the kernel
        return port

    def run(self, now: float) -> None:
        """Do what is due, and then read what has arrived, as the reactor does."""
        self.clock.advance(now - self.clock.seconds())
        waiting, self._waiting = self._waiting, []
        for deliver in waiting:
            deliver()

    @property
    def isActive(self) -> bool:
        return self.service._duty is not None

    def get(self, path: str) -> Answer:
        return fetch(self.service.site.factory, path)

    def kill(self) -> None:
        """Do what the kernel does: close its descriptors. Nothing else is called again."""
        self.isSuspended = True
        lease = self.service._lease
        if isinstance(lease, FileLease) and lease._file is not None:
            lease._file.close()
        duty = self.service._duty
        if duty is not None and duty.writer is not None:
            opened = duty.writer._store._opened
            if opened is not None:
                opened.close()


class World:
    """A fabric, a folder, and the processes that watch it."""

    def __init__(self, test: StandbyTestCase) -> None:
        self.folder = test.mktemp()
        Path(self.folder).mkdir()
        self.clock = SimulatedClock()
        self.clock.advance(1e6)
        self.fabric = SimulatedFabric(self.clock, fatTree(8))
        self.processes: list[Process] = []
        self.databaseAhead = 0.0

    def started(self, host: str, more: str = "") -> Process:
        process = Process(self, host, more)
        self.processes.append(process)
        return process

    def run(self, seconds: float) -> None:
        """Let time pass for the fabric and for all processes that are not suspended."""
        end = self.clock.seconds() + seconds
        while self.clock.seconds() < end:
            self.clock.advance(STEP)
            for process in self.processes:
                if not process.isSuspended:
                    process.run(self.clock.seconds())
            self.clock.advance(0.0)

    def sent(self) -> list[dict[str, Any]]:
        """Return all alerts that were sent."""
        log = Path(self.folder) / "log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


class StandbyTestCase(SynchronousTestCase):
    """Two monitors; work in threads is done at once."""

    def setUp(self) -> None:
        self.patch(Threads, "named", lambda threads, name: maybeDeferred)
        # The processes of a test share one garbage collector, whose settings a killed one would not restore.
        for name in ("startService", "stopService"):
            self.patch(GarbageCollection, name, getattr(Service, name))
        self.world = World(self)
        self.databases: list[sqlite3.Connection] = []
        self.addCleanup(self.ended)

    def ended(self) -> None:
        for process in self.world.processes:
            process.kill()
            process.service._agent.close()
        for database in self.databases:
            database.close()
        self.databases.clear()
        self.world.fabric.close()

    def withRows(self) -> None:
        """Use leases in a database, whose clock may jump."""

        def connected(path: str) -> sqlite3.Connection:
            database = sqlite3.connect(path, isolation_level=None)
            self.databases.append(database)
            database.create_function("now_seconds", 0, self.databaseSeconds)
            return database

        def leaseOf(where: str) -> Lease:
            return _Row("", lambda: connected(f"{where}-lease"))

        self.patch(monitor, "leaseOf", leaseOf)

    def databaseSeconds(self) -> float:
        return self.world.clock.seconds() + self.world.databaseAhead

    def pair(self) -> tuple[World, Process, Process]:
        """Start two monitors, of which the first is active."""
        processes = self.world.started("h00000"), self.world.started("h00001")
        self.world.run(5.0)
        self.assertEqual(self.active(), [True, False])
        return self.world, *processes

    def active(self) -> list[bool]:
        return [process.isActive for process in self.world.processes]


class TakeoverTests(StandbyTestCase):
    """A standby that takes over, and shows that it is one."""

    def stopRenewal(self, process: Process) -> None:
        """Let a suspended process do everything else before it renews its lease."""
        assert process.service._duty is not None
        self.patch(process.service._renewal, "_isStarted", False)
        process.service._renewal._timer.stop()

    def test_killed(self) -> None:
        """The standby of a killed monitor reports the next fault within an interval, and repeats no alert."""
        world, first, second = self.pair()
        world.fabric.cut("h00004")
        world.run(5.0)
        (before,) = world.sent()
        self.assertEqual((before["kind"], before["status"]), ("node-gone", "firing"))
        first.kill()
        world.fabric.cut("h00005")
        world.run(RENEW_SECONDS + INTERVAL)
        self.assertEqual(self.active(), [True, True])
        world.run(5.0)
        alerts = world.sent()
        self.assertEqual([one["kind"] for one in alerts], ["node-gone", "node-gone"])
        self.assertEqual(len({one["id"] for one in alerts}), 2)
        self.assertEqual(len(second.service.poller.findings.log.open), 2)

    def test_withinInterval(self) -> None:
        """A standby replaces a killed or suspended monitor within an interval, also a changed one."""
        self.withRows()
        world, first, second = self.pair()
        for process in (first, second):
            process.service.reloadBy(lambda: parseConfig(self.withInterval(2)))
            self.assertTrue(process.service.reload())
        world.run(2.0)
        first.isSuspended = True
        world.run(2.0)
        self.assertTrue(second.isActive)
        first.isSuspended = False
        world.run(STEP)
        self.assertEqual(self.active(), [False, True])
        second.kill()
        world.run(2.0)
        self.assertTrue(first.isActive)

    def withInterval(self, seconds: float) -> str:
        """Return the usual configuration with another interval."""
        return CONFIG.format(folder=self.world.folder).replace("interval = 1", f"interval = {seconds}")

    def test_otherIntervals(self) -> None:
        """A standby with a shorter interval does not replace a monitor that renews its lease."""
        self.withRows()
        world, first, second = self.pair()
        for process, seconds in ((first, 60), (second, 2)):
            process.service.reloadBy(lambda seconds=seconds: parseConfig(self.withInterval(seconds)))  # type: ignore[misc]
            self.assertTrue(process.service.reload())
        world.run(60.0)
        self.assertEqual(self.active(), [True, False])
        first.kill()
        world.run(LEASE_SECONDS)
        self.assertTrue(second.isActive)

    def test_shortened(self) -> None:
        """A monitor whose lease was shortened is not sure for longer, when it loses the server thereby."""
        self.withRows()
        world, first, second = self.pair()
        lease, renewed = first.service._lease, list[bool]()
        assert lease is not None
        attempt = lease.attempt

        def renew() -> bool:
            if not renewed:
                renewed.append(attempt())
            raise DeviceUnavailable("the server does not answer")

        for seconds in (60, 1):
            for process in (first, second):
                process.service.reloadBy(lambda seconds=seconds: parseConfig(self.withInterval(seconds)))  # type: ignore[misc]
                self.assertTrue(process.service.reload())
            if seconds == 1:
                self.patch(lease, "attempt", renew)
            world.run(2.0)
        self.assertEqual((renewed, second.isActive, first.service._isSure()), ([True], True, False))

    def test_acknowledged(self) -> None:
        """The standby sends nothing acknowledged, sent before or not, but the end of what was sent."""
        world, first, second = self.pair()
        world.fabric.cut("h00004")
        world.run(5.0)
        (before,) = world.sent()
        world.fabric.cut("h00005")
        while len(first.service.poller.findings.log.open) < 2:
            world.run(STEP)
        for entry in first.service.poller.findings.log.open.values():
            first.service.poller.findings.annotate(entry, Action.ACKNOWLEDGE, "alice", "power supply ordered")
        world.run(5.0)
        first.kill()
        world.run(60.0)
        self.assertTrue(second.isActive)
        self.assertEqual(world.sent(), [before])
        for entry in second.service.poller.findings.log.open.values():
            self.assertEqual(entry.acknowledgement and entry.acknowledgement.user, "alice")
            self.assertEqual([one.text for one in entry.comments], ["power supply ordered"])
        for host in ("h00004", "h00005"):
            world.fabric.heal(host)
        world.run(30.0)
        (end,) = world.sent()[1:]
        self.assertEqual((end["status"], end["where"]), ("resolved", before["where"]))
        self.assertEqual(end["acknowledgedBy"], "alice")

    def test_otherSeverity(self) -> None:
        """With another severity in the configuration of the next process, a finding is sent with that."""
        world = self.world
        first = world.started("h00000")
        world.run(5.0)
        world.fabric.cut("h00004")
        world.run(5.0)
        (entry,) = first.service.poller.findings.log.open.values()
        first.service.poller.findings.annotate(entry, Action.ACKNOWLEDGE, "alice", "")
        world.run(5.0)
        first.kill()
        second = world.started("h00001", '[findings.severity]\nnode-gone = "critical"\n')
        world.run(RENEW_SECONDS + 5.0)
        (entry,) = second.service.poller.findings.log.open.values()
        self.assertEqual((entry.acknowledgement, entry.severity), (None, Severity.CRITICAL))
        sent = [(one["status"], one["severity"]) for one in world.sent()]
        self.assertEqual(sent, [("firing", "warning"), ("resolved", "warning"), ("firing", "critical")])
        second.kill()
        third = world.started("h00001", '[findings.severity]\nnode-gone = "critical"\n')
        world.run(RENEW_SECONDS + 5.0)
        (entry,) = third.service.poller.findings.log.open.values()
        self.assertIsNone(entry.acknowledgement)
        self.assertEqual(len(world.sent()), 3)

    def test_foundMeanwhile(self) -> None:
        """A fault that only the standby has seen is raised when it takes over, with the time of its sight."""
        world, first, second = self.pair()
        first.isSuspended = True
        at = world.clock.seconds()
        world.fabric.cut("h00004")
        world.run(5.0)
        self.assertEqual(world.sent(), [])
        first.kill()
        world.run(RENEW_SECONDS + INTERVAL)
        (entry,) = second.service.poller.findings.log.open.values()
        self.assertLess(entry.firstSeen, at + 3.0)
        world.run(INTERVAL)
        self.assertEqual(len(world.sent()), 1)

    def test_movedCable(self) -> None:
        """A standby that takes over knows faults of links from before its start, and where a cable was."""
        limit = "[limits.SymbolErrorCounter]\nmost = 5\nseconds = 60\n"
        world, first = self.world, self.world.started("h00000", limit)
        host = world.fabric.node("h00004").external[0]
        assert host.peer is not None
        leaf = next(name for name, node in world.fabric.nodes.items() if host.peer in node.external)
        number = host.peer.number
        other = next(port.number for port in host.peer.node.external if port.peer is None)
        self.grow(leaf, number)
        second = world.started("h00001", limit)
        world.run(5.0)
        first.kill()
        world.fabric.move(leaf, number, leaf, other)
        world.run(60.0)
        self.assertTrue(second.isActive)
        self.grow(leaf, other)
        rows = second.get("/api/v1/findings?isOpen=true&kind=symbol-errors").json["rows"]
        (text,) = (row["text"] for row in rows if row["port"] == other)
        self.assertRegex(text, f"; the fault follows the cable: {leaf} .* port {number} had symbol-")

    def grow(self, name: str, number: int) -> None:
        """Let a port count errors for a while."""
        self.world.fabric.growCounters(name, number, symbolErrorCounter=1.0)
        self.world.run(20.0)
        self.world.fabric.growCounters(name, number, symbolErrorCounter=0.0)

    def test_earlierTopologies(self) -> None:
        """A standby names the monitor that has the history; when it takes over it shows all earlier times."""
        world, first, second = self.pair()
        before = int(world.clock.seconds())
        world.fabric.cut("h00004")
        world.run(5.0)
        path = f"/api/v1/topology/difference?from={before}"

        def answer(process: Process, path: str) -> Answer:
            connection = Connection(process.service.site.factory)
            connection.ask(path)
            world.run(INTERVAL)
            return connection.answer

        self.assertEqual(answer(first, path).json["differences"]["node-removed"], 1)
        for asked, code in ((path, 404), (f"/topology?from={before}", 404), ("/topology", 200)):
            found = answer(second, asked)
            self.assertEqual(found.code, code)
            self.assertIn("is a standby: the history is that of", found.text)
        first.kill()
        world.run(RENEW_SECONDS + 5 * INTERVAL)
        self.assertEqual(answer(second, path).json["differences"]["node-removed"], 1)
        self.assertIn('id="timeline-from"', answer(second, "/topology").text)

    def test_suspended(self) -> None:
        """A monitor that was suspended, and whose lease has expired, becomes the standby."""
        self.withRows()
        world, first, second = self.pair()
        first.isSuspended = True
        world.run(LEASE_SECONDS + 2 * RENEW_SECONDS)
        self.assertTrue(second.isActive)
        world.fabric.cut("h00004")
        world.run(5.0)
        first.isSuspended = False
        world.run(5.0)
        self.assertEqual(self.active(), [False, True])
        self.assertEqual(len({one["id"] for one in world.sent()}), 1)
        assert second.service._duty is not None and second.service._duty.writer is not None
        self.assertFalse(second.service._duty.writer.loop.problem)

    def test_suspendedWithProblem(self) -> None:
        """A monitor that has become the standby does not show the problems of its former history for ever."""
        self.withRows()
        world, first, _second = self.pair()
        assert first.service._duty is not None and first.service._duty.writer is not None
        found = [Finding("history-stopped", "history", "the disk is full")]
        self.patch(first.service._duty.writer, "findings", lambda: found)
        world.run(5.0)
        self.assertEqual(self.foundOf(first), [("history-stopped", "history")])
        first.isSuspended = True
        world.run(LEASE_SECONDS + 2 * RENEW_SECONDS)
        first.isSuspended = False
        world.run(10.0)
        self.assertEqual(self.active(), [False, True])
        self.assertEqual(self.foundOf(first), [])

    def test_suspendedWithAlert(self) -> None:
        """An alert that waits in a suspended monitor is sent by the other one, and not again later."""
        self.withRows()
        world, first, second = self.pair()
        world.fabric.cut("h00004")
        while not first.service.poller.findings.log.open:
            world.run(STEP)
        first.isSuspended = True
        self.assertEqual(world.sent(), [])
        world.run(LEASE_SECONDS + 10.0)
        (alert,) = world.sent()
        self.stopRenewal(first)
        first.isSuspended = False
        world.run(20.0)
        self.assertEqual(world.sent(), [alert])
        self.assertTrue(second.isActive)
        # What operators note in the first one would not be stored, so that its pages refuse it.
        self.assertEqual([one.service._watch.isSure() for one in (first, second)], [False, True])

    def test_suspendedWithQueue(self) -> None:
        """A monitor that was suspended sends nothing that was resolved meanwhile, and writes no file."""
        self.withRows()
        world, first, second = self.pair()
        send, isBroken = LineChannel.send, True

        def sending(channel: LineChannel, alerts: Sequence[Alert]) -> Deferred[None]:
            if isBroken:
                raise DeviceUnavailable("the disk is full")
            return send(channel, alerts)

        self.patch(LineChannel, "send", sending)
        work = first.service._duty
        assert work is not None
        world.fabric.cut("h00004")
        while not work.notifier.findings():
            world.run(STEP)
        first.isSuspended, isBroken = True, False
        world.fabric.heal("h00004")
        world.run(LEASE_SECONDS + 20.0)
        sent = world.sent()
        self.assertEqual([one["status"] for one in sent], ["firing", "resolved"])
        self.stopRenewal(first)
        first.isSuspended, written = False, list[object]()
        self.patch(work.files, "update", written.append)
        world.run(20.0)
        self.assertEqual((world.sent(), written), (sent, []))

    def slowly(self, process: Process) -> list[Callable[[], object]]:
        """Let a standby open its history until a function in the returned list is called."""
        waiting: list[Callable[[], object]] = []

        def called(function: Callable[..., Any], *args: Any) -> Deferred[Any]:
            if getattr(function, "__name__", "") != "open":
                return maybeDeferred(function, *args)
            function(*args)
            opened: Deferred[Any] = Deferred()
            waiting.append(lambda: opened.callback(None))
            return opened

        self.patch(process.service._threads, "named", lambda name: called)
        return waiting

    def test_slowHistory(self) -> None:
        """The lease is renewed while a standby that takes over opens the history, however long that takes."""
        self.withRows()
        world, first, second = self.pair()
        third = world.started("h00002")
        opening = self.slowly(second), self.slowly(third)
        first.kill()
        world.run(4 * LEASE_SECONDS)
        one, other = opening
        self.assertEqual(sorted((len(one), len(other))), [0, 1])
        (one or other)[0]()
        world.run(2.0)
        self.assertEqual(self.active()[1:], [bool(one), bool(other)])

    def foundOf(self, process: Process) -> list[tuple[str, str]]:
        """Return kind and place of each open finding of a monitor."""
        open = process.service.poller.findings.log.open.values()
        return [(entry.finding.kind, entry.finding.where) for entry in open]

    def test_failed(self) -> None:
        """A takeover of which any step fails is a finding until one succeeds."""
        for name in ("open", "begin", "start"):
            world, first, second = self.pair()

            def fail(duty: duty.Duty, lease: Lease | None = None, name: str = name) -> None:
                if name == "open":
                    lease.release()  # type: ignore[union-attr]  # which open gets
                raise DeviceUnavailable("the disk is full")

            patched = self.patch(duty.Duty, name, fail)
            first.kill()
            world.run(RENEW_SECONDS + CHECK_SECONDS)
            self.assertFalse(second.isActive, name)
            self.assertEqual(self.foundOf(second), [("loop-failed", "takeover")], name)
            loops = [loop.name for loop in second.service.poller.supervisor.loops]
            self.assertEqual(len(loops), len(set(loops)), name)
            patched.restore()
            world.run(RENEW_SECONDS + CHECK_SECONDS)
            self.assertTrue(second.isActive, name)
            self.assertEqual(self.foundOf(second), [], name)
            world.fabric.cut("h00004")
            world.run(5.0)
            self.assertEqual([one["kind"] for one in world.sent()], ["node-gone"], name)
            self.ended()
            self.world = World(self)

    def test_hangs(self) -> None:
        """A takeover that does not end is a finding, and its age is exported."""
        world, first, second = self.pair()
        self.assertIn('txrdma_monitor_loop_age_seconds{loop="takeover"}', second.get("/metrics").text)
        self.slowly(second)
        first.kill()
        world.run(RENEW_SECONDS)
        second.service._takeover._beganAt -= LATE_SECONDS
        world.run(CHECK_SECONDS)
        self.assertEqual(self.foundOf(second), [("loop-late", "takeover")])

    def test_lostWhileOpening(self) -> None:
        """A standby that loses the lease while it opens the history remains a standby."""
        self.withRows()
        world, first, second = self.pair()
        opening = self.slowly(second)
        first.kill()
        while not opening:
            world.run(STEP)
        second.isSuspended = True
        world.run(LEASE_SECONDS + STEP)
        third = world.started("h00002")
        world.run(STEP)
        self.assertTrue(third.isActive)
        second.isSuspended = False
        third.kill()  # which holds the lease for a while
        world.run(2 * RENEW_SECONDS)
        opening.pop()()
        self.assertFalse(second.isActive)
        world.run(2 * LEASE_SECONDS)
        opening.pop()()
        self.assertTrue(second.isActive)

    def test_clockSetBack(self) -> None:
        """A clock that was set back, and runs slowly, does not extend the time for which a lease is sure."""
        self.withRows()
        back = 0.0
        process = self.world.started("h00000")
        simulated = process.clock.seconds
        seconds = SteadyClock(lambda: simulated() - back, simulated)
        self.patch(process.service, "_seconds", seconds)
        self.patch(process.service, "_intervalSeconds", intervalClock(seconds))
        self.world.run(1.0)
        self.stopRenewal(process)
        self.successResultOf(Deferred.fromCoroutine(process.service._renew()))
        back = 3600.0
        self.assertTrue(process.service._isSure())
        self.world.run(LEASE_SECONDS)
        self.assertFalse(process.service._isSure())

    def test_formerCables(self) -> None:
        """The cables of the former process are freed when they have been compared."""
        cables = self.world.started("h00000").service.poller.cables
        assert cables.former is not None
        former = ref(cables.former)
        list(cables.reading({}, (), 0.0))
        self.assertIsNone(former())

    def test_stopped(self) -> None:
        """A monitor that is stopped leaves the history to its standby at once."""
        world, first, second = self.pair()
        first.service.stopService()
        first.isSuspended = True
        world.run(RENEW_SECONDS)
        self.assertTrue(second.isActive)

    def test_pieces(self) -> None:
        """The rows of a round are added in pieces, between which the reactor serves others."""
        self.patch(duty, "_PIECE", 7)
        process = self.world.started("h00000")
        added: list[object] = []

        def add(writer: HistoryWriter, rows: list[Row]) -> None:
            added.append(len(rows))
            process.clock.callLater(0.0, added.append, "others")

        self.patch(HistoryWriter, "add", add)
        poller = process.service.poller
        while poller.statistics.turns < 2:
            self.world.run(STEP)
        readings = poller.statistics.readings
        added.clear()
        self.world.run(INTERVAL)
        self.assertEqual(set(added[::2]), {"others"})
        sizes = [size for size in added[1::2] if isinstance(size, int)]
        self.assertLessEqual(max(sizes), 7)
        self.assertEqual(sum(sizes), poller.statistics.readings - readings)

    def test_pages(self) -> None:
        """A standby names the active monitor, is healthy but not ready, and exports no series of ports."""
        world, first, second = self.pair()
        assert first.service._lease is not None
        for process, ready, ports, active in ((first, 200, True, 1), (second, 503, False, 0)):
            self.assertEqual(process.get("/healthz").code, 200)
            self.assertEqual(process.get("/readyz").code, ready)
            text = process.get("/metrics").body.decode()
            self.assertIn(f"\ntxrdma_monitor_active {active}\n", text)
            for name in ("infiniband_", "txrdma_monitor_finding"):
                self.assertEqual(name in text, ports, name)
        self.assertIn(f"{first.service._lease.name} is active", second.get("/").body.decode())
        self.assertNotIn("is active", first.get("/").body.decode())
        self.assertEqual(second.get("/readyz").body, b"standby\n")

    def test_reloaded(self) -> None:
        """A configuration that is read again while a standby takes over applies to the active monitor."""
        world, first, second = self.pair()
        other = Path(world.folder) / "other"
        changed = CONFIG.format(folder=world.folder).replace(
            f"log = '{world.folder}/log'", f"log = '{other}'"
        )
        changed += '[findings.severity]\nnode-gone = "info"\n'
        second.service.reloadBy(lambda: parseConfig(changed))
        opening = duty.Duty.open

        def opened(work: duty.Duty, lease: Lease | None) -> None:
            opening(work, lease)
            self.assertTrue(second.service.reload())

        self.patch(duty.Duty, "open", opened)
        first.kill()
        world.run(RENEW_SECONDS + INTERVAL)
        world.fabric.cut("h00004")
        world.run(5.0)
        self.assertEqual(world.sent(), [])
        (alert,) = map(json.loads, other.read_text().splitlines())
        self.assertEqual((alert["kind"], alert["severity"]), ("node-gone", "info"))

    def test_moreSevere(self) -> None:
        """An open finding is sent when the configuration gives it a severity that is sent."""
        world, first, _second = self.pair()
        text = CONFIG.format(folder=world.folder).replace('severity = "info"', 'severity = "critical"')
        for severity, sent in (("warning", []), ("critical", ["node-gone"])):
            changed = f'{text}[findings.severity]\nnode-gone = "{severity}"\n'
            first.service.reloadBy(lambda changed=changed: parseConfig(changed))  # type: ignore[misc]
            self.assertTrue(first.service.reload())
            world.fabric.cut("h00004")
            world.run(15.0)
            self.assertEqual([one["kind"] for one in world.sent()], sent)

    def test_atOnce(self) -> None:
        """A standby that takes over serves the fabric as it knows it, before its sweep has ended."""
        world, first, second = self.pair()
        self.assertEqual(second.get("/readyz").code, 503)
        sweeps = second.service.poller.statistics.sweeps
        self.patch(Sweep, "run", lambda sweep: Deferred())
        first.kill()
        world.run(RENEW_SECONDS + INTERVAL)
        self.assertEqual((second.isActive, second.get("/readyz").code), (True, 200))
        self.assertEqual(second.get("/api/v1/nodes?type=host").json["total"], 8)
        self.assertEqual(second.service.poller.statistics.sweeps, sweeps)
        self.assertIsNone(second.get("/api/v1/overview").json["knownAt"])

    def test_sweepBefore(self) -> None:
        """A sweep that began before the takeover does not clear what the former monitor has found since."""
        world, first, second = self.pair()
        run, begun = Sweep.run, 0

        async def runSlowly(sweep: Sweep) -> Fabric:
            nonlocal begun
            begun += sweep._agent is second.service._agent
            fabric = await run(sweep)
            if sweep._agent is second.service._agent:
                await deferLater(second.clock, 10.0)
            return fabric

        self.patch(Sweep, "run", runSlowly)
        while not begun:
            world.run(STEP)
        world.fabric.cut("h00004")
        while not world.sent():
            world.run(STEP)
        first.kill()
        world.run(40.0)
        self.assertTrue(second.isActive)
        self.assertEqual([(one["kind"], one["status"]) for one in world.sent()], [("node-gone", "firing")])
        changes = second.service.poller.findings.journal.changes
        self.assertEqual([one.kind for one in changes], ["node-gone", "finding-raised"])

    def test_restarted(self) -> None:
        """Before its first sweep, a restarted monitor serves the last known fabric, marked with its age."""
        world, first = self.world, self.world.started("h00000")
        world.run(5.0)
        world.fabric.cut("h00004")
        world.run(20.0)
        listings = ("nodes?sort=guid", "links?sort=guid", "findings")
        before = {name: first.get(f"/api/v1/{name}").json["rows"] for name in listings}
        first.service.stopService()
        first.isSuspended = True
        world.run(600.0)
        self.patch(Sweep, "run", lambda sweep: Deferred())
        second = world.started("h00001")
        world.run(1.0)
        for name, rows in before.items():
            found = second.get(f"/api/v1/{name}").json["rows"]
            for key in ("guid", "name", "type", "port", "peerGuid", "where", "firstSeen"):
                self.assertEqual([row.get(key) for row in found], [row.get(key) for row in rows], (name, key))
        self.assertEqual(second.get("/readyz").code, 200)
        overview = second.get("/api/v1/overview").json
        self.assertEqual((overview["isKnown"], overview["isWell"]), (False, False))
        self.assertLess(world.clock.seconds() - 630.0, overview["knownAt"])
        self.assertLess(overview["knownAt"], world.clock.seconds() - 600.0)
        node = before[listings[0]][0]["guid"]
        for page in ("", "nodes", "links", "findings", "topology", f"nodes/{node}"):
            answer = second.get(f"/{page}")
            self.assertEqual(answer.code, 200, page)
            self.assertIn("last known 10 min ago", answer.text)

    def test_notReady(self) -> None:
        """A monitor is ready after its first sweep, and not healthy if a vital loop hangs."""
        process = self.world.started("h00000")
        self.assertEqual(process.get("/readyz").code, 503)
        self.world.run(5.0)
        self.assertEqual(process.get("/readyz").code, 200)
        self.patch(process.service.poller.supervisor, "isAlive", lambda: False)
        self.assertEqual(process.get("/healthz").code, 503)

    def withFullDisk(self) -> tuple[World, Process, Callable[[], None]]:
        """Start a monitor whose history cannot be written until the returned function is called."""
        process = self.world.started("h00000")
        self.world.run(5.0)
        assert process.service._duty is not None and process.service._duty.writer is not None

        def fail(events: object) -> None:
            raise DeviceUnavailable("the disk is full")

        patched = self.patch(process.service._duty.writer._store, "append", fail)
        return self.world, process, patched.restore

    def test_manyAlerts(self) -> None:
        """While the history is away, a limited number of alerts waits; the oldest are dropped."""
        self.patch(notifier, "MOST_ALERTS", 3)
        world, process, restore = self.withFullDisk()
        for number in range(10):
            process.service.poller.findings.report(
                f"test {number}", [Finding("width", "x", "", GUID.fromInt(number + 5))]
            )
            world.run(5.0)
        assert process.service._duty is not None
        self.assertLessEqual(len(process.service._duty.notifier._due), 3)
        self.assertEqual(world.sent(), [])
        restore()
        world.run(20.0)
        sent = [one["guid"] for one in world.sent() if one["kind"] == "width"]
        self.assertEqual(sent.count(str(GUID.fromInt(14))), 1)
        self.assertNotIn(str(GUID.fromInt(5)), sent)

    def test_withoutHistory(self) -> None:
        error = self.assertRaises(InvalidRequest, parseConfig, "[history]\nstandby = true\n")
        self.assertIn("line 2", str(error))


Plan = tuple[tuple[str, float, float], ...]
"""Steps: what happens, to which monitor or by how many seconds, and the seconds until the next step."""

PLANS: Final[tuple[Plan, ...]] = (
    (
        ("cut", 0, 0.5),
        ("cut", 0, 0.5),
        ("cut", 0, 2),
        ("jump", 2, 4),
        ("cut", 0, 2),
        ("cut", 0, 4),
        ("suspend", 1, 10),
        ("kill", 1, 0.5),
        ("kill", 1, 0.5),
        ("cut", 0, 2),
    ),
    (
        ("cut", 0, 2),
        ("kill", 0, 4),
        ("cut", 0, 2),
        ("suspend", 1, 10),
        ("suspend", 0, 2),
        ("kill", 1, 10),
        ("jump", -2, 2),
        ("kill", 1, 4),
        ("jump", -3600, 10),
        ("jump", -3600, 2),
        ("cut", 0, 2),
        ("suspend", 0, 0.5),
        ("suspend", 0, 4),
        ("cut", 0, 4),
        ("kill", 1, 2),
        ("cut", 0, 0.5),
        ("suspend", 1, 2),
        ("suspend", 0, 0.5),
        ("suspend", 1, 4),
        ("suspend", 1, 10),
        ("suspend", 1, 10),
        ("suspend", 0, 10),
        ("cut", 0, 0.5),
    ),
)


class PlanTests(StandbyTestCase):
    """Suspensions, kills and jumps of the database's clock, while hosts fail; soak tests draw more plans."""

    slowBecause = "simulates minutes of two monitors"
    HOSTS = tuple(f"h0000{number}" for number in range(2, 8))

    def plans(self) -> Iterable[Plan]:
        """Return the plans to play."""
        return PLANS

    def played(self, plan: Plan) -> None:
        """Play one plan, and check what was sent."""
        world = self.world
        pair = [world.started("h00000"), world.started("h00001")]
        world.run(3.0)
        hosts = list(self.HOSTS)
        for what, value, seconds in plan:
            if what == "suspend":
                pair[int(value)].isSuspended = not pair[int(value)].isSuspended
            elif what == "kill":
                killed = pair[int(value)]
                killed.kill()
                world.processes.remove(killed)
                killed.service._agent.close()
                pair[int(value)] = world.started(killed.host)
            elif what == "jump":
                world.databaseAhead += value
            else:
                world.fabric.cut(hosts.pop())
            world.run(seconds)
        self.assertEqual(hosts, [])
        for one in pair:
            one.isSuspended = False
        world.run(40.0)
        self.assertEqual(sorted(self.active()), [False, True], plan)
        raised: dict[str, set[str]] = {}
        for alert in world.sent():
            if alert["status"] == "firing" and alert["kind"] == "node-gone":
                raised.setdefault(alert["where"].partition(" ")[0], set()).add(alert["id"])
        self.assertEqual(set(raised), set(self.HOSTS), plan)
        self.assertEqual([len(ids) for ids in raised.values()], [1] * len(self.HOSTS), plan)

    def test_plans(self) -> None:
        """Each failure is reported at least once, and under one identity."""
        self.withRows()
        for plan in self.plans():
            self.played(plan)
            self.ended()
            self.world = World(self)
