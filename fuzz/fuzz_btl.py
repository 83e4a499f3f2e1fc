"""
Decoders of the byte transfer layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import decoder

from txrdma.btl.wire import decodePack, encodePack, Kind, PACK, Segment


def _seeds() -> Iterator[bytes]:
    for kind in Kind:
        yield Segment(int(kind), 1 << 63, 7, 9, 3, b"some bytes").encode()
    yield Segment(PACK, 1 << 63, 7, 9, 2, encodePack((1, 4, 2, 0), (b"some", b""))).encode()


def _decoded(packet: bytes) -> Segment:
    """The segment of a packet; if it is a pack, its messages are all of its bytes."""
    segment = Segment.decode(packet)
    if segment.kind == PACK:
        messages = decodePack(segment.tag, memoryview(segment.payload))
        if messages is not None:
            entries = [number for tag, data in messages for number in (tag, len(data))]
            assert encodePack(entries, [data for _tag, data in messages]) == segment.payload
    return segment


TARGETS = {"BTL segment": decoder(_decoded, _seeds)}
