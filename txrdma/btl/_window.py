"""
The send window of one peer: segments in flight, which of them have arrived, and which are sent again.

Every segment has a sequence number, and every transmission of it a number of its own, in order of time. A
segment is lost when a later transmission I{on the same channel} has arrived, and a round trip and some more
has passed since its own (RFC 8985): the two channels may overtake each other as they like. What nothing
overtakes waits for a timer. Transmissions stand in one queue for each channel, the oldest first, so that only
the first of these can be the next that is lost: both questions need one deadline.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Final

from txrdma.btl._congestion import Congestion
from txrdma.btl._counters import Counters
from txrdma.btl._receiving import difference, WINDOW
from txrdma.btl._roundtrip import RoundTrip
from txrdma.btl.wire import encodePack, ENTRY_LENGTH, FRAG, HEADER_LENGTH, PACK, Segment, VOID
from txrdma.kit.wire import Buffer

COMMAND: Final = 0
"""The channel of acknowledgements and of very small messages."""

DATA: Final = 1
"""The channel of everything else, and of all that is sent again."""

GIVE_UP: Final = 180.0
"""
Seconds without an acknowledgement of anything new after which a peer is lost: it may be busy for minutes.
"""

FEWEST_TRIES: Final = 5
"""Timeouts before a peer is lost, at least: a process that has slept for long gives its peers these."""

UNHEARD: Final = object()
"""The context of a message that is told of if it fails, and not when it has arrived."""

_ALONE: Final = 1 << 62
_SLOTS: Final = WINDOW - 1
_LONGEST_MAP: Final = WINDOW // 8


class Message:
    """
    A message or a put, or several small messages, from the call on until all of it has arrived.

    @ivar kind: of its segments, if it fits into one.
    @ivar total: bytes, of which C{begun} were made segments; C{waiting} segments of it have not arrived.
    @ivar packed: bytes of the packet that it makes with one more message, but for those of that message;
        more than any packet has where no other one may join it.
    @ivar tags: of the messages in a packet of several, until that is sealed, and C{bodies}: their bytes.
    @ivar contexts: of its senders, returned with the outcome.
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
        """Become a packet of several messages, the first of them: others are appended to its lists."""
        self.kind = PACK
        self.tags: list[int] = [self.tag]
        self.bodies: list[Buffer] = [self.data]

    def seal(self) -> None:
        """Make the bytes of the packet of several messages: no other one joins them any more."""
        self.tag, self.data = len(self.bodies), encodePack(self.tags, self.bodies)
        self.tags, self.bodies = [], []


