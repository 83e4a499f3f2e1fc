"""
Hosts with a reactor each, on one simulated network and one clock; TCP between them, in memory.

Datagrams go through L{txrdma.sim.network}. TCP is in order and whole; its transports are Twisted's own.
"""

from __future__ import annotations

import errno
import selectors
import zlib
from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import methodcaller
from random import Random
from typing import Any, cast, Final

from zope.interface import implementer

from twisted.internet.address import IPv4Address
from twisted.internet.base import DelayedCall
from twisted.internet.error import AlreadyCalled, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IDelayedCall, IProtocol, IReactorFDSet, IReactorTime
from twisted.internet.task import Clock
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure

from txrdma.interfaces import IPollable, IReactorPolling
from txrdma.sim.network import SimulatedNetwork
from txrdma.soft.rc.udp import RawAddress

_WINDOW: Final = 64 * 1024
_time = methodcaller("getTime")


class TurnClock(Clock):
    """A clock that works in turns, as reactors do: what a call schedules for now waits for the next."""

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kw: object
    ) -> IDelayedCall:
        """Schedule a call, as L{IReactorTime} asks; its turn comes behind calls of the same time."""
        call = DelayedCall(
            self.rightNow + delay,
            callable,
            args,
            kw,
            self.calls.remove,
            lambda call: self._sortCalls(),
            self.seconds,
        )
        insort(self.calls, call, key=_time)
        return call

    def turn(self) -> bool:
        """Run what is due; tell whether there was anything."""
        calls, now = self.calls, self.rightNow
        due = 0
        for call in calls:
            if call.getTime() > now:
                break
            due += 1
        for _ in range(due):
            if not calls or calls[0].getTime() > now:
                break
            call = calls.pop(0)
            call.called = 1
            call.func(*call.args, **call.kw)
        return due > 0

    def jump(self) -> bool:
        """Go to the time of the next call, if there is one."""
        if not self.calls:
            return False
        self.rightNow = max(self.rightNow, self.calls[0].getTime())
        return True


class TracedNetwork(SimulatedNetwork):
    """
    A network that sums up all that it carries.

    @ivar digest: the same for two runs only when they did the same at the same times.
    @ivar silent: addresses of hosts that send nothing any more.
    """

    digest = 0

    def __init__(self, clock: IReactorTime, seed: int) -> None:
        super().__init__(clock, seed)
        self.silent: set[str] = set()

    def carry(self, data: bytes, segment: int, source: Any, destination: RawAddress) -> None:
        """Take datagrams on their way."""
        if source.address in self.silent:
            return
        self.note(f"{source.address} {len(data)}")
        # Without the ICRC: the CRC of a packet and its own CRC is the same for all packets.
        self.digest = zlib.crc32(data[:-4], self.digest)
        super().carry(data, segment, source, destination)

    def note(self, what: str) -> None:
        """Add an event and its time to the network's digest."""
        self.digest = zlib.crc32(f"{self.clock.seconds():.9f} {what}".encode(), self.digest)


class World:
    """
    Hosts, and the time that they share.

    @ivar turns: how many there have been.
    @ivar complaints: what protocols have to say.
    """

    def __init__(self, seed: int) -> None:
        self.clock = TurnClock()
        self.network = TracedNetwork(self.clock, seed)
        self.hosts: list[Host] = []
        self.turns = 0
        self.complaints: list[Exception] = []
        self._selector = selectors.DefaultSelector()
        self._count = 0

    def turn(self) -> bool:
        """Run one turn of all reactors; False when nothing would ever happen any more."""
        self.turns += 1
        busy = self.clock.turn()
        ready = [key.data for key, _ in self._selector.select(0)]
        ready.sort(key=lambda each: each[0])
        for _number, host, reader in ready:
            if reader in host.readers and host.isAwake:
                busy = True
                host.served(reader, reader.doRead(), True)
        for host in self.hosts:
            if host.isAwake:
                busy |= host.look()
        return busy or self.clock.jump()

    def add(self, host: Host, reader: Any) -> None:
        """A descriptor of the system is to be watched."""
        self._count += 1
        self._selector.register(reader.fileno(), selectors.EVENT_READ, (self._count, host, reader))

    def remove(self, reader: Any) -> None:
        """Watch a descriptor no more, which a host's reactor has watched."""
        self._selector.unregister(reader.fileno())

    def close(self) -> None:
        """Close the selector: the simulation is over."""
        self._selector.close()


