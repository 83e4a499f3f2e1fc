"""
Reactors for tests: how to let a real one run until something has happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TYPE_CHECKING

from twisted.internet.task import deferLater

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase

    Base = SynchronousTestCase
else:
    Base = object


class RealTime(Base):
    """
    A mixin for test cases with a reactor of their own, which runs only while a test waits.

    @ivar reactor: the reactor.
    @cvar slowness: by what L{runUntil} multiplies its limits, for slow machines.
    """

    reactor: Any
    slowness = 1.0

    def runUntil(self, condition: Callable[[], object], seconds: float = 3.0) -> None:
        """Run the reactor until a condition holds; fail when it does not in that time."""
        deadline = time.monotonic() + seconds * self.slowness
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"{condition} does not hold after {seconds * self.slowness:g} seconds")
            self.reactor.iterate(0.001)

    def runFor(self, seconds: float) -> None:
        """Run the reactor for a while."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.reactor.iterate(0.001)


async def waitUntil(reactor: Any, condition: Callable[[], object], seconds: float = 30.0) -> float:
    """Wait until a condition holds while the reactor runs, and return how long it took."""
    begin = reactor.seconds()
    while not condition():
        if reactor.seconds() - begin > seconds:
            raise AssertionError(f"{condition} does not hold after {seconds:g} seconds")
        await deferLater(reactor, 0.01)
    return float(reactor.seconds() - begin)
