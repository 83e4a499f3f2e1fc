"""
The shared memory between two queue pairs on one host: what stands where, and in which order it is written.

Each side has one I{box}: memory that it alone writes, and that its peer maps to read. A box begins with a
page of words (C{u64}, each on its own cache line), then comes the ring::

    0     consumed: the position up to which the I{peer's} records are consumed; the top byte is a fault
    64    wake: how to wake us (L{Wake}); the upper bits change with each arming: one sleeper is rung once
    128   stalled: (position + 1) << 8 | RNR timer code, while a record waits for a receive
    2048  results of the I{peer's} atomics, in turn, in the byte order of this host: 256 words
    4096  records

Positions are bytes since the beginning; a ring's length is a power of two. A record begins on a cache line
with its header, which is written last, and which is 0 until then: the writer clears the next header first. So
a reader looks at one word, and the message comes with it on the same line::

    bits 0-23 length, 24-31 kind and flags, 32-63 immediate; then the payload

B{Order.} A load or store of a C{memoryview} cast to C{'Q'} is one move. Writers store payload before header,
readers load them the other way round; on x86 (TSO) that is all. Elsewhere L{barrier} stands between. One
thing needs a full fence everywhere: "I sleep" is stored before the last look, and "here is something" before
the look at the sleeper. A lock that is taken and given back is one: on x86 by its locked instruction;
elsewhere what precedes stays before the I{giving back}, what follows stays behind the I{taking}, so it takes
two such pairs in a row, where giving back the first and taking the second can't change places.
"""

from __future__ import annotations

import platform
import threading
from dataclasses import field
from enum import IntEnum
from typing import Final, Protocol

from txrdma.iba.types import RKey
from txrdma.iba.verbs import CompletionOpcode, Operation, SendRequest
from txrdma.kit.values import record

REMOTE_WRITE: Final = 2
REMOTE_READ: Final = 4
REMOTE_ATOMIC: Final = 8

HEADER_BYTES: Final = 4096
RING_BYTES: Final = 256 * 1024
SMALLEST_RING: Final = 4096
LARGEST_RING: Final = 1 << 24
LINE: Final = 64

# Indices of words in a box.
CONSUMED: Final = 0
WAKE: Final = 8
STALLED: Final = 16
RESULTS: Final = 256
FIRST: Final = HEADER_BYTES // 8

POSITION: Final = (1 << 56) - 1
LENGTH: Final = (1 << 24) - 1

RESULT_COUNT: Final = FIRST - RESULTS
"""The number of atomics that may be on their way in one direction."""

NOTICE_BYTES: Final = 24
"""The size of a WRITE_WITH_IMMEDIATE's content: length, address, key; C{u64}, little-endian."""

ASKED_BYTES: Final = 32
"""The size of an ATOMIC's content: address, key, operand, comparison; C{u64}, little-endian."""


class Kind(IntEnum):
    """The kind of a record, in the lower three bits of its control byte."""

    SEND = 1
    SEND_WITH_IMMEDIATE = 2
    WRITE_WITH_IMMEDIATE = 3
    FAULT = 4
    PADDING = 5
    ATOMIC = 6


KIND: Final = 7
SOLICITED: Final = 8
MORE: Final = 16
CONTINUED: Final = 32

# Plain numbers for the hot path.
PLAIN: Final = int(Kind.SEND)
PLAIN_SOLICITED: Final = PLAIN | SOLICITED
PADDING: Final = int(Kind.PADDING)


class Wake:
    """Flags of the wake word: whom to wake for what."""

    RECEIVES = 1
    SOLICITED = 2
    SENDS = 4
    ROOM = 8


COMPLETION_OF: Final = {
    Operation.RDMA_WRITE: CompletionOpcode.RDMA_WRITE,
    Operation.RDMA_WRITE_WITH_IMMEDIATE: CompletionOpcode.RDMA_WRITE,
    Operation.SEND: CompletionOpcode.SEND,
    Operation.SEND_WITH_IMMEDIATE: CompletionOpcode.SEND,
    Operation.RDMA_READ: CompletionOpcode.RDMA_READ,
    Operation.COMPARE_AND_SWAP: CompletionOpcode.COMPARE_AND_SWAP,
    Operation.FETCH_AND_ADD: CompletionOpcode.FETCH_AND_ADD,
}

ORDERED: Final = platform.machine() in {"x86_64", "AMD64", "i686", "i386"}
"""Whether the machine keeps loads in order, and stores in order."""

_lock = threading.Lock()
acquire = _lock.acquire
release = _lock.release


def barrier() -> None:
    """A full fence on any machine. The hot path does by itself the part of it that its machine needs."""
    acquire()
    release()
    acquire()
    release()


def ringBytes(boxBytes: int) -> int:
    """
    The length of the ring in a box of this length.

    @raise ValueError: no box has this length.
    """
    ring = boxBytes - HEADER_BYTES
    if not SMALLEST_RING <= ring <= LARGEST_RING or ring & (ring - 1):
        raise ValueError(f"{boxBytes} bytes are no box")
    return ring


@record
class RemoteRegion:
    """
    Memory of the peer that we may reach.

    @ivar rights: plain L{txrdma.iba.verbs.Access} numbers.
    @ivar view: the bytes, mapped; None when they are reached by messages.
    @ivar valid: one C{u64} word: 1 until the peer deregisters the region, then 0.
    @ivar writable: C{view}, when it may be written.
    """

    address: int
    length: int
    rights: int
    view: memoryview | None
    valid: memoryview
    writable: memoryview | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.rights & REMOTE_WRITE:
            self.writable = self.view


class LaneServices(Protocol):
    """The system calls that a lane asks for. No answer comes before the call returns."""

    def wakeReceives(self) -> None:
        """Wake whom the peer's receive queue wakes."""

    def wakeSends(self) -> None:
        """Wake whom the peer's send queue wakes."""

    def nudge(self) -> None:
        """Have the peer look at its side of this lane, whatever it is armed for."""

    def requestRegion(self, rkey: RKey) -> None:
        """Ask the peer for a region; the answer is C{Lane.regionKnown}."""

    def access(self, request: SendRequest, pieces: list[memoryview]) -> None:
        """Reach memory that can't be mapped, by messages; the answer is C{Lane.accessed}."""

    def watch(self) -> None:
        """The peer may take too long: have C{Lane.expired} called soon, unless that is planned."""

    def left(self) -> None:
        """Our side has ended: the peer hears it, and all mappings go."""


class ClosedServices:
    """
    L{LaneServices} of a lane that is over, which asks for nothing any more.

    What surrounds a lane holds it: lanes that held that for ever would be left to the garbage collector.
    """

    def wakeReceives(self) -> None:
        """There is nobody to wake."""

    def wakeSends(self) -> None:
        """There is nobody to wake."""

    def nudge(self) -> None:
        """There is nobody to look."""

    def requestRegion(self, rkey: RKey) -> None:
        """There is nobody who has a region."""

    def access(self, request: SendRequest, pieces: list[memoryview]) -> None:
        """There is nobody whose memory could be reached."""

    def watch(self) -> None:
        """There is nobody who could take too long."""

    def left(self) -> None:
        """The lane has ended before."""


CLOSED_SERVICES: Final = ClosedServices()
