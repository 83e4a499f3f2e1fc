"""
The seam between connections and the carriers, by which two ends learn that both speak SMC (RFC 7609, 3.1).

A carrier sees the socket of a client before it connects, the socket of a listener before it listens, and both
ends of a connection when it is there. Endpoints and negotiations ask a carrier, and know none by its name;
L{txrdma.smc.handshake.choice} chooses.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from zope.interface import Attribute, Interface

from twisted.internet.interfaces import IAddress
from twisted.internet.tcp import Connection

from txrdma.smc.signalling.owners import Place
from txrdma.unix.sockets import Credentials


class IDialing(Interface):
    """A TCP client whose socket is there, and not connected yet."""

    socket: socket.socket = Attribute("The socket that is going to connect.")
    target: Place = Attribute("The address that the client is going to connect to.")

    def getHost() -> IAddress:
        """The address of the socket, as it is at present."""

    def renew() -> None:
        """Close the socket, and have another one prepared in its place, in the reactor's next turn."""


class IClientSignal(Interface):
    """
    A client's connection, as its carrier sees it: from the socket to the answer whether both ends speak SMC.

    A connection that was made before the carrier saw it has an approach that was never prepared.
    """

    isSMC: bool = Attribute("Whether the listener speaks SMC, once that is known.")
    isAwaited: bool = Attribute("Whether the listener waits for a CLC message even where C{isSMC} is False.")
    isExpected: bool = Attribute("Whether the listener was told of the connection, and has agreed to it.")
    process: Credentials | None = Attribute("The process that listens, None when that is not known.")
    user: int | None = Attribute("The user that the process runs as, None when that is not known.")

    def prepare(client: IDialing, proceed: Callable[[], None]) -> None:
        """
        Prepare the client's present socket, and call C{proceed} when it may connect: now, or later.

        A socket of which nothing good can come is renewed instead.
        """

    def failed(error: object) -> bool:
        """
        The prepared socket was not connected; the carrier lets go of it.

        @return: whether the client should be renewed, since it is the carrier that is to blame.
        """

    def ask(transport: Connection, told: Callable[[], None]) -> None:
        """Call C{told} when it is known whether the listener speaks SMC on this connection: now, or later."""

    def decideNow() -> None:
        """The listener has sent bytes before its answer: take what is known by now for the answer."""

    def close() -> None:
        """The connection is over, or it is clear what it is: call nobody any more. Twice is fine."""


class IServerSignal(Interface):
    """An accepted connection that a carrier knows of, or can't exclude, to be a client's that speaks SMC."""

    isSure: bool = Attribute("Whether the client is going to send a Proposal, before anything else.")
    process: Credentials | None = Attribute("The client's process, None when that is not known.")
    user: int | None = Attribute("The user that the process runs as, None when that is not known.")

    def expect(withdrawn: Callable[[], None]) -> None:
        """
        Have the client know, if need be, that its Proposal is waited for.

        @param withdrawn: called when the client lets the carrier know that it goes on without SMC.
        """

    def refuse() -> bool:
        """
        Have the client go on without SMC, since the listener has too much to do.

        @return: False when the client can't be told, and may propose: then that has to be declined.
        """

    def settle() -> None:
        """The client has proposed, or the connection is over: nobody waits any more. Twice is fine."""


class INeighbour(Interface):
    """
    An approach or an arrival whose peer may be in another network namespace of this host.

    Both ends see one directory, have met there, and know by more than the peer's word that it is the peer.
    """

    directory: str = Attribute("The directory, by which memory can be shared; empty when it was not used.")


class IListenerSignal(Interface):
    """A listener, as its carrier sees it."""

    def prepare(listening: socket.socket) -> None:
        """Prepare a socket that is going to listen."""

    def begin(place: Place) -> None:
        """Begin to answer clients: the socket listens, at this place."""

    def arrived(transport: Connection) -> IServerSignal | None:
        """
        The arrival that belongs to an accepted connection.

        @return: None when the client does not speak SMC: plain TCP, at once.
        """

    def stop() -> None:
        """Answer no more clients. Twice is fine."""


class ICarrier(Interface):
    """A way by which two ends of TCP connections learn that both speak SMC."""

    def approach() -> IClientSignal:
        """The approach of one connection that a client is going to make, or has made."""

    def reception(room: int) -> IListenerSignal:
        """
        The reception of a listener.

        @param room: connections that may wait there until they are accepted (the backlog).
        """
