"""
The receive window of one peer: segments that have come, and what is to be acknowledged of them.

Segments are delivered as they arrive; the window only decides whether one is new. An acknowledgement is
cumulative, and a bitmap says what has arrived behind the first gap.
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = 4096
"""Segments from the first that is missing on which are taken."""

NEW: Final = 0
DUPLICATE: Final = 1
BELOW: Final = 2
ABOVE: Final = 3


def difference(left: int, right: int) -> int:
    """Distance of sequence number C{left} behind C{right}: a signed number of 16 bits."""
    return ((left - right + 0x8000) & 0xFFFF) - 0x8000


class ReceiveWindow:
    """
    The receive window of one peer.

    @ivar following: the first sequence number that is missing.
    @ivar duplicates: segments that have come again, since the beginning.
    @ivar latest: sequence number of the segment that came last, and C{latestAttempt}: its transmission.
    @ivar isOwed: whether the peer waits for an acknowledgement; C{owedSince} is the time of the first
        segment.
    @ivar isUrgent: True if the acknowledgement reports a gap or a duplicate, so that it must not wait.
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
    )

    def __init__(self, first: int) -> None:
        """
        @param first: the sequence number that the peer begins with.
        """
        self.following = first & 0xFFFF
        self.duplicates = 0
        self.latest = self.latestAttempt = 0
        self.isOwed = self.isUrgent = False
        self.owedSince = 0.0
        self._beyond = 0  # bit n is for following + 1 + n; the segment following itself is missing

    @property
    def spread(self) -> int:
        """Number of segments from the first that is missing to the last that has come."""
        return self._beyond.bit_length() + 1 if self._beyond else 0

    @property
    def acknowledged(self) -> int:
        """The sequence number up to which all segments have come."""
        return (self.following - 1) & 0xFFFF

    def place(self, sequence: int) -> int:
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
        """Take a segment if nothing is missing before or behind it; False where that is not so."""
        if sequence != self.following or self._beyond:
            return False
        self.latest, self.latestAttempt = sequence, attempt
        self.following = (sequence + 1) & 0xFFFF
        if not self.isOwed:
            self.isOwed, self.owedSince = True, now
        return True

    def take(self, sequence: int, attempt: int, now: float) -> None:
        """Enter a segment whose place is NEW, and owe an acknowledgement."""
        self.latest, self.latestAttempt = sequence, attempt
        distance = difference(sequence, self.following)
        if distance:
            self._beyond |= 1 << (distance - 1)
            self.isUrgent = True
        elif self._beyond:
            beyond = self._beyond
            run = (~beyond & (beyond + 1)).bit_length() - 1  # ones at its lower end
            self.following = (self.following + 1 + run) & 0xFFFF
            self._beyond = beyond >> (run + 1)
            self.isUrgent = True
        else:
            self.following = (self.following + 1) & 0xFFFF
        self._owe(now)

    def takeAgain(self, sequence: int, attempt: int, now: float) -> None:
        """Count a segment that has come before: the peer may not know that it arrived."""
        self.latest, self.latestAttempt = sequence, attempt
        self.duplicates = (self.duplicates + 1) & 0xFFFF
        self.isUrgent = True
        self._owe(now)

    def remind(self, now: float) -> None:
        """Owe an acknowledgement without a new segment: one came that is not taken."""
        self.isUrgent = True
        self._owe(now)

    def has(self, sequence: int) -> bool:
        """True if this segment and all before it have arrived."""
        return difference(sequence, self.following) < 0

    def bitmap(self) -> bytes:
        """Make the bitmap of an acknowledgement: what has come behind the gap."""
        beyond = self._beyond
        return beyond.to_bytes((beyond.bit_length() + 7) // 8, "little")

    def told(self) -> None:
        """Owe nothing any more: an acknowledgement with the bitmap goes out."""
        self.isOwed = self.isUrgent = False

    def ackPiggybacked(self) -> None:
        """
        Owe nothing but the bitmap: an acknowledgement is sent with a segment, which has no space for one.
        """
        if not self.isUrgent:
            self.isOwed = False

    def _owe(self, now: float) -> None:
        if not self.isOwed:
            self.isOwed, self.owedSince = True, now
