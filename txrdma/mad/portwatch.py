"""Detection of changes of a management port: its loss, its return, a new SM or address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Union

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from txrdma.error import RDMAError
from txrdma.iba.path import MADEndPort
from txrdma.interfaces import IMADPort
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.listeners import Listeners
from txrdma.kit.logs import errorText

_log = Logger()

WATCH_SECONDS: Final = 5.0
"""Seconds between polls of a watched port: most ports do not report their changes."""

RETURN_SECONDS: Final = 5.0
"""Seconds between attempts to open a lost port again."""


@dataclass(frozen=True)
class PortLost:
    """The port is lost, and all calls have failed."""

    reason: str


@dataclass(frozen=True)
class PortReturned:
    """The port was lost, and is open again; peers may have lost its state, such as subscriptions."""

    endPort: MADEndPort


@dataclass(frozen=True)
class PortChanged:
    """
    LID, GIDs, P_Keys or SM of the port have changed; or its SM requests its clients to register again.

    @ivar mustRegister: whether clients must register again (CLIENT_REREGISTER, IBA 14.2.5.6).
    """

    endPort: MADEndPort
    mustRegister: bool = False


PortEvent = Union[PortLost, PortReturned, PortChanged]
PortListener = Callable[[PortEvent], None]


class PortWatch:
    """Listeners of a port, notified of its loss, its return, and a new address or SM."""

    def __init__(self, reactor: IReactorTime, port: Callable[[], IMADPort], watchSeconds: float) -> None:
        self._port = port
        self._watchSeconds = watchSeconds
        self._listeners: Listeners[[PortEvent]] = Listeners(
            _log, "{listener!r} raised an exception, called with {event!r}"
        )
        self._polling: set[object] = set()
        self._timer = Timer(reactor)
        self._known: MADEndPort | None = None

    def add(self, listener: PortListener, isPolled: bool) -> Callable[[], None]:
        """Notify this listener of events from now on; the returned function ends it."""
        remove = self._listeners.add(listener)
        if isPolled:
            self._polling.add(remove)
            if not self._timer.isPending:
                self._known = self._port().endPort
                self._timer.start(self._watchSeconds, self._poll)

        def end() -> None:
            remove()
            self._polling.discard(remove)
            if not self._polling:
                self._timer.stop()

        return end

    def notify(self, event: PortEvent) -> None:
        """Notify all listeners; one that raises is logged."""
        if isinstance(event, PortLost):
            self._timer.stop()
        else:
            self._known = event.endPort
            if self._polling:
                self._timer.ensure(self._watchSeconds, self._poll)
        self._listeners.notify(event)

    def changed(self, mustRegister: bool) -> None:
        """Notify all listeners of a change of the port."""
        self.notify(PortChanged(self._port().endPort, mustRegister))

    def stop(self) -> None:
        """Remove all listeners, and stop polling the port."""
        self._listeners.clear()
        self._polling.clear()
        self._timer.stop()

    def _poll(self) -> None:
        self._timer.start(self._watchSeconds, self._poll)
        port = self._port()
        try:
            found = port.refresh()
        except RDMAError as error:
            _log.debug("{port}: cannot query its attributes: {error}", port=port.name, error=errorText(error))
            return
        if found != self._known:
            self.notify(PortChanged(found))


class PortReopener:
    """Repeated attempts to open a lost port again."""

    def __init__(
        self,
        reactor: IReactorTime,
        reopen: Callable[[], IMADPort],
        resume: Callable[[IMADPort], None],
        returned: Callable[[IMADPort], None],
    ) -> None:
        """
        @param resume: called with each port that C{reopen} returns; if it raises, it has closed the port.
        @param returned: called after that.
        """
        self._reopen = reopen
        self._resume = resume
        self._returned = returned
        self._timer = Timer(reactor)
        self._isLogged = self._isStopped = False

    def start(self) -> None:
        """Try after L{RETURN_SECONDS}, and again until the port is open."""
        self._timer.start(RETURN_SECONDS, self._try)

    def stop(self) -> None:
        """Cancel further attempts, also during one."""
        self._isStopped = True
        self._timer.stop()

    def _try(self) -> None:
        port = None
        try:
            opened = self._reopen()
            self._resume(opened)
            port = opened
        except RDMAError as error:
            _log.debug("the port cannot be opened yet: {error}", error=errorText(error))
        except Exception:
            if not self._isLogged:
                self._isLogged = True
                _log.failure("opening a lost port raised an exception; another attempt follows")
        finally:
            if port is None and not self._isStopped:
                self.start()
        if port is not None:
            self._isLogged = False
            _log.info("{port} is open again", port=port.name)
            self._returned(port)
