"""
The sending half of a lane: executes requests, and completes them when the peer has consumed them.

Implements InfiniBand Architecture vol. 1, 9.7 and 10.8.3.

Theory of operation. A SEND becomes a record in the local box; RDMA is a copy, or a message to a peer whose
memory cannot be mapped. Each executed request enters C{outstanding} with the position that the peer must have
consumed. For RDMA that is the position of the records before it, so all requests complete in order.

A request that cannot be executed (no space in the ring, no answer about a region, an atomic whose result has
not arrived) enters C{waiting} with all later ones, and the lane is suspended: from then on C{post} only
queues requests, until C{resume}. A suspended lane asks the peer to wake it when it has consumed something.

A request that fails here is not refused at once, since those before it may still succeed: it is outstanding
with its status, and nothing after it is started. When it is the oldest, it completes with that status, and
the queue pair fails. A fault that the peer reports fails the oldest outstanding request in the same way.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, TYPE_CHECKING

from txrdma.error import ProtectionError, WireError
from txrdma.iba.verbs import (
    AsyncEventKind,
    Completion,
    COMPLETION_OF,
    CompletionOpcode,
    Operation,
    SendRequest,
    Status,
)
from txrdma.soft.core.pieces import ATOMIC_LENGTH, copied, viewOf
from txrdma.soft.shared._atomics import Atomics, packed
from txrdma.soft.shared._layout import (
    ATOMIC_BYTES,
    CLOSED_SERVICES,
    CONSUMED,
    Kind,
    LaneServices,
    LINE,
    NOTICE,
    NOTICE_BYTES,
    NOTICE_SOLICITED,
    PLAIN,
    PLAIN_SOLICITED,
    POSITION,
    RESULT_COUNT,
    SOLICITED,
    WAKE,
    Wake,
)
from txrdma.soft.shared._remote import RemoteMemory
from txrdma.soft.shared._rings import RingPair
from txrdma.soft.shared._wakeups import Wakeups
from txrdma.unix.fences import acquire, barrier, ORDERED, release

if TYPE_CHECKING:
    from txrdma.soft.core.queuepair import SoftQueuePair

_SEND: Final = Operation.SEND
_SUCCESS: Final = Status.SUCCESS
_SEND_DONE: Final = CompletionOpcode.SEND
_WRITE: Final = Operation.RDMA_WRITE
_WRITE_WITH_IMMEDIATE: Final = Operation.RDMA_WRITE_WITH_IMMEDIATE
_WRITE_DONE: Final = CompletionOpcode.RDMA_WRITE
_PLAIN_HEADER: Final = PLAIN << 24
_SOLICITED_HEADER: Final = PLAIN_SOLICITED << 24
_WHOLE_LINES: Final = -LINE
_RDMA: Final = frozenset({Operation.RDMA_WRITE, Operation.RDMA_WRITE_WITH_IMMEDIATE, Operation.RDMA_READ})
_ATOMICS: Final = frozenset({Operation.COMPARE_AND_SWAP, Operation.FETCH_AND_ADD})
_LAST_OUTWARD: Final = int(Operation.SEND_WITH_IMMEDIATE)  # the last operation that sends local memory
FOR_EVER: Final = 7

# Statuses with which a receiver may refuse the oldest request.
_FAULTS: Final = frozenset({Status.REM_INV_REQ_ERR, Status.REM_ACCESS_ERR, Status.REM_OP_ERR})

_new = tuple.__new__

_NONE: Final[deque[SendRequest]] = deque()
"""The waiting requests of all lanes without any: an empty deque takes 760 bytes. Never modified."""

_NO_ATOMICS: Final = Atomics()
"""The atomics of all lanes that have sent none. Never modified."""

_Entry = tuple[int, int, CompletionOpcode, bool, Status]
"""The position that the peer must consume, identifier, kind, whether signaled, and final status."""


class LaneSender:
    """
    Requests of one queue pair, from C{post} until they complete.

    @ivar rings: the rings to which records are written; C{wakeups}: wakes the peer; C{remote}: the peer's
        memory.
    @ivar outstanding: requests that are executed and not completed, oldest first.
    @ivar waiting: requests that can't be executed yet.
    @ivar isSuspended: new requests skip the fast path: they wait for the peer, for ring space or for an
        answer, follow a failure, or must be checked against an atomic.
    @ivar isLinked: the peer's box is mapped.
    @ivar announcesAlways: every post ends with L{announce}.
    @ivar hasPeerLeft: the peer's queue pair or process has ended; C{isClosed}: this lane has.
    """

    __slots__ = (
        *("_atomics", "_hasTimeout", "_isFailing", "_owner", "_services", "_suspendedAt"),
        *("announcesAlways", "hasPeerLeft", "isClosed", "isLinked", "isSuspended", "outstanding", "remote"),
        *("rings", "waiting", "wakeups"),
    )

    def __init__(self, owner: SoftQueuePair, services: LaneServices, box: memoryview) -> None:
        self.rings = RingPair(box)
        self.wakeups = Wakeups(self.rings, services)
        self.remote = RemoteMemory(owner, services, self.rings)
        self.outstanding: list[_Entry] = []  # an empty deque takes 0.7 KiB
        self.waiting = _NONE
        self.isSuspended = self.announcesAlways = True
        self.isLinked = self.hasPeerLeft = self.isClosed = False
        self._owner = owner
        self._services: LaneServices = services
        self._atomics = _NO_ATOMICS
        self._suspendedAt = 0  # acknowledged position when requests were suspended
        self._isFailing = False  # the newest outstanding entry is one that fails
        self._hasTimeout = True  # a retry limit applies to the peer

    def attributesChanged(self) -> None:
        retries = self._owner.attributes.rnrRetry
        self._hasTimeout = not self.isLinked or (retries is not None and retries != FOR_EVER)
        self.announcesAlways = self._hasTimeout or not ORDERED

    def post(self, requests: Sequence[SendRequest]) -> None:
        """
        Execute requests, in order.

        Fast path: a SEND of inline bytes in one piece, and an RDMA WRITE into a mapped region, are done here
        with few calls. For a SEND of 64 bytes that saves a fifth of the CPU time.
        """
        if self.isSuspended:
            self._enqueue(requests)
            return
        solicited = False
        rings = self.rings
        outstanding = self.outstanding
        rest = iter(requests)
        request: SendRequest | None
        try:
            for request in rest:
                operation = request.operation
                if operation is _SEND:
                    inline = request.inline
                    if len(inline) == 1:
                        piece = inline[0]
                        length = len(piece)
                        size = length + 71 & _WHOLE_LINES
                        out = rings.writeIndex
                        after = out + (size >> 3)
                        produced = rings.produced + size
                        if after < rings.localEnd and produced <= rings.limit:
                            # Strictly less, since the next header is cleared at C{after}; C{append} handles
                            # the end of the ring.
                            start = (out << 3) + 8
                            rings.localBytes[start : start + length] = piece
                            words = rings.localWords
                            words[after] = 0  # before this header lets the reader advance to it
                            if not ORDERED:
                                barrier()
                            if request.solicited:
                                solicited = True
                                words[out] = _SOLICITED_HEADER | length
                            else:
                                words[out] = _PLAIN_HEADER | length
                            rings.writeIndex = after
                            rings.produced = produced
                            outstanding.append(
                                (produced, request.identifier, _SEND_DONE, request.signaled, _SUCCESS)
                            )
                            continue
                elif operation is _WRITE_WITH_IMMEDIATE:
                    if self._write(request):
                        if request.solicited:
                            solicited = True
                        continue
                elif operation is _WRITE and self.remote.write(request) >= 0:
                    outstanding.append(
                        (rings.produced, request.identifier, _WRITE_DONE, request.signaled, _SUCCESS)
                    )
                    continue
                break
            else:
                request = None
        except (OverflowError, TypeError, ValueError):
            pass  # inline data that are not plain bytes, or an impossible field: C{_start} fails the request
        if request is not None:
            self._postGeneral(chain((request,), rest), solicited)
            return
        # Full fence on x86, elsewhere in C{announce}: records are visible before the wake word is read.
        acquire()
        release()
        wake = rings.peerWords[WAKE]
        if self.announcesAlways or (wake and wake != self.wakeups.wokenReceives):
            self.announce(solicited)

    def _write(self, request: SendRequest) -> bool:
        """
        Fast path of an RDMA WRITE with immediate data; False if the general path is needed.

        It saves a sixth of C{rsocket-shared-roundtrip}. An impossible field raises an exception.
        """
        rings = self.rings
        out = rings.writeIndex
        after = out + LINE // 8
        produced = rings.produced + LINE
        if after >= rings.localEnd or produced > rings.limit:
            return False
        length = self.remote.write(request)
        if length < 0:
            return False
        words = rings.localWords
        words[out + 1] = length
        words[out + 2] = request.remoteAddress
        words[out + 3] = request.rkey
        words[after] = 0
        if not ORDERED:
            barrier()
        words[out] = request.immediate << 32 | (NOTICE_SOLICITED if request.solicited else NOTICE)
        rings.writeIndex = after
        rings.produced = produced
        self.outstanding.append((produced, request.identifier, _WRITE_DONE, request.signaled, _SUCCESS))
        return True

    def _postGeneral(self, requests: Iterator[SendRequest], solicited: bool) -> None:
        """Execute requests of any kind."""
        for request in requests:
            if not self._start(request):
                self._queue(chain((request,), requests))
                self._suspend()
                break
            if self._isFailing:  # nothing after it is begun
                self._queue(requests)
                break
            if request.solicited:
                solicited = True
        if not self.isClosed:
            self.announce(solicited)

    def _queue(self, requests: Iterable[SendRequest]) -> None:
        if self.waiting is _NONE:
            self.waiting = deque()
        self.waiting.extend([copied(request) for request in requests])  # all or, if one is malformed, none

    def _enqueue(self, requests: Sequence[SendRequest]) -> None:
        """Queue requests behind waiting ones, and try to resume."""
        self._queue(requests)
        if self.hasPeerLeft:
            self.fail(Status.RETRY_EXC_ERR, None)
        elif self.isLinked:
            self.resume()
        else:
            self._services.watch()

    def announce(self, solicited: bool) -> None:
        """Wake the peer after a post, complete finished requests, and start the timeout."""
        self.wakeups.posted(solicited)
        rings = self.rings
        if (rings.produced == rings.acknowledged or self._isFailing) and not self.completeSends():
            return
        if self._hasTimeout:
            self._services.watch()

    def _start(self, request: SendRequest) -> bool:
        """Execute one request; one with an impossible field fails. Return False if it has to wait."""
        try:
            return self._execute(request)
        except (OverflowError, TypeError, ValueError, WireError):  # more than 32 bits of immediate data
            return self._failRequest(request, Status.LOC_QP_OP_ERR)

    def _execute(self, request: SendRequest) -> bool:
        """Execute one request of any kind; False if it has to wait, or if the ring is full."""
        operation = request.operation
        if operation > _LAST_OUTWARD and not self._owner.attributes.maxRDAtomic:
            # READs and atomics need resources of the responder, and none were agreed on.
            return self._failRequest(request, Status.LOC_QP_OP_ERR)
        if self._atomics and (request.fence or operation in _RDMA) and not self._areAtomicsDone():
            return False  # RDMA must not overtake an atomic
        try:
            pieces = self._gather(request)
        except ProtectionError:
            return self._failRequest(request, Status.LOC_PROT_ERR)
        rings = self.rings
        length = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        if operation is _SEND:
            control = PLAIN
        elif operation is Operation.SEND_WITH_IMMEDIATE:
            control = int(Kind.SEND_WITH_IMMEDIATE)
        elif operation in _RDMA:
            # With an offset (-1) the bytes are copied, and only the notice has waited for space.
            status = self.remote.copy(request, pieces, length) if length and not rings.offset else _SUCCESS
            if status is None:  # until the peer has answered about the region
                return False
            return self._sendFault(request, status) if status else self._finishAccess(request, length)
        elif operation in _ATOMICS:
            return self._ask(request, pieces, length)
        else:
            return self._failRequest(request, Status.LOC_QP_OP_ERR)
        if request.solicited:
            control |= SOLICITED
        # In parts, since a message may be longer than the ring.
        if length > rings.ring >> 2:
            if not rings.appendParts(control, request.immediate, pieces, length):
                return False
        elif not rings.append(control, request.immediate, pieces, length):
            return False
        self.outstanding.append((rings.produced, request.identifier, _SEND_DONE, request.signaled, _SUCCESS))
        return True

    def _gather(self, request: SendRequest) -> list[memoryview]:
        if request.inline:
            try:  # a call for each piece would add 4 % to a message of two
                return [memoryview(piece).cast("B") for piece in request.inline]
            except TypeError:  # not contiguous
                return [viewOf(piece) for piece in request.inline]
        local, domain = self._owner.keys.local, self._owner.domain
        write = request.operation > _LAST_OUTWARD
        return [local(domain, segment, write) for segment in request.segments]

    def _ask(self, request: SendRequest, pieces: list[memoryview], length: int) -> bool:
        """Send an atomic to the peer's process; False when it has to wait."""
        if length < ATOMIC_LENGTH:
            return self._failRequest(request, Status.LOC_LEN_ERR)
        most = min(self._owner.attributes.maxRDAtomic or 0, RESULT_COUNT)
        if not self._areAtomicsDone() and len(self._atomics) >= most:
            return False
        rings = self.rings
        asked = packed(request.remoteAddress, request.rkey, request.operand, request.compare)
        if not rings.append(int(Kind.ATOMIC), int(request.operation), (asked,), ATOMIC_BYTES):
            return False
        if self._atomics is _NO_ATOMICS:
            self._atomics = Atomics()
        self._atomics.append((rings.produced, pieces))
        self.isSuspended = self.wakeups.isPollNeeded = True
        self._suspendedAt = rings.acknowledged
        self._sent(request)
        return True

    def _areAtomicsDone(self) -> bool:
        """Copy results of acknowledged atomics to their segments; return whether all have arrived."""
        self._atomics.deliver(self.rings.peerWords, self.rings.acknowledged)
        return not self._atomics

    def _finishAccess(self, request: SendRequest, length: int) -> bool:
        """
        Append the immediate data of an RDMA operation whose bytes are copied. Return False if the ring is
        full.
        """
        rings = self.rings
        if request.operation is Operation.RDMA_WRITE_WITH_IMMEDIATE:
            notice = array("Q", (length, request.remoteAddress, request.rkey))
            control = Kind.WRITE_WITH_IMMEDIATE | (SOLICITED if request.solicited else 0)
            if not rings.append(control, request.immediate, (memoryview(notice).cast("B"),), NOTICE_BYTES):
                rings.offset = -1
                return False
        rings.offset = 0
        self._sent(request)
        return True

    def _sent(self, request: SendRequest) -> None:
        opcode = COMPLETION_OF[request.operation]
        self.outstanding.append((self.rings.produced, request.identifier, opcode, request.signaled, _SUCCESS))

    def isPlaced(self) -> bool:
        """Return whether all posted requests are in shared memory, and remain if this process ends."""
        return self.isLinked and not self.isSuspended and not self.waiting

    def isConsumed(self) -> bool:
        """
        Return whether the peer has consumed all posted requests. If not, the latest one is signaled.

        False as well after the end, when that is unknown.
        """
        if self.isLinked:
            self.peerConsumed(self.rings.peerWords[CONSUMED])
        if self.isClosed:
            return False
        if self.waiting:
            self.waiting[-1].signaled = True
        elif self.outstanding:
            position, identifier, opcode, _signaled, status = self.outstanding[-1]
            self.outstanding[-1] = (position, identifier, opcode, True, status)
        else:
            return True
        return False

    def _sendFault(self, request: SendRequest, status: Status) -> bool:
        """Fail a request that the peer would refuse, on both ends, in the order of requests."""
        return self.rings.append(int(Kind.FAULT), int(status), (), 0) and self._failRequest(request, status)

    def _failRequest(self, request: SendRequest, status: Status) -> bool:
        """Fail a request once those before it have succeeded; later requests are not started."""
        self.rings.offset = 0
        self.isSuspended = self._isFailing = True
        done = self.outstanding[-1][0] if self.outstanding else self.rings.acknowledged
        self.outstanding.append((done, request.identifier, completionOf(request), True, status))
        return True

    def _suspend(self) -> None:
        """Suspend new requests, and request a wakeup when the peer has consumed records."""
        if self.isClosed:  # a message to the peer failed, and closed the lane
            owner = self._owner
            while self.waiting:
                request = self.waiting.popleft()
                opcode = completionOf(request)
                owner.sendCompleted(Completion(request.identifier, Status.WR_FLUSH_ERR, opcode, owner.number))
            return
        if self.hasPeerLeft:
            self.fail(Status.RETRY_EXC_ERR, None)
            return
        self.isSuspended = True
        self.wakeups.room = Wake.ROOM
        self._suspendedAt = self.rings.acknowledged
        self.wakeups.publish()
        self.rings.readAcknowledged()
        if self.rings.acknowledged != self._suspendedAt:
            self.resume()  # the peer consumed records meanwhile

    def resume(self) -> None:
        """Execute waiting requests, as far as possible."""
        if self.isClosed or not self.isLinked or self.remote.requested is not None:
            return
        if self._isFailing:
            self.announce(False)
            return
        solicited = False
        waiting = self.waiting
        self.isSuspended = not self._areAtomicsDone()
        self._suspendedAt = self.rings.acknowledged
        while waiting and not self._isFailing:
            if not self._start(waiting[0]):
                self._suspend()
                break
            if waiting.popleft().solicited:
                solicited = True
        if not waiting:
            self.waiting = _NONE
            if self.wakeups.room and not self.isClosed:
                self.wakeups.room = 0
                self.wakeups.publish()
        if not self.isClosed:
            self.announce(solicited)

    def peerConsumed(self, consumed: int) -> None:
        """Process the peer's C{CONSUMED} word: its position, and a fault in the top byte."""
        if self.isClosed:
            return
        rings = self.rings
        fault = consumed >> 56
        consumed &= POSITION
        if not rings.acknowledged <= consumed <= rings.produced or (fault and fault not in _FAULTS):
            self.fail(Status.BAD_RESP_ERR, AsyncEventKind.QP_FATAL)  # impossible value
            return
        rings.acknowledge(consumed)
        if not self.completeSends():
            return
        if fault:
            self.fail(Status(fault), None)
        elif self.isSuspended and consumed != self._suspendedAt:
            self.resume()

    def completeSends(self) -> bool:
        """Complete consumed requests; False when one fails, and the lane with it."""
        owner, outstanding, done = self._owner, self.outstanding, self.rings.acknowledged
        if self._atomics:
            self._atomics.deliver(self.rings.peerWords, done)
        count = 0
        failed = _SUCCESS
        for position, _, _, _, status in outstanding:
            if position > done:
                break
            if status:
                failed = status
                break
            count += 1
        if count:
            completed, number = outstanding[:count], owner.number
            del outstanding[:count]
            for _, identifier, opcode, signaled, _ in completed:
                if signaled and not self.isClosed:
                    owner.sendCompleted(
                        _new(Completion, (identifier, _SUCCESS, opcode, number, 0, None, 0, False, 0, 0))
                    )
            if self.isClosed:  # closed by an overrun of the completion queue
                return False
            owner.retired(count)
        if failed:
            self.fail(failed, None)
        return not failed

    def fail(self, status: Status, event: AsyncEventKind | None) -> None:
        """Complete the oldest request with this status, and fail the queue pair."""
        owner = self._owner
        if self.outstanding:
            _, identifier, opcode, _, _ = self.outstanding.pop(0)
        elif self.waiting:
            request = self.waiting.popleft()
            identifier, opcode = request.identifier, completionOf(request)
        else:
            owner.failed(event)
            return
        owner.retired(1)
        owner.sendCompleted(Completion(identifier, status, opcode, owner.number))
        owner.failed(event)

    def peerEnded(self) -> None:
        """Stop sending: the peer has ended."""
        self.hasPeerLeft = self.isSuspended = True
        self.isLinked = False
        self._atomics.clear()

    def leave(self) -> None:
        self._services = CLOSED_SERVICES
        self.wakeups.leave()
        self.remote.leave()

    def close(self) -> list[tuple[int, CompletionOpcode]]:
        """Stop, and return uncompleted requests (identifier and kind), oldest first."""
        left = [(identifier, opcode) for _, identifier, opcode, _, _ in self.outstanding]
        left += [(request.identifier, completionOf(request)) for request in self.waiting]
        self.isClosed = self.isSuspended = True
        self.isLinked = False
        self.outstanding.clear()
        self.waiting.clear()
        self._atomics.clear()
        return left


def completionOf(request: SendRequest) -> CompletionOpcode:
    """Return the opcode of the completion of a request, which fails and may have no known operation."""
    return COMPLETION_OF.get(request.operation, CompletionOpcode.SEND)
