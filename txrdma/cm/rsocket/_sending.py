"""
The sending half of an rsocket: writes bytes into the targets announced by the peer.

Follows librdmacm (C{docs/rsocket}). A message needs a target, a credit, and a free entry of the send queue.
It never exceeds a target. Bytes that are not in the peer's memory yet are limited by the size of the send
buffer, which is memory only if the device does not accept all bytes inline.
"""

from __future__ import annotations

from typing import Final

from txrdma.cm.rsocket._requests import RequestQueue, SendMemory
from txrdma.cm.rsocket.messages import (
    ADDRESSES,
    immediate,
    ImmediateKind,
    LENGTH,
    LittleTarget,
    SEQUENCE,
    Target,
    TARGET_BYTES,
)
from txrdma.iba.types import RKey
from txrdma.iba.verbs import Buffer

LEAST: Final = 2048
"""Free bytes that the send buffer needs before a message is truncated at its end."""


class Sending:
    """
    Bytes for the peer, from the write until they are in the peer's memory.

    @ivar backlog: bytes that are not posted yet.
    @ivar inFlight: messages that are posted and have not completed.
    @ivar isShared: bytes are in the peer's memory as soon as they are posted: the send buffer is no limit.
    """

    def __init__(
        self,
        requests: RequestQueue,
        size: int,
        memory: SendMemory | None,
        table: memoryview,
        slots: int,
        isLittle: bool,
    ) -> None:
        """
        @param size: bytes of the send buffer.
        @param memory: the send buffer, which may be longer; None if bytes are posted inline.
        @param table: memory in which the peer writes targets, in this host's byte order.
        @param slots: maximum number of outstanding data messages.
        """
        self.backlog = self.inFlight = 0
        self.isShared = False
        self._requests, self._size, self._memory = requests, size, memory
        self._table, self._slots = table, slots
        self._targetKind: type[Target] = LittleTarget if isLittle else Target
        self._waiting: list[Buffer] = []
        self._position = 0
        self._free = size
        self._targets: list[Target] = []
        self._nextEntry = 1
        self._address = self._targetBytes = 0
        self._key = RKey(0)
        self._sequence = self._limit = 0

    def begin(self, target: Target, credits: int) -> None:
        """Begin with the target and the credits of the peer's connection data."""
        self._targets.append(target)
        self._limit = credits & SEQUENCE

    @property
    def isIdle(self) -> bool:
        """Whether all written bytes are in the peer's memory."""
        return not (self.backlog or self.inFlight)

    def write(self, data: bytes) -> int:
        """Queue bytes, possibly none. Return the backlog."""
        if data:
            self._waiting.append(data)
            self.backlog += len(data)
        return self.backlog

    def drop(self) -> None:
        """Discard queued bytes that are not posted yet."""
        self._waiting.clear()
        self.backlog = 0

    def credited(self, limit: int, hasTarget: bool) -> None:
        """
        Process a message that gives credits.

        @param limit: the first sequence number that may not be used.
        @param hasTarget: the peer has written the next target into the table before.
        """
        self._limit = limit & SEQUENCE
        if hasTarget:
            begin = self._nextEntry * TARGET_BYTES
            # There are two entries, and whoever writes more of them before they are used loses some.
            if len(self._targets) < len(self._table) // TARGET_BYTES:
                self._targets.append(self._targetKind.decode(self._table[begin : begin + TARGET_BYTES]))
            self._nextEntry = (self._nextEntry + 1) % (len(self._table) // TARGET_BYTES)

    def completed(self, length: int) -> None:
        """Note that the oldest outstanding message, of this many bytes, is in the peer's memory."""
        self._free += length
        self.inFlight -= 1

    def next(self) -> int:
        """Add the next message to the requests; return its length: 0 if it can't be posted yet."""
        length = self.backlog
        if not length or self.inFlight >= self._slots or self._sequence == self._limit:
            return 0
        while not self._targetBytes:  # a peer may announce empty targets
            if not self._targets:
                return 0
            target = self._targets.pop(0)
            self._address, self._key = target.address, target.rkey
            self._targetBytes = min(target.length, LENGTH, ADDRESSES - target.address)
        if not self.isShared:
            length = self._fitting(length)
            if not length:
                return 0
        if length > self._targetBytes:
            length = self._targetBytes
        memory = self._memory
        if memory is not None:
            at = self._position
            for piece in self._takeWaiting(length):
                memory.view[at : at + len(piece)] = piece
                at += len(piece)
            number = immediate(ImmediateKind.DATA, length)
            self._requests.addFrom(memory, self._position, length, self._address, self._key, number)
            self._position = at % self._size
        else:
            # The operation of data is 0.
            self._requests.add(self._address, self._key, length, self._takeWaiting(length))
        self.backlog -= length
        self._free -= length
        self._address += length
        self._targetBytes -= length
        self._sequence = self._sequence + 1 & SEQUENCE
        self.inFlight += 1
        return length

    def writeMapped(self, data: memoryview, address: int, rkey: RKey) -> int | None:
        """
        Add a message to the requests, with the first ones of some bytes outside the stream.

        @param address: destination in the peer's mapped memory; needs no target and no credit.
        @return: its length, which is 0 for no bytes; None while the send buffer is full.
        """
        length = len(data)
        if self.inFlight >= self._slots:
            return None
        if length and not self.isShared:
            length = self._fitting(length)
            if not length:
                return None
        memory = self._memory
        if not length:
            self._requests.add(address, rkey, None)
        elif memory is not None:
            begin = self._position
            memory.view[begin : begin + length] = data[:length]
            self._position = (begin + length) % self._size
            self._requests.addFrom(memory, begin, length, address, rkey, None)
        else:
            self._requests.add(address, rkey, None, (data[:length],))
        self._free -= length
        self.inFlight += 1
        return length

    def _fitting(self, length: int) -> int:
        """Return how many bytes the send buffer accepts as one message; 0 while it is nearly full."""
        if self._free < min(length, LEAST):
            return 0
        length = min(length, self._free)
        return length if self._memory is None else min(length, self._size - self._position)

    def _takeWaiting(self, length: int) -> list[Buffer]:
        """Remove the first bytes that wait."""
        waiting = self._waiting
        if length == self.backlog:
            self._waiting = []
            return waiting
        count = 0
        while length >= len(waiting[count]):
            length -= len(waiting[count])
            count += 1
        pieces, self._waiting = waiting[:count], waiting[count:]
        if length:
            view = memoryview(self._waiting[0])
            pieces.append(view[:length])
            self._waiting[0] = view[length:]
        return pieces
