"""
Striping: the messages of one connection over several modules, each delivered once although modules may fail.

Theory of operation. Messages are numbered in order. Messages longer than L{EAGER} are cut into pieces, which
the modules send as they have space, so that a faster module carries more. To a module a piece is an ordinary
message; its L{PieceHead} gives its position. A module that has acknowledged nothing for L{SILENCE_SECONDS}
although it has pieces in flight is suspect: the other modules send these pieces again. The receiver drops
duplicates by number and offset. A message with an ordered tag waits until all earlier numbers are complete.

A sender starts a message only within L{MOST_MESSAGES} and L{MOST_BYTES} of the oldest unfinished one. This
bounds the receiver's memory: a peer that exceeds it is in violation. A put is complete when its result has
come back, as a message of its own. The end of the connection is the last message: when it is complete, all
others are. Nothing here reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final, Union

from typing_extensions import NamedTuple

from txrdma.btl.core.assembly import Budget, LONGEST
from txrdma.btl.core.matching import USUAL_SPEED
from txrdma.btl.core.ordering import Order
from txrdma.btl.core.peer import CLOSING, ENDED, LEFT, OPEN
from txrdma.btl.core.window import UNHEARD
from txrdma.btl.wire import LONGEST_MESSAGE
from txrdma.error import InvalidRequest, PeerViolation
from txrdma.kit.wire import bits, Buffer, Code, Layout, reserved, wire

EAGER: Final = 25 << 10
"""Bytes of the longest message that is not cut into pieces; usnic's eager limit with several modules."""

ROOM: Final = 1 << 22
"""Bytes that may be in flight in one module before another piece is sent."""

MOST_MESSAGES: Final = 4096
"""Largest number of messages from the oldest unacknowledged one to the newest one that is being sent."""

MOST_BYTES: Final = 2 * LONGEST
"""Largest number of bytes of these messages, unless there is only one."""

MOST_OF_MODULE: Final = 4 * MOST_BYTES
"""
Largest number of bytes of incomplete messages and of messages that wait for earlier ones, of all peers of a
module.

A piece cannot wait for room, since the module has acknowledged it: the connection that needs more is closed.
"""

SILENCE_SECONDS: Final = 1.0
"""Seconds without an acknowledgement in a module after which other modules send its pieces in flight, too."""


class StripeKind(Code):
    """The kind of a message in pieces."""

    MESSAGE = 1
    """Bytes for the handler of a tag."""

    PUT = 2
    """Bytes for memory that the receiver has registered. The answer is L{PROGRESS}."""

    PROGRESS = 3
    """The result of the L{PUT} whose number is in C{at}: C{region} is 0 if all bytes were written."""

    END = 4
    """The last message: its sender accepts no more messages."""


_OF_PROGRAMS: Final = (StripeKind.MESSAGE, StripeKind.PUT)


@wire(32)
class PieceHead(Layout):
    """
    The head of each piece.

    @ivar tag: tag of a L{StripeKind.MESSAGE}.
    @ivar region: region of a L{StripeKind.PUT}; C{at}: offset of the message's first byte in the region.
    @ivar number: number of the message.
    @ivar total: length of the message in bytes; C{offset}: position of the piece's first byte in it.
    """

    kind: StripeKind = bits(8)
    reserved: int = reserved(8)
    tag: int = bits(16)
    region: int = bits(32)
    number: int = bits(64)
    total: int = bits(32)
    offset: int = bits(32)
    at: int = bits(64)


HEAD_LENGTH: Final = 32
"""Length of the head of a piece in bytes."""


class Came(NamedTuple):
    """A message was received. Its bytes are valid until the packet's buffer is reused."""

    tag: int
    data: memoryview


class Arrived(NamedTuple):
    """A message or put was acknowledged completely."""

    context: object


class StripesFailed(NamedTuple):
    """A message has failed for this reason, and is not retransmitted."""

    context: object
    reason: str


class StripesEnded(NamedTuple):
    """The connection was closed by either end, and everything sent before has arrived."""


Event = Union[Came, Arrived, StripesFailed, StripesEnded]


