"""
Modules of the byte transfer layer on a simulated network, driven by a heap of timed calls.

The network loses, duplicates, delays and reorders packets, partitions hosts for some time, and stops hosts.
In addition, unknown hosts send copies of packets from wrong addresses, and bytes that are not packets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from math import inf
from random import Random

from txrdma.btl.core.events import Event, MessageReceived, PackReceived
from txrdma.btl.core.marks import ECT, NOT_ECT
from txrdma.btl.core.module import Module
from txrdma.btl.core.path import DATA
from txrdma.btl.core.peer import Peer
from txrdma.btl.core.receivebuffer import ReceiveBuffer
from txrdma.btl.wire import SEQUENCE_MASK
from txrdma.kit.wire import Buffer
from txrdma.testing.btl.bottleneck import Bottleneck
from txrdma.testing.outcome import check

Address = tuple[int, int]
"""Number of the host and of the channel."""


@dataclass
class BadNetwork:
    """
    The faults of a network.

    @ivar loss: fraction of lost packets; C{duplication}: of duplicates; C{forgery}: of packets with copies
        from wrong addresses.
    @ivar delays: minimum seconds on the command and data channels; C{jitter}: largest addition.
    @ivar partitions: begin and end in seconds, and two hosts that cannot reach each other in between.
    @ivar failedPorts: ports of all hosts that transmit nothing.
    @ivar bottlenecks: queues of packets by the number of the receiving host, and of its port.
    @ivar remark: returns the codepoint with which a packet of this codepoint arrives; None if it is lost.
    """

    loss: float = 0.0
    duplication: float = 0.0
    forgery: float = 0.0
    delays: tuple[float, float] = (0.0001, 0.0001)
    jitter: float = 0.0
    partitions: list[tuple[float, float, int, int]] = field(default_factory=list)
    failedPorts: set[int] = field(default_factory=set)
    bottlenecks: dict[tuple[int, int], Bottleneck] = field(default_factory=dict)
    remark: Callable[[int], int | None] = lambda codepoint: codepoint


class World:
    """
    The hosts, the network between them, and the clock.

    @ivar alter: returns the packet to transmit, from the sending host's number and its packet; for lying
        hosts.
    """

    def __init__(self, random: Random, network: BadNetwork) -> None:
        self.now = 0.0
        self.random, self.network = random, network
        self.hosts: list[ModuleHost] = []
        self.packets = self.dropped = 0
        self.alter: Callable[[int, bytes], bytes] = lambda _host, packet: packet
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def call(self, at: float, function: Callable[[], None]) -> None:
        """Call a function at a time, after others of the same time."""
        self._number += 1
        heappush(self._calls, (at, self._number, function))

    def run(self, until: float, isDone: Callable[[], bool] = lambda: False) -> bool:
        """
        Let simulated time pass.

        @return: whether C{isDone} has become true before C{until}, or no calls are left.
        """
        while self._calls and self._calls[0][0] <= until:
            if isDone():
                return True
            self.now, _number, function = heappop(self._calls)
            function()
        return isDone() or not self._calls

    def transmit(
        self, sender: ModuleHost, destination: Address, channel: int, packet: bytes, codepoint: int = NOT_ECT
    ) -> None:
        """Transmit a packet, subject to the faults of the network."""
        network, random = self.network, self.random
        self.packets += 1
        packet = self.alter(sender.number, packet)
        for begin, end, one, other in network.partitions:
            if begin <= self.now < end and {one, other} == {sender.number, destination[0]}:
                self.dropped += 1
                return
        remarked = network.remark(codepoint)
        if remarked is None or random.random() < network.loss or channel // 2 in network.failedPorts:
            self.dropped += 1
        else:
            self._arrive(destination, (sender.number, channel), packet, remarked)
        if random.random() < network.duplication:
            self._arrive(destination, (sender.number, channel), packet)
        if random.random() < network.forgery:
            forged = bytearray(packet[: random.randrange(len(packet) + 1)] + random.randbytes(3))
            forged[random.randrange(len(forged))] ^= 1 << random.randrange(8)
            self._arrive(destination, (len(self.hosts), channel), bytes(forged))

    def _arrive(self, destination: Address, source: Address, packet: bytes, codepoint: int = NOT_ECT) -> None:
        number, channel = destination
        delay = self.network.delays[channel % 2] + self.random.random() ** 3 * self.network.jitter
        bottleneck = self.network.bottlenecks.get((number, channel // 2))
        if bottleneck is not None:
            codepoint = bottleneck.mark(codepoint, self.now)
            wait = bottleneck.delay(len(packet), self.now)
            if wait is None:
                self.dropped += 1
                return
            delay += wait
        host = self.hosts[number]
        self.call(self.now + delay, lambda: host.arrived(channel, source, packet, codepoint))


class ModuleHost:
    """
    A host with one module.

    @ivar busyUntil: time until which its program is busy.
    @ivar isDead: whether it has stopped, without notifying its peers.
    @ivar room: number of packets that may wait until its program is idle; others are lost.
    @ivar eventReceived: called with each event; messages of a pack are reported one by one.
    """

    def __init__(self, world: World, module: Module, eventReceived: Callable[[Event], None]) -> None:
        self.world, self.module, self.eventReceived = world, module, eventReceived
        self.number = len(world.hosts)
        world.hosts.append(self)
        self.busyUntil = 0.0
        self.isDead = False
        self.room: float = inf
        self._inbox: list[tuple[int, Address, bytes, int]] = []
        self._isReading = self._reportsPlaced = False
        self._wakeAt: float | None = None

    def meet(self, other: ModuleHost) -> tuple[Peer, Peer]:
        """Make two hosts peers of each other; return each one's peer object for the other."""
        random, now = self.world.random, self.world.now
        localID, remoteID = random.getrandbits(64), random.getrandbits(64)
        here, there = (SEQUENCE_MASK - random.getrandbits(10) for _each in range(2))  # near the wrap-around
        channels = range(len(self.module.credits))
        addresses, backAddresses = ([(host.number, each) for each in channels] for host in (other, self))
        peer = self.module.addPeer(localID, remoteID, addresses, here, there, other, now)
        back = other.module.addPeer(remoteID, localID, backAddresses, there, here, self, now)
        for each in (peer, back):
            each.order.isOrdered = False
        return peer, back

    def share(
        self, peer: Peer, back: Peer, size: int, isOutOfReach: Callable[[], bool], delay: float | None = None
    ) -> None:
        """
        Let this host write into a receive buffer of another one.

        @param peer: this host's peer object for the other one; C{back}: the other host's for this one.
        @param size: bytes.
        @param isOutOfReach: returns whether the receive buffer cannot be written.
        @param delay: seconds until a write is complete, as by RDMA; None if this host writes immediately. The
            first write that fails is the last one.
        """
        back.localReceiveBuffer = memory = memoryview(bytearray(size))

        def write(position: int, data: Buffer) -> bool:
            if isOutOfReach():
                return False
            memory[position : position + len(data)] = data
            return True

        def writeLater(position: int, data: Buffer) -> bool:
            def complete() -> None:
                if peer.receiveBuffer is buffer:
                    if write(position, data):
                        self.module.written(peer, 1)
                    else:
                        self.module.withdraw(peer)
                    self.turn()

            self.world.call(self.world.now + (delay or 0.0), complete)
            return True

        buffer = ReceiveBuffer(size, write) if delay is None else ReceiveBuffer(size, writeLater, 1000)
        peer.receiveBuffer = buffer

    def arrived(self, channel: int, source: Address, packet: bytes, codepoint: int = NOT_ECT) -> None:
        """Queue a packet until the program is idle; packets that arrive meanwhile are one batch with it."""
        if len(self._inbox) >= self.room:
            self.world.dropped += 1
            return
        self._inbox.append((channel, source, packet, codepoint))
        if not self._isReading:
            self._isReading = True
            self.world.call(max(self.world.now + 20e-6, self.busyUntil), self._read)

    def disturb(
        self, random: Random, interval: float, shortest: float = 0.001, longest: float = 0.02
    ) -> None:
        """
        Let other programs take the processor repeatedly, as on a busy machine.

        @param interval: mean seconds from the end of a pause to the next one.
        @param shortest: seconds of the shortest pause; C{longest}: of the longest one.
        """

        def pause() -> None:
            self.busyUntil = self.world.now + random.uniform(shortest, longest)
            self.world.call(self.busyUntil + random.expovariate(1 / interval), pause)

        self.world.call(self.world.now + random.expovariate(1 / interval), pause)

    def _read(self) -> None:
        if self.busyUntil > self.world.now:
            self.world.call(self.busyUntil, self._read)
            return
        self._isReading = False
        inbox, self._inbox = self._inbox, []
        if self.isDead:
            return
        if len(inbox) > 1 or not self._receiveFast(*inbox[0]):
            for channel, source, packet, codepoint in inbox:
                self.module.received(channel, source, packet, self.world.now, codepoint)
        self.module.batchEnded()
        self.turn()

    def _receiveFast(self, channel: int, source: Address, packet: bytes, codepoint: int) -> bool:
        """Receive a single message by the fast path; return whether that was possible."""
        event = self.module.receiveFast(channel, source, memoryview(packet), self.world.now, codepoint)
        if event is not None:
            self.eventReceived(event)
        return event is not None

    def send(self, peer: Peer, tag: int, data: Buffer, context: object, isUrgent: bool = False) -> None:
        """Send a message by the fast path if possible; otherwise queue it until the end of the iteration."""
        packet = None
        if not self._reportsPlaced:
            packet = self.module.sendFast(peer, tag, data)
        if packet is None:
            self.module.send(peer, tag, data, context, isUrgent)
        else:
            channel, head, payload = packet
            self._transmit(peer, channel, head + payload)
            self.module.sentFast(peer, channel, tag, payload, context, self.world.now)
            self.world.call(self.world.now + 10e-6, partial(self._completed, channel, 1))

    def _woken(self, at: float) -> None:
        if self._wakeAt != at or self.isDead:
            return
        self._wakeAt = None
        if self.busyUntil > self.world.now:
            self._wake(self.busyUntil)
            return
        self.module.expired(self.world.now)
        self.turn()

    def _wake(self, at: float) -> None:
        self._wakeAt = at
        self.world.call(at, lambda: self._woken(at))

    def turn(self) -> None:
        """Deliver events, send packets, and schedule the next deadline, as the driver of a module does."""
        if self.isDead:
            return
        self._reportsPlaced = self.module.hasPlaced
        for event in self.module.events():
            if isinstance(event, PackReceived):
                for tag, data in event.messages:
                    self.eventReceived(MessageReceived(event.peer, tag, data))
            else:
                self.eventReceived(event)
        self._reportsPlaced = False
        posted = [0] * len(self.module.credits)
        for packet in self.module.outgoing(self.world.now):
            posted[packet.channel] += 1
            self._transmit(packet.peer, packet.channel, packet.head + bytes(packet.payload))
        for channel, count in enumerate(posted):
            if count:
                self.world.call(self.world.now + 10e-6, partial(self._completed, channel, count))
        due = self.module.deadline()
        if due is not None:
            due = max(due, self.world.now + 1e-6)
            if self._wakeAt is None or due < self._wakeAt:
                self._wake(due)

    def _transmit(self, peer: Peer, channel: int, packet: bytes) -> None:
        check(len(packet) <= self.module._mtus[channel % 2], f"a packet of {len(packet)} bytes is too long")
        address = peer.addresses[channel]
        assert isinstance(address, tuple)
        usesMarks = channel % 2 == DATA and peer.pathOf(channel).marks.isUsed
        self.world.transmit(self, address, channel, packet, ECT if usesMarks else NOT_ECT)

    def _completed(self, channel: int, count: int) -> None:
        if self.busyUntil > self.world.now:
            self.world.call(self.busyUntil, partial(self._completed, channel, count))
            return
        self.module.completed(channel, count)
        self.turn()
