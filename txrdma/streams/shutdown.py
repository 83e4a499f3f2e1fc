"""
Connections whose reactor stops: what was sent may still arrive, and the peer hears of the end.

The system does that for TCP's connections, and a kernel for those of its communication manager; here nobody
but the process itself can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from zope.interface import Interface

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IDelayedCall, IReactorCore
from twisted.logger import Logger

_log = Logger()

LEAVING_SECONDS: Final = 5.0
"""The time that all that was sent has to arrive."""


class Leaver(Protocol):
    """Somebody who has something to do before a reactor stops."""

    def reactorStops(self) -> Deferred[None] | None:
        """Do it, and tell when it is done; called once."""


class _Stop:
    """
    The end of one reactor, and who has something to do before it.

    Twisted's triggers are a list: with one for each of ten thousand connections their ends would take long.
    """

    def __init__(self, reactor: Any) -> None:
        self.leavers: dict[Leaver, None] = {}
        self._reactor = reactor
        self._hasBegun = False
        self._trigger = reactor.addSystemEventTrigger("before", "shutdown", self._stops)

    def forget(self, leaver: Leaver) -> None:
        """Do without somebody."""
        self.leavers.pop(leaver, None)
        if not (self.leavers or self._hasBegun):
            del _stops[self._reactor]
            self._reactor.removeSystemEventTrigger(self._trigger)

    def _stops(self) -> Deferred[Any]:
        self._hasBegun = True
        waiting = []
        while self.leavers:  # the end of one may be that of another, or the beginning
            leaver = next(iter(self.leavers))
            del self.leavers[leaver]
            try:
                done = leaver.reactorStops()
            except Exception:
                _log.failure("{leaver} fails as the reactor stops", leaver=leaver)
            else:
                if done is not None:
                    waiting.append(done)
        del _stops[self._reactor]
        return DeferredList(waiting)


_stops: dict[Any, _Stop] = {}


def beforeStop(reactor: Any, leaver: Leaver) -> None:
    """Have somebody leave before a reactor stops, unless it is a clock, which never does."""
    if IReactorCore.providedBy(reactor):
        stop = _stops.get(reactor)
        if stop is None:
            stop = _stops[reactor] = _Stop(reactor)
        stop.leavers[leaver] = None


def hasLeft(reactor: Any, leaver: Leaver) -> None:
    """Forget somebody who has nothing to do any more. Twice is fine."""
    stop = _stops.get(reactor)
    if stop is not None and leaver in stop.leavers:
        stop.forget(leaver)


class IParting(Interface):
    """A protocol of messages that ends its connection by itself when the reactor stops."""


class Stopping:
    """The last moments of one connection for messages, whose reactor stops; until C{ended}."""

    __slots__ = ("_abort", "_late", "_leave", "_reactor", "_stopped")

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
        if not IParting.providedBy(protocol):
            beforeStop(reactor, self)

    def ended(self) -> None:
        """Hear that the connection has ended, and its protocol knows."""
        hasLeft(self._reactor, self)
        late, self._late = self._late, None
        if late is not None and late.active():
            late.cancel()
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            stopped.callback(None)

    def reactorStops(self) -> Deferred[None]:
        """End the connection."""
        stopped = self._stopped = Deferred()
        self._late = self._reactor.callLater(LEAVING_SECONDS, self._abort)
        self._leave()
        return stopped
