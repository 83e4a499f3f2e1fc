"""
Shared memory of one connection: regions of both ends, and reads by messages.

A write is a put of the module. A read is a request by message; the end that shares the memory answers with a
put into a region that the reader has registered for it, and with a message after the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, SupportsIndex, TYPE_CHECKING

from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

from txrdma.btl.core.assembly import LONGEST
from txrdma.btl.core.peer import OPEN
from txrdma.btl.errors import MessageFailed
from txrdma.btl.lifeline import Done, PeerConnection
from txrdma.btl.requests import PendingRequests
from txrdma.error import InvalidRequest
from txrdma.iba.verbs import Buffer
from txrdma.messages.memory import MemoryName, sharable, SharedMemory
from txrdma.unix.mapping import releaseView

if TYPE_CHECKING:
    from txrdma.kit.buffers import AnyBuffer

MOST_GETS: Final = 256
"""Concurrent reads: more of a peer are refused, more of this end are queued."""

GET_FIELDS: Final = Struct(">IIQII")
"""A read: its number, region, offset, length, and the region for the answer."""

GOT_FIELDS: Final = Struct(">IB")
"""The answer to a read: its number, and 1 if the read was refused."""

_ENDED: Final = "the connection has ended"


class ConnectionMemory:
    """Memory that the ends of one connection share."""

    def __init__(
        self,
        lifeline: PeerConnection,
        sendGet: Callable[[bytes], None],
        sendGot: Callable[[bytes, bool], None],
    ) -> None:
        """
        @param sendGet: sends L{GET_FIELDS} before all other messages.
        @param sendGot: sends L{GOT_FIELDS}, in order or before all other messages.
        """
        self._lifeline: PeerConnection | None = lifeline
        self._core, self._peer = lifeline.module.core, lifeline.peer
        self._sendGot = sendGot
        self._regions: dict[int, tuple[memoryview, ...]] = {}
        self._reads = PendingRequests(sendGet, lambda number: None, MOST_GETS)
        self._answering = 0

    def share(self, memory: int | AnyBuffer) -> SharedMemory:
        """Let the peer write into memory, and read from it: see C{share} of the transport."""
        if self._lifeline is None:
            raise InvalidRequest(_ENDED)
        memory = sharable(memory)
        whole = memoryview(bytearray(memory)) if isinstance(memory, int) else memory
        view = whole[:]  # another one than the region's, since the program may release it
        region = self._register(whole, () if isinstance(memory, int) else (view, whole))
        name = MemoryName(key=region, length=whole.nbytes)
        return SharedMemory(name, view, lambda: self._deregister(region))

    def _register(self, memory: memoryview, released: tuple[memoryview, ...] = ()) -> int:
        """
        Let the peer write into memory.

        @param released: views to release at the end, since the application owns the memory.
        """
        region = self._core.regions.register(memory, self._peer)
        self._regions[region] = released
        return region

    def _deregister(self, region: int) -> None:
        if region in self._regions:
            self._core.regions.deregister(region)
            for view in self._regions.pop(region):
                releaseView(view)

    def write(self, name: Buffer, data: Buffer, offset: SupportsIndex, isClosing: bool, done: Done) -> None:
        """Write into memory that the peer shares."""
        memory = MemoryName.part(name, offset, len(data))
        if self._lifeline is None or isClosing or self._peer.state != OPEN:
            done(MessageFailed(_ENDED))
        else:
            self._lifeline.put(memory.key, memory.address, data, done)

    def read(self, name: Buffer, length: SupportsIndex, offset: SupportsIndex) -> Deferred[bytes]:
        """Read from memory that the peer shares."""
        source = MemoryName.part(name, offset, length, LONGEST)
        if self._lifeline is None or self._peer.state != OPEN:
            return fail(MessageFailed(_ENDED))
        memory = bytearray(source.length)
        destination = self._register(memoryview(memory))

        def finished(result: Any) -> Any:
            self._deregister(destination)
            return result if isinstance(result, Failure) else bytes(memory)

        fields = (source.key, source.address, source.length, destination)
        try:
            reading = self._reads.request(lambda number: GET_FIELDS.pack(number, *fields))
        except BaseException:
            self._deregister(destination)
            raise
        return reading.addBoth(finished)

    def answer(self, fields: Buffer) -> None:
        """Answer a read of the peer: write the bytes into its memory."""
        number, region, offset, length, destination = GET_FIELDS.unpack(fields)
        memory = self._core.regions.find(region, self._peer)
        lifeline = self._lifeline
        if (
            memory is None
            or offset + length > len(memory)
            or self._answering >= 2 * MOST_GETS
            or not lifeline
        ):
            self._sendGot(GOT_FIELDS.pack(number, 1), False)
            return
        isPut = length > 0 and self._peer.state == OPEN
        if isPut:
            self._answering += 1

            def done(_error: Exception | None) -> None:
                self._answering -= 1

            # a copy, since the buffer may be closed before it is acknowledged
            lifeline.put(destination, 0, bytes(memory[offset : offset + length]), done)
        # The peer handles an ordered answer when it has everything that was sent before.
        self._sendGot(GOT_FIELDS.pack(number, 0), isPut)

    def answered(self, data: Buffer) -> None:
        """Process the peer's answer to a read."""
        number, status = GOT_FIELDS.unpack(data)
        outcome = self._reads.answered(number)
        if outcome is None:
            return
        if status:
            outcome.errback(MessageFailed("the peer has no such memory, or too many concurrent reads"))
        else:
            outcome.callback(None)

    def close(self) -> None:
        """End the access of the peer, and fail all reads."""
        self._lifeline = None
        for region in list(self._regions):
            self._deregister(region)
        self._reads.end(MessageFailed(_ENDED))
