"""
The layout of the memory that two queue pairs on one host share, and the order in which it is written.

Each side has one I{box}: memory that it alone writes, and that its peer maps to read. A box begins with words
(C{u64}, each on its own cache line), followed by the ring. The first records are in the page of these words:
an idle connection takes one page of each box::

    0     consumed: the position up to which the I{peer's} records are consumed; the top byte is a fault
    64    wake: L{Wake} flags: events that wake this process; the upper bits change with each arming, so that
          a sleeper is woken once
    128   stalled: (position + 1) << 8 | RNR timer code, while a record waits for a receive
    256   results of the I{peer's} atomics, in turn, in the byte order of this host: 256 words
    2304  records

Positions count bytes since the beginning; a ring's length is a power of two. A record begins on a cache line
with its header. The header is written last, and is 0 until then: the writer clears the next header first. So
a reader polls a single word, and a short message is on the same cache line::

    bits 0-23 length, 24-31 kind and flags, 32-63 immediate; then the payload

So a record takes the payload and 8 bytes, rounded up to cache lines: C{(length + 71) & -64} bytes.

B{Order.} Writers store the payload before the header, readers load the header first; where the machine does
not keep this order, L{barrier <txrdma.unix.fences.barrier>} is called in between. Two places need a full
fence on every machine: a sleeper stores its wake word before its last poll, and a writer stores its record
before it reads the peer's wake word.
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from typing import Final, Protocol

from txrdma.iba.types import RKey
from txrdma.iba.verbs import SendRequest
from txrdma.kit.values import record

REMOTE_WRITE: Final = 2
REMOTE_READ: Final = 4
REMOTE_ATOMIC: Final = 8

HEADER_BYTES: Final = 2304
SMALLEST_RING: Final = 4096
LARGEST_RING: Final = 1 << 24
LINE: Final = 64

# Indices of words in a box.
CONSUMED: Final = 0
WAKE: Final = 8
STALLED: Final = 16
RESULTS: Final = 32
FIRST: Final = HEADER_BYTES // 8

POSITION: Final = (1 << 56) - 1
LENGTH: Final = (1 << 24) - 1

RESULT_COUNT: Final = FIRST - RESULTS
"""Maximum number of outstanding atomics in one direction."""

NOTICE_BYTES: Final = 24
"""The size of a WRITE_WITH_IMMEDIATE's content: length, address, key; C{u64} in this host's byte order."""

ATOMIC_BYTES: Final = 32
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
NOTICE: Final = int(Kind.WRITE_WITH_IMMEDIATE) << 24 | NOTICE_BYTES
"""The lower half of a WRITE_WITH_IMMEDIATE's header."""
NOTICE_SOLICITED: Final = NOTICE | SOLICITED << 24


class Wake:
    """Flags of the wake word: the events that wake its writer."""

    RECEIVES = 1
    SOLICITED = 2
    SENDS = 4
    ROOM = 8


def ringBytes(boxBytes: int) -> int:
    """Return the length of the ring in a box of this length; raises ValueError."""
    ring = boxBytes - HEADER_BYTES
    if not SMALLEST_RING <= ring <= LARGEST_RING or ring & (ring - 1):
        raise ValueError(f"{boxBytes} bytes are not the size of a box")
    return ring


@record
class RemoteRegion:
    """
    Memory of the peer that this process may access.

    @ivar rights: plain L{txrdma.iba.verbs.Access} numbers.
    @ivar view: the bytes, mapped; None when it is accessed by messages.
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


RECEIVE_QUEUE: Final = 0
SEND_QUEUE: Final = 1
"""The doorbells of a peer's queue pair: of the completion channels of these queues."""


class LaneServices(Protocol):
    """The system calls of a lane, by C{SharedQueuePair}; replies never arrive before the call returns."""

    def ring(self, which: int) -> None: ...
    def nudge(self) -> None: ...
    def requestRegion(self, rkey: RKey) -> None: ...
    def offerRegion(self, rkey: RKey) -> None: ...
    def access(self, request: SendRequest, pieces: list[memoryview]) -> None: ...
    def watch(self) -> None: ...
    def left(self) -> None: ...


class ClosedServices:
    """Services of a closed lane, which do nothing: they break the reference cycle with the real ones."""

    def _ignore(self, *_: object) -> None:
        """Do nothing: a closed lane has no peer."""

    ring = nudge = requestRegion = offerRegion = access = watch = left = _ignore


CLOSED_SERVICES: Final = ClosedServices()
