"""
Hostile processes that announce SMC connections over UNIX sockets, or receive such announcements.

L{txrdma.testing.hostile.neighbours} plays them in other network namespaces.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final

from twisted.internet.error import ConnectionDone, ConnectionLost

from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.signalling import local as localModule
from txrdma.smc.signalling import localclient as clientModule
from txrdma.smc.signalling.local import Announcements
from txrdma.smc.signalling.localclient import Announcement, AnnouncementChannel
from txrdma.smc.signalling.owners import TCPAddress
from txrdma.testing.hostile.plans import HostilePlan
from txrdma.testing.hostile.scenario import HostileScenario
from txrdma.testing.hostile.talkers import Pair, Talker
from txrdma.testing.hostile.tampering import Message, Tamper
from txrdma.testing.hostile.wiring import TamperedSocket, TCP
from txrdma.testing.outcome import check
from txrdma.testing.smc.hosts import connectedSockets, Host, MemorySocket
from txrdma.unix import lines as linesModule
from txrdma.unix.lines import Lines, LONGEST, MUCH
from txrdma.unix.sockets import SO_PEERCRED

SECONDS: Final = 50e-6
"""Mean seconds that bytes between two processes take."""

_AGAIN_SECONDS: Final = 0.1
CAPACITY: Final = 50
OTHER_USER: Final = os.geteuid() + 12345
_FIRST_NUMBER: Final = 1000
_LONGEST: Final = 60_000
_MOST_UNREAD: Final = 4096


class LineHost(Host):
    """
    A process that reads lines, too.

    @cvar inMemory: classes of readers whose sockets are in memory.
    @ivar user: user and group of the process, and its process ID as other processes see it.
    """

    inMemory: tuple[type[Any], ...] = (Lines,)
    user, group = os.geteuid(), os.getegid()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pid = int(self.address.rpartition(".")[2])

    def addReader(self, reader: Any) -> None:
        if isinstance(reader, self.inMemory):
            reader.socket = reader._socket  # as connections of Twisted have it
            self.readers[reader] = None
            self.isStirred = True
        else:
            super().addReader(reader)

    def removeReader(self, reader: Any) -> None:
        if isinstance(reader, self.inMemory):
            self.readers.pop(reader, None)
        else:
            super().removeReader(reader)

    def poll(self) -> bool:
        isStirred = self.isStirred
        busy = super().poll()
        for reader in [each for each in self.readers if isinstance(each, self.inMemory)] if isStirred else ():
            if reader in self.readers and reader.socket.isReadable:
                busy = self.isStirred = True
                self.read(reader)
        return busy

    def read(self, reader: Any) -> None:
        """Let a reader read its socket in memory."""
        reader.doRead()


def _option(end: MemorySocket, level: int, name: int, size: int = 0) -> bytes:
    """Return the credentials of the process at the other end of a UNIX socket in memory."""
    if (level, name) != (socket.SOL_SOCKET, SO_PEERCRED):
        raise OSError(errno.ENOPROTOOPT, "the socket does not have this option")
    peer: Any = end.peer.host
    return struct.pack("3i", peer.pid, peer.user, peer.group)


class Renumbering:
    """Gives copies of an announcement different numbers and ports, so that each is an announcement."""

    def __init__(self, tamper: Tamper, host: str) -> None:
        """@param host: address from which the copies announce connections."""
        self._tamper = tamper
        self._host = host.encode("ascii")
        self._numbers = count(_FIRST_NUMBER)

    def replaced(self, channel: str, message: Message) -> list[Message]:
        """Return the messages that are sent instead of this one, in order."""
        messages = self._tamper.replaced(channel, message)
        before: Message | None = None
        for index, each in enumerate(messages):
            if each is before and each.content.startswith(b"connecting "):
                number = next(self._numbers)
                messages[index] = Message(b"connecting %d %s %d\n" % (number, self._host, number))
            before = each
        return messages


def targetAt(server: Host) -> TCPAddress:
    """Return the address of a host's listener."""
    return TCPAddress.of(server.address, 80)


def ended(line: bytes) -> bytes:
    """Return a changed line with a newline at its end only, which is received at once."""
    return line.replace(b"\n", b"")[:_LONGEST] + b"\n"


class Announcer(Talker):
    """
    The end of a client, which announces connections; each one that is accepted counts as received bytes.

    @ivar address: address of its connections without the port.
    """

    def __init__(self, scenario: AnnouncementScenario, client: Host, server: Host) -> None:
        self._scenario, self._host, self._server = scenario, client, server
        self.listener = Talker()
        self._sizes: deque[tuple[Talker, int]] = deque()
        self._channel: AnnouncementChannel | None = None

    def begin(self) -> None:
        """Connect to the listener's UNIX socket and announce an SMC connection, as a new process does."""
        end, accepted = self._scenario.connected(self._host, self._server)
        source = TCPAddress.of(self._host.address, 1)
        channel = AnnouncementChannel(self._host, targetAt(self._server), source, end)  # type: ignore[arg-type]  # in memory
        self._scenario.announcements[self._server]._accepted(accepted)  # type: ignore[arg-type]  # in memory
        self.opened(channel)

    def opened(self, channel: AnnouncementChannel) -> None:
        """Announce connections on a channel to the listener."""
        self._channel = channel
        lines: Any = channel._lines
        lines._ended = self._ended
        self._sizes.append((self.listener, 0))
        self._announce()

    def _announce(self) -> None:
        """Announce a connection; the next one follows when it is accepted, or is announced again later."""
        if self._sizes and self._channel is not None and self._channel._lines.isOpen:
            port = next(self._scenario.numbers)
            address = TCPAddress.of(self._host.address, port)
            announcement = Announcement(self._channel, address)
            announcement.then(lambda: self._answered(announcement, address))

    def _answered(self, announcement: Announcement, address: TCPAddress) -> None:
        if not announcement.isOver:  # it is expected, and connects
            self._server.callLater(SECONDS, self._scenario.arrive, self._server, address)
            announcement.then(lambda: self._answered(announcement, address))
        elif announcement.isAccepted:
            receiver, size = self._sizes.popleft()
            self.isMade = self.listener.isMade = True
            receiver.received += size
            self._announce()
        else:
            self._host.callLater(_AGAIN_SECONDS, self._announce)

    def exchange(self, receiver: Talker, size: int) -> None:
        self._sizes.append((receiver, size))
        if len(self._sizes) == 1:
            self._announce()

    def send(self, data: bytes) -> None:
        self.exchange(self.listener, len(data))

    def _ended(self) -> None:
        assert self._channel is not None
        AnnouncementChannel._ended(self._channel)
        self.lost = self.listener.lost = self.lost or ConnectionLost()

    def close(self) -> None:
        self.lost = self.lost or ConnectionDone()
        if self._channel is not None:
            self._channel._lines.close()

    abort = close


