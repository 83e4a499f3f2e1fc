"""
The core of one end of an rsocket: a stream of bytes over RDMA writes, with credits and closing.

Follows librdmacm (C{docs/rsocket}, version 1 of the protocol). The core does no I/O: C{outgoing} returns the
requests to post, in order; C{completed} and C{arrived} process completions.

Theory of operation. Each end has a receive buffer of two halves, and a table into which the peer writes. The
connection data in the REQ and the REP announce the table and the first half. Bytes are written into a half by
RDMA writes whose immediate data is their number; each uses a credit, which is a receive of the peer. When a
half was read, its address is written into the sender's table as the next target, by a message that also
returns credits. Control messages (credits, shutdown, disconnect, mapped memory) use no credit, but at most
L{CONTROLS} are outstanding. So nobody writes where, or sends more than, the peer has announced. The queue
pair is reliable: nothing is lost, and requests complete in order.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from txrdma.cm.rsocket._mapping import Event, MappingEntry, Mappings, Write, WriteCompleted
from txrdma.cm.rsocket._receiving import Receiving
from txrdma.cm.rsocket._requests import RequestQueue, SendMemory
from txrdma.cm.rsocket._sending import Sending
from txrdma.cm.rsocket.messages import (
    ADDRESSES,
    ConnectionData,
    Control,
    IGNORED,
    immediate,
    ImmediateKind,
    LENGTH,
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
from txrdma.iba.verbs import SendRequest

TARGETS: Final = 2
"""Targets of a table: one for each half of a buffer."""

CONTROLS: Final = 4
"""Maximum number of outstanding control messages, which need no credit."""

_CONTROL_BYTES: Final = CONTROLS * MAPPED_BYTES
_CONTROL: Final = -1
_NO_KEY: Final = RKey(0)


SMALLEST_BUFFER: Final = 1 << 15
"""Bytes below which buffers of an end are not halved; without memory for them the connection fails."""


PINNED_SHARE: Final = 32
"""
The buffers of one stream have at most this fraction of C{ulimit -l}, on a device that pins memory.

