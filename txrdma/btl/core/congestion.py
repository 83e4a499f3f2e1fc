"""
The number of segments that may be in flight on one path.

The window follows the delay of the path, as in Swift (Kumar et al., SIGCOMM 2020). While round trips are
short it
grows; while they are longer than a target, a queue is longer than necessary, and the window shrinks in
proportion to the excess. Small windows have a longer target, so that many senders to one receiver converge to
equal shares without filling its queue. A window below L{NARROWEST} means fewer than that number of segments
in a
round trip: they are sent at intervals.

A loss is not evidence of congestion while round trips are short: radio links and bad cables lose packets,
too.
Then only a large lost share shrinks the window. If round trips remain long although the window has shrunk to
half, another sender keeps the queue full, as TCP does: then, until the queue is short again, the window
grows by
one segment in a round trip and shrinks to seven tenths at a loss, as in CUBIC (RFC 9438, 4.6). After a
timeout
the window restarts from its minimum (RFC 5681, 3.1), unless the segments were only late, for example because
the
peer's process was not scheduled (RFC 4015).

The target depends on the shortest round trip, which is measured while the queue is short: from time to time
the
window is reduced for one round.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

FIRST_WINDOW: Final = 32
"""Initial window in segments."""

NARROWEST: Final = 2
"""Segments that may be in flight in any case: with two, one is acknowledged although the other is lost."""

SMALLEST: Final = 0.1
"""Smallest window in segments: one segment in ten round trips."""

WIDEST: Final = 4096
"""Largest window in segments: the window of sequence numbers."""

QUEUED: Final = 0.00005
"""Seconds beyond twice the base round trip that are no evidence of a queue."""

LONGEST_QUEUED: Final = 0.003
"""Seconds beyond a long base round trip that are no evidence of a queue, instead of twice the round trip."""

MANY_LOST: Final = 0.125
"""Share of lost segments that is evidence of congestion, also while round trips are short."""

COMPETING: Final = 50
"""Number of long round trips, with a window of one at most, after which another sender fills the queue."""

FEWEST_COMPETING: Final = 4
"""
Smallest window that competes with another sender: adding a segment to less in each round would lose many.
"""

LONGEST_INTERVAL: Final = 0.02
"""Longest mean time in seconds between two segments of a small window."""

DRAIN_SECONDS: Final = 9.0
"""Seconds after which the window is reduced for a round, to measure the shortest round trip; less than a
period of the
base round trip."""

_FLOW_SECONDS: Final = 0.00012
_SHRUNK: Final = 0.7
_SHRUNK_COMPETING: Final = 0.85  # the losses of a full queue are usually found in two rounds
_GROWTH: Final = 0.03
_REACTION: Final = 0.3
_STEEPEST: Final = 1 / 16
_SEGMENTS: Final = 64


class Congestion:
    """
    The congestion window of one path, adjusted once per round, in which one window of segments is
    acknowledged.

    @ivar window: segments; C{size}: the largest number of segments in flight.
    @ivar isCompeting: whether another sender fills the queue.
    """

    __slots__ = (
        *(
            "_arrived",
            "_before",
            "_drainAt",
            "_isAnswered",
            "_isDraining",
            "_isSpurious",
            "_longSince",
            "_lost",
            "_samples",
            "_share",
        ),
        *("_sum", "_threshold", "_until", "_wasFull", "_widest", "isCompeting", "size", "window"),
    )

    def __init__(self) -> None:
        self.window = float(FIRST_WINDOW)
        self.size = FIRST_WINDOW
        self._threshold = float(WIDEST)
        self._until = 0  # transmissions from this number on belong to the next round
        self._arrived = self._lost = 0
        self._samples = 0
        self._sum = self._drainAt = 0.0  # of round trips
        self._share = 0.0  # of lost segments
        self._wasFull = self._isAnswered = self._isDraining = self._isSpurious = False
        self._longSince = 0.0  # time of the last round trip that was not long
        self._widest = 0.0  # the window before round trips became long
        self.isCompeting = False
        self._before: tuple[float, float] | None = None  # window and threshold before the silence

    def filled(self) -> None:
        """Note that the window limits sending; otherwise it must not grow."""
        self._wasFull = True

    def lost(self, segments: int) -> None:
        """Count segments that are considered lost because later ones have arrived."""
        self._lost += segments

    def measured(self, seconds: float) -> None:
        """Record the round trip of a segment, in seconds."""
        self._samples += 1
        self._sum += seconds

    def arrived(self, segments: int, newest: int, following: int, base: float, now: float) -> None:
        """
        Count segments that were acknowledged.

        @param newest: number of the newest transmission among them.
        @param following: number of the next transmission.
        @param base: shortest known round trip, in seconds.
        """
        self._arrived += segments
        self._isAnswered = True
        if self._wasFull and self.window < self._threshold and not self._lost:
            self._set(min(self._threshold, self.window + segments))
        if newest >= self._until:
            self._judge(base, now)
            self._until = following

    def silent(self) -> None:
        """
        Shrink the window to its minimum after a retransmission timeout.

        A timeout before the first acknowledgement is ignored: the peer may not have been ready.
        """
        if self._before is None:
            self._before = self.window, self._threshold
        if self.window > NARROWEST and self._isAnswered:
            self._threshold = self.window
        self._set(min(self.window, float(NARROWEST)))
        self._arrived = self._lost = 0

    def spurious(self) -> None:
        """Restore the window from before the timeout, which was spurious (RFC 4015, 3.2)."""
        if self._before is not None:
            window, self._threshold = self._before
            self._set(max(window, self.window))
            self._before, self._isSpurious = None, True

    def interval(self, roundTrip: float) -> float:
        """Return the seconds between two segments of a window that is too small to be filled; else zero."""
        return min(roundTrip / self.window, LONGEST_INTERVAL) if self.window < NARROWEST else 0.0

    def _set(self, window: float) -> None:
        self.window = max(SMALLEST, min(window, float(WIDEST)))
        self.size = NARROWEST if self._isDraining else max(NARROWEST, int(self.window))

    def target(self, base: float) -> float:
        """Return the longest round trip in seconds that is no evidence of a queue."""
        return base + min(base, LONGEST_QUEUED) + QUEUED + _FLOW_SECONDS / sqrt(self.window)

    def _judge(self, base: float, now: float) -> None:
        self._before = None  # a round has passed since
        lost, total = self._lost, self._lost + self._arrived
        self._share += (lost - self._share * total) / max(total, _SEGMENTS)
        target = self.target(base)
        isMeasured = self._samples and not self._isSpurious  # late segments say nothing about the queue
        roundTrip, self._isSpurious = self._sum / self._samples if isMeasured else base, False
        isLong = roundTrip > target
        self._judgeOthers(roundTrip if isLong else 0.0, now)
        window = self.window
        if self._isDraining:
            self._isDraining = False  # and the window remains
        elif self.isCompeting:
            window = window * _SHRUNK_COMPETING if lost else window + 1
        elif lost and (self._share > MANY_LOST or roundTrip > 2 * target - base):
            window *= min(_SHRUNK, 1 - self._share)
        elif isLong:
            excess = (roundTrip - target) / roundTrip
            window *= max(_SHRUNK, 1 - _REACTION * excess)
        elif self._wasFull and window >= self._threshold:
            rounds = max(1.0, 1 / window)  # a small window is judged less often
            window += rounds * max(_GROWTH, (window - FEWEST_COMPETING) * _STEEPEST)
        if isLong or window < self.window:
            self._threshold = window  # no more doubling
        if now >= self._drainAt:
            self._isDraining, self._drainAt = self._drainAt > 0 and window > NARROWEST, now + DRAIN_SECONDS
        self._set(window)
        self._arrived = self._lost = 0
        self._samples, self._sum = 0, 0.0
        self._wasFull = False

    def _judgeOthers(self, longRoundTrip: float, now: float) -> None:
        """
        Determine whether round trips are long because another sender fills the queue.

        @param longRoundTrip: seconds; zero if the round trip is not long.
        """
        if not longRoundTrip or (self.isCompeting and self.window < FEWEST_COMPETING):
            self.isCompeting, self._widest, self._longSince = False, self.window, now
        elif self.window > 1 and not self.isCompeting:
            self._longSince = now
        elif not self.isCompeting and now - self._longSince > COMPETING * longRoundTrip:
            self.isCompeting = self._widest >= 2 * FEWEST_COMPETING
            if self.isCompeting:
                self._set(self._widest / 2)
