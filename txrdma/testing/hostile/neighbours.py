"""
Hostile processes of other network namespaces, which seek listeners by a directory and announce connections.

Their lines and their datagrams are changed. A hostile listener claims every address that a client seeks.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections import deque
from random import Random
from typing import Any, cast, Final

from twisted.internet.error import ConnectionLost

from txrdma.smc.signalling import localclient, netns
from txrdma.smc.signalling import neighbours as neighboursModule
from txrdma.smc.signalling.local import Announcements
from txrdma.smc.signalling.localclient import AnnouncementChannel
from txrdma.smc.signalling.neighbours import (
    AnnouncedNeighbour,
    listenersAt,
    Neighbour,
    NeighbourAnnouncements,
    ProvingSocket,
)
from txrdma.smc.signalling.owners import TCPAddress
from txrdma.testing.hostile.announcements import (
    AnnouncementScenario,
    Announcer,
    CAPACITY,
    LineHost,
    OTHER_USER,
    SECONDS,
    targetAt,
)
from txrdma.testing.hostile.plans import HostilePlan
from txrdma.testing.hostile.tampering import Message
from txrdma.testing.hostile.wiring import TCP
from txrdma.testing.outcome import check
from txrdma.testing.smc.hosts import Host, MemorySocket, Wire
from txrdma.unix import socketdirectory, sockets
from txrdma.unix.lines import Lines
from txrdma.unix.socketdirectory import SocketDirectory
from txrdma.unix.sockets import LocalListener, Reactor

UDP: Final = "UDP"

_GROUP: Final = os.getegid() + 12345
_UNKNOWN_USER: Final = 65534
_MOST_PROVING: Final = 6
_AGAIN_SECONDS: Final = 1.0
_MOST_DELAYED: Final = 0.01
_LONGEST_SEARCH: Final = localclient.ANSWER_SECONDS + 1.0

_Address = tuple[str, int]


class MemoryDatagrams(MemorySocket):
    """A UDP socket in memory. It loses nothing; a closed port refuses datagrams."""

    def __init__(self, scenario: NeighbourScenario, host: Host) -> None:
        super().__init__(host, Wire(scenario.world, scenario.random, SECONDS), ("", 0))
        self._scenario = scenario
        self._target: _Address = ("", 0)
        self._received: deque[tuple[bytes, _Address] | None] = deque()

    def __enter__(self) -> MemoryDatagrams:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def isReadable(self) -> bool:
        return bool(self._received)

    def bind(self, address: _Address) -> None:
        """Bind to an address of the host; a hostile one binds to its own address instead of any other."""
        check("%" not in address[0], f"{address[0]!r} would be resolved")
        if address[0] not in self.host.addresses and self.host is not self._scenario.hostile:
            raise OSError(errno.EADDRNOTAVAIL, "not an address of this host")
        self._open()

    def connect(self, address: _Address) -> None:
        if not 0 <= address[1] < 1 << 16:
            raise OverflowError("the port must be from 0 to 65535")
        self._target = address
        self._open()

    def _open(self) -> None:
        self.address = self.host.address, next(self._scenario.numbers)
        self._scenario.ports[self.address] = self

    def getsockname(self) -> _Address:
        return self.address

    def send(self, data: bytes | memoryview) -> int:
        return self.sendto(bytes(data), self._target)

    def sendto(self, data: bytes, target: _Address) -> int:
        """Send a datagram; those of the hostile host are changed."""
        messages = [Message(data)]
        if self.host is self._scenario.hostile:
            messages = self._scenario.tamper.replaced(UDP, messages[0])
        for each in messages:
            self._carry(each.content, target)
        return len(data)

    def _carry(self, data: bytes, target: _Address) -> None:
        found = self._scenario.ports.get(target)
        if found is not None:
            source = self.address
            self.wire.carry(found, lambda: found.arrived(data, source))
        elif self._target[0]:  # only connected sockets report that
            self.wire.carry(self, lambda: self.arrived(None, target))

    def arrived(self, data: bytes | None, source: _Address) -> None:
        """Queue a datagram, or the report of a closed port."""
        isExpected = self._target[0] == "" or self._target == source
        if not self.isClosed and isExpected:
            self._received.append(None if data is None else (data, source))
            self.host.isStirred = True

    def recvfrom(self, size: int) -> tuple[bytes, _Address]:
        if not self._received:
            raise BlockingIOError(errno.EWOULDBLOCK, "nothing there")
        received = self._received.popleft()
        if received is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the port is closed")
        data, source = received
        return data[:size], source

    def close(self) -> None:
        self.isClosed = True
        self.host.sockets.pop(self, None)
        self._scenario.ports.pop(self.address, None)


class _Sockets:
    """
    The module C{socket} in simulations, which makes UDP sockets in memory.

    @ivar reading: the process that runs, and the scenario to which it belongs.
    """

    AF_INET, AF_INET6, SOCK_STREAM = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM
    SOCK_DGRAM, SOCK_NONBLOCK, SOCK_CLOEXEC = socket.SOCK_DGRAM, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC

    reading: NeighbourHost | None = None

    def socket(self, family: int, kind: int) -> MemoryDatagrams:
        assert self.reading is not None
        return MemoryDatagrams(self.reading.scenario, self.reading)


_sockets: Final = _Sockets()


class MemoryListening:
    """A listening socket in a directory in memory."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.waiting: deque[MemorySocket] = deque()
        self._isClosed = False

    @property
    def isReadable(self) -> bool:
        return bool(self.waiting)

    def fileno(self) -> int:
        return -1 if self._isClosed else 0

    def accept(self) -> tuple[MemorySocket, str]:
        if not self.waiting:
            raise BlockingIOError(errno.EWOULDBLOCK, "nobody there")
        return self.waiting.popleft(), ""

    def close(self) -> None:
        self._isClosed = True
        while self.waiting:
            self.waiting.popleft().close()


