"""
The communication manager of one end port, on a management agent of any transport.

Follows InfiniBand Architecture vol. 1, chapter 12. It decides nothing: see L{txrdma.cm.core.dispatcher}.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from os import urandom
from secrets import randbelow
from typing import Final

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from txrdma.cm.core.alternate import acceptAnyPath, PathCheck
from txrdma.cm.core.connection import Connection
from txrdma.cm.core.dispatcher import BACKLOG, Dispatcher, Listener, Managed
from txrdma.cm.core.events import (
    AlternatePathAbandoned,
    AlternatePathLoaded,
    AlternatePathRejected,
    AlternatePathTimedOut,
    Event,
    ignoreEvent,
    ServiceRequested,
    ServiceResolved,
    ServiceTimedOut,
)
from txrdma.cm.core.exchange import Patience
from txrdma.cm.errors import PeerSilent
from txrdma.cm.interfaces import IConnectionManager, IManagedConnection
from txrdma.cm.layouts.messages import (
    APStatus,
    checkFits,
    checkRoom,
    CMPath,
    LAP,
    RejectReason,
    REP,
    REQ,
    SIDRREP,
    SIDRREQ,
    SIDRStatus,
)
from txrdma.cm.layouts.paths import pathFor
from txrdma.cm.status import managers
from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, Refused
from txrdma.iba.path import IBPath, SUBNET_TIMEOUT
from txrdma.iba.types import GUID
from txrdma.interfaces import IMADHandler
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import frame
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, Method
from txrdma.mad.layouts.messages import MADRequest
from txrdma.mad.server import MADServer

_log = Logger()

RESPONSE_TIMEOUT: Final = 18
"""The time that peers have for an answer, unless a REQ says otherwise, a time's code: 1.07 seconds."""

RETRIES: Final = 7
"""The number of times that a SIDR_REQ is sent again."""

EventHandler = Callable[["CMConnection", Event], None]
"""A program's function that is called with each event of a connection."""

SIDRHandler = Callable[[SIDRREQ], SIDRREP]
"""A program's function that answers SIDR_REQs; ids are filled in."""


def _doNothing() -> None:
    """There is no queue pair to look at."""


