"""
Hosts with their own reactors on one simulated network and one clock, with TCP between them in memory.

Datagrams pass through L{txrdma.sim.network}. TCP loses and reorders nothing; its transports are Twisted's.
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

from zope.interface import alsoProvides, implementer

from twisted.internet.address import IPv4Address
from twisted.internet.base import DelayedCall
from twisted.internet.error import AlreadyCalled, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IDelayedCall, IProtocol, IReactorCore, IReactorFDSet, IReactorTime
from twisted.internet.task import Clock
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure

from txrdma.interfaces import IPollable, IReactorPolling
from txrdma.kit.forwardclock import sharedForwardClock
from txrdma.sim.network import SimulatedNetwork
from txrdma.soft.rc.udp import RawAddress

_WINDOW: Final = 64 * 1024
_time = methodcaller("getTime")


class TurnClock(Clock):
    """A clock that works in iterations, as reactors do: calls scheduled for now run in the next iteration."""

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kw: object
    ) -> IDelayedCall:
        """Schedule a call, after calls of the same time."""
        call = DelayedCall(
            self.rightNow + delay,
            callable,
            args,
            kw,
            self.calls.remove,
            lambda call: self.calls.sort(key=_time),
            self.seconds,
        )
        insort(self.calls, call, key=_time)
        return call

    def turn(self) -> bool:
        """Run the calls that are due, and return whether there were any."""
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
        """Advance to the time of the next call, and return whether there is one."""
        if not self.calls:
            return False
        self.rightNow = max(self.rightNow, self.calls[0].getTime())
        return True


class PatientClock(TurnClock):
    """
    A clock that makes delayed calls one nanosecond later: the sum of two times can be rounded down, so that a
    call would come before its time, again and again.
    """

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kw: object
    ) -> IDelayedCall:
        return super().callLater(delay + 1e-9 if delay else delay, callable, *args, **kw)


class TracedNetwork(SimulatedNetwork):
    """
    A network that computes a digest of its traffic.

    @ivar digest: equal for two runs only if they did the same at the same times.
    @ivar silent: addresses of hosts that no longer send anything.
    """

    digest = 0

    def __init__(self, clock: IReactorTime, seed: int) -> None:
        super().__init__(clock, seed)
        self.silent: set[str] = set()

    def carry(self, data: bytes, segment: int, source: Any, destination: RawAddress) -> None:
        """Transmit datagrams and add them to the digest, unless their host is silent."""
        if source.address in self.silent:
            return
        self.note(f"{source.address} {len(data)}")
        # Without the ICRC: the CRC of a packet with its own CRC is the same for all packets.
        self.digest = zlib.crc32(data[:-4], self.digest)
        super().carry(data, segment, source, destination)

    def note(self, what: str) -> None:
        """Add an event and its time to the network's digest."""
        self.digest = zlib.crc32(f"{self.clock.seconds():.9f} {what}".encode(), self.digest)


class World:
    """
    The hosts of a simulation and their common clock.

    @ivar turns: number of iterations so far.
    @ivar complaints: violations that protocols have found.
    """

    def __init__(self, seed: int, clock: TurnClock | None = None) -> None:
        self.clock = TurnClock() if clock is None else clock
        self.network = TracedNetwork(self.clock, seed)
        self.hosts: list[Host] = []
        self.turns = 0
        self.complaints: list[Exception] = []
        self._selector = selectors.DefaultSelector()
        self._count = 0

    def turn(self) -> bool:
        """Run one iteration of all reactors; return False if nothing can happen any more."""
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
                busy |= host.poll()
        return busy or self.clock.jump()

    def add(self, host: Host, reader: Any) -> None:
        """Watch the descriptor of a host's reader."""
        self._count += 1
        self._selector.register(reader.fileno(), selectors.EVENT_READ, (self._count, host, reader))

    def remove(self, reader: Any) -> None:
        self._selector.unregister(reader.fileno())

    def close(self) -> None:
        self._selector.close()


