"""
The C{local} carrier, by which two ends on one host detect that both support SMC.

A plain socket can't put the TCP option of RFC 7609 (section 3.1) into a SYN. Between processes of one host a
UNIX socket replaces it: the listener has one at an abstract name made from its TCP address. The client
announces the address from which it is going to connect, I{before} it connects. So the listener recognizes the
connection when it accepts it, and clients that wait for the server to send first are not delayed. The client
sends a Proposal only after the listener has reported that it accepted this very connection, so any other
process behind the TCP address never receives CLC::

    client    connecting 7 127.0.0.1 40000    the client's number for this connection
    listener  expected 7 1000                 the listener's user; or "refused 7", e.g. for a duplicate
    client                                    connects by TCP
    listener  accepted 7                      and then waits for a CLC Proposal
    client                                    sends the Proposal, or "plain 7" to continue without SMC

A client that has waited for too long sends C{plain}, which the listener receives even if it was busy. One
UNIX socket announces all connections of a process to a listener, and stays open while SMC is in use
(L{txrdma.smc.common.reactoruse}). The listener expects only as many of them at once as its TCP backlog has
space for. The others wait for C{expected}, since TCP would drop their SYN and retransmit it a second later.

Any process can bind such a name, so the client accepts an answer only from the user who owns the listening
TCP socket, as the kernel reports for both sockets.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import ClassVar, Final

from zope.interface import implementer

from twisted.logger import Logger

from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.smc.signalling.interfaces import IListenerSignal, IServerSignal
from txrdma.smc.signalling.owners import isEstablished, socketUser, TCPAddress
from txrdma.smc.signalling.peeridentity import PeerIdentity
from txrdma.unix.lines import Lines
from txrdma.unix.sockets import Credentials, isTrusted, LocalListener, processAt, Reactor

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

_ANNOUNCED: Final = 60.0
"""Seconds after which an announced connection that has not arrived is dropped."""

_BACKLOG_SECONDS: Final = 1.0
"""Seconds for which an expected connection reserves space in the backlog of the TCP socket."""

_BACKLOG: Final = 4096
"""Backlog of the UNIX socket: processes that may connect at the same time; the kernel refuses more."""

_MOST_EXPECTED: Final = 1 << 16
"""Largest number of announced connections that one process has not made yet: more than it has ports."""

_MOST_OTHER_USERS: Final = 64
"""Largest number of connected processes of other users."""

_MOST_OF_OTHER_USER: Final = 64
"""Largest number of announced connections that a process of another user has not made yet."""


def listenerName(address: TCPAddress) -> str:
    """Return the abstract name of the listener at an address."""
    if address.host == "0.0.0.0":
        return f"\0txrdma/smc/*:{address.port}"
    return f"\0txrdma/smc/{address}"


def candidateNames(target: TCPAddress) -> tuple[str, ...]:
    """Return the names that the listener at an address may have, likeliest first."""
    names = [listenerName(target), listenerName(TCPAddress("::", target.port))]
    if not target.isIPv6:
        names.insert(1, listenerName(TCPAddress("0.0.0.0", target.port)))
    return tuple(names)


@implementer(IServerSignal)
class Announced:
    """
    A connection that a client has announced.

    @ivar client: the announcing process, by the kernel's credentials.
    @ivar number: the client's number for this connection.
    @ivar onWithdrawal: called if the client continues without SMC after all.
    """

    __slots__ = ("_announcing", "client", "directory", "number", "onWithdrawal", "address", "since")

    isSure = True

    def __init__(
        self, announcing: AnnouncementConnection | None, address: TCPAddress, number: int, client: Credentials
    ) -> None:
        self._announcing = announcing
        self.address = address
        self.number = number
        self.client = client
        self.directory = ""
        self.since = 0.0
        self.onWithdrawal: Callable[[], None] | None = None

    def isFrom(self, client: TCPAddress | None, local: TCPAddress | None) -> bool:
        """Return whether the user that announced the connection owns the client's socket."""
        user = self.client.user
        owner = socketUser(client, local) if user and client and local else None
        if user in (0, owner):
            return True
        why = "whose owner was not found" if owner is None else "of another user"
        text = "user {user} announced a connection {why}: it uses plain TCP"
        _rateLimited.warn((user, why), text, user=user, why=why)
        return False

    def send(self, word: bytes, more: bytes = b"") -> None:
        """Send a line about the connection to the client."""
        if self._announcing is not None:
            self._announcing.lines.send(b"%s %d%s" % (word, self.number, more))

    @property
    def process(self) -> Credentials:
        return self.client

    @property
    def user(self) -> int:
        return self.client.user

    def expect(self, withdrawn: Callable[[], None]) -> None:
        """Report the acceptance to the client; C{withdrawn} is called if it continues without SMC."""
        self.onWithdrawal = withdrawn
        self.send(b"accepted")

    def refuse(self) -> bool:
        self.send(b"refused")
        self.settle()
        return True

    def settle(self) -> None:
        """End the announcement: the client has proposed, or the connection has ended. Idempotent."""
        self.onWithdrawal = None
        if self._announcing is not None:
            self._announcing.open.pop(self.number, None)

    def withdraw(self) -> None:
        """Handle that the client continues without SMC."""
        withdrawn = self.onWithdrawal
        self.settle()
        if withdrawn is not None:
            withdrawn()


