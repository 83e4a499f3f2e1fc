"""
A process that runs one part of a verification: C{python -m txrdma.verify.worker TASK}.

If a driver crashes or hangs, only this process is lost, and everything that it has opened is released. It is
killed when its parent ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.reporter import TestResult

from txrdma.error import DeviceUnavailable, RDMAError
from txrdma.kit.values import frozen
from txrdma.testing.streams.forkserver import dieWithParent
from txrdma.verify.checks import Check, Outcome, Reporter
from txrdma.verify.measuring import MeasuringClient
from txrdma.verify.perftest import measurePerftest
from txrdma.verify.serving import Serving
from txrdma.verify.streams import converse
from txrdma.verify.subject import Subject, TestedPort
from txrdma.verify.suites import casesOf

_TESTS_IN_QUICK_RUNS: Final = 40
_SECONDS: Final = 0.5
_LOOPBACK: Final = "127.0.0.1"
_MODULE: Final = "txrdma.verify.worker"


@frozen
class WorkerTask:
    """
    The task of a worker.

    @ivar part: a key of L{txrdma.verify.suites.SUITES}, C{streams}, C{peer}, or C{serve}.
    @ivar devices: both device strings; C{ports}: numbers of their ports.
    @ivar first: number of the first check to run; those before were run by another worker.
    @ivar peer: address of the server of the part C{peer}; empty for one that the worker starts itself.
    @ivar control: TCP port of that server.
    @ivar patience: factor for time limits.
    """

    part: str
    devices: tuple[str, str]
    ports: tuple[int, int] = (1, 1)
    first: int = 0
    isQuick: bool = False
    peer: str = ""
    control: int = 0
    patience: float = 1.0

    def command(self) -> list[str]:
        """Return the command line of a worker for this task."""
        return [sys.executable, "-m", _MODULE, json.dumps(asdict(self))]

    @classmethod
    def decode(cls, text: str) -> WorkerTask:
        """Return the task of a command line's argument."""
        found = json.loads(text)
        return cls(**{**found, "devices": tuple(found["devices"]), "ports": tuple(found["ports"])})


class _Result(TestResult):
    """Reports results of tests."""

    def __init__(self, reporter: Reporter, part: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._reporter = reporter
        self._part = part

    def startTest(self, test: Any) -> None:
        """Report the beginning of a test."""
        super().startTest(test)  # type: ignore[no-untyped-call]  # likewise
        self._begun = time.monotonic()
        self._outcome, self._text, self._detail = Outcome.PASSED, "", ""
        self._reporter.started(_nameOf(test))

    def stopTest(self, test: Any) -> None:
        """Report the result of a test."""
        super().stopTest(test)  # type: ignore[no-untyped-call]  # likewise
        seconds = time.monotonic() - self._begun
        found = Check(self._part, _nameOf(test), self._outcome, self._text, self._detail, seconds)
        self._reporter.check(found)

    def addFailure(self, test: Any, fail: Any) -> None:
        """Record a failure; the first of a test counts."""
        if self._outcome is not Outcome.FAILED:
            lines = fail.getErrorMessage().strip().splitlines() or [str(fail.type)]
            self._outcome, self._text, self._detail = Outcome.FAILED, lines[0], fail.getTraceback()

    def addError(self, test: Any, error: Any) -> None:
        """Record an exception of a test: reports do not distinguish it from a failed assertion."""
        self.addFailure(test, error)

    def addSkip(self, test: Any, reason: object) -> None:
        """Record the reason of a skip."""
        self._outcome, self._text = Outcome.SKIPPED, str(reason)


def _nameOf(test: Any) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def run(task: WorkerTask, reporter: Reporter) -> None:
    """
    Run a part, and report its results.

    @raise RDMAError: a device cannot be opened, or the server cannot be reached.
    """
    from twisted.internet import reactor

    here, there = (TestedPort.read(reactor, *each) for each in zip(task.devices, task.ports, strict=True))
    if task.part == "streams":
        converse(reporter, (here, there), task.isQuick, task.patience)
    elif task.part == "peer":
        _withServer(task, reporter, here)
        if not task.peer:
            _perftest(reporter, (here, there))
    elif task.part == "serve":
        _untilDone(_serve(there, reporter))
    else:
        cases = list(casesOf(task.part, (here, there), task.patience))
        if task.isQuick:
            cases = cases[:: -(-len(cases) // _TESTS_IN_QUICK_RUNS)]
        reporter.total(len(cases))
        result = _Result(reporter, task.part)
        for case in cases[task.first :]:
            case.run(result)


def _withServer(task: WorkerTask, reporter: Reporter, here: TestedPort) -> None:
    """Run the checks with a server; without its address, with another worker as the server."""
    from twisted.internet import reactor

    seconds = _SECONDS / 4 if task.isQuick else _SECONDS
    client = MeasuringClient(reactor, reporter, here, task.peer or _LOOPBACK, seconds, task.patience)
    if task.peer:
        _untilDone(client.run(task.control, task.first))
        return
    words = replace(task, part="serve").command()
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise DeviceUnavailable("the second device cannot be served")
            _untilDone(client.run(json.loads(line)["port"], task.first))
        finally:
            server.kill()


def _perftest(reporter: Reporter, subject: Subject) -> None:
    """Measure by perftest, and report a failure as a check."""
    reporter.started("perftest")
    outcome, text = Outcome.PASSED, ""
    try:
        count = 0
        for measured in measurePerftest(subject):
            reporter.measured(measured)
            count += 1
        if not count:
            outcome, text = Outcome.SKIPPED, "perftest is not installed, or the device is not the kernel's"
    except OSError as error:
        outcome, text = Outcome.FAILED, str(error)
    reporter.check(Check("peer", "perftest", outcome, text))


async def _serve(there: TestedPort, reporter: Reporter) -> None:
    """Serve clients on this host until this process is killed."""
    from twisted.internet import reactor

    reporter.port(await Serving(reactor, there, _LOOPBACK).start(0))
    await Deferred()


def _untilDone(work: Coroutine[Deferred[Any], Any, None]) -> None:
    """Run the reactor until a coroutine has finished, and raise its exception."""
    import twisted.internet.reactor as running

    reactor: Any = running  # its type depends on the platform
    failures: list[Failure] = []

    def begin() -> None:
        Deferred.fromCoroutine(work).addErrback(failures.append).addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(begin)
    reactor.run(installSignalHandlers=False)
    if failures:
        failures[0].raiseException()


def main(arguments: Sequence[str]) -> None:
    """Run the task of the command line; messages are written to the original standard output."""
    dieWithParent()
    os.setsid()  # Ctrl-C is for the parent
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    status = 0
    try:
        run(WorkerTask.decode(arguments[0]), Reporter(out))
    except RDMAError as error:
        print(error, file=sys.stderr)
        status = 1
    out.flush()
    sys.stderr.flush()
    os._exit(status)  # without waiting for threads


if __name__ == "__main__":
    main(sys.argv[1:])
