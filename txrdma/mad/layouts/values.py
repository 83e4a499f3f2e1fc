"""
Codes and texts in management attributes.

Follows InfiniBand Architecture vol. 1, 14.2.5 and 15.2.5; speeds beyond EDR are those of release 1.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag
from typing import Any, Final

from txrdma.kit.strings import printable
from txrdma.kit.wire import Code


class LinkWidth(IntFlag):
    """Lanes of a link: one bit each (IBA 14.2.5.6)."""

    X1 = 1
    X4 = 2
    X8 = 4
    X12 = 8
    X2 = 16


LANES: Final = {LinkWidth.X1: 1, LinkWidth.X2: 2, LinkWidth.X4: 4, LinkWidth.X8: 8, LinkWidth.X12: 12}


class LinkSpeed(IntFlag):
    """Speeds of a lane up to QDR: one bit each (IBA 14.2.5.6)."""

    SDR = 1
    DDR = 2
    QDR = 4


class LinkSpeedExtended(IntFlag):
    """Speeds of a lane from FDR on: one bit each."""

    FDR = 1
    EDR = 2
    HDR = 4
    NDR = 8


class LinkSpeedExtended2(IntFlag):
    """Speeds of a lane from XDR on: one bit each."""

    XDR = 1


class VendorLinkSpeed(IntFlag):
    """Vendor-specific speed of a lane; the port's PortInfo has QDR then."""

    FDR10 = 1


GIGABITS: Final = {LinkSpeed.SDR: 2.5, LinkSpeed.DDR: 5.0, LinkSpeed.QDR: 10.0}
EXTENDED_GIGABITS: Final = {
    LinkSpeedExtended.FDR: 14.0625,
    LinkSpeedExtended.EDR: 25.78125,
    LinkSpeedExtended.HDR: 53.125,
    LinkSpeedExtended.NDR: 106.25,
}
EXTENDED2_GIGABITS: Final = {LinkSpeedExtended2.XDR: 212.5}
"""Signalling rate of a lane in Gbit/s, from XDR on."""

_DISABLED: Final = 30
"""Code of LinkSpeedExtEnabled: no extended speed is enabled."""


def widthText(mask: int) -> str:
    """Link widths as text: C{"1X or 4X"}; C{"undefined (0)"} for none."""
    return _alternatives({flag: f"{lanes}X" for flag, lanes in LANES.items()}, mask)


def speedText(mask: int) -> str:
    """Lane speeds up to QDR as text: C{"2.5 Gbps or 5.0 Gbps"}."""
    return _alternatives({flag: f"{rate} Gbps" for flag, rate in GIGABITS.items()}, mask)


def extendedSpeedText(mask: int) -> str:
    """Extended lane speeds as text: C{"14.0625 Gbps"}; none is no fault here."""
    names = {flag: f"{rate} Gbps" for flag, rate in EXTENDED_GIGABITS.items()}
    return _alternatives(names, mask) if mask else "No Extended Speed"


def enabledSpeedText(mask: int) -> str:
    """Enabled extended lane speeds as text, with the code for none."""
    return "Extended link speeds disabled" if mask == _DISABLED else extendedSpeedText(mask)


def extendedSpeed2Text(mask: int) -> str:
    """Lane speeds from XDR on as text: C{"212.5 Gbps"}; none is no fault here."""
    names = {flag: f"{rate} Gbps" for flag, rate in EXTENDED2_GIGABITS.items()}
    return _alternatives(names, mask) if mask else "No Extended Speed"


def vendorSpeedText(mask: int) -> str:
    """Vendor-specific lane speeds as text: C{"FDR10 (0x01)"}."""
    text = ", ".join(flag.name for flag in VendorLinkSpeed if mask & flag and flag.name is not None)
    return f"{text} ({mask:#04x})" if text else f"{mask:#04x}"


def lanesText(code: int) -> str:
    """Virtual lanes for data as text, by the code of VLCap: C{"VL0-7 (4)"}."""
    return f"{_LANES_OF[code]} ({code})" if code in _LANES_OF else str(code)


_LANES_OF: Final = {1: "VL0", 2: "VL0-1", 3: "VL0-3", 4: "VL0-7", 5: "VL0-14"}


def _alternatives(names: Mapping[Any, str], mask: int) -> str:
    text = [name for flag, name in names.items() if mask & flag]
    if not mask or mask & ~sum(names):
        text.append(f"undefined ({mask})")
    return " or ".join(text)


class Rate(Code):
    """The rate of a path: lanes times speed, in Gbit/s (IBA 15.2.5.16)."""

    GBPS_2_5 = 2
    GBPS_10 = 3
    GBPS_30 = 4
    GBPS_5 = 5
    GBPS_20 = 6
    GBPS_40 = 7
    GBPS_60 = 8
    GBPS_80 = 9
    GBPS_120 = 10
    GBPS_14 = 11
    GBPS_56 = 12
    GBPS_112 = 13
    GBPS_168 = 14
    GBPS_25 = 15
    GBPS_100 = 16
    GBPS_200 = 17
    GBPS_300 = 18
    GBPS_28 = 19
    GBPS_50 = 20
    GBPS_400 = 21
    GBPS_600 = 22
    GBPS_800 = 23
    GBPS_1200 = 24

    @property
    def gigabits(self) -> float | None:
        """The rate in Gbit/s; None for an unknown code."""
        return float(self.name[5:].replace("_", ".")) if self.known else None

    @classmethod
    def within(cls, bitsPerSecond: int) -> Rate:
        """The highest rate that is not above that of a link; 2.5 Gbit/s if that is slower or unknown."""
        return next((rate for gigabits, rate in _BY_SPEED if gigabits * 1e9 <= bitsPerSecond), cls.GBPS_2_5)


