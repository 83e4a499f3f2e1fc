"""
The boxes of a lane: the local one, whose ring is written here, and the peer's, whose ring is read here.

L{txrdma.soft.shared._layout} describes them, and the order in which records are written.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Final

from txrdma.iba.verbs import Buffer
from txrdma.soft.core.pieces import part
from txrdma.soft.shared._layout import (
    CONSUMED,
    CONTINUED,
    FIRST,
    HEADER_BYTES,
    LINE,
    MORE,
    PADDING,
    ringBytes,
    WAKE,
)
from txrdma.unix.fences import barrier, ORDERED

_SECOND_PAGE: Final = mmap.PAGESIZE // 8

_NO_BOX: Final = memoryview(b"")
_NO_PEER: Final = memoryview(bytes(HEADER_BYTES + LINE))
"""A box without records."""


class RingPair:
    """
    The local box and the peer's, with the positions in both rings.

    @ivar localBytes: the local box; C{localWords}: as C{u64} words; C{localEnd}: their number; C{ring}: bytes
        of its ring.
    @ivar writeIndex: index of the word where the next record begins.
    @ivar produced: position up to which records are written; C{acknowledged}: last known position up to which
        the peer has consumed them.
    @ivar limit: position behind which no record may end.
    @ivar offset: bytes of the first waiting request that are done; -1: all except its notice.
    @ivar readIndex: index of the word in the peer's box where its next record begins.
    @ivar peerWords: words of the peer's box; C{peerEnd}: their number; C{peerBytes}: its bytes;
        C{peerBuffer}: the object behind them, which is faster to slice than a view.
    """

    __slots__ = (
        *("acknowledged", "limit", "localBytes", "localEnd", "localWords", "offset", "peerBuffer"),
        *("peerBytes", "peerEnd", "peerWords", "produced", "readIndex", "ring", "writeIndex"),
    )

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
        """Read records of this box, from that word on."""
        self.readIndex = at
        self.peerBytes = box
        self.peerBuffer = box.obj
        self.peerWords = box.cast("Q")
        self.peerEnd = len(box) // 8

    def detach(self) -> None:
        self.read(_NO_PEER, FIRST)

    def close(self) -> None:
        """Release the memory of both rings."""
        self.localWords[WAKE] = 0
        self.detach()
        self.localBytes = self.localWords = _NO_BOX

    def append(self, control: int, immediate: int, pieces: Sequence[Buffer], length: int) -> bool:
        """Append one record to the ring; False if the ring is full."""
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
            self._pad(out, tail)
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

    def rewind(self) -> None:
        """
        Continue at the beginning of the ring if the peer has read all records.

        Connections that are usually idle then use the first pages of their rings only, and use no others.
        """
        out = self.writeIndex
        if out >= _SECOND_PAGE and self.produced == self.acknowledged:
            self._pad(out, (self.localEnd - out) << 3)
            self.writeIndex = FIRST

    def _pad(self, out: int, tail: int) -> None:
        """Fill the end of the ring, C{tail} bytes, with a record without content."""
        words = self.localWords
        words[FIRST] = 0
        if not ORDERED:
            barrier()
        words[out] = PADDING << 24 | tail - 8
        self.produced += tail

    def readAcknowledged(self) -> None:
        """Read the position up to which the peer has consumed; polling processes completions and faults."""
        consumed = self.peerWords[CONSUMED]
        if self.acknowledged < consumed <= self.produced:
            self.acknowledge(consumed)

    def acknowledge(self, consumed: int) -> None:
        """Set the position up to which the peer has consumed records."""
        self.acknowledged = consumed
        self.limit = consumed + self.ring - LINE

    def appendParts(self, control: int, immediate: int, pieces: list[memoryview], length: int) -> bool:
        """Append a long message as several records, from C{offset} on; False if the ring is full."""
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
