"""
Converts work requests to those of libibverbs and posts them.

Follows InfiniBand Architecture vol. 1, 10.8. The device's library copies what is posted, so pyverbs' work
requests and segments are reused: new ones are created only for requests with several segments.
pyverbs copies its arguments, and does not free the copies when they are collected: so this code closes each
of them exactly once, or retains it until the process ends.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from txrdma.error import InvalidRequest, QueueFull, RDMAError, ResourceExhausted
from txrdma.iba.verbs import (
    Addressed,
    Capacity,
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

_CAPACITY: Final = 256
"""Initial memory of a request for inline bytes; it grows when needed."""

_NO_KEY: Any = 0
_MISFITS: Final = (OverflowError, TypeError)

_ATOMICS: Final = (Operation.COMPARE_AND_SWAP, Operation.FETCH_AND_ADD)
_READING: Final = (Operation.RDMA_READ, *_ATOMICS)
_SENDS: Final = (Operation.SEND, Operation.SEND_WITH_IMMEDIATE)


def checkSend(request: SendRequest, kind: QPKind, capacity: Capacity) -> None:
    """Check the form of a request before its batch is posted; raises L{InvalidRequest}."""
    operation = request.operation
    if len(request.segments) > capacity.maxSendSegments:
        raise InvalidRequest(f"at most {capacity.maxSendSegments} segments, not {len(request.segments)}")
    if kind is QPKind.UD:
        if operation not in _SENDS:
            raise InvalidRequest(f"{operation!r} is not possible with datagrams")
        if request.address is None:
            raise InvalidRequest("a datagram needs an address")
    if request.inline:
        if request.segments:
            raise InvalidRequest("either segments or inline bytes")
        if operation in _READING:
            raise InvalidRequest(f"{operation!r} needs registered memory for the answer")
        try:
            length = sum(len(memoryview(piece).cast("B")) for piece in request.inline)
        except TypeError as error:
            raise InvalidRequest(f"inline data are not contiguous bytes: {error}") from error
        if length > capacity.maxInline:
            raise InvalidRequest(f"at most {capacity.maxInline} bytes inline, not {length}")
    if operation in _ATOMICS and (len(request.segments) != 1 or request.segments[0].length < 8):
        raise InvalidRequest("an atomic operation needs one segment of 8 bytes for the answer")


class _WorkRequest:
    """A send request of libibverbs, its only segment, and memory for inline bytes."""

    __slots__ = ("_address", "_entries", "request", "segment")

    def __init__(self, verbs: Pyverbs, below: _WorkRequest | None) -> None:
        """@param below: the work request that is posted after this one; None for the last one of a list."""
        self.segment = verbs.SGE(0, 0, 0)
        after: Any = None if below is None else below.request
        self.request: Any = verbs.SendWR(num_sge=1, sg=[self.segment], next_wr=after)
        self.request.sg_list = self.segment  # the object itself, so that it may change
        self._makeSpace(_CAPACITY)

    def point(self, segments: Sequence[Segment]) -> None:
        """Point the first scatter/gather element at the only segment; without a segment it is not used."""
        for each in segments:
            self.segment.addr, self.segment.length, self.segment.lkey = each

    def inline(self, pieces: Sequence[Any]) -> None:
        """Copy these bytes, and point the segment at the copy."""
        views = [memoryview(piece).cast("B") for piece in pieces]
        length = sum(map(len, views))
        if length > len(self._entries):
            self._makeSpace(length)
        at = 0
        for view in views:
            self._entries[at : at + len(view)] = view
            at += len(view)
        self.point([Segment(self._address, length, _NO_KEY)])

    def _makeSpace(self, length: int) -> None:
        memory = (ctypes.c_char * length)()
        self._address = ctypes.addressof(memory)
        self._entries = memoryview(memory).cast("B")  # which keeps the memory


_idle: dict[type, list[list[_WorkRequest]]] = {}
"""Work requests of closed queue pairs, for the next ones: objects that share memory can't be closed."""


