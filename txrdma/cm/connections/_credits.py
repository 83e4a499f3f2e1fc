"""
Flow control of messages by counting: a sender never finds the receive queue of its peer empty.

Each end posts receives ahead and tells the other their number in its greeting; each message takes one of
these credits. Receives that are posted again are told once half of the credits can be given back, by an RDMA
write of no bytes with that number as its immediate data. Such a message takes a receive without a credit: two
more are posted than told, and no more than two are ever on their way. For after one of them the peer has half
its credits or less until it has taken that, so it can cause one more, and has to take one for the next.
"""

from __future__ import annotations

from typing import Final

SPARE: Final = 2
"""Receives beyond those that the peer has credits for, for messages that give credits back."""


class Credits:
    """
    The credits of both ends of a connection, as one end knows them.

    @ivar usesCredits: whether the peer counts, too; else only receiver-not-ready of its device limits us.
    """

    def __init__(self, ours: int, theirs: int | None) -> None:
        """
        @param ours: receives that are posted here for messages.
        @param theirs: those of the peer; None where it does not count.
        """
        self.usesCredits = theirs is not None
        self._ours = ours
        self._theirs = self._left = theirs or 0
        self._taken = 0

    @property
    def mayPost(self) -> bool:
        """True if the peer has a receive for one message more."""
        return self._left > 0 or not self.usesCredits

    def posted(self) -> None:
        """Note that a message is on its way."""
        if self.usesCredits:
            self._left -= 1

    def given(self, count: int) -> bool:
        """
        Take credits that the peer gives back.

        @return: False where it gives more than it was sent: it lies.
        """
        self._left += count
        return self._left <= self._theirs

    def reposted(self) -> None:
        """Note that the receive of a message is posted again."""
        self._taken += 1

    def due(self) -> int:
        """Credits to give back now; 0 is none, or not yet."""
        return self._taken if self.usesCredits and 2 * self._taken >= self._ours else 0

    def told(self, count: int) -> None:
        """Note that credits were given back."""
        self._taken -= count
