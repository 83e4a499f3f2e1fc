"""
A clock for protocol cores: the time of a reactor, but never decreasing.

Twisted's reactors use the system time. Without this clock, a core whose deadlines were computed before the
system time was set back by an hour would retransmit nothing for an hour.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final
from weakref import WeakValueDictionary

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

_log = Logger()

_MARGIN: Final = 1e-6
"""Seconds: more than the rounding error of a sum of system times."""


class ForwardClock:
    """
    The time of a reactor, in seconds, which stands still when the system time is set back, and continues from
    there. When the system time is set forward, so is the clock.

    @ivar margin: seconds to add to the delay until a deadline. Sums are rounded when the system time was set
        back, so that a delayed call would be made again and again shortly before the deadline.
    """

    __slots__ = ("__weakref__", "_ahead", "_latest", "_listeners", "_reactor", "margin")

    def __init__(self, reactor: IReactorTime) -> None:
        self._reactor = reactor
        self._listeners: dict[Callable[[], None], None] = {}
        self._latest, self._ahead, self.margin = -inf, 0.0, 0.0

    def join(self, setBack: Callable[[], None]) -> None:
        """
        Add a listener.

        @param setBack: called by L{seconds} when the system time was set back: the delayed calls of the
            reactor are late by that.
        """
        self._listeners[setBack] = None

    def leave(self, setBack: Callable[[], None]) -> None:
        """Remove a listener. Idempotent."""
        self._listeners.pop(setBack, None)

    def seconds(self) -> float:
        """Return the time in seconds."""
        now = self._reactor.seconds() + self._ahead
        if now >= self._latest:
            self._latest = now
        elif now < self._latest - _MARGIN:  # less is due to rounding
            self._ahead += self._latest - now
            self.margin = _MARGIN
            for setBack in tuple(self._listeners):
                with _log.failuresHandled("Unexpected error while timers were renewed"):
                    setBack()  # which may read this clock
        return self._latest


_shared: Final[WeakValueDictionary[int, ForwardClock]] = WeakValueDictionary()
"""The clocks in use that are shared, by the identity of their reactor, which they keep alive."""


def sharedForwardClock(reactor: IReactorTime) -> ForwardClock:
    """Return the clock of a reactor that all callers share, who pass the time to each other, and keep it."""
    clock = _shared.get(id(reactor))
    if clock is None:
        clock = _shared[id(reactor)] = ForwardClock(reactor)
    return clock
