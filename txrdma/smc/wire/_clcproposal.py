"""
The CLC Proposal, with the versions and devices that a client offers.

Follows RFC 7609, appendix A.2.1, and IBM's "SMC Version 2".
"""

from __future__ import annotations

from typing_extensions import Self

from txrdma.error import WireError
from txrdma.iba.types import GID, MACAddress
from txrdma.kit.values import frozen
from txrdma.kit.wire import bits, data, Layout, reserved, wire
from txrdma.smc.wire._clcframe import (
    checkLength,
    CLCHeader,
    EID_LENGTH,
    frame,
    HEADER_LENGTH,
    MessageType,
    SMCKind,
    SMCR,
)


@wire(32)
class _ProposalBody(Layout):
    peerID: bytes = data(8)
    gid: GID = data(16)
    mac: MACAddress = data(6)
    ipOffset: int = bits(16)


@wire(17)
class IPv6Prefix(Layout):
    """An IPv6 prefix of the client's interface (RFC 7609, A.2.1)."""

    prefix: bytes = data(16)
    length: int = bits(8)


@wire(8)
class _IPArea(Layout):
    subnet: int = bits(32)
    prefixLength: int = bits(8)
    reserved5: int = reserved(16)
    ipv6Count: int = bits(8)


@wire(40)
class SMCDArea(Layout):
    """The SMC-D part of a Proposal, with the offset of the version 2 extension, counted from its byte 12."""

    gid: int = bits(64)
    chid: int = bits(16)
    extensionOffset: int = bits(16)
    vendorOUI: bytes = data(3)
    vendorOptions: bytes = data(5)
    reserved20: bytes = reserved(160)


@wire(40)
class _V2Extension(Layout):
    eidCount: int = bits(8)
    ismCount: int = bits(8)
    reserved2: int = reserved(8)
    release: int = bits(4)
    reserved3: int = reserved(3)
    seid: bool = bits(1)
    reserved4: int = reserved(16)
    smcdOffset: int = bits(16)
    gid: GID = data(16)
    maxConnections: int = bits(8)
    maxLinks: int = bits(8)
    features: int = bits(16)
    reserved28: bytes = reserved(96)


@wire(10)
class ISMDevice(Layout):
    """An ISM device of the client."""

    gid: int = bits(64)
    chid: int = bits(16)


@frozen
class SMCDV2:
    """The SMC-D part of the version 2 extension."""

    seid: bytes
    devices: tuple[ISMDevice, ...] = ()


@frozen
class ProposalV2:
    """
    The version 2 extension of a Proposal.

    @ivar gid: the client's RoCE v2 GID.
    @ivar release: 0 is version 2.0, 1 is version 2.1.
    @ivar eids: enterprise IDs, of 32 bytes each, blank padded.
    """

    gid: GID
    eids: tuple[bytes, ...] = ()
    release: int = 0
    seidPresent: bool = False
    maxConnections: int = 0
    maxLinks: int = 0
    features: int = 0
    smcd: SMCDV2 | None = None


MAX_PREFIXES = 8
MAX_EIDS = 8
MAX_ISM_DEVICES = 8

# Offsets in a Proposal count from the end of their own field.
_EXTENSION_OFFSET_END = 12
"""Where the field C{extensionOffset} ends in the SMC-D area."""

_SMCD_OFFSET_END = 8
"""Where the field C{smcdOffset} ends in the version 2 extension."""

_SEID_RESERVED = 16
"""Reserved bytes after the SEID."""


@frozen
class Proposal:
    """
    A client's Proposal of SMC (RFC 7609, A.2.1).

    @ivar subnet: subnet of the client's IPv4 address; 0 for IPv6.
    @ivar typeV1: the offer of version 1; with C{NONE} there are no subnet and no prefixes.
    @ivar smcd: the SMC-D part, always present in version 2.
    @ivar v2: the version 2 extension; a peer that offers version 2 without it must be declined.
    """

    peerID: bytes
    gid: GID
    mac: MACAddress
    subnet: int = 0
    prefixLength: int = 0
    ipv6Prefixes: tuple[IPv6Prefix, ...] = ()
    version: int = 1
    typeV1: SMCKind = SMCKind.SMC_R
    typeV2: SMCKind = SMCKind.SMC_R
    smcd: SMCDArea | None = None
    v2: ProposalV2 | None = None

    @property
    def offersV1(self) -> bool:
        """Whether the client offers SMC-R version 1."""
        return self.typeV1 in (SMCKind.SMC_R, SMCKind.BOTH)

    def encode(self) -> bytes:
        area = self._ipArea() if _hasIPArea(self.version, self.typeV1) else b""
        smcd = b""
        if self.smcd is not None:
            offset = self.smcd.extensionOffset
            if self.v2 is not None:
                offset = SMCDArea.size - _EXTENSION_OFFSET_END + len(area)
            smcd = self.smcd.replace(extensionOffset=offset).encode()
        ipOffset = len(smcd) if area else 0
        head = _ProposalBody(peerID=self.peerID, gid=self.gid, mac=self.mac, ipOffset=ipOffset)
        body = head.encode() + smcd + area + (_encodeV2(self.v2) if self.v2 is not None else b"")
        return frame(MessageType.PROPOSAL, body, self.version, self.typeV2, self.typeV1)

    def _ipArea(self) -> bytes:
        area = _IPArea(subnet=self.subnet, prefixLength=self.prefixLength, ipv6Count=len(self.ipv6Prefixes))
        return area.encode() + b"".join(each.encode() for each in self.ipv6Prefixes)

    @classmethod
    def read(cls, header: CLCHeader, body: bytes) -> Self:
        if header.eyecatcher != SMCR:
            raise WireError("Proposal", 0, "with the eyecatcher of SMC-D")
        head = _ProposalBody.decode(body)
        end = head.size  # of what is decoded so far
        smcd = None
        if header.version > 1 or head.ipOffset:
            smcd = SMCDArea.decode(body, end)
            end += smcd.size
        area = _IPArea()
        prefixes: tuple[IPv6Prefix, ...] = ()
        if _hasIPArea(header.version, header.typeV1):
            if head.ipOffset != end - head.size:
                raise WireError("Proposal", 38, f"the subnet at {head.ipOffset}, not {end - head.size}")
            area, prefixes, end = _decodeIPArea(body, end)
        v2 = None
        if header.version > 1 and header.typeV2 != SMCKind.NONE and smcd is not None and smcd.extensionOffset:
            if head.size + _EXTENSION_OFFSET_END + smcd.extensionOffset != end:
                raise WireError("Proposal", 50, f"version 2 at {smcd.extensionOffset}")
            v2, end = _decodeV2(body, end)
        checkLength("Proposal", body, end)
        return cls(
            head.peerID,
            head.gid,
            head.mac,
            area.subnet,
            area.prefixLength,
            prefixes,
            header.version,
            header.typeV1,
            SMCKind(header.typeV2),
            smcd,
            v2,
        )


