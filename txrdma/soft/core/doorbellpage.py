"""
The doorbell page of a completion channel: a byte for each route, which names the route that was rung.

An eventfd names only the channel, so that a wakeup would have to poll all routes of its queues. A peer that
rings first sets the doorbell byte of its route; the reader finds set bytes with one search.

B{Order.} The peer writes its record, then the byte. The reader clears the byte, then arms the route, whose
full fence precedes the poll. So a ring after the poll sets the byte again, and the record of a ring before
that is found by the poll.

All processes of this user that have the channel's eventfd share its page. One that sets arbitrary bytes
causes needless polls, at most one for each byte and search; one that clears them delays others as if it read
the eventfd.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Final

from txrdma.unix.mapping import closeMapping, sealedMemory

DOORBELL_BYTES: Final = 1 << 16
"""The size of a page, and the limit of routes with a byte; unused parts take no memory."""

_SET: Final = b"\1"


class DoorbellPage:
    """
    The doorbell bytes of one channel, by number; number 0 is not used.

    @ivar descriptor: descriptor of the memory, which peers map.
    """

    def __init__(self) -> None:
        """@raise OSError: there is no memory or descriptor."""
        self.descriptor, self._mapping = sealedMemory("txrdma-doorbells", DOORBELL_BYTES)
        self._bytes: mmap.mmap | bytearray = self._mapping
        self._end = 1  # no number from here on was assigned
        self._free: list[int] = []
        self._dormant: dict[int, Callable[[], None]] = {}

    def claim(self) -> int:
        """Assign the number of an unused byte; 0 if there is none."""
        if self._free:
            return self._free.pop()
        if self._end == DOORBELL_BYTES or self.descriptor < 0:
            return 0
        self._end += 1
        return self._end - 1

    def release(self, number: int) -> None:
        """Free the byte of a closed route; if its peer sets it later, the next owner is polled needlessly."""
        self._dormant.pop(number, None)
        self._free.append(number)

    def sleep(self, number: int, wake: Callable[[], None]) -> None:
        """Call C{wake} once when L{check} finds the byte set."""
        self._dormant[number] = wake

    def cancel(self, number: int) -> None:
        """Cancel the call of C{wake} that L{sleep} requested."""
        self._dormant.pop(number, None)

    def ring(self, number: int) -> None:
        """Set the byte with this number, as a peer does."""
        self._bytes[number] = 1

    def check(self) -> None:
        """Clear the bytes that are set, and wake their routes."""
        find, end = self._bytes.find, self._end
        number = find(_SET, 1, end)
        while number >= 0:
            self._bytes[number] = 0
            wake = self._dormant.pop(number, None)
            if wake is not None:
                wake()
            number = find(_SET, number + 1, end)

    def close(self) -> None:
        """Wake all routes, since rings are no longer received, and release the memory."""
        if self.descriptor < 0:
            return
        os.close(self.descriptor)
        self.descriptor = -1
        self._bytes = bytearray(DOORBELL_BYTES)
        closeMapping(self._mapping)
        dormant, self._dormant = self._dormant, {}
        for wake in dormant.values():
            wake()
