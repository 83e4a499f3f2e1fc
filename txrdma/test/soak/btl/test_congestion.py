"""
Senders that share a simulated bottleneck, for long enough that their windows converge.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.btl.manysenders import ManySenders

RATE = 100_000
"""Packets per second of the bottleneck; round trips without a queue take 0.1 ms."""


class BottleneckTests(SynchronousTestCase):
    slowBecause = "it simulates some hundred thousand packets"

    def assertShared(
        self, senders: int, depth: int, end: float, leastJain: float = 0.9, pauses: float = 0.0
    ) -> None:
        """Assert that few packets are lost in the second half of a time, and that shares are equal."""
        many = ManySenders(senders, RATE, depth, pauses=pauses)
        lost, jain, utilisation = many.measure(end / 2, end)
        self.assertLess(lost, 0.02)
        self.assertGreater(jain, leastJain)
        self.assertGreater(utilisation, 0.6 if pauses else 0.98)  # nothing is sent in most of the pauses

    def test_shortQueues(self) -> None:
        """Senders share a queue of less than a millisecond."""
        for senders, depth, end in ((1, 32, 0.5), (4, 32, 4.0), (16, 32, 4.0), (64, 64, 4.0)):
            self.assertShared(senders, depth, end)

    def test_longQueue(self) -> None:
        """Shares become equal in seconds in a longer queue, which seldom loses a packet."""
        self.assertShared(16, 256, 4.0)

    def test_pauses(self) -> None:
        """All hosts pause for 1 to 20 ms, on average every 60 ms."""
        for senders, depth, end in ((1, 32, 2.0), (4, 32, 3.0), (16, 32, 2.0), (64, 64, 4.0)):
            self.assertShared(senders, depth, end, 0.8, pauses=0.05)
