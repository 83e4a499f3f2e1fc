"""
Congestion control: the window of one path, and senders that share a bottleneck.
"""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.congestion import Congestion, FIRST_WINDOW, NARROWEST, SMALLEST, WIDEST
from txrdma.btl.core.events import Event, MessageReceived, SendCompleted
from txrdma.btl.core.module import Module, OVERHEAD
from txrdma.btl.core.path import DATA, Path
from txrdma.btl.core.peer import Peer
from txrdma.testing.btl.bottleneck import Bottleneck, CubicFlow
from txrdma.testing.btl.world import BadNetwork, Host, World

MTU = 1024
BASE = 0.001


class WindowTests(SynchronousTestCase):
    def round(self, window: Congestion, lost: int, seconds: float, number: int) -> None:
        """Acknowledge a full window, except for lost segments."""
        window.filled()
        window.lost(lost)
        window.measured(seconds)
        window.arrived(window.size - lost, number, number + 1, BASE, number * 0.001)

    def test_rounds(self) -> None:
        """The window doubles until round trips become long; a few losses with short ones do not matter."""
        window = Congestion()
        self.round(window, 0, BASE, 1)
        self.assertEqual(window.size, 2 * FIRST_WINDOW)
        self.round(window, 0, 0.003, 2)
        longest = window.size
        self.round(window, 0, 0.003, 3)
        self.assertLess(window.size, longest)
        before = window.window
        self.round(window, 2, BASE, 4)
        self.assertGreater(window.window, before)
        self.assertLess(window.window, 1.1 * before)

    def test_manyLost(self) -> None:
        """If a large share is lost, the window shrinks although round trips are short."""
        window = Congestion()
        for number in range(1, 20):
            self.round(window, window.size // 3, BASE, number)
        self.assertLess(window.size, FIRST_WINDOW // 4)

    def test_notReady(self) -> None:
        """
        A peer that does not answer its first segment in time later gets a window as large as another one.
        """
        window = Congestion()
        window.silent()
        self.assertEqual(window.size, NARROWEST)
        number = 0
        while window.size < WIDEST:
            number += 1
            before = window.size
            self.round(window, 0, BASE, number)
            self.assertEqual(window.size, min(2 * before, WIDEST))

    def test_small(self) -> None:
        """A window that is smaller than the fewest segments in flight is sent at intervals."""
        window = Congestion()
        self.assertEqual(window.interval(BASE), 0.0)
        for number in range(1, 60):
            self.round(window, 0, 0.1, number)
        self.assertLess(window.window, 1.0)
        self.assertEqual(window.size, NARROWEST)
        self.assertEqual(window.interval(BASE), BASE / window.window)

    def test_interval(self) -> None:
        """A path sends nothing in the interval of a small window, and continues after it."""
        path = Path(0, 0)
        path.channels[DATA].roundTrip.measured(BASE, 0.0)
        path.congestion.window = 0.5
        path.sent(1, 1.0)
        self.assertFalse(path.isFree())
        self.assertTrue(1.0 < path.opensAt <= 1.0 + 2 * BASE / 0.5)
        path.expired(1.0)
        self.assertFalse(path.isFree())
        path.expired(path.opensAt)
        self.assertTrue(path.isFree())

    @given(st.lists(st.tuples(st.integers(0, 40), st.floats(0.001, 0.1), st.booleans()), max_size=200))
    def test_bounds(self, rounds: list[tuple[int, float, bool]]) -> None:
        """The window always stays within its bounds."""
        window = Congestion()
        for number, (lost, seconds, isSilent) in enumerate(rounds, 1):
            if isSilent:
                window.silent()
            self.round(window, min(lost, window.size), seconds, number)
            self.assertTrue(SMALLEST <= window.window <= WIDEST)
            self.assertTrue(NARROWEST <= window.size <= WIDEST)


class BottleneckCase(SynchronousTestCase):
    """
    Senders whose messages to one receiver pass a bottleneck.

    @ivar received: bytes of messages by sender.
    """

    slowBecause = "it simulates some ten thousand packets"

    def start(
        self, senders: int, rate: float, depth: int, delay: float, loss: float = 0.0, size: int = 16_000
    ) -> None:
        """
        Let senders begin, each with eight messages on the way.

        @param rate: packets per second; C{depth}: packets that may wait; C{delay}: seconds in each direction.
        """
        whole = MTU + OVERHEAD
        self.bottleneck = Bottleneck(rate * whole, depth * whole)
        network = BadNetwork(delays=(delay, delay), loss=loss, bottlenecks={(0, 0): self.bottleneck})
        self.world = World(Random(1), network)
        self.size = size
        receiver = Host(self.world, Module(MTU, (256, 1024)), self.arrived)
        self.received = [0] * (senders + 1)
        self.peers: list[Peer] = []
        for number in range(senders):
            sender = Host(self.world, Module(MTU, (256, 1024)), self.sent)
            peer, _back = sender.meet(receiver)
            self.peers.append(peer)
            sender.module.probe(peer, MTU, bytes(8))
            self.world.call(number * 30e-6, sender.turn)
            for _each in range(8):
                self.world.call(0.002 + Random(number).random() * 0.001, lambda peer=peer: self.send(peer))  # type: ignore[misc]  # a lambda

    def send(self, peer: Peer) -> None:
        """Send another message."""
        host = self.world.hosts[1 + self.peers.index(peer)]
        host.send(peer, 1, bytes(self.size), peer)
        self.world.call(self.world.now, host.turn)

    def sent(self, event: Event) -> None:
        if isinstance(event, SendCompleted):
            self.send(event.peer)

    def arrived(self, event: Event) -> None:
        if isinstance(event, MessageReceived):
            assert isinstance(event.peer.context, Host)
            self.received[event.peer.context.number] += len(event.data)

    def measure(self, begin: float, end: float) -> tuple[float, float, float]:
        """Return the share of lost packets, Jain's index, and the utilisation of the link in a time."""
        self.world.run(begin)
        bottleneck, received = self.bottleneck, list(self.received)
        lost, sent, busy = bottleneck.lost, bottleneck.sent, bottleneck.busy
        self.world.run(end)
        each = [after - before for after, before in zip(self.received, received, strict=True)][1:]
        lost, sent = bottleneck.lost - lost, bottleneck.sent - sent
        jain = sum(each) ** 2 / (len(each) * sum(one * one for one in each))
        return lost / (lost + sent), jain, (bottleneck.busy - busy) / (end - begin)


class ManySendersTests(BottleneckCase):
    """Senders to one receiver fill its link, lose few packets, and get equal shares."""

    def assertFair(self, senders: int, depth: int, begin: float, end: float) -> None:
        """Assert that with this number of senders and depth of the queue, the link is well used."""
        self.start(senders, 100_000, depth, 25e-6)
        lost, jain, utilisation = self.measure(begin, end)
        self.assertLess(lost, 0.02)
        self.assertGreaterEqual(jain, 0.9)
        self.assertGreaterEqual(utilisation, 0.9)

    def test_one(self) -> None:
        """One sender fills a link with a short queue."""
        self.assertFair(1, 32, 0.03, 0.06)

    def test_four(self) -> None:
        """Four senders share a short queue."""
        self.assertFair(4, 32, 0.03, 0.06)

    def test_sixteen(self) -> None:
        """Sixteen senders share a short queue, in which each has two packets."""
        self.assertFair(16, 32, 0.06, 0.12)

    def test_longQueue(self) -> None:
        """Sixteen senders share a longer queue."""
        self.assertFair(16, 256, 0.06, 0.12)

    def test_sixtyFour(self) -> None:
        """Sixty-four senders share a queue that has less than one packet of each."""
        self.assertFair(64, 64, 0.15, 0.3)


class LossTests(BottleneckCase):
    """A path that loses packets at random is well used."""

    def test_rates(self) -> None:
        """With one or five lost packets in a hundred, nine tenths of a link are used."""
        for loss in (0.01, 0.05):
            for delay, end in ((25e-6, 0.2), (0.001, 0.6)):
                self.start(1, 20_000, 256, delay, loss)
                self.world.run(end / 2)
                before = self.received[1]
                self.world.run(end)
                self.assertGreater(self.received[1] - before, 0.9 * 20_000 * 994 * end / 2)


class CompetitionTests(BottleneckCase):
    """Another sender that fills the queue, as TCP does, leaves a fair share of the link."""

    def test_cubic(self) -> None:
        """Beside a sender with the window of CUBIC each gets from a third to two thirds."""
        self.start(1, 20_000, 100, 0.0005)
        other = CubicFlow(self.world.call, self.bottleneck, 0.001, MTU)
        self.world.call(0.2, lambda: other.fill(0.2))
        self.world.run(1.0)
        mine, others = self.received[1], other.delivered
        self.world.run(2.5)
        mine, others = self.received[1] - mine, (other.delivered - others) * MTU
        self.assertTrue(1 / 3 <= mine / (mine + others) <= 2 / 3, mine / (mine + others))


class BaseTests(BottleneckCase):
    """The base round trip stays that of an empty queue."""

    def test_minute(self) -> None:
        """After a minute with two senders and a large queue it has changed by less than a tenth."""
        self.start(2, 400, 20_000, 25e-6, size=16 * 994)
        self.world.run(1.0)
        before = [peer.sent.paths[0].channels[DATA].roundTrip.base for peer in self.peers]
        _lost, jain, utilisation = self.measure(55.0, 65.0)
        self.assertGreater(jain, 0.8)
        self.assertGreater(utilisation, 0.8)
        for peer, base in zip(self.peers, before, strict=True):
            self.assertLess(peer.sent.paths[0].channels[DATA].roundTrip.base, 1.1 * base)
