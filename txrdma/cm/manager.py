"""
The communication manager of one end port, on any management agent.

Follows InfiniBand Architecture vol. 1, chapter 12. L{txrdma.cm.core.dispatcher} decides; this module
connects it to the reactor and the agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack, suppress
from os import urandom
from typing import Final, TypeVar

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from txrdma.cm.claims import ServiceClaims
from txrdma.cm.connection import CMConnection, EventHandler
from txrdma.cm.core.alternate import acceptAnyPath, PathCheck
from txrdma.cm.core.dispatcher import BACKLOG, CLASS_VERSION, Dispatcher, Listener, Managed
from txrdma.cm.core.events import (
    ConnectionAbandoned,
    Event,
    ServiceRequested,
    ServiceResolved,
    ServiceTimedOut,
)
from txrdma.cm.core.exchange import RetryPolicy
from txrdma.cm.errors import PeerSilent, ServiceRefused
from txrdma.cm.interfaces import IConnectionManager
from txrdma.cm.layouts.messages import (
    checkFits,
    checkPrivateData,
    CMPath,
    LAP,
    REQ,
    SIDRREP,
    SIDRREQ,
    SIDRStatus,
)
from txrdma.cm.layouts.paths import pathFor
from txrdma.cm.status import managers
from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, ResourceExhausted
from txrdma.iba.path import IBPath, SUBNET_TIMEOUT
from txrdma.iba.types import GUID
from txrdma.interfaces import IMADHandler
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.forwardclock import sharedForwardClock
from txrdma.kit.logs import errorText
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import frame
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, Method
from txrdma.mad.layouts.messages import ClassPortInfo, MADRequest
from txrdma.mad.resolvers import SAPathResolver
from txrdma.mad.server import MADServer

_log = Logger()

RESPONSE_TIMEOUT: Final = 18
"""The default response timeout of peers, encoded: 1.07 seconds."""

RETRIES: Final = 7
"""The number of retransmissions of a SIDR_REQ."""

_IS_RC_CAPABLE, _IS_SIDR_CAPABLE = 1 << 9, 1 << 13
_CLASS_PORT_INFO: Final = ClassPortInfo(
    baseVersion=1,
    classVersion=CLASS_VERSION,
    capabilityMask=_IS_RC_CAPABLE | _IS_SIDR_CAPABLE,
    responseTimeValue=RESPONSE_TIMEOUT,
)
"""The answer to a Get of the class's capabilities (IBA 16.7.3)."""

_CLOSED: Final = "the communication manager is closed"

_HandlerT = TypeVar("_HandlerT")

SIDRHandler = Callable[[SIDRREQ, IBPath], SIDRREP]
"""A function that answers SIDR_REQs: called with the request and the path of the answer."""


