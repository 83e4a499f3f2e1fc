"""
Rate limit of new link groups.

Creating a group takes milliseconds, so peers that connect under constantly new identities must not starve
existing connections.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any, Final

from twisted.internet.defer import Deferred

from txrdma.error import Refused
from txrdma.kit.delayedcalls import Timer
from txrdma.smc.wire.clc import Diagnosis

AT_ONCE: Final = 4
"""Groups that may be created in each interval."""

SPAN: Final = 0.01
"""Seconds of an interval: 400 groups a second, which keep the processor busy most of the time."""


class GroupRateLimiter:
    """Admits some callers at once, and queues the others."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._waiting: deque[Deferred[None]] = deque()
        self._began = -inf
        self._count = 0
        self._timer = Timer(reactor)

    def wait(self) -> Deferred[None] | None:
        """Request admission; return None if admitted at once, otherwise a Deferred that fires in order."""
        now = self._reactor.seconds()
        if not self._waiting and not 0 <= now - self._began < SPAN:  # negative: the clock was set back
            self._began, self._count = now, 0
        if not self._waiting and self._count < AT_ONCE:
            self._count += 1
            return None
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        self._timer.ensure(min(max(0.0, self._began + SPAN - now), SPAN), self._next)
        return waiting

    def _next(self) -> None:
        """Begin the next interval, and admit the callers that have waited longest."""
        self._began = self._reactor.seconds()
        self._count = min(AT_ONCE, len(self._waiting))
        begun = [self._waiting.popleft() for _ in range(self._count)]
        if self._waiting:
            self._timer.start(SPAN, self._next)
        for each in begun:
            each.callback(None)

    def close(self) -> None:
        """Fail all waiting callers, because the device is closed."""
        self._timer.stop()
        while self._waiting:
            self._waiting.popleft().errback(Refused("the device is closed", Diagnosis.NOSMCDEV))
