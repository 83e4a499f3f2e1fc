"""Back-off of peers that do not answer: the time between requests doubles until they answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

_MOST_DOUBLINGS: Final = 30


class BackOff(Generic[Name]):
    """The back-off of all silent peers; other peers use no memory."""

    def __init__(self, firstSeconds: float, mostSeconds: float) -> None:
        """
        @param firstSeconds: pause after the first missing answer; each further one doubles it.
        @param mostSeconds: longest pause.
        """
        self._longest = mostSeconds
        self.change(firstSeconds)
        self._silent: dict[Name, tuple[int, float, float]] = {}  # times, since when, and for how long

    def change(self, firstSeconds: float) -> None:
        """Change the pause after the first missing answer."""
        self._first = firstSeconds
        self._most = max(self._longest, firstSeconds)

    def __len__(self) -> int:
        """Return the number of silent peers."""
        return len(self._silent)

    def __iter__(self) -> Iterator[Name]:
        """Iterate over the silent peers."""
        return iter(self._silent)

    def isDue(self, name: Name, now: float) -> bool:
        """Return whether a peer may be queried now; also if the clock was set back since it was silent."""
        times, since, wait = self._silent.get(name, (0, now, 0.0))
        return not since <= now < since + wait

    def silent(self, name: Name, now: float) -> float:
        """Record that a peer did not answer; return the seconds until it may be queried again."""
        times = self.times(name)
        wait = min(self._most, self._first * (1 << min(times, _MOST_DOUBLINGS)))
        self._silent[name] = (times + 1, now, wait)
        return wait

    def answered(self, name: Name) -> None:
        """Record that a peer answered, which ends its back-off."""
        self._silent.pop(name, None)

    def retain(self, isKnown: Callable[[Name], bool]) -> None:
        """Forget all other peers."""
        self._silent = {name: silence for name, silence in self._silent.items() if isKnown(name)}

    def clear(self) -> None:
        """Forget all peers, because they were not at fault."""
        self._silent.clear()

    def times(self, name: Name) -> int:
        """Return the number of consecutive requests that a peer did not answer."""
        return self._silent.get(name, (0, 0.0, 0.0))[0]