_BY_SPEED: Final = sorted(((rate.gigabits or 0.0, rate) for rate in Rate.__members__.values()), reverse=True)


class PathMTU(Code):
    """Code of an MTU, the payload of a packet in bytes (IBA 14.2.5.6)."""

    NONE = 0
    MTU_256 = 1
    MTU_512 = 2
    MTU_1024 = 3
    MTU_2048 = 4
    MTU_4096 = 5


class Selector(Code):
    """Comparison that a query makes with its MTU, rate or life time (IBA 15.2.5.16)."""

    GREATER = 0
    LESS = 1
    EXACTLY = 2
    LARGEST = 3


class DownDefault(Code):
    """Physical state of a port after its link went down (IBA 14.2.5.6)."""

    NO_CHANGE = 0
    SLEEP = 1
    POLLING = 2


class SMState(Code):
    """State of a subnet manager (IBA 14.2.5.13)."""

    NOT_ACTIVE = 0
    DISCOVERING = 1
    STANDBY = 2
    MASTER = 3


class PortCapability(IntFlag):
    """Capabilities of a port (IBA 14.2.5.6, CapabilityMask)."""

    SM = 1 << 1
    NOTICE = 1 << 2
    TRAP = 1 << 3
    OPTIONAL_IPD = 1 << 4
    AUTOMATIC_MIGRATION = 1 << 5
    SL_MAPPING = 1 << 6
    MKEY_NVRAM = 1 << 7
    PKEY_NVRAM = 1 << 8
    LED_INFO = 1 << 9
    SM_DISABLED = 1 << 10
    SYSTEM_IMAGE_GUID = 1 << 11
    PKEY_SWITCH_EXTERNAL_PORT_TRAP = 1 << 12
    EXTENDED_SPEEDS = 1 << 14
    CAPABILITY_MASK2 = 1 << 15
    COMMUNICATION_MANAGEMENT = 1 << 16
    SNMP_TUNNELLING = 1 << 17
    REINIT = 1 << 18
    DEVICE_MANAGEMENT = 1 << 19
    VENDOR_CLASS = 1 << 20
    DR_NOTICE = 1 << 21
    CAPABILITY_MASK_NOTICE = 1 << 22
    BOOT_MANAGEMENT = 1 << 23
    LINK_ROUND_TRIP_LATENCY = 1 << 24
    CLIENT_REREGISTRATION = 1 << 25
    OTHER_LOCAL_CHANGES_NOTICE = 1 << 26
    LINK_SPEED_WIDTH_PAIRS = 1 << 27
    VENDOR_MADS = 1 << 28
    MULTICAST_PKEY_TRAP_SUPPRESSION = 1 << 29
    MULTICAST_FDB_TOP = 1 << 30
    HIERARCHY_INFO = 1 << 31


class PortCapability2(IntFlag):
    """Further capabilities of a port (IBA 14.2.5.6, CapabilityMask2)."""

    SET_NODE_DESCRIPTION = 1 << 0
    PORT_INFO_EXTENDED = 1 << 1
    VIRTUALIZATION = 1 << 2
    SWITCH_PORT_STATE_TABLE = 1 << 3
    LINK_WIDTH_2X = 1 << 4
    LINK_SPEED_HDR = 1 << 5
    MKEY_PROTECT_BITS_EXTENDED = 1 << 6
    ENHANCED_TRAP_128 = 1 << 7
    PARTITION_TOP = 1 << 8
    ENHANCED_QOS_ARBITER = 1 << 9
    LINK_SPEED_NDR = 1 << 10


class PortInfoExtendedCapability(IntFlag):
    """Fields of a PortInfoExtended that are valid (IBA 14.2.5.19)."""

    FEC_MODE = 1 << 0


class FECMode(Code):
    """Mode of a link's forward error correction (IBA 14.2.5.19)."""

    NONE = 0
    FIRECODE = 1
    RS_FEC = 2
    LOW_LATENCY_RS_FEC = 3


class SAStatus(Code):
    """Errors of subnet administration, in the status of a datagram (IBA table 185)."""

    NO_RESOURCES = 0x0100
    INVALID = 0x0200
    NO_RECORDS = 0x0300
    TOO_MANY = 0x0400
    INVALID_GID = 0x0500
    INSUFFICIENT = 0x0600
    DENIED = 0x0700

    @classmethod
    def of(cls, status: int) -> SAStatus:
        """Return the class code of an error of subnet administration, from a status."""
        return cls(status & 0x7F00)


def text(raw: bytes) -> str:
    """Text of UTF-8 bytes up to the first zero; invalid bytes and unprintable characters are replaced."""
    return printable(raw.partition(b"\0")[0].decode("utf-8", "replace"), "\N{REPLACEMENT CHARACTER}")
