"""Ctrl-C during long operations whose results are printed nevertheless."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorCore


class Interruption:
    """
    Handles Ctrl-C during a long operation: delays the reactor's shutdown until the results are printed.

    @ivar has: whether Ctrl-C was received.
    @ivar then: called at Ctrl-C.
    """

    def __init__(self, reactor: IReactorCore) -> None:
        self._reactor = reactor
        self._over: Deferred[None] = Deferred()
        self._trigger: object = None
        self.has = False
        self.then: Callable[[], object] = lambda: None

    async def __aenter__(self) -> Interruption:
        self._trigger = self._reactor.addSystemEventTrigger("before", "shutdown", self._interrupted)
        return self

    async def __aexit__(self, *reason: object) -> None:
        if not self.has:
            self._reactor.removeSystemEventTrigger(self._trigger)
        self._over.callback(None)

    def _interrupted(self) -> Deferred[None]:
        self.has = True
        self.then()
        return self._over
