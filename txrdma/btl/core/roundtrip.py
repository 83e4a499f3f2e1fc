"""
The round trip to one peer over one channel, and the two times after which a segment counts as lost.

Follows RFC 6298 (the retransmission timeout) and RFC 8985, 6.2 (the time to wait when later segments have
arrived, because packets may overtake each other). Both times grow when a retransmission was spurious.
The base round trip is the shortest one of the last minute: that of an empty queue.
"""

from __future__ import annotations

from typing import Final

SHORTEST_TIMEOUT: Final = 0.005
"""Shortest timeout in seconds; usnic's C{retrans_timeout}. Reactor iterations are not much shorter."""

FIRST_TIMEOUT: Final = 0.1
"""Timeout in seconds before the first sample; the timeout of usnic's first design."""

LONGEST_TIMEOUT: Final = 1.0
"""Longest timeout in seconds, so that a peer is noticed within this time when it returns."""

MOST_PATIENT: Final = 16
"""Longest wait for a segment after later ones have arrived, in quarters of a round trip."""

BASE_SECONDS: Final = 10.0
"""Seconds of a period whose shortest round trip is stored; the window is reduced once in each one."""

BASE_PERIODS: Final = 6
"""Number of periods for the base round trip: queues of several senders are seldom empty at once."""

_FORGIVEN: Final = 16


class RoundTripEstimate:
    """
    The estimated round trip to one peer over one channel.

    @ivar smoothed: smoothed round trip in seconds, zero before the first sample; C{base}: the shortest of the
        last minute.
    @ivar timeout: retransmission timeout in seconds.
    @ivar hasOwn: whether there was a sample of this channel.
    """

    __slots__ = (
        "_baseAt",
        "_latest",
        "_minima",
        "_recoveries",
        "_usual",
        "_variation",
        "base",
        "hasOwn",
        "reorderQuarters",
        "smoothed",
        "timeout",
    )

    def __init__(self) -> None:
        self.smoothed = self._variation = self._latest = self.base = 0.0
        self.timeout = self._usual = FIRST_TIMEOUT
        self._baseAt = 0.0  # time when the current period began
        self._minima: tuple[float, ...] = ()  # shortest round trip of each period
        self.reorderQuarters = 1  # quarters of a round trip (RFC 8985, 6.2)
        self._recoveries = 0  # recoveries since the last spurious retransmission
        self.hasOwn = False

    def measured(self, seconds: float, now: float, isOwn: bool = True) -> None:
        """
        Process a sample of a transmission that is known to have arrived (RFC 6298, 2.2 and 2.3).

        @param isOwn: whether it used this channel; samples of the other channel are used until C{hasOwn}.
        """
        if isOwn and not self.hasOwn:
            self.smoothed = self.base = 0.0
            self.hasOwn = True
        # Comparisons instead of min and max: this is called for every message.
        if seconds < 0.0:
            seconds = 0.0
        elif seconds > LONGEST_TIMEOUT:
            seconds = LONGEST_TIMEOUT
        smoothed = self.smoothed
        if smoothed:
            self._variation += (abs(smoothed - seconds) - self._variation) / 4
            self.smoothed = smoothed + (seconds - smoothed) / 8
        else:
            self.smoothed, self._variation = seconds, seconds / 2
        self._latest = seconds
        if not self.base or seconds < self._minima[-1] or now - self._baseAt > BASE_SECONDS:
            self._measureBase(seconds, now)
        variation = 4 * self._variation
        usual = self.smoothed + (variation if variation > SHORTEST_TIMEOUT else SHORTEST_TIMEOUT)
        # The timer is for segments without later acknowledgements.
        overtaken = self.overtaken() + SHORTEST_TIMEOUT
        if overtaken > usual:
            usual = overtaken
        self.timeout = self._usual = usual if usual < LONGEST_TIMEOUT else LONGEST_TIMEOUT

    def _measureBase(self, seconds: float, now: float) -> None:
        """Update the shortest round trip of the last L{BASE_PERIODS} periods."""
        if not self.base:
            self._minima, self._baseAt = (seconds,), now
        elif now - self._baseAt > BASE_SECONDS:
            self._minima, self._baseAt = (*self._minima[1 - BASE_PERIODS :], seconds), now
        else:
            self._minima = (*self._minima[:-1], seconds)
        self.base = min(self._minima)

    def expired(self) -> None:
        """Double the timeout after it has expired."""
        self.timeout = min(2 * self.timeout, LONGEST_TIMEOUT)

    def answered(self) -> None:
        """Restore the usual timeout after an answer, unless L{spurious} finds it too short."""
        self.timeout = self._usual

    def overtaken(self) -> float:
        """
        Return after how many seconds a segment is considered lost when later ones of its channel have
        arrived.

        RFC 8985, 6.2, waits for a part of a round trip. The variation of round trips is added.
        """
        later = self.smoothed if self.smoothed > self._latest else self._latest
        reordered, varied = self.base * self.reorderQuarters / 4, 2 * self._variation
        return later + (reordered if reordered > varied else varied)

    def spurious(self) -> None:
        """Increase both waiting times after a spurious retransmission; the timer's until the next sample."""
        self.reorderQuarters = min(self.reorderQuarters + 1, MOST_PATIENT)
        self._recoveries = 0
        self._usual = min(2 * self._usual, LONGEST_TIMEOUT)
        self.timeout = max(self.timeout, self._usual)

    def recovered(self) -> None:
        """
        Note a recovery without spurious retransmissions; after several of them the waiting time is reduced
        again.
        """
        self._recoveries += 1
        if self._recoveries >= _FORGIVEN:
            self.reorderQuarters, self._recoveries = 1, 0
