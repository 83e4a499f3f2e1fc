"""
The pace at which groups are made for new peers.

Making a group takes milliseconds: whoever connects under ever new names must not take the reactor from the
connections that there are.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall

from txrdma.error import Refused
from txrdma.smc.wire.clc import Diagnosis

AT_ONCE: Final = 4
"""Groups that are made without waiting, in each span of time."""

SPAN: Final = 0.01
"""Seconds of that span: 400 groups a second, for which the processor is busy most of the time."""


class GroupRateLimiter:
    """Lets some begin at once, and the others wait for their turn, in order."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._waiting: deque[Deferred[None]] = deque()
        self._began = -inf
        self._count = 0
        self._timer: IDelayedCall | None = None

    def wait(self) -> Deferred[None] | None:
        """
        Wait for a turn to begin, in order.

        @return: fires when it has come; None: it has come already.
        """
        now = self._reactor.seconds()
        if not self._waiting and now >= self._began + SPAN:
            self._began, self._count = now, 0
        if not self._waiting and self._count < AT_ONCE:
            self._count += 1
            return None
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        if self._timer is None or not self._timer.active():  # somebody may have cancelled all calls
            self._timer = self._reactor.callLater(self._began + SPAN - now, self._next)
        return waiting

    def _next(self) -> None:
        """Begin another span, for those who wait longest."""
        self._timer = None
        self._began = self._reactor.seconds()
        self._count = min(AT_ONCE, len(self._waiting))
        begun = [self._waiting.popleft() for _ in range(self._count)]
        if self._waiting:
            self._timer = self._reactor.callLater(SPAN, self._next)
        for each in begun:
            each.callback(None)

    def close(self) -> None:
        """Let nobody wait any more: no group can be made."""
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()
        while self._waiting:
            self._waiting.popleft().errback(Refused("the device is closed", Diagnosis.NOSMCDEV))