class Sent:
    """
    A segment from its first transmission on, until it has arrived.

    @ivar ordinal: number of the segment, which unlike C{sequence} begins with zero and never begins anew.
    @ivar number: of its latest transmission, at C{sentAt} seconds, on C{channel}.
    @ivar isLost: whether it waits to be sent again; C{isLate}: because of the timer alone.
    @ivar placed: place of its bytes in the peer's receive buffer; -1 where they travel with it.
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

    @ivar base: the sequence number of the oldest segment that has not arrived; C{following}: of the next new
        one.
    @ivar inFlight: segments that have neither arrived nor are lost.
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

    def __init__(self, first: int, counters: Counters, giveUp: float = GIVE_UP) -> None:
        """
        @param first: the first sequence number, as announced to the peer.
        @param giveUp: seconds; see L{GIVE_UP}.
        """
        self.base = self.following = first & 0xFFFF
        self.inFlight = 0
        self.roundTrips = (RoundTrip(), RoundTrip())
        self.congestion = Congestion()
        self._counters = counters
        self._giveUp = giveUp
        self._slots: list[Sent | None] = [None] * WINDOW
        self._trails: tuple[deque[tuple[int, Sent]], ...] = (deque(), deque())
        self._newest = [0, 0]  # the newest transmission on each channel that has arrived
        self._progress = [0.0, 0.0]  # when the last one arrived; timers begin again then (RFC 6298, 5.3)
        self._lost: list[tuple[int, int, Sent]] = []  # a heap: the oldest segment goes first
        self._added = 0
        self._arrived = 0  # bit n is for base + n
        self._number = 0
        self._duplicates = self._resends = self._spurious = 0
        self._since = 0.0  # when the oldest segment became that
        self._timeouts = 0  # since then

    @property
    def outstanding(self) -> int:
        """Number of sequence numbers from the oldest segment that has not arrived on."""
        return (self.following - self.base) & 0xFFFF

    def isOpen(self) -> bool:
        """True if a new segment may be sent; if congestion prevents it, record that there was one."""
        if self.inFlight >= self.congestion.size:
            self.congestion.filled()
            return False
        return (self.following - self.base) & 0xFFFF < WINDOW

    def add(self, sent: Sent, channel: int, now: float) -> None:
        """Give a new segment its sequence number; it goes out on this channel."""
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
        """True if a segment has to be sent again and congestion allows it."""
        lost = self._lost
        while lost and (lost[0][2].isArrived or not lost[0][2].isLost):
            heappop(lost)
        return bool(lost) and self.inFlight < self.congestion.size

    def again(self, now: float) -> Sent:
        """Take the first segment that is to be sent again, which L{hasLost} has found; it goes by L{DATA}."""
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
        """True if everything up to this number was sent."""
        return difference(acknowledged, self.base) < (self.following - self.base) & 0xFFFF

    def acknowledged(self, ack: Segment, now: float) -> list[Sent] | None:
        """
        Take an acknowledgement that is a packet of its own.

        @return: segments that have arrived now; None when that acknowledges what was never sent.
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
        Take an acknowledgement that came beside another segment.

        @return: see L{acknowledged}.
        """
        count = difference(acknowledged, self.base)
        if count >= (self.following - self.base) & 0xFFFF:
            self._counters.badAckRecvs += 1
            return None
        return self._arrive(count, 0, acknowledged, 1, now)

    def arrivedNext(self, acknowledged: int, now: float) -> Sent | None:
        """
        Take an acknowledgement beside another segment, if it tells of one segment, of which all is as usual.

        The usual is that this is the oldest one, sent once and not overtaken, and nothing is lost: no
        deadline is sooner then.

        @return: the segment; None where nothing was done, and L{acknowledgedBeside} has to do it.
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
        if number < self._newest[channel]:  # a resend behind it has arrived: others may be overtaken, too
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
        """Record what has arrived: all up to C{base + count}, and behind a gap what a bitmap says."""
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
        """Wait on for what the timer has found lost: one of these has arrived, and was not sent again."""
        self.congestion.spurious()
        late = [entry[2] for entry in self._lost if entry[2].isLost and entry[2].isLate]
        for sent in sorted(late, key=lambda each: each.number, reverse=True):
            if sent.isLost and not sent.isArrived:  # it may stand there twice
                sent.isLost = sent.isLate = False
                self.inFlight += 1
                self._trails[sent.channel].appendleft((sent.number, sent))  # before all that are there

    def _learn(self, found: list[Sent], latest: int, attempt: int, now: float) -> None:
        newest = 0
        for sent in found:
            number, channel = sent.number, sent.channel
            self.roundTrips[channel].answered()
            if sent.sequence == latest and sent.tries & 0x7F == attempt:
                self._measured(channel, now - sent.sentAt, now)
            elif sent.tries > 1 and now - sent.sentAt < self.roundTrips[channel].base:
                continue  # that was an earlier transmission
            self._progress[channel] = now
            if number > newest:
                newest = number
            if number > self._newest[channel]:
                self._newest[channel] = number
        self._overtaken(now)
        self.congestion.arrived(len(found), newest, self._number + 1, self.roundTrips[DATA].base)

    def _measured(self, channel: int, seconds: float, now: float) -> None:
        """Take the round trip of a segment whose transmission is known (which is better than Karn's rule)."""
        self.roundTrips[channel].measured(seconds, now)
        self.roundTrips[1 - channel].measured(seconds, now, False)
        if channel == DATA:
            self.congestion.measured(seconds)

    def _countDuplicates(self, duplicates: int) -> None:
        more = difference(duplicates, self._duplicates)
        if more <= 0:
            return
        self._duplicates = duplicates
        spurious = min(more, self._resends - self._spurious)  # others the network has doubled
        if spurious > 0:
            self._spurious += spurious
            self._counters.spuriousResends += spurious
            for roundTrip in self.roundTrips:
                roundTrip.spurious()

    def _overtaken(self, now: float) -> None:
        """Send again what others on its channel have overtaken for long enough."""
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
        Put a L{VOID} in the place of a segment that the peer does not take, and send that.

        @return: the message whose segment it was; None if no such segment is in flight.
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
        """Send nothing of a message any more: its segments that have not arrived become L{VOID}."""
        for sent in self._slots:
            if sent is not None and sent.message is message:
                sent.kind, sent.payload, sent.message = VOID, b"", None

    def deadline(self) -> float | None:
        """Time at which something may be lost if nothing arrives; None if nothing is in flight."""
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
        Find segments that are lost by now.

        @return: whether the peer is lost: it was silent for too long.
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
        """True if the peer has been silent for so long that it may be given up."""
        return self._timeouts >= FEWEST_TRIES and now >= self._since + self._giveUp

    def unfinished(self) -> list[Message]:
        """Messages with segments that have not arrived, each once, in no order."""
        found: dict[int, Message] = {}
        for sent in self._slots:
            if sent is not None and sent.message is not None:
                found[id(sent.message)] = sent.message
        return list(found.values())