@implementer(IReactorTime, IReactorFDSet)
class Host:
    """
    A process on a host of its own: what its protocols take for the reactor.

    @ivar addresses: all that the host has: the first is that of its TCP connections.
    @ivar device: its software device, once it has been asked for.
    @ivar isDead: the process is gone; C{isStopped}: it has taken leave before.
    @ivar isGone: the whole host is: its system answers nobody any more.
    @ivar isAsleep: the process is busy, and its reactor does not turn; it does since C{awakeSince}.
    @ivar missed: what would have been called meanwhile.
    """

    def __init__(self, world: World, address: str, makeDevice: Callable[[], Any]) -> None:
        self.world = world
        self.address = address
        self.addresses: tuple[str, ...] = (address,)
        self.isDead = self.isStopped = self.isGone = self.isAsleep = False
        self.awakeSince = 0.0
        self.missed: list[_HostCall] = []
        self.readers: dict[Any, None] = {}
        self.writers: dict[Any, None] = {}
        self.sockets: dict[MemorySocket, None] = {}
        self.device: Any = None
        self.isStirred = False
        self.triggers: list[tuple[str, Callable[[], object]]] = []
        self._makeDevice = makeDevice
        world.hosts.append(self)

    def __repr__(self) -> str:
        return f"<Host {self.address}>"

    def openDevice(self) -> Any:
        """Open a new device on the host."""
        self.device = self._makeDevice()
        return self.device

    # IReactorTime

    def seconds(self) -> float:
        """The time in seconds, by the world's clock."""
        return self.world.clock.rightNow

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kwargs: object
    ) -> IDelayedCall:
        """Schedule a call by the world's clock; it waits while the host is asleep."""
        return _HostCall(self, delay, lambda: callable(*args, **kwargs))

    @property
    def isAwake(self) -> bool:
        """Whether the host's reactor turns: neither dead nor asleep."""
        return not self.isDead and not self.isAsleep

    def sleep(self) -> None:
        """The reactor does nothing until C{wake}, as when a program is busy: what comes waits."""
        self.isAsleep = True
        self.world.network.sleep(*self.addresses)

    def wake(self) -> None:
        """Go on, with what has come, and what was to be done meanwhile."""
        self.isAsleep = False
        self.awakeSince = self.seconds()
        self.isStirred = True
        self.world.network.wake(*self.addresses)
        missed, self.missed = self.missed, []
        for call in missed:
            call.reset(0)

    def getDelayedCalls(self) -> list[IDelayedCall]:
        """All delayed calls of the world's clock, those of other hosts included."""
        return list(self.world.clock.calls)

    # IReactorCore, a part of it

    def addSystemEventTrigger(
        self, phase: str, eventType: str, callable: Callable[..., object], *args: object, **kwargs: object
    ) -> object:
        """Note a call for the end of the host's reactor, as C{IReactorCore} asks."""
        self.triggers.append((phase, callable))
        return self.triggers[-1]

    def removeSystemEventTrigger(self, triggerID: Any) -> None:
        """Forget a call for the end of the host's reactor."""
        self.triggers.remove(triggerID)

    def stop(self) -> None:
        """The reactor stops, as a program does that ends well: see L{ReactorBase.disconnectAll}."""
        self.isStopped = True
        triggers, self.triggers = self.triggers, []
        for phase in ("before", "during", "after"):
            if phase == "during" and not self.isDead:
                for each in self.removeAll():
                    each.connectionLost(Failure(ConnectionLost()))
            for trigger in triggers:
                if trigger[0] == phase:
                    trigger[1]()

    # IReactorFDSet

    def addReader(self, reader: Any) -> None:
        """Watch a descriptor, or a socket in memory."""
        if reader not in self.readers:
            self.readers[reader] = None
            self.isStirred = True
            if not isinstance(reader, Connection):
                self.world.add(self, reader)

    def removeReader(self, reader: Any) -> None:
        """Watch a reader no more, as L{IReactorFDSet} asks."""
        if reader in self.readers:
            del self.readers[reader]
            if not isinstance(reader, Connection):
                self.world.remove(reader)

    def addWriter(self, writer: Any) -> None:
        """Watch a writer, which is always a socket in memory."""
        self.writers[writer] = None
        self.isStirred = True

    def removeWriter(self, writer: Any) -> None:
        """Watch a writer no more, as L{IReactorFDSet} asks."""
        self.writers.pop(writer, None)

    def removeAll(self) -> list[Any]:
        """Watch nothing any more, as L{IReactorFDSet} asks."""
        every = [*self.readers, *self.writers]
        for each in every:
            self.removeReader(each)
            self.removeWriter(each)
        return every

    def getReaders(self) -> list[Any]:
        """All readers that the host's reactor watches."""
        return list(self.readers)

    def getWriters(self) -> list[Any]:
        """All writers that the host's reactor watches."""
        return list(self.writers)

    # What the world calls

    def look(self) -> bool:
        """Serve the sockets in memory; tell whether there was anything to do."""
        busy = False
        if self.isStirred:
            self.isStirred = False
            for transport in [each for each in self.readers if isinstance(each, Connection)]:
                if transport in self.readers and cast(MemorySocket, transport.socket).isReadable:
                    busy = True
                    self.served(transport, transport.doRead(), True)
            for transport in list(self.writers):
                if transport in self.writers and cast(MemorySocket, transport.socket).isWritable:
                    busy = True
                    self.served(transport, transport.doWrite(), False)
            self.isStirred |= busy
        return busy

    def served(self, one: Any, why: Exception | None, isRead: bool) -> None:
        """Act on the result of C{doRead} or C{doWrite}, as reactors do."""
        if why is None:
            return
        self.removeReader(one)
        if isRead and isinstance(why, ConnectionDone):
            one.readConnectionLost(Failure(why))
        else:
            self.removeWriter(one)
            one.connectionLost(Failure(why))

    def die(self, silently: bool) -> None:
        """
        The process is gone, from one moment to the next.

        @param silently: with its host, so that nobody says anything about its TCP connections.
        """
        self.isDead = True
        self.isGone = silently
        for one in list(self.sockets):
            if silently:
                one.wire.freeze()
            else:
                one.close()
        self.world.network.silent.update(self.addresses)


