"""The userspace backend: CLC handshakes on TCP connections, and a verbs device for the data."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from zope.interface import implementer

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IPushProducer,
    IReactorTime,
)
from twisted.internet.posixbase import PosixReactorBase
from twisted.internet.tcp import Connection, Port
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.kit.delayedcalls import cancelCall
from txrdma.kit.shutdown import IRefusesOnShutdown
from txrdma.smc.common.reactoruse import ReactorUse, reactorUse
from txrdma.smc.common.realports import realPorts
from txrdma.smc.connecting import connect
from txrdma.smc.group.groups import checkDevices, linkGroups
from txrdma.smc.handshake.accepting import HandshakeCount, ServerNegotiation
from txrdma.smc.handshake.carriers import carrierFor
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.handshake.plaintcp import runOnTCP
from txrdma.smc.interfaces import ISMCBackend
from txrdma.smc.signalling.dialing import hasSockets
from txrdma.smc.signalling.interfaces import IListenerSignal
from txrdma.smc.signalling.owners import tcpAddressOf
from txrdma.smc.signalling.peeridentity import PeerIdentity
from txrdma.smc.status import control as introspection
from txrdma.smc.status.report import report
from txrdma.smc.terms.offer import Role
from txrdma.smc.terms.options import LOCAL_DEVICE, Options
from txrdma.smc.wire.clc import Diagnosis
from txrdma.smc.wrapping import AcceptingFactory, Build


@implementer(IRefusesOnShutdown)
class _ServerFactory(AcceptingFactory):
    """Determines for each accepted TCP connection whether the client supports SMC."""

    def __init__(
        self, wrapped: IProtocolFactory, reactor: Any, options: Options, reception: IListenerSignal
    ) -> None:
        super().__init__(wrapped)
        self._reactor = reactor
        self._options = options
        self._reception = reception
        self.outcomes = Outcomes("incoming connection")  # until the listening address is known
        self._count = HandshakeCount()

    def connectionAccepted(self, transport: Connection, build: Build) -> None:
        """Begin a handshake on the connection, or connect the user's protocol immediately."""
        options = self._options
        peer = PeerIdentity(transport, weListen=True)
        arrival, reason = self._reception.arrived(peer), Diagnosis.PEERNOSMC
        if arrival is not None:
            peer.introduce(arrival.process, arrival.user, arrival.directory)
            if not self._count.hasRoom(peer, options.handshakes) and arrival.refuse():
                arrival, reason = None, Diagnosis.MEM
        if arrival is not None:
            negotiation = ServerNegotiation(
                self._reactor, options, self.outcomes, build, arrival, self._count, peer
            )
            transport.protocol = negotiation
            negotiation.makeConnection(transport)
            return
        self.outcomes.fellBack(reason, None, options.fallback)
        protocol = build() if options.fallback else None
        if protocol is None:
            transport.loseConnection()
        else:
            runOnTCP(transport, protocol, Role.SERVER.value, reason)


class PreparedPort(Port):
    """
    A TCP port whose socket is prepared for signalling before it listens.

    @ivar reception: the listener's signalling.
    """

    reception: IListenerSignal

    def createInternetSocket(self) -> socket.socket:
        made = cast(socket.socket, super().createInternetSocket())  # type: ignore[no-untyped-call]  # Twisted's
        self.reception.prepare(made)
        return made


def _listenTCP(
    reactor: Any,
    reception: IListenerSignal,
    port: int,
    factory: IProtocolFactory,
    backlog: int,
    interface: str,
) -> Port:
    """Listen like the reactor's C{listenTCP}, with a prepared socket if the reactor has real sockets."""
    if not isinstance(reactor, PosixReactorBase):
        return cast(Port, reactor.listenTCP(port, factory, backlog, interface))
    prepared = PreparedPort(port, factory, backlog, interface, reactor)
    prepared.reception = reception
    prepared.startListening()
    return prepared


def _check(reactor: Any, options: Options) -> None:
    """Raise L{MalformedDevice<txrdma.error.MalformedDevice>} before a connection needs the device."""
    if options.device != "auto":
        checkDevices(reactor, options.device)


