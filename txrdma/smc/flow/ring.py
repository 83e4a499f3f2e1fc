"""
Cursors of the two ring buffers of a connection: free space, received bytes, and reports of consumption.

Follows RFC 7609, 4.7 (data flow) and appendix A.4. A L{Ring} runs once per message, so it has only integers:
totals since the connection began. Sizes are powers of two, so the wrap and count of a cursor follow from a
total.

Theory of operation. A CDC cursor is a pair (wrap modulo 65536, count), where count is an offset in the ring.
A received cursor is converted to a total relative to the previous one, and it is valid only if it advances by
no more than was allowed: a producer cursor by the free space that was reported to the peer (C{mayArrive}), a
consumer cursor by the bytes in flight (C{produced - peerConsumed}). Any other cursor is a protocol violation
(C{WireError}), except after a failover, when older cursors are repeated. Most cursors stay in the same round,
so the total at which the round began is cached with its wrap count.

Consumption is reported with the next message that has data, or in a separate message: if the peer requests
it, or if the peer is blocked (or half the ring is used) and at least a tenth of the ring has been read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from txrdma.error import WireError
from txrdma.smc.wire.cdc import CDC_HEAD, pack, ProducerFlags

DATA: Final = 1
"""Flag returned by L{Ring.received}: there are new bytes to read."""

SPACE: Final = 2
"""Flag returned by L{Ring.received}: there is new free space in the peer's ring."""

UPDATE: Final = 4
"""Flag returned by L{Ring.received}: report the consumer cursor now, even without data to send."""

_SMALLEST_LIMIT: Final = 2304
"""Fewer consumed bytes never justify a separate message (Linux: half of the smallest send buffer)."""

_BLOCKED: Final = int(ProducerFlags.WRITE_BLOCKED)
_WE_ARE_BLOCKED: Final = _BLOCKED << 8
_PRESENT: Final = int(ProducerFlags.URGENT_PRESENT)
_REQUESTED: Final = int(ProducerFlags.CONSUMER_UPDATE_REQUESTED)
_FAILOVER: Final = int(ProducerFlags.FAILOVER_VALIDATION)
_HEAD: Final = CDC_HEAD
_pack: Final = pack


def spans(total: int, length: int, size: int) -> tuple[int, int, int]:
    """Locate C{length} bytes from C{total} on: offset in the ring, bytes there, bytes at offset 0."""
    offset = total & (size - 1)
    first = size - offset
    return (offset, length, 0) if length <= first else (offset, first, length - first)


