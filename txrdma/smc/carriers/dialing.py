"""
TCP connections that are announced on this host before they are made.

L{Dialer} is the part of a reactor that Twisted's TCP client endpoints use, so names, several addresses and
IPv6 are their business.

Who announces a connection has to know its port before it connects, so it binds its socket. To a port that the
kernel finds for that, no other connection may have gone in the last minute, which costs programs that connect
often all their ports; so ports are drawn here, and the addresses of old connections are used again
(SO_REUSEADDR), as connecting without binding does. Where all this fails, the connection is made without being
announced.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast, Final

from zope.interface import implementer

from twisted.internet.address import IPv6Address
from twisted.internet.error import ConnectBindError, ConnectError
from twisted.internet.interfaces import (
    IAddress,
    IConnector,
    IDelayedCall,
    IHostnameResolver,
    IHostResolution,
    IListeningPort,
    IReactorFDSet,
    IReactorPluggableNameResolver,
    IReactorTCP,
    IReactorTime,
    IResolutionReceiver,
)
from twisted.internet.protocol import ClientFactory, ServerFactory
from twisted.internet.tcp import Client, Connector
from twisted.python.failure import Failure

from txrdma.smc.carriers.announcing import Announcement, channelTo
from txrdma.smc.carriers.owners import Place
from txrdma.smc.handshake._silence import silentPeers

_PORTS_DRAWN: Final = 64
"""Ports to try before the kernel is asked for one, and said to be rather full."""

_ATTEMPTS: Final = 16
"""
Connections to announce before one is made that is not: another one had the port that was drawn.

With a thousand connections to one listener that is one draw in thirty: three attempts were too few for one
connection in some ten thousand.
"""

_TAKEN: Final = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)


@lru_cache(1)
def _clientPorts() -> tuple[range, frozenset[int]]:
    """The ports that are meant for clients, and those among them that are not; see ip(7)."""
    reserved: set[int] = set()
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = map(int, file.read().split())
        with open("/proc/sys/net/ipv4/ip_local_reserved_ports") as file:
            for part in file.read().strip().split(","):
                first, _, last = part.partition("-")
                if first:
                    reserved.update(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        low, high = 32768, 60999  # Linux's own
    return range(low, high + 1), frozenset(reserved)


def bindSomewhere(sock: socket.socket, host: str, avoid: int) -> None:
    """
    Bind to a port of this address that may be in use by connections to elsewhere.

    @param avoid: not this port: a client that connects to its own port is connected with itself.
    @raise OSError: there is none.
    """
    address: tuple[Any, ...] = (host, 0)
    if sock.family != socket.AF_INET:  # the interface of a link-local address
        address = socket.getaddrinfo(host, 0, sock.family, socket.SOCK_STREAM)[0][4]
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    ports, reserved = _clientPorts()
    for _ in range(_PORTS_DRAWN):
        port = random.choice(ports)
        if port == avoid or port in reserved:
            continue
        try:
            sock.bind((address[0], port, *address[2:]))
            return
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    sock.bind(address)


class AnnouncedClient(Client):
    """
    A TCP client that tells the listener on this host of itself before it connects.

    @ivar announcement: what the listener says, None when there is none that could be asked.
    """

    announcement: Announcement | None = None
    connector: _Connector
    _attempts = 0
    _isBound = False

    def resolveAddress(self) -> None:
        """Announce if somebody should hear it, then connect."""
        if not hasattr(self, "connector"):
            return  # stopped meanwhile
        if self._attempts == _ATTEMPTS or not self._announce():
            super().resolveAddress()  # type: ignore[no-untyped-call]  # nothing of this is annotated

    def _announce(self) -> bool:
        """Begin to announce the connection; False when nobody is there to hear it."""
        self._attempts += 1
        target = Place.of(self.connector.host, self.connector.port)  # with the scope, which self.addr lacks
        silent, now = silentPeers(self.reactor), cast(IReactorTime, self.reactor).seconds()
        if self.connector.takesTCP and silent.isSilent(target, now):
            return False
        channel = channelTo(cast(Any, self.reactor), target)
        if channel is None:
            return False
        silent.ask(target, now)
        try:
            name = self.socket.getsockname()
            if not name[1]:
                bindSomewhere(self.socket, channel.source.host, target.port)
                self._isBound = True
                name = self.socket.getsockname()
        except OSError:
            return False
        self.announcement = Announcement(channel, Place.of(self.getHost().host, name[1]))  # type: ignore[no-untyped-call]
        self.announcement.then(self._answered)
        return True

    def _answered(self) -> None:
        announcement = self.announcement
        if announcement is not None and announcement.wasCut:
            self.resolveAddress()  # another one may listen there by now
        elif announcement is not None and announcement.wasRefused and self._isBound:
            try:
                self._startAgain()  # somebody has drawn the same port
            except OSError as error:
                self.failIfNotConnected(ConnectBindError(error.errno, error.strerror))
        else:
            super().resolveAddress()  # type: ignore[no-untyped-call]

    def failIfNotConnected(self, err: object) -> None:
        """Nobody needs to wait for us any more; unless it is the port's fault, and there are others."""
        if self.connected or self.disconnected or not hasattr(self, "connector"):
            return
        announcement, self.announcement = self.announcement, None
        if announcement is not None:
            announcement.forget()
        if self._isBound and isinstance(err, ConnectError) and err.osError in _TAKEN:
            try:
                self._startAgain()
                return
            except OSError as error:
                err = ConnectBindError(error.errno, error.strerror)
        super().failIfNotConnected(err)  # type: ignore[no-untyped-call]

    def _startAgain(self) -> None:
        self._stopReadingAndWriting()  # type: ignore[no-untyped-call]
        self.socket.close()
        self.socket = self.createInternetSocket()  # type: ignore[no-untyped-call]
        self.fileno = self.socket.fileno  # as Connection does
        self._isBound = False
        cast(IReactorTime, self.reactor).callLater(0, self.resolveAddress)

    def connectionLost(self, reason: Failure) -> None:
        """The announcement ends with the connection."""
        if self.announcement is not None:
            self.announcement.forget()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]


class _Connector(Connector):
    """
    Makes L{AnnouncedClient}s, which announce their connections before they connect.

    @ivar takesTCP: a connection on plain TCP will do.
    """

    takesTCP = True

    def _makeTransport(self) -> Client:
        return AnnouncedClient(  # type: ignore[no-untyped-call]
            self.host, self.port, self.bindAddress, self, self.reactor
        )


def canAnnounce(reactor: object) -> bool:
    """Does this reactor have what it takes?"""
    return all(interface.providedBy(reactor) for interface in (IReactorFDSet, IReactorTime))


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
    """A reactor whose TCP clients announce themselves."""

    def __init__(self, reactor: Any, announces: bool, takesTCP: bool) -> None:
        """
        @param announces: somebody may listen on this host to whom connections can be announced.
        @param takesTCP: connections on plain TCP will do; otherwise peers that were silent are asked again.
        """
        self._reactor = reactor
        self._announces = announces and canAnnounce(reactor)
        self._takesTCP = takesTCP

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
        """Connect, and announce it where that can be done."""
        if not self._announces:
            return cast(IConnector, self._reactor.connectTCP(host, port, factory, timeout, bindAddress))
        connector = _Connector(host, port, factory, timeout, bindAddress, self._reactor)
        connector.takesTCP = self._takesTCP
        connector.connect()
        return cast(IConnector, connector)
