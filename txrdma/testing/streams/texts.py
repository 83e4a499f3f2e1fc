"""The endless texts that the ends of a conversation write, so that received data can be checked."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from random import Random
from typing import Final

_PERIOD: Final = 65_521
"""A prime: no buffer has this size, so that misplaced bytes are wrong bytes."""

_PIECE: Final = 1_000_000


class Text:
    """
    The endless text of one end.

    @ivar name: name of the end; each end has a different text.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._period = Random(name).randbytes(_PERIOD)

    def take(self, start: int, length: int) -> bytes:
        """Return C{length} bytes of the text from C{start} on."""
        offset = start % _PERIOD
        return (self._period * ((offset + length) // _PERIOD + 1))[offset : offset + length]

    def pieces(self, start: int, length: int) -> Iterator[bytes]:
        """Yield C{length} bytes of the text from C{start} on, in pieces that fit into memory."""
        end = start + length
        while start < end:
            yield self.take(start, min(_PIECE, end - start))
            start += _PIECE


class Checksum:
    """
    CRC-32 of the beginning of an end's text, for lengths that only grow.

    @ivar length: number of bytes included; C{value}: the checksum.
    """

    def __init__(self, name: str) -> None:
        self._text = Text(name)
        self.length = 0
        self.value = 0

    def upTo(self, length: int) -> int:
        """Return the checksum of the first C{length} bytes of the text."""
        for piece in self._text.pieces(self.length, length - self.length):
            self.value = zlib.crc32(piece, self.value)
        self.length = length
        return self.value