They are halved until they fit, but not below L{SMALLEST_BUFFER}.
"""


class Sizes(NamedTuple):
    """
    The sizes of an end.

    @ivar receives: messages that the peer may send before the first of them is read, 16 to 65508.
    @ivar sends: maximum number of outstanding messages of this end, including C{CONTROLS}.
    @ivar receiveBuffer: bytes, in two halves; C{sendBuffer}: bytes, 2048 at least.
    @ivar mappings: mappings that the peer may have for writes of this end, 0 to 128; each uses 24 bytes of
        the table.
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
        """Whether L{halved} makes a buffer smaller."""
        return max(self.receiveBuffer, self.sendBuffer) > SMALLEST_BUFFER

    def halved(self) -> Sizes:
        """The same sizes with buffers of half the size, but at least L{SMALLEST_BUFFER}."""
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

    @ivar unread: number of received bytes that are not read yet.
    @ivar isReadable: the peer may send more bytes; C{isWritable}: this end may.
    @ivar isOver: the peer has closed the connection, or both ends have closed their write side.
    @ivar wasCut: the peer has closed the connection before all written bytes were posted.
    @ivar isCloseDelivered: the peer has received this end's close.
    @ivar mappings: mapped memory, whose requests are executed after all written bytes.
    @ivar events: events of mapped memory; the caller removes them.
    """

    events: list[Event]

    def __init__(self, sizes: Sizes, remote: memoryview, local: SendMemory | None) -> None:
        """
        @param remote: C{sizes.remote} bytes that the peer writes into.
        @param local: C{sizes.local} bytes to send from; None if the device accepts all bytes inline.
        """
        table, buffer = remote[: sizes.table], remote[sizes.table :]
        targets, entries = table[: TARGETS * TARGET_BYTES], table[TARGETS * TARGET_BYTES :]
        self._sizes = sizes
        self._isLittle = sys.byteorder == "little"
        self._requests, self._memory = RequestQueue(), local
        self._sending = Sending(
            self._requests, sizes.sendBuffer, local, targets, sizes.sends - CONTROLS, self._isLittle
        )
        self._receiving = Receiving(buffer, sizes.receives)
        self.mappings = Mappings(entries, self._isLittle)
        self._orders, self.events = self.mappings.orders, self.mappings.events
        self.unread = 0
        self._inFlight: list[int | Write] = []  # lengths of data, writes to mapped memory, L{_CONTROL}
        self._completed = 0
        self._controlSlot = self._controlsInFlight = 0
        self._localData = self._peerData = ConnectionData()
        self._nextTarget = 0
        self._pendingControl: Control | None = None
        self._sentControl: Control | None = None
        self._isProbing = False
        self.isReadable = self.isWritable = True
        self.isOver = self.wasCut = self.isCloseDelivered = False

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

    def begin(self, local: ConnectionData, peer: ConnectionData, isShared: bool = False) -> None:
        """
        Begin, with the connection data of both ends: see L{decodePeerData}.

        @param isShared: the peer's memory is shared memory, which bytes reach as soon as they are posted.
        """
        self._sending.isShared, self._requests.signalsEach = isShared, not isShared
        self._localData, self._peerData, self._nextTarget = local, peer, 1 % peer.tableLength
        target = Target(address=peer.bufferAddress, rkey=peer.bufferKey, length=peer.bufferLength)
        self._sending.begin(target, peer.credits)
        self.mappings.begin(peer.room)

    # Requests of the program

    @property
    def backlog(self) -> int:
        """Number of bytes written to the stream or to mapped memory, and not posted yet."""
        return self._sending.backlog + self.mappings.held

    @property
    def isDelivered(self) -> bool:
        """Whether all written bytes are in the peer's memory."""
        return self._sending.isIdle and not self._orders

    @property
    def isQuiet(self) -> bool:
        """Whether nothing is outstanding, so that no completion will follow."""
        return not self._inFlight

    def write(self, data: bytes) -> int:
        """
        Queue bytes until the peer has space for them; drop them if the write side is closed.

        @return: the backlog.
        """
        if self.isWritable and not self.isOver:
            if not self._orders:
                return self._sending.write(data)
            self.mappings.hold(data)
        return self.backlog

    def drop(self) -> None:
        """Discard queued bytes, and messages about mapped memory, that are not posted yet."""
        self._sending.drop()
        self.mappings.drop()

    def read(self) -> bytes:
        """Return some received bytes; empty if there are none."""
        data = self._receiving.take()
        self.unread -= len(data)
        return data

    def closeWriting(self) -> None:
        """Close the write side, after all written bytes."""
        if self.isWritable:
            self.isWritable = False
            self._pendingControl = Control.SHUTDOWN if self.isReadable else Control.DISCONNECT

    def close(self) -> None:
        """Close both sides, after all written bytes."""
        self.isWritable = False
        self._pendingControl = Control.DISCONNECT

    def probe(self) -> None:
        """Probe the peer's queue pair, unless the completion of an outstanding request will do so."""
        self._isProbing = self._needsProbe

    @property
    def _needsProbe(self) -> bool:
        """Whether no request is outstanding whose completion is certain; on shared memory, data has none."""
        return not (self._inFlight if self._requests.signalsEach else self._controlsInFlight)

    # Mapped memory: see txrdma.cm.rsocket.mapped

    def unmap(self, index: int) -> None:
        """Withdraw mapped memory, unless the write side is closed."""
        self.mappings.unmap(index, not (self.isOver or self._sentControl is Control.DISCONNECT))

    # The queue pair

    def arrived(self, number: int, length: int) -> None:
        """
        Process a message of the peer.

        @param number: its immediate data.
        @param length: number of bytes that it has written, which are a target in a message with credits.
        @raise PeerViolation: the message is invalid.
        """
        if number <= LENGTH:  # the operation of data is 0, and the value their length
            if not self.isReadable:
                raise PeerViolation("it has sent data after its end")
            self._receiving.arrived(number)
            self.unread += number
            return
        operation, value = meaning(number)
        if operation == ImmediateKind.CREDITS:
            self._sending.credited(value, length > 0)
        elif operation == ImmediateKind.CONTROL:
            self._controlReceived(value)
        elif operation == ImmediateKind.MAPPING:
            self.mappings.entryWritten(value)
        elif operation != IGNORED:
            raise PeerViolation(f"unknown operation {operation}")

    def _controlReceived(self, value: int) -> None:
        if value == Control.DISCONNECT:
            # What is posted may still be acknowledged: completions of sends and receives are not ordered.
            unposted = [each for each in self._orders if not isinstance(each, MappingEntry)]
            self.wasCut = self.wasCut or self._sending.backlog > 0 or bool(unposted)
            self.drop()
            self.isOver = True
            self.isReadable = False
        elif value == Control.SHUTDOWN:
            self.isReadable = False
            if self._sentControl is not None:
                self.isOver = True
            elif self._pendingControl is not None:
                self._pendingControl = Control.DISCONNECT

    @property
    def posted(self) -> int:
        """The identifier of the latest request."""
        return self._requests.posted

    def completed(self, identifier: int) -> bool:
        """
        Note that requests up to this one are in the peer's memory.

        @return: False if nothing further can be posted, and the connection does not end.
        """
        sending, inFlight = self._sending, self._inFlight
        isUseful = False
        count = max(identifier - self._completed, 0)
        self._completed += count
        for each in inFlight[:count]:
            if isinstance(each, Write):
                sending.completed(each.last)
                self.events.append(WriteCompleted(each.number))
                isUseful = True
            elif each == _CONTROL:
                self._controlsInFlight -= 1
                isUseful = True
            else:
                sending.completed(each)
        del inFlight[:count]
        if self._sentControl is Control.DISCONNECT and not inFlight:
            self.isCloseDelivered = True
        return isUseful or sending.backlog > 0 or self._pendingControl is not None or len(self._orders) > 0

    def outgoing(self) -> list[SendRequest]:
        """Return the requests that can be posted now; post them in this order before the next call."""
        requests = self._requests
        requests.begin()
        if self.isOver or self._sentControl is Control.DISCONNECT:
            return requests.batch
        receiving, sending = self._receiving, self._sending
        if receiving.isDue and self._controlsInFlight < CONTROLS:
            self._giveCredits()
        while sending.backlog and (length := sending.next()):
            self._inFlight.append(length)
        if self._orders or self._pendingControl is not None or self._isProbing:
            self._postOthers()
        return requests.batch

    def _postOthers(self) -> None:
        """Post requests for mapped memory, the end of writing or the close, and a probe."""
        sending = self._sending
        while self._orders and not sending.backlog and self._postOrder():
            pass
        pending = None if sending.backlog or self._orders else self._pendingControl
        if pending is not None and self._controlsInFlight < CONTROLS:
            self._pendingControl, self._sentControl = None, pending
            self._postControl(immediate(ImmediateKind.CONTROL, pending))
        if self._isProbing and self._needsProbe:
            self._postControl(None)
        self._isProbing = False

    def _postOrder(self) -> bool:
        """Post the first order, or bytes up to the next one; False if that is not possible yet."""
        first, sending, mappings = self._orders[0], self._sending, self.mappings
        if isinstance(first, Write):
            return self._postWrite(first)
        if isinstance(first, MappingEntry):
            if self._controlsInFlight >= CONTROLS:
                return False
            self._postEntry(first)
            mappings.held -= MAPPED_BYTES
        else:
            sending.write(first)
            mappings.held -= len(first)
        self._orders.pop(0)
        while sending.backlog and (length := sending.next()):
            self._inFlight.append(length)
        return True

    def _postWrite(self, write: Write) -> bool:
        """Post a write to mapped memory, as far as possible."""
        while True:
            length = self._sending.writeMapped(write.rest, write.address, write.rkey)
            if length is None:
                return False
            write.posted(length)
            self.mappings.held -= length
            if not write.rest:
                self._inFlight.append(write)
                self._orders.pop(0)
                return True
            self._inFlight.append(length)

    def _giveCredits(self) -> None:
        """Post the message that gives credits, and the target if there is one."""
        limit, half = self._receiving.due()
        number = immediate(ImmediateKind.CREDITS, limit)
        if half is None:
            self._postControl(number)
            return
        local, peer = self._localData, self._peerData
        kind = Target if peer.flags & NETWORK_ORDER else LittleTarget
        target = kind(address=local.bufferAddress + half, rkey=local.bufferKey, length=self._receiving.half)
        at = self._nextTarget * TARGET_BYTES
        self._nextTarget = (self._nextTarget + 1) % peer.tableLength
        self._postControl(number, target.encode(), at)

    def _postEntry(self, entry: MappingEntry) -> None:
        """Post the message with an entry for mapped memory of this end."""
        index, mappedRange = entry.index, entry.mappedRange
        kind = Mapped if self._peerData.flags & NETWORK_ORDER else LittleMapped
        mapped = kind(
            offset=mappedRange.offset,
            address=mappedRange.address,
            rkey=mappedRange.rkey,
            length=mappedRange.length,
        )
        at = self._peerData.tableLength * TARGET_BYTES + index * MAPPED_BYTES
        self._postControl(immediate(ImmediateKind.MAPPING, index), mapped.encode(), at)

    def _postControl(self, number: int | None, data: bytes = b"", at: int = 0) -> None:
        """Post a message that needs no credit, and writes into the peer's table at an offset."""
        requests, local, peer = self._requests, self._memory, self._peerData
        self._inFlight.append(_CONTROL)
        self._controlsInFlight += 1
        if not data:
            requests.add(0, _NO_KEY, number).signaled = True
            return
        address = peer.tableAddress + at
        if local is None:
            requests.add(address, peer.tableKey, number, (data,)).signaled = True
            return
        begin = self._sizes.sendBuffer + self._controlSlot * MAPPED_BYTES
        self._controlSlot = (self._controlSlot + 1) % CONTROLS
        local.view[begin : begin + len(data)] = data
        requests.addFrom(local, begin, len(data), address, peer.tableKey, number)


def decodePeerData(privateData: bytes) -> ConnectionData:
    """
    Decode the connection data of a peer; following bytes are ignored.

    @raise WireError: the data is too short, has another version, or has no table of 64-bit addresses.
    """
    connectionData = ConnectionData.decode(privateData)
    if connectionData.version != VERSION:
        raise WireError("ConnectionData", 0, f"rsockets of version {connectionData.version}, not {VERSION}")
    if not connectionData.tableLength:
        raise WireError("ConnectionData", 20, "a table without targets")
    length = connectionData.tableLength * TARGET_BYTES + connectionData.room * MAPPED_BYTES
    if connectionData.tableAddress + length > ADDRESSES:
        raise WireError("ConnectionData", 8, "a table that ends above the last 64-bit address")
    return connectionData
