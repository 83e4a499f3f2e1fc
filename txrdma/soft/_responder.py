"""
The reliable responder: what a queue pair does with the requests of its peer.

Follows InfiniBand Architecture vol. 1, 9.7.4 (validating requests), 9.7.5 (answers) and 9.9.3 (responder's
errors). Nothing here reads a clock or a socket; see L{txrdma.soft.roce} for that.

Answers wait for L{Responder.outgoing}, so that all requests that arrived together get one acknowledgement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Final, TYPE_CHECKING

from txrdma.error import ProtectionError
from txrdma.iba.headers import AETHKind, NAKCode, NO_CREDITS, Opcode
from txrdma.iba.types import QPN
from txrdma.iba.verbs import Access, AsyncEventKind, Completion, CompletionOpcode, ReceiveRequest, Status
from txrdma.soft._packets import (
    ACKNOWLEDGE,
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
    scatter,
    scatterRun,
)

if TYPE_CHECKING:
    from txrdma.soft.memory import Domain, KeyTable

MOST_AT_ONCE: Final = 64
"""Packets of READ answers in one L{Responder.outgoing}: other queue pairs want their turn."""

_SEND_FIRST: Final = int(Opcode.RC_SEND_FIRST)
_SEND_ONLY_WITH_IMMEDIATE: Final = int(Opcode.RC_SEND_ONLY_WITH_IMMEDIATE)
_WRITE_FIRST: Final = int(Opcode.RC_RDMA_WRITE_FIRST)
_WRITE_ONLY_WITH_IMMEDIATE: Final = int(Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE)
_READ_REQUEST: Final = int(Opcode.RC_RDMA_READ_REQUEST)
_RESPONSE_FIRST: Final = int(Opcode.RC_RDMA_READ_RESPONSE_FIRST)
_RESPONSE_MIDDLE: Final = int(Opcode.RC_RDMA_READ_RESPONSE_MIDDLE)
_RESPONSE_LAST: Final = int(Opcode.RC_RDMA_READ_RESPONSE_LAST)
_RESPONSE_ONLY: Final = int(Opcode.RC_RDMA_READ_RESPONSE_ONLY)
_ACKNOWLEDGE: Final = int(Opcode.RC_ACKNOWLEDGE)

# Places in a message, as opcodes count them from the FIRST of SENDs and of WRITEs.
_FIRST: Final = 0
_MIDDLE: Final = 1
_LAST: Final = 2
_LAST_WITH_IMMEDIATE: Final = 3
_ONLY: Final = 4
_ONLY_WITH_IMMEDIATE: Final = 5

_RETH: Final = Struct(">QII")
_WORD: Final = Struct(">I")
_NOTHING: Final = memoryview(b"")

_REMOTE_WRITE: Final = int(Access.REMOTE_WRITE)
_REMOTE_READ: Final = int(Access.REMOTE_READ)

_ACK: Final = NO_CREDITS
_RNR: Final = AETHKind.RNR_NAK << 5
_NAK: Final = AETHKind.NAK << 5
_SEQUENCE_ERROR: Final = _NAK | NAKCode.PSN_SEQUENCE_ERROR
_INVALID_REQUEST: Final = _NAK | NAKCode.INVALID_REQUEST
_ACCESS_ERROR: Final = _NAK | NAKCode.REMOTE_ACCESS_ERROR
_OPERATIONAL_ERROR: Final = _NAK | NAKCode.REMOTE_OPERATIONAL_ERROR


class _Refused(Exception):
    """A request that ends the connection: the syndrome that the peer gets, and the event of ours."""

    def __init__(self, syndrome: int, kind: AsyncEventKind | None) -> None:
        super().__init__(syndrome)
        self.syndrome = syndrome
        self.kind = kind


class _NotReady(Exception):
    """No receive was posted."""


def _invalid() -> _Refused:
    return _Refused(_INVALID_REQUEST, AsyncEventKind.QP_REQUEST_ERROR)


def _forbidden() -> _Refused:
    return _Refused(_ACCESS_ERROR, AsyncEventKind.QP_ACCESS_ERROR)


class _Read:
    """A READ that is being answered: packets C{next} to C{end} are still to go."""

    __slots__ = ("address", "again", "end", "first", "left", "next", "rkey")

    def __init__(self, first: int, end: int, address: int, rkey: int, length: int, again: bool) -> None:
        self.first = self.next = first
        self.end = end
        self.again = again
        self.address = address
        self.rkey = rkey
        self.left = length


class Responder:
    """
    The receiving half of an RC queue pair.

    @ivar duplicates: packets that came again; for statistics.
    """

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
        @param receives: the receive queue; what is filled is taken from its left.
        @param psn: of the first packet to come.
        @param access: what the queue pair allows; C{maxDestRDAtomic}, C{minRNRTimer} as in L{QPAttributes}.
        @param batch: full packets that go out best in one system call.
        """
        self._number = number
        self._keys = keys
        self._domain = domain
        self._receives = receives
        self._mtu = mtu
        self._batch = batch
        self._expected = psn
        self._messages = 0
        self._events: list[Event] = []
        self._reads: deque[_Read] = deque()
        self._acknowledge = False
        self._nak: int | None = None
        self._asked = False  # a NAK went out, and what it asked for has not come yet
        self._stopped = False
        self._parting: list[Event] = []  # told when the NAK that ends everything is out
        # The message that is arriving: SEND or WRITE by the opcode of its FIRST.
        self._message: int | None = None
        self._offset = 0
        self._receive: ReceiveRequest | None = None
        self._address = self._rkey = self._length = 0
        self.duplicates = 0
        self.retune(access, maxDestRDAtomic, minRNRTimer)

    def retune(self, access: int, maxDestRDAtomic: int, minRNRTimer: int) -> None:
        """Take other attributes."""
        self._access = access
        self._maxReads = maxDestRDAtomic
        self._minRNRTimer = minRNRTimer

    # The verbs of a core.

    def received(self, run: Incoming, now: float) -> None:
        """Requests of the peer."""
        words = psnWords(run)
        number = 0
        while number < run.packets and not self._stopped:
            word = words[number]
            psn = nearest(word & PSN_MASK, self._expected)
            if psn != self._expected:
                self._outOfOrder(psn, run, number)
                number += 1
                continue
            self._asked = False
            try:
                number += self._execute(run, words, number)
            except _NotReady:
                self._asked = True
                self._nak = _RNR | self._minRNRTimer
                return
            except _Refused as refused:
                self._refuse(refused)
                return

    def expired(self, now: float) -> None:
        """A responder waits for nothing."""

    def deadline(self) -> float | None:
        """Never."""
        return None

    @property
    def pending(self) -> bool:
        """Whether L{outgoing} has more."""
        return bool(self._reads)

    def outgoing(self, now: float) -> list[Outgoing]:
        """Answers to send, in order; they must leave before anything else is asked of this core."""
        runs: list[Outgoing] = []
        room = MOST_AT_ONCE
        while self._reads and room > 0:
            read = self._reads[0]
            try:
                room -= self._answer(read, room, runs)
            except ProtectionError:  # it is deregistered since
                self._reads.clear()
                self._expected = read.next
                self._refuse(_forbidden())
                break
            if read.next == read.end:
                self._reads.popleft()
        if not self._reads:
            if self._nak is not None:  # it acknowledges what was before it
                runs.append(self._packet(_ACKNOWLEDGE, self._expected, self._nak))
                self._nak = None
            elif self._acknowledge:
                runs.append(self._packet(_ACKNOWLEDGE, self._expected - 1, _ACK))
            self._acknowledge = False
            if self._parting:
                self._events += self._parting
                if isinstance(self._parting[0], Received):
                    self._receive = None
                self._parting = []
        return runs

    def events(self) -> list[Event]:
        """What has happened since the last time."""
        events = self._events
        if events:
            self._events = []
        return events

    def flush(self) -> None:
        """Stop; a receive that is half filled goes back to the receive queue."""
        self._stopped = True
        self._reads.clear()
        self._acknowledge = False
        self._nak = None
        self._parting = []
        if self._receive is not None:
            self._receives.appendleft(self._receive)
            self._receive = None

    # Requests.

    def _execute(self, run: Incoming, words: Sequence[int], number: int) -> int:
        """Do what the next packet asks for, and those behind it that are alike; return how many."""
        opcode = run.opcode
        if opcode <= _WRITE_ONLY_WITH_IMMEDIATE:
            family = _SEND_FIRST if opcode < _WRITE_FIRST else _WRITE_FIRST
            if opcode - family == _MIDDLE:
                return self._middles(family, run, words, number)
            self._ending(family, opcode - family, run, number)
            if words[number] & ACKNOWLEDGE:
                self._acknowledge = True
        elif opcode == _READ_REQUEST:
            self._read(run, number)
        else:
            raise _invalid()
        return 1

    def _middles(self, family: int, run: Incoming, words: Sequence[int], number: int) -> int:
        """Full packets from within a message."""
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

    def _ending(self, family: int, place: int, run: Incoming, number: int) -> None:
        """A packet that begins a message, or ends it, or both."""
        begins = place == _FIRST or place >= _ONLY
        withImmediate = place == _LAST_WITH_IMMEDIATE or place == _ONLY_WITH_IMMEDIATE
        if self._message != (None if begins else family):
            raise _invalid()
        write = family == _WRITE_FIRST
        start = BTH_LENGTH + (_RETH.size if write and begins else 0) + (_WORD.size if withImmediate else 0)
        length = run.stride - FRAME + BTH_LENGTH - start - run.pad
        mtu = self._mtu
        if place == _FIRST:
            sound = length == mtu and run.pad == 0
        else:
            sound = (0 if begins else 1) <= length <= mtu
        if not sound:
            raise _invalid()
        if self._receive is None and (withImmediate if write else begins) and not self._receives:
            raise _NotReady
        start += number * run.stride
        payload = run.data[start : start + length]
        immediate: int | None = None
        if withImmediate:
            (immediate,) = _WORD.unpack_from(run.data, start - _WORD.size)
        if write:
            target = self._writeBegins(run, number)[:length] if begins else self._target(length)
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

    def _writeBegins(self, run: Incoming, number: int) -> memoryview:
        """Check the right to all that a WRITE announces, and return it (IBA 9.7.4.1.5, 9.7.4.1.6)."""
        address, rkey, length = _RETH.unpack_from(run.data, number * run.stride + BTH_LENGTH)
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
        """Where the next bytes of a WRITE belong."""
        offset = self._offset
        if offset + length > self._length:
            raise _invalid()
        try:
            return self._keys.remote(self._domain, self._rkey, self._address + offset, length, _REMOTE_WRITE)
        except ProtectionError:  # it is deregistered since
            raise _forbidden() from None

    def _pieces(self, length: int) -> list[memoryview]:
        """The memory of the receive that is being filled, if so many bytes more fit."""
        receive = self._receive
        assert receive is not None
        local, domain = self._keys.local, self._domain
        try:
            pieces = [local(domain, segment, True) for segment in receive.segments]
        except ProtectionError:
            self._spoil(Status.LOC_PROT_ERR)
            raise _Refused(_OPERATIONAL_ERROR, None) from None
        if self._offset + length > sum(map(len, pieces)):
            self._spoil(Status.LOC_LEN_ERR)
            raise _Refused(_INVALID_REQUEST, None)
        return pieces

    def _spoil(self, status: Status) -> None:
        """The receive that is being filled fails; its completion tells, no event is needed."""
        assert self._receive is not None
        completion = Completion(self._receive.identifier, status, CompletionOpcode.RECEIVE, self._number)
        self._parting = [Received(completion, True)]

    def _ended(self, solicited: bool, immediate: int | None) -> None:
        """A message is complete."""
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
        """Nothing more can be done here, once the NAK is out."""
        self._nak = refused.syndrome
        self._parting.append(Failed(refused.kind))
        self._stopped = True

    # READs.

    def _read(self, run: Incoming, number: int) -> None:
        """A new READ request."""
        if self._message is not None:
            raise _invalid()
        read = self._requested(self._expected, run, number, again=False)
        if sum([not other.again for other in self._reads]) >= self._maxReads:
            raise _invalid()
        self._reads.append(read)
        self._expected = read.end
        self._messages += 1
        self._acknowledge = False  # the answer does that

    def _requested(self, psn: int, run: Incoming, number: int, again: bool) -> _Read:
        """What a READ request says."""
        if run.stride != FRAME + _RETH.size or not self._access & _REMOTE_READ:
            raise _invalid()
        address, rkey, length = _RETH.unpack_from(run.data, number * run.stride + BTH_LENGTH)
        try:
            self._keys.remote(self._domain, rkey, address, length, _REMOTE_READ)
        except ProtectionError:
            raise _forbidden() from None
        packets = max(1, -(-length // self._mtu))
        return _Read(psn, psn + packets, address, rkey, length, again)

    def _outOfOrder(self, psn: int, run: Incoming, number: int) -> None:
        """A packet after a gap, or one that was here before (IBA 9.7.4.1.2)."""
        if psn > self._expected:
            if not self._asked:
                self._asked = True
                self._nak = _SEQUENCE_ERROR
            return
        self.duplicates += 1
        if run.opcode != _READ_REQUEST:
            self._acknowledge = True
            return
        reads = self._reads
        while reads and reads[-1].end > psn:  # the peer has gone back, and asks for all of these again
            reads.pop()
        try:
            read = self._requested(psn, run, number, again=True)
        except _Refused:
            return  # the peer will find that it gets no answer
        if read.end <= self._expected and len(reads) <= self._maxReads:
            reads.append(read)

    def _answer(self, read: _Read, room: int, runs: list[Outgoing]) -> int:
        """Send what fits of the answer to a READ; return how many packets."""
        mtu, next = self._mtu, read.next
        stop = min(read.end, next + room)
        length = min(read.left, (stop - next) * mtu)
        payload = self._keys.remote(self._domain, read.rkey, read.address, length, _REMOTE_READ)
        taken = 0
        if read.end - read.first == 1:
            runs.append(self._packet(_RESPONSE_ONLY, next, _ACK, payload))
            next += 1
        elif next == read.first:
            runs.append(self._packet(_RESPONSE_FIRST, next, _ACK, payload[:mtu]))
            next += 1
            taken = mtu
        middles = min(stop, read.end - 1)
        while next < middles:
            count = min(middles - next, self._batch)
            part = payload[taken : taken + count * mtu]
            runs.append(Outgoing(_RESPONSE_MIDDLE, next, count, b"", part, mtu))
            next += count
            taken += count * mtu
        if next < stop:
            runs.append(self._packet(_RESPONSE_LAST, next, _ACK, payload[taken:]))
        count = stop - read.next
        read.next = stop
        read.address += length
        read.left -= length
        return count

    def _packet(self, opcode: int, psn: int, syndrome: int, payload: memoryview = _NOTHING) -> Outgoing:
        """One with an AETH."""
        aeth = _WORD.pack(syndrome << 24 | self._messages & PSN_MASK)
        return Outgoing(opcode, psn, 1, aeth, payload, self._mtu)
