"""A clock for simulations with thousands of scheduled calls."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Any

from twisted.internet.base import DelayedCall
from twisted.internet.task import Clock


class SimulatedClock(Clock):
    """A C{Clock} that inserts each call in order: sorting all of them takes most of a simulation's time."""

    def callLater(
        self, delay: float, callable: Callable[..., Any], *args: object, **kw: object
    ) -> DelayedCall:
        call = DelayedCall(
            self.seconds() + delay, callable, args, kw, self.calls.remove, self._moved, self.seconds
        )
        insort(self.calls, call, key=DelayedCall.getTime)
        return call

    def _moved(self, call: DelayedCall) -> None:
        self.calls.sort(key=DelayedCall.getTime)

    def _sortCalls(self) -> None:
        """Do nothing: the calls are in order already."""
