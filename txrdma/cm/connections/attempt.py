"""
Attempts to connect: the active end of a connection, from a REQ to a connected protocol.

Follows InfiniBand Architecture vol. 1, 12.9.7. However an attempt ends, its queue pair is closed. Its
communication ID stays allocated until timewait is over.
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import randbits
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.error import NoProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.cm.connections.adapter import Adapter
from txrdma.cm.connections.listening import checkRequest, makeReady, reject, requesterOf, ServiceIDScheme
from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.core.events import (
    ConnectionAbandoned,
    ConnectionEstablished,
    ConnectionRejected,
    ConnectionReplied,
    ConnectionRequested,
    ConnectionTimedOut,
    Disconnected,
    Event,
    ignoreEvent,
)
from txrdma.cm.errors import PeerSilent, Rejected
from txrdma.cm.interfaces import IManagedConnection, IRDMAProtocol
from txrdma.cm.layouts.messages import REJ, RejectReason, REP, REQ, REQ_PRIVATE_BYTES
from txrdma.cm.layouts.paths import NO_PATH
from txrdma.cm.layouts.rejectinfo import informationOf, redirectedPath
from txrdma.cm.terms import (
    negotiate,
    REP_MAGIC,
    REQ_MAGIC,
    splitGreeting,
    Terms,
)
from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError
from txrdma.iba.path import IBPath
from txrdma.kit.values import replace
from txrdma.mad.layouts.values import PathMTU
from txrdma.messages.address import MessageAddress
from txrdma.messages.interfaces import IMessageProtocolFactory
from txrdma.messages.transport import protocolFor

_log = Logger()

_PSN_BITS: Final = 24


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
        self._hasReplaced = False
        self._privateDataSource = privateData
        mtu = adapter.mtuOf(self._port)
        self._transport = transport = RDMATransport(adapter, terms, self._port, path.pkey)
        self.answer: Deferred[IRDMAProtocol] = Deferred(lambda _: self._transport.withdraw())
        transport.failed = self._failed
        try:
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
                privateData=prefix + self._privateDataFor(transport, maximum),
            )
            self._ask(request)
        except BaseException:
            transport.withdraw()  # the caller has no Deferred to cancel
            raise

    def _privateDataFor(self, transport: RDMATransport, maximum: int) -> bytes:
        """Return private data for a REQ, which may describe memory of the transport, and the greeting."""
        data = self._privateDataSource
        self._userData = data if isinstance(data, bytes) else data(transport)
        return self._terms.withGreeting(self._userData, maximum, REQ_MAGIC)

    def _ask(self, request: REQ) -> None:
        adapter, transport = self._adapter, self._transport
        self._request = request
        self._requester: MessageAddress | None = None  # of the REQ that counts instead of the one of this end
        connection = adapter.manager.connect(
            *(request, self._path, self._handleEvent),
            isPeerToPeer=self._isPeerToPeer,
            mayReload=adapter.mayReload(self._terms),
            checkPath=adapter.checkPath,
        )
        transport.connection = connection
        connection.setHandler(self._handleEvent, transport.pathChanged)

    def _handleEvent(self, connection: IManagedConnection, event: Event) -> None:
        """Handle an event; an unexpected exception, which the connection logs, fails the attempt."""
        try:
            self._handle(connection, event)
        except Exception:
            self._failed(Failure())
            raise

    def _handle(self, connection: IManagedConnection, event: Event) -> None:
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
        elif transport.protocol is None and isinstance(event, ConnectionAbandoned):
            self._failed(Failure(DeviceUnavailable("an exception, which is logged, has ended the attempt")))
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
        elif rejection.reason != RejectReason.STALE_CONNECTION or self._hasReplaced:
            return False
        connection.setHandler(ignoreEvent)
        try:
            if rejection.reason == RejectReason.STALE_CONNECTION:
                self._hasReplaced = True
                self._transport = RDMATransport(self._adapter, self._terms, self._port, self._path.pkey)
                self._transport.failed = self._failed
                old.withdraw()  # after the other one was made, which has another number
                request = self._replaced(request)
            self._ask(request)
        except RDMAError:
            self._failed(Failure())
        return True

    def _replaced(self, request: REQ) -> REQ:
        """Return the REQ for another queue pair, that of the present transport."""
        length = len(self._naming.prefix(self._path))
        data = self._privateDataFor(self._transport, REQ_PRIVATE_BYTES - length)
        return request.replace(localQPN=self._transport.qpn, privateData=request.privateData[:length] + data)

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
        try:
            checkRequest(self._adapter, connection, self._terms)
            self._requester, greeting = requesterOf(self._naming, connection.request, self._terms)
            terms = self._terms.answering(greeting)
            connection.accept(makeReady(self._transport, connection, terms, greeting, self._userData))
        except Exception as error:
            reject(connection, error)
            self._failed(Failure())

    def _established(self, connection: IManagedConnection) -> None:
        request, reply, primary = connection.request, connection.reply, connection.primary
        assert reply is not None
        if self._requester is not None:
            host, peer = self._naming.addressOf(request.serviceID, primary.localGID), self._requester
        else:
            host, _ = self._naming.peerOf(request)
            address = self._naming.addressOf(request.serviceID, primary.remoteGID)
            peer = replace(address, qpn=reply.localQPN, privateData=self._privateData)
        host, peer = (self._adapter.zoned(each, primary.localGID) for each in (host, peer))
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
        self._transport.setAddresses(host, peer)
        self._transport.established(protocol)
        if not self.answer.called:  # cancelled by connectionMade
            self.answer.callback(protocol)

    def _failed(self, failure: Failure) -> None:
        """Fail the attempt; later failures are ignored."""
        self._transport.withdraw()
        if not self.answer.called:
            self.answer.errback(failure)
