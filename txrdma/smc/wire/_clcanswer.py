"""
CLC Accept and Confirm, in which each end describes its part of a connection.

Follows RFC 7609, appendices A.2.2 and A.2.3, and IBM's "SMC Version 2".
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import ClassVar, TypeVar

from typing_extensions import Self

from txrdma.error import WireError
from txrdma.iba.types import GID, MACAddress, QPN, RKey
from txrdma.kit.values import frozen
from txrdma.kit.wire import bits, data, Layout, reserved, wire
from txrdma.smc.wire._clcframe import (
    checkLength,
    CLCHeader,
    EID_LENGTH,
    FLAG,
    frame,
    HEADER_LENGTH,
    MessageType,
    OSType,
    SMALLEST_BUFFER,
    SMCD,
    SMCKind,
    SMCR,
)


@wire(56)
class _AnswerBody(Layout):
    peerID: bytes = data(8)
    gid: GID = data(16)
    mac: MACAddress = data(6)
    qpn: QPN = bits(24)
    rkey: RKey = bits(32)
    index: int = bits(8)
    token: int = bits(32)
    sizeCode: int = bits(4)
    mtu: int = bits(4)
    reserved51: int = reserved(8)
    address: int = bits(64)
    reserved60: int = reserved(8)
    psn: int = bits(24)


_EID_RESERVED = 8
"""Reserved bytes after the EID."""

_SMCD_RESERVED = 12
"""Reserved bytes at the end of the body of SMC-D version 1."""

_NAMES = tuple(field.name for field in _AnswerBody.fields if not field.reserved)
_valuesOf = attrgetter(*_NAMES)


@wire(36)
class _FirstContact(Layout):
    direct: bool = bits(1)
    reserved0: int = reserved(7)
    osType: OSType = bits(4)
    release: int = bits(4)
    reserved2: int = reserved(16)
    hostName: bytes = data(32)


@wire(16)
class FirstContactV21(Layout):
    """The fields that version 2.1 adds to a first contact extension; version 2.0 has zeros there."""

    maxConnections: int = bits(8)
    maxLinks: int = bits(8)
    features: int = bits(16)
    vendorOptions: int = bits(32)
    reserved44: bytes = reserved(64)


@frozen
class FirstContact:
    """
    The extension of version 2 for the first contact: 52 bytes, or 36 from kernels around 5.16.

    @ivar direct: no router is between the two ends.
    """

    direct: bool = True
    osType: OSType = OSType.LINUX
    release: int = 0
    hostName: bytes = b""
    v21: FirstContactV21 | None = None

    def encode(self) -> bytes:
        head = _FirstContact(
            direct=self.direct,
            osType=self.osType,
            release=self.release,
            hostName=self.hostName.ljust(32),
        )
        return head.encode() + (self.v21.encode() if self.v21 is not None else b"")


@frozen
class AnswerV2:
    """
    The version 2 extension of Accept and Confirm.

    @ivar eid: the common enterprise ID.
    @ivar firstContact: the extension for the first contact, present if its flag is set.
    @ivar gids: the client's other RoCE v2 GIDs, in the Confirm of a first contact; None: no list.
    """

    eid: bytes
    firstContact: FirstContact | None = None
    gids: tuple[GID, ...] | None = None


Answer = TypeVar("Answer", bound="_Answer")
DirectAnswer = TypeVar("DirectAnswer", bound="_SMCDAnswer")


@frozen
class _Answer:
    """
    The common form of Accept and Confirm: one end of a connection over SMC-R (RFC 7609, A.2.2).

    @ivar index: number of the RMB's element, from 1.
    @ivar token: the sender's alert token, which the peer puts in every CDC message.
    @ivar sizeCode: code of the element's size, which is 16 KiB * 2**C{sizeCode}.
    @ivar mtu: a code of L{MTU<txrdma.iba.types.MTU>}, not checked by decoding.
    @ivar address: address of the RMB.
    @ivar psn: the first PSN that the sender uses.
    """

    _TYPE: ClassVar[MessageType]

    peerID: bytes
    gid: GID
    mac: MACAddress
    qpn: QPN
    rkey: RKey
    index: int
    token: int
    sizeCode: int
    mtu: int
    address: int
    psn: int
    firstContact: bool = False
    version: int = 1
    v2: AnswerV2 | None = None

    @property
    def size(self) -> int:
        """The length of the element in bytes."""
        return SMALLEST_BUFFER << self.sizeCode

    def encode(self) -> bytes:
        body = _AnswerBody(**dict(zip(_NAMES, _valuesOf(self), strict=True))).encode()
        if self.v2 is not None:
            body += self.v2.eid.ljust(EID_LENGTH)[:EID_LENGTH] + bytes(_EID_RESERVED)
            if self.v2.firstContact is not None:
                body += self.v2.firstContact.encode()
            if self.v2.gids is not None:
                body += bytes((len(self.v2.gids), 0, 0, 0)) + b"".join(gid.raw for gid in self.v2.gids)
        return frame(self._TYPE, body, self.version, FLAG if self.firstContact else 0, SMCKind.SMC_R)

    @classmethod
    def read(cls, header: CLCHeader, body: bytes) -> Self:
        """Decode an Accept or Confirm: the bytes between its header and its trailer."""
        name = cls.__name__
        first = bool(header.typeV2 & FLAG)
        fixed = _AnswerBody.decode(body)
        v2 = None
        if header.version == 1:
            checkLength(name, body, fixed.size)
        else:
            v2 = _readAnswerV2(name, body, first, cls._TYPE is MessageType.CONFIRM)
        make: Callable[..., Self] = cls  # its first fields are those, in the same order
        return make(*_valuesOf(fixed), first, header.version, v2)


def _readAnswerV2(name: str, body: bytes, isFirst: bool, isConfirm: bool) -> AnswerV2:
    """Return the version 2 extension of a body, which ends with it."""
    at = _AnswerBody.size + EID_LENGTH + _EID_RESERVED
    eid = body[_AnswerBody.size : _AnswerBody.size + EID_LENGTH]
    if not isFirst:
        checkLength(name, body, at)
        return AnswerV2(eid)
    contact, at = _readFirstContact(body, at)
    if not isConfirm:
        checkLength(name, body, at)
        return AnswerV2(eid, contact)
    if len(body) < at + 4:
        raise WireError(name, HEADER_LENGTH + len(body), "the list of GIDs is cut off")
    count = body[at]
    at += 4
    checkLength(name, body, at + 16 * count)
    gids = tuple(GID(body[at + 16 * n : at + 16 * (n + 1)]) for n in range(count))
    return AnswerV2(eid, contact, gids)


def _readFirstContact(body: bytes, at: int) -> tuple[FirstContact, int]:
    """Return the extension of a first contact at an offset, and where it ends."""
    head = _FirstContact.decode(body, at)
    at += head.size
    v21 = None
    if len(body) >= at + FirstContactV21.size:
        v21 = FirstContactV21.decode(body, at)
        at += v21.size
    return FirstContact(head.direct, head.osType, head.release, head.hostName, v21), at


@frozen
class Accept(_Answer):
    """The server's answer to a Proposal (RFC 7609, A.2.2)."""

    _TYPE: ClassVar[MessageType] = MessageType.ACCEPT


