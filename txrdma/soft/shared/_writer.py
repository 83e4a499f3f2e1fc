"""
Writing records into a ring.

See L{txrdma.soft.shared._layout} for how they look, and for the order in which that is done.
"""

from __future__ import annotations

from collections.abc import Sequence

from txrdma.soft.shared._layout import (
    barrier,
    CONSUMED,
    CONTINUED,
    FIRST,
    LINE,
    MORE,
    ORDERED,
    PADDING,
    ringBytes,
)


class Writer:
    """The ring that we write, and how far the peer has read it."""

    __slots__ = (
        "_acknowledged",
        "_inWords",
        "_limit",
        "_offset",
        "_out",
        "_outBytes",
        "_outEnd",
        "_outWords",
        "_produced",
        "_ring",
    )

    def __init__(self, box: memoryview) -> None:
        self._inWords: memoryview  # where the peer writes
        self._outBytes = box
        self._outWords = box.cast("Q")
        self._ring = ringBytes(len(box))
        self._out = FIRST
        self._outEnd = len(box) // 8
        self._produced = 0
        self._acknowledged = 0
        self._limit = self._ring - LINE  # no record ends behind this
        self._offset = 0  # so much of the first waiting request is done; -1: all but its notice

    def _record(self, control: int, immediate: int, pieces: Sequence[memoryview], length: int) -> bool:
        """Append one record to the ring, or tell that there is no room."""
        size = (length + 71) & -LINE
        out = self._out
        tail = (self._outEnd - out) << 3
        needed = size if size <= tail else size + tail
        if self._produced + needed > self._limit and not self._roomFor(needed):
            return False
        words = self._outWords
        if size > tail:
            words[FIRST] = 0
            if not ORDERED:
                barrier()
            words[out] = PADDING << 24 | tail - 8
            self._produced += tail
            out = FIRST
        data = self._outBytes
        start = (out << 3) + 8
        for piece in pieces:
            end = start + len(piece)
            data[start:end] = piece
            start = end
        after = out + (size >> 3)
        if after == self._outEnd:
            after = FIRST
        words[after] = 0
        if not ORDERED:
            barrier()
        words[out] = immediate << 32 | control << 24 | length
        self._out = after
        self._produced += size
        return True

    def _roomFor(self, needed: int) -> bool:
        self._refresh()
        return self._produced + needed <= self._limit

    def _refresh(self) -> None:
        """Look how far the peer is; completions and faults are left to C{poll}."""
        consumed = self._inWords[CONSUMED]
        if self._acknowledged < consumed <= self._produced:
            self._acknowledged = consumed
            self._limit = consumed + self._ring - LINE

    def _recordParts(self, control: int, immediate: int, pieces: list[memoryview], length: int) -> bool:
        """Send a message in several records; C{self._offset} of it are in the ring already."""
        whole = self._ring >> 2
        while self._offset < length:
            offset = self._offset
            size = min(whole, length - offset)
            flags = (CONTINUED if offset else 0) | (MORE if offset + size < length else 0)
            if not self._record(control | flags, immediate, part(pieces, offset, size), size):
                return False
            self._offset += size
        self._offset = 0
        return True


def part(pieces: list[memoryview], offset: int, length: int) -> list[memoryview]:
    """The bytes from C{offset} on, of several pieces."""
    part = []
    for piece in pieces:
        if offset < len(piece):
            part.append(piece[offset : offset + length])
            length -= len(part[-1])
            if not length:
                break
        offset = max(0, offset - len(piece))
    return part


def spread(targets: list[memoryview], offset: int, data: memoryview) -> None:
    """Put bytes from C{offset} on, into several pieces that have room for them."""
    for target in part(targets, offset, len(data)):
        target[:] = data[: len(target)]
        data = data[len(target) :]
