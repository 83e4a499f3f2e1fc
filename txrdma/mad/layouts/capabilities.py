"""
Capabilities of agents, class by class, as bits of ClassPortInfo.

Follows InfiniBand Architecture vol. 1, 13.4.8.1 (ClassPortInfo), 15.2.5.1 (subnet administration) and
16.1.3.1 (performance management).
"""

from __future__ import annotations

from enum import IntFlag
from typing import Final

from txrdma.mad.layouts.attributes import ManagementClass, setBits
from txrdma.mad.layouts.messages import ClassCapability, ClassPortInfo
from txrdma.mad.layouts.pma import PerformanceCapability


class SACapability(IntFlag):
    """Capabilities of a subnet administration (SA): bits 8 to 15 of CapabilityMask."""

    OPTIONAL_RECORDS = 1 << 8
    UD_MULTICAST = 1 << 9
    MULTI_PATH = 1 << 10
    REINIT = 1 << 11
    GID_SCOPED_MULTI_PATH = 1 << 12
    PORT_INFO_CAP_MASK_MATCH = 1 << 13
    LINK_SPEED_WIDTH_PAIRS_RECORD = 1 << 14
    PA_SERVICES = 1 << 15


class SACapability2(IntFlag):
    """Further capabilities of a subnet administration (SA): bits of CapabilityMask2."""

    UNPATH_REPATH = 1 << 0
    QOS = 1 << 1
    REVERSE_PATH_PKEY_MEMBER = 1 << 2
    MULTICAST_FDB_TOP = 1 << 3
    HIERARCHY_INFO = 1 << 4
    ADDITIONAL_GUID = 1 << 5
    FULL_PORT_INFO_RECORD = 1 << 6
    EXTENDED_SPEEDS = 1 << 7
    MULTICAST_SERVICE_RECORD = 1 << 8
    CABLE_INFO_RECORD = 1 << 9
    PORT_INFO_CAP_MASK2_MATCH = 1 << 10
    PORT_INFO_EXTENDED_RECORD = 1 << 11


class PerformanceCapability2(IntFlag):
    """Further capabilities of a performance management agent: bits of CapabilityMask2."""

    PM_KEY = 1 << 0
    ADDITIONAL_PORT_COUNTERS_EXTENDED = 1 << 1


_NAMES: Final[dict[int, tuple[type[IntFlag] | None, type[IntFlag] | None]]] = {
    ManagementClass.SUBN_ADM: (SACapability, SACapability2),
    ManagementClass.PERFORMANCE: (PerformanceCapability, PerformanceCapability2),
}


def capabilitiesOf(info: ClassPortInfo, managementClass: int) -> list[str]:
    """Names of the capabilities in the ClassPortInfo of an agent of this class."""
    first, second = _NAMES.get(managementClass, (None, None))
    names = setBits(info.capabilityMask, ClassCapability)
    if first is not None:
        names += setBits(info.capabilityMask, first)
    if second is not None:
        names += setBits(info.capabilityMask2, second)
    return names
