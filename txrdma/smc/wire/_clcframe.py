"""
The frame of all CLC messages: eyecatchers, header, codes, and lengths.

Follows RFC 7609, appendix A.2. The messages are in L{txrdma.smc.wire.clc}.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Union

from txrdma.error import WireError
from txrdma.kit.strings import escapedText
from txrdma.kit.wire import bits, Code, data, Layout, wire

Buffer = Union[bytes, bytearray, memoryview]

SMCR = bytes.fromhex("e2d4c3d9")
"""The eyecatcher: "SMCR" in EBCDIC."""

SMCD = bytes.fromhex("e2d4c3c4")
"""The eyecatcher of SMC-D messages."""

HEADER_LENGTH = 8
TRAILER_LENGTH = 4

MAX_LENGTH = 4096
"""Largest valid length; every CLC message is shorter."""

SMALLEST_BUFFER = 16384
"""Bytes of a buffer with size code 0; each further code doubles it (RFC 7609, A.2.2)."""

MAX_SIZE_CODE = 15

EID_LENGTH = 32
"""Bytes of an enterprise ID, blank padded."""

_UEID = re.compile(r"[A-Z0-9][A-Z0-9.-]*")


def enterpriseID(name: str) -> bytes:
    """
    Encode the name of a user-defined enterprise ID (UEID) for version 2.

    @raise ValueError: a UEID has 1 to 32 characters of C{A-Z}, C{0-9}, C{.} and C{-}; the first is a letter
        or a digit.
    """
    if not _UEID.fullmatch(name) or len(name) > EID_LENGTH:
        raise ValueError(
            f"{name!r} is not a UEID: up to {EID_LENGTH} of A-Z, 0-9, '.' and '-', a letter or digit first"
        )
    return name.encode().ljust(EID_LENGTH)


def enterpriseName(eid: bytes) -> str:
    """Return the name of an enterprise ID, without trailing blanks; invalid bytes are escaped."""
    return escapedText(eid.rstrip(b" "))


def sizeCode(size: int) -> int:
    """Return the code of a buffer size (RFC 7609, A.2.2); raises ValueError without one."""
    code = (size // SMALLEST_BUFFER).bit_length() - 1
    if not 0 <= code <= MAX_SIZE_CODE or SMALLEST_BUFFER << code != size:
        raise ValueError(f"no size code for {size} bytes: 16 KiB times a power of two, up to 512 MiB")
    return code


class MessageType(Code):
    """The type of a CLC message (RFC 7609, A.2)."""

    PROPOSAL = 1
    ACCEPT = 2
    CONFIRM = 3
    DECLINE = 4


class SMCKind(Code):
    """The kind of SMC to which a message refers."""

    SMC_R = 0
    SMC_D = 1
    NONE = 2
    BOTH = 3


class OSType(Code):
    """The operating system of the SMC stack that sent a message of version 2."""

    ZOS = 1
    LINUX = 2
    AIX = 3


class Diagnosis(Code):
    """The reason to decline SMC, by Linux's names; unknown codes keep their number."""

    MEM = 0x01010000
    """No memory, or no buffer."""
    TIMEOUT_CL = 0x02010000
    """No CLC message or CONFIRM LINK in time."""
    TIMEOUT_AL = 0x02020000
    """No ADD LINK in time."""
    CNFERR = 0x03000000
    """A configuration error, such as terms that contradict each other."""
    PEERNOSMC = 0x03010000
    """The peer does not announce SMC."""
    IPSEC = 0x03020000
    """The connection uses IPsec, which SMC does not support."""
    NOSMCDEV = 0x03030000
    """There is no device for SMC."""
    NOSMCDDEV = 0x03030001
    """There is no device for SMC-D."""
    NOSMCRDEV = 0x03030002
    """There is no device for SMC-R."""
    NOISM2SUPP = 0x03030003
    """There is no support for ISMv2."""
    NOV2EXT = 0x03030004
    """The Proposal lacks the version 2 extension."""
    NOV2DEXT = 0x03030005
    """The Proposal lacks the SMC-D version 2 extension."""
    NOSEID = 0x03030006
    """The EIDs of the two systems differ."""
    NOSMCD2DEV = 0x03030007
    """There is no device for SMC-Dv2."""
    NOUEID = 0x03030008
    """The two ends have no user-defined EID in common."""
    RELEASEERR = 0x03030009
    """The release is not the one that was negotiated."""
    MAXCONNERR = 0x0303000A
    """The limit of connections is not the one that was negotiated."""
    MAXLINKERR = 0x0303000B
    """The limit of links is not the one that was negotiated."""
    MODEUNSUPP = 0x03040000
    """The requested mode was not offered."""
    RMBE_EC = 0x03050000
    """The peer requires eyecatchers in its buffers."""
    OPTUNSUPP = 0x03060000
    """SMC does not support a socket option."""
    DIFFPREFIX = 0x03070000
    """The two ends have no subnet in common."""
    GETVLANERR = 0x03080000
    """The VLAN can't be determined."""
    ISMVLANERR = 0x03090000
    """The ISM device does not accept the VLAN."""
    NOACTLINK = 0x030A0000
    """The group has no active link."""
    NOSRVLINK = 0x030B0000
    """The server's link is not in the group."""
    VERSMISMAT = 0x030C0000
    """The two ends have no version in common."""
    MAX_DMB = 0x030D0000
    """There are no more DMBs, which SMC-D needs."""
    NOROUTE = 0x030E0000
    """No route to the peer's GID."""
    NOINDIRECT = 0x030F0000
    """The peer is behind a router, and routed paths are not used."""
    SYNCERR = 0x04000000
    """The two ends do not agree on the link group."""
    PEERDECL = 0x05000000
    """The peer declined; its diagnosis has the reason."""
    INTERR = 0x09990000
    """An internal error at the end that declines."""
    ERR_RTOK = 0x09990001
    """The peer's buffer is unknown, or the peer has too many."""
    ERR_RDYLNK = 0x09990002
    """The queue pair did not become ready to send."""
    ERR_REGBUF = 0x09990003
    """The buffer could not be registered."""


