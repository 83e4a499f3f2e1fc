"""
Simulation of processes that share memory on one host: takes the place of UNIX sockets and of eventfds.

The memory is real, and so are its mappings; a message takes its time, a bell may ring late, a rendezvous may
be refused, and a process may die at any moment::

    memory = SimulatedMemory(clock, seed=1)
    alice, bob = memory.device(reactorOfAlice, "10.0.0.1"), memory.device(reactorOfBob, "10.0.0.2")
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from txrdma.iba.types import MTU, ROCE_PORT
from txrdma.soft.core.routeport import RoutePort
from txrdma.soft.device import SoftDevice
from txrdma.soft.ports import SoftPort
from txrdma.soft.rc.roce import RoCEPort
from txrdma.soft.rc.udp import Carrier
from txrdma.soft.shared._layout import RING_BYTES
from txrdma.soft.shared.routes import SharedMemoryPort
from txrdma.soft.shared.sharedqueuepair import SharingReactor
from txrdma.soft.shared.unixpackets import MessageReceiver, ring
from txrdma.unix.sockets import Credentials

_AT_ONCE: Final = 32


@dataclass(frozen=True)
class MemoryFaults:
    """
    Faults of a simulated host; probabilities are for one occasion.

    @ivar delaySeconds: longest time that a message takes.
    @ivar bellSeconds: longest time that a bell takes; 0 rings at once.
    @ivar refusal: probability that a process is not found, though it is there.
    @ivar starving: probability that a message comes without its descriptors, as the process has no more of
        them.
    """

    delaySeconds: float = 10e-6
    bellSeconds: float = 0.0
    refusal: float = 0.0
    starving: float = 0.0


class SimulatedMemory:
    """
    Host that connects processes which share memory.

    @ivar faults: may be changed at any time.
    @ivar sent: messages so far; C{refused}: processes that were not found.
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
        carrier: Carrier | None = None,
    ) -> SoftDevice:
        """
        A software device of the process that this is the reactor of.

        @param ring: bytes of the ring of each queue pair.
        @param carrier: the UDP socket of datagrams; without one the device has reliable connections only.
        """
        self._processes += 1
        rendezvous = _ProcessRendezvous(self, reactor, self._processes)
        route = SharedMemoryPort(reactor, address, ROCE_PORT, ring=ring, rendezvous=rendezvous)
        routes: list[RoutePort] = [route]
        if carrier is not None:
            routes.append(RoCEPort(reactor, carrier, None, mtu or MTU.MTU_1024, route.datagrams))
        return SoftDevice(reactor, [SoftPort(address, ROCE_PORT, routes, mtu)], name=f"sim:{address}")

    def kill(self, reactor: object) -> None:
        """Let the process of this reactor die: its sockets are closed, and all memory stays as it is."""
        for name, listening in list(self.listening.items()):
            if listening.reactor is reactor:
                del self.listening[name]
        for line in list(self._lines):
            if line.reactor is reactor:
                line.close()

    # For processes.

    def connect(self, reactor: SharingReactor, pid: int, name: tuple[str, int]) -> _Line | None:
        """Connect a process to the listener at this name."""
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
        """Carry a message to the end of a line, behind those before; an empty one is the line's end."""
        self.sent += 1
        now = self.clock.seconds()
        # Behind the latest by more than the rounding of times, which might let this one overtake it.
        line.latest = max(line.latest + 1e-9, now + self._delay())
        self.clock.callLater(line.latest - now, line.came, message, descriptors)

    def forget(self, line: _Line) -> None:
        """Remove a line that was closed at this end."""
        self._lines.pop(line, None)

    def ring(self, doorbell: int) -> None:
        """Ring a bell, now or in a while, also when the ringing process is gone by then."""
        if not self.faults.bellSeconds:
            ring(doorbell)
            return
        kept = os.dup(doorbell)

        def late() -> None:
            ring(kept)
            os.close(kept)

        self.clock.callLater(self.faults.bellSeconds * self.random.random(), late)

    def starves(self) -> bool:
        """True if a process has no descriptors left at this moment."""
        return self.random.random() < self.faults.starving

    def _delay(self) -> float:
        return self.faults.delaySeconds * self.random.random()


