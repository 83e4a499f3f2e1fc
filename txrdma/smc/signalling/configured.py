"""The C{agreed} carrier: both ends were configured to use SMC (C{peer=smc})."""

from __future__ import annotations

import socket
from collections.abc import Callable

from zope.interface import implementer

from twisted.internet.tcp import Connection

from txrdma.smc.signalling.interfaces import IClientSignal, IDialing, IListenerSignal, IServerSignal
from txrdma.smc.signalling.owners import TCPAddress, tcpAddressOf
from txrdma.smc.signalling.peeridentity import PeerIdentity
from txrdma.smc.signalling.silence import silentPeers
from txrdma.unix.sockets import Credentials, Reactor


@implementer(IClientSignal)
class AgreedApproach:
    """A connection to a listener that is known to support SMC; SMC is not proposed to a silent one."""

    isSMC = False
    isAwaited = True
    isExpected = False
    process: Credentials | None = None
    user: int | None = None
    directory = ""

    def __init__(self, reactor: Reactor, takesTCP: bool) -> None:
        self._reactor = reactor
        self._takesTCP = takesTCP

    def prepare(self, client: IDialing, proceed: Callable[[], None]) -> None:
        proceed()

    def failed(self, error: object) -> bool:
        return False

    def query(self, transport: Connection, done: Callable[[], None]) -> None:
        silent, now = silentPeers(self._reactor), self._reactor.seconds()
        peer = tcpAddressOf(transport.getPeer())
        self.isSMC = not (self._takesTCP and silent.isSilent(peer, now))
        if self.isSMC:
            silent.query(peer, now)
        done()

    def decideNow(self) -> None:
        """Do nothing: there is no pending question."""

    def close(self) -> None:
        """Do nothing: there is no pending question."""


@implementer(IServerSignal)
class UnannouncedArrival:
    """An accepted connection without announcement; C{isSure}: both ends have sent the TCP option."""

    process: Credentials | None = None
    user: int | None = None
    directory = ""

    def __init__(self, isSure: bool) -> None:
        self.isSure = isSure

    def expect(self, withdrawn: Callable[[], None]) -> None:
        """Do nothing: the client sends a Proposal unasked."""

    def refuse(self) -> bool:
        """Return False: only CLC reaches the client."""
        return False

    def settle(self) -> None:
        """Do nothing: no server waits for the client."""


@implementer(IListenerSignal)
class AgreedReception:
    """A listener that assumes that any client may use SMC, announced or not."""

    def __init__(self, announced: IListenerSignal) -> None:
        self._announced = announced

    def prepare(self, listening: socket.socket) -> None:
        self._announced.prepare(listening)

    def begin(self, address: TCPAddress) -> None:
        self._announced.begin(address)

    def arrived(self, peer: PeerIdentity) -> IServerSignal | None:
        return self._announced.arrived(peer) or UnannouncedArrival(isSure=False)

    def stop(self) -> None:
        self._announced.stop()
