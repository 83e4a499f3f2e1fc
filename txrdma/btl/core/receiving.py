"""
The receive window of one peer: received segments, and their acknowledgement.

Theory of operation. Segments are delivered as they arrive; the window only detects duplicates. C{following}
is the first missing sequence number, and C{_beyond} has a bit for each later one, so that no memory is needed
per segment. Acknowledgements are cumulative, with a bitmap of the segments that have arrived behind the first
gap. Usually other segments carry the cumulative part. An acknowledgement is urgent if a gap or a duplicate
has to be reported: then it is sent with the bitmap, as a separate packet.
"""

from __future__ import annotations

from typing import Final

from txrdma.btl.wire import SEQUENCE_MASK

WINDOW: Final = 4096
"""Segments that are accepted, counted from the first missing one."""

NEW: Final = 0
DUPLICATE: Final = 1
BELOW: Final = 2
ABOVE: Final = 3


def difference(left: int, right: int) -> int:
    """Return C{left - right} of two sequence numbers, as a signed number of 32 bits."""
    return ((left - right + 0x80000000) & SEQUENCE_MASK) - 0x80000000


class ReceiveWindow:
    """
    The receive window of one peer.

    @ivar following: the first missing sequence number.
    @ivar duplicates: number of duplicates since the connection began.
    @ivar latest: sequence number of the last received segment; C{latestAttempt}: number of its transmission.
    @ivar isOwed: whether an acknowledgement is pending; C{owedSince}: time of the first unacknowledged
        segment.
    @ivar period: the period in which an acknowledgement was sent last: see
        L{PendingAcks<txrdma.btl.core.pendingacks.PendingAcks>}.
    @ivar isUrgent: whether the acknowledgement reports a gap or a duplicate and must not be delayed.
    """

    __slots__ = (
        "_beyond",
        "latest",
        "latestAttempt",
        "duplicates",
        "following",
        "isOwed",
        "isUrgent",
        "owedSince",
        "period",
    )

    def __init__(self, first: int) -> None:
        """@param first: the first sequence number of the peer."""
        self.following = first & SEQUENCE_MASK
        self.duplicates = 0
        self.latest = self.latestAttempt = self.period = 0
        self.isOwed = self.isUrgent = False
        self.owedSince = 0.0
        self._beyond = 0  # bit n is for following + 1 + n; the segment following itself is missing

    @property
    def spread(self) -> int:
        """Number of segments from the first missing one to the last received one."""
        return self._beyond.bit_length() + 1 if self._beyond else 0

    @property
    def acknowledged(self) -> int:
        """The sequence number up to which all segments have arrived."""
        return (self.following - 1) & SEQUENCE_MASK

    def classify(self, sequence: int) -> int:
        """Classify a sequence number: NEW, DUPLICATE, BELOW or ABOVE."""
        distance = difference(sequence, self.following)
        if distance == 0:
            return NEW
        if distance < 0:
            return BELOW
        if distance >= WINDOW:
            return ABOVE
        return DUPLICATE if self._beyond >> (distance - 1) & 1 else NEW

    def takeNext(self, sequence: int, attempt: int, now: float) -> bool:
        """Enter a segment if it is the next one and there is no gap. Return False otherwise."""
        if sequence != self.following or self._beyond:
            return False
        self.latest, self.latestAttempt = sequence, attempt
        self.following = (sequence + 1) & SEQUENCE_MASK
        if not self.isOwed:
            self.isOwed, self.owedSince = True, now
        return True

    def take(self, sequence: int, attempt: int, now: float) -> None:
        """Enter a segment that L{classify} has found NEW, and schedule an acknowledgement."""
        self.latest, self.latestAttempt = sequence, attempt
        distance = difference(sequence, self.following)
        if distance:
            self._beyond |= 1 << (distance - 1)
            self.isUrgent = True
        elif self._beyond:
            beyond = self._beyond
            run = (~beyond & (beyond + 1)).bit_length() - 1  # number of ones at its lower end
            self.following = (self.following + 1 + run) & SEQUENCE_MASK
            self._beyond = beyond >> (run + 1)
            self.isUrgent = True
        else:
            self.following = (self.following + 1) & SEQUENCE_MASK
        self._owe(now)

    def takeDuplicate(self, sequence: int, attempt: int, now: float) -> None:
        """Count a duplicate, and schedule an acknowledgement, because the last one may be lost."""
        self.latest, self.latestAttempt = sequence, attempt
        self.duplicates = (self.duplicates + 1) & SEQUENCE_MASK
        self.isUrgent = True
        self._owe(now)

    def scheduleAck(self, now: float) -> None:
        """Schedule an acknowledgement although the received segment was not accepted."""
        self.isUrgent = True
        self._owe(now)

    def hasAll(self, sequence: int) -> bool:
        """Return whether this segment and all before it have arrived."""
        return difference(sequence, self.following) < 0

    def bitmap(self) -> bytes:
        """Make the bitmap of an acknowledgement: the segments that have arrived behind the gap."""
        beyond = self._beyond
        return beyond.to_bytes((beyond.bit_length() + 7) // 8, "little")

    def ackSent(self) -> None:
        """Note that an acknowledgement with the bitmap is sent."""
        self.isOwed = self.isUrgent = False

    def ackPiggybacked(self) -> None:
        """Note that a segment carries the cumulative acknowledgement; a bitmap remains pending."""
        if not self.isUrgent:
            self.isOwed = False

    def _owe(self, now: float) -> None:
        if not self.isOwed:
            self.isOwed, self.owedSince = True, now
