"""
Peers of a module: their windows, queued messages and states.

Theory of operation. A peer has two queues of messages, urgent and usual. L{Peer.nextQueue} chooses the queue,
and L{Peer.cut} makes the next segment of its first message: the whole message, several small ones in a
packet, or a chunk, whose bytes may be in the peer's receive buffer instead of the packet. A message leaves
its queue when it is completely cut, and is complete when no segment of it is unacknowledged.

If RDMA writes to the receive buffer, segments get their sequence numbers when their bytes are there, in the
order of their messages. Until then other usual messages wait. Segments whose bytes did not arrive return to
the queue.

States only advance: OPEN; CLOSING or PEER_CLOSED, depending on which end has closed; ENDED, which was
reported to the user; REMOVED. A C{BYE} is a segment like others: the peer has closed when all segments up to
its number have arrived. An ended peer lingers: its last segments are acknowledged again if an acknowledgement
was lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Sequence
from itertools import accumulate
from math import inf
from typing import Any, Final

from txrdma.btl.core.assembly import Assembly, Budget
from txrdma.btl.core.counters import ModuleCounters
from txrdma.btl.core.ordering import Ordering
from txrdma.btl.core.path import Message, Path, Sent
from txrdma.btl.core.receivebuffer import FULL, LONG, ReceiveBuffer, UNREACHED, WORTH_WAITING
from txrdma.btl.core.receiving import ReceiveWindow
from txrdma.btl.core.window import SendWindow
from txrdma.btl.wire import (
    ACK,
    ACK_LENGTH,
    BTLSegment,
    BYE,
    CHUNK,
    CHUNK_LENGTH,
    decodePlaced,
    encodeFragment,
    encodeHead,
    encodePlaced,
    ENTRY_LENGTH,
    FRAG,
    HEADER_LENGTH,
    PACK,
    PLACED,
    PLACED_PUT,
    PUT,
    PUT_LENGTH,
    ROOM_UNKNOWN,
)
from txrdma.kit.wire import Buffer

OPEN: Final = 0
"""State of a peer that sends and accepts messages."""

CLOSING: Final = 1
"""State of a peer that this end closes: the C{BYE} and the messages before it are in flight."""

PEER_CLOSED: Final = 2
"""State of a peer whose C{BYE} was received: it accepts no messages, but still acknowledges."""

ENDED: Final = 3
"""
State of a peer whose end was reported to the user; its last segments are acknowledged for L{LINGER} seconds.
"""

REMOVED: Final = 4
"""State of a peer that was removed from the module."""

LINGER: Final = 5.0
"""Seconds for which the last segments of a peer are acknowledged: five of the longest timeouts."""


class Peer:
    """
    A peer of a module.

    @ivar sender: number that the peer has chosen for this end; C{name}: number that this end has chosen for
        the peer.
    @ivar addresses: the peer's addresses for each channel of the module; None for a port that does not reach
        it.
    @ivar ports: the ports of the module that reach it, one for each path.
    @ivar answerOn: the command channel of the path on which the last packet has arrived.
    @ivar mtu: longest packet that both ends accept on all paths, in bytes.
    @ivar context: the module user's object for this peer, of any type.
    @ivar urgent: queue of urgent messages; C{usual}: queue of the others. The two objects are never replaced.
    @ivar queuedBytes: bytes of messages that have not arrived, for back pressure; C{isWatched}: whether each
        message that arrives is reported, so that the user can read these numbers.
    @ivar receivedBytes: bytes of received messages; C{sentBytes}: of sent ones that have arrived or failed.
    @ivar receiveBuffer: the peer's receive buffer, if there is one; C{localReceiveBuffer}: the one of this
        end, into which the peer writes.
    @ivar writing: segments whose bytes RDMA writes into the peer's receive buffer, in order; C{written}: how
        many of the first ones have their bytes there.
    @ivar mayRequest: whether a long message may request receive buffers; C{isRequesting}: whether a request
        is pending, for which long messages wait.
    """

    __slots__ = (
        *("_counters", "_fragment", "addresses", "answerOn", "assembly", "bye", "context", "isLosing"),
        *("isReady", "isRequesting", "isTouched", "isWatched", "lingerUntil", "localReceiveBuffer"),
        *("mayRequest", "mtu", "name", "order", "ports", "queuedBytes", "receiveBuffer", "received"),
        *("receivedAt", "receivedBytes", "sender", "sent", "sentBytes", "state", "urgent", "usual"),
        *("wakeAt", "writing", "written"),
    )

    def __init__(
        self,
        name: int,
        sender: int,
        addresses: Sequence[Hashable],
        mtu: int,
        firstSent: int,
        firstReceived: int,
        context: Any,
        counters: ModuleCounters,
        budget: Budget,
        giveUp: float,
        now: float,
    ) -> None:
        self.name, self.sender, self.addresses, self.context = name, sender, addresses, context
        self.mtu = mtu
        self.ports = tuple(  # a list takes 40 bytes more
            [channel // 2 for channel in range(0, len(addresses), 2) if addresses[channel] is not None]
        )
        self.answerOn = 2 * self.ports[0]
        self.sent = SendWindow(firstSent, counters, giveUp, self.ports)
        self.received = ReceiveWindow(firstReceived)
        self.assembly = Assembly(budget)
        self.order = Ordering()
        self.urgent: deque[Message] = deque()
        self.usual: deque[Message] = deque()
        self.writing: list[Sent] = []
        self.queuedBytes = self.receivedBytes = self.sentBytes = self.written = 0
        self.state = OPEN
        self.bye: int | None = None  # sequence number of the peer's last segment
        self.lingerUntil = 0.0
        self.receivedAt = now
        self.wakeAt: float | None = None  # the valid entry in the module's heap
        self.isReady = self.isLosing = self.isTouched = False
        self.receiveBuffer: ReceiveBuffer | None = None
        self.localReceiveBuffer: memoryview | None = None
        self.mayRequest = self.isRequesting = self.isWatched = False
        self._counters = counters
        self._fragment = 0

    def pathOf(self, channel: int) -> Path:
        """Return the path that uses a channel of the module."""
        paths = self.sent.paths
        return paths[0] if len(paths) == 1 else paths[self.ports.index(channel >> 1)]

    def hasQueued(self) -> bool:
        """Return whether a queued message is not completely sent, and remove those that are."""
        urgent, usual = self.urgent, self.usual
        while urgent and urgent[0].isOver:
            urgent.popleft()
        while usual and usual[0].isOver:
            usual.popleft()
        return bool(urgent or usual or self.writing)

    def join(self, queue: deque[Message], tag: int, data: Buffer, context: object) -> bool:
        """
        Let a small message share the packet of the last queued one. Called for every message of a burst.

        @param queue: one of the peer's queues, which is not empty.
        @return: False if it does not fit, and the message has to be queued separately.
        """
        last = queue[-1]
        length = len(data)
        packed = last.packed + length
        if packed > self.mtu or self.state != OPEN:
            return False
        if last.kind == FRAG:
            last.open()
        last.packed = packed + ENTRY_LENGTH
        last.total += length
        last.tags.append(tag)
        last.bodies.append(data if type(data) is bytes else bytes(data))
        if context is not None:
            last.contexts.append(context)
        self.queuedBytes += length
        return True

    def packMany(self, tag: int, bodies: list[bytes], context: object) -> list[Message]:
        """
        Make full packets of many small messages: less than 0.2 us for each, where L{join} takes 0.5 us.

        @param bodies: messages that fit into a packet.
        @param context: that of each packet.
        """
        room = self.mtu - HEADER_LENGTH
        ends = list(accumulate([len(each) + ENTRY_LENGTH for each in bodies]))
        packets, begin, base, count = list[Message](), 0, 0, len(bodies)
        while begin < count:
            end = max(begin + 1, bisect_right(ends, base + room))
            message = Message(FRAG, tag, bodies[begin], context)
            if end > begin + 1:
                message.open()
                message.tags, message.bodies = [tag] * (end - begin), list(bodies[begin:end])
                length = ends[end - 1] - base
                message.total = length - ENTRY_LENGTH * (end - begin)
                message.packed = HEADER_LENGTH + length + ENTRY_LENGTH
            packets.append(message)
            begin, base = end, ends[end - 1]
        return packets

    def recall(self, context: object) -> bool:
        """
        Withdraw a queued message of which nothing was sent.

        @param context: that of its sender, which no other message has.
        @return: whether the message will not be sent. In a packet of several messages it is found only if all
            of them have contexts.
        """
        for queue in (self.usual, self.urgent):
            for message in queue:
                if context in message.contexts:
                    return not (message.begun or message.waiting) and self._remove(queue, message, context)
        return False

    def _remove(self, queue: deque[Message], message: Message, context: object) -> bool:
        """Remove a queued message, alone or from its packet."""
        if message.kind == PACK:
            if len(message.contexts) != len(message.tags):
                return False
            index = message.contexts.index(context)
            del message.contexts[index], message.tags[index]
            length = len(message.bodies.pop(index))
            message.total -= length
            message.packed -= length + ENTRY_LENGTH
            self.queuedBytes -= length
            if message.tags:
                return True
        queue.remove(message)
        message.isOver = True
        self.queuedBytes -= message.total
        return True

    def takeUnbegun(self) -> list[Message]:
        """
        Remove and return queued messages of which nothing was sent. A queued C{BYE} is removed, too, but not
        returned.
        """
        taken: list[Message] = []
        for queue in (self.urgent, self.usual):
            taken += [each for each in queue if not (each.waiting or each.begun)]
            remaining = [each for each in queue if each.waiting or each.begun]
            queue.clear()
            queue.extend(remaining)
        return [each for each in taken if not (each.isOver or each.kind == BYE)]

    def isIdle(self) -> bool:
        """Return whether everything that was queued has arrived."""
        return not self.sent.outstanding and not self.hasQueued()

    def needsKeepAlive(self, keepAlive: float, now: float) -> bool:
        """Return whether nothing was received or in flight for C{keepAlive} seconds; zero disables probes."""
        return bool(keepAlive) and self.isIdle() and self.receivedAt + keepAlive <= now

    def nextQueue(self) -> deque[Message]:
        """
        Choose the queue whose first message is sent next. Call L{hasQueued} first.

        An urgent message that needs chunks waits until the current chunked message is sent: a peer without
        memory for a second one can then complete the first one and free its memory.
        """
        if not self.urgent or not self.usual:
            return self.urgent or self.usual
        begun = self.usual[0]
        if begun.begun and begun.kind == FRAG and self.urgent[0].total > self.mtu - HEADER_LENGTH:
            return self.usual
        return self.urgent

    def cut(self, queue: deque[Message]) -> Sent | None:
        """
        Make the next segment of the first queued message; None if the message waits for a receive buffer.
        """
        if queue is self.usual and self._write():
            return None
        message = queue[0]
        kind = message.kind
        # Probes and packs always fit into a packet.
        # The MTU may have grown since the message was begun.
        if kind == PUT or (kind == FRAG and (message.begun or message.total > self.mtu - HEADER_LENGTH)):
            sent = self._cutPart(message)
            if message.begun == message.total:
                queue.popleft()
            return sent
        if kind == PACK:
            message.seal()
            self._counters.packSends += 1
        else:
            self._counters.fragSends += 1
        message.waiting, message.begun = 1, message.total
        sent = Sent(kind, message.tag, message.data, message)
        queue.popleft()
        return sent

    def _cutPart(self, message: Message) -> Sent | None:
        """Make a segment of a put, or of a message that does not fit into a packet."""
        begin, total, isPut = message.begun, message.total, message.kind == PUT
        if self.isRequesting and total >= LONG and not begin and self.queuedBytes >= WORTH_WAITING:
            return None
        end, position = min(total, begin + self.mtu - (PUT_LENGTH if isPut else CHUNK_LENGTH)), -1
        if end < total and self.receiveBuffer is not None and self.receiveBuffer.remoteFrom is None:
            further = begin + self.receiveBuffer.fitting(begin, total)
            position = self.receiveBuffer.allocate(_part(message, begin, further))
            if position == FULL:
                return None
            if position >= 0:
                end = further
        return self._segment(message, end, position)

    def _write(self) -> bool:
        """
        Begin to write the first usual messages by RDMA, if they are long. Return whether the following ones
        wait for it.
        """
        buffer, usual = self.receiveBuffer, self.usual
        if buffer is None or buffer.remoteFrom is None or buffer.isPaused:
            return bool(self.writing)
        while usual and (
            usual[0].isOver or (usual[0].kind in (FRAG, PUT) and usual[0].total >= buffer.remoteFrom)
        ):
            message = usual[0]
            if not message.isOver:
                end = message.begun + buffer.fitting(message.begun, message.total)
                position = buffer.allocate(_part(message, message.begun, end))
                if position == FULL:
                    return True
                self.writing.append(self._segment(message, end, position))
            if message.isOver or message.begun == message.total:
                usual.popleft()
        return bool(self.writing) or not usual

    def takeWritten(self) -> Sent | None:
        """Return the next segment whose bytes are in the peer's receive buffer, if there is one."""
        while self.written:
            self.written -= 1
            sent = self.writing.pop(0)
            assert sent.message is not None
            if not sent.message.isOver:
                return sent
            self.release(sent)
        return None

    def withdraw(self) -> None:
        """Stop using the peer's receive buffer. Segments that RDMA has not written are cut again."""
        # From the last one, so that messages return to the queue in order, and one of which several segments
        # were being written continues with the first of them.
        while len(self.writing) > self.written:
            sent = self.writing.pop()
            message = sent.message
            assert message is not None
            message.waiting -= 1
            message.begun = sent.offset - (message.offset if message.kind == PUT else 0)
            if not self.usual or self.usual[0] is not message:
                self.usual.appendleft(message)
            self._counters.rdmaMisses += 1
        self.receiveBuffer = None

    def _segment(self, message: Message, end: int, position: int) -> Sent:
        """
        Make a segment of the next bytes of a message, which are in the receive buffer unless C{position} is
        negative.
        """
        begin, total, isPut = message.begun, message.total, message.kind == PUT
        message.begun = end
        message.waiting += 1
        self._count(isPut, position, end - begin)
        piece = _part(message, begin, end) if position < 0 else encodePlaced(position, end - begin)
        if isPut:
            kind, at = PLACED_PUT if position >= 0 else PUT, message.offset + begin
            sent = Sent(kind, message.tag, piece, message, 0, 0, message.region, at)
        else:
            if not begin:
                self._fragment = (self._fragment + 1) & 0xFFFFFFFF or 1
                message.fragment = self._fragment
            kind = PLACED if position >= 0 else CHUNK
            sent = Sent(kind, message.tag, piece, message, message.fragment, total, 0, begin)
        sent.placed = position
        return sent

    def _count(self, isPut: bool, position: int, length: int) -> None:
        """Count a segment of a put or of a long message."""
        counters = self._counters
        if position >= 0:
            counters.rdmaSends += 1
            counters.rdmaBytes += length
            return
        counters.rdmaMisses += position == UNREACHED
        if isPut:
            counters.fragSends += 1
        else:
            counters.chunkSends += 1

    def placed(self, segment: BTLSegment) -> BTLSegment | None:
        """Return a segment with its bytes from the receive buffer; None if their position is invalid."""
        return None if self.localReceiveBuffer is None else decodePlaced(segment, self.localReceiveBuffer)

    def release(self, sent: Sent) -> None:
        """Free the bytes of a segment in the peer's receive buffer."""
        if self.receiveBuffer is not None:
            self.receiveBuffer.release(sent.placed)
        sent.placed = -1

    def head(self, sent: Sent) -> bytes:
        """Make the header and part of a segment, with a cumulative acknowledgement."""
        ends = (self.sender, sent.sequence, self.received.acknowledged, sent.tag, len(sent.payload))
        if sent.kind == FRAG:
            return encodeFragment(*ends, sent.tries)
        parts = (sent.fragment, sent.total, sent.region, sent.offset)
        return encodeHead(sent.kind, *ends, sent.tries, *parts)

    def acknowledgement(self, room: int = ROOM_UNKNOWN) -> tuple[bytes, bytes]:
        """
        Make the head and the bitmap of an acknowledgement that is sent as a separate packet. Of a bitmap that
        does not fit into a packet with a short MTU, the first part is sent.
        """
        received, marks = self.received, self.pathOf(self.answerOn).marks
        bitmap = received.bitmap()[: self.mtu - ACK_LENGTH]
        head = encodeHead(
            *(ACK, self.sender, 0, received.acknowledged, 0, len(bitmap)),
            duplicates=received.duplicates,
            latest=received.latest,
            latestAttempt=received.latestAttempt,
            room=room,
            capable=marks.received,
            marked=marks.marked,
        )
        return head, bitmap

    def unfinished(self) -> list[Message]:
        """
        Return all unfinished messages of the queues and the window, without a C{BYE}, in no particular order.
        """
        writing = [each.message for each in self.writing if each.message is not None]
        found = {id(each): each for each in (*self.sent.unfinished(), *writing, *self.urgent, *self.usual)}
        return [each for each in found.values() if not each.isOver and each.kind != BYE]

    def deadline(self, keepAlive: float) -> float | None:
        """Time of the next timer of this peer, except acknowledgements."""
        if self.state == REMOVED:
            return None
        earliest = inf
        if self.state >= PEER_CLOSED:
            earliest = self.lingerUntil
        elif keepAlive and self.isIdle():
            earliest = self.receivedAt + keepAlive
        for at in (self.sent.deadline(), self.assembly.deadline()):
            if at is not None and at < earliest:
                earliest = at
        return None if earliest == inf else earliest


def _part(message: Message, begin: int, end: int) -> Buffer:
    """Return a part of a message's bytes: the object itself if that is all, else a view."""
    return message.data if end - begin == message.total else memoryview(message.data)[begin:end]
