"""
Keepalive probes, which detect the loss of a peer while neither end sends anything.

A connection passes the function that sends a probe, which is an RDMA write of no bytes:
L{txrdma.cm.connections.transport} for C{rdma:} and C{ib:}, L{txrdma.cm.rsocket.stream} for C{rsocket:}. The
default interval is L{txrdma.cm.terms.KEEPALIVE}. C{btl:} has its own probes (L{txrdma.btl.core.timetable}).
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from txrdma.kit.delayedcalls import Timer
from txrdma.kit.forwardclock import sharedForwardClock

_log = Logger()


class Keepalive:
    """Calls a function at regular intervals until it is stopped."""

    __slots__ = ("_clock", "_due", "_probe", "_seconds", "_timer")

    def __init__(self, reactor: IReactorTime, seconds: float | None, probe: Callable[[], None]) -> None:
        """@param seconds: the interval; None disables the probes."""
        self._timer, self._seconds, self._probe = Timer(reactor), seconds, probe
        self._clock = sharedForwardClock(reactor)
        self._wait()
        if seconds is not None:
            self._clock.join(self._start)  # a probe is not late by as much as the clock was set back

    def stop(self) -> None:
        """Stop probing. May be called twice."""
        self._seconds = None
        self._timer.stop()
        self._clock.leave(self._start)

    def _wait(self) -> None:
        if self._seconds is not None:
            self._due = self._clock.seconds() + self._seconds
            self._start()

    def _start(self) -> None:
        if self._seconds is not None:
            self._timer.start(max(0.0, self._due - self._clock.seconds()), self._expired)

    def _expired(self) -> None:
        try:
            with _log.failuresHandled("A probe of an idle peer failed; the next one follows"):
                self._probe()
        finally:
            self._wait()
