"""
Identity of the peer of a TCP connection: its process, user or host, without relying on the peer's claims.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from twisted.internet.tcp import Connection

from txrdma.smc.signalling.owners import peerUserByTCP, TCPAddress, tcpAddressOf
from txrdma.streams.transport import Address
from txrdma.unix.sockets import Credentials


class PeerIdentity:
    """
    The identity of the peer of a TCP connection.

    @ivar transport: the TCP connection, whose addresses are read once.
    @ivar process: the peer's process, if it has announced the connection, or listens on this host.
    @ivar directory: directory that connects the two ends, if they are in different network namespaces.
    """

    def __init__(self, transport: Connection, weListen: bool) -> None:
        self.transport = transport
        self._weListen = weListen
        self._user: int | None = None
        self._isKnown = False
        self._addresses: tuple[Address, Address] | None = None
        self._peer: Address | None = None
        self._peerAddress: TCPAddress | None = None
        self.process: Credentials | None = None
        self.directory = ""

    @property
    def addresses(self) -> tuple[Address, Address]:
        """Local address of the TCP connection, and the peer's."""
        found = self._addresses
        if found is None:
            transport: Any = self.transport
            found = self._addresses = transport.getHost(), self._peer or transport.getPeer()
        return found

    @property
    def localAddress(self) -> TCPAddress | None:
        return tcpAddressOf(self.addresses[0])

    @property
    def peerAddress(self) -> TCPAddress | None:
        address = self._peerAddress
        if address is None:
            transport: Any = self.transport
            self._peer = transport.getPeer() if self._addresses is None else self._addresses[1]
            address = self._peerAddress = tcpAddressOf(self._peer)
        return address

    @property
    def user(self) -> int | None:
        """User of the peer's process; None if unknown, or not on this host."""
        if not self._isKnown:
            self._isKnown = True
            local, peer = self.localAddress, self.peerAddress
            if local is not None and peer is not None:
                self._user = peerUserByTCP(local, peer, self._weListen)
        return self._user

    def introduce(self, process: Credentials | None, user: int | None, directory: str) -> None:
        """Set the peer's identity as far as a carrier knows it; without a user it remains to be found."""
        self.process, self.directory = process, directory
        if user is not None:
            self._isKnown, self._user = True, user

    @property
    def identityKey(self) -> Hashable:
        """Identity of the peer that no other peer can claim: its process, user, or host; None if unknown."""
        if self.process is not None:
            return self.process
        if self.user is not None:
            return self.user
        address = self.peerAddress
        return None if address is None else address.host
