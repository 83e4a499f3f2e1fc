"""
The times at which a requester sends again what nobody acknowledges, and gives up.

These are two questions. Giving up is decided by C{timeout} and C{retryCount}, the attributes of a queue pair
(InfiniBand Architecture vol. 1, 9.7.6.1.3 and 9.9.2.1.1). Sending again may come much earlier, since a
responder takes what it has already for a duplicate, and acknowledges it (9.7.5.1.3): when, follows from the
measured round trip, as in TCP (RFC 6298).
"""

from __future__ import annotations

from typing import Final

from txrdma.iba.times import ackTimeoutSeconds

SHORTEST_TIMEOUT: Final = 0.008
"""A reactor answers in turns; a timer shorter than a turn would only send everything twice."""

FIRST_TIMEOUT: Final = 0.1
"""Before anything was measured: more than networks within a building take, and busy peers mostly."""

EXPECTED_AT_FIRST: Final = 0.001
"""A round trip before anything was measured, which may be long in coming where much is lost."""

LONGEST_TIMEOUT: Final = 1.0
"""Seconds between two tries with a peer that is silent for long: so soon it is heard when it is back."""


class RoundTrip:
    """
    The estimate of a connection's round trip.

    @ivar timeout: seconds without an acknowledgement after which a packet is sent again.
    """

    __slots__ = ("_at", "_doubled", "_end", "_smoothed", "_usual", "_variation", "timeout")

    def __init__(self) -> None:
        self.timeout = self._usual = FIRST_TIMEOUT
        self._doubled = 0.0  # what the timeout had become when the last silence ended
        self._smoothed = self._variation = 0.0
        self._end: int | None = None  # of what is being measured, which went out at _at
        self._at = 0.0

    @property
    def expected(self) -> float:
        """Seconds from a packet to its acknowledgement, as far as anything is known of that."""
        return self._smoothed or EXPECTED_AT_FIRST

    def sent(self, end: int, now: float) -> None:
        """
        New packets went out, and the last one asks for an acknowledgement.

        @param end: one above its sequence number.
        """
        if self._end is None:
            self._end, self._at = end, now

    def acknowledged(self, oldest: int, now: float) -> None:
        """Everything before C{oldest} has arrived."""
        if self._end is not None and oldest >= self._end:
            self._end = None
            self._measured(min(now - self._at, LONGEST_TIMEOUT))

    def rewound(self) -> None:
        """Packets go out again: an acknowledgement may be for either and measures nothing (Karn's rule)."""
        self._end = None

    def expired(self) -> None:
        """Double the timeout, because the peer was silent for that long."""
        self.timeout = min(2 * self.timeout, LONGEST_TIMEOUT)

    def answered(self) -> None:
        """Restore the usual timeout; L{duplicateAcknowledged} may find it too short."""
        self._doubled, self.timeout = self.timeout, self._usual

    def duplicateAcknowledged(self) -> None:
        """
        Keep the doubled timeout: what was sent twice was acknowledged twice, so answers take longer now.

        The doubled timeout is kept until something is measured (Karn's rule again).
        """
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
    The patience of one requester, while packets of it are in the air.

    @ivar retryCount: as in L{QPAttributes<txrdma.iba.verbs.QPAttributes>}; with 0 nothing is sent again.
    @ivar roundTrip: says when to send again, at the latest after C{timeout}.
    """

    __slots__ = ("_limit", "_progressed", "_since", "_timeout", "_tries", "retryCount", "roundTrip")

    def __init__(self, timeout: int, retryCount: int) -> None:
        """
        @param timeout: the code of the local ACK timeout (IBA 9.9.2.1.1).
        """
        self._tries = 0  # what was sent again since there was progress
        self._progressed = 0.0
        self._since = 0.0  # the next try is due so and so long after this
        self.roundTrip = RoundTrip()
        self.retune(timeout, retryCount)

    def retune(self, timeout: int, retryCount: int) -> None:
        """Change the local ACK timeout, given by its code, and the retry count."""
        self._timeout = max(ackTimeoutSeconds(timeout), SHORTEST_TIMEOUT)
        self._limit = self._timeout * (retryCount + 1)
        self.retryCount = retryCount

    def begin(self, now: float) -> None:
        """All tries are left: nothing else is in the air, or the peer was heard."""
        self._since = self._progressed = now
        self._tries = 0

    def moved(self, now: float) -> None:
        """The connection takes another path, of which nothing is known."""
        self.roundTrip = RoundTrip()
        self.begin(now)

    def resent(self, now: float) -> None:
        """The oldest packet leaves once more."""
        self._since = now

    def progressed(self, oldest: int, now: float) -> None:
        """Everything before C{oldest} has arrived, which is more than before."""
        self.roundTrip.acknowledged(oldest, now)
        self._since = self._progressed = now
        self._tries = 0

    def deadline(self) -> float:
        """The time at which to try again, or to give up; infinite for neither."""
        end = self._progressed + self._limit
        if self.retryCount == 0:
            return end
        again = self._since + min(self.roundTrip.timeout, self._timeout)
        # A process that has slept through the end has all its tries still, and the last one has its time.
        if again < end or self._tries < self.retryCount or end < self._since:
            return again
        return end

    def isExpired(self, now: float) -> bool:
        """Whether it is time to give up."""
        return self._tries >= self.retryCount and now >= self._progressed + self._limit

    def tried(self) -> None:
        """The deadline has passed, and the oldest packet is about to leave once more."""
        self._tries += 1
        self.roundTrip.expired()
