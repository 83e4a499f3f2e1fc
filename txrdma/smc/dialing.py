"""
TCP connections that are announced on this host before they are made.

L{Dialer} is the part of a reactor that C{HostnameEndpoint} uses, so names, several addresses and IPv6 are
its business.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, cast

from zope.interface import implementer

from twisted.internet.error import ConnectBindError
from twisted.internet.interfaces import (
    IConnector,
    IDelayedCall,
    IHostnameResolver,
    IListeningPort,
    IReactorFDSet,
    IReactorPluggableNameResolver,
    IReactorSocket,
    IReactorTCP,
    IReactorTime,
    IReactorUNIX,
)
from twisted.internet.protocol import ClientFactory, ServerFactory
from twisted.internet.tcp import Client, Connector

from txrdma.smc.signalling import Announcement, findListener, Place, sourceFor


class AnnouncedClient(Client):
    """
    A TCP client that tells the listener on this host of itself before it connects.

    @ivar announcement: what the listener says, None when there is none that could be asked.
    """

    announcement: Announcement | None = None

    def resolveAddress(self) -> None:
        """Announce, then connect."""
        if not hasattr(self, "connector"):
            return  # stopped meanwhile
        target = Place.of(self.connector.host, self.connector.port)  # with the scope, which self.addr lacks
        source = sourceFor(target)
        listener = None if source is None else findListener(target)
        if source is None or listener is None:
            super().resolveAddress()  # type: ignore[no-untyped-call]  # nothing of this is annotated
            return
        try:
            self.socket.bind(socket.getaddrinfo(source.host, 0, self.addressFamily, socket.SOCK_STREAM)[0][4])
        except OSError as error:
            listener.close()
            self.failIfNotConnected(ConnectBindError(error.errno or 0, str(error)))
            return
        name = self.getHost()  # type: ignore[no-untyped-call]
        self.announcement = Announcement(Place.of(name.host, name.port))
        self.announcement.start(cast(Any, self.reactor), listener, super().resolveAddress)

    def failIfNotConnected(self, err: object) -> None:
        """Nobody needs to wait for us any more."""
        if not self.connected and self.announcement is not None:
            self.announcement.forget()
        super().failIfNotConnected(err)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Any) -> None:
        """The announcement ends with the connection."""
        if self.announcement is not None:
            self.announcement.forget()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]


class _Connector(Connector):
    """Makes L{AnnouncedClient}s."""

    def _makeTransport(self) -> Client:
        return AnnouncedClient(  # type: ignore[no-untyped-call]
            self.host, self.port, self.bindAddress, self, self.reactor
        )


def canAnnounce(reactor: object) -> bool:
    """Does this reactor have what it takes?"""
    return all(
        interface.providedBy(reactor)
        for interface in (IReactorFDSet, IReactorUNIX, IReactorSocket, IReactorTime)
    )


@implementer(IReactorTCP, IReactorTime, IReactorPluggableNameResolver)
class Dialer:
    """A reactor whose TCP clients announce themselves."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    @property
    def nameResolver(self) -> IHostnameResolver:
        """The reactor's."""
        return cast(IHostnameResolver, self._reactor.nameResolver)

    def installNameResolver(self, resolver: IHostnameResolver) -> IHostnameResolver:
        """As the reactor does."""
        return cast(IHostnameResolver, self._reactor.installNameResolver(resolver))

    def seconds(self) -> float:
        """As the reactor does."""
        return cast(float, self._reactor.seconds())

    def callLater(
        self, delay: float, callable: Callable[..., Any], *args: object, **kwargs: object
    ) -> IDelayedCall:
        """As the reactor does."""
        return cast(IDelayedCall, self._reactor.callLater(delay, callable, *args, **kwargs))

    def getDelayedCalls(self) -> Any:
        """As the reactor does."""
        return self._reactor.getDelayedCalls()

    def listenTCP(
        self, port: int, factory: ServerFactory, backlog: int = 50, interface: str = ""
    ) -> IListeningPort:
        """As the reactor does."""
        return cast(IListeningPort, self._reactor.listenTCP(port, factory, backlog, interface))

    def connectTCP(
        self, host: str, port: int, factory: ClientFactory[Any], timeout: float = 30, bindAddress: Any = None
    ) -> IConnector:
        """Connect, and announce it where that can be done."""
        connector = _Connector(host, port, factory, timeout, bindAddress, self._reactor)
        connector.connect()
        return cast(IConnector, connector)
