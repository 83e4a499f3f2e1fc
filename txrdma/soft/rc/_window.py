"""
The congestion window of a connection, in packets.

RC has no congestion control, but UDP's socket buffers are limited: the window opens up to what the peer's
buffer is assumed to hold, at most L{WIDEST} bytes. It is halved by a loss, and then opens slowly, as in TCP
(RFC 5681, 3.1).
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 256 * 1024
"""Initial window in bytes: the capacity of Linux's default socket buffers."""

WIDEST: Final = 1024 * 1024
FIRST_PACKETS: Final = 128
WIDEST_PACKETS: Final = 512
FEWEST_PACKETS: Final = 4


class PacketWindow:
    """The window of one connection; C{size} is in packets."""

    __slots__ = ("_credit", "_threshold", "_widest", "size")

    def __init__(self, mtu: int, most: int = WIDEST) -> None:
        """
        @param mtu: largest payload of a packet, in bytes.
        @param most: estimate of the bytes in flight that fit into the peer's receive buffer.
        """
        self._widest = self._threshold = max(FEWEST_PACKETS, min(WIDEST_PACKETS, min(most, WIDEST) // mtu))
        self.size = max(FEWEST_PACKETS, min(self._widest, FIRST_PACKETS, FIRST // mtu))
        self._credit = 0

    def acknowledged(self, packets: int) -> None:
        """Widen the window after packets were acknowledged while it was full."""
        if self.size < self._threshold:
            self.size = min(self._widest, self.size + max(1, packets // 4))
            return
        self._credit += packets
        if self._credit >= self.size and self.size < self._widest:
            self._credit = 0
            self.size += 1

    def lost(self) -> None:
        """Halve the window, because a packet was lost."""
        self.size = self._threshold = max(FEWEST_PACKETS, self.size // 2)
        self._credit = 0
