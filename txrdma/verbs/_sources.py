"""
The sources that a reader of completions polls, and their handlers.

Every poll runs this code, so it is compiled with the cores. Nothing here reads a clock or a descriptor; see
L{txrdma.verbs.completions} for the timing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any, Final

Poll = Callable[[int], Sequence[Any]]
"""Takes at most this many items from a source, oldest first."""

Consumer = Callable[[Sequence[Any]], None]
"""Handles a batch of items, which is not empty."""

_BATCH: Final = 64


class Sources:
    """
    The sources of one reader, in polling order.

    @ivar isRunning: the reader reads; a handler may end that.
    @ivar isArmed: queues are armed, and the first batch disarms them.
    """

    def __init__(self, failed: Callable[[], None], mayRetry: Callable[[], bool]) -> None:
        """
        @param failed: called while an exception of a handler is handled.
        @param mayRetry: called while an exception of a source is handled; returns whether to poll it again.
        """
        self.isRunning = self.isArmed = False
        self._failed, self._mayRetry = failed, mayRetry
        self._pairs: tuple[tuple[Poll, Consumer], ...] = ()
        self._first: Poll | None = None
        self._isRepeatable = False
        self._takeFirst: Consumer
        self._unread: Sized = ()
        self._disarms: list[Callable[[], None]] = []

    def add(self, poll: Poll, consumer: Consumer) -> None:
        self._pairs = ((poll, consumer), *self._pairs)

    def addFirst(self, poll: Poll, consumer: Consumer, unread: Sized, isRepeatable: bool) -> None:
        """
        Poll this source first, and the others only when it is empty and C{unread} is not.

        @param isRepeatable: whether a poll that raises has taken nothing.
        """
        self._isRepeatable = isRepeatable
        self._takeFirst = consumer
        self._unread = unread
        self._first = poll

    def disarmBy(self, disarm: Callable[[], None]) -> None:
        """Call this function when completions are found while C{isArmed}."""
        self._disarms.append(disarm)

    def poll(self) -> bool:
        """Hand completions to the handlers; return whether there were any, or a poll is to be repeated."""
        found = False
        wasRunning = self.isRunning
        try:
            first = self._first
            if first is not None:
                try:
                    batch = first(_BATCH)
                except Exception:
                    if not self._isRepeatable:
                        raise
                    return self._mayRetry()
                if batch:
                    self._takeFirst(batch)
                    if self.isArmed:
                        self._disarm(wasRunning)
                    return self.isRunning or not wasRunning
                if not self._unread:
                    return False
            for poll, take in self._pairs:
                try:
                    batch = poll(_BATCH)
                except Exception:
                    if not self._mayRetry():
                        return False
                    found = True
                    continue
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
        return found and (self.isRunning or not wasRunning)

    def _disarm(self, wasRunning: bool) -> None:
        """Disarm the queues, unless a handler has stopped the reader."""
        if self.isRunning or not wasRunning:
            self.isArmed = False
            for disarm in self._disarms:
                disarm()
