"""
Work requests of ours, made into those of libibverbs and posted.

Follows InfiniBand Architecture vol. 1, 10.8. pyverbs copies what it is given, and forgets to free its copies
when they are collected: so whoever makes one here closes it, once.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from txrdma.error import InvalidRequest, QueueFull, ResourceExhausted
from txrdma.iba.verbs import (
    Addressed,
    Capacity,
    CompletionOpcode,
    Operation,
    QPKind,
    ReceiveRequest,
    Segment,
    SendRequest,
)
from txrdma.verbs.pyverbs.bindings import Pyverbs, translated

_FENCE: Final = 1
_SIGNALED: Final = 2
_SOLICITED: Final = 4
_INLINE: Final = 8

_ATOMICS: Final = (Operation.COMPARE_AND_SWAP, Operation.FETCH_AND_ADD)
_READING: Final = (Operation.RDMA_READ, *_ATOMICS)
_SENDS: Final = (Operation.SEND, Operation.SEND_WITH_IMMEDIATE)

KINDS: Final = {
    Operation.RDMA_WRITE: CompletionOpcode.RDMA_WRITE,
    Operation.RDMA_WRITE_WITH_IMMEDIATE: CompletionOpcode.RDMA_WRITE,
    Operation.SEND: CompletionOpcode.SEND,
    Operation.SEND_WITH_IMMEDIATE: CompletionOpcode.SEND,
    Operation.RDMA_READ: CompletionOpcode.RDMA_READ,
    Operation.COMPARE_AND_SWAP: CompletionOpcode.COMPARE_AND_SWAP,
    Operation.FETCH_AND_ADD: CompletionOpcode.FETCH_AND_ADD,
}


def checkSend(request: SendRequest, kind: QPKind, capacity: Capacity) -> None:
    """
    Look at the form of a request, before any of its batch is posted.

    @raise InvalidRequest: it has not the form that such a queue pair takes.
    """
    operation = request.operation
    if len(request.segments) > capacity.maxSendSegments:
        raise InvalidRequest(f"at most {capacity.maxSendSegments} segments, not {len(request.segments)}")
    if kind is QPKind.UD:
        if operation not in _SENDS:
            raise InvalidRequest(f"{operation!r} can't be done by datagrams")
        if request.address is None:
            raise InvalidRequest("a datagram needs an address")
    if request.inline:
        if request.segments:
            raise InvalidRequest("either segments or inline bytes")
        if operation in _READING:
            raise InvalidRequest(f"{operation!r} needs registered memory to answer into")
        length = sum(len(memoryview(piece).cast("B")) for piece in request.inline)
        if length > capacity.maxInline:
            raise InvalidRequest(f"at most {capacity.maxInline} bytes inline, not {length}")
    if operation in _ATOMICS and (len(request.segments) != 1 or request.segments[0].length < 8):
        raise InvalidRequest("an atomic operation answers into one segment of 8 bytes")


class Poster:
    """
    Makes requests of libibverbs, and posts them as one list.

    An instance is for one list: C{add...} from the last request to the first, then C{post}.
    """

    def __init__(self, verbs: Pyverbs) -> None:
        self._verbs = verbs
        self._made: list[Any] = []
        self._scratch: list[Any] = []
        self._first: Any = None

    def addSend(
        self, request: SendRequest, token: int, signaled: bool, handleOf: Callable[[Addressed], Any]
    ) -> None:
        """Put a request before those that were added."""
        flags = (
            (_SIGNALED if signaled else 0)
            | (_SOLICITED if request.solicited else 0)
            | (_FENCE if request.fence else 0)
        )
        segments = request.segments
        if request.inline:
            flags |= _INLINE
            segments = (self._inline(request),)
        pieces = self._pieces(segments)
        wr = self._verbs.SendWR(
            wr_id=token,
            opcode=int(request.operation),
            num_sge=len(pieces),
            imm_data=socket.htonl(request.immediate),
            sg=pieces,
            send_flags=flags,
            next_wr=self._first,
        )
        self._made.append(wr)
        wr.num_sge = len(segments)
        operation = request.operation
        if request.address is not None:
            wr.set_wr_ud(handleOf(request.address), request.remoteQPN, request.remoteQKey)
        elif operation is Operation.COMPARE_AND_SWAP:
            wr.set_wr_atomic(request.rkey, request.remoteAddress, request.compare, request.operand)
        elif operation is Operation.FETCH_AND_ADD:
            wr.set_wr_atomic(request.rkey, request.remoteAddress, request.operand, 0)
        elif operation not in _SENDS:
            wr.set_wr_rdma(request.rkey, request.remoteAddress)
        self._first = wr

    def addReceive(self, request: ReceiveRequest, token: int) -> None:
        """Put a request before those that were added."""
        pieces = self._pieces(request.segments)
        wr = self._verbs.RecvWR(wr_id=token, num_sge=len(pieces), sg=pieces, next_wr=self._first)
        self._made.append(wr)
        wr.num_sge = len(request.segments)
        self._first = wr

    def post(self, post: Callable[[Any, Any], None]) -> int | None:
        """
        Post the list of work requests.

        @param post: pyverbs' C{post_send} or C{post_recv}.
        @return: None when all were posted; else the token of the first that was not.
        @raise RDMAError: not even the first was posted.
        """
        first = self._first.wr_id
        bad = _badRequest(self._verbs, type(self._first))
        bad.wr_id = first
        try:
            post(self._first, bad)
        except self._verbs.Error as error:
            if bad.wr_id != first:
                return int(bad.wr_id)
            wrong = translated(error, "the request can't be posted")
            raise QueueFull(str(wrong)) if isinstance(wrong, ResourceExhausted) else wrong from error
        return None

    def close(self) -> None:
        """Free the work requests of libibverbs that were made."""
        for thing in self._made:
            thing.close()
        self._made.clear()
        self._scratch.clear()

    def _pieces(self, segments: Sequence[Segment]) -> list[Any]:
        """pyverbs wants at least one piece; none of it is used where there should be none."""
        pieces = [self._verbs.SGE(*segment) for segment in segments] or [self._verbs.SGE(0, 0, 0)]
        self._made += pieces
        return pieces

    def _inline(self, request: SendRequest) -> Segment:
        """Where the inline bytes are, while they are posted."""
        scratch = bytearray().join(request.inline) or bytearray(1)
        length = sum(len(memoryview(piece).cast("B")) for piece in request.inline)
        anchor = ctypes.c_char.from_buffer(scratch)
        self._scratch.append(anchor)
        return Segment(ctypes.addressof(anchor), length, _NO_KEY)


_NO_KEY: Any = 0
_bad: dict[type, Any] = {}


def _badRequest(verbs: Pyverbs, kind: type) -> Any:
    """Takes a copy of the request that failed, which shares its pieces: so it is never closed."""
    if kind not in _bad:
        _bad[kind] = kind(num_sge=1, sg=[verbs.SGE(0, 0, 0)])
    return _bad[kind]


def makePosted(
    verbs: Pyverbs,
    count: int,
    add: Callable[[Poster, int], None],
    post: Callable[[Any, Any], None],
) -> int | None:
    """
    Make a list of requests and post it.

    @param add: adds the request of that index to the list; called from the last to the first.
    @return: as L{Poster.post}.
    @raise RDMAError: none was posted.
    """
    poster = Poster(verbs)
    try:
        for index in reversed(range(count)):
            add(poster, index)
        return poster.post(post)
    except (OverflowError, TypeError) as error:
        raise InvalidRequest(f"a number of a request does not fit: {error}") from error
    finally:
        poster.close()
