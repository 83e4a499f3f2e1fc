"""Workers that report results, crash, hang, or are interrupted."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.verify.checks import Check, Measured, Outcome, Reporter
from txrdma.verify.supervisor import Worker, WorkerSupervisor
from txrdma.verify.worker import WorkerTask

TASK = WorkerTask("verbs", ("soft", "soft"))
MEASURED = Measured("tcp:", 64, 10.0, "us")


class Process:
    """
    The transport of a worker.

    @ivar worker: the worker's protocol; C{task}: what it was started for.
    """

    def __init__(self, worker: Worker, task: WorkerTask) -> None:
        self.worker = worker
        self.task = task
        self.hasEnded = False
        worker.makeConnection(self)

    def signalProcess(self, name: str) -> None:
        """End the process by a signal."""
        if self.hasEnded:
            raise ProcessExitedAlready
        assert name == "KILL"
        self.end(ProcessTerminated(None, 9, 9))

    def report(self, *messages: Callable[[Reporter], None]) -> None:
        """Write messages to the standard output."""
        out = io.StringIO()
        for message in messages:
            message(Reporter(out))
        self.worker.childDataReceived(1, out.getvalue().encode())

    def end(self, reason: Exception | None = None) -> None:
        """End the process, by default with success."""
        self.hasEnded = True
        self.worker.processEnded(Failure(reason or ProcessDone(0)))


class Processes(Clock):
    """A reactor whose processes are controlled by a test."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[Process] = []

    def spawnProcess(self, protocol: Worker, path: str, words: Sequence[str], **more: Any) -> None:
        """Start a worker for the task of a command line."""
        self.processes.append(Process(protocol, WorkerTask.decode(words[-1])))


def passed(name: str) -> Callable[[Reporter], None]:
    """Return a function that reports a successful check."""

    def report(reporter: Reporter) -> None:
        reporter.started(name)
        reporter.check(Check("verbs", name, Outcome.PASSED))

    return report


class SupervisorTests(SynchronousTestCase):
    """A supervisor with simulated workers."""

    def setUp(self) -> None:
        self.reactor = Processes()
        self.progress: list[tuple[str, int, int]] = []
        self.supervisor = WorkerSupervisor(self.reactor, lambda *values: self.progress.append(values))

    def begin(self, *tasks: WorkerTask) -> Deferred[None]:
        return Deferred.fromCoroutine(self.supervisor.run(tasks or (TASK,)))

    @property
    def process(self) -> Process:
        return self.reactor.processes[-1]

    def outcomes(self) -> list[tuple[str, str]]:
        return [(check.name, check.outcome.value) for check in self.supervisor.checks]

    def test_results(self) -> None:
        """Results and measurements are collected, task after task."""
        running = self.begin(TASK, WorkerTask("btl", ("soft", "soft")))
        self.process.report(lambda reporter: reporter.total(2), passed("a"), passed("b"))
        self.process.end()
        self.assertNoResult(running)
        self.assertEqual(self.process.task.part, "btl")
        self.process.report(lambda reporter: reporter.measured(MEASURED))
        self.process.end()
        self.successResultOf(running)
        self.assertEqual(self.outcomes(), [("a", "passed"), ("b", "passed")])
        self.assertEqual(self.supervisor.measurements, [MEASURED])
        self.assertIn(("verbs", 2, 2), self.progress)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_crash(self) -> None:
        """The check during which a worker crashes has failed; another worker continues after it."""
        running = self.begin()
        self.process.report(lambda reporter: reporter.total(3), passed("a"), lambda r: r.started("b"))
        self.process.end(ProcessTerminated(None, 11, 11))
        self.assertEqual(self.process.task.first, 2)
        self.process.report(lambda reporter: reporter.total(3), passed("c"))
        self.process.end()
        self.successResultOf(running)
        self.assertEqual(self.outcomes(), [("a", "passed"), ("b", "failed"), ("c", "passed")])
        self.assertEqual(self.supervisor.checks[1].text, "ended by SIGSEGV")

    def test_crashOfLast(self) -> None:
        """After a crash in the last check, no worker is started."""
        running = self.begin()
        self.process.report(lambda reporter: reporter.total(1), lambda r: r.started("a"))
        self.process.end(ProcessTerminated(None, 6, 6))
        self.successResultOf(running)
        self.assertEqual(len(self.reactor.processes), 1)

    def test_manyCrashes(self) -> None:
        """A part ends after three further workers have crashed."""
        running = self.begin()
        for _ in range(4):
            self.assertNoResult(running)
            self.process.report(lambda reporter: reporter.total(9), lambda r: r.started("a"))
            self.process.end(ProcessTerminated(None, 11, 11))
        self.successResultOf(running)
        self.assertEqual([process.task.first for process in self.reactor.processes], [0, 1, 2, 3])

    def test_start(self) -> None:
        """A worker that cannot open its device reports the reason."""
        running = self.begin()
        self.process.worker.childDataReceived(2, b"no device mlx5_9\n")
        self.process.end(ProcessTerminated(1))
        self.successResultOf(running)
        (check,) = self.supervisor.checks
        self.assertEqual((check.name, check.text), ("start", "no device mlx5_9"))

    def test_hang(self) -> None:
        """A worker without messages for two minutes is killed; each message gives it more time."""
        running = self.begin()
        for name in "abc":
            self.reactor.advance(119)
            self.process.report(lambda reporter: reporter.total(4), passed(name))
        self.process.report(lambda reporter: reporter.started("d"))
        self.reactor.advance(121)
        self.successResultOf(running)
        self.assertEqual(self.supervisor.checks[-1].text, "nothing happened for 120 s")
        self.assertEqual(self.outcomes()[-1], ("d", "failed"))

    def test_patience(self) -> None:
        """More time is given on a slow host."""
        running = self.begin(WorkerTask("verbs", ("soft", "soft"), patience=2.0))
        self.reactor.advance(239)
        self.assertNoResult(running)
        self.reactor.advance(2)
        self.successResultOf(running)
        self.assertEqual(self.supervisor.checks[-1].text, "nothing happened for 240 s")

    def test_interrupted(self) -> None:
        """An interrupted run kills its worker, retains its results, and starts no other task."""
        running = self.begin(TASK, TASK)
        self.process.report(lambda reporter: reporter.total(3), passed("a"), lambda r: r.started("b"))
        self.supervisor.interrupt()
        self.successResultOf(running)
        self.assertTrue(self.supervisor.isInterrupted)
        self.assertEqual((self.outcomes(), len(self.reactor.processes)), ([("a", "passed")], 1))
