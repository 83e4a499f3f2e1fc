"""
How the two ends learn that both speak SMC: the C{local} carrier.

A plain socket can't put the TCP option of RFC 7609 (section 3.1) into a SYN. Between processes of one host
a UNIX socket does its work: the listener answers on an abstract name made from its TCP address. The client
says there from which address it is going to connect, I{before} it connects, so the listener knows what the
connection is the moment it accepts it; nobody who waits for the server to speak first is held up. And the
client sends a proposal only after the listener has said that it accepted this very connection: whoever else
may be behind the TCP address never sees a stray byte.

Names in that space can be taken by anybody, so the client believes an answer only from the user who owns
the listening TCP socket, by the word of the kernel on both.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, cast, NamedTuple

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress, IListeningPort, IReactorSocket, IReactorTime, IReactorUNIX
from twisted.internet.protocol import connectionDone, Factory, ServerFactory
from twisted.logger import Logger
from twisted.protocols.basic import LineOnlyReceiver
from twisted.protocols.policies import TimeoutMixin
from twisted.python.failure import Failure

_log = Logger()

_UCRED = struct.Struct("3i")
_PATIENCE = 60.0
"""Seconds that an announcement is remembered."""
_BACKLOG = 4096
"""Clients that announce themselves at the same moment; the kernel refuses more, and they take plain TCP."""
_LISTENING = "0A"
"""TCP_LISTEN, in the state column of C{/proc/net/tcp}."""

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""Where the kernel tells who owns which TCP socket."""


class _Reactor(IReactorUNIX, IReactorSocket, IReactorTime):
    """What is asked of a reactor here."""


class Place(NamedTuple):
    """One end of a TCP connection; an IPv4 address is never in its IPv6 form."""

    host: str
    port: int

    @classmethod
    def of(cls, host: str, port: int) -> Place:
        """A place in its one form."""
        bare, _, scope = host.partition("%")
        address = ipaddress.ip_address(bare)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        if mapped is not None:
            return cls(str(mapped), port)
        return cls(f"{address}%{scope}" if scope else str(address), port)

    @property
    def isIPv6(self) -> bool:
        """Is it an IPv6 address in earnest?"""
        return ":" in self.host

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.isIPv6 else f"{self.host}:{self.port}"


def placeOf(address: IAddress) -> Place | None:
    """The place that a transport's address names, None when it is not one of TCP."""
    if isinstance(address, (IPv4Address, IPv6Address)):
        return Place.of(address.host, address.port)
    return None


def listenerName(place: Place) -> str:
    """The abstract name of the listener at a place."""
    if place.host == "0.0.0.0":
        return f"\0txrdma/smc/*:{place.port}"
    return f"\0txrdma/smc/{place}"


def candidateNames(target: Place) -> tuple[str, ...]:
    """Under which names the listener that accepts connections to a place may be found, likeliest first."""
    names = [listenerName(target), listenerName(Place("::", target.port))]
    if not target.isIPv6:
        names.insert(1, listenerName(Place("0.0.0.0", target.port)))
    return tuple(names)


def peerUser(connection: socket.socket) -> int:
    """The user at the other end of a connected UNIX socket: SO_PEERCRED."""
    _pid, uid, _gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return cast(int, uid)


# What the kernel knows of TCP sockets


class _Entry(NamedTuple):
    """A line of C{/proc/net/tcp}."""

    local: Place
    remote: Place
    state: str
    user: int


