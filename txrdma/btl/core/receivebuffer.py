"""
Allocation in a peer's receive buffer: memory of its process that this process has mapped.

A piece of a long message is written there, and a segment carries its position; the segment is numbered,
acknowledged and retransmitted like others. The receiver acknowledges it after it has used the bytes, so the
acknowledgement frees the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from txrdma.kit.wire import Buffer

FULL: Final = -1
"""Position of a piece that must wait until others are acknowledged."""

UNREACHED: Final = -2
"""Position of a piece that cannot be written, because the memory is not accessible."""

LONG: Final = 8 << 10
"""Minimum bytes of a message that uses a receive buffer; packets would take twice the time."""

LONG_REMOTE: Final = 32 << 10
"""Minimum bytes of a message that uses a receive buffer to which RDMA writes."""

WORTH_WAITING: Final = 256 << 10
"""Minimum queued bytes that wait for a requested receive buffer; packets would take longer."""

_SMALLEST: Final = 12
_PARTS: Final = 4


class ReceiveBuffer:
    """
    The receive buffer of a peer, with the pieces that are stored there.

    Memory is allocated from the start, in powers of two, and freed memory is reused first, so that few pages
    are touched and remain in the caches. When the buffer is empty, allocation starts over.

    @ivar size: bytes.
    @ivar remoteFrom: length from which messages are written by RDMA, whose completion is reported later: see
        L{Peer.writing<txrdma.btl.core.peer.Peer>}; None if this process writes them itself, immediately.
    @ivar isPaused: whether datagrams carry new messages for a while, although it can be written.
    """

    __slots__ = (
        *("_free", "_head", "_idle", "_isEmptying", "_orders", "_part", "_write"),
        *("isPaused", "remoteFrom", "size"),
    )

    def __init__(
        self, size: int, write: Callable[[int, Buffer], bool], remoteFrom: int | None = None
    ) -> None:
        """
        @param write: writes bytes at a position. It returns False if the memory is not accessible, or, with
            C{remoteFrom}, if the bytes have to wait until other writes are complete.
        """
        self.size, self.remoteFrom, self.isPaused = size, remoteFrom, False
        self._part = 1 << max(0, (size // _PARTS).bit_length() - 1)
        self._write = write
        self._orders: dict[int, int] = {}  # log2 of the size of each piece, by position
        self._free: dict[int, list[int]] = {}  # free positions by log2 of their size
        self._head = self._idle = 0  # allocated bytes, and how many of them are free
        self._isEmptying = False  # allocation pauses until the buffer is empty: free memory has other sizes

    def fitting(self, begin: int, total: int) -> int:
        """
        Return the length of the next piece of a message: all of it, or a part that leaves space for others.

        @param begin: bytes that were sent before.
        """
        return min(total - begin, self.size if total <= self.size else self._part)

    def allocate(self, data: Buffer) -> int:
        """
        Write a piece of at most L{fitting} bytes.

        @return: its position, which is allocated until L{release}; or L{FULL} or L{UNREACHED}.
        """
        order = max(_SMALLEST, (len(data) - 1).bit_length())
        position = self._take(order)
        if position == FULL or self._write(position, data):
            return position
        self.release(position)
        return UNREACHED if self.remoteFrom is None else FULL

    def _take(self, order: int) -> int:
        """Allocate 2 to the power of C{order} bytes, or the whole buffer; return the position, or L{FULL}."""
        length = min(1 << order, self.size)
        free = self._free.get(order)
        if self._isEmptying:
            return FULL
        if free:
            position = free.pop()
            self._idle -= length
        elif self._head + length <= self.size:
            position = self._head
            self._head += length
        else:
            self._isEmptying = self._idle >= length
            return FULL
        self._orders[position] = order
        return position

    def release(self, position: int) -> None:
        """Free the memory of an acknowledged piece."""
        order = self._orders.pop(position)
        # An empty buffer forgets the sizes of its free memory, which otherwise would never be joined again.
        if self._orders:
            self._free.setdefault(order, []).append(position)
            self._idle += min(1 << order, self.size)
        else:
            self._free.clear()
            self._head = self._idle = 0
            self._isEmptying = False
