"""
The two that a data flow of SMC-R speaks to: the protocol of an application, and the stream.
"""

from __future__ import annotations

from typing import Final, Protocol

from twisted.logger import Logger

from txrdma.smc.group.posting import Hearing

_log = Logger()


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


class Nobody:
    """Keeps the data flow of a connection that is over for both ends, of which nothing is left to be told."""

    isPosted: Final = True

    def _ignore(self, *_: object) -> None:
        """Do nothing, as there is no application to be told and no peer to be answered."""

    wasFlushed = delivered = heard = violated = drained = unheard = lookBeside = blocked = unblocked = _ignore

    def finish(self) -> bool:
        """Tell the flow that there are no new flags to send."""
        return False

    def broke(self) -> None:
        """Log the exception that is being handled: there is no connection any more that could end by it."""
        _log.failure("Error in the bookkeeping of an SMC-R connection that is over")

    def blame(self, where: str) -> None:
        """Log the exception that is being handled, as C{broke} does."""
        self.broke()


NOBODY: Final = Nobody()
