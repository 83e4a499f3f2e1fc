"""
Stripes: the messages of one connection over several modules, each whole and once, whichever module fails.

Each message has a number, in the order in which they go. Those that are longer than L{EAGER} are cut into
pieces, which go by the modules as these have room, so that a faster one carries more. To a module a piece is
a message like any other; its L{PieceHead} says where it belongs. A module that has brought nothing for a
while, though pieces are on their way by it, is suspect: these go again by the others. Pieces that come twice
are dropped by number and offset, so nothing is delivered twice. A message by a tag that wants order waits
until all numbers before are complete.

An end is a message, too, the last one: when it is complete all others are. Nothing here reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final, Union

from typing_extensions import NamedTuple

from txrdma.btl._assembly import Budget, LONGEST
from txrdma.btl._matching import USUAL_SPEED
from txrdma.btl._ordering import Order
from txrdma.btl._peer import CLOSING, ENDED, LEFT, OPEN
from txrdma.btl.wire import LONGEST_MESSAGE
from txrdma.error import InvalidRequest, PeerViolation
from txrdma.kit.wire import bits, Buffer, Code, Layout, reserved, wire

EAGER: Final = 25 << 10
"""Bytes of the longest message that goes whole by one module; the component's eager limit with several."""

ROOM: Final = 1 << 22
"""Bytes that may be on their way by one module, and one piece more."""

MOST_MESSAGES: Final = 4096
"""Messages from the oldest on that has not arrived that may have begun."""

MOST_BYTES: Final = 2 * LONGEST
"""Bytes of these messages, unless there is only one."""

MOST_OF_MODULE: Final = 4 * MOST_BYTES
"""
Bytes of incomplete messages, and of those that wait for their predecessors, of all peers of a module.

A piece cannot wait for room, since the module has acknowledged it: the connection that needs more is closed.
"""

SILENCE_SECONDS: Final = 1.0
"""Seconds without an arrival by a module after which what is on its way there goes by others, too."""


class Kind(Code):
    """The kind of a message in pieces."""

    MESSAGE = 1
    """Bytes for the handler of a tag."""

    PUT = 2
    """Bytes for memory that the receiver has registered; answered by L{PROGRESS}."""

    PROGRESS = 3
    """The outcome of a L{PUT}, whose number is in C{at}: C{region} is 0 when all is in its place."""

    END = 4
    """The last message: its sender takes no others any more."""


_OF_PROGRAMS: Final = (Kind.MESSAGE, Kind.PUT)


@wire(32)
class PieceHead(Layout):
    """
    The head of each piece.

    @ivar tag: of a L{Kind.MESSAGE}.
    @ivar region: of a L{Kind.PUT}, and C{at} the place of the message's first byte in it.
    @ivar number: of the message.
    @ivar total: bytes of the message, and C{offset} the place of the piece's first byte in it.
    """

    kind: Kind = bits(8)
    reserved: int = reserved(8)
    tag: int = bits(16)
    region: int = bits(32)
    number: int = bits(64)
    total: int = bits(32)
    offset: int = bits(32)
    at: int = bits(64)


HEAD_LENGTH: Final = 32
"""Bytes of the head of a piece."""


class Came(NamedTuple):
    """A message has come; its bytes are valid until the packet's buffer is used again."""

    tag: int
    data: memoryview


class Arrived(NamedTuple):
    """All of a message has arrived, or of a put."""

    context: object


class Failed(NamedTuple):
    """A message will not be sent again, for this reason."""

    context: object
    reason: str


class Ended(NamedTuple):
    """Either end has closed, and all that was sent before has arrived."""


Event = Union[Came, Arrived, Failed, Ended]


