"""Several paths to one peer: their combined rate, and failover."""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.events import Event, MessageReceived, SendCompleted
from txrdma.btl.core.module import Module, NONCE_LENGTH, OVERHEAD
from txrdma.btl.core.path import DATA
from txrdma.btl.core.peer import REMOVED
from txrdma.btl.core.roundtrip import LONGEST_TIMEOUT
from txrdma.testing.btl.bottleneck import Bottleneck
from txrdma.testing.btl.world import BadNetwork, ModuleHost, World

MTU = 1024
RATE = 10e6
"""Bytes per second of a path."""

DELAY = 0.0005
MESSAGE = 100_000


class PathsCase(SynchronousTestCase):
    """
    Two hosts with several ports, of which one sends messages without end.

    @ivar received: number of messages that have arrived, in order.
    """

    def connect(self, *rates: float) -> None:
        """Make the hosts peers by one path for each rate, in bytes per second."""
        self.network = BadNetwork(delays=(DELAY, DELAY))
        for port, rate in enumerate(rates):
            self.network.bottlenecks[1, port] = Bottleneck(rate, 64 * MTU)
        self.world = World(Random(1), self.network)
        self.received = self.messages = 0
        credits = (256, 1024) * len(rates)
        self.sender = ModuleHost(self.world, Module(MTU, credits), self.sent)
        self.receiver = ModuleHost(self.world, Module(MTU, credits), self.arrived)
        self.peer, self.back = self.sender.meet(self.receiver)
        self.back.order.isOrdered = True

    def advance(self, until: float) -> None:
        """Let time pass with always ten messages in flight."""
        if not self.world.now:
            for _each in range(10):
                self.next()
        self.world.run(until)

    def next(self) -> None:
        """Send a message, whose tag is its number."""
        number, self.messages = self.messages, self.messages + 1
        self.sender.send(self.peer, number & 0x7FFF, bytes(MESSAGE), number)
        self.world.call(self.world.now, self.sender.turn)

    def sent(self, event: Event) -> None:
        """Send another message for each one that has arrived."""
        if isinstance(event, SendCompleted):
            self.next()

    def arrived(self, event: Event) -> None:
        """Count a message in order."""
        if isinstance(event, MessageReceived):
            self.assertEqual((event.tag, len(event.data)), (self.received & 0x7FFF, MESSAGE))
            self.received += 1

    def rate(self, *rates: float) -> float:
        """Return the bytes per second that arrive by paths of these rates."""
        self.connect(*rates)
        self.advance(0.15)
        before = self.received
        self.advance(0.3)
        return (self.received - before) * MESSAGE / 0.15


class RateTests(PathsCase):
    slowBecause = "it simulates some ten thousand packets"

    def test_equal(self) -> None:
        """Two paths of one rate carry at least 1.7 times as much as one."""
        one = self.rate(RATE)
        self.assertGreater(one, 0.85 * RATE)
        self.assertGreater(self.rate(RATE, RATE), 1.7 * one)

    def test_unequal(self) -> None:
        """Paths whose rates are 1:4 carry at least 85 % of their sum: more than the fast one alone."""
        self.assertGreater(self.rate(RATE / 2, 2 * RATE), 0.85 * 2.5 * RATE)


class LostPathTests(PathsCase):
    slowBecause = "it simulates some ten thousand packets"

    def test_failover(self) -> None:
        """Segments in flight on a failed path are retransmitted on the other one after a round trip."""
        self.connect(RATE, RATE)
        self.advance(0.2)
        failed, other = self.peer.sent.paths
        roundTrip = failed.channels[DATA].roundTrip.smoothed
        resends = self.sender.module.counters.resends
        self.network.failedPorts.add(0)
        self.advance(self.world.now + 2 * roundTrip)
        self.assertEqual((failed.isSilent, failed.inFlight, other.isSilent), (True, 0, False))
        self.assertGreater(self.sender.module.counters.resends - resends, 10)
        before = self.received
        self.advance(self.world.now + 0.2)
        self.assertGreater((self.received - before) * MESSAGE, 0.7 * 0.2 * RATE)

    def test_returns(self) -> None:
        """Probes detect that a failed path works again, and do not affect messages."""
        self.connect(RATE, RATE)
        self.advance(0.2)
        self.network.failedPorts.add(1)
        self.advance(0.4)
        before = self.received
        self.advance(0.55)
        self.assertGreater((self.received - before) * MESSAGE, 0.85 * 0.15 * RATE)
        self.network.failedPorts.clear()
        failed = self.peer.sent.paths[1]
        # The answer to a probe is lost if a segment of the other path arrives at the same time.
        self.world.run(self.world.now + 4 * LONGEST_TIMEOUT, lambda: not failed.isSilent)
        self.assertFalse(failed.isSilent)
        self.advance(self.world.now + 0.1)
        sent = self.network.bottlenecks[1, 1].sent
        self.advance(self.world.now + 0.15)
        self.assertGreater(self.network.bottlenecks[1, 1].sent - sent, 0.7 * 0.15 * RATE / (MTU + OVERHEAD))

    def test_all(self) -> None:
        """A peer is lost when all paths have been silent for the timeout of a peer."""
        self.connect(RATE, RATE)
        self.advance(0.1)
        self.network.failedPorts.update((0, 1))
        self.advance(1000.0)
        self.assertEqual(self.peer.state, REMOVED)

    def test_probed(self) -> None:
        """An optional probe on a path that fails is replaced on the other one, so messages do not wait."""
        for isNoticed in (False, True):
            self.connect(RATE, RATE)
            self.network.failedPorts.add(1)
            self.sender.module.probe(self.peer, MTU, bytes(NONCE_LENGTH), 1, "probe")
            self.sender.turn()
            if isNoticed:
                self.sender.module.losePort(1, "removed", self.world.now)
                self.sender.turn()
            self.next()
            self.world.run(2 * LONGEST_TIMEOUT, lambda: self.received > 0)
            self.assertGreater(self.received, 0)

    def test_deadPort(self) -> None:
        """Peers continue on other paths if a port fails, and are lost with their last one."""
        self.connect(RATE, RATE)
        self.advance(0.1)
        self.sender.module.losePort(0, "removed", self.world.now)
        self.sender.turn()
        before = self.received
        self.advance(0.3)
        self.assertGreater(self.received, before)
        self.assertEqual(self.sender.module.credits[DATA], 1024)
        self.sender.module.losePort(1, "removed", self.world.now)
        self.assertEqual(self.peer.state, REMOVED)
