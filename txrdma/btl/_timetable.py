"""
The deadlines of a module's peers, and which is the next.

A peer to which something happens is noted only, and asked for its deadline once, when somebody wants to know:
most deadlines are put off long before their time. Nothing here reads a clock.
"""

from __future__ import annotations

from heapq import heappop, heappush

from txrdma.btl._peer import GONE, Peer


class Timetable:
    """Peers, by the times at which they are to be looked after."""

    __slots__ = ("_heap", "_keepAlive", "_pushed", "_touched")

    def __init__(self, keepAlive: float) -> None:
        """
        @param keepAlive: seconds of silence after which a peer is asked whether it is there; zero for never.
        """
        self._keepAlive = keepAlive
        self._touched: list[Peer] = []
        self._heap: list[tuple[float, int, Peer]] = []
        self._pushed = 0

    def touch(self, peer: Peer) -> None:
        """Note that something has happened to a peer, so that its deadline may be another one."""
        if not peer.isTouched:
            peer.isTouched = True
            self._touched.append(peer)

    def earliest(self) -> float | None:
        """Time at which L{take} may find somebody."""
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
        """Take a peer whose time has come, as far as was known; it is to be asked again after this."""
        while self._heap and self._heap[0][0] <= now:
            at, _order, peer = heappop(self._heap)
            if peer.wakeAt == at and peer.state != GONE:
                peer.wakeAt = None
                self.touch(peer)
                return peer
        return None
