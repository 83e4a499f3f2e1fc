"""
The local end of all routes of one kind at a port of the device: a UDP socket, or a UNIX socket.
"""

from __future__ import annotations

from typing import Protocol

from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.route import Route


class RoutePort(Protocol):
    """
    Makes the routes of queue pairs, and is shared by them.

    @ivar canRest: whether C{rest} loses nothing: peers need no answers in time.
    """

    canRest: bool

    def rest(self) -> None:
        """Leave the reactor. Idempotent."""
        return

    def wake(self) -> None:
        """Return to the reactor. Idempotent."""
        return

    def connect(self, queuePair: SoftQueuePair) -> Route | None:
        """
        The route for a queue pair that goes to RTR, by its C{kind} and C{attributes}.

        @return: None when this kind of route does not lead to the destination.
        @raise txrdma.error.RDMAError: the route can't be set up.
        """

    def drive(self) -> bool:
        """
        Do the work of the reactor once, after it has ended.

        @return: whether an acknowledgement of a peer is outstanding.
        """
        return False

    def setEnabled(self, isEnabled: bool) -> None:
        """
        Take the port down or up, by command.

        While it is down RoCE neither sends nor receives; connections end after their usual retries.
        """
        return

    def close(self) -> None:
        """Close the socket; the routes were closed before. Idempotent."""