def _parsePlace(text: str) -> Place:
    """An address as those tables write it: 32-bit words in the byte order of the host."""
    host, _, port = text.partition(":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return Place.of(str(ipaddress.ip_address(packed)), int(port, 16))


def _entries(table: str) -> Iterator[_Entry]:
    """The sockets in one of the tables; those that listen come first."""
    try:
        with open(table) as lines:
            next(lines, None)
            for line in lines:
                parts = line.split()
                yield _Entry(_parsePlace(parts[1]), _parsePlace(parts[2]), parts[3], int(parts[7]))
    except OSError as error:
        _log.debug("can't read {table}: {error}", table=table, error=error)


def listeningUsers(target: Place, tables: tuple[str, ...] = TABLES) -> set[int]:
    """The users who own the sockets that may accept a connection to a place of this host."""
    bare = target.host.partition("%")[0]
    hosts = {bare, "::"} if target.isIPv6 else {bare, "0.0.0.0", "::"}
    users = set()
    for table in tables:
        for entry in _entries(table):
            if entry.state != _LISTENING:
                break
            if entry.local.port == target.port and entry.local.host in hosts:
                users.add(entry.user)
    return users


def connectingUser(client: Place, port: int, tables: tuple[str, ...] = TABLES) -> int | None:
    """The user who owns the client's socket of a connection to a port of ours, None when there is none."""
    for table in tables:
        for entry in _entries(table):
            if entry.local == client and entry.remote.port == port:
                return entry.user
    return None


def peerUserByTCP(own: Place, peer: Place, weListen: bool) -> int | None:
    """
    Who is at the other end of a TCP connection, if that is on this host.

    @param weListen: our end was accepted by a listener.
    """
    if sourceFor(peer) is None:
        return None
    if weListen:
        return connectingUser(peer, own.port)
    users = listeningUsers(peer)
    return os.geteuid() if os.geteuid() in users else None


def sourceFor(target: Place) -> Place | None:
    """From which address we would connect to a place of this host; None when it is not of this host."""
    family = socket.AF_INET6 if target.isIPv6 else socket.AF_INET
    try:
        sockaddr = socket.getaddrinfo(
            target.host, target.port, family, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST
        )[0][4]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((sockaddr[0], 0, *sockaddr[2:]))
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(sockaddr)
            name = probe.getsockname()
        host = socket.getnameinfo(name, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
        return Place.of(host, 0)
    except OSError:
        return None


# The listener's side


class Announced:
    """
    A connection that a client has announced.

    @ivar user: who the client is.
    """

    __slots__ = ("_protocol", "user")

    def __init__(self, protocol: _ListenerProtocol, user: int) -> None:
        self._protocol = protocol
        self.user = user

    def accepted(self) -> None:
        """Tell the client that its connection has come."""
        self._protocol.sendLine(b"accepted")  # type: ignore[no-untyped-call]


class _ListenerProtocol(LineOnlyReceiver, TimeoutMixin):
    """One client that announces one connection."""

    MAX_LENGTH = 256
    factory: Announcements

    def __init__(self) -> None:
        self._client: Place | None = None
        self._user = -1

    def connectionMade(self) -> None:
        """Look who it is."""
        # ITransport has no name for it; Twisted's UNIX transports have had this attribute always.
        self._user = peerUser(cast(socket.socket, self.transport.socket))  # type: ignore[union-attr]
        self.setTimeout(_PATIENCE)  # type: ignore[no-untyped-call]  # Twisted has no annotations here
        if not self.factory.welcome(self._user):
            self.sendLine(b"refused")  # type: ignore[no-untyped-call]
            self.transport.loseConnection()  # type: ignore[union-attr]  # connected: there is one

    def lineReceived(self, line: bytes) -> None:
        """C{connecting <host> <port>}."""
        try:
            word, host, port = line.decode("ascii").split(" ")
            if word != "connecting" or self._client is not None:
                raise ValueError("unexpected")
            self._client = Place.of(host, int(port))
        except ValueError:
            _log.warn("a client on the UNIX socket said {line}", line=line)
            self.transport.loseConnection()  # type: ignore[union-attr]
            return
        self.factory.expected[self._client] = Announced(self, self._user)
        self.sendLine(b"expected %d" % os.geteuid())  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The client knows, or is gone: forget it."""
        self.setTimeout(None)  # type: ignore[no-untyped-call]
        if self._client is not None:
            announced = self.factory.expected.get(self._client)
            if announced is not None and announced._protocol is self:
                del self.factory.expected[self._client]


class Announcements(Factory):
    """
    What clients on this host have announced to one listener.

    @ivar expected: the announced connections that have not come yet, by the client's place.
    """

    noisy = False
    protocol = _ListenerProtocol  # type: ignore[assignment]  # a class is a callable

    def __init__(self, anybody: bool) -> None:
        self._anybody = anybody
        self.expected: dict[Place, Announced] = {}
        self._port: IListeningPort | None = None
        self.place = Place("0.0.0.0", 0)

    def welcome(self, user: int) -> bool:
        """Memory is shared within a user only; others are of use where the device was chosen by hand."""
        return self._anybody or user in (0, os.geteuid())

    def listen(self, reactor: _Reactor, place: Place) -> None:
        """Begin to answer for a TCP listener."""
        self.place = place
        try:
            self._port = reactor.listenUNIX(listenerName(place), self, backlog=_BACKLOG)
        except CannotListenError as error:
            _log.warn(
                "clients on this host will use plain TCP to {place}: {error}",
                place=place,
                error=error.socketError,
            )

    def claim(self, client: Place, port: int) -> Announced | None:
        """Was this connection to a port of ours announced? Its client is told that it has come."""
        announced = self.expected.pop(client, None)
        if announced is None:
            return None
        if announced.user not in (0, os.geteuid()) and announced.user != connectingUser(client, port):
            _log.warn("user {user} announced a connection of somebody else", user=announced.user)
            return None
        announced.accepted()
        return announced

    def stop(self) -> Deferred[None]:
        """Answer no more."""
        port, self._port = self._port, None
        if port is None:
            return succeed(None)
        return maybeDeferred(cast("Callable[[], Deferred[None]]", port.stopListening))


# The client's side


class _ClientProtocol(LineOnlyReceiver):
    """Announce one connection."""

    MAX_LENGTH = 256

    def __init__(self, announcement: Announcement) -> None:
        self._announcement: Announcement | None = announcement

    def lineReceived(self, line: bytes) -> None:
        """C{expected <uid>}, C{accepted}, C{refused}."""
        announcement = self._announcement
        if announcement is None:
            return
        word, _, rest = line.partition(b" ")
        if word == b"expected" and rest.isdigit():
            announcement.expected(int(rest))
        elif word == b"accepted":
            announcement.accepted()
        else:
            announcement.failed()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The listener is gone, or we are done."""
        announcement, self._announcement = self._announcement, None
        if announcement is not None:
            announcement.failed()


class Announcement:
    """
    Our word to a listener that a connection is coming.

    @ivar user: who the listener runs as, once it has answered.
    @ivar isAccepted: the listener has said that it accepted our connection.
    @ivar isOver: nothing more will be heard.
    """

    def __init__(self, client: Place) -> None:
        self._client = client
        self._protocol = _ClientProtocol(self)
        self._answered: Callable[[], None] | None = None
        self.changed: Callable[[], None] | None = None
        self.user = -1
        self.isAccepted = False
        self.isOver = False

    def start(self, reactor: _Reactor, connection: socket.socket, answered: Callable[[], None]) -> None:
        """
        Announce over a connected UNIX socket, which is taken over.

        @param answered: called once, later, when the connection is expected, or C{isOver}.
        """
        self._answered = answered
        factory = Factory.forProtocol(lambda: self._protocol)
        factory.noisy = False
        try:
            reactor.adoptStreamConnection(
                connection.fileno(), socket.AF_UNIX, cast("ServerFactory[Any]", factory)
            )
        finally:
            connection.close()  # the reactor has made its own descriptor
        line = f"connecting {self._client.host} {self._client.port}"
        self._protocol.sendLine(line.encode("ascii"))  # type: ignore[no-untyped-call]

    def expected(self, user: int) -> None:
        """The listener knows now."""
        self.user = user
        self._tell()

    def accepted(self) -> None:
        """The listener has our connection."""
        self.isAccepted = True
        self.close()

    def failed(self) -> None:
        """It won't."""
        self.close()

    def close(self) -> None:
        """Let go. Twice is fine."""
        if not self.isOver:
            self.isOver = True
            if self._protocol.transport is not None:
                self._protocol.transport.loseConnection()
            self._tell()
            changed, self.changed = self.changed, None
            if changed is not None:
                changed()

    def forget(self) -> None:
        """Close, and call nobody."""
        self._answered = self.changed = None
        self.close()

    def _tell(self) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered()


def findListener(target: Place, tables: tuple[str, ...] = TABLES) -> socket.socket | None:
    """
    Connect to the UNIX socket of the SMC listener at a place of this host.

    @return: a connected socket, or None when there is no listener that can be believed.
    """
    for name in candidateNames(target):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(name)
        except OSError:
            connection.close()
            continue
        user = peerUser(connection)
        if user == 0 or user in listeningUsers(target, tables):
            return connection
        _log.warn(
            "user {user} answers for {target}, but is not who listens there: plain TCP",
            user=user,
            target=target,
        )
        connection.close()
    return None