def _hasIPArea(version: int, typeV1: SMCKind) -> bool:
    """Return whether a Proposal contains the client's subnet and prefixes, which version 1 needs."""
    return version == 1 or typeV1 != SMCKind.NONE


def _decodeIPArea(body: bytes, at: int) -> tuple[_IPArea, tuple[IPv6Prefix, ...], int]:
    """Return the subnet and the prefixes at an offset, and where they end."""
    area = _IPArea.decode(body, at)
    at += area.size
    _atMost("Proposal", HEADER_LENGTH + at - 1, area.ipv6Count, MAX_PREFIXES, "prefixes")
    end = at + area.ipv6Count * IPv6Prefix.size
    return area, tuple(IPv6Prefix.decode(body, each) for each in range(at, end, IPv6Prefix.size)), end


def _atMost(name: str, at: int, count: int, most: int, what: str) -> None:
    if count > most:
        raise WireError(name, at, f"{count} {what}; at most {most} are allowed")


def _encodeV2(extension: ProposalV2) -> bytes:
    """Encode the version 2 extension; raises L{WireError} for an EID of another length."""
    smcd = extension.smcd
    names = b"".join(extension.eids)
    fixed = _V2Extension(
        eidCount=len(extension.eids),
        ismCount=len(smcd.devices) if smcd is not None else 0,
        release=extension.release,
        seid=extension.seidPresent,
        smcdOffset=_V2Extension.size - _SMCD_OFFSET_END + len(names) if smcd is not None else 0,
        gid=extension.gid,
        maxConnections=extension.maxConnections,
        maxLinks=extension.maxLinks,
        features=extension.features,
    )
    if len(names) != EID_LENGTH * len(extension.eids):
        raise WireError("ProposalV2", _V2Extension.size, f"an EID whose length is not {EID_LENGTH} bytes")
    parts = [fixed.encode(), names]
    if smcd is not None:
        parts += [smcd.seid.ljust(EID_LENGTH, b"\0")[:EID_LENGTH], bytes(_SEID_RESERVED)]
        parts += [device.encode() for device in smcd.devices]
    return b"".join(parts)


def _decodeV2(body: bytes, begin: int) -> tuple[ProposalV2, int]:
    """Return the version 2 extension at an offset, and where it ends."""
    fixed = _V2Extension.decode(body, begin)
    _atMost("ProposalV2", HEADER_LENGTH + begin, fixed.eidCount, MAX_EIDS, "EIDs")
    _atMost("ProposalV2", HEADER_LENGTH + begin + 1, fixed.ismCount, MAX_ISM_DEVICES, "ISM devices")
    at = begin + fixed.size
    end = at + EID_LENGTH * fixed.eidCount
    eids = tuple(body[each : each + EID_LENGTH] for each in range(at, end, EID_LENGTH))
    if end > len(body):
        raise WireError("ProposalV2", HEADER_LENGTH + len(body), "the EIDs are cut off")
    smcd = None
    if fixed.smcdOffset:
        if begin + _SMCD_OFFSET_END + fixed.smcdOffset != end:
            raise WireError("ProposalV2", HEADER_LENGTH + begin + 6, f"SMC-D at {fixed.smcdOffset}")
        smcd, end = _decodeSMCD(body, end, fixed.ismCount)
    elif fixed.ismCount:
        raise WireError("ProposalV2", HEADER_LENGTH + begin + 1, "ISM devices without their extension")
    extension = ProposalV2(
        fixed.gid,
        eids,
        fixed.release,
        fixed.seid,
        fixed.maxConnections,
        fixed.maxLinks,
        fixed.features,
        smcd,
    )
    return extension, end


def _decodeSMCD(body: bytes, at: int, count: int) -> tuple[SMCDV2, int]:
    """Return the SMC-D part with this number of ISM devices at an offset, and where it ends."""
    seid = body[at : at + EID_LENGTH]
    at += EID_LENGTH + _SEID_RESERVED
    end = at + ISMDevice.size * count
    devices = tuple(ISMDevice.decode(body, each) for each in range(at, end, ISMDevice.size))
    if end > len(body):
        raise WireError("ProposalV2", HEADER_LENGTH + len(body), "SMC-D is cut off")
    return SMCDV2(seid, devices), end
