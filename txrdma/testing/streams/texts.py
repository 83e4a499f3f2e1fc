"""
The texts that the ends of a conversation write: endless, and known to who checks what was heard.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from random import Random
from typing import Final

_PERIOD: Final = 65_521
"""A prime: no buffer has this size, so that bytes in the wrong place are wrong bytes."""

_PIECE: Final = 1_000_000


class Text:
    """
    The endless text of one end.

    @ivar name: whose it is; other ends have other texts.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._period = Random(name).randbytes(_PERIOD)

    def take(self, start: int, length: int) -> bytes:
        """The bytes of the text from C{start} on, C{length} of them."""
        offset = start % _PERIOD
        return (self._period * ((offset + length) // _PERIOD + 1))[offset : offset + length]

    def pieces(self, start: int, length: int) -> Iterator[bytes]:
        """The bytes of the text from C{start} on in pieces, for lengths that nobody wants in memory."""
        end = start + length
        while start < end:
            yield self.take(start, min(_PIECE, end - start))
            start += _PIECE


class Checksum:
    """
    CRC-32 of somebody's text from its beginning, for lengths that only grow.

    @ivar length: how much of the text is in it; C{value} is the checksum.
    """

    def __init__(self, name: str) -> None:
        self._text = Text(name)
        self.length = 0
        self.value = 0

    def upTo(self, length: int) -> int:
        """The checksum of the first bytes of the text."""
        for piece in self._text.pieces(self.length, length - self.length):
            self.value = zlib.crc32(piece, self.value)
        self.length = length
        return self.value
