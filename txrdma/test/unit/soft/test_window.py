"""
Tests for L{txrdma.soft.rc._window}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.soft.rc._window import FEWEST_PACKETS, FIRST, PacketWindow, WIDEST


class WindowTests(SynchronousTestCase):
    """L{PacketWindow} opens and closes as TCP's does."""

    def test_windowStaysWithinBounds(self) -> None:
        for mtu in (256, 1024, 4096):
            window = PacketWindow(mtu)
            for _ in range(10000):
                window.acknowledged(64)
                self.assertLessEqual(window.size * mtu, WIDEST)
            self.assertGreater(window.size, PacketWindow(mtu).size)

    def test_windowFitsIntoPeersAssumedBuffer(self) -> None:
        window = PacketWindow(4096, 200_000)
        self.assertLessEqual(window.size * 4096, 200_000)
        for _ in range(1000):
            window.acknowledged(64)
        self.assertEqual(window.size, 200_000 // 4096)

    def test_slowGrowthAfterLoss(self) -> None:
        window = PacketWindow(4096)
        window.acknowledged(window.size)
        self.assertEqual(window.size, FIRST // 4096 * 5 // 4)
        window.lost()
        size = window.size
        for _ in range(3):
            window.acknowledged(window.size)
        self.assertEqual(window.size, size + 3)

    def test_lossNeverClosesWindow(self) -> None:
        window = PacketWindow(1024)
        for _ in range(20):
            window.lost()
        self.assertEqual(window.size, FEWEST_PACKETS)