class MemoryDirectory(SocketDirectory):
    """The directory as one process sees it, in memory. Users of a group may connect."""

    def __init__(self, scenario: NeighbourScenario, host: Host) -> None:
        super().__init__("memory")
        self._scenario, self._host = scenario, host

    def _sharedGroup(self) -> int | None:
        return _GROUP

    def _named(self, prefix: str) -> list[str]:
        return [name for name in self._scenario.listening if name.startswith(prefix)]

    def _identityOf(self, name: str) -> tuple[int, int] | None:
        found = self._scenario.listening.get(name)
        return None if found is None else (id(found), 0)

    def _in(self, name: str) -> Any:
        return self._host, self._scenario, self._scenario.listening.get(name)

    def publish(self, kind: int, name: str, backlog: int) -> Any:
        listening = self._scenario.listening[name] = MemoryListening(self._host)
        return listening

    def withdraw(self, name: str) -> None:
        self._scenario.listening.pop(name, None)

    def _withdrawDead(self, name: str, identity: tuple[int, int]) -> None:
        self.withdraw(name)


def _connectTo(kind: int, entry: tuple[Host, NeighbourScenario, MemoryListening | None]) -> MemorySocket:
    """Return a socket that is connected to a listener in the directory, in place of L{connectTo}."""
    client, scenario, listening = entry
    if listening is None:
        raise FileNotFoundError(errno.ENOENT, "no such file")
    if listening.fileno() < 0 or (listening.host.isDead and not listening.host.isGone):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
    end, accepted = scenario.connected(client, listening.host)
    listening.waiting.append(accepted)
    listening.host.isStirred = True
    return end


class NeighbourHost(LineHost):
    """
    A process in its own network namespace.

    @ivar scenario: the scenario to which it belongs.
    @ivar reads: number of times that the process reads lines, before it never reads again.
    """

    inMemory = (Lines, LocalListener, ProvingSocket)
    scenario: NeighbourScenario
    reads = 1 << 30

    def read(self, reader: Any) -> None:
        if isinstance(reader, Lines):
            self.reads -= 1
            if self.reads < 0:
                self.readers.pop(reader, None)
                return
        _sockets.reading = self
        try:
            reader.doRead()
        finally:
            _sockets.reading = None


