"""
The interface between connections and carriers, which detect that both ends support SMC (RFC 7609, 3.1).

A carrier handles the socket of a client before it connects, the socket of a listener before it listens, and
both ends of an established connection. L{txrdma.smc.handshake.carriers} chooses the carrier; other modules do
not depend on any of them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

from zope.interface import Attribute, Interface

from twisted.internet.interfaces import IAddress
from twisted.internet.tcp import Connection

from txrdma.smc.signalling.owners import TCPAddress
from txrdma.smc.signalling.peeridentity import PeerIdentity
from txrdma.unix.sockets import Credentials


class IDialing(Interface):
    """A TCP client whose socket exists and is not connected yet."""

    socket: socket.socket = Attribute("The socket that is going to connect.")
    target: TCPAddress = Attribute("The address that the client is going to connect to.")

    def getHost() -> IAddress:
        """Return the current local address of the socket."""

    def renew() -> None:
        """Replace the socket by a new one, which is prepared in the next reactor iteration."""


class IClientSignal(Interface):
    """The carrier's part of a client's connection; C{prepare}: only if the carrier's socket is used."""

    isSMC: bool = Attribute("Whether the listener supports SMC, as soon as that is known.")
    isAwaited: bool = Attribute("Whether the listener waits for a CLC message even where C{isSMC} is False.")
    isExpected: bool = Attribute("Whether the connection was announced, and the listener has agreed to it.")
    process: Credentials | None = Attribute("The process that listens, None if unknown.")
    user: int | None = Attribute("The user that the process runs as, None if unknown.")
    directory: str = Attribute(
        "Directory in which the two ends met, if they are in different network namespaces, else empty."
    )

    def prepare(client: IDialing, proceed: Callable[[], None]) -> None:
        """Prepare the client's socket, or renew it; call C{proceed} when it may connect: now, or later."""

    def failed(error: object) -> bool:
        """
        Release a socket that could not connect, or whose client does not wait any longer.

        @return: whether the client should be renewed.
        """

    def query(transport: Connection, done: Callable[[], None]) -> None:
        """Call C{done} when C{isSMC} is known for this connection: now, or later."""

    def decideNow() -> None:
        """Decide on C{isSMC}, because the listener has sent bytes before its answer."""

    def close() -> None:
        """Stop, without calling C{done}: the connection has ended, or is decided. Idempotent."""


class IServerSignal(Interface):
    """The carrier's part of an accepted connection whose client supports SMC, or may support it."""

    isSure: bool = Attribute("Whether the first data of the client is a Proposal.")
    process: Credentials | None = Attribute("The client's process, None if unknown.")
    user: int | None = Attribute("The user that the process runs as, None if unknown.")
    directory: str = Attribute("As in L{IClientSignal}.")

    def expect(withdrawn: Callable[[], None]) -> None:
        """
        Inform the client that a Proposal is expected.

        @param withdrawn: called if the client continues without SMC.
        """

    def refuse() -> bool:
        """Request that the client continues without SMC; return False if only a Decline can do that."""

    def settle() -> None:
        """Stop waiting: the client has proposed, or the connection has ended. Idempotent."""


class IListenerSignal(Interface):
    """The carrier's part of a listener."""

    def prepare(listening: socket.socket) -> None:
        """Prepare a socket that is going to listen."""

    def begin(address: TCPAddress) -> None:
        """Begin to answer clients: the socket listens at this address."""

    def arrived(peer: PeerIdentity) -> IServerSignal | None:
        """Return the signal of an accepted connection; None if the client does not support SMC."""

    def stop() -> None:
        """Answer no more clients. Idempotent."""


class Carrier(NamedTuple):
    """Detects whether both ends support SMC: creates signals of connections and, by backlog, listeners."""

    approach: Callable[[], IClientSignal]
    reception: Callable[[int], IListenerSignal]