@implementer(IReactorTime, IReactorFDSet)
class Host:
    """
    A process on its own host, which its protocols use as the reactor.

    @ivar addresses: all addresses of the host; its TCP connections use the first.
    @ivar device: its software device, after L{openDevice}.
    @ivar isDead: whether the process has ended; C{isStopped}: whether its reactor was stopped before.
    @ivar isGone: whether the whole host has failed, and its system no longer answers.
    @ivar isAsleep: whether the process is busy, and its reactor does not run; C{awakeSince}: time of L{wake}.
    @ivar missed: delayed calls that became due meanwhile.
    @ivar ahead: difference of the host's system time to the time of the simulation, in seconds.
    """

    ahead = 0.0

    def __init__(self, world: World, address: str, makeDevice: Callable[[], Any]) -> None:
        self.world = world
        self.address = address
        self.addresses: tuple[str, ...] = (address,)
        self.isDead = self.isStopped = self.isGone = self.isAsleep = False
        self.awakeSince = 0.0
        self.missed: list[_HostCall] = []
        self.calls: dict[_HostCall, None] = {}
        self.readers: dict[Any, None] = {}
        self.writers: dict[Any, None] = {}
        self.sockets: dict[MemorySocket, None] = {}
        self.device: Any = None
        self.isStirred = False
        alsoProvides(self, IReactorCore)  # the part of it that is used
        self.triggers: list[tuple[str, Callable[[], object]]] = []
        self._makeDevice = makeDevice
        world.hosts.append(self)

    def __repr__(self) -> str:
        return f"<Host {self.address}>"

    def openDevice(self) -> Any:
        self.device = self._makeDevice()
        return self.device

    # IReactorTime

    def seconds(self) -> float:
        return self.world.clock.rightNow + self.ahead

    def setClock(self, seconds: float) -> None:
        """Set the system time forward, or back; delayed calls are early or late by that, as in Twisted."""
        self.ahead += seconds
        for call in list(self.calls):
            call.moved(seconds)
        sharedForwardClock(self).seconds()  # any user of the clock notices that it was set back

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kwargs: object
    ) -> IDelayedCall:
        """Schedule a call on the world's clock; it is postponed while the host is asleep."""
        return _HostCall(self, delay, lambda: callable(*args, **kwargs))

    def callSteadily(self, delay: float, call: Callable[[], object]) -> None:
        """Like C{callLater}, but independent of L{setClock}: for the programs of a simulation."""
        self.calls.pop(_HostCall(self, delay, call))

    @property
    def isAwake(self) -> bool:
        """Whether the host's reactor runs: the host is neither dead nor asleep."""
        return not self.isDead and not self.isAsleep

    def sleep(self) -> None:
        """Suspend the reactor until L{wake}, as a busy program does; incoming data is queued."""
        self.isAsleep = True
        self.world.network.sleep(*self.addresses)

    def wake(self) -> None:
        """Resume the reactor, with queued data and the delayed calls that became due meanwhile."""
        self.isAsleep = False
        self.awakeSince = self.world.clock.rightNow
        self.isStirred = True
        self.world.network.wake(*self.addresses)
        missed, self.missed = self.missed, []
        for call in missed:
            call.reset(0)

    def getDelayedCalls(self) -> list[IDelayedCall]:
        """Return all delayed calls of the world's clock, including those of other hosts."""
        return list(self.world.clock.calls)

    # IReactorCore, a part of it

    def addSystemEventTrigger(
        self, phase: str, eventType: str, callable: Callable[..., object], *args: object, **kwargs: object
    ) -> object:
        self.triggers.append((phase, callable))
        return self.triggers[-1]

    def removeSystemEventTrigger(self, triggerID: Any) -> None:
        self.triggers.remove(triggerID)

    def stop(self) -> None:
        """Stop the reactor as at a regular end of a program: see L{ReactorBase.disconnectAll}."""
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
        if reader not in self.readers:
            if not isinstance(reader, Connection):
                self.world.add(self, reader)  # C{fileno} may raise
            self.readers[reader] = None
            self.isStirred = True

    def removeReader(self, reader: Any) -> None:
        if reader in self.readers:
            del self.readers[reader]
            if not isinstance(reader, Connection):
                self.world.remove(reader)

    def addWriter(self, writer: Any) -> None:
        self.writers[writer] = None
        self.isStirred = True

    def removeWriter(self, writer: Any) -> None:
        self.writers.pop(writer, None)

    def removeAll(self) -> list[Any]:
        every = [*self.readers, *self.writers]
        for each in every:
            self.removeReader(each)
            self.removeWriter(each)
        return every

    def getReaders(self) -> list[Any]:
        return list(self.readers)

    def getWriters(self) -> list[Any]:
        return list(self.writers)

    # Methods that the world calls

    def poll(self) -> bool:
        """Serve the sockets in memory, and return whether there was work."""
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
        """Handle the result of C{doRead} or C{doWrite}, as reactors do."""
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
        Kill the process.

        @param silently: whether the whole host fails, so that its TCP connections are not closed.
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
    """A delayed call of a host, which is postponed while the host is asleep."""

    def __init__(self, host: Host, delay: float, call: Callable[[], object]) -> None:
        self._host = host
        self._do = call
        self._isActive = True
        self._call = host.world.clock.callLater(delay, self._due)
        host.calls[self] = None

    def __str__(self) -> str:
        return f"{self._host!r} {self._call}"

    def _due(self) -> None:
        if self._host.isAsleep:
            self._host.missed.append(self)
        elif self._isActive:
            self._end()
            if not self._host.isDead:
                self._do()

    def _end(self) -> None:
        self._isActive = False
        self._host.calls.pop(self, None)

    def moved(self, seconds: float) -> None:
        """Adapt to a change of the host's system time by this many seconds."""
        if self._call.active():
            clock = self._host.world.clock
            due = self._call.getTime() - seconds
            self._call.cancel()
            self._call = clock.callLater(max(due - clock.rightNow, 0.0), self._due)

    @property
    def scheduled(self) -> IDelayedCall:
        """The call of the world's clock."""
        return self._call

    def active(self) -> bool:
        return self._isActive

    def getTime(self) -> float:
        return self._call.getTime() + self._host.ahead

    def cancel(self) -> None:
        if not self._isActive:
            raise AlreadyCalled
        self._end()
        if self._call.active():
            self._call.cancel()

    def reset(self, secondsFromNow: float) -> None:
        if self._isActive:
            if self._call.active():
                self._call.cancel()
            self._call = self._host.world.clock.callLater(secondsFromNow, self._due)

    def delay(self, secondsLater: float) -> None:
        self.reset(self.getTime() + secondsLater - self._host.seconds())


