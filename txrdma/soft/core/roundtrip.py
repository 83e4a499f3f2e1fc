"""
Timeouts after which a requester retransmits or gives up.

The requester gives up according to C{timeout} and C{retryCount}, attributes of the queue pair (InfiniBand
Architecture vol. 1, 9.7.6.1.3 and 9.9.2.1.1). It may retransmit much earlier, because a responder
acknowledges duplicates (9.7.5.1.3). The retransmission timeout follows from the measured round trip, as in
TCP (RFC 6298).
"""

from __future__ import annotations

from typing import Final

from txrdma.iba.times import ackTimeoutSeconds

SHORTEST_TIMEOUT: Final = 0.008
"""Seconds: a timer shorter than a reactor iteration would only send everything twice."""

FIRST_TIMEOUT: Final = 0.1
"""Seconds before the first measurement: longer than the round trip of local networks and most busy peers."""

EXPECTED_AT_FIRST: Final = 0.001
"""Assumed round trip in seconds before the first measurement."""

PATH_SECONDS: Final = 4.0
"""Seconds without progress after which a path is abandoned if there is another one."""

LONGEST_TIMEOUT: Final = 1.0
"""Largest number of seconds between two attempts, so that a returning peer is noticed within this time."""


class RoundTrip:
    """The estimated round trip of a connection, and the resulting C{timeout} in seconds."""

    __slots__ = ("_at", "_doubled", "_end", "_smoothed", "_usual", "_variation", "timeout")

    def __init__(self) -> None:
        self.timeout = self._usual = FIRST_TIMEOUT
        self._doubled = 0.0  # timeout at the end of the last silence
        self._smoothed = self._variation = 0.0
        self._end: int | None = None  # PSN that is being measured, sent at _at
        self._at = 0.0

    @property
    def expected(self) -> float:
        """Expected time from a packet to its acknowledgement, in seconds."""
        return self._smoothed or EXPECTED_AT_FIRST

    def sent(self, end: int, now: float) -> None:
        """Record new packets up to C{end} (exclusive), of which the last one requests an acknowledgement."""
        if self._end is None:
            self._end, self._at = end, now

    def acknowledged(self, oldest: int, now: float) -> None:
        """Take a sample, if everything before C{oldest} includes the measured packet."""
        if self._end is not None and oldest >= self._end:
            self._end = None
            if now >= self._at:  # otherwise the clock was set back
                self._measured(min(now - self._at, LONGEST_TIMEOUT))

    def rewound(self) -> None:
        """Stop measuring: an acknowledgement of a resent packet is ambiguous (Karn's rule)."""
        self._end = None

    def expired(self) -> None:
        """Double the timeout after it has expired."""
        self.timeout = min(2 * self.timeout, LONGEST_TIMEOUT)

    def answered(self) -> None:
        """Restore the usual timeout; L{duplicateAcknowledged} may find it too short."""
        self._doubled, self.timeout = self.timeout, self._usual

    def duplicateAcknowledged(self) -> None:
        """Keep the doubled timeout until the next sample, since answers take longer now (Karn's rule)."""
        self.timeout = max(self.timeout, self._doubled)

    def _measured(self, seconds: float) -> None:
        """Take a sample (RFC 6298, 2.2 and 2.3)."""
        if self._smoothed:
            self._variation += (abs(self._smoothed - seconds) - self._variation) / 4
            self._smoothed += (seconds - self._smoothed) / 8
        else:
            self._smoothed, self._variation = seconds, seconds / 2
        self._usual = min(self._smoothed + max(SHORTEST_TIMEOUT, 4 * self._variation), LONGEST_TIMEOUT)
        self.timeout, self._doubled = self._usual, 0.0


class RetryTimer:
    """
    The retries of one requester, while packets are in flight.

    @ivar hasAlternate: an alternate path is armed: this one is given up after L{PATH_SECONDS} at most.
    @ivar retryCount: as in L{QPAttributes<txrdma.iba.verbs.QPAttributes>}; with 0 nothing is retransmitted.
    @ivar roundTrip: determines when to resend, at the latest after C{timeout}.
    """

    __slots__ = (
        *("_limit", "_progressed", "_since", "_timeout", "_tries"),
        *("hasAlternate", "retryCount", "roundTrip"),
    )

    def __init__(self, timeout: int, retryCount: int) -> None:
        self._tries = 0  # retries since progress
        self._progressed = 0.0
        self._since = 0.0  # start of the current timeout
        self.hasAlternate = False
        self.roundTrip = RoundTrip()
        self.retune(timeout, retryCount)

    def retune(self, timeout: int, retryCount: int) -> None:
        self._timeout = max(ackTimeoutSeconds(timeout), SHORTEST_TIMEOUT)
        self._limit = self._timeout * (retryCount + 1)
        self.retryCount = retryCount

    def begin(self, now: float) -> None:
        """Reset the retries: nothing else is in flight, or the peer has answered."""
        self._since = self._progressed = now
        self._tries = 0

    def moved(self, now: float) -> None:
        """Start over on another path, without measurements."""
        self.roundTrip = RoundTrip()
        self.begin(now)

    def resent(self, now: float) -> None:
        self._since = now

    def progressed(self, oldest: int, now: float) -> None:
        """Record progress: everything before C{oldest} is acknowledged."""
        self.roundTrip.acknowledged(oldest, now)
        self._since = self._progressed = now
        self._tries = 0

    def deadline(self) -> float:
        """Return the time at which to retry or give up; infinite for neither."""
        end = self._end()
        if self.retryCount == 0:
            return end
        again = self._since + min(self.roundTrip.timeout, self._timeout)
        # A process that slept past the end still has its retries, and waits for the last one.
        if again < end or self._tries < self.retryCount or end < self._since:
            return again
        return end

    def isExpired(self, now: float) -> bool:
        return self._tries >= self.retryCount and now >= self._end()

    def _end(self) -> float:
        return self._progressed + (min(self._limit, PATH_SECONDS) if self.hasAlternate else self._limit)

    def tried(self) -> None:
        self._tries += 1
        self.roundTrip.expired()
