"""
The peer's memory: RDMA by copying if it is mapped, else by messages.

Follows InfiniBand Architecture vol. 1, 10.6 and 11.4.1.1 (access rights) for the requests that the peer would
refuse.

Theory of operation. The first request for a region asks the peer for it, unless the peer has offered it or
C{prepare} has requested it before; the lane is suspended until the reply. Then the memory is mapped, and each
request is one copy, after a check of bounds, rights and the valid word of the region. Memory that cannot be
mapped is accessed by messages, one request at a time, in the order of all requests: the peer copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TYPE_CHECKING

from txrdma.iba.types import RKey
from txrdma.iba.verbs import Operation, SendRequest, Status
from txrdma.soft.core.pieces import copied
from txrdma.soft.shared._layout import CLOSED_SERVICES, LaneServices, REMOTE_READ, REMOTE_WRITE, RemoteRegion
from txrdma.soft.shared._rings import RingPair

if TYPE_CHECKING:
    from txrdma.soft.core.queuepair import SoftQueuePair

MOST_OFFERED: Final = 256
"""Maximum number of regions of a peer that are mapped without a request."""

_SUCCESS: Final = Status.SUCCESS


class RemoteMemory:
    """
    The regions of the peer that this process may access.

    @ivar regions: by key; None for a key that was refused.
    @ivar requested: key of the region for whose reply a request waits.
    """

    __slots__ = (
        *("_access", "_domain", "_isClosed", "_lookup", "_preparing", "_rings", "_services", "requested"),
        *("regions",),
    )

    def __init__(self, owner: SoftQueuePair, services: LaneServices, rings: RingPair) -> None:
        self.regions: dict[int, RemoteRegion | None] = {}
        self.requested: RKey | None = None
        self._domain = owner.domain
        self._lookup = owner.keys.lookup
        self._services: LaneServices = services
        self._rings = rings
        self._access = 0  # rights of the peer's queue pair, by its last reply
        self._preparing: dict[RKey, list[Callable[[], None]]] = {}  # callbacks of L{prepare}
        self._isClosed = False

    def targetOf(self, rkey: RKey, address: int, length: int) -> tuple[memoryview, memoryview] | None:
        """Return the mapped memory of the peer and its valid word; None if it is not mapped."""
        region = self.regions.get(rkey)
        if region is None or region.writable is None:
            return None
        offset = address - region.address
        if offset < 0 or offset + length > region.length:
            return None
        return region.writable[offset : offset + length], region.valid

    def write(self, request: SendRequest) -> int:
        """
        Fast path of an RDMA WRITE of inline bytes or of one segment, without a list of pieces and L{copy}.

        @return: the number of bytes; -1 if the general path is needed.
        @raise ValueError: inline data are not plain bytes: the general path is needed, too.
        @raise TypeError: likewise, or a field has a wrong type.
        """
        region = self.regions.get(request.rkey)
        if region is None:
            return -1
        target = region.writable
        at = request.remoteAddress - region.address
        if target is None or at < 0 or not region.valid[0]:
            return -1
        inline = request.inline
        if inline:
            length = len(inline[0]) if len(inline) == 1 else sum(map(len, inline))
            if at + length > region.length:
                return -1
            for piece in inline:
                end = at + len(piece)
                target[at:end] = piece
                at = end
            return length
        if len(request.segments) != 1:
            return -1
        address, length, lkey = request.segments[0]
        source = self._lookup(lkey)
        if source is None or source.domain is not self._domain or not 0 <= length <= region.length - at:
            return -1
        start = address - source.address
        if start < 0 or start + length > source.length:
            return -1
        target[at : at + length] = source.view[start : start + length]
        return length

    def copy(self, request: SendRequest, pieces: list[memoryview], length: int) -> Status | None:
        """Execute an RDMA operation by copying; return the status, or None if it has to wait."""
        rkey = request.rkey
        if rkey not in self.regions:
            if self.requested is None:
                self.requested = rkey
                if rkey not in self._preparing:
                    self._services.requestRegion(rkey)
            return None
        region = self.regions[rkey]
        reading = request.operation is Operation.RDMA_READ
        need = REMOTE_READ if reading else REMOTE_WRITE
        if not self._access & need:
            return Status.REM_INV_REQ_ERR
        if region is None or not region.valid[0] or not region.rights & need:
            return Status.REM_ACCESS_ERR
        offset = request.remoteAddress - region.address
        if offset < 0 or offset + length > region.length:
            return Status.REM_ACCESS_ERR
        view = region.view
        if view is None:
            self._byMessages(request, pieces)
            return None
        for piece in pieces:
            end = offset + len(piece)
            if reading:
                piece[:] = view[offset:end]
            else:
                view[offset:end] = piece
            offset = end
        return _SUCCESS

    def _byMessages(self, request: SendRequest, pieces: list[memoryview]) -> None:
        """Access memory by messages, one request at a time, once all earlier records are consumed."""
        if self.requested is None:
            rings = self._rings
            rings.readAcknowledged()
            if rings.produced == rings.acknowledged:
                self.requested = request.rkey
                request = copied(request)  # its poster may change it and its inline bytes meanwhile
                if request.inline:
                    pieces = [memoryview(piece) for piece in request.inline]
                self._services.access(request, pieces)

    def accessed(self, allowed: bool) -> bool:
        """Process the reply to C{LaneServices.access}; return whether a request waits for it."""
        if self._isClosed or self.requested is None:
            return False
        if allowed:
            self._rings.offset = -1
        else:
            self.regions[self.requested] = None
        self.requested = None
        return True

    def wants(self, rkey: RKey) -> bool:
        """Whether this region was requested; others are accepted if they are new, and not too many."""
        if self._isClosed or rkey in self._preparing or self.requested == rkey:
            return not self._isClosed
        region = self.regions.get(rkey)
        return len(self.regions) < MOST_OFFERED and (region is None or not region.valid[0])

    def known(self, rkey: RKey, region: RemoteRegion | None, access: int) -> bool:
        """Handle the reply to C{requestRegion}, or an offer; return whether a request waits for it."""
        if self._isClosed:
            return False
        self._access = access
        self.regions[rkey] = region
        for known in self._preparing.pop(rkey, ()):
            known()
        if self.requested != rkey:
            return False
        self.requested = None
        return True

    def prepare(self, rkey: RKey, known: Callable[[], None]) -> None:
        """Request a region in advance: see L{txrdma.interfaces.IDirectLane}."""
        if self._isClosed or rkey in self.regions:
            known()
        elif rkey in self._preparing:
            self._preparing[rkey].append(known)
        else:
            self._preparing[rkey] = [known]
            if self.requested != rkey:
                self._services.requestRegion(rkey)

    def leave(self) -> None:
        """Stop requesting: the lane is closed."""
        self.close()
        self._services = CLOSED_SERVICES

    def close(self) -> None:
        """Unmap the peer's memory, and call pending callbacks. Idempotent."""
        self._isClosed = True
        self.regions.clear()
        preparing, self._preparing = self._preparing, {}
        for waiting in preparing.values():
            for known in waiting:
                known()
