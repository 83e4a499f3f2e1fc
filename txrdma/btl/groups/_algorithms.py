"""
The algorithms of collective operations, without I/O.

Each function is a generator: the I{schedule} of one member. It yields a L{Step}, the messages that the member
sends and receives at a time, and continues when all of them have been sent and received. It gets the received
messages. Schedules of all members of a group match: members have the same C{size}, C{root} and length of
data, and messages between two members are received in the order in which they were sent.

Short data takes the algorithms with few steps, long data those in which each member sends few bytes (Thakur,
Rabenseifner and Gropp: Optimization of Collective Communication Operations in MPICH, 2005). Every member has
a connection to every other one, so gathering and scattering need no tree.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

from txrdma.iba.verbs import Buffer

LONG_BROADCAST: Final = 256 << 10
"""Bytes from which on a broadcast sends parts around a ring, instead of everything along a tree."""

LONG_REDUCTION: Final = 64 << 10
"""Bytes from which on a reduction is divided among the members."""


class Step(NamedTuple):
    """
    Messages that a member exchanges at a time.

    @ivar sends: rank and data of each message that is sent.
    @ivar receives: rank and buffer of each message that is received; a message without a buffer has any
        length.
    """

    sends: Sequence[tuple[int, Buffer]]
    receives: Sequence[tuple[int, memoryview | None]]


Schedule = Generator[Step, list[Any], Any]
"""Yields steps, and gets the messages of each step that were received; None for those with a buffer."""

Combine = Callable[[memoryview, memoryview], None]
"""Combines the elements of two buffers in the first one."""


def split(buffer: memoryview, parts: int, unit: int) -> list[memoryview]:
    """
    Divide a buffer with elements of C{unit} bytes into parts whose lengths differ by one element at most.
    """
    count = len(buffer) // unit
    ends = [count * number // parts * unit for number in range(parts + 1)]
    return [buffer[ends[number] : ends[number + 1]] for number in range(parts)]


def barrier(rank: int, size: int) -> Schedule:
    """Return when all members have begun: the dissemination algorithm (Hensgen, Finkel and Manber, 1988)."""
    distance = 1
    while distance < size:
        yield Step([((rank + distance) % size, b"")], [((rank - distance) % size, None)])
        distance *= 2


def broadcast(rank: int, size: int, root: int, buffer: memoryview) -> Schedule:
    """Copy the buffer of the root to the buffers of all others."""
    if len(buffer) < LONG_BROADCAST or size == 2:
        return _broadcastTree(rank, size, root, buffer)
    return _broadcastRing(rank, size, root, buffer)


def _broadcastTree(rank: int, size: int, root: int, buffer: memoryview) -> Schedule:
    """Broadcast along a binomial tree."""
    distance = 1
    while distance < size:
        if (rank - root) % size & distance:
            yield Step([], [((rank - distance) % size, buffer)])
            break
        distance *= 2
    children = []
    while distance > 1:
        distance //= 2
        if (rank - root) % size + distance < size:
            children.append(((rank + distance) % size, buffer))
    if children:
        yield Step(children, [])


def _broadcastRing(rank: int, size: int, root: int, buffer: memoryview) -> Schedule:
    """Broadcast by a scatter, and an allgather around a ring."""
    parts = split(buffer, size, 1)
    if rank == root:
        yield Step([(other, parts[other]) for other in _others(rank, size)], [])
    else:
        yield Step([], [(root, parts[rank])])
    yield from _gatherRing(rank, size, parts, rank)


def _gatherRing(rank: int, size: int, parts: Sequence[memoryview], first: int) -> Schedule:
    """Pass parts around a ring until each member has all; this one begins with the number C{first}."""
    following, previous = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        sent, received = parts[(first - step) % size], parts[(first - step - 1) % size]
        yield Step([(following, sent)], [(previous, received)])


def allreduce(rank: int, size: int, buffer: memoryview, unit: int, combine: Combine) -> Schedule:
    """
    Combine the buffers of all members in the buffer of each member.

    @param unit: length of an element in bytes.
    """
    if len(buffer) < LONG_REDUCTION or size == 2:
        return _allreduceDoubling(rank, size, buffer, combine)
    return _allreduceRing(rank, size, buffer, unit, combine)


def _allreduceDoubling(rank: int, size: int, buffer: memoryview, combine: Combine) -> Schedule:
    """
    Reduce by recursive doubling.

    If the number of members is not a power of two, some first add their data to that of a neighbour, which
    returns the result.
    """
    spare = memoryview(bytearray(len(buffer)))
    power = 1 << (size.bit_length() - 1)
    extra = size - power
    if rank < 2 * extra and rank % 2 == 0:
        yield Step([(rank + 1, buffer)], [])
        yield Step([], [(rank + 1, buffer)])
        return
    if rank < 2 * extra:
        yield Step([], [(rank - 1, spare)])
        combine(buffer, spare)
    number = rank // 2 if rank < 2 * extra else rank - extra
    distance = 1
    while distance < power:
        other = number ^ distance
        peer = 2 * other + 1 if other < extra else other + extra
        yield Step([(peer, buffer)], [(peer, spare)])
        combine(buffer, spare)
        distance *= 2
    if rank < 2 * extra:
        yield Step([(rank - 1, buffer)], [])


def _allreduceRing(rank: int, size: int, buffer: memoryview, unit: int, combine: Combine) -> Schedule:
    """Reduce parts around a ring, and pass the results around it."""
    parts = split(buffer, size, unit)
    yield from _reduceRing(rank, size, parts, combine)
    yield from _gatherRing(rank, size, parts, (rank + 1) % size)


def _reduceRing(rank: int, size: int, parts: Sequence[memoryview], combine: Combine) -> Schedule:
    """Combine parts around a ring; this member then has the result of the part after that of its rank."""
    following, previous = (rank + 1) % size, (rank - 1) % size
    spare = memoryview(bytearray(max(map(len, parts))))
    for step in range(size - 1):
        sent, combined = parts[(rank - step) % size], parts[(rank - step - 1) % size]
        received = spare[: len(combined)]
        yield Step([(following, sent)], [(previous, received)])
        combine(combined, received)


def reduce(rank: int, size: int, root: int, buffer: memoryview, unit: int, combine: Combine) -> Schedule:
    """
    Combine the buffers of all members in the buffer of the root. Other buffers are changed.

    @param unit: length of an element in bytes.
    """
    if len(buffer) < LONG_REDUCTION or size == 2:
        return _reduceTree(rank, size, root, buffer, combine)
    return _reduceToRoot(rank, size, root, buffer, unit, combine)


def _reduceTree(rank: int, size: int, root: int, buffer: memoryview, combine: Combine) -> Schedule:
    """Reduce along a binomial tree."""
    spare = memoryview(bytearray(len(buffer)))
    relative = (rank - root) % size
    distance = 1
    while distance < size:
        if relative & distance:
            yield Step([((rank - distance) % size, buffer)], [])
            return
        if relative + distance < size:
            yield Step([], [((rank + distance) % size, spare)])
            combine(buffer, spare)
        distance *= 2


def _reduceToRoot(
    rank: int, size: int, root: int, buffer: memoryview, unit: int, combine: Combine
) -> Schedule:
    """Reduce parts around a ring, and gather the results (Rabenseifner's algorithm, with a ring)."""
    parts = split(buffer, size, unit)
    yield from _reduceRing(rank, size, parts, combine)
    if rank == root:
        yield Step([], [(other, parts[(other + 1) % size]) for other in _others(rank, size)])
    else:
        yield Step([(root, parts[(rank + 1) % size])], [])


def gather(rank: int, size: int, root: int, data: Buffer) -> Schedule:
    """Return the data of all members at the root, by rank, and None elsewhere."""
    if rank != root:
        yield Step([(root, data)], [])
        return None
    others = _others(rank, size)
    received = yield Step([], [(other, None) for other in others])
    return byRank(rank, data, others, received)


def scatter(rank: int, size: int, root: int, items: Sequence[Buffer]) -> Schedule:
    """Return this member's item of the root's C{items}."""
    if rank != root:
        (received,) = yield Step([], [(root, None)])
        return received
    yield Step([(other, items[other]) for other in _others(rank, size)], [])
    return items[rank]


def alltoall(rank: int, size: int, items: Sequence[Buffer]) -> Schedule:
    """Send each member an item, and return what each one has sent to this member, by rank."""
    others = _others(rank, size)
    received = yield Step(
        [(other, items[other]) for other in others], [(other, None) for other in reversed(others)]
    )
    return byRank(rank, items[rank], others[::-1], received)


def _others(rank: int, size: int) -> list[int]:
    """
    Return the other ranks, beginning after this one, so that members do not all send to the same one first.
    """
    return [(rank + distance) % size for distance in range(1, size)]


def byRank(rank: int, data: Buffer, others: Sequence[int], received: Sequence[Buffer]) -> list[Buffer]:
    found = {rank: data, **dict(zip(others, received, strict=True))}
    return [found[number] for number in range(len(found))]
