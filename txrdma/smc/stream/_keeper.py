"""
The two that a data flow of SMC-R speaks to: the protocol of an application, and the stream.
"""

from __future__ import annotations

from typing import Protocol

from txrdma.smc.group.posting import Hearing


class Receiver(Protocol):
    """The protocol of an application, as far as bytes are concerned."""

    def dataReceived(self, data: bytes) -> None:
        """Hand over bytes that have arrived."""


class Keeper(Hearing, Protocol):
    """The stream, as its data flow sees it."""

    def heard(self, state: int) -> None:
        """The peer's state flags are others than before."""

    def violated(self, what: str) -> None:
        """The peer does what it must not."""

    def blame(self, where: str) -> None:
        """Log an exception of the application, and end the connection."""

    def drained(self) -> None:
        """Bytes that had to wait for the application were delivered."""

    def finish(self) -> bool:
        """If all is posted that will ever be written, end that; tell whether there are new flags to send."""

    def unheard(self) -> None:
        """There is something to post, and nobody to read it."""

    def lookBeside(self) -> None:
        """Take in what other links of the group have brought."""

    def blocked(self) -> None:
        """The peer's ring is full, and there is more to write."""

    def unblocked(self) -> None:
        """The peer's ring has room again, or nothing waits for it any more."""
