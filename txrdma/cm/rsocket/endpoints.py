"""
Endpoints of streams over RDMA connections, by rsockets: services and peers are those of librdmacm.

Ports are those of RDMA CM's TCP port space (InfiniBand Architecture vol. 1, annex A11), as librdmacm's are.
"""

from __future__ import annotations

from typing import Any, cast, Final

from zope.interface import implementer

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import (
    CannotListenError,
    ConnectError,
    ConnectionRefusedError,
    NoProtocol,
    TimeoutError,
)
from twisted.internet.interfaces import (
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.cm._manager import BACKLOG
from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.cm.connections.terms import MessageAddress, MessagePeer, Terms
from txrdma.cm.errors import PeerSilent, Rejected, Rejection
from txrdma.cm.interfaces import IRDMAProtocol
from txrdma.cm.messages import RejectReason
from txrdma.cm.rsocket._core import CONTROLS, Sizes
from txrdma.cm.rsocket.stream import addressOf, RSocketEnd
from txrdma.cm.rsocket.transport import KEEPALIVE, RSocketTransport
from txrdma.error import RDMAError, WireError
from txrdma.messages import IMessageProtocolFactory
from txrdma.streamends import Declining
from txrdma.streams import Address
from txrdma.values import frozen
from txrdma.verbs.devices import DevicePlace

_log = Logger()

_REFUSED: Final = (RejectReason.INVALID_SERVICE_ID, RejectReason.CONSUMER_REJECT)


_USUAL_SIZES: Final = Sizes()


@frozen
class Options:
    """
    The options of an endpoint.

    @ivar sizes: of buffers, and how many messages may be under way.
    @ivar keepalive: seconds between probes of an idle peer; None is never.
    """

    sizes: Sizes = _USUAL_SIZES
    keepalive: float | None = KEEPALIVE

    @property
    def terms(self) -> Terms:
        """The terms of the connection beneath, with receives for control messages, which need no credits."""
        sizes = self.sizes
        receives = sizes.receives + 2 * CONTROLS
        return Terms(messageBytes=1, receives=receives, sends=sizes.sends, reads=0, isCounted=False)


USUAL: Final = Options()
"""The options of endpoints that are given no others."""


@implementer(IStreamClientEndpoint)
class RSocketClientEndpoint:
    """An endpoint that connects to an IP address and a port, as C{rconnect} does."""

    def __init__(
        self, reactor: Any, host: str, port: int, device: DevicePlace, options: Options = USUAL
    ) -> None:
        """
        @param host: an IP address.
        @param device: a device, or the string of one.
        """
        self._reactor, self._host, self._port = reactor, host, port
        self._device, self._options = device, options

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """
        Connect to the peer and make a protocol, as L{IStreamClientEndpoint} asks.

        @return: fails as TCP's endpoint does: with C{ConnectionRefusedError} where nobody listens, with
            C{TimeoutError} where nobody answers, else with another C{ConnectError}.
        """
        attempt = _Connecting(self._reactor, self._options, protocolFactory)
        endpoint = RDMAClientEndpoint(
            self._reactor, self._host, self._port, self._device, self._options.terms, attempt.end.prepare
        )
        protocolFactory.doStart()
        connecting: Deferred[Any] = endpoint.connect(attempt)
        return connecting.addCallbacks(lambda _: attempt.protocol, attempt.failed)


@implementer(IMessageProtocolFactory)
class _Connecting:
    """One attempt of a client."""

    protocol: IProtocol

    def __init__(self, reactor: Any, options: Options, factory: IProtocolFactory) -> None:
        self._factory = factory
        self.end = RSocketEnd(
            reactor, options.sizes, options.keepalive, True, self._dress, lambda: factory.doStop()
        )

    def buildProtocol(self, peer: MessagePeer) -> IRDMAProtocol:
        self.end.introduce(peer.privateData)
        protocol = self._factory.buildProtocol(addressOf(peer.address))
        if protocol is None:
            raise NoProtocol
        self.protocol = protocol
        return self.end

    def _dress(self, end: RSocketEnd) -> RSocketTransport:
        return RSocketTransport(end, self.protocol)

    def failed(self, failure: Failure) -> Failure:
        """The error as TCP's endpoints have it."""
        self._factory.doStop()
        error = failure.value
        if isinstance(error, Rejected) and error.status in _REFUSED:
            return Failure(ConnectionRefusedError(string=str(error)))
        if isinstance(error, PeerSilent):
            return Failure(TimeoutError(string=str(error)))
        if isinstance(error, (RDMAError, ValueError)):
            return Failure(ConnectError(string=str(error)))
        return failure


@implementer(IStreamServerEndpoint)
class RSocketServerEndpoint:
    """An endpoint that listens to a port at the addresses of a device, as C{rlisten} does."""

    def __init__(
        self,
        reactor: Any,
        port: int,
        device: DevicePlace,
        options: Options = USUAL,
        backlog: int = BACKLOG,
    ) -> None:
        """
        @param port: 0 is any that is free.
        @param backlog: connections that may be asked for and not established yet; REQs beyond are dropped.
        """
        self._reactor, self._port, self._device = reactor, port, device
        self._options, self._backlog = options, backlog

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """
        Listen to the port with a factory, as L{IStreamServerEndpoint} asks.

        @return: fails with C{CannotListenError}.
        """
        endpoint = RDMAServerEndpoint(
            self._reactor, self._port, self._device, self._options.terms, self._backlog
        )
        listening: Deferred[Any] = endpoint.listen(_Accepting(self._reactor, self._options, protocolFactory))

        def listens(port: IListeningPort) -> IListeningPort:
            protocolFactory.doStart()
            made = RSocketPort(port, protocolFactory)
            _log.info(
                "{kind} (rsocket) starting on {port}",
                kind=type(protocolFactory).__name__,
                port=made.getHost().port,
            )
            return made

        def failed(failure: Failure) -> Failure:
            failure.trap(RDMAError)
            return Failure(CannotListenError("", self._port, failure.value))

        return listening.addCallbacks(listens, failed)


@implementer(IMessageProtocolFactory)
class _Accepting:
    """The ends of connections that a port accepts."""

    def __init__(self, reactor: Any, options: Options, factory: IProtocolFactory) -> None:
        self._reactor, self._options, self._factory = reactor, options, factory

    def buildProtocol(self, peer: MessagePeer) -> IRDMAProtocol:
        options = self._options
        end = RSocketEnd(self._reactor, options.sizes, options.keepalive, False, self._dress)
        try:
            end.introduce(peer.privateData)
        except WireError:
            raise Rejection(RejectReason.CONSUMER_REJECT) from None
        return end

    def _dress(self, end: RSocketEnd) -> RSocketTransport:
        return RSocketTransport(end, self._factory.buildProtocol(end.peer) or Declining())


@implementer(IListeningPort)
class RSocketPort:
    """A port that accepts streams."""

    def __init__(self, port: IListeningPort, factory: IProtocolFactory) -> None:
        self._port, self._factory = port, factory
        self._isListening = True

    def __repr__(self) -> str:
        return f"<RSocketPort {self._port!r}>"

    def startListening(self) -> None:
        """Listen from now on; the endpoint has done so."""

    def stopListening(self) -> Deferred[None]:
        """Listen no more; connections stay. Twice is fine."""
        if self._isListening:
            self._isListening = False
            self._factory.doStop()
        self._port.stopListening()
        return succeed(None)

    def getHost(self) -> Address:
        """The address that is listened to."""
        return addressOf(cast(MessageAddress, self._port.getHost()))
