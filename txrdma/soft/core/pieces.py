"""
Bytes that are spread over several buffers, such as the segments of a request.
"""

from __future__ import annotations

from collections.abc import Sequence

from txrdma.iba.verbs import Buffer


def part(pieces: Sequence[memoryview], start: int, length: int) -> list[memoryview]:
    """Views of bytes C{start} to C{start + length} of the concatenated pieces."""
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
    """Bytes C{start} to C{start + length} of the concatenated pieces, copied only if they are in several."""
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
