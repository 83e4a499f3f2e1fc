"""
The interface between a queue pair and the route that moves its bytes.

There are three routes: RoCE v2 over UDP, shared memory on the same host, and datagrams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from txrdma.iba.verbs import CompletionOpcode, SendRequest


class Route(Protocol):
    """
    Moves the bytes of one queue pair, from RTR until C{close}.

    @cvar polled: whether completion queues call C{poll} and C{arm}.
    @ivar doorbell: the number of the route's doorbell byte in the channel's page; 0: it is always polled.
    @cvar direct: the route itself if it provides L{txrdma.interfaces.IDirectLane}, else None.
    """

    name: str
    polled: bool
    doorbell: int = 0

    @property
    def direct(self) -> object | None:
        return None

    @property
    def rewinds(self) -> int:
        """Number of retransmissions, each of all packets from a lost one on."""
        return 0

    def post(self, requests: Sequence[SendRequest]) -> None:
        """
        Execute requests, in order.

        Their form is checked; the route checks keys. Called only in RTS. The caller may reuse request objects
        and C{inline} data when this returns. If it raises, the caller returns all their entries to the send
        queue.
        """

    def receivesPosted(self) -> None:
        """The receive queue has grown."""
        return

    def poll(self) -> None:
        """Process received messages and completions, without the reactor."""
        return

    def arm(self, sends: bool, receives: bool, solicitedOnly: bool) -> None:
        """
        Wake the channel for the next completed send, or the next receive; all False while the route is
        polled.
        """
        return

    def activity(self) -> int:
        """
        Return a number that has changed if the route has sent or received since the last call; negative if it
        waits for something, so that it must be polled. Only routes with a doorbell byte have it.
        """
        return -1

    def setDormant(self, wake: Callable[[], None] | None) -> None:
        """Call C{wake} before the next post, since the route is not polled until then; None cancels that."""
        return

    def trim(self) -> bool:
        """Release what is made again on use; return whether the oldest receive is partly filled."""
        return False

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        """Stop, and return identifiers and kinds of uncompleted requests, oldest first."""

    def attributesChanged(self) -> None:
        """Apply attributes that C{modify} has changed: timers, counters, state, alternate path, REARM."""

    def migrate(self) -> None:
        """Migrate to the alternate path of C{attributes}, with the peer; C{migrationChanged} follows."""
        return

    def close(self) -> None:
        """Release all resources. Idempotent."""
