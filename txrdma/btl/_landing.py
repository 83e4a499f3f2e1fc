"""
The landing of a peer: a ring of its memory, which this process has mapped, for the bytes of long messages.

A piece is written there, then a segment tells of it, which is numbered, acknowledged and sent again like
others. The receiver acknowledges it when it has done with the bytes: so an acknowledgement gives back the
room, and nothing but its segments says where pieces stand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from txrdma.wire import Buffer

FULL: Final = -1
"""The place of a piece for which there is no room before others were acknowledged."""

UNREACHED: Final = -2
"""The place of a piece that cannot be written at present: the memory is out of reach."""

LONG: Final = 8 << 10
"""Bytes of a message whose sender wants a landing: by packets it would take twice the time."""

WORTH_WAITING: Final = 256 << 10
"""Bytes of messages that wait for a landing which is asked for: as packets they would take longer."""

_LINE: Final = 64
_PARTS: Final = 4


class _Span:
    __slots__ = ("begin", "isFree")

    def __init__(self, begin: int) -> None:
        self.begin, self.isFree = begin, False


class Landing:
    """
    The landing of a peer, with the pieces that stand there.

    @ivar size: bytes.
    """

    __slots__ = ("_byPlace", "_head", "_spans", "_write", "size")

    def __init__(self, size: int, write: Callable[[int, Buffer], bool]) -> None:
        """
        @param size: bytes, of which only whole cache lines are used.
        @param write: writes bytes to a place in the landing; answers whether it could.
        """
        self.size = size // _LINE * _LINE
        self._write = write
        self._spans: deque[_Span] = deque()  # the oldest first
        self._byPlace: dict[int, _Span] = {}
        self._head = 0

    def fitting(self, begin: int, total: int) -> int:
        """
        Tell how many bytes of a message go next in one piece: all, or several pieces that may follow closely.

        @param begin: bytes that have gone before.
        """
        return min(total - begin, self.size if total <= self.size else self.size // _PARTS)

    def place(self, data: Buffer) -> int:
        """
        Write a piece: not more bytes than L{fitting} has told.

        @return: its place, which is taken until L{release}; L{FULL} or L{UNREACHED}.
        """
        length = (len(data) + _LINE - 1) // _LINE * _LINE
        at = self._find(length)
        if at == FULL:
            return FULL
        if not self._write(at, data):
            return UNREACHED
        span = _Span(at)
        self._spans.append(span)
        self._byPlace[at] = span
        self._head = at + length
        return at

    def _find(self, length: int) -> int:
        if not self._spans:
            return 0  # from the beginning: that is what caches know best
        head, tail = self._head, self._spans[0].begin
        if head <= tail:
            return head if head + length <= tail else FULL
        if head + length <= self.size:
            return head
        return 0 if length <= tail else FULL

    def release(self, place: int) -> None:
        """Give back the room of a piece, which was acknowledged."""
        self._byPlace.pop(place).isFree = True
        while self._spans and self._spans[0].isFree:
            self._spans.popleft()