@implementer(IDelayedCall)
class _HostCall:
    """A delayed call of a host, which is not made while the host is asleep."""

    def __init__(self, host: Host, delay: float, call: Callable[[], object]) -> None:
        self._host = host
        self._do = call
        self._isActive = True
        self._call = host.world.clock.callLater(delay, self._due)

    def __str__(self) -> str:
        return f"{self._host!r} {self._call}"

    def _due(self) -> None:
        if self._host.isAsleep:
            self._host.missed.append(self)
        elif self._isActive:
            self._isActive = False
            if not self._host.isDead:
                self._do()

    def active(self) -> bool:
        """Whether it is still to be made."""
        return self._isActive

    def getTime(self) -> float:
        """The time at which the call is to be made, as L{IDelayedCall} asks."""
        return self._call.getTime()

    def cancel(self) -> None:
        """Cancel the call, as L{IDelayedCall} asks."""
        if not self._isActive:
            raise AlreadyCalled
        self._isActive = False
        if self._call.active():
            self._call.cancel()

    def reset(self, secondsFromNow: float) -> None:
        """Make the call that many seconds from now instead."""
        if self._isActive:
            if self._call.active():
                self._call.cancel()
            self._call = self._host.world.clock.callLater(secondsFromNow, self._due)

    def delay(self, secondsLater: float) -> None:
        """Make the call that many seconds later than planned."""
        self.reset(self.getTime() + secondsLater - self._host.seconds())


