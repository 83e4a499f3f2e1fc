"""
Devices that share port 4791 of an address, one function of which raises an exception: one of them coordinates
afterwards, all of them get their packets, and nothing is left when they close.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from random import Random
from typing import Any

from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.soft.host import _coordinator, _management, _messages, forwarding, lines, names
from txrdma.soft.host import member as members
from txrdma.soft.host._filter import POSITION
from txrdma.soft.host.forwarding import Forwarder
from txrdma.soft.host.lines import HostLine
from txrdma.soft.host.member import PortMember
from txrdma.soft.shared.unixpackets import PacketSocket
from txrdma.test.support.interruptions import Interruptions
from txrdma.test.support.soft.management import message, toQueuePair
from txrdma.testing.reactors import ReactorClock, SteppedTime

OWNERS: tuple[Any, ...] = (
    *(PortMember, members, HostLine, lines, Forwarder, forwarding, PacketSocket),
    *(_coordinator.Coordinator, _management, _messages, names),
)
"""What the sharing of a port consists of."""

TRIVIAL = ("_leave", "_seekAgain", "wake")
"""Functions that only call others, and handle their exceptions."""

SERVICE = 0x42
SENDER = ("192.0.2.1", 50_000)

SECONDS = 20.0
"""Time in which devices recover."""


class SimulatedPort:
    """A device's socket at port 4791: the kernel passes each packet to one of them by its position."""

    def __init__(self, host: InterruptionTests, share: int) -> None:
        self.host, self.received = host, list[bytes]()
        with ExitStack() as undo:
            self.member = PortMember(host.clock, host.address, share, self)  # type: ignore[arg-type]
            undo.callback(self.member.close)
            host.ports.append(self)
            undo.callback(host.ports.remove, self)
            self.member.start(self.sendProbe, self.forwarded)
            self.member.setReceiving(True)
            undo.pop_all()

    def sendProbe(self, payload: bytes) -> None:
        ports, packet = self.host.ports, bytes(POSITION) + payload
        port = ports[min(payload[0], len(ports) - 1)]
        self.host.clock.callLater(0, port.probeReceived, packet)

    def probeReceived(self, packet: bytes) -> None:
        self.member.redirect(0, memoryview(packet), (self.host.address, 4791))

    def forwarded(self, source: tuple[str, int], packet: memoryview) -> None:
        self.received.append(bytes(packet))


