"""
Interception of the messages of a host, for a L{Tamper}: bytes of TCP, work requests, rendezvous messages.

Channels are C{"TCP"}, C{"UD"} and C{"RC"} for the SENDs and RDMA writes of queue pairs of these kinds, and
C{"LINE"} for messages about shared memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from txrdma.error import QueueFull, RDMAError
from txrdma.iba.types import QPN
from txrdma.iba.verbs import Operation, QPKind, QPState, SendRequest
from txrdma.sim.sharedmemory import SimulatedMemory
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.testing.hostile.tampering import Message, Tamper
from txrdma.testing.smc.hosts import Host, MemorySocket

TCP: Final = "TCP"
UD: Final = "UD"
RC: Final = "RC"
LINE: Final = "LINE"

_RETRY_SECONDS: Final = 1e-3
_MOST_RETRIES: Final = 200
_NOBODY: Final = QPN(0xFFFFFE)

Split = Callable[[bytes], int]
"""A function that returns the length of the first message in some bytes; 0 while that is not known."""


class Proved:
    """Splits the bytes of one end of a connection that begins with proofs, see L{txrdma.kit.proofs}."""

    def __init__(self, isClient: bool, split: Split) -> None:
        """@param split: splits the bytes after the proof."""
        self._proof = [24, 32] if isClient else [16, 32]
        self._split = split

    def __call__(self, data: bytes) -> int:
        """Return the length of the first message; 0 while it is not known."""
        if not self._proof:
            return self._split(data)
        length = self._proof[0]
        if len(data) >= length:
            del self._proof[0]
        return length


class TamperedSocket:
    """Applies a tamper to the data that a socket in memory sends."""

    def __init__(self, socket: MemorySocket, tamper: Tamper, split: Split) -> None:
        self._socket, self._tamper, self._split = socket, tamper, split
        self._send = socket.send
        self._incomplete = b""
        self._waiting = bytearray()
        socket.send = self.send  # type: ignore[method-assign]  # this is the interception

    def send(self, data: bytes | memoryview) -> int:
        """Send the replacements of the messages in these bytes; bytes beyond the window are sent later."""
        self._incomplete += bytes(data)
        while self._incomplete and 0 < (length := self._split(self._incomplete)) <= len(self._incomplete):
            message, self._incomplete = self._incomplete[:length], self._incomplete[length:]
            for each in self._tamper.replaced(TCP, Message(message)):
                self._waiting += each.content
        self._flush()
        return len(data)

    def _flush(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: self._send(bytes(self._waiting))]
        except BlockingIOError:
            self._socket.host.callLater(_RETRY_SECONDS, self._flush)
        except OSError:
            self._waiting.clear()  # the connection has ended


class TamperedPair:
    """Applies a tamper to the requests that are posted to one queue pair."""

    def __init__(self, host: Host, pair: SoftQueuePair, tamper: Tamper, post: Callable[..., None]) -> None:
        self._host, self._pair, self._tamper, self._post = host, pair, tamper, post
        self._waiting: deque[SendRequest] = deque()
        self._posted: dict[int, SendRequest] = {}
        self._retries = _MOST_RETRIES
        pair._maxInline = 1 << 30  # so that each message can be posted inline

    def postSend(self, requests: Sequence[SendRequest]) -> None:
        """Post the replacements of these requests; those that exceed the queue are posted later."""
        for request in requests:
            if request.operation > Operation.SEND_WITH_IMMEDIATE:
                self._waiting.append(replace(request, segments=tuple(request.segments)))
                continue
            content = self._contentOf(request)
            copy = replace(request, inline=(), segments=())
            messages = self._tamper.replaced(self._pair.kind.name, Message(content, copy))
            if not messages:  # it may follow later, without another completion
                self._waiting.append(self._withoutEffect(copy))
                self._posted[id(copy)] = copy
            self._waiting += [self._request(each, copy) for each in messages]
        self._flush()

    def _contentOf(self, request: SendRequest) -> bytes:
        if request.inline:
            return b"".join(map(bytes, request.inline))
        local = self._pair.keys.local
        return b"".join(bytes(local(self._pair.domain, each, False)) for each in request.segments)

    def _request(self, message: Message, current: SendRequest) -> SendRequest:
        """Return a request for a message; only the first for each message makes a completion."""
        original: SendRequest = message.context
        isFirst = id(original) not in self._posted and original in (current, *self._posted.values())
        self._posted[id(original)] = original
        return replace(
            original,
            inline=(message.content,) if message.content else (),
            signaled=isFirst and original.signaled,
            address=current.address,
            remoteQPN=current.remoteQPN,
            remoteQKey=current.remoteQKey,
        )

    def _withoutEffect(self, request: SendRequest) -> SendRequest:
        """Return a request that completes and sends nothing to the peer."""
        if self._pair.kind is QPKind.UD:
            return replace(request, remoteQPN=_NOBODY, inline=(b"never",))
        return replace(request, operation=Operation.RDMA_WRITE)

    def _flush(self) -> None:
        while self._waiting:
            try:
                self._post(self._pair, (self._waiting[0],))
            except QueueFull:
                self._retry()
                return
            except RDMAError:
                if self._pair.state is not QPState.RTS:
                    self._waiting.clear()
                    raise
            self._waiting.popleft()

    def _retry(self) -> None:
        self._retries -= 1
        if self._retries > 0:
            self._host.callLater(_RETRY_SECONDS, self._flushLater)
        else:
            self._waiting.clear()

    def _flushLater(self) -> None:
        with suppress(RDMAError):  # the host's call of postSend has returned already
            self._flush()


class TamperedPairs:
    """Applies a tamper to all queue pairs of a host, in place of C{SoftQueuePair.postSend}."""

    def __init__(self, host: Host, tamper: Tamper) -> None:
        self._host, self._tamper = host, tamper
        self._pairs: dict[SoftQueuePair, TamperedPair] = {}
        self._post = SoftQueuePair.postSend

    def method(self) -> Callable[[SoftQueuePair, Sequence[SendRequest]], None]:
        """Return the function that replaces C{SoftQueuePair.postSend}."""

        def postSend(pair: SoftQueuePair, requests: Sequence[SendRequest]) -> None:
            if pair._calls.device is not self._host.device:
                self._post(pair, requests)
                return
            if pair not in self._pairs:
                self._pairs[pair] = TamperedPair(self._host, pair, self._tamper, self._post)
            self._pairs[pair].postSend(requests)

        return postSend


class TamperedLines:
    """Applies a tamper to the messages of a process about shared memory."""

    def __init__(self, memory: SimulatedMemory, host: Host, tamper: Tamper) -> None:
        self._host, self._tamper = host, tamper
        self._carry = memory.carry
        self._opened: list[int] = []
        memory.carry = self.carry  # type: ignore[method-assign]  # this is the interception

    def carry(self, line: Any, message: bytes, descriptors: list[int]) -> None:
        """Deliver the replacements of a message; C{line} is the end at which they arrive."""
        if not message or line.peer.reactor is not self._host:
            self._carry(line, message, descriptors)
            return
        self._opened += descriptors
        # Compare by identity: a message of another simulation may have the numbers of other descriptors.
        recorded = set(map(id, self._tamper.later.get(LINE, ())))
        for each in self._tamper.replaced(LINE, Message(message, descriptors)):
            passed = descriptors if id(each) in recorded else each.context
            if each.content:  # an empty packet would end the line
                self._carry(line, each.content, [os.dup(descriptor) for descriptor in passed])

    def close(self) -> None:
        """Close the descriptors of all messages."""
        while self._opened:
            os.close(self._opened.pop())
