"""
The number of segments that may be in flight to one peer.

Additive increase, with a decrease that depends on why segments are lost. Where round trips have become longer
a queue is full: the window shrinks to seven tenths, as CUBIC's does (RFC 9438, 4.6), so that many senders to
one receiver share it evenly. Where they have not, the path loses by itself, as radio links and bad cables do:
the window shrinks by half of the share that was lost, so that at 1 % the window is some 200 segments, where
TCP's rule leaves 12 (RFC 5681). After a timeout almost nothing is known, and it begins anew (RFC 5681, 3.1);
unless what seemed lost was only late, as behind a process that was not scheduled (RFC 4015).

A queue that loses nothing, as a ring of shared memory that is large enough, would let each window stay where
it was when the queue began: whoever came first had the most. So while round trips are long each window is
drawn to its share of a bandwidth-delay product and L{WAITING} segments that wait in the queue, as FAST TCP's
is (Jin, Wei and Low, INFOCOM 2004): the waiting segments are those by which round trips are longer.
"""

from __future__ import annotations

from typing import Final

FIRST_WINDOW: Final = 32
"""Segments at the beginning, and after the peer was silent."""

NARROWEST: Final = 2
"""Segments that may always be on their way: one of them brings an answer although the other is lost."""

WIDEST: Final = 4096
"""Segments: the window of sequence numbers itself."""

WAITING: Final = 128
"""Segments of one peer that may wait in a queue on their way; all that share the queue settle there."""

_LONGER: Final = 2.0
_TURN: Final = 0.0005
_SHRUNK: Final = 0.7


class Congestion:
    """
    The congestion window of one peer, judged once in each round: while a window of segments is acknowledged.

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
        """Note that the window keeps segments from going: else there is no reason to widen it."""
        self._wasFull = True

    def lost(self, segments: int) -> None:
        """Count segments that others have overtaken for long, and that are sent again."""
        self._lost += segments

    def measured(self, seconds: float) -> None:
        """Take a round trip of a segment."""
        if not self._shortest or seconds < self._shortest:
            self._shortest = seconds

    def arrived(self, segments: int, newest: int, following: int, base: float) -> None:
        """
        Count segments that were acknowledged.

        @param newest: the number of the newest transmission among them.
        @param following: the number of the next transmission.
        @param base: the shortest round trip that is known, in seconds.
        """
        self._arrived += segments
        self._isAnswered = True
        if self._wasFull and self.size < self._threshold and not self._lost:
            self.size = min(self._threshold, self.size + segments)
        if newest >= self._until:
            self._judge(base)
            self._until = following

    def silent(self) -> None:
        """
        Shrink to almost nothing: no acknowledgement came in time.

        Before the first one this says nothing about the path: the peer may not have been ready.
        """
        if self._before is None:
            self._before = self.size, self._threshold
        if self.size > NARROWEST and self._isAnswered:
            self._threshold = max(NARROWEST, self.size // 2)
        self.size = NARROWEST
        self._arrived = self._lost = 0

    def spurious(self) -> None:
        """Be as before the silence: what seemed lost then was only late (RFC 4015, 3.2)."""
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
        """Move half of the distance down to where L{WAITING} segments wait in the queue, or slowly up."""
        waiting = int(self.size * (1 - base / self._shortest))
        if waiting > WAITING:
            self.size -= (waiting - WAITING + 1) // 2
        elif self._wasFull and self.size >= self._threshold:
            self.size += (WAITING - waiting) // 8 + 1
        self._threshold = self.size  # no more doubling
