"""Access to bytes in several buffers, such as segments, and atomic operations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

from txrdma.error import InvalidRequest
from txrdma.iba.verbs import Buffer, SendRequest
from txrdma.kit.values import replace

ATOMIC_LENGTH: Final = 8
"""Bytes that an atomic operation changes (IBA 9.4.5)."""

_64_BITS: Final = (1 << 64) - 1


def inlineLength(inline: Sequence[Any]) -> int:
    """
    Return the number of bytes of inline data; a view of words has more than its length.

    The pieces have any type here, or the compiled module would check it, and raise TypeError.

    @raise InvalidRequest: a piece is not a bytes-like object.
    """
    length = 0
    for piece in inline:
        if type(piece) is bytes:
            length += len(piece)
        elif type(piece) is memoryview:
            length += piece.nbytes
        else:
            length += _byteCount(piece)
    return length


def _byteCount(piece: Any) -> int:
    try:
        return memoryview(piece).nbytes
    except TypeError as error:
        raise InvalidRequest(f"inline data: {error}") from error


def viewOf(piece: Any) -> memoryview:
    """Return a view of the bytes of any buffer; they are copied only if they are not contiguous."""
    view = memoryview(piece)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())


def joined(inline: Sequence[Any]) -> bytes:
    """Return the bytes of inline data; a single C{bytes} object is not copied."""
    try:
        return b"".join(inline)
    except TypeError:  # a piece is not contiguous
        return b"".join([viewOf(piece) for piece in inline])


def part(pieces: Sequence[memoryview], start: int, length: int) -> list[memoryview]:
    """Return views of bytes C{start} to C{start + length} of the concatenated pieces."""
    parts = []
    for piece in pieces:
        if start < len(piece):
            parts.append(piece[start : start + length])
            length -= len(parts[-1])
            if not length:
                break
        start = max(0, start - len(piece))
    return parts


def gathered(pieces: Sequence[memoryview], start: int, length: int) -> memoryview:
    """Return C{length} bytes of the concatenated pieces from C{start} on, copied if they are in several."""
    if len(pieces) == 1:
        return pieces[0][start : start + length]
    parts = part(pieces, start, length)
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def scatter(pieces: Sequence[memoryview], start: int, payload: Buffer) -> None:
    """Write the payload at C{start} of the concatenated pieces."""
    done = 0
    for piece in pieces:
        size = len(piece)
        if start < size:
            count = min(size - start, len(payload) - done)
            piece[start : start + count] = payload[done : done + count]
            done += count
            start = 0
            if done == len(payload):
                return
        else:
            start -= size


def performAtomic(memory: memoryview, compare: int | None, operand: int) -> int:
    """
    Execute an atomic operation on these 8 bytes, an integer in the host's byte order; return their old value.

    @param compare: a compare and swap expects this value; None for a fetch and add.
    """
    before = int.from_bytes(memory, sys.byteorder)
    if compare is None:
        memory[:] = (before + operand & _64_BITS).to_bytes(ATOMIC_LENGTH, sys.byteorder)
    elif before == compare:
        memory[:] = operand.to_bytes(ATOMIC_LENGTH, sys.byteorder)
    return before


def copied(request: SendRequest) -> SendRequest:
    """Return a copy of a request that does not change when the program reuses its buffers."""
    inline = tuple(piece if isinstance(piece, bytes) else bytes(piece) for piece in request.inline or ())
    return replace(request, inline=inline, segments=tuple(request.segments))
