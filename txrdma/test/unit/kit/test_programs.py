"""Output of other programs, with simulated processes."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.kit.programs import outputOf


class ProcessClock(Clock):
    """A clock that starts simulated processes, which tests write for and end."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[Any] = []
        self.killed = 0
        self.written = b""
        self.error: OSError | None = None

    def spawnProcess(self, protocol: Any, program: str, command: Any, environment: Any) -> None:
        if self.error is not None:
            raise self.error
        self.started.append(protocol)
        protocol.makeConnection(self)

    def write(self, data: bytes) -> None:
        self.written = data

    def closeStdin(self) -> None:
        """Do what a process does: receive the end of its input."""

    def signalProcess(self, signal: str) -> None:
        self.killed += 1
        if self.killed > 1:
            raise ProcessExitedAlready

    def loseConnection(self) -> None:
        """Do what a process does: close its pipes."""


class OutputTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = ProcessClock()

    def run_(self) -> tuple[Deferred[bytes], Any]:
        work = Deferred.fromCoroutine(outputOf(self.reactor, ("sh", "-c", "x"), 5.0, 10))
        return work, self.reactor.started[-1]

    def failed(self, work: Deferred[bytes], why: str) -> None:
        self.assertEqual(str(self.failureResultOf(work, DeviceUnavailable).value), f"sh {why}")
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_output(self) -> None:
        """The whole output is returned when the program has ended."""
        work, process = self.run_()
        for part in (b"one ", b"two"):
            process.outReceived(part)
        self.assertNoResult(work)
        process.processEnded(Failure(ProcessDone(0)))
        self.assertEqual(self.successResultOf(work), b"one two")
        self.assertEqual((self.reactor.getDelayedCalls(), self.reactor.killed), ([], 0))

    def test_failure(self) -> None:
        """The reason of a failure is the program's message, its status, or a signal."""
        for errors, status, why in (
            (b"no\x1bserver\n", 1, "failed: no\\x1bserver"),
            (b"", 3, "failed: it ended with status 3"),
            (b"x" * 1000, 1, f"failed: {'x' * 500}"),
            (b"", None, "failed: a signal has ended it"),
        ):
            work, process = self.run_()
            process.errReceived(errors)
            process.processEnded(Failure(ProcessTerminated(status, None if status else 9)))
            self.failed(work, why)

    def test_late(self) -> None:
        """A program that does not end in time is killed, and its end is ignored."""
        work, process = self.run_()
        self.reactor.advance(5.0)
        self.failed(work, "has not ended after 5 s")
        self.assertEqual(self.reactor.killed, 1)
        process.processEnded(Failure(ProcessTerminated(None, 9)))

    def test_tooMuch(self) -> None:
        """A program that prints too much is killed, also if it has ended already."""
        for _ in range(2):
            work, process = self.run_()
            process.outReceived(b"x" * 11)
            self.failed(work, "failed: it prints more than 10 octets")
            process.outReceived(b"more")
        self.assertEqual(self.reactor.killed, 2)

    def test_cancelled(self) -> None:
        """A program whose output is no longer wanted is killed."""
        work, _process = self.run_()
        work.addErrback(lambda _: None)
        work.cancel()
        self.assertEqual(self.reactor.killed, 1)

    def test_notStarted(self) -> None:
        """A program that is missing, or cannot be started, is reported."""
        self.reactor.error = BlockingIOError(11, "no more processes")
        self.failed(
            Deferred.fromCoroutine(outputOf(self.reactor, ("sh",), 5.0, 10)),
            "failed: [Errno 11] no more processes",
        )
        work = Deferred.fromCoroutine(outputOf(self.reactor, ("/no/such/program",), 5.0, 10))
        error = self.failureResultOf(work, DeviceUnavailable)
        self.assertEqual(str(error.value), "/no/such/program is not installed here")
