"""
Tests for L{txrdma.soft.rc._window}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.soft.rc._window import FEWEST_PACKETS, FIRST, WIDEST, Window


class WindowTests(SynchronousTestCase):
    """L{Window} opens and closes as TCP's does."""

    def test_windowStaysWithinBounds(self) -> None:
        for mtu in (256, 1024, 4096):
            window = Window(mtu)
            for _ in range(10000):
                window.acknowledged(64)
                self.assertLessEqual(window.size * mtu, WIDEST)
            self.assertGreater(window.size, Window(mtu).size)

    def test_windowFitsIntoPeersAssumedBuffer(self) -> None:
        window = Window(4096, 200_000)
        self.assertLessEqual(window.size * 4096, 200_000)
        for _ in range(1000):
            window.acknowledged(64)
        self.assertEqual(window.size, 200_000 // 4096)

    def test_slowGrowthAfterLoss(self) -> None:
        window = Window(4096)
        window.acknowledged(window.size)
        self.assertEqual(window.size, FIRST // 4096 * 5 // 4)
        window.lost()
        size = window.size
        for _ in range(3):
            window.acknowledged(window.size)
        self.assertEqual(window.size, size + 3)

    def test_lossNeverClosesWindow(self) -> None:
        window = Window(1024)
        for _ in range(20):
            window.lost()
        self.assertEqual(window.size, FEWEST_PACKETS)
