"""Delayed calls that other code may have cancelled: trial cancels all of them after a failed test."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime


def isPending(call: IDelayedCall | None) -> bool:
    """Return whether a delayed call is still to be made."""
    return call is not None and call.active()


def cancelCall(call: IDelayedCall | None) -> None:
    """Cancel a delayed call if it is still to be made."""
    if call is not None and call.active():
        call.cancel()


class Timer:
    """At most one delayed call at a time."""

    __slots__ = ("_call", "_clock")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._call: IDelayedCall | None = None

    @property
    def isPending(self) -> bool:
        """Whether the call is still to be made."""
        return isPending(self._call)

    @property
    def dueAt(self) -> float:
        """Time of the call; infinite if none is pending."""
        call = self._call
        return inf if call is None or not call.active() else call.getTime()

    def start(self, seconds: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function after a time, in place of a pending call."""
        self.stop()
        self._call = self._clock.callLater(seconds, function, *arguments)

    def ensure(self, seconds: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function after a time, unless a pending call is due by then."""
        call = self._call
        if call is None or not call.active() or call.getTime() > self._clock.seconds() + seconds:
            self.start(seconds, function, *arguments)

    def stop(self) -> None:
        """Cancel the pending call. Idempotent."""
        call, self._call = self._call, None
        cancelCall(call)
