"""
The local end of all routes of one kind at a port of the device: a UDP socket, or a UNIX socket.
"""

from __future__ import annotations

from typing import Protocol

from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.route import Route


class Resting(Protocol):
    """A port whose peers lose nothing while nobody looks: see L{txrdma.interfaces.IRestingDevice}."""

    def rest(self) -> None:
        """Leave the reactor. Twice is fine."""

    def wake(self) -> None:
        """Be part of the reactor, again or still."""


class RoutePort(Protocol):
    """Makes the routes of queue pairs, and is shared by them."""

    @property
    def resting(self) -> Resting | None:
        """The port itself, where it may rest; None where a peer needs an answer."""

    def connect(self, queuePair: SoftQueuePair) -> Route | None:
        """
        The route for a queue pair that goes to RTR, by its C{kind} and C{attributes}.

        @return: None when there is no way of this sort to that destination.
        @raise txrdma.error.RDMAError: there should be, but it can't be had.
        """

    def drive(self) -> bool:
        """
        Take in what has come and no queue finds, though the reactor has ended.

        @return: whether a peer has still to acknowledge something.
        """

    def setEnabled(self, isEnabled: bool) -> None:
        """
        The port was taken down, or up again, by command.

        While it is down nothing goes out and nothing comes in; connections have their usual patience.
        """

    def close(self) -> None:
        """Close the socket; the routes were closed before. Twice is fine."""