def _usualDevice(options: Options) -> str:
    """Return the device string that most clients need; C{""} if it depends on the client."""
    if options.device != "auto":
        return options.device
    return "" if options.meetingDirectory or realPorts.isAny() else LOCAL_DEVICE


@implementer(IListeningPort, IPushProducer)
class SMCPort:
    """
    A listening TCP port, with the signalling of its carrier.

    Programs also use these methods of Twisted's TCP port: C{fileno}, for processes that adopt the socket and
    serve plain TCP, and C{pauseProducing}, which stops accepting connections.

    @ivar factory: the user's factory.
    """

    def __init__(
        self,
        tcp: Port,
        factory: IProtocolFactory,
        reception: IListenerSignal,
        uses: ReactorUse,
        device: str,
    ) -> None:
        self.factory = factory
        self._tcp = tcp
        self._reception = reception
        self._reactorUse = uses
        self._device = device
        self._opening: IDelayedCall | None = None
        self._use = uses.hold()
        self._begin()

    def _begin(self) -> None:
        address = tcpAddressOf(self._tcp.getHost())
        if address is not None and hasSockets(self._tcp.reactor):
            self._reception.begin(address)
            if self._device:
                self._opening = IReactorTime(self._tcp.reactor).callLater(0, self._open)

    def _open(self) -> None:
        """Open the device, which takes tens of milliseconds, before the first client."""
        with suppress(RDMAError, OSError, ValueError):  # the first handshake will report it
            linkGroups(self._tcp.reactor, self._device)

    def _end(self) -> None:
        self._reception.stop()
        self._use.release()
        cancelCall(self._opening)

    def startListening(self) -> None:
        self._reception.stop()
        self._tcp.startListening()
        self._end()
        self._use = self._reactorUse.hold()
        self._begin()

    def stopListening(self) -> Deferred[None]:
        self._end()
        return maybeDeferred(cast("Callable[[], Deferred[None]]", self._tcp.stopListening))

    loseConnection = stopListening

    def connectionLost(self, reason: Failure) -> None:
        self._end()
        self._tcp.connectionLost(reason)

    @property
    def connected(self) -> bool:
        return bool(self._tcp.connected)

    @property
    def disconnected(self) -> bool:
        return bool(self._tcp.disconnected)

    def getHost(self) -> IAddress:
        return cast(IAddress, self._tcp.getHost())

    @property
    def socket(self) -> Any:
        return self._tcp.socket

    def fileno(self) -> int:
        """Return the descriptor of the TCP socket, for C{adoptStreamPort}; -1 when closed."""
        return int(self._tcp.fileno())

    # IPushProducer

    def pauseProducing(self) -> None:
        self._tcp.pauseProducing()

    def resumeProducing(self) -> None:
        self._tcp.resumeProducing()

    def stopProducing(self) -> None:
        self.stopListening()

    startReading = resumeProducing
    stopReading = pauseProducing

    def __repr__(self) -> str:
        return f"<SMCPort {self._tcp!r}>"


@implementer(ISMCBackend)
class UserspaceBackend:
    """Connects and listens with the stack of this package."""

    def connect(
        self, reactor: Any, host: str, port: int, factory: IProtocolFactory, options: Options
    ) -> Deferred[IProtocol]:
        try:
            _check(reactor, options)
        except ValueError:
            return fail()
        introspection.openStatusSocket(reactor, report)
        return connect(reactor, host, port, factory, options)

    def listen(
        self,
        reactor: Any,
        port: int,
        interface: str,
        backlog: int,
        factory: IProtocolFactory,
        options: Options,
    ) -> IListeningPort:
        _check(reactor, options)
        reception = carrierFor(reactor, options).reception(backlog)
        stepping = _ServerFactory(factory, reactor, options, reception)
        use = reactorUse(reactor).hold()  # a carrier may open a device before the port listens
        try:
            tcp = _listenTCP(reactor, reception, port, stepping, backlog, interface)
            stepping.outcomes = Outcomes(f"connection at {tcpAddressOf(tcp.getHost())}")
            introspection.openStatusSocket(reactor, report)
            return SMCPort(tcp, factory, reception, reactorUse(reactor), _usualDevice(options))
        finally:
            use.release()
