"""
Errors within the last minutes or hours, by port and counter, against limits.

Only ports that have counted errors take memory, and each of them a bounded number of figures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

from txrdma.kit.values import frozen

_PARTS: Final = 30
"""Parts that a window is divided into: the precision with which errors leave it."""

Key = TypeVar("Key", bound=Hashable)


@frozen
class Limit:
    """
    Limit for one counter of every port.

    @ivar counter: name of the counter.
    @ivar most: highest growth in a window that is not reported.
    @ivar seconds: length of the window.
    """

    counter: str
    most: int
    seconds: float


class Tally:
    """Sum of what was added within a sliding window."""

    __slots__ = ("_parts", "_seconds", "_sum")

    def __init__(self, seconds: float) -> None:
        """@param seconds: length of the window, accurate to a thirtieth."""
        self._seconds = seconds
        self._parts: deque[list[float]] = deque()
        self._sum = 0

    def add(self, count: int, now: float) -> None:
        """Add a number of errors that were seen now."""
        self._sum += count
        parts = self._parts
        if parts and now - parts[-1][0] < self._seconds / _PARTS:
            parts[-1][1] += count
        else:
            parts.append([now, count])

    def sum(self, now: float) -> int:
        """Errors of the window that ends now."""
        parts = self._parts
        while parts and now - parts[0][0] >= self._seconds:
            self._sum -= int(parts.popleft()[1])
        return self._sum


@frozen
class Exceeded(Generic[Key]):
    """
    Limit that a port is beyond at present.

    @ivar key: identity of the port, as passed to L{Tallies.add}.
    @ivar count: errors within the window of the limit.
    """

    key: Key
    limit: Limit
    count: int


class Tallies(Generic[Key]):
    """Errors of all ports within the windows of some limits."""

    def __init__(self, limits: Iterable[Limit]) -> None:
        self._limits: dict[str, list[Limit]] = {}
        for limit in limits:
            self._limits.setdefault(limit.counter, []).append(limit)
        self._tallies: dict[tuple[Key, Limit], Tally] = {}

    def change(self, limits: Iterable[Limit]) -> None:
        """Judge by other limits from now on; tallies of those that stay go on."""
        self._limits.clear()
        for limit in limits:
            self._limits.setdefault(limit.counter, []).append(limit)
        current = {limit for several in self._limits.values() for limit in several}
        self._tallies = {key: tally for key, tally in self._tallies.items() if key[1] in current}

    def __len__(self) -> int:
        """Number of tallies that are not known to be zero."""
        return len(self._tallies)

    @property
    def counters(self) -> list[str]:
        """Names of the counters that have limits."""
        return list(self._limits)

    def add(self, key: Key, counter: str, count: int, now: float) -> None:
        """Add the growth of one counter of a port."""
        for limit in self._limits.get(counter, ()):
            tally = self._tallies.get((key, limit))
            if tally is None:
                tally = self._tallies[key, limit] = Tally(limit.seconds)
            tally.add(count, now)

    def keep(self, isKnown: Callable[[Key], bool]) -> None:
        """Forget ports that are not known any more."""
        self._tallies = {key: tally for key, tally in self._tallies.items() if isKnown(key[0])}

    def exceeded(self, now: float) -> list[Exceeded[Key]]:
        """Limits that ports are beyond at present; tallies that are zero again are dropped."""
        found = []
        for (key, limit), tally in list(self._tallies.items()):
            count = tally.sum(now)
            if count > limit.most:
                found.append(Exceeded(key, limit, count))
            elif not count:
                del self._tallies[key, limit]
        return found
