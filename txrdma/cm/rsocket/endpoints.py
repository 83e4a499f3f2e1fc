"""
Endpoints of streams over RDMA connections, by rsockets: services and peers are those of librdmacm.

Ports are those of RDMA CM's TCP port space (InfiniBand Architecture vol. 1, annex A11), as librdmacm's are.
"""

from __future__ import annotations

from typing import Any, Final

from zope.interface import implementer

from twisted.internet.defer import Deferred, fail
from twisted.internet.error import (
    CannotListenError,
    ConnectionRefusedError,
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

from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.cm.core.dispatcher import BACKLOG
from txrdma.cm.errors import PeerSilent, Rejected, Rejection
from txrdma.cm.interfaces import IRDMAProtocol
from txrdma.cm.layouts.messages import RejectReason
from txrdma.cm.rsocket._core import CONTROLS, Sizes
from txrdma.cm.rsocket.stream import addressOf, RSocketEnd
from txrdma.cm.rsocket.transport import RSocketTransport
from txrdma.cm.terms import KEEPALIVE, MessageAddress, MessagePeer, Terms
from txrdma.error import RDMAError, WireError
from txrdma.kit.values import frozen
from txrdma.messages.interfaces import IMessageProtocolFactory
from txrdma.streams.connection import Declining
from txrdma.streams.port import Connecting, StreamPort
from txrdma.streams.transport import Address
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
        return Terms(
            messageBytes=1,
            receives=receives,
            sends=sizes.sends,
            reads=0,
            usesCredits=False,
            keepalive=None,  # RSocketEnd sends its own probes
        )


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
        try:
            protocolFactory.doStart()
        except Exception:
            return fail()
        connecting: Deferred[Any] = endpoint.connect(attempt)
        return connecting.addCallbacks(lambda _: attempt.protocol, attempt.failed)


@implementer(IMessageProtocolFactory)
class _Connecting(Connecting):
    """One attempt of a client."""

    def __init__(self, reactor: Any, options: Options, factory: IProtocolFactory) -> None:
        super().__init__(factory)
        self.end = RSocketEnd(reactor, options.sizes, options.keepalive, True, self._dress, self.ended)

    def buildProtocol(self, peer: MessagePeer) -> IRDMAProtocol:
        self.end.introduce(peer.privateData)
        self.make(addressOf(peer.address))
        return self.end

    def _dress(self, end: RSocketEnd) -> RSocketTransport:
        return RSocketTransport(end, self.protocol)

    def failed(self, failure: Failure) -> Failure:
        self.end.memoryLost()
        return super().failed(failure)

    def known(self, error: BaseException) -> BaseException | None:
        if isinstance(error, Rejected) and error.status in _REFUSED:
            return ConnectionRefusedError(string=str(error))
        return TimeoutError(string=str(error)) if isinstance(error, PeerSilent) else None


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

        def failed(failure: Failure) -> Failure:
            failure.trap(RDMAError)
            return Failure(CannotListenError("", self._port, failure.value))

        return listening.addCallbacks(lambda port: RSocketPort(port, protocolFactory, "rsocket"), failed)


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


class RSocketPort(StreamPort):
    """A port that accepts streams."""

    def addressOf(self, host: MessageAddress) -> Address:
        """The address as Twisted has it for TCP."""
        return addressOf(host)
