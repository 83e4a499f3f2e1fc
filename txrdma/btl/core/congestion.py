"""
The congestion window: the number of segments that may be in flight on one path.

Theory of operation. Only losses and marks shrink the window. A window that follows the delay would collapse
on a busy machine, where most of a round trip is the time for which a process was not scheduled. The delay
only decides how much a loss counts. It takes a part of the segments that wait in the queue of the path, which
are estimated from the shortest round trips of several rounds, because these contain the fewest pauses. While
few segments wait, the path itself loses packets, as radio links and bad cables do: the window shrinks by half
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
        *("_acknowledged", "_beforeTimeout", "_drainAt", "_drainBase", "_isAnswered", "_isDraining"),
        *("_isMarked", "_isRecovering", "_lost", "_minima", "_roundEnd", "_roundMinimum"),
        *("_roundsSinceLoss", "_threshold", "_wasFull", "size", "window"),
    )

    def __init__(self) -> None:
        self.window = float(FIRST_WINDOW)
        self.size = FIRST_WINDOW
        self._threshold = float(WIDEST)  # slow-start threshold (RFC 5681): below it the window doubles
        self._roundEnd = 0  # transmissions from this number on belong to the next round
        self._acknowledged = self._lost = 0  # segments of this round
        self._roundMinimum = 0.0  # shortest round trip of this round; zero before the first sample
        self._minima: tuple[float, ...] = ()  # shortest round trips of the last rounds
        self._drainBase = 0.0  # round trip of an empty queue, as far as known; zero after a reduction
        self._drainAt = 0.0  # time of the next reduction, unless a round trip is as short as that before
        self._roundsSinceLoss = CALM
        self._wasFull = False  # whether the window has limited sending in this round
        self._isMarked = False  # whether a router has marked segments in this round
        self._isAnswered = False  # whether anything was ever acknowledged
        self._isDraining = False  # whether the window is reduced for this round
        self._isRecovering = False  # whether the window shrank after the last round
        self._beforeTimeout: tuple[float, float] | None = None  # window and threshold, to restore them

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
        """Record the round trip of a segment."""
        if not self._roundMinimum or seconds < self._roundMinimum:
            self._roundMinimum = seconds

    def arrived(self, segments: int, newest: int, following: int, base: float, now: float) -> None:
        """
        Count segments that were acknowledged.

        @param newest: number of the newest transmission among them.
        @param following: number of the next transmission.
        @param base: shortest known round trip, in seconds.
        """
        self._acknowledged += segments
        self._isAnswered = True
        if self._wasFull and self.window < self._threshold and not (self._lost or self._isMarked):
            self._set(min(self._threshold, self.window + segments))
        if newest >= self._roundEnd:  # a segment has arrived that was sent after the last round ended
            self._endRound(base, now)
            self._roundEnd = following

    def timedOut(self) -> None:
        """
        Shrink the window to L{NARROWEST} after a retransmission timeout.

        Before the first acknowledgement, the threshold is not reduced: the peer may not have been ready.
        """
        if self._beforeTimeout is None:
            self._beforeTimeout = self.window, self._threshold
        if self.window > NARROWEST and self._isAnswered:
            self._threshold = max(float(NARROWEST), self.window / 2)
        self._set(min(self.window, float(NARROWEST)))
        self._acknowledged = self._lost = 0

    def spurious(self) -> None:
        """Restore the window from before the timeout, which was spurious (RFC 4015, 3.2)."""
        if self._beforeTimeout is not None:
            window, self._threshold = self._beforeTimeout
            self._set(max(window, self.window))
            self._beforeTimeout = None

    def interval(self, roundTrip: float) -> float:
        """Return the mean seconds between two segments of a window below L{NARROWEST}."""
        return min(roundTrip / self.window, LONGEST_INTERVAL)

    def _set(self, window: float) -> None:
        self.window = max(SMALLEST, min(window, float(WIDEST)))
        self.size = NARROWEST if self._isDraining else max(NARROWEST, int(self.window))

    def _endRound(self, base: float, now: float) -> None:
        """
        Adapt the window to the losses, marks and round trips of a round.

        C{queued} is the share of the shortest recent round trip that was spent in the queue of the path;
        C{waiting} is the number of segments in that queue, as in FAST TCP.
        """
        self._beforeTimeout = None  # a round has passed since
        self._roundsSinceLoss += 1
        lost, total = self._lost, self._lost + self._acknowledged
        if self._roundMinimum:
            self._minima = (*self._minima[1 - ROUNDS :], self._roundMinimum)
        queued = max(0.0, 1 - base / min(self._minima)) if self._minima else _SHORT
        waiting = self.window * (1 - base / self._roundMinimum) if self._roundMinimum else 0.0
        if self._isDraining:
            self._isDraining = False  # and the window remains
        elif (lost or self._isMarked) and not self._isRecovering:
            segments = total if self._wasFull else max(total, self.window)
            self._shrink(lost / segments, queued)
        else:
            self._isRecovering = False  # losses of the round after a reduction are older than it
            if self._threshold >= WIDEST and queued > _SHORT:
                self._threshold = self.window  # end slow start before the queue overflows
            if waiting > WAITING:
                self.window -= (waiting - WAITING) / 2
                self._threshold = min(self._threshold, self.window)
            elif self._wasFull and self.window >= self._threshold and not self._isMarked:
                self.window += self._growth(waiting, queued)
        self._drain(now)
        self._acknowledged = self._lost = 0
        self._roundMinimum = 0.0
        self._wasFull = self._isMarked = False

    def _shrink(self, share: float, queued: float) -> None:
        """Reduce the window because a share of its segments was lost while another share was queued."""
        fraction = MARKED_SHARE if self._isMarked else 0.0
        if share:
            fraction = max(fraction, _SHRUNK * (queued - _EMPTY) / (1 - _EMPTY), share / 2)
        self.window *= 0.5 if share > MANY_LOST else 1 - fraction
        self._threshold = self.window
        self._roundsSinceLoss, self._isRecovering = 0, True

    def _growth(self, waiting: float, queued: float) -> float:
        """Return by how many segments the window grows in a round without losses."""
        if self._roundsSinceLoss > CALM:
            return (WAITING - waiting) / 8 + 1
        if queued < _SHORT:
            return 1.0
        age = (self._roundsSinceLoss / _RECENT) ** 2
        # With a window below one segment, a round is longer than a round trip.
        return min(1.0, _GROWTH * max(sqrt(self.window), 1 / self.window) * (1 + age))

    def _drain(self, now: float) -> None:
        """Reduce the window for a round if the shortest round trip was not seen for L{DRAIN_SECONDS}."""
        if self._roundMinimum and (not self._drainBase or self._roundMinimum <= 1.05 * self._drainBase):
            self._drainBase, self._drainAt = self._roundMinimum, now + DRAIN_SECONDS
        elif self._drainBase and now >= self._drainAt:
            self._isDraining, self._drainBase = True, 0.0
        self._set(self.window)
