"""
The sending half of a lane: requests into records, and RDMA by a copy.

Keeps the promises of InfiniBand Architecture vol. 1, 9.7 and 10.8.3 to whoever posts: requests are carried
out in order, and complete in order, when the peer has consumed them into receives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from txrdma.error import ProtectionError
from txrdma.iba.types import RKey
from txrdma.iba.verbs import (
    AsyncEventKind,
    Completion,
    CompletionOpcode,
    Operation,
    SendRequest,
    Status,
)
from txrdma.soft._route import Owner
from txrdma.soft.shared._atomics import Atomics, packed, WORD_BYTES
from txrdma.soft.shared._layout import (
    acquire,
    ASKED_BYTES,
    barrier,
    COMPLETION_OF,
    Kind,
    LINE,
    ORDERED,
    PLAIN,
    PLAIN_SOLICITED,
    POSITION,
    release,
    REMOTE_READ,
    REMOTE_WRITE,
    RemoteRegion,
    RESULT_COUNT,
    SOLICITED,
    Surroundings,
    TOLD_BYTES,
    WAKE,
    Wake,
)
from txrdma.soft.shared._writer import Writer

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


class Sending(Writer):
    """
    The sending half of a lane.

    @ivar regions: the peer's memory as far as it is known; None for a key that was refused.
    """

    __slots__ = (
        "_armed",
        "_asked",
        "_atomics",
        "_attentive",
        "_dead",
        "_domain",
        "_down",
        "_epoch",
        "_failing",
        "_gone",
        "_held",
        "_heldAt",
        "_impatient",
        "_notes",
        "_nudgedFor",
        "_linked",
        "_lookup",
        "_outstanding",
        "_owner",
        "_peerAccess",
        "_preparing",
        "_room",
        "_rungReceives",
        "_since",
        "_surroundings",
        "_urgent",
        "_waiting",
        "regions",
    )

    def __init__(self, owner: Owner, surroundings: Surroundings, box: memoryview) -> None:
        super().__init__(box)
        self._owner = owner
        self._domain = owner.domain
        self._lookup = owner.keys.lookup
        self._surroundings = surroundings
        self.regions: dict[int, RemoteRegion | None] = {}
        self._peerAccess = 0  # what the peer's queue pair allows, when we last heard of it
        self._preparing: dict[
            int, list[Callable[[], None]]
        ] = {}  # asked for before anything was to be sent there
        self._outstanding: deque[_Entry] = deque()
        self._atomics = Atomics()
        # What can't be carried out yet.
        self._waiting: deque[SendRequest] = deque()
        # New requests wait: to be attached, for room, for an answer, behind a failure. Or they only take the
        # way on which it is seen whether they may pass an atomic.
        self._held = True
        self._heldAt = 0  # how far the peer was then
        self._linked = False
        self._notes = False  # the peer wants a note of each access to its memory
        self._failing = False  # the newest outstanding entry is one that fails
        self._asked: RKey | None = None  # an answer of the peer's process is awaited
        # Who is woken.
        self._armed = 0
        self._room = 0
        self._epoch = 0
        self._rungReceives = 0
        self._urgent = False  # the peer is to look, even when nobody there waits for messages
        self._nudgedFor = 0  # how far it was to come when it was asked to
        # How long the peer may take, and how it ends.
        self._impatient = True
        self._attentive = True  # every post ends with a full look around
        self._since: tuple[int, float] | None = None
        self._down = False  # our port is
        self._gone = False
        self._dead = False

    def attributesChanged(self) -> None:
        """Timers and counters are others now."""
        retries = self._owner.attributes.rnrRetry
        self._impatient = not self._linked or (retries is not None and retries != FOR_EVER)
        self._attentive = self._impatient or not ORDERED

    def post(self, requests: Sequence[SendRequest]) -> None:
        """
        Carry these out, in order.

        What makes up nearly all traffic is done here, without calls: a short SEND of inline bytes, and an
        RDMA WRITE of one piece, from a segment or inline, into a region that is mapped.
        """
        if self._held:
            self._postLater(requests)
            return
        solicited = False
        outstanding = self._outstanding
        rest = iter(requests)
        for request in rest:
            operation = request.operation
            if operation is _SEND:
                inline = request.inline
                if len(inline) == 1:
                    piece = inline[0]
                    length = len(piece)
                    size = length + 71 & _WHOLE_LINES
                    out = self._out
                    after = out + (size >> 3)
                    produced = self._produced + size
                    if after < self._outEnd and produced <= self._limit:
                        start = (out << 3) + 8
                        try:
                            self._outBytes[start : start + length] = piece
                        except ValueError:
                            length = -1  # no plain bytes: then not here
                        if length >= 0:
                            words = self._outWords
                            words[after] = 0
                            if not ORDERED:
                                barrier()
                            if request.solicited:
                                solicited = True
                                words[out] = _SOLICITED_HEADER | length
                            else:
                                words[out] = _PLAIN_HEADER | length
                            self._out = after
                            self._produced = produced
                            outstanding.append(
                                (produced, request.identifier, _SEND_DONE, request.signaled, _SUCCESS)
                            )
                            continue
            elif operation is _WRITE and self._written(request):
                outstanding.append(
                    (self._produced, request.identifier, _WRITE_DONE, request.signaled, _SUCCESS)
                )
                continue
            self._postSlowly(chain((request,), rest), solicited)
            return
        acquire()
        release()
        if self._inWords[WAKE] or self._attentive or self._produced == self._acknowledged:
            self._announce(solicited)

    def _written(self, request: SendRequest) -> bool:
        """Do an RDMA WRITE, when it is as simple as it mostly is."""
        region = self.regions.get(request.rkey)
        if region is None:
            return False
        target = region.writable
        at = request.remoteAddress - region.address
        if target is None or at < 0 or region.valid[0] != 1:
            return False
        inline = request.inline
        if inline:
            if at + (len(inline[0]) if len(inline) == 1 else sum(map(len, inline))) > region.length:
                return False
            try:
                for piece in inline:
                    end = at + len(piece)
                    target[at:end] = piece
                    at = end
            except ValueError:  # no plain bytes
                return False
            return True
        if len(request.segments) != 1:
            return False
        address, length, lkey = request.segments[0]
        source = self._lookup(lkey)
        if source is None or source.domain is not self._domain or at + length > region.length:
            return False
        start = address - source.address
        if start < 0 or start + length > source.length:
            return False
        target[at : at + length] = source.view[start : start + length]
        return True

    def _postSlowly(self, requests: Iterator[SendRequest], solicited: bool) -> None:
        """Carry out requests of any kind."""
        for request in requests:
            if not self._carryOut(request):
                self._waiting.append(_kept(request))
                self._waiting.extend(map(_kept, requests))
                self._hold()
                break
            if self._failing:  # nothing after it is begun
                self._waiting.extend(map(_kept, requests))
                break
            solicited |= request.solicited
        if not self._dead:
            self._announce(solicited)

    def _postLater(self, requests: Sequence[SendRequest]) -> None:
        self._waiting.extend(map(_kept, requests))
        if self._gone:
            self._fail(Status.RETRY_EXC_ERR, None)
        elif self._linked:
            self._resume()
        else:
            self._surroundings.watch()

    def _announce(self, solicited: bool) -> None:
        """After something was posted: wake the peer, when it sleeps and wants to be."""
        barrier()
        wake = self._inWords[WAKE]
        if wake and wake != self._rungReceives and wake & (3 if solicited else 1):
            self._rungReceives = wake
            self._surroundings.ringReceives()
        if wake & Wake.DOWN:
            self._surroundings.watch()
        elif self._urgent and not wake & Wake.RECEIVES:
            self._nudge()
        self._urgent = False
        if (self._produced == self._acknowledged or self._failing) and not self._retire():
            return
        if self._impatient:
            self._surroundings.watch()

    def _nudge(self) -> None:
        """Have the peer look, unless it was asked before and has not looked since: it will find all."""
        self._refresh()
        if self._acknowledged >= self._nudgedFor:
            self._nudgedFor = self._produced
            self._surroundings.nudge()

    def _carryOut(self, request: SendRequest) -> bool:
        """Do it, or tell that it has to wait."""
        operation = request.operation
        if operation > _LAST_OUTWARD and not self._owner.attributes.maxRDAtomic:
            self._spoil(request, Status.LOC_QP_OP_ERR)
            return True
        if self._atomics and (request.fence or operation in _RDMA) and not self._isDone():
            return False  # what is done to memory must not overtake them
        try:
            pieces = self._gather(request)
        except ProtectionError:
            self._spoil(request, Status.LOC_PROT_ERR)
            return True
        length = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        if operation is _SEND:
            control = PLAIN
        elif operation is Operation.SEND_WITH_IMMEDIATE:
            control = int(Kind.SEND_WITH_IMMEDIATE)
        elif operation in _RDMA:
            return self._reach(request, pieces, length)
        elif operation in _ATOMICS:
            return self._ask(request, pieces, length)
        else:
            self._spoil(request, Status.LOC_QP_OP_ERR)
            return True
        if request.solicited:
            control |= SOLICITED
        if length > self._ring >> 2:
            if not self._recordParts(control, request.immediate, pieces, length):
                return False
        elif not self._record(control, request.immediate, pieces, length):
            return False
        self._outstanding.append((self._produced, request.identifier, _SEND_DONE, request.signaled, _SUCCESS))
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
            self._spoil(request, Status.LOC_LEN_ERR)
            return True
        most = min(self._owner.attributes.maxRDAtomic or 0, RESULT_COUNT)
        if not self._isDone() and len(self._atomics) >= most:
            return False
        asked = packed(request.remoteAddress, request.rkey, request.operand, request.compare)
        if not self._record(int(Kind.ATOMIC), int(request.operation), (asked,), ASKED_BYTES):
            return False
        self._atomics.append((self._produced, pieces))
        self._held = self._urgent = True
        self._heldAt = self._acknowledged
        opcode = COMPLETION_OF[request.operation]
        self._outstanding.append((self._produced, request.identifier, opcode, request.signaled, _SUCCESS))
        return True

    def _isDone(self) -> bool:
        """Bring the results of atomics, as far as we know of any; tell whether none is missing."""
        self._atomics.bring(self._inWords, self._acknowledged)
        return not self._atomics

    def _reach(self, request: SendRequest, pieces: list[memoryview], length: int) -> bool:
        """RDMA: copy into or out of the peer's memory."""
        if length and self._offset == 0:
            if self._inWords[WAKE] & Wake.DOWN:
                return False
            rkey = request.rkey
            if rkey not in self.regions:
                if self._asked is None:
                    self._asked = rkey
                    if rkey not in self._preparing:
                        self._surroundings.wantRegion(rkey)
                return False
            region = self.regions[rkey]
            reading = request.operation is Operation.RDMA_READ
            need = REMOTE_READ if reading else REMOTE_WRITE
            if not self._peerAccess & need:
                return self._violate(request, Status.REM_INV_REQ_ERR)
            if region is None or not region.valid[0] or not region.rights & need:
                return self._violate(request, Status.REM_ACCESS_ERR)
            offset = request.remoteAddress - region.address
            if offset < 0 or offset + length > region.length:
                return self._violate(request, Status.REM_ACCESS_ERR)
            view = region.noted if region.view is None else region.view
            if view is None:
                self._reachByMessages(request, pieces)
                return False
            for piece in pieces:
                end = offset + len(piece)
                if reading:
                    piece[:] = view[offset:end]
                else:
                    view[offset:end] = piece
                offset = end
        return self._reached(request, length)

    def _reached(self, request: SendRequest, length: int) -> bool:
        """The bytes are where they belong: tell of them, where that was asked."""
        operation = request.operation
        withImmediate = operation is Operation.RDMA_WRITE_WITH_IMMEDIATE
        if withImmediate or self._notes:
            control = int(Kind.WRITE_WITH_IMMEDIATE if withImmediate else Kind.NOTE)
            told = b"".join(
                number.to_bytes(8, "little") for number in (length, request.remoteAddress, request.rkey)
            )
            if not self._record(
                control | (SOLICITED if request.solicited and withImmediate else 0),
                request.immediate if withImmediate else int(operation),
                (memoryview(told),),
                TOLD_BYTES,
            ):
                self._offset = -1
                return False
        self._offset = 0
        opcode = COMPLETION_OF[request.operation]
        self._outstanding.append((self._produced, request.identifier, opcode, request.signaled, _SUCCESS))
        return True

    def _reachByMessages(self, request: SendRequest, pieces: list[memoryview]) -> None:
        """Ask for memory by messages, one request at a time, once all earlier records are consumed."""
        if self._asked is None:
            self._refresh()
            if self._produced == self._acknowledged:
                self._asked = request.rkey
                self._surroundings.access(request, pieces)

    def accessed(self, allowed: bool) -> None:
        """The answer to C{Surroundings.access}: the first waiting request's bytes are moved, or refused."""
        if self._dead or self._asked is None:
            return
        if allowed:
            self._offset = -1
        else:
            self.regions[self._asked] = None
        self._asked = None
        self._resume()

    def regionKnown(self, rkey: RKey, region: RemoteRegion | None, access: int) -> None:
        """
        Take the answer to C{Surroundings.wantRegion}, and go on with the requests that wait for it.

        @param access: what the peer's queue pair allows.
        """
        preparing = self._preparing.pop(rkey, None)
        if self._dead or (preparing is None and self._asked != rkey):
            return
        self._peerAccess = access
        if self._notes and region is not None:
            region.note()
        self.regions[rkey] = region
        for known in preparing or ():
            known()
        if self._asked == rkey:
            self._asked = None
            self._resume()

    def prepare(self, rkey: RKey, known: Callable[[], None]) -> None:
        """Ask for a region before anything is to be sent there: see L{txrdma.interfaces.IPlacing}."""
        if self._dead or self._gone or rkey in self.regions:
            known()
        elif rkey in self._preparing:
            self._preparing[rkey].append(known)
        else:
            self._preparing[rkey] = [known]
            if self._asked != rkey:
                self._surroundings.wantRegion(rkey)

    def _stopPreparing(self) -> None:
        """No answer comes any more."""
        preparing, self._preparing = self._preparing, {}
        for waiting in preparing.values():
            for known in waiting:
                known()

    def isPlaced(self) -> bool:
        """Whether everything that was posted stands in the peer's memory, or is carried out there."""
        return self._linked and not self._held and not self._waiting

    def _violate(self, request: SendRequest, status: Status) -> bool:
        """The peer would refuse it: both ends fail, in the order of requests."""
        if not self._record(int(Kind.FAULT), int(status), (), 0):
            return False
        self._spoil(request, status)
        return True

    def _spoil(self, request: SendRequest, status: Status) -> None:
        """Fail a request as soon as those before it have succeeded; nothing after it is begun."""
        self._offset = 0
        self._held = self._failing = True
        done = self._outstanding[-1][0] if self._outstanding else self._acknowledged
        self._outstanding.append((done, request.identifier, COMPLETION_OF[request.operation], True, status))

    def _hold(self) -> None:
        """Requests wait from now on: hear when the peer has consumed something."""
        self._held = True
        self._room = Wake.ROOM
        self._heldAt = self._acknowledged
        self._sayWake()
        self._refresh()
        if self._acknowledged != self._heldAt:
            self._resume()  # it just has

    def _resume(self) -> None:
        """Carry out what waits, as far as it goes."""
        if self._dead or not self._linked or self._asked is not None:
            return
        if self._failing:
            self._announce(False)
            return
        solicited = False
        waiting = self._waiting
        self._held = not self._isDone()
        self._heldAt = self._acknowledged
        while waiting and not self._failing:
            if not self._carryOut(waiting[0]):
                self._hold()
                break
            solicited |= waiting.popleft().solicited
        if not waiting and self._room:
            self._room = 0
            self._sayWake()
        if not self._dead:
            self._announce(solicited)

    def _sayWake(self) -> None:
        flags = Wake.DOWN if self._down else self._armed | self._room
        self._epoch += 1
        self._outWords[WAKE] = self._epoch << 8 | flags if flags else 0
        barrier()

    def _settle(self, consumed: int) -> None:
        """The peer has consumed up to there, or says that it can't go on."""
        if self._dead:
            return
        fault = consumed >> 56
        consumed &= POSITION
        if not self._acknowledged <= consumed <= self._produced or (fault and fault not in _FAULTS):
            self._distrust()
            return
        self._acknowledged = consumed
        self._limit = consumed + self._ring - LINE
        if not self._retire():
            return
        if fault:
            self._fail(Status(fault), None)
        elif self._held and consumed != self._heldAt:
            self._resume()

    def _retire(self) -> bool:
        """Complete what is consumed; what then fails, fails, and the lane with it."""
        owner, outstanding, done = self._owner, self._outstanding, self._acknowledged
        if self._atomics:
            self._atomics.bring(self._inWords, done)
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
        if self._dead:  # the completion queue has overrun
            return False
        if before > len(outstanding):
            owner.retired(before - len(outstanding))
        if failed:
            self._fail(failed, None)
        return not failed

    def _fail(self, status: Status, event: AsyncEventKind | None) -> None:
        """The oldest request ends like this, and the queue pair with it."""
        owner = self._owner
        if self._outstanding:
            _, identifier, opcode, _, _ = self._outstanding.popleft()
        elif self._waiting:
            request = self._waiting.popleft()
            identifier, opcode = request.identifier, COMPLETION_OF[request.operation]
        else:
            owner.failed(event)
            return
        owner.retired(1)
        owner.sendCompleted(Completion(identifier, status, opcode, owner.number))
        owner.failed(event)

    def _distrust(self) -> None:
        """The peer's words can't be true."""
        self._fail(Status.BAD_RESP_ERR, AsyncEventKind.QP_FATAL)


def _kept(request: SendRequest) -> SendRequest:
    """A copy that its owner may not change any more."""
    inline = tuple(bytes(piece) for piece in request.inline)
    return replace(request, inline=inline, segments=tuple(request.segments))
