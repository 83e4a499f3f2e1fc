"""
A module of the byte transfer layer: one port, two channels, and all peers that are reached by them.

Nothing here reads a clock or a device. Packets go in one by one; what is to be sent comes out as a list, once
in each turn, so that whoever drives the module has one system call for it. In a turn come first what is sent
again, at most L{MOST_RESENDS}, then new segments, a few of each peer in turn, then acknowledgements that
found no segment to go with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Final

from txrdma.btl._assembly import Budget, NO_ROOM, WRONG
from txrdma.btl._counters import Counters
from txrdma.btl._events import (
    Event,
    MessageReceived,
    Packet,
    PeerClosed,
    PeerLost,
    SendCompleted,
    SendFailed,
)
from txrdma.btl._peer import CLOSING, ENDED, GONE, LEFT, LINGER, OPEN, Peer
from txrdma.btl._receiving import ABOVE, BELOW, NEW
from txrdma.btl._window import COMMAND, DATA, GIVE_UP, Message, Sent
from txrdma.btl.wire import (
    ACK,
    BYE,
    CHUNK,
    decodeSegment,
    encodeHead,
    FRAG,
    HEADER_LENGTH,
    LONGEST_MESSAGE,
    LONGEST_PAYLOAD,
    PUT,
    REFUSED,
    Segment,
    VOID,
)
from txrdma.error import InvalidRequest, WireError
from txrdma.wire import Buffer

COMMAND_MTU: Final = 768
"""Bytes of the longest packet on the command channel; the component's C{priority_limit}."""

ACK_DELAY: Final = 50e-6
"""Seconds that an acknowledgement waits for a segment to go with, unless a batch of packets ends before."""

MOST_RESENDS: Final = 16
"""Segments that are sent again in one turn."""

MOST_PACKETS: Final = 256
"""Packets of one turn; whoever drives the module sees to others in between."""

FAIR_SHARE: Final = 8
"""New segments of one peer before the next peer has its turn."""

KEEP_ALIVE: Final = 30.0
"""Seconds of silence after which a peer is asked whether it is still there."""

_MOST_REFUSALS: Final = 256


