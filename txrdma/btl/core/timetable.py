"""
The queue of the deadlines of a module's peers, the earliest one first.

Most times are defined where they are used, such as those of retransmission in
L{txrdma.btl.core.roundtrip}, and L{GIVE_UP<txrdma.btl.core.window.GIVE_UP>}, after which a peer is lost. The
keepalive interval is here.

An active peer is only marked, and its deadline is computed when the next deadline is needed, because most
deadlines are postponed long before they expire. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from txrdma.btl.core.peer import Peer, REMOVED

_FAILED: Final = "a deadline of the peer could not be computed"
_FEW: Final = 64  # entries that are not worth a search for those that an earlier deadline has replaced

LATE: Final = 0.001
"""Seconds after which a timer that has not expired in time may have been lost; a busy reactor is as late."""

KEEP_ALIVE: Final = 30.0
"""Seconds without a packet after which a peer is probed."""


class Timetable:
    """Peers, sorted by their deadlines."""

    __slots__ = ("_heap", "_keepAlive", "_most", "_pushed", "_touched")

    def __init__(self, keepAlive: float) -> None:
        """@param keepAlive: seconds without a packet after which a peer is probed; zero for never."""
        self._keepAlive = keepAlive
        self._touched: list[Peer] = []
        self._heap: list[tuple[float, int, Peer]] = []
        self._pushed = 0
        self._most = _FEW

    def touch(self, peer: Peer) -> None:
        """Note that the deadline of a peer may have changed."""
        if not peer.isTouched:
            peer.isTouched = True
            self._touched.append(peer)

    def isUnchanged(self, now: float) -> bool:
        """
        Return whether L{earliest} would return what it has returned last, and that time has not passed
        L{LATE} seconds ago.
        """
        return not self._touched and (not self._heap or self._heap[0][0] + LATE > now)

    def earliest(self, lose: Callable[[Peer, str, Exception], None]) -> float | None:
        """
        Return the time at which L{take} may return a peer.

        @param lose: called with a peer whose deadline cannot be computed, the reason, and the exception.
        """
        for peer in self._touched:
            peer.isTouched = False
            try:
                at = peer.deadline(self._keepAlive)
            except Exception as error:
                lose(peer, _FAILED, error)
                continue
            if at is not None and (peer.wakeAt is None or at < peer.wakeAt):
                peer.wakeAt = at
                self._pushed += 1
                heappush(self._heap, (at, self._pushed, peer))
        self._touched.clear()
        if len(self._heap) > self._most:
            self._heap = [
                entry for entry in self._heap if entry[2].wakeAt == entry[0] and entry[2].state != REMOVED
            ]
            heapify(self._heap)
            self._most = _FEW + 2 * len(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float, lose: Callable[[Peer, str, Exception], None]) -> Peer | None:
        """
        Return a peer whose deadline has passed; postpone those whose deadline has become later.

        @param lose: called with a peer whose deadline cannot be computed, the reason, and the exception.
        """
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _order, peer = heap[0]
            if peer.wakeAt == at and peer.state != REMOVED:  # else an earlier entry was pushed since
                try:
                    peer.wakeAt = peer.deadline(self._keepAlive)
                except Exception as error:
                    lose(peer, _FAILED, error)
                if peer.wakeAt is not None and peer.state != REMOVED:
                    if peer.wakeAt <= now:
                        peer.wakeAt = at
                        return peer
                    self._pushed += 1
                    heappush(heap, (peer.wakeAt, self._pushed, peer))
            heappop(heap)
        return None

    def take(self, now: float, lose: Callable[[Peer, str, Exception], None]) -> Peer | None:
        """Return a peer whose deadline has passed. Its deadline is computed again after this."""
        peer = self.due(now, lose)
        if peer is not None:
            heappop(self._heap)
            peer.wakeAt = None
            self.touch(peer)
        return peer
