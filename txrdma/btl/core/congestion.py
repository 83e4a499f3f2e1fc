"""
The number of segments that may be in flight to one peer.

Additive increase, with a decrease that depends on the cause of the loss. If round trips have become longer, a
queue is full: the window shrinks to seven tenths as in CUBIC (RFC 9438, 4.6), so that many senders to one
receiver share it evenly. Otherwise the path itself loses packets, as radio links and bad cables do: the
window shrinks by half of the lost share, so that at 1 % loss it has about 200 segments, where TCP's rule
leaves 12 (RFC 5681). After a timeout the window restarts from its minimum (RFC 5681, 3.1), unless the
segments were only late, for example because the peer's process was not scheduled (RFC 4015).

A queue that loses nothing, such as a large ring in shared memory, would let the first sender keep the largest
window. Therefore, while round trips are long, each window converges to its share of the bandwidth-delay
product plus L{WAITING} queued segments, as in FAST TCP (Jin, Wei and Low, INFOCOM 2004). The number of queued
segments is estimated from the increase of the round trip.
"""

from __future__ import annotations

from typing import Final

FIRST_WINDOW: Final = 32
"""Initial window in segments."""

NARROWEST: Final = 2
"""Smallest window in segments: with two, one is acknowledged although the other is lost."""

WIDEST: Final = 4096
"""Largest window in segments: the window of sequence numbers."""

WAITING: Final = 128
"""Segments of one peer that may wait in a queue of the path; all senders of the queue converge to it."""

_LONGER: Final = 2.0
_TURN: Final = 0.0005
_SHRUNK: Final = 0.7


class Congestion:
    """
    The congestion window of one peer, adjusted once per round, in which one window of segments is
    acknowledged.

    @ivar size: segments.
    """

    __slots__ = (
        "_arrived",
        "_before",
        "_isAnswered",
        "_lost",
        "_shortest",
        "_threshold",
        "_until",
        "_wasFull",
        "size",
    )

    def __init__(self) -> None:
        self.size = FIRST_WINDOW
        self._threshold = WIDEST
        self._until = 0  # transmissions from this number on belong to the next round
        self._arrived = self._lost = 0
        self._shortest = 0.0
        self._wasFull = self._isAnswered = False
        self._before: tuple[int, int] | None = None  # size and threshold before the silence

    def filled(self) -> None:
        """Note that the window limits sending; otherwise it must not grow."""
        self._wasFull = True

    def lost(self, segments: int) -> None:
        """Count segments that are considered lost because later ones have arrived."""
        self._lost += segments

    def measured(self, seconds: float) -> None:
        """Record the round trip of a segment, in seconds."""
        if not self._shortest or seconds < self._shortest:
            self._shortest = seconds

    def arrived(self, segments: int, newest: int, following: int, base: float) -> None:
        """
        Count segments that were acknowledged.

        @param newest: number of the newest transmission among them.
        @param following: number of the next transmission.
        @param base: shortest known round trip, in seconds.
        """
        self._arrived += segments
        self._isAnswered = True
        if self._wasFull and self.size < self._threshold and not self._lost:
            self.size = min(self._threshold, self.size + segments)
        if newest >= self._until:  # a segment has arrived that was sent after the last round was judged
            self._judge(base)
            self._until = following

    def silent(self) -> None:
        """
        Shrink the window to its minimum after a retransmission timeout.

        A timeout before the first acknowledgement is ignored: the peer may not have been ready.
        """
        if self._before is None:
            self._before = self.size, self._threshold
        if self.size > NARROWEST and self._isAnswered:
            self._threshold = max(NARROWEST, self.size // 2)
        self.size = NARROWEST
        self._arrived = self._lost = 0

    def spurious(self) -> None:
        """Restore the window from before the timeout, which was spurious (RFC 4015, 3.2)."""
        if self._before is not None:
            size, self._threshold = self._before
            self.size = max(size, self.size)
            self._before = None

    def _judge(self, base: float) -> None:
        self._before = None  # a round has passed since
        isLonger = self._shortest > _LONGER * base + _TURN
        if self._lost:
            if isLonger:
                size = int(self.size * _SHRUNK)
            else:
                size = self.size - int(self.size * self._lost / (self._lost + self._arrived) / 2 + 0.5)
                size += 1
            self.size = self._threshold = max(NARROWEST, min(size, WIDEST))
        elif isLonger:
            self._settle(base)
        elif self._wasFull and self._threshold <= self.size < WIDEST:
            self.size += 1
        self._arrived = self._lost = 0
        self._shortest = 0.0
        self._wasFull = False

    def _settle(self, base: float) -> None:
        """
        Move half of the distance down to the window at which L{WAITING} segments are queued, or slowly up.
        """
        waiting = int(self.size * (1 - base / self._shortest))
        if waiting > WAITING:
            self.size -= (waiting - WAITING + 1) // 2
        elif self._wasFull and self.size >= self._threshold:
            self.size += (WAITING - waiting) // 8 + 1
        self._threshold = self.size  # no more doubling