class SendWorkRequests:
    """
    Reusable send requests of libibverbs for the lists of one queue pair.

    Each is permanently linked to the one before it, since pyverbs can't terminate a list elsewhere: a list of
    three begins at the third.
    """

    def __init__(self, verbs: Pyverbs) -> None:
        self._verbs = verbs
        idle = _idle.setdefault(verbs.SendWR, [])
        self._workRequests: list[_WorkRequest] = idle.pop() if idle else []

    def post(
        self,
        requests: Sequence[SendRequest],
        tokens: Sequence[int],
        signaled: Sequence[bool],
        handleOf: Callable[[Addressed], Any],
        post: Callable[[Any, Any], None],
    ) -> int | None:
        """
        Post requests as one list.

        @param tokens: their identifiers in libibverbs.
        @param post: pyverbs' C{post_send}.
        @return: None when all were posted; else the token of the first that was not.
        @raise RDMAError: not even the first was posted.
        """
        if any(len(request.segments) > 1 for request in requests):
            return self._postTemporary(requests, tokens, signaled, handleOf, post)
        workRequests = self._workRequests
        while len(workRequests) < len(requests):
            workRequests.append(_WorkRequest(self._verbs, workRequests[-1] if workRequests else None))
        top = len(requests)
        try:
            for request, token, isSignaled in zip(requests, tokens, signaled, strict=True):
                top -= 1
                workRequest = workRequests[top]
                if request.inline:
                    workRequest.inline(request.inline)
                else:
                    workRequest.point(request.segments)
                _describe(workRequest.request, request, token, isSignaled, handleOf)
        except _MISFITS as error:
            raise _misfit(error) from error
        return _posted(self._verbs, workRequests[len(requests) - 1].request, post)

    def close(self) -> None:
        """Release the work requests to other queue pairs. Idempotent."""
        workRequests, self._workRequests = self._workRequests, []
        if workRequests:
            _idle[self._verbs.SendWR].append(workRequests)

    def _postTemporary(
        self,
        requests: Sequence[SendRequest],
        tokens: Sequence[int],
        signaled: Sequence[bool],
        handleOf: Callable[[Addressed], Any],
        post: Callable[[Any, Any], None],
    ) -> int | None:
        """Post work requests created for this call, since pyverbs can change only one segment."""
        created: list[Any] = []  # pyverbs' objects, which are closed at the end
        memory: list[Any] = []  # of inline bytes
        first = None
        try:
            for index in reversed(range(len(requests))):
                request = requests[index]
                segments = [_inlined(request, memory)] if request.inline else request.segments
                elements = _elements(self._verbs, segments, created)
                first = self._verbs.SendWR(num_sge=len(elements), sg=elements, next_wr=first)
                created.append(first)
                _describe(first, request, tokens[index], signaled[index], handleOf)
            return _posted(self._verbs, first, post)
        except _MISFITS as error:
            raise _misfit(error) from error
        finally:
            for each in created:
                each.close()


class ReceiveWorkRequests:
    """
    Reusable receive requests of libibverbs for one queue, by their memory.

    pyverbs can't change their segments, so each is cached by its segments, at most C{most} of them. They are
    posted one by one, since pyverbs can't terminate a list elsewhere.
    """

    def __init__(self, verbs: Pyverbs, most: int) -> None:
        self._verbs = verbs
        self._most = most
        self._cache: dict[tuple[Segment, ...], Any] = {}

    def post(
        self, requests: Sequence[ReceiveRequest], tokens: Sequence[int], post: Callable[[Any, Any], None]
    ) -> int | None:
        """
        Post requests, one after the other.

        @param tokens: their identifiers in libibverbs.
        @param post: pyverbs' C{post_recv}.
        @return: None when all were posted; else the token of the first that was not.
        @raise RDMAError: not even the first was posted.
        """
        if len(self._cache) + len(requests) > self._most:
            self.close()
        try:
            ready = [self._workRequest(tuple(request.segments)) for request in requests]
        except _MISFITS as error:
            raise _misfit(error) from error
        for token, workRequest in zip(tokens, ready, strict=True):
            workRequest.wr_id = token
            try:
                _posted(self._verbs, workRequest, post)
            except RDMAError:
                if token == tokens[0]:
                    raise
                return token
        return None

    def _workRequest(self, segments: tuple[Segment, ...]) -> Any:
        workRequest = self._cache.get(segments)
        if workRequest is None:
            created: list[Any] = []
            try:
                elements = _elements(self._verbs, segments, created)
                workRequest = self._cache[segments] = self._verbs.RecvWR(num_sge=len(elements), sg=elements)
            finally:
                for each in created:
                    each.close()
            workRequest.num_sge = len(segments)
        return workRequest

    def close(self) -> None:
        """Free the work requests. Idempotent."""
        cache, self._cache = self._cache, {}
        for workRequest in cache.values():
            workRequest.close()


