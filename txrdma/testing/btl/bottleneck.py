"""A bottleneck of a simulated network: a queue in front of a link, as in a switch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from txrdma.btl.core.marks import CE, ECT
from txrdma.btl.core.module import OVERHEAD


class Bottleneck:
    """
    A link with a rate, and a queue of limited depth in front of it.

    @ivar rate: bytes per second; C{depth}: bytes that may wait, beyond which packets are lost; C{markFrom}:
        bytes beyond which packets with ECT(0) are marked.
    @ivar sent: forwarded packets; C{lost}: lost packets; C{busy}: seconds in which the link was busy.
    """

    def __init__(self, rate: float, depth: int, markFrom: float = inf) -> None:
        self.rate, self.depth, self.markFrom = rate, depth, markFrom
        self.sent = self.lost = 0
        self.busy = 0.0
        self._freeAt = 0.0

    def mark(self, codepoint: int, now: float) -> int:
        """Return the ECN codepoint with which a packet that arrives now is forwarded."""
        isMarked = codepoint == ECT and (self._freeAt - now) * self.rate > self.markFrom
        return CE if isMarked else codepoint

    def delay(self, length: int, now: float) -> float | None:
        """
        Queue a packet of this many bytes, not counting outer headers.

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


class CubicFlow:
    """
    A sender that shares a bottleneck like TCP: a model of CUBIC's window (RFC 9438) only.

    @ivar delivered: packets that have arrived.
    """

    def __init__(
        self,
        call: Callable[[float, Callable[[], None]], None],
        bottleneck: Bottleneck,
        roundTrip: float,
        length: int,
    ) -> None:
        """
        @param call: calls a function at a time.
        @param roundTrip: seconds without the queue.
        @param length: bytes of a packet.
        """
        self._call, self._bottleneck, self._roundTrip, self._length = call, bottleneck, roundTrip, length
        self._window, self._threshold, self._widest = 10.0, 1e9, 0.0
        self._inFlight = self.delivered = 0
        self._epoch = self._recovered = 0.0

    def fill(self, now: float) -> None:
        """Send as many packets as the window allows."""
        while self._inFlight < self._window:
            self._inFlight += 1
            wait = self._bottleneck.delay(self._length, now)
            if wait is None:
                seconds = self._roundTrip + self._bottleneck.depth / self._bottleneck.rate
                self._call(now + seconds, partial(self._lost, now + seconds))
            else:
                seconds = self._roundTrip + wait
                self._call(now + seconds, partial(self._arrived, now + seconds, seconds))

    def _arrived(self, now: float, seconds: float) -> None:
        self._inFlight -= 1
        self.delivered += 1
        if self._window < self._threshold:
            self._window += 1
        else:
            time = now - self._epoch
            cubic = 0.4 * (time - (self._widest * 0.3 / 0.4) ** (1 / 3)) ** 3 + self._widest
            reno = 0.7 * self._widest + 0.53 * time / seconds
            self._window += max(0.0, max(cubic, reno) - self._window) / self._window
        self.fill(now)

    def _lost(self, now: float) -> None:
        self._inFlight -= 1
        if now > self._recovered:
            self._widest = self._window
            self._window = self._threshold = max(2.0, 0.7 * self._window)
            self._epoch = now
            self._recovered = now + self._roundTrip + self._bottleneck.depth / self._bottleneck.rate
        self.fill(now)
