"""
Simulation of processes that share memory on one host. It replaces UNIX sockets and the ringing of eventfds.

The memory and its mappings are real. Messages are delayed, a doorbell may ring late, a connection may be
refused, and a process may die at any time::

    memory = SimulatedMemory(clock, seed=1)
    alice, bob = memory.device(reactorOfAlice, "10.0.0.1"), memory.device(reactorOfBob, "10.0.0.2")
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Generic, TypeVar

from twisted.internet.interfaces import IReactorTime

from txrdma.iba.types import MTU, ROCE_PORT
from txrdma.kit.delayedcalls import Timer
from txrdma.soft.core.routeport import RoutePort
from txrdma.soft.device import SoftDevice
from txrdma.soft.ports import SoftPort
from txrdma.soft.rc.roce import RoCEPort
from txrdma.soft.rc.udp import DatagramCarrier
from txrdma.soft.shared.sharedmemoryport import RING_BYTES, SharedMemoryPort
from txrdma.soft.shared.sharedqueuepair import SharingReactor
from txrdma.soft.shared.unixpackets import MessageReceiver, ring
from txrdma.unix.sockets import Credentials

_AT_ONCE: Final = 32


@dataclass(frozen=True)
class MemoryFaults:
    """
    Faults of a simulated host; each probability is for one event.

    @ivar delaySeconds: maximum delay of a message.
    @ivar bellSeconds: maximum delay of a doorbell; 0 for none.
    @ivar refusal: probability that a listening process is not found.
    @ivar starving: probability that a message arrives without its descriptors, as if the receiving process
        had no descriptors left.
    """

    delaySeconds: float = 10e-6
    bellSeconds: float = 0.0
    refusal: float = 0.0
    starving: float = 0.0


class SimulatedMemory:
    """
    A simulated host, which connects processes that share memory.

    @ivar faults: the faults; may be changed at any time.
    @ivar sent: number of messages so far.
    @ivar refused: number of connections for which no process was found.
    """

    def __init__(self, clock: IReactorTime, seed: int = 0, faults: MemoryFaults | None = None) -> None:
        self.clock = clock
        self.random = Random(f"memory {seed}")
        self.faults = faults or MemoryFaults()
        self.sent = self.refused = 0
        self.listening: dict[tuple[str, int], _Listening] = {}
        self._lines: dict[_Line, None] = {}
        self._processes = 0

    def device(
        self,
        reactor: SharingReactor,
        address: str,
        mtu: MTU | None = None,
        ring: int = RING_BYTES,
        carrier: DatagramCarrier | None = None,
    ) -> SoftDevice:
        """
        Return a new software device in the process with this reactor.

        @param ring: size of each queue pair's ring in bytes.
        @param carrier: the UDP socket of datagrams; without one the device has reliable connections only.
        """
        self._processes += 1
        rendezvous = ProcessRendezvous(self, reactor, self._processes)
        route = SharedMemoryPort(reactor, address, ROCE_PORT, ring=ring, rendezvous=rendezvous)
        routes: list[RoutePort] = [route]
        if carrier is not None:
            routes.append(RoCEPort(reactor, carrier, None, (mtu or MTU.MTU_1024).bytes, route.datagrams))
        return SoftDevice(reactor, [SoftPort(address, ROCE_PORT, routes, mtu)], name=f"sim:{address}")

    def kill(self, reactor: object) -> None:
        """Kill the process of this reactor: its sockets are closed, and all memory is unchanged."""
        for name, listening in list(self.listening.items()):
            if listening.reactor is reactor:
                del self.listening[name]
        for line in list(self._lines):
            if line.reactor is reactor:
                line.close()

    # For processes.

    def connect(self, reactor: SharingReactor, pid: int, name: tuple[str, int]) -> _Line | None:
        """Connect a process to the listener with this name; return None if it is not found."""
        listening = self.listening.get(name)
        if listening is None or self.random.random() < self.faults.refusal:
            self.refused += 1
            return None
        here, there = _Line(self, reactor, listening.pid), _Line(self, listening.reactor, pid)
        here.peer, there.peer = there, here
        self._lines[here] = self._lines[there] = None
        self.clock.callLater(self._delay(), listening.came, there)
        return here

    def carry(self, line: _Line, message: bytes, descriptors: list[int]) -> None:
        """Deliver a message to one end of a connection, in order; an empty one reports the peer's close."""
        self.sent += 1
        now = self.clock.seconds()
        # Later than the last message by more than rounding errors, which could reorder the two.
        line.latest = max(line.latest + 1e-9, now + self._delay())
        self.clock.callLater(line.latest - now, line.came, message, descriptors)

    def forget(self, line: _Line) -> None:
        """Remove an end of a connection that was closed."""
        self._lines.pop(line, None)

    def ring(self, doorbell: int) -> None:
        """Ring a doorbell, now or with a delay, even if the ringing process has ended by then."""
        if not self.faults.bellSeconds:
            ring(doorbell)
            return
        duplicate = os.dup(doorbell)

        def late() -> None:
            ring(duplicate)
            os.close(duplicate)

        self.clock.callLater(self.faults.bellSeconds * self.random.random(), late)

    def starves(self) -> bool:
        """Return whether a message arrives without its descriptors, at random."""
        return self.random.random() < self.faults.starving

    def _delay(self) -> float:
        return self.faults.delaySeconds * self.random.random()


