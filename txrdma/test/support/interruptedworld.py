"""Simulated hosts whose reactors handle exceptions as Twisted's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.tcp import Connection
from twisted.python.failure import Failure

from txrdma.kit.delayedcalls import cancelCall
from txrdma.test.support.interruptions import readerOf
from txrdma.testing.smc.hosts import World


class InterruptedWorld(World):
    """
    A world whose reactors log exceptions of their calls, and remove readers that have raised.

    @ivar escaped: exceptions that reactors have logged; C{wrong}: readers that they have removed.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.escaped: list[Failure] = []
        self.wrong: list[str] = []

    def turn(self) -> bool:
        try:
            return super().turn()
        except ZeroDivisionError as error:
            self.escaped.append(Failure())
            reader = readerOf(error)
            if reader is not None:
                self._drop(reader)
            return True

    def _drop(self, reader: Any) -> None:
        """Remove a reader that has raised."""
        if not isinstance(reader, Connection):
            self.wrong.append(f"the reactor has removed {reader!r}")
        for host in self.hosts:
            host.removeReader(reader)
            host.removeWriter(reader)
        reader.connectionLost(self.escaped[-1])

    def until(self, condition: Callable[[], Any], seconds: float) -> bool:
        """Run the hosts until a condition is true; return whether it has become true in this time."""
        end = self.clock.seconds() + seconds
        call = self.clock.callLater(seconds, lambda: None)  # the time passes although nothing happens
        try:
            while not condition():
                if not self.turn() or self.clock.seconds() > end:
                    return False
            return True
        finally:
            cancelCall(call)

    def elapsed(self, seconds: float) -> Callable[[], bool]:
        """Return a condition that becomes true when this many seconds have passed."""
        end = self.clock.seconds() + seconds
        return lambda: self.clock.seconds() >= end
