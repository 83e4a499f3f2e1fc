"""
How the two ends learn that both speak SMC: the C{local} carrier.

A plain socket can't put the TCP option of RFC 7609 (section 3.1) into a SYN. Between processes of one host
a UNIX socket does its work: the listener answers on an abstract name made from its TCP address. The client
says there from which address it is going to connect, I{before} it connects, so the listener knows what the
connection is the moment it accepts it; nobody who waits for the server to speak first is held up. And the
client sends a proposal only after the listener has said that it accepted this very connection: whoever else
may be behind the TCP address never sees a stray byte::

    client    connecting 127.0.0.1 40000
    listener  expected 1000                   its user; or it closes: not from you, not twice
    client                                    connects by TCP
    listener  accepted                        and then waits for a CLC Proposal
    client    closes: the Proposal comes; or says "plain" first: after all, it does not

A client that has waited for too long says C{plain}, and the listener hears that for sure, be it ever so busy.

Names in that space can be taken by anybody, so the client believes an answer only from the user who owns
the listening TCP socket, by the word of the kernel on both.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, cast, Final

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IDelayedCall, IReactorFDSet, IReactorSocket, IReactorTime
from twisted.internet.protocol import connectionDone, Factory, ServerFactory
from twisted.logger import Logger
from twisted.protocols.basic import LineOnlyReceiver
from twisted.protocols.policies import TimeoutMixin
from twisted.python.failure import Failure

from txrdma.logs import Seldom
from txrdma.smc.carriers.owners import acceptingUsers, isOwned, Place, socketUser
from txrdma.smc.insight.outcomes import tellSilence
from txrdma.unixsockets import Credentials, LocalListener, peerOf
from txrdma.unixsockets import Reactor as _ListeningReactor

_log = Logger()
_seldom = Seldom(_log)

PATIENCE: Final = 2.0
"""Seconds that a client waits for each of the listener's words: one turn of its reactor."""

_ANNOUNCED: Final = 60.0
"""Seconds that a connection may take to come after it was announced."""

_CLOSING: Final = 10.0
"""Seconds that a client may take to close after it was told that its connection was accepted."""

_BACKLOG: Final = 4096
"""Clients that announce themselves at the same moment; the kernel refuses more, and they take plain TCP."""

_PLAIN: Final = b"plain"


class AnnouncingReactor(IReactorFDSet, IReactorSocket, IReactorTime):
    """The reactor, as announcements use it."""


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


# The listener's side


class Announced:
    """
    A connection that a client has announced.

    @ivar client: the process that has announced it, by the kernel's word.
    @ivar onWithdrawal: called when the client says that it goes on without SMC, though it was accepted.
    """

    def __init__(self, protocol: _ListenerProtocol, client: Credentials) -> None:
        self._protocol = protocol
        self.client = client
        self.onWithdrawal: Callable[[], None] | None = None
        self.isClaimed = False

    def isFrom(self, client: Place | None, own: Place | None) -> bool:
        """Whether who has announced a connection between these places owns the client's end of it."""
        user = self.client.user
        if user == 0 or (client and own and user == socketUser(client, own)):
            return True
        _seldom.warn(
            (user, "not its own"),
            "user {user} says that a connection is its own, and it is another's: plain TCP for that one",
            user=user,
        )
        return False

    def accepted(self) -> None:
        """Tell the client that its connection has come."""
        self.isClaimed = True
        self._protocol.sendLine(b"accepted")  # type: ignore[no-untyped-call]  # Twisted has no annotations here
        for seconds in (None, _CLOSING):  # None first, as somebody may have cancelled all delayed calls
            self._protocol.setTimeout(seconds)  # type: ignore[no-untyped-call]

    def withdraw(self) -> None:
        """The client goes on without SMC."""
        withdrawn, self.onWithdrawal = self.onWithdrawal, None
        if withdrawn is not None:
            withdrawn()


