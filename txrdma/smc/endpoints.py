"""
Endpoints that speak SMC-R where the other end does, and TCP where it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from zope.interface import implementer

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.address import HostnameAddress
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.interfaces import (
    IAddress,
    IListeningPort,
    ILoggingContext,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import Factory
from twisted.internet.tcp import Port
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.smc.carriers.dialing import canAnnounce, Dialer
from txrdma.smc.carriers.local import Announcements
from txrdma.smc.carriers.owners import placeOf
from txrdma.smc.common.presence import Presence, presenceOn
from txrdma.smc.handshake.accepting import ServerNegotiation
from txrdma.smc.handshake.plaintcp import PlainStart
from txrdma.smc.handshake.proposing import ClientNegotiation
from txrdma.smc.insight import control as introspection
from txrdma.smc.insight import status
from txrdma.smc.insight.outcomes import Outcomes
from txrdma.smc.options import Options, USUAL
from txrdma.smc.wire.clc import Diagnosis

_log = Logger()


class _SteppingFactory(Factory):
    """Stands before a user's factory, until it is known what the connection will be."""

    noisy = False

    def __init__(self, wrapped: IProtocolFactory) -> None:
        self.wrapped = wrapped

    def doStart(self) -> None:
        """Start the wrapped factory, as L{IProtocolFactory} asks."""
        self.wrapped.doStart()

    def doStop(self) -> None:
        """Stop the wrapped factory, as L{IProtocolFactory} asks."""
        self.wrapped.doStop()

    def logPrefix(self) -> str:
        """The prefix that the wrapped factory's events are logged with, as L{ILoggingContext} asks."""
        if ILoggingContext.providedBy(self.wrapped):
            return ILoggingContext(self.wrapped).logPrefix()
        return type(self.wrapped).__name__

    def builder(self, address: IAddress | None) -> Callable[[], IProtocol | None]:
        """A function that builds the user's protocol for a connection to that address."""
        return lambda: self.wrapped.buildProtocol(cast(IAddress, address))


class _ClientFactory(_SteppingFactory):
    """Begins a handshake on each TCP connection."""

    def __init__(self, wrapped: IProtocolFactory, reactor: Any, options: Options, outcomes: Outcomes) -> None:
        super().__init__(wrapped)
        self._reactor = reactor
        self._options = options
        self._outcomes = outcomes

    def buildProtocol(self, addr: IAddress | None) -> ClientNegotiation:
        """Build the protocol that negotiates SMC on a new TCP connection."""
        return ClientNegotiation(self._reactor, self._options, self._outcomes, self.builder(addr))


@implementer(IStreamClientEndpoint)
class SMCClientEndpoint:
    """Connects to a host and port, by SMC-R if that can be had."""

    def __init__(self, reactor: Any, host: str, port: int, options: Options = USUAL) -> None:
        self._reactor = reactor
        self._host = host
        self._port = port
        self._options = options
        self._outcomes = Outcomes(f"connection to {host}:{port}")

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """
        Connect; the protocol is there when the handshake is over.

        Fails as TCP does, and with L{txrdma.smc.insight.outcomes.NotSMC} where plain TCP would not do.
        """
        introspection.appear(self._reactor, status.statuses)
        factory = _ClientFactory(protocolFactory, self._reactor, self._options, self._outcomes)
        # Not only from the TCP connection on: the last other one may end meanwhile, and link groups with it.
        use = presenceOn(self._reactor).hold()
        connecting = cast("Deferred[ClientNegotiation]", self._tcp().connect(factory))
        finished: Deferred[IProtocol] = connecting.addCallback(lambda negotiation: negotiation.finished())

        def release(result: IProtocol | Failure) -> IProtocol | Failure:
            use.release()
            return result

        finished.addBoth(release)
        return self._cancellable(finished)

    def _tcp(self) -> IStreamClientEndpoint:
        """Connects by TCP; an address in numbers is not looked up by threads, as a name is."""
        options = self._options
        dialer = Dialer(self._reactor, announces=not options.agreed, takesTCP=options.fallback)
        timeout = 30 if options.timeout is None else options.timeout
        binding = None if options.bindAddress is None else (options.bindAddress, 0)
        kind: type[TCP4ClientEndpoint | TCP6ClientEndpoint | HostnameEndpoint] = HostnameEndpoint
        if isIPAddress(self._host):
            kind = TCP4ClientEndpoint
        elif isIPv6Address(self._host):
            kind = TCP6ClientEndpoint
        return cast(IStreamClientEndpoint, kind(dialer, self._host, self._port, timeout, cast(Any, binding)))

    def _cancellable(self, connecting: Deferred[IProtocol]) -> Deferred[IProtocol]:
        """Fail a cancelled connection with ConnectingCancelledError, as TCP does, at every stage."""
        isCancelled = False

        def cancel(_: Deferred[IProtocol]) -> None:
            nonlocal isCancelled
            isCancelled = True
            connecting.cancel()

        def failed(failure: Failure) -> None:
            if isCancelled and not failure.check(ConnectingCancelledError):
                failure = Failure(ConnectingCancelledError(HostnameAddress(self._host.encode(), self._port)))
            connected.errback(failure)

        connected: Deferred[IProtocol] = Deferred(cancel)
        connecting.addCallbacks(connected.callback, failed)
        return connected

    def __repr__(self) -> str:
        return f"<SMCClientEndpoint {self._host}:{self._port}>"


