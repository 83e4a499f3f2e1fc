"""
Mapped memory of an rsocket: the mappings of each end for the other's writes, and queued requests.

Follows librdmacm (C{docs/rsocket}; C{riomap} and C{riowrite}). An end maps memory at an offset of its choice,
and writes an entry with its address into the peer's table, after the targets. Writes to such memory are RDMA
writes without immediate data, so the peer is not notified.

An entry uses a receive of the peer and no credit, as control messages do, and counts as one of these.
librdmacm's sender counts it as a data message, which no receiver ever returns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from txrdma.cm.rsocket.messages import ADDRESSES, LittleMapped, Mapped, MAPPED_BYTES
from txrdma.error import InvalidRequest, PeerViolation, ResourceExhausted
from txrdma.iba.types import RKey
from txrdma.kit.values import frozen

OFFSETS: Final = 1 << 63
"""Offsets are below this, as in C programs."""

LONGEST: Final = (1 << 32) - 1
"""Maximum length of a mapping in bytes."""


class MappedRange(NamedTuple):
    """
    Memory that one end has mapped.

    @ivar offset: offset of the first byte; C{length} is in bytes.
    @ivar address: address of the first byte in the memory of the end that has mapped it, with C{rkey}.
    """

    offset: int
    length: int
    address: int
    rkey: RKey

    def holds(self, offset: int, length: int) -> bool:
        """Whether this many bytes from an offset on are within the range."""
        return self.offset <= offset and offset + length <= self.offset + self.length


@frozen
class MappingEntry:
    """An entry of the peer's table that is to be written."""

    index: int
    mappedRange: MappedRange


class Write:
    """
    A write to memory that the peer has mapped, until its last bytes are posted.

    @ivar rest: bytes that are not posted yet, to be written at C{address}.
    @ivar last: number of bytes that were posted last.
    """

    __slots__ = ("address", "index", "last", "number", "rest", "rkey")

    def __init__(self, number: int, data: bytes, index: int, address: int, rkey: RKey) -> None:
        """@param index: index of the peer's entry."""
        self.number, self.rest, self.index = number, memoryview(data), index
        self.address, self.rkey, self.last = address, rkey, 0

    def posted(self, length: int) -> None:
        """Advance past the first bytes."""
        self.rest, self.last = self.rest[length:], length
        self.address += length


Order = bytes | MappingEntry | Write
"""A request of the program: for bytes of the stream, for an entry, or for a write to mapped memory."""


@frozen
class PeerMapped:
    """The peer has mapped memory, or has unmapped some."""


@frozen
class WriteCompleted:
    """A write is completely in the peer's memory."""

    number: int


@frozen
class WriteFailed:
    """The rest of a write is not written, as the peer has unmapped the memory."""

    number: int


Event = PeerMapped | WriteCompleted | WriteFailed


class Mappings:
    """
    The mappings of both ends of one connection, as one end knows them.

    @ivar orders: queued requests: for mapped memory, and later ones for the stream.
    @ivar held: stream bytes in these requests, which are part of the backlog.
    @ivar events: completed and failed writes to mapped memory.
    """

    def __init__(self, table: memoryview, isLittle: bool) -> None:
        """@param table: memory in which the peer writes entries, in this host's byte order."""
        self.orders: list[Order] = []
        self.held = 0
        self.events: list[Event] = []
        self._table = table
        self._kind: type[Mapped] = LittleMapped if isLittle else Mapped
        self._capacity = self._number = self._nextIndex = 0
        self._localRanges: dict[int, MappedRange] = {}
        self._peerRanges: dict[int, MappedRange] = {}

    def begin(self, capacity: int) -> None:
        """Set the number of entries of the peer's table."""
        self._capacity = capacity

    # Memory of this end

    def check(self, offset: int, length: int) -> None:
        """
        Check that memory can be mapped.

        @raise InvalidRequest: the offsets are invalid, or already mapped.
        @raise ResourceExhausted: the peer's table is full.
        """
        if not 0 < length <= LONGEST or not 0 <= offset <= OFFSETS - length:
            raise InvalidRequest(f"{length} bytes can't be mapped at offset {offset}")
        for each in self._localRanges.values():
            if offset < each.offset + each.length and each.offset < offset + length:
                raise InvalidRequest(f"{each.length} bytes at offset {each.offset} are mapped already")
        if len(self._localRanges) >= self._capacity:
            raise ResourceExhausted(f"the peer can accept {self._capacity} mappings")

    def map(self, mappedRange: MappedRange) -> int:
        """Queue the announcement of memory that passed C{check}; returns the number of its entry."""
        # The peer may still read an entry whose memory is closed: it comes last.
        order = (*range(self._nextIndex, self._capacity), *range(self._nextIndex))
        index: int = next(number for number in order if number not in self._localRanges)
        self._nextIndex = index + 1
        self._localRanges[index] = mappedRange
        self._announce(index, mappedRange)
        return index

    def unmap(self, index: int, mustNotify: bool) -> None:
        """Queue the withdrawal of an entry."""
        mappedRange = self._localRanges.pop(index)
        if mustNotify:
            self._announce(index, MappedRange(mappedRange.offset, 0, 0, RKey(0)))

    def _announce(self, index: int, mappedRange: MappedRange) -> None:
        self.orders.append(MappingEntry(index, mappedRange))
        self.held += MAPPED_BYTES

    # Memory of the peer

    @property
    def peerRanges(self) -> list[MappedRange]:
        """The memory that the peer has mapped, by its offsets."""
        return sorted(self._peerRanges.values())

    def entryWritten(self, index: int) -> None:
        """
        Read an entry that the peer has written: no memory if its length is 0.

        @raise PeerViolation: there is no such entry, or its memory reaches the last 64-bit address.
        """
        begin = index * MAPPED_BYTES
        if begin >= len(self._table):
            raise PeerViolation(f"it has mapped memory by entry {index}, which does not exist")
        for order in [each for each in self.orders if isinstance(each, Write) and each.index == index]:
            self._remove(order)
            self.events.append(WriteFailed(order.number))
        entry = self._kind.decode(self._table[begin : begin + MAPPED_BYTES])
        if entry.address + entry.length >= ADDRESSES:
            raise PeerViolation(f"it has mapped {entry.length} bytes at {entry.address:#x}")
        self._peerRanges.pop(index, None)
        if entry.length:
            self._peerRanges[index] = MappedRange(entry.offset, entry.length, entry.address, entry.rkey)
        self.events.append(PeerMapped())

    def write(self, offset: int, data: bytes) -> int | None:
        """Write to memory that the peer has mapped; return the write's number, or None if there is none."""
        for index, mappedRange in self._peerRanges.items():
            if mappedRange.holds(offset, len(data)):
                self._number += 1
                address = mappedRange.address + offset - mappedRange.offset
                self.orders.append(Write(self._number, data, index, address, mappedRange.rkey))
                self.held += len(data)
                return self._number
        return None

    def cancel(self, number: int) -> None:
        """Withdraw the unposted part of a write."""
        for order in self.orders:
            if isinstance(order, Write) and order.number == number:
                self._remove(order)
                break

    # What waits

    def hold(self, data: bytes) -> None:
        """Queue bytes of the stream after earlier requests."""
        self.orders.append(data)
        self.held += len(data)

    def drop(self) -> None:
        """Drop all queued requests of the program."""
        self.orders.clear()
        self.held = 0

    def _remove(self, order: Write) -> None:
        self.orders.remove(order)
        self.held -= len(order.rest)