class _ListenerProtocol(LineOnlyReceiver, TimeoutMixin):
    """One client that announces one connection."""

    MAX_LENGTH = 256
    factory: Announcements
    place: Place | None = None
    announced: Announced | None = None

    def connectionMade(self) -> None:
        """The client has a minute for its connection."""
        self.setTimeout(_ANNOUNCED)  # type: ignore[no-untyped-call]
        self.factory.sessions.add(self)

    def callLater(self, period: float, func: Callable[[], None]) -> IDelayedCall:
        """Schedule a call on the factory's reactor, as L{TimeoutMixin} asks."""
        return self.factory.reactor.callLater(period, func)

    def lineReceived(self, line: bytes) -> None:
        """C{connecting <host> <port>}, once; C{plain}."""
        transport: Any = self.transport  # ITransport has no name for the socket; UNIX transports have always
        if line == _PLAIN and self.announced is not None:
            self.announced.withdraw()
            transport.loseConnection()
            return
        client = peerOf(transport.socket)
        try:
            word, host, port = line.decode("ascii").split(" ")
            if word != "connecting" or self.announced is not None:
                raise ValueError("unexpected")
            place = Place.of(host, int(port))
        except ValueError:
            _seldom.warn(
                (client.user, "nonsense"),
                "process {pid} of user {user} says {line!r} where it should announce an SMC connection",
                pid=client.pid,
                user=client.user,
                line=line,
            )
            transport.loseConnection()
            return
        announced = Announced(self, client)
        if self.factory.expect(place, announced):
            self.place, self.announced = place, announced
            self.sendLine(b"expected %d" % os.geteuid())  # type: ignore[no-untyped-call]
        else:
            transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The client knows, or is gone: forget it."""
        self.setTimeout(None)  # type: ignore[no-untyped-call]
        self.factory.sessions.discard(self)
        announced = self.announced
        if announced is None:
            return
        if self.place is not None and self.factory.expected.get(self.place) is announced:
            del self.factory.expected[self.place]
        if not reason.check(ConnectionDone):
            announced.withdraw()  # it had closed before it could hear that its connection was accepted


class Announcements(Factory):
    """
    The connections that clients on this host have announced to one SMC listener.

    @ivar expected: the announced connections that have not come yet, by the client's place.
    @ivar sessions: the clients that are connected, for that.
    """

    noisy = False
    protocol = _ListenerProtocol  # type: ignore[assignment]  # a class is a callable

    def __init__(self, reactor: AnnouncingReactor, anybody: bool) -> None:
        """
        @param anybody: processes of other users may announce connections, too.
        """
        self.reactor = reactor
        self._anybody = anybody
        self.expected: dict[Place, Announced] = {}
        self.sessions: set[_ListenerProtocol] = set()
        self._listener: LocalListener | None = None

    def welcome(self, user: int) -> bool:
        """Memory is shared within a user only; others are of use where the device was chosen by hand."""
        return self._anybody or _isTrusted(user)

    def listen(self, place: Place) -> None:
        """Begin to answer for a TCP listener."""
        purpose = f"to announce a connection to {place}"
        try:
            self._listener = LocalListener(
                cast(_ListeningReactor, self.reactor),
                socket.SOCK_STREAM,
                listenerName(place),
                self._accepted,
                purpose,
                self.welcome,
                _BACKLOG,
            )
        except OSError as error:
            _log.warn(
                "processes of this host will connect to {place} by plain TCP, since another process answers"
                " there to those that ask for SMC: {error}",
                place=place,
                error=error,
            )

    def _accepted(self, sock: socket.socket) -> None:
        with sock:
            try:
                self.reactor.adoptStreamConnection(
                    sock.fileno(), socket.AF_UNIX, cast("ServerFactory[Any]", self)
                )
            except OSError as error:  # no more descriptors; the client hears that it is closed
                _seldom.warn(
                    error.errno,
                    "a connection from this host will be plain TCP instead of SMC-R: {error}",
                    error=error,
                )

    def expect(self, client: Place, announced: Announced) -> bool:
        """
        A connection is to come from there.

        @return: False when it is expected already, from somebody who may know better.
        """
        before = self.expected.get(client)
        if before is not None and (_isTrusted(before.client.user) or not _isTrusted(announced.client.user)):
            return False
        self.expected[client] = announced
        return True

    def claim(self, client: Place) -> Announced | None:
        """Take the announcement of a connection from there, which may not be its owner's."""
        return self.expected.pop(client, None)

    def stop(self) -> None:
        """Answer no more; who still waits for a connection to be accepted is told that it won't be."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        for session in list(self.sessions):
            if session.announced is None or not session.announced.isClaimed:
                session.transport.loseConnection()  # type: ignore[union-attr]  # connected: there is one


def _isTrusted(user: int) -> bool:
    return user in (0, os.geteuid())


# The client's side


class _ClientProtocol(LineOnlyReceiver):
    """A client's end of the UNIX socket, which announces one connection to its listener."""

    MAX_LENGTH = 256

    def __init__(self, announcement: Announcement) -> None:
        self._announcement: Announcement | None = announcement

    def lineReceived(self, line: bytes) -> None:
        """Take a word of the listener: C{expected <uid>} or C{accepted}; any other ends the announcement."""
        announcement = self._announcement
        if announcement is None:
            return
        word, _, rest = line.partition(b" ")
        if word == b"expected" and rest.isdigit():
            announcement.expected(int(rest))
        elif word == b"accepted":
            announcement.accepted()
        else:
            announcement.close()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The listener is gone, or we are done."""
        announcement, self._announcement = self._announcement, None
        if announcement is not None:
            announcement.close()


class Announcement:
    """
    Our word to a listener that a connection is coming.

    @ivar listener: the process that listens, by the kernel's word.
    @ivar user: who the listener runs as, once it has answered.
    @ivar isAccepted: the listener has said that it accepted our connection.
    @ivar isOver: nothing more will be heard.
    """

    def __init__(
        self, reactor: AnnouncingReactor, client: Place, target: Place, connection: socket.socket
    ) -> None:
        """
        Announce over a connected UNIX socket, which is taken over.

        @param client: where our connection will come from.
        @raise OSError: there are no more descriptors.
        """
        self._reactor = reactor
        self._target = target
        self._protocol = _ClientProtocol(self)
        self._call: Callable[[], None] | None = None
        self._timer: IDelayedCall | None = None
        self.user = -1
        self.isAccepted = self.isOver = False
        factory = Factory.forProtocol(lambda: self._protocol)
        factory.noisy = False
        with connection:  # the reactor makes its own descriptor
            self.listener = peerOf(connection)
            reactor.adoptStreamConnection(
                connection.fileno(), socket.AF_UNIX, cast("ServerFactory[Any]", factory)
            )
        line = f"connecting {client.host} {client.port}"
        self._protocol.sendLine(line.encode("ascii"))  # type: ignore[no-untyped-call]

    def then(self, call: Callable[[], None]) -> None:
        """Call it when the listener has said its next word, or nothing more can be expected."""
        if self.isOver:
            call()
        else:
            self._call = call
            self._timer = self._reactor.callLater(PATIENCE, self._late)

    def _late(self) -> None:
        """If this process was busy, the word may be there: it is heard before the next call."""
        self._timer = self._reactor.callLater(0, self._tooLate)

    def _tooLate(self) -> None:
        self._timer = None
        tellSilence(self._reactor, self._target, self._reactor.seconds())
        self.close()

    def expected(self, user: int) -> None:
        """Note that the listener expects the connection, and the user ID that it has given for itself."""
        self.user = user
        self._tell()

    def accepted(self) -> None:
        """
        The listener has our connection.

        Its user is looked at once more: whoever has begun to listen since then may have it in truth.
        """
        listener = self.listener.user
        self.isAccepted = listener == 0 or acceptingUsers(self._target) <= {listener}
        self.close()

    def close(self) -> None:
        """Let go. Twice is fine."""
        if not self.isOver:
            self.isOver = True
            if not self.isAccepted:
                self._protocol.sendLine(_PLAIN)  # type: ignore[no-untyped-call]
            if self._protocol.transport is not None:
                self._protocol.transport.loseConnection()
            self._tell()

    def forget(self) -> None:
        """Close the announcement without calling whoever waits for the listener's word."""
        self._call = None
        self.close()

    def _tell(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()
        call, self._call = self._call, None
        if call is not None:
            call()


def findListener(target: Place) -> socket.socket | None:
    """
    Connect to the UNIX socket of the SMC listener at a place of this host.

    @return: a connected socket, or None when there is no listener that can be believed.
    """
    for name in candidateNames(target):
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:
            return None  # there are no descriptors left; the connection itself may have one
        try:
            connection.connect(name)
            user = peerOf(connection).user
        except OSError:
            connection.close()
            continue
        if isOwned(user, target):
            return connection
        _seldom.warn(
            (user, target),
            "user {user} says that {target} is its own and speaks SMC, but others listen there: plain TCP",
            user=user,
            target=target,
        )
        connection.close()
    return None
