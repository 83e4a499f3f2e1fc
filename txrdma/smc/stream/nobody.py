"""
What stands in the place of a stream when its connection is over for both ends.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

_log = Logger()


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
