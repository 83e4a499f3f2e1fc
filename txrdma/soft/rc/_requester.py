"""
The core of the reliable requester: sends requests, resends packets, and detects failure.

Theory of operation. C{post} queues requests as entries with PSNs. C{outgoing} sends packets from C{_next} on,
as far as the window allows. Acknowledgements and answers advance the oldest PSN, complete entries in order,
and reset the retries; a NAK, a gap or the timer moves C{_next} back.

Follows InfiniBand Architecture vol. 1, 9.7 (reliable service) and 9.9.2 (requester's errors). Nothing here
reads a clock or a socket; see L{txrdma.soft.rc.roce} for that.

Where the specification leaves a choice:

  - Credits in acknowledgements are ignored; a receiver that is not ready sends an RNR NAK.
  - A long RDMA READ is sent as several requests of at most L{READ_CHUNK} bytes, with the same boundaries when
    it is repeated, which limits bursts of answers.
  - READs and atomics are outstanding together up to C{maxRDAtomic}, counting each request of a long READ.
  - A L{PacketWindow <txrdma.soft.rc._window.PacketWindow>} limits the packets in flight.
  - L{RetryTimer <txrdma.soft.core.roundtrip.RetryTimer>} decides when to resend, and when to give up. After a
    timeout only the oldest packet is resent: the answer shows what else is missing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, TYPE_CHECKING

from txrdma.error import ProtectionError
from txrdma.iba.headers import NAKCode, Opcode
from txrdma.iba.times import rnrTimerSeconds
from txrdma.iba.types import QPN
from txrdma.iba.verbs import Buffer, Completion, CompletionOpcode, SendRequest, Status
from txrdma.soft.core.pieces import gathered
from txrdma.soft.core.roundtrip import RetryTimer
from txrdma.soft.rc._entries import NO_ENTRIES, RequestEntry, WRITE_FIRST
from txrdma.soft.rc._packets import (
    BTH_LENGTH,
    Event,
    Failed,
    FRAME,
    Incoming,
    nearest,
    Outgoing,
    PSN_MASK,
    psnWords,
    Retired,
)
from txrdma.soft.rc._window import PacketWindow, WIDEST

if TYPE_CHECKING:
    from txrdma.soft.core.memory import Domain, KeyTable

READ_CHUNK: Final = 64 * 1024

_RESPONSE_FIRST: Final = int(Opcode.RC_RDMA_READ_RESPONSE_FIRST)
_RESPONSE_MIDDLE: Final = int(Opcode.RC_RDMA_READ_RESPONSE_MIDDLE)
_ACKNOWLEDGE: Final = int(Opcode.RC_ACKNOWLEDGE)
_ATOMIC_ACKNOWLEDGE: Final = int(Opcode.RC_ATOMIC_ACKNOWLEDGE)

# What to add to the FIRST of a message.
_MIDDLE: Final = 1
_LAST: Final = 2
_ONLY: Final = 4
_WITH_IMMEDIATE: Final = 1

_AETH_LENGTH: Final = 4

_RNR_FOR_EVER: Final = 7

_REFUSALS: Final = {
    NAKCode.INVALID_REQUEST: Status.REM_INV_REQ_ERR,
    NAKCode.REMOTE_ACCESS_ERROR: Status.REM_ACCESS_ERR,
    NAKCode.REMOTE_OPERATIONAL_ERROR: Status.REM_OP_ERR,
    NAKCode.INVALID_RD_REQUEST: Status.REM_INV_RD_REQ_ERR,
}


class Requester:
    """
    The sending half of an RC queue pair.

    @ivar window: limit of packets in flight.
    @ivar alternate: set by L{arm}: whether there is another path for requests without retries left.
    @ivar pathFailed: that path is needed: nothing is sent before L{moved} or L{abandoned}.
    @ivar sent: one above the highest PSN sent.
    @ivar resent: number of resent packets; C{rewinds}: how often it has resent from a lost one on.
    """

    __slots__ = (
        *("_askAgainAt", "_asked", "_batch", "_chunk", "_cursor", "_domain", "_end", "_entries", "_events"),
        *("_isProbing", "_isRecovering", "_isWindowFull", "_keys", "_limit", "_maxRDAtomic"),
        *("_mostInFlight", "_mtu", "_next", "_number", "_oldest", "_pausedUntil", "_reads", "_retryTimer"),
        *("_rnrLeft", "_rnrRetry", "_stopped"),
        *("alternate", "pathFailed", "resent", "rewinds", "sent", "window"),
    )

    def __init__(
        self,
        number: QPN,
        keys: KeyTable,
        domain: Domain,
        *,
        mtu: int,
        psn: int,
        timeout: int,
        retryCount: int,
        rnrRetry: int,
        maxRDAtomic: int,
        batch: int = 15,
        mostInFlight: int = WIDEST,
    ) -> None:
        """
        @param psn: PSN of the first packet.
        @param timeout: encoded timeout; C{retryCount}, C{rnrRetry}, C{maxRDAtomic} as in L{QPAttributes}.
        @param batch: best number of full packets for one system call.
        @param mostInFlight: bytes that the peer's socket can be assumed to hold.
        """
        self._number = number
        self._keys = keys
        self._domain = domain
        self._mtu = mtu
        self._batch = batch
        self._chunk = max(1, READ_CHUNK // mtu)
        self._mostInFlight = mostInFlight
        self.window = PacketWindow(mtu, mostInFlight)
        self._isWindowFull = False  # the window limits sending
        self._entries: deque[RequestEntry] = NO_ENTRIES
        self._cursor = 0  # the entry that _next is in
        self._oldest = self._next = self._end = self.sent = psn
        self._asked = psn  # an acknowledgement was requested for packets before this PSN
        self._reads: deque[int] = NO_ENTRIES  # where each outstanding READ or atomic request ends
        self._limit = psn  # PSN limit of packets in flight
        self._retryTimer = RetryTimer(timeout, retryCount)
        self._pausedUntil: float | None = None
        self._isRecovering = False  # gone back for a loss: further NAKs report the same one
        self._askAgainAt = -math.inf  # before that no answer to a READ that was asked for again can arrive
        self._isProbing = False  # gone back for the timer: one packet at a time until an answer
        self._events: list[Event] = []
        self._stopped = False
        self.alternate = self.pathFailed = False
        self.resent = self.rewinds = 0
        self._rnrLeft = self._rnrRetry = rnrRetry
        self._maxRDAtomic = maxRDAtomic

    def retune(self, timeout: int, retryCount: int, rnrRetry: int, maxRDAtomic: int) -> None:
        self._retryTimer.retune(timeout, retryCount)
        if rnrRetry != self._rnrRetry:
            self._rnrLeft = self._rnrRetry = rnrRetry
        self._maxRDAtomic = maxRDAtomic

    def arm(self, isArmed: bool) -> None:
        """Note whether there is an alternate path."""
        self.alternate = self._retryTimer.hasAlternate = isArmed

    def moved(self, now: float) -> None:
        """Restart on another path, with all retries left (IBA 17.2.8)."""
        self._retryTimer.moved(now)
        self._rnrLeft = self._rnrRetry
        self._isRecovering = self._isProbing = False
        self.window = PacketWindow(self._mtu, self._mostInFlight)
        if self.pathFailed:
            self.pathFailed = False
            self._rewind()

    def abandoned(self, now: float) -> None:
        """
        Stay on this path, since the other one is unusable. It has the usual retries then, after which the
        other one is tried again.
        """
        if not self.pathFailed:
            return
        self.pathFailed = False
        timer = self._retryTimer
        if timer.retryCount == 0 or timer.isExpired(now):
            self._fail(Status.RETRY_EXC_ERR)
        else:
            self.alternate = True  # but C{hasAlternate} of the timer again after progress only
            self._retry()

    # Interface of the core.

    def post(self, requests: Sequence[SendRequest], now: float) -> None:
        """Queue requests behind earlier ones."""
        if self._entries is NO_ENTRIES:
            self._entries = deque()
        posted: list[RequestEntry] = []
        mtu, end = self._mtu, self._end
        for request in requests:
            entry = RequestEntry(request, end, mtu)
            if entry.answered and self._maxRDAtomic == 0:
                entry.error = Status.LOC_QP_OP_ERR
            posted.append(entry)
            end = entry.end
        # All are valid: the list is refused as a whole.
        self._entries += posted
        self._end = end

    def received(self, run: Incoming, now: float) -> None:
        """Process an acknowledgement, or answers to READs and atomics."""
        if self._stopped:
            return
        if run.opcode == _ACKNOWLEDGE:
            self._acknowledgements(run, now)
        elif _RESPONSE_FIRST <= run.opcode <= _ATOMIC_ACKNOWLEDGE:
            self._responses(run, now)
        elif self._oldest < self.sent:  # unexpected
            self._fail(Status.BAD_RESP_ERR)

    def expired(self, now: float) -> None:
        """Retry or give up, at the time of L{deadline}."""
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return
        if self._pausedUntil is not None:
            self._pausedUntil = None
            self._retryTimer.begin(now)
        elif self._retryTimer.isExpired(now):
            self._exhausted()
        else:
            self._retry()

    def deadline(self) -> float | None:
        if self._pausedUntil is not None:
            return self._pausedUntil
        if self._oldest == self._next or self.pathFailed:
            return None
        deadline = self._retryTimer.deadline()
        return None if deadline == math.inf else deadline

    def outgoing(self, now: float) -> list[Outgoing]:
        """Take the packets to send; emit them before the next call of this core."""
        runs: list[Outgoing] = []
        if self._pausedUntil is not None or self._stopped or self.pathFailed:
            return runs
        entries = self._entries
        if self._oldest == self._next and entries:
            # Nothing is in flight, so the timer begins with these packets.
            if self._oldest == self.sent:
                self._retryTimer.begin(now)
            else:
                self._retryTimer.resent(now)
        self._limit = self._oldest + (1 if self._isProbing else self.window.size)
        self._isWindowFull = False
        while self._cursor < len(entries):
            entry = entries[self._cursor]
            if entry.error is not None:
                # Requests complete in order: a faulty one fails when it is the oldest.
                if self._cursor == 0:
                    self._fail(entry.error)
                break
            if entry.fence and self._next == entry.first and self._reads:
                break  # until all READs and atomics before it are answered
            free = self._limit - self._next
            if entry.answered:
                if not self._sendQuestion(entry, free, runs):
                    break
            else:
                if free <= 0:
                    self._isWindowFull = True
                    break
                try:
                    self._send(entry, free, runs)
                except ProtectionError:
                    entry.error = Status.LOC_PROT_ERR
                    continue  # the error is handled above
            if self._next == entry.end:
                self._cursor += 1
        if self._next > self.sent:  # resent packets measure no round trip
            self.sent = self._next
            self._retryTimer.roundTrip.sent(self.sent, now)
        return runs

    def events(self) -> list[Event]:
        events = self._events
        if events:
            self._events = []
        return events

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        """Stop, and return uncompleted requests, oldest first."""
        left = [(entry.identifier, entry.kind) for entry in self._entries]
        self._stop()
        self._entries.clear()
        return left

    # Sending.

    def _send(self, entry: RequestEntry, free: int, runs: list[Outgoing]) -> None:
        """Send as much of a SEND or WRITE as the window allows, from C{_next} on."""
        next = self._next
        stop = min(entry.end, next + free)
        local, domain = self._keys.local, self._domain
        pieces = entry.inline or [local(domain, segment, False) for segment in entry.segments]
        if next < self.sent:
            self.resent += min(stop, self.sent) - next
        if entry.end - entry.first == 1:
            self._asked = stop
            payload = gathered(pieces, 0, entry.length)
            runs.append(self._lastPacket(entry, entry.opcode + _ONLY, next, entry.reth(), payload))
        else:
            self._sendLong(entry, next, stop, pieces, runs)
        self._next = stop

    def _sendLong(
        self, entry: RequestEntry, next: int, stop: int, pieces: Sequence[memoryview], runs: list[Outgoing]
    ) -> None:
        """
        Send the packets of a long message with the PSNs from C{next} to C{stop} (exclusive).

        An acknowledgement is requested for each quarter of the window, for its last packet, and for the last
        packet of the message.
        """
        mtu, batch, opcode = self._mtu, self._batch, entry.opcode
        full = self._limit
        interval = max(1, self.window.size // 4)
        offset = (next - entry.first) * mtu
        if next == entry.first:
            payload = gathered(pieces, 0, mtu)
            runs.append(Outgoing(opcode, next, 1, entry.reth(), payload, mtu, next + 1 == full))
            next += 1
            offset = mtu
        middles = min(stop, entry.end - 1)
        while next < middles:
            # The first packet of a WRITE is the longest, so a system call sends only one other after it.
            count = 1 if next == entry.first + 1 and opcode == WRITE_FIRST else min(middles - next, batch)
            end = next + count
            ask = end - self._asked >= interval or end == full
            if ask:
                self._asked = end
            length = count * mtu
            payload = gathered(pieces, offset, length)
            runs.append(Outgoing(opcode + _MIDDLE, next, count, b"", payload, mtu, ask))
            next = end
            offset += length
        if next < stop:
            self._asked = stop
            payload = gathered(pieces, offset, entry.length - offset)
            runs.append(self._lastPacket(entry, opcode + _LAST, next, b"", payload))

    def _lastPacket(
        self, entry: RequestEntry, opcode: int, psn: int, extension: bytes, payload: Buffer
    ) -> Outgoing:
        """Return the last or only packet of a message."""
        if entry.immediate is not None:
            opcode += _WITH_IMMEDIATE
            extension += entry.immediate
        return Outgoing(opcode, psn, 1, extension, payload, self._mtu, True, entry.solicited)

    def _sendQuestion(self, entry: RequestEntry, free: int, runs: list[Outgoing]) -> bool:
        """Send the next request of a READ or an atomic; return False if it must wait."""
        next = self._next
        begin = next - (next - entry.first) % self._chunk
        stop = min(begin + self._chunk, entry.end)
        if len(self._reads) >= self._maxRDAtomic:
            return False
        if stop - next > free and next != self._oldest:
            self._isWindowFull = True
            return False
        offset = (next - entry.first) * self._mtu
        length = min(entry.length, (stop - entry.first) * self._mtu) - offset
        if next < self.sent:
            self.resent += 1
        question = entry.question(offset, length)
        runs.append(Outgoing(entry.opcode, next, 1, question, b"", self._mtu, True))
        if self._reads is NO_ENTRIES:
            self._reads = deque()
        self._reads.append(stop)
        self._next = self._asked = stop
        return True

    # Answers.

    def _acknowledgements(self, run: Incoming, now: float) -> None:
        """Process the AETHs of acknowledgement packets: ACK, RNR NAK or NAK (IBA 9.7.5.2)."""
        for number, word in enumerate(psnWords(run)):
            if self._stopped:
                return
            psn = nearest(word & PSN_MASK, self._oldest)
            if psn >= self.sent or run.stride != FRAME + _AETH_LENGTH:
                continue  # of an earlier connection
            syndrome = run.data[number * run.stride + BTH_LENGTH]
            kind, value = syndrome >> 5, syndrome & 31
            if psn < self._oldest:
                self._retryTimer.roundTrip.duplicateAcknowledged()
            elif kind == 0:
                if not self._advance(psn + 1, now):
                    self._lossFound()
            elif not self._advance(psn, now):
                self._lossFound()
            elif kind == 1:
                self._notReady(value, now)
            elif kind == 3:
                self._refused(value)

    def _refused(self, code: int) -> None:
        """Handle a NAK for the oldest packet (IBA 9.7.5.2.8)."""
        if code == NAKCode.PSN_SEQUENCE_ERROR:
            self._lossFound()
        else:
            self._fail(_REFUSALS.get(NAKCode(code), Status.BAD_RESP_ERR))

    def _notReady(self, timer: int, now: float) -> None:
        """Handle an RNR NAK for the oldest packet (IBA 9.7.5.2.8)."""
        if self._pausedUntil is not None or self._oldest == self._next:
            return  # a duplicate
        if self._rnrRetry != _RNR_FOR_EVER:
            if self._rnrLeft == 0:
                self._fail(Status.RNR_RETRY_EXC_ERR)
                return
            self._rnrLeft -= 1
        self._pausedUntil = now + rnrTimerSeconds(timer)
        self._isProbing = False
        self._rewind()

    def _responses(self, run: Incoming, now: float) -> None:
        """Process answers to READs and atomics, which also acknowledge earlier requests (IBA 9.7.5.1.3)."""
        words = psnWords(run)
        extension = 0 if run.opcode == _RESPONSE_MIDDLE else _AETH_LENGTH
        length = run.stride - FRAME - extension - run.pad
        number = 0
        while number < run.packets and not self._stopped:
            psn = nearest(words[number] & PSN_MASK, self._oldest)
            if psn < self._oldest or psn >= self.sent:
                self._retryTimer.roundTrip.duplicateAcknowledged()
                number += 1  # a duplicate, or of an earlier connection
                continue
            if psn > self._oldest and not self._advance(psn, now):
                # Before it, an answer of a READ or an atomic is missing: the rest of the run is behind the
                # same gap.
                self._answerMissing(now)
                return
            entry = self._entries[0]
            if not entry.answered or (run.opcode == _ATOMIC_ACKNOWLEDGE) != bool(entry.atomic):
                self._fail(Status.BAD_RESP_ERR)
                return
            count = 1
            if extension == 0:
                # Middle packets of one READ with consecutive PSNs are copied at once.
                while (
                    number + count < run.packets
                    and psn + count < entry.end - 1
                    and (words[number + count] - psn - count) & PSN_MASK == 0
                ):
                    count += 1
            if not self._copyAnswer(entry, run, number, count, length, extension):
                return
            number += count
            self._progress(psn + count, now)
            if self._oldest == entry.end:
                self._retire(1)

    def _copyAnswer(
        self, entry: RequestEntry, run: Incoming, number: int, count: int, length: int, extension: int
    ) -> bool:
        """
        Copy the payloads of C{count} packets into the segments of the oldest READ; False if it has failed.
        """
        offset = (self._oldest - entry.first) * self._mtu
        if length != min(self._mtu, entry.length - offset):
            self._fail(Status.BAD_RESP_ERR)
            return False
        try:
            local, domain = self._keys.local, self._domain
            pieces = [local(domain, segment, True) for segment in entry.segments]
        except ProtectionError:
            self._fail(Status.LOC_PROT_ERR)
            return False
        entry.take(pieces, offset, run, number, count, extension)
        return True

    # Acknowledgements.

    def _advance(self, to: int, now: float) -> bool:
        """Advance the oldest PSN to C{to}; False if the answer of a READ or an atomic before it was lost."""
        entries = self._entries
        oldest = self._oldest
        whole = True
        count = 0
        while oldest < to:
            entry = entries[count]
            if entry.answered:
                whole = False
                break
            if entry.end > to:
                oldest = to
            else:
                oldest = entry.end
                count += 1
        if oldest != self._oldest:
            self._progress(oldest, now)
        if count:
            self._retire(count)
        return whole

    def _progress(self, oldest: int, now: float) -> None:
        """Reset the retry counters after progress (IBA 9.9.2.1.1)."""
        if self._isProbing:
            self._isProbing = False
            self._retryTimer.hasAlternate = self.alternate
            self._retryTimer.roundTrip.answered()
            if oldest < self.sent:  # else only answers were lost, or late
                self.window.lost()
        elif self._isWindowFull:
            self.window.acknowledged(oldest - self._oldest)
        self._retryTimer.progressed(oldest, now)
        self._oldest = oldest
        self._rnrLeft = self._rnrRetry
        self._isRecovering = False
        self._pausedUntil = None
        reads = self._reads
        while reads and reads[0] <= oldest:
            reads.popleft()
        if self._next < oldest:  # an answer to packets that were about to be resent
            self._next = oldest
            self._cursor = 0
            while self._cursor < len(self._entries) and self._entries[self._cursor].end <= oldest:
                self._cursor += 1

    def _retire(self, count: int) -> None:
        """Complete the oldest requests."""
        popleft = self._entries.popleft
        events = self._events
        for _ in range(count):
            entry = popleft()
            if entry.signaled:
                events.append(
                    Completion(entry.identifier, Status.SUCCESS, entry.kind, self._number, entry.length)
                )
        self._cursor -= count
        if not self._entries:
            self._entries = NO_ENTRIES  # CPython keeps blocks of some deques, so a new one costs little
        events.append(Retired(count))

    def _lossFound(self) -> None:
        """
        Resend from the oldest packet on, because a NAK or a missing answer shows a loss. Further signs of it
        are ignored until there is progress, or the timer expires.
        """
        if self._isRecovering or self._pausedUntil is not None or self.pathFailed:
            return
        if self._retryTimer.retryCount == 0:
            self._exhausted()
            return
        self._isRecovering = True
        self._isProbing = False
        self.window.lost()
        self._rewind()

    def _answerMissing(self, now: float) -> None:
        """Request answers to a READ again from a gap on, once per round trip (more would be reordered)."""
        if now >= self._askAgainAt:
            self._askAgainAt = now + self._retryTimer.roundTrip.expected
            self._lossFound()

    def _retry(self) -> None:
        """Resend the oldest packet, and the others when it is answered."""
        self._retryTimer.tried()
        self._isRecovering = False
        self._isProbing = True
        self._rewind()

    def _exhausted(self) -> None:
        """Give up this path: all retries are used."""
        if self.alternate:
            self.arm(False)
            self.pathFailed = True
        else:
            self._fail(Status.RETRY_EXC_ERR)

    def _rewind(self) -> None:
        """Resend from the oldest unacknowledged packet on."""
        self._next = self._asked = self._oldest
        self._cursor = 0
        self._reads.clear()
        self._retryTimer.roundTrip.rewound()
        self.rewinds += 1

    def _fail(self, status: Status) -> None:
        """Fail the oldest request, and the connection."""
        if self._stopped:
            return
        entry = self._entries.popleft()
        self._events.append(Completion(entry.identifier, status, entry.kind, self._number))
        self._events.append(Retired(1))
        self._events.append(Failed(None))
        self._stop()

    def _stop(self) -> None:
        self._stopped = True
        self._pausedUntil = None
        self._cursor = 0
        self._oldest = self._next
