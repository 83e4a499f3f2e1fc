"""Interface between a L{Flow<txrdma.smc.flow.flow.Flow>} and the connection that owns it."""

from __future__ import annotations

from typing import Protocol


class FlowOwner(Protocol):
    """A connection that owns a flow; C{isPosted}: nothing is queued for sending."""

    @property
    def isPosted(self) -> bool: ...

    def wasFlushed(self) -> None:
        """Handle that all written bytes have been posted."""

    def delivered(self) -> None:
        """Handle that the peer has received all that was posted."""

    def abortOnError(self) -> None:
        """Log the exception being handled, and abort this connection only."""

    def stateReceived(self, state: int) -> None:
        """Handle state flags of the peer that differ from the previous ones."""

    def violated(self, what: str) -> None:
        """Close the connection: the peer violated the protocol."""

    def blame(self, where: str) -> None:
        """Log an exception raised by the application, and close the connection."""

    def drained(self) -> None:
        """Handle that queued bytes were delivered to the application."""

    def finish(self) -> bool:
        """Close the write side if everything is posted; return True if there are new state flags to send."""

    def peerHasClosed(self) -> None:
        """Handle writes after the peer has closed."""

    def pollOtherLinks(self) -> None:
        """Poll the other links of the group."""

    def blocked(self) -> None:
        """Handle that the peer's ring is full while bytes are queued."""

    def unblocked(self) -> None:
        """Handle that the peer's ring has free space again, or that nothing is queued any more."""
