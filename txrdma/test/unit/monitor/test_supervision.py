"""Supervised loops, and a monitor whose parts raise while the others continue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent, LogLevel
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.monitor.config import parseConfig
from txrdma.monitor.diagnosis.fabricdiagnosis import FabricDiagnosis
from txrdma.monitor.diagnosis.findinglog import Cleared, Raised
from txrdma.monitor.diagnosis.findingreports import FindingReports
from txrdma.monitor.events.alerts import AlertRules
from txrdma.monitor.events.notifier import MEMORY_SECONDS, Notifier
from txrdma.monitor.reading import poller as pollerModule
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.reading.surveyor import Surveyor
from txrdma.monitor.supervisor import LATE_SECONDS, SupervisedLoop, Supervisor
from txrdma.tap.monitor import logFinding, MonitorService
from txrdma.test.support import slow
from txrdma.test.support.monitor.alerts import AbsentMemory, entryOf, RecordingOutlet
from txrdma.test.unit.monitor.test_poller import PollerTestCase

reactor: Any = theReactor


class LoopTests(SynchronousTestCase):
    """A loop whose runs succeed, fail or do not end."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.supervisor = Supervisor(self.clock)
        self.runs = 0
        self.outcome: Callable[[], Awaitable[bool]] = lambda: succeed(True)
        self.loop = self.supervisor.add(
            SupervisedLoop(self.clock, "sweep", self.run_, lambda: 10.0, isVital=True)
        )

    async def run_(self) -> bool:
        self.runs += 1
        return await self.outcome()

    def test_fails(self) -> None:
        """A loop that fails runs again, is logged once and is a finding until it succeeds."""
        self.outcome = lambda: fail(ValueError("oops"))
        with capturedLogs() as logs:
            self.loop.start()
            self.clock.pump([0.0] + [10.0] * 5)
        self.assertEqual(self.runs, 6)
        self.assertEqual(len(logs), 1)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        (found,) = self.supervisor.findings()
        self.assertEqual((found.kind, found.where, found.text), ("loop-failed", "sweep", "oops"))
        self.assertEqual(self.supervisor.ages(), [("sweep", 50.0)])
        self.assertTrue(self.supervisor.isAlive())
        self.outcome = lambda: succeed(True)
        self.clock.advance(10.0)
        self.assertEqual((self.supervisor.findings(), self.supervisor.ages()), ([], [("sweep", 0.0)]))

    def test_expected(self) -> None:
        """A failure that is expected is logged without a traceback."""
        self.outcome = lambda: fail(DeviceUnavailable("gone"))
        with capturedLogs() as logs:
            self.loop.start()
            self.clock.pump([0.0, 10.0])
        self.assertEqual([event["log_level"] for event in logs], [LogLevel.warn])

    def test_controlCharacters(self) -> None:
        """The text of an exception, which may be a peer's, has no control characters in logs and findings."""
        self.outcome = lambda: fail(DeviceUnavailable("no\x1b[2J\n"))
        with capturedLogs() as logs:
            self.loop.start()
            self.clock.advance(0.0)
        texts = [formatEvent(each) for each in logs]
        self.assertEqual(texts, [r"sweep failed, and is tried again: no\x1b[2J\x0a"])
        self.assertEqual([one.text for one in self.supervisor.findings()], [r"no\x1b[2J\x0a"])

    def test_step(self) -> None:
        """A step that fails makes its run fail, but the other steps are executed."""
        done: list[int] = []

        async def run() -> bool:
            with self.loop.step("first"):
                raise ValueError("oops")
            with self.loop.step("second"):
                done.append(2)
            return True

        self.outcome = run
        self.loop.start()
        self.clock.advance(0.0)
        self.assertEqual((done, self.loop.problem, self.loop.failures), ([2], "first: oops", 1))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_hangs(self) -> None:
        """A run that does not end is reported as late, and the watchdog is no longer fed."""
        self.outcome = Deferred
        self.loop.start()
        self.clock.pump([0.0, LATE_SECONDS])
        self.assertEqual((self.supervisor.findings(), self.supervisor.isAlive()), ([], True))
        self.clock.advance(1.0)
        (found,) = self.supervisor.findings()
        self.assertEqual((found.kind, found.text), ("loop-late", "it has done no work for 601 s"))
        self.assertFalse(self.supervisor.isAlive())
        self.loop.cancel()
        self.assertEqual((self.supervisor.findings(), self.supervisor.isAlive()), ([], True))
        self.clock.advance(10.0)
        self.assertEqual(self.runs, 2)

    def test_wanted(self) -> None:
        """A run that is requested during another one starts after it; the earliest requested time counts."""
        running: Deferred[bool] = Deferred()
        self.outcome = lambda: running
        self.loop.start()
        self.clock.advance(0.0)
        self.loop.runIn(5.0)
        self.loop.runIn(2.0)
        self.clock.advance(1.0)
        running.callback(True)
        self.clock.advance(0.5)
        self.assertEqual(self.runs, 1)
        self.outcome = lambda: succeed(True)
        self.clock.advance(0.5)
        self.assertEqual(self.runs, 2)

    def test_noPause(self) -> None:
        """A loop whose interval cannot be computed still runs again."""
        loop = SupervisedLoop(self.clock, "x", self.run_, lambda: 1 // 0)
        loop.start()
        self.clock.advance(0.0)
        self.clock.advance(3600.0)
        self.assertEqual(self.runs, 2)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

    def test_idle(self) -> None:
        """A run with nothing to do neither fails nor counts as work."""
        self.outcome = lambda: succeed(False)
        self.loop.start()
        self.clock.pump([0.0, 10.0])
        self.assertEqual((self.supervisor.ages(), self.supervisor.findings()), ([("sweep", 10.0)], []))

    def test_onRequest(self) -> None:
        """The age of a loop that runs on request begins when its oldest run is due that has not succeeded."""
        loop = SupervisedLoop(self.clock, "refresh", self.run_, lambda: None, isPeriodic=False)
        loop.start(None)
        self.clock.advance(1000.0)
        self.assertEqual(loop.age(), 0.0)
        loop.runIn(50.0)
        self.clock.advance(40.0)
        self.assertEqual(loop.age(), 0.0)
        self.outcome = lambda: fail(DeviceUnavailable("gone"))
        self.clock.pump([10.0, 30.0])
        self.assertEqual((loop.failures, loop.age()), (1, 30.0))
        self.outcome = Deferred
        loop.runNow()
        self.clock.advance(30.0)
        self.assertEqual((loop.isRunning, loop.age()), (True, 60.0))
        loop.runIn(5.0)
        loop.cancel()
        self.outcome = lambda: succeed(True)
        self.clock.pump([5.0, 100.0])
        self.assertEqual((self.runs, loop.age()), (3, 0.0))

    def test_stop(self) -> None:
        """A stopped loop leaves no timer and does not run again."""
        running: Deferred[bool] = Deferred()
        self.outcome = lambda: running
        self.loop.start()
        self.clock.advance(0.0)
        ended = self.loop.stop()
        self.assertNoResult(ended)
        running.callback(True)
        self.successResultOf(ended)
        self.loop.runIn(0.0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_checks(self) -> None:
        """The supervisor continues after a check has raised."""
        checks: list[int] = []

        def check() -> None:
            checks.append(1)
            raise ValueError("oops")

        self.supervisor.start(check)
        self.clock.pump([10.0] * 3)
        self.assertEqual((len(checks), len(self.flushLoggedErrors(ValueError))), (3, 3))
        self.supervisor.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])


