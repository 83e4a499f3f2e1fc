"""Congestion windows: their rules, and senders that share a simulated bottleneck."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.congestion import (
    CALM,
    Congestion,
    DRAIN_SECONDS,
    FIRST_WINDOW,
    NARROWEST,
    SMALLEST,
    WAITING,
    WIDEST,
)
from txrdma.btl.core.path import DATA, Path
from txrdma.testing.btl.bottleneck import CubicFlow
from txrdma.testing.btl.manysenders import ManySenders, MTU

BASE = 0.001


class WindowTests(SynchronousTestCase):
    """
    One window, round by round.

    @ivar number: number of the last round.
    """

    def setUp(self) -> None:
        self.window, self.number = Congestion(), 0

    def round(self, lost: int = 0, seconds: float = BASE, window: Congestion | None = None) -> None:
        """Acknowledge a full window, except for lost segments, with this round trip."""
        self.number += 1
        window = self.window if window is None else window
        window.filled()
        window.lost(lost)
        window.measured(seconds)
        arrived = max(1, window.size - lost)
        window.arrived(arrived, self.number, self.number + 1, BASE, self.number * 0.001)

    def test_shortQueue(self) -> None:
        """The window doubles until a loss, shrinks by half of the lost share, then grows by one."""
        self.round()
        self.assertEqual(self.window.size, 2 * FIRST_WINDOW)
        self.round(8)
        self.assertEqual(self.window.size, 2 * FIRST_WINDOW - 4)
        self.round()
        self.assertEqual(self.window.size, 2 * FIRST_WINDOW - 3)

    def test_longQueue(self) -> None:
        """With a long queue, a loss reduces the window by part of the queue; then it grows slowly."""
        for _each in range(3):
            self.round(seconds=10 * BASE)
        before = self.window.window
        self.round(1, seconds=10 * BASE)
        after = self.window.window
        self.assertTrue(0.6 * before < after < 0.8 * before, (before, after))
        self.round(seconds=10 * BASE)
        self.assertTrue(after < self.window.window < after + 0.1)

    def test_marks(self) -> None:
        """A congestion mark ends the doubling and reduces the window by a fifth, once per round trip."""
        self.round()
        for number in range(1, 4):
            before = self.window.window
            self.window.marked()
            self.round(seconds=10 * BASE)
            self.assertEqual(self.window.window, 0.8 * before if number % 2 else before)

    def test_pause(self) -> None:
        """A round in which a process was not scheduled is not taken for a queue."""
        for _each in range(2):
            self.round()
        before = self.window.window
        self.round(1, seconds=20 * BASE)
        self.assertGreater(self.window.window, 0.99 * before)

    def test_delayAlone(self) -> None:
        """However long round trips become, the window does not shrink below the segments that may wait."""
        for seconds in (BASE, 10 * BASE, 100 * BASE, 1000 * BASE):
            for _each in range(100):
                self.round(seconds=seconds)
            self.assertGreaterEqual(self.window.size, WAITING)

    def test_calm(self) -> None:
        """A long time after a loss, the window grows until L{WAITING} segments are queued."""
        self.round(1, seconds=10 * BASE)
        for _each in range(CALM + 100):
            self.round(seconds=10 * BASE)
        self.assertGreater(self.window.window * 0.9, 0.9 * WAITING)

    def test_notReady(self) -> None:
        """A peer that answers its first segment late gets the same window as other peers."""
        self.window.timedOut()
        self.assertEqual(self.window.size, NARROWEST)
        while self.window.size < WIDEST:
            before = self.window.size
            self.round()
            self.assertEqual(self.window.size, min(2 * before, WIDEST))

    def test_settles(self) -> None:
        """Windows that share a queue without loss converge from any initial sizes."""
        windows = [Congestion() for _each in range(4)]
        for number, window in enumerate(windows, 1):
            for _each in range(number):
                self.round(window=window)
        self.assertGreater(windows[-1].size, 7 * windows[0].size)
        for _each in range(60):
            seconds = sum(window.size for window in windows) * 20e-6  # for each queued segment
            for window in windows:
                self.round(seconds=seconds, window=window)
        sizes = [window.size for window in windows]
        self.assertLess(max(sizes) - min(sizes), WAITING // 8)
        self.assertTrue(WAITING <= min(sizes) <= 2 * WAITING, sizes)

    def test_drain(self) -> None:
        """While round trips are longer than the shortest one, the window is sometimes reduced for a round."""
        self.round()
        drained = 0
        while self.number * 0.001 < 2.5 * DRAIN_SECONDS:
            isDrained = self.window.size == NARROWEST < self.window.window
            self.round(seconds=BASE if isDrained else 3 * BASE)
            drained += self.window.size == NARROWEST < self.window.window
        self.assertEqual(drained, 2)

    def test_small(self) -> None:
        """Segments of a small window are sent at intervals."""
        path = Path(0, 0)
        path.channels[DATA].roundTrip.measured(BASE, 0.0)
        self.assertTrue(path.isFree())
        path.congestion.window = 0.5
        path.space(1, 1.0)
        self.assertFalse(path.isFree())
        self.assertTrue(1.0 < path.opensAt <= 1.0 + 2 * BASE / 0.5)
        path.expired(1.0)
        self.assertFalse(path.isFree())
        path.expired(path.opensAt)
        self.assertTrue(path.isFree())

    @given(st.lists(st.tuples(st.integers(0, 40), st.floats(0.001, 0.1), st.booleans()), max_size=200))
    def test_bounds(self, rounds: list[tuple[int, float, bool]]) -> None:
        """The window is always within its bounds."""
        self.window = Congestion()
        for lost, seconds, isSilent in rounds:
            if isSilent:
                self.window.timedOut()
            self.round(min(lost, self.window.size), seconds)
            self.assertTrue(SMALLEST <= self.window.window <= WIDEST)
            self.assertTrue(NARROWEST <= self.window.size <= WIDEST)


class BottleneckTests(SynchronousTestCase):
    """
    Senders that share a simulated bottleneck of 100,000 packets per second.

    Shares become equal after a longer time, which L{txrdma.test.soak.btl.test_congestion} simulates.
    """

    slowBecause = "it simulates some ten thousand packets"

    def test_shared(self) -> None:
        """Senders fill a link and share its short queue: few packets are lost, and shares are similar."""
        for senders, depth, begin, end, leastJain, pauses in (
            (1, 32, 0.03, 0.045, 0.99, 0.0),
            (4, 32, 0.04, 0.06, 0.7, 0.0),
            (16, 32, 0.05, 0.075, 0.7, 0.0),  # two packets each
            (64, 64, 0.04, 0.06, 0.5, 0.0),  # equal shares take longer
            (4, 32, 0.03, 0.1, 0.6, 0.025),  # pauses of all hosts, of 1 to 20 ms
        ):
            with self.subTest(senders=senders, pauses=pauses):
                many = ManySenders(senders, 100_000, depth, pauses=pauses)
                lost, jain, utilisation = many.measure(begin, end)
                self.assertLess(lost, 0.02)
                self.assertGreater(jain, leastJain)
                self.assertGreater(utilisation, 0.6 if pauses else 0.98)  # nothing is sent in most pauses

    def test_marks(self) -> None:
        """Senders that receive marks from a long queue shorten it, and lose nothing."""
        many = ManySenders(16, 100_000, 256, markFrom=20)
        lost, jain, utilisation = many.measure(0.05, 0.075)
        self.assertEqual(lost, 0)
        self.assertGreater(jain, 0.7)
        self.assertGreater(utilisation, 0.98)
        for peer in many.peers:
            self.assertLess(peer.sent.paths[0].channels[DATA].roundTrip.smoothed, 0.001)

    def test_withoutLoss(self) -> None:
        """On a busy machine without losses, windows grow as much as without pauses."""
        many = ManySenders(1, 100_000, 5000, pauses=0.003, size=900)
        many.world.run(0.6)
        self.assertGreaterEqual(many.peers[0].sent.paths[0].congestion.size, FIRST_WINDOW)

    def test_cubic(self) -> None:
        """Next to a sender with CUBIC's window, each gets between a third and two thirds."""
        many = ManySenders(1, 10_000, 50, 0.0005)
        other = CubicFlow(many.world.call, many.bottleneck, 0.001, MTU)
        many.world.call(0.2, lambda: other.fill(0.2))
        many.world.run(0.6)
        ours, others = many.received[1], other.delivered
        many.world.run(1.0)
        ours, others = many.received[1] - ours, (other.delivered - others) * MTU
        self.assertTrue(1 / 3 <= ours / (ours + others) <= 2 / 3, ours / (ours + others))

    def test_base(self) -> None:
        """With a full queue, the base round trip grows by only a few packets in more than a minute."""
        many = ManySenders(2, 200, 20_000, size=16 * 994)
        many.world.run(1.0)
        self.assertLess(self.base(many), 4 / 200)
        many.world.run(75.0)
        self.assertLess(self.base(many), 4.5 / 200)
        self.assertGreater(many.peers[0].sent.paths[0].channels[DATA].roundTrip.smoothed, 0.9)

    def test_receiveBuffer(self) -> None:
        """A busy receiver with a small buffer loses packets, unless it advertises its buffer."""
        self.assertEqual(self.lostByReceiver(True), 0)
        self.assertGreater(self.lostByReceiver(False), 100)

    def lostByReceiver(self, isAdvertised: bool) -> int:
        """Return how many packets a receiver loses that has space for 64 and is often busy for 1 to 4 ms."""
        many = ManySenders(16, 50_000, 5000, room=64, isAdvertised=isAdvertised)
        many.world.hosts[0].disturb(Random(1), 0.01, 0.001, 0.004)
        many.world.run(0.08)  # until the senders are counted
        before = many.world.dropped
        many.world.run(0.12)
        return many.world.dropped - before

    def base(self, many: ManySenders) -> float:
        """Return the largest base round trip of all senders, in seconds."""
        return max(peer.sent.paths[0].channels[DATA].roundTrip.base for peer in many.peers)


class RandomLossTests(SynchronousTestCase):
    """Utilization of a path that loses packets at random."""

    slowBecause = "it simulates some ten thousand packets"

    def test_used(self) -> None:
        """One sender uses most of a link that loses one packet in a hundred, or one in twenty."""
        for loss, delay, end in (
            *((0.01, 25e-6, 0.1), (0.01, 0.001, 0.2)),
            *((0.05, 25e-6, 0.1), (0.05, 0.001, 0.2)),
        ):
            many = ManySenders(1, 20_000, 256, delay, loss)
            many.world.run(end / 2)
            before = many.received[1]
            many.world.run(end)
            share = (many.received[1] - before) / (20_000 * 994 * end / 2)
            self.assertGreater(share, 0.75, (loss, delay))
