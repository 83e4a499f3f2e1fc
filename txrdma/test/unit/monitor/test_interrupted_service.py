"""
Monitors of which one call of one function raises an exception: leases and takeovers, surveys, files for other
programs, collectors, and states of other monitors. Everything continues as soon as the call succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from automat import NoTransition

from twisted.internet.defer import maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.kit import httprequests, lease
from txrdma.kit.lease import LEASE_SECONDS, RENEW_SECONDS
from txrdma.monitor import files
from txrdma.monitor.collecting import collector, connection, pool, wire
from txrdma.monitor.reading import surveyor
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.web import remotes
from txrdma.monitor.web.remotes import POLL_SECONDS
from txrdma.tap import duty, monitor
from txrdma.test.support.interruptions import Interruptions
from txrdma.test.unit.monitor import test_collecting, test_standby
from txrdma.test.unit.monitor.test_collecting import CollectingTestCase, Pipe
from txrdma.test.unit.monitor.test_remotes import FrontTestCase
from txrdma.test.unit.monitor.test_standby import Process, StandbyTestCase, World

_log = Logger()

_FILES = """
[files]
slurm = '{folder}/slurm'
unfit = '{folder}/unfit'
node-names = '{folder}/names'
"""


MOST = 2
"""Number of calls of each function that raise: the first one and the last one."""

TRIVIAL = ("_logFinding", "end", "_take", "_execute")
"""Functions that only contain exceptions of others, and those of which each exception means no database."""


class PairTests(StandbyTestCase):
    """Two monitors with one history, of which the first one is killed; each surveys the fabric."""

    slowBecause = "it simulates two monitors for each function"
    OWNERS: tuple[Any, ...] = (
        *(monitor.MonitorService, duty.Duty, lease.Lease, lease.FileLease, lease.RowLease, lease),
        *(surveyor.Surveyor, surveyor, files.MaintainedFiles, files),
    )
    STRIDE = 8

    def setUp(self) -> None:
        super().setUp()
        self.patch(surveyor, "SETTLE_SECONDS", 2.0)
        self.patch(test_standby, "CONFIG", test_standby.CONFIG.replace("survey = 0", "survey = 60") + _FILES)
        self.isArmed = False

    def play(self) -> list[str]:
        """Let hosts fail, and another monitor become active; return what is wrong afterwards."""
        self.reported = 0
        self.ended()
        world = self.world = World(self)
        first, second = world.started("h00000"), world.started("h00001")
        world.run(5.0)
        self.isArmed = True
        world.fabric.cut("h00002")
        world.run(10.0)
        active = self.succeed(first, second)
        world.fabric.cut("h00003")
        world.run(10.0)
        self.isArmed = False
        service = active.service
        surveys = service._surveyor.surveys
        world.fabric.cut("h00004")
        world.run(80.0)
        wrong = []
        if not active.isActive:
            return ["the standby is not active"]
        if service._surveyor.surveys == surveys:
            wrong.append("the fabric is not surveyed")
        gone = {f"h0000{number}" for number in (2, 3, 4)}
        sent = {one["where"].partition(" ")[0] for one in world.sent() if one["kind"] == "node-gone"}
        if sent != gone:
            wrong.append(f"alerts were sent for {sent}")
        unfit = {line.partition("\t")[0] for line in Path(world.folder, "unfit").read_text().splitlines()}
        if unfit != gone:
            wrong.append(f"unfit are {unfit}")
        names = Path(world.folder, "names").read_text()
        if any(name in names for name in gone):
            wrong.append("the names are those of before")
        loops = {loop.name: loop for loop in service.poller.supervisor.loops}
        if len(loops) < len(service.poller.supervisor.loops):
            wrong.append("there are loops of a former duty")
        wrong += [f"{name}: {loop.problem}" for name, loop in loops.items() if loop.problem]
        if loops["history"].age() > 10.0:
            wrong.append("the history is not written")
        logged = self.reported + len(self.flushLoggedErrors(ZeroDivisionError))
        if logged != self.calls.hasRaised:
            wrong.append(f"it was logged {logged} times")
        wrong += [f"logged as well: {each.value!r}" for each in self.flushLoggedErrors()]
        return wrong

    def succeed(self, first: Process, second: Process) -> Process:
        """Kill the active monitor; return the one that replaces it."""
        first.kill()
        self.world.run(RENEW_SECONDS + 5.0)
        return second

    def test_each(self) -> None:
        self.calls = Interruptions(self.patch, self.OWNERS, lambda *_: self.isArmed, TRIVIAL)
        self.assertEqual(self.play(), [])
        self.assertGreater(len(self.calls.counts), 30)
        found = self.calls.findings(self.play, MOST, self.STRIDE)
        self.assertEqual(found, {}, "\n".join(f"{key}: {value}" for key, value in found.items()))


class LeaseTests(PairTests):
    """The lease is in a database: the suspended monitor loses it, and gets it when the other one stops."""

    def setUp(self) -> None:
        super().setUp()
        self.withRows()

    def succeed(self, first: Process, second: Process) -> Process:
        world = self.world
        first.isSuspended = True
        world.run(LEASE_SECONDS + 5.0)
        first.isSuspended = False
        world.run(5.0)
        maybeDeferred(second.service.stopService).addErrback(self.failed)
        world.run(5.0)
        second.kill()
        return first

    def failed(self, failure: Failure) -> None:
        failure.trap(ZeroDivisionError)
        self.reported += 1


class RemoteTests(FrontTestCase):
    """A front end that reads the states of the monitors of two fabrics, and answers requests."""

    slowBecause = "it reads the states of two monitors for each function"
    OWNERS = (remotes.RemoteFabric, remotes, httprequests)

    def play(self) -> list[str]:
        """Read states and listings while a function raises; return what is wrong afterwards."""
        self.isArmed = True
        self.pump(POLL_SECONDS)
        self.asked("/api/v1/nodes")
        self.isArmed = False
        wrong = [] if self.calls.hasRaised else ["nothing was raised"]
        host = self.hosts.pop()
        self.fabrics["south"].cut(host)
        self.pump(2 * POLL_SECONDS)
        wrong += [row["problem"] for row in self.rows("fabrics")["rows"] if row["problem"]]
        found = {row["where"].partition(" ")[0] for row in self.rows("findings?isOpen=true")["rows"]}
        if host not in found:
            wrong.append(f"findings are open at {found}")
        self.fabrics["south"].heal(host)
        page = self.rows("nodes?limit=1000")
        self.flushWarnings()  # of coroutines that are not awaited
        if page["away"] or {row["fabric"] for row in page["rows"]} != {"west", "north", "south"}:
            wrong.append(f"{page['away']} are away")
        logged = len(self.flushLoggedErrors(ZeroDivisionError))
        if logged != self.calls.hasRaised:
            wrong.append(f"it was logged {logged} times")
        return wrong

    def test_each(self) -> None:
        self.isArmed = False
        self.hosts = [f"h0000{number}" for number in (1, 2, 3, 4, 5, 6)] * 10
        self.calls = Interruptions(self.patch, self.OWNERS, lambda *_: self.isArmed)
        self.play()
        self.assertGreater(len(self.calls.counts), 5)
        found = self.calls.findings(self.play, MOST)
        self.assertEqual(found, {}, "\n".join(f"{key}: {value}" for key, value in found.items()))


class _Pipe(Pipe):
    """A connection that ends if its protocol raises, as those of the reactor do."""

    def _later(self, call: Callable[[], object], isWanted: Callable[[], bool]) -> None:
        def contained() -> None:
            try:
                call()
            except ZeroDivisionError:
                _log.failure("the connection ends")
                self.peer.abortConnection()

        super()._later(contained, isWanted)


class CollectorTests(CollectingTestCase):
    """A monitor with two collectors."""

    slowBecause = "it polls a fabric for each function"
    settings = PollerSettings(intervalSeconds=10.0, sweepSeconds=3600.0)
    OWNERS: tuple[Any, ...] = (
        *(pool.CollectorPool, pool._Collector, pool._Link, pool, wire, connection.MessageConnection),
        *(collector.CollectorFactory, collector.CollectorProtocol, collector._Reading),
    )

    def pump(self, seconds: float = 20.0) -> None:
        """Let time pass; exceptions of delayed calls are logged, as the reactor does."""
        end = self.clock.seconds() + seconds
        while self.clock.seconds() < end:
            try:
                super().pump(end - self.clock.seconds())
            except (ZeroDivisionError, NoTransition):
                _log.failure("in a delayed call")

    def play(self) -> list[str]:
        """Poll a fabric with traffic; return what is wrong after a function has raised."""
        self.setUp()
        for number, name in enumerate(("left", "right"), 1):
            self.fabric.growCounters(name, 2, portXmitData=1000.0 * number)
        self.poller.start()
        self.isArmed = True
        self.pump(40.0)
        self.endpoints["b"].pipes[-1].abortConnection()
        self.pump(40.0)
        self.isArmed = False
        wrong = [] if self.calls.hasRaised else ["nothing was raised"]
        self.pump(60.0)
        before = self.sent()
        self.pump(60.0)
        shares = [now - then for now, then in zip(self.sent(), before, strict=True)]
        if min(shares[1:]) < 10:
            wrong.append(f"requests: {shares}")
        rates = [self.rate("left", 2), self.rate("right", 2)]
        if rates != [4000.0, 8000.0]:
            wrong.append(f"rates are {rates}")
        wrong += [str(key) for key, meter in self.poller.meters.items() if meter.isSilent]
        wrong += [str(key) for key in self.poller.findings.log.open]
        wrong += [f"{loop.name}: {loop.problem}" for loop in self.poller.supervisor.loops if loop.problem]
        self.poller.stop()
        self.pool.stop()
        for agent in self.agents:
            agent.close()
        self.flushLoggedErrors(NoTransition)  # of a ClientService whose protocol raises when it is connected
        logged = len(self.flushLoggedErrors(ZeroDivisionError))
        if logged != self.calls.hasRaised:
            wrong.append(f"it was logged {logged} times")
        return wrong

    def test_each(self) -> None:
        self.isArmed = False
        self.patch(test_collecting, "Pipe", _Pipe)
        self.calls = Interruptions(self.patch, self.OWNERS, lambda *_: self.isArmed, ("connect",))
        self.play()
        self.assertGreater(len(self.calls.counts), 20)
        found = self.calls.findings(self.play, MOST)
        self.assertEqual(found, {}, "\n".join(f"{key}: {value}" for key, value in found.items()))
