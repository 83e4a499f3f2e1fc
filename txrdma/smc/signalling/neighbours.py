"""
The C{local} carrier across network namespaces: containers of one host that share a directory.

Abstract sockets and the tables of TCP sockets are limited to a network namespace; a directory is not.
Listeners are found there by their TCP port, and connections are announced as in
L{txrdma.smc.signalling.local}. But there may be several listeners at one port, and containers in different
networks may have the same addresses. So before a client announces anything, the listener must prove that the
client's target address leads to it::

    client    seeking 10.0.0.2             the address that it is going to connect to
    listener  prove 45678 1f0c...          if the address is local: a UDP port there, and a nonce
    client                                 sends the nonce to 10.0.0.2, port 45678
    listener                               answers with a second nonce from there
    listener  proven 10.0.0.1 a97e...      the source address of the datagram, and the second nonce

Only if both nonces have arrived and no address was translated on the way does "from 10.0.0.1 port 40000" mean
the same connection at both ends, so that the listener can recognize it. If addresses are translated, or
datagrams are dropped, connections use plain TCP.

This is the listener's side; L{txrdma.smc.signalling.netns} is the client's.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from hmac import compare_digest
from typing import ClassVar, Final

from zope.interface import implementer

from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.smc.signalling.local import Announced, AnnouncementConnection, Announcements
from txrdma.smc.signalling.owners import TCPAddress
from txrdma.unix.socketdirectory import DirectoryListener, SocketDirectory
from txrdma.unix.sockets import isTrusted, processAt, Reactor

_rateLimited = RateLimitedLogger(Logger())

_MOST_PROVING: Final = 256
"""
Largest number of connected processes of other users, and of processes of this user that have not announced a
connection, each with a UDP socket.
"""

_BACKLOG: Final = 4096


def listenersAt(port: int) -> str:
    """Return the common prefix of the names of listeners at a TCP port."""
    return f"smc-{port}-"


def newNonce() -> bytes:
    """Create a nonce, which others can't guess."""
    return secrets.token_hex(16).encode("ascii")


