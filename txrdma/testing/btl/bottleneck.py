"""
A bottleneck of a simulated network: a queue in front of a link, as in a switch.
"""

from __future__ import annotations

from txrdma.btl.core.module import OVERHEAD


class Bottleneck:
    """
    A link with a rate, and a queue of limited depth in front of it.

    @ivar rate: bytes per second; C{depth}: bytes that may wait, beyond which packets are lost.
    @ivar sent: packets that have passed; C{lost}: packets that were lost; C{busy}: seconds in which the link
        was busy.
    """

    def __init__(self, rate: float, depth: int) -> None:
        self.rate, self.depth = rate, depth
        self.sent = self.lost = 0
        self.busy = 0.0
        self._freeAt = 0.0

    def delay(self, length: int, now: float) -> float | None:
        """
        Queue a packet of so many bytes, without the headers around it.

        @return: seconds until its last byte has left; None if it is lost.
        """
        wait = max(0.0, self._freeAt - now)
        if wait * self.rate > self.depth:
            self.lost += 1
            return None
        seconds = (length + OVERHEAD) / self.rate
        self.sent += 1
        self.busy += seconds
        self._freeAt = now + wait + seconds
        return wait + seconds
