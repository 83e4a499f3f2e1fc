"""
The slots of a group whose members share memory: a state machine without I/O.

Theory of operation. All members run the same I{steps}, numbered from 1. In a step a member writes its data
into its slot, publishes the number of the step, waits until other members have published it as well, and
reads their data. A slot has two areas, for steps with odd and with even numbers. A member begins a step when
all others have published the last one: then they have read all data of the step before the last, whose area
is written next. So no step needs an acknowledgement.

A member that has waited for too long writes the rank for which it waits into its slot and checks once more; a
member that has published a step wakes those that wait for it.

The memory begins with control words (C{u64} in this host's byte order), 256 bytes for each member, which only
this member writes, each on a cache line of its own::

    0     number of the last step that was published
    64    rank for which the member sleeps, plus 1; 0: none
    128   kind and length of the data of the last even step; 192: of the last odd one

Areas follow, two for each member. A faulty member may change its slot at any time. So each word is read once,
and lengths are compared with what is expected, or with the size of the area.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from txrdma.unix.fences import barrier, ORDERED

AREA_BYTES: Final = 2 << 20
"""Bytes of data of a member in one step. Longer data takes several steps, or is sent in messages."""

NONCE_BYTES: Final = 64
"""Bytes at the end of the memory that identify it."""

_CONTROL_BYTES: Final = 256
_PAGE: Final = 4096

# Indices of words in a member's control words; word 0 is the published step.
_SLEEPS: Final = 8
_HEADER: Final = 16


class SlotWait(NamedTuple):
    """A schedule continues when these members have published a step."""

    step: int
    ranks: Sequence[int]


def memoryBytes(size: int) -> int:
    """Return the number of bytes that a group of C{size} members shares: whole pages, mostly unused."""
    return _areasAt(size) + 2 * size * AREA_BYTES + _PAGE


def _areasAt(size: int) -> int:
    return -(-size * _CONTROL_BYTES // _PAGE) * _PAGE


class Slots:
    """
    The slots of all members, as one member sees them.

    @ivar step: the last step that this member has published.
    @ivar work: amount of work that the steps so far have taken, the same at all members: a step counts 1, and
        more if its data is long; C{lastWork}: that of the last step.
    @ivar others: all other ranks, beginning behind that of this member.
    @ivar areas: the areas of all members by rank, for even and for odd steps.
    """

    def __init__(self, memory: memoryview, rank: int, size: int) -> None:
        """@param memory: of L{memoryBytes} bytes, all zero at the beginning."""
        self.step = self.work = self.lastWork = 0
        self.rank = rank
        self.others = [(rank + distance) % size for distance in range(1, size)]
        self._words = memory[: size * _CONTROL_BYTES].cast("Q")
        self._base = rank * _CONTROL_BYTES // 8
        self._isAsleep = False
        self._woken: list[int] = []
        self._sleeps = [(each, each * _CONTROL_BYTES // 8 + _SLEEPS) for each in self.others]
        begin = _areasAt(size)
        found = [memory[at : at + AREA_BYTES] for at in range(begin, len(memory) - _PAGE, AREA_BYTES)]
        self.areas = found[::2], found[1::2]

    def close(self) -> None:
        """Release the views of the shared memory."""
        self._words, self._sleeps, self.others = memoryview(b"").cast("Q"), [], []
        self.areas = [], []

    def next(self) -> memoryview:
        """Return this member's area for the next step; it may be written when all have published the last."""
        return self.areas[self.step + 1 & 1][self.rank]

    def publish(self, kind: int, length: int) -> None:
        """
        Publish the next step.

        @param kind: what identifies the operation.
        @param length: a property of the data that all members know, such as its length.
        """
        words, base = self._words, self._base
        step = self.step + 1
        header = base + _HEADER + 8 * (step & 1)
        words[header] = kind
        words[header + 1] = length
        if not ORDERED:
            barrier()
        words[base] = self.step = step
        self.lastWork = 1 + (min(length, AREA_BYTES) >> 18)
        self.work += self.lastWork
        barrier()  # else a member that falls asleep now might not be seen
        waiting = self.rank + 1
        for rank, index in self._sleeps:
            if words[index] == waiting:
                self._woken.append(rank)

    def outgoing(self) -> Sequence[int]:
        """Return the members to wake: those that slept when this one published a step."""
        if not self._woken:
            return ()
        found, self._woken = self._woken, []
        return found

    def missing(self, step: int, ranks: Sequence[int]) -> int | None:
        """Return the rank of a member that has not published this step, or None if all C{ranks} have."""
        words = self._words
        for rank in ranks:
            if words[rank * (_CONTROL_BYTES // 8)] < step:
                return rank
        if not ORDERED:
            barrier()
        return None

    def sleep(self, rank: int) -> None:
        """Request to be woken when a member publishes a step; check L{missing} once more after this."""
        self._words[self._base + _SLEEPS] = rank + 1
        self._isAsleep = True
        barrier()

    def awake(self) -> None:
        """Cancel the request to be woken."""
        if self._isAsleep:
            self._isAsleep = False
            self._words[self._base + _SLEEPS] = 0

    def header(self, rank: int) -> tuple[int, int]:
        """Return the kind and length that a member has published for the current step."""
        words, header = self._words, rank * (_CONTROL_BYTES // 8) + _HEADER + 8 * (self.step & 1)
        return words[header], words[header + 1]

    def current(self) -> Sequence[memoryview]:
        """Return the areas of all members in the current step, by rank."""
        return self.areas[self.step & 1]
