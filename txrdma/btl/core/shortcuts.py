"""
Fast paths of a module for single messages, which are sent and delivered immediately.

In a request-response protocol most messages are single: nothing else is queued for their peer or in flight to
it. As in Open MPI's usnic component, there is an inline path for sending and a fast path for receiving, with
deferred bookkeeping. All other cases use the general path, which gives the same results.

Windows, sequence numbers and acknowledgements are the same as on the general path. The acknowledgement that a
message carries is processed after the user has answered; a timer that expires early enough is not moved.
This saves about a third of the processor time of a round trip of 64 bytes over shared memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from txrdma.btl.core.counters import ModuleCounters
from txrdma.btl.core.events import Event, MessageReceived
from txrdma.btl.core.marks import CE, NOT_ECT
from txrdma.btl.core.path import COMMAND, DATA, Message, Sent
from txrdma.btl.core.peer import OPEN, Peer
from txrdma.btl.core.pendingacks import PendingAcks
from txrdma.btl.core.timetable import Timetable
from txrdma.btl.wire import decodePlain, encodeFragment, FRAG, HEADER_LENGTH, SEQUENCE_MASK
from txrdma.kit.wire import Buffer


class EarlyLimits:
    """
    The limits of a peer whose connection is not established.

    @ivar allowances: bytes that may be sent to the peer's address, for each path; unlimited when the address
        is validated.
    @ivar room: bytes of its messages that are still accepted; the peer must retransmit others later.
    """

    __slots__ = ("allowances", "room")

    def __init__(self, allowances: list[int], room: int) -> None:
        self.allowances, self.room = allowances, room


class FastPath:
    """
    The fast path: a message for which nothing else is queued skips the queues and timers of the module.

    @ivar credits: packets that may still be posted on each channel.
    @ivar hasPlaced: pending events refer to bytes in a receive buffer, which must not be acknowledged before
        they are processed.
    """

    def __init__(
        self, mtus: tuple[int, int], credits: Sequence[int], keepAlive: float, rooms: Sequence[int]
    ) -> None:
        self.counters = ModuleCounters()
        self.credits = list(credits)
        self.hasPlaced = False
        self._mtus = mtus
        self._peers: dict[int, Peer] = {}
        self._earlyLimits: dict[Peer, EarlyLimits] = {}
        self._owed = PendingAcks(self.counters, rooms)
        self._times = Timetable(keepAlive)
        self._events: list[Event] = []
        self._deferred: tuple[Peer, int, float] | None = None  # an acknowledgement that a message carried

    def sendFast(self, peer: Peer, tag: int, data: Buffer) -> tuple[int, bytes, bytes] | None:
        """
        Make the packet of a single message: nothing is queued, and everything sent has been acknowledged.

        @return: channel, head and bytes of the packet, which the caller must post and report to L{sentFast}
            before any other call of the module; None if the message needs the general path.
        """
        sent = peer.sent
        following = sent.following
        if following != sent.base:  # a packet of this reactor iteration may have acknowledged the last one
            deferred = self._deferred
            if deferred is None or deferred[0] is not peer or deferred[1] + 1 & SEQUENCE_MASK != following:
                return None
        length = len(data)
        whole = length + HEADER_LENGTH
        if (
            peer.usual
            or peer.urgent
            or peer.writing
            or peer.state != OPEN
            or whole > peer.mtu
            or not 0 <= tag <= 0xFFFF
        ):
            return None
        # Its packets count against the limit of an address that is not validated.
        if self._earlyLimits and peer in self._earlyLimits:
            return None
        paths = sent.paths
        if len(paths) > 1:
            path = sent.choose()
        else:
            path = paths[0] if paths[0].isFree() else None
        # The packet would acknowledge placed bytes that the program has not processed yet.
        if self.hasPlaced or path is None:
            return None
        channel = 2 * path.port + (COMMAND if whole <= self._mtus[COMMAND] else DATA)
        if self.credits[channel] <= 1:
            return None
        payload = data if type(data) is bytes else bytes(data)
        acknowledged = peer.received.following - 1 & SEQUENCE_MASK
        head = encodeFragment(peer.sender, following, acknowledged, tag, length, 1)
        return channel, head, payload

    def sentFast(
        self,
        peer: Peer,
        channel: int,
        tag: int,
        payload: bytes,
        context: object,
        now: float,
        completed: int = 0,
    ) -> None:
        """
        Record a message whose packet L{sendFast} has made: it is in flight and may have arrived.

        @param context: see L{Module.send<txrdma.btl.core.module.Module.send>}.
        @param completed: 1 if the send of the packet has completed already, so that it takes no credit.
        """
        message = Message(FRAG, tag, payload, context)
        message.begun, message.waiting = message.total, 1
        peer.queuedBytes += message.total
        path = peer.pathOf(channel)
        peer.sent.add(Sent(FRAG, tag, payload, message), channel & 1, now, path)
        received = peer.received
        if received.isOwed and not received.isUrgent:  # the packet carries the acknowledgement
            received.isOwed = False
            self._owed.peers.pop(peer, None)
        timeout = path.channels[channel & 1].roundTrip.timeout
        self._touch(peer, now if path.opensAt else now + timeout)
        self.credits[channel] -= 1 - completed
        counters = self.counters
        counters.fragSends += 1
        counters.totalSends += 1

    def _touch(self, peer: Peer, earliest: float) -> None:
        """Note activity of a peer, none of whose deadlines has become earlier than this time."""
        wakeAt = peer.wakeAt
        if wakeAt is None or wakeAt > earliest:
            self._times.touch(peer)

    def receiveFast(
        self, channel: int, address: Hashable, packet: memoryview, now: float, codepoint: int = NOT_ECT
    ) -> MessageReceived | None:
        """
        Process a packet if it is the next message in sequence and nothing else has to be reported.

        @return: the event, which L{Module.events<txrdma.btl.core.module.Module.events>} does not return
            again; None if the packet was not processed and needs the general path.
        """
        # Only one acknowledgement can be deferred, earlier events come first, and a mark is reported at once.
        if self._deferred is not None or self._events or codepoint == CE:
            return None
        plain = decodePlain(packet)
        if plain is None:
            return None
        attempt, tag, name, sequence, acknowledged, payload = plain
        peer = self._peers.get(name)
        if peer is None or peer.state != OPEN or peer.addresses[channel] != address:
            return None
        if self._earlyLimits and peer in self._earlyLimits:
            return None
        base, isNews = peer.sent.base, False
        # Old and impossible acknowledgements are left to the general path, which counts them.
        if acknowledged + 1 & SEQUENCE_MASK != base:
            isNews = acknowledged - base & SEQUENCE_MASK < peer.sent.following - base & SEQUENCE_MASK
            if not isNews:
                return None
        # Beyond a gap, or in front of messages that wait for it, more than this message has to be processed.
        if peer.order.waiting or not peer.received.takeNext(sequence, attempt, now):
            return None
        if isNews:
            self._deferred = peer, acknowledged, now
        self._owed.peers[peer] = None
        peer.receivedAt, peer.answerOn = now, channel & ~1
        peer.receivedBytes += len(payload)
        if codepoint != NOT_ECT:
            peer.pathOf(channel).marks.count(codepoint)
        # Deadlines only become later by this, so a peer that has a timer keeps it.
        if peer.wakeAt is None:
            self._times.touch(peer)
        counters = self.counters
        counters.totalRecvs += 1
        counters.fragRecvs += 1
        return MessageReceived(peer, tag, payload)
