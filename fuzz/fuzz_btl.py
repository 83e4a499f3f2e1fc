"""
Fuzz targets of the byte transfer layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import decoder

from txrdma.btl.wire import (
    ACK,
    BTLSegment,
    decodePack,
    decodePlaced,
    decodeSegment,
    encodePack,
    encodePlaced,
    PACK,
    PLACED,
    SegmentKind,
)

_LANDING = memoryview(bytes(64))


def _checkSegment(packet: bytes) -> BTLSegment:
    """Decode a segment and its payload: a pack must encode to the same bytes, placed bytes must fit."""
    segment = decodeSegment(packet)
    if segment.kind >= PLACED:
        placed = decodePlaced(segment, _LANDING)
        assert placed is None or len(placed.payload) <= len(_LANDING)
    if segment.kind == PACK:
        messages = decodePack(segment.tag, memoryview(segment.payload))
        if messages is not None:
            assert encodePack([tag for tag, _ in messages], [data for _, data in messages]) == segment.payload
    return segment


def _segments() -> Iterator[bytes]:
    for kind in SegmentKind:
        yield BTLSegment(int(kind), 1 << 63, 7, 9, 3, b"some bytes").encode()
    yield BTLSegment(ACK, 1 << 63, 0, 9, latest=8, latestAttempt=0x81).encode()
    yield BTLSegment(PLACED, 1 << 63, 7, 9, 3, encodePlaced(16, 32), total=32).encode()
    yield BTLSegment(PACK, 1 << 63, 7, 9, 2, encodePack((1, 2), (b"some", b""))).encode()


TARGETS = {"BTL segment": decoder(_checkSegment, _segments)}
