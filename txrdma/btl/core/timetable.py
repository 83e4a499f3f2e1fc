"""
The deadlines of a module's peers: retransmission, acknowledgement, keepalive, and giving up.

An active peer is only marked, and its deadline is computed when the next deadline is needed, because most
deadlines are postponed long before they expire. Nothing here reads a clock.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from txrdma.btl.core.peer import GONE, Peer

KEEP_ALIVE: Final = 30.0
"""Seconds without a packet after which a peer is probed."""


class Timetable:
    """Peers, sorted by their deadlines."""

    __slots__ = ("_heap", "_keepAlive", "_pushed", "_touched")

    def __init__(self, keepAlive: float) -> None:
        """
        @param keepAlive: seconds without a packet after which a peer is probed; zero for never.
        """
        self._keepAlive = keepAlive
        self._touched: list[Peer] = []
        self._heap: list[tuple[float, int, Peer]] = []
        self._pushed = 0

    def touch(self, peer: Peer) -> None:
        """Note that the deadline of a peer may have changed."""
        if not peer.isTouched:
            peer.isTouched = True
            self._touched.append(peer)

    def earliest(self) -> float | None:
        """Return the time at which L{take} may return a peer."""
        for peer in self._touched:
            peer.isTouched = False
            at = peer.deadline(self._keepAlive)
            if at is not None and (peer.wakeAt is None or at < peer.wakeAt):
                peer.wakeAt = at
                self._pushed += 1
                heappush(self._heap, (at, self._pushed, peer))
        self._touched.clear()
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> Peer | None:
        """Return a peer whose deadline may have passed. Its deadline is computed again after this."""
        while self._heap and self._heap[0][0] <= now:
            at, _order, peer = heappop(self._heap)
            if peer.wakeAt == at and peer.state != GONE:  # else an earlier entry was pushed since
                peer.wakeAt = None
                self.touch(peer)
                return peer
        return None
