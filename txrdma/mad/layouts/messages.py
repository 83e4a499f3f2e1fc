"""
The frames of management datagrams: their headers, and the position of each class's data.

Follows InfiniBand Architecture vol. 1: 13.4.3 (the common header), 13.6.2 (RMPP), 14.2.1 (SMPs), 15.2.1 (SA),
and 16.1.1 to 16.7.1 (the other classes).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from functools import lru_cache
from typing import ClassVar, Final

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, LID, QPN
from txrdma.kit.wire import bits, Code, data, Layout, nested, wire
from txrdma.mad.layouts.attributes import Attribute, attribute, carried, key, ManagementClass, mask, Method

MAD_LENGTH: Final = 256


class MADStatus(int):
    """The status of a datagram (IBA 13.4.7), with properties for its parts."""

    __slots__ = ()

    BUSY: ClassVar = 0x0001
    REDIRECT: ClassVar = 0x0002
    UNSUPPORTED_VERSION: ClassVar = 0x0004
    UNSUPPORTED_METHOD: ClassVar = 0x0008
    UNSUPPORTED_METHOD_ATTRIBUTE: ClassVar = 0x000C
    INVALID_FIELD: ClassVar = 0x001C

    _CODES: ClassVar = {
        0: "",
        1: "bad base or class version",
        2: "method not supported",
        3: "attribute not supported by this method",
        7: "invalid value in attribute or modifier",
    }

    @property
    def isBusy(self) -> bool:
        """Busy: the request was discarded, and may be sent again."""
        return bool(self & 0x0001)

    @property
    def isRedirect(self) -> bool:
        """Redirection required, to the node in a ClassPortInfo."""
        return bool(self & 0x0002)

    @property
    def code(self) -> int:
        """Bits 2 to 4: code of an invalid field."""
        return self >> 2 & 7

    @property
    def classCode(self) -> int:
        """Bits 8 to 14: status of the management class."""
        return self >> 8 & 0x7F

    def words(self, managementClass: int) -> str:
        """Status as text; empty for success."""
        parts = []
        if self.isBusy:
            parts.append("busy")
        if self.isRedirect:
            parts.append("redirected")
        if self.code:
            parts.append(self._CODES.get(self.code, f"reserved code {self.code}"))
        if self.classCode:
            known = SA_STATUS if managementClass == ManagementClass.SUBN_ADM else {}
            parts.append(known.get(self.classCode, f"class status {self.classCode:#x}"))
        return ", ".join(parts)


SA_STATUS: Final = {
    1: "no resources",
    2: "request invalid",
    3: "no records",
    4: "too many records",
    5: "invalid GID",
    6: "insufficient components",
    7: "request denied",
    8: "priority suggested",
}
"""The class codes of subnet administration (IBA table 185)."""


@wire(24)
class MADHeader(Layout):
    """Common header of all management datagrams (IBA 13.4.3)."""

    baseVersion: int = bits(8)
    managementClass: ManagementClass = bits(8)
    classVersion: int = bits(8)
    method: Method = bits(8)
    status: int = key(16)
    classSpecific: int = bits(16)
    transactionID: int = key(64)
    attributeID: int = key(16)
    reserved: int = bits(16)
    attributeModifier: int = key(32)


@wire(24)
class MADHeaderDirected(Layout):
    """Common header of datagrams on a directed route (IBA 14.2.1.2)."""

    baseVersion: int = bits(8)
    managementClass: ManagementClass = bits(8)
    classVersion: int = bits(8)
    method: Method = bits(8)
    returning: bool = bits(1)
    status: int = key(15)
    hopPointer: int = bits(8)
    hopCount: int = bits(8)
    transactionID: int = key(64)
    attributeID: int = key(16)
    reserved: int = bits(16)
    attributeModifier: int = key(32)


class RMPPType(Code):
    """Type of an RMPP packet (IBA 13.6.2.1)."""

    NONE = 0
    DATA = 1
    ACK = 2
    STOP = 3
    ABORT = 4


class RMPPStatus(Code):
    """Status of an RMPP packet: the reason why a transfer ended (IBA 13.6.2.2)."""

    NORMAL = 0
    RESOURCES_EXHAUSTED = 1
    TOTAL_TIME_TOO_LONG = 118
    INCONSISTENT_LENGTH = 119
    INCONSISTENT_FIRST = 120
    BAD_TYPE = 121
    WINDOW_TOO_SMALL = 122
    SEGMENT_TOO_BIG = 123
    ILLEGAL_STATUS = 124
    UNSUPPORTED_VERSION = 125
    TOO_MANY_RETRIES = 126
    UNSPECIFIED = 127

    @property
    def meaning(self) -> str:
        """The code as text (IBA table 118)."""
        return _RMPP_MEANINGS.get(self, "unknown reason")


_RMPP_MEANINGS: Final = {
    RMPPStatus.RESOURCES_EXHAUSTED: "resources exhausted",
    RMPPStatus.TOTAL_TIME_TOO_LONG: "total transaction time exceeded",
    RMPPStatus.INCONSISTENT_LENGTH: "segments contradict the payload length",
    RMPPStatus.INCONSISTENT_FIRST: "First flag and segment number contradict each other",
    RMPPStatus.BAD_TYPE: "invalid RMPP type",
    RMPPStatus.WINDOW_TOO_SMALL: "new window ends before the last acknowledged segment",
    RMPPStatus.SEGMENT_TOO_BIG: "a segment that was not sent is acknowledged",
    RMPPStatus.ILLEGAL_STATUS: "invalid status for this RMPP type",
    RMPPStatus.UNSUPPORTED_VERSION: "unsupported RMPP version",
    RMPPStatus.TOO_MANY_RETRIES: "no acknowledgement after all retries",
    RMPPStatus.UNSPECIFIED: "unspecified reason",
}


@wire(12)
class RMPPHeader(Layout):
    """
    The header of the reliable multi-packet protocol (IBA 13.6.2.1).

    @ivar data1: in DATA the segment's number, from 1; in ACK the last one received in order.
    @ivar data2: in DATA the length of the payload; in ACK the end of the new window.
    """

    version: int = bits(8)
    type: RMPPType = bits(8)
    responseTime: int = bits(5)
    last: bool = bits(1)
    first: bool = bits(1)
    active: bool = bits(1)
    status: RMPPStatus = bits(8)
    data1: int = bits(32)
    data2: int = bits(32)


class MADFormat(Layout):
    """
    A frame of 256 bytes: headers, then the attribute.

    @cvar dataOffset: offset of the attribute.
    @cvar classVersion: class version of the classes with this frame.
    @cvar hasRMPP: True if RMPP transfers are possible.
    """

    __slots__ = ()

    dataOffset: ClassVar[int]
    classVersion: ClassVar[int] = 1
    hasRMPP: ClassVar[bool] = False
    header: MADHeader | MADHeaderDirected
    payload: bytes


@wire(24)
class _Headed(MADFormat):
    """The beginning of all frames without a directed route."""

    header: MADHeader = nested()


@wire(MAD_LENGTH)
class PlainFormat(_Headed):
    """Frame of classes that add nothing to the common header: vendor (range 1), boot management, others."""

    dataOffset = 24
    payload: bytes = data(232)


@wire(MAD_LENGTH)
class CommMgtFormat(_Headed):
    """Frame of communication management datagrams (IBA 16.7.1)."""

    dataOffset = 24
    classVersion = 2
    payload: bytes = data(232)


@wire(MAD_LENGTH)
class SMPFormat(_Headed):
    """A subnet management packet, LID routed (IBA 14.2.1.1)."""

    dataOffset = 64
    mkey: int = key(64)
    reserved: bytes = data(32)
    payload: bytes = data(64)
    reserved2: bytes = data(128)


@wire(MAD_LENGTH)
class SMPFormatDirected(MADFormat):
    """
    A subnet management packet on a directed route (IBA 14.2.1.2).

    @ivar initialPath: the output port at each hop, from index 1 on.
    @ivar returnPath: the input port at each hop, from index 1 on.
    """

    dataOffset = 64
    header: MADHeaderDirected = nested()
    mkey: int = key(64)
    drSLID: LID = bits(16)
    drDLID: LID = bits(16)
    reserved: bytes = data(28)
    payload: bytes = data(64)
    initialPath: bytes = data(64)
    returnPath: bytes = data(64)


@wire(MAD_LENGTH)
class SAFormat(_Headed):
    """
    Frame of subnet administration (SA) datagrams (IBA 15.2.1.1).

    @ivar attributeOffset: the distance of records in a table, in units of 8 bytes.
    """

    dataOffset = 56
    classVersion = 2
    hasRMPP = True
    rmpp: RMPPHeader = nested()
    smKey: int = key(64)
    attributeOffset: int = bits(16)
    reserved: int = bits(16)
    componentMask: int = key(64)
    payload: bytes = data(200)


@wire(MAD_LENGTH)
class PerformanceFormat(_Headed):
    """A performance management datagram (IBA 16.1.1)."""

    dataOffset = 64
    reserved: bytes = data(40)
    payload: bytes = data(192)


@wire(MAD_LENGTH)
class BMFormat(_Headed):
    """A baseboard management datagram (IBA 16.2.1)."""

    dataOffset = 64
    bkey: int = key(64)
    reserved: bytes = data(32)
    payload: bytes = data(192)


@wire(MAD_LENGTH)
class DevMgtFormat(_Headed):
    """A device management datagram (IBA 16.3.1)."""

    dataOffset = 64
    hasRMPP = True
    rmpp: RMPPHeader = nested()
    reserved: bytes = data(28)
    payload: bytes = data(192)


@wire(MAD_LENGTH)
class SNMPFormat(_Headed):
    """A datagram of SNMP tunnelling (IBA 16.4.1)."""

    dataOffset = 64
    reserved: bytes = data(32)
    raddress: int = key(32)
    payloadLength: int = bits(8)
    segmentNumber: int = bits(8)
    sourceLID: LID = bits(16)
    payload: bytes = data(192)


@wire(MAD_LENGTH)
class CongMgtFormat(_Headed):
    """A congestion control datagram (IBA annex A10.4.1). Logs begin in C{logData} and continue after it."""

    dataOffset = 64
    classVersion = 2
    ccKey: int = key(64)
    logData: bytes = data(32)
    payload: bytes = data(192)


@wire(MAD_LENGTH)
class VendorOUIFormat(_Headed):
    """A vendor's datagram of the second range (IBA 16.5.1)."""

    dataOffset = 40
    hasRMPP = True
    rmpp: RMPPHeader = nested()
    reserved: int = bits(8)
    oui: int = key(24)
    payload: bytes = data(216)


