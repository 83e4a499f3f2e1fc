"""
The C{option} carrier: both ends of a connection see SMC's TCP option in the other's SYN (RFC 7609, 3.1).

The Linux kernel's AF_SMC, and other hosts, find out about a peer that way. Clients that announce themselves
on this host (L{txrdma.smc.signalling.local}) have no need of the option and go without. Where both ends have
sent it, the server waits for a CLC message, so a client that has seen it sends a Proposal, or a Decline.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from zope.interface import implementer

from twisted.internet.tcp import Connection

from txrdma.smc.signalling.interfaces import (
    ICarrier,
    IClientSignal,
    IDialing,
    IListenerSignal,
    INeighbour,
    IServerSignal,
)
from txrdma.smc.signalling.option.shared import SharedOption
from txrdma.smc.signalling.owners import Place, placeOf
from txrdma.smc.signalling.silence import silentPeers
from txrdma.unix.sockets import Credentials, Reactor


@implementer(IClientSignal, INeighbour)
class MarkedApproach:
    """
    A connection whose SYN carries the option, unless its listener expects it anyway.

    @ivar directory: where the announced connection was met, if that was in a directory.
    """

    isSMC = False
    isAwaited = False
    isExpected = False
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
        """
        @param takesTCP: plain TCP will do; otherwise a listener that was silent is asked again.
        @param isServed: finds out whether there is a device to speak SMC with.
        @param announced: the approach that is known for sure, to a listener on this host.
        """
        self._reactor = reactor
        self._takesTCP = takesTCP
        self._option = option
        self._isServed = isServed
        self._announced = announced
        self._isMarked = False

    def prepare(self, client: IDialing, proceed: Callable[[], None]) -> None:
        """Announce the connection; if nobody expects it then, mark its socket."""
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
        """Let the listener on this host wait no more; it may be the announcement's fault."""
        self._isMarked = False
        return self._announced.failed(error)

    def ask(self, transport: Connection, told: Callable[[], None]) -> None:
        """Look whether the listener's answer to the SYN had the option, or wait for its word on this host."""
        if self._isMarked and self._option.wasExchanged(transport.socket):
            self.isSMC = True
            silentPeers(self._reactor).ask(placeOf(transport.getPeer()), self._reactor.seconds())
            told()
            return

        def heard() -> None:
            announced = self._announced
            self.isSMC, self.process, self.user = announced.isSMC, announced.process, announced.user
            neighbour = INeighbour(announced, None)
            if neighbour is not None:
                self.directory = neighbour.directory
            told()

        self._announced.ask(transport, heard)

    def decideNow(self) -> None:
        """Give up the listener on this host: it was somebody else who sent bytes."""
        self._announced.decideNow()

    def close(self) -> None:
        self._announced.close()


@implementer(IServerSignal)
class MarkedArrival:
    """A connection of which both ends have sent the option: the client's CLC message comes first."""

    isSure = True
    process: Credentials | None = None
    user: int | None = None

    def expect(self, withdrawn: Callable[[], None]) -> None:
        """Do nothing: the client has seen the option in the answer to its SYN."""

    def refuse(self) -> bool:
        return False

    def settle(self) -> None:
        """Do nothing: nobody waits for the client."""


@implementer(IListenerSignal)
class MarkedReception:
    """A listener that answers the option with its own, and announced clients as before."""

    def __init__(
        self, option: SharedOption, isServed: Callable[[], bool], announced: IListenerSignal
    ) -> None:
        self._option = option
        self._isServed = isServed
        self._announced = announced
        self._isMarked = False

    def prepare(self, listening: socket.socket) -> None:
        """Mark the socket, unless what it would promise could not be kept."""
        self._announced.prepare(listening)
        self._isMarked = (
            self._option.isAvailable and self._isServed() and self._option.markListener(listening)
        )

    def begin(self, place: Place) -> None:
        self._announced.begin(place)

    def arrived(self, transport: Connection) -> IServerSignal | None:
        """An accepted connection's arrival: that of a client which has sent the option, or was announced."""
        announced = self._announced.arrived(transport)
        if not (self._isMarked and self._option.wasExchanged(transport.socket)):
            return announced
        if announced is not None:
            announced.settle()  # its client has given up waiting, and goes by the option
        return MarkedArrival()

    def stop(self) -> None:
        self._announced.stop()


@implementer(ICarrier)
class MarkedCarrier:
    """Clients and listeners have the option, and announce themselves on this host, too."""

    def __init__(
        self,
        reactor: Reactor,
        takesTCP: bool,
        option: SharedOption,
        isServed: Callable[[], bool],
        announced: ICarrier,
    ) -> None:
        self._reactor = reactor
        self._takesTCP = takesTCP
        self._option = option
        self._isServed = isServed
        self._announced = announced

    def approach(self) -> MarkedApproach:
        return MarkedApproach(
            self._reactor, self._takesTCP, self._option, self._isServed, self._announced.approach()
        )

    def reception(self, room: int) -> MarkedReception:
        return MarkedReception(self._option, self._isServed, self._announced.reception(room))
