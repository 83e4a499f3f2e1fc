"""
Answers to READs and atomic operations, in order; results of atomics are stored for repeated requests.

Follows InfiniBand Architecture vol. 1, 9.4.4 (READ), 9.4.5 (atomics) and 9.7.5.1 (answers). Memory is read
while a READ is answered, and again for a repeated READ. An atomic operation is executed once: a repeated
request gets the result of the first one.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Final, TYPE_CHECKING, Union

from txrdma.iba.headers import NO_CREDITS, Opcode
from txrdma.iba.verbs import Access
from txrdma.soft.core.pieces import performAtomic
from txrdma.soft.rc._entries import COMPARE_SWAP, NO_ENTRIES
from txrdma.soft.rc._packets import ATOMIC_ETH, Outgoing, PSN_MASK, WORD

if TYPE_CHECKING:
    from txrdma.soft.core.memory import Domain, KeyTable

REMOTE_READ: Final = int(Access.REMOTE_READ)

_RESPONSE_FIRST: Final = int(Opcode.RC_RDMA_READ_RESPONSE_FIRST)
_RESPONSE_MIDDLE: Final = int(Opcode.RC_RDMA_READ_RESPONSE_MIDDLE)
_RESPONSE_LAST: Final = int(Opcode.RC_RDMA_READ_RESPONSE_LAST)
_RESPONSE_ONLY: Final = int(Opcode.RC_RDMA_READ_RESPONSE_ONLY)
_ATOMIC_ACKNOWLEDGE: Final = int(Opcode.RC_ATOMIC_ACKNOWLEDGE)

_NUMBER: Final = Struct(">Q")
_NOTHING: Final = memoryview(b"")


class Read:
    """A READ that is being answered: packets C{next} to C{end} remain to be sent."""

    __slots__ = ("address", "isRepeat", "end", "first", "left", "next", "rkey")

    def __init__(self, first: int, end: int, address: int, rkey: int, length: int, isRepeat: bool) -> None:
        self.first = self.next = first
        self.end = end
        self.isRepeat = isRepeat
        self.address = address
        self.rkey = rkey
        self.left = length


class Atomic:
    """An executed atomic operation: its request (opcode and header), and the original value."""

    __slots__ = ("isRepeat", "end", "first", "next", "original", "request")

    def __init__(self, psn: int, request: tuple[int, bytes], original: int, isRepeat: bool = False) -> None:
        self.first = self.next = psn
        self.end = psn + 1
        self.request = request
        self.original = original
        self.isRepeat = isRepeat


Answer = Union[Read, Atomic]


class Answers:
    """The answers of one queue pair. C{waiting}: those that are not complete; only L{queue} appends to it."""

    __slots__ = ("_batch", "_domain", "_keys", "_mtu", "_results", "_retained", "waiting")

    def __init__(self, keys: KeyTable, domain: Domain, mtu: int, batch: int) -> None:
        self._keys = keys
        self._domain = domain
        self._mtu = mtu
        self._batch = batch
        self.waiting: deque[Answer] = NO_ENTRIES
        self._results: list[Atomic] = []
        self._retained = 1

    def retain(self, count: int) -> None:
        """Set the number of results of atomic operations that are retained for repeated requests."""
        self._retained = count
        del self._results[: max(0, len(self._results) - count)]

    def queue(self, answer: Answer) -> None:
        """Queue an answer behind earlier ones."""
        if self.waiting is NO_ENTRIES:
            self.waiting = deque()
        self.waiting.append(answer)

    @property
    def new(self) -> int:
        """The number of waiting answers to new requests."""
        return sum([not answer.isRepeat for answer in self.waiting])

    def execute(self, psn: int, opcode: int, header: bytes, target: memoryview) -> None:
        """Execute an atomic operation, in host byte order, and queue its answer."""
        _address, _rkey, operand, compare = ATOMIC_ETH.unpack(header)
        original = performAtomic(target, compare if opcode == COMPARE_SWAP else None, operand)
        result = Atomic(psn, (opcode, header), original)
        self._results.append(result)
        self.retain(self._retained)
        self.queue(result)

    def resultOf(self, psn: int, opcode: int, header: bytes) -> Atomic | None:
        """Return the retained result of a repeated atomic request; None if it is not retained."""
        for result in self._results:
            if result.first == psn and result.request == (opcode, header):
                return Atomic(psn, result.request, result.original, isRepeat=True)
        return None

    def repeat(self, answer: Answer, most: int) -> None:
        """Answer a repeated request, if fewer than C{most} answers wait."""
        waiting = self.waiting
        for other in waiting:
            if other.first == other.next == answer.first and other.end == answer.end:
                return  # all its packets are still to be sent
        while waiting and waiting[-1].end > answer.first:  # the peer has gone back, and repeats all of these
            answer.isRepeat &= waiting.pop().isRepeat  # an incomplete answer stays new
        if len(waiting) <= most:
            self.queue(answer)

    def send(self, room: int, messages: int, runs: list[Outgoing]) -> int:
        """
        Append packets of the oldest answer, as many as fit; return their number.

        @raise ProtectionError: its memory was deregistered.
        """
        answer = self.waiting[0]
        if isinstance(answer, Atomic):
            extension = WORD.pack(NO_CREDITS << 24 | messages & PSN_MASK) + _NUMBER.pack(answer.original)
            runs.append(Outgoing(_ATOMIC_ACKNOWLEDGE, answer.next, 1, extension, _NOTHING, self._mtu))
            answer.next = answer.end
            count = 1
        else:
            count = self._read(answer, room, messages, runs)
        if answer.next == answer.end:
            self.waiting.popleft()
        return count

    def _read(self, read: Read, room: int, messages: int, runs: list[Outgoing]) -> int:
        """Append packets of a READ's answer, at most C{room}; return their number."""
        mtu, next = self._mtu, read.next
        stop = min(read.end, next + room)
        length = min(read.left, (stop - next) * mtu)
        payload = self._keys.remote(self._domain, read.rkey, read.address, length, REMOTE_READ)
        aeth = WORD.pack(NO_CREDITS << 24 | messages & PSN_MASK)
        taken = 0
        if read.end - read.first == 1:
            runs.append(Outgoing(_RESPONSE_ONLY, next, 1, aeth, payload, mtu))
            next += 1
        elif next == read.first:
            runs.append(Outgoing(_RESPONSE_FIRST, next, 1, aeth, payload[:mtu], mtu))
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
            runs.append(Outgoing(_RESPONSE_LAST, next, 1, aeth, payload[taken:], mtu))
        count = stop - read.next
        read.next = stop
        read.address += length
        read.left -= length
        return count
