"""
Details of notices: the contents of each trap of the specification.

Follows InfiniBand Architecture vol. 1, 14.2.5.1 (tables 131 to 139), 15.2.5.2 (the SA's), 16.2.3.1 (baseboard
management's) and annex A10.4.3.1 (congestion control's).
"""

from __future__ import annotations

from typing import Final

from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.kit.wire import bits, Code, data, Layout, wire
from txrdma.mad.layouts.attributes import Attribute, key, ManagementClass, mask, plain
from txrdma.mad.layouts.messages import Notice
from txrdma.mad.layouts.values import PortCapability, PortCapability2


class Trap(Code):
    """Numbers of the traps of subnet management and subnet administration (IBA 13.4.9 and 14.3.2)."""

    GID_IN_SERVICE = 64
    GID_OUT_OF_SERVICE = 65
    MULTICAST_GROUP_CREATED = 66
    MULTICAST_GROUP_DELETED = 67
    UNPATH = 68
    REPATH = 69
    LINK_STATE_CHANGE = 128
    LINK_INTEGRITY = 129
    BUFFER_OVERRUN = 130
    FLOW_CONTROL = 131
    LOCAL_CHANGES = 144
    SYSTEM_IMAGE_GUID_CHANGE = 145
    BAD_MKEY = 256
    BAD_PKEY = 257
    BAD_QKEY = 258
    BAD_PKEY_FROM_SWITCH = 259


@wire(54)
class GIDDetails(Layout):
    """Traps 64 to 67: GID of a port, or of a multicast group."""

    reserved: bytes = data(6)
    gid: GID = data(16)
    reserved2: bytes = data(32)


@wire(54)
class PathDetails(Layout):
    """
    Traps 68 and 69: paths have become unusable, or usable again.

    @ivar compMask: the components of a PathRecord that describe the paths.
    @ivar waitForRepath: trap 69 will follow when they are usable again.
    """

    compMask: int = key(64)
    waitForRepath: bool = bits(1)
    reserved: int = bits(7)
    reserved2: bytes = data(45)


@wire(54)
class LinkDetails(Layout):
    """Trap 128: the switch whose links have changed."""

    lid: LID = bits(16)
    reserved: bytes = data(52)


@wire(54)
class PortDetails(Layout):
    """Traps 129 to 131: the port that has had too many errors."""

    reserved: bytes = data(2)
    lid: LID = bits(16)
    portNum: int = bits(8)
    reserved2: bytes = data(49)


@wire(54)
class LocalChangeDetails(Layout):
    """Trap 144: changes at a port."""

    reserved: int = bits(16)
    lid: LID = bits(16)
    reserved2: int = bits(15)
    otherLocalChanges: bool = bits(1)
    capabilityMask: int = mask(32, PortCapability)
    reserved3: int = bits(10)
    capabilityMask2Change: bool = bits(1)
    hierarchyInfoChange: bool = bits(1)
    smPriorityChange: bool = bits(1)
    linkSpeedEnabledChange: bool = bits(1)
    linkWidthEnabledChange: bool = bits(1)
    nodeDescriptionChange: bool = bits(1)
    capabilityMask2: int = mask(16, PortCapability2)
    reserved4: bytes = data(40)


@wire(54)
class SystemImageDetails(Layout):
    """Trap 145: the new system image GUID."""

    reserved: bytes = data(2)
    lid: LID = bits(16)
    reserved2: bytes = data(2)
    systemImageGUID: GUID = data(8)
    reserved3: bytes = data(40)


@wire(54)
class BadMKeyDetails(Layout):
    """Trap 256: an SMP had a wrong M_Key."""

    reserved: bytes = data(2)
    lid: LID = bits(16)
    drSLID: LID = bits(16)
    method: int = key(8)
    reserved2: int = bits(8)
    attributeID: int = key(16)
    attributeModifier: int = key(32)
    mkey: int = key(64)
    reserved3: int = bits(8)
    drNotice: bool = bits(1)
    drPathTruncated: bool = bits(1)
    drHopCount: int = bits(6)
    drNoticeReturnPath: bytes = data(30)


@wire(54)
class BadKeyDetails(Layout):
    """Traps 257 and 258: a datagram had a wrong P_Key or Q_Key."""

    reserved: int = bits(16)
    lid1: LID = bits(16)
    lid2: LID = bits(16)
    key: int = key(32)
    serviceLevel: int = bits(4)
    reserved2: int = bits(4)
    qp1: QPN = bits(24)
    reserved3: int = bits(8)
    qp2: QPN = bits(24)
    gid1: GID = data(16)
    gid2: GID = data(16)
    reserved4: bytes = data(4)


