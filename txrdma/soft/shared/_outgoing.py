"""
The outgoing half of a lane: requests into records and RDMA, and completions when the peer has consumed them.

Keeps the promises of InfiniBand Architecture vol. 1, 9.7 and 10.8.3 to whoever posts: requests are carried
out in order, and complete in order, when the peer has consumed them into receives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from txrdma.error import ProtectionError
from txrdma.iba.verbs import (
    AsyncEventKind,
    Completion,
    CompletionOpcode,
    Operation,
    SendRequest,
    Status,
)
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.shared._atomics import Atomics, packed, WORD_BYTES
from txrdma.soft.shared._bells import Bells
from txrdma.soft.shared._boxes import Boxes
from txrdma.soft.shared._layout import (
    acquire,
    ASKED_BYTES,
    barrier,
    COMPLETION_OF,
    Kind,
    LINE,
    NOTICE_BYTES,
    NOWHERE,
    ORDERED,
    PLAIN,
    PLAIN_SOLICITED,
    POSITION,
    release,
    RESULT_COUNT,
    SOLICITED,
    Surroundings,
    WAKE,
    Wake,
)
from txrdma.soft.shared._remote import RemoteMemory

_SEND: Final = Operation.SEND
_SUCCESS: Final = Status.SUCCESS
_SEND_DONE: Final = CompletionOpcode.SEND
_WRITE: Final = Operation.RDMA_WRITE
_WRITE_DONE: Final = CompletionOpcode.RDMA_WRITE
_PLAIN_HEADER: Final = PLAIN << 24
_SOLICITED_HEADER: Final = PLAIN_SOLICITED << 24
_WHOLE_LINES: Final = -LINE
_RDMA: Final = frozenset({Operation.RDMA_WRITE, Operation.RDMA_WRITE_WITH_IMMEDIATE, Operation.RDMA_READ})
_ATOMICS: Final = frozenset({Operation.COMPARE_AND_SWAP, Operation.FETCH_AND_ADD})
_LAST_OUTWARD: Final = int(Operation.SEND_WITH_IMMEDIATE)  # of those that send what is in our memory
FOR_EVER: Final = 7

# What a receiver may say of our oldest request.
_FAULTS: Final = frozenset({Status.REM_INV_REQ_ERR, Status.REM_ACCESS_ERR, Status.REM_OP_ERR})

_new = tuple.__new__

_Entry = tuple[int, int, CompletionOpcode, bool, Status]
"""The position that must be consumed, identifier, kind, whether signaled, and what becomes of it then."""


class Outgoing:
    """
    Requests of one queue pair, from C{post} until they complete.

    @ivar boxes: where they go; C{bells}: how the peer is told; C{remote}: its memory.
    @ivar outstanding: what is carried out and not completed, oldest first.
    @ivar waiting: what can't be carried out yet.
    @ivar isHeld: new requests wait: to be attached, for room, for an answer, behind a failure. Or they only
        take the way on which it is seen whether they may pass an atomic.
    @ivar isLinked: the peer's box is there, and our port is up.
    @ivar isAttentive: every post ends with a full look around.
    @ivar isGone: the peer is no more; C{isOver}: we are.
    """

    def __init__(self, owner: SoftQueuePair, surroundings: Surroundings, box: memoryview) -> None:
        self.boxes = Boxes(box)
        self.bells = Bells(self.boxes, surroundings)
        self.remote = RemoteMemory(owner, surroundings, self.boxes)
        self.outstanding: deque[_Entry] = deque()
        self.waiting: deque[SendRequest] = deque()
        self.isHeld = self.isAttentive = True
        self.isLinked = self.isGone = self.isOver = False
        self._owner = owner
        self._surroundings: Surroundings = surroundings
        self._atomics = Atomics()
        self._heldAt = 0  # how far the peer was when requests began to wait
        self._isFailing = False  # the newest outstanding entry is one that fails
        self._isImpatient = True  # the peer may take too long

    def attributesChanged(self) -> None:
        """Timers and counters are others now."""
        retries = self._owner.attributes.rnrRetry
        self._isImpatient = not self.isLinked or (retries is not None and retries != FOR_EVER)
        self.isAttentive = self._isImpatient or not ORDERED

    def post(self, requests: Sequence[SendRequest]) -> None:
        """
        Carry these out, in order.

        What makes up nearly all traffic is done here, without calls: a short SEND of inline bytes, and an
        RDMA WRITE of one piece, from a segment or inline, into a region that is mapped.
        """
        if self.isHeld:
            self._postLater(requests)
            return
        solicited = False
        boxes = self.boxes
        outstanding = self.outstanding
        rest = iter(requests)
        for request in rest:
            operation = request.operation
            if operation is _SEND:
                inline = request.inline
                if len(inline) == 1:
                    piece = inline[0]
                    length = len(piece)
                    size = length + 71 & _WHOLE_LINES
                    out = boxes.out
                    after = out + (size >> 3)
                    produced = boxes.produced + size
                    if after < boxes.end and produced <= boxes.limit:
                        start = (out << 3) + 8
                        try:
                            boxes.ours[start : start + length] = piece
                        except ValueError:
                            length = -1  # no plain bytes: then not here
                        if length >= 0:
                            words = boxes.words
                            words[after] = 0
                            if not ORDERED:
                                barrier()
                            if request.solicited:
                                solicited = True
                                words[out] = _SOLICITED_HEADER | length
                            else:
                                words[out] = _PLAIN_HEADER | length
                            boxes.out = after
                            boxes.produced = produced
                            outstanding.append(
                                (produced, request.identifier, _SEND_DONE, request.signaled, _SUCCESS)
                            )
                            continue
            elif operation is _WRITE and self.remote.write(request):
                outstanding.append(
                    (boxes.produced, request.identifier, _WRITE_DONE, request.signaled, _SUCCESS)
                )
                continue
            self._postSlowly(chain((request,), rest), solicited)
            return
        acquire()
        release()
        if boxes.theirs[WAKE] or self.isAttentive or boxes.produced == boxes.acknowledged:
            self.announce(solicited)

    def _postSlowly(self, requests: Iterator[SendRequest], solicited: bool) -> None:
        """Carry out requests of any kind."""
        for request in requests:
            if not self._carryOut(request):
                self.waiting.append(_kept(request))
                self.waiting.extend(map(_kept, requests))
                self._hold()
                break
            if self._isFailing:  # nothing after it is begun
                self.waiting.extend(map(_kept, requests))
                break
            solicited |= request.solicited
        if not self.isOver:
            self.announce(solicited)

    def _postLater(self, requests: Sequence[SendRequest]) -> None:
        self.waiting.extend(map(_kept, requests))
        if self.isGone:
            self.fail(Status.RETRY_EXC_ERR, None)
        elif self.isLinked:
            self.resume()
        else:
            self._surroundings.watch()

    def announce(self, solicited: bool) -> None:
        """After something was posted: wake the peer, complete what is done, and watch what takes long."""
        self.bells.posted(solicited)
        boxes = self.boxes
        if (boxes.produced == boxes.acknowledged or self._isFailing) and not self.retire():
            return
        if self._isImpatient:
            self._surroundings.watch()

    def _carryOut(self, request: SendRequest) -> bool:
        """Do it, or tell that it has to wait."""
        operation = request.operation
        if operation > _LAST_OUTWARD and not self._owner.attributes.maxRDAtomic:
            return self._spoil(request, Status.LOC_QP_OP_ERR)
        if self._atomics and (request.fence or operation in _RDMA) and not self._isDone():
            return False  # what is done to memory must not overtake them
        try:
            pieces = self._gather(request)
        except ProtectionError:
            return self._spoil(request, Status.LOC_PROT_ERR)
        boxes = self.boxes
        length = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        if operation is _SEND:
            control = PLAIN
        elif operation is Operation.SEND_WITH_IMMEDIATE:
            control = int(Kind.SEND_WITH_IMMEDIATE)
        elif operation in _RDMA:
            status = self.remote.copy(request, pieces, length) if length and not boxes.offset else _SUCCESS
            if status is None:
                return False
            return self._violate(request, status) if status else self._finishAccess(request, length)
        elif operation in _ATOMICS:
            return self._ask(request, pieces, length)
        else:
            return self._spoil(request, Status.LOC_QP_OP_ERR)
        if request.solicited:
            control |= SOLICITED
        if length > boxes.ring >> 2:
            if not boxes.recordParts(control, request.immediate, pieces, length):
                return False
        elif not boxes.record(control, request.immediate, pieces, length):
            return False
        self.outstanding.append((boxes.produced, request.identifier, _SEND_DONE, request.signaled, _SUCCESS))
        return True

    def _gather(self, request: SendRequest) -> list[memoryview]:
        """The memory that a request names."""
        if request.inline:
            return [memoryview(piece).cast("B") for piece in request.inline]
        local, domain = self._owner.keys.local, self._owner.domain
        write = request.operation > _LAST_OUTWARD
        return [local(domain, segment, write) for segment in request.segments]

    def _ask(self, request: SendRequest, pieces: list[memoryview], length: int) -> bool:
        """An atomic: the peer's process is asked to do it."""
        if length < WORD_BYTES:
            return self._spoil(request, Status.LOC_LEN_ERR)
        most = min(self._owner.attributes.maxRDAtomic or 0, RESULT_COUNT)
        if not self._isDone() and len(self._atomics) >= most:
            return False
        boxes = self.boxes
        asked = packed(request.remoteAddress, request.rkey, request.operand, request.compare)
        if not boxes.record(int(Kind.ATOMIC), int(request.operation), (asked,), ASKED_BYTES):
            return False
        self._atomics.append((boxes.produced, pieces))
        self.isHeld = self.bells.isUrgent = True
        self._heldAt = boxes.acknowledged
        self._isOnItsWay(request)
        return True

    def _isDone(self) -> bool:
        """Bring the results of atomics, as far as we know of any; tell whether none is missing."""
        self._atomics.bring(self.boxes.theirs, self.boxes.acknowledged)
        return not self._atomics

    def _finishAccess(self, request: SendRequest, length: int) -> bool:
        """Append the immediate of an RDMA operation whose bytes are copied; False when there is no room."""
        boxes = self.boxes
        if request.operation is Operation.RDMA_WRITE_WITH_IMMEDIATE:
            notice = b"".join(
                number.to_bytes(8, "little") for number in (length, request.remoteAddress, request.rkey)
            )
            control = Kind.WRITE_WITH_IMMEDIATE | (SOLICITED if request.solicited else 0)
            if not boxes.record(control, request.immediate, (memoryview(notice),), NOTICE_BYTES):
                boxes.offset = -1
                return False
        boxes.offset = 0
        self._isOnItsWay(request)
        return True

    def _isOnItsWay(self, request: SendRequest) -> None:
        opcode = COMPLETION_OF[request.operation]
        self.outstanding.append((self.boxes.produced, request.identifier, opcode, request.signaled, _SUCCESS))

    def isPlaced(self) -> bool:
        """Whether everything that was posted stands in the peer's memory, or is carried out there."""
        return self.isLinked and not self.isHeld and not self.waiting

    def _violate(self, request: SendRequest, status: Status) -> bool:
        """The peer would refuse it: both ends fail, in the order of requests."""
        return self.boxes.record(int(Kind.FAULT), int(status), (), 0) and self._spoil(request, status)

    def _spoil(self, request: SendRequest, status: Status) -> bool:
        """Fail a request as soon as those before it have succeeded; nothing after it is begun."""
        self.boxes.offset = 0
        self.isHeld = self._isFailing = True
        done = self.outstanding[-1][0] if self.outstanding else self.boxes.acknowledged
        self.outstanding.append((done, request.identifier, COMPLETION_OF[request.operation], True, status))
        return True

    def _hold(self) -> None:
        """Requests wait from now on: hear when the peer has consumed something."""
        if self.isOver:  # the peer was found to be gone when it was asked for its memory
            owner = self._owner
            while self.waiting:
                request = self.waiting.popleft()
                opcode = COMPLETION_OF[request.operation]
                owner.sendCompleted(Completion(request.identifier, Status.WR_FLUSH_ERR, opcode, owner.number))
            return
        if self.isGone:
            self.fail(Status.RETRY_EXC_ERR, None)
            return
        self.isHeld = True
        self.bells.room = Wake.ROOM
        self._heldAt = self.boxes.acknowledged
        self.bells.say()
        self.boxes.refresh()
        if self.boxes.acknowledged != self._heldAt:
            self.resume()  # it just has

    def resume(self) -> None:
        """Carry out what waits, as far as it goes."""
        if self.isOver or not self.isLinked or self.remote.asked is not None:
            return
        if self._isFailing:
            self.announce(False)
            return
        solicited = False
        waiting = self.waiting
        self.isHeld = not self._isDone()
        self._heldAt = self.boxes.acknowledged
        while waiting and not self._isFailing:
            if not self._carryOut(waiting[0]):
                self._hold()
                break
            solicited |= waiting.popleft().solicited
        if not waiting and self.bells.room and not self.isOver:
            self.bells.room = 0
            self.bells.say()
        if not self.isOver:
            self.announce(solicited)

    def settle(self, consumed: int) -> None:
        """The peer has consumed up to there, or says that it can't go on."""
        if self.isOver:
            return
        boxes = self.boxes
        fault = consumed >> 56
        consumed &= POSITION
        if not boxes.acknowledged <= consumed <= boxes.produced or (fault and fault not in _FAULTS):
            self.fail(Status.BAD_RESP_ERR, AsyncEventKind.QP_FATAL)  # it can't be true
            return
        boxes.acknowledge(consumed)
        if not self.retire():
            return
        if fault:
            self.fail(Status(fault), None)
        elif self.isHeld and consumed != self._heldAt:
            self.resume()

    def retire(self) -> bool:
        """Complete what is consumed; what then fails, fails, and the lane with it."""
        owner, outstanding, done = self._owner, self.outstanding, self.boxes.acknowledged
        if self._atomics:
            self._atomics.bring(self.boxes.theirs, done)
        before = len(outstanding)
        failed = _SUCCESS
        while outstanding:
            position, identifier, opcode, signaled, failed = outstanding[0]
            if position > done:
                failed = _SUCCESS
                break
            if failed:
                break
            outstanding.popleft()
            if signaled:
                owner.sendCompleted(
                    _new(Completion, (identifier, _SUCCESS, opcode, owner.number, 0, None, 0, False, 0, 0))
                )
        if self.isOver:  # the completion queue has overrun
            return False
        if before > len(outstanding):
            owner.retired(before - len(outstanding))
        if failed:
            self.fail(failed, None)
        return not failed

    def fail(self, status: Status, event: AsyncEventKind | None) -> None:
        """The oldest request ends like this, and the queue pair with it."""
        owner = self._owner
        if self.outstanding:
            _, identifier, opcode, _, _ = self.outstanding.popleft()
        elif self.waiting:
            request = self.waiting.popleft()
            identifier, opcode = request.identifier, COMPLETION_OF[request.operation]
        else:
            owner.failed(event)
            return
        owner.retired(1)
        owner.sendCompleted(Completion(identifier, status, opcode, owner.number))
        owner.failed(event)

    def gone(self) -> None:
        """The peer is no more: nothing is sent from now on."""
        self.isGone = self.isHeld = True
        self.isLinked = False
        self._atomics.clear()

    def leave(self) -> None:
        """Ask nothing of the surroundings any more: the lane is over."""
        self._surroundings = NOWHERE
        self.bells.leave()
        self.remote.leave()

    def close(self) -> list[tuple[int, CompletionOpcode]]:
        """Stop; what is not completed, oldest first."""
        left = [(identifier, opcode) for _, identifier, opcode, _, _ in self.outstanding]
        left += [(request.identifier, COMPLETION_OF[request.operation]) for request in self.waiting]
        self.isOver = self.isHeld = True
        self.isLinked = False
        self.outstanding.clear()
        self.waiting.clear()
        self._atomics.clear()
        return left


def _kept(request: SendRequest) -> SendRequest:
    """A copy that its owner may not change any more."""
    inline = tuple(bytes(piece) for piece in request.inline)
    return replace(request, inline=inline, segments=tuple(request.segments))