class OutgoingMessage:
    """
    A message that is being sent.

    @ivar number: assigned with the first piece; C{begun}: bytes that were cut into pieces.
    @ivar waiting: number of unacknowledged pieces.
    """

    __slots__ = (
        "at",
        "begun",
        "context",
        "data",
        "isCut",
        "kind",
        "number",
        "region",
        "tag",
        "total",
        "waiting",
    )

    def __init__(
        self, kind: int, tag: int, data: Buffer, context: object, region: int = 0, at: int = 0
    ) -> None:
        self.kind, self.tag, self.data, self.context, self.region, self.at = (
            kind,
            tag,
            data,
            context,
            region,
            at,
        )
        self.total = len(data)
        self.begun = self.waiting = 0
        self.number = -1
        self.isCut = False


class Piece:
    """A piece of a message, until any module has acknowledged it."""

    __slots__ = ("isArrived", "length", "message", "offset")

    def __init__(self, message: OutgoingMessage, offset: int, length: int) -> None:
        self.message, self.offset, self.length = message, offset, length
        self.isArrived = False

    def encode(self) -> bytes:
        """Return the head and the bytes of the piece."""
        message, offset = self.message, self.offset
        head = PieceHead(
            kind=StripeKind(message.kind),
            tag=message.tag,
            region=message.region,
            number=message.number,
            total=message.total,
            offset=offset,
            at=message.at,
        )
        return b"".join((head.encode(), memoryview(message.data)[offset : offset + self.length]))


class StripeLane:
    """
    A module of the connection, with its pieces in flight.

    @ivar speed: bits per second.
    @ivar inFlight: pieces in flight, the oldest first; C{bytes}: their length.
    @ivar since: time when the latest piece was acknowledged, or the first one was sent after an idle time.
    """

    __slots__ = ("bytes", "isLost", "isSuspect", "inFlight", "since", "speed")

    def __init__(self, speed: int) -> None:
        self.speed = speed or USUAL_SPEED
        self.inFlight: dict[Piece, None] = {}
        self.bytes = 0
        self.since = 0.0
        self.isLost = self.isSuspect = False


class _Incoming:
    __slots__ = ("data", "head", "isRefused", "missing", "offsets")

    def __init__(self, head: PieceHead) -> None:
        self.head, self.missing, self.isRefused = head, head.total, False
        self.offsets: set[int] = set()
        self.data = bytearray(head.total if head.kind == StripeKind.MESSAGE else 0)


