"""
Twisted's TCP client endpoints, for TCP clients of another kind than the reactor's.

L{Dialer} is the part of a reactor that these endpoints use, so names, several addresses and IPv6 are their
business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from zope.interface import implementer

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.address import IPv6Address
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.interfaces import (
    IAddress,
    IConnector,
    IDelayedCall,
    IHostnameResolver,
    IHostResolution,
    IListeningPort,
    IReactorPluggableNameResolver,
    IReactorTCP,
    IReactorTime,
    IResolutionReceiver,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import ClientFactory, ServerFactory

from txrdma.smc.options import Options

ConnectTCP = Callable[[str, int, "ClientFactory[Any]", float, Any], IConnector]
"""C{connectTCP} of L{IReactorTCP}: host, port, factory, timeout in seconds, address to bind to or None."""


@implementer(IHostnameResolver)
class _LoopbackResolver:
    """
    Finds a name's addresses; C{127.0.0.1} before C{::1}.

    C{HostnameEndpoint} tries the second address a third of a second after the first, and most who listen at
    "localhost" listen by IPv4: C{tcp:localhost} tries nothing else.
    """

    def __init__(self, resolver: IHostnameResolver) -> None:
        self._resolver = resolver

    def resolveHostName(
        self, resolutionReceiver: IResolutionReceiver, *args: Any, **kwargs: Any
    ) -> IHostResolution:
        """Resolve a host name as L{IHostnameResolver} asks, with C{127.0.0.1} before C{::1}."""
        return self._resolver.resolveHostName(_LoopbackReceiver(resolutionReceiver), *args, **kwargs)


@implementer(IResolutionReceiver)
class _LoopbackReceiver:
    """Hands the addresses on when all are there."""

    def __init__(self, receiver: IResolutionReceiver) -> None:
        self._receiver = receiver
        self._addresses: list[IAddress] = []

    def resolutionBegan(self, resolutionInProgress: IHostResolution) -> None:
        self._receiver.resolutionBegan(resolutionInProgress)

    def addressResolved(self, address: IAddress) -> None:
        self._addresses.append(address)

    def resolutionComplete(self) -> None:
        for address in sorted(self._addresses, key=_isLoopbackIPv6):
            self._receiver.addressResolved(address)
        self._receiver.resolutionComplete()


def _isLoopbackIPv6(address: IAddress) -> bool:
    return isinstance(address, IPv6Address) and address.host == "::1"


@implementer(IReactorTCP, IReactorTime, IReactorPluggableNameResolver)
class Dialer:
    """A reactor whose TCP clients are made by somebody else."""

    def __init__(self, reactor: Any, connect: ConnectTCP) -> None:
        """
        @param connect: makes a TCP client, and has it connect.
        """
        self._reactor = reactor
        self._connect = connect

    @property
    def nameResolver(self) -> IHostnameResolver:
        """The reactor's, but of this host's own addresses those of IPv4 come first."""
        return _LoopbackResolver(self._reactor.nameResolver)

    def installNameResolver(self, resolver: IHostnameResolver) -> IHostnameResolver:
        """Install a resolver of host names on the reactor, as L{IReactorPluggableNameResolver} asks."""
        return cast(IHostnameResolver, self._reactor.installNameResolver(resolver))

    def seconds(self) -> float:
        """The reactor's time in seconds, as L{IReactorTime} asks."""
        return cast(float, self._reactor.seconds())

    def callLater(
        self, delay: float, callable: Callable[..., Any], *args: object, **kwargs: object
    ) -> IDelayedCall:
        """Schedule a call on the reactor, as L{IReactorTime} asks."""
        return cast(IDelayedCall, self._reactor.callLater(delay, callable, *args, **kwargs))

    def getDelayedCalls(self) -> Any:
        """The delayed calls that the reactor has scheduled, as L{IReactorTime} asks."""
        return self._reactor.getDelayedCalls()

    def listenTCP(
        self, port: int, factory: ServerFactory, backlog: int = 50, interface: str = ""
    ) -> IListeningPort:
        """Listen for TCP connections with the reactor, as L{IReactorTCP} asks."""
        return cast(IListeningPort, self._reactor.listenTCP(port, factory, backlog, interface))

    def connectTCP(
        self, host: str, port: int, factory: ClientFactory[Any], timeout: float = 30, bindAddress: Any = None
    ) -> IConnector:
        """Connect by a TCP client of the other kind, as L{IReactorTCP} asks."""
        return self._connect(host, port, factory, timeout, bindAddress)


def endpointTo(
    reactor: Any, host: str, port: int, options: Options, connect: ConnectTCP
) -> IStreamClientEndpoint:
    """
    A client endpoint of Twisted's for TCP; an address in numbers is not looked up by threads, as a name is.

    @param connect: makes its TCP clients.
    """
    timeout = 30 if options.timeout is None else options.timeout
    binding = None if options.bindAddress is None else (options.bindAddress, 0)
    kind: type[TCP4ClientEndpoint | TCP6ClientEndpoint | HostnameEndpoint] = HostnameEndpoint
    if isIPAddress(host):
        kind = TCP4ClientEndpoint
    elif isIPv6Address(host):
        kind = TCP6ClientEndpoint
    return cast(
        IStreamClientEndpoint, kind(Dialer(reactor, connect), host, port, timeout, cast(Any, binding))
    )