@lru_cache(64)
def _geometry(size: int) -> tuple[int, int, int, int]:
    """
    Return the size of a ring, its logarithm, the mask of its cursors, and the number of consumed bytes that
    justify a separate message.

    All rings of a size share these integers, which saves 120 bytes for each connection.

    @raise ValueError: the size is not a power of two.
    """
    if size < 1 or size & (size - 1):
        raise ValueError(f"a ring of {size} bytes: it must be a power of two")
    # Cursors are modulo 65536 rounds.
    return size, size.bit_length() - 1, (size << 16) - 1, max(size // 10, _SMALLEST_LIMIT)


class Ring:
    """
    The cursors of one connection.

    @ivar size: bytes of the local ring, written by the peer; C{peerSize}: of the peer's.
    @ivar token: the peer's alert token, put into each message.
    @ivar produced: total of bytes written to the peer's ring; C{at}: offset of the next byte.
    @ivar peerConsumed: total of bytes that the peer has reported as read.
    @ivar blocked: messages carry WRITE_BLOCKED: more bytes are queued than fit.
    @ivar arrived: total of bytes received.
    @ivar consumed: total of bytes read; C{reported}: total that was reported to the peer.
    @ivar mayArrive: total up to which the peer may write.
    @ivar dueAbove: no report is due until C{consumed} exceeds this total.
    @ivar peerFlags: producer flags of the last message; C{receivedSequence}: its sequence number.
    @ivar base: the total at which the round of the peer's producer cursor began; C{wrap}: its wrap count.
    @ivar ackBase: the total at which the round of its consumer cursor began; C{ackWrap}: its wrap count.
    @ivar urgentAt: the total just after the last urgent byte that has not been read and reported, else None.
    """

    __slots__ = (
        "_isReportWanted",
        "_limit",
        "_mask",
        "_hasFailedOver",
        "_peerMask",
        "_peerShift",
        "_round",
        "_shift",
        "ackBase",
        "ackWrap",
        "arrived",
        "at",
        "base",
        "blocked",
        "consumed",
        "dueAbove",
        "receivedSequence",
        "mayArrive",
        "peerConsumed",
        "peerFlags",
        "peerSize",
        "produced",
        "reported",
        "sequence",
        "size",
        "token",
        "urgentAt",
        "wrap",
    )

    def __init__(self, size: int, peerSize: int, token: int) -> None:
        self.size, self._shift, self._mask, self._limit = _geometry(size)
        self.peerSize, self._peerShift, self._peerMask, _ = _geometry(peerSize)
        self.token = token
        self.produced = self.peerConsumed = self.sequence = 0
        self.arrived = self.consumed = self.reported = self.receivedSequence = 0
        self.mayArrive = self.size
        self.blocked = False
        self.peerFlags = 0
        self.urgentAt: int | None = None
        # The total at which the current round of each cursor began, with its wrap count.
        self.at = self._round = 0  # the local producer cursor
        self.base = self.wrap = 0  # the peer's producer cursor
        self.ackBase = self.ackWrap = 0  # the peer's consumer cursor
        self.dueAbove = self._limit
        self._isReportWanted = False  # the peer waits for a report of any size
        self._hasFailedOver = False  # the peer failed over to another link, and repeats older cursors

    @property
    def space(self) -> int:
        """Bytes that may be written into the peer's buffer now."""
        return self.peerSize - self.produced + self.peerConsumed

    @property
    def readable(self) -> int:
        """Bytes received and not yet read."""
        return self.arrived - self.consumed

    def take(self, backlog: int, most: int) -> tuple[int, int, int]:
        """
        Take free space in the peer's ring; the caller writes the bytes, then sends a message.

        @param backlog: number of queued bytes.
        @param most: largest number of these to write now.
        @return: offset in the peer's ring, number of bytes to write there, number to write at offset 0.
        """
        size = self.peerSize
        produced = self.produced
        space = size - produced + self.peerConsumed
        self.blocked = backlog >= space
        if most > space:
            most = space
        self.produced = produced + most
        offset = self.at
        end = offset + most
        if end < size:
            self.at = end
            return offset, most, 0
        self.at = end = end - size
        self._round = (self._round + 1) & 0xFFFF
        return offset, most - end, end

    def rewind(self, produced: int) -> None:
        """Set the local producer cursor back to a total: the space that L{take} has returned is not used."""
        self.produced = produced
        self.at = produced & (self.peerSize - 1)
        self._round = (produced >> self._peerShift) & 0xFFFF

    def message(self, state: int = 0) -> bytes:
        """Encode the next CDC message with these state flags, to be sent after the bytes it announces."""
        self.sequence = sequence = (self.sequence + 1) & 0xFFFF
        self.reported = consumed = self.consumed
        size = self.size
        self.mayArrive = consumed + size
        self.dueAbove = consumed + self._limit
        if self._isReportWanted:
            self._reportSent()
        return _pack(
            _HEAD | sequence,
            self.token,
            self._round,
            self.at,
            (consumed >> self._shift) & 0xFFFF,
            consumed & (size - 1),
            _WE_ARE_BLOCKED | state if self.blocked else state,
        )

    def received(self, message: tuple[int, ...]) -> int:
        """
        Process a message from the peer.

        @param message: as L{txrdma.smc.wire.cdc.unpackFrom} returns it.
        @return: L{DATA}, L{SPACE} and L{UPDATE} as they apply; 0 for a message older than the last.
        @raise WireError: a cursor is out of range.
        """
        _, sequence, _, wrap, count, ackWrap, ackCount, flags = message
        flags >>= 8
        if (sequence - self.receivedSequence) & 0x8000 or flags & _FAILOVER:
            return self._unusual(sequence, flags)
        # The usual cursor is in the same round as the last one; others are converted and checked.
        arrived = self.base + count
        if wrap != self.wrap or count >= self.size or not self.arrived <= arrived <= self.mayArrive:
            arrived = self._arrival(wrap, count)
        read = self.ackBase + ackCount
        if (
            ackWrap != self.ackWrap
            or ackCount >= self.peerSize
            or not self.peerConsumed <= read <= self.produced
        ):
            read = self._reading(ackWrap, ackCount)
        self.receivedSequence = sequence
        result = 0
        if read != self.peerConsumed:
            self.peerConsumed = read
            self.blocked = False
            if ackWrap != self.ackWrap:
                self.ackWrap = ackWrap
                self.ackBase = read - ackCount
            result = SPACE
        if arrived != self.arrived:
            self.arrived = arrived
            if wrap != self.wrap:
                self.wrap = wrap
                self.base = arrived - count
            result |= DATA
        if flags or self.peerFlags:
            self._flagsReceived(flags)
        # Also a message without data may make a report due: a request, or the flag that the peer is blocked.
        if self.consumed > self.dueAbove and self.updateDue:
            result |= UPDATE
        return result

    def consume(self, length: int) -> bool:
        """Advance the consumer cursor; return whether it must be reported now."""
        self.consumed = consumed = self.consumed + length
        return consumed > self.dueAbove and self.updateDue

    def validation(self, sequence: int) -> bytes:
        """Encode the failover validation of the last message that has arrived (RFC 7609, 4.6)."""
        return _pack(_HEAD | sequence, self.token, 0, 0, 0, 0, _FAILOVER << 8)

    @property
    def updateDue(self) -> bool:
        """Whether to report consumption now: the peer waits, or lacks space (RFC 7609, 4.5.1, 4.7.3)."""
        unreported = self.consumed - self.reported
        if self._isReportWanted and unreported:
            if self.urgentAt is None or self.consumed >= self.urgentAt or self.peerFlags & _REQUESTED:
                return True
        if unreported <= self._limit:
            return False
        return bool(self.peerFlags & _BLOCKED) or (self.arrived - self.reported) * 2 >= self.size

    def _flagsReceived(self, flags: int) -> None:
        """Record the producer flags of a message; some request a report of any size."""
        self.peerFlags = flags
        if flags & _PRESENT:
            self.urgentAt = self.arrived  # the byte before the producer cursor is the urgent one
        if flags & (_PRESENT | _REQUESTED):
            self._isReportWanted = True
            self.dueAbove = -1

    def _reportSent(self) -> None:
        """Record that a report is sent; the peer may still wait until the urgent byte is read."""
        if self.urgentAt is not None and self.consumed >= self.urgentAt:
            self.urgentAt = None
        self.peerFlags &= ~_REQUESTED
        self._isReportWanted = self.urgentAt is not None
        if self._isReportWanted:
            self.dueAbove = -1

    def _unusual(self, sequence: int, flags: int) -> int:
        """Ignore an old message; check that nothing is lost if the peer has failed over (RFC 7609, 4.6)."""
        if flags & _FAILOVER:
            if 0 < (sequence - self.receivedSequence) & 0xFFFF < 0x8000:
                raise WireError("CDC", 2, f"failover lost messages {self.receivedSequence + 1} to {sequence}")
            self._hasFailedOver = True
        return 0

    def _arrival(self, wrap: int, count: int) -> int:
        """Return the total of a producer cursor that is in another round, or invalid."""
        arrived, size = self.arrived, self.size
        new = (wrap << self._shift) + count - arrived & self._mask
        if count >= size or new > self.mayArrive - arrived:
            self._check("producer", 12, count, size, new, "beyond the free space")
            new = 0
        return arrived + new

    def _reading(self, wrap: int, count: int) -> int:
        """Return the total of a consumer cursor that is in another round, or invalid."""
        peerConsumed, size = self.peerConsumed, self.peerSize
        read = (wrap << self._peerShift) + count - peerConsumed & self._peerMask
        if count >= size or read > self.produced - peerConsumed:
            self._check("consumer", 20, count, size, read, "ahead of what was written")
            read = 0
        return peerConsumed + read

    def _check(self, name: str, at: int, count: int, size: int, step: int, ahead: str) -> None:
        """Raise L{WireError} for an invalid cursor; older cursors are allowed after a failover."""
        if count >= size:
            raise WireError("CDC", at, f"{name} cursor {count} in a buffer of {size} bytes")
        back = (size << 16) - step
        if back > step:
            raise WireError("CDC", at, f"{name} cursor {step} bytes on, {ahead}")
        if not self._hasFailedOver:
            raise WireError("CDC", at, f"{name} cursor {back} bytes backwards")