class Stripes:
    """
    The peer of a connection over several modules.

    @ivar state: OPEN, CLOSING, LEFT or ENDED, as for a peer of one module.
    @ivar queuedBytes: bytes of messages that have not arrived, for back pressure; C{isWatched}: whether each
        message that arrives is reported, so that the user can look at them.
    @ivar order: the ordered tags of the peer.
    @ivar again: number of pieces that were sent again by another module, because theirs was suspect or lost.
    """

    __slots__ = (
        *("_again", "_budget", "_buffered", "_done", "_events", "_following", "_held"),
        *(
            "_incoming",
            "_lanes",
            "_next",
            "_span",
            "_spanBytes",
            "_bytesInFlight",
            "_unfinished",
            "_urgent",
            "_usual",
            "_write",
        ),
        *("again", "order", "isWatched", "queuedBytes", "state"),
    )

    def __init__(
        self, speeds: Sequence[int], write: Callable[[int, int, Buffer], bool], budget: Budget
    ) -> None:
        """
        @param speeds: speeds of the modules in bits per second.
        @param write: executes a put with region, offset and bytes; returns False if there is no such memory.
        @param budget: the memory for received messages that all peers of a module share.
        """
        self._budget = budget
        self._buffered = 0  # bytes of the budget that this peer uses
        self._lanes = [StripeLane(speed) for speed in speeds]
        self._write = write
        self.state = OPEN
        self.queuedBytes = self.again = 0
        self.isWatched = False
        self.order = Order()
        self._urgent: deque[OutgoingMessage] = deque()
        self._usual: deque[OutgoingMessage] = deque()
        self._again: deque[Piece] = deque()
        self._next = 0
        self._unfinished: dict[int, OutgoingMessage] = {}  # by number, the oldest first
        self._span: deque[tuple[int, int]] = deque()  # number and bytes, from the oldest unfinished on
        self._spanBytes = 0
        self._following = 0  # number of the first incomplete message
        self._incoming: dict[int, _Incoming] = {}
        self._done: dict[int, int] = {}  # bytes of later, complete messages, by number
        self._bytesInFlight = 0  # bytes of both
        self._held: list[tuple[int, int, Buffer]] = []  # a heap: number, tag, bytes
        self._events: list[Event] = []

    # Requests of the user

    def send(self, tag: int, data: Buffer, context: object = None, isUrgent: bool = False) -> None:
        """
        Send a message: see L{Module.send<txrdma.btl.core.module.Module.send>}.

        @raise InvalidRequest: the peer is not open.
        """
        self._queue(OutgoingMessage(StripeKind.MESSAGE, tag, data, context), isUrgent)

    def put(self, region: int, offset: int, data: Buffer, context: object) -> None:
        """
        Write into memory of the peer: see L{Module.put<txrdma.btl.core.module.Module.put>}.

        @raise InvalidRequest: the peer is not open, or a number is too large.
        """
        if not (0 <= region <= 0xFFFFFFFF and 0 <= offset <= (1 << 64) - 1 - len(data)):
            raise InvalidRequest("a region has 32 bits, an offset 64")
        if len(data) > LONGEST_MESSAGE:
            raise InvalidRequest("a put has at most 4 GiB")
        self._queue(OutgoingMessage(StripeKind.PUT, 0, data, context, region, offset))

    def _queue(self, message: OutgoingMessage, isUrgent: bool = False) -> None:
        if self.state != OPEN:
            raise InvalidRequest("the peer is closed")
        if message.total <= EAGER:
            message.data = bytes(message.data)
        (self._urgent if isUrgent else self._usual).append(message)
        self.queuedBytes += message.total

    def recall(self, context: object) -> bool:
        """Withdraw a queued message of which nothing was sent. Return whether it was found."""
        for queue in (self._urgent, self._usual):
            for message in queue:
                if message.context is context and message.number < 0:
                    queue.remove(message)
                    self.queuedBytes -= message.total
                    return True
        return False

    def close(self) -> None:
        """Accept no new messages. L{StripesEnded} follows when the peer has received all. Idempotent."""
        if self.state == OPEN:
            self._queue(OutgoingMessage(StripeKind.END, 0, b"", None))
            self.state = CLOSING

    def fail(self, reason: str) -> None:
        """Fail all messages that have not arrived."""
        self.state = ENDED
        waiting = [each for each in (*self._urgent, *self._usual) if each.number < 0]
        for message in (*self._unfinished.values(), *waiting):
            self._fail(message, reason)
        self._unfinished.clear()
        self._urgent.clear()
        self._usual.clear()
        self._again.clear()

    def _fail(self, message: OutgoingMessage, reason: str) -> None:
        self.queuedBytes -= message.total
        if message.context is not None:
            self._events.append(StripesFailed(message.context, reason))

    # Results of pieces

    def arrived(self, lane: int, piece: Piece, now: float) -> None:
        """Process the acknowledgement of a piece; its module is no longer suspect."""
        there = self._lanes[lane]
        if piece in there.inFlight:
            del there.inFlight[piece]
            there.bytes -= piece.length
        there.since, there.isSuspect = now, False
        message = piece.message
        if piece.isArrived or message.number not in self._unfinished:
            return
        piece.isArrived = True
        message.waiting -= 1
        if message.isCut and not message.waiting and message.kind != StripeKind.PUT:
            self._finish(message)

    def _finish(self, message: OutgoingMessage) -> None:
        """Report a message that was acknowledged completely."""
        del self._unfinished[message.number]
        self.queuedBytes -= message.total
        while self._span and self._span[0][0] not in self._unfinished:
            self._spanBytes -= self._span.popleft()[1]
        if message.context is not None:
            self._events.append(Arrived(message.context))
        elif self.isWatched:
            self._events.append(Arrived(UNHEARD))

    def isIdle(self) -> bool:
        """Return whether everything that was queued has arrived."""
        return not (self._unfinished or self._urgent or self._usual)

    def lost(self, lane: int) -> bool:
        """
        Record that a module has lost the peer. Other modules send its pieces again.

        @return: whether another module remains.
        """
        there = self._lanes[lane]
        if not there.isLost:
            there.isLost = True
            self._sendAgain(there)
            there.inFlight.clear()
            there.bytes = 0
        return not all(each.isLost for each in self._lanes)

    def isLost(self, lane: int) -> bool:
        """Return whether a module has lost the peer."""
        return self._lanes[lane].isLost

    def _sendAgain(self, there: StripeLane) -> None:
        self._again.extend(piece for piece in there.inFlight if not piece.isArrived)

    def peerEnded(self, following: int) -> None:
        """Note that the peer has ended, and has received exactly the messages before this number."""
        for number, message in list(self._unfinished.items()):
            if (
                number < following and message.kind != StripeKind.PUT
            ):  # a put is complete only with its result
                self._finish(message)
        if self.state != ENDED:
            left = (*self._unfinished.values(), *self._urgent, *self._usual)
            hasAll = self.state >= CLOSING and not any(each.kind in _OF_PROGRAMS for each in left)
            self.fail("the peer has closed")
            if hasAll:
                self._events.append(StripesEnded())

    @property
    def following(self) -> int:
        """Number of the peer's first incomplete message."""
        return self._following

    # Sending

    def outgoing(self, now: float) -> list[tuple[int, Piece]]:
        """Return the pieces that can be sent now, each with the index of its module."""
        found = []
        while (lane := self._free()) is not None:
            piece = self._piece(lane)
            if piece is None:
                break
            there = self._lanes[lane]
            if not there.inFlight:
                there.since = now
            there.inFlight[piece] = None
            there.bytes += piece.length
            found.append((lane, piece))
        return found

    def _free(self) -> int | None:
        """Return the module that would send a piece first; None if none can send now."""
        alive = [each for each in enumerate(self._lanes) if not each[1].isLost]
        usable = [each for each in alive if not each[1].isSuspect] or alive
        free = [each for each in usable if each[1].bytes < ROOM]
        return min(free, key=lambda each: (each[1].bytes + EAGER) / each[1].speed)[0] if free else None

    def _piece(self, lane: int) -> Piece | None:
        again, there = self._again, self._lanes[lane]
        while again:
            piece = again.popleft()
            if not piece.isArrived and piece not in there.inFlight:
                self.again += 1
                return piece
        for queue in (
            self._urgent,
            self._usual,
        ):  # an urgent message does not delay the end of another one
            if queue and (queue[0].number >= 0 or self._begin(queue[0])):
                return self._cut(queue)
        return None

    def _cut(self, queue: deque[OutgoingMessage]) -> Piece:
        message = queue[0]
        offset = message.begun
        length = min(EAGER, message.total - offset)
        message.begun += length
        message.waiting += 1
        if message.begun == message.total:
            message.isCut = True
            queue.popleft()
        return Piece(message, offset, length)

    def _begin(self, message: OutgoingMessage) -> bool:
        """Number a message, unless too much is in flight."""
        if self._span and (
            self._next - self._span[0][0] >= MOST_MESSAGES or self._spanBytes + message.total > MOST_BYTES
        ):
            return False
        message.number, self._next = self._next, self._next + 1
        self._unfinished[message.number] = message
        self._span.append((message.number, message.total))
        self._spanBytes += message.total
        return True

    # Receiving

    def received(self, packet: Buffer) -> None:
        """
        Process a received piece.

        @raise PeerViolation: the peer breaks the rules.
        @raise txrdma.error.WireError: the piece is too short.
        """
        head = PieceHead.decode(packet)
        data = memoryview(packet)[HEAD_LENGTH:]
        number = head.number
        if number < self._following or number in self._done:
            return
        if self.state == ENDED:
            return
        found = self._incoming.get(number)
        if found is None:
            found = self._expect(head)
        elif (found.head.kind, found.head.total, found.head.tag) != (head.kind, head.total, head.tag):
            raise PeerViolation(f"message {number} is two")
        if head.offset in found.offsets:
            return
        if head.offset % EAGER or len(data) != min(
            EAGER, head.total - head.offset
        ):  # otherwise their number would be unlimited
            raise PeerViolation(f"{len(data)} bytes at {head.offset} of {head.total}")
        found.offsets.add(head.offset)
        found.missing -= len(data)
        if head.kind == StripeKind.PUT:
            if not self._write(head.region, head.at + head.offset, data):
                found.isRefused = True
        elif head.kind == StripeKind.MESSAGE:
            if len(data) == head.total:
                self._complete(found, data)
                return
            found.data[head.offset : head.offset + len(data)] = data
        if not found.missing:
            self._complete(found, found.data)

    def _expect(self, head: PieceHead) -> _Incoming:
        """Allocate a message whose first piece has arrived."""
        if head.number - self._following >= MOST_MESSAGES or (
            head.kind == StripeKind.MESSAGE and head.total > LONGEST
        ):
            raise PeerViolation(
                f"message {head.number} of {head.total} bytes, and {self._following} is missing"
            )
        if not 1 <= head.kind <= 4 or (head.kind in (StripeKind.PROGRESS, StripeKind.END) and head.total):
            raise PeerViolation(f"a message of kind {int(head.kind)} with {head.total} bytes")
        if self._bytesInFlight and self._bytesInFlight + head.total > MOST_BYTES:
            raise PeerViolation(f"{head.total} bytes beyond the window")
        if head.kind == StripeKind.MESSAGE:
            if self._budget.used + head.total > self._budget.most:
                raise PeerViolation(f"{head.total} bytes more than all peers of the module may have")
            self._budget.used += head.total
            self._buffered += head.total
        self._bytesInFlight += head.total
        found = self._incoming[head.number] = _Incoming(head)
        return found

    def _complete(self, found: _Incoming, data: Buffer) -> None:
        head = found.head
        number, kind = head.number, head.kind
        del self._incoming[number]
        self._done[number] = head.total
        if kind == StripeKind.PUT:
            self._urgent.append(
                OutgoingMessage(StripeKind.PROGRESS, 0, b"", None, int(found.isRefused), number)
            )
        elif kind == StripeKind.PROGRESS:
            self._putEnded(head.at, head.region)
        elif kind == StripeKind.MESSAGE and not self.order.wants(head.tag):
            self._release(head.total)
            self._events.append(Came(head.tag, memoryview(data)))
        else:
            heappush(self._held, (number, -1 if kind == StripeKind.END else head.tag, bytes(data)))
        while self._following in self._done:
            self._bytesInFlight -= self._done.pop(self._following)
            self._following += 1
        while self._held and self._held[0][0] < self._following:
            _number, tag, held = heappop(self._held)
            if tag < 0:
                self._left()
            else:
                self._release(len(held))
                self._events.append(Came(tag, memoryview(held)))

    def _release(self, count: int) -> None:
        """Return bytes to the budget."""
        self._budget.used -= count
        self._buffered -= count

    def discard(self) -> None:
        """Drop messages that are incomplete or wait for others; nothing may be received after this."""
        self._incoming.clear()
        self._held.clear()
        self._release(self._buffered)

    def _putEnded(self, number: int, status: int) -> None:
        message = self._unfinished.get(number)
        if message is None or message.kind != StripeKind.PUT or not message.isCut:
            raise PeerViolation(f"there is no put {number}")
        if status:
            context, message.context = message.context, None
            if context is not None:
                self._events.append(StripesFailed(context, "the peer has refused it"))
        self._finish(message)

    def _left(self) -> None:
        """Handle the close of the peer, which accepts only what is in flight."""
        if self.state >= LEFT:
            return
        self.state = LEFT
        for queue in (self._urgent, self._usual):
            for message in [
                each for each in queue if not each.begun and each.kind in (StripeKind.MESSAGE, StripeKind.PUT)
            ]:
                queue.remove(message)
                self._fail(message, "the peer has closed")

    def settle(self) -> None:
        """
        End if either end has closed and everything has arrived. Call it after all received pieces were
        processed.

        Pieces received in the same reactor iteration as the last acknowledgement were acknowledged, too, so
        they count.
        """
        if self.state in (CLOSING, LEFT) and self.isIdle():
            self.state = ENDED
            self._events.append(StripesEnded())

    def events(self) -> list[Event]:
        """Return and remove the pending events, in order."""
        events, self._events = self._events, []
        return events

    # Timers

    def deadline(self) -> float | None:
        """Time at which a module becomes suspect if nothing arrives; None while nothing is in flight."""
        times = [
            each.since + SILENCE_SECONDS
            for each in self._lanes
            if each.inFlight and not (each.isSuspect or each.isLost)
        ]
        return min(times, default=None)

    def expired(self, now: float) -> list[int]:
        """
        Mark modules suspect that have acknowledged nothing for too long, and send their pieces in flight
        again.

        @return: indices of the newly suspect modules.
        """
        found = []
        for number, lane in enumerate(self._lanes):
            if lane.inFlight and not (lane.isSuspect or lane.isLost) and lane.since + SILENCE_SECONDS <= now:
                lane.isSuspect = True
                self._sendAgain(lane)
                found.append(number)
        return found
