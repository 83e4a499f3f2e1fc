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

from txrdma.monitor.series.exposition import Histogram

_METHODS: Final = {"_poller": "poll", "_selector": "select"}
"""Attributes of a reactor or event loop that wait for events, and the methods by which they do."""


class _TimedWait:
    """
    Stands for an object that waits for events, and measures the time between its waits.

    @ivar receivers: called with each time, for several services in one process.
    """

    def __init__(self, waiter: Any, method: str) -> None:
        self.waiter = waiter
        self.receivers: list[Callable[[float], None]] = []
        self._wait: Callable[..., Any] = getattr(waiter, method)
        self._began: float | None = None
        setattr(self, method, self._timed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.waiter, name)

    def _timed(self, *arguments: Any) -> Any:
        if self._began is not None:
            seconds = perf_counter() - self._began
            for receive in self.receivers:
                receive(seconds)
        try:
            return self._wait(*arguments)
        finally:
            self._began = perf_counter()


class IterationTimes(Service):
    """
    Measures the iterations of a reactor while the service runs, if the reactor permits that.

    @ivar durations: for which the reactor was busy.
    """

    def __init__(self, reactor: object) -> None:
        self._owner = getattr(reactor, "_asyncioEventloop", reactor)
        self._attribute = next((name for name in _METHODS if hasattr(self._owner, name)), "")
        text = "Time for which the reactor was busy between two waits for events"
        self.durations = Histogram("txrdma_monitor_iteration_seconds", text)

    @property
    def isMeasured(self) -> bool:
        """Whether the iterations of this reactor can be measured."""
        return bool(self._attribute)

    def startService(self) -> None:
        """Measure all iterations from the next one on."""
        super().startService()  # type: ignore[no-untyped-call]  # of Twisted's
        if self.isMeasured:
            timed = getattr(self._owner, self._attribute)
            if not isinstance(timed, _TimedWait):
                timed = _TimedWait(timed, _METHODS[self._attribute])
                setattr(self._owner, self._attribute, timed)
            timed.receivers.append(self.durations.add)

    def stopService(self) -> None:
        """Restore the reactor when the last service stops."""
        super().stopService()  # type: ignore[no-untyped-call]  # of Twisted's
        timed = getattr(self._owner, self._attribute, None) if self.isMeasured else None
        if isinstance(timed, _TimedWait) and self.durations.add in timed.receivers:
            timed.receivers.remove(self.durations.add)
            if not timed.receivers:
                setattr(self._owner, self._attribute, timed.waiter)
