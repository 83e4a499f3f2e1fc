"""
Placeholder for the owner of a flow whose connection has ended on both sides.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

_log = Logger()


class ClosedOwner:
    """Owns the flow of a connection that has ended on both sides, so that the stream can be freed."""

    isPosted: Final = True

    def _ignore(self, *_: object) -> None:
        """Do nothing: there is neither an application nor a peer left."""

    wasFlushed = delivered = stateReceived = violated = drained = peerHasClosed = pollOtherLinks = blocked = (
        unblocked
    ) = _ignore

    def finish(self) -> bool:
        return False

    def abortOnError(self) -> None:
        _log.failure("Error in the bookkeeping of an SMC-R connection that has ended")

    def blame(self, where: str) -> None:
        self.abortOnError()


CLOSED_OWNER: Final = ClosedOwner()
