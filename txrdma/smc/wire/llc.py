"""
Link layer control: the messages by which two ends manage their links and the keys of their buffers.

Follows RFC 7609, appendix A.3, for version 1, and Linux for version 2.

A version 2 header has the length in the two bytes where version 1 has a length and a reject reason. Linux
writes it in its own byte order, so both orders are decoded; C{LLCHeader.bigEndian} selects one to encode.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntFlag
from typing import ClassVar, Literal, Union

from txrdma.error import WireError
from txrdma.iba.types import GID, MACAddress, QPN, RKey
from txrdma.kit.values import frozen
from txrdma.kit.wire import array, bits, Code, data, Layout, nested, reserved, wire

LLC_LENGTH = 44
"""Bytes of each message of version 1, and of the shortest of version 2."""

MAX_LENGTH = 8192
"""Bytes of the longest message of version 2."""

Buffer = Union[bytes, bytearray, memoryview]


class LLCType(Code):
    """The type of an LLC message (RFC 7609, A.3), without the version."""

    CONFIRM_LINK = 1
    ADD_LINK = 2
    ADD_LINK_CONTINUATION = 3
    DELETE_LINK = 4
    REQUEST_ADD_LINK = 5
    CONFIRM_RKEY = 6
    TEST_LINK = 7
    CONFIRM_RKEY_CONTINUATION = 8
    DELETE_RKEY = 9


class LLCFlags(IntFlag):
    """Flags of an LLC header; their meaning depends on the message's type (RFC 7609, A.3)."""

    RESPONSE = 0x80
    REJECT = 0x40
    """In ADD LINK: the request is refused."""
    ALL_LINKS = 0x40
    """In DELETE LINK: all links of the group end."""
    ORDERLY = 0x20
    """In DELETE LINK: the link ends in order."""
    NEGATIVE = 0x20
    """In CONFIRM RKEY and DELETE RKEY: the request is refused."""
    RETRY = 0x10
    """In CONFIRM RKEY: the request should be repeated later."""
    NO_EYECATCHER = 0x03
    """In CONFIRM LINK: neither side has eyecatchers in its buffers."""


class AddLinkReason(Code):
    """The reason to refuse an ADD LINK (RFC 7609, A.3.2)."""

    NONE = 0
    NO_ALTERNATE_PATH = 1
    INVALID_MTU = 2


class DeleteReason(Code):
    """
    The reason for which a link is deleted, or DELETE LINK is refused (RFC 7609, A.3.4).

    C{GROUP_UNKNOWN} is decoded, but never sent: DELETE LINK arrives on a queue pair, which belongs to one
    link group and is closed with it, so an end without the group can't answer. A DELETE LINK between the end
    of a group and that of its queue pairs is ignored: both ends have deleted all links.
    """

    NONE = 0
    LOST_PATH = 0x00010000
    OPERATOR_COMMAND = 0x00020000
    PROGRAM_ENDING = 0x00030000
    PROTOCOL_VIOLATION = 0x00040000
    ASYMMETRIC_LINK_NO_LONGER_NEEDED = 0x00050000
    LINK_UNKNOWN = 0x00100000
    GROUP_UNKNOWN = 0x00200000


@wire(4)
class _HeaderV1(Layout):
    version: int = bits(4)
    type: LLCType = bits(4)
    length: int = bits(8)
    reserved2: int = reserved(4)
    rejectReason: AddLinkReason = bits(4)
    flags: LLCFlags = bits(8)


@frozen
class LLCHeader:
    """
    The header of an LLC message (RFC 7609, A.3), without its type.

    @ivar version: 1 or 2; on the wire version 1 is 0.
    @ivar rejectReason: version 1 only; version 2 has no field for it.
    @ivar bigEndian: byte order of the length in version 2.
    """

    flags: LLCFlags = LLCFlags(0)
    version: int = 1
    rejectReason: AddLinkReason = AddLinkReason.NONE
    bigEndian: bool = False

    def encode(self, kind: LLCType, length: int) -> bytes:
        """Encode the header as its four bytes, with this type and this length of the message."""
        if self.version == 1:
            return _HeaderV1(
                type=kind, length=length, rejectReason=self.rejectReason, flags=self.flags
            ).encode()
        size = length.to_bytes(2, "big" if self.bigEndian else "little")
        return bytes((self.version << 4 | kind, *size, self.flags))


