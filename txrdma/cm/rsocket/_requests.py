"""
The send requests of an rsocket: numbered in the order of posting, and reused.

Follows librdmacm (C{docs/rsocket}): every message is an RDMA write, nearly always with immediate data. A
request refers to bytes of the program if the device accepts them inline. Otherwise they are copied to
registered memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txrdma.iba.types import LKey, RKey
from txrdma.iba.verbs import Buffer, Operation, Segment, SendRequest

SIGNAL_EVERY: Final = 8
"""
On shared memory every eighth request is signaled: its completion covers all requests before it. Elsewhere
each one is, because requests take long to complete, and the end of a stream depends on completions.
"""

_POOLED: Final = 8
_MASK: Final = SIGNAL_EVERY - 1
_WRITE: Final = Operation.RDMA_WRITE
_WRITE_WITH_IMMEDIATE: Final = Operation.RDMA_WRITE_WITH_IMMEDIATE


class SendMemory:
    """Registered memory to send from, for devices that do not accept all bytes inline."""

    def __init__(self, view: memoryview, address: int, lkey: LKey) -> None:
        self.view, self.address, self.lkey = view, address, lkey


class RequestQueue:
    """
    The requests that are to be posted next.

    @ivar batch: these requests, in order; those of an earlier batch were posted and may be reused.
    @ivar posted: number of requests so far, by which completions identify the last one.
    @ivar signalsEach: each request is signaled.
    """

    def __init__(self) -> None:
        self.batch: list[SendRequest] = []
        self.posted = 0
        self.signalsEach = True
        self._pool: list[SendRequest] = []

    def begin(self) -> None:
        """Begin another batch."""
        self.batch = []

    def add(
        self, address: int, rkey: RKey, immediate: int | None, inline: Sequence[Buffer] = ()
    ) -> SendRequest:
        """
        Append a write to the batch.

        @param immediate: immediate data; None for a write that does not notify the peer, which is signaled.
        """
        batch, pool = self.batch, self._pool
        index = len(batch)
        if index == len(pool) < _POOLED:
            pool.append(SendRequest(0, _WRITE))
        request = pool[index] if index < _POOLED else SendRequest(0, _WRITE)
        batch.append(request)
        request.identifier = self.posted = number = self.posted + 1
        request.remoteAddress = address
        request.rkey = rkey
        request.inline = inline
        request.segments = ()
        if immediate is None:
            request.operation, request.immediate, request.signaled = _WRITE, 0, True
        else:
            request.operation, request.immediate = _WRITE_WITH_IMMEDIATE, immediate
            request.signaled = self.signalsEach or not number & _MASK
        return request

    def addFrom(
        self, memory: SendMemory, begin: int, length: int, address: int, rkey: RKey, immediate: int | None
    ) -> None:
        """Append a write of bytes in registered memory."""
        request = self.add(address, rkey, immediate)
        request.segments = (Segment(memory.address + begin, length, memory.lkey),)
