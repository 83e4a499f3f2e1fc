"""
Mapped memory at one end of an rsocket: its regions, and the Deferreds of those who write or wait.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.rsocket._core import RSocket
from txrdma.cm.rsocket._mapping import Event, PeerMapped, WriteCompleted
from txrdma.cm.rsocket.interfaces import IMappedMemory
from txrdma.error import ProtectionError
from txrdma.interfaces import IMemoryRegion

_OVER = "the connection is over"


@implementer(IMappedMemory)
class MappedMemory:
    """Memory that the peer may write to: see L{IMappedMemory}."""

    def __init__(self, mappings: EndMappings, region: IMemoryRegion, offset: int, index: int) -> None:
        self.offset, self.length = offset, region.length
        self.buffer = region.view[:]
        self._mappings: EndMappings | None = mappings
        self._region, self._index = region, index

    def __repr__(self) -> str:
        state = "closed" if self._mappings is None else "open"
        return f"<MappedMemory {self.length} bytes at {self.offset} {state}>"

    def close(self) -> None:
        mappings, self._mappings = self._mappings, None
        if mappings is not None:
            mappings.unmap(self._index, self._region)


class EndMappings:
    """Mapped memory of both ends, from when a program of this end asks for any of it."""

    def __init__(self, core: RSocket, transport: RDMATransport, ordered: Callable[[], None]) -> None:
        """
        @param ordered: called when there is something to post.
        """
        self._core: RSocket | None = core
        self._transport, self._ordered = transport, ordered
        self._writes: dict[int, Deferred[None]] = {}
        self._waiting: dict[Deferred[None], tuple[int, int]] = {}

    def map(self, length: int, offset: int) -> MappedMemory:
        """
        Allocate memory, and have the peer told.

        @raise txrdma.error.RDMAError: there is none, or it can't be mapped there.
        """
        core = self._core
        assert core is not None
        core.checkMapping(offset, length)
        region = self._transport.allocateMemory(length)
        index = core.map(offset, length, region.address, region.rkey)
        self._ordered()
        return MappedMemory(self, region, offset, index)

    def unmap(self, index: int, region: IMemoryRegion) -> None:
        """Let go of mapped memory, unless that has gone with the connection."""
        if self._core is not None:
            self._core.unmap(index)
            self._transport.freeMemory(region)
            self._ordered()

    def write(self, offset: int, data: bytes) -> Deferred[None]:
        """Write to memory that the peer has mapped."""
        core = self._core
        number = None if core is None else core.writeMapped(offset, bytes(data))
        if number is None:
            place = f"{len(data)} bytes at offset {offset}"
            return failed(ProtectionError(f"the peer has not mapped {place}"))

        def cancel(_: Deferred[None]) -> None:
            self._writes.pop(number, None)
            if self._core is not None:
                self._core.cancelMapped(number)
                self._ordered()

        written = self._writes[number] = Deferred(cancel)
        self._ordered()
        return written

    def wait(self, offset: int, length: int) -> Deferred[None]:
        """Wait until the peer has mapped memory."""

        def cancel(_: Deferred[None]) -> None:
            self._waiting.pop(waiting, None)

        waiting: Deferred[None] = Deferred(cancel)
        self._waiting[waiting] = offset, length
        self._look()
        return waiting

    def handleEvents(self, events: list[Event]) -> None:
        """Act on what the core has reported."""
        for event in events:
            if isinstance(event, PeerMapped):
                self._look()
                continue
            written = self._writes.pop(event.number, None)
            if written is None:
                continue
            if isinstance(event, WriteCompleted):
                written.callback(None)
            else:
                written.errback(ProtectionError("the peer has unmapped its memory"))

    def _look(self) -> None:
        """Tell those who wait for what is there."""
        places = [] if self._core is None else self._core.places
        for waiting, (offset, length) in list(self._waiting.items()):
            isThere = any(place.holds(offset, length) for place in places)
            if isThere and waiting in self._waiting:
                del self._waiting[waiting]
                waiting.callback(None)

    def end(self) -> None:
        """Fail all that waits: the connection is over, and the memory with it."""
        self._core = None
        left = [*self._writes.values(), *self._waiting]
        self._writes.clear()
        self._waiting.clear()
        for each in left:
            each.errback(ConnectionLost(_OVER))


def failed(error: Exception) -> Deferred[None]:
    """A Deferred that has failed."""
    deferred: Deferred[None] = Deferred()
    deferred.errback(Failure(error))
    return deferred


def over() -> Deferred[None]:
    """A Deferred that has failed as the connection is over."""
    return failed(ConnectionLost(_OVER))
