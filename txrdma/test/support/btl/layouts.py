"""Declared layouts of packets, which are independent of the code in L{txrdma.btl.wire}."""

from __future__ import annotations

from txrdma.btl.wire import SegmentKind
from txrdma.kit.wire import bits, Layout, reserved, wire


@wire(22)
class Header(Layout):
    """The header of every segment."""

    version: int = bits(4)
    kind: SegmentKind = bits(4)
    acknowledges: bool = bits(1)
    attempt: int = bits(7)
    tag: int = bits(16)
    sender: int = bits(64)
    sequence: int = bits(32)
    acknowledged: int = bits(32)
    length: int = bits(16)


@wire(12)
class ChunkPart(Layout):
    """The part of a L{SegmentKind.CHUNK}."""

    fragment: int = bits(32)
    total: int = bits(32)
    offset: int = bits(32)


@wire(12)
class PutPart(Layout):
    """The part of a L{SegmentKind.PUT}."""

    region: int = bits(32)
    offset: int = bits(64)


@wire(16)
class AcknowledgementPart(Layout):
    """The part of a L{SegmentKind.ACK}, followed by a bitmap of segments that have arrived behind a gap."""

    duplicates: int = bits(32)
    capable: int = bits(16)
    marked: int = bits(16)
    latest: int = bits(32)
    latestAttempt: int = bits(8)
    reserved: int = reserved(8)
    room: int = bits(16)


@wire(4)
class PackEntry(Layout):
    """The entry of a message in a L{SegmentKind.PACK}."""

    tag: int = bits(16)
    length: int = bits(16)


@wire(8)
class Placed(Layout):
    """The contents of a L{SegmentKind.PLACED} or L{SegmentKind.PLACED_PUT}: where the data is."""

    position: int = bits(32)
    length: int = bits(32)
