"""
How long the reactor is busy in each iteration: from the end of a wait for events to the next wait.

No reactor has a public hook for that. So the object in which it waits is replaced by one that reads a clock
twice, which costs about a microsecond per iteration: the poller of Twisted's reactors on epoll and poll, and
the selector of an asyncio event loop. uvloop has no such object, and select no object at all.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from twisted.application.service import Service

from txrdma.monitor.series.exposition import Family, Histogram

_METHODS: Final = {"_poller": "poll", "_selector": "select"}
"""Attributes of a reactor or event loop that wait for events, and the methods by which they do."""


class _TimedWait:
    """Stands for an object that waits for events, and measures the time between its waits."""

    def __init__(self, waiter: Any, method: str, add: Callable[[float], None]) -> None:
        self.waiter = waiter
        self._wait: Callable[..., Any] = getattr(waiter, method)
        self._add = add
        self._began: float | None = None
        setattr(self, method, self._timed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.waiter, name)

    def _timed(self, *arguments: Any) -> Any:
        if self._began is not None:
            self._add(perf_counter() - self._began)
        try:
            return self._wait(*arguments)
        finally:
            self._began = perf_counter()


class IterationTimes(Service):
    """Measures the iterations of a reactor while the service runs, if the reactor permits that."""

    def __init__(self, reactor: object) -> None:
        self._owner = getattr(reactor, "_asyncioEventloop", reactor)
        self._attribute = next((name for name in _METHODS if hasattr(self._owner, name)), "")
        text = "Time for which the reactor was busy between two waits for events"
        self._iterations = Histogram("txrdma_monitor_iteration_seconds", text)

    @property
    def isMeasured(self) -> bool:
        """Whether the iterations of this reactor can be measured."""
        return bool(self._attribute)

    def startService(self) -> None:
        """Measure all iterations from the next one on."""
        super().startService()  # type: ignore[no-untyped-call]  # of Twisted's
        if self.isMeasured:
            waiter = getattr(self._owner, self._attribute)
            timed = _TimedWait(waiter, _METHODS[self._attribute], self._iterations.add)
            setattr(self._owner, self._attribute, timed)

    def stopService(self) -> None:
        """Restore the reactor."""
        super().stopService()  # type: ignore[no-untyped-call]  # of Twisted's
        timed = getattr(self._owner, self._attribute, None) if self.isMeasured else None
        if isinstance(timed, _TimedWait):
            setattr(self._owner, self._attribute, timed.waiter)

    def family(self) -> Family:
        """Return the metric family of the durations of iterations."""
        return self._iterations.family()