class Module:
    """
    A module: reliable messages to many peers over two channels of unreliable datagrams.

    @ivar credits: packets that may still be posted on each channel.
    """

    def __init__(
        self,
        mtu: int,
        credits: tuple[int, int],
        budget: Budget | None = None,
        giveUp: float = GIVE_UP,
        keepAlive: float = KEEP_ALIVE,
    ) -> None:
        """
        @param mtu: bytes of the longest packet on the data channel.
        @param credits: send depths of the command and of the data channel.
        @param giveUp: seconds; see L{GIVE_UP}.
        @param keepAlive: seconds; zero asks nobody. See L{KEEP_ALIVE}.
        """
        self.counters = Counters()
        self.credits = list(credits)
        mtu = min(mtu, LONGEST_PAYLOAD)
        self._mtus = (min(COMMAND_MTU, mtu), mtu)
        self._budget = Budget() if budget is None else budget
        self._giveUp, self._keepAlive = giveUp, keepAlive
        self._peers: dict[int, Peer] = {}
        self._regions: dict[int, tuple[memoryview, Peer | None]] = {}
        self._region = 0
        self._ready: deque[Peer] = deque()
        self._losing: deque[Peer] = deque()
        self._owing: dict[Peer, None] = {}
        self._refusals: deque[tuple[Peer, int]] = deque(maxlen=_MOST_REFUSALS)
        self._touched: list[Peer] = []
        self._heap: list[tuple[float, int, Peer]] = []
        self._pushed = 0
        self._events: list[Event] = []
        self._batchHasEnded = False

    # Peers, and what is sent to them.

    @property
    def peers(self) -> list[Peer]:
        """All peers, those that linger among them."""
        return list(self._peers.values())

    def addPeer(
        self,
        name: int,
        sender: int,
        addresses: tuple[Hashable, Hashable],
        firstSent: int,
        firstReceived: int,
        context: object,
        now: float,
    ) -> Peer:
        """
        Get to know a peer. Both ends have exchanged these values by other means.

        @param name: number that this end has drawn for the peer, by which its packets are known.
        @param sender: number that the peer has drawn for this end.
        @param addresses: of the peer's channels, command and data.
        @param firstSent: sequence number that this end begins with; C{firstReceived}: that the peer begins
            with.
        @raise InvalidRequest: the name is taken.
        """
        if name in self._peers:
            raise InvalidRequest("a peer has this name already")
        peer = Peer(
            *(name, sender, addresses, firstSent, firstReceived, context),
            *(self.counters, self._budget, self._giveUp, now),
        )
        self._peers[name] = peer
        self._touch(peer)
        return peer

    def send(
        self, peer: Peer, tag: int, data: Buffer, context: object = None, isUrgent: bool = False
    ) -> None:
        """
        Send a message to a peer, which hears of it by its tag.

        @param data: any length; if it does not fit into a packet it must not change before the outcome is
            told.
        @param context: comes back with the outcome; None is not to hear of it.
        @param isUrgent: before all messages to this peer that are not urgent.
        @raise InvalidRequest: the peer is not open, or there is too much data.
        """
        length = len(data)
        if length > LONGEST_MESSAGE or not 0 <= tag <= 0xFFFF:
            raise InvalidRequest("a message has at most 4 GiB, and a tag of 16 bits")
        if length <= self._mtus[DATA] - HEADER_LENGTH:
            data = bytes(data)
        self._queue(peer, Message(FRAG, tag, data, context, isUrgent))

    def put(self, peer: Peer, region: int, offset: int, data: Buffer, context: object = None) -> None:
        """
        Write into memory that the peer has registered.

        @param data: must not change before the outcome is told; parts of it may arrive although it fails.
        @raise InvalidRequest: the peer is not open, or a number is too large.
        """
        if not (0 <= region <= 0xFFFFFFFF and 0 <= offset <= (1 << 64) - 1 - len(data)):
            raise InvalidRequest("a region has 32 bits, an offset 64")
        self._queue(peer, Message(PUT, 0, data, context, False, region, offset))

    def _queue(self, peer: Peer, message: Message) -> None:
        if peer.state != OPEN:
            raise InvalidRequest("the peer is closed")
        (peer.urgent if message.isUrgent else peer.usual).append(message)
        peer.queuedBytes += message.total
        self._makeReady(peer)

    def close(self, peer: Peer) -> None:
        """
        Send nothing new to a peer: L{PeerClosed} comes when all that was sent has arrived. Twice is fine.
        """
        if peer.state == OPEN:
            self._queue(peer, Message(BYE, 0, b"", None))
            peer.state = CLOSING

    def lose(self, peer: Peer, reason: str) -> None:
        """Give up a peer: its messages fail, and nothing more is sent to it."""
        if peer.state == GONE:
            return
        hasEnded = peer.state == ENDED
        self._failAll(peer, reason)
        self._forget(peer)
        if not hasEnded:
            self._events.append(PeerLost(peer, reason))

    def register(self, memory: memoryview, peer: Peer | None = None) -> int:
        """
        Let peers write into memory.

        @param memory: writable bytes.
        @param peer: the only one that may; None is all.
        @return: number of the region, which is not given again before 2 to the 32nd others.
        """
        while True:
            self._region = (self._region + 1) & 0xFFFFFFFF
            if self._region and self._region not in self._regions:
                self._regions[self._region] = (memory.cast("B"), peer)
                return self._region

    def deregister(self, region: int) -> None:
        """Let nobody write into a region any more. Twice is fine."""
        self._regions.pop(region, None)

    # Packets that come.

    def received(self, channel: int, address: Hashable, packet: Buffer, now: float) -> None:
        """
        Take a packet that came on a channel, from this address. Whatever it is, it harms nobody else.

        The packet's bytes must stay until the events were taken.
        """
        counters = self.counters
        counters.totalRecvs += 1
        try:
            segment = decodeSegment(packet)
        except WireError:
            counters.badHeaderRecvs += 1
            return
        peer = self._peers.get(segment.sender)
        if peer is None or peer.addresses[channel] != address:
            counters.unkRecvs += 1
            return
        peer.heardAt = now
        self._touch(peer)
        kind = segment.kind
        if kind == ACK:
            counters.ackRecvs += 1
            self._acknowledged(peer, segment, now)
            return
        if segment.acknowledged is not None and not self._acknowledged(peer, segment, now):
            return
        if kind == REFUSED:
            self._wasRefused(peer, segment.sequence)
            return
        place = peer.received.place(segment.sequence)
        if place == NEW:
            self._take(peer, segment, now)
        else:
            self._takeNot(peer, segment, place, now)
        if peer.received.isOwed:
            self._owing[peer] = None
        if peer.bye is not None and peer.state < LEFT and peer.received.has(peer.bye):
            self._left(peer, now)

    def _takeNot(self, peer: Peer, segment: Segment, place: int, now: float) -> None:
        if place == ABOVE:
            self.counters.oowHighRecvs += 1
            peer.received.remind(now)
            return
        if place == BELOW:
            self.counters.oowLowRecvs += 1
        else:
            self.counters.dupRecvs += 1
        peer.received.takeAgain(segment.sequence, segment.attempt, now)

    def _take(self, peer: Peer, segment: Segment, now: float) -> None:
        """Take a segment that is new, refuse it, or leave it to be sent again."""
        kind, counters, received = segment.kind, self.counters, peer.received
        if kind == FRAG and peer.state < ENDED:
            received.take(segment.sequence, segment.attempt, now)
            counters.fragRecvs += 1
            self._events.append(MessageReceived(peer, segment.tag, segment.payload))
        elif kind == CHUNK and peer.state < ENDED:
            verdict = peer.assembly.judge(segment, segment.sequence == received.following)
            if verdict == WRONG:
                counters.badfragRecvs += 1
                self._refuse(peer, segment.sequence)
                return
            if verdict == NO_ROOM:
                counters.noMemoryRecvs += 1
                received.remind(now)
                return
            received.take(segment.sequence, segment.attempt, now)
            counters.chunkRecvs += 1
            whole = peer.assembly.take(segment, now)
            if whole is not None:
                self._events.append(MessageReceived(peer, segment.tag, memoryview(whole)))
        elif kind == PUT and peer.state < ENDED:
            if not self._write(peer, segment):
                counters.badfragRecvs += 1
                self._refuse(peer, segment.sequence)
                return
            received.take(segment.sequence, segment.attempt, now)
            counters.fragRecvs += 1
        elif kind in (VOID, BYE):
            received.take(segment.sequence, segment.attempt, now)
            if kind == BYE and peer.bye is None:
                peer.bye = segment.sequence
        else:
            self._refuse(peer, segment.sequence)
            return
        if received.spread > counters.maxRcvdWindowSize:
            counters.maxRcvdWindowSize = received.spread

    def _write(self, peer: Peer, segment: Segment) -> bool:
        found = self._regions.get(segment.region)
        if found is None:
            return False
        memory, owner = found
        end = segment.offset + len(segment.payload)
        if end > len(memory) or (owner is not None and owner is not peer):
            return False
        memory[segment.offset : end] = segment.payload
        return True

    def _refuse(self, peer: Peer, sequence: int) -> None:
        self.counters.refusedRecvs += 1
        self._refusals.append((peer, sequence))

    def _acknowledged(self, peer: Peer, segment: Segment, now: float) -> bool:
        """Take an acknowledgement; False where it is a lie, and so perhaps is what came with it."""
        arrived = peer.sent.acknowledged(segment, now)
        if arrived is None:
            return False
        for sent in arrived:
            message = sent.message
            if message is None or message.isOver:
                continue
            message.waiting -= 1
            if not message.waiting and message.begun == message.total:
                self._over(peer, message)
                if message.context is not None:
                    self._events.append(SendCompleted(peer, message.context))
        if arrived:
            self._finish(peer, now)
        self._makeReady(peer)
        return True

    def _wasRefused(self, peer: Peer, sequence: int) -> None:
        message = peer.sent.refused(sequence)
        if message is not None and not message.isOver:
            peer.sent.void(message)
            self._fail(peer, message, "the peer has refused it")
        self._makeReady(peer)

    # Ends of messages and of peers.

    def _over(self, peer: Peer, message: Message) -> None:
        message.isOver = True
        peer.queuedBytes -= message.total

    def _fail(self, peer: Peer, message: Message, reason: str) -> None:
        self._over(peer, message)
        if message.context is not None:
            self._events.append(SendFailed(peer, message.context, reason))

    def _failAll(self, peer: Peer, reason: str) -> None:
        for message in peer.takeAll():
            self._fail(peer, message, reason)

    def _left(self, peer: Peer, now: float) -> None:
        """Do as the peer has said: it takes no messages any more, but those on their way may have arrived."""
        peer.state, peer.lingerUntil = LEFT, now + LINGER
        for message in (*peer.urgent, *peer.usual):
            if not message.isOver and not message.begun and not message.waiting and message.kind != BYE:
                self._fail(peer, message, "the peer has closed")
        peer.urgent = deque(each for each in peer.urgent if each.waiting or each.begun)
        peer.usual = deque(each for each in peer.usual if each.waiting or each.begun)
        self._finish(peer, now)

    def _finish(self, peer: Peer, now: float) -> None:
        """End a peer that is closing, when nothing is on its way any more."""
        if peer.state in (CLOSING, LEFT) and peer.isIdle():
            peer.assembly.drop()
            peer.state, peer.lingerUntil = ENDED, now + LINGER
            self._events.append(PeerClosed(peer))

    def _forget(self, peer: Peer) -> None:
        peer.state = GONE
        peer.assembly.drop()
        del self._peers[peer.name]
        self._owing.pop(peer, None)

    # Times.

    def batchEnded(self) -> None:
        """Note that no packet is at hand any more: acknowledgements wait no longer."""
        self._batchHasEnded = True

    def deadline(self) -> float | None:
        """Time at which to call L{expired}, or sooner: there may be nothing to do then."""
        self._settle()
        earliest = self._heap[0][0] if self._heap else None
        if self._owing and self.credits[COMMAND] > 0:
            due = next(iter(self._owing)).received.owedSince + ACK_DELAY
            earliest = due if earliest is None else min(earliest, due)
        return earliest

    def expired(self, now: float) -> None:
        """Do what is due by now."""
        self._settle()
        while self._heap and self._heap[0][0] <= now:
            at, _order, peer = heappop(self._heap)
            if peer.wakeAt != at or peer.state == GONE:
                continue
            peer.wakeAt = None
            self._touch(peer)
            due = peer.deadline(self._keepAlive)
            if due is not None and due <= now:
                self._expire(peer, now)

    def _expire(self, peer: Peer, now: float) -> None:
        if peer.state >= LEFT and peer.lingerUntil <= now:
            if peer.state == LEFT:
                self._failAll(peer, "the peer has closed")
                self._events.append(PeerClosed(peer))
            self._forget(peer)
            return
        oldest = peer.assembly.deadline()
        if oldest is not None and oldest <= now:
            self.lose(peer, "the peer has stopped in the middle of a message")
        elif peer.sent.expired(now):
            if peer.state == CLOSING and not peer.takeAll():  # but for its own last segment all has arrived
                self._forget(peer)
                self._events.append(PeerClosed(peer))
            else:
                self.lose(peer, "the peer does not answer")
        elif (
            peer.state == OPEN and self._keepAlive and peer.isIdle() and peer.heardAt + self._keepAlive <= now
        ):
            self._queue(peer, Message(VOID, 0, b"", None))
        else:
            self._makeReady(peer)

    def _settle(self) -> None:
        """Enter the deadlines of peers to which something has happened, where they are sooner than before."""
        for peer in self._touched:
            peer.isTouched = False
            at = peer.deadline(self._keepAlive)
            if at is not None and (peer.wakeAt is None or at < peer.wakeAt):
                peer.wakeAt = at
                self._pushed += 1
                heappush(self._heap, (at, self._pushed, peer))
        self._touched.clear()

    def _touch(self, peer: Peer) -> None:
        if not peer.isTouched:
            peer.isTouched = True
            self._touched.append(peer)

    # Packets and events that go.

    def events(self) -> list[Event]:
        """Take what has happened, in order."""
        events, self._events = self._events, []
        return events

    def completed(self, channel: int, packets: int) -> None:
        """Note that packets have left: their credits come back."""
        self.credits[channel] += packets

    def outgoing(self, now: float) -> list[Packet]:
        """Take the packets of one turn; there may be more when there are L{MOST_PACKETS}."""
        packets: list[Packet] = []
        if self._losing:
            self._sendAgain(packets, now)
        if self._ready:
            self._sendNew(packets, now)
        if self._refusals:
            self._sendRefusals(packets)
        if self._owing:
            self._sendAcknowledgements(packets, now)
        self.counters.totalSends += len(packets)
        return packets

    def _makeReady(self, peer: Peer) -> None:
        self._touch(peer)
        if not peer.isLosing and peer.sent.hasLost():
            peer.isLosing = True
            self._losing.append(peer)
        if not peer.isReady and peer.hasQueued() and peer.sent.isOpen():
            peer.isReady = True
            self._ready.append(peer)

    def _sendAgain(self, packets: list[Packet], now: float) -> None:
        for _each in range(MOST_RESENDS):
            while self._losing and (self._losing[0].state == GONE or not self._losing[0].sent.hasLost()):
                self._losing.popleft().isLosing = False
            if not self._losing or self.credits[DATA] <= 1:
                return
            peer = self._losing[0]
            self._losing.rotate(-1)
            self._emit(peer, peer.sent.again(now), DATA, packets)

    def _sendNew(self, packets: list[Packet], now: float) -> None:
        ready = self._ready
        while ready and len(packets) < MOST_PACKETS:
            peer = ready[0]
            for _each in range(FAIR_SHARE):
                if peer.state == GONE or not (peer.hasQueued() and peer.sent.isOpen()):
                    ready.popleft()
                    peer.isReady = False
                    break
                queue = peer.turn(self._mtus[DATA])
                channel = self._channelOf(queue[0])
                if self.credits[channel] <= 1:
                    return
                sent = peer.cut(queue, self._mtus[DATA])
                peer.sent.add(sent, channel, now)
                if sent.kind == CHUNK:
                    self.counters.chunkSends += 1
                else:
                    self.counters.fragSends += 1
                self._emit(peer, sent, channel, packets)
            else:
                ready.rotate(-1)

    def _channelOf(self, message: Message) -> int:
        """Choose the channel of a message's next segment: very small messages go by the command channel."""
        isTiny = message.kind != PUT and message.total + HEADER_LENGTH <= self._mtus[COMMAND]
        return COMMAND if isTiny and self.credits[COMMAND] > 1 else DATA

    def _emit(self, peer: Peer, sent: Sent, channel: int, packets: list[Packet]) -> None:
        received = peer.received
        head = encodeHead(
            *(sent.kind, peer.sender, sent.sequence, received.acknowledged, sent.tag, len(sent.payload)),
            *(sent.fragment, sent.total, sent.region, sent.offset),
            attempt=sent.tries,
        )
        if received.isOwed:
            received.toldBeside()
            if not received.isOwed:
                self._owing.pop(peer, None)
        self.credits[channel] -= 1
        self._touch(peer)
        packets.append(Packet(peer, channel, head, sent.payload))

    def _sendRefusals(self, packets: list[Packet]) -> None:
        while self._refusals and self.credits[COMMAND] > 0:
            peer, sequence = self._refusals.popleft()
            if peer.state != GONE:
                head = encodeHead(REFUSED, peer.sender, sequence, None, 0, 0)
                self.credits[COMMAND] -= 1
                packets.append(Packet(peer, COMMAND, head, b""))

    def _sendAcknowledgements(self, packets: list[Packet], now: float) -> None:
        isDue, self._batchHasEnded = self._batchHasEnded, False
        for peer in list(self._owing):
            received = peer.received
            if not isDue and received.owedSince + ACK_DELAY > now:
                continue
            if self.credits[COMMAND] <= 0:
                self._batchHasEnded = isDue
                return
            bitmap = received.bitmap()
            head = encodeHead(
                *(ACK, peer.sender, 0, received.acknowledged, 0, len(bitmap)),
                duplicates=received.duplicates,
                latest=received.latest,
                latestAttempt=received.latestAttempt,
            )
            received.told()
            del self._owing[peer]
            self.credits[COMMAND] -= 1
            self.counters.ackSends += 1
            packets.append(Packet(peer, COMMAND, head, bitmap))
