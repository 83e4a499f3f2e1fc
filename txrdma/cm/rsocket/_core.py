"""
The core of one end of an rsocket: a stream of bytes over RDMA writes, with credits and closing.

Follows librdmacm (C{docs/rsocket}, version 1 of the protocol). The core does no I/O:
C{outgoing} returns the writes to post, in order; C{completed} and C{arrived} process completions. The queue
pair is reliable, so nothing is lost.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Final, NamedTuple

from txrdma.cm.rsocket._mapping import Entry, Event, Mappings, Place, Write, WriteCompleted
from txrdma.cm.rsocket._receiving import Receiving
from txrdma.cm.rsocket._sending import Post, Sending
from txrdma.cm.rsocket.messages import (
    ConnectionData,
    Control,
    IGNORED,
    immediate,
    Kind,
    LittleMapped,
    LittleTarget,
    Mapped,
    MAPPED_BYTES,
    MAPPINGS,
    meaning,
    NETWORK_ORDER,
    Target,
    TARGET_BYTES,
    VERSION,
)
from txrdma.error import PeerViolation, WireError
from txrdma.iba.types import RKey

TARGETS: Final = 2
"""Targets of a table: one for each half of a buffer."""

CONTROLS: Final = 4
"""Maximum number of outstanding control messages, which need no credit."""

_CONTROL_BYTES: Final = CONTROLS * MAPPED_BYTES
_ADDRESSES: Final = 1 << 64
_NO_KEY: Final = RKey(0)


SMALLEST_BUFFER: Final = 1 << 15
"""Buffers of an end are not halved below that many bytes; without memory for them there is no connection."""


PINNED_SHARE: Final = 32
"""
The buffers of one stream have at most this fraction of C{ulimit -l}, on a device that pins memory.