class _ProcessRendezvous:
    """Provider of L{Rendezvous <txrdma.soft.shared.unixpackets.Rendezvous>} for one process."""

    def __init__(self, memory: SimulatedMemory, reactor: SharingReactor, pid: int) -> None:
        self._memory = memory
        self._reactor = reactor
        self._pid = pid

    def listen(self, address: str, port: int, accepted: Callable[[_Line], None]) -> _Listening:
        """Be found as the device with this IP address and UDP port."""
        return _Listening(self._memory, self._reactor, self._pid, (address, port), accepted)

    def connect(self, address: str, port: int) -> _Line | None:
        """Connect to the process whose device has this address and port; None if it is not found."""
        return self._memory.connect(self._reactor, self._pid, (address, port))

    def ring(self, doorbell: int) -> None:
        """Ring the bell with this descriptor."""
        self._memory.ring(doorbell)


class _Inbox:
    """The messages that have come to one descriptor of a process, for the turns of its reactor."""

    def __init__(self, reactor: SharingReactor) -> None:
        self.reactor = reactor
        self._isReading = False
        self._call: IDelayedCall | None = None

    def setReading(self, isReading: bool) -> None:
        """Pause reading of messages, or resume it."""
        self._isReading = isReading
        self._stir()

    def _stir(self) -> None:
        """
        Schedule reading for the next turn of the reactor, if there are messages and reading is not paused.
        """
        call = self._call
        isDue = self._isReading and self._hasMore()
        if isDue and (call is None or not call.active()):
            self._call = self.reactor.callLater(0, self._read)
        elif not isDue and call is not None and call.active():
            call.cancel()

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._isReading or not self._hasMore():
                return
            self._take()
        self._stir()

    def _hasMore(self) -> bool:
        raise NotImplementedError

    def _take(self) -> None:
        raise NotImplementedError


class _Listening(_Inbox):
    """A listening name, at which a process is found."""

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
            raise OSError(f"{name} is taken")
        memory.listening[name] = self
        self.pid = pid
        self._memory = memory
        self._name = name
        self._accepted = accepted
        self._waiting: deque[_Line] = deque()
        self._isReading = True

    def came(self, line: _Line) -> None:
        """Take the connection of a process."""
        if self._memory.listening.get(self._name) is self:
            self._waiting.append(line)
            self._stir()
        else:
            line.close()

    def _hasMore(self) -> bool:
        return bool(self._waiting)

    def _take(self) -> None:
        self._accepted(self._waiting.popleft())

    def close(self) -> None:
        """Release the name, and refuse connections not accepted yet."""
        if self._memory.listening.get(self._name) is self:
            del self._memory.listening[self._name]
        while self._waiting:
            self._waiting.popleft().close()
        self.setReading(False)


class _Line(_Inbox):
    """
    One end of a connection: a L{Line <txrdma.soft.shared.unixpackets.Line>}.

    @ivar latest: arrival time of the latest message on its way here.
    """

    def __init__(self, memory: SimulatedMemory, reactor: SharingReactor, pid: int) -> None:
        super().__init__(reactor)
        self.process = Credentials(pid, os.geteuid())
        self.peer = self
        self.latest = 0.0
        self.isClosed = False
        self._memory = memory
        self._receiver: MessageReceiver
        self._came: deque[tuple[bytes, list[int]]] = deque()

    def start(self, receiver: MessageReceiver) -> None:
        """Start handing messages to C{receiver}."""
        self._receiver = receiver
        self.setReading(True)

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one message; where the peer has closed, the line closes with an error."""
        if self.isClosed:
            return
        if self.peer.isClosed:
            self.close("sending failed: no peer")
        else:
            self._memory.carry(self.peer, message, [os.dup(descriptor) for descriptor in descriptors])

    def setWriting(self, isWriting: bool) -> None:
        """Do nothing: the simulated system takes every message, so none is queued."""

    def receiveNow(self) -> None:
        """Read what has arrived, without waiting for the reactor."""
        self._read()

    def came(self, message: bytes, descriptors: list[int]) -> None:
        """Take a message that arrives, or the end of the line."""
        if self.isClosed:
            _closeAll(descriptors)
        else:
            self._came.append((message, descriptors))
            self._stir()

    def _hasMore(self) -> bool:
        return bool(self._came)

    def _take(self) -> None:
        message, descriptors = self._came.popleft()
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
        """Close this end. The receiver gets the reason, if there is one."""
        if self.isClosed:
            return
        self.isClosed = True
        self._memory.forget(self)
        while self._came:
            _closeAll(self._came.popleft()[1])
        self.setReading(False)
        if not self.peer.isClosed:
            self._memory.carry(self.peer, b"", [])
        if reason:
            self._receiver.ended(reason)


def _closeAll(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