@implementer(IReadDescriptor)
class ProvingSocket:
    """
    A UDP socket at one address, over which two processes exchange nonces to prove their addresses.

    It is on the reactor until its owner closes it.
    """

    def __init__(
        self,
        reactor: Reactor,
        datagrams: socket.socket,
        received: Callable[[bytes, tuple[object, ...]], None],
    ) -> None:
        self._reactor = reactor
        self._socket = datagrams
        self._received = received
        reactor.addReader(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "smc"

    @property
    def address(self) -> TCPAddress:
        return TCPAddress.of(*self._socket.getsockname()[:2])

    def doRead(self) -> None:
        try:
            data, sender = self._socket.recvfrom(256)
        except BlockingIOError:
            return
        except OSError:
            data, sender = b"", ()  # the port is closed
        self._received(data, sender)

    def send(self, nonce: bytes, target: tuple[object, ...] | None = None) -> None:
        """Send a nonce once; it may be lost."""
        try:
            if target is None:
                self._socket.send(nonce)
            else:
                self._socket.sendto(nonce, target)
        except OSError:
            pass  # like a lost datagram

    def connectionLost(self, reason: Failure) -> None:
        self.close()

    def close(self) -> None:
        self._reactor.removeReader(self)
        self._socket.close()


class AnnouncedNeighbour(Announced):
    """A connection that a client of another network namespace has announced."""

    __slots__ = ("_target",)

    def __init__(
        self, announcing: Neighbour, address: TCPAddress, number: int, target: str, directory: str
    ) -> None:
        super().__init__(announcing, address, number, announcing.client)
        self._target = target
        self.directory = directory

    def isFrom(self, client: TCPAddress | None, local: TCPAddress | None) -> bool:
        """Return whether the connection came from the announced address, to the proven one."""
        return client == self.address and local is not None and local.host == self._target


class Neighbour(AnnouncementConnection):
    """A process connected through the directory, which may announce connections after the proof."""

    isNeighbour: ClassVar[bool] = True

    def __init__(self, announcements: Announcements, connection: socket.socket, directory: str) -> None:
        super().__init__(announcements, connection)
        self._directory = directory
        self._proof: ProvingSocket | None = None
        self._nonces = newNonce(), newNonce()
        self._target = self._source = ""
        self.isOurs = isTrusted(self.client.user)

    @property
    def isProving(self) -> bool:
        """Whether the process has not announced a connection yet."""
        return self._proof is not None or not self._source

    def obey(self, line: bytes) -> None:
        """Process C{seeking <address>}; after the proof, lines of L{AnnouncementConnection}."""
        if self._source:
            super().obey(line)
            return
        word, _, address = line.partition(b" ")
        try:
            if word != b"seeking" or self._target:
                raise ValueError("unexpected")
            target = TCPAddress.of(address.decode("ascii"), 0)
            if target.zone:  # clients do not seek such addresses, and bind would resolve any text
                raise ValueError("a zone")
            self._target = target.host
        except ValueError:
            self.lines.close()
            return
        self._prove()

    def _prove(self) -> None:
        """Open a UDP port at the requested address; disconnect if the address is not local."""
        family = socket.AF_INET6 if ":" in self._target else socket.AF_INET
        datagrams = None
        try:
            datagrams = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            datagrams.bind((self._target, 0))
        except OSError:
            if datagrams is not None:
                datagrams.close()
            self.lines.close()
            return
        self._proof = ProvingSocket(self.reactor, datagrams, self._challengeReceived)
        self.lines.send(b"prove %d %s" % (self._proof.address.port, self._nonces[0]))

    def _challengeReceived(self, data: bytes, sender: tuple[object, ...]) -> None:
        """
        Answer the expected nonce each time it is received, to its source address.

        The answer may be lost: the client repeats its nonce until it announces something, or disconnects. But
        it does so as soon as the line has arrived, and then a second one would be an error.
        """
        if self._proof is None or not compare_digest(data, self._nonces[0]) or len(sender) < 2:
            return
        self._proof.send(self._nonces[1], sender)
        source = TCPAddress.of(str(sender[0]), 0).host
        if source != self._source:
            self.lines.send(b"proven %s %s" % (source.encode("ascii"), self._nonces[1]))
            self._source = source

    def announced(self, address: TCPAddress, number: int) -> Announced:
        """Create the announcement of a connection; raises ValueError if it is not from the proven address."""
        self._endProof()
        if address.host != self._source:
            raise ValueError("another address")
        return AnnouncedNeighbour(self, address, number, self._target, self._directory)

    def _endProof(self) -> None:
        proof, self._proof = self._proof, None
        if proof is not None:
            proof.close()

    def _ended(self) -> None:
        self._endProof()
        super()._ended()


class NeighbourAnnouncements(Announcements):
    """Announcements of processes in this and, by a directory, in other network namespaces of the host."""

    def __init__(
        self, reactor: Reactor, anybody: bool, directory: SocketDirectory, capacity: int = 50
    ) -> None:
        super().__init__(reactor, anybody, capacity)
        self._directory = directory
        self._neighbourListener: DirectoryListener | None = None

    def begin(self, address: TCPAddress) -> None:
        super().begin(address)
        self.beginNeighbours(address)

    def beginNeighbours(self, address: TCPAddress) -> None:
        """Listen for processes of other network namespaces in the directory."""
        name = listenersAt(address.port) + secrets.token_hex(8)
        purpose = f"the announcement of connections to {address} from another network namespace"
        try:
            self._neighbourListener = DirectoryListener(
                self.reactor, self._directory, socket.SOCK_STREAM, name, self._met, purpose, _BACKLOG
            )
        except OSError as error:
            _rateLimited.warn(
                self._directory.path,
                "containers of this host will connect by plain TCP, as {path} can't be used: {error}",
                path=self._directory.path,
                error=errorText(error),
            )

    def _met(self, connection: socket.socket) -> None:
        isOurs = isTrusted(processAt(connection).user)
        alike = [each for each in self.connections if isinstance(each, Neighbour) and each.isOurs == isOurs]
        if sum(each.isProving or not isOurs for each in alike) < _MOST_PROVING:
            self.connections.add(Neighbour(self, connection, self._directory.path))
        else:
            connection.close()

    def stop(self) -> None:
        listener, self._neighbourListener = self._neighbourListener, None
        if listener is not None:
            listener.close()
        super().stop()
