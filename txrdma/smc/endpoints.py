"""
Endpoints that speak SMC-R where the other end does, and TCP where it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from zope.interface import implementer

from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.internet.endpoints import HostnameEndpoint
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
from twisted.logger import Logger

from txrdma.smc import introspection, status
from txrdma.smc.clc import Diagnosis
from txrdma.smc.dialing import canAnnounce, Dialer
from txrdma.smc.negotiation import ClientNegotiation, Outcomes, PlainStart, ServerNegotiation
from txrdma.smc.signalling import Announcements, placeOf

_log = Logger()


@dataclass(frozen=True, slots=True)
class Options:
    """
    What may be chosen for an endpoint.

    @ivar device: C{"auto"}, or a device string: C{"soft"}.
    @ivar agreed: the other end is known to speak SMC (C{peer=smc}): nobody needs to be asked.
    @ivar timeout: seconds for the TCP connection (client, 30 when None) or for the handshake (server).
    @ivar fallback: whether plain TCP will do.
    """

    device: str = "auto"
    agreed: bool = False
    timeout: float | None = None
    fallback: bool = True


class _SteppingFactory(Factory):
    """Stands before a user's factory, until it is known what the connection will be."""

    noisy = False

    def __init__(self, wrapped: IProtocolFactory) -> None:
        self.wrapped = wrapped

    def doStart(self) -> None:
        """As the wrapped one does."""
        self.wrapped.doStart()

    def doStop(self) -> None:
        """As the wrapped one does."""
        self.wrapped.doStop()

    def logPrefix(self) -> str:
        """The wrapped one's."""
        if ILoggingContext.providedBy(self.wrapped):
            return ILoggingContext(self.wrapped).logPrefix()
        return type(self.wrapped).__name__

    def builder(self, address: IAddress | None) -> Callable[[], IProtocol | None]:
        """What makes the user's protocol."""
        return lambda: self.wrapped.buildProtocol(cast(IAddress, address))


class _ClientFactory(_SteppingFactory):
    """Begins a handshake on each TCP connection."""

    def __init__(self, wrapped: IProtocolFactory, reactor: Any, options: Options, outcomes: Outcomes) -> None:
        super().__init__(wrapped)
        self._reactor = reactor
        self._options = options
        self._outcomes = outcomes

    def buildProtocol(self, addr: IAddress | None) -> ClientNegotiation:
        """A handshake."""
        return ClientNegotiation(self._reactor, self._options, self._outcomes, self.builder(addr))


@implementer(IStreamClientEndpoint)
class SMCClientEndpoint:
    """Connects to a host and port, by SMC-R if that can be had."""

    def __init__(self, reactor: Any, host: str, port: int, options: Options = Options()) -> None:
        self._reactor = reactor
        self._host = host
        self._port = port
        self._options = options
        self._outcomes = Outcomes(f"{host}:{port}")

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """
        Connect; the protocol is there when the handshake is over.

        Fails as TCP does, and with L{txrdma.smc.negotiation.NotSMC} where plain TCP would not do.
        """
        options = self._options
        introspection.appear(self._reactor, status.statuses)
        announces = not options.agreed and canAnnounce(self._reactor)
        tcp = HostnameEndpoint(
            Dialer(self._reactor) if announces else self._reactor,
            self._host,
            self._port,
            30 if options.timeout is None else options.timeout,
        )
        factory = _ClientFactory(protocolFactory, self._reactor, options, self._outcomes)
        connecting = cast("Deferred[ClientNegotiation]", tcp.connect(factory))
        return connecting.addCallback(lambda negotiation: negotiation.finished())

    def __repr__(self) -> str:
        return f"<SMCClientEndpoint {self._host}:{self._port}>"


class _ServerFactory(_SteppingFactory):
    """Finds out for each accepted TCP connection whether the client speaks SMC."""

    def __init__(
        self,
        wrapped: IProtocolFactory,
        reactor: Any,
        options: Options,
        outcomes: Outcomes,
        announcements: Announcements,
    ) -> None:
        super().__init__(wrapped)
        self._reactor = reactor
        self._options = options
        self._outcomes = outcomes
        self._announcements = announcements
        self.port = 0

    def buildProtocol(  # type: ignore[override]  # PlainStart has no factory
        self, addr: IAddress | None
    ) -> IProtocol | None:
        """A handshake, or the user's protocol at once."""
        options = self._options
        client = None if addr is None else placeOf(addr)
        announced = None if client is None else self._announcements.claim(client, self.port)
        if announced is not None or options.agreed:
            user = None if announced is None else announced.user
            return ServerNegotiation(self._reactor, options, self._outcomes, self.builder(addr), user)
        self._outcomes.fellBack(Diagnosis.PEERNOSMC, None, options.fallback)
        if not options.fallback:
            return None
        protocol = self.builder(addr)()
        return None if protocol is None else PlainStart(protocol, Diagnosis.PEERNOSMC)


@implementer(IListeningPort)
class SMCPort:
    """A TCP port, and the UNIX socket that tells who it is."""

    def __init__(self, tcp: IListeningPort, announcements: Announcements) -> None:
        self._tcp = tcp
        self._announcements = announcements

    def startListening(self) -> None:
        """It is listening already; once stopped it stays so."""
        self._tcp.startListening()

    def stopListening(self) -> Deferred[None]:
        """Accept no more. Connections stay as they are."""
        stopping = [
            self._announcements.stop(),
            maybeDeferred(cast("Callable[[], Deferred[None]]", self._tcp.stopListening)),
        ]
        return gatherResults(stopping, consumeErrors=True).addCallback(lambda _: None)

    def getHost(self) -> IAddress:
        """The TCP address."""
        return self._tcp.getHost()

    def __repr__(self) -> str:
        return f"<SMCPort {self._tcp!r}>"


@implementer(IStreamServerEndpoint)
class SMCServerEndpoint:
    """Listens on a TCP port, and serves by SMC-R whoever speaks it."""

    def __init__(
        self, reactor: Any, port: int, interface: str = "", backlog: int = 50, options: Options = Options()
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
        announcements = Announcements(anybody=options.device != "auto")
        factory = _ServerFactory(
            protocolFactory,
            self._reactor,
            options,
            Outcomes(f"port {self._port}"),
            announcements,
        )
        tcp = self._reactor.listenTCP(self._port, factory, self._backlog, self._interface)
        place = placeOf(tcp.getHost())
        if place is not None and canAnnounce(self._reactor):
            factory.port = place.port
            announcements.listen(self._reactor, place)
        introspection.appear(self._reactor, status.statuses)
        return SMCPort(tcp, announcements)
