"""
The core of the reliable responder: executes the peer's requests, and answers them.

Theory of operation. C{received} executes packets in the order of their PSNs, into receives or registered
memory. Acknowledgements and answers (L{txrdma.soft.rc._answers}) wait for C{outgoing}, so that all requests
that arrived together get one acknowledgement. A gap causes one NAK; duplicates are acknowledged or answered
again.

Follows InfiniBand Architecture vol. 1, 9.7.4 (validating requests), 9.7.5 (answers) and 9.9.3 (responder's
errors). Nothing here reads a clock or a socket; see L{txrdma.soft.rc.roce} for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, TYPE_CHECKING

from txrdma.error import ProtectionError
from txrdma.iba.headers import AETHKind, NAKCode, NO_CREDITS, Opcode
from txrdma.iba.types import QPN
from txrdma.iba.verbs import Access, AsyncEventKind, Completion, CompletionOpcode, ReceiveRequest, Status
from txrdma.soft.core.pieces import ATOMIC_LENGTH, scatter
from txrdma.soft.rc._answers import Answer, Answers, Read, REMOTE_READ
from txrdma.soft.rc._entries import COMPARE_SWAP
from txrdma.soft.rc._packets import (
    ACKNOWLEDGE,
    ATOMIC_ETH,
    BTH_LENGTH,
    consecutive,
    Event,
    Failed,
    FRAME,
    Incoming,
    nearest,
    Outgoing,
    PSN_MASK,
    psnWords,
    Received,
    RETH,
    scatterRun,
    WORD,
)

if TYPE_CHECKING:
    from txrdma.soft.core.memory import Domain, KeyTable

MOST_AT_ONCE: Final = 64
"""Largest number of packets of READ answers per L{Responder.outgoing}, for fairness."""

_SEND_FIRST: Final = int(Opcode.RC_SEND_FIRST)
_SEND_ONLY_WITH_IMMEDIATE: Final = int(Opcode.RC_SEND_ONLY_WITH_IMMEDIATE)
_WRITE_FIRST: Final = int(Opcode.RC_RDMA_WRITE_FIRST)
_WRITE_ONLY_WITH_IMMEDIATE: Final = int(Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE)
_READ_REQUEST: Final = int(Opcode.RC_RDMA_READ_REQUEST)
_FETCH_ADD: Final = int(Opcode.RC_FETCH_ADD)
_ACKNOWLEDGE: Final = int(Opcode.RC_ACKNOWLEDGE)

_QUESTIONS: Final = (_READ_REQUEST, COMPARE_SWAP, _FETCH_ADD)

# Places in a message, as opcodes count them from the FIRST of SENDs and of WRITEs.
_FIRST: Final = 0
_MIDDLE: Final = 1
_LAST: Final = 2
_LAST_WITH_IMMEDIATE: Final = 3
_ONLY: Final = 4
_ONLY_WITH_IMMEDIATE: Final = 5


_REMOTE_WRITE: Final = int(Access.REMOTE_WRITE)
_REMOTE_ATOMIC: Final = int(Access.REMOTE_ATOMIC)

_ACK: Final = NO_CREDITS
_RNR: Final = AETHKind.RNR_NAK << 5
_NAK: Final = AETHKind.NAK << 5
_SEQUENCE_ERROR: Final = _NAK | NAKCode.PSN_SEQUENCE_ERROR
_INVALID_REQUEST: Final = _NAK | NAKCode.INVALID_REQUEST
_ACCESS_ERROR: Final = _NAK | NAKCode.REMOTE_ACCESS_ERROR
_OPERATIONAL_ERROR: Final = _NAK | NAKCode.REMOTE_OPERATIONAL_ERROR


class _Refused(Exception):
    """A request that ends the connection: the syndrome for the peer, and the local event."""

    def __init__(self, syndrome: int, kind: AsyncEventKind | None) -> None:
        super().__init__(syndrome)
        self.syndrome = syndrome
        self.kind = kind


class _NotReady(Exception):
    """No receive is posted for a message that needs one (RNR NAK, IBA 9.7.5.2.8)."""


def _invalid() -> _Refused:
    return _Refused(_INVALID_REQUEST, AsyncEventKind.QP_REQUEST_ERROR)


def _forbidden() -> _Refused:
    return _Refused(_ACCESS_ERROR, AsyncEventKind.QP_ACCESS_ERROR)


class Responder:
    """The receiving half of an RC queue pair; C{duplicates} counts repeated packets."""

    def __init__(
        self,
        number: QPN,
        keys: KeyTable,
        domain: Domain,
        receives: deque[ReceiveRequest],
        *,
        mtu: int,
        psn: int,
        access: int,
        maxDestRDAtomic: int,
        minRNRTimer: int,
        batch: int = 15,
    ) -> None:
        """
        @param receives: the receive queue; filled receives are removed from its left end.
        @param psn: PSN of the first packet to be received.
        @param access: access rights of the queue pair; C{maxDestRDAtomic}, C{minRNRTimer} as in
            L{QPAttributes}.
        @param batch: best number of full packets for one system call.
        """
        self._number = number
        self._keys = keys
        self._domain = domain
        self._receives = receives
        self._mtu = mtu
        self._expected = self._first = psn
        self._messages = 0
        self._events: list[Event] = []
        self._answers = Answers(keys, domain, mtu, batch)
        self._acknowledge = False
        self._nak: int | None = None
        self._hasSentNAK = False  # and the packets that it requests have not arrived yet
        self._stopped = False
        self._finalEvents: list[Event] = []  # delivered when the final NAK is sent
        # The message that is arriving: SEND or WRITE by the opcode of its FIRST.
        self._message: int | None = None
        self._offset = 0
        self._receive: ReceiveRequest | None = None
        self._address = self._rkey = self._length = 0
        self.duplicates = 0
        self.retune(access, maxDestRDAtomic, minRNRTimer)

    def retune(self, access: int, maxDestRDAtomic: int, minRNRTimer: int) -> None:
        self._access = access
        self._mostAnswers = maxDestRDAtomic
        self._answers.retain(maxDestRDAtomic)
        self._minRNRTimer = minRNRTimer

    # Interface of the core.

    def received(self, run: Incoming, now: float) -> None:
        """Execute requests of the peer, and record how to answer them."""
        words = psnWords(run)
        number = 0
        while number < run.packets and not self._stopped:
            word = words[number]
            psn = nearest(word & PSN_MASK, self._expected)
            if psn != self._expected:
                self._outOfOrder(psn, run, number)
                number += 1
                continue
            self._hasSentNAK = False
            try:
                number += self._execute(run, words, number)
            except _NotReady:
                self._hasSentNAK = True
                self._nak = _RNR | self._minRNRTimer
                return
            except _Refused as refused:
                self._refuse(refused)
                return

    @property
    def pending(self) -> bool:
        """Whether L{outgoing} has more answers."""
        return bool(self._answers.waiting)

    @property
    def isEstablished(self) -> bool:
        """Whether a valid packet was received."""
        return self._expected != self._first

    def remind(self) -> None:
        """Send an unsolicited acknowledgement (IBA 9.7.7.2.5)."""
        self._acknowledge = not self._stopped

    def outgoing(self, now: float) -> list[Outgoing]:
        """Take the answers to send, in order; emit them before the next call of this core."""
        runs: list[Outgoing] = []
        free = MOST_AT_ONCE
        waiting = self._answers.waiting
        while waiting and free > 0:
            try:
                free -= self._answers.send(free, self._messages, runs)
            except ProtectionError:  # the memory was deregistered meanwhile
                if waiting[0].isRepeat:  # the peer may have the first answer, else its timer will notice
                    waiting.popleft()
                    continue
                self._expected = waiting[0].next
                waiting.clear()
                self._refuse(_forbidden())
                break
        if not waiting:
            if self._nak is not None:  # it acknowledges everything before it
                runs.append(self._packet(self._expected, self._nak))
                self._nak = None
            elif self._acknowledge:
                runs.append(self._packet(self._expected - 1, _ACK))
            self._acknowledge = False
            if self._finalEvents:
                self._events += self._finalEvents
                if isinstance(self._finalEvents[0], Received):
                    self._receive = None
                self._finalEvents = []
        return runs

    def events(self) -> list[Event]:
        events = self._events
        if events:
            self._events = []
        return events

    def flush(self) -> None:
        """Stop; a partly filled receive is flushed, even one of a shared receive queue."""
        self._stopped = True
        self._answers.waiting.clear()
        self._acknowledge = False
        self._nak = None
        self._finalEvents = []
        if self._receive is not None:
            completion = Completion(
                self._receive.identifier, Status.WR_FLUSH_ERR, CompletionOpcode.RECEIVE, self._number
            )
            self._events.append(Received(completion, True))
            self._receive = None

    # Requests.

    def _execute(self, run: Incoming, words: Sequence[int], number: int) -> int:
        """Execute the next packet, and consecutive MIDDLE packets at once; return their number."""
        opcode = run.opcode
        if opcode <= _WRITE_ONLY_WITH_IMMEDIATE:
            family = _SEND_FIRST if opcode < _WRITE_FIRST else _WRITE_FIRST
            if opcode - family == _MIDDLE:
                return self._executeMiddles(family, run, words, number)
            self._executeFirstOrLast(family, opcode - family, run, number)
            if words[number] & ACKNOWLEDGE:
                self._acknowledge = True
        elif opcode in _QUESTIONS:
            self._executeQuestion(run, number)
        else:
            raise _invalid()
        return 1

    def _executeMiddles(self, family: int, run: Incoming, words: Sequence[int], number: int) -> int:
        """Process consecutive packets from within a message, which are full; return their number."""
        mtu = self._mtu
        if self._message != family or run.stride != mtu + FRAME or run.pad:
            raise _invalid()
        count, flags = consecutive(words, number, run.packets)
        length = count * mtu
        if family == _WRITE_FIRST:
            scatterRun((self._target(length),), 0, run, number, count)
        else:
            scatterRun(self._pieces(length), self._offset, run, number, count)
        self._offset += length
        self._expected += count
        if flags & ACKNOWLEDGE:
            self._acknowledge = True
        return count

    def _executeFirstOrLast(self, family: int, place: int, run: Incoming, number: int) -> None:
        """
        Process the first, last or only packet of a SEND or WRITE.

        @param family: the opcode of the FIRST packet of such messages; C{place}: what to add to it.
        @param number: index of the packet in the run.
        """
        isWrite = family == _WRITE_FIRST
        begins = place == _FIRST or place >= _ONLY
        withImmediate = place == _LAST_WITH_IMMEDIATE or place == _ONLY_WITH_IMMEDIATE
        if self._message != (None if begins else family):  # the opcode does not continue the message
            raise _invalid()
        start = BTH_LENGTH + (RETH.size if isWrite and begins else 0) + (WORD.size if withImmediate else 0)
        length = run.stride - FRAME + BTH_LENGTH - start - run.pad
        mtu = self._mtu
        # A first packet is full and not padded; only the one packet of a whole message may be empty.
        if place == _FIRST:
            isValid = length == mtu and run.pad == 0
        else:
            isValid = (0 if begins else 1) <= length <= mtu
        if not isValid:
            raise _invalid()
        # Before anything changes, since the peer sends the packet again.
        if (withImmediate if isWrite else begins) and not self._receives:
            raise _NotReady
        start += number * run.stride
        payload = run.data[start : start + length]
        immediate: int | None = None
        if withImmediate:
            (immediate,) = WORD.unpack_from(run.data, start - WORD.size)
        if isWrite:
            target = self._beginWrite(run, number)[:length] if begins else self._target(length)
            if self._offset + length != self._length and place != _FIRST:
                raise _invalid()
            if len(target) != length:  # less was announced
                raise _invalid()
            target[:] = payload
            if withImmediate:
                self._receive = self._receives.popleft()
        else:
            if begins:
                self._offset = 0
                self._receive = self._receives.popleft()
            if length:
                scatter(self._pieces(length), self._offset, payload)
        self._message = family
        self._offset += length
        self._expected += 1
        if place != _FIRST:
            self._ended(run.solicited, immediate)

    def _beginWrite(self, run: Incoming, number: int) -> memoryview:
        """Check access for a whole WRITE (IBA 9.7.4.1.5, 9.7.4.1.6), and return its memory."""
        address, rkey, length = RETH.unpack_from(run.data, number * run.stride + BTH_LENGTH)
        if not self._access & _REMOTE_WRITE:
            raise _invalid()
        try:
            target = self._keys.remote(self._domain, rkey, address, length, _REMOTE_WRITE)
        except ProtectionError:
            raise _forbidden() from None
        self._address, self._rkey, self._length = address, rkey, length
        self._offset = 0
        return target

    def _target(self, length: int) -> memoryview:
        """Return the memory for the next bytes of a WRITE."""
        offset = self._offset
        if offset + length > self._length:
            raise _invalid()
        try:
            return self._keys.remote(self._domain, self._rkey, self._address + offset, length, _REMOTE_WRITE)
        except ProtectionError:  # the memory was deregistered meanwhile
            raise _forbidden() from None

    def _pieces(self, length: int) -> list[memoryview]:
        """Return the memory of the current receive, if this many more bytes fit."""
        receive = self._receive
        assert receive is not None
        local, domain = self._keys.local, self._domain
        try:
            pieces = [local(domain, segment, True) for segment in receive.segments]
        except ProtectionError:
            self._failReceive(Status.LOC_PROT_ERR)
            raise _Refused(_OPERATIONAL_ERROR, None) from None
        if self._offset + length > sum(map(len, pieces)):
            self._failReceive(Status.LOC_LEN_ERR)
            raise _Refused(_INVALID_REQUEST, None)
        return pieces

    def _failReceive(self, status: Status) -> None:
        assert self._receive is not None
        completion = Completion(self._receive.identifier, status, CompletionOpcode.RECEIVE, self._number)
        self._finalEvents = [Received(completion, True)]

    def _ended(self, solicited: bool, immediate: int | None) -> None:
        """Count a complete message, and complete its receive."""
        self._messages += 1
        receive, self._receive = self._receive, None
        if receive is not None:
            kind = (
                CompletionOpcode.RECEIVE
                if self._message == _SEND_FIRST
                else CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE
            )
            completion = Completion(
                receive.identifier, Status.SUCCESS, kind, self._number, self._offset, immediate
            )
            self._events.append(Received(completion, solicited))
        self._message = None

    def _refuse(self, refused: _Refused) -> None:
        """Stop receiving after the NAK."""
        self._nak = refused.syndrome
        self._finalEvents.append(Failed(refused.kind))
        self._stopped = True

    # READs and atomics.

    def _executeQuestion(self, run: Incoming, number: int) -> None:
        """Process a new READ or atomic request."""
        if self._message is not None:
            raise _invalid()
        psn = self._expected
        if run.opcode == _READ_REQUEST:
            read = self._read(psn, run, number, isRepeat=False)
            self._admit()
            self._answers.queue(read)
            self._expected = read.end
        else:
            header = self._atomicHeader(run, number)
            target = self._atomicTarget(header)
            self._admit()
            self._answers.execute(psn, run.opcode, header, target)
            self._expected = psn + 1
        self._messages += 1
        self._acknowledge = False  # the answer does that

    def _admit(self) -> None:
        """Refuse requests beyond the agreed number (IBA 9.7.4.1.8)."""
        if self._answers.new >= self._mostAnswers:
            raise _invalid()

    def _read(self, psn: int, run: Incoming, number: int, isRepeat: bool) -> Read:
        """Decode a READ request, and check access."""
        if run.stride != FRAME + RETH.size or not self._access & REMOTE_READ:
            raise _invalid()
        address, rkey, length = RETH.unpack_from(run.data, number * run.stride + BTH_LENGTH)
        try:
            self._keys.remote(self._domain, rkey, address, length, REMOTE_READ)
        except ProtectionError:
            raise _forbidden() from None
        packets = max(1, -(-length // self._mtu))
        return Read(psn, psn + packets, address, rkey, length, isRepeat)

    def _atomicHeader(self, run: Incoming, number: int) -> bytes:
        if run.stride != FRAME + ATOMIC_ETH.size or not self._access & _REMOTE_ATOMIC:
            raise _invalid()
        start = number * run.stride + BTH_LENGTH
        return bytes(run.data[start : start + ATOMIC_ETH.size])

    def _atomicTarget(self, header: bytes) -> memoryview:
        """Return the memory of an atomic operation. As in Linux, rights are checked before the alignment."""
        address, rkey, _operand, _compare = ATOMIC_ETH.unpack(header)
        try:
            target = self._keys.remote(self._domain, rkey, address, ATOMIC_LENGTH, _REMOTE_ATOMIC)
        except ProtectionError:
            raise _forbidden() from None
        if address % ATOMIC_LENGTH:
            raise _invalid()
        return target

    def _outOfOrder(self, psn: int, run: Incoming, number: int) -> None:
        """Process a packet after a gap, or a duplicate (IBA 9.7.4.1.2)."""
        if psn > self._expected:
            if not self._hasSentNAK:
                self._hasSentNAK = True
                self._nak = _SEQUENCE_ERROR
            return
        self.duplicates += 1
        if run.opcode not in _QUESTIONS:
            self._acknowledge = True
            return
        answer: Answer | None
        try:
            if run.opcode == _READ_REQUEST:
                answer = self._read(psn, run, number, isRepeat=True)
            else:
                answer = self._answers.resultOf(psn, run.opcode, self._atomicHeader(run, number))
        except _Refused:
            return  # the peer's timer will notice
        if answer is not None and answer.end <= self._expected:
            self._answers.repeat(answer, self._mostAnswers)

    def _packet(self, psn: int, syndrome: int) -> Outgoing:
        """Return an acknowledgement packet with this PSN and syndrome (AETH)."""
        aeth = WORD.pack(syndrome << 24 | self._messages & PSN_MASK)
        return Outgoing(_ACKNOWLEDGE, psn, 1, aeth, b"", self._mtu)
