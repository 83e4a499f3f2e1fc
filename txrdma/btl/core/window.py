"""
The send window of one peer: segments in flight, their acknowledgement and retransmission, and giving up a
peer that does not answer.

Theory of operation. Every segment has a sequence number, and every transmission a number in order of time. A
segment is considered lost when a later transmission I{on the same channel} has arrived and somewhat more than
a round trip has passed since its own transmission (RFC 8985); the channels may overtake each other.
Segments without later acknowledgements wait for the retransmission timer. Each channel has one queue of
transmissions, the oldest first. Only the first one can be lost next, so that one deadline serves both cases.
Entries of segments that were retransmitted or have arrived are skipped when they come first.

A window has one or several paths, with two channels each. A segment uses the path that delivers it first. If
nothing arrives on a path for more than a round trip, although segments that were sent later on other paths
arrive, the path is silent: what is in flight on it is sent again on the others.

A segment is in flight, lost (waiting for retransmission within the congestion window), or arrived.
Acknowledged sequence numbers behind a gap are bits relative to C{base}, which advances when its own bit is
set. A segment that the peer refuses, or whose message was given up, is replaced by an empty one of the same
number, because the peer's window cannot skip a number. An acknowledgement of segments that were never sent is
a violation.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from txrdma.btl.core.congestion import NARROWEST
from txrdma.btl.core.counters import ModuleCounters
from txrdma.btl.core.path import DATA, Message, Path, Sent, Transmissions
from txrdma.btl.core.receiving import difference, WINDOW
from txrdma.btl.wire import BTLSegment, SEQUENCE_MASK, VOID

GIVE_UP: Final = 180.0
"""
Seconds without a new acknowledgement after which a peer is lost: it may be busy for minutes.
"""

FEWEST_TRIES: Final = 5
"""Smallest number of timeouts before a peer is lost, also after this process was suspended for long."""

SKEW: Final = 0.001
"""
Seconds that a path may be later than others before it is silent: a peer reads its channels one by one.
"""

_LONGEST_MAP: Final = WINDOW // 8


class SendWindow:
    """
    The send window of one peer.

    @ivar base: sequence number of the oldest unacknowledged segment; C{following}: of the next new one.
    @ivar paths: the paths to the peer.
    """

    __slots__ = (
        *("_added", "_arrived", "_baseSince", "_counters", "_duplicates", "_giveUp", "_lost", "_number"),
        *("_resends", "_slots", "_spurious", "_timeouts", "base", "following", "paths"),
    )

    def __init__(
        self, first: int, counters: ModuleCounters, giveUp: float = GIVE_UP, ports: Sequence[int] = (0,)
    ) -> None:
        """
        @param first: first sequence number, as announced to the peer.
        @param giveUp: seconds; see L{GIVE_UP}.
        @param ports: numbers of the ports of the module that reach the peer, one for each path.
        """
        self.base = self.following = first & SEQUENCE_MASK
        self.paths = tuple([Path(number, port, first / 1021) for number, port in enumerate(ports)])
        self._counters = counters
        self._giveUp = giveUp
        self._slots: dict[int, Sent] = {}  # unacknowledged segments by sequence number
        self._lost: list[tuple[int, int, Sent]] = []  # a heap: the oldest segment is sent first
        self._added = 0  # segments so far: the next ordinal
        self._number = 0  # transmissions so far
        self._arrived = 0  # bit n is for base + n
        self._duplicates = 0  # as the peer has reported last
        self._resends = self._spurious = 0  # retransmissions, and those that the peer had received before
        self._baseSince = 0.0  # time when the segment at base became the oldest one
        self._timeouts = 0  # since then

    @property
    def outstanding(self) -> int:
        """Number of sequence numbers from the oldest unacknowledged segment to the newest one."""
        return (self.following - self.base) & SEQUENCE_MASK

    @property
    def inFlight(self) -> int:
        """Number of segments that are neither acknowledged nor lost, on all paths."""
        return sum([path.inFlight for path in self.paths])

    def choose(self, credits: Sequence[int] | None = None) -> Path | None:
        """
        Return the path on which the next segment would arrive first; None if all congestion windows are full.

        @param credits: packets that may be posted on each channel of the module; a path needs two on its data
            channel. None ignores credits.
        """
        paths = self.paths
        if len(paths) == 1:  # the caller finds out anyway whether the channel has credits
            return paths[0] if paths[0].isFree() else None
        usable = [path for path in paths if not (path.isSilent or path.isClosed)] or [
            path for path in paths if not path.isClosed
        ]
        free = [
            path
            for path in usable
            if (credits is None or credits[2 * path.port + DATA] > 1) and path.isFree()
        ]
        return min(free, key=Path.cost) if free else None

    def hasRoom(self) -> bool:
        """Return whether there is a sequence number for a new segment."""
        return (self.following - self.base) & SEQUENCE_MASK < WINDOW

    def isOpen(self) -> bool:
        """Return whether a new segment may be sent."""
        return self.hasRoom() and self.choose() is not None

    def add(self, sent: Sent, channel: int, now: float, path: Path | None = None) -> None:
        """
        Enter a new segment, sent on this channel, with the next sequence number.

        @param path: None is the first one.
        """
        if self.following == self.base:
            self._baseSince, self._timeouts = now, 0
        sent.sequence, sent.ordinal = self.following, self._added
        self._added += 1
        self._slots[self.following] = sent
        self.following = (self.following + 1) & SEQUENCE_MASK
        outstanding = (self.following - self.base) & SEQUENCE_MASK
        if outstanding > self._counters.maxSentWindowSize:
            self._counters.maxSentWindowSize = outstanding
        self._transmit(sent, self.paths[0] if path is None else path, channel, now)

    def hasLost(self, credits: Sequence[int] | None = None) -> bool:
        """Return whether a segment has to be retransmitted and a path is free: see L{choose}."""
        return bool(self._lost) and self.retransmissionPath(credits) is not None

    def retransmissionPath(self, credits: Sequence[int] | None = None) -> Path | None:
        """Return the path for the first segment to retransmit: see L{choose}. None if there is none."""
        lost = self._lost
        while lost and (lost[0][2].isArrived or not lost[0][2].isLost):
            heappop(lost)
        if not lost:
            return None
        message = lost[0][2].message
        # An optional probe is sent again without its bytes, which any path carries.
        path = None if message is None or message.contexts else message.path
        if path is None:
            return self.choose(credits)
        return path if credits is None or credits[2 * path.port + DATA] > 1 else None

    def retransmit(self, now: float, path: Path | None = None) -> Sent:
        """Send the first lost segment again, on L{DATA} of the path from L{retransmissionPath}. Return it."""
        sent = heappop(self._lost)[2]
        if sent.kind == VOID and sent.message is not None and sent.message.contexts:
            sent.payload = b""  # an optional probe, which may be longer than the path can carry
        self._resends += 1
        self._counters.resends += 1
        self._transmit(sent, self.paths[0] if path is None else path, DATA, now)
        return sent

    def _transmit(self, sent: Sent, path: Path, channel: int, now: float) -> None:
        self._number += 1
        sent.number, sent.path, sent.channel, sent.sentAt = self._number, path, channel, now
        sent.tries += 1
        sent.isLost = sent.isLate = False
        path.inFlight += 1
        if path.congestion.window < NARROWEST:
            path.space(self._number, now)
        path.channels[channel].trail.append((self._number, sent))

    def hasSent(self, acknowledged: int) -> bool:
        """Return whether everything up to this sequence number was sent."""
        return difference(acknowledged, self.base) < (self.following - self.base) & SEQUENCE_MASK

    def acknowledged(self, ack: BTLSegment, now: float, path: Path | None = None) -> list[Sent] | None:
        """
        Process an acknowledgement that was sent as a separate packet.

        @param path: the path on which it has arrived, if it came as a datagram.
        @return: segments that it acknowledges for the first time; None if it acknowledges segments that were
            never sent.
        """
        assert ack.acknowledged is not None
        count = difference(ack.acknowledged, self.base)
        outstanding = (self.following - self.base) & SEQUENCE_MASK
        if len(ack.payload) > _LONGEST_MAP:
            self._counters.badAckRecvs += 1
            return None
        beyond = int.from_bytes(ack.payload, "little")
        if count >= outstanding or (beyond and count + 1 + beyond.bit_length() >= outstanding):
            self._counters.badAckRecvs += 1
            return None
        if count == -1:
            self._counters.dupAcks += 1
        if len(self.paths) > 1:
            for each in self.paths:
                if each.hasAnsweredProbe(ack.latest, ack.latestAttempt, now):
                    self._duplicates = (self._duplicates + 1) & SEQUENCE_MASK
        self._countDuplicates(ack.duplicates)
        if path is None:
            return self._arrive(count, beyond, ack.latest, ack.latestAttempt, now)
        if path.marks.echoed(ack.capable, ack.marked):  # before the acknowledgement, which may end the round
            path.congestion.marked()
        return self._arrive(count, beyond, ack.latest, ack.latestAttempt, now, path)

    def piggybackReceived(self, acknowledged: int, now: float) -> list[Sent] | None:
        """
        Process an acknowledgement that another segment carried.

        @return: see L{acknowledged}.
        """
        count = difference(acknowledged, self.base)
        if count >= (self.following - self.base) & SEQUENCE_MASK:
            self._counters.badAckRecvs += 1
            return None
        return self._arrive(count, 0, acknowledged, 1, now)

    def arrivedNext(self, acknowledged: int, now: float) -> Sent | None:
        """
        Process an acknowledgement that another segment carried, in the usual case of a single segment.

        In the usual case this is the oldest segment, sent once and not overtaken, and nothing is lost. Then
        no deadline becomes earlier.

        @return: the segment; None if the case is not usual and L{piggybackReceived} has to be called.
        """
        base = self.base
        if acknowledged != base or self._arrived or self._lost or self.following == base:
            return None
        sent = self._slots.get(base)
        if sent is None or sent.tries != 1 or sent.isLost:
            return None
        if len(self.paths) > 1:
            return None
        path, channel, number = sent.path, sent.channel, sent.number
        transmissions, others = path.channels[channel], path.channels[1 - channel]
        if others.trail and others.trail[0][0] <= others.newest:
            return None
        if number < transmissions.newest:  # a later retransmission has arrived: others may be overtaken, too
            return None
        sent.isArrived = True
        path.inFlight -= 1
        if channel == DATA:
            path.marks.arrived += 1
        self.base = (base + 1) & SEQUENCE_MASK
        self._baseSince, self._timeouts = now, 0
        path.measured(channel, now - sent.sentAt, now)
        path.arrivedFrom = sent.sentAt
        transmissions.progress, transmissions.newest = now, number
        if transmissions.trail[0][1] is sent:
            del transmissions.trail[0]
        else:
            self._first(transmissions)  # removes it from the trail
        path.congestion.arrived(1, number, self._number + 1, path.channels[DATA].roundTrip.base, now)
        del self._slots[base]  # last: after an exception, its message still has to fail
        return sent

    def _arrive(
        self, count: int, beyond: int, latest: int, attempt: int, now: float, path: Path | None = None
    ) -> list[Sent]:
        """
        Record arrived segments: all up to C{base + count}, and those of the bitmap behind a gap.

        @param path: the path whose marks the acknowledgement has echoed.
        """
        if count < -1:
            self._counters.oldDupAcks += 1
            return []
        if not (count or beyond) and attempt == 1 and (sent := self.arrivedNext(latest, now)) is not None:
            if path is not None:
                try:
                    path.marks.validate()
                except Exception:
                    self._slots[sent.sequence] = sent  # its message still has to fail
                    raise
            return [sent]
        # Bit n is for base + n; the one behind the cumulative part is missing, so the bitmap begins after it.
        marks = self._arrived | ((1 << (count + 1)) - 1) | (beyond << (count + 2))
        fresh = marks ^ self._arrived
        if not fresh:
            return []
        late: list[Path] = []
        found = self._mark(fresh, late)
        run = (~marks & (marks + 1)).bit_length() - 1  # number of ones at the lower end
        self.base = (self.base + run) & SEQUENCE_MASK
        self._arrived = marks >> run
        if run:
            self._baseSince, self._timeouts = now, 0
        try:
            for each in late:
                self._undoTimeout(each)
            self._learn(found, latest, attempt, now)
            if found and path is not None:
                path.marks.validate()
        except Exception:
            self._slots.update({sent.sequence: sent for sent in found})  # their messages still have to fail
            raise
        return found

    def _mark(self, fresh: int, late: list[Path]) -> list[Sent]:
        """
        Remove and return arrived segments. Bit n of C{fresh} is for C{base + n}.

        @param late: receives the paths on which a timeout was spurious.
        """
        found: list[Sent] = []
        while fresh:
            low = fresh & -fresh
            fresh ^= low
            sent = self._slots.pop((self.base + low.bit_length() - 1) & SEQUENCE_MASK, None)
            if sent is not None:
                sent.isArrived, sent.payload = True, b""  # its entry in a trail may stay for long
                if not sent.isLost:
                    sent.path.inFlight -= 1
                elif sent.isLate and sent.path not in late:
                    late.append(sent.path)
                found.append(sent)
        return found

    def _undoTimeout(self, path: Path) -> None:
        """
        Return segments to the ones in flight after a spurious timeout (RFC 4015): one of them has arrived
        before its retransmission.
        """
        path.congestion.spurious()
        late = [
            entry[2] for entry in self._lost if entry[2].isLost and entry[2].isLate and entry[2].path is path
        ]
        for sent in sorted(late, key=lambda each: each.number, reverse=True):
            if sent.isLost and not sent.isArrived:  # it may be queued twice
                sent.isLost = sent.isLate = False
                path.inFlight += 1
                path.channels[sent.channel].trail.insert(0, (sent.number, sent))  # before all queued ones

    def _learn(self, found: list[Sent], latest: int, attempt: int, now: float) -> None:
        """Update round trips, silent paths, losses and congestion windows by segments that have arrived."""
        arrived, newest = [0] * len(self.paths), [0] * len(self.paths)
        for sent in found:
            path, number, tries = sent.path, sent.number, sent.tries
            transmissions = path.channels[sent.channel]
            transmissions.roundTrip.answered()
            arrived[path.number] += 1
            if tries == 1 and sent.channel == DATA:
                path.marks.arrived += 1
            # Only of the latest segment is it known which transmission has arrived (its number is modulo
            # 128), so only that one measures a round trip (Karn's algorithm, RFC 6298, 3).
            if sent.sequence == latest and tries & 0x7F == attempt:
                path.measured(sent.channel, now - sent.sentAt, now)
            elif tries > 1 and now - sent.sentAt < transmissions.roundTrip.base:
                continue  # too early for the last transmission: an earlier one has arrived
            if tries == 1 or tries & 0x7F == attempt:  # else it may have arrived by another path
                if sent.sentAt > path.arrivedFrom:
                    path.arrivedFrom = sent.sentAt
                if path.isSilent:
                    path.answered()
            transmissions.progress = now
            if number > newest[path.number]:
                newest[path.number] = number
            if number > transmissions.newest:
                transmissions.newest = number
        # First the silent paths: their segments count as timed out, not as overtaken.
        if len(self.paths) > 1:
            self._findSilent(now)
        self._loseOvertaken(now)
        # After the losses: this may end a round, which is judged by its arrivals and losses.
        for path in self.paths:
            if arrived[path.number]:
                base = path.channels[DATA].roundTrip.base
                path.congestion.arrived(
                    arrived[path.number], newest[path.number], self._number + 1, base, now
                )

    def _findSilent(self, now: float) -> None:
        """Find paths on which nothing arrives although segments that were sent later on others do."""
        for path in self.paths:
            if path.isSilent or not path.inFlight:
                continue
            later = max([other.arrivedFrom for other in self.paths if other is not path])
            for channel in path.channels:
                first, roundTrip = self._first(channel), channel.roundTrip
                if first is None or first.sentAt + SKEW >= later:
                    continue
                isLate = first.sentAt + roundTrip.overtaken() + SKEW < now
                if isLate and channel.progress + max(SKEW, roundTrip.smoothed / 2) < now:
                    self._silence(path, now)
                    break

    def _silence(self, path: Path, now: float) -> None:
        """Send everything that is in flight on a path again by others."""
        for channel in path.channels:
            self._counters.timeoutRetrans += self._loseOlder(channel, 0.0, now)
        path.timedOut(self._hasOthers(path), now)

    def _hasOthers(self, path: Path) -> bool:
        return any(not (each.isSilent or each.isClosed) for each in self.paths if each is not path)

    def losePath(self, port: int, now: float) -> bool:
        """Stop using a port of the module. Return whether another path remains, working or not."""
        for path in self.paths:
            if path.port == port and not path.isClosed:
                path.isClosed = True
                self._silence(path, now)
        return not all(path.isClosed for path in self.paths)

    def _countDuplicates(self, duplicates: int) -> None:
        """Adapt the timers to retransmissions that the peer reports as duplicates: they were spurious."""
        more = difference(duplicates, self._duplicates)
        if more <= 0:
            return
        self._duplicates = duplicates
        spurious = min(more, self._resends - self._spurious)  # any others were duplicated by the network
        if spurious > 0:
            self._spurious += spurious
            self._counters.spuriousResends += spurious
            for path in self.paths:
                for channel in path.channels:
                    channel.roundTrip.spurious()

    def _first(self, channel: Transmissions) -> Sent | None:
        """Return the oldest segment in flight on a channel, and remove what is before it from the trail."""
        trail, before = channel.trail, 0
        for number, sent in trail:
            if not (sent.isArrived or sent.isLost or sent.number != number):
                if before:
                    del trail[:before]
                return sent
            before += 1
        trail.clear()
        return None

    def _loseOvertaken(self, now: float) -> None:
        """Mark segments lost when later ones of their channel arrived long enough ago."""
        for path in self.paths:
            lost = 0
            for channel in path.channels:
                delay = channel.roundTrip.overtaken()
                while (sent := self._first(channel)) is not None:
                    if sent.number > channel.newest or sent.sentAt + delay > now:
                        break
                    self._lose(sent)
                    lost += 1
            if lost:
                self._counters.fastRetrans += lost
                path.congestion.lost(lost)
                for channel in path.channels:
                    channel.roundTrip.recovered()

    def _loseOlder(self, channel: Transmissions, seconds: float, now: float) -> int:
        """Mark segments lost that were sent on a channel at least this long ago. Return their number."""
        lost = 0
        while (sent := self._first(channel)) is not None and sent.sentAt + seconds <= now:
            sent.isLate = True
            self._lose(sent)
            lost += 1
        return lost

    def _lose(self, sent: Sent) -> None:
        sent.isLost = True
        sent.path.inFlight -= 1
        # Ordinals do not wrap. An entry whose segment arrives after all is skipped when it comes first.
        heappush(self._lost, (sent.ordinal, sent.number, sent))

    def refused(self, sequence: int) -> Message | None:
        """
        Replace a segment that the peer has refused by a L{VOID}, and send that.

        @return: the message of the segment; None if no such segment is in flight.
        """
        if difference(sequence, self.base) < 0 or difference(sequence, self.following) >= 0:
            return None
        sent = self._slots.get(sequence)
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
        for sent in self._slots.values():
            if sent.message is message:
                sent.kind, sent.payload, sent.message = VOID, b"", None

    def drop(self) -> None:
        """Drop the bytes of unacknowledged segments, which are not sent again."""
        for sent in self._slots.values():
            sent.payload = b""

    def deadline(self) -> float | None:
        """Time at which a segment may be considered lost if nothing arrives; None if nothing is in flight."""
        earliest: float | None = None
        for path in self.paths:
            if path.isSilent and not path.isClosed and (earliest is None or path.probeAt < earliest):
                earliest = path.probeAt
            if path.opensAt and (earliest is None or path.opensAt < earliest):
                earliest = path.opensAt
            for channel in path.channels if path.inFlight else ():
                sent = self._first(channel)
                if sent is not None:
                    at = max(sent.sentAt, channel.progress) + channel.roundTrip.timeout
                    if sent.number <= channel.newest:
                        at = min(at, sent.sentAt + channel.roundTrip.overtaken())
                    if earliest is None or at < earliest:
                        earliest = at
        return earliest

    def expired(self, now: float) -> bool:
        """
        Mark segments lost whose deadline has passed.

        @return: whether the peer is lost, because it has not answered for too long.
        """
        self._loseOvertaken(now)
        timedOut = 0
        for path in self.paths:
            before = timedOut
            # The timer of a channel begins again with each arrival, so it expires in silence only.
            path.expired(now)
            for channel in path.channels:
                timeout = channel.roundTrip.timeout
                if channel.progress + timeout <= now and (lost := self._loseOlder(channel, timeout, now)):
                    channel.roundTrip.expired()
                    timedOut += lost
            if timedOut > before:
                path.timedOut(self._hasOthers(path), now)
        if not timedOut:
            return False
        self._timeouts += 1
        self._counters.timeoutRetrans += timedOut
        return self.isPeerLost(now)

    def probes(self, now: float) -> list[tuple[Path, int, int]]:
        """Return probes of silent paths that are due: path, sequence number, number of the transmission."""
        sequence = (self.base - 1) & SEQUENCE_MASK
        due = [path for path in self.paths if path.isProbeDue and not path.isClosed]
        return [(path, sequence, path.probe(sequence, now)) for path in due]

    def isPeerLost(self, now: float) -> bool:
        """Return whether the peer has not answered for so long that it can be considered lost."""
        return self._timeouts >= FEWEST_TRIES and now >= self._baseSince + self._giveUp

    def unfinished(self) -> list[Message]:
        """Return the messages with unacknowledged segments, each once, in no particular order."""
        found: dict[int, Message] = {}
        for sent in self._slots.values():
            if sent.message is not None:
                found[id(sent.message)] = sent.message
        return list(found.values())
