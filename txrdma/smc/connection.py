"""
A connection, as its link and the link groups see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TYPE_CHECKING

from txrdma.smc.posting import Hearing

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress


class Connection(Hearing, Protocol):
    """
    A stream on a link.

    @ivar connected: an application is served; C{disconnected}: it has been told of the end.
    """

    connected: int
    disconnected: int

    @property
    def token(self) -> int:
        """Our alert token: what the peer calls this connection."""

    @property
    def hasHeardEnd(self) -> bool:
        """The peer has said that it closes or aborts, or the application is gone."""

    @property
    def lastMessage(self) -> int:
        """The number of the last message that was posted; 0 before the first."""

    @property
    def total(self) -> int:
        """Bytes that the application has written, all told."""

    def hasDelivered(self, total: int) -> bool:
        """Whether the peer has so many bytes, and what the application wants it to know of the end."""

    def askForUpdate(self) -> None:
        """Send a message, even if there is nothing to tell."""

    def remoteBuffersGone(self, rkeys: Sequence[int]) -> None:
        """The peer takes back buffers of its own."""

    def linkLost(self, mayVanish: bool, arrived: int) -> None:
        """
        The link is gone.

        @param mayVanish: nothing that the peer sent before can be missing, even if its process has died.
        @param arrived: the number of the last message of ours that the peer has looked at.
        """

    def expired(self) -> None:
        """The peer did not do its part of the end."""

    def stopped(self) -> None:
        """Post what was written, and take leave of the peer as TCP would, since the process ends."""

    def getPeer(self) -> IAddress:
        """The peer's address."""