class InterruptionTests(SteppedTime, SynchronousTestCase):
    """Devices of one address, of which a call of one function raises."""

    slowBecause = "it plays several devices for each function"

    def setUp(self) -> None:
        self.clock = ReactorClock()
        self.address = f"127.{'.'.join(str(Random().randrange(2, 250)) for _ in range(3))}"
        self.ports: list[SimulatedPort] = []
        self.patch(members, "attachFilter", lambda *_: None)
        self.patch(forwarding, "isShareTaken", lambda address, share: False)
        self.isSelected = False
        self.interruptions = Interruptions(self.patch, OWNERS, lambda *_: self.isSelected, TRIVIAL)

    def until(self, condition: Callable[[], object], seconds: float = SECONDS) -> bool:
        """Wait until a condition holds; the reactor logs exceptions of its calls, and drops such readers."""
        end = self.clock.seconds() + seconds
        while not condition():
            if self.clock.seconds() > end:
                return False
            self.step()
        return True

    def pause(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def step(self) -> None:
        """Advance the clock, and let all readers read; a reader that raises is lost, as with a reactor."""
        following = min((call.getTime() for call in self.clock.getDelayedCalls()), default=inf)
        try:
            self.clock.advance(max(0.0, min(following - self.clock.seconds(), 0.01)))
        except ZeroDivisionError:
            self.count += 1
        for reader in self.clock.getReaders():
            if reader in self.clock.readers:
                try:
                    reader.doRead()
                except ZeroDivisionError as error:
                    self.count += 1
                    self.clock.removeReader(reader)
                    reader.connectionLost(Failure(error))

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of a device, which may raise."""
        try:
            return function(*arguments)
        except ZeroDivisionError:
            return None

    def open(self) -> SimulatedPort | None:
        """Open a device."""
        share = 1 + max((each.member.share for each in self.ports), default=0)
        port: SimulatedPort | None = self.do(SimulatedPort, self, share)
        return port

    def reaches(self, number: int, packet: bytes, source: SimulatedPort, target: SimulatedPort) -> bool:
        """Let a device receive packets for another one until one reaches that."""
        target.received.clear()

        def isReceived() -> bool:
            if not target.received and source is not target:
                self.do(source.member.redirect, number, memoryview(packet), SENDER)
            return bool(target.received)

        return self.until(lambda: source is target or isReceived())

    def use(self, port: SimulatedPort) -> None:
        """Use a service of a device, and let others forward packets to it."""
        release = self.do(port.member.claim, SERVICE)
        self.pause(1.5)
        packet = message(0x10, bytes(8) + SERVICE.to_bytes(8, "big"))
        for each in self.ports[:2]:
            self.do(each.member.redirect, 1, memoryview(packet), SENDER)
            number = port.member.share << 16
            self.do(each.member.redirect, number, memoryview(toQueuePair(number)), SENDER)
            self.pause(0.1)
        if release is not None:
            self.do(release)

    def closing(self) -> None:
        """Open a device, use and rest it, and close the coordinator."""
        port = self.open()
        if port is not None:
            self.use(port)
            self.do(port.member.rest)
            self.do(port.member.wake)
            self.pause(0.1)
        closed = self.ports.pop(0).member
        for _ in range(2):
            self.do(closed.close)
        self.pause(3.0)

    def silence(self) -> None:
        """Stop the process of the coordinator for a while."""
        stopped = self.ports[0].member
        readers: list[Any] = [stopped._listener, *(line.line for line in stopped._lines)]
        for isReading in (False, True):
            self.isSelected = False
            for each in readers:
                each.setReading(isReading)
            self.isSelected = True
            self.pause(5.0)

    def play(self, work: Callable[[], None]) -> list[str]:
        """Let devices work; return what is wrong."""
        wrong, self.count = list[str](), 0
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            self.open()
        self.pause(1.0)
        self.isSelected = True
        work()
        self.isSelected = False
        if not self.until(lambda: sum(each.member.isCoordinator for each in self.ports) == 1):
            wrong.append(f"coordinators: {[each.member.isCoordinator for each in self.ports]}")
        for source in self.ports:
            for target in self.ports:
                share = target.member.share
                if not self.reaches(share << 16, toQueuePair(share << 16), source, target):
                    wrong.append(f"no packets from {source.member} to {target.member}")
        releases = [port.member.claim(number) for number, port in enumerate(self.ports, 0x100)]
        for number, target in enumerate(self.ports, 0x100):
            for source in self.ports:
                if not self.reaches(1, message(0x10, bytes(8) + number.to_bytes(8, "big")), source, target):
                    wrong.append(f"no requests from {source.member} to {target.member}")
        for release in releases:
            release()
        while self.ports:
            self.ports.pop().member.close()
            self.pause(0.1)
        self.count += len(self.flushLoggedErrors(ZeroDivisionError))
        if self.count > 1:
            wrong.append(f"it was logged {self.count} times")
        if self.clock.readers or self.clock.getDelayedCalls():
            wrong.append(f"left: {self.clock.readers} {self.clock.getDelayedCalls()}")
        gc.collect()  # frames of tracebacks reference sockets
        if len(os.listdir("/proc/self/fd")) > before:
            wrong.append("descriptors are left")
        return wrong

    def playEach(self, work: Callable[[], None]) -> None:
        """Play once for each function that is called, and let its first call raise, and the last one."""
        self.assertEqual(self.play(work), [])
        self.assertGreater(len(self.interruptions.counts), 35)
        for (owner, name), number in self.interruptions.each(1):
            self.assertEqual(self.play(work), [], (owner.__name__, name, number))

    def test_closing(self) -> None:
        """A device enters, and the coordinator closes."""
        self.playEach(self.closing)

    def test_silence(self) -> None:
        """The coordinator's process stops, and runs again."""
        self.playEach(self.silence)