class AnnouncementConnection:
    """
    A connection on which a process announces its SMC connections to a listener.

    @cvar isNeighbour: the process is in another network namespace, for which another limit applies.
    @ivar open: the announcements that the process may still withdraw.
    """

    isNeighbour: ClassVar[bool] = False

    def __init__(self, announcements: Announcements, connection: socket.socket) -> None:
        self._announcements = announcements
        self.reactor = announcements.reactor
        self.client = processAt(connection)
        self.open: dict[int, Announced] = {}
        self.lines = Lines(announcements.reactor, connection, self._linesReceived, self._ended)

    def _linesReceived(self, lines: list[bytes]) -> None:
        for line in lines:
            if self.lines.isOpen:
                self.obey(line)

    def obey(self, line: bytes) -> None:
        """Process C{connecting <number> <host> <port>} or C{plain <number>}."""
        try:
            word, numberText, *rest = line.decode("ascii").split(" ")
            number = int(numberText)
            if word == "plain" and not rest:
                announced = self.open.get(number)  # the client may have proposed already
                if announced is not None:
                    self._announcements.forget(announced)
                    announced.withdraw()
                return
            host, port = rest
            if word != "connecting" or number in self.open:
                raise ValueError("unexpected")
            announced = self.announced(TCPAddress.of(host, int(port)), number)
        except ValueError:
            _rateLimited.warn(
                (self.client.user, "nonsense"),
                "process {pid} of user {user} sent {line!r} instead of announcing an SMC connection",
                pid=self.client.pid,
                user=self.client.user,
                line=line,
            )
            self.lines.close()
            return
        most = _MOST_EXPECTED if isTrusted(self.client.user) else _MOST_OF_OTHER_USER
        if len(self.open) < most and self._announcements.expect(announced.address, announced):
            self.open[number] = announced
        else:
            announced.send(b"refused")

    def announced(self, address: TCPAddress, number: int) -> Announced:
        """Create the announcement of a connection from that address."""
        return Announced(self, address, number, self.client)

    def _ended(self) -> None:
        """Drop the announcements of a disconnected process whose connections were not accepted yet."""
        self._announcements.connections.discard(self)
        for announced in self.open.values():
            self._announcements.forget(announced)
        self.open.clear()


