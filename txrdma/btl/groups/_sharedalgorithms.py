"""
The algorithms of collective operations for members that share memory, without I/O.

Like those of L{txrdma.btl.groups._algorithms}, each is a generator: the schedule of one member. It yields a
L{SlotWait} when others have not published a step, and a L{Step} for messages.
Reductions combine the members' elements in the order of their ranks.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, TYPE_CHECKING

from txrdma.btl.groups._algorithms import byRank, Step
from txrdma.btl.groups._slots import AREA_BYTES, Slots, SlotWait
from txrdma.iba.verbs import Buffer

if TYPE_CHECKING:
    from txrdma.btl.groups.reductions import Elements

SHORT_REDUCTION: Final = 8 << 10
"""Bytes up to which each member reduces all elements, instead of a part of them."""

PIECE_BYTES: Final = AREA_BYTES // 2
"""Bytes of each piece of a long reduction; the results of the last piece follow it."""

LARGEST_UNIT: Final = PIECE_BYTES
"""Bytes of the largest element that can be reduced."""

SharedSchedule = Generator[Step | SlotWait, list[Any], Any]

_BARRIER, _BROADCAST, _REDUCE, _ALLREDUCE, _GATHER, _ALLTOALL, _SCATTER = range(1, 8)
_IN_SLOT, _IN_MESSAGES = 1, 2


class Mismatch(Exception):
    """A member runs another operation, or has data of another length. C{rank}: this member."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank


