"""
The send window of one peer: segments in flight, their acknowledgement and retransmission.

Theory of operation. Every segment has a sequence number, and every transmission a number in order of time. A
segment is considered lost when a later transmission I{on the same channel} has arrived and somewhat more than
a round trip has passed since its own transmission (RFC 8985); the two channels may overtake each other.
Segments without later acknowledgements wait for the retransmission timer. Each channel has one queue of
transmissions, the oldest first. Only the first one can be lost next, so that one deadline serves both cases.
Entries of segments that were retransmitted or have arrived are skipped when they come first.

A segment is in flight, lost (waiting for retransmission within the congestion window), or arrived.
Acknowledged sequence numbers behind a gap are bits relative to C{base}, which advances when its own bit is
set. A segment that the peer refuses, or whose message was given up, is replaced by an empty one of the same
number, because the peer's window cannot skip a number. An acknowledgement of segments that were never sent is
a violation.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Final

from txrdma.btl.core.congestion import Congestion
from txrdma.btl.core.counters import ModuleCounters
from txrdma.btl.core.receiving import difference, WINDOW
from txrdma.btl.core.roundtrip import RoundTripEstimate
from txrdma.btl.wire import encodePack, ENTRY_LENGTH, FRAG, HEADER_LENGTH, PACK, Segment, VOID
from txrdma.kit.wire import Buffer

COMMAND: Final = 0
"""The channel of acknowledgements and of very small messages."""

DATA: Final = 1
"""The channel of everything else, and of all retransmissions."""

GIVE_UP: Final = 180.0
"""
Seconds without a new acknowledgement after which a peer is lost: it may be busy for minutes.
"""

FEWEST_TRIES: Final = 5
"""Smallest number of timeouts before a peer is lost, also after this process was suspended for long."""

UNHEARD: Final = object()
"""The context of a message of which only a failure is reported."""

_ALONE: Final = 1 << 62
_SLOTS: Final = WINDOW - 1
_LONGEST_MAP: Final = WINDOW // 8


class Message:
    """
    A message, a put or several small messages in one packet, until everything has arrived.

    @ivar kind: kind of its segment, if it fits into one.
    @ivar total: length in bytes, of which C{begun} were cut into segments; C{waiting}: number of
        unacknowledged segments.
    @ivar packed: bytes of the packet with an entry for one more message, without that message's bytes; larger
        than any packet if no other message may join.
    @ivar tags: tags of the messages in a packet of several, until it is sealed; C{bodies}: their bytes.
    @ivar contexts: the contexts of its senders, returned with the result.
    """

    __slots__ = (
        *("begun", "bodies", "contexts", "data", "fragment", "isOver", "kind", "offset", "packed"),
        *("region", "tag", "tags", "total", "waiting"),
    )

    def __init__(
        self,
        kind: int,
        tag: int,
        data: Buffer,
        context: object,
        region: int = 0,
        offset: int = 0,
    ) -> None:
        self.kind, self.tag, self.data, self.region, self.offset = kind, tag, data, region, offset
        self.contexts = [] if context is None else [context]
        self.total = len(data)
        self.packed = HEADER_LENGTH + 2 * ENTRY_LENGTH + self.total if kind == FRAG else _ALONE
        self.fragment = self.begun = self.waiting = 0
        self.isOver = False

    def open(self) -> None:
        """Become the first message of a packet of several; others are appended to its lists."""
        self.kind = PACK
        self.tags: list[int] = [self.tag]
        self.bodies: list[Buffer] = [self.data]

    def seal(self) -> None:
        """Encode the packet of several messages, after which none can join."""
        self.tag, self.data = len(self.bodies), encodePack(self.tags, self.bodies)
        self.tags, self.bodies = [], []


class Sent:
    """
    A segment from its first transmission until it has arrived.

    @ivar ordinal: number of the segment, which unlike C{sequence} begins with zero and does not wrap.
    @ivar number: number of its latest transmission, at C{sentAt} seconds on C{channel}.
    @ivar isLost: whether it waits for its retransmission; C{isLate}: only because of the timer.
    @ivar placed: position of its bytes in the peer's receive buffer; -1 if the packet contains them.
    """

    __slots__ = (
        *(
            "channel",
            "fragment",
            "isArrived",
            "isLate",
            "isLost",
            "kind",
            "placed",
            "message",
            "number",
            "offset",
            "ordinal",
        ),
        *("payload", "region", "sentAt", "sequence", "tag", "total", "tries"),
    )

    def __init__(
        self,
        kind: int,
        tag: int,
        payload: Buffer,
        message: Message | None,
        fragment: int = 0,
        total: int = 0,
        region: int = 0,
        offset: int = 0,
    ) -> None:
        self.kind, self.tag, self.payload, self.message = kind, tag, payload, message
        self.fragment, self.total, self.region, self.offset = fragment, total, region, offset
        self.sequence = self.ordinal = self.number = self.channel = self.tries = 0
        self.placed = -1
        self.sentAt = 0.0
        self.isArrived = self.isLate = self.isLost = False


class SendWindow:
    """
    The send window of one peer.

    @ivar base: sequence number of the oldest unacknowledged segment; C{following}: of the next new one.
    @ivar inFlight: number of segments that are neither acknowledged nor lost.
    """

    __slots__ = (
        *(
            "_added",
            "_arrived",
            "_counters",
            "_duplicates",
            "_giveUp",
            "_lost",
            "_newest",
            "_number",
            "_progress",
            "_resends",
            "_since",
        ),
        *("_slots", "_spurious", "_timeouts", "_trails", "base", "congestion", "following", "inFlight"),
        "roundTrips",
    )

    def __init__(self, first: int, counters: ModuleCounters, giveUp: float = GIVE_UP) -> None:
        """
        @param first: first sequence number, as announced to the peer.
        @param giveUp: seconds; see L{GIVE_UP}.
        """
        self.base = self.following = first & 0xFFFF
        self.inFlight = 0
        self.roundTrips = (RoundTripEstimate(), RoundTripEstimate())
        self.congestion = Congestion()
        self._counters = counters
        self._giveUp = giveUp
        self._slots: list[Sent | None] = [None] * WINDOW
        self._trails: tuple[deque[tuple[int, Sent]], ...] = (deque(), deque())
        self._newest = [0, 0]  # the newest transmission on each channel that has arrived
        self._progress = [0.0, 0.0]  # when the last one arrived; timers begin again then (RFC 6298, 5.3)
        self._lost: list[tuple[int, int, Sent]] = []  # a heap: the oldest segment is sent first
        self._added = 0
        self._arrived = 0  # bit n is for base + n
        self._number = 0
        self._duplicates = self._resends = self._spurious = 0
        self._since = 0.0  # when the oldest segment became the oldest
        self._timeouts = 0  # since then

    @property
    def outstanding(self) -> int:
        """Number of sequence numbers from the oldest unacknowledged segment to the newest one."""
        return (self.following - self.base) & 0xFFFF

    def isOpen(self) -> bool:
        """Return whether a new segment may be sent. If the congestion window prevents it, record that."""
        if self.inFlight >= self.congestion.size:
            self.congestion.filled()
            return False
        return (self.following - self.base) & 0xFFFF < WINDOW

    def add(self, sent: Sent, channel: int, now: float) -> None:
        """Enter a new segment, sent on this channel, with the next sequence number."""
        if self.following == self.base:
            self._since, self._timeouts = now, 0
        sent.sequence, sent.ordinal = self.following, self._added
        self._added += 1
        self._slots[self.following & _SLOTS] = sent
        self.following = (self.following + 1) & 0xFFFF
        outstanding = (self.following - self.base) & 0xFFFF
        if outstanding > self._counters.maxSentWindowSize:
            self._counters.maxSentWindowSize = outstanding
        self._transmit(sent, channel, now)

    def hasLost(self) -> bool:
        """Return whether a segment has to be retransmitted and the congestion window allows it."""
        lost = self._lost
        while lost and (lost[0][2].isArrived or not lost[0][2].isLost):
            heappop(lost)
        return bool(lost) and self.inFlight < self.congestion.size

    def again(self, now: float) -> Sent:
        """Return the first segment to retransmit, on L{DATA}. Call L{hasLost} first."""
        sent = heappop(self._lost)[2]
        self._resends += 1
        self._counters.resends += 1
        self._transmit(sent, DATA, now)
        return sent

    def _transmit(self, sent: Sent, channel: int, now: float) -> None:
        self._number += 1
        sent.number, sent.channel, sent.sentAt, sent.isLost = self._number, channel, now, False
        sent.tries += 1
        sent.isLate = False
        self.inFlight += 1
        self._trails[channel].append((self._number, sent))

    def mayBe(self, acknowledged: int) -> bool:
        """Return whether everything up to this sequence number was sent."""
        return difference(acknowledged, self.base) < (self.following - self.base) & 0xFFFF

    def acknowledged(self, ack: Segment, now: float) -> list[Sent] | None:
        """
        Process an acknowledgement that was sent as a separate packet.

        @return: segments that it acknowledges for the first time; None if it acknowledges segments that were
            never sent.
        """
        assert ack.acknowledged is not None
        count = difference(ack.acknowledged, self.base)
        outstanding = (self.following - self.base) & 0xFFFF
        if len(ack.payload) > _LONGEST_MAP:
            self._counters.badAckRecvs += 1
            return None
        beyond = int.from_bytes(ack.payload, "little")
        if count >= outstanding or (beyond and count + 1 + beyond.bit_length() >= outstanding):
            self._counters.badAckRecvs += 1
            return None
        self._countDuplicates(ack.duplicates)
        if count == -1:
            self._counters.dupAcks += 1
        return self._arrive(count, beyond, ack.latest, ack.latestAttempt, now)

    def acknowledgedBeside(self, acknowledged: int, now: float) -> list[Sent] | None:
        """
        Process an acknowledgement that another segment carried.

        @return: see L{acknowledged}.
        """
        count = difference(acknowledged, self.base)
        if count >= (self.following - self.base) & 0xFFFF:
            self._counters.badAckRecvs += 1
            return None
        return self._arrive(count, 0, acknowledged, 1, now)

    def arrivedNext(self, acknowledged: int, now: float) -> Sent | None:
        """
        Process an acknowledgement that another segment carried, in the usual case of a single segment.

        In the usual case this is the oldest segment, sent once and not overtaken, and nothing is lost. Then
        no deadline becomes earlier.

        @return: the segment; None if the case is not usual and L{acknowledgedBeside} has to be called.
        """
        base = self.base
        if acknowledged != base or self._arrived or self._lost or self.following == base:
            return None
        sent = self._slots[base & _SLOTS]
        if sent is None or sent.tries != 1 or sent.isLost:
            return None
        channel, number = sent.channel, sent.number
        beside = self._trails[1 - channel]
        if beside and beside[0][0] <= self._newest[1 - channel]:
            return None
        if number < self._newest[channel]:  # a later retransmission has arrived: others may be overtaken, too
            return None
        self._slots[base & _SLOTS] = None
        sent.isArrived = True
        self.inFlight -= 1
        self.base = (base + 1) & 0xFFFF
        self._since, self._timeouts = now, 0
        self.roundTrips[channel].answered()
        self._measured(channel, now - sent.sentAt, now)
        self._progress[channel], self._newest[channel] = now, number
        trail = self._trails[channel]
        while trail and trail[0][0] <= number:
            trail.popleft()
        self.congestion.arrived(1, number, self._number + 1, self.roundTrips[DATA].base)
        return sent

    def _arrive(self, count: int, beyond: int, latest: int, attempt: int, now: float) -> list[Sent]:
        """Record arrived segments: all up to C{base + count}, and those of the bitmap behind a gap."""
        if count < -1:
            self._counters.oldDupAcks += 1
            return []
        marks = self._arrived | ((1 << (count + 1)) - 1) | (beyond << (count + 2))
        fresh = marks ^ self._arrived
        if not fresh:
            return []
        found = self._mark(fresh)
        run = (~marks & (marks + 1)).bit_length() - 1
        self.base = (self.base + run) & 0xFFFF
        self._arrived = marks >> run
        if run:
            self._since, self._timeouts = now, 0
        self._learn(found, latest, attempt, now)
        return found

    def _mark(self, fresh: int) -> list[Sent]:
        found: list[Sent] = []
        wasLate = False
        while fresh:
            low = fresh & -fresh
            fresh ^= low
            slot = (self.base + low.bit_length() - 1) & _SLOTS
            sent = self._slots[slot]
            if sent is not None:
                self._slots[slot] = None
                sent.isArrived = True
                if not sent.isLost:
                    self.inFlight -= 1
                elif sent.isLate:
                    wasLate = True
                found.append(sent)
        if wasLate:
            self._await()
        return found

    def _await(self) -> None:
        """
        Do not retransmit the other segments of a spurious timeout: one of them has arrived before its
        retransmission.
        """
        self.congestion.spurious()
        late = [entry[2] for entry in self._lost if entry[2].isLost and entry[2].isLate]
        for sent in sorted(late, key=lambda each: each.number, reverse=True):
            if sent.isLost and not sent.isArrived:  # it may be queued twice
                sent.isLost = sent.isLate = False
                self.inFlight += 1
                self._trails[sent.channel].appendleft((sent.number, sent))  # before all queued ones

    def _learn(self, found: list[Sent], latest: int, attempt: int, now: float) -> None:
        newest = 0
        for sent in found:
            number, channel = sent.number, sent.channel
            self.roundTrips[channel].answered()
            if sent.sequence == latest and sent.tries & 0x7F == attempt:
                self._measured(channel, now - sent.sentAt, now)
            elif sent.tries > 1 and now - sent.sentAt < self.roundTrips[channel].base:
                continue  # an earlier transmission
            self._progress[channel] = now
            if number > newest:
                newest = number
            if number > self._newest[channel]:
                self._newest[channel] = number
        self._overtaken(now)
        self.congestion.arrived(len(found), newest, self._number + 1, self.roundTrips[DATA].base)

    def _measured(self, channel: int, seconds: float, now: float) -> None:
        """
        Measure the round trip of a segment whose transmission is known (which is better than Karn's rule).
        """
        self.roundTrips[channel].measured(seconds, now)
        self.roundTrips[1 - channel].measured(seconds, now, False)
        if channel == DATA:
            self.congestion.measured(seconds)

    def _countDuplicates(self, duplicates: int) -> None:
        more = difference(duplicates, self._duplicates)
        if more <= 0:
            return
        self._duplicates = duplicates
        spurious = min(more, self._resends - self._spurious)  # the network has duplicated the others
        if spurious > 0:
            self._spurious += spurious
            self._counters.spuriousResends += spurious
            for roundTrip in self.roundTrips:
                roundTrip.spurious()

    def _overtaken(self, now: float) -> None:
        """Mark segments lost when later ones of their channel arrived long enough ago."""
        lost = 0
        for channel in (COMMAND, DATA):
            trail, newest = self._trails[channel], self._newest[channel]
            delay = self.roundTrips[channel].overtaken()
            while trail:
                number, sent = trail[0]
                if not (sent.isArrived or sent.isLost or sent.number != number):
                    if number > newest or sent.sentAt + delay > now:
                        break
                    self._lose(sent)
                    lost += 1
                trail.popleft()
        if lost:
            self._counters.fastRetrans += lost
            self.congestion.lost(lost)
            for roundTrip in self.roundTrips:
                roundTrip.recovered()

    def _lose(self, sent: Sent) -> None:
        sent.isLost = True
        self.inFlight -= 1
        heappush(self._lost, (sent.ordinal, sent.number, sent))

    def refused(self, sequence: int) -> Message | None:
        """
        Replace a segment that the peer has refused by a L{VOID}, and send that.

        @return: the message of the segment; None if no such segment is in flight.
        """
        if difference(sequence, self.base) < 0 or difference(sequence, self.following) >= 0:
            return None
        sent = self._slots[sequence & _SLOTS]
        if sent is None or sent.kind == VOID:
            return None
        message = sent.message
        self._counters.refusedSends += 1
        sent.kind, sent.payload, sent.message = VOID, b"", None
        if not sent.isLost:
            self._lose(sent)
        return message

    def void(self, message: Message) -> None:
        """Stop sending a message: its unacknowledged segments become L{VOID}."""
        for sent in self._slots:
            if sent is not None and sent.message is message:
                sent.kind, sent.payload, sent.message = VOID, b"", None

    def deadline(self) -> float | None:
        """Time at which a segment may be considered lost if nothing arrives; None if nothing is in flight."""
        earliest: float | None = None
        for channel in (COMMAND, DATA):
            trail = self._trails[channel]
            while trail:
                number, sent = trail[0]
                if not (sent.isArrived or sent.isLost or sent.number != number):
                    at = max(sent.sentAt, self._progress[channel]) + self.roundTrips[channel].timeout
                    if number <= self._newest[channel]:
                        at = min(at, sent.sentAt + self.roundTrips[channel].overtaken())
                    if earliest is None or at < earliest:
                        earliest = at
                    break
                trail.popleft()
        return earliest

    def expired(self, now: float) -> bool:
        """
        Mark segments lost whose deadline has passed.

        @return: whether the peer is lost, because it has not answered for too long.
        """
        self._overtaken(now)
        timedOut = 0
        for channel in (COMMAND, DATA):
            trail, timeout, before = self._trails[channel], self.roundTrips[channel].timeout, timedOut
            while trail:
                number, sent = trail[0]
                if not (sent.isArrived or sent.isLost or sent.number != number):
                    if max(sent.sentAt, self._progress[channel]) + timeout > now:
                        break
                    sent.isLate = True
                    self._lose(sent)
                    timedOut += 1
                trail.popleft()
            if timedOut > before:
                self.roundTrips[channel].expired()
        if not timedOut:
            return False
        self._timeouts += 1
        self._counters.timeoutRetrans += timedOut
        self.congestion.silent()
        return self.isSilent(now)

    def isSilent(self, now: float) -> bool:
        """Return whether the peer has not answered for so long that it may be considered lost."""
        return self._timeouts >= FEWEST_TRIES and now >= self._since + self._giveUp

    def unfinished(self) -> list[Message]:
        """Return the messages with unacknowledged segments, each once, in no particular order."""
        found: dict[int, Message] = {}
        for sent in self._slots:
            if sent is not None and sent.message is not None:
                found[id(sent.message)] = sent.message
        return list(found.values())
