"""
Mapped memory at one end of an rsocket: its regions, and the Deferreds of writes and of waits for the peer.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index

from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionLost

from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.rsocket._core import RSocket
from txrdma.cm.rsocket._mapping import Event, MappedRange, PeerMapped, WriteCompleted
from txrdma.error import ProtectionError
from txrdma.interfaces import IMemoryRegion
from txrdma.messages.memory import octets

_OVER = "the connection has ended"


class MappedMemory:
    """
    Memory of this end that the peer may write to at offsets, until it is closed or the connection ends.

    @ivar offset: the offset of the first byte, by which the peer addresses it.
    @ivar length: the length in bytes.
    @ivar buffer: the bytes. Those that the peer writes appear here without an event; they stay after the end.
    """

    def __init__(self, mappings: EndMappings, region: IMemoryRegion, offset: int, index: int) -> None:
        self.offset, self.length = offset, region.length
        self.buffer = region.view[:]
        self._mappings: EndMappings | None = mappings
        self._region, self._index = region, index

    def __repr__(self) -> str:
        state = "closed" if self._mappings is None else "open"
        return f"<MappedMemory {self.length} bytes at {self.offset} {state}>"

    def close(self) -> None:
        """
        Remove the mapping, as C{riounmap} of librdmacm does. Idempotent.

        The peer is notified, which C{riounmap} does not do. A write that the peer has posted before that
        fails, and the connection ends with C{ConnectionLost}, as reliable connections do.
        """
        mappings, self._mappings = self._mappings, None
        if mappings is not None:
            mappings.unmap(self._index, self._region)


class EndMappings:
    """Mapped memory of both ends, from the first request of the application on."""

    def __init__(self, core: RSocket, transport: RDMATransport, ordered: Callable[[], None]) -> None:
        """@param ordered: called when there are requests to post."""
        self._core: RSocket | None = core
        self._transport, self._ordered = transport, ordered
        self._writes: dict[int, Deferred[None]] = {}
        self._waiting: dict[Deferred[None], tuple[int, int]] = {}

    def map(self, length: int, offset: int) -> MappedMemory:
        """
        Allocate memory, and notify the peer.

        @raise txrdma.error.RDMAError: there is not enough memory, or it cannot be mapped at the offset.
        """
        core = self._core
        assert core is not None
        length, offset = index(length), index(offset)
        core.mappings.check(offset, length)
        region = self._transport.allocateMemory(length)
        entry = core.mappings.map(MappedRange(offset, length, region.address, region.rkey))
        self._ordered()
        return MappedMemory(self, region, offset, entry)

    def unmap(self, index: int, region: IMemoryRegion) -> None:
        """Free mapped memory, unless the connection has ended."""
        if self._core is not None:
            self._core.unmap(index)
            self._transport.freeMemory(region)
            self._ordered()

    def write(self, offset: int, data: bytes) -> Deferred[None]:
        """Write to memory that the peer has mapped."""
        core = self._core
        number = None if core is None else core.mappings.write(index(offset), bytes(octets(data)))
        if number is None:
            where = f"{len(data)} bytes at offset {offset}"
            return fail(ProtectionError(f"the peer has not mapped {where}"))

        def cancel(_: Deferred[None]) -> None:
            self._writes.pop(number, None)
            if self._core is not None:
                self._core.mappings.cancel(number)
                self._ordered()

        written = self._writes[number] = Deferred(cancel)
        self._ordered()
        return written

    def wait(self, offset: int, length: int) -> Deferred[None]:
        """Wait until the peer has mapped memory."""

        def cancel(_: Deferred[None]) -> None:
            self._waiting.pop(waiting, None)

        wanted = index(offset), index(length)
        waiting: Deferred[None] = Deferred(cancel)
        self._waiting[waiting] = wanted
        self._fireWaits()
        return waiting

    def handleEvents(self, events: list[Event]) -> None:
        """Fire the Deferreds of events of the core."""
        for event in events:
            if isinstance(event, PeerMapped):
                self._fireWaits()
                continue
            written = self._writes.pop(event.number, None)
            if written is None:
                continue
            if isinstance(event, WriteCompleted):
                written.callback(None)
            else:
                written.errback(ProtectionError("the peer has unmapped its memory"))

    def _fireWaits(self) -> None:
        """Fire the Deferreds of waits for memory that is mapped now."""
        peerRanges = [] if self._core is None else self._core.mappings.peerRanges
        for waiting, (offset, length) in list(self._waiting.items()):
            isThere = any(where.holds(offset, length) for where in peerRanges)
            if isThere and waiting in self._waiting:
                del self._waiting[waiting]
                waiting.callback(None)

    def end(self) -> None:
        """Fail all Deferreds, since the connection has ended."""
        self._core = None
        left = [*self._writes.values(), *self._waiting]
        self._writes.clear()
        self._waiting.clear()
        for each in left:
            if not each.called:  # cancelled by a callback of another one
                each.errback(ConnectionLost(_OVER))


def over() -> Deferred[None]:
    """Return a Deferred that has failed because the connection has ended."""
    return fail(ConnectionLost(_OVER))
