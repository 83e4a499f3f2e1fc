"""
Sums of errors in sliding windows, by port and counter, and their limits.

Only ports with errors use memory, each a bounded amount.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

from txrdma.kit.values import frozen

_PARTS: Final = 30
"""Number of parts into which a window is divided: the precision with which errors leave it."""

Key = TypeVar("Key", bound=Hashable)


@frozen
class TallyLimit:
    """
    Limit for one counter of every port.

    @ivar counter: name of the counter.
    @ivar most: largest growth within a window that is not reported.
    @ivar seconds: length of the window.
    """

    counter: str
    most: int
    seconds: float


class Tally:
    """Sum of the errors within a sliding window."""

    __slots__ = ("_parts", "_seconds", "_sum")

    def __init__(self, seconds: float) -> None:
        """@param seconds: length of the window, accurate to a thirtieth."""
        self._seconds = seconds
        self._parts: deque[list[float]] = deque()
        self._sum = 0

    def add(self, count: int, now: float, seconds: float = 0.0) -> None:
        """
        Add errors that were counted now.

        @param seconds: time in which they occurred, over which they are distributed: of those of a gap of
            hours, most have left the window.
        """
        length = self._seconds / _PARTS
        if seconds <= length:
            self._put(count, now)
            return
        within = min(1.0, self._seconds / seconds) * count
        pieces, put = min(_PARTS, int(seconds / length)), 0
        for piece in range(1, pieces + 1):
            more = int(within * piece / pieces) - put
            if more:
                self._put(more, now - (pieces - piece) * length)
                put += more

    def _put(self, count: int, at: float) -> None:
        self._sum += count
        parts = self._parts
        if parts and at - parts[-1][0] < self._seconds / _PARTS:
            parts[-1][1] += count
        else:
            parts.append([at, count])

    def remove(self, count: int, at: float) -> None:
        """Remove errors that were added at a time, unless they have left the window."""
        for part in reversed(self._parts):
            if part[0] <= at and count:
                taken = min(part[1], count)
                part[1] -= taken
                self._sum -= int(taken)
                count -= int(taken)

    def sum(self, now: float) -> int:
        """Return the number of errors within the window that ends now."""
        parts = self._parts
        while parts and now - parts[0][0] >= self._seconds:
            self._sum -= int(parts.popleft()[1])
        return self._sum

    def since(self, at: float) -> int:
        """Return the number of errors since a time, accurate to a thirtieth of the window."""
        return sum(int(count) for began, count in self._parts if began > at)


class Tallies(Generic[Key]):
    """Errors of all ports within the windows of some limits, which L{change} sets."""

    def __init__(self) -> None:
        self._limits: dict[tuple[str, float], list[TallyLimit]] = {}
        self._windows: dict[str, list[float]] = {}
        self._tallies: dict[tuple[Key, str, float], Tally] = {}

    def change(self, limits: Iterable[TallyLimit]) -> None:
        """Replace the limits. Sums are retained if a new limit has the same counter and window."""
        self._limits.clear()
        self._windows.clear()
        for limit in limits:
            self._limits.setdefault((limit.counter, limit.seconds), []).append(limit)
        for counter, seconds in self._limits:
            self._windows.setdefault(counter, []).append(seconds)
        self._tallies = {key: tally for key, tally in self._tallies.items() if key[1:] in self._limits}

    def __len__(self) -> int:
        """Return the number of sums that are not known to be zero."""
        return len(self._tallies)

    def add(self, key: Key, counter: str, count: int, now: float, seconds: float = 0.0) -> None:
        """Add the growth of one counter of a port, within some seconds until now."""
        for window in self._windows.get(counter, ()):
            tally = self._tallies.get((key, counter, window))
            if tally is None:
                tally = self._tallies[key, counter, window] = Tally(window)
            tally.add(count, now, seconds)

    def remove(self, key: Key, counter: str, count: int, at: float) -> None:
        """Remove the growth of one counter of a port that was added at a time."""
        for window in self._windows.get(counter, ()):
            tally = self._tallies.get((key, counter, window))
            if tally is not None:
                tally.remove(count, at)

    def since(self, key: Key, limit: TallyLimit, at: float) -> int:
        """Return the errors of a port since a time, within the window of a limit."""
        tally = self._tallies.get((key, limit.counter, limit.seconds))
        return 0 if tally is None else tally.since(at)

    def retain(self, isKnown: Callable[[Key], bool]) -> None:
        """Forget ports that have left the fabric."""
        self._tallies = {key: tally for key, tally in self._tallies.items() if isKnown(key[0])}

    def exceeded(self, now: float) -> list[tuple[Key, TallyLimit, int]]:
        """Return ports, the limits that each exceeds, and the sums; drop sums that are zero again."""
        found = []
        for (key, counter, seconds), tally in list(self._tallies.items()):
            count = tally.sum(now)
            found += [(key, one, count) for one in self._limits[counter, seconds] if count > one.most]
            if not count:
                del self._tallies[key, counter, seconds]
        return found
