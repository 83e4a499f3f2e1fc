"""
Messages that come in chunks, until they are whole: bounded in number, in bytes and in age.

A chunk that exceeds the available memory is not accepted, so that it is sent again; one that always will is
refused. A retransmitted chunk could wait for memory that a later message of the same peer occupies, so each
peer may have one message more: that of the first missing segment.
Chunks that overlap harm only their own message: sequence numbers show which ones have come before.
"""

from __future__ import annotations

from typing import Final

from txrdma.btl.wire import Segment

TAKEN: Final = 0
OVER_BUDGET: Final = 1
WRONG: Final = 2

MOST_MESSAGES: Final = 64
"""Incomplete messages of one peer; a peer of ours sends the chunks of one after those of the other."""

LONGEST: Final = 64 << 20
"""Bytes of the longest message that is taken in chunks."""

MOST_BYTES: Final = 256 << 20
"""Bytes of incomplete messages of all peers of a module, but for the one that each may have beside."""

MOST_OF_PEER: Final = 2 * LONGEST
"""Bytes of these messages of one peer, so that none takes the room of all; further chunks have to wait."""

RESERVE_BYTES: Final = 256 << 20
"""Bytes of the messages that peers have beside, of all of them; others wait until there is room again."""

OLDEST: Final = 60.0
"""Seconds without a new chunk of a message after which its sender is given up."""


EXCUSED: Final = 5.0
"""Seconds that incomplete messages have after this end has slept: five of the longest timeouts of a peer."""


class Budget:
    """
    Memory that all peers of a module share.

    @ivar used: bytes of incomplete messages, of C{most}; a message may be C{longest} bytes.
    @ivar beside: bytes of those messages that each peer may have beside, of L{RESERVE_BYTES}.
    """

    __slots__ = ("beside", "longest", "most", "used")

    def __init__(self, most: int = MOST_BYTES, longest: int = LONGEST) -> None:
        self.most, self.longest, self.used = most, min(longest, most), 0
        self.beside = 0


class _Incomplete:
    __slots__ = ("at", "data", "isBeside", "missing", "tag")

    def __init__(self, tag: int, total: int, isBeside: bool) -> None:
        self.isBeside = isBeside
        self.tag, self.data, self.missing, self.at = tag, bytearray(total), total, 0.0


class Assembly:
    """The messages of one peer that are incomplete."""

    __slots__ = ("_budget", "_bytes", "_usesReserve", "_incomplete")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._bytes = 0  # of incomplete messages, but for the one beside
        self._usesReserve = False
        self._incomplete: dict[int, _Incomplete] = {}  # the one that waits longest for a chunk first

    def __len__(self) -> int:
        return len(self._incomplete)

    def judge(self, chunk: Segment, isNext: bool) -> int:
        """
        Decide whether a chunk can be accepted: TAKEN, OVER_BUDGET or WRONG.

        @param isNext: whether this is the first segment of its peer that is missing.
        """
        length = len(chunk.payload)
        if not length or chunk.offset + length > chunk.total or chunk.total > self._budget.longest:
            return WRONG
        found = self._incomplete.get(chunk.fragment)
        if found is None:
            fits = self._fits(chunk.total) or (isNext and self._fitsReserve(chunk.total))
            return TAKEN if fits else OVER_BUDGET
        if len(found.data) != chunk.total or found.tag != chunk.tag:
            return WRONG
        return WRONG if length > found.missing else TAKEN

    def _fits(self, total: int) -> bool:
        if len(self._incomplete) >= MOST_MESSAGES or self._bytes + total > MOST_OF_PEER:
            return False
        return self._budget.used + total <= self._budget.most

    def _fitsReserve(self, total: int) -> bool:
        return not self._usesReserve and self._budget.beside + total <= RESERVE_BYTES

    def isNew(self, fragment: int) -> bool:
        """True if no chunk of this message has arrived."""
        return fragment not in self._incomplete

    def take(self, chunk: Segment, now: float) -> bytearray | None:
        """
        Enter a chunk that was judged to be TAKEN.

        @return: the message when it is whole.
        """
        found = self._incomplete.pop(chunk.fragment, None)
        if found is None:
            found = _Incomplete(chunk.tag, chunk.total, not self._fits(chunk.total))
            if found.isBeside:
                self._usesReserve = True
                self._budget.beside += chunk.total
            else:
                self._bytes += chunk.total
                self._budget.used += chunk.total
        length = len(chunk.payload)
        found.data[chunk.offset : chunk.offset + length] = chunk.payload
        found.missing -= length
        found.at = now
        if not found.missing:
            self._release(found)
            return found.data
        self._incomplete[chunk.fragment] = found
        return None

    def _release(self, found: _Incomplete) -> None:
        if found.isBeside:
            self._usesReserve = False
            self._budget.beside -= len(found.data)
        else:
            self._bytes -= len(found.data)
            self._budget.used -= len(found.data)

    def deadline(self) -> float | None:
        """Time at which the peer has made a message wait for too long; None without an incomplete one."""
        for found in self._incomplete.values():
            return found.at + OLDEST
        return None

    def excuse(self, now: float) -> None:
        """Let incomplete messages wait a while longer: their sender is not to blame."""
        for found in self._incomplete.values():
            found.at = max(found.at, now - OLDEST + EXCUSED)

    def drop(self) -> None:
        """Forget all messages that are incomplete: their sender is gone."""
        for found in self._incomplete.values():
            self._release(found)
        self._incomplete.clear()
