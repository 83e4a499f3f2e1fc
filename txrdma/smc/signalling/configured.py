"""
The C{agreed} carrier: both ends were configured to speak SMC (C{peer=smc}), and nobody needs to be asked.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from zope.interface import implementer

from twisted.internet.tcp import Connection

from txrdma.smc.signalling.interfaces import ICarrier, IClientSignal, IDialing, IListenerSignal, IServerSignal
from txrdma.smc.signalling.owners import Place, placeOf
from txrdma.smc.signalling.silence import silentPeers
from txrdma.unix.sockets import Credentials, Reactor


@implementer(IClientSignal)
class AgreedApproach:
    """A connection to a listener that was configured to speak SMC; one that did not of late is not asked."""

    isSMC = False
    isAwaited = True
    isExpected = False
    process: Credentials | None = None
    user: int | None = None

    def __init__(self, reactor: Reactor, takesTCP: bool) -> None:
        self._reactor = reactor
        self._takesTCP = takesTCP

    def prepare(self, client: IDialing, proceed: Callable[[], None]) -> None:
        """Let the socket connect as it is."""
        proceed()

    def failed(self, error: object) -> bool:
        """Blame nobody else for a connection that was not made."""
        return False

    def ask(self, transport: Connection, told: Callable[[], None]) -> None:
        """Answer at once, as the endpoint was configured."""
        silent, now = silentPeers(self._reactor), self._reactor.seconds()
        peer = placeOf(transport.getPeer())
        self.isSMC = not (self._takesTCP and silent.isSilent(peer, now))
        if self.isSMC:
            silent.ask(peer, now)
        told()

    def decideNow(self) -> None:
        """Do nothing: nobody was asked."""

    def close(self) -> None:
        """Do nothing: nobody was asked."""


@implementer(IServerSignal)
class AgreedArrival:
    """A connection of a client that may speak SMC: its first bytes, or their absence, will show."""

    isSure = False
    process: Credentials | None = None
    user: int | None = None

    def expect(self, withdrawn: Callable[[], None]) -> None:
        """Do nothing: the client proposes without being told."""

    def refuse(self) -> bool:
        """Tell the client nothing: there is no way but CLC."""
        return False

    def settle(self) -> None:
        """Do nothing: nobody waits for the client."""


@implementer(IListenerSignal)
class AgreedReception:
    """A listener whose clients may all speak SMC, those included that nobody has announced."""

    def __init__(self, announced: IListenerSignal) -> None:
        """
        @param announced: knows some of the clients for sure.
        """
        self._announced = announced

    def prepare(self, listening: socket.socket) -> None:
        """Have the socket prepared for the clients that are known for sure."""
        self._announced.prepare(listening)

    def begin(self, place: Place) -> None:
        self._announced.begin(place)

    def arrived(self, transport: Connection) -> IServerSignal:
        """An accepted connection's arrival: that of an announced client, or one of which nothing is known."""
        return self._announced.arrived(transport) or AgreedArrival()

    def stop(self) -> None:
        self._announced.stop()


@implementer(ICarrier)
class AgreedCarrier:
    """Both ends were configured to speak SMC; a server believes announcements, too."""

    def __init__(self, reactor: Reactor, takesTCP: bool, announced: ICarrier) -> None:
        self._reactor = reactor
        self._takesTCP = takesTCP
        self._announced = announced

    def approach(self) -> AgreedApproach:
        return AgreedApproach(self._reactor, self._takesTCP)

    def reception(self, room: int) -> AgreedReception:
        return AgreedReception(self._announced.reception(room))