def readHeader(buffer: Buffer) -> tuple[LLCType, int, LLCHeader]:
    """
    Decode a header: type, length and the rest; raises L{WireError}.

    Of the two byte orders of the length, the one with the greater value that fits is used.
    """
    head = _HeaderV1.decode(buffer)
    there = len(buffer)
    if not head.version:
        if head.length != LLC_LENGTH:
            raise WireError("LLC", 1, f"a length of {head.length} instead of {LLC_LENGTH}")
        if there < LLC_LENGTH:
            raise WireError("LLC", there, f"{there} bytes, fewer than {LLC_LENGTH}")
        return head.type, LLC_LENGTH, LLCHeader(head.flags, 1, head.rejectReason)
    if head.version != 2:
        raise WireError("LLC", 0, f"version {head.version}")
    little, big = (int.from_bytes(buffer[1:3], order) for order in _ORDERS)
    fitting = [each for each in (little, big) if LLC_LENGTH <= each <= min(there, MAX_LENGTH)]
    if not fitting:
        raise WireError("LLC", 1, f"a length of {little} or {big} in {there} bytes")
    length = max(fitting)
    return head.type, length, LLCHeader(head.flags, 2, bigEndian=length != little)


_ORDERS: tuple[Literal["little"], Literal["big"]] = ("little", "big")


class Body(Layout):
    """The body of an LLC message, after its header: 40 bytes in version 1."""

    __slots__ = ()

    TYPE: ClassVar[LLCType]


@wire(40)
class ConfirmLink(Body):
    """CONFIRM LINK: a new link works (RFC 7609, A.3.1); C{maxConnections} is new in version 2.1."""

    TYPE = LLCType.CONFIRM_LINK

    mac: MACAddress = data(6)
    gid: GID = data(16)
    qpn: QPN = bits(24)
    link: int = bits(8)
    userID: bytes = data(4)
    maxLinks: int = bits(8)
    maxConnections: int = bits(8)
    reserved36: bytes = reserved(64)


@wire(40)
class AddLink(Body):
    """ADD LINK: another link (RFC 7609, A.3.2, whose figure lacks two bytes); see L{AddLinkExtension}."""

    TYPE = LLCType.ADD_LINK

    mac: MACAddress = data(6)
    reserved10: int = reserved(16)
    gid: GID = data(16)
    qpn: QPN = bits(24)
    link: int = bits(8)
    reserved32: int = reserved(4)
    mtu: int = bits(4)
    psn: int = bits(24)
    reserved36: bytes = reserved(64)


@wire(16)
class RKeyPair(Layout):
    """The key of a buffer on the old link, and its key and address on the new one."""

    known: RKey = bits(32)
    new: RKey = bits(32)
    address: int = bits(64)


@wire(40)
class AddLinkContinuation(Body):
    """ADD LINK CONTINUATION: buffers' keys on the new link (RFC 7609, A.3.3)."""

    TYPE = LLCType.ADD_LINK_CONTINUATION

    link: int = bits(8)
    remaining: int = bits(8)
    reserved6: int = reserved(16)
    pairs: tuple[RKeyPair, ...] = array(2, nested())
    reserved40: int = reserved(32)


@wire(40)
class DeleteLink(Body):
    """DELETE LINK: a link, or the group, ends (RFC 7609, A.3.4)."""

    TYPE = LLCType.DELETE_LINK

    link: int = bits(8)
    reason: DeleteReason = bits(32)
    reserved9: bytes = reserved(280)


@wire(40)
class RequestAddLink(Body):
    """REQUEST ADD LINK: a client of version 2 requests a link; more GIDs may follow the first."""

    TYPE = LLCType.REQUEST_ADD_LINK

    reserved4: bytes = reserved(160)
    gidCount: int = bits(8)
    reserved25: int = reserved(24)
    gid: GID = data(16)


@wire(13)
class LinkRKey(Layout):
    """A buffer's key and address on one link."""

    link: int = bits(8)
    rkey: RKey = bits(32)
    address: int = bits(64)


@wire(40)
class ConfirmRKey(Body):
    """CONFIRM RKEY: a new buffer (RFC 7609, A.3.5), and the number of other links with keys for it."""

    TYPE = LLCType.CONFIRM_RKEY

    others: int = bits(8)
    rkey: RKey = bits(32)
    address: int = bits(64)
    onLinks: tuple[LinkRKey, ...] = array(2, nested())
    reserved43: int = reserved(8)


@wire(40)
class TestLink(Body):
    """TEST LINK: requests a response (RFC 7609, A.3.7)."""

    __test__ = False

    TYPE = LLCType.TEST_LINK

    userData: bytes = data(16)
    reserved20: bytes = reserved(192)


@wire(40)
class ConfirmRKeyContinuation(Body):
    """CONFIRM RKEY CONTINUATION: more links of the same buffer (RFC 7609, A.3.6)."""

    TYPE = LLCType.CONFIRM_RKEY_CONTINUATION

    remaining: int = bits(8)
    onLinks: tuple[LinkRKey, ...] = array(3, nested())


