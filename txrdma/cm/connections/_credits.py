"""
Credit-based flow control of messages, which keeps receive queues from running empty.

Each end posts receives in advance and announces their number in its greeting; each message uses one of these
credits. Once half of the credits can be returned, they are, by an RDMA write of no bytes with their number as
immediate data. Such a write uses a receive but no credit, so each end posts two more receives than it
announces. Two suffice: after one return the peer has at most half of its credits until it has received the
return. It can cause one more return, and needs the first one for the next. Two more are for reports of long
messages that were read: see L{txrdma.cm.connections.longmessages}.

Receives take much memory of an idle connection, so only L{FIRST_RECEIVES} are posted and may be used at
first. Whenever half of the credits can be returned, as many receives again are posted, and their credits are
returned with them, until there are as many as announced.
"""

from __future__ import annotations

from typing import Final

SPARE: Final = 4
"""Receives without a credit: for writes that return credits, and for reports of long messages."""


FIRST_RECEIVES: Final = 4
"""Number of receives with a credit that are posted at first, and so of credits."""


class Credits:
    """
    The credits of both ends of a connection, as one of them knows them.

    @ivar usesCredits: whether the peer counts credits, too; else only receiver-not-ready of its device limits
        this end.
    """

    __slots__ = ("_credits", "_local", "_posted", "_remote", "_returnable", "usesCredits")

    def __init__(self, local: int, remote: int | None) -> None:
        """
        @param local: receives for messages here, when all are posted.
        @param remote: those of the peer; None if it does not count credits.
        """
        self.usesCredits = remote is not None
        self._local = local
        self._posted = min(local, FIRST_RECEIVES) if self.usesCredits else local  # without SPARE
        self._remote = remote or 0
        self._credits = min(self._remote, FIRST_RECEIVES)  # messages that may be sent
        self._returnable = 0  # credits that this end can return to the peer

    @property
    def mayPost(self) -> bool:
        """Whether the peer has a receive for another message."""
        return self._credits > 0 or not self.usesCredits

    def posted(self) -> None:
        """Use a credit for a posted message."""
        if self.usesCredits:
            self._credits -= 1

    def returned(self, count: int) -> bool:
        """
        Add credits that the peer returns.

        @return: False if it returns more than were used, which is a violation.
        """
        self._credits += count
        return self._credits <= self._remote

    def reposted(self) -> int:
        """Note that the receive of a message was posted again. Return how many further ones to post now."""
        self._returnable += 1
        more = 0
        if 2 * self._returnable >= self._posted < self._local:
            more = min(self._posted, self._local - self._posted)
            self._posted += more
            self._returnable += more
        return more

    def due(self) -> int:
        """The credits to return now; 0 until half of them are free."""
        # Half at a time: then at most two returns are on their way, which need two of the SPARE receives.
        return self._returnable if self.usesCredits and 2 * self._returnable >= self._posted else 0

    def sentBack(self, count: int) -> None:
        """Note that credits were returned to the peer."""
        self._returnable -= count
