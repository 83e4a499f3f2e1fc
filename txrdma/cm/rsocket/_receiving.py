"""
The receiving half of an rsocket: a ring buffer of two halves, written by the peer.

Follows librdmacm (C{docs/rsocket}). A half becomes a target again when all of it has been read. The peer may
send as many messages as receives are posted: it gets an absolute limit for its sequence numbers.
"""

from __future__ import annotations

from typing import NamedTuple

from txrdma.cm.rsocket.messages import SEQUENCE
from txrdma.error import PeerViolation

_SIGN = 0x8000


class Grant(NamedTuple):
    """
    Credits returned to the peer by one message.

    @ivar limit: the first sequence number that it may not use.
    @ivar half: offset of the half of the buffer that becomes a target, or None.
    """

    limit: int
    half: int | None


class Receiving:
    """
    Received bytes, until they are read.

    @ivar isDue: credits are to be returned to the peer now: see L{due}.
    """

    def __init__(self, buffer: memoryview, credits: int) -> None:
        """
        @param buffer: memory that the peer writes to: two halves.
        @param credits: messages for which receives are posted.
        """
        self._buffer, self._credits = buffer, credits
        self._size = len(buffer)
        self.half = self._size // 2
        self._lengths: list[int] = []
        self._writes = self._reads = 0
        self._offered = self._read = self._nextHalf = self.half
        self._sequence = 0
        self._due = credits // 2
        self.isDue = False

    def arrived(self, length: int) -> None:
        """
        Process a message: the peer has written this many further bytes.

        @raise PeerViolation: the target was too small, or the peer had no credit.
        """
        # A message may not cross the middle: each half is a target of its own, in librdmacm as well.
        if length > self._offered or length > self.half - self._writes % self.half:
            raise PeerViolation(f"it has written {length} bytes, more than advertised")
        if len(self._lengths) >= self._credits:
            raise PeerViolation("it has sent more messages than it has credits for")
        self._offered -= length
        self._writes = (self._writes + length) % self._size
        self._lengths.append(length)
        if self._read == self.half:
            self.isDue = True  # offer the second half, which waits for the first message: many are idle

    def take(self) -> bytes:
        """Read all bytes up to the end of the buffer; empty if there are none."""
        lengths, sequence = self._lengths, self._sequence
        begin = end = self._reads
        count = 0
        for length in lengths:
            if end == self._size:
                break
            end += length
            count += 1
        del lengths[:count]
        self._sequence = sequence = sequence + count & SEQUENCE
        self._reads = end if end < self._size else 0
        self._read += end - begin
        self.isDue = self._read >= self.half or not (sequence - self._due) & _SIGN
        data = self._buffer[begin:end].tobytes()  # faster than bytes()
        return data

    def due(self) -> Grant:
        """Take the credits to return, after half of the buffer, or of the messages, was read."""
        self._due = self._sequence + self._credits // 2 & SEQUENCE
        limit = self._sequence + self._credits & SEQUENCE
        if self._read < self.half:
            self.isDue = False
            return Grant(limit, None)
        self._read -= self.half
        self.isDue = self._read >= self.half
        self._offered += self.half
        half, self._nextHalf = self._nextHalf, self.half - self._nextHalf
        return Grant(limit, half)
