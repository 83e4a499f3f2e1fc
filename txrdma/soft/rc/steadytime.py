"""
The time of the ports of a reactor, which stands still while the system's clock is set back.

Twisted's reactors use the system's clock. Without this, packets that were lost before it is set back would be
sent again only when the clock has caught up.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

from twisted.internet.interfaces import IReactorTime


class SteadyTime:
    """
    The time of one clock.

    @ivar setBack: seconds by which the clock was set back in total.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._read = clock.seconds
        self._latest = clock.seconds()
        self.setBack = 0.0

    def seconds(self) -> float:
        """Return the clock's time, plus C{setBack}: it never decreases."""
        now = self._read() + self.setBack
        if now < self._latest:
            self.setBack += self._latest - now
            now = self._latest
        self._latest = now
        return now


_times: Final[WeakValueDictionary[int, SteadyTime]] = WeakValueDictionary()
"""Those in use, by the identity of their clock, which they keep alive."""


def steadyTime(clock: IReactorTime) -> SteadyTime:
    """Return the time of this clock, which all ports share, because connections use several; they keep it."""
    time = _times.get(id(clock))
    if time is None:
        time = _times[id(clock)] = SteadyTime(clock)
    return time
