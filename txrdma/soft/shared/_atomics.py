"""
Atomic operations between two queue pairs on one host: records that the owner of the memory executes.

Follows InfiniBand Architecture vol. 1, 9.4.5 and 9.7.4.1. One process executes all of them, one after the
other, so they are atomic within its device. The old value stays in that process's box until the requester
has seen that the record is consumed; see L{txrdma.soft.shared._layout}.
"""

from __future__ import annotations

from sys import byteorder
from typing import Final, TYPE_CHECKING

from txrdma.error import ProtectionError
from txrdma.iba.types import RKey
from txrdma.iba.verbs import Operation, Status
from txrdma.soft.core.pieces import ATOMIC_LENGTH, performAtomic, scatter
from txrdma.soft.shared._layout import ATOMIC_BYTES, REMOTE_ATOMIC, RESULT_COUNT, RESULTS
from txrdma.unix.fences import barrier, ORDERED

if TYPE_CHECKING:
    from txrdma.soft.core.queuepair import SoftQueuePair

_WORD: Final = (1 << 64) - 1
_ADD: Final = int(Operation.FETCH_AND_ADD)
_SWAP: Final = int(Operation.COMPARE_AND_SWAP)


def packed(address: int, rkey: RKey, operand: int, compare: int) -> memoryview:
    """Return the payload of an atomic's record: address, key, operand and comparison, 8 bytes each."""
    numbers = (address, rkey, operand, compare)
    return memoryview(b"".join((number & _WORD).to_bytes(8, "little") for number in numbers))


def execute(owner: SoftQueuePair, operation: int, asked: memoryview) -> tuple[Status, int]:
    """Execute an atomic for a peer, as RoCE v2 would; return the status and the old value."""
    attributes = owner.attributes
    if len(asked) != ATOMIC_BYTES or operation not in (_ADD, _SWAP):
        return Status.REM_INV_REQ_ERR, 0
    if not int(attributes.access or 0) & REMOTE_ATOMIC or attributes.maxDestRDAtomic == 0:
        return Status.REM_INV_REQ_ERR, 0
    address, rkey, operand, compare = (
        int.from_bytes(asked[at : at + 8], "little") for at in range(0, ATOMIC_BYTES, 8)
    )
    try:
        memory = owner.keys.remote(owner.domain, rkey, address, ATOMIC_LENGTH, REMOTE_ATOMIC)
    except ProtectionError:
        return Status.REM_ACCESS_ERR, 0
    if address % ATOMIC_LENGTH:
        return Status.REM_INV_REQ_ERR, 0
    return Status.SUCCESS, performAtomic(memory, None if operation == _ADD else compare, operand)


class Atomics(list[tuple[int, list[memoryview]]]):
    """
    Outstanding atomics: the end position of each one's record, and the buffers for its result.

    Most queue pairs have none, and an empty deque takes 760 bytes.
    """

    __slots__ = ("delivered",)

    def __init__(self) -> None:
        self.delivered = 0

    def deliver(self, results: memoryview, consumed: int) -> None:
        """Write the results of consumed atomics to their buffers."""
        if not ORDERED:
            barrier()
        while self and self[0][0] <= consumed:
            _, pieces = self.pop(0)
            word = results[RESULTS + self.delivered % RESULT_COUNT]
            scatter(pieces, 0, memoryview(word.to_bytes(ATOMIC_LENGTH, byteorder)))
            self.delivered += 1