@implementer(IMADHandler, IConnectionManager)
class ConnectionManager:
    """
    A connection manager on one port, or on several ports of one device.

    @ivar guid: the CA GUID in REQs and REPs; random by default, and so different for each process.
    @ivar seconds: returns the time by the reactor's clock, which never goes back here, in seconds.
    """

    def __init__(self, server: MADServer, guid: GUID | None = None, others: Sequence[MADServer] = ()) -> None:
        """
        @param server: the MAD server of the port; it is not closed by the manager.
        @param others: the servers of further ports, to which connections can migrate. Messages are sent by
            the port that has the source GID of the path.
        @raise ResourceExhausted: the management class is in use, for example by the kernel's CM.
        """
        self._claims = ServiceClaims(server.agent.port)
        # The claims of peer-to-peer attempts; None if another process of the same address has the service.
        self._peerClaims: dict[Managed, Callable[[], None] | None] = {}
        self.guid = guid or GUID(bytes((urandom(1)[0] & 0xFC | 2,)) + urandom(7))
        self._agent: MADAgent = server.agent
        self._agents = [server.agent, *(other.agent for other in others)]
        self._reactor = self._agent.reactor
        self._clock = sharedForwardClock(self._reactor)
        self.seconds = self._clock.seconds
        self._core = self._makeCore()
        self._connections: dict[Managed, CMConnection] = {}
        self._handlers: dict[Listener, EventHandler] = {}
        self._services: dict[Listener, SIDRHandler] = {}
        self._resolving: dict[Managed, Deferred[SIDRREP]] = {}
        self._timer = Timer(self._reactor)
        self._isTurning = self._isClosed = False
        with ExitStack() as undo:
            for each in (server, *others):
                undo.callback(each.handle(ManagementClass.COMM_MGT, self, (Method.SEND, Method.GET)))
            self._ends = undo.pop_all()
        managers.add(self._reactor, self, lambda: self.counters)
        self._clock.join(self._reschedule)

    def __repr__(self) -> str:
        return f"<ConnectionManager {self._agent.port.name} {len(self._core)} connections>"

    @property
    def counters(self) -> Counter[str]:
        """Numbers of messages, by direction and kind: C{"sent REQ"}, C{"retried REQ"}, C{"stray REP"}..."""
        return self._core.counters

    @property
    def states(self) -> Counter[str]:
        """Numbers of connections by state, with the specification's names."""
        return self._core.states

    @property
    def listeners(self) -> int:
        """The number of listeners, with those for SIDR_REQs."""
        return self._core.listeners

    def resolverFor(self, path: IBPath | None = None) -> SAPathResolver | None:
        """
        Return a resolver that queries the subnet administration; None on RoCE, which has none.

        @param path: its source GID selects the port of the queries; None for the first port.
        """
        agent = self._agent if path is None else self._agentFor(path)
        port = agent.port
        if not port.endPort.smLID:
            return None
        return SAPathResolver(agent, lambda: port.endPort, asksForLIDs=True, keepsGIDs=True)

    def perform(self, connection: CMConnection, request: Callable[[float], object]) -> bool:
        """Call a request of the core with the current time; return False if the connection has ended."""
        managed = connection.managed
        if self._connections.get(managed) is not connection:
            return False
        try:
            return self._core.perform(managed, request, self.seconds())
        finally:
            self._turn()

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
        Listen for REQs.

        @param handler: called with each event of the listener's connections.
        @param backlog: limit of connections that are not established yet; further REQs are dropped.
        @param pattern: bytes that the private data must have at C{offset}, so that listeners can share a
            service ID.
        @param mayReload: for these connections, as in L{connect}, like C{checkPath}.
        @return: a function that stops listening; connections stay.
        @raise InvalidRequest: an equal listener exists, or the service ID has more than 64 bits.
        @raise DeviceUnavailable: the manager is closed.
        """
        listener = Listener(serviceID, backlog, offset, pattern, mayReload, checkPath)
        return self._listen(listener, self._handlers, handler)

    def serve(self, serviceID: int, handler: SIDRHandler) -> Callable[[], None]:
        """
        Answer SIDR_REQs for a service ID, which cannot also have a listener for REQs.

        @return: a function that stops answering.
        @raise InvalidRequest: there is a listener already, or the service ID has more than 64 bits.
        @raise DeviceUnavailable: the manager is closed.
        """
        return self._listen(Listener(serviceID, isForSIDR=True), self._services, handler)

    def _makeCore(self) -> Dispatcher:
        random = lambda: int.from_bytes(urandom(4), "big")  # noqa: E731
        return Dispatcher(self.guid, random, self._claims.share, self._senderOf)

    def _senderOf(self, path: IBPath) -> Hashable:
        """Return the identity of the sender of a message that was received on a path."""
        return self._agent.port.endPort.senderOf(path)

    def _listen(
        self, listener: Listener, handlers: dict[Listener, _HandlerT], handler: _HandlerT
    ) -> Callable[[], None]:
        """Listen in the core, with a claim for the service; return a function that ends both."""
        self._requireOpen()
        _checkServiceID(listener.serviceID)
        with ExitStack() as undo:
            self._core.listen(listener)
            undo.callback(self._core.unlisten, listener)
            undo.callback(self._claims.claim(listener.serviceID))
            handlers[listener] = handler
            undo.callback(handlers.pop, listener, None)
            return undo.pop_all().close

    def _requireOpen(self) -> None:
        if self._isClosed:
            raise DeviceUnavailable(_CLOSED)

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
        Send a REQ. The manager sets communication ID and CA GUID, and the primary path if there is none.

        @param path: the path of data and of messages.
        @param handler: called with each event of the connection.
        @param isPeerToPeer: the peer may send a REQ for the same connection; one of the two is used.
        @param mayReload: an alternate path can be replaced before a migration to it.
        @param checkPath: returns why this end cannot use an alternate path, or None.
        @raise ResourceExhausted: no communication ID is free; or the connection is peer-to-peer, to another
            address, and another process has the service at this one.
        @raise InvalidRequest: the request cannot be encoded.
        @raise DeviceUnavailable: the manager is closed.
        """
        self._requireOpen()
        if request.primary == CMPath():
            request = request.replace(primary=pathFor(path))
        checkFits(request)
        with ExitStack() as undo:
            unclaim = self._claimForPeer(request.serviceID, path) if isPeerToPeer else None
            if unclaim is not None:
                undo.callback(unclaim)
            managed = self._core.connect(request, path, self.seconds(), isPeerToPeer, mayReload, checkPath)
            undo.pop_all()
        if isPeerToPeer:
            self._peerClaims[managed] = unclaim
        made = self._connections[managed] = CMConnection(self.perform, managed, handler)
        self._turn()
        return made

    def _claimForPeer(self, serviceID: int, path: IBPath) -> Callable[[], None] | None:
        """
        Claim the service of a peer-to-peer attempt.

        @return: a function that releases it; None if another process of this address has the service, to
            which the REQ is sent: the peer, or one that connects to it before.
        """
        try:
            return self._claims.claim(serviceID)
        except ResourceExhausted as error:
            if path.sgid == path.dgid:
                return None
            raise ResourceExhausted(
                f"{error}, which receives what the peer sends: use another address (bindAddress=)"
            ) from error

    def _claimAgain(self) -> None:
        """Claim the services of peer-to-peer attempts that other processes had before."""
        for managed, unclaim in self._peerClaims.items():
            if unclaim is None:
                request = managed.connection.opening.request
                with suppress(DeviceUnavailable):  # no descriptor, for example: the next timer tries again
                    self._peerClaims[managed] = self._claimForPeer(request.serviceID, managed.path)

    def _endClaim(self, managed: Managed) -> None:
        """Release the claim of a peer-to-peer attempt."""
        unclaim = self._peerClaims.pop(managed, None)
        if unclaim is not None:
            unclaim()

    def resolve(
        self, serviceID: int, path: IBPath, privateData: bytes = b"", responseTimeout: int = RESPONSE_TIMEOUT
    ) -> Deferred[SIDRREP]:
        """
        Resolve the queue pair of a datagram service by a SIDR_REQ.

        @param responseTimeout: the response timeout of the peer, encoded.
        @return: fires with the answer; fails with L{ServiceRefused}, with L{PeerSilent} if no answer
            arrives, or with L{DeviceUnavailable} when the manager is closed. It can be cancelled.
        @raise InvalidRequest: the private data is too long, or the service ID has more than 64 bits.
        @raise DeviceUnavailable: the manager is closed.
        """
        self._requireOpen()
        checkPrivateData(privateData, 216)
        _checkServiceID(serviceID)
        question = SIDRREQ(serviceID=serviceID, pkey=path.pkey, privateData=privateData.ljust(216, b"\0"))
        life = SUBNET_TIMEOUT if path.packetLifeTime is None else path.packetLifeTime
        retryPolicy = RetryPolicy(responseTimeout, life, RETRIES)
        managed = self._core.resolve(question, path, retryPolicy, self.seconds())

        def cancel(_: Deferred[SIDRREP]) -> None:
            del self._resolving[managed]
            with _log.failuresHandled("{manager}: cancelling a SIDR_REQ raised an exception", manager=self):
                self._core.cancel(managed, self.seconds())
            self._turn()

        answer = self._resolving[managed] = Deferred(cancel)
        self._turn()
        return answer

    def close(self) -> None:
        """
        Drop all connections and listeners. Idempotent.

        Peers are not notified: disconnect connections before. Pending requests fail, and so do later ones.
        """
        self._isClosed = True
        self._transmit()  # there may be a last DREP
        connections, self._connections = self._connections, {}
        with ExitStack() as steps:  # all of them, in this order, whichever raises an exception
            steps.callback(self._failResolutions)
            for managed, connection in reversed(connections.items()):
                steps.callback(managed.core.free)
                steps.callback(connection.release)
                steps.callback(connection.loaded, DeviceUnavailable(_CLOSED))
            steps.callback(self._claims.close)
            steps.callback(setattr, self, "_core", self._makeCore())
            steps.callback(managers.leave, self)  # which adds up the counters of the core
            steps.callback(self._timer.stop)
            steps.callback(self._clock.leave, self._reschedule)
            steps.callback(self._ends.close)

    def _failResolutions(self) -> None:
        while self._resolving:  # an errback may cancel another one
            self._resolving.popitem()[1].errback(DeviceUnavailable(_CLOSED))

    # IMADHandler

    def handle(self, request: MADRequest) -> ClassPortInfo | None:
        """Handle a message of a peer, or return the capabilities of this manager."""
        assert request.payload is not None  # servers answer unknown attributes themselves
        if isinstance(request.payload, ClassPortInfo):
            return _CLASS_PORT_INFO
        if request.header.classVersion != CLASS_VERSION:
            self._core.refuseVersion(request.payload, request.header.transactionID, request.path)
            self._turn()
            return None
        if isinstance(request.payload, LAP):
            managed = self._core.matching(request.payload)
            connection = None if managed is None else self._connections.get(managed)
            if connection is not None and connection.checkMigration is not None:
                with _log.failuresHandled(
                    "{connection} could not check for a migration", connection=connection
                ):
                    connection.checkMigration()
        try:
            self._core.received(request.payload, request.header.transactionID, request.path, self.seconds())
        finally:
            self._turn()
        return None

    # Turns

    def _turn(self) -> None:
        """
        Handle events, then send messages and set the timer. Calls by event handlers are not nested.

        Exceptions are logged: they concern other connections than that of the caller.
        """
        if self._isTurning:
            return
        self._isTurning = True
        try:
            self._contain(self._handleEvents)
        finally:
            self._isTurning = False
            for step in (self._releaseFreed, self._transmit, self._reschedule):
                self._contain(step)

    def _contain(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            _log.failure("{manager} continues after an exception", manager=self)

    def _handleEvents(self) -> None:
        while events := self._core.events():
            for managed, event in events:
                if self._isClosed:  # by the handler of the last event
                    return
                try:
                    self._handleEvent(managed, event)
                except Exception:
                    _log.failure("{event} could not be handled", event=event)
        # Even if the IDs of an attempt are still in use: others at this address may meet by its service.
        for managed in [each for each in self._peerClaims if each.connection.closing is not None]:
            self._endClaim(managed)

    def _releaseFreed(self) -> None:
        for managed in self._core.freed():
            self._release(managed)

    def _handleEvent(self, managed: Managed, event: Event) -> None:
        if isinstance(event, (ServiceResolved, ServiceTimedOut)):
            self._resolved(managed, event)
        elif isinstance(event, ServiceRequested):
            self._serviceRequested(managed, event)
        else:
            connection = self._connections.get(managed)
            if connection is None:
                if isinstance(event, ConnectionAbandoned):
                    return
                handler = None if managed.listener is None else self._handlers.get(managed.listener)
                if handler is None:  # it was closed, or is for SIDR_REQs
                    self._core.perform(managed, managed.connection.disconnect, self.seconds())
                    return
                connection = self._connections[managed] = CMConnection(self.perform, managed, handler)
            connection.handleEvent(event)

    def _release(self, managed: Managed) -> None:
        """Remove a connection whose IDs are free."""
        connection = self._connections.pop(managed, None)
        if connection is not None:
            connection.release()
        answer = self._resolving.pop(managed, None)
        if answer is not None:  # an exception, which is logged, has prevented the answer
            answer.errback(DeviceUnavailable("the service could not be resolved"))
        self._endClaim(managed)

    def _resolved(self, managed: Managed, event: ServiceResolved | ServiceTimedOut) -> None:
        answer = self._resolving.pop(managed, None)
        if answer is None:
            return
        if isinstance(event, ServiceTimedOut):
            answer.errback(PeerSilent("the peer did not answer the SIDR_REQ"))
        elif event.response.status != SIDRStatus.VALID:
            answer.errback(ServiceRefused(event.response))
        else:
            answer.callback(event.response)

    def _serviceRequested(self, managed: Managed, event: ServiceRequested) -> None:
        handler = None if managed.listener is None else self._services.get(managed.listener)
        response = SIDRREP(status=SIDRStatus.SERVICE_ID_NOT_SUPPORTED)
        if handler is not None:
            try:
                response = handler(event.request, managed.path)
                checkFits(response)
            except Exception:
                # Without the request, which has private data.
                text = "rejecting a SIDR_REQ: the handler of the service {serviceID} raised an exception"
                _log.failure(text, serviceID=hex(event.request.serviceID))
                response = SIDRREP(status=SIDRStatus.REJECTED)
        self._core.answer(managed, response, self.seconds())

    def _transmit(self) -> None:
        for each in self._core.outgoing():
            try:
                self._send(each.message, each.transactionID, each.path)
            except Exception:
                # Without the message, which has private data.
                kind = type(each.message).__name__
                text = "{manager} could not send a {kind}, which counts as lost"
                _log.failure(text, manager=self, kind=kind)

    def _send(self, message: object, transactionID: int, path: IBPath) -> None:
        assert isinstance(message, Attribute)  # all messages are
        datagram = frame(
            ManagementClass.COMM_MGT, Method.SEND, transactionID, message.attributeID, 0, message.encode()
        )
        try:
            self._agentFor(path).send(datagram, path)
        except RDMAError as error:  # as if it had been lost: it is retransmitted
            text = "{manager} cannot send a message, which counts as lost: {error}"
            _log.warn(text, manager=self, error=errorText(error))

    def _agentFor(self, path: IBPath) -> MADAgent:
        """Return the agent of the port of a path's source GID."""
        if len(self._agents) > 1:
            for agent in self._agents:
                if path.sgid in agent.port.endPort.gids:
                    return agent
        return self._agent

    def _reschedule(self) -> None:
        deadline = self._core.deadline()
        if deadline is None:
            self._timer.stop()
        else:
            delay = max(0.0, deadline - self.seconds()) + self._clock.margin
            self._timer.ensure(delay, self._expired)

    def _expired(self) -> None:
        try:
            self._core.expired(self.seconds())
            with _log.failuresHandled("{manager} could not claim a service", manager=self):
                self._claimAgain()
        finally:  # the turn sets the next timer: without it no connection would retransmit any more
            self._turn()


def _checkServiceID(serviceID: int) -> None:
    if not 0 <= serviceID < 1 << 64:
        raise InvalidRequest(f"a service ID has 64 bits, so it cannot be {serviceID}")
