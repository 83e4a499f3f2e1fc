"""Calls with a Deferred, for callers of agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from txrdma.mad.core.asked import Asked


class Call(Asked):
    """
    A call whose Deferred fires at its end.

    @ivar forget: gives the call up; set by agents.
    """

    __slots__ = ("_deferred", "forget")

    forget: Callable[[Call], None]
    _deferred: Deferred[Any] | None

    def awaited(self) -> Deferred[Any]:
        """The Deferred that fires with the answer, or fails; cancelling it forgets the call."""
        self._deferred = Deferred(self._cancelled)
        return self._deferred

    def answered(self, answer: object) -> None:
        """End the call well. After its end this does nothing."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred.callback(answer)

    def failed(self, error: Exception) -> None:
        """End the call in an error. After its end this does nothing."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred.errback(error)

    def _cancelled(self, deferred: Deferred[Any]) -> None:
        self._deferred = None
        self.forget(self)
