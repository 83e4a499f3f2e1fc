"""
The client's side of the C{local} carrier: announces this process's connections on this host.

L{txrdma.smc.signalling.local} describes the protocol.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from math import inf
from typing import Final
from weakref import WeakKeyDictionary

from twisted.logger import Logger

from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import advised, RateLimitedLogger
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.signalling.local import candidateNames
from txrdma.smc.signalling.owners import isOwned, socketUser, sourceFor, TCPAddress
from txrdma.smc.signalling.silence import logUnresponsivePeer
from txrdma.unix.lines import Lines
from txrdma.unix.sockets import Credentials, peerOf, processAt, Reactor

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

_ANSWER: Final = re.compile(rb"([^ ]*) ([0-9]+)(?: ([0-9]+))?").fullmatch
"""Matches a listener's answer: a word, the number of an announced connection, and perhaps a user ID."""

ANSWER_SECONDS: Final = 2.0
"""Seconds to wait for an answer if the listener sends nothing at all on the channel."""

LONGEST_WAIT: Final = 10.0
"""Seconds to wait for an answer if the listener answers earlier ones, of which there may be thousands."""

GIVEN_UP_SECONDS: Final = 0.5
"""
Seconds without an answer after which a listener is silent if the client does not wait any longer: shorter
than usual timeouts, and longer than iterations of a busy reactor.
"""

_MOST_CHANNELS: Final = 256
"""Number of channels on a reactor at which a new one closes those that are idle."""


