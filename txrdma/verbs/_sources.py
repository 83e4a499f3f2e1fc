"""
The sources that a reader of completions looks at, and who takes what comes from each.

Every look passes here, those that find nothing included, so this is compiled with the cores. Nothing here
reads a clock or a descriptor; see L{txrdma.verbs.completions} for when it is looked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any, Final

Poll = Callable[[int], Sequence[Any]]
"""Take at most so many things from a source, oldest first."""

Taker = Callable[[Sequence[Any]], None]
"""Handle a batch of them, which is not empty."""

_BATCH: Final = 64


class Sources:
    """
    The sources of one reader, in the order in which they are looked at.

    @ivar isRunning: the reader reads; a handler may end that.
    @ivar isArmed: queues are armed, and the first batch disarms them.
    """

    def __init__(self, failed: Callable[[], None]) -> None:
        """
        @param failed: is called where a source, or who takes from it, raises.
        """
        self.isRunning = self.isArmed = False
        self._failed = failed
        self._pairs: tuple[tuple[Poll, Taker], ...] = ()
        self._first: Poll | None = None
        self._takeFirst: Taker
        self._unread: Sized = ()
        self._disarms: list[Callable[[], None]] = []

    def add(self, poll: Poll, taker: Taker) -> None:
        """Look there from now on, before all others."""
        self._pairs = ((poll, taker), *self._pairs)

    def addFirst(self, poll: Poll, taker: Taker, unread: Sized) -> None:
        """
        Look there from now on, and at all others only when there is nothing, and something here is C{unread}.
        """
        self._takeFirst = taker
        self._unread = unread
        self._first = poll

    def disarmBy(self, disarm: Callable[[], None]) -> None:
        """Have this called when something has come while C{isArmed}."""
        self._disarms.append(disarm)

    def poll(self) -> bool:
        """Hand over what has completed; tell whether there was anything."""
        found = False
        wasRunning = self.isRunning
        try:
            first = self._first
            if first is not None:
                batch = first(_BATCH)
                if batch:
                    self._takeFirst(batch)
                    if self.isArmed:
                        self._disarm(wasRunning)
                    return self.isRunning or not wasRunning
                if not self._unread:
                    return False
            for poll, take in self._pairs:
                batch = poll(_BATCH)
                if batch:
                    found = True
                    take(batch)
                    if wasRunning and not self.isRunning:
                        return False
            if found and self.isArmed:
                self._disarm(wasRunning)
        except Exception:
            self._failed()
            return False
        return found

    def _disarm(self, wasRunning: bool) -> None:
        """Arm queues no more, unless a handler has ended the reader meanwhile."""
        if self.isRunning or not wasRunning:
            self.isArmed = False
            for disarm in self._disarms:
                disarm()
