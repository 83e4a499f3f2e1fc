"""Senders whose messages to one receiver pass a bottleneck of a simulated network."""

from __future__ import annotations

from functools import partial
from math import inf
from random import Random
from typing import Final

from txrdma.btl.core.events import Event, MessageReceived, SendCompleted
from txrdma.btl.core.module import Module, OVERHEAD
from txrdma.btl.core.peer import Peer
from txrdma.testing.btl.bottleneck import Bottleneck
from txrdma.testing.btl.world import BadNetwork, ModuleHost, World

MTU: Final = 1024
"""Length of the longest simulated packet, in bytes."""

MESSAGES: Final = 8
"""Messages of each sender that are queued or in flight."""


class ManySenders:
    """
    Senders to one receiver behind a bottleneck, each of which always has L{MESSAGES} messages to send.

    @ivar world: the simulated network; C{bottleneck}: the queue in front of the receiver.
    @ivar peers: the receiver, as each sender's peer.
    @ivar received: bytes of messages that have arrived, by number of the host.
    """

    def __init__(
        self,
        senders: int,
        rate: float,
        depth: int,
        delay: float = 25e-6,
        loss: float = 0.0,
        size: int = 16_000,
        pauses: float = 0.0,
        room: int = 0,
        isAdvertised: bool = True,
        markFrom: float = inf,
        seed: int = 0,
    ) -> None:
        """
        @param rate: packets per second; C{depth}: packets that may wait; C{delay}: seconds in each direction.
        @param size: bytes of a message.
        @param pauses: mean seconds between two pauses of each host, as on a busy machine; zero for none.
        @param room: packets that the receiver's host retains while it pauses; zero for no limit.
        @param isAdvertised: whether it advertises them.
        @param markFrom: packets in the queue beyond which others are marked.
        @param seed: of start times, sequence numbers, random losses and pauses.
        """
        whole = MTU + OVERHEAD
        self.bottleneck = Bottleneck(rate * whole, depth * whole, markFrom * whole)
        network = BadNetwork(delays=(delay, delay), loss=loss, bottlenecks={(0, 0): self.bottleneck})
        self.world = World(Random(1 + 1000 * seed), network)
        self._data = bytes(size)
        receiver = ModuleHost(
            self.world, Module(MTU, (256, 1024), rooms=[room] if room and isAdvertised else ()), self._arrived
        )
        receiver.room = room or inf
        self.received = [0] * (senders + 1)
        self.peers: list[Peer] = []
        for number in range(senders):
            sender = ModuleHost(self.world, Module(MTU, (256, 1024)), self._sent)
            peer, _back = sender.meet(receiver)
            self.peers.append(peer)
            sender.module.probe(peer, MTU, bytes(8))
            self.world.call(number * 30e-6, sender.turn)
            at = 0.002 + Random(1000 * seed + number).random() * 0.001
            for _each in range(MESSAGES):
                self.world.call(at, partial(self._send, peer))
        if pauses:
            for number, host in enumerate(self.world.hosts):
                host.disturb(Random(1 + 1000 * seed + number), pauses)

    def _send(self, peer: Peer) -> None:
        host = self.world.hosts[1 + self.peers.index(peer)]
        host.send(peer, 1, self._data, peer)
        self.world.call(self.world.now, host.turn)

    def _sent(self, event: Event) -> None:
        if isinstance(event, SendCompleted):
            self._send(event.peer)

    def _arrived(self, event: Event) -> None:
        if isinstance(event, MessageReceived):
            assert isinstance(event.peer.context, ModuleHost)
            self.received[event.peer.context.number] += len(event.data)

    def measure(self, begin: float, end: float) -> tuple[float, float, float]:
        """Return the share of lost packets, Jain's index, and the utilisation of the link in a period."""
        self.world.run(begin)
        bottleneck, received = self.bottleneck, list(self.received)
        lost, sent, busy = bottleneck.lost, bottleneck.sent, bottleneck.busy
        self.world.run(end)
        each = [after - before for after, before in zip(self.received, received, strict=True)][1:]
        lost, sent = bottleneck.lost - lost, bottleneck.sent - sent
        jain = sum(each) ** 2 / (len(each) * sum(one * one for one in each)) if any(each) else 0.0
        return lost / (lost + sent), jain, (bottleneck.busy - busy) / (end - begin)
