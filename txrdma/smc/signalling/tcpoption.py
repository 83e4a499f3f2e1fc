"""
The C{option} carrier: both ends of a connection see SMC's TCP option in the other's SYN (RFC 7609, 3.1).

The Linux kernel's AF_SMC, and other hosts, detect a peer's support that way. Clients that announce themselves
on this host (L{txrdma.smc.signalling.local}) do not need the option. If both ends have sent it, the server
waits for a CLC message, so a client that has received it sends a Proposal or a Decline.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from zope.interface import implementer

from twisted.internet.tcp import Connection

from txrdma.smc.signalling.configured import AgreedReception, UnannouncedArrival
from txrdma.smc.signalling.interfaces import IClientSignal, IDialing, IListenerSignal, IServerSignal
from txrdma.smc.signalling.option.shared import SharedOption
from txrdma.smc.signalling.owners import tcpAddressOf
from txrdma.smc.signalling.peeridentity import PeerIdentity
from txrdma.smc.signalling.silence import silentPeers
from txrdma.unix.sockets import Credentials, Reactor


@implementer(IClientSignal)
class MarkedApproach:
    """A connection whose SYN carries the option, unless the listener already expects the connection."""

    isSMC = False
    isAwaited = False
    process: Credentials | None = None
    user: int | None = None
    directory = ""

    def __init__(
        self,
        reactor: Reactor,
        takesTCP: bool,
        option: SharedOption,
        isServed: Callable[[], bool],
        announced: IClientSignal,
    ) -> None:
        self._reactor = reactor
        self._takesTCP = takesTCP
        self._option = option
        self._isServed = isServed
        self._announced = announced
        self._isMarked = False

    @property
    def isExpected(self) -> bool:
        return self._announced.isExpected

    def prepare(self, client: IDialing, proceed: Callable[[], None]) -> None:
        """Announce the connection; if no listener expects it, mark its socket."""
        self._isMarked = False

        def announced() -> None:
            if not self._announced.isExpected:
                self._mark(client)
            proceed()

        self._announced.prepare(client, announced)

    def _mark(self, client: IDialing) -> None:
        isSilent = silentPeers(self._reactor).isSilent(client.target, self._reactor.seconds())
        if not (self._takesTCP and isSilent) and self._option.isAvailable and self._isServed():
            self._isMarked = self._option.markClient(client.socket)

    def failed(self, error: object) -> bool:
        self._isMarked = False
        return self._announced.failed(error)

    def query(self, transport: Connection, done: Callable[[], None]) -> None:
        """Check whether the SYN-ACK had the option; otherwise query the listener on this host."""
        if self._isMarked and self._option.wasExchanged(transport.socket):
            self.isSMC = True
            silentPeers(self._reactor).query(tcpAddressOf(transport.getPeer()), self._reactor.seconds())
            done()
            return

        def answered() -> None:
            announced = self._announced
            self.isSMC, self.process, self.user = announced.isSMC, announced.process, announced.user
            self.directory = announced.directory
            done()

        self._announced.query(transport, answered)

    def decideNow(self) -> None:
        self._announced.decideNow()

    def close(self) -> None:
        self._announced.close()


@implementer(IListenerSignal)
class MarkedReception(AgreedReception):
    """A listener that answers the TCP option with its own."""

    def __init__(
        self, option: SharedOption, isServed: Callable[[], bool], announced: IListenerSignal
    ) -> None:
        super().__init__(announced)
        self._option = option
        self._isServed = isServed
        self._isMarked = False

    def prepare(self, listening: socket.socket) -> None:
        super().prepare(listening)
        self._isMarked = (
            self._option.isAvailable and self._isServed() and self._option.markListener(listening)
        )

    def arrived(self, peer: PeerIdentity) -> IServerSignal | None:
        announced = self._announced.arrived(peer)
        if not (self._isMarked and self._option.wasExchanged(peer.transport.socket)):
            return announced
        if announced is not None:
            announced.settle()  # its client has given up waiting, and uses the option
        return UnannouncedArrival(isSure=True)
