"""
Closing connections in order before the reactor stops.

For TCP, the kernel delivers sent data and closes the connection after the process has ended. Connections that
are implemented in this process have to do both before it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, Union
from weakref import WeakValueDictionary

from zope.interface import Interface

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IDelayedCall, IReactorCore, IReactorFDSet
from twisted.internet.main import CONNECTION_LOST
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable
from txrdma.kit.delayedcalls import cancelCall

_log = Logger()
_ProtocolT = TypeVar("_ProtocolT")

LEAVING_SECONDS: Final = 5.0
"""Time for sent messages to be acknowledged; after that a connection is aborted."""


ShutdownListener = Callable[[], Union[Deferred[None], None]]
"""A function that is called once before a reactor stops, which waits for the Deferred."""


class _Stop:
    """
    One shutdown trigger for all listeners of a reactor.

    Twisted keeps triggers in a list, so removing one for each of ten thousand connections would be quadratic.
    """

    def __init__(self, reactor: Any) -> None:
        self.listeners: dict[ShutdownListener, None] = {}
        self._reactor = reactor
        self._hasBegun = self._isWaiting = False
        # Twisted closes its TCP connections in the phase "during", in which it waits for no Deferred. A
        # trigger of the phase "before" would be called with those of services, and not at all if these have
        # begun to stop. So this is the first trigger of "during", and waits by itself: see _reactorStops.
        event: Any = getattr(reactor, "_eventTriggers", {}).get("shutdown")
        self._event = event if hasattr(event, "_continueFiring") else None
        phase = "before" if self._event is None else "during"
        self._trigger = reactor.addSystemEventTrigger(phase, "shutdown", self._reactorStops)
        if self._event is not None:
            event.during.insert(0, event.during.pop())

    def forget(self, listener: ShutdownListener) -> None:
        """Remove a listener, and with the last one the trigger."""
        self.listeners.pop(listener, None)
        if not (self.listeners or self._hasBegun):
            del _stops[id(self._reactor)]
            self._reactor.removeSystemEventTrigger(self._trigger)

    def add(self, listener: ShutdownListener) -> None:
        """
        Add a listener.

        One that is added while the last others are called or waited for is called in the next iteration, and
        not waited for: a client that connects again would delay the stop again and again.
        """
        self.listeners[listener] = None
        if self._isWaiting:
            self._reactor.callLater(0, self._call, listener)

    def _reactorStops(self) -> Deferred[Any] | None:
        """
        Call the listeners, and delay the other triggers until their Deferreds have fired.

        The reactor's event is taking its triggers from two lists. These are emptied, so that it stops. Copies
        replace them, from which the event continues later.
        """
        self._hasBegun = True
        event = self._event
        if event is None:
            return self._callListeners()
        lists = event.during, event.after
        event.during, event.after = map(list, lists)
        for triggers in lists:
            triggers.clear()
        self._refuse(event)
        self._callListeners().addCallback(event._continueFiring)
        return None

    def _refuse(self, event: Any) -> None:
        """
        Close the ports whose factories provide L{IRefusesOnShutdown}.

        Over TCP, all ports and connections close at once. Here the reactor runs while connections close, and
        its ports would accept clients. Their factories are stopped as usual, after the connections.
        """
        if not IReactorFDSet.providedBy(self._reactor):
            return
        readers: list[Any] = self._reactor.getReaders()
        for port in readers:
            if IRefusesOnShutdown.providedBy(getattr(port, "factory", None)):
                self._reactor.removeReader(port)
                port.socket.close()
                event.during.append((port.connectionLost, (Failure(CONNECTION_LOST),), {}))

    def _callListeners(self) -> Deferred[Any]:
        """Call all listeners; return a Deferred that fires when those have stopped that are waited for."""
        waiting = self._callAll()
        self._isWaiting = True
        waiting += self._callAll()  # those that were added meanwhile
        return DeferredList(waiting).addCallback(self._stopped)

    def _callAll(self) -> list[Deferred[None]]:
        """Call the present listeners, each of which may remove or add others; return what they wait for."""
        return [done for each in list(self.listeners) if (done := self._call(each)) is not None]

    def _call(self, listener: ShutdownListener) -> Deferred[None] | None:
        """Call a listener, unless it was removed."""
        if listener in self.listeners:
            del self.listeners[listener]
            try:
                return listener()
            except Exception:
                _log.failure("{listener} failed to shut down before the reactor stops", listener=listener)
        return None

    def _stopped(self, _: object) -> None:
        del _stops[id(self._reactor)]


_stops: Final[WeakValueDictionary[int, _Stop]] = WeakValueDictionary()
"""The triggers of reactors with listeners, by C{id(reactor)}; each reactor refers to its own."""


def addShutdownListener(reactor: Any, listener: ShutdownListener) -> None:
    """
    Register a listener, which is called before the reactor stops, and after services have stopped.

    A C{Clock} never stops.
    """
    if IReactorCore.providedBy(reactor):
        stop = _stops.get(id(reactor))
        if stop is None:
            stop = _stops[id(reactor)] = _Stop(reactor)
        stop.add(listener)


def removeShutdownListener(reactor: Any, listener: ShutdownListener) -> None:
    """Remove a listener, if it is still registered."""
    stop = _stops.get(id(reactor))
    if stop is not None and listener in stop.listeners:
        stop.forget(listener)


def failingOnShutdown(reactor: Any, connecting: Deferred[_ProtocolT]) -> Deferred[_ProtocolT]:
    """
    Let an attempt to connect fail when the reactor stops, as Twisted's TCP does; nothing would fire it later.

    @return: the same Deferred, which fails with L{DeviceUnavailable}.
    """
    hasStopped = False

    def stop() -> None:
        nonlocal hasStopped
        hasStopped = True
        connecting.cancel()

    def ended(result: _ProtocolT | Failure) -> _ProtocolT | Failure:
        removeShutdownListener(reactor, stop)
        isStopped = hasStopped and isinstance(result, Failure)
        return Failure(DeviceUnavailable("the reactor stops")) if isStopped else result

    addShutdownListener(reactor, stop)
    return connecting.addBoth(ended)


class IRefusesOnShutdown(Interface):
    """The factory of a TCP port that closes before its connections when the reactor stops."""


class IClosesOnShutdown(Interface):
    """A message protocol that closes its own connection when the reactor stops."""


class Stopping:
    """Closes one message connection when the reactor stops, unless L{ended} was called before."""

    __slots__ = ("_abort", "_late", "_leave", "_reactor", "_stopped")

    def __init__(
        self, reactor: Any, protocol: object, leave: Callable[[], None], abort: Callable[[], None]
    ) -> None:
        """
        @param protocol: the protocol; if it provides L{IClosesOnShutdown}, nothing is registered.
        @param leave: closes the connection after all sent messages were acknowledged.
        @param abort: closes it at once; called if C{leave} takes longer than L{LEAVING_SECONDS}.
        """
        self._reactor, self._leave, self._abort = reactor, leave, abort
        self._stopped: Deferred[None] | None = None
        self._late: IDelayedCall | None = None
        if not IClosesOnShutdown.providedBy(protocol):
            addShutdownListener(reactor, self.reactorStops)

    def ended(self) -> None:
        """Unregister: the connection has ended and its protocol was notified."""
        removeShutdownListener(self._reactor, self.reactorStops)
        cancelCall(self._late)
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            stopped.callback(None)

    def reactorStops(self) -> Deferred[None]:
        stopped = self._stopped = Deferred()
        self._late = self._reactor.callLater(LEAVING_SECONDS, self._abort)
        self._leave()
        return stopped