class ProcessRendezvous:
    """Provider of L{LocalRendezvous <txrdma.soft.shared.unixpackets.LocalRendezvous>} for one process."""

    def __init__(self, memory: SimulatedMemory, reactor: SharingReactor, pid: int) -> None:
        self._memory = memory
        self._reactor = reactor
        self._pid = pid

    def listen(self, address: str, port: int, accepted: Callable[[_Line], None]) -> _Listening:
        """Listen for connections to the device with this IP address and UDP port."""
        return _Listening(self._memory, self._reactor, self._pid, (address, port), accepted)

    def connect(self, address: str, port: int) -> _Line | None:
        """Connect to the process whose device has this address and port; return None if it is not found."""
        return self._memory.connect(self._reactor, self._pid, (address, port))

    def ring(self, doorbell: int) -> None:
        """Ring the doorbell with this descriptor."""
        self._memory.ring(doorbell)


_Arrival = TypeVar("_Arrival")


class _Inbox(Generic[_Arrival]):
    """Messages or connections that have arrived at one descriptor, until the process's reactor reads them."""

    def __init__(self, reactor: SharingReactor) -> None:
        self.reactor = reactor
        self._arrived: deque[_Arrival] = deque()
        self._isReading = False
        self._timer = Timer(reactor)

    def setReading(self, isReading: bool) -> None:
        """Pause or resume reading."""
        self._isReading = isReading
        self._stir()

    def _stir(self) -> None:
        """Schedule reading in the next reactor iteration, unless it is paused or nothing is queued."""
        if self._isReading and self._arrived:
            self._timer.ensure(0, self._read)
        else:
            self._timer.stop()

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._isReading or not self._arrived:
                return
            self._take(self._arrived.popleft())
        self._stir()

    def _take(self, arrival: _Arrival) -> None:
        raise NotImplementedError


class _Listening(_Inbox["_Line"]):
    """A listening socket of a process, with its name."""

    def __init__(
        self,
        memory: SimulatedMemory,
        reactor: SharingReactor,
        pid: int,
        name: tuple[str, int],
        accepted: Callable[[_Line], None],
    ) -> None:
        super().__init__(reactor)
        if name in memory.listening:
            raise OSError(f"{name} is in use")
        memory.listening[name] = self
        self.pid = pid
        self._memory = memory
        self._name = name
        self._accepted = accepted
        self._isReading = True

    def came(self, line: _Line) -> None:
        """Queue the connection of another process."""
        if self._memory.listening.get(self._name) is self:
            self._arrived.append(line)
            self._stir()
        else:
            line.close()

    def _take(self, arrival: _Line) -> None:
        self._accepted(arrival)

    def close(self) -> None:
        """Release the name, and refuse connections not accepted yet."""
        if self._memory.listening.get(self._name) is self:
            del self._memory.listening[self._name]
        while self._arrived:
            self._arrived.popleft().close()
        self.setReading(False)


class _Line(_Inbox[tuple[bytes, list[int]]]):
    """
    One end of a connection: a L{Line <txrdma.soft.shared.unixpackets.Line>}.

    @ivar latest: arrival time of the last message sent to this end.
    """

    def __init__(self, memory: SimulatedMemory, reactor: SharingReactor, pid: int) -> None:
        super().__init__(reactor)
        self.process = Credentials(pid, os.geteuid())
        self.peer = self
        self.latest = 0.0
        self.isClosed = False
        self._memory = memory
        self._receiver: MessageReceiver

    @property
    def isUnread(self) -> bool:
        """Whether messages wait until the peer's reactor reads them."""
        return bool(self.peer._arrived)

    @property
    def hasPeerEnded(self) -> bool:
        """Whether the end of the peer has arrived."""
        return any(not message for message, _ in self._arrived)

    def start(self, receiver: MessageReceiver) -> None:
        """Start passing messages to C{receiver}."""
        self._receiver = receiver
        self.setReading(True)

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one message; if the peer has closed, close this end with an error."""
        if self.isClosed:
            return
        if self.peer.isClosed:
            self.close("sending failed: no peer")
        else:
            self._memory.carry(self.peer, message, [os.dup(descriptor) for descriptor in descriptors])

    def setWriting(self, isWriting: bool) -> None:
        """Do nothing: the simulated system takes every message, so none is queued."""

    def receiveNow(self) -> None:
        """Read pending messages, without waiting for the reactor."""
        self._read()

    def came(self, message: bytes, descriptors: list[int]) -> None:
        """Queue an arrived message; an empty one reports the peer's close."""
        if self.isClosed:
            _closeAll(descriptors)
        else:
            self._arrived.append((message, descriptors))
            self._stir()

    def _take(self, arrival: tuple[bytes, list[int]]) -> None:
        message, descriptors = arrival
        try:
            if not message:
                self.close("it has ended, or closed its device")
            elif descriptors and self._memory.starves():
                self._receiver.descriptorsLost(message)
            else:
                self._receiver.messageReceived(message, descriptors)
        finally:
            _closeAll(descriptors)

    def close(self, reason: str = "") -> None:
        """Close this end, and report the reason to the receiver, if there is one."""
        if self.isClosed:
            return
        self.isClosed = True
        self._memory.forget(self)
        while self._arrived:
            _closeAll(self._arrived.popleft()[1])
        self.setReading(False)
        if not self.peer.isClosed:
            self._memory.carry(self.peer, b"", [])
        if reason:
            self._receiver.ended(reason)


def _closeAll(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