_PARTS = ("txrdma.fabric.", "txrdma.monitor.diagnosis.", "txrdma.monitor.reading.")
_OTHERS = {"_settings", "statistics", "_unwatchPort", "_seconds"}
"""Values without functions that can fail, and a function that only L{FabricPoller.stop} calls."""


def collaboratorsOf(owner: FabricPoller | FabricDiagnosis | FindingReports) -> list[str]:
    """Return paths of what a poller calls, or whose methods it calls, so that new ones count."""
    found = []
    for name, value in vars(owner).items():
        if (callable(value) or type(value).__module__.startswith(_PARTS)) and name not in _OTHERS:
            found.append(name)
        if isinstance(value, FabricDiagnosis | FindingReports):
            found += [f"{name}.{each}" for each in collaboratorsOf(value)]
    return found


class ChaosTests(PollerTestCase):
    """A poller with one collaborator that raises once; the collaborators are found by recording calls."""

    settings = PollerSettings(sweepSeconds=30.0)
    CALLS: tuple[int, ...] = (1,)
    """Number of the call that raises."""

    def raising(self, owner: object, name: str, number: int) -> list[int]:
        """Make a function raise at one of its calls; return a list that records the calls."""
        function = getattr(owner, name)
        calls = [0]

        def called(*args: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] == number:
                raise ValueError(f"{name} fails")
            return function(*args, **options)

        setattr(owner, name, called)
        return calls

    def ownerOf(self, collaborator: str, name: str) -> object:
        """Return the object that has a function of a collaborator, or the collaborator itself."""
        path = f"{collaborator}.{name}" if name else collaborator
        return attrgetter(path.rpartition(".")[0])(self.poller) if "." in path else self.poller

    def callSites(self) -> list[tuple[str, str]]:
        """Return the collaborators and their functions that a poller calls."""
        counted: dict[tuple[str, str], list[int]] = {}
        for collaborator in collaboratorsOf(self.poller):
            owner = self.ownerOf(collaborator, "")
            name = collaborator.rpartition(".")[2]
            if callable(getattr(owner, name)):
                counted[collaborator, ""] = self.raising(owner, name, 0)
            else:
                owner = getattr(owner, name)
                for name in dir(owner):
                    if not name.startswith("_") and callable(getattr(owner, name)):
                        counted[collaborator, name] = self.raising(owner, name, 0)
        self.live()
        return [site for site, calls in counted.items() if calls[0]]

    def live(self) -> None:
        """Poll a fabric in which a host is lost and returns, and errors are counted."""
        self.started()
        self.fabric.cut("c")
        self.fabric.setCounters("left", 2, symbolErrorCounter=60, portRcvErrors=7)
        self.pump(40.0)
        self.fabric.heal("c")
        self.pump(40.0)

    @slow("it polls a fabric for minutes, for each function that can raise")
    def test_each(self) -> None:
        """Each function raises once: the poller continues and reports it. Here every other function."""
        self.check(0)

    @slow("it polls a fabric for minutes, for each function that can raise")
    def test_eachOther(self) -> None:
        """The other functions, in a test of their own."""
        self.check(1)

    def check(self, first: int) -> None:
        callSites = self.callSites()
        self.poller.stop()
        self.assertGreater(len(callSites), 20)
        some = {"findings.journal", "congestion", "findings._notify"}
        self.assertLess(some, {name for name, _ in callSites})
        for collaborator, name in callSites[first::2]:
            for number in self.CALLS:
                with self.subTest(f"{collaborator}.{name} at call {number}"):
                    self.setUp()
                    self.raising(
                        self.ownerOf(collaborator, name), name or collaborator.rpartition(".")[2], number
                    )
                    self.live()
                    self.goesOn()
                    self.flushLoggedErrors(ValueError)  # goesOn() may have made a later call
                    self.poller.stop()

    def goesOn(self) -> None:
        """Check that a poller that had a failure detects the loss of another host, and reads counters."""
        self.pump(20.0)
        statistics = self.poller.statistics
        sweeps, turns = statistics.sweeps, statistics.turns
        self.output()
        self.fabric.cut("d")
        self.pump(65.0)
        self.assertGreaterEqual(statistics.sweeps, sweeps + 2)
        self.assertGreaterEqual(statistics.turns, turns + 6)
        self.assertIn(("raised", "node-gone", "d"), self.output())
        self.assertEqual([loop.problem for loop in self.poller.supervisor.loops], [""] * 3)
        self.assertFalse([key for key in self.poller.findings.log.open if key.kind.startswith("loop-")])
        self.assertEqual(self.rate("left", 1), 0.0)

    def test_sweeps(self) -> None:
        """A sweep that raises any exception is repeated, and is a finding until one succeeds."""
        self.started()
        calls = 0

        def managerFindings(*args: object) -> Any:
            nonlocal calls
            calls += 1
            raise ValueError("oops")

        self.patch(pollerModule, "managerFindings", managerFindings)
        self.pump(200.0)
        self.assertGreater(calls, 3)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assertIn(("raised", "loop-failed", "sweep"), self.output())

    def test_refresh(self) -> None:
        """A refresh with a part that raises is repeated, although nothing else has changed."""
        self.started()
        self.pump(20.0)
        self.raising(self.poller.diagnosis, "check", 1)
        self.poller._sign(self.fabric.node("c").guid)
        refreshes = next(loop for loop in self.poller.supervisor.loops if loop.name == "refresh")
        self.pump(3.0)
        self.assertEqual(refreshes.problem, "checking what has changed: check fails")
        self.pump(60.0)
        self.assertEqual(refreshes.problem, "")
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_hangs(self) -> None:
        """A sweep that does not end is a finding."""
        self.started()
        self.patch(pollerModule, "managerFindings", lambda *args: Deferred())
        self.pump(LATE_SECONDS + 60.0)
        self.assertIn(("raised", "loop-late", "sweep"), self.output())
        self.assertFalse(self.poller.supervisor.isAlive())

    def test_survey(self) -> None:
        """A survey that raises is repeated, and is a finding meanwhile."""
        for name in ("_survey", "reading", "findings"):
            self.setUp()
            surveyor = Surveyor(self.clock, self.agent, self.poller, 900.0)
            self.addCleanup(surveyor.stop)
            calls = self.raising(surveyor if name == "_survey" else self.poller.cables, name, 1)
            self.started(0.0)
            surveyor.start()
            self.pump(200.0)
            self.assertIn(("raised", "loop-failed", "survey"), self.output(), name)
            self.pump(120.0)
            self.assertIn(("cleared", "loop-failed", "survey"), self.output(), name)
            self.assertEqual(calls[0], 2, name)
            self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)


