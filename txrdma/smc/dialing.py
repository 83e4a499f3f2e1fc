"""
Twisted's TCP client endpoints, with TCP clients that are created by a given function.

L{Dialer} has the reactor's methods that these endpoints use to resolve names and to try several addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from zope.interface import classImplements, implementer

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.address import HostnameAddress, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.interfaces import (
    IAddress,
    IConnector,
    IHostnameResolver,
    IHostResolution,
    IProtocol,
    IReactorPluggableNameResolver,
    IReactorTCP,
    IReactorTime,
    IResolutionReceiver,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import ClientFactory

from txrdma.kit import cancelling
from txrdma.smc.terms.options import Options

ConnectTCP = Callable[[str, int, "ClientFactory[Any]", float, Any], IConnector]
"""C{connectTCP} of L{IReactorTCP}: host, port, factory, timeout in seconds, address to bind to or None."""


@implementer(IHostnameResolver)
class _LoopbackResolver:
    """Resolves host names, and returns C{::1} last, since most servers listen on IPv4 only."""

    def __init__(self, resolver: IHostnameResolver) -> None:
        self._resolver = resolver

    def resolveHostName(
        self, resolutionReceiver: IResolutionReceiver, *args: Any, **kwargs: Any
    ) -> IHostResolution:
        return self._resolver.resolveHostName(_LoopbackReceiver(resolutionReceiver), *args, **kwargs)


@implementer(IResolutionReceiver)
class _LoopbackReceiver:
    """Collects the addresses of a resolution, and passes them on when it is complete."""

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


class Dialer:
    """A reactor whose TCP clients are created by a given function; everything else is the reactor's."""

    def __init__(self, reactor: Any, connect: ConnectTCP) -> None:
        self._reactor = reactor
        self.connectTCP: Any = connect  # called with keywords: C{timeout} and C{bindAddress}

    @property
    def nameResolver(self) -> IHostnameResolver:
        return _LoopbackResolver(self._reactor.nameResolver)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)


classImplements(Dialer, IReactorTCP, IReactorTime, IReactorPluggableNameResolver)


def timeoutOf(options: Options) -> float:
    """Return the timeout of a TCP connection attempt, in seconds."""
    return 30 if options.timeout is None else options.timeout


def bindingOf(options: Options) -> Any:
    """Return the local address of a TCP client in Twisted's form, or None."""
    return None if options.bindAddress is None else (options.bindAddress, 0)


@lru_cache(1024)
def isNumeric(host: str) -> bool:
    """Return whether a host is given as an IP address, which needs no name resolution."""
    return isIPAddress(host) or isIPv6Address(host)


def endpointTo(
    reactor: Any, host: str, port: int, options: Options, connect: ConnectTCP
) -> IStreamClientEndpoint:
    """Return Twisted's client endpoint for a host; C{connect} creates its TCP clients."""
    kind: type[TCP4ClientEndpoint | TCP6ClientEndpoint | HostnameEndpoint] = HostnameEndpoint
    if isIPAddress(host):
        kind = TCP4ClientEndpoint
    elif isIPv6Address(host):
        kind = TCP6ClientEndpoint
    return cast(
        IStreamClientEndpoint,
        kind(cast(Any, Dialer(reactor, connect)), host, port, timeoutOf(options), bindingOf(options)),
    )


def cancellable(connecting: Deferred[IProtocol], host: str, port: int) -> Deferred[IProtocol]:
    """Return a Deferred that fails like TCP's, with ConnectingCancelledError, if cancelled at any stage."""
    error = ConnectingCancelledError(HostnameAddress(host.encode(), port))
    return cancelling.cancellable(connecting, error)