They are halved until that is so, unless they are as small as L{SMALLEST_BUFFER} before.
"""


class Sizes(NamedTuple):
    """
    The sizes of an end.

    @ivar receives: messages that the peer may send before the first of them is read, 16 to 65534.
    @ivar sends: maximum number of outstanding messages of this end, including C{CONTROLS}.
    @ivar receiveBuffer: bytes, in two halves; C{sendBuffer}: bytes, 2048 at least.
    @ivar mappings: pieces of memory that the peer may have mapped for writes of this end, 0 to 128; each is
        24 bytes of the table.
    """

    receives: int = 128
    sends: int = 128
    receiveBuffer: int = 1 << 19
    sendBuffer: int = 1 << 18
    mappings: int = 8

    @property
    def buffers(self) -> int:
        """Bytes of both buffers."""
        return self.receiveBuffer + self.sendBuffer

    @property
    def isHalvable(self) -> bool:
        """Whether there is a buffer that L{halved} makes smaller."""
        return max(self.receiveBuffer, self.sendBuffer) > SMALLEST_BUFFER

    def halved(self) -> Sizes:
        """The same, with buffers of half the size; none becomes smaller than L{SMALLEST_BUFFER} by that."""
        receiveBuffer, sendBuffer = (
            max(size // 2, min(size, SMALLEST_BUFFER)) for size in (self.receiveBuffer, self.sendBuffer)
        )
        return self._replace(receiveBuffer=receiveBuffer, sendBuffer=sendBuffer)

    @property
    def table(self) -> int:
        """Length of the table in bytes: targets, followed by entries for mapped memory."""
        return TARGETS * TARGET_BYTES + self.mappings * MAPPED_BYTES

    @property
    def remote(self) -> int:
        """Bytes of memory that the peer writes into: the table, and the buffer."""
        return self.table + self.receiveBuffer

    @property
    def local(self) -> int:
        """Length of the send memory in bytes: the buffer, and slots for table entries to write."""
        return self.sendBuffer + _CONTROL_BYTES


class RSocket:
    """
    An end of a connection between rsockets.

    @ivar isReadable: the peer may send more bytes; C{isWritable}: this end may.
    @ivar isOver: the peer has closed the connection, or both ends have closed their write side.
    @ivar wasCut: the peer has closed the connection before all written bytes were posted.
    @ivar hasParted: the peer has received our close.
    @ivar events: events of mapped memory; the caller removes them.
    """

    events: list[Event]

    def __init__(self, sizes: Sizes, remote: memoryview, local: memoryview) -> None:
        """
        @param remote: C{sizes.remote} bytes that the peer writes into; C{local}: C{sizes.local} to send from.
        """
        table, buffer = remote[: sizes.table], remote[sizes.table :]
        table[:] = bytes(len(table))
        targets, entries = table[: TARGETS * TARGET_BYTES], table[TARGETS * TARGET_BYTES :]
        self._sizes = sizes
        self._isLittle = sys.byteorder == "little"
        self._controls = local[sizes.sendBuffer :]
        self._sending = Sending(local[: sizes.sendBuffer], targets, sizes.sends - CONTROLS, self._isLittle)
        self._receiving = Receiving(buffer, sizes.receives)
        self._mappings = Mappings(entries, self._isLittle)
        self._orders, self.events = self._mappings.orders, self._mappings.events
        self._flying: deque[bool | Write] = deque()
        self._controlAt = self._controlsFlying = 0
        self._own = self._peer = ConnectionData()
        self._peerAt = 0
        self._wanted: Control | None = None
        self._sentControl: Control | None = None
        self._isProbing = False
        self.isReadable = self.isWritable = True
        self.isOver = self.wasCut = self.hasParted = False

    # The beginning

    def greeting(self, address: int, rkey: RKey) -> ConnectionData:
        """The connection data of this end, with the address of its memory for the peer."""
        return ConnectionData(
            version=VERSION,
            flags=MAPPINGS if self._isLittle else MAPPINGS | NETWORK_ORDER,
            mappings=self._sizes.mappings,
            credits=self._sizes.receives,
            tableAddress=address,
            tableKey=rkey,
            tableLength=TARGETS,
            bufferAddress=address + self._sizes.table,
            bufferKey=rkey,
            bufferLength=self._receiving.half,
        )

    def begin(self, own: ConnectionData, peer: ConnectionData) -> None:
        """Begin, with the connection data of both ends: see L{understood}."""
        self._own, self._peer, self._peerAt = own, peer, 1 % peer.tableLength
        target = Target(address=peer.bufferAddress, rkey=peer.bufferKey, length=peer.bufferLength)
        self._sending.begin(target, peer.credits)
        self._mappings.begin(peer.room)

    # Requests of the program

    @property
    def backlog(self) -> int:
        """Bytes that were written, to the stream or to mapped memory, and are not posted yet."""
        return self._sending.backlog + self._mappings.held

    @property
    def isDelivered(self) -> bool:
        """Whether all that was written is in the peer's memory."""
        return self._sending.isIdle and not self._orders

    @property
    def isQuiet(self) -> bool:
        """Whether nothing is outstanding, so that no completion will follow."""
        return not self._flying

    @property
    def unread(self) -> int:
        """Number of received bytes that are not read yet."""
        return self._receiving.unread

    def write(self, data: bytes) -> None:
        """Queue bytes until the peer has space for them; drop them if the write side is closed."""
        if self.isWritable and not self.isOver:
            if self._orders:
                self._mappings.hold(data)
            else:
                self._sending.write(data)
        elif data and self.isOver:
            self.wasCut = True

    def drop(self) -> None:
        """Forget all that is not posted."""
        self._sending.drop()
        self._mappings.drop()

    def read(self) -> bytes:
        """Take some received bytes; empty if there are none."""
        return self._receiving.take()

    def closeWriting(self) -> None:
        """Close the write side, after all written bytes."""
        if self.isWritable:
            self.isWritable = False
            self._wanted = Control.SHUTDOWN if self.isReadable else Control.DISCONNECT

    def close(self) -> None:
        """Close both sides, after all written bytes."""
        self.isWritable = False
        self._wanted = Control.DISCONNECT

    def probe(self) -> None:
        """Probe the peer's queue pair, unless an outstanding message does so."""
        self._isProbing = self.isQuiet

    # Mapped memory: see txrdma.cm.rsocket.interfaces

    def checkMapping(self, offset: int, length: int) -> None:
        """
        Check that a number of bytes can be mapped at an offset.

        @raise txrdma.error.InvalidRequest: the offsets are invalid, or already mapped.
        @raise txrdma.error.ResourceExhausted: the peer's table is full.
        """
        self._mappings.check(offset, length)

    def map(self, offset: int, length: int, address: int, rkey: RKey) -> int:
        """Announce memory for the peer's writes, after all written bytes; returns the entry's number."""
        return self._mappings.map(Place(offset, length, address, rkey))

    def unmap(self, index: int) -> None:
        """Withdraw mapped memory, unless the write side is closed."""
        self._mappings.unmap(index, not (self.isOver or self._sentControl is Control.DISCONNECT))

    def writeMapped(self, offset: int, data: bytes) -> int | None:
        """
        Write to memory that the peer has mapped, after all written bytes.

        @return: a number, repeated in an event; None if the peer has mapped no memory there.
        """
        return self._mappings.write(offset, data)

    def cancelMapped(self, number: int) -> None:
        """Withdraw the unposted part of a write to mapped memory."""
        self._mappings.cancel(number)

    @property
    def places(self) -> list[Place]:
        """The memory that the peer has mapped, by its offsets."""
        return self._mappings.places

    # The queue pair

    def arrived(self, number: int, length: int) -> None:
        """
        Take a message of the peer.

        @param number: its immediate data.
        @param length: bytes that it has written: a message with credits has a target, if it has any.
        @raise PeerViolation: it makes no sense.
        """
        operation, value = meaning(number)
        if operation == Kind.DATA:
            if not self.isReadable:
                raise PeerViolation("it has sent data behind its end")
            self._receiving.arrived(value)
        elif operation == Kind.CREDITS:
            self._sending.credited(value, length > 0)
        elif operation == Kind.CONTROL:
            self._controlReceived(value)
        elif operation == Kind.MAPPING:
            self._mappings.entryWritten(value)
        elif operation != IGNORED:
            raise PeerViolation(f"operation {operation} has no meaning")

    def _controlReceived(self, value: int) -> None:
        if value == Control.DISCONNECT:
            # What is posted may still be acknowledged: completions of sends and receives are not ordered.
            self.wasCut = self.wasCut or self.backlog > 0
            self.drop()
            self.isOver = True
            self.isReadable = False
        elif value == Control.SHUTDOWN:
            self.isReadable = False
            if self._sentControl is not None:
                self.isOver = True
            elif self._wanted is not None:
                self._wanted = Control.DISCONNECT

    def completed(self) -> bool:
        """
        Note that the oldest outstanding message is in the peer's memory.

        @return: False if this allows no further post and does not end the connection.
        """
        flown = self._flying.popleft()
        if flown:
            sending = self._sending
            sending.completed()
            if flown is not True:
                self.events.append(WriteCompleted(flown.number))
                return True
            return sending.backlog > 0 or self._wanted is not None or len(self._orders) > 0
        self._controlsFlying -= 1
        if self._sentControl is Control.DISCONNECT and not self._flying:
            self.hasParted = True
        return True

    def outgoing(self) -> list[Post]:
        """The messages that can be posted now, which are to be posted in that order."""
        posts: list[Post] = []
        if self.isOver or self._sentControl is Control.DISCONNECT:
            return posts
        if self._controlsFlying < CONTROLS:
            grant = self._receiving.due()
            if grant is not None:
                posts.append(self._creditMessage(grant.limit, grant.half))
        sending = self._sending
        while sending.backlog and (post := sending.next()) is not None:
            self._flying.append(True)
            posts.append(post)
        while self._orders and not sending.backlog and self._postOrder(posts):
            pass
        wanted = None if sending.backlog or self._orders else self._wanted
        if wanted is not None and self._controlsFlying < CONTROLS:
            self._wanted, self._sentControl = None, wanted
            posts.append(self._control(Post(0, 0, 0, _NO_KEY, immediate(Kind.CONTROL, wanted))))
        if self._isProbing and not self._flying:
            posts.append(self._control(Post(0, 0, 0, _NO_KEY, None)))
        self._isProbing = False
        return posts

    def _postOrder(self, posts: list[Post]) -> bool:
        """Post the first of the orders, or bytes up to the next one; False if something is missing for it."""
        first, sending, mappings = self._orders[0], self._sending, self._mappings
        if isinstance(first, Write):
            return self._postWrite(first, posts)
        if isinstance(first, Entry):
            if self._controlsFlying >= CONTROLS:
                return False
            posts.append(self._entryMessage(first))
            mappings.held -= MAPPED_BYTES
        else:
            sending.write(first)
            mappings.held -= len(first)
        self._orders.popleft()
        while sending.backlog and (post := sending.next()) is not None:
            self._flying.append(True)
            posts.append(post)
        return True

    def _postWrite(self, write: Write, posts: list[Post]) -> bool:
        """Post a write to mapped memory, as far as possible."""
        while (post := self._sending.aside(write.rest, write.address % _ADDRESSES, write.rkey)) is not None:
            posts.append(post)
            write.posted(post.length)
            self._mappings.held -= post.length
            if not write.rest:
                self._flying.append(write)
                self._orders.popleft()
                return True
            self._flying.append(True)
        return False

    def _creditMessage(self, limit: int, half: int | None) -> Post:
        """The message that gives credits, and the target if there is one."""
        number = immediate(Kind.CREDITS, limit)
        if half is None:
            return self._control(Post(0, 0, 0, _NO_KEY, number))
        own, peer = self._own, self._peer
        kind = Target if peer.flags & NETWORK_ORDER else LittleTarget
        target = kind(address=own.bufferAddress + half, rkey=own.bufferKey, length=self._receiving.half)
        at = self._peerAt * TARGET_BYTES
        self._peerAt = (self._peerAt + 1) % peer.tableLength
        return self._tableMessage(target.encode(), at, number)

    def _entryMessage(self, entry: Entry) -> Post:
        """The message with an entry for mapped memory of this end."""
        index, place = entry.index, entry.place
        kind = Mapped if self._peer.flags & NETWORK_ORDER else LittleMapped
        mapped = kind(offset=place.offset, address=place.address, rkey=place.rkey, length=place.length)
        at = self._peer.tableLength * TARGET_BYTES + index * MAPPED_BYTES
        return self._tableMessage(mapped.encode(), at, immediate(Kind.MAPPING, index))

    def _tableMessage(self, data: bytes, at: int, number: int) -> Post:
        """The message that writes into the peer's table, at so many bytes from its beginning."""
        begin = self._controlAt * MAPPED_BYTES
        self._controls[begin : begin + len(data)] = data
        self._controlAt = (self._controlAt + 1) % CONTROLS
        peer = self._peer
        address = (peer.tableAddress + at) % _ADDRESSES
        return self._control(Post(self._sizes.sendBuffer + begin, len(data), address, peer.tableKey, number))

    def _control(self, post: Post) -> Post:
        self._flying.append(False)
        self._controlsFlying += 1
        return post


def understood(privateData: bytes) -> ConnectionData:
    """
    Decode the connection data of a peer; following bytes are ignored.

    @raise WireError: they are too short, of another version, or without a table.
    """
    connectionData = ConnectionData.decode(privateData)
    if connectionData.version != VERSION:
        raise WireError("ConnectionData", 0, f"rsockets of version {connectionData.version}, not {VERSION}")
    if not connectionData.tableLength:
        raise WireError("ConnectionData", 20, "a table without targets")
    return connectionData
