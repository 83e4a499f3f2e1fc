"""
Simulations of programs that use an API at random, and check its promises.

L{txrdma.testing.btl.users} and L{txrdma.testing.cm.scenario} have the programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final

from zope.interface import implementer

from twisted.logger import formatEvent, globalLogPublisher, ILogObserver, LogEvent, LogLevel
from twisted.python.failure import Failure

from txrdma.kit.delayedcalls import cancelCall
from txrdma.sim.network import Faults
from txrdma.testing.outcome import check, Outcome, Violation
from txrdma.testing.smc.hosts import Host, PatientClock, World

LONGEST_TROUBLE: Final = 2.0
"""Seconds of an event, such as a partition, with which connections do not end."""

_PATIENCE: Final = 300.0
_MOST_TURNS: Final = 300_000


class ProgramError(Exception):
    """
    Raised by callbacks of the programs.

    @ivar isCaught: whether it came back to the program, so that it is not logged; C{logged}: how often it
        was logged.
    """

    isCaught = False
    logged = 0


def drawFaults(random: Random, perfect: float, losses: Sequence[float]) -> Faults:
    """
    Draw the faults of a network.

    @param perfect: probability that there are none.
    """
    if random.random() < perfect:
        return Faults()
    return Faults(
        loss=random.choice(losses),
        duplication=random.choice((0.0, 0.02, 0.2)),
        corruption=random.choice((0.0, 0.0, 0.02)),
        late=random.choice((0.0, 0.0, 0.05)),
        delaySeconds=random.choice((10e-6, 0.001)),
        jitterSeconds=random.choice((0.0, 0.0002, 0.01)),
        merging=random.choice((1.0, 0.5)),
        congestion=random.choice((0.0, 0.0, 0.1)),
    )


class ProgramScenario:
    """
    A simulation of programs.

    @ivar isFinishing: whether the programs receive everything, so that everything comes to an end.
    @ivar problems: promises that were violated.
    @ivar counts: results, acts of the programs, and packets.
    """

    def __init__(self, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.world = World(seed, PatientClock())
        self.problems: list[str] = []
        self.isFinishing = False

    def require(self, holds: bool, what: str) -> None:
        """Record a violation, since transports contain exceptions of programs."""
        if not holds:
            self.problems.append(what)

    def broken(self, failure: Failure) -> None:
        """Record an exception of the simulation itself."""
        self.problems.append(failure.getTraceback())

    def play(self) -> Outcome:
        """
        Run the simulation.

        @raise Violation: a promise was violated.
        """
        try:
            with self._watched():
                self.playAll()
        finally:
            self.release()
        self.counts["packets"] = self.world.network.sent
        return Outcome(self.counts)

    def playAll(self) -> None:
        """Run the programs to their end, and check the results."""
        raise NotImplementedError

    def release(self) -> None:
        """Release what the simulation has, even if it has failed."""
        for host in self.world.hosts:
            host.device.close()
        self.world.close()

    def run(self, seconds: float) -> None:
        """Let this many seconds pass."""
        self._pass(lambda: False, seconds)

    def until(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        """Let time pass until a condition is true; fail after a time limit."""
        self._pass(condition, _PATIENCE)
        if not condition():
            raise Violation(what())

    def _pass(self, condition: Callable[[], bool], seconds: float) -> None:
        clock = self.world.clock
        until = clock.rightNow + seconds
        end = clock.callLater(seconds, lambda: None)
        while not condition() and clock.rightNow < until:
            self.world.turn()
            if self.problems:
                raise Violation(self.problems[0])
            check(self.world.turns < _MOST_TURNS, "the simulation does not end")
        cancelCall(end)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Count how often each exception of a program is logged; others are violations."""

        @implementer(ILogObserver)
        def observe(event: LogEvent) -> None:
            failure = event.get("log_failure")
            error = None if failure is None else failure.value
            if isinstance(error, ProgramError):
                error.logged += 1
            elif failure is not None or event.get("log_level") in (LogLevel.error, LogLevel.critical):
                trace = "" if failure is None else failure.getTraceback()
                self.problems.append(f"an exception was logged: {formatEvent(event)} {trace}")

        globalLogPublisher.addObserver(observe)
        try:
            yield
        finally:
            globalLogPublisher.removeObserver(observe)


def checkReleased(host: Host) -> None:
    """Check that a host has no queue pairs, memory, readers and writers any more."""
    device = host.device
    parts = (device.domains, device._queuePairs, device._completionQueues, device._channels)
    check(not any(parts) and not len(device.keys), f"{device!r} still has {parts}")
    left = [*host.readers, *host.writers, *host.sockets]
    check(not left, f"{host!r} still watches {left}")