@wire(40)
class DeleteRKey(Body):
    """
    DELETE RKEY (RFC 7609, A.3.8); C{errorMask} of a response marks unknown keys, the first by the highest
    bit.
    """

    TYPE = LLCType.DELETE_RKEY

    count: int = bits(8)
    errorMask: int = bits(8)
    reserved6: int = reserved(16)
    rkeys: tuple[RKey, ...] = array(8, bits(32))
    reserved40: int = reserved(32)


@wire(28)
class _AddLinkExtension(Layout):
    direct: bool = bits(1)
    reserved44: int = reserved(7)
    reserved45: int = reserved(8)
    gid: GID = data(16)
    reserved62: bytes = reserved(64)
    rkeyCount: bytes = data(2)


@frozen
class AddLinkExtension:
    """
    The extension of version 2's ADD LINK, instead of continuations.

    @ivar gid: GID of the sender's end of the link, as in C{AddLink}. The field is called the client's target
        GID, but Linux fills it like this as client and as server.
    """

    gid: GID
    direct: bool = True
    pairs: tuple[RKeyPair, ...] = ()

    def encode(self, bigEndian: bool) -> bytes:
        """Encode the extension; the count has the same byte order as the length."""
        count = len(self.pairs).to_bytes(2, "big" if bigEndian else "little")
        head = _AddLinkExtension(direct=self.direct, gid=self.gid, rkeyCount=count)
        return head.encode() + b"".join(pair.encode() for pair in self.pairs)


@frozen
class LLC:
    """
    An LLC message: its type, its header and its body.

    @ivar body: None for an unknown type.
    @ivar extension: only version 2's ADD LINK has one.
    @ivar more: unknown bytes that follow the body.
    """

    type: LLCType
    header: LLCHeader
    body: Body | None
    extension: AddLinkExtension | None = None
    more: bytes = b""

    @property
    def deletedRKeys(self) -> tuple[RKey, ...]:
        """The keys in a DELETE RKEY: up to 8, in version 2 up to 255; raises L{WireError}."""
        assert isinstance(self.body, DeleteRKey)
        raw = self.body.encode()[4:] + self.more
        count = self.body.count
        if count * 4 > (len(raw) if self.header.version > 1 else 32):
            raise WireError("DELETE RKEY", 4, f"{count} keys")
        return tuple(RKey(int.from_bytes(raw[n * 4 : n * 4 + 4], "big")) for n in range(count))

    @property
    def isResponse(self) -> bool:
        return bool(self.header.flags & LLCFlags.RESPONSE)

    def encode(self) -> bytes:
        """Encode the message with its header; raises L{WireError}."""
        rest = self.body.encode() if self.body is not None else b""
        if self.extension is not None:
            rest += self.extension.encode(self.header.bigEndian)
        rest += self.more
        return self.header.encode(self.type, 4 + len(rest)) + rest


_BODIES: dict[LLCType, type[Body]] = {
    body.TYPE: body
    for body in (
        ConfirmLink,
        AddLink,
        AddLinkContinuation,
        DeleteLink,
        RequestAddLink,
        ConfirmRKey,
        TestLink,
        ConfirmRKeyContinuation,
        DeleteRKey,
    )
}


def message(body: Body, header: LLCHeader | None = None) -> LLC:
    """Create a message with this body; by default with a header of version 1 without flags."""
    return LLC(body.TYPE, header or LLCHeader(), body)


def decode(buffer: Buffer) -> LLC:
    """Decode a received message; the C{body} of an unknown type is None. Raises L{WireError}."""
    kind, length, header = readHeader(buffer)
    raw = bytes(buffer[4:length])
    layout = _BODIES.get(kind)
    if layout is None:
        return LLC(kind, header, None, None, raw)
    body = layout.decode(raw)
    rest = raw[layout.size :]
    if layout is AddLink and header.version == 2 and rest:
        if buffer[1] == buffer[2]:  # the length is the same in both orders: the count of keys shows the order
            count = int.from_bytes(_AddLinkExtension.decode(rest).rkeyCount, "big")
            header = replace(header, bigEndian=_AddLinkExtension.size + count * RKeyPair.size == len(rest))
        extension, rest = _readExtension(rest, header.bigEndian)
        return LLC(kind, header, body, extension, rest)
    return LLC(kind, header, body, None, rest)


def _readExtension(raw: bytes, bigEndian: bool) -> tuple[AddLinkExtension, bytes]:
    head = _AddLinkExtension.decode(raw)
    count = int.from_bytes(head.rkeyCount, "big" if bigEndian else "little")
    end = head.size + count * RKeyPair.size
    if end > len(raw):
        raise WireError("ADD LINK", LLC_LENGTH + 26, f"{count} keys in {len(raw) - head.size} bytes")
    pairs = tuple(RKeyPair.decode(raw, head.size + n * RKeyPair.size) for n in range(count))
    return AddLinkExtension(head.gid, head.direct, pairs), raw[end:]