@frozen
class Confirm(_Answer):
    """The client's answer to an Accept (RFC 7609, A.2.3)."""

    _TYPE: ClassVar[MessageType] = MessageType.CONFIRM


@wire(24)
class _SMCDBody(Layout):
    gid: int = bits(64)
    token: int = bits(64)
    index: int = bits(8)
    sizeCode: int = bits(4)
    reserved25: int = reserved(4)
    reserved26: int = reserved(16)
    linkID: int = bits(32)


@wire(42)
class _SMCDBodyV2(Layout):
    chid: int = bits(16)
    eid: bytes = data(32)
    gidExtension: int = bits(64)


@frozen
class _SMCDAnswer:
    """
    The common form of Accept and Confirm on SMC-D, which is decoded, but not supported.

    @ivar index: number of the DMB's element; C{sizeCode} and C{firstContact} are as in L{_Answer}.
    @ivar chid: channel ID of the ISM device, since version 2, as are C{eid} and C{gidExtension}.
    """

    _TYPE: ClassVar[MessageType]

    gid: int
    token: int
    index: int
    sizeCode: int
    linkID: int
    firstContact: bool = False
    version: int = 1
    chid: int = 0
    eid: bytes = b""
    gidExtension: int = 0
    contact: FirstContact | None = None

    def encode(self) -> bytes:
        body = _SMCDBody(
            gid=self.gid, token=self.token, index=self.index, sizeCode=self.sizeCode, linkID=self.linkID
        ).encode()
        if self.version == 1:
            body += bytes(_SMCD_RESERVED)
        else:
            eid = self.eid.ljust(EID_LENGTH)
            body += _SMCDBodyV2(chid=self.chid, eid=eid, gidExtension=self.gidExtension).encode()
            body += self.contact.encode() if self.contact is not None else b""
        flag = FLAG if self.firstContact else 0
        return frame(self._TYPE, body, self.version, flag, SMCKind.SMC_D, SMCD)

    @classmethod
    def read(cls, header: CLCHeader, body: bytes) -> Self:
        first = bool(header.typeV2 & FLAG)
        fixed = _SMCDBody.decode(body)
        common = (fixed.gid, fixed.token, fixed.index, fixed.sizeCode, fixed.linkID, first, header.version)
        if header.version == 1:
            checkLength(cls.__name__, body, fixed.size + _SMCD_RESERVED)
            return cls(*common)
        more = _SMCDBodyV2.decode(body, fixed.size)
        at = fixed.size + more.size
        contact = None
        if first:
            contact, at = _readFirstContact(body, at)
        checkLength(cls.__name__, body, at)
        return cls(*common, more.chid, more.eid, more.gidExtension, contact)


@frozen
class SMCDAccept(_SMCDAnswer):
    """A server's Accept for SMC-D, which uses shared memory devices."""

    _TYPE: ClassVar[MessageType] = MessageType.ACCEPT


@frozen
class SMCDConfirm(_SMCDAnswer):
    """A client's Confirm for SMC-D, which uses shared memory devices."""

    _TYPE: ClassVar[MessageType] = MessageType.CONFIRM


def readAnswer(
    kind: type[Answer], direct: type[DirectAnswer], header: CLCHeader, body: bytes
) -> Answer | DirectAnswer:
    if header.typeV1 == SMCKind.SMC_D:
        return direct.read(header, body)
    if header.typeV1 != SMCKind.SMC_R or header.eyecatcher != SMCR:
        raise WireError(kind.__name__, 7, f"neither SMC-R nor SMC-D: {header.typeV1}")
    return kind.read(header, body)