@wire(8)
class CLCHeader(Layout):
    """
    The beginning of each message (RFC 7609, A.2).

    @ivar length: length of the whole message, including header and trailer.
    @ivar typeV2: the L{SMCKind} of version 2 in a Proposal. Its upper bit means first contact in Accept and
        Confirm, and out of sync in Decline.
    """

    eyecatcher: bytes = data(4)
    type: MessageType = bits(8)
    length: int = bits(16)
    version: int = bits(4)
    typeV2: int = bits(2)
    typeV1: SMCKind = bits(2)


FLAG = 2
"""The flag bit in C{CLCHeader.typeV2}."""


def checkEyecatcher(buffer: Buffer) -> None:
    """Check the available first bytes of a message; raises L{WireError} if they are not CLC."""
    seen = bytes(buffer[:4])
    if not (SMCR.startswith(seen) or SMCD.startswith(seen)):
        raise WireError("CLC", 0, f"no eyecatcher: {seen.hex()}")


@lru_cache(64)
def readHeader(raw: bytes) -> CLCHeader:
    """Decode the 8 bytes of a header after L{checkEyecatcher}; raises L{WireError}. Its value is shared."""
    header = CLCHeader.decode(raw)
    if not header.type.known:
        raise WireError("CLC", 4, f"no such message: {header.type}")
    if not HEADER_LENGTH + TRAILER_LENGTH < header.length <= MAX_LENGTH:
        raise WireError("CLC", 5, f"a message of {header.length} bytes")
    if not header.version:
        raise WireError("CLC", 7, "version 0")
    return header


def frame(
    kind: MessageType, body: bytes, version: int, typeV2: int, typeV1: SMCKind, eyecatcher: bytes = SMCR
) -> bytes:
    """Add header and trailer to the body of a message."""
    size = HEADER_LENGTH + len(body) + TRAILER_LENGTH
    return _header(eyecatcher, kind, size, version, typeV2, typeV1) + body + eyecatcher


@lru_cache(64)
def _header(
    eyecatcher: bytes, kind: MessageType, size: int, version: int, typeV2: int, typeV1: SMCKind
) -> bytes:
    header = CLCHeader(
        eyecatcher=eyecatcher, type=kind, length=size, version=version, typeV2=typeV2, typeV1=typeV1
    )
    return header.encode()


def checkLength(name: str, body: bytes, *right: int) -> None:
    """Check that all bytes of a message were decoded."""
    if len(body) not in right:
        whole = " or ".join(str(HEADER_LENGTH + each + TRAILER_LENGTH) for each in right)
        found = HEADER_LENGTH + len(body) + TRAILER_LENGTH
        raise WireError(name, 5, f"a length of {found} instead of {whole}")
