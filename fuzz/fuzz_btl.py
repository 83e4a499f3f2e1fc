"""
Decoders of the byte transfer layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import decoder

from txrdma.btl.wire import Kind, Segment


def _seeds() -> Iterator[bytes]:
    for kind in Kind:
        yield Segment(int(kind), 1 << 63, 7, 9, 3, b"some bytes").encode()


TARGETS = {"BTL segment": decoder(Segment.decode, _seeds)}
