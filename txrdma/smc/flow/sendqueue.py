"""
The send queue of a link, which the flows of all its connections share.

Theory of operation. A flow with something to send enters C{dirty}, and a flush of the link lets all dirty
flows create their work requests. Requests are reused: those of C{write} are valid until C{clear}, after the
post.

SENDs are numbered. A queue pair completes its requests in order, so the completion of one SEND acknowledges
all requests before it, and only every L{SIGNAL_EVERY}th needs to be signaled. Its number frees the staging
memory of all bytes up to it (C{mark}), and ends the retention of the messages up to it.

Staging: software devices accept any number of inline bytes, so requests refer to the application's bytes
directly. Adapters need registered memory, so the bytes are copied to a ring first, and stay there until they
are acknowledged. Every SEND is signaled then, since a flow may wait for that memory.

Retention: while the group has another link, messages are retained until they are acknowledged, because that
link has to send them again if this one fails. C{direct} is not used meanwhile, because bytes written through
it are not retained.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TYPE_CHECKING

from txrdma.iba.types import RKey
from txrdma.iba.verbs import Access, Buffer, Capacity, Operation, Segment, SendRequest

if TYPE_CHECKING:
    from txrdma.interfaces import IDirectLane, IMemoryRegion, IProtectionDomain

SIGNAL_EVERY: Final = 8
"""Every eighth SEND requests a completion, which acknowledges all earlier ones, too."""

STAGE: Final = 1 << 20
"""Bytes of the staging ring, for devices that accept few inline bytes."""

_UNLIMITED: Final = 1 << 30

Unacknowledged = tuple[int, Any, int, int, list[bytes | memoryview]]
"""A posted message: number on the link, flow, CDC sequence number, produced total, and its new bytes."""


class LinkSendQueue:
    """
    The send queue that all connections of one link share.

    @ivar dirty: flows with something to send.
    @ivar flushed: flows whose owners are notified after the flush.
    @ivar schedule: called when a flow becomes dirty while the link is not C{isBusy}.
    @ivar isBusy: the link is processing, and flushes dirty flows at the end.
    @ivar isOver: the link has ended: nothing is posted any more.
    @ivar isShort: a flow has more to send than fits into the staging ring.
    @ivar lane: accepts bytes and messages without requests, if the queue pair has a direct lane; C{direct}:
        the same, but None after the link has ended, and while posted bytes are retained.
    @ivar sent: number of SENDs so far, which identifies the last one.
    @ivar limit: number of the last SEND that the peer has a receive for.
    @ivar isStaged: bytes are copied to the staging ring.
    @ivar isSignaling: every message requests a completion.
    @ivar isUsed: requests have been created since the last C{clear}.
    @ivar unacknowledged: messages posted and not acknowledged, which another link may have to resend; None if
        they are not retained.
    """

    def __init__(self, domain: IProtectionDomain, capacity: Capacity, schedule: Callable[[], None]) -> None:
        self.dirty: list[Any] = []  # of Flow, which imports this module
        self.flushed: list[Any] = []
        self.schedule = schedule
        self.isBusy = self.isOver = self.isShort = False
        self.lane: IDirectLane | None = None
        self.direct: IDirectLane | None = None
        self.sent = self.limit = 0
        self.isStaged = self.isSignaling = capacity.maxInline < _UNLIMITED
        self.isUsed = False
        self.unacknowledged: deque[Unacknowledged] | None = None
        self._writes: list[SendRequest] = []
        self._used = 0
        self._maxInline = capacity.maxInline
        self._staged = self._freed = 0  # bytes in total
        self._marks: deque[tuple[int, int]] = deque()
        self._stage = domain.allocateMemory(STAGE, Access.NONE) if self.isStaged else None

    def openLane(self, lane: IDirectLane) -> None:
        self.lane = lane
        if self.unacknowledged is None and not self.isOver:
            self.direct = lane

    def end(self) -> None:
        """Stop posting: the link has ended."""
        self.isOver = True
        self.direct = None

    def write(self, address: int, rkey: RKey, chunks: Sequence[Buffer], length: int) -> SendRequest:
        """Create an RDMA WRITE of these bytes, valid until C{clear}."""
        at = self._used
        if at == len(self._writes):
            self._writes.append(SendRequest(0, Operation.RDMA_WRITE, signaled=False))
        self._used = at + 1
        self.isUsed = True
        request = self._writes[at]
        request.remoteAddress = address
        request.rkey = rkey
        if self._stage is not None and length > self._maxInline:
            request.inline = ()
            request.segments = self._copy(self._stage, chunks, length)
        else:
            request.inline = chunks
            request.segments = ()
        return request

    def clear(self) -> None:
        """Recycle the requests created by C{write}, after they were posted."""
        for request in self._writes[: self._used]:
            request.inline = ()
        self._used = 0
        self.isUsed = False

    def newMessage(self) -> SendRequest:
        return SendRequest(0, Operation.SEND, solicited=True)

    def number(self, request: SendRequest) -> None:
        """Assign the next number to a SEND, and request a completion if one is due."""
        self.sent = sent = self.sent + 1
        request.identifier = sent
        request.signaled = self.isSignaling or not sent % SIGNAL_EVERY
        if self.isStaged:
            self.mark()

    # Retention

    def retain(self) -> None:
        """Retain posted messages until they are acknowledged."""
        self.unacknowledged = deque()
        self.direct = None
        self.isSignaling = True

    def stopRetaining(self) -> None:
        """Stop retaining messages: no other link could resend them."""
        self.unacknowledged = None
        self.direct = None if self.isOver else self.lane
        self.isSignaling = self.isStaged

    def takeUnacknowledged(self) -> dict[Any, list[Unacknowledged]]:
        """Remove and return the unacknowledged messages, by flow; stop retaining them."""
        found: dict[Any, list[Unacknowledged]] = {}
        for each in self.unacknowledged or ():
            found.setdefault(each[1], []).append(each)
        self.unacknowledged = None
        return found

    # Staging

    def mark(self) -> None:
        """Record that the completion of the latest SEND frees all bytes staged so far."""
        self._marks.append((self.sent, self._staged))

    def most(self, backlog: int) -> int:
        """Return the number of bytes of a backlog that fit into the staging ring now."""
        return min(backlog, STAGE - self._staged + self._freed)

    def completed(self, identifier: int) -> None:
        """Process the acknowledgement of the SEND with this number, and of all before it."""
        marks = self._marks
        while marks and marks[0][0] <= identifier:
            self._freed = marks.popleft()[1]
        retained = self.unacknowledged
        while retained and retained[0][0] <= identifier:
            _, flow, sequence, produced, _ = retained.popleft()
            flow.arrived(sequence, produced)

    def _copy(self, region: IMemoryRegion, chunks: Sequence[Buffer], length: int) -> list[Segment]:
        """Copy bytes into the staging ring, as one segment or two."""
        begin = self._staged % STAGE
        at = begin
        for chunk in chunks:
            rest = memoryview(chunk).cast("B")
            while rest:
                fits = min(len(rest), STAGE - at)
                region.view[at : at + fits] = rest[:fits]
                rest = rest[fits:]
                at = (at + fits) % STAGE
        self._staged += length
        first = min(length, STAGE - begin)
        segments = [Segment(region.address + begin, first, region.lkey)]
        if first < length:
            segments.append(Segment(region.address, length - first, region.lkey))
        return segments

    def close(self) -> None:
        if self._stage is not None:
            self._stage.close()


class RemoteBuffer(NamedTuple):
    """The ring of a peer: the send queue of a link, and address and key of the ring on that link."""

    queue: LinkSendQueue
    address: int
    rkey: RKey


def cut(chunks: list[bytes | memoryview], length: int) -> list[bytes | memoryview]:
    """Remove and return the first C{length} bytes, at least one."""
    count = 0
    while len(chunks[count]) < length:
        length -= len(chunks[count])
        count += 1
    last = memoryview(chunks[count])
    head = [*chunks[:count], last[:length]]
    chunks[: count + 1] = [last[length:]] if length < len(last) else []
    return head