_FORMATS: Final[dict[int, type[MADFormat]]] = {
    ManagementClass.SUBN_LID: SMPFormat,
    ManagementClass.SUBN_DIRECTED: SMPFormatDirected,
    ManagementClass.SUBN_ADM: SAFormat,
    ManagementClass.PERFORMANCE: PerformanceFormat,
    ManagementClass.BM: BMFormat,
    ManagementClass.DEV_MGT: DevMgtFormat,
    ManagementClass.COMM_MGT: CommMgtFormat,
    ManagementClass.SNMP: SNMPFormat,
    ManagementClass.DEV_ADM: DevMgtFormat,
    ManagementClass.BIS: DevMgtFormat,
    ManagementClass.CONG_MGT: CongMgtFormat,
}


@lru_cache(256)  # called three times for each received datagram
def formatOf(managementClass: int) -> type[MADFormat]:
    """Frame of the datagrams of a management class."""
    if 0x30 <= managementClass <= 0x4F:
        return VendorOUIFormat
    return _FORMATS.get(managementClass, PlainFormat)


@dataclass(frozen=True, slots=True)
class MADRequest:
    """
    A received request.

    @ivar header: common header of the datagram.
    @ivar frame: all headers, in the layout that L{formatOf} returns.
    @ivar payload: the attribute; None for an unknown one.
    @ivar data: bytes of the attribute, of all segments of an RMPP transfer.
    @ivar path: path of the request; its C{reverse} leads to the requester.
    """

    header: MADHeader | MADHeaderDirected
    frame: MADFormat
    payload: Attribute | None
    data: bytes
    path: IBPath


