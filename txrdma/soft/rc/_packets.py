"""
Runs of packets, which the cores and the UDP port exchange.

Long messages are many packets of one size that differ little, and each Python call is expensive, so both
directions process packets in runs. Sequence numbers inside the cores do not wrap: they are plain integers
whose lower 24 bits are the PSN (InfiniBand Architecture vol. 1, 9.7.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, Union

from txrdma.iba.types import DEFAULT_PKEY
from txrdma.iba.verbs import AsyncEventKind, Buffer, Completion
from txrdma.soft.core.pieces import scatter

PSN_MASK: Final = 0xFFFFFF
ACKNOWLEDGE: Final = 0x80000000
"""The AckReq bit in the PSN's word: requests an acknowledgement (IBA 9.2.10)."""

BTH_LENGTH: Final = 12
ICRC_LENGTH: Final = 4
FRAME: Final = BTH_LENGTH + ICRC_LENGTH
"""Bytes of a packet that surround extension headers and payload: BTH and ICRC."""

WORD: Final = Struct(">I")
RETH: Final = Struct(">QII")
"""Address, key and length of an RDMA request."""

ATOMIC_ETH: Final = Struct(">QIQQ")
"""Address, key, operand and compared value of an atomic."""

HEAD_AND_WORD: Final = Struct(">QI")
"""The BTH: everything before the word with AckReq and PSN, and that word."""


class Outgoing(NamedTuple):
    """
    Packets to send, with consecutive PSNs.

    @ivar psn: PSN of the first packet; not wrapped.
    @ivar extension: the headers after the BTH, possibly with the first bytes of payload; empty if there are
        several packets.
    @ivar payload: payload of all packets: C{size} bytes each, the rest in the last.
    @ivar acknowledge: the last one requests an acknowledgement.
    """

    opcode: int
    psn: int
    packets: int
    extension: bytes
    payload: Buffer
    size: int
    acknowledge: bool = False
    solicited: bool = False


class Incoming(NamedTuple):
    """
    Received packets with consecutive PSNs that are otherwise alike; their ICRC is right.

    @ivar data: from the first BTH to the last ICRC.
    @ivar stride: the length of each packet.
    @ivar migrationRequest: the MigReq bit (IBA 17.2.8).
    """

    opcode: int
    solicited: bool
    pad: int
    data: memoryview
    stride: int
    packets: int
    migrationRequest: bool = True


class Retired(NamedTuple):
    """The oldest requests left the send queue."""

    requests: int


class Received(NamedTuple):
    """A receive was filled, or failed."""

    completion: Completion
    solicited: bool


class Failed(NamedTuple):
    """The connection has failed."""

    kind: AsyncEventKind | None


Event = Union[Completion, Retired, Received, Failed]
"""The events of a core; a bare L{Completion} is one of the send queue."""


def heading(destination: int, migrationRequest: bool = True) -> int:
    """Return the first eight bytes of a BTH, without the fields that differ between packets."""
    return migrationRequest << 54 | int(DEFAULT_PKEY) << 32 | destination & 0xFFFFFF


def nearest(psn: int, reference: int) -> int:
    """Return the sequence number with these lower 24 bits that is nearest to another."""
    return reference + ((psn - reference + 0x800000) & PSN_MASK) - 0x800000


@lru_cache(256)
def _wordsOf(stride: int, count: int) -> Struct:
    return Struct(">" + f"8xI{stride - 12}x" * count)


def psnWords(run: Incoming) -> tuple[int, ...]:
    """Return the word of the BTH with acknowledge bit and PSN, for each packet."""
    words: tuple[int, ...]
    if run.packets == 1:
        words = WORD.unpack_from(run.data, 8)
    else:
        words = _wordsOf(run.stride, run.packets).unpack_from(run.data)
    return words


def consecutive(words: Sequence[int], number: int, end: int) -> tuple[int, int]:
    """Return the number of consecutive PSNs in C{words} from C{number} on, and their acknowledge bits."""
    first, last = words[number], words[end - 1]
    if end - number > 2 and tuple(words[number : end - 1]) == tuple(range(first, first + end - 1 - number)):
        if (last - first - end + 1 + number) & PSN_MASK == 0:  # the common case, quickly
            return end - number, last
    flags, position = first, number + 1
    while position < end and (words[position] - first - position + number) & PSN_MASK == 0:
        flags |= words[position]
        position += 1
    return position - number, flags


@lru_cache(256)
def slicesOf(stride: int, size: int, count: int, start: int = 0) -> tuple[slice, ...]:
    """Return the slices of this many parts of C{size} bytes, at intervals of C{stride}."""
    return tuple(slice(at, at + size) for at in range(start, start + count * stride, stride))


def scatterRun(pieces: Sequence[memoryview], start: int, run: Incoming, first: int, count: int) -> None:
    """Write payloads of a run without extension headers, from packet C{first} on."""
    data, stride = run.data, run.stride
    size = stride - FRAME
    if first:
        data = data[first * stride :]
    parts = slicesOf(stride, size, count, BTH_LENGTH)
    if len(pieces) == 1:
        target = pieces[0][start : start + count * size]
        for into, part in zip(slicesOf(size, size, count), parts, strict=True):
            target[into] = data[part]
    else:
        for number, part in enumerate(parts):
            scatter(pieces, start + number * size, data[part])


@lru_cache(256)
def headsOf(length: int, count: int) -> Struct:
    """Return the format of the first eight bytes of this many consecutive packets of one length."""
    return Struct(">" + f"Q{length - 8}x" * count)
