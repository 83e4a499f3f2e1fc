"""
Messages in the order in which they were sent, for tags that want it.

Nothing on the wire is needed for that: the segments of one message follow each other, so that a message whose
last segment is followed by no gap has all its predecessors before it. Who wants order waits for lost segments
of other tags, too, as with TCP.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from txrdma.btl._receiving import difference, ReceiveWindow
from txrdma.kit.wire import Buffer

MOST_HELD: Final = 64 << 20
"""
Bytes of messages of one peer that wait for their predecessors. More are taken in packets only, of which a
window has few bytes; pieces in shared memory have to be sent again when the predecessors are here.
"""


class Order:
    """
    The tags of one peer whose messages are delivered in order.

    @ivar tags: their numbers.
    @ivar isSettled: the program has named them. The peer may send before that, and until then all do.
    """

    __slots__ = ("isSettled", "tags")

    def __init__(self) -> None:
        self.tags: set[int] = set()
        self.isSettled = False

    def wants(self, tag: int) -> bool:
        """True if messages of a tag are delivered in order."""
        return not self.isSettled or tag in self.tags


class Ordering(Order):
    """The messages of one peer that wait for their predecessors: as many as its window has segments."""

    __slots__ = ("_bytes", "_held", "_last", "_waiting")

    def __init__(self) -> None:
        super().__init__()
        self._last = self._held = self._bytes = 0
        self._waiting: list[tuple[int, int, int, Buffer]] = []  # a heap

    def __len__(self) -> int:
        return len(self._waiting)

    def isFull(self, length: int) -> bool:
        """True if there is no space for so many bytes besides those that wait."""
        return self._bytes + length > MOST_HELD

    def hold(self, sequence: int, tag: int, data: Buffer) -> None:
        """
        Keep a message until all before it are here.

        @param sequence: of its last segment, which messages of one packet share; these are kept in order.
        """
        self._last += difference(sequence, self._last & 0xFFFF)  # does not begin anew
        self._held += 1
        self._bytes += len(data)
        heappush(self._waiting, (self._last, self._held, tag, data))

    def holdSome(self, sequence: int, messages: list[tuple[int, memoryview]]) -> list[tuple[int, memoryview]]:
        """Keep those messages of a segment that want order; the answer are the others."""
        for tag, data in messages:
            if self.wants(tag):
                self.hold(sequence, tag, bytes(data))
        return [each for each in messages if not self.wants(each[0])]

    def next(self, received: ReceiveWindow) -> tuple[int, memoryview] | None:
        """Take the first message if no segment before its end is missing: its tag and its data."""
        if not self._waiting or not received.has(self._waiting[0][0] & 0xFFFF):
            return None
        _last, _held, tag, data = heappop(self._waiting)
        self._bytes -= len(data)
        return tag, memoryview(data)

    def drop(self) -> None:
        """Forget all messages: their sender is gone."""
        self._waiting.clear()
        self._bytes = 0