class ClassCapability(IntFlag):
    """Capabilities of agents of any class (IBA table 113); bits 8 to 15 depend on the class."""

    TRAP = 1
    GET_SET_NOTICE = 2


@attribute(0x0001, *carried("Get Set", but="Subn"), size=72)
class ClassPortInfo(Attribute):
    """
    Capabilities of an agent, and the target of its redirections (IBA 13.4.8.1).

    @ivar responseTimeValue: the agent answers within 4.096 microseconds times two to the power of this.
    """

    baseVersion: int = bits(8)
    classVersion: int = bits(8)
    capabilityMask: int = mask(16, ClassCapability)
    capabilityMask2: int = key(27)
    responseTimeValue: int = bits(5)
    redirectGID: GID = data(16)
    redirectTrafficClass: int = bits(8)
    redirectServiceLevel: int = bits(4)
    redirectFlowLabel: int = bits(20)
    redirectLID: LID = bits(16)
    redirectPKey: int = key(16)
    reserved: int = bits(8)
    redirectQPN: QPN = bits(24)
    redirectQKey: int = key(32)
    trapGID: GID = data(16)
    trapTrafficClass: int = bits(8)
    trapServiceLevel: int = bits(4)
    trapFlowLabel: int = bits(20)
    trapLID: LID = bits(16)
    trapPKey: int = key(16)
    trapHopLimit: int = bits(8)
    trapQPN: QPN = bits(24)
    trapQKey: int = key(32)


