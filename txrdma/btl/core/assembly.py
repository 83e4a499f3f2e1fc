"""
Reassembly of messages that arrive in chunks, bounded in number, in bytes and in age.

A chunk that exceeds the available memory is not accepted, and the peer retransmits it; a chunk that can never
fit is refused. A retransmitted chunk could wait for memory that a later message of the same peer occupies, so
each peer may have one additional message: that of the first missing segment. Overlapping chunks damage only
their own message; duplicates are recognized by sequence number.
"""

from __future__ import annotations

from typing import Final

from txrdma.btl.wire import BTLSegment

TAKEN: Final = 0
OVER_BUDGET: Final = 1
WRONG: Final = 2

MOST_MESSAGES: Final = 64
"""
Largest number of incomplete messages of one peer; txrdma sends all chunks of one message before the next one.
"""

LONGEST: Final = 64 << 20
"""Bytes of the longest message that is accepted in chunks."""

MOST_BYTES: Final = 256 << 20
"""Largest number of bytes of incomplete messages of all peers of a module, without the additional ones."""

MOST_OF_PEER: Final = 2 * LONGEST
"""Largest number of bytes of these messages of one peer; further chunks are dropped until there is space."""

RESERVE_BYTES: Final = 256 << 20
"""Largest number of bytes of the additional messages of all peers; others wait until there is space."""

OLDEST: Final = 60.0
"""Seconds without a new chunk of a message after which its sender is considered lost."""

PERIODS: Final = 5
"""
Number of parts of that time, each of which begins when this process has seen the end of the part before: at
most one part passes while it is suspended, or when its clock is set forward.
"""

_PERIOD_SECONDS: Final = OLDEST / PERIODS


class Budget:
    """
    Memory that all peers of a module share.

    @ivar used: bytes of incomplete messages, at most C{most}; a message may have C{longest} bytes.
    @ivar reserved: bytes of the additional messages (one for each peer), at most L{RESERVE_BYTES}.
    """

    __slots__ = ("longest", "most", "reserved", "used")

    def __init__(self, most: int = MOST_BYTES, longest: int = LONGEST) -> None:
        self.most, self.longest, self.used = most, min(longest, most), 0
        self.reserved = 0


class _Incomplete:
    """
    A message of which not all chunks have arrived.

    @ivar due: time in seconds at which the current one of the L{PERIODS} since the last chunk ends.
    @ivar left: number of periods that have not ended, with the current one.
    """

    __slots__ = ("data", "due", "left", "missing", "tag", "usesReserve")

    def __init__(self, tag: int, total: int, usesReserve: bool) -> None:
        self.usesReserve = usesReserve
        self.tag, self.data, self.missing = tag, bytearray(total), total
        self.due, self.left = 0.0, PERIODS


class Assembly:
    """The incomplete messages of one peer."""

    __slots__ = ("_budget", "_bytes", "_incomplete", "_usesReserve")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._bytes = 0  # of incomplete messages, without the additional one
        self._usesReserve = False
        self._incomplete: dict[int, _Incomplete] = {}  # the one that is due next first

    def __len__(self) -> int:
        return len(self._incomplete)

    def check(self, chunk: BTLSegment, isNext: bool) -> int:
        """
        Decide whether a chunk can be accepted: TAKEN, OVER_BUDGET or WRONG.

        @param isNext: whether this is the first missing segment of its peer.
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
        """Return whether a new message fits into the memory without the reserve."""
        if len(self._incomplete) >= MOST_MESSAGES or self._bytes + total > MOST_OF_PEER:
            return False
        return self._budget.used + total <= self._budget.most

    def _fitsReserve(self, total: int) -> bool:
        return not self._usesReserve and self._budget.reserved + total <= RESERVE_BYTES

    def isNew(self, fragment: int) -> bool:
        """Return whether no chunk of this message has arrived yet."""
        return fragment not in self._incomplete

    def take(self, chunk: BTLSegment, now: float) -> bytearray | None:
        """
        Store a chunk that L{check} has found to be TAKEN.

        @return: the message when it is complete, else None.
        """
        # The message moves behind the others, so that the first one has the earliest deadline.
        found = self._incomplete.pop(chunk.fragment, None)
        if found is None:
            found = _Incomplete(chunk.tag, chunk.total, not self._fits(chunk.total))
            if found.usesReserve:
                self._usesReserve = True
                self._budget.reserved += chunk.total
            else:
                self._bytes += chunk.total
                self._budget.used += chunk.total
        length = len(chunk.payload)
        found.data[chunk.offset : chunk.offset + length] = chunk.payload
        found.missing -= length
        found.due, found.left = now + _PERIOD_SECONDS, PERIODS
        if not found.missing:
            self._release(found)
            return found.data
        self._incomplete[chunk.fragment] = found
        return None

    def _release(self, found: _Incomplete) -> None:
        if found.usesReserve:
            self._usesReserve = False
            self._budget.reserved -= len(found.data)
        else:
            self._bytes -= len(found.data)
            self._budget.used -= len(found.data)

    def deadline(self) -> float | None:
        """Time in seconds at which to call L{hasStopped}; None if there is no incomplete message."""
        for found in self._incomplete.values():
            return found.due
        return None

    def hasStopped(self, now: float) -> bool:
        """
        End the periods that are over; return whether the last one of a message is: its sender is lost.

        Call this at L{deadline}.
        """
        for fragment, found in tuple(self._incomplete.items()):
            if found.due > now:
                break
            found.left -= 1
            if not found.left:
                return True
            found.due = now + _PERIOD_SECONDS
            self._incomplete[fragment] = self._incomplete.pop(fragment)  # behind the others
        return False

    def drop(self) -> None:
        """Drop all incomplete messages, because the peer is lost."""
        for found in self._incomplete.values():
            self._release(found)
        self._incomplete.clear()