@implementer(IListenerSignal)
class Announcements:
    """
    The connections that clients on this host have announced to one SMC listener.

    @ivar expected: announced connections that were not accepted yet, by client address.
    @ivar connections: the announcing processes.
    """

    def __init__(self, reactor: Reactor, anybody: bool, capacity: int = 50) -> None:
        self.reactor = reactor
        self._acceptsOtherUsers = anybody
        self._capacity = max(capacity, 1)
        self.expected: dict[TCPAddress, Announced] = {}
        self.connections: set[AnnouncementConnection] = set()
        self._admitted: dict[Announced, float] = {}  # time at which each got C{expected}
        self._queue: dict[Announced, None] = {}  # those that wait for C{expected}
        self._timer = Timer(reactor)
        self._listener: LocalListener | None = None

    def isPermitted(self, user: int) -> bool:
        """Return whether to accept a process of this user: root, the local user, or any if so configured."""
        if isTrusted(user):
            return True
        here = [each for each in self.connections if not each.isNeighbour]
        otherUsers = sum(not isTrusted(each.client.user) for each in here)
        return self._acceptsOtherUsers and otherUsers < _MOST_OTHER_USERS

    def prepare(self, listening: socket.socket) -> None:
        """Do nothing: the socket needs no preparation."""

    def begin(self, address: TCPAddress) -> None:
        purpose = f"the announcement of connections to {address}"
        try:
            self._listener = LocalListener(
                self.reactor,
                socket.SOCK_STREAM,
                listenerName(address),
                self._accepted,
                purpose,
                self.isPermitted,
                _BACKLOG,
            )
        except OSError as error:
            isTaken = error.errno == errno.EADDRINUSE
            why = "another process announces SMC there" if isTaken else "it can't be announced to them"
            _log.warn(
                "processes of this host will connect to {address} by plain TCP, since {why}: {error}",
                address=address,
                why=why,
                error=errorText(error),
            )

    def _accepted(self, connection: socket.socket) -> None:
        self.connections.add(AnnouncementConnection(self, connection))

    def expect(self, client: TCPAddress, announced: Announced) -> bool:
        """Expect a connection from this address; False if an equally trusted process announced it before."""
        before = self.expected.get(client)
        if before is not None and (isTrusted(before.client.user) or not isTrusted(announced.client.user)):
            return False
        if before is not None:
            self.forget(before)
        self.expected[client] = announced
        announced.since = self.reactor.seconds()
        self._queue[announced] = None
        self._admit()
        return True

    def _admit(self) -> None:
        """Request clients to connect, as many as the backlog has space for."""
        queue, admitted = self._queue, self._admitted
        while queue and len(admitted) < self._capacity:
            announced = next(iter(queue))
            if len(queue) > 1:
                announced = next((each for each in queue if isTrusted(each.user)), announced)
            del queue[announced]
            admitted[announced] = self.reactor.seconds()
            announced.send(b"expected", b" %d" % os.geteuid())
        if self.expected:
            self._timer.ensure(_BACKLOG_SECONDS, self._tick)
        else:
            self._timer.stop()

    def _tick(self) -> None:
        """Drop announcements whose connections did not arrive in time."""
        now = self.reactor.seconds()
        for announced, since in list(self._admitted.items()):
            if since + _BACKLOG_SECONDS > now:
                break
            del self._admitted[announced]
        for announced in list(self.expected.values()):
            if announced.since + _ANNOUNCED > now:
                break
            self.forget(announced)
            announced.settle()
        self._admit()

    def arrived(self, peer: PeerIdentity) -> Announced | None:
        """Return the announcement of an accepted connection, None if its owner has not announced it."""
        client = peer.peerAddress
        if client is None or client not in self.expected or not isEstablished(peer.transport.socket):
            return None  # a reset connection is not the one announced later from the same port
        announced = self.claim(client)
        if announced is None or announced.isFrom(client, peer.localAddress):
            return announced
        announced.settle()
        return None

    def claim(self, client: TCPAddress) -> Announced | None:
        """Remove and return the announcement of a connection from that address."""
        announced = self.expected.get(client)
        if announced is not None:
            self.forget(announced)
        return announced

    def forget(self, announced: Announced) -> None:
        """Remove an announcement, which makes space for another connection."""
        if self.expected.get(announced.address) is announced:
            del self.expected[announced.address]
            self._admitted.pop(announced, None)
            self._queue.pop(announced, None)
            if self._queue or not self.expected:
                self._admit()

    def stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self.expected.clear()
        self._admitted.clear()
        self._queue.clear()
        self._timer.stop()
        for announcing in list(self.connections):
            announcing.lines.close()
