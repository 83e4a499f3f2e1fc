"""
Attempts to connect, and listeners: from a REQ to a connected protocol.

Follows InfiniBand Architecture vol. 1, 12.9.7. However an attempt ends, its queue pair is closed. Its
communication ID stays allocated until timewait is over.
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import randbits
from typing import Final

from zope.interface import implementer

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import NoProtocol
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.cm.connections.adapter import Adapter
from txrdma.cm.connections.transport import acceptPath, RDMATransport
from txrdma.cm.core.events import (
    ConnectionEstablished,
    ConnectionRejected,
    ConnectionReplied,
    ConnectionRequested,
    ConnectionTimedOut,
    Disconnected,
    Event,
    ignoreEvent,
)
from txrdma.cm.errors import PeerSilent, Rejected, Rejection
from txrdma.cm.interfaces import IManagedConnection, IPreparedProtocol, IRDMAProtocol
from txrdma.cm.layouts.messages import CMPath, CMTransport, FailoverAccepted, REJ, RejectReason, REP, REQ
from txrdma.cm.layouts.paths import areSame, isPath, NO_PATH, reversedPath
from txrdma.cm.layouts.rejectinfo import informationFor, informationOf, redirectedPath
from txrdma.cm.terms import (
    Greeting,
    MessageAddress,
    negotiate,
    REP_MAGIC,
    REQ_MAGIC,
    splitGreeting,
    Terms,
)
from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, ResourceExhausted, WireError
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID
from txrdma.kit.logs import RateLimitedLogger
from txrdma.kit.values import replace
from txrdma.mad.layouts.values import PathMTU
from txrdma.messages.interfaces import IMessageProtocolFactory
from txrdma.messages.transport import protocolFor

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

REQ_PRIVATE_BYTES: Final = 92
"""Bytes of private data in a REQ."""

REP_PRIVATE_BYTES: Final = 196
"""Bytes of private data in a REP."""

_PSN_BITS: Final = 24
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


class Attempt:
    """
    An attempt to connect to a service of a peer.

    If the peer rejects the path MTU and names a smaller one, the REQ is repeated with that MTU. If the peer
    still has a connection with the number of this queue pair, it is repeated with another queue pair. A
    redirection to another port is followed once. In a peer-to-peer connection the REQ of the peer may count
    instead; then this end sends a REP.

    @ivar answer: fires with the protocol. Cancelling it withdraws the REQ, or rejects the REP.
    """

    def __init__(
        self,
        adapter: Adapter,
        naming: ServiceIDScheme,
        serviceID: int,
        path: IBPath,
        factory: IMessageProtocolFactory,
        terms: Terms,
        privateData: bytes | Callable[[RDMATransport], bytes],
        alternate: IBPath | None = None,
        isPeerToPeer: bool = False,
    ) -> None:
        """
        @param alternate: a path to migrate to from the beginning, if the peer accepts it.
        @param isPeerToPeer: the peer connects at the same time, by the same service ID.
        @param privateData: of the REQ, or a function that makes it and may allocate memory of the transport.
        @raise RDMAError: the device has too few resources, or no such paths.
        @raise ValueError: there is too much private data.
        """
        self._adapter, self._naming, self._factory = adapter, naming, factory
        self._path, self._isPeerToPeer = path, isPeerToPeer
        self._isRedirected = False
        assert path.sgid is not None  # set by endpoints
        self._port, _index = adapter.requireGID(path.sgid)
        if alternate is not None:
            assert alternate.sgid is not None  # set by endpoints
            adapter.requireGID(alternate.sgid)
            if not adapter.device.attributes.canMigrate:
                raise InvalidRequest(f"{adapter.device.name} has no path migration")
        self._terms = terms = terms.within(adapter.device.limits)
        prefix = naming.prefix(path)
        maximum = REQ_PRIVATE_BYTES - len(prefix)
        if isinstance(privateData, bytes):
            terms.withGreeting(privateData, maximum, REQ_MAGIC)  # raise before any resource is allocated
        self._isReplaceable = isinstance(privateData, bytes)  # else it is about this queue pair's memory
        mtu = adapter.mtuOf(self._port)
        self._transport = transport = RDMATransport(adapter, terms, self._port, path.pkey)
        self.answer: Deferred[IRDMAProtocol] = Deferred(lambda _: _withdraw(self._transport))
        transport.failed = self._failed
        try:
            self._userData = userData = (
                privateData if isinstance(privateData, bytes) else privateData(transport)
            )
            request = REQ(
                serviceID=serviceID,
                localQPN=transport.qpn,
                startingPSN=randbits(_PSN_BITS),
                pathMTU=PathMTU(int(min(each for each in (mtu, path.mtu, terms.mtu) if each is not None))),
                pkey=path.pkey,
                responderResources=terms.reads,
                initiatorDepth=terms.reads,
                retryCount=terms.retryCount,
                rnrRetryCount=terms.rnrRetryCount,
                maxCMRetries=terms.maxCMRetries,
                localCMResponseTimeout=terms.responseTimeout,
                remoteCMResponseTimeout=terms.responseTimeout,
                primary=adapter.cmPathOf(path),
                alternate=NO_PATH if alternate is None else adapter.cmPathOf(alternate),
                privateData=prefix + terms.withGreeting(userData, maximum, REQ_MAGIC),
            )
            self._ask(request)
        except BaseException:
            _withdraw(transport)  # the caller has no Deferred to cancel
            raise

    def _ask(self, request: REQ) -> None:
        adapter, transport = self._adapter, self._transport
        self._request, self._isOvertaken = request, False
        connection = adapter.manager.connect(
            *(request, self._path, self._handleEvent),
            isPeerToPeer=self._isPeerToPeer,
            checkPath=adapter.checkPath,
        )
        transport.connection = connection
        connection.setHandler(self._handleEvent, transport.pathChanged)

    def _handleEvent(self, connection: IManagedConnection, event: Event) -> None:
        transport = self._transport
        if isinstance(event, ConnectionReplied):
            self._replied(connection, event.reply)
        elif isinstance(event, ConnectionRequested):
            self._overtaken(connection)
        elif isinstance(event, ConnectionEstablished):
            self._established(connection)
        elif transport.protocol is None and isinstance(event, ConnectionRejected):
            if self._retry(connection, event.rejection):
                return
            self._failed(Failure(Rejected(event.rejection)))
        elif transport.protocol is None and isinstance(event, ConnectionTimedOut):
            self._failed(Failure(PeerSilent("the peer does not answer the request for a connection")))
        elif transport.protocol is None and isinstance(event, Disconnected):
            self._failed(Failure(DeviceUnavailable("the peer ended the connection before it was ready")))
        transport.handleEvent(connection, event)

    def _retry(self, connection: IManagedConnection, rejection: REJ) -> bool:
        """
        Repeat the REQ with a path MTU or to a port that a rejection names, or with another queue pair.

        @return: whether the REQ was repeated.
        """
        if self.answer.called:
            return False
        request, old = self._request, self._transport  # that of the connection may be the peer's
        if rejection.reason == RejectReason.INVALID_PATH_MTU:
            wanted = informationOf(rejection)
            if not isinstance(wanted, int) or not PathMTU.MTU_256 <= wanted < request.pathMTU:
                return False
            request = request.replace(pathMTU=PathMTU(wanted))
        elif rejection.reason in (RejectReason.CM_AND_PORT_REDIRECT, RejectReason.PORT_REDIRECT):
            redirected = self._redirected(request, rejection)
            if redirected is None:
                return False
            request = redirected
        elif rejection.reason != RejectReason.STALE_CONNECTION or not self._isReplaceable:
            return False
        connection.setHandler(ignoreEvent)
        try:
            if rejection.reason == RejectReason.STALE_CONNECTION:
                self._isReplaceable = False
                self._transport = RDMATransport(self._adapter, self._terms, self._port, self._path.pkey)
                self._transport.failed = self._failed
                request = request.replace(localQPN=self._transport.qpn)
                _withdraw(old)  # after the other one was made, which has another number
            self._ask(request)
        except RDMAError:
            self._failed(Failure())
        return True

    def _redirected(self, request: REQ, rejection: REJ) -> REQ | None:
        """Return the REQ for the port that a rejection names; None if the redirection is not followed."""
        path = None if self._isRedirected else redirectedPath(self._path, rejection)
        if path is None:
            return None
        self._isRedirected = True
        old = len(self._naming.prefix(self._path))
        if rejection.reason == RejectReason.CM_AND_PORT_REDIRECT:
            self._path = path  # otherwise only the data take the new path
        return request.replace(
            primary=self._adapter.cmPathOf(path),
            alternate=NO_PATH,
            privateData=self._naming.prefix(path) + request.privateData[old:],
        )

    def _replied(self, connection: IManagedConnection, reply: REP) -> None:
        greeting, self._privateData = splitGreeting(reply.privateData, self._terms, REP_MAGIC)
        agreed = negotiate(self._terms, greeting, connection.request, reply, True)
        try:
            self._transport.ready(connection.request, reply, True, agreed)
        except RDMAError:
            connection.reject(RejectReason.NO_RESOURCES)
            self._failed(Failure())
        else:
            connection.ready()

    def _overtaken(self, connection: IManagedConnection) -> None:
        """Answer the REQ of the peer, which counts instead of the one of this end."""
        self._isOvertaken = True
        try:
            checkRequest(self._adapter, connection, self._terms)
            _, data = requesterOf(self._naming, connection.request)
            greeting, self._privateData = splitGreeting(data, self._terms, REQ_MAGIC)
            terms = replace(self._terms, usesCredits=greeting is not None)
            connection.accept(makeReady(self._transport, connection, terms, greeting, self._userData))
        except Exception as error:
            reject(connection, error)
            self._failed(Failure())

    def _established(self, connection: IManagedConnection) -> None:
        request, reply, primary = connection.request, connection.reply, connection.primary
        assert reply is not None
        requester, _ = self._naming.peerOf(request)
        if self._isOvertaken:
            host = self._naming.addressOf(request.serviceID, primary.localGID)
            peer = replace(requester, qpn=request.localQPN, privateData=self._privateData)
        else:
            host, address = requester, self._naming.addressOf(request.serviceID, primary.remoteGID)
            peer = replace(address, qpn=reply.localQPN, privateData=self._privateData)
        try:
            protocol = protocolFor(self._factory, peer)
            if protocol is None:
                raise InvalidRequest("the factory has no protocol for this connection")
        except Exception as error:
            if self.answer.called and not isinstance(error, (RDMAError, NoProtocol)):
                _log.failure("buildProtocol failed after it had cancelled the attempt")
            self._failed(Failure())
            return
        if self.answer.called:
            return  # the factory cancelled the attempt
        self._transport.failed = _ignore
        connection.setHandler(self._transport.handleEvent, self._transport.pathChanged)  # frees this object
        self._transport.setAddresses(host, peer)
        self._transport.established(protocol)
        if not self.answer.called:  # cancelled by connectionMade
            self.answer.callback(protocol)

    def _failed(self, failure: Failure) -> None:
        """Fail the attempt; later failures are ignored."""
        self._transport.failed = _ignore
        self._transport.abortConnection()
        if not self.answer.called:
            self.answer.errback(failure)


def _withdraw(transport: RDMATransport) -> None:
    """End an attempt without reporting it."""
    transport.failed = _ignore
    transport.abortConnection()


def _ignore(failure: Failure) -> None:
    """Ignore a failure: the outcome of the attempt was reported."""


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


def requesterOf(naming: ServiceIDScheme, request: REQ) -> tuple[MessageAddress, bytes]:
    """
    The address of the sender of a REQ, and its private data without the header.

    @raise Rejection: the header is missing or invalid.
    """
    try:
        return naming.peerOf(request)
    except WireError:
        raise Rejection(RejectReason.UNSUPPORTED_REQUEST) from None


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
    return reply.replace(failoverAccepted=_failover(transport, request, acceptsPath))


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

    def _listen(self, serviceID: int) -> Callable[[], None]:
        return self._adapter.manager.listen(
            *(serviceID, self._requested),
            backlog=self._backlog,
            offset=self._naming.headerBytes,
            pattern=self._match,
            checkPath=self._adapter.checkPath,
        )

    def stopListening(self) -> Deferred[None]:
        """Stop listening; connections stay. May be called twice."""
        self._isStopped = True
        self.suspend()
        return succeed(None)

    def suspend(self) -> None:
        """Stop listening until L{resume} is called, and release the adapter."""
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
        return self._naming.addressOf(self.serviceID, self._adapter.usualGID())

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
                    error=error,
                )
            reject(connection, error)
        finally:
            release()

    def _accept(self, connection: IManagedConnection, request: REQ) -> None:
        """Answer a REQ with a REP. Raises L{Rejection} if the REQ is to be rejected."""
        port = checkRequest(self._adapter, connection, self._terms)
        address, requestData = requesterOf(self._naming, request)
        greeting, privateData = splitGreeting(requestData, self._terms, REQ_MAGIC)
        gid = connection.primary.remoteGID
        peer = replace(address, gid=gid, qpn=request.localQPN, privateData=privateData)
        protocol = protocolFor(self._factory, peer)
        if protocol is None:
            raise Rejection
        terms = self._terms
        if terms.usesCredits != (greeting is not None):
            terms = replace(terms, usesCredits=greeting is not None)
        Acceptance(self._adapter, connection, terms, port).accept(
            protocol,
            peer,
            self._naming.addressOf(request.serviceID, connection.primary.localGID),
            requestData,
        )


class Acceptance:
    """The passive end of a connection, until it is established."""

    def __init__(self, adapter: Adapter, connection: IManagedConnection, terms: Terms, port: int) -> None:
        """
        @param terms: with credits, if the peer uses them.
        @raise RDMAError: the device has too few resources.
        """
        self._connection, self._terms = connection, terms
        self._transport = RDMATransport(adapter, terms, port, connection.request.pkey)
        self._transport.connection = connection

    def accept(
        self, protocol: IRDMAProtocol, peer: MessageAddress, host: MessageAddress, requestData: bytes
    ) -> None:
        """
        Make the queue pair ready, and send a REP.

        @param requestData: private data of the REQ, with the greeting.
        @raise RDMAError: the device refuses the attributes that the peer requests.
        """
        self._protocol = protocol
        connection, terms, transport = self._connection, self._terms, self._transport
        transport.setAddresses(host, peer)
        prepared = IPreparedProtocol(protocol, None)
        if prepared is not None:
            memoryLost = prepared.memoryLost
            transport.failed = lambda _: memoryLost()
        try:
            answer = getattr(protocol, "answer", b"") if prepared is None else prepared.prepare(transport)
            greeting, _ = splitGreeting(requestData, terms, REQ_MAGIC)
            accepts = getattr(protocol, "alternatePathRequested", acceptPath)
            reply = makeReady(transport, connection, terms, greeting, answer, accepts)
            connection.setHandler(self._handleEvent, transport.pathChanged)
            connection.accept(reply)
        except BaseException:
            transport.connection = None  # the caller rejects it
            transport.abortConnection()
            raise

    def _handleEvent(self, connection: IManagedConnection, event: Event) -> None:
        if isinstance(event, ConnectionEstablished):
            connection.setHandler(self._transport.handleEvent, self._transport.pathChanged)
            self._transport.established(self._protocol)
        self._transport.handleEvent(connection, event)