@implementer(IManagedConnection)
class CMConnection:
    """
    A connection, or the attempt to make one, as its program holds it.

    @ivar manager: the manager whose connection this is.
    """

    managedBy = "txrdma"

    def __init__(self, manager: ConnectionManager, managed: Managed, handler: EventHandler) -> None:
        self.manager = manager
        self._managed = managed
        self._handler = handler
        self._checkMigration: Callable[[], None] = _doNothing
        self._loading: Deferred[CMPath] | None = None

    def __repr__(self) -> str:
        return f"<CMConnection {self._core.localCommID:#x} {self._core.state}>"

    @property
    def _core(self) -> Connection:
        return self._managed.connection

    @property
    def state(self) -> str:
        """The state of the connection by the specification's name: C{"REQ_SENT"}, C{"ESTABLISHED"}..."""
        return self._core.state

    @property
    def request(self) -> REQ:
        """The REQ of the connection: this end's if that one counts, else the peer's."""
        return self._core.opening.request

    @property
    def reply(self) -> REP | None:
        return self._core.opening.reply

    @property
    def isActive(self) -> bool:
        """True if the REQ is this end's."""
        return self._core.opening.isActive

    @property
    def primary(self) -> CMPath:
        return self._core.primary

    @property
    def alternate(self) -> CMPath | None:
        return None if self._core.alternate is None else self._core.alternate.alternate

    def setHandler(self, handler: EventHandler, checkMigration: Callable[[], None] = _doNothing) -> None:
        self._handler, self._checkMigration = handler, checkMigration

    def startingPSN(self) -> int:
        """The PSN that the peer of a passive end is to begin with: a random number."""
        return randbelow(1 << 24)

    def accept(self, reply: REP) -> None:
        """
        Answer a REQ; comm ids and CA GUID are filled in. The queue pair must be ready to send already.

        @raise InvalidRequest: no REQ waits for an answer.
        """
        made = reply.replace(localCAGUID=self.manager.guid)
        self._do(lambda now: self._core.opening.accept(made, now))

    def ready(self, privateData: bytes = b"") -> None:
        """
        Answer a REP: the queue pair is ready to send.

        @raise InvalidRequest: no REP waits for an answer.
        """
        self._do(lambda now: self._core.opening.ready(privateData, now))

    def reject(
        self,
        reason: RejectReason = RejectReason.CONSUMER_REJECT,
        information: bytes = b"",
        privateData: bytes = b"",
    ) -> None:
        """
        Answer a REQ or a REP by a REJ, or withdraw a REP.

        @param information: see L{txrdma.cm.layouts.rejectinfo.informationFor}.
        @raise InvalidRequest: neither waits for an answer.
        """
        self._do(lambda now: self._core.opening.reject(reason, now, information, privateData))

    def delay(self, service: int) -> None:
        """
        Ask the peer to wait for the answer to a REQ or a REP.

        @param service: the time until then, a time's code.
        @raise InvalidRequest: neither waits for an answer.
        """
        self._do(lambda now: self._core.opening.delay(service, now))

    def communicating(self) -> None:
        self._do(self._core.communicating)

    def disconnect(self, privateData: bytes = b"") -> None:
        self._do(lambda now: self._core.disconnect(now, privateData))

    def loadAlternatePath(self, path: IBPath | CMPath, privateData: bytes = b"") -> Deferred[CMPath]:
        """
        Send a LAP. To cancel the Deferred is to ignore the answer: a LAP can't be withdrawn.

        @return: fires with the path when both ends have it; fails with L{Refused}, whose status is an
            L{APStatus}, with L{PeerSilent} when no answer came, or with L{DeviceUnavailable} when the
            connection is over.
        @raise InvalidRequest: this end can't load, or not now, or not this path.
        """
        asked = pathFor(path) if isinstance(path, IBPath) else path

        def ignore(_: Deferred[CMPath]) -> None:
            self._loading = None

        if self._loading is not None:
            raise InvalidRequest("another alternate path is being loaded")
        answer: Deferred[CMPath] = Deferred(ignore)
        self._loading = answer
        try:
            self._do(lambda now: self._core.loadAlternatePath(asked, now, privateData))
        except RDMAError:
            self._loading = None
            raise
        if self._loading is not None and self._core.alternate and not self._core.alternate.isOutstanding:
            self._loaded(DeviceUnavailable("the connection is over"))
        return answer

    def replyAlternatePath(
        self, transactionID: int, status: APStatus = APStatus.LOADED, information: bytes = b""
    ) -> None:
        """
        Answer a LAP, by the transaction of its L{AlternatePathRequested}.

        @raise InvalidRequest: it does not wait for an answer any more.
        """
        self._do(lambda now: self._core.replyAlternatePath(transactionID, status, now, information))

    def migrated(self) -> None:
        """Note that the queue pair has migrated; L{txrdma.cm.connections.transport} calls this by itself."""
        self._do(self._core.migrated)

    def _do(self, what: Callable[[float], object]) -> None:
        if self.manager._connections.get(self._managed) is self:  # else it is over, as its program has heard
            what(self.manager.seconds())
            self.manager._turned(self._managed)

    def _happened(self, event: Event) -> None:
        if isinstance(event, AlternatePathLoaded):
            self._loaded(event.path)
        elif isinstance(event, AlternatePathRejected):
            status = event.response.apStatus
            self._loaded(Refused(f"the peer does not accept the alternate path: {status.name}", status))
        elif isinstance(event, AlternatePathTimedOut):
            self._loaded(PeerSilent("the peer does not answer about an alternate path"))
        elif isinstance(event, AlternatePathAbandoned):
            self._loaded(DeviceUnavailable("the connection ended before the alternate path was loaded"))
        try:
            self._handler(self, event)
        except Exception:
            _log.failure("{connection}: its program failed at {event}", connection=self, event=event)
            self.disconnect()

    def _over(self) -> None:
        """
        Let go of the program, which hears no more.

        What holds each other would be left to the garbage collector, with all that is of a connection.
        """
        self._handler, self._checkMigration = ignoreEvent, _doNothing

    def _loaded(self, result: CMPath | RDMAError) -> None:
        waiting, self._loading = self._loading, None
        if waiting is None:
            return
        if isinstance(result, RDMAError):
            waiting.errback(result)
        else:
            waiting.callback(result)