def _describe(
    workRequest: Any, request: SendRequest, token: int, signaled: bool, handleOf: Callable[[Addressed], Any]
) -> None:
    """Copy the fields of a request, except the segments, to one of libibverbs."""
    operation = request.operation
    workRequest.wr_id = token
    workRequest.opcode = int(operation)
    workRequest.num_sge = 1 if request.inline else len(request.segments)
    workRequest.imm_data = socket.htonl(request.immediate)
    workRequest.send_flags = (
        (_SIGNALED if signaled else 0)
        | (_SOLICITED if request.solicited else 0)
        | (_FENCE if request.fence else 0)
        | (_INLINE if request.inline else 0)
    )
    if request.address is not None:
        workRequest.set_wr_ud(handleOf(request.address), request.remoteQPN, request.remoteQKey)
    elif operation is Operation.COMPARE_AND_SWAP:
        workRequest.set_wr_atomic(request.rkey, request.remoteAddress, request.compare, request.operand)
    elif operation is Operation.FETCH_AND_ADD:
        workRequest.set_wr_atomic(request.rkey, request.remoteAddress, request.operand, 0)
    elif operation not in _SENDS:
        workRequest.set_wr_rdma(request.rkey, request.remoteAddress)


def _posted(verbs: Pyverbs, first: Any, post: Callable[[Any, Any], None]) -> int | None:
    """Post a list of requests; return the token of the first that failed, or None. Raises L{RDMAError}."""
    token = first.wr_id
    bad = _badRequest(verbs, type(first))
    bad.wr_id = token
    try:
        post(first, bad)
    except verbs.Error as error:
        if bad.wr_id != token:
            return int(bad.wr_id)
        wrong = translated(error, "the request can't be posted")
        raise QueueFull(str(wrong)) if isinstance(wrong, ResourceExhausted) else wrong from error
    return None


def _misfit(error: Exception) -> InvalidRequest:
    """Return the error for a number that does not fit into its field of libibverbs."""
    return InvalidRequest(f"a number of a request does not fit: {error}")


def _elements(verbs: Pyverbs, segments: Sequence[Segment], created: list[Any]) -> list[Any]:
    """
    Return scatter/gather elements of pyverbs for segments; an empty one if there are no segments.

    @param created: the elements are appended to this list one by one, since creating one of them may fail.
    """
    for segment in segments or [Segment(0, 0, _NO_KEY)]:
        created.append(verbs.SGE(*segment))
    return created[-max(len(segments), 1) :]


def _inlined(request: SendRequest, memory: list[Any]) -> Segment:
    """Return a segment of a request's inline bytes, which are copied; C{memory} keeps the copy."""
    copy = bytearray().join(request.inline)
    first = ctypes.c_char.from_buffer(copy or bytearray(1))  # refers to the copy
    memory.append(first)
    return Segment(ctypes.addressof(first), len(copy), _NO_KEY)


_bad: dict[type, Any] = {}
"""The work request to which pyverbs copies one that failed, by class; see L{_badRequest}."""


def _badRequest(verbs: Pyverbs, kind: type) -> Any:
    """
    Return the work request to which pyverbs copies one that failed.

    The copy shares the elements of that one, and therefore is never closed.
    """
    if kind not in _bad:
        _bad[kind] = kind(num_sge=1, sg=[verbs.SGE(0, 0, 0)])
    return _bad[kind]
