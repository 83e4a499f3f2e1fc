"""
The landing of a peer: memory of its process that this one has mapped, for the bytes of long messages.

A piece is written there, then a segment tells of it, which is numbered, acknowledged and sent again like
others. The receiver acknowledges it when it has done with the bytes: so an acknowledgement gives back the
room, and nothing but its segments says where pieces stand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from txrdma.kit.wire import Buffer

FULL: Final = -1
"""The place of a piece for which there is no room before others were acknowledged."""

UNREACHED: Final = -2
"""The place of a piece that cannot be written at present: the memory is out of reach."""

LONG: Final = 8 << 10
"""Bytes of a message whose sender wants a landing: by packets it would take twice the time."""

WORTH_WAITING: Final = 256 << 10
"""Bytes of messages that wait for a landing which is asked for: as packets they would take longer."""

_SMALLEST: Final = 12
_PARTS: Final = 4


class Landing:
    """
    The landing of a peer, with the pieces that stand there.

    Memory is given out from the beginning on, in powers of two, and what comes back is given out first: few
    pages are touched, and caches know them. When nothing stands there all is new.

    @ivar size: bytes.
    """

    __slots__ = ("_free", "_head", "_idle", "_isEmptying", "_orders", "_part", "_write", "size")

    def __init__(self, size: int, write: Callable[[int, Buffer], bool]) -> None:
        """
        @param write: writes bytes to a place in the landing; answers whether it could.
        """
        self.size = size
        self._part = 1 << max(0, (size // _PARTS).bit_length() - 1)
        self._write = write
        self._orders: dict[int, int] = {}  # by the places of pieces: logarithms of their memory
        self._free: dict[int, list[int]] = {}  # by that logarithm, the latest that came back last
        self._head = self._idle = 0  # bytes that were given out, and those of them that are free
        self._isEmptying = False  # all is new soon, for a piece that finds only memory of other sizes

    def fitting(self, begin: int, total: int) -> int:
        """
        Tell how many bytes of a message go next in one piece: all, or as many as leave room for others.

        @param begin: bytes that have gone before.
        """
        return min(total - begin, self.size if total <= self.size else self._part)

    def place(self, data: Buffer) -> int:
        """
        Write a piece: not more bytes than L{fitting} has told.

        @return: its place, which is taken until L{release}; L{FULL} or L{UNREACHED}.
        """
        order = max(_SMALLEST, (len(data) - 1).bit_length())
        at = self._take(order)
        if at == FULL or self._write(at, data):
            return at
        self.release(at)
        return UNREACHED

    def _take(self, order: int) -> int:
        length = min(1 << order, self.size)
        free = self._free.get(order)
        if self._isEmptying:
            return FULL
        if free:
            at = free.pop()
            self._idle -= length
        elif self._head + length <= self.size:
            at = self._head
            self._head += length
        else:
            self._isEmptying = self._idle >= length
            return FULL
        self._orders[at] = order
        return at

    def release(self, place: int) -> None:
        """Give back the memory of a piece, which was acknowledged."""
        order = self._orders.pop(place)
        if self._orders:
            self._free.setdefault(order, []).append(place)
            self._idle += min(1 << order, self.size)
        else:
            self._free.clear()
            self._head = self._idle = 0
            self._isEmptying = False