class Lying:
    """Adds lies to the proofs of a hostile listener."""

    def __init__(self, tamper: Any, seeker: str, lie: str) -> None:
        """
        @param seeker: address of the process that seeks the listener.
        @param lie: C{"proven"} if the listener claims to have received the nonce, C{"port"} if it sends an
            impossible port; else empty.
        """
        self._tamper, self._seeker, self._lie = tamper, seeker, lie

    def replaced(self, channel: str, message: Message) -> list[Message]:
        """Return the messages that are sent instead of this one, in order."""
        messages: list[Message] = self._tamper.replaced(channel, message)
        isProof = message.content.startswith(b"prove ")
        if isProof and self._lie == "proven":
            messages = [*messages, Message(f"proven {self._seeker} {'0' * 32}\n".encode("ascii"))]
        elif isProof and self._lie == "port":
            messages = [Message(b"prove 70000 x\n")]
        return messages


class Seeker(Announcer):
    """The end of a client, which seeks the listener before it announces connections."""

    _scenario: NeighbourScenario
    _search: netns._Search | None = None

    def begin(self) -> None:
        """Seek the listener in the directory; an honest client repeats this until it is found."""
        if self.lost is None:
            self._search = self._scenario.seek(self._host, targetAt(self._server), self._found)
            if self._search is None:
                self._again()

    def _again(self) -> None:
        if self._host is self._scenario.honest:
            self._host.callLater(_AGAIN_SECONDS, self.begin)
        else:
            self.lost = self.listener.lost = ConnectionLost()

    def _found(self, channel: AnnouncementChannel | None) -> None:
        self._search = None
        if channel is None:
            self._again()
        else:
            self._scenario.proven(channel, self._host, self._server)
            self.opened(channel)

    def close(self) -> None:
        search, self._search = self._search, None
        if search is not None and self._found in search.waiting:
            search.waiting.remove(self._found)
            if not search.waiting:
                search.abandon()
        super().close()

    abort = close


