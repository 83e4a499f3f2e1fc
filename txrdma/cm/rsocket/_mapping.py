"""
Mapped memory of an rsocket: what each end has mapped for the other's writes, and what waits to be posted.

Follows librdmacm (C{docs/rsocket}; C{riomap} and C{riowrite}). An end maps memory at an offset of its choice,
and writes an entry that tells where it is into the peer's table, behind the targets. Writes to such memory
are RDMA writes without immediate data: nobody is told of them.

An entry takes the peer's receive and none of its credits, as messages of control do, and has a place among
these. librdmacm's sender counts it as a message of data, which no receiver ever gives back.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from txrdma.cm.rsocket.messages import LittleMapped, Mapped, MAPPED_BYTES
from txrdma.error import InvalidRequest, PeerViolation, ResourceExhausted
from txrdma.iba.types import RKey
from txrdma.kit.values import frozen

OFFSETS: Final = 1 << 63
"""Offsets are below this, as a C program's are."""

LONGEST: Final = (1 << 32) - 1
"""The most bytes of a mapping."""


class Place(NamedTuple):
    """
    Memory that one end has mapped.

    @ivar offset: of its first byte; C{length} is in bytes.
    @ivar address: of its first byte in the memory of the end that has mapped it, which knows it by C{rkey}.
    """

    offset: int
    length: int
    address: int
    rkey: RKey

    def holds(self, offset: int, length: int) -> bool:
        """Whether so many bytes from an offset on are all in it."""
        return self.offset <= offset and offset + length <= self.offset + self.length


@frozen
class Entry:
    """An entry of the peer's table that is to be written."""

    index: int
    place: Place


class Write:
    """
    A write to memory that the peer has mapped, until its last bytes are posted.

    @ivar rest: bytes that are not posted yet, which go to C{address}.
    """

    __slots__ = ("address", "index", "number", "rest", "rkey")

    def __init__(self, number: int, data: bytes, index: int, address: int, rkey: RKey) -> None:
        """
        @param index: of the peer's entry.
        """
        self.number, self.rest, self.index = number, memoryview(data), index
        self.address, self.rkey = address, rkey

    def posted(self, length: int) -> None:
        """Go on behind the first bytes."""
        self.rest = self.rest[length:]
        self.address += length


Order = bytes | Entry | Write
"""A request of the program: for bytes of the stream, for an entry, or for a write to mapped memory."""


@frozen
class PeerMapped:
    """The peer has mapped memory, or has unmapped some."""


@frozen
class WriteCompleted:
    """The peer's memory has all of a write."""

    number: int


@frozen
class WriteFailed:
    """The rest of a write is not written, as the peer has unmapped the memory."""

    number: int


Event = PeerMapped | WriteCompleted | WriteFailed


class Mappings:
    """
    The mappings of both ends of one connection, as one end knows them.

    @ivar orders: requests that wait: for mapped memory, and those for the stream that were made behind such.
    @ivar held: bytes of these, as the stream's backlog counts them.
    @ivar events: what has become of mapped memory.
    """

    def __init__(self, table: memoryview, isLittle: bool) -> None:
        """
        @param table: memory in which the peer writes entries, in this host's byte order.
        """
        self.orders: deque[Order] = deque()
        self.held = 0
        self.events: list[Event] = []
        self._table = table
        self._kind: type[Mapped] | type[LittleMapped] = LittleMapped if isLittle else Mapped
        self._capacity = self._number = self._after = 0
        self._own: dict[int, Place] = {}
        self._peers: dict[int, Place] = {}

    def begin(self, capacity: int) -> None:
        """Begin with the entries for which the peer's table has room."""
        self._capacity = capacity

    # Memory of this end

    def check(self, offset: int, length: int) -> None:
        """
        Find out whether memory can be mapped.

        @raise InvalidRequest: offsets are not those of C programs, or are mapped already.
        @raise ResourceExhausted: the peer has no room for another entry.
        """
        if not 0 < length <= LONGEST or not 0 <= offset <= OFFSETS - length:
            raise InvalidRequest(f"{length} bytes can't be mapped at offset {offset}")
        for each in self._own.values():
            if offset < each.offset + each.length and each.offset < offset + length:
                raise InvalidRequest(f"{each.length} bytes at offset {each.offset} are mapped already")
        if len(self._own) >= self._capacity:
            raise ResourceExhausted(f"the peer can accept {self._capacity} mappings")

    def map(self, place: Place) -> int:
        """Have the peer told of memory that C{check} has found to be fine; the number of its entry."""
        # The peer may still read an entry whose memory is closed: it comes last.
        order = (*range(self._after, self._capacity), *range(self._after))
        index: int = next(number for number in order if number not in self._own)
        self._after = index + 1
        self._own[index] = place
        self._announce(index, place)
        return index

    def unmap(self, index: int, mustNotify: bool) -> None:
        """Use an entry no more, and have the peer told that it stands for no memory."""
        place = self._own.pop(index)
        if mustNotify:
            self._announce(index, Place(place.offset, 0, 0, RKey(0)))

    def _announce(self, index: int, place: Place) -> None:
        self.orders.append(Entry(index, place))
        self.held += MAPPED_BYTES

    # Memory of the peer

    @property
    def places(self) -> list[Place]:
        """The memory that the peer has mapped, by its offsets."""
        return sorted(self._peers.values())

    def told(self, index: int) -> None:
        """
        Read an entry that the peer has written: no bytes are no memory.

        @raise PeerViolation: there is no such entry.
        """
        begin = index * MAPPED_BYTES
        if begin >= len(self._table):
            raise PeerViolation(f"it has mapped memory by entry {index}, which there is not")
        for order in [each for each in self.orders if isinstance(each, Write) and each.index == index]:
            self._remove(order)
            self.events.append(WriteFailed(order.number))
        entry = self._kind.decode(self._table[begin : begin + MAPPED_BYTES])
        self._peers.pop(index, None)
        if entry.length:
            self._peers[index] = Place(entry.offset, entry.length, entry.address, entry.rkey)
        self.events.append(PeerMapped())

    def write(self, offset: int, data: bytes) -> int | None:
        """Write to memory that the peer has mapped: a number, or None if it has mapped none there."""
        for index, place in self._peers.items():
            if place.holds(offset, len(data)):
                self._number += 1
                address = place.address + offset - place.offset
                self.orders.append(Write(self._number, data, index, address, place.rkey))
                self.held += len(data)
                return self._number
        return None

    def cancel(self, number: int) -> None:
        """Forget what is not posted of a write."""
        for order in self.orders:
            if isinstance(order, Write) and order.number == number:
                self._remove(order)
                break

    # What waits

    def hold(self, data: bytes) -> None:
        """Keep bytes of the stream until their turn comes."""
        self.orders.append(data)
        self.held += len(data)

    def drop(self) -> None:
        """Forget all requests of the program that wait."""
        self.orders.clear()
        self.held = 0

    def _remove(self, order: Write) -> None:
        self.orders.remove(order)
        self.held -= len(order.rest)
