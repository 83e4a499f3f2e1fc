"""
A module of the byte transfer layer: its ports with two channels each, and all peers that they reach.

Theory of operation. A packet is one segment: its kind decides how it is processed, its sequence number
whether it is new. Each segment also acknowledges what its sender has received. So L{Module} finds the peer,
processes the acknowledgement, then the segment, and at the end notes what has to be acknowledged in turn.

Channels are numbered: those of the first port are 0 and 1, its command and its data channel, and those of the
second port 2 and 3.

Nothing here reads a clock or a device. Received packets are passed in one by one. Packets to send are
returned as a list, once per reactor iteration, so that the caller can send them with one system call. The
list begins with retransmissions, at most L{MOST_RESENDS}; then come new segments, a few of each peer in turn,
then acknowledgements that no segment carries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from math import inf
from typing import Final

from txrdma.btl.core.assembly import Budget, OVER_BUDGET, WRONG
from txrdma.btl.core.earlypackets import EarlyPackets
from txrdma.btl.core.events import (
    Event,
    MessageReceived,
    Packet,
    PackReceived,
    PeerClosed,
    PeerFailed,
    ProbeReceived,
    ReceiveBufferRequested,
    SendCompleted,
    SendFailed,
)
from txrdma.btl.core.marks import CE, NOT_ECT
from txrdma.btl.core.path import COMMAND, DATA, FAILURES_ONLY, Message, Path, Sent
from txrdma.btl.core.peer import CLOSING, ENDED, LINGER, OPEN, Peer, PEER_CLOSED, REMOVED
from txrdma.btl.core.receivebuffer import LONG
from txrdma.btl.core.receiving import ABOVE, BELOW, NEW
from txrdma.btl.core.regions import Regions
from txrdma.btl.core.roundtrip import SHORTEST_TIMEOUT
from txrdma.btl.core.shortcuts import EarlyLimits, FastPath
from txrdma.btl.core.timetable import KEEP_ALIVE
from txrdma.btl.core.window import GIVE_UP
from txrdma.btl.wire import (
    ACK,
    BTLSegment,
    BYE,
    CHUNK,
    decodePack,
    decodeSegment,
    encodeHead,
    ENTRY_LENGTH,
    FRAG,
    HEADER_LENGTH,
    LONGEST_MESSAGE,
    LONGEST_PAYLOAD,
    PACK,
    PLACED,
    PUT,
    REFUSED,
    SEQUENCE_MASK,
    VOID,
)
from txrdma.error import InvalidRequest, WireError
from txrdma.kit.wire import Buffer

COMMAND_MTU: Final = 768
"""Bytes of the longest packet on the command channel; usnic's C{priority_limit}."""

MOST_RESENDS: Final = 16
"""Largest number of retransmissions in one reactor iteration."""

MOST_PACKETS: Final = 256
"""Largest number of packets in one reactor iteration."""

MANY_WAIT: Final = 8
"""Number of queued packets of one peer that are sent before the reactor iteration ends."""

FAIR_SHARE: Final = 8
"""New segments of one peer before those of the next peer."""

SHARED_ROOM: Final = 60
"""
Segments that may be in flight to a peer whose memory is mapped. The space that it advertises is that of its
socket, which packets through shared memory do not use. As many of the longest fit into a ring.
"""

NONCE_LENGTH: Final = 8
"""Bytes of the nonce of a probe."""

AMPLIFICATION: Final = 3
"""
Bytes that may be sent to an address that is not validated, for each received byte (RFC 9000, 8.1).

Excess packets are dropped as if the network had lost them, and sent again after a timeout.
"""

MOST_EARLY_BYTES: Final = 1 << 18
"""
Bytes of a peer's messages that are accepted before its connection is established: see L{Module.establish}.
"""

OVERHEAD: Final = 52
"""Bytes around a packet on the wire: headers of IPv4, UDP, BTH and DETH, and the ICRC."""

_NOT_REPEATED: Final = "a segment to the peer could not be retransmitted"
_TIMER_FAILED: Final = "a timer of the peer failed"
_NOT_PROCESSED: Final = "a packet of the peer could not be processed"
_UNLIMITED: Final = 1 << 62


