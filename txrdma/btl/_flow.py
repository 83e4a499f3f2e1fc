"""
The flow of messages that wait for their receiver: how much may be on its way, and how much is kept.

Each end may send a window more than its peer's program has taken, which says so now and then. Tags that have
a handler have no such limit: their handlers take what comes.
"""

from __future__ import annotations

from typing import Final

from txrdma.error import PeerViolation

WINDOW: Final = 4 << 20
"""Bytes of messages that may wait for a program, or half as many, and one message more of any length."""

MESSAGE: Final = 64
"""Bytes that each message counts beside its own, so that empty ones are bounded, too."""


class Flow:
    """
    Credits of both directions of one connection, in bytes, as totals that only grow.

    @ivar sent: that were sent, of which the peer's program has taken C{heard}.
    @ivar received: that have come, of which this end's program has C{taken}, and the peer knows of C{told}.
    """

    __slots__ = ("_window", "heard", "received", "sent", "taken", "told")

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self.sent = self.heard = self.received = self.taken = self.told = 0

    def maySend(self, length: int) -> bool:
        """Tell whether a message of this length may be sent now."""
        waiting = self.sent - self.heard
        return waiting < self._window // 2 or waiting + length + MESSAGE <= self._window

    def send(self, length: int) -> None:
        """Count a message that is sent."""
        self.sent += length + MESSAGE

    def hear(self, taken: int) -> None:
        """
        Note how much the peer's program has taken; older news change nothing.

        @raise PeerViolation: that is more than was sent.
        """
        if taken > self.sent:
            raise PeerViolation(f"the peer has taken {taken} bytes of {self.sent}")
        self.heard = max(self.heard, taken)

    def receive(self, length: int) -> None:
        """
        Count a message that has come.

        @raise PeerViolation: it was not to be sent yet.
        """
        waiting = self.received - self.told
        if waiting >= self._window // 2 and waiting + length + MESSAGE > self._window:
            raise PeerViolation(f"the peer sends {length} bytes more than it may")
        self.received += length + MESSAGE

    def take(self, length: int) -> None:
        """Count a message that the program has taken."""
        self.taken += length + MESSAGE

    def tell(self) -> int | None:
        """Take what the peer is to be told: the total that was taken, if there is enough news."""
        news = self.taken - self.told
        if not news or (news < self._window // 4 and self.received - self.told < self._window // 2):
            return None
        self.told = self.taken
        return self.taken
