"""
The number of segments that may be in flight on one path.

Only losses and marks shrink the window. A window that follows the delay would collapse on a busy machine,
where most of a round trip is the time for which a process was not scheduled. The delay only decides how
much a loss counts. It takes a part of the segments that wait in the queue of the path, which are estimated
from the shortest round trips of several rounds, because these contain the fewest pauses. While few
segments wait, the path itself loses packets, as radio links and bad cables do: the window shrinks by half
of the lost share, so that at 1 % loss it has about 200 segments, where TCP's rule leaves 12 (RFC 5681).

A mark of a router with explicit congestion notification (RFC 3168) takes a fifth of the window (RFC 8511),
whatever the delay is: the path is not at fault, and the router's queue is still short. Losses and marks
shrink a window once; those of the following round are older than that (RFC 3168, 6.1.2).

With additive increase, the share of lost segments is proportional to the growth in a round and to the
inverse square of the window. Therefore the growth is small while segments are queued: many senders to one
receiver lose about 1 % although each of them has only one segment in flight. It increases with the square
root of the window, so that larger windows, which lose less, become equal in less time; with a larger power
of the window they would not become equal. It also increases with the square of the time since the last
loss, so that larger windows compete with TCP CUBIC (RFC 9438). A window below L{NARROWEST} means fewer
segments than that in a round trip: they are sent at intervals.

A queue that loses nothing, such as a large ring in shared memory, would let the first sender keep the
largest window. Therefore each window converges to its share of the bandwidth-delay product plus L{WAITING}
queued segments, as in FAST TCP (Jin, Wei and Low, INFOCOM 2004).

After a timeout the window restarts from its minimum (RFC 5681, 3.1), unless the segments were only late,
for example because the peer's process was not scheduled (RFC 4015). The shortest round trip is only found
while the queue is empty: from time to time the window is reduced for one round, as in BBR.
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

WAITING: Final = 128
"""Segments of one peer that may wait in a queue of the path; all senders of the queue converge to it."""

CALM: Final = 1000
"""Rounds without losses after which the window grows faster."""

DRAIN_SECONDS: Final = 9.0
"""
Seconds without a round trip as short as the shortest one, after which the window is reduced for one round, so
that the queue of the path drains.
"""

LONGEST_INTERVAL: Final = 0.02
"""Longest mean time in seconds between two segments of a small window."""

MARKED_SHARE: Final = 0.2
"""Part of the window that a mark takes, at most once in a round (RFC 8511, 3)."""

MANY_LOST: Final = 1 / 3
"""Share of lost segments that halves the window in any case."""

ROUNDS: Final = 8
"""Rounds whose shortest round trip is used: pauses of processes lengthen most of them on a busy host."""

_SHRUNK: Final = 0.4  # part of a window that a loss takes if all of its segments are queued
_EMPTY: Final = 0.4  # queued share below which a loss does not reduce the window
_SHORT: Final = 0.5  # queued share below which the window grows by one in each round
_GROWTH: Final = 0.007  # segments in a round otherwise, after a loss and for a window of one segment
_RECENT: Final = 100  # rounds since a loss after which the growth is doubled


class Congestion:
    """
    The congestion window of one path, adjusted once per round, in which one window of segments is
    acknowledged.

    @ivar window: segments; C{size}: the largest number of segments in flight.
    """

    __slots__ = (
        *("_arrived", "_before", "_calm", "_drainAt", "_isAnswered", "_isDraining"),
        *("_isMarked", "_isRecovering", "_latest", "_lost", "_recent", "_shortest"),
        *("_threshold", "_until", "_wasFull", "size", "window"),
    )

    def __init__(self) -> None:
        self.window = float(FIRST_WINDOW)
        self.size = FIRST_WINDOW
        self._threshold = float(WIDEST)
        self._until = 0  # transmissions from this number on belong to the next round
        self._arrived = self._lost = 0
        self._shortest = self._recent = self._drainAt = 0.0
        self._latest: tuple[float, ...] = ()  # shortest round trips of the last rounds
        self._calm = CALM  # rounds since a loss
        self._wasFull = self._isAnswered = self._isDraining = False
        self._isMarked = self._isRecovering = False
        self._before: tuple[float, float] | None = None  # window and threshold before the silence

    def filled(self) -> None:
        """Note that the window limits sending; otherwise it must not grow."""
        self._wasFull = True

    def lost(self, segments: int) -> None:
        """Count segments that are considered lost because later ones have arrived."""
        self._lost += segments

    def marked(self) -> None:
        """Note that a router has marked segments instead of dropping them: see L{txrdma.btl.core.marks}."""
        self._isMarked = True

    def measured(self, seconds: float) -> None:
        """Record the round trip of a segment, in seconds."""
        if not self._shortest or seconds < self._shortest:
            self._shortest = seconds

    def arrived(self, segments: int, newest: int, following: int, base: float, now: float) -> None:
        """
        Count segments that were acknowledged.

        @param newest: number of the newest transmission among them.
        @param following: number of the next transmission.
        @param base: shortest known round trip, in seconds.
        """
        self._arrived += segments
        self._isAnswered = True
        if self._wasFull and self.window < self._threshold and not (self._lost or self._isMarked):
            self._set(min(self._threshold, self.window + segments))
        if newest >= self._until:  # a segment has arrived that was sent after the last round was judged
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
            self._threshold = max(float(NARROWEST), self.window / 2)
        self._set(min(self.window, float(NARROWEST)))
        self._arrived = self._lost = 0

    def spurious(self) -> None:
        """Restore the window from before the timeout, which was spurious (RFC 4015, 3.2)."""
        if self._before is not None:
            window, self._threshold = self._before
            self._set(max(window, self.window))
            self._before = None

    def interval(self, roundTrip: float) -> float:
        """Return the mean seconds between two segments of a window below L{NARROWEST}."""
        return min(roundTrip / self.window, LONGEST_INTERVAL)

    def _set(self, window: float) -> None:
        self.window = max(SMALLEST, min(window, float(WIDEST)))
        self.size = NARROWEST if self._isDraining else max(NARROWEST, int(self.window))

    def _judge(self, base: float, now: float) -> None:
        self._before = None  # a round has passed since
        self._calm += 1
        lost, total = self._lost, self._lost + self._arrived
        if self._shortest:
            self._latest = (*self._latest[1 - ROUNDS :], self._shortest)
        queued = max(0.0, 1 - base / min(self._latest)) if self._latest else _SHORT
        waiting = self.window * (1 - base / self._shortest) if self._shortest else 0.0
        if self._isDraining:
            self._isDraining = False  # and the window remains
        elif (lost or self._isMarked) and not self._isRecovering:
            segments = total if self._wasFull else max(total, self.window)
            self._shrink(lost / segments, queued)
        else:
            self._isRecovering = False  # losses of the round after a reduction are older than it
            if self._threshold >= WIDEST and queued > _SHORT:
                self._threshold = self.window  # no more doubling
            if waiting > WAITING:
                self.window -= (waiting - WAITING) / 2
                self._threshold = min(self._threshold, self.window)
            elif self._wasFull and self.window >= self._threshold and not self._isMarked:
                self.window += self._growth(waiting, queued)
        self._drain(now)
        self._arrived = self._lost = 0
        self._shortest = 0.0
        self._wasFull = self._isMarked = False

    def _shrink(self, share: float, queued: float) -> None:
        """Reduce the window because a share of its segments was lost while another share was queued."""
        fraction = MARKED_SHARE if self._isMarked else 0.0
        if share:
            fraction = max(fraction, _SHRUNK * (queued - _EMPTY) / (1 - _EMPTY), share / 2)
        self.window *= 0.5 if share > MANY_LOST else 1 - fraction
        self._threshold = self.window
        self._calm, self._isRecovering = 0, True

    def _growth(self, waiting: float, queued: float) -> float:
        """Return by how many segments the window grows in a round without losses."""
        if self._calm > CALM:
            return (WAITING - waiting) / 8 + 1
        if queued < _SHORT:
            return 1.0
        # A window of less than a segment is judged less often than once in a round trip.
        return min(1.0, _GROWTH * max(sqrt(self.window), 1 / self.window) * (1 + (self._calm / _RECENT) ** 2))

    def _drain(self, now: float) -> None:
        """Reduce the window for a round if the shortest round trip was not seen for L{DRAIN_SECONDS}."""
        if self._shortest and (not self._recent or self._shortest <= 1.05 * self._recent):
            self._recent, self._drainAt = self._shortest, now + DRAIN_SECONDS
        elif self._recent and now >= self._drainAt:
            self._isDraining, self._recent = True, 0.0
        self._set(self.window)
