"""Runs the parts of a verification, each in a worker process, and collects their results."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import signalName
from txrdma.verify.checks import Check, decoded, Measured, Outcome
from txrdma.verify.worker import WorkerTask

_STALL_SECONDS: Final = 120.0
"""Seconds without a message after which a worker is killed; a single conversation may take a minute."""

_RESTARTS: Final = 3
"""Number of times that a part continues after a worker has crashed or hung."""

_LAST_LINES: Final = 20


class Worker(ProcessProtocol):
    """
    A worker process.

    @ivar done: number of results; C{started}: the check that runs.
    @ivar ended: fires with the description of an early end, or an empty text.
    """

    def __init__(
        self, reactor: Any, received: Callable[[int | Check | Measured], None], stallSeconds: float
    ) -> None:
        """@param stallSeconds: time without messages after which the process is killed."""
        self._stallSeconds = stallSeconds
        self._reactor = reactor
        self._received = received
        self._rest = b""
        self._errors = b""
        self._stall = Timer(reactor)
        self._reason = ""
        self.done = 0
        self.started = ""
        self.ended: Deferred[str] = Deferred()

    def connectionMade(self) -> None:
        self._watch()

    def outReceived(self, data: bytes) -> None:
        self._watch()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)

    def errReceived(self, data: bytes) -> None:
        self._errors = (self._errors + data)[-(1 << 16) :]

    def _line(self, line: bytes) -> None:
        try:
            message = decoded(line)
        except ValueError:
            self._errors += line + b"\n"
            return
        if isinstance(message, str):
            self.started = message
            return
        if isinstance(message, Check):
            self.done, self.started = self.done + 1, ""
        self._received(message)

    def _watch(self) -> None:
        self._stall.start(self._stallSeconds, self._stalled)

    def _stalled(self) -> None:
        self.kill(f"nothing happened for {self._stallSeconds:g} s")

    def kill(self, reason: str) -> None:
        """Kill the process, whose descriptors and memory the kernel then releases."""
        self._reason = self._reason or reason
        try:
            assert self.transport is not None
            self.transport.signalProcess("KILL")
        except ProcessExitedAlready:
            pass

    def processEnded(self, reason: Failure) -> None:
        self._stall.stop()
        if reason.check(ProcessDone):
            self.ended.callback("")
            return
        number = getattr(reason.value, "signal", None)
        how = f"ended by {signalName(number)}" if number else "ended with an error"
        last = self.lastLines[-1:]
        self.ended.callback(self._reason or "".join(last) or how)

    @property
    def lastLines(self) -> list[str]:
        """The last lines that the process wrote to its standard error."""
        return self._errors.decode(errors="replace").splitlines()[-_LAST_LINES:]


class WorkerSupervisor:
    """
    Runs tasks one after the other.

    @ivar checks: all results so far; C{measurements}: all measurements.
    @ivar isInterrupted: whether the run was ended early.
    """

    def __init__(
        self, reactor: Any, progress: Callable[[str, int, int], None] = lambda what, done, total: None
    ) -> None:
        """@param progress: called with the current part, the number of its results, and their total."""
        self._reactor = reactor
        self._progress = progress
        self._worker: Worker | None = None
        self.checks: list[Check] = []
        self.measurements: list[Measured] = []
        self.isInterrupted = False

    def interrupt(self) -> None:
        """End the current task, and begin no others."""
        self.isInterrupted = True
        if self._worker is not None:
            self._worker.kill("interrupted")

    async def run(self, tasks: Sequence[WorkerTask]) -> None:
        """Run tasks, and collect their results."""
        for task in tasks:
            for _ in range(1 + _RESTARTS):
                if self.isInterrupted:
                    return
                done = await self._once(task)
                if done is None:
                    break
                task = replace(task, first=done)

    async def _once(self, task: WorkerTask) -> int | None:
        """Run a worker; return the number of the check with which another one continues, or None."""
        total = 0

        def received(message: int | Check | Measured) -> None:
            nonlocal total
            if isinstance(message, int):
                total = message
            elif isinstance(message, Check):
                self.checks.append(message)
                self._progress(task.part, task.first + worker.done, total)
            else:
                self.measurements.append(message)

        worker = self._worker = Worker(self._reactor, received, _STALL_SECONDS * task.patience)
        self._progress(task.part, task.first, total)
        words = task.command()
        self._reactor.spawnProcess(worker, words[0], words, env=dict(os.environ))
        try:
            failure = await worker.ended
        finally:
            self._worker = None
        if not failure or self.isInterrupted:
            return None
        detail = "\n".join(worker.lastLines)
        self.checks.append(Check(task.part, worker.started or "start", Outcome.FAILED, failure, detail))
        following = task.first + worker.done + 1
        return following if worker.started and following < total else None