@implementer(IReactorPolling)
class PollingHost(Host):
    """A host whose reactor polls completion queues by itself: its C{pollables}."""

    def __init__(self, world: World, address: str, makeDevice: Callable[[], Any]) -> None:
        super().__init__(world, address, makeDevice)
        self.pollables: dict[IPollable, None] = {}

    def addPollable(self, pollable: IPollable) -> None:
        self.pollables[pollable] = None

    def removePollable(self, pollable: IPollable) -> None:
        self.pollables.pop(pollable, None)

    def poll(self) -> bool:
        """Serve the sockets and poll every pollable; return whether there was work."""
        busy = super().poll()
        for pollable in list(self.pollables):
            if pollable in self.pollables:
                busy |= pollable.poll()
        return busy


class Wire:
    """The medium of a TCP connection, which never loses anything, but can be frozen."""

    def __init__(self, world: World, random: Random, latency: float) -> None:
        self._clock = world.clock
        self._random = random
        self._latency = latency
        self._latest: dict[MemorySocket, float] = {}
        self._held: list[tuple[MemorySocket, Callable[[], None]]] = []
        self._isFrozen = False
        self.ends: tuple[MemorySocket, ...] = ()

    def carry(self, to: MemorySocket, arrive: Callable[[], None]) -> None:
        """Call C{arrive} at an end after a delay, after everything else in flight to it."""
        now = self._clock.rightNow
        at = now + self._latency * (0.5 + self._random.random())
        at = max(at, self._latest.get(to, 0.0) + 1e-9)  # after the latest, by more than a rounding error
        self._latest[to] = at
        self._clock.callLater(at - now, self._arrive, to, arrive)

    def _arrive(self, to: MemorySocket, arrive: Callable[[], None]) -> None:
        if self._isFrozen:
            self._held.append((to, arrive))
        elif not to.host.isGone:
            arrive()  # the system of a killed process accepts it, and resets closed connections

    def freeze(self) -> None:
        """Queue everything that arrives from now on."""
        self._isFrozen = True

    def thaw(self) -> None:
        """Deliver everything that was queued, and no longer queue data."""
        self._isFrozen = False
        held, self._held = self._held, []
        for to, arrive in held:
            self._arrive(to, arrive)

    def cut(self) -> None:
        """Reset the connection at both ends."""
        self._isFrozen = False
        self._held.clear()
        for end in self.ends:
            if not end.host.isDead:
                end.wasReset()


