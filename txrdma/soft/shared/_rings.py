"""
The two rings of a lane: the one that we write, with its ring of records, and the peer's, which we read.

See L{txrdma.soft.shared._layout} for how they look, and for the order in which records are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txrdma.iba.verbs import Buffer
from txrdma.soft.shared._layout import (
    barrier,
    CONSUMED,
    CONTINUED,
    FIRST,
    HEADER_BYTES,
    LINE,
    MORE,
    ORDERED,
    PADDING,
    ringBytes,
    WAKE,
)


class RingPair:
    """
    Our box, how far its ring is written and the peer has read it, and the peer's box.

    @ivar ours: the bytes of our box; C{words}: the same as C{u64}; C{end}: how many; C{ring}: bytes of the
        ring.
    @ivar out: index of the word where the next record begins.
    @ivar produced: the position up to which records are written; C{acknowledged}: up to which the peer has
        consumed them, as far as we know.
    @ivar limit: no record ends behind this position.
    @ivar offset: so much of the first waiting request is done; -1: all but its notice.
    @ivar at: index of the word in the peer's box where its next record begins.
    @ivar theirs: the words of the peer's box; C{theirEnd}: how many; C{theirBytes}: its bytes; C{raw}: the
        object itself, slices of which are quicker than those of a view.
    """

    def __init__(self, box: memoryview) -> None:
        self.localBytes = box
        self.localWords = box.cast("Q")
        self.localEnd = len(box) // 8
        self.ring = ringBytes(len(box))
        self.writeIndex = FIRST
        self.produced = 0
        self.acknowledged = 0
        self.limit = self.ring - LINE
        self.offset = 0
        self.peerBuffer: Any
        self.detach()

    def read(self, box: memoryview, at: int) -> None:
        """Read in this box from now on, from that word on."""
        self.readIndex = at
        self.peerBytes = box
        self.peerBuffer = box.obj
        self.peerWords = box.cast("Q")
        self.peerEnd = len(box) // 8

    def detach(self) -> None:
        """Read in a box in which nothing happens."""
        self.read(memoryview(bytes(HEADER_BYTES + LINE)), FIRST)

    def close(self) -> None:
        """Let go of the memory of both rings."""
        self.localWords[WAKE] = 0
        self.detach()
        self.localBytes = self.localWords = memoryview(b"")

    def append(self, control: int, immediate: int, pieces: Sequence[Buffer], length: int) -> bool:
        """Append one record to the ring, or tell that there is no room."""
        size = (length + 71) & -LINE
        out = self.writeIndex
        tail = (self.localEnd - out) << 3
        needed = size if size <= tail else size + tail
        if self.produced + needed > self.limit:
            self.readAcknowledged()
            if self.produced + needed > self.limit:
                return False
        words = self.localWords
        if size > tail:
            words[FIRST] = 0
            if not ORDERED:
                barrier()
            words[out] = PADDING << 24 | tail - 8
            self.produced += tail
            out = FIRST
        data = self.localBytes
        start = (out << 3) + 8
        for piece in pieces:
            end = start + len(piece)
            data[start:end] = piece
            start = end
        after = out + (size >> 3)
        if after == self.localEnd:
            after = FIRST
        words[after] = 0
        if not ORDERED:
            barrier()
        words[out] = immediate << 32 | control << 24 | length
        self.writeIndex = after
        self.produced += size
        return True

    def readAcknowledged(self) -> None:
        """Look how far the peer is; completions and faults are left to C{poll}."""
        consumed = self.peerWords[CONSUMED]
        if self.acknowledged < consumed <= self.produced:
            self.acknowledge(consumed)

    def acknowledge(self, consumed: int) -> None:
        """The peer has consumed up to there."""
        self.acknowledged = consumed
        self.limit = consumed + self.ring - LINE

    def appendParts(self, control: int, immediate: int, pieces: list[memoryview], length: int) -> bool:
        """Append a message in as many records as it takes; C{offset} of its bytes are in the ring already."""
        whole = self.ring >> 2
        while True:
            offset = self.offset
            size = min(whole, length - offset)
            flags = (CONTINUED if offset else 0) | (MORE if offset + size < length else 0)
            if not self.append(control | flags, immediate, part(pieces, offset, size), size):
                return False
            if offset + size == length:
                self.offset = 0
                return True
            self.offset += size


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
