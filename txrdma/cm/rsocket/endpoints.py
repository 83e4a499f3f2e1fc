"""
Endpoints of streams over RDMA connections, by rsockets, interoperable with librdmacm.

Ports are those of RDMA CM's TCP port space (InfiniBand Architecture vol. 1, annex A11), as in librdmacm.
"""

from __future__ import annotations

from functools import partial
from operator import index
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.address import HostnameAddress, IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.error import (
    ConnectError,
    ConnectingCancelledError,
    ConnectionRefusedError,
    DNSLookupError,
    getConnectError,
    TimeoutError,
)
from twisted.internet.interfaces import (
    IAddress,
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.python.failure import Failure

from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.cm.connections.hostnames import connectToHost, isAddress
from txrdma.cm.core.dispatcher import BACKLOG
from txrdma.cm.errors import HostUnknown, PeerSilent, Rejected, Rejection
from txrdma.cm.layouts.messages import RejectReason
from txrdma.cm.rsocket._core import CONTROLS, Sizes
from txrdma.cm.rsocket.messages import MOST_MAPPINGS
from txrdma.cm.rsocket.stream import MEMORY_REQUESTS, REPOST, RSocketEnd
from txrdma.cm.rsocket.transport import RSocketTransport
from txrdma.cm.terms import checkSeconds, KEEPALIVE, Terms
from txrdma.cm.terms import RANGES as TERM_RANGES
from txrdma.error import DeviceUnavailable, InvalidRequest, WireError
from txrdma.kit.cancelling import cancellable, wrapped
from txrdma.kit.shutdown import failingOnShutdown
from txrdma.kit.values import frozen
from txrdma.messages.address import MessageAddress
from txrdma.streams.endpoints import AcceptedStreams, StreamAttempt
from txrdma.verbs.devices import DeviceSpec

_REFUSED: Final = (RejectReason.INVALID_SERVICE_ID, RejectReason.CONSUMER_REJECT)


READS: Final = 4
"""Outstanding reads of either end in shared memory; a server of librdmacm agrees, its clients have none."""

_USUAL_SIZES: Final = Sizes()

_CONTROL_RECEIVES: Final = 2 * CONTROLS + REPOST
"""Receives for control messages, which need no credits."""

RANGES: Final = {
    "receives": (16, TERM_RANGES["receives"][1] - _CONTROL_RECEIVES),
    "sends": (16, TERM_RANGES["sends"][1] - MEMORY_REQUESTS),
    "receiveBuffer": (4096, 1 << 29),
    "sendBuffer": (2048, 1 << 29),
    "mappings": (0, MOST_MAPPINGS),
}
"""The least and greatest value of each number in L{Sizes}, and of the keys of endpoint strings for them."""


@frozen
class RSocketOptions:
    """
    The options of an endpoint.

    @ivar sizes: sizes of buffers of at most 512 MiB, and numbers of outstanding messages from 16.
    @ivar keepalive: seconds between probes of an idle peer; None disables them.
    """

    sizes: Sizes = _USUAL_SIZES
    keepalive: float | None = KEEPALIVE

    def __post_init__(self) -> None:
        """Check the sizes and the time; raises L{InvalidRequest}."""
        for name, (least, most) in RANGES.items():
            value = getattr(self.sizes, name)
            if not least <= index(value) <= most:
                raise InvalidRequest(f"{name} is from {least} to {most}, not {value}")
        if self.keepalive is not None:
            checkSeconds("keepalive", self.keepalive)

    @property
    def terms(self) -> Terms:
        """The terms of the message connection."""
        sizes = self.sizes
        return Terms(
            messageBytes=0,
            receives=sizes.receives + _CONTROL_RECEIVES,
            sends=sizes.sends + MEMORY_REQUESTS,
            reads=READS,
            usesCredits=False,
            keepalive=None,  # RSocketEnd sends its own probes
        )


USUAL: Final = RSocketOptions()
"""The default options of endpoints."""


def _destination(host: str, port: int) -> IAddress:
    """Return the address to which a client connects, as errors report it."""
    if isAddress(host):
        return (IPv6Address if ":" in host else IPv4Address)("TCP", host, port)
    return HostnameAddress(host.encode("ascii", "backslashreplace"), port)


def _resolutionFailed(failure: Failure) -> Failure:
    """Return the failure to resolve a name as TCP's endpoint reports it, and other failures unchanged."""
    error = failure.value
    if isinstance(error, HostUnknown):
        return Failure(DNSLookupError(str(error)))
    if isinstance(error, DeviceUnavailable):  # the reactor stops
        return Failure(ConnectError(string=str(error)))
    return failure


@implementer(IStreamClientEndpoint)
class RSocketClientEndpoint:
    """An endpoint that connects to a host and a port, as C{rconnect} does."""

    def __init__(
        self,
        reactor: Any,
        host: str,
        port: int,
        device: DeviceSpec | None = None,
        options: RSocketOptions = USUAL,
        timeout: float | None = None,
    ) -> None:
        """
        @param host: an IP address, or a name, whose addresses are tried as C{HostnameEndpoint} does: the next
            one 0.3 seconds after the last, or when that has failed.
        @param device: a device, or the string of one; None is the software device at the source address of
            the route to the host.
        @param timeout: seconds until the attempt at an address fails; None is the time of all
            retransmissions.
        """
        self._reactor, self._host, self._options = reactor, host, options
        self._endpoint = partial(
            RDMAClientEndpoint, reactor, port=port, device=device, terms=options.terms, timeout=timeout
        )
        self._endpoint(host)  # refuses wrong values
        self._destination = _destination(host, port)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """
        Connect to the peer and make a protocol, as L{IStreamClientEndpoint} specifies.

        @return: fails as TCP's endpoints do: with C{DNSLookupError} if the name has no address, with
            C{ConnectionRefusedError} without a listener, with C{TimeoutError} without an answer, with
            C{NoRouteError} without a route, with C{ConnectingCancelledError} if cancelled, otherwise with
            another C{ConnectError}.
        """

        def connect(address: str) -> Deferred[IProtocol]:
            attempt = _Connecting(self._reactor, self._options, protocolFactory)
            endpoint = self._endpoint(address, privateData=attempt.end.prepare)
            return attempt.connect(endpoint, self._destination)

        return wrapped(
            connectToHost(self._reactor, self._host, connect),
            lambda connecting: failingOnShutdown(self._reactor, connecting).addErrback(_resolutionFailed),
            lambda connecting: cancellable(connecting, ConnectingCancelledError(self._destination)),
        )


class _Connecting(StreamAttempt[RSocketEnd]):
    """One attempt of a client."""

    transportClass = RSocketTransport

    def __init__(self, reactor: Any, options: RSocketOptions, factory: IProtocolFactory) -> None:
        super().__init__(factory)
        self.end = RSocketEnd(reactor, options.sizes, options.keepalive, True, self.makeTransport, self.ended)

    def buildProtocol(self, peer: MessageAddress) -> RSocketEnd:
        self.end.introduce(peer.privateData)
        return super().buildProtocol(peer)

    def failed(self, failure: Failure) -> Failure:
        self.end.memoryLost()
        return super().failed(failure)

    def known(self, error: BaseException) -> BaseException | None:
        if isinstance(error, Rejected) and error.status in _REFUSED:
            return ConnectionRefusedError(string=str(error))
        cause = error.__cause__
        if isinstance(error, InvalidRequest) and isinstance(cause, OSError):  # there is no route
            unreachable: ConnectError = getConnectError((cause.errno, str(error)))
            return unreachable
        return TimeoutError(string=str(error)) if isinstance(error, PeerSilent) else None


@implementer(IStreamServerEndpoint)
class RSocketServerEndpoint:
    """An endpoint that listens to a port at the addresses of a device, as C{rlisten} does."""

    def __init__(
        self,
        reactor: Any,
        port: int,
        device: DeviceSpec,
        options: RSocketOptions = USUAL,
        backlog: int = BACKLOG,
    ) -> None:
        """
        @param port: port number; 0 for any free one.
        @param backlog: limit of connections that are not yet established, from 1; further REQs are dropped.
        """
        self._endpoint = RDMAServerEndpoint(reactor, port, device, options.terms, backlog)
        self._reactor, self._options = reactor, options

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """
        Listen to the port with a factory, as L{IStreamServerEndpoint} specifies.

        @return: fails with C{CannotListenError}.
        """
        accepting = _AcceptedRSocketStreams(self._reactor, self._options, protocolFactory)
        return accepting.listen(self._endpoint, "rsocket")


class _AcceptedRSocketStreams(AcceptedStreams[RSocketEnd]):
    """The connections that a port accepts."""

    transportClass = RSocketTransport

    def __init__(self, reactor: Any, options: RSocketOptions, factory: IProtocolFactory) -> None:
        super().__init__(reactor, factory)
        self._options = options

    def buildProtocol(self, peer: MessageAddress) -> RSocketEnd:
        options = self._options
        end = RSocketEnd(self._reactor, options.sizes, options.keepalive, False, self.makeTransport)
        try:
            end.introduce(peer.privateData)
        except WireError:
            raise Rejection(RejectReason.CONSUMER_REJECT) from None
        return end