@implementer(IMADHandler, IConnectionManager)
class ConnectionManager:
    """
    A manager of connections through one port, or through several of one device.

    @ivar guid: the CA GUID in REQs and REPs: of the process, unless one is given.
    """

    def __init__(self, server: MADServer, guid: GUID | None = None, others: Sequence[MADServer] = ()) -> None:
        """
        @param server: serves the agent of the port, and remains its owner's.
        @param others: those of further ports, to which connections can migrate; messages of a connection go
            by the port that has the source GID of its path.
        @raise txrdma.error.ResourceExhausted: somebody else on this host has the class: the kernel's own CM.
        """
        self.guid = guid or GUID(bytes((urandom(1)[0] & 0xFC | 2,)) + urandom(7))
        self._agent: MADAgent = server.agent
        self._agents = [server.agent, *(other.agent for other in others)]
        self._reactor = self._agent.reactor
        self._core = Dispatcher(self.guid, lambda: int.from_bytes(urandom(4), "big"))
        self._connections: dict[Managed, CMConnection] = {}
        self._handlers: dict[Listener, EventHandler] = {}
        self._services: dict[Listener, SIDRHandler] = {}
        self._resolving: dict[Managed, Deferred[SIDRREP]] = {}
        self._timer: IDelayedCall | None = None
        self._timerAt = 0.0
        self._isTurning = False
        with ExitStack() as undo:
            for each in (server, *others):
                undo.callback(each.handle(ManagementClass.COMM_MGT, self, (Method.SEND,)))
            self._ends = undo.pop_all()
        managers.appear(self._reactor, self)

    def __repr__(self) -> str:
        return f"<ConnectionManager {self._agent.port.name} {len(self._core)} connections>"

    @property
    def counters(self) -> Counter[str]:
        """Numbers of messages, by direction and kind: C{"sent REQ"}, C{"retried REQ"}, C{"stray REP"}..."""
        return self._core.counters

    @property
    def states(self) -> Counter[str]:
        """Numbers of connections by their states, as the specification calls them."""
        return self._core.states

    @property
    def listeners(self) -> int:
        """The number of listeners, and of datagram services that are answered for."""
        return self._core.listeners

    def seconds(self) -> float:
        """The time of the reactor, in seconds."""
        return self._reactor.seconds()

    def listen(
        self,
        serviceID: int,
        handler: EventHandler,
        *,
        backlog: int = BACKLOG,
        offset: int = 0,
        pattern: bytes = b"",
        mayReload: bool = False,
        checkPath: PathCheck = acceptAnyPath,
    ) -> Callable[[], None]:
        """
        Have REQs for a service reported to C{handler}, as all events of their connections.

        @param backlog: connections that may be asked for and not established yet; REQs beyond are dropped.
        @param pattern: bytes that the private data must have behind C{offset} others: listeners can share a
            service id.
        @param mayReload: of these connections, as in L{connect}, and C{checkPath}.
        @return: call it to listen no more. Connections stay.
        @raise InvalidRequest: another listener takes the same.
        """
        listener = Listener(serviceID, backlog, offset, pattern, mayReload, checkPath)
        self._core.listen(listener)
        self._handlers[listener] = handler

        def end() -> None:
            self._core.unlisten(listener)
            self._handlers.pop(listener, None)

        return end

    def serve(self, serviceID: int, handler: SIDRHandler) -> Callable[[], None]:
        """
        Answer SIDR_REQs for a service; the same service id can't have a listener for REQs.

        @return: call it to answer no more.
        @raise InvalidRequest: another listener takes the same.
        """
        listener = Listener(serviceID)
        self._core.listen(listener)
        self._services[listener] = handler

        def end() -> None:
            self._core.unlisten(listener)
            self._services.pop(listener, None)

        return end

    def connect(
        self,
        request: REQ,
        path: IBPath,
        handler: EventHandler,
        *,
        isPeerToPeer: bool = False,
        mayReload: bool = False,
        checkPath: PathCheck = acceptAnyPath,
    ) -> CMConnection:
        """
        Send a REQ; comm id and CA GUID are filled in, and the primary path if it has none.

        @param path: the way of data and of messages.
        @param handler: is called with each event of the connection.
        @param isPeerToPeer: the peer may ask for the same connection meanwhile; one of both REQs counts.
        @param mayReload: an alternate path can be replaced before it was migrated to.
        @param checkPath: returns why this end can't use an alternate path, such as a foreign GID; else None.
        @raise txrdma.error.ResourceExhausted: no comm id is free.
        @raise InvalidRequest: the request can't be encoded.
        """
        checkFits(request)
        if request.primary == CMPath():
            request = request.replace(primary=pathFor(path))
        managed = self._core.connect(request, path, self.seconds(), isPeerToPeer, mayReload, checkPath)
        made = self._connections[managed] = CMConnection(self, managed, handler)
        self._turn()
        return made

    def resolve(
        self, serviceID: int, path: IBPath, privateData: bytes = b"", responseTimeout: int = RESPONSE_TIMEOUT
    ) -> Deferred[SIDRREP]:
        """
        Ask for the queue pair of a datagram service. The Deferred can be cancelled.

        @param responseTimeout: the time that the peer has for its answer, a time's code.
        @return: fires with the answer; fails with L{Refused}, whose status is a L{SIDRStatus}, or with
            L{PeerSilent} when no answer came.
        @raise InvalidRequest: there is too much private data.
        """
        checkRoom(privateData, 216)
        question = SIDRREQ(serviceID=serviceID, pkey=path.pkey, privateData=privateData.ljust(216, b"\0"))
        life = SUBNET_TIMEOUT if path.packetLifeTime is None else path.packetLifeTime
        patience = Patience(responseTimeout, life, RETRIES)
        managed = self._core.resolve(question, path, patience, self.seconds())

        def cancel(_: Deferred[SIDRREP]) -> None:
            del self._resolving[managed]
            managed.resolution.cancel(self.seconds())
            self._turned(managed)

        answer = self._resolving[managed] = Deferred(cancel)
        self._turn()
        return answer

    def close(self) -> None:
        """
        Forget all connections, without a word to peers that have not been told: disconnect them before.

        What waits for an answer fails. Twice is fine.
        """
        self._ends.close()
        if self._timer is not None:
            if self._timer.active():  # somebody may have cancelled all calls, and told nobody
                self._timer.cancel()
            self._timer = None
        self._transmit()  # the last DREP, perhaps
        managers.leave(self)
        self._core = Dispatcher(self.guid, self._core._random)
        connections, self._connections = self._connections, {}
        for managed, connection in connections.items():
            connection._loaded(DeviceUnavailable("the communication manager is closed"))
            connection._over()
            managed.core.free()
        while self._resolving:  # whoever hears of one may cancel another one
            self._resolving.popitem()[1].errback(DeviceUnavailable("the communication manager is closed"))

    # IMADHandler

    def handle(self, request: MADRequest) -> None:
        """Take a message of a peer."""
        assert request.payload is not None  # servers answer unknown attributes themselves
        if isinstance(request.payload, LAP):
            managed = self._core.matching(request.payload)
            connection = None if managed is None else self._connections.get(managed)
            if connection is not None:
                with _log.failuresHandled(
                    "{connection} can't ask whether it has migrated", connection=connection
                ):
                    connection._checkMigration()
        self._core.received(request.payload, request.header.transactionID, request.path, self.seconds())
        self._turn()

    # Turns

    def _turned(self, managed: Managed) -> None:
        self._core.turned(managed, self.seconds())
        self._turn()
        if not self._isTurning:
            self._release(managed)

    def _turn(self) -> None:
        """Act on events, send, and see to the timer; what events lead to is part of the same turn."""
        if self._isTurning:
            return
        self._isTurning = True
        try:
            while events := self._core.events():
                for managed, event in events:
                    with _log.failuresHandled("{event} is lost by an error", event=event):
                        self._happened(managed, event)
        finally:
            self._isTurning = False
            self._transmit()
            self._reschedule()

    def _happened(self, managed: Managed, event: Event) -> None:
        if isinstance(event, (ServiceResolved, ServiceTimedOut)):
            self._resolved(managed, event)
        elif isinstance(event, ServiceRequested):
            self._asked(managed, event)
        else:
            connection = self._connections.get(managed)
            if connection is None:
                handler = None if managed.listener is None else self._handlers.get(managed.listener)
                if handler is None:  # closed meanwhile, or a listener for SIDR_REQs
                    managed.connection.disconnect(self.seconds())
                    self._core.turned(managed, self.seconds())
                    return
                connection = self._connections[managed] = CMConnection(self, managed, handler)
            connection._happened(event)
        self._release(managed)

    def _release(self, managed: Managed) -> None:
        """Forget a connection whose ids are free."""
        if isinstance(managed.core, Connection) and managed.core.isFree:
            connection = self._connections.pop(managed, None)
            if connection is not None:
                connection._over()

    def _resolved(self, managed: Managed, event: ServiceResolved | ServiceTimedOut) -> None:
        answer = self._resolving.pop(managed, None)
        if answer is None:
            return
        if isinstance(event, ServiceTimedOut):
            answer.errback(PeerSilent("the peer does not answer about the service"))
        elif event.response.status != SIDRStatus.VALID:
            status = event.response.status
            answer.errback(Refused(f"the service is not to be had: {status.name}", status))
        else:
            answer.callback(event.response)

    def _asked(self, managed: Managed, event: ServiceRequested) -> None:
        handler = None if managed.listener is None else self._services.get(managed.listener)
        response = SIDRREP(status=SIDRStatus.SERVICE_ID_NOT_SUPPORTED)
        if handler is not None:
            try:
                response = handler(event.request)
                checkFits(response)
            except Exception:
                _log.failure("a service's program failed at {request}", request=event.request)
                response = SIDRREP(status=SIDRStatus.REJECTED)
        managed.resolution.answer(response, self.seconds())
        self._core.turned(managed, self.seconds())

    def _transmit(self) -> None:
        for each in self._core.outgoing():
            with _log.failuresHandled(
                "{manager} can't send {kind}, as if it was lost",
                manager=self,
                kind=type(each.message).__name__,
            ):
                self._send(each.message, each.transactionID, each.path)

    def _send(self, message: object, transactionID: int, path: IBPath) -> None:
        assert isinstance(message, Attribute)  # all messages are
        datagram = frame(
            *(ManagementClass.COMM_MGT, Method.SEND, transactionID, message.attributeID, 0),
            message.encode(),
        )
        try:
            self._agentFor(path).send(datagram, path)
        except RDMAError as error:  # as if it was lost: it will be sent again
            _log.warn("{manager} cannot send: {error}", manager=self, error=error)

    def _agentFor(self, path: IBPath) -> MADAgent:
        """The agent of the port where a path begins."""
        if len(self._agents) > 1:
            for agent in self._agents:
                if path.sgid in agent.port.endPort.gids:
                    return agent
        return self._agent

    def _reschedule(self) -> None:
        deadline = self._core.deadline()
        if self._timer is not None:
            if deadline is not None and deadline >= self._timerAt:
                return  # soon enough to see then
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timerAt = deadline
            self._timer = self._reactor.callLater(max(0.0, deadline - self.seconds()), self._expired)

    def _expired(self) -> None:
        self._timer = None
        try:
            self._core.expired(self.seconds())
        finally:
            self._turn()
