"""
The receiving half of an rsocket: a buffer of two halves that the peer writes into, round and round.

Follows librdmacm (C{docs/rsocket}). A half is told as a target when all of it has been read, and the peer may
send so many messages as receives are posted: it is told a limit for its sequence numbers, which is absolute.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from txrdma.cm.rsocket.messages import SEQUENCE
from txrdma.error import PeerViolation

_SIGN = 0x8000


class Grant(NamedTuple):
    """
    The credits that the peer is given by one message.

    @ivar limit: the sequence number that is the first one it may not use.
    @ivar half: the place of the half of the buffer that it may write to; None if there is none to tell.
    """

    limit: int
    half: int | None


class Receiving:
    """
    The bytes that have come from the peer, until they are read.

    @ivar unread: how many they are.
    """

    def __init__(self, buffer: memoryview, credits: int) -> None:
        """
        @param buffer: memory that the peer writes to: two halves.
        @param credits: messages for which receives are posted.
        """
        self.unread = 0
        self._buffer, self._credits = buffer, credits
        self.half = len(buffer) // 2
        self._lengths: deque[int] = deque()
        self._writes = self._reads = 0
        self._offered = self._read = self._nextHalf = self.half
        self._sequence = 0
        self._due = credits // 2

    def arrived(self, length: int) -> None:
        """
        Take a message of that many bytes, which the peer has written behind those before.

        @raise PeerViolation: it had no room for so many, or no credit.
        """
        if length > self._offered or length > self.half - self._writes % self.half:
            raise PeerViolation(f"it has written {length} bytes, more than advertised")
        if len(self._lengths) >= self._credits:
            raise PeerViolation("it has sent more messages than it has credits for")
        self._offered -= length
        self._writes = (self._writes + length) % len(self._buffer)
        self._lengths.append(length)
        self.unread += length

    def take(self) -> bytes:
        """Read all bytes up to the end of the buffer; empty if there are none."""
        begin = self._reads
        end = begin
        while self._lengths and end < len(self._buffer):
            end += self._lengths.popleft()
            self._sequence = self._sequence + 1 & SEQUENCE
        data = bytes(self._buffer[begin:end])
        self._reads = end % len(self._buffer)
        self._read += len(data)
        self.unread -= len(data)
        return data

    def due(self) -> Grant | None:
        """The credits to be given to the peer now, which are given by this; None if that has time."""
        isHalfRead = self._read >= self.half
        if not isHalfRead and (self._sequence - self._due) & SEQUENCE & _SIGN:
            return None
        self._due = self._sequence + self._credits // 2 & SEQUENCE
        limit = self._sequence + self._credits & SEQUENCE
        if not isHalfRead:
            return Grant(limit, None)
        self._read -= self.half
        self._offered += self.half
        half, self._nextHalf = self._nextHalf, self.half - self._nextHalf
        return Grant(limit, half)