class _ServerFactory(_SteppingFactory):
    """Finds out for each accepted TCP connection whether the client speaks SMC."""

    def __init__(
        self, wrapped: IProtocolFactory, reactor: Any, options: Options, announcements: Announcements
    ) -> None:
        super().__init__(wrapped)
        self._reactor = reactor
        self._options = options
        self._announcements = announcements
        self.outcomes = Outcomes("connection to us")  # until it is known where we listen

    def buildProtocol(  # type: ignore[override]  # PlainStart has no factory
        self, addr: IAddress | None
    ) -> IProtocol | None:
        """A handshake, or the user's protocol at once."""
        options = self._options
        client = None if addr is None else placeOf(addr)
        announced = None if client is None else self._announcements.claim(client)
        if announced is not None or options.agreed:
            return ServerNegotiation(self._reactor, options, self.outcomes, self.builder(addr), announced)
        self.outcomes.fellBack(Diagnosis.PEERNOSMC, None, options.fallback)
        if not options.fallback:
            return None
        protocol = self.builder(addr)()
        return None if protocol is None else PlainStart(protocol, Diagnosis.PEERNOSMC)


@implementer(IListeningPort)
class SMCPort:
    """
    A TCP port, and the UNIX socket that tells who it is.

    Besides L{IListeningPort} it has what programs use of a port of TCP.

    @ivar factory: the user's.
    """

    def __init__(
        self, tcp: Port, factory: IProtocolFactory, announcements: Announcements, presence: Presence
    ) -> None:
        self.factory = factory
        self._tcp = tcp
        self._announcements = announcements
        self._presence = presence
        self._use = presence.hold()
        self._announce()

    def _announce(self) -> None:
        place = placeOf(self._tcp.getHost())
        if place is not None and canAnnounce(self._announcements.reactor):
            self._announcements.listen(place)

    def startListening(self) -> None:
        """Listen again, after C{stopListening}; fails as TCP does."""
        self._announcements.stop()
        self._tcp.startListening()
        self._use.release()
        self._use = self._presence.hold()
        self._announce()

    def stopListening(self) -> Deferred[None]:
        """Accept no more. Connections stay as they are."""
        self._announcements.stop()
        self._use.release()
        return maybeDeferred(cast("Callable[[], Deferred[None]]", self._tcp.stopListening))

    loseConnection = stopListening

    def connectionLost(self, reason: Failure) -> None:
        """Close the port at once, as the reactor does with a port of TCP when it ends."""
        self._announcements.stop()
        self._use.release()
        self._tcp.connectionLost(reason)

    @property
    def connected(self) -> bool:
        """Whether the port listens on its TCP address."""
        return bool(self._tcp.connected)

    @property
    def disconnected(self) -> bool:
        """The port has been stopped."""
        return bool(self._tcp.disconnected)

    def getHost(self) -> IAddress:
        """The TCP address that the port listens on."""
        return cast(IAddress, self._tcp.getHost())

    def __repr__(self) -> str:
        return f"<SMCPort {self._tcp!r}>"


@implementer(IStreamServerEndpoint)
class SMCServerEndpoint:
    """Listens on a TCP port, and serves by SMC-R whoever speaks it."""

    def __init__(
        self, reactor: Any, port: int, interface: str = "", backlog: int = 50, options: Options = USUAL
    ) -> None:
        self._reactor = reactor
        self._port = port
        self._interface = interface
        self._backlog = backlog
        self._options = options

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """Listen, and fail as TCP does."""
        return maybeDeferred(self._listen, protocolFactory)

    def _listen(self, protocolFactory: IProtocolFactory) -> IListeningPort:
        options = self._options
        announcements = Announcements(self._reactor, anybody=options.device != "auto", room=self._backlog)
        factory = _ServerFactory(protocolFactory, self._reactor, options, announcements)
        tcp = self._reactor.listenTCP(self._port, factory, self._backlog, self._interface)
        factory.outcomes = Outcomes(f"connection at {placeOf(tcp.getHost())}")
        introspection.appear(self._reactor, status.statuses)
        return SMCPort(tcp, protocolFactory, announcements, presenceOn(self._reactor))
