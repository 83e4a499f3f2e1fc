"""One connection of the communication manager, for applications."""

from __future__ import annotations

from collections.abc import Callable
from secrets import randbits

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from txrdma.cm.core.dispatcher import Managed
from txrdma.cm.core.events import (
    AlternatePathAbandoned,
    AlternatePathLoaded,
    AlternatePathRejected,
    AlternatePathTimedOut,
    ConnectionAbandoned,
    Event,
    ignoreEvent,
)
from txrdma.cm.errors import PeerSilent
from txrdma.cm.interfaces import IManagedConnection
from txrdma.cm.layouts.messages import APStatus, CMPath, RejectReason, REP, REQ
from txrdma.cm.layouts.paths import pathFor
from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, Refused
from txrdma.iba.path import IBPath

_log = Logger()

EventHandler = Callable[["CMConnection", Event], None]
"""A function that is called with each event of a connection."""


Perform = Callable[["CMConnection", Callable[[float], object]], bool]
"""
Calls a request of a connection's core with the current time; returns False if the connection has ended:
L{ConnectionManager.perform<txrdma.cm.manager.ConnectionManager.perform>}.
"""


@implementer(IManagedConnection)
class CMConnection:
    """
    A connection, or an attempt to open one: the interface of its core for applications.

    @ivar managed: its entry in the core of the manager.
    @ivar checkMigration: called before a LAP is handled, to report a migration of the queue pair; or None.
    """

    __slots__ = (
        "__weakref__",
        "_core",
        "_handler",
        "_loading",
        "_perform",
        "checkMigration",
        "managed",
    )

    managedBy = "txrdma"

    def __init__(self, perform: Perform, managed: Managed, handler: EventHandler) -> None:
        self._perform, self.managed = perform, managed
        self._core = managed.connection
        self._handler = handler
        self.checkMigration: Callable[[], None] | None = None
        self._loading: Deferred[CMPath] | None = None

    def __repr__(self) -> str:
        return f"<CMConnection {self._core.localCommID:#x} {self._core.state}>"

    @property
    def state(self) -> str:
        return self._core.state

    @property
    def request(self) -> REQ:
        """The REQ of the connection, sent by either end."""
        return self._core.opening.request

    @property
    def reply(self) -> REP | None:
        return self._core.opening.reply

    @property
    def isActive(self) -> bool:
        """Whether this end sent the REQ."""
        return self._core.opening.isActive

    @property
    def primary(self) -> CMPath:
        return self._core.primary

    @property
    def alternate(self) -> CMPath | None:
        return self._core.alternatePath

    def setHandler(self, handler: EventHandler, checkMigration: Callable[[], None] | None = None) -> None:
        self._handler, self.checkMigration = handler, checkMigration

    def startingPSN(self) -> int:
        """Return a random starting PSN for the peer of a passive end."""
        return randbits(24)

    def accept(self, reply: REP) -> None:
        """
        Answer a REQ. The queue pair must be in RTS; the manager sets communication IDs and CA GUID.

        @raise InvalidRequest: no REQ is pending.
        """
        self._perform(self, lambda now: self._core.opening.accept(reply, now))

    def ready(self, privateData: bytes = b"") -> None:
        """
        Answer a REP by an RTU. The queue pair must be in RTS.

        @raise InvalidRequest: no REP is pending.
        """
        self._perform(self, lambda now: self._core.opening.ready(privateData, now))

    def reject(
        self,
        reason: RejectReason = RejectReason.CONSUMER_REJECT,
        information: bytes = b"",
        privateData: bytes = b"",
    ) -> None:
        """
        Answer a REQ or a REP by a REJ, or withdraw a REP.

        @param information: see L{txrdma.cm.layouts.rejectinfo.informationFor}.
        @raise InvalidRequest: neither is pending.
        """
        self._perform(self, lambda now: self._core.opening.reject(reason, now, information, privateData))

    def delay(self, service: int) -> None:
        """
        Ask the peer by an MRA to wait for the answer to a REQ or a REP.

        @param service: the time until the answer, encoded.
        @raise InvalidRequest: neither is pending.
        """
        self._perform(self, lambda now: self._core.opening.delay(service, now))

    def communicating(self) -> None:
        self._perform(self, self._core.communicating)

    def disconnect(self, privateData: bytes = b"") -> None:
        closing = self._core.closing
        if closing is None or not closing.hasDisconnected:
            self._perform(self, lambda now: self._core.disconnect(now, privateData))

    def loadAlternatePath(
        self, path: IBPath | CMPath, privateData: bytes = b"", isLegacyPeer: bool = False
    ) -> Deferred[CMPath]:
        """
        Send a LAP.

        @param isLegacyPeer: see L{Alternate.load<txrdma.cm.core.alternate.Alternate.load>}.
        @return: fires with the path when both ends have it; fails with L{Refused}, whose status is an
            L{APStatus}, with L{PeerSilent} if no answer arrives, or with L{DeviceUnavailable} if the
            connection has ended. If cancelled, the answer is ignored: a LAP cannot be withdrawn.
        @raise InvalidRequest: this end cannot load alternate paths, cannot load one now, or cannot load this
            one.
        """
        asked = pathFor(path) if isinstance(path, IBPath) else path

        def ignore(_: Deferred[CMPath]) -> None:
            self._loading = None

        if self._loading is not None:
            raise InvalidRequest("another alternate path is being loaded")
        answer: Deferred[CMPath] = Deferred(ignore)
        self._loading = answer
        try:
            isPerformed = self._perform(
                self, lambda now: self._core.loadAlternatePath(asked, now, privateData, isLegacyPeer)
            )
        except BaseException:
            self._loading = None
            raise
        alternate = self._core.alternate
        if self._loading is answer and not (isPerformed and alternate and alternate.isOutstanding):
            self.loaded(DeviceUnavailable("the connection has ended"))
        return answer

    def replyAlternatePath(
        self, transactionID: int, status: APStatus = APStatus.LOADED, information: bytes = b""
    ) -> None:
        """
        Answer a LAP.

        @param transactionID: the one of the L{AlternatePathRequested}.
        @raise InvalidRequest: the LAP is not pending any more.
        """
        self._perform(
            self, lambda now: self._core.replyAlternatePath(transactionID, status, now, information)
        )

    def migrated(self) -> None:
        """Report that the queue pair has migrated, which L{txrdma.cm.connections.transport} does itself."""
        self._perform(self, self._core.migrated)

    # For the manager

    def handleEvent(self, event: Event) -> None:
        """Handle an event of the core: fire the Deferred that waits for it, and call the handler."""
        if self._loading is not None:
            self._mayHaveLoaded(event)
        try:
            self._handler(self, event)
        except Exception:
            _log.failure(
                "{connection}: its handler raised an exception, called with {event}",
                connection=self,
                event=event,
            )
            self.disconnect()

    def _mayHaveLoaded(self, event: Event) -> None:
        """Fire the Deferred of C{loadAlternatePath} if this event is its result."""
        if isinstance(event, AlternatePathLoaded):
            self.loaded(event.path)
        elif isinstance(event, AlternatePathRejected):
            status = event.response.apStatus
            self.loaded(Refused(f"the peer does not accept the alternate path: {status.name}", status))
        elif isinstance(event, AlternatePathTimedOut):
            self.loaded(PeerSilent("the peer did not answer the LAP"))
        elif isinstance(event, (AlternatePathAbandoned, ConnectionAbandoned)):
            self.loaded(DeviceUnavailable("the connection ended before the alternate path was loaded"))

    def release(self) -> None:
        """
        Remove the references to the application, since no event follows.

        Otherwise reference cycles retain the connection's objects until a garbage collection.
        """
        self._handler, self.checkMigration = ignoreEvent, None

    def loaded(self, result: CMPath | RDMAError) -> None:
        """Fire the Deferred of L{loadAlternatePath}, if one waits."""
        waiting, self._loading = self._loading, None
        if waiting is None:
            return
        if isinstance(result, RDMAError):
            waiting.errback(result)
        else:
            waiting.callback(result)