class Announcement:
    """
    The announcement of a connection to a listener.

    @ivar listener: the listening process, by the kernel's credentials.
    @ivar user: the user of the listener, once it has answered; -1 before.
    @ivar isAccepted: the listener has accepted the connection.
    @ivar isOver: no more answers will be received.
    @ivar wasRefused: another process has announced a connection from the same address.
    @ivar wasCut: the listener has disconnected; another one may have replaced it.
    """

    @property
    def directory(self) -> str:
        """The directory in which a listener of another network namespace was found; else empty."""
        return self._channel.directory

    def __init__(self, channel: AnnouncementChannel, client: TCPAddress) -> None:
        self._channel, self._client = channel, client
        self._number = channel.add(self)
        self._call: Callable[[], None] | None = None
        self.since = 0.0
        self.listener = channel.listener
        self.user = -1
        self.isAccepted = self.isOver = self.wasRefused = self.wasCut = False
        channel.send(b"connecting %d %s %d" % (self._number, client.host.encode("ascii"), client.port))

    @property
    def isAwaited(self) -> bool:
        """Whether a callback waits for the listener's next answer."""
        return self._call is not None

    @property
    def isConnected(self) -> bool:
        """Whether a callback waits for the listener to accept the connection."""
        return self._call is not None and self.user >= 0

    def then(self, call: Callable[[], None]) -> None:
        """Call a function on the listener's next answer, or when no more can be expected."""
        if self.isOver:
            call()
        else:
            self._call = call
            self.since = self._channel.begin()

    def expected(self, user: int) -> None:
        """Record that the listener expects the connection."""
        self.user = self.listener.user if self._channel.directory else user
        self._announce()

    def accepted(self) -> None:
        """Handle the acceptance of the connection, if the TCP socket still belongs to the listener."""
        self.isAccepted = self._channel.isStillOwned(self.listener, self._client)
        self.close()

    def close(self) -> None:
        """End the announcement. Idempotent."""
        if not self.isOver:
            self.isOver = True
            self._channel.remove(self._number, isPlain=not self.isAccepted)
            self._announce()

    def forget(self) -> None:
        """End the announcement without calling the waiting function."""
        self._call = None
        self.close()

    def abandon(self) -> None:
        """End the announcement, because the client does not wait any longer."""
        if self._call is not None:
            self._channel.abandon(self)
        self.forget()

    def _announce(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


class AnnouncementChannel:
    """
    The socket by which this process announces its connections to one listener.

    It stays open until SMC is no longer in use, even while nothing is announced.

    @ivar listener: the listening process, by the kernel's credentials.
    @ivar source: the local address of connections to the listener.
    @ivar directory: directory in which the listener was found, if it is in another network namespace and has
        proven that the address is its own; empty in the local namespace.
    """

    isBusy: Final = False

    def __init__(
        self,
        reactor: Reactor,
        target: TCPAddress,
        source: TCPAddress,
        connection: socket.socket,
        directory: str = "",
    ) -> None:
        self._reactor = reactor
        self._target = target
        self._open: dict[int, Announcement] = {}
        self._number = 0
        self._receivedAt = reactor.seconds()
        # When the listener last accepted a connection, and since when that had been waiting.
        self._acceptedAt = self._acceptedSince = -inf
        self._timer = Timer(reactor)
        self._dueAt = 0.0
        self._isOwned: bool | None = None
        self._hasAnswered = self._isResting = self._isRetired = False
        self.source = source
        self.directory = directory
        self.listener = processAt(connection)
        self._lines = Lines(reactor, connection, self._received, self._ended)
        reactorUse(reactor).add(self)

    @property
    def isIdle(self) -> bool:
        return not self._open

    def isUsable(self) -> bool:
        """Return whether the listener is still connected. An idle channel is read, or closed if retired."""
        if not self._open and self._isRetired:
            self._lines.close()
        elif not self._open and self._lines.isOpen:
            self._lines.doRead()
        return self._lines.isOpen

    def add(self, announcement: Announcement) -> int:
        self._number += 1
        self._open[self._number] = announcement
        return self._number

    def remove(self, number: int, isPlain: bool) -> None:
        """Remove an announcement; C{isPlain}: its connection continues without SMC."""
        del self._open[number]
        if isPlain:
            self._lines.send(b"plain %d" % number)
        if not self._open:
            self._timer.stop()
            if self._isResting:
                self._lines.close()

    def send(self, line: bytes) -> None:
        self._lines.send(line)

    def _received(self, lines: list[bytes]) -> None:
        self._receivedAt = self._reactor.seconds()
        self._hasAnswered = True
        self._isOwned = None  # checked once for each batch of lines
        for line in lines:
            if self._lines.isOpen:
                self._obey(line)

    def _obey(self, line: bytes) -> None:
        """Process C{expected <number> <user>}, C{accepted <number>} or C{refused <number>}."""
        match = _ANSWER(line)
        if match is None:
            self._lines.close()
            return
        word, number, user = match.groups()
        announcement = self._open.get(int(number))
        if announcement is None:
            return  # the announcement has ended
        if announcement.isConnected:  # whatever the listener sends, it has accepted the connection
            self._acceptedAt, self._acceptedSince = self._receivedAt, announcement.since
        if word == b"expected" and user is not None:
            announcement.expected(int(user))
        elif word == b"accepted":
            announcement.accepted()
        else:
            announcement.wasRefused = True
            announcement.close()

    def isStillOwned(self, listener: Credentials, client: TCPAddress) -> bool:
        """Return whether only the listener's user can have accepted the connection of a client."""
        if self.directory:
            return True  # its sockets are in another namespace, but it has proven its address
        if self._isOwned is None:
            self._isOwned = isOwned(listener.user, self._target)
        if self._isOwned is None:  # the listener may have closed: whose is the accepted socket?
            return socketUser(self._target, client) == listener.user
        return self._isOwned

    # Timeouts

    def begin(self) -> float:
        """Start the timer for the listener's answer, and return the current time."""
        self._startTimer(ANSWER_SECONDS)
        return self._reactor.seconds()

    def _startTimer(self, seconds: float) -> None:
        self._timer.ensure(seconds, self._late)
        self._dueAt = self._timer.dueAt

    def _late(self) -> None:
        """
        Close overdue announcements, after reading lines that arrived while this process was busy.

        If this call is late, the listener may have been paused as well, for example with the whole host.
        """
        self._lines.doRead()
        now = self._reactor.seconds()
        isPunctual = now < self._dueAt + ANSWER_SECONDS / 20
        awaited = [each for each in self._open.values() if each.isAwaited]
        late = [each for each in awaited if each.since + ANSWER_SECONDS <= now]
        unanswered = [each for each in late if isPunctual and self._heardAt(each) + ANSWER_SECONDS <= now]
        if unanswered:
            self._recordSilence(now)
        for announcement in [*unanswered, *(each for each in late if each.since + LONGEST_WAIT <= now)]:
            announcement.close()
        awaited = [each for each in self._open.values() if each.isAwaited]
        if awaited and not self._timer.isPending:
            self._startTimer(ANSWER_SECONDS / 4)

    def _recordSilence(self, now: float) -> None:
        """
        Record that the listener does not answer.

        The address of one in another network namespace, which it has proven once, may have moved to another
        listener: the next connection searches again.
        """
        logUnresponsivePeer(self._reactor, self._target, now)
        if self.directory:
            self.retire()

    def retire(self) -> None:
        """Let a later connection open a new channel."""
        self._isRetired = True

    def abandon(self, announcement: Announcement) -> None:
        """
        Record that the listener did not answer a client that has given up: the next one uses plain TCP.

        Otherwise clients with a shorter timeout than L{ANSWER_SECONDS} would never connect.
        """
        now = self._reactor.seconds()
        if max(announcement.since, self._heardAt(announcement)) + GIVEN_UP_SECONDS <= now:
            self._recordSilence(now)

    def _heardAt(self, announcement: Announcement) -> float:
        """
        Return when the listener last sent something from which an answer to this announcement may follow.

        Connections are accepted in order, so one that the listener has passed over was accepted by another
        process that has its TCP socket. That one may accept all of them, while the listener expects more.
        """
        if not announcement.isConnected:
            return self._receivedAt
        return -inf if announcement.since < self._acceptedSince else self._acceptedAt

    # Suspension

    def rest(self) -> None:
        """Close as soon as nothing is announced, because SMC is not in use any more."""
        self._isResting = True
        if not self._open:
            self._lines.close()

    def wake(self) -> None:
        """Return to the reactor. Idempotent."""
        self._isResting = False
        if self._lines.isOpen:
            self._lines.wake()

    def _ended(self) -> None:
        """Close all announcements, because the listener has disconnected, or SMC is not in use any more."""
        reactorUse(self._reactor).remove(self)
        channels, key = _channelsOn(self._reactor), (self.directory, self._target)
        if channels.get(key) is self:
            del channels[key]
        self._timer.stop()
        for announcement in list(self._open.values()):
            announcement.wasCut = self._hasAnswered and announcement.user < 0
            announcement.close()


_Key = tuple[str, TCPAddress]

_channels: WeakKeyDictionary[object, dict[_Key, AnnouncementChannel]] = WeakKeyDictionary()


def _channelsOn(reactor: object) -> dict[_Key, AnnouncementChannel]:
    found = _channels.get(reactor)
    if found is None:
        found = _channels[reactor] = {}
    return found


def channelTo(reactor: Reactor, target: TCPAddress) -> AnnouncementChannel | None:
    """Return the channel to the SMC listener at an address of this host; None without a trusted one."""
    channel = knownChannel(reactor, target)
    if channel is not None:
        return channel
    source = sourceFor(target)
    connection = None if source is None else findListener(target)
    if source is None or connection is None:
        return None
    return openChannel(reactor, target, source, connection)


def knownChannel(reactor: Reactor, target: TCPAddress, directory: str = "") -> AnnouncementChannel | None:
    """Return the open channel to the SMC listener at an address; None without one."""
    channel = _channelsOn(reactor).get((directory, target))
    return channel if channel is not None and channel.isUsable() else None


def openChannel(
    reactor: Reactor, target: TCPAddress, source: TCPAddress, connection: socket.socket, directory: str = ""
) -> AnnouncementChannel:
    """Open a channel to a trusted listener; parameters are those of L{AnnouncementChannel}."""
    channels = _channelsOn(reactor)
    if len(channels) >= _MOST_CHANNELS:
        for idle in [each for each in channels.values() if each.isIdle]:
            idle.rest()
    channel = channels[directory, target] = AnnouncementChannel(
        reactor, target, source, connection, directory
    )
    return channel


def findListener(target: TCPAddress) -> socket.socket | None:
    """Connect to the trusted SMC listener at an address of this host by its UNIX socket, or None."""
    for name in candidateNames(target):
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:  # no descriptor is left; the TCP connection may have one
            text = "plain TCP, because it can't be asked whether {target} supports SMC-R: {error}"
            _rateLimited.warn("socket", text, target=target, error=advised(error))
            return None
        try:
            connection.connect(name)
            user = peerOf(connection).user
        except OSError:
            connection.close()
            continue
        isOwner = isOwned(user, target)
        if isOwner:
            return connection
        why = "whose listener was not found" if isOwner is None else "where another user listens"
        text = "user {user} claims {target}, {why}: using plain TCP"
        _rateLimited.warn((user, target), text, user=user, target=target, why=why)
        connection.close()
    return None