class Outgoing:
    """
    A message that is sent.

    @ivar number: given with the first piece; C{begun}: bytes that were made pieces.
    @ivar waiting: pieces that have not arrived.
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
    """A piece of a message, until it has arrived by any module."""

    __slots__ = ("isArrived", "length", "message", "offset")

    def __init__(self, message: Outgoing, offset: int, length: int) -> None:
        self.message, self.offset, self.length = message, offset, length
        self.isArrived = False

    def encode(self) -> bytes:
        """Bytes of the piece behind its head."""
        message, offset = self.message, self.offset
        head = PieceHead(
            kind=Kind(message.kind),
            tag=message.tag,
            region=message.region,
            number=message.number,
            total=message.total,
            offset=offset,
            at=message.at,
        )
        return b"".join((head.encode(), memoryview(message.data)[offset : offset + self.length]))


class Lane:
    """
    A module of the connection, by the pieces that go there.

    @ivar speed: bits per second.
    @ivar inFlight: pieces in flight, the oldest first, of C{bytes} bytes.
    @ivar since: seconds; when the latest piece arrived, or the first was sent after a rest.
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
        self.data = bytearray(head.total if head.kind == Kind.MESSAGE else 0)


class Stripes:
    """
    The peer of a connection that goes by several modules.

    @ivar state: as a peer of one module has it: OPEN, CLOSING, LEFT or ENDED.
    @ivar queuedBytes: of messages that have not arrived; for back pressure.
    @ivar order: what comes in order.
    @ivar again: pieces that went by another module, too, since they came to be suspect or lost.
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
        *("again", "order", "queuedBytes", "state"),
    )

    def __init__(
        self, speeds: Sequence[int], write: Callable[[int, int, Buffer], bool], budget: Budget
    ) -> None:
        """
        @param speeds: bits per second of each module.
        @param write: executes a put with region, offset and bytes; returns whether there is such memory.
        @param budget: the memory for received messages that all peers of a module share.
        """
        self._budget = budget
        self._buffered = 0  # bytes of the budget that this peer uses
        self._lanes = [Lane(speed) for speed in speeds]
        self._write = write
        self.state = OPEN
        self.queuedBytes = self.again = 0
        self.order = Order()
        self._urgent: deque[Outgoing] = deque()
        self._usual: deque[Outgoing] = deque()
        self._again: deque[Piece] = deque()
        self._next = 0
        self._unfinished: dict[int, Outgoing] = {}  # by number, the oldest first
        self._span: deque[tuple[int, int]] = deque()  # number and bytes, from the oldest unfinished on
        self._spanBytes = 0
        self._following = 0  # the first number that has not come whole
        self._incoming: dict[int, _Incoming] = {}
        self._done: dict[int, int] = {}  # bytes of those behind it that have
        self._bytesInFlight = 0  # bytes of both
        self._held: list[tuple[int, int, Buffer]] = []  # a heap: number, tag, bytes
        self._events: list[Event] = []

    # What the program wants

    def send(self, tag: int, data: Buffer, context: object = None, isUrgent: bool = False) -> None:
        """
        Send a message: see L{Module.send<txrdma.btl._module.Module.send>}.

        @raise InvalidRequest: the peer is not open.
        """
        self._queue(Outgoing(Kind.MESSAGE, tag, data, context), isUrgent)

    def put(self, region: int, offset: int, data: Buffer, context: object) -> None:
        """
        Write into memory of the peer: see L{Module.put<txrdma.btl._module.Module.put>}.

        @raise InvalidRequest: the peer is not open, or a number is too large.
        """
        if not (0 <= region <= 0xFFFFFFFF and 0 <= offset <= (1 << 64) - 1 - len(data)):
            raise InvalidRequest("a region has 32 bits, an offset 64")
        if len(data) > LONGEST_MESSAGE:
            raise InvalidRequest("a put has at most 4 GiB")
        self._queue(Outgoing(Kind.PUT, 0, data, context, region, offset))

    def _queue(self, message: Outgoing, isUrgent: bool = False) -> None:
        if self.state != OPEN:
            raise InvalidRequest("the peer is closed")
        if message.total <= EAGER:
            message.data = bytes(message.data)
        (self._urgent if isUrgent else self._usual).append(message)
        self.queuedBytes += message.total

    def close(self) -> None:
        """Send nothing new: L{Ended} comes when the peer has taken all. Twice is fine."""
        if self.state == OPEN:
            self._queue(Outgoing(Kind.END, 0, b"", None))
            self.state = CLOSING

    def fail(self, reason: str) -> None:
        """Give up: all messages that have not arrived fail."""
        self.state = ENDED
        waiting = [each for each in (*self._urgent, *self._usual) if each.number < 0]
        for message in (*self._unfinished.values(), *waiting):
            self._fail(message, reason)
        self._unfinished.clear()
        self._urgent.clear()
        self._usual.clear()
        self._again.clear()

    def _fail(self, message: Outgoing, reason: str) -> None:
        self.queuedBytes -= message.total
        if message.context is not None:
            self._events.append(Failed(message.context, reason))

    # What becomes of pieces

    def arrived(self, lane: int, piece: Piece, now: float) -> None:
        """Note that a piece has arrived by a module, which is suspect no more."""
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
        if message.isCut and not message.waiting and message.kind != Kind.PUT:
            self._finish(message)

    def _finish(self, message: Outgoing) -> None:
        """All of a message is there."""
        del self._unfinished[message.number]
        self.queuedBytes -= message.total
        while self._span and self._span[0][0] not in self._unfinished:
            self._spanBytes -= self._span.popleft()[1]
        if message.context is not None:
            self._events.append(Arrived(message.context))

    def isIdle(self) -> bool:
        """True if everything that was queued has arrived."""
        return not (self._unfinished or self._urgent or self._usual)

    def lost(self, lane: int) -> bool:
        """
        Record that a module has lost the peer: what was in flight there is sent by others.

        @return: whether there is another one.
        """
        there = self._lanes[lane]
        if not there.isLost:
            there.isLost = True
            self._sendAgain(there)
            there.inFlight.clear()
            there.bytes = 0
        return not all(each.isLost for each in self._lanes)

    def isLost(self, lane: int) -> bool:
        """True if a module has lost the peer."""
        return self._lanes[lane].isLost

    def _sendAgain(self, there: Lane) -> None:
        self._again.extend(piece for piece in there.inFlight if not piece.isArrived)

    def told(self, following: int) -> None:
        """Note that the peer has ended, and has taken all messages before this number, but no other one."""
        for number, message in list(self._unfinished.items()):
            if number < following and message.kind != Kind.PUT:  # of a put its outcome would have come
                self._finish(message)
        if self.state != ENDED:
            left = (*self._unfinished.values(), *self._urgent, *self._usual)
            hasAll = self.state >= CLOSING and not any(each.kind in _OF_PROGRAMS for each in left)
            self.fail("the peer has closed")
            if hasAll:
                self._events.append(Ended())

    @property
    def following(self) -> int:
        """The first number of the peer's that has not come whole."""
        return self._following

    # What goes

    def outgoing(self, now: float) -> list[tuple[int, Piece]]:
        """Return the pieces that can be sent, each with the index of its module."""
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
        """The module that would be the first to send a piece; None while none can."""
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
        ):  # an urgent one that waits keeps no other one from its end
            if queue and (queue[0].number >= 0 or self._begin(queue[0])):
                return self._cut(queue)
        return None

    def _cut(self, queue: deque[Outgoing]) -> Piece:
        message = queue[0]
        offset = message.begun
        length = min(EAGER, message.total - offset)
        message.begun += length
        message.waiting += 1
        if message.begun == message.total:
            message.isCut = True
            queue.popleft()
        return Piece(message, offset, length)

    def _begin(self, message: Outgoing) -> bool:
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

    # What comes

    def received(self, packet: Buffer) -> None:
        """
        Take a piece of the peer's.

        @raise PeerViolation: the peer breaks the rules.
        @raise txrdma.error.WireError: it is too short.
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
        ):  # else there could be many
            raise PeerViolation(f"{len(data)} bytes at {head.offset} of {head.total}")
        found.offsets.add(head.offset)
        found.missing -= len(data)
        if head.kind == Kind.PUT:
            if not self._write(head.region, head.at + head.offset, data):
                found.isRefused = True
        elif head.kind == Kind.MESSAGE:
            if len(data) == head.total:
                self._complete(found, data)
                return
            found.data[head.offset : head.offset + len(data)] = data
        if not found.missing:
            self._complete(found, found.data)

    def _expect(self, head: PieceHead) -> _Incoming:
        """Allocate a message whose first piece has arrived."""
        if head.number - self._following >= MOST_MESSAGES or (
            head.kind == Kind.MESSAGE and head.total > LONGEST
        ):
            raise PeerViolation(
                f"message {head.number} of {head.total} bytes, and {self._following} is missing"
            )
        if not 1 <= head.kind <= 4 or (head.kind in (Kind.PROGRESS, Kind.END) and head.total):
            raise PeerViolation(f"a message of kind {int(head.kind)} with {head.total} bytes")
        if self._bytesInFlight and self._bytesInFlight + head.total > MOST_BYTES:
            raise PeerViolation(f"{head.total} bytes beyond the window")
        if head.kind == Kind.MESSAGE:
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
        if kind == Kind.PUT:
            self._urgent.append(Outgoing(Kind.PROGRESS, 0, b"", None, int(found.isRefused), number))
        elif kind == Kind.PROGRESS:
            self._told(head.at, head.region)
        elif kind == Kind.MESSAGE and not self.order.wants(head.tag):
            self._release(head.total)
            self._events.append(Came(head.tag, memoryview(data)))
        else:
            heappush(self._held, (number, -1 if kind == Kind.END else head.tag, bytes(data)))
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

    def _told(self, number: int, status: int) -> None:
        message = self._unfinished.get(number)
        if message is None or message.kind != Kind.PUT or not message.isCut:
            raise PeerViolation(f"there is no put {number}")
        if status:
            context, message.context = message.context, None
            if context is not None:
                self._events.append(Failed(context, "the peer has refused it"))
        self._finish(message)

    def _left(self) -> None:
        """The peer has closed: it accepts what is in flight, and no more."""
        if self.state >= LEFT:
            return
        self.state = LEFT
        for queue in (self._urgent, self._usual):
            for message in [
                each for each in queue if not each.begun and each.kind in (Kind.MESSAGE, Kind.PUT)
            ]:
                queue.remove(message)
                self._fail(message, "the peer has closed")

    def settle(self) -> None:
        """
        End, where either end has closed and all has arrived. To be called when all that came was taken.

        What came in the same turn as the last acknowledgement was acknowledged itself, so it counts.
        """
        if self.state in (CLOSING, LEFT) and self.isIdle():
            self.state = ENDED
            self._events.append(Ended())

    def events(self) -> list[Event]:
        """Take what has happened, in order."""
        events, self._events = self._events, []
        return events

    # Times

    def deadline(self) -> float | None:
        """Time at which a module is suspect if nothing arrives; None while nothing is in flight."""
        times = [
            each.since + SILENCE_SECONDS
            for each in self._lanes
            if each.inFlight and not (each.isSuspect or each.isLost)
        ]
        return min(times, default=None)

    def expired(self, now: float) -> list[int]:
        """
        Suspect modules by which nothing has arrived for too long: all that is in flight there is sent again.

        @return: places of modules that are suspect from now on.
        """
        found = []
        for number, lane in enumerate(self._lanes):
            if lane.inFlight and not (lane.isSuspect or lane.isLost) and lane.since + SILENCE_SECONDS <= now:
                lane.isSuspect = True
                self._sendAgain(lane)
                found.append(number)
        return found