class NoticeType(Code):
    """Severity of a notice (IBA 13.4.8.2)."""

    FATAL = 0
    URGENT = 1
    SECURITY = 2
    SUBNET_MANAGEMENT = 3
    INFORMATIONAL = 4
    EMPTY = 0x7F


@attribute(0x0002, "SubnGet", "SubnSet", "SubnTrap", "SubnTrapRepress", size=64)
class Notice(Attribute):
    """
    Notice of an event, as in traps of subnet management (IBA 13.4.8.2).

    @ivar producerType: in a generic notice 1 CA, 2 switch, 3 router, 4 class manager; else the vendor's ID.
    @ivar trapNumber: in a generic notice the trap's number; else the vendor's device ID.
    @ivar details: the rest depends on the trap's number (IBA 14.2.5.1); see L{txrdma.mad.layouts.traps}.
    """

    isGeneric: bool = bits(1)
    type: NoticeType = bits(7)
    producerType: int = bits(24)
    trapNumber: int = bits(16)
    issuerLID: LID = bits(16)
    toggle: bool = bits(1)
    count: int = bits(15)
    details: bytes = data(54)


@attribute(
    0x0002,
    *carried("Trap TrapRepress Report", but="Subn"),
    *carried("Get Set", but="Subn SubnAdm CommMgt SNMP"),
    size=80,
)
class ReportedNotice(Notice):
    """
    A notice of any class except subnet management, with the issuer's GID (IBA 13.4.8.2).

    A C{Notice} that was reported without the GID is decoded with zeros in its place.
    """

    issuerGID: GID = data(16)

    @classmethod
    def of(cls, notice: Notice, issuerGID: GID) -> ReportedNotice:
        """The reported form of a notice, with its issuer's GID."""
        return cls.decode(notice.encode()[: Notice.size] + issuerGID.raw)


Notice.rpcs |= ReportedNotice.rpcs


@attribute(0x0003, "SubnAdmSet", "BMSet", "DevMgtSet", "VendSet", size=36)
class InformInfo(Attribute):
    """
    Subscription to notices at the SA (IBA 13.4.8.3).

    @ivar gid: GID of the notices' issuer; zero means those of the LIDs.
    @ivar trapNumber: 0xFFFF means all traps.
    """

    gid: GID = data(16)
    lidRangeBegin: LID = bits(16)
    lidRangeEnd: LID = bits(16)
    reserved: int = bits(16)
    isGeneric: int = bits(8)
    subscribe: int = bits(8)
    type: int = bits(16)
    trapNumber: int = bits(16)
    qpn: QPN = bits(24)
    reserved2: int = bits(3)
    responseTimeValue: int = bits(5)
    reserved3: int = bits(8)
    producerType: int = bits(24)
