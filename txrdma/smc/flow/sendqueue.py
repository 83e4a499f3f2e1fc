"""
Send requests for the data path: made once, used again and again.

Where a queue pair takes everything inline (software devices), what the application wrote is named as it is.
Elsewhere it is copied into registered memory first, and stays there until the peer has it.
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
"""Every so many SENDs make a completion: it says that those before have arrived, too."""

STAGE: Final = 1 << 20
"""Bytes of registered memory for what waits to be read by a device that takes little inline."""

_UNLIMITED: Final = 1 << 30

Unacknowledged = tuple[int, Any, int, int, list[bytes | memoryview]]
"""
A message that is posted: its number, its flow, its sequence number there, how many bytes were produced with
it, and those of them that were new.
"""


class LinkSendQueue:
    """
    The queue of all that the connections of one link have to post, and the requests for it.

    @ivar dirty: flows with something to post.
    @ivar flushed: flows whose owners want to know when it is posted.
    @ivar schedule: to be called with something dirty while the link is not C{isBusy}.
    @ivar isBusy: a turn of the link goes on: flows will be flushed at its end.
    @ivar isOver: the link is gone: nothing can be posted any more.
    @ivar isShort: a flow has more to post than could be copied.
    @ivar lane: takes bytes and messages without requests, where the queue pair has such a lane; C{direct}:
        the same, as long as the link is not over and nothing is C{unacknowledged}.
    @ivar sent: SENDs that were made so far; a signaled one has this number.
    @ivar limit: the number of the last SEND for which the peer has room, as far as we know.
    @ivar isStaged: bytes are copied first.
    @ivar isSignaling: each message makes a completion.
    @ivar isUsed: there is something to C{clear}.
    @ivar kept: what is posted and not known to have arrived, by reference: another link may have to send it
        again; None where there is none that could.
    """

    def __init__(self, domain: IProtectionDomain, capacity: Capacity, schedule: Callable[[], None]) -> None:
        self.dirty: list[Any] = []  # Flow, which stands above
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
        self._staged = self._freed = 0  # bytes, all told
        self._marks: deque[tuple[int, int]] = deque()
        self._stage = domain.allocateMemory(STAGE, Access.NONE) if self.isStaged else None

    def openLane(self, lane: IDirectLane) -> None:
        """From now on this lane takes bytes and messages."""
        self.lane = lane
        if self.unacknowledged is None and not self.isOver:
            self.direct = lane

    def end(self) -> None:
        """Note that the link is gone: nothing can be posted any more."""
        self.isOver = True
        self.direct = None

    def write(self, address: int, rkey: RKey, chunks: Sequence[Buffer], length: int) -> SendRequest:
        """An RDMA WRITE of these bytes, good until C{clear}."""
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
        """Free the requests made by C{write} for use again: they are posted."""
        for request in self._writes[: self._used]:
            request.inline = ()
        self._used = 0
        self.isUsed = False

    def newMessage(self) -> SendRequest:
        """A SEND of a message, whose bytes are still to be named."""
        return SendRequest(0, Operation.SEND, solicited=True)

    def number(self, request: SendRequest) -> None:
        """Give a SEND the next number, and have its completion signaled when one is due."""
        self.sent = sent = self.sent + 1
        request.identifier = sent
        request.signaled = self.isSignaling or not sent % SIGNAL_EVERY
        if self.isStaged:
            self.mark()

    # Retention

    def retain(self) -> None:
        """Keep what is posted from now on until it has arrived."""
        self.unacknowledged = deque()
        self.direct = None
        self.isSignaling = True

    def stopRetaining(self) -> None:
        """Keep nothing any more: there is no other link that could send it again."""
        self.unacknowledged = None
        self.direct = None if self.isOver else self.lane
        self.isSignaling = self.isStaged

    def takeUnacknowledged(self) -> dict[Any, list[Unacknowledged]]:
        """Take what has not arrived, of each flow; nothing is kept from now on."""
        found: dict[Any, list[Unacknowledged]] = {}
        for each in self.unacknowledged or ():
            found.setdefault(each[1], []).append(each)
        self.unacknowledged = None
        return found

    # Staging

    def mark(self) -> None:
        """Note that all is free which is copied by now as soon as the latest SEND has arrived."""
        self._marks.append((self.sent, self._staged))

    def most(self, backlog: int) -> int:
        """The number of bytes of a backlog that may be written now."""
        return min(backlog, STAGE - self._staged + self._freed)

    def completed(self, identifier: int) -> None:
        """The SEND with this number has arrived, and all that was before it."""
        marks = self._marks
        while marks and marks[0][0] <= identifier:
            self._freed = marks.popleft()[1]
        kept = self.unacknowledged
        while kept and kept[0][0] <= identifier:
            _, flow, sequence, produced, _ = kept.popleft()
            flow.arrived(sequence, produced)

    def _copy(self, region: IMemoryRegion, chunks: Sequence[Buffer], length: int) -> list[Segment]:
        """Into the stage, which is a ring: in one piece or in two."""
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
        """Let go of the memory."""
        if self._stage is not None:
            self._stage.close()


class RemoteBuffer(NamedTuple):
    """
    The way of a flow's bytes: what posts them, on which link, and where they go at its other end.

    @ivar address: where the peer's ring begins.
    @ivar rkey: of the peer's buffer, on that link.
    """

    queue: LinkSendQueue
    address: int
    rkey: RKey


def cut(chunks: list[bytes | memoryview], length: int) -> list[bytes | memoryview]:
    """Take that many bytes, more than none, from the front."""
    count = 0
    while len(chunks[count]) < length:
        length -= len(chunks[count])
        count += 1
    last = memoryview(chunks[count])
    head = [*chunks[:count], last[:length]]
    chunks[: count + 1] = [last[length:]] if length < len(last) else []
    return head
