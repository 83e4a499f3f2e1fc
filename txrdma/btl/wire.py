"""
The packets of the byte transfer layer: one segment each, packed, most significant byte first.

The design is that of Open MPI's usnic component, whose header is a native C structure; this one is our own,
and nothing else has to understand it. A segment has a L{Header}, then the part that belongs to its L{Kind},
then C{length} bytes. Whatever stands behind these is padding of the link, and does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack, Struct
from typing import Final

from typing_extensions import NamedTuple

from txrdma.error import WireError
from txrdma.kit.wire import bits, Buffer, Code, Layout, reserved, wire

VERSION: Final = 2
"""The version of the header that is spoken here; packets of another one are dropped."""


class Kind(Code):
    """
    The kind of a segment: its contents, and the header in front of them.

    All but C{ACK} and C{REFUSED} take a sequence number of their sender's window, and are acknowledged.
    """

    ACK = 1
    """Acknowledgement with selective information: the bytes are a bitmap. See L{AcknowledgementPart}."""

    FRAG = 2
    """A whole message: no part, the bytes are the message."""

    CHUNK = 3
    """A piece of a message that is longer than a packet. See L{ChunkPart}."""

    PUT = 4
    """Bytes for memory that the receiver has registered. See L{PutPart}."""

    VOID = 5
    """Takes a sequence number, and says no more: a probe, or in the place of what was refused."""

    BYE = 6
    """The sender's last segment: it sends nothing behind it, and takes no messages any more."""

    REFUSED = 7
    """The segment with this sequence number is not taken, and never will be: its sender sends a C{VOID}."""

    PACK = 8
    """Several whole messages: a L{PackEntry} for each of them, then the bytes of all, in the same order."""

    PLACED = 9
    """A C{CHUNK} or a whole message in the receiver's receive buffer, at the position in L{Placed}."""

    PLACED_PUT = 10
    """A C{PUT} whose bytes are in the receiver's receive buffer, at the position in L{Placed}."""


@wire(18)
class Header(Layout):
    """
    The header of every segment.

    @ivar acknowledges: whether C{acknowledged} means something; of an C{ACK} it always does.
    @ivar attempt: number of transmissions of this segment, this one included, modulo 128.
    @ivar tag: chooses the receiver's callback; of a C{PACK} it is the number of messages.
    @ivar sender: the number that the receiver gave to this peer when they connected.
    @ivar sequence: of the segment, in its sender's window; zero in an C{ACK}.
    @ivar acknowledged: all segments up to this sequence number have arrived.
    @ivar length: bytes behind the header and the part.
    """

    version: int = bits(4)
    kind: Kind = bits(4)
    acknowledges: bool = bits(1)
    attempt: int = bits(7)
    tag: int = bits(16)
    sender: int = bits(64)
    sequence: int = bits(16)
    acknowledged: int = bits(16)
    length: int = bits(16)


@wire(12)
class ChunkPart(Layout):
    """
    The part of a L{Kind.CHUNK}.

    @ivar fragment: number of the message, of its sender's choice.
    @ivar total: bytes of the whole message.
    @ivar offset: of the chunk's first byte in the message.
    """

    fragment: int = bits(32)
    total: int = bits(32)
    offset: int = bits(32)


@wire(12)
class PutPart(Layout):
    """
    The part of a L{Kind.PUT}.

    @ivar region: number under which the receiver has registered memory; never an address.
    @ivar offset: of the first byte in the region.
    """

    region: int = bits(32)
    offset: int = bits(64)


@wire(6)
class AcknowledgementPart(Layout):
    """
    The part of a L{Kind.ACK}, before a bitmap of segments that have arrived behind a gap.

    Bit C{j} of byte C{k} of the bitmap, least significant first, is for the sequence number
    C{acknowledged + 2 + 8 * k + j}: the one behind C{acknowledged} is the first that is missing.

    @ivar duplicates: segments of this sender that came again since the connection began, modulo 65536.
    @ivar latest: sequence number of the segment that came last, and C{latestAttempt}: which transmission it
        was, so that a round trip can be measured of what is sent again, too.
    """

    duplicates: int = bits(16)
    latest: int = bits(16)
    latestAttempt: int = bits(8)
    reserved: int = reserved(8)


@wire(4)
class PackEntry(Layout):
    """
    The entry of a message in a L{Kind.PACK}.

    @ivar tag: chooses the receiver's callback, as that of a header does.
    @ivar length: bytes of the message.
    """

    tag: int = bits(16)
    length: int = bits(16)


