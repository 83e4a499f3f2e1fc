"""
The interface between a queue pair and the route that moves its bytes.

There are three routes: RoCE v2 by UDP, shared memory on the same host, and datagrams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TYPE_CHECKING

from txrdma.iba.verbs import (
    CompletionOpcode,
    SendRequest,
)

if TYPE_CHECKING:
    pass


class Route(Protocol):
    """
    The way of the bytes of one queue pair, from RTR until C{close}.

    @ivar polled: whether C{poll} and C{arm} do anything: completion queues call them for such routes only.
    """

    name: str
    polled: bool

    @property
    def placing(self) -> object | None:
        """The route itself, where what it sends outlives this process; None elsewhere."""

    def post(self, requests: Sequence[SendRequest]) -> None:
        """
        Carry these out, in order, after those before.

        They have the right form for the queue pair; keys are the route's to check. Called only in RTS.
        C{inline} data is taken before this returns; for C{segments} the request object is ours no more, so
        what is needed of it is taken, too.
        """

    @property
    def direct(self) -> object | None:
        """The route itself, where it provides L{txrdma.interfaces.IDirectLane}; None elsewhere."""

    def receivesPosted(self) -> None:
        """The receive queue has grown."""

    def poll(self) -> None:
        """Look for what has arrived or completed: nobody tells, or not yet."""

    def arm(self, sends: bool, receives: bool, solicitedOnly: bool) -> None:
        """
        Have the channel's descriptor woken: by the next completed send, by the next receive.

        All False: somebody looks by C{poll}, don't wake.
        """

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        """
        Stop; the identifiers and kinds of what is not completed, oldest first.

        No request is sent after this.
        """

    def attributesChanged(self) -> None:
        """C{modify} has changed timers, counters, the state, the alternate path, or REARM was asked for."""

    def migrate(self) -> None:
        """
        Take the alternate path of C{attributes} now, and have the peer take it; C{migrationChanged} follows.
        """

    def close(self) -> None:
        """Let go. Twice is fine."""
