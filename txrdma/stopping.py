"""
Connections for messages whose reactor stops: what was sent may still arrive, and the peer hears of the end.

The system does that for TCP's connections, and a kernel for those of its communication manager; here nobody
but the process itself can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from zope.interface import Interface

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorCore

LEAVING_SECONDS: Final = 5.0
"""The time that all that was sent has to arrive."""


class IParting(Interface):
    """A protocol of messages that ends its connection by itself when the reactor stops."""


class Stopping:
    """What happens to one connection when its reactor stops, until C{ended}."""

    __slots__ = ("_abort", "_late", "_leave", "_reactor", "_stopped", "_trigger")

    def __init__(
        self, reactor: Any, protocol: object, leave: Callable[[], None], abort: Callable[[], None]
    ) -> None:
        """
        @param protocol: nothing happens to one that is L{IParting}.
        @param leave: ends the connection when all that was sent has arrived.
        @param abort: ends it at once; called when C{leave} has not done it in L{LEAVING_SECONDS}.
        """
        self._reactor, self._leave, self._abort = reactor, leave, abort
        self._stopped: Deferred[None] | None = None
        self._late: IDelayedCall | None = None
        self._trigger: object = None
        if IReactorCore.providedBy(reactor) and not IParting.providedBy(protocol):
            self._trigger = reactor.addSystemEventTrigger("before", "shutdown", self._stops)

    def ended(self) -> None:
        """Hear that the connection has ended, and its protocol knows."""
        trigger, self._trigger = self._trigger, None
        if trigger is not None:
            self._reactor.removeSystemEventTrigger(trigger)
        late, self._late = self._late, None
        if late is not None and late.active():
            late.cancel()
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            stopped.callback(None)

    def _stops(self) -> Deferred[None]:
        self._trigger = None
        stopped = self._stopped = Deferred()
        self._late = self._reactor.callLater(LEAVING_SECONDS, self._abort)
        self._leave()
        return stopped
