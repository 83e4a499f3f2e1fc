"""
Processes that share port 4791 of an address, and are killed and stopped while others make system calls: later
one of them is the coordinator, and each gets its packets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.soft.host import forwarding
from txrdma.soft.host import member as members
from txrdma.soft.host._filter import POSITION
from txrdma.soft.host.member import PortMember
from txrdma.soft.shared.unixpackets import PacketSocket
from txrdma.test.support.soft.management import message, toQueuePair
from txrdma.testing.reactors import ReactorClock

SEEDS = 100
STEPS = 150
SENDER = ("192.0.2.1", 50_000)
SERVICE = 0x4200
"""The service ID of the device with share 0; that of the next one is the next number."""

PATIENCE = 12.0
"""Seconds in which the processes recover."""

PAUSES = (0.0, 0.0, 0.0, 1e-5, 1e-3, 0.02, 0.3, 0.6)
"""Seconds between steps, which are chosen at random."""

DEPTH = 3
"""Number of processes that are in a system call at the same time."""


class Process:
    """
    A process with one device.

    @ivar inbox: packets that its UDP socket has received.
    @ivar received: packets that its device has got.
    """

    def __init__(self, host: Host, share: int) -> None:
        self.host, self.share = host, share
        self.clock = ReactorClock()
        self.clock.advance(host.now)
        self.inbox: deque[bytes] = deque(maxlen=64)
        self.received: list[bytes] = []
        self.isStopped = False
        host.sockets.append(self)
        with host.calls(self):
            self.member = PortMember(self.clock, host.address, share, self)  # type: ignore[arg-type]  # no socket
            self.member.start(self.sendProbe, self.forwarded)
            self.member.setReceiving(True)
            self.member.claim(SERVICE + share)
        host.processes.append(self)

    def sendProbe(self, payload: bytes) -> None:
        self.host.socketAt(payload[0]).inbox.append(bytes(POSITION) + payload)

    def forwarded(self, source: tuple[str, int], packet: memoryview) -> None:
        self.received.append(bytes(packet))

    def run(self) -> None:
        """Run one iteration of the reactor."""
        with self.host.calls(self):
            self.clock.advance(max(0.0, self.host.now - self.clock.seconds()))
            self.read()
            readers = self.clock.getReaders()
            self.host.random.shuffle(readers)
            for reader in readers:
                if reader in self.clock.readers:
                    reader.doRead()

    def read(self) -> None:
        """Process received packets."""
        while self.inbox:
            packet = self.inbox.popleft()
            number = int.from_bytes(packet[5:8], "big")
            source = SENDER if number else (self.host.address, 4791)
            if not self.member.redirect(number, memoryview(packet), source):
                self.received.append(packet)


class Host:
    """
    The processes at an address.

    @ivar sockets: those at port 4791, by position; as in Linux, the last one replaces one that is closed.
    @ivar filter: the positions by share, and that for requests; None until one is installed.
    @ivar isCalm: processes are neither killed nor stopped.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.address = f"127.{'.'.join(str(Random().randrange(2, 250)) for _ in range(3))}"
        self.now = 0.0
        self.processes: list[Process] = []
        self.sockets: list[Process] = []
        self.filter: tuple[dict[int, int], int] | None = None
        self.isCalm = False
        self._calling: list[Process] = []
        self._shares = iter(range(1, 255))

    def open(self) -> None:
        Process(self, next(self._shares))

    @contextmanager
    def calls(self, process: Process) -> Iterator[None]:
        """Others may act at the system calls of a process."""
        self._calling.append(process)
        try:
            yield
        finally:
            self._calling.remove(process)

    def called(self) -> None:
        """A process makes a system call: others may act before it."""
        if len(self._calling) < DEPTH and self.random.random() < 0.2:
            self.act(0.3)

    def act(self, chance: float) -> None:
        """Let a process run; or with some chance end, kill, stop or continue one."""
        idle = [each for each in self.processes if each not in self._calling]
        if not idle:
            return
        process = self.random.choice(idle)
        if self.isCalm or self.random.random() >= chance:
            if not process.isStopped:
                process.run()
        elif self.random.random() < 0.5:
            process.isStopped = not process.isStopped
        elif len(self.processes) > 2:
            self.processes.remove(process)
            self.random.choice((self.end, self.kill))(process)

    def end(self, process: Process) -> None:
        """Let a process close its device."""
        with self.calls(process):
            self.close(process)
            process.member.close()

    def kill(self, process: Process) -> None:
        """Let the system close the descriptors of a process, in any order."""
        member: Any = process.member
        closings: list[Callable[[], object]] = [line.line._socket.close for line in member._lines]
        closings += [lambda: self.close(process), *member._services.values()]
        if member._listener is not None:
            closings.append(member._listener._socket.close)
        self.random.shuffle(closings)
        for close in closings:
            close()
            self.called()

    def close(self, process: Process) -> None:
        """Close the socket of a process."""
        position, last = self.sockets.index(process), self.sockets.pop()
        if last is not process:
            self.sockets[position] = last

    def socketAt(self, position: int) -> Process:
        """Return the socket at a position; the system chooses any one if there is none, or no filter."""
        isKnown = self.filter is not None and position < len(self.sockets)
        return self.sockets[position if isKnown else 5 % len(self.sockets)]

    def deliver(self, packet: bytes) -> None:
        """Receive a packet at port 4791."""
        positions, home = self.filter or ({}, 0)
        self.socketAt(positions.get(packet[5], home)).inbox.append(packet)

    def step(self) -> None:
        """Let time pass, and a process act."""
        self.now += self.random.choice(PAUSES)
        self.act(0.2)
        if len(self.processes) < 3 or self.random.random() < 0.03:
            self.open()

    def rest(self, seconds: float) -> None:
        """Let all processes run."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.04
            for process in self.random.sample(self.processes, len(self.processes)):
                process.run()

    def reaches(self, process: Process, packet: bytes) -> bool:
        """Return whether a packet that is sent several times reaches a process."""
        process.received.clear()
        for _ in range(3):
            self.deliver(packet)
            self.rest(0.2)
        return packet in process.received

    def faults(self) -> list[str]:
        """Return what is wrong after all processes have run for a while."""
        found = []
        coordinators = [each.member for each in self.processes if each.member.isCoordinator]
        if len(coordinators) != 1:
            found.append(f"coordinators: {coordinators}")
        positions = {process.share: position for position, process in enumerate(self.sockets)}
        if self.filter is None or self.filter[0] != positions:
            found.append(f"the filter has {self.filter}, not {positions}")
        for process in self.processes:
            if not self.reaches(process, toQueuePair(process.share << 16 | 5)):
                found.append(f"{process.member} gets no packets")
            request = message(0x10, bytes(8) + (SERVICE + process.share).to_bytes(8, "big"))
            if not self.reaches(process, request):
                found.append(f"{process.member} gets no requests")
        return found


class RandomTests(SynchronousTestCase):
    """Processes that are killed and stopped in an order that depends on a seed."""

    slowBecause = "it plays a hundred seeds"
    seeds = range(SEEDS)

    def patchCalls(self) -> None:
        """Let other processes act before the system calls of the one that runs."""

        def patched(owner: Any, name: str) -> None:
            usual = getattr(owner, name)

            def replacement(*arguments: Any) -> Any:
                self.host.called()
                return usual(*arguments)

            self.patch(owner, name, replacement)

        for name in ("connectTo", "LocalListener", "PacketSocket", "claimService"):
            patched(members, name)
        patched(PacketSocket, "_sent")
        patched(PacketSocket, "_receive")
        self.patch(members, "filterProgram", lambda positions, home: (dict(positions), home))
        self.patch(members, "attachFilter", lambda _bound, program: setattr(self.host, "filter", program))
        self.patch(forwarding, "isShareTaken", lambda _, share: share in self.shares())

    def shares(self) -> set[int]:
        return {each.share for each in self.host.sockets}

    def play(self, seed: int) -> list[str]:
        """Play one seed; return what is wrong."""
        self.host = host = Host(seed)
        for _ in range(host.random.randrange(2, 6)):
            host.open()
        for _ in range(STEPS):
            host.step()
        host.isCalm = True
        for process in host.processes:
            process.isStopped = False
        host.rest(PATIENCE)
        found = host.faults()
        for process in host.processes:
            process.member.close()
        return found

    def test_eachProcessGetsItsPackets(self) -> None:
        self.patchCalls()
        wrong = {seed: found for seed in self.seeds if (found := self.play(seed))}
        self.assertEqual(wrong, {})