class Listening(Talker):
    """The end of a listener."""

    isMade = False

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer
        announcer.listener = self

    def send(self, data: bytes) -> None:
        self._announcer.exchange(self._announcer, len(data))

    def close(self) -> None:
        self._announcer.close()

    abort = close


class AnnouncementScenario(HostileScenario):
    """
    A simulation with a hostile process that announces connections, or expects them; of any user.

    @cvar loggers: modules with a L{RateLimitedLogger}.
    """

    channels: tuple[str, ...] = (TCP,)
    hostClass: type[Host] = LineHost
    announcerClass = Announcer
    loggers: tuple[Any, ...] = (localModule, clientModule)
    constants: Sequence[tuple[Any, str, object]] = (
        (clientModule, "isOwned", lambda user, target: True),
        (linesModule, "MOST_UNREAD", _MOST_UNREAD),
    )
    resize = {TCP: ended}

    def __init__(self, plan: HostilePlan) -> None:
        super().__init__(plan)
        self.identify(self.hostile)

    def identify(self, hostile: Any) -> None:
        """Set the user of the hostile process, according to the seed."""
        if self.plan.seed % 2:
            hostile.user = OTHER_USER

    @property
    def isStranger(self) -> bool:
        """Whether the hostile process is one of another user."""
        hostile: Any = self.hostile
        return bool(hostile.user != LineHost.user)

    @property
    def claimed(self) -> str:
        """Address from which the hostile process announces additional connections."""
        return self.hostile.address

    def begin(self) -> None:
        for module in self.loggers:
            module._rateLimited._entries.clear()  # so that each simulation logs what it finds
        self._uses = [reactorUse(host).hold() for host in self.hosts]
        self.announcements = {host: self.listen(host) for host in self.hosts}

    def listen(self, host: Any) -> Announcements:
        """Return the announcements of a host's listener."""
        return Announcements(host, True, CAPACITY)

    def connected(self, client: Host, server: Host) -> tuple[MemorySocket, MemorySocket]:
        """Return both ends of a UNIX socket; lines of the hostile process are changed."""
        port = next(self.numbers)
        sockets = connectedSockets(self.world, Random(port), client, server, port, SECONDS)
        for each in sockets:
            each.getsockopt = partial(_option, each)  # type: ignore[assignment,method-assign]  # of UNIX sockets
            if each.host is self.hostile:
                TamperedSocket(each, self.tamperFor(each), lambda data: data.find(b"\n") + 1)
        return sockets

    def tamperFor(self, end: MemorySocket) -> Any:
        """Return what changes the lines of the hostile process on a socket."""
        # Processes of one user trust each other with their time: they may fill the queue.
        return Renumbering(self.tamper, self.claimed) if self.isStranger else self.tamper

    def arrive(self, server: Host, address: TCPAddress) -> None:
        """Let a TCP connection arrive at a listener, which accepts it if it was announced."""
        announced = self.announcements[server].claim(address)
        if announced is not None:
            announced.expect(lambda: None)
            server.callLater(SECONDS, announced.settle)

    def connect(self, client: Host, server: Host) -> Pair:
        announcer = self.announcerClass(self, client, server)
        listening = Listening(announcer)
        if server is self.victim:
            self.accept(listening)
        client.callLater(self.delay(client), announcer.begin)
        return Pair(announcer, listening)

    def delay(self, client: Host) -> float:
        """Return the seconds after which a client begins."""
        return 0.0

    def judge(self) -> None:
        """Check the limits of the victim's announcements."""
        announcements = self.announcements[self.victim]
        check(len(announcements._admitted) <= CAPACITY, f"{len(announcements._admitted)} are admitted")
        for each in announcements.connections:
            most = localModule._MOST_OF_OTHER_USER if each.client.user == OTHER_USER else 1 << 16
            check(len(each.open) <= most, f"{len(each.open)} announcements of user {each.client.user}")
            check(len(each.lines._rest) <= LONGEST, f"{len(each.lines._rest)} bytes without a newline")
            unsent = len(each.lines._unsent)
            check(unsent <= _MOST_UNREAD + MUCH, f"{unsent} bytes are not sent")
        for announced in announcements.expected.values():
            check(announced._announcing in announcements.connections, f"{announced.client} has ended")

    def end(self) -> None:
        """Check that nothing is announced any more."""
        left = self.announcements[self.victim]
        found = (left.expected, left.connections, left._admitted, left._queue)
        check(not any(found), f"{found} are announced")
        self.close()

    def close(self) -> None:
        for each in self.announcements.values():
            each.stop()
        for use in (*self._uses, *reactorUse(self.hostile)._uses):
            use.release()
