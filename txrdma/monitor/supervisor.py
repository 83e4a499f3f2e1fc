"""
Supervised loops: periodic tasks of a monitor, which continue after runs that raise exceptions.

The next run is scheduled regardless of the result of the last one. A failure is logged once, and is a finding
until a run succeeds; so is a run that does not end. systemd's watchdog is notified only while the runs of
vital loops end in time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable, RDMAError
from txrdma.fabric.health import Finding
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import errorText
from txrdma.kit.strings import escaped

_log = Logger()

CHECK_SECONDS: Final = 10.0
"""Seconds between two checks of all loops."""

LATE_SECONDS: Final = 600.0
"""Seconds after which a run that was due, or has begun, is late, at least."""

_FALLBACK_SECONDS: Final = 60.0
"""Seconds until the next run where the pause cannot be computed."""


def _textOf(failure: Failure) -> str:
    return escaped(errorText(failure.value).rstrip("."))


class SupervisedLoop:
    """
    A task that runs periodically from L{start} to L{stop}, one run at a time.

    @ivar name: name of the loop in findings and metrics.
    @ivar problem: the failure of the last run; C{""} if it succeeded.
    @ivar failures: number of failed runs since the last successful one.
    @ivar isRunning: whether a run is in progress.
    @ivar isVital: whether the process is useless without this loop: then systemd restarts it if a run does
        not end.
    @ivar succeededAt: time of the end of the last run that has done its work; before that, the time of
        L{start}.
    @ivar isReported: whether the supervisor reports its failures; otherwise its owner does.
    """

    def __init__(
        self,
        clock: IReactorTime,
        name: str,
        run: Callable[[], Awaitable[bool | None]],
        pauseSeconds: Callable[[], float | None],
        lateSeconds: Callable[[], float] = lambda: LATE_SECONDS,
        isVital: bool = False,
        isReported: bool = True,
        isPeriodic: bool = True,
        expected: tuple[type[Exception], ...] = (RDMAError,),
    ) -> None:
        """
        @param run: does the work once; returns False if there was nothing to do, and None if it was not
            tried, so that the last failure still counts.
        @param pauseSeconds: returns the time from the end of a run to the next one; None to wait for
            L{runIn}.
        @param lateSeconds: returns the time after which a run that has not ended is late.
        @param isPeriodic: whether it always has another run to do; otherwise it also waits for requests.
        @param expected: exceptions that are logged without a traceback.
        """
        self.name = name
        self.problem = ""
        self.failures = 0
        self.isRunning = False
        self.isVital = isVital
        self.isReported = isReported
        self.succeededAt = clock.seconds()
        self._clock = clock
        self._run = run
        self._pauseSeconds = pauseSeconds
        self._lateSeconds = lateSeconds
        self._isPeriodic = isPeriodic
        self._expected = expected
        self._isStarted = self._isCancelled = self._isBroken = False
        self._beganAt = 0.0
        self._unservedSince = inf  # when the first run was due since the last success
        self._dueAt: float | None = None
        self._timer = Timer(clock)
        self._task: Deferred[None] | None = None
        self._waiting: list[Deferred[None]] = []
        self._logged: set[tuple[str, str]] = set()

    def start(self, seconds: float | None = 0.0) -> None:
        """Begin periodic runs, the first one after this number of seconds; None to wait for L{runIn}."""
        self._isStarted = True
        self.succeededAt = self._clock.seconds()
        if seconds is not None:
            self.runIn(seconds)

    def stop(self) -> Deferred[None]:
        """Begin no other run; fires when no run is in progress. Idempotent."""
        self._isStarted = False
        self._dueAt = None
        self._unservedSince = inf
        self._timer.stop()
        done: Deferred[None] = Deferred()
        if self.isRunning:
            self._waiting.append(done)
        else:
            done.callback(None)
        return done

    def cancel(self) -> None:
        """End the current run, neither as failure nor as success; there were no failures before it."""
        self._isCancelled = self.isRunning
        self._forgive()
        if self._task is not None:
            self._task.cancel()

    def runIn(self, seconds: float) -> None:
        """Run in this number of seconds, after the current run, unless a run is due earlier."""
        if not self._isStarted:
            return
        at = self._clock.seconds() + seconds
        self._unservedSince = min(at, self._unservedSince)
        if self.isRunning:
            self._dueAt = at if self._dueAt is None else min(at, self._dueAt)
            return
        self._timer.ensure(seconds, self._begin)

    def runNow(self) -> None:
        """Run at once, unless a run is in progress or the loop has stopped."""
        if self._isStarted and not self.isRunning:
            self._timer.stop()
            self._unservedSince = min(self._clock.seconds(), self._unservedSince)
            self._begin()

    @property
    def isDue(self) -> bool:
        """Return whether a run is scheduled or in progress."""
        return self.isRunning or self._timer.isPending

    def lateBy(self) -> float:
        """Return the seconds by which the current run, or the next one, is late; 0 if neither is."""
        since = self._beganAt if self.isRunning else self._timer.dueAt
        return max(0.0, self._clock.seconds() - since - self._lateSeconds())

    def age(self) -> float:
        """Return the seconds since the last success; if the loop waits for requests, since a run is due."""
        since = self.succeededAt if self._isPeriodic else self._unservedSince
        return max(0.0, self._clock.seconds() - since)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """
        Isolate a part of a run: an exception makes the run a failed one, and the other parts continue.

        Only L{DeviceUnavailable}, which means that nothing can be queried, and a cancellation end the run.

        @param what: name of the part, for the log and the finding.
        """
        try:
            yield
        except (CancelledError, DeviceUnavailable):
            raise
        except Exception:
            self._failed(Failure(), what)

    def _begin(self) -> None:
        self.isRunning = True
        self._isCancelled = self._isBroken = False
        self._beganAt = self._clock.seconds()
        task = Deferred.fromCoroutine(self._once())
        if self.isRunning:
            self._task = task

    async def _once(self) -> None:
        try:
            hasWorked = await self._run()
        except Exception:
            if not self._isCancelled:
                self._failed(Failure(), "")
        else:
            if not self._isBroken and hasWorked is not None:
                self._forgive()
                if hasWorked:
                    self.succeededAt = self._clock.seconds()
        finally:
            self._ended()

    def _ended(self) -> None:
        """Schedule the next run: after the usual pause, or earlier if L{runIn} was called meanwhile."""
        self.isRunning = False
        self._task = None
        self.failures += self._isBroken
        wanted, self._dueAt = self._dueAt, None
        if self._isStarted:
            now = self._clock.seconds()
            pauses = [] if wanted is None else [max(0.0, wanted - now)]
            try:
                pause = self._pauseSeconds()
            except Exception:
                _log.failure("scheduling the next run of {name} failed", name=self.name)
                pause = _FALLBACK_SECONDS
            if pause is not None:
                pauses.append(pause)
            if pauses:
                self.runIn(min(pauses))
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.callback(None)

    def _forgive(self) -> None:
        self._unservedSince = inf
        self.problem = ""
        self.failures = 0
        self._logged.clear()

    def _failed(self, failure: Failure, what: str) -> None:
        """Store a failure, and log it if it was not logged since the last success."""
        self._isBroken = True
        why = _textOf(failure)
        self.problem = f"{what}: {why}" if what else why
        name = f"{self.name} ({what})" if what else self.name
        kind = (what, type(failure.value).__name__)
        if kind not in self._logged:
            self._logged.add(kind)
            if failure.check(*self._expected):
                _log.warn("{name} failed, and is tried again: {why}", name=name, why=why)
            else:
                _log.failure("{name} failed, and is tried again", failure, name=name)


class Supervisor:
    """
    Supervises all loops of a monitor.

    @ivar loops: loops in the order in which they were added.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self.loops: list[SupervisedLoop] = []
        self._clock = clock
        self._timer = Timer(clock)
        self._check: Callable[[], object] = lambda: None

    def add(self, loop: SupervisedLoop) -> SupervisedLoop:
        """Begin to supervise a loop, and return it."""
        self.loops.append(loop)
        return loop

    def remove(self, loop: SupervisedLoop) -> None:
        """Stop supervising a loop. Idempotent."""
        self.loops = [one for one in self.loops if one is not loop]

    def start(self, check: Callable[[], object]) -> None:
        """Call a function periodically to report L{findings}: a run that hangs cannot do so itself."""
        self._check = check
        self._timer.start(CHECK_SECONDS, self._expired)

    def stop(self) -> None:
        """End the checks; the loops are stopped by their owners. Idempotent."""
        self._timer.stop()

    def _expired(self) -> None:
        try:
            with _log.failuresHandled("while supervised loops were checked"):
                self._check()
        finally:
            self._timer.start(CHECK_SECONDS, self._expired)

    def findings(self) -> list[Finding]:
        """Return findings about loops whose last run has failed, or does not end."""
        found = [
            Finding("loop-failed", loop.name, loop.problem)
            for loop in self.loops
            if loop.problem and loop.isReported
        ]
        return found + [
            Finding("loop-late", loop.name, f"it has done no work for {loop.age():.0f} s")
            for loop in self.loops
            if loop.lateBy()
        ]

    def isAlive(self) -> bool:
        """Return whether no vital run is late; failed ones do not count: a restart would not help."""
        return not any(loop.isVital and loop.lateBy() for loop in self.loops)

    def ages(self) -> list[tuple[str, float]]:
        """Return the L{SupervisedLoop.age} of each loop, by the names of the loops."""
        return [(loop.name, loop.age()) for loop in self.loops]
