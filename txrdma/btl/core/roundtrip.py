"""
The round trip to one peer over one channel, and the retransmission timeout (RFC 6298).
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
    """

    __slots__ = (
        "_baseAt",
        "_calm",
        "_hasOwn",
        "_latest",
        "_minima",
        "_usual",
        "_variation",
        "base",
        "reorderQuarters",
        "smoothed",
        "timeout",
    )

    def __init__(self) -> None:
        self.smoothed = self._variation = self._latest = self.base = 0.0
        self.timeout = self._usual = FIRST_TIMEOUT
        self._baseAt = 0.0
        self._minima: tuple[float, ...] = ()
        self.reorderQuarters = 1  # quarters of a round trip (RFC 8985, 7.1)
        self._calm = 0
        self._hasOwn = False

    def measured(self, seconds: float, now: float, isOwn: bool = True) -> None:
        """
        Process a sample of a transmission that is known to have arrived (RFC 6298, 2.2 and 2.3).

        @param isOwn: whether it used this channel; a sample of the other channel is used only until there is
            one.
        """
        if isOwn and not self._hasOwn:
            self.smoothed = self.base = 0.0
            self._hasOwn = True
        elif not isOwn and self._hasOwn:
            return
        seconds = max(0.0, min(seconds, LONGEST_TIMEOUT))
        if self.smoothed:
            self._variation += (abs(self.smoothed - seconds) - self._variation) / 4
            self.smoothed += (seconds - self.smoothed) / 8
        else:
            self.smoothed, self._variation = seconds, seconds / 2
        self._latest = seconds
        self._measureBase(seconds, now)
        usual = self.smoothed + max(SHORTEST_TIMEOUT, 4 * self._variation)
        # The timer is for segments without later acknowledgements.
        usual = max(usual, self.overtaken() + SHORTEST_TIMEOUT)
        self.timeout = self._usual = min(usual, LONGEST_TIMEOUT)

    def _measureBase(self, seconds: float, now: float) -> None:
        """Update the shortest round trip of the last L{BASE_PERIODS} periods."""
        if not self.base:
            self._minima, self._baseAt = (seconds,), now
        elif now - self._baseAt > BASE_SECONDS:
            self._minima, self._baseAt = (*self._minima[1 - BASE_PERIODS :], seconds), now
        elif seconds < self._minima[-1]:
            self._minima = (*self._minima[:-1], seconds)
        else:
            return
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
        return max(self.smoothed, self._latest) + max(
            self.base * self.reorderQuarters / 4, 2 * self._variation
        )

    def spurious(self) -> None:
        """Increase both waiting times after a spurious retransmission; the timer's until the next sample."""
        self.reorderQuarters = min(self.reorderQuarters + 1, MOST_PATIENT)
        self._calm = 0
        self._usual = min(2 * self._usual, LONGEST_TIMEOUT)
        self.timeout = max(self.timeout, self._usual)

    def recovered(self) -> None:
        """
        Note a recovery without spurious retransmissions; after several of them the waiting time is reduced
        again.
        """
        self._calm += 1
        if self._calm >= _FORGIVEN:
            self.reorderQuarters, self._calm = 1, 0
