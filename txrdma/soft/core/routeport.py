"""The local end of all routes of one kind at a port of the device: a UDP socket, or a UNIX socket."""

from __future__ import annotations

from collections.abc import Callable

from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.route import Route


class RoutePort:
    """
    Creates the routes of queue pairs; C{canRest}: C{rest} is safe, because peers need no timely answers.
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
        Return the route for a queue pair that changes to RTR; None if this kind of route does not reach the
        peer.
        """

    def drive(self) -> bool:
        """Process events once after the reactor's end; return whether acknowledgements are outstanding."""
        return False

    def claimService(self, serviceID: int) -> Callable[[], None]:
        """
        Receive requests for a service ID, where devices share queue pair 1; return a function that ends that.

        @raise txrdma.error.ResourceExhausted: another device has the service.
        """
        return lambda: None

    def setEnabled(self, isEnabled: bool) -> None:
        """Enable or disable the port for RoCE; connections fail after their usual retries."""
        return

    def close(self) -> None:
        """Close the socket; the routes were closed before. Idempotent."""
