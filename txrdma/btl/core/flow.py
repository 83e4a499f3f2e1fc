"""
Flow control of messages without a tag, and of those of one tag without a handler, in bytes.

Each end may send a window of bytes beyond those that the peer's application has handled. The peer reports
these from time to time. Tags with a handler have no window, because it is called immediately.
"""

from __future__ import annotations

from typing import Final

from txrdma.error import PeerViolation

WINDOW: Final = 4 << 20
"""
Bytes that may be unhandled by an application. Below half of them one more message of any length may be sent.
"""

MESSAGE: Final = 64
"""Bytes added to the length of each message, so that the number of empty messages is bounded, too."""


class MessageFlow:
    """
    Both directions of one connection, as byte totals that only grow.

    @ivar sent: bytes sent; C{acknowledged}: of these, bytes that the peer has reported as handled.
    @ivar received: bytes received; C{handled}: of these, handled by the local application; C{reported}: of
        these, reported to the peer.
    """

    __slots__ = ("_longest", "acknowledged", "handled", "received", "reported", "sent")

    def __init__(self) -> None:
        self.sent = self.acknowledged = self.received = self.handled = self.reported = 0
        self._longest = 0  # of the received messages since all were reported

    def maySend(self, length: int) -> bool:
        """Return whether a message of this length may be sent now."""
        waiting = self.sent - self.acknowledged
        return waiting < WINDOW // 2 or waiting + length + MESSAGE <= WINDOW

    def mayHold(self, length: int) -> bool:
        """Return whether the window has room for several messages of this length in all."""
        return self.sent - self.acknowledged + length + MESSAGE <= WINDOW

    def send(self, length: int) -> None:
        self.sent += length + MESSAGE

    def withdraw(self, length: int) -> None:
        """Take back the count of a message that is not sent after all."""
        self.sent -= length + MESSAGE

    def acknowledge(self, handled: int) -> None:
        """
        Process a report of the peer. Older reports are ignored.

        @raise PeerViolation: the peer reports more than was sent.
        """
        if handled > self.sent:
            raise PeerViolation(f"the peer reports {handled} bytes as handled, and {self.sent} were sent")
        self.acknowledged = max(self.acknowledged, handled)

    def receive(self, length: int) -> None:
        """Count a received message. Raises L{PeerViolation} if the message exceeds the window."""
        waiting, counted = self.received - self.reported, length + MESSAGE
        self._longest = max(self._longest, counted) if waiting else counted
        # The longest message may have been sent last, and have overtaken the others as an urgent one.
        if waiting + counted > WINDOW and waiting + counted - self._longest >= WINDOW // 2:
            raise PeerViolation(f"a message of {length} bytes exceeds the window")
        self.received += counted

    def handle(self, length: int) -> None:
        """Count a message that the local application has handled."""
        self.handled += length + MESSAGE

    def giveBack(self, length: int) -> None:
        """Take back the count of a message that was given to the local application, but not handled."""
        self.handled -= length + MESSAGE

    def takeReport(self) -> int | None:
        """Return the total to report to the peer, or None if it can wait."""
        news = self.handled - self.reported
        if news <= 0 or (news < WINDOW // 4 and self.received - self.reported < WINDOW // 2):
            return None
        self.reported = self.handled
        return self.handled