@wire(54)
class SwitchPKeyDetails(Layout):
    """Trap 259: a switch received a P_Key that its port does not accept."""

    dataValid: int = key(16)
    lid1: LID = bits(16)
    lid2: LID = bits(16)
    pkey: int = key(16)
    serviceLevel: int = bits(4)
    reserved: int = bits(4)
    qp1: QPN = bits(24)
    reserved2: int = bits(8)
    qp2: QPN = bits(24)
    gid1: GID = data(16)
    gid2: GID = data(16)
    swLID: LID = bits(16)
    portNum: int = bits(8)
    reserved3: bytes = data(3)


@wire(54)
class BadBKeyDetails(Layout):
    """Trap 259 of baseboard management: a datagram had a wrong B_Key."""

    lid: LID = bits(16)
    method: int = key(8)
    reserved: int = bits(8)
    attributeID: int = key(16)
    attributeModifier: int = key(32)
    reserved2: int = bits(8)
    qp: QPN = bits(24)
    bkey: int = key(64)
    gid: GID = data(16)
    reserved3: bytes = data(16)


@wire(54)
class BadCCKeyDetails(Layout):
    """Trap 0 of congestion control: a datagram had a wrong CC_Key."""

    slid: LID = bits(16)
    method: int = key(8)
    reserved: int = bits(8)
    attributeID: int = key(16)
    reserved2: int = bits(16)
    attributeModifier: int = key(32)
    reserved3: int = bits(8)
    qp: QPN = bits(24)
    ccKey: int = key(64)
    sourceGID: GID = data(16)
    reserved4: bytes = data(14)


_DETAILS: Final[dict[int, type[Layout]]] = {
    Trap.GID_IN_SERVICE: GIDDetails,
    Trap.GID_OUT_OF_SERVICE: GIDDetails,
    Trap.MULTICAST_GROUP_CREATED: GIDDetails,
    Trap.MULTICAST_GROUP_DELETED: GIDDetails,
    Trap.UNPATH: PathDetails,
    Trap.REPATH: PathDetails,
    Trap.LINK_STATE_CHANGE: LinkDetails,
    Trap.LINK_INTEGRITY: PortDetails,
    Trap.BUFFER_OVERRUN: PortDetails,
    Trap.FLOW_CONTROL: PortDetails,
    Trap.LOCAL_CHANGES: LocalChangeDetails,
    Trap.SYSTEM_IMAGE_GUID_CHANGE: SystemImageDetails,
    Trap.BAD_MKEY: BadMKeyDetails,
    Trap.BAD_PKEY: BadKeyDetails,
    Trap.BAD_QKEY: BadKeyDetails,
    Trap.BAD_PKEY_FROM_SWITCH: SwitchPKeyDetails,
}


_OTHERS: Final[dict[tuple[int, int], tuple[str, type[Layout]]]] = {
    (ManagementClass.BM, 259): ("BAD_BKEY", BadBKeyDetails),
    (ManagementClass.CONG_MGT, 0): ("BAD_CC_KEY", BadCCKeyDetails),
}
"""Traps of other classes, which are numbered from 0."""

_SUBNET: Final = (ManagementClass.SUBN_LID, ManagementClass.SUBN_DIRECTED, ManagementClass.SUBN_ADM)


def _trapName(notice: Notice, managementClass: int) -> str | None:
    if not notice.isGeneric:
        return None
    if managementClass in _SUBNET:
        return Trap(notice.trapNumber).name
    name, _kind = _OTHERS.get((managementClass, notice.trapNumber), (f"UNKNOWN_{notice.trapNumber:#x}", None))
    return name


def detailsOf(notice: Notice, managementClass: int = ManagementClass.SUBN_LID) -> Layout | None:
    """
    Details of a generic notice; None of a vendor's, or of an unknown trap.

    @param managementClass: management class of its datagram.
    """
    if not notice.isGeneric:
        return None
    if managementClass in _SUBNET:
        kind = _DETAILS.get(notice.trapNumber)
    else:
        _name, kind = _OTHERS.get((managementClass, notice.trapNumber), ("", None))
    return None if kind is None else kind.decode(notice.details)


def describe(notice: Notice, managementClass: int = ManagementClass.SUBN_LID) -> dict[str, object]:
    """
    A notice for JSON, with its trap's name and details.

    @param managementClass: management class of its datagram.
    """
    details = detailsOf(notice, managementClass)
    return {
        "trap": _trapName(notice, managementClass),
        **Attribute.toDict(notice),
        "details": notice.details.hex() if details is None else plain(details),
    }
