"""
The sending half of an rsocket: writes bytes into the targets announced by the peer.

Follows librdmacm (C{docs/rsocket}). A message needs a target, a credit, a free entry of the send queue, and
space in the send buffer, from which the device reads until the message has completed. It never exceeds a
target.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from txrdma.cm.rsocket.messages import immediate, Kind, LENGTH, LittleTarget, SEQUENCE, Target, TARGET_BYTES
from txrdma.iba.types import RKey

LEAST: Final = 2048
"""Bytes that the send buffer has to have free before a message is cut short by its end: few would be many."""


class Post(NamedTuple):
    """
    An RDMA write to post.

    @ivar begin: offset of its bytes in the send memory; C{length}: their number.
    @ivar immediate: immediate data; None for a write without notification of the peer.
    """

    begin: int
    length: int
    address: int
    rkey: RKey
    immediate: int | None


class Sending:
    """
    The bytes that go to the peer, from when they are written until they are in its memory.

    @ivar backlog: bytes that are not posted yet.
    @ivar inFlight: messages that are posted and have not completed.
    """

    def __init__(self, buffer: memoryview, table: memoryview, places: int, isLittle: bool) -> None:
        """
        @param buffer: the send memory.
        @param table: memory in which the peer writes targets, in this host's byte order.
        @param places: maximum number of outstanding data messages.
        """
        self.backlog = self.inFlight = 0
        self._buffer, self._table, self._places = buffer, table, places
        self._targetKind: type[Target] | type[LittleTarget] = LittleTarget if isLittle else Target
        self._waiting: deque[memoryview] = deque()
        self._lengths: deque[int] = deque()
        self._place = 0
        self._free = len(buffer)
        self._targets: deque[Target | LittleTarget] = deque()
        self._tableAt = 1
        self._address = self._left = 0
        self._key = RKey(0)
        self._sequence = self._limit = 0

    def begin(self, target: Target, credits: int) -> None:
        """Begin with the target and the credits of the peer's connection data."""
        self._targets.append(target)
        self._limit = credits & SEQUENCE

    @property
    def isIdle(self) -> bool:
        """Whether all that was written is in the peer's memory."""
        return not (self.backlog or self.inFlight)

    def write(self, data: bytes) -> None:
        """Take bytes to be sent; none at all are fine."""
        if data:
            self._waiting.append(memoryview(data))
            self.backlog += len(data)

    def drop(self) -> None:
        """Forget all that is not posted."""
        self._waiting.clear()
        self.backlog = 0

    def credited(self, limit: int, hasTarget: bool) -> None:
        """
        Take a message that gives credits.

        @param limit: the sequence number that is the first one not to be used.
        @param hasTarget: the peer has written the next target into the table before.
        """
        self._limit = limit & SEQUENCE
        if hasTarget:
            begin = self._tableAt * TARGET_BYTES
            # There are two entries, and whoever writes more of them before they are used loses some.
            if len(self._targets) < len(self._table) // TARGET_BYTES:
                self._targets.append(self._targetKind.decode(self._table[begin : begin + TARGET_BYTES]))
            self._tableAt = (self._tableAt + 1) % (len(self._table) // TARGET_BYTES)

    def completed(self) -> None:
        """Note that the oldest outstanding message is in the peer's memory."""
        self._free += self._lengths.popleft()
        self.inFlight -= 1

    def next(self) -> Post | None:
        """The next message to be posted; None while there is none, or something is missing for it."""
        if not self.backlog or self.inFlight >= self._places or self._sequence == self._limit:
            return None
        while not self._left:
            if not self._targets:
                return None
            target = self._targets.popleft()
            self._address, self._key, self._left = target.address, target.rkey, min(target.length, LENGTH)
        if self._free < min(self.backlog, LEAST):
            return None
        length = min(self.backlog, self._free, self._left, len(self._buffer) - self._place)
        post = Post(self._place, length, self._address, self._key, immediate(Kind.DATA, length))
        self._fill(length)
        self._address += length
        self._left -= length
        self._sequence = self._sequence + 1 & SEQUENCE
        self._lengths.append(length)
        self.inFlight += 1
        return post

    def aside(self, data: memoryview, address: int, rkey: RKey) -> Post | None:
        """
        A message with the first of some bytes outside the stream; None while the send buffer is full.

        @param address: destination in the peer's mapped memory; needs no target and no credit.
        """
        if self.inFlight >= self._places or self._free < min(len(data), LEAST):
            return None
        begin = self._place
        length = min(len(data), self._free, len(self._buffer) - begin)
        self._buffer[begin : begin + length] = data[:length]
        self._free -= length
        self._place = (begin + length) % len(self._buffer)
        self._lengths.append(length)
        self.inFlight += 1
        return Post(begin, length, address, rkey, None)

    def _fill(self, length: int) -> None:
        """Move the first bytes that wait into the send buffer."""
        at, waiting, left = self._place, self._waiting, length
        while left:
            first = waiting[0]
            if len(first) > left:
                waiting[0], first = first[left:], first[:left]
            else:
                waiting.popleft()
            self._buffer[at : at + len(first)] = first
            at += len(first)
            left -= len(first)
        self.backlog -= length
        self._free -= length
        self._place = at % len(self._buffer)