class ServiceTests(SynchronousTestCase):
    """A service whose parts raise in a round or while a finding is reported."""

    def setUp(self) -> None:
        text = f'port = "sim:fattree:4"\nweb.listen = ""\nhistory.file = "{self.mktemp()}"'
        self.service = MonitorService(reactor, parseConfig(text))
        self.addCleanup(self.service._agent.close)
        assert self.service._duty is not None and self.service._duty.writer is not None
        self.addCleanup(self.service._duty.writer._store.close)
        self.calls: list[str] = []

    def broken(self, owner: object, name: str, isBroken: bool) -> None:
        def called(*args: object) -> object:
            self.calls.append(name)
            if isBroken:
                raise ValueError(name)
            return succeed(None) if name == "update" else []

        self.patch(owner, name, called)

    def test_round(self) -> None:
        """If one part fails after a round, all other parts are called."""
        service, duty = self.service, self.service._duty
        assert duty is not None
        parts: list[tuple[object, str]] = [
            *((service._notifier, "ready"), (service, "_clockFindings"), (duty.writer, "add")),
            *((duty.files, "update"), (service.site.hub, "fabricChanged")),
        ]
        names = [name for _owner, name in parts]
        self.patch(duty, "_rowsSince", lambda since: [[]])
        for broken in names:
            self.calls.clear()
            for owner, name in parts:
                self.broken(owner, name, name == broken)
            self.successResultOf(Deferred.fromCoroutine(service._read(0.0)))
            self.assertEqual(self.calls, names)
            self.assertIn(broken, service.poller.rounds.problem)
            self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_log(self) -> None:
        """A finding is logged with its severity, location, text and advice, and when it is cleared."""
        for event, state in ((Raised(entryOf()), "is there"), (Cleared(entryOf()), "is cleared")):
            with capturedLogs() as logs:
                logFinding(event)
            self.assertEqual(
                [formatEvent(one) for one in logs], [f"warning width {state}: leaf 1: it is slow. Mend it."]
            )

    def test_event(self) -> None:
        """If one part raises for a finding, the others receive it."""
        service = self.service
        assert service._duty is not None
        receivers: list[Any] = [service._duty.notifier, service.site.hub]
        for broken in receivers:
            self.calls.clear()
            for receiver in receivers:
                self.broken(receiver, "findingChanged", receiver is broken)
            service._logFinding(Raised(entryOf()))
            self.assertEqual(self.calls, ["findingChanged", "findingChanged"])
            self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)


