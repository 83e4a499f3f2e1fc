"""Hostile processes that announce SMC connections over UNIX sockets, or receive such announcements."""

from __future__ import annotations

import os
from collections import deque
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
from txrdma.testing.hostile.wiring import TamperedSocket, TCP
from txrdma.testing.outcome import check
from txrdma.testing.smc.hosts import connectedSockets, Host, MemorySocket
from txrdma.unix.lines import Lines
from txrdma.unix.sockets import Credentials

_SECONDS: Final = 50e-6
_AGAIN_SECONDS: Final = 0.1
_CAPACITY: Final = 50
_OTHER_USER: Final = os.geteuid() + 12345


class LineHost(Host):
    """A host that reads lines, too."""

    user = os.geteuid()

    def addReader(self, reader: Any) -> None:
        if isinstance(reader, Lines):
            reader.socket = reader._socket  # type: ignore[attr-defined]  # as connections of Twisted have it
            self.readers[reader] = None
            self.isStirred = True
        else:
            super().addReader(reader)

    def removeReader(self, reader: Any) -> None:
        if isinstance(reader, Lines):
            self.readers.pop(reader, None)
        else:
            super().removeReader(reader)

    def poll(self) -> bool:
        isStirred = self.isStirred
        busy = super().poll()
        for lines in [each for each in self.readers if isinstance(each, Lines)] if isStirred else ():
            if lines in self.readers and lines.socket.isReadable:  # type: ignore[attr-defined]  # in memory
                busy = self.isStirred = True
                lines.doRead()
        return busy


def _processAt(socket: Any) -> Credentials:
    host = socket.peer.host
    return Credentials(int(host.address.rpartition(".")[2]), host.user)


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
        socket, accepted = self._scenario.connected(self._host, self._server)
        source = TCPAddress.of(self._host.address, 1)
        target = TCPAddress.of(self._server.address, 80)
        self._channel = AnnouncementChannel(self._host, target, source, socket)  # type: ignore[arg-type]  # in memory
        lines: Any = self._channel._lines
        lines._ended = self._ended
        self._scenario.announcements[self._server]._accepted(accepted)  # type: ignore[arg-type]  # in memory
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
            self._server.callLater(_SECONDS, self._scenario.arrive, self._server, address)
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
    """A simulation with a hostile process that announces connections, or expects them; of any user."""

    channels = (TCP,)
    hostClass = LineHost
    constants = (
        (localModule, "processAt", _processAt),
        (clientModule, "processAt", _processAt),
        (clientModule, "isOwned", lambda user, target: True),
    )

    def __init__(self, plan: HostilePlan) -> None:
        super().__init__(plan)
        if plan.seed % 2:
            self.hostile.user = _OTHER_USER  # type: ignore[attr-defined]  # of LineHost

    def begin(self) -> None:
        self._uses = [reactorUse(host).hold() for host in self.hosts]
        hosts: tuple[Any, ...] = self.hosts
        self.announcements = {host: Announcements(host, True, _CAPACITY) for host in hosts}

    def connected(self, client: Host, server: Host) -> tuple[MemorySocket, MemorySocket]:
        """Return both ends of a UNIX socket; lines of the hostile process are changed."""
        port = next(self.numbers)
        sockets = connectedSockets(self.world, Random(port), client, server, port, _SECONDS)
        for socket in sockets:
            if socket.host is self.hostile:
                TamperedSocket(socket, self.tamper, lambda data: data.find(b"\n") + 1)
        return sockets

    def arrive(self, server: Host, address: TCPAddress) -> None:
        """Let a TCP connection arrive at a listener, which accepts it if it was announced."""
        announced = self.announcements[server].claim(address)
        if announced is not None:
            announced.expect(lambda: None)
            server.callLater(_SECONDS, announced.settle)

    def connect(self, client: Host, server: Host) -> Pair:
        announcer = Announcer(self, client, server)
        listening = Listening(announcer)
        if server is self.victim:
            self.accept(listening)
        client.callLater(0, announcer.begin)
        return Pair(announcer, listening)

    def judge(self) -> None:
        """Check the limits of the victim's announcements."""
        announcements = self.announcements[self.victim]
        check(len(announcements._admitted) <= _CAPACITY, f"{len(announcements._admitted)} are admitted")
        for each in announcements.connections:
            most = localModule._MOST_OF_OTHER_USER if each.client.user == _OTHER_USER else 1 << 16
            check(len(each.open) <= most, f"{len(each.open)} announcements of user {each.client.user}")

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