class SharedAlgorithms:
    """Collective operations of one member; L{Slots.outgoing} has the members to wake after each step."""

    def __init__(self, slots: Slots, size: int) -> None:
        self._slots, self._size = slots, size
        self._views: dict[int, tuple[object, int, list[Any]]] = {}  # by number of the area

    def close(self) -> None:
        """Release all views of the shared memory."""
        self._views.clear()
        self._slots.close()

    def barrier(self) -> SharedSchedule:
        yield from self._begin()
        self._slots.publish(_BARRIER, 0)
        yield from self._receive(self._slots.others, _BARRIER, 0)

    def broadcast(self, root: int, buffer: memoryview) -> SharedSchedule:
        slots, kind, length = self._slots, _BROADCAST | root << 8, len(buffer)
        for at in range(0, max(length, 1), AREA_BYTES):
            piece = buffer[at : at + AREA_BYTES]
            area = yield from self._begin()
            if root == slots.rank:
                area[: len(piece)] = piece
                slots.publish(kind, length)
            else:
                slots.publish(kind, length)
                yield from self._receive((root,), kind, length)
                piece[:] = slots.current()[root][: len(piece)]

    def allreduce(self, elements: Elements, into: memoryview) -> SharedSchedule:
        return self._reduce(_ALLREDUCE, elements, into)

    def reduce(self, root: int, elements: Elements, into: memoryview | None) -> SharedSchedule:
        """
        Combine the elements of all members in a buffer of the root.

        @param into: None at all members except the root.
        """
        return self._reduce(_REDUCE | root << 8, elements, into)

    def _reduce(self, kind: int, elements: Elements, into: memoryview | None) -> SharedSchedule:
        slots, length = self._slots, len(elements.bytes)
        kind |= elements.unit << 24
        if length > SHORT_REDUCTION:
            yield from self._reducePieces(kind, elements, into)
            return
        others, step = slots.others, slots.step
        if slots.missing(step, others) is not None:
            yield SlotWait(step, others)
        slots.next()[:length] = elements.bytes
        slots.publish(kind, length)
        if into is not None:
            step += 1
            if slots.missing(step, others) is not None:
                yield SlotWait(step, others)
            self._check(others, kind, length)
            elements.reduce(self._viewsOf(elements, length), into)

    def _viewsOf(self, elements: Elements, length: int) -> list[Any]:
        """Return views of short elements of all members; those of the last reduction are reused."""
        area = self._slots.step & 1
        known = self._views.get(area)
        if known is not None and known[0] is elements.kind and known[1] == length:
            return known[2]
        found = [elements.view(each[:length]) for each in self._slots.current()]
        self._views[area] = elements.kind, length, found
        return found

    def _reducePieces(self, kind: int, elements: Elements, into: memoryview | None) -> SharedSchedule:
        """
        Reduce piece by piece. In each step a member publishes a piece of its elements, and the results of its
        part of the last piece.
        """
        slots, unit, length = self._slots, elements.unit, len(elements.bytes)
        whole = PIECE_BYTES // unit * unit
        last = 0
        for at in range(0, length + whole, whole):
            size = max(min(whole, length - at), 0)
            area = yield from self._begin()
            area[:size] = elements.bytes[at : at + size]
            if last:
                begin, end = self._part(slots.rank, last, unit)
                views = [elements.view(each[begin:end]) for each in slots.current()]
                elements.reduce(views, area[PIECE_BYTES : PIECE_BYTES + end - begin])
            slots.publish(kind, length)
            yield from self._receive(slots.others, kind, length)
            if last and into is not None:
                for rank, each in enumerate(slots.current()):
                    begin, end = self._part(rank, last, unit)
                    into[at - whole + begin : at - whole + end] = each[
                        PIECE_BYTES : PIECE_BYTES + end - begin
                    ]
            last = size

    def _part(self, rank: int, length: int, unit: int) -> tuple[int, int]:
        """Return where in a piece of C{length} bytes the part begins and ends that a member reduces."""
        count, size = length // unit, self._size
        return count * rank // size * unit, count * (rank + 1) // size * unit

    def gather(self, root: int, data: Buffer) -> SharedSchedule:
        slots = self._slots
        isRoot = root == slots.rank
        found = yield from self._exchange(
            _GATHER | root << 8, {} if isRoot else {root: data}, slots.others if isRoot else ()
        )
        return byRank(slots.rank, data, slots.others, found) if isRoot else None

    def scatter(self, root: int, items: Sequence[Buffer]) -> SharedSchedule:
        kind, rank = _SCATTER | root << 8, self._slots.rank
        if root == rank:
            yield from self._exchange(kind, {other: items[other] for other in self._slots.others}, ())
            return items[rank]
        (received,) = yield from self._exchange(kind, {}, (root,))
        return received

    def alltoall(self, items: Sequence[Buffer]) -> SharedSchedule:
        slots = self._slots
        found = yield from self._exchange(_ALLTOALL, {to: items[to] for to in slots.others}, slots.others)
        return byRank(slots.rank, items[slots.rank], slots.others, found)

    def _exchange(self, kind: int, items: dict[int, Buffer], ranks: Sequence[int]) -> SharedSchedule:
        """
        Send items to some members, and receive one from each of others.

        The area begins with the position and length of each member's item. If the items do not fit into the
        area, all of them are sent in messages.
        """
        slots = self._slots
        area = yield from self._begin()
        isFitting = self._store(area, items)
        slots.publish(kind, _IN_SLOT if isFitting else _IN_MESSAGES)
        found: dict[int, Buffer] = {}
        for rank in ranks:
            if slots.missing(slots.step, (rank,)) is not None:
                yield SlotWait(slots.step, (rank,))
            remoteKind, location = slots.header(rank)
            if remoteKind != kind:
                raise Mismatch(rank, "it has called another operation, or with elements of another type")
            if location == _IN_SLOT:
                found[rank] = self._load(rank)
        messages = [rank for rank in ranks if rank not in found]
        sends = [] if isFitting else list(items.items())
        if sends or messages:
            received = yield Step(sends, [(rank, None) for rank in messages])
            found.update(zip(messages, received, strict=True))
        return [found[rank] for rank in ranks]

    def _store(self, area: memoryview, items: dict[int, Buffer]) -> bool:
        """Store items, each once, in an area; False if they do not fit."""
        table = area[: 16 * self._size].cast("Q")
        at, positions = 16 * self._size, {}
        for rank, item in items.items():
            if id(item) not in positions:
                if at + len(item) > AREA_BYTES:
                    return False
                positions[id(item)] = at
                area[at : at + len(item)] = item
                at += len(item)
            table[2 * rank], table[2 * rank + 1] = positions[id(item)], len(item)
        return True

    def _load(self, rank: int) -> bytes:
        """Copy this member's item from the area of another one."""
        area, mine = self._slots.current()[rank], 16 * self._slots.rank
        at, length = area[mine : mine + 16].cast("Q")
        if at > AREA_BYTES or length > AREA_BYTES - at:
            raise Mismatch(rank, f"its item of {length} bytes at {at} is outside of its memory")
        return bytes(area[at : at + length])

    def _begin(self) -> Generator[SlotWait, list[Any], memoryview]:
        """Wait until the next step can be written; return this member's area."""
        slots = self._slots
        if slots.missing(slots.step, slots.others) is not None:
            yield SlotWait(slots.step, slots.others)
        return slots.next()

    def _receive(self, ranks: Sequence[int], kind: int, length: int) -> Generator[SlotWait, list[Any], None]:
        """
        Wait for members, which must run the same operation with the same length.

        It yields in any case, so that a long operation is interrupted by other work of the reactor.
        """
        yield SlotWait(self._slots.step, ranks)
        self._check(ranks, kind, length)

    def _check(self, ranks: Sequence[int], kind: int, length: int) -> None:
        header = self._slots.header
        for rank in ranks:
            remoteKind, other = header(rank)
            if remoteKind != kind:
                raise Mismatch(rank, "it has called another operation, or with elements of another type")
            if other != length:
                raise Mismatch(rank, f"the message has {other} bytes, and the buffer {length}")
