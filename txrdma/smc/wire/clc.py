"""
Connection layer control: the messages by which two ends of a TCP connection agree on SMC-R.

Follows RFC 7609, appendix A.2, for version 1, and IBM's "SMC Version 2" for 2 and 2.1; names of codes
are Linux's::

    size, message = decodeFirst(buffer)     # message is None while bytes are missing
"""

from __future__ import annotations

from functools import lru_cache
from typing import Union

from typing_extensions import Self

from txrdma.error import Refused, WireError
from txrdma.kit.values import frozen
from txrdma.kit.wire import bits, data, Layout, reserved, wire
from txrdma.smc.wire._clcanswer import (
    Accept,
    AnswerV2,
    Confirm,
    FirstContact,
    FirstContactV21,
    readAnswer,
    SMCDAccept,
    SMCDConfirm,
)
from txrdma.smc.wire._clcframe import (
    Buffer,
    checkEyecatcher,
    checkLength,
    CLCHeader,
    Diagnosis,
    enterpriseID,
    enterpriseName,
    FLAG,
    frame,
    HEADER_LENGTH,
    MAX_LENGTH,
    MAX_SIZE_CODE,
    MessageType,
    OSType,
    readHeader,
    sizeCode,
    SMALLEST_BUFFER,
    SMCD,
    SMCKind,
    SMCR,
    TRAILER_LENGTH,
)
from txrdma.smc.wire._clcproposal import IPv6Prefix, ISMDevice, Proposal, ProposalV2, SMCDArea, SMCDV2

__all__ = [
    "HEADER_LENGTH",
    "MAX_LENGTH",
    "MAX_SIZE_CODE",
    "SMALLEST_BUFFER",
    "SMCD",
    "SMCDV2",
    "SMCR",
    "Accept",
    "AnswerV2",
    "Confirm",
    "Decline",
    "Diagnosis",
    "FirstContact",
    "FirstContactV21",
    "IPv6Prefix",
    "ISMDevice",
    "LateCLCFilter",
    "Message",
    "MessageType",
    "OSType",
    "Proposal",
    "ProposalV2",
    "SMCDAccept",
    "SMCDArea",
    "SMCDConfirm",
    "SMCKind",
    "decode",
    "decodeFirst",
    "enterpriseID",
    "enterpriseName",
    "sizeCode",
]


_WORDS = 16
"""Bytes of the four words that version 2 adds to a Decline."""


@wire(16)
class _DeclineBody(Layout):
    peerID: bytes = data(8)
    diagnosis: Diagnosis = bits(32)
    osType: OSType = bits(4)
    reserved20: int = reserved(28)


@frozen
class Decline:
    """
    The message that declines SMC: later bytes on TCP are the application's (RFC 7609, A.2.4).

    Kernels require 28 bytes in version 1 and 44 in version 2; older ones sent 28 in both.

    @ivar outOfSync: the receiver must forget the link group that it has named.
    @ivar words: four more words of diagnosis, in the longer form of version 2.
    """

    peerID: bytes
    diagnosis: Diagnosis
    outOfSync: bool = False
    version: int = 1
    osType: OSType = OSType(0)
    words: bytes = b""

    @classmethod
    def inVersion(cls, version: int, peerID: bytes, diagnosis: Diagnosis) -> Self:
        outOfSync = diagnosis is Diagnosis.SYNCERR
        if version == 1:
            return cls(peerID, diagnosis, outOfSync)
        return cls(peerID, diagnosis, outOfSync, version, OSType.LINUX, bytes(_WORDS))

    def encode(self) -> bytes:
        body = _DeclineBody(peerID=self.peerID, diagnosis=self.diagnosis, osType=self.osType).encode()
        return frame(
            MessageType.DECLINE,
            body + self.words,
            self.version,
            FLAG if self.outOfSync else 0,
            SMCKind.SMC_R,
        )

    @classmethod
    def read(cls, header: CLCHeader, body: bytes) -> Self:
        fixed = _DeclineBody.decode(body)
        checkLength("Decline", body, fixed.size, fixed.size + _WORDS)
        return cls(
            fixed.peerID,
            fixed.diagnosis,
            bool(header.typeV2 & FLAG),
            header.version,
            fixed.osType,
            body[fixed.size :],
        )


Message = Union[Proposal, Accept, Confirm, SMCDAccept, SMCDConfirm, Decline]


def decode(buffer: Buffer) -> Message:
    """Decode exactly one message; raises L{WireError}."""
    raw = bytes(buffer)
    checkEyecatcher(raw)
    header = readHeader(raw[:HEADER_LENGTH]) if len(raw) >= HEADER_LENGTH else None
    size = HEADER_LENGTH if header is None else header.length
    if header is None or len(raw) != size:
        raise WireError("CLC", min(len(raw), size), f"{len(raw)} of {size} bytes")
    return _read(header, raw)


def decodeFirst(buffer: Buffer) -> tuple[int, Message | None]:
    """
    Decode the first message of a buffer; return its length (8 while unknown), and it or None if incomplete.

    @raise WireError: there is no valid message.
    """
    checkEyecatcher(buffer)
    if len(buffer) < HEADER_LENGTH:
        return HEADER_LENGTH, None
    header = readHeader(bytes(buffer[:HEADER_LENGTH]))
    size = header.length
    return size, _read(header, bytes(buffer[:size])) if len(buffer) >= size else None


def _read(header: CLCHeader, raw: bytes) -> Message:
    if raw[-TRAILER_LENGTH:] != header.eyecatcher:
        raise WireError("CLC", len(raw) - TRAILER_LENGTH, f"no eyecatcher at the end: {raw[-4:].hex()}")
    kind = header.type
    if kind is MessageType.PROPOSAL:
        return _proposal(raw)
    body = raw[HEADER_LENGTH:-TRAILER_LENGTH]
    if kind is MessageType.DECLINE:
        return Decline.read(header, body)
    if kind is MessageType.ACCEPT:
        return readAnswer(Accept, SMCDAccept, header, body)
    return readAnswer(Confirm, SMCDConfirm, header, body)


@lru_cache(64)
def _proposal(raw: bytes) -> Proposal:
    return Proposal.read(readHeader(raw[:HEADER_LENGTH]), raw[HEADER_LENGTH:-TRAILER_LENGTH])


MOST_CROSSING = 2
"""Messages that may cross the local Decline: an expected one, and the peer's own Decline."""


class LateCLCFilter:
    """Strips CLC that the peer sent before it received the local Decline. Called until no more can follow."""

    def __init__(self, isJoining: bool = False) -> None:
        """@param isJoining: a peer that confirms uses SMC-R from then on."""
        self._left = MOST_CROSSING
        self._isJoining = isJoining

    def __call__(self, data: bytes) -> tuple[int, bool]:
        """
        Return the number of bytes of late CLC, and whether all following bytes are the application's.

        @raise Refused: the peer uses SMC-R, so it will not use TCP.
        """
        at = 0
        while self._left:
            rest = data[at:]
            if self._left < MOST_CROSSING and 0 < len(rest) < len(SMCR):
                break  # CLC is not sent in such small pieces, and the application must not be delayed
            try:
                size, message = decodeFirst(rest)
            except WireError:
                break
            if message is None:
                return at, False
            at += size
            self._left -= 1
            if self._isJoining and isinstance(message, Confirm):
                raise Refused("a client has changed to SMC-R after it was declined", Diagnosis.TIMEOUT_CL)
            if isinstance(message, Decline):
                break
        return at, True
