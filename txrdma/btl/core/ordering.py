"""
Delivery of messages in the order in which they were sent, for ordered tags.

The wire format needs no field for this. The segments of a message have consecutive sequence numbers, so that
a message can be delivered when no segment before its last one is missing. Ordered tags wait for lost segments
of other tags, too, as with TCP.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from txrdma.btl.core.receiving import difference, ReceiveWindow
from txrdma.btl.wire import SEQUENCE_MASK
from txrdma.kit.wire import Buffer

MOST_HELD: Final = 64 << 20
"""
Bytes of messages of one peer that wait for their predecessors. Beyond this only packets are accepted, of
which a window has few bytes; pieces in shared memory have to be sent again when the predecessors have
arrived.
"""


class Ordering:
    """
    The messages of one peer that wait for earlier ones, at most as many as the window has segments.

    @ivar isOrdered: whether messages are delivered in order, except those of C{tags}; else only those of
        C{tags} are.
    @ivar waiting: the messages, as a heap.
    """

    __slots__ = ("_bytes", "_queued", "_last", "isOrdered", "tags", "waiting")

    def __init__(self) -> None:
        self.tags: set[int] = set()
        self.isOrdered = True
        self._last = self._queued = self._bytes = 0
        self.waiting: list[tuple[int, int, int, Buffer]] = []

    def appliesTo(self, tag: int) -> bool:
        """Return whether messages of a tag are delivered in order."""
        return self.isOrdered != (tag in self.tags)

    def isFull(self, length: int) -> bool:
        """Return whether this many bytes exceed the remaining space."""
        return self._bytes + length > MOST_HELD

    def queue(self, sequence: int, tag: int, data: Buffer) -> None:
        """
        Queue a message until all earlier ones have arrived.

        @param sequence: sequence number of its last segment. Messages of one packet have the same number and
            remain in order.
        """
        self._last += difference(sequence, self._last & SEQUENCE_MASK)  # does not wrap
        self._queued += 1
        self._bytes += len(data)
        heappush(self.waiting, (self._last, self._queued, tag, data))

    def queueOrdered(
        self, sequence: int, messages: list[tuple[int, memoryview]]
    ) -> list[tuple[int, memoryview]]:
        """Queue the ordered messages of a segment, and return the others."""
        for tag, data in messages:
            if self.appliesTo(tag):
                self.queue(sequence, tag, bytes(data))
        return [each for each in messages if not self.appliesTo(each[0])]

    def next(self, received: ReceiveWindow) -> tuple[int, memoryview] | None:
        """Remove and return tag and data of the first message, if no segment before its end is missing."""
        if not self.waiting or not received.hasAll(self.waiting[0][0] & SEQUENCE_MASK):
            return None
        _last, _queued, tag, data = heappop(self.waiting)
        self._bytes -= len(data)
        return tag, memoryview(data)

    def drop(self) -> None:
        """Drop all messages, because the peer is lost."""
        self.waiting.clear()
        self._bytes = 0