@wire(8)
class Placed(Layout):
    """
    The contents of a L{Kind.PLACED} or L{Kind.PLACED_PUT}: where the data is.

    @ivar place: of the first byte, in memory that the receiver has made for this sender.
    @ivar length: bytes.
    """

    place: int = bits(32)
    length: int = bits(32)


class Segment(NamedTuple):
    """
    A segment as it travels: the fields of its header and of its part; those of other parts are zero.

    @ivar payload: a view into the packet, where it was decoded.
    """

    kind: int
    sender: int
    sequence: int = 0
    acknowledged: int | None = None
    tag: int = 0
    payload: Buffer = b""
    fragment: int = 0
    total: int = 0
    region: int = 0
    offset: int = 0
    duplicates: int = 0
    latest: int = 0
    latestAttempt: int = 0
    attempt: int = 0

    @classmethod
    def decode(cls, packet: Buffer) -> Segment:
        """
        Read the segment in a packet.

        @raise WireError: the packet is too short, of another version, or of no kind that is known.
        """
        return decodeSegment(packet)

    def encode(self) -> bytes:
        """Bytes of the packet, the payload included."""
        head = encodeHead(
            *(self.kind, self.sender, self.sequence, self.acknowledged, self.tag, len(self.payload)),
            *(self.fragment, self.total, self.region, self.offset, self.duplicates),
            *(self.latest, self.latestAttempt, self.attempt),
        )
        return head + bytes(self.payload)


# Every message passes the following: Header.decode took 0.74 us, where unpack_from took 0.09 us.

ACK: Final = 1
FRAG: Final = 2
CHUNK: Final = 3
PUT: Final = 4
VOID: Final = 5
BYE: Final = 6
REFUSED: Final = 7
PACK: Final = 8
PLACED: Final = 9
PLACED_PUT: Final = 10

HEADER_LENGTH: Final = 18
CHUNK_LENGTH: Final = 30
PUT_LENGTH: Final = 30
ACK_LENGTH: Final = 24
ENTRY_LENGTH: Final = 4

LONGEST_PAYLOAD: Final = 0xFFFF
"""Bytes that the field of a segment's length can tell."""

LONGEST_MESSAGE: Final = 0xFFFFFFFF
"""Bytes that the field of a message's size can tell."""

_HEADER: Final = Struct(">BBHQHHH")
_CHUNK: Final = Struct(">BBHQHHHIII")
_PUT: Final = Struct(">BBHQHHHIQ")
_ACK: Final = Struct(">BBHQHHHHHBx")
_ENTRY: Final = Struct(">HH")
_LANDED: Final = Struct(">II")


def encodeHead(
    kind: int,
    sender: int,
    sequence: int,
    acknowledged: int | None,
    tag: int,
    length: int,
    fragment: int = 0,
    total: int = 0,
    region: int = 0,
    offset: int = 0,
    duplicates: int = 0,
    latest: int = 0,
    latestAttempt: int = 0,
    attempt: int = 0,
) -> bytes:
    """Make header and part of a segment with C{length} bytes behind them; parameters as in L{Segment}."""
    first, flags = VERSION << 4 | kind, attempt & 0x7F
    if acknowledged is None:
        acknowledged = 0
    else:
        flags |= 0x80
    if kind == CHUNK or kind == PLACED:
        return _CHUNK.pack(first, flags, tag, sender, sequence, acknowledged, length, fragment, total, offset)
    if kind == PUT or kind == PLACED_PUT:
        return _PUT.pack(first, flags, tag, sender, sequence, acknowledged, length, region, offset)
    if kind == ACK:
        part = (duplicates, latest, latestAttempt)
        return _ACK.pack(first, flags, tag, sender, sequence, acknowledged, length, *part)
    return _HEADER.pack(first, flags, tag, sender, sequence, acknowledged, length)


_FRAGMENT: Final = VERSION << 4 | FRAG


def encodeFragment(
    sender: int, sequence: int, acknowledged: int, tag: int, length: int, attempt: int
) -> bytes:
    """Make the header of a C{FRAG} with an acknowledgement: 0.20 us, where L{encodeHead} takes 0.35 us."""
    return _HEADER.pack(_FRAGMENT, attempt & 0x7F | 0x80, tag, sender, sequence, acknowledged, length)