class MemorySocket:
    """
    A socket in memory as L{twisted.internet.tcp.Connection} uses it: one end of a TCP connection.

    @ivar sniffer: called with all data that is sent.
    @ivar isClosed: whether the socket is closed.
    """

    def __init__(self, host: Host, wire: Wire, address: tuple[str, int]) -> None:
        self.host = host
        self.wire = wire
        self.address = address
        self.peer = self
        self.sniffer: Callable[[bytes], None] = lambda data: None
        self._buffer: deque[bytes] = deque()
        self._unread = 0  # bytes received and in flight to this end
        self._hasEnded = self._isReset = self.isClosed = self._isShut = self._closesAfterFlush = False
        host.sockets[self] = None

    @property
    def isReadable(self) -> bool:
        """Whether C{recv} would return data or the end, or report a reset."""
        return bool(self._buffer) or self._hasEnded or self._isReset

    @property
    def isWritable(self) -> bool:
        """Whether C{send} would accept data, or fail."""
        return self._isReset or self._isShut or self.peer._unread < _WINDOW

    def fileno(self) -> int:
        return -1

    def setblocking(self, flag: bool) -> None:
        """Ignore the flag: a socket in memory never blocks."""

    def getsockopt(self, level: int, name: int, size: int = 0) -> int:
        """Return 0 for any socket option, or raise C{OSError} if a structure is requested."""
        if size:
            raise OSError(errno.ENOPROTOOPT, "this is not a socket")
        return 0

    def setsockopt(self, level: int, name: int, value: object) -> None:
        """Note SO_LINGER, which Twisted sets in order to reset the connection on close."""
        self._closesAfterFlush |= isinstance(value, bytes)

    def recv(self, size: int) -> bytes:
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
        """Send as many bytes as the peer's window accepts."""
        if self._isReset or self._isShut or self.isClosed:  # isClosed if the process was killed
            raise BrokenPipeError(errno.EPIPE, "nobody there")
        sent = bytes(data[: _WINDOW - self.peer._unread])
        if not sent:
            raise BlockingIOError(errno.EWOULDBLOCK, "no room")
        self.sniffer(sent)
        self.peer._unread += len(sent)
        self.wire.carry(self.peer, lambda: self.peer._came(sent))
        return len(sent)

    def shutdown(self, how: int) -> None:
        """Close the writing direction; the peer gets an end of file."""
        if not self._isShut and not self._isReset:
            self._isShut = True
            self.wire.carry(self.peer, self.peer._ended)

    def close(self) -> None:
        """Close the socket; the peer gets a reset if data was left unread, as in Linux."""
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
        """Mark the connection as reset; received data can still be read."""
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
        return IPv4Address("TCP", *self._own)

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", *self._peer)

    def begin(self) -> None:
        self.startReading()
        self.protocol.makeConnection(cast(Any, self))


def connectedSockets(
    world: World, random: Random, client: Host, server: Host, port: int, latency: float
) -> tuple[MemorySocket, MemorySocket]:
    """Return the sockets of a TCP connection from a port of the client to port 80 of the server."""
    wire = Wire(world, random, latency)
    here = MemorySocket(client, wire, (client.address, port))
    there = MemorySocket(server, wire, (server.address, 80))
    here.peer, there.peer = there, here
    wire.ends = (here, there)
    return here, there