class Module(FastPath):
    """
    Reliable messages to many peers over channels of unreliable datagrams, two for each port.

    @ivar regions: memory into which peers may put; C{expected}: packets that arrive before their sender is
        introduced.
    @ivar unmarked: peers, each with a port of this module from which datagrams to it must not be sent with
        ECT(0) any more; the caller of L{outgoing} removes them.
    @ivar isFull: L{MANY_WAIT} messages of a peer are queued, so that waiting for more before sending has no
        benefit.
    """

    def __init__(
        self,
        mtu: int,
        credits: Sequence[int],
        budget: Budget | None = None,
        giveUp: float = GIVE_UP,
        keepAlive: float = KEEP_ALIVE,
        rooms: Sequence[int] = (),
    ) -> None:
        """
        @param mtu: longest packet on a data channel, in bytes.
        @param credits: depths of the send queues of the command and the data channel of each port.
        @param giveUp: seconds; see L{GIVE_UP}.
        @param keepAlive: seconds; zero disables it. See L{KEEP_ALIVE}.
        @param rooms: number of the longest packets that the buffers of each port retain until they are
            processed; empty if that is unknown.
        """
        mtu = min(mtu, LONGEST_PAYLOAD)
        super().__init__((min(COMMAND_MTU, mtu), mtu), credits, keepAlive, rooms)
        self._budget = Budget() if budget is None else budget
        self._giveUp, self._keepAlive = giveUp, keepAlive
        self.regions, self.expected = Regions(), EarlyPackets()
        self._ready, self._losing = deque[Peer](), deque[Peer]()
        self._probing: dict[Peer, None] = {}
        self.unmarked: list[tuple[Peer, int]] = []
        self.isFull = False

    # Peers and sending

    @property
    def peers(self) -> list[Peer]:
        """All peers, including those that are closing."""
        return list(self._peers.values())

    def hasPeer(self, name: int) -> bool:
        return name in self._peers

    def addPeer(
        self,
        name: int,
        sender: int,
        addresses: Sequence[Hashable],
        firstSent: int,
        firstReceived: int,
        context: object,
        now: float,
        mtu: int = LONGEST_PAYLOAD,
        allowance: int | None = None,
    ) -> Peer:
        """
        Add a peer. Both ends have exchanged these values over another connection.

        @param name: number that this end has chosen for the peer, which identifies the peer's packets.
        @param sender: number that the peer has chosen for this end.
        @param addresses: addresses of the peer's command and data channels, for each port of this module;
            None for the channels of a port that does not reach it.
        @param firstSent: first sequence number of this end; C{firstReceived}: of the peer.
        @param mtu: longest packet that the peer accepts on its data channel, in bytes.
        @param allowance: bytes, including headers, that may be sent before the peer's addresses are validated
            (see L{validate}), for each path; None if they need no validation and the connection is
            established.
        @raise InvalidRequest: the name is taken.
        """
        if name in self._peers:
            raise InvalidRequest(f"the module has a peer of the name {name:#x} already")
        ends = (name, sender, addresses, min(mtu, self._mtus[DATA]), firstSent, firstReceived, context)
        self._peers[name] = peer = Peer(*ends, self.counters, self._budget, self._giveUp, now)
        try:
            if allowance is not None:
                self._earlyLimits[peer] = EarlyLimits([allowance] * len(peer.sent.paths), MOST_EARLY_BYTES)
            self._times.touch(peer)
            for early in self.expected.take(name):
                self._received(*early, now)
        except BaseException:
            self._forget(peer)
            raise
        return peer

    def send(
        self, peer: Peer, tag: int, data: Buffer, context: object = None, isUrgent: bool = False
    ) -> None:
        """
        Send a tagged message to a peer.

        @param data: any length; if it does not fit into a packet, it must not change before the result is
            reported.
        @param context: returned with the result; None: report no result; L{FAILURES_ONLY}: report only a
            failure.
        @param isUrgent: whether to send it before all messages to this peer that are not urgent.
        @raise InvalidRequest: the peer is not open, or the data is too long.
        """
        length = len(data)
        if length > LONGEST_MESSAGE or not 0 <= tag <= 0xFFFF:
            raise InvalidRequest("a message has at most 4 GiB, and a tag of 16 bits")
        queue = peer.urgent if isUrgent else peer.usual
        if queue and peer.join(queue, tag, data, context):
            return
        if length <= peer.mtu - HEADER_LENGTH and type(data) is not bytes:
            data = bytes(data)
        self._queue(peer, Message(FRAG, tag, data, context), isUrgent)

    def sendMany(self, peer: Peer, tag: int, bodies: list[bytes], context: object) -> int:
        """
        Send small messages, as L{send} does with each of them.

        @param bodies: messages of at most the peer's MTU without a header.
        @param context: returned with the result of each packet.
        @return: the number of packets.
        @raise InvalidRequest: the peer is not open.
        """
        packets = peer.packMany(tag, bodies, context)
        for packet in packets:
            self._queue(peer, packet)
        return len(packets)

    def put(self, peer: Peer, region: int, offset: int, data: Buffer, context: object = None) -> None:
        """
        Write into memory that the peer has registered.

        @param data: must not change before the result is reported. If the put fails, parts of it may have
            arrived.
        @raise InvalidRequest: the peer is not open, or a number is too large.
        """
        if not (0 <= region <= 0xFFFFFFFF and 0 <= offset <= (1 << 64) - 1 - len(data)):
            raise InvalidRequest(f"region {region}, offset {offset} do not fit into 32 and 64 bits")
        self._queue(peer, Message(PUT, 0, data, context, region, offset))

    def probe(self, peer: Peer, length: int, nonce: bytes, path: int = 0, context: object = None) -> None:
        """
        Send a packet of this length, at least 30 bytes, that carries a nonce, on one path.

        The peer's module reports L{ProbeReceived}. An end that echoes the nonce has received packets of this
        length at the peer's addresses. Acknowledgements do not prove that, because sequence numbers can be
        guessed.

        @param nonce: L{NONCE_LENGTH} random bytes.
        @param context: returned with the result, if the probe is optional: when it is lost, an empty segment
            takes its place.
        @raise InvalidRequest: the peer is not open.
        """
        message = Message(VOID, 0, nonce.ljust(length - HEADER_LENGTH, b"\0"), context)
        message.path = peer.sent.paths[path]
        self._queue(peer, message)

    def validate(self, peer: Peer, path: int = 0) -> None:
        """Remove the limit of packets to the peer's address, because the peer has echoed a nonce from it."""
        if (limits := self._earlyLimits.get(peer)) is not None:
            limits.allowances[path] = _UNLIMITED

    def establish(self, peer: Peer) -> None:
        """Remove all limits of a peer, because its connection is established."""
        self._earlyLimits.pop(peer, None)
        for message in peer.unfinished():
            message.path = None  # its probes have arrived

    def lastAckReceived(self, peer: Peer, packet: Buffer, now: float) -> None:
        """
        Process the last acknowledgement of a peer, which was received over the TCP connection.

        It is accepted only while the connection closes; otherwise it could acknowledge messages that were
        never delivered.
        """
        if peer.state not in (CLOSING, PEER_CLOSED):
            return
        try:
            segment = decodeSegment(packet)
        except WireError:
            self.counters.badHeaderRecvs += 1
            return
        if segment.kind == ACK and segment.sender == peer.name:
            self._catchUp()
            self.counters.ackRecvs += 1
            self._segmentsArrived(peer, peer.sent.acknowledged(segment, now), now)

    def _queue(self, peer: Peer, message: Message, isUrgent: bool = False) -> None:
        if peer.state != OPEN:
            raise InvalidRequest("the peer is closed")
        queue = peer.urgent if isUrgent else peer.usual
        queue.append(message)
        if len(queue) >= MANY_WAIT:
            self.isFull = True
        peer.queuedBytes += message.total
        if message.total >= LONG and peer.mayRequest and message.kind != VOID:
            peer.mayRequest = False
            self._events.append(ReceiveBufferRequested(peer))
        if not peer.isReady and (len(queue) == 1 or queue[0].isOver):  # otherwise the window is closed
            self._makeReady(peer)

    def close(self, peer: Peer) -> None:
        """
        Accept no new messages to a peer. L{PeerClosed} follows when all sent messages have arrived.
        Idempotent.
        """
        if peer.state == OPEN:
            peer.isRequesting = False  # a message that has not begun when the peer closes, too, would fail
            self._queue(peer, Message(BYE, 0, b"", None))
            peer.state = CLOSING

    def resume(self, peer: Peer) -> None:
        """Send messages that waited until it was known whether the peer has a receive buffer."""
        peer.isRequesting = False
        if peer.state != REMOVED:
            self._makeReady(peer)

    def written(self, peer: Peer, count: int) -> None:
        """Note that RDMA has written the bytes of the next segments into the peer's receive buffer."""
        if peer.state != REMOVED:
            peer.written += count
            self._makeReady(peer)

    def withdraw(self, peer: Peer) -> None:
        """Send messages in datagrams from now on, as well as those that RDMA has not written completely."""
        peer.withdraw()
        if peer.state != REMOVED:
            self._makeReady(peer)

    def losePort(self, port: int, reason: str, now: float) -> None:
        """Stop using a port, because it has failed. Peers that no other port reaches are lost."""
        for peer in self.peers:
            try:
                if port in peer.ports and not peer.sent.losePath(port, now):
                    self.lose(peer, reason)
                elif peer.state != REMOVED:
                    self._makeReady(peer)
            except Exception as error:
                self.lose(peer, reason, error)

    def lose(self, peer: Peer, reason: str, error: Exception | None = None) -> None:
        """
        Give up a peer: its messages fail, and nothing is sent to it any more. An exception is not raised, but
        reported.

        @param error: an exception that affects only this peer; L{PeerFailed} carries it, even after the end.
        """
        if peer.state != REMOVED:
            self._catchUp()  # acknowledged messages must not fail
        isOver = peer.state >= ENDED  # or REMOVED, because of an exception
        if peer.state != REMOVED:
            try:
                try:
                    self._failAll(peer, reason)
                finally:
                    self._forget(peer)
            except Exception as another:
                error = error or another
        if error is not None or not isOver:
            self._events.append(PeerFailed(peer, reason, error))

    # Receiving

    def received(
        self, channel: int, address: Hashable, packet: Buffer, now: float, codepoint: int = NOT_ECT
    ) -> None:
        """
        Process a packet from this channel and address. Invalid packets do not affect other peers.

        The packet's buffer must remain valid until L{events} was called. If the packet is a message with an
        acknowledgement, the acknowledgement is processed later, so that the user can answer the message
        first.

        @param codepoint: the ECN field of its IP header: see L{txrdma.btl.core.marks}.
        """
        self.counters.totalRecvs += 1
        self._catchUp()
        self._received(channel, address, packet, now, codepoint)

    def _received(
        self, channel: int, address: Hashable, packet: Buffer, now: float, codepoint: int = NOT_ECT
    ) -> None:
        counters = self.counters
        try:
            segment = decodeSegment(packet)
        except WireError:
            counters.badHeaderRecvs += 1
            return
        peer = self._peers.get(segment.sender)
        if peer is None or peer.addresses[channel] != address:
            # A peer may send before its introduction arrives here; from another address it is not trusted.
            if peer is not None or not self.expected.queue(segment.sender, channel, address, packet):
                counters.unkRecvs += 1
            return
        try:
            self._process(peer, channel, segment, len(packet), now, codepoint)
        except Exception as error:
            self.lose(peer, _NOT_PROCESSED, error)

    def loseSender(self, channel: int, address: Hashable, packet: Buffer, error: Exception) -> None:
        """
        Give up the peer that has sent a packet for which L{receiveFast} has raised an exception.

        @raise Exception: the same one, if the packet is not from a peer.
        """
        peer = self._peers.get(decodeSegment(packet).sender)
        if peer is None or peer.addresses[channel] != address:
            raise error
        self.lose(peer, _NOT_PROCESSED, error)

    def _process(
        self, peer: Peer, channel: int, segment: BTLSegment, length: int, now: float, codepoint: int
    ) -> None:
        """Process a packet of a peer, which has this length in bytes."""
        counters = self.counters
        if self._earlyLimits and (limits := self._earlyLimits.get(peer)) is not None:
            # Until its address is validated, a peer gets a multiple of what it has sent.
            limits.allowances[peer.pathOf(channel).number] += AMPLIFICATION * (OVERHEAD + length)
        peer.receivedAt, peer.answerOn = now, channel & ~1
        kind = segment.kind
        if kind == ACK:
            counters.ackRecvs += 1
            path = peer.pathOf(channel)
            buffer = peer.receiveBuffer
            isShared = buffer is not None and buffer.remoteFrom is None
            path.room = max(SHARED_ROOM if isShared else 1, segment.room)
            self._segmentsArrived(peer, peer.sent.acknowledged(segment, now, path), now)
            if path.marks.hasFailed:
                self._giveUpMarks(peer)
            return
        self._times.touch(peer)
        if codepoint != NOT_ECT:
            peer.pathOf(channel).marks.count(codepoint)
            if codepoint == CE:
                counters.markedRecvs += 1
                peer.received.scheduleAck(now)  # no other segment can carry the counts
        # First the acknowledgement, even if the segment is then refused: it is true anyway.
        upTo = segment.acknowledged  # usually nothing new
        if upTo is not None and (upTo + 1) & SEQUENCE_MASK != peer.sent.base:
            # Deferred while fragments come in: the last of several acknowledgements includes the others.
            if kind == FRAG and peer.sent.hasSent(upTo):
                self._catchUp()
                self._deferred = peer, upTo, now
            elif not self._segmentsArrived(peer, peer.sent.piggybackReceived(upTo, now), now):
                return
        if kind == REFUSED:
            # It has no number of its own, and may be lost: the segment is retransmitted then, and refused
            # again.
            self._segmentRefused(peer, segment.sequence)
            return
        relation = peer.received.classify(segment.sequence)
        if relation == NEW:
            self._accept(peer, segment, now)
        else:
            self._discard(peer, segment, relation, now)
        if peer.received.isOwed:
            self._owed.peers[peer] = None
        # A BYE that overtook other segments takes effect when these have arrived.
        if peer.bye is not None and peer.state < PEER_CLOSED and peer.received.hasAll(peer.bye):
            self._byeReceived(peer, now)

    def _giveUpMarks(self, peer: Peer) -> None:
        """Report paths on which datagrams are not marked reliably."""
        for path in peer.sent.paths:
            if path.marks.hasFailed:
                path.marks.hasFailed = False
                self.unmarked.append((peer, path.port))

    def _catchUp(self) -> None:
        """Process the deferred acknowledgement."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None and deferred[0].state != REMOVED:
            try:
                self._acknowledged(*deferred)
            except Exception as error:
                self.lose(deferred[0], "an acknowledgement of the peer could not be processed", error)

    def _acknowledged(self, peer: Peer, acknowledged: int, now: float) -> None:
        """Process an acknowledgement that a message has carried."""
        sent = peer.sent.arrivedNext(acknowledged, now)
        if sent is None:
            self._segmentsArrived(peer, peer.sent.piggybackReceived(acknowledged, now), now)
            return
        self._segmentArrived(peer, sent)
        if peer.state != OPEN:
            self._finish(peer, now)
        if peer.usual or peer.urgent:
            self._makeReady(peer)
        else:
            channels = sent.path.channels
            hasOthers = bool(channels[1 - sent.channel].trail)
            timeout = SHORTEST_TIMEOUT if hasOthers else channels[sent.channel].roundTrip.timeout
            self._touch(peer, now + timeout)

    def _discard(self, peer: Peer, segment: BTLSegment, relation: int, now: float) -> None:
        """Count a duplicate, or a segment beyond the window, and acknowledge what was received."""
        if relation == ABOVE:
            self.counters.oowHighRecvs += 1
            peer.received.scheduleAck(now)
            return
        if relation == BELOW:
            self.counters.oowLowRecvs += 1
        else:
            self.counters.dupRecvs += 1
        peer.received.takeDuplicate(segment.sequence, segment.attempt, now)

    def _accept(self, peer: Peer, segment: BTLSegment, now: float) -> None:
        """Accept a new segment, refuse it, or drop it so that the peer retransmits it."""
        counters, received = self.counters, peer.received
        if segment.kind >= PLACED:
            placed = peer.placed(segment)
            if placed is None:
                self._refuse(peer, segment.sequence, isBad=True)
                return
            # If it has to wait for others, its bytes are copied, and the window does not bound them.
            if segment.sequence != received.following and peer.order.isFull(len(placed.payload)):
                counters.noMemoryRecvs += 1
                received.scheduleAck(now)
                return
            segment, self.hasPlaced = placed, True
            counters.rdmaRecvs += 1
        kind, payload = segment.kind, segment.payload
        assert isinstance(payload, memoryview)
        # Dropped, not refused: the peer retransmits it, and the connection may be established by then.
        if self._earlyLimits and kind not in (VOID, BYE) and not self._fitsEarly(peer, segment):
            counters.noMemoryRecvs += 1
            received.scheduleAck(now)
            return
        # Segments are entered before they are delivered, since the order of delivery depends on what has
        # arrived; a PUT only after its bytes are in memory, since a bad one is refused instead.
        if kind == FRAG and peer.state < ENDED:
            received.take(segment.sequence, segment.attempt, now)
            counters.fragRecvs += 1
            self._deliver(peer, segment, payload)
        elif kind == PACK and peer.state < ENDED:
            messages = decodePack(segment.tag, payload)
            if messages is None:
                self._refuse(peer, segment.sequence, isBad=True)
                return
            received.take(segment.sequence, segment.attempt, now)
            counters.packRecvs += 1
            peer.receivedBytes += len(payload) - len(messages) * ENTRY_LENGTH
            self._deliverPack(peer, segment.sequence, messages)
        elif kind == CHUNK and peer.state < ENDED:
            verdict = peer.assembly.check(segment, segment.sequence == received.following)
            if verdict == WRONG:
                self._refuse(peer, segment.sequence, isBad=True)
                return
            if verdict == OVER_BUDGET:
                counters.noMemoryRecvs += 1
                received.scheduleAck(now)
                return
            received.take(segment.sequence, segment.attempt, now)
            counters.chunkRecvs += 1
            whole = peer.assembly.take(segment, now)
            if whole is not None:
                self._deliver(peer, segment, memoryview(whole))
        elif kind == PUT and peer.state < ENDED:
            if not self.regions.write(segment, peer):
                self._refuse(peer, segment.sequence, isBad=True)
                return
            received.take(segment.sequence, segment.attempt, now)
            counters.fragRecvs += 1
        elif kind in (VOID, BYE):
            # In every state: the window cannot advance without them.
            received.take(segment.sequence, segment.attempt, now)
            if kind == BYE and peer.bye is None:
                peer.bye = segment.sequence
            elif kind == VOID and len(payload) >= NONCE_LENGTH:
                self._events.append(ProbeReceived(peer, bytes(payload[:NONCE_LENGTH])))
        else:
            self._refuse(peer, segment.sequence)
            return
        if received.spread > counters.maxRcvdWindowSize:
            counters.maxRcvdWindowSize = received.spread
        # The segment may have closed the gap for which messages behind it waited.
        while peer.order.waiting and (found := peer.order.next(received)) is not None:
            self._events.append(MessageReceived(peer, *found))

    def _fitsEarly(self, peer: Peer, segment: BTLSegment) -> bool:
        """
        Count received bytes of a peer whose connection is not established. Return False if they exceed the
        limit.
        """
        limits = self._earlyLimits.get(peer)
        if limits is None:
            return True
        length = len(segment.payload)
        if segment.kind == CHUNK:
            length = segment.total if peer.assembly.isNew(segment.fragment) else 0
        if length > limits.room:
            return False
        limits.room -= length
        return True

    def _deliver(self, peer: Peer, segment: BTLSegment, data: memoryview) -> None:
        """Deliver a complete message, or queue it until all earlier ones have arrived."""
        peer.receivedBytes += len(data)
        if not peer.received.hasAll(segment.sequence) and peer.order.appliesTo(segment.tag):
            peer.order.queue(segment.sequence, segment.tag, bytes(data) if data is segment.payload else data)
        else:
            self._events.append(MessageReceived(peer, segment.tag, data))

    def _deliverPack(self, peer: Peer, sequence: int, messages: list[tuple[int, memoryview]]) -> None:
        """Deliver the messages of one packet, except ordered ones that have to wait for earlier ones."""
        if not peer.received.hasAll(sequence):
            messages = peer.order.queueOrdered(sequence, messages)
        if messages:
            self._events.append(PackReceived(peer, messages))

    def _refuse(self, peer: Peer, sequence: int, isBad: bool = False) -> None:
        self.counters.refusedRecvs += 1
        self.counters.badfragRecvs += isBad
        self._owed.refusals.append((peer, sequence))

    def _segmentsArrived(self, peer: Peer, arrived: list[Sent] | None, now: float) -> bool:
        """Process an acknowledgement. Return False if it is invalid, so that its packet is dropped."""
        if arrived is None:
            return False
        try:
            for sent in arrived:
                self._segmentArrived(peer, sent)
        except Exception:  # the window does not know these segments any more
            for sent in arrived:
                if sent.message is not None and not sent.message.isOver:
                    self._fail(peer, sent.message, _NOT_PROCESSED)
            raise
        if arrived:
            self._finish(peer, now)
        if peer.state != OPEN or not peer.isIdle():
            self._makeReady(peer)
        else:
            self._touch(peer, inf)  # no deadline has become earlier
        return True

    def _segmentArrived(self, peer: Peer, sent: Sent) -> None:
        """Process the first acknowledgement of a segment; that of the last one completes its message."""
        message = sent.message
        if sent.placed >= 0:
            peer.release(sent)
        if message is None or message.isOver:
            return
        message.waiting -= 1
        if not message.waiting and message.begun == message.total:
            self._messageEnded(peer, message)
            if message.contexts:
                self._events += [
                    SendCompleted(peer, one) for one in message.contexts if one is not FAILURES_ONLY
                ]
            if peer.isWatched:
                self._events.append(SendCompleted(peer, FAILURES_ONLY))

    def _segmentRefused(self, peer: Peer, sequence: int) -> None:
        if (message := peer.sent.refused(sequence)) is not None and not message.isOver:
            peer.sent.void(message)
            self._fail(peer, message, "the peer has refused it")
        self._makeReady(peer)

    # Ends of messages and peers

    def _messageEnded(self, peer: Peer, message: Message) -> None:
        """Note that a message was acknowledged completely, or has failed."""
        message.isOver = True
        message.data = b""  # the program may resize its buffer
        peer.queuedBytes -= message.total
        if message.kind in (FRAG, PACK):
            peer.sentBytes += message.total

    def _fail(self, peer: Peer, message: Message, reason: str) -> None:
        self._messageEnded(peer, message)
        self._events.extend([SendFailed(peer, each, reason) for each in message.contexts])

    def _failAll(self, peer: Peer, reason: str) -> None:
        for message in peer.unfinished():
            self._fail(peer, message, reason)

    def _byeReceived(self, peer: Peer, now: float) -> None:
        """Process a BYE: the peer accepts no more messages, but those in flight may have arrived."""
        # The peer refuses what it has not received, so messages of which a part was sent are decided by that.
        peer.state, peer.lingerUntil = PEER_CLOSED, now + LINGER
        for message in peer.takeUnbegun():
            self._fail(peer, message, "the peer has closed")
        self._finish(peer, now)

    def _finish(self, peer: Peer, now: float) -> None:
        """Remove a closing peer when nothing is in flight any more."""
        if peer.state in (CLOSING, PEER_CLOSED) and peer.isIdle():
            peer.assembly.drop()
            peer.state, peer.lingerUntil = ENDED, now + LINGER
            self._events.append(PeerClosed(peer))

    def _forget(self, peer: Peer) -> None:
        peer.state, peer.receiveBuffer, peer.localReceiveBuffer = REMOVED, None, None
        del self._peers[peer.name]
        self._earlyLimits.pop(peer, None)
        self._owed.peers.pop(peer, None)
        peer.writing.clear()
        peer.written = 0
        peer.assembly.drop()
        peer.order.drop()
        peer.sent.drop()

    # Timers

    def batchEnded(self) -> None:
        """Note that all received packets are processed, so that acknowledgements are sent now."""
        self._owed.hasBatchEnded = True

    def isSettled(self, now: float) -> bool:
        """
        Process the deferred acknowledgement. Return whether nothing is left to report or to send, no deadline
        has changed, and no timer was missed.
        """
        if self._deferred is not None:
            self._catchUp()
        owed = self._owed
        return not (
            (self._events or self._ready or self._losing or self._probing)
            or (owed.peers or owed.refusals or self.unmarked)
        ) and self._times.isUnchanged(now)

    def deadline(self) -> float | None:
        """Time at which to call L{expired}, or earlier; then there may be nothing to do."""
        self._catchUp()
        earliest = self._times.earliest(self.lose)
        due = self._owed.deadline(self.credits)
        return due if earliest is None or (due is not None and due < earliest) else earliest

    def isDue(self, now: float) -> bool:
        """Return whether anything is due at C{now}: False if L{deadline} has only become later."""
        return self._times.due(now, self.lose) is not None or not self.isSettled(now)

    def expired(self, now: float) -> None:
        self._catchUp()
        self._times.earliest(self.lose)  # computes deadlines that may have changed
        while (peer := self._times.take(now, self.lose)) is not None:
            try:
                self._expire(peer, now)
            except Exception as error:
                self.lose(peer, _TIMER_FAILED, error)

    def _expire(self, peer: Peer, now: float) -> None:
        if peer.state >= PEER_CLOSED and peer.lingerUntil <= now:
            if peer.state == PEER_CLOSED:
                self._failAll(peer, "the peer has closed")
                self._events.append(PeerClosed(peer))
            self._forget(peer)
            return
        if peer.assembly.hasStopped(now):
            self.lose(peer, "the peer has stopped in the middle of a message")
        elif peer.sent.expired(now):
            if peer.state == CLOSING and not peer.unfinished():  # only the peer's BYE is missing
                self._forget(peer)
                self._events.append(PeerClosed(peer))
            else:
                self.lose(peer, "the peer does not answer")
        elif peer.state == OPEN and peer.needsKeepAlive(self._keepAlive, now):
            self._queue(peer, Message(VOID, 0, b"", None))
        else:
            self._makeReady(peer)
        if any(path.isProbeDue for path in peer.sent.paths):
            self._probing[peer] = None
        self._giveUpMarks(peer)

    # Outgoing packets and events

    @property
    def hasMoreLost(self) -> bool:
        """Whether L{outgoing} has left segments that may be retransmitted immediately."""
        losing = self._losing
        return bool(losing) and any(self._hasLost(each, self.credits) for each in tuple(losing))

    def _hasLost(self, peer: Peer, credits: Sequence[int] | None = None) -> bool:
        """Return whether segments to a peer may be retransmitted: see L{SendWindow.hasLost}."""
        try:
            return peer.state != REMOVED and peer.sent.hasLost(credits)
        except Exception as error:
            self.lose(peer, _NOT_REPEATED, error)
            return False

    @property
    def hasEvents(self) -> bool:
        return bool(self._events)

    def events(self) -> list[Event]:
        """
        Return and remove the pending events, in order; events of a deferred acknowledgement are returned
        separately.
        """
        if not self._events:
            self._catchUp()
        events, self._events = self._events, []
        self.hasPlaced = False
        return events

    def completed(self, channel: int, packets: int) -> None:
        """Return the credits of packets whose sends have completed."""
        self.credits[channel] += packets

    def outgoing(self, now: float, isEarly: bool = False) -> list[Packet]:
        """
        Return the packets to send in this reactor iteration; if there are L{MOST_PACKETS}, more may follow.

        @param isEarly: whether the iteration continues, so that more messages may join the last packet of a
            peer.
        """
        packets: list[Packet] = []
        self.isFull = False
        try:
            # Retransmissions first, because peers cannot acknowledge anything behind a gap cumulatively; new
            # segments before acknowledgements, because they carry acknowledgements that then need no packet.
            if self._losing:
                self._sendAgain(packets, now)
            if self._ready:
                self._sendNew(packets, now, isEarly)
            if self._probing:
                self._sendProbes(packets, now)
            if self._owed.refusals:
                self._owed.sendRefusals(packets, self.credits, self.lose)
            if self._owed.peers:
                self._owed.sendAcknowledgements(packets, self.credits, now, self.lose)
        except Exception:
            for each in packets:  # is not posted
                self.credits[each.channel] += 1
            raise
        if self._earlyLimits:
            packets = [each for each in packets if self._isAllowed(each)]
        if not packets and self._deferred is not None:
            self._catchUp()
            return self.outgoing(now, isEarly)
        self.counters.totalSends += len(packets)
        return packets

    def _isAllowed(self, packet: Packet) -> bool:
        """Count a packet to an address that is not validated. Return False if it exceeds the limit."""
        limits = self._earlyLimits.get(packet.peer)
        if limits is None:
            return True
        length = OVERHEAD + len(packet.head) + len(packet.payload)
        path = packet.peer.pathOf(packet.channel).number
        if length > limits.allowances[path]:
            self.credits[packet.channel] += 1
            return False
        limits.allowances[path] -= length
        return True

    def _makeReady(self, peer: Peer) -> None:
        """Let L{outgoing} send to a peer, if there is anything that its window permits."""
        self._times.touch(peer)
        if not peer.isLosing and peer.sent.hasLost():
            peer.isLosing = True
            self._losing.append(peer)
        if not peer.isReady and peer.hasQueued() and peer.sent.isOpen():
            peer.isReady = True
            self._ready.append(peer)

    def _sendAgain(self, packets: list[Packet], now: float) -> None:
        """Append retransmissions, of each peer in turn."""
        for _each in range(MOST_RESENDS):
            # Peers that have nothing more to retransmit are removed here only, when they come first.
            while self._losing and not self._hasLost(self._losing[0]):
                self._losing.popleft().isLosing = False
            if not self._losing:
                return
            peer = self._losing[0]
            self._losing.rotate(-1)
            try:
                path = peer.sent.retransmissionPath(self.credits)
                if path is not None:
                    self._emit(peer, peer.sent.retransmit(now, path), 2 * path.port + DATA, packets)
            except Exception as error:
                self.lose(peer, _NOT_REPEATED, error)

    def _sendProbes(self, packets: list[Packet], now: float) -> None:
        """Send probes of silent paths: copies of an acknowledged segment."""
        probing, self._probing = self._probing, {}
        for peer in probing:
            try:
                for path, sequence, attempt in peer.sent.probes(now) if peer.state != REMOVED else ():
                    acknowledged, channel = peer.received.acknowledged, 2 * path.port + DATA
                    head = encodeHead(VOID, peer.sender, sequence, acknowledged, 0, 0, attempt=attempt)
                    if self.credits[channel] > 1:
                        self.credits[channel] -= 1
                        packets.append(Packet(peer, channel, head, b""))
            except Exception as error:
                self.lose(peer, "a probe of the peer could not be made", error)
            self._times.touch(peer)

    def _sendNew(self, packets: list[Packet], now: float, isEarly: bool) -> None:
        """Append new segments, up to L{FAIR_SHARE} of each peer in turn, while windows and credits permit."""
        ready, credits = self._ready, self.credits
        while ready and len(packets) < MOST_PACKETS:
            peer = ready[0]
            for _each in range(FAIR_SHARE):
                sent: Sent | None = None
                try:
                    if peer.state == REMOVED or not (peer.hasQueued() and peer.sent.hasRoom()):
                        ready.popleft()
                        peer.isReady = False
                        break
                    # Later messages of this iteration may still share the packet of its only message.
                    if len(queue := peer.nextQueue()) == 1 and isEarly:
                        return
                    isWritten = peer.written > 0
                    first = queue[0] if queue and not isWritten else None
                    # A probe has its path already, and also uses it if that path is silent or full.
                    path = None if first is None else first.path
                    if path is None:
                        path = peer.sent.choose(credits)
                    if path is None:
                        # Without credits it stays first; with a full window an acknowledgement adds it again.
                        if peer.sent.isOpen():
                            return
                        ready.popleft()
                        peer.isReady = False
                        break
                    channel = 2 * path.port + (DATA if first is None else self._channelOf(first, path))
                    if credits[channel] <= 1:  # the last one of a command channel is for acknowledgements
                        return
                    sent = peer.takeWritten() if isWritten else peer.cut(queue)
                    if sent is not None:
                        peer.sent.add(sent, channel & 1, now, path)
                        self._emit(peer, sent, channel, packets)
                    elif not isWritten:
                        # C{resume}, C{written}, or an acknowledgement that frees space makes it ready
                        ready.popleft()
                        peer.isReady = False
                        break
                except Exception as error:  # the loop removes a lost peer from the ready list
                    # Neither the queue nor the window may know the message.
                    if sent is not None and sent.message is not None and not sent.message.isOver:
                        self._fail(peer, sent.message, "a segment could not be sent")
                    self.lose(peer, "a segment to the peer could not be made", error)
            else:
                ready.rotate(-1)  # the share is used up

    def _channelOf(self, message: Message, path: Path) -> int:
        """Choose the channel of a message's next segment: very short ones use the command channel."""
        length = message.packed - ENTRY_LENGTH if message.kind == PACK else message.total + HEADER_LENGTH
        isTiny = message.kind != PUT and length <= self._mtus[COMMAND]
        return COMMAND if isTiny and self.credits[2 * path.port + COMMAND] > 1 else DATA

    def _emit(self, peer: Peer, sent: Sent, channel: int, packets: list[Packet]) -> None:
        """Append the packet of a segment, which also carries a pending cumulative acknowledgement."""
        head, received = peer.head(sent), peer.received
        if received.isOwed:
            received.ackPiggybacked()
            if not received.isOwed:
                self._owed.peers.pop(peer, None)
        self.credits[channel] -= 1
        if not peer.isTouched:
            self._times.touch(peer)
        packets.append(Packet(peer, channel, head, sent.payload))