def decodeSegment(packet: Buffer) -> Segment:
    """
    Read a packet: L{Segment.decode} as a function.

    @raise WireError: the packet is too short, of another version, or of no kind that is known.
    """
    have = len(packet)
    if have < HEADER_LENGTH:
        raise WireError("Header", have, f"{have} bytes, not {HEADER_LENGTH}")
    first, flags, tag, sender, sequence, acknowledged, length = _HEADER.unpack_from(packet)
    if first >> 4 != VERSION:
        raise WireError("Header", 0, f"version {first >> 4}, not {VERSION}")
    kind = first & 15
    begin = HEADER_LENGTH
    if kind == CHUNK or kind == PLACED:
        begin = CHUNK_LENGTH
    elif kind == PUT or kind == PLACED_PUT:
        begin = PUT_LENGTH
    elif kind == ACK:
        begin = ACK_LENGTH
    elif not FRAG <= kind <= PLACED_PUT:
        raise WireError("Header", 0, f"kind {kind}")
    if have < begin + length:
        raise WireError("Header", 16, f"{length} bytes behind the first {begin} of {have}")
    payload = memoryview(packet)[begin : begin + length]
    attempt = flags & 0x7F
    acknowledgedUpTo = acknowledged if flags & 0x80 or kind == ACK else None
    if kind == CHUNK or kind == PLACED:
        fragment, total, offset = _CHUNK.unpack_from(packet)[7:]
        return Segment(
            kind,
            sender,
            sequence,
            acknowledgedUpTo,
            tag,
            payload,
            fragment,
            total,
            0,
            offset,
            0,
            0,
            0,
            attempt,
        )
    if kind == PUT or kind == PLACED_PUT:
        region, offset = _PUT.unpack_from(packet)[7:]
        return Segment(
            kind, sender, sequence, acknowledgedUpTo, tag, payload, 0, 0, region, offset, 0, 0, 0, attempt
        )
    if kind == ACK:
        again, latest, latestAttempt = _ACK.unpack_from(packet)[7:]
        return Segment(
            *(
                kind,
                sender,
                sequence,
                acknowledgedUpTo,
                tag,
                payload,
                0,
                0,
                0,
                0,
                again,
                latest,
                latestAttempt,
                attempt,
            )
        )
    return Segment(kind, sender, sequence, acknowledgedUpTo, tag, payload, 0, 0, 0, 0, 0, 0, 0, attempt)


def decodePlain(packet: memoryview) -> tuple[int, int, int, int, int, memoryview] | None:
    """
    Read a C{FRAG} with an acknowledgement, as nearly all are: 0.4 us, where L{decodeSegment} takes 1 us.

    @return: attempt, tag, sender, sequence number, what is acknowledged, and the payload; None of others.
    """
    if len(packet) < HEADER_LENGTH:
        return None
    first, flags, tag, sender, sequence, acknowledged, length = _HEADER.unpack_from(packet)
    end = HEADER_LENGTH + length
    if first != _FRAGMENT or flags < 0x80 or end > len(packet):
        return None
    return flags & 0x7F, tag, sender, sequence, acknowledged, packet[HEADER_LENGTH:end]


def encodePack(tags: Sequence[int], bodies: Sequence[Buffer]) -> bytes:
    """
    Make the bytes of a C{PACK}: 0.05 us for each message, where a C{PackEntry.encode} takes more than 0.5 us.

    @param tags: of the messages, and C{bodies}: their bytes.
    """
    entries = [0] * (2 * len(tags))
    entries[::2] = tags
    entries[1::2] = map(len, bodies)
    return b"".join((pack(f">{len(entries)}H", *entries), *bodies))


def decodePack(count: int, payload: memoryview) -> list[tuple[int, memoryview]] | None:
    """
    Read the bytes of a C{PACK}: its messages, each a tag and a view into the bytes.

    @param count: messages that there should be.
    @return: None where these are not C{count} messages that are exactly all of the bytes.
    """
    begin = ENTRY_LENGTH * count
    if begin > len(payload):
        return None
    messages = []
    for tag, length in _ENTRY.iter_unpack(payload[:begin]):
        end = begin + length
        messages.append((tag, payload[begin:end]))
        begin = end
    return messages if begin == len(payload) else None


def encodePlaced(place: int, length: int) -> bytes:
    """Encode a segment whose data is in the receiver's receive buffer: see L{Placed}."""
    return _LANDED.pack(place, length)


def decodePlaced(segment: Segment, buffer: memoryview) -> Segment | None:
    """
    Decode a segment whose data is in a buffer.

    @return: the C{FRAG}, the C{CHUNK} or the C{PUT} that it stands for; None where there are no such bytes.
    """
    if len(segment.payload) != _LANDED.size:
        return None
    place, length = _LANDED.unpack(segment.payload)
    if place + length > len(buffer):
        return None
    kind = PUT if segment.kind == PLACED_PUT else CHUNK
    if kind == CHUNK and length == segment.total and length and not segment.offset:
        kind = FRAG
    return segment._replace(kind=kind, payload=buffer[place : place + length])
