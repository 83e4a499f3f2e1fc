"""
What two ends measure: tests, what their queue pairs must hold for them, and where things lie in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from random import Random
from typing import Final

from txrdma.iba.verbs import QPKind

PATTERNS: Final = 64
"""How many messages of different contents there are; slots are a power of two, and at most as many."""

_STEP: Final = 8
_ALIGNMENT: Final = 64
_CHECKED_BYTES: Final = 64 << 20
GRH_BYTES: Final = 40
"""What lies before a datagram in the memory of its receive (IBA 11.4.2.1)."""

LARGEST: Final = 1 << 30
DEEPEST: Final = 1 << 14


class Transfer(Enum):
    """What carries the bytes."""

    SEND = "send"
    WRITE = "write"
    READ = "read"
    ATOMIC = "atomic"
    UD = "ud"

    @property
    def kind(self) -> QPKind:
        """The transport service that it wants."""
        return QPKind.UD if self is Transfer.UD else QPKind.RC

    @property
    def isOneSided(self) -> bool:
        """Whether the peer's program has no part in it."""
        return self in (Transfer.READ, Transfer.ATOMIC)


class Measure(Enum):
    """What is asked."""

    LATENCY = "latency"
    BANDWIDTH = "bandwidth"
    BIDIRECTIONAL = "bidirectional"


@dataclass(frozen=True, slots=True)
class Test:
    """
    One measurement.

    @ivar size: bytes of a message; atomics have 8.
    @ivar iterations: messages that count; 0 is as many as C{seconds} allow.
    @ivar seconds: how long it may take at most; 0 is for ever.
    @ivar warmup: messages before those that count.
    @ivar depth: requests outstanding at a time; latency has one.
    @ivar inline: messages up to this length are sent inline.
    @ivar check: the contents are verified.
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
    What the two queue pairs are made for; both ends have the same.

    @ivar size: of the longest message.
    @ivar depth: requests outstanding at a time, at most.
    @ivar mtu: bytes of a packet's payload; 0 is what both ports have.
    @ivar inline: bytes that a request may have inline.
    @ivar check: messages are kept apart, so that contents can be verified.
    @ivar atomics: the queue pairs are for atomic operations, too.
    """

    kind: QPKind = QPKind.RC
    size: int = 64
    depth: int = 64
    mtu: int = 0
    inline: int = 0
    check: bool = False
    atomics: bool = False


@dataclass(frozen=True)
class Layout:
    """
    Where what lies in each end's memory: patterns to send or to be read, a counter, slots to be filled.

    Message C{i} has the bytes from C{pattern(i)} on, and goes to C{slot(i)} where its sender says where.
    """

    settings: LinkSettings

    @cached_property
    def slots(self) -> int:
        """How many places there are for messages that arrive: one, where nobody looks at them."""
        if not self.settings.check:
            return 1
        wanted = min(PATTERNS, self.settings.depth)
        slots = 1
        while slots < wanted and (slots < 2 or slots * 2 * self.stride <= _CHECKED_BYTES):
            slots *= 2
        return slots

    @property
    def receives(self) -> int:
        """How many receives are posted."""
        return self.slots if self.settings.check else 2 * self.settings.depth

    @cached_property
    def stride(self) -> int:
        """From one slot to the next."""
        return _aligned(self.headroom + self.settings.size)

    @property
    def headroom(self) -> int:
        """What lies before the message in its slot."""
        return GRH_BYTES if self.settings.kind is QPKind.UD else 0

    @cached_property
    def counter(self) -> int:
        """Where the 8 bytes are that atomics change."""
        return _aligned(self.settings.size + _STEP * PATTERNS)

    @cached_property
    def arriving(self) -> int:
        """Where the first slot is."""
        return _aligned(self.result(PATTERNS))

    def result(self, index: int) -> int:
        """Where the result of an atomic goes."""
        return self.counter + _ALIGNMENT + 8 * index

    @cached_property
    def length(self) -> int:
        """Of all of it."""
        return self.arriving + self.slots * self.stride

    @staticmethod
    def pattern(index: int) -> int:
        """Where message C{index} begins among the patterns."""
        return index % PATTERNS * _STEP

    def slot(self, index: int) -> int:
        """Where message C{index} goes."""
        return self.slotAt(index % self.slots)

    def slotAt(self, slot: int) -> int:
        """Where the message in that slot begins, behind the headroom."""
        return self.arriving + slot * self.stride + self.headroom

    @cached_property
    def contents(self) -> bytes:
        """The patterns: bytes that repeat nowhere, the same at both ends."""
        return Random(1).randbytes(self.settings.size + _STEP * PATTERNS)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
