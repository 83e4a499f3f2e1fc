"""Packets of the byte transfer layer: their bytes, and invalid bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.wire import (
    ACK,
    ACK_LENGTH,
    BTLSegment,
    CHUNK,
    CHUNK_LENGTH,
    decodePlaced,
    decodeSegment,
    encodeFragment,
    encodePlaced,
    FRAG,
    HEADER_LENGTH,
    PLACED,
    PLACED_PUT,
    PUT,
    PUT_LENGTH,
    SegmentKind,
    VERSION,
)
from txrdma.error import WireError
from txrdma.test.support.btl.layouts import AcknowledgementPart, ChunkPart, Header, Placed, PutPart

_PLAIN = (SegmentKind.FRAG, SegmentKind.VOID, SegmentKind.BYE, SegmentKind.REFUSED)


def _number(width: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << width) - 1)


@st.composite
def segments(draw: st.DrawFn) -> BTLSegment:
    kind = draw(st.sampled_from(list(SegmentKind)))
    reported = draw(_number(32) if kind == ACK else st.none() | _number(32))
    plain = BTLSegment(
        *(int(kind), draw(_number(64)), draw(_number(32)), reported, draw(_number(16))),
        draw(st.binary(max_size=70)),
    )
    plain = plain._replace(attempt=draw(_number(7)))
    if kind in (CHUNK, PLACED):
        fragment, total, offset = draw(st.tuples(_number(32), _number(32), _number(32)))
        return plain._replace(fragment=fragment, total=total, offset=offset)
    if kind in (PUT, PLACED_PUT):
        return plain._replace(region=draw(_number(32)), offset=draw(_number(64)))
    if kind == ACK:
        duplicates, latest = draw(st.tuples(_number(32), _number(32)))
        return plain._replace(
            duplicates=duplicates,
            latest=latest,
            latestAttempt=draw(_number(8)),
            room=draw(_number(16)),
            capable=draw(_number(16)),
            marked=draw(_number(16)),
        )
    return plain


class SegmentTests(SynchronousTestCase):
    def test_bytes(self) -> None:
        """The bytes of a chunk and of an acknowledgement equal literals derived from the layouts."""
        chunk = BTLSegment(CHUNK, 0x0102030405060708, 0x1112, 0x2122, 0x3132, b"abc", 0, 0x41, 0x51, 0, 0x61)
        expected = "33 80 3132 0102030405060708 00001112 00002122 0003 00000041 00000051 00000061 616263"
        self.assertEqual(chunk.encode(), bytes.fromhex(expected))
        counted = {
            "duplicates": 0x41,
            "latest": 0x61,
            "latestAttempt": 0x71,
            "room": 0x8182,
            "capable": 0x51,
            "marked": 0x52,
        }
        ack = BTLSegment(ACK, 0x0102030405060708, 0, 0xF1112222, 0, b"\x01", **counted)
        expected = (
            "31 80 0000 0102030405060708 00000000 f1112222 0001 00000041 0051 0052 00000061 71 00 8182 01"
        )
        self.assertEqual(ack.encode(), bytes.fromhex(expected))

    @given(_number(64), _number(32), _number(32), _number(16), st.binary(max_size=9), _number(7))
    def test_fragment(
        self, sender: int, sequence: int, acknowledged: int, tag: int, data: bytes, attempt: int
    ) -> None:
        """The fast path for a message's header yields the same bytes."""
        segment = BTLSegment(FRAG, sender, sequence, acknowledged, tag, data, attempt=attempt)
        head = encodeFragment(sender, sequence, acknowledged, tag, len(data), attempt)
        self.assertEqual(head + data, segment.encode())

    @given(segments(), st.binary(max_size=5))
    def test_roundTrip(self, segment: BTLSegment, padding: bytes) -> None:
        """Decoding restores every encoded segment, except padding."""
        self.assertEqual(decodeSegment(segment.encode() + padding), segment)

    @given(segments())
    def test_layouts(self, segment: BTLSegment) -> None:
        """The declared layouts, which are separate code, decode the same values."""
        raw = segment.encode()
        header = Header.decode(raw)
        self.assertEqual(
            (header.version, header.kind, header.tag, header.sender, header.sequence, header.length),
            (VERSION, segment.kind, segment.tag, segment.sender, segment.sequence, len(segment.payload)),
        )
        self.assertEqual(header.attempt, segment.attempt)
        self.assertEqual(header.acknowledged if header.acknowledges else None, segment.acknowledged)
        if segment.kind in (CHUNK, PLACED):
            chunk = ChunkPart.decode(raw, Header.size)
            self.assertEqual(
                (chunk.fragment, chunk.total, chunk.offset), (segment.fragment, segment.total, segment.offset)
            )
        elif segment.kind in (PUT, PLACED_PUT):
            put = PutPart.decode(raw, Header.size)
            self.assertEqual((put.region, put.offset), (segment.region, segment.offset))
        elif segment.kind == ACK:
            part = AcknowledgementPart.decode(raw, Header.size)
            for name in ("duplicates", "capable", "marked", "latest", "latestAttempt", "room"):
                self.assertEqual(getattr(part, name), getattr(segment, name), name)

    def test_lengths(self) -> None:
        """The lengths that senders assume are those of the layouts."""
        self.assertEqual(
            (HEADER_LENGTH, CHUNK_LENGTH, PUT_LENGTH, ACK_LENGTH),
            (
                Header.size,
                Header.size + ChunkPart.size,
                Header.size + PutPart.size,
                Header.size + AcknowledgementPart.size,
            ),
        )

    @given(_number(32), _number(32))
    def test_placed(self, position: int, length: int) -> None:
        """An offset in a receive buffer is decoded as it was encoded."""
        raw = encodePlaced(position, length)
        self.assertEqual(Placed.decode(raw), Placed(position=position, length=length))

    @given(st.sampled_from((PLACED, PLACED_PUT)), st.binary(max_size=9), _number(7), _number(7), _number(32))
    def test_receiveBuffer(self, kind: int, content: bytes, position: int, length: int, offset: int) -> None:
        """A segment in a receive buffer is decoded from there; one that exceeds the buffer is rejected."""
        buffer = memoryview(bytes(range(128)))
        segment = BTLSegment(kind, 1, tag=2, payload=encodePlaced(position, length), total=128, offset=offset)
        found = decodePlaced(segment, buffer)
        if position + length > 128:
            self.assertIsNone(found)
        else:
            assert found is not None
            self.assertEqual(
                (found.tag, found.offset, found.kind), (2, offset, CHUNK if kind == PLACED else PUT)
            )
            self.assertEqual(found.payload, buffer[position : position + length])
        if len(content) != 8:
            self.assertIsNone(decodePlaced(segment._replace(payload=content), buffer))

    @given(st.binary(max_size=80) | segments().map(BTLSegment.encode), st.data())
    def test_anyBytes(self, raw: bytes, data: st.DataObject) -> None:
        """Decoding arbitrary bytes returns a segment or raises a WireError."""
        raw = raw[: data.draw(st.integers(0, len(raw)))]
        try:
            segment = decodeSegment(raw)
        except WireError:
            return
        self.assertEqual(decodeSegment(segment.encode()), segment)

    @given(segments(), st.data())
    def test_tooShort(self, segment: BTLSegment, data: st.DataObject) -> None:
        raw = segment.encode()
        short = raw[: data.draw(st.integers(0, len(raw) - 1))]
        self.assertRaises(WireError, decodeSegment, short)

    def test_foreign(self) -> None:
        """Segments with another version or of unknown kinds are rejected."""
        raw = BTLSegment(int(SegmentKind.FRAG), 1).encode()
        for first in (0x02, 0x12, 0x22, 0xF2, 0x30, 0x3B, 0x3F):
            self.assertRaises(WireError, decodeSegment, bytes((first,)) + raw[1:])
