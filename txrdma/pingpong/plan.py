"""Parameters of measurements: tests, the settings of their queue pairs, and the layout of their memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from random import Random
from typing import Final

from txrdma.iba.verbs import QPKind

PATTERNS: Final = 64
"""Number of different message contents. The number of slots is a power of two, and at most this."""

_STEP: Final = 8
_ALIGNMENT: Final = 64
_CHECKED_BYTES: Final = 64 << 20
GRH_BYTES: Final = 40
"""Length of the GRH in front of a datagram in its receive buffer (IBA 11.4.2.1)."""

LARGEST: Final = 1 << 30
DEEPEST: Final = 1 << 14


class Transfer(Enum):
    """Operation that transfers the data."""

    SEND = "send"
    WRITE = "write"
    READ = "read"
    ATOMIC = "atomic"
    UD = "ud"

    @property
    def kind(self) -> QPKind:
        """Transport service of the operation."""
        return QPKind.UD if self is Transfer.UD else QPKind.RC

    @property
    def isOneSided(self) -> bool:
        """Whether the operation completes without the peer's program."""
        return self in (Transfer.READ, Transfer.ATOMIC)


class Measure(Enum):
    """Quantity that a test measures."""

    LATENCY = "latency"
    BANDWIDTH = "bandwidth"
    BIDIRECTIONAL = "bidirectional"


@dataclass(frozen=True, slots=True)
class Test:
    """
    Parameters of one test.

    @ivar size: bytes per message; 8 for atomics.
    @ivar iterations: number of measured messages; 0 for as many as C{seconds} allow.
    @ivar seconds: time limit; 0 for none.
    @ivar warmup: number of messages before the measured ones.
    @ivar depth: limit of outstanding requests; latency tests have one.
    @ivar inline: largest length of messages that are sent inline.
    @ivar check: whether to verify the contents.
    """

    transfer: Transfer = Transfer.SEND
    measure: Measure = Measure.LATENCY
    size: int = 64
    iterations: int = 1000
    seconds: float = 0.0
    warmup: int = 10
    depth: int = 64
    inline: int = 0
    check: bool = False

    def __post_init__(self) -> None:
        if self.iterations == 0 and self.seconds == 0:
            raise ValueError("neither iterations nor seconds are given")
        if self.transfer is Transfer.ATOMIC and self.size != 8:
            raise ValueError(f"atomic operations have 8 bytes, not {self.size}")


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """
    Settings of a link's two queue pairs, which are the same at both ends.

    @ivar size: bytes of the longest message.
    @ivar depth: limit of outstanding requests.
    @ivar mtu: path MTU in bytes; 0 for the MTU of both ports.
    @ivar inline: limit of inline data of a request, in bytes.
    @ivar check: whether messages have separate slots, so that contents can be verified.
    @ivar atomics: whether atomic operations are allowed.
    """

    kind: QPKind = QPKind.RC
    size: int = 64
    depth: int = 64
    mtu: int = 0
    inline: int = 0
    check: bool = False
    atomics: bool = False


@dataclass(frozen=True)
class MemoryLayout:
    """
    Layout of each end's memory: patterns to send or read, a counter for atomics, and slots for messages.

    Message C{i} consists of the bytes from offset C{pattern(i)} on. RDMA operations store it in C{slot(i)}.
    """

    settings: LinkSettings

    @cached_property
    def slots(self) -> int:
        """Number of slots for received messages; one if contents are not verified."""
        if not self.settings.check:
            return 1
        wanted = min(PATTERNS, self.settings.depth)
        slots = 1
        while slots < wanted and (slots < 2 or slots * 2 * self.stride <= _CHECKED_BYTES):
            slots *= 2
        return slots

    @property
    def receives(self) -> int:
        """Number of posted receives."""
        return self.slots if self.settings.check else 2 * self.settings.depth

    @cached_property
    def stride(self) -> int:
        """Distance between slots in bytes."""
        return _aligned(self.headroom + self.settings.size)

    @property
    def headroom(self) -> int:
        """Bytes in front of a message in its slot: the GRH of a datagram."""
        return GRH_BYTES if self.settings.kind is QPKind.UD else 0

    @cached_property
    def counter(self) -> int:
        """Offset of the 8 bytes that atomics change."""
        return _aligned(self.settings.size + _STEP * PATTERNS)

    @cached_property
    def arriving(self) -> int:
        """Offset of the first slot."""
        return _aligned(self.result(PATTERNS))

    def result(self, index: int) -> int:
        """Return the offset at which the result of an atomic is stored."""
        return self.counter + _ALIGNMENT + 8 * index

    @cached_property
    def length(self) -> int:
        """Length of the memory in bytes."""
        return self.arriving + self.slots * self.stride

    @staticmethod
    def pattern(index: int) -> int:
        """Return the offset of the pattern of message C{index}."""
        return index % PATTERNS * _STEP

    def slot(self, index: int) -> int:
        """Return the offset of message C{index} in its slot."""
        return self.slotAt(index % self.slots)

    def slotAt(self, slot: int) -> int:
        """Return the offset of the message in a slot, after the headroom."""
        return self.arriving + slot * self.stride + self.headroom

    @cached_property
    def contents(self) -> bytes:
        """Patterns: pseudorandom bytes that are the same at both ends."""
        return Random(1).randbytes(self.settings.size + _STEP * PATTERNS)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