class NeighbourScenario(AnnouncementScenario):
    """A simulation with a hostile process of another network namespace; of any user, or an unknown one."""

    channels = (TCP, TCP, UDP)
    hostClass = NeighbourHost
    announcerClass = Seeker
    chance = ((secrets, "token_hex"),)
    loggers = (*AnnouncementScenario.loggers, neighboursModule, socketdirectory, sockets)
    constants = (
        *AnnouncementScenario.constants,
        (neighboursModule, "socket", _sockets),
        (neighboursModule, "_MOST_PROVING", _MOST_PROVING),
        (netns, "socket", _sockets),
        (netns, "sourceFor", lambda target: None),
        (socketdirectory, "connectTo", _connectTo),
    )

    def __init__(self, plan: HostilePlan) -> None:
        self.listening: dict[str, MemoryListening] = {}
        self.ports: dict[_Address, MemoryDatagrams] = {}
        self.random = Random(plan.seed)
        self._lie = self.random.choice(("", "", "proven", "port"))
        super().__init__(plan)

    def identify(self, hostile: Any) -> None:
        """Set user, group and patience of the hostile process: every fourth user may not connect."""
        which = self.plan.seed % 4
        if which:
            hostile.user = OTHER_USER if which < 3 else _UNKNOWN_USER
            hostile.group = _GROUP if which != 2 else _GROUP + 1
        if which == 3:
            hostile.pid = 0
        if self.plan.seed // 4 % 4 == 3:
            hostile.reads = self.plan.rounds

    @property
    def claimed(self) -> str:
        return (self.hostile if self.plan.seed // 16 % 2 else self.honest).address

    def tamperFor(self, end: MemorySocket) -> Any:
        return Lying(super().tamperFor(end), end.peer.host.address, self._lie)

    def delay(self, client: Host) -> float:
        """Return a delay for the hostile process, so that later searches may follow earlier proofs."""
        isDelayed = client is self.hostile and self.plan.seed // 32 % 2
        return self.random.random() * _MOST_DELAYED if isDelayed else 0.0

    def listen(self, host: Any) -> Announcements:
        host.scenario = self
        announcements = NeighbourAnnouncements(host, False, MemoryDirectory(self, host), CAPACITY)
        announcements.beginNeighbours(targetAt(host))
        return announcements

    def seek(self, host: Host, target: TCPAddress, found: netns.Found) -> netns._Search | None:
        """Begin to seek the listener of an address; the hostile process makes as many searches as it can."""
        directory, reactor = MemoryDirectory(self, host), cast(Reactor, host)
        if host is not self.hostile:
            return netns.seek(reactor, directory, target, found)
        names = frozenset(directory.names(listenersAt(target.port)))
        search = netns._Search(reactor, directory, target, names)
        search.waiting.append(found)
        return search if search.begin() else None

    def proven(self, channel: AnnouncementChannel, client: Host, server: Host) -> None:
        """Check that a channel leads to the listener of its address, whose user is permitted."""
        end: Any = channel._lines._socket
        isRight = end.peer.host is server and (server is not self.hostile or self._mayConnect)
        if client is not self.hostile and not isRight:
            self.problems.append(f"{client!r} takes {end.peer.host!r} for {server!r}")

    def arrive(self, server: Host, address: TCPAddress) -> None:
        announced = self.announcements[server].claim(address)
        if announced is not None and announced.isFrom(address, targetAt(server)):
            announced.expect(lambda: None)
            server.callLater(SECONDS, announced.settle)
        elif announced is not None:
            announced.settle()

    def judge(self) -> None:
        """Check the limits of the victim's neighbours, and that each announces only its own address."""
        super().judge()
        announcements = self.announcements[self.victim]
        every = [each for each in announcements.connections if isinstance(each, Neighbour)]
        others = [each for each in every if each.client.user in (OTHER_USER, _UNKNOWN_USER)]
        proving = [each for each in every if each not in others and (each._proof or not each._source)]
        for each in others, proving:
            check(len(each) <= _MOST_PROVING, f"{len(each)} neighbours")
        for one in every:
            source: Any = one.lines._socket
            check(source.peer.host is not self.hostile or self._mayConnect, f"{one.client} is connected")
            check(
                not one.open or (bool(one._source) and one._proof is None), f"{one.client} has proven nothing"
            )
            for announced in one.open.values():
                isOwn = announced.address.host == source.peer.host.address
                check(isOwn, f"{source.peer.host!r} announces {announced.address}")
                check(isinstance(announced, AnnouncedNeighbour), "an announcement is not a neighbour's")
        unknown = [each.client for each in every if each.client.user == _UNKNOWN_USER]
        check(len({*unknown}) == len(unknown), "unknown processes are taken for one")
        datagrams = [each for each in self.ports.values() if each.host is self.victim]
        check(len(datagrams) <= 3 * _MOST_PROVING, f"{len(datagrams)} UDP ports")
        since = self.world.clock.seconds() - _LONGEST_SEARCH
        late = [each for each in netns._searchesOn(self.victim).current.values() if each._since < since]
        check(not late, f"{late} do not end")

    @property
    def _mayConnect(self) -> bool:
        return self.plan.seed % 4 != 2

    def end(self) -> None:
        super().end()
        left = [each for each in self.ports if each[0] != self.hostile.address]
        check(not left, f"the UDP ports {left} are open")
        names = [name for name, each in self.listening.items() if each.host is not self.hostile]
        check(not names, f"the names {names} are left")
        for host in (self.victim, self.honest):
            found = netns._searchesOn(host).current, localclient._channelsOn(host)
            check(not any(found), f"{host!r} still has {found}")

    def close(self) -> None:
        super().close()
        # A killed process does not end its searches and channels.
        netns._searches.pop(self.hostile, None)
        localclient._channels.pop(self.hostile, None)
