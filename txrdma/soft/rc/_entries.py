"""
A posted request in progress: PSNs of its packets, their extension headers, and the memory for its answer.

Follows InfiniBand Architecture vol. 1, 9.3 (extension headers) and 9.4 (operations). Numbers that exceed
their fields are truncated, as by hardware.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from txrdma.iba.headers import Opcode
from txrdma.iba.verbs import Buffer, CompletionOpcode, Segment, SendRequest, Status
from txrdma.soft.core.pieces import ATOMIC_LENGTH, joined, scatter, viewOf
from txrdma.soft.rc._packets import ATOMIC_ETH, BTH_LENGTH, ICRC_LENGTH, Incoming, RETH, scatterRun, WORD

NO_ENTRIES: Final[deque[Any]] = deque()
"""The queues of all queue pairs that are empty: an empty deque takes 760 bytes. Never modified."""

LONGEST_MESSAGE: Final = 1 << 31

SEND_FIRST: Final = int(Opcode.RC_SEND_FIRST)
WRITE_FIRST: Final = int(Opcode.RC_RDMA_WRITE_FIRST)
READ_REQUEST: Final = int(Opcode.RC_RDMA_READ_REQUEST)
COMPARE_SWAP: Final = int(Opcode.RC_COMPARE_SWAP)
FETCH_ADD: Final = int(Opcode.RC_FETCH_ADD)

_32_BITS: Final = 0xFFFFFFFF
_64_BITS: Final = 0xFFFFFFFFFFFFFFFF
_IS_LITTLE: Final = sys.byteorder == "little"

_KINDS: Final = (
    (CompletionOpcode.RDMA_WRITE, WRITE_FIRST, False, False),
    (CompletionOpcode.RDMA_WRITE, WRITE_FIRST, True, False),
    (CompletionOpcode.SEND, SEND_FIRST, False, False),
    (CompletionOpcode.SEND, SEND_FIRST, True, False),
    (CompletionOpcode.RDMA_READ, READ_REQUEST, False, True),
    (CompletionOpcode.COMPARE_AND_SWAP, COMPARE_SWAP, False, True),
    (CompletionOpcode.FETCH_AND_ADD, FETCH_ADD, False, True),
)
"""By operation: completion, first packet, whether there is an immediate, whether there is an answer."""


def _retained(inline: Sequence[Buffer], mtu: int) -> Sequence[memoryview]:
    """
    Inline bytes that the poster cannot change any more.

    Long C{bytes}, and views of such, are not copied, which saves a tenth of the sender's time in C{rocev2}.
    """
    if len(inline) == 1 and type(inline[0]) is bytes:
        return (memoryview(inline[0]),)
    pieces = [viewOf(piece) for piece in inline]
    if all(type(piece.obj) is bytes and len(piece) >= mtu for piece in pieces):
        return pieces
    return (memoryview(joined(inline)),)


class RequestEntry:
    """
    A request in progress, with PSNs C{first} to C{end}.

    @ivar opcode: opcode of its only or first packet.
    @ivar answered: a READ or an atomic operation, which ends with its answer, not with an acknowledgement.
    @ivar atomic: the extension header of an atomic operation, else empty.
    @ivar inline: the bytes to send, instead of those in C{segments}.
    @ivar length: length in bytes of the message, or of an atomic operation's answer.
    @ivar error: status with which it fails once all earlier requests are done.
    """

    __slots__ = (
        "answered",
        "atomic",
        "end",
        "error",
        "fence",
        "first",
        "identifier",
        "immediate",
        "inline",
        "kind",
        "length",
        "opcode",
        "remoteAddress",
        "rkey",
        "segments",
        "signaled",
        "solicited",
    )

    def __init__(self, request: SendRequest, first: int, mtu: int) -> None:
        self.identifier = request.identifier
        self.kind, self.opcode, withImmediate, self.answered = _KINDS[request.operation]
        self.signaled = request.signaled
        self.solicited = bool(request.solicited)  # it is shifted into a header
        self.fence = request.fence
        self.remoteAddress = request.remoteAddress & _64_BITS
        self.rkey = request.rkey & _32_BITS
        self.error: Status | None = None
        self.immediate: bytes | None = None
        if withImmediate:
            self.immediate = WORD.pack(request.immediate & _32_BITS)
        self.inline: Sequence[memoryview] = ()
        self.segments: Sequence[Segment] = ()
        self.atomic = b""
        if request.inline:
            self.inline = _retained(request.inline, mtu)
            self.length = sum(map(len, self.inline))
        else:
            self.segments = segments = tuple(request.segments)
            self.length = segments[0].length if len(segments) == 1 else sum([s.length for s in segments])
        if self.opcode > READ_REQUEST:
            self._operate(request)
        if not 0 <= self.length <= LONGEST_MESSAGE:
            self.error = Status.LOC_LEN_ERR
        self.first = first
        self.end = first + (1 if self.error else max(1, -(-self.length // mtu)))

    def _operate(self, request: SendRequest) -> None:
        """Pack the extension header of an atomic operation (AtomicETH, IBA 9.3)."""
        self.atomic = ATOMIC_ETH.pack(
            self.remoteAddress, self.rkey, request.operand & _64_BITS, request.compare & _64_BITS
        )
        if self.length < ATOMIC_LENGTH:
            self.error = Status.LOC_LEN_ERR
        self.length = ATOMIC_LENGTH

    def reth(self) -> bytes:
        """Return the extension header of the first packet of a WRITE; empty for a SEND."""
        if self.opcode != WRITE_FIRST:
            return b""
        return RETH.pack(self.remoteAddress, self.rkey, self.length)

    def question(self, offset: int, length: int) -> bytes:
        """Return the request header for this many bytes of a READ, or for an atomic operation."""
        return self.atomic or RETH.pack(self.remoteAddress + offset & _64_BITS, self.rkey, length)

    def take(
        self,
        pieces: Sequence[memoryview],
        offset: int,
        run: Incoming,
        number: int,
        count: int,
        extension: int,
    ) -> None:
        """Copy payloads of answers, behind headers of C{extension} bytes, into the memory of C{segments}."""
        if self.atomic:
            start = number * run.stride + BTH_LENGTH + extension
            original = bytes(run.data[start : start + ATOMIC_LENGTH])
            scatter(pieces, 0, original[::-1] if _IS_LITTLE else original)
        elif extension == 0 and run.pad == 0:
            scatterRun(pieces, offset, run, number, count)
        else:
            start = number * run.stride + BTH_LENGTH + extension
            end = (number + 1) * run.stride - run.pad - ICRC_LENGTH
            if end > start:
                scatter(pieces, offset, run.data[start:end])