@implementer(IReactorPolling)
class PollingHost(Host):
    """A host whose reactor looks at completion queues by itself: at C{pollables}."""

    def __init__(self, world: World, address: str, makeDevice: Callable[[], Any]) -> None:
        super().__init__(world, address, makeDevice)
        self.pollables: dict[IPollable, None] = {}

    def addPollable(self, pollable: IPollable) -> None:
        """Look at it, until it is removed."""
        self.pollables[pollable] = None

    def removePollable(self, pollable: IPollable) -> None:
        """Look at a pollable no more, as L{IReactorPolling} asks."""
        self.pollables.pop(pollable, None)

    def look(self) -> bool:
        """Look at descriptors and at every pollable; return whether there was work."""
        busy = super().look()
        for pollable in list(self.pollables):
            if pollable in self.pollables:
                busy |= pollable.poll()
        return busy


class Wire:
    """The medium of a TCP connection, which never loses anything, but may stop to carry."""

    def __init__(self, world: World, random: Random, latency: float) -> None:
        self._clock = world.clock
        self._random = random
        self._latency = latency
        self._latest: dict[MemorySocket, float] = {}
        self._held: list[tuple[MemorySocket, Callable[[], None]]] = []
        self._isFrozen = False
        self.ends: tuple[MemorySocket, ...] = ()

    def carry(self, to: MemorySocket, arrive: Callable[[], None]) -> None:
        """Bring something to an end, behind all that is on its way there."""
        now = self._clock.rightNow
        at = now + self._latency * (0.5 + self._random.random())
        at = max(at, self._latest.get(to, 0.0) + 1e-9)  # behind the latest, by more than times are rounded
        self._latest[to] = at
        self._clock.callLater(at - now, self._arrive, to, arrive)

    def _arrive(self, to: MemorySocket, arrive: Callable[[], None]) -> None:
        if self._isFrozen:
            self._held.append((to, arrive))
        elif not to.host.isGone:
            arrive()  # the system of a killed process takes it, and resets what nobody has open any more

    def freeze(self) -> None:
        """Hold back everything that would arrive from now on."""
        self._isFrozen = True

    def thaw(self) -> None:
        """Deliver all that was held back, and carry again."""
        self._isFrozen = False
        held, self._held = self._held, []
        for to, arrive in held:
            self._arrive(to, arrive)

    def cut(self) -> None:
        """Both ends hear that the connection is reset."""
        self._isFrozen = False
        self._held.clear()
        for end in self.ends:
            if not end.host.isDead:
                end.wasReset()


