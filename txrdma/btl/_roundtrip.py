"""
The measured round trip to one peer by one channel, and how long to wait for an acknowledgement (RFC 6298).
"""

from __future__ import annotations

from typing import Final

SHORTEST_TIMEOUT: Final = 0.005
"""Seconds; the component's C{retrans_timeout}. A reactor answers in turns, which are not much shorter."""

FIRST_TIMEOUT: Final = 0.1
"""Seconds, before anything was measured; the timeout of the component's first design."""

LONGEST_TIMEOUT: Final = 1.0
"""Seconds between two tries with a peer that is silent for long: so soon it is heard when it is back."""

MOST_PATIENT: Final = 16
"""Quarters of a round trip that a segment is waited for which others have overtaken, at most."""

_FORGIVEN: Final = 16
_BASE_LASTS: Final = 10.0


class RoundTrip:
    """
    The estimate of the round trip to one peer by one channel.

    @ivar smoothed: seconds, or zero before anything was measured; C{base} is the shortest of the last
        seconds.
    @ivar timeout: seconds without an acknowledgement after which a segment is sent again.
    """

    __slots__ = (
        "_baseAt",
        "_calm",
        "_hasOwn",
        "_latest",
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
        self.reorderQuarters = 1  # quarters of a round trip, as RFC 8985 has it in 7.1
        self._calm = 0
        self._hasOwn = False

    def measured(self, seconds: float, now: float, isOwn: bool = True) -> None:
        """
        Take a sample, of a transmission that is known to be the one that arrived (RFC 6298, 2.2 and 2.3).

        @param isOwn: whether it went by this channel; a sample of another one is better than none.
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
        if seconds <= self.base or not self.base or now - self._baseAt > _BASE_LASTS:
            self.base, self._baseAt = seconds, now
        usual = self.smoothed + max(SHORTEST_TIMEOUT, 4 * self._variation)
        usual = max(usual, self.overtaken() + SHORTEST_TIMEOUT)  # the timer is for what nothing overtakes
        self.timeout = self._usual = min(usual, LONGEST_TIMEOUT)

    def expired(self) -> None:
        """Double the timeout, because the peer was silent for that long."""
        self.timeout = min(2 * self.timeout, LONGEST_TIMEOUT)

    def answered(self) -> None:
        """The silence is over: the usual timeout again, unless L{spurious} finds it too short."""
        self.timeout = self._usual

    def overtaken(self) -> float:
        """
        Return after how many seconds a segment is lost that others on its channel have overtaken.

        RFC 8985, 6.2, waits for a part of a round trip. Where round trips differ they are waited for, too.
        """
        return max(self.smoothed, self._latest) + max(
            self.base * self.reorderQuarters / 4, 2 * self._variation
        )

    def spurious(self) -> None:
        """Wait longer: something was sent again that had arrived. The timer does so until a sample comes."""
        self.reorderQuarters = min(self.reorderQuarters + 1, MOST_PATIENT)
        self._calm = 0
        self._usual = min(2 * self._usual, LONGEST_TIMEOUT)
        self.timeout = max(self.timeout, self._usual)

    def recovered(self) -> None:
        """Note the end of a loss without spurious resends: some of these, and waiting becomes short again."""
        self._calm += 1
        if self._calm >= _FORGIVEN:
            self.reorderQuarters, self._calm = 1, 0
