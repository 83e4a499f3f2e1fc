"""
Decoders of the byte transfer layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import decoder

from txrdma.btl.wire import decodeLanded, decodePack, encodeLanded, encodePack, Kind, LANDED, PACK, Segment

_LANDING = memoryview(bytes(64))


def _seeds() -> Iterator[bytes]:
    for kind in Kind:
        yield Segment(int(kind), 1 << 63, 7, 9, 3, b"some bytes").encode()
    yield Segment(LANDED, 1 << 63, 7, 9, 3, encodeLanded(16, 32), total=32).encode()
    yield Segment(PACK, 1 << 63, 7, 9, 2, encodePack((1, 2), (b"some", b""))).encode()


def _decoded(packet: bytes) -> Segment:
    """The segment of a packet; a pack's messages are all of its bytes, landed bytes stand in the landing."""
    segment = Segment.decode(packet)
    if segment.kind >= LANDED:
        landed = decodeLanded(segment, _LANDING)
        assert landed is None or len(landed.payload) <= len(_LANDING)
    if segment.kind == PACK:
        messages = decodePack(segment.tag, memoryview(segment.payload))
        if messages is not None:
            assert encodePack([tag for tag, _ in messages], [data for _, data in messages]) == segment.payload
    return segment


TARGETS = {"BTL segment": decoder(_decoded, _seeds)}