class MemorySocket:
    """
    An end of a TCP connection: a socket as L{twisted.internet.tcp.Connection} uses it.

    @ivar sniffer: is shown all that is sent.
    @ivar isClosed: nobody reads or writes here any more.
    """

    def __init__(self, host: Host, wire: Wire, address: tuple[str, int]) -> None:
        self.host = host
        self.wire = wire
        self.address = address
        self.peer = self
        self.sniffer: Callable[[bytes], None] = lambda data: None
        self._buffer: deque[bytes] = deque()
        self._unread = 0  # here and on the way here
        self._hasEnded = self._isReset = self.isClosed = self._isShut = self._closesAfterFlush = False
        host.sockets[self] = None

    @property
    def isReadable(self) -> bool:
        """Whether C{recv} would have anything: data, the end, or a reset."""
        return bool(self._buffer) or self._hasEnded or self._isReset

    @property
    def isWritable(self) -> bool:
        """Would C{send} take anything, or complain?"""
        return self._isReset or self._isShut or self.peer._unread < _WINDOW

    def fileno(self) -> int:
        """The descriptor is -1, since there is no socket of the system."""
        return -1

    def setblocking(self, flag: bool) -> None:
        """Ignore the flag: a socket in memory never blocks."""

    def getsockopt(self, level: int, name: int, size: int = 0) -> int:
        """The value of a socket option: 0, or an C{OSError} where a structure is asked for."""
        if size:
            raise OSError(errno.ENOPROTOOPT, "this is no socket")
        return 0

    def setsockopt(self, level: int, name: int, value: object) -> None:
        """Twisted asks for SO_LINGER, so as to reset the connection by closing it."""
        self._closesAfterFlush |= isinstance(value, bytes)

    def recv(self, size: int) -> bytes:
        """Return bytes that have come, as sockets do."""
        if self._buffer:
            data = self._buffer.popleft()
            if len(data) > size:
                self._buffer.appendleft(data[size:])
                data = data[:size]
            self._unread -= len(data)
            self.peer.host.isStirred = True
            return data
        if self._hasEnded:
            return b""
        if self._isReset:
            raise ConnectionResetError(errno.ECONNRESET, "reset by peer")
        raise BlockingIOError(errno.EWOULDBLOCK, "nothing there")

    def send(self, data: bytes | memoryview) -> int:
        """Send as much as there is room for."""
        if self._isReset or self._isShut or self.isClosed:  # with a killed process, that does not know of it
            raise BrokenPipeError(errno.EPIPE, "nobody there")
        sent = bytes(data[: _WINDOW - self.peer._unread])
        if not sent:
            raise BlockingIOError(errno.EWOULDBLOCK, "no room")
        self.sniffer(sent)
        self.peer._unread += len(sent)
        self.wire.carry(self.peer, lambda: self.peer._came(sent))
        return len(sent)

    def shutdown(self, how: int) -> None:
        """End the writing direction: the peer hears the end of file."""
        if not self._isShut and not self._isReset:
            self._isShut = True
            self.wire.carry(self.peer, self.peer._ended)

    def close(self) -> None:
        """The end; a reset if something was left unread, as in Linux."""
        if self.isClosed:
            return
        self.isClosed = True
        self.host.sockets.pop(self, None)
        if not self._isReset and (self._closesAfterFlush or self._buffer):
            self.wire.carry(self.peer, self.peer.wasReset)
        elif not self._isShut and not self._isReset:
            self.wire.carry(self.peer, self.peer._ended)

    def _came(self, data: bytes) -> None:
        if self.isClosed:
            self.wire.carry(self.peer, self.peer.wasReset)
            return
        self._buffer.append(data)
        self.host.isStirred = True

    def _ended(self) -> None:
        self._hasEnded = True
        self.host.isStirred = True

    def wasReset(self) -> None:
        """The connection is of no more use; what has come can still be read."""
        self._isReset = True
        self.host.isStirred = True


class MemoryTCP(Connection):
    """A connected L{twisted.internet.tcp.Connection} on a socket in memory."""

    def __init__(self, one: MemorySocket, protocol: IProtocol) -> None:
        super().__init__(cast(Any, one), protocol, cast(Any, one.host))
        self._own, self._peer = one.address, one.peer.address
        self.connected = 1
        self.sessionno = 0
        self.logstr = f"{type(protocol).__name__},{self.sessionno},{self._peer[0]}"

    def getHost(self) -> IPv4Address:
        """The address of our end of the connection."""
        return IPv4Address("TCP", *self._own)

    def getPeer(self) -> IPv4Address:
        """The address of the peer's end of the connection."""
        return IPv4Address("TCP", *self._peer)

    def begin(self) -> None:
        """Connect the protocol, and read."""
        self.startReading()
        self.protocol.makeConnection(cast(Any, self))


def connectedSockets(
    world: World, random: Random, client: Host, server: Host, port: int, latency: float
) -> tuple[MemorySocket, MemorySocket]:
    """A TCP connection from a port of the client to port 80 of the server."""
    wire = Wire(world, random, latency)
    here = MemorySocket(client, wire, (client.address, port))
    there = MemorySocket(server, wire, (server.address, 80))
    here.peer, there.peer = there, here
    wire.ends = (here, there)
    return here, there