class NotificationTests(SynchronousTestCase):
    """Channels and a store that raise exceptions."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(5000.0)

    def test_channel(self) -> None:
        """If a channel raises, others are not delayed, and the channel gets the alerts later."""
        one, other = RecordingOutlet("one", raises=2), RecordingOutlet("other")
        notifier = Notifier(self.clock, AlertRules(0.0, 0.0), [one, other])
        notifier.start()
        self.addCleanup(notifier.stop)
        notifier.findingChanged(Raised(entryOf()))
        self.clock.advance(0.0)
        self.assertEqual((len(one.alerts), len(other.alerts)), (0, 1))
        self.assertEqual([found.where for found in notifier.findings()], ["one"])
        self.clock.pump([15.0] * 4)
        self.assertEqual((len(one.alerts), len(other.alerts), notifier.findings()), (1, 1, []))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_memory(self) -> None:
        """If the store raises or does not answer, findings are still sent."""
        for outcome in (lambda: fail(ValueError("the memory fails")), Deferred):
            channel, memory = RecordingOutlet(), AbsentMemory()
            answers = chain([outcome], repeat(partial(succeed, [])))
            self.patch(memory, "appendNow", lambda _, answers=answers: next(answers)())
            notifier = Notifier(self.clock, AlertRules(0.0, 0.0), [channel], memory)  # type: ignore[arg-type]  # a fake
            notifier.start()
            notifier.findingChanged(Raised(entryOf()))
            self.clock.pump([0.0, MEMORY_SECONDS, 0.0, 15.0])
            self.assertEqual(len(channel.alerts), 1)
            notifier.stop()
            self.flushLoggedErrors(ValueError)
