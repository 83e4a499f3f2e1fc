"""
Listeners: the passive end of a connection, from a REQ to a connected protocol.

Follows InfiniBand Architecture vol. 1, 12.9.7. If a REQ is rejected, or its sender does not answer the REP,
the queue pair is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from zope.interface import implementer

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from txrdma.cm.connections.adapter import Adapter
from txrdma.cm.connections.transport import acceptPath, RDMATransport
from txrdma.cm.core.events import (
    ConnectionEstablished,
    ConnectionRequested,
    Event,
)
from txrdma.cm.errors import Rejection
from txrdma.cm.interfaces import IManagedConnection, IPreparedProtocol
from txrdma.cm.layouts.messages import (
    CMPath,
    CMTransport,
    FailoverAccepted,
    RejectReason,
    REP,
    REP_PRIVATE_BYTES,
    REQ,
)
from txrdma.cm.layouts.paths import areSame, isPath, reversedPath
from txrdma.cm.layouts.rejectinfo import informationFor
from txrdma.cm.terms import (
    Greeting,
    negotiate,
    REP_MAGIC,
    REQ_MAGIC,
    splitGreeting,
    Terms,
)
from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, ResourceExhausted, WireError
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.kit.shutdown import addShutdownListener, removeShutdownListener
from txrdma.kit.values import replace
from txrdma.mad.layouts.values import PathMTU
from txrdma.messages.address import MessageAddress
from txrdma.messages.interfaces import IMessageProtocolFactory
from txrdma.messages.transport import protocolFor

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

_DRAWS: Final = 16
"""Number of random service IDs that are tried, and found in use, before the last attempt to listen."""


class ServiceIDScheme:
    """
    Use of service IDs and private data by endpoints; here private data has no header.

    @ivar headerBytes: the length of the header of private data in a REQ.
    """

    headerBytes = 0

    def prefix(self, path: IBPath) -> bytes:
        """The header of the private data of a REQ."""
        return b""

    def addressOf(self, serviceID: int, gid: GID | None) -> MessageAddress:
        """The address of a listener for a service ID."""
        return MessageAddress(gid, serviceID)

    def peerOf(self, request: REQ) -> tuple[MessageAddress, bytes]:
        """
        The address of an active end, and its private data without the header.

        @raise WireError: the header is missing or invalid.
        """
        return MessageAddress(request.primary.localGID, request.serviceID), request.privateData


def reject(connection: IManagedConnection, error: Exception) -> None:
    if isinstance(error, Rejection):
        connection.reject(error.reason, error.information, error.privateData)
    else:
        connection.reject(RejectReason.NO_RESOURCES)


def checkRequest(adapter: Adapter, connection: IManagedConnection, terms: Terms) -> int:
    """
    Check that a queue pair of a device can serve a REQ.

    @return: the device's port.
    @raise Rejection: it cannot.
    """
    request = connection.request
    if request.transport != CMTransport.RC:
        raise Rejection(RejectReason.INVALID_TRANSPORT_TYPE)
    found = adapter.findGID(connection.primary.localGID)
    if found is None:
        raise Rejection(RejectReason.PRIMARY_GID_REJECTED, b"", adapter.usualGID().raw)
    port, _index = found
    if adapter.findPKey(port, request.pkey) is None:
        raise Rejection(RejectReason.UNSUPPORTED_REQUEST)  # IBA has no reason code for partitions
    mtu = adapter.mtuOf(port)
    most = PathMTU(int(mtu if terms.mtu is None else min(mtu, terms.mtu)))
    if not PathMTU.MTU_256 <= request.pathMTU <= most:
        information = informationFor(RejectReason.INVALID_PATH_MTU, int(most))
        raise Rejection(RejectReason.INVALID_PATH_MTU, b"", information)
    return port


def requesterOf(
    naming: ServiceIDScheme, request: REQ, terms: Terms
) -> tuple[MessageAddress, Greeting | None]:
    """
    The address of the sender of a REQ, with the private data of its program, and its greeting.

    @raise Rejection: the header of the private data is missing or invalid.
    """
    try:
        address, data = naming.peerOf(request)
    except WireError:
        raise Rejection(RejectReason.UNSUPPORTED_REQUEST) from None
    greeting, privateData = splitGreeting(data, terms, REQ_MAGIC)
    return replace(address, qpn=request.localQPN, privateData=privateData), greeting


def makeReady(
    transport: RDMATransport,
    connection: IManagedConnection,
    terms: Terms,
    greeting: Greeting | None,
    answer: bytes,
    acceptsPath: Callable[[CMPath], bool] = acceptPath,
) -> REP:
    """
    Make the queue pair of a passive end ready to send.

    @param greeting: that of the REQ.
    @param acceptsPath: whether the application accepts an alternate path.
    @return: the REP, with C{answer} as private data.
    @raise RDMAError: the device refuses the attributes that the peer requests.
    @raise ValueError: there is too much private data.
    """
    request = connection.request
    reply = REP(
        localQPN=transport.qpn,
        startingPSN=connection.startingPSN(),
        targetACKDelay=transport.device.attributes.ackDelay,
        responderResources=min(terms.reads, request.initiatorDepth),
        initiatorDepth=min(terms.reads, request.responderResources),
        rnrRetryCount=terms.rnrRetryCount,
        privateData=terms.withGreeting(answer, REP_PRIVATE_BYTES, REP_MAGIC),
    )
    transport.ready(request, reply, False, negotiate(terms, greeting, request, reply, False))
    failover = _failover(transport, request, acceptsPath)
    return reply if failover == reply.failoverAccepted else reply.replace(failoverAccepted=failover)


def _failover(
    transport: RDMATransport, request: REQ, acceptsPath: Callable[[CMPath], bool]
) -> FailoverAccepted:
    """Whether the queue pair can migrate to the alternate path of a REQ."""
    if not isPath(request.alternate):
        return FailoverAccepted.ACCEPTED
    if not transport.canMigrate:
        return FailoverAccepted.NOT_SUPPORTED
    alternate = reversedPath(request.alternate)
    isSame = areSame(request.alternate, request.primary)
    refusal = transport.adapter.checkPath(alternate, request.pkey)
    if isSame or refusal is not None or not acceptsPath(alternate):
        return FailoverAccepted.REJECTED
    isAccepted = transport.mayMigrateTo(alternate)
    return FailoverAccepted.ACCEPTED if isAccepted else FailoverAccepted.NOT_SUPPORTED


def firstFree(
    serviceIDs: Callable[[], int], use: Callable[[int], Callable[[], None]]
) -> tuple[int, Callable[[], None]]:
    """
    Return the first of several service IDs that is not in use, and the result of C{use}.

    @param serviceIDs: returns a service ID; if the next one is the same, there is no other.
    @param use: listens for a service ID.
    @raise InvalidRequest: the service ID has a listener; L{ResourceExhausted}: in another process.
    """
    serviceID = serviceIDs()
    for _ in range(_DRAWS):
        try:
            return serviceID, use(serviceID)
        except (InvalidRequest, ResourceExhausted):
            used, serviceID = serviceID, serviceIDs()
            if serviceID == used:
                raise
    return serviceID, use(serviceID)


@implementer(IListeningPort)
class ServiceListening:
    """A listener for a service ID of an adapter, with a factory of protocols."""

    def __init__(
        self,
        adapter: Adapter,
        naming: ServiceIDScheme,
        serviceID: Callable[[], int],
        factory: IMessageProtocolFactory,
        terms: Terms,
        backlog: int,
        match: bytes = b"",
    ) -> None:
        """
        @param serviceID: returns the service ID to listen to, which may be a random one.
        @param match: bytes with which the private data of a REQ must begin; listeners of one service ID have
            different ones.
        """
        self._adapter, self._naming, self._factory = adapter, naming, factory
        self._serviceIDs = serviceID
        self._terms = terms.within(adapter.device.limits)
        self._backlog, self._match = backlog, match
        self._end: Callable[[], None] = lambda: None
        self._release: Callable[[], None] = lambda: None
        self._isStopped = False
        self.serviceID = 0

    def __repr__(self) -> str:
        return f"<ServiceListening {self.serviceID:#x} {self._adapter!r}>"

    def startListening(self) -> None:
        """
        Start listening.

        @raise InvalidRequest: the service ID has a listener with the same C{match} already.
        @raise ResourceExhausted: another process has the service ID.
        """
        self.serviceID, self._end = firstFree(self._serviceIDs, self._listen)
        self._release = self._adapter.hold()
        # Else it would accept clients while connections are closed.
        addShutdownListener(self._adapter.reactor, self.suspend)

    def _listen(self, serviceID: int) -> Callable[[], None]:
        return self._adapter.manager.listen(
            *(serviceID, self._requested),
            backlog=self._backlog,
            offset=self._naming.headerBytes,
            pattern=self._match,
            mayReload=self._adapter.mayReload(self._terms),
            checkPath=self._adapter.checkPath,
        )

    def stopListening(self) -> Deferred[None]:
        """Stop listening; connections stay. May be called twice."""
        self._isStopped = True
        self.suspend()
        return succeed(None)

    def suspend(self) -> None:
        """Stop listening until L{resume} is called, and release the adapter. Idempotent."""
        removeShutdownListener(self._adapter.reactor, self.suspend)
        self._end()
        self._release()

    def resume(self, adapter: Adapter) -> None:
        """
        Listen to the same service ID at another adapter; raises as L{startListening} does.

        @raise DeviceUnavailable: the adapter is the same, since a datagram service or a connection uses it.
        """
        if not self._isStopped:
            if adapter is self._adapter:
                raise DeviceUnavailable(f"{adapter.device.name} is in use as the former user")
            self._adapter, self._serviceIDs = adapter, lambda: self.serviceID
            self.startListening()

    def getHost(self) -> MessageAddress:
        gid = self._adapter.usualGID()
        return self._adapter.zoned(self._naming.addressOf(self.serviceID, gid), gid)

    def _requested(self, connection: IManagedConnection, event: Event) -> None:
        if not isinstance(event, ConnectionRequested):
            return
        release = self._adapter.hold()  # the factory may stop listening
        try:
            self._accept(connection, event.request)
        except Exception as error:
            if not isinstance(error, RDMAError):
                _log.failure(
                    "{listener} rejects a connection, because an exception was raised", listener=self
                )
            elif not isinstance(error, Rejection):
                _rateLimited.warn(
                    (self.serviceID, type(error)),
                    "{listener} rejects a connection: {error}",
                    listener=self,
                    error=errorText(error),
                )
            reject(connection, error)
        finally:
            release()

    def _accept(self, connection: IManagedConnection, request: REQ) -> None:
        """
        Make a queue pair and a protocol for a REQ, and answer it with a REP.

        @raise RDMAError: the device has too few resources, or refuses the attributes that the peer requests.
        @raise Rejection: the REQ is to be rejected.
        """
        adapter, naming, primary = self._adapter, self._naming, connection.primary
        port = checkRequest(adapter, connection, self._terms)
        requester, greeting = requesterOf(naming, request, self._terms)
        peer = requester
        if peer.gid != primary.remoteGID:
            peer = replace(requester, gid=primary.remoteGID)
        peer = adapter.zoned(peer, primary.localGID)
        protocol = protocolFor(self._factory, peer)
        if protocol is None:
            raise Rejection
        terms = self._terms.answering(greeting)
        transport = RDMATransport(adapter, terms, port, request.pkey)

        def handleEvent(connection: IManagedConnection, event: Event) -> None:
            if isinstance(event, ConnectionEstablished):
                transport.established(protocol)
            transport.handleEvent(connection, event)

        try:
            transport.connection = connection
            host = naming.addressOf(request.serviceID, primary.localGID)
            transport.setAddresses(adapter.zoned(host, primary.localGID), peer)
            prepared = IPreparedProtocol(protocol, None)
            if prepared is not None:
                memoryLost = prepared.memoryLost
                transport.failed = lambda _: memoryLost()
            answer = getattr(protocol, "answer", b"") if prepared is None else prepared.prepare(transport)
            accepts = getattr(protocol, "alternatePathRequested", acceptPath)
            reply = makeReady(transport, connection, terms, greeting, answer, accepts)
            connection.setHandler(handleEvent, transport.pathChanged)
            connection.accept(reply)
        except BaseException:
            transport.connection = None  # the caller rejects it
            transport.abortConnection()
            raise
