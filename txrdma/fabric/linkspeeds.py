"""
Lane speeds of a link on one scale, from LinkSpeed and its two extensions in PortInfo, and a vendor attribute.

Follows InfiniBand Architecture vol. 1, 14.2.5.6 (PortInfo). XDR is decoded as in infiniband-diags. FDR10 is
in a Mellanox attribute; PortInfo then contains QDR.
"""

from __future__ import annotations

from enum import IntFlag
from functools import lru_cache
from typing import Final

from txrdma.iba.verbs import PhysicalState
from txrdma.kit.rawfields import peek
from txrdma.mad.layouts.smp import ExtendedPortInfo, NodeInfo, PortInfo
from txrdma.mad.layouts.values import PortCapability


class LaneSpeed(IntFlag):
    """Speed of a lane by the specification's name, slowest first; several speeds form a mask."""

    SDR = 1
    DDR = 2
    QDR = 4
    FDR10 = 8
    FDR = 16
    EDR = 32
    HDR = 64
    NDR = 128
    XDR = 256


_LANE_RATES: Final = {
    LaneSpeed.SDR: (2.5, 2.0, 2.5),
    LaneSpeed.DDR: (5.0, 4.0, 5.0),
    LaneSpeed.QDR: (10.0, 8.0, 10.0),
    LaneSpeed.FDR10: (10.3125, 10.0, 10.0),
    LaneSpeed.FDR: (14.0625, 13.64, 14.0),
    LaneSpeed.EDR: (25.78125, 25.0, 25.0),
    LaneSpeed.HDR: (53.125, 50.0, 50.0),
    LaneSpeed.NDR: (106.25, 100.0, 100.0),
    LaneSpeed.XDR: (212.5, 200.0, 200.0),
}
"""
Rates of a lane in Gbit/s: the signalling rate; the data rate without 8b/10b or 64b/66b coding and forward
error correction; and the rounded rate that kernels, and so node_exporter, report.
"""

RATES: Final = {int(speed): rates[0] for speed, rates in _LANE_RATES.items()}
DATA_GIGABITS: Final = {int(speed): rates[1] for speed, rates in _LANE_RATES.items()}
NOMINAL_GIGABITS: Final = {int(speed): rates[2] for speed, rates in _LANE_RATES.items()}

NAMES: Final = {int(speed): str(speed.name) for speed in LaneSpeed}

_WHICH: Final = ("Active", "Supported", "Enabled")
_LINK_UP: Final = int(PhysicalState.LINK_UP)
_QDR: Final = int(LaneSpeed.QDR)
_FDR10: Final = int(LaneSpeed.FDR10)
_VENDORS_FDR10: Final = 1
_NO_EXTENDED: Final = 30
"""Value of LinkSpeedExtEnabled: extended speeds are disabled."""

_REMEMBERED: Final = 4096
"""Size of caches: ports of switches often have equal PortInfo, and few masks exist."""

_EXTENDED: Final = int(PortCapability.EXTENDED_SPEEDS)
_MASK2: Final = int(PortCapability.CAPABILITY_MASK2)
HAS_XDR: Final = 1 << 11
"""Bit of CapabilityMask2: the port's second extended link speeds (XDR) are valid."""


_capabilities, _capabilities2 = peek(PortInfo, "capabilityMask"), peek(PortInfo, "capabilityMask2")
_physicalState = peek(PortInfo, "portPhysicalState")
_active, _supported, _enabled = (peek(PortInfo, f"linkSpeed{which}") for which in _WHICH)
_activeExt, _supportedExt, _enabledExt = (peek(PortInfo, f"linkSpeedExt{which}") for which in _WHICH)
_activeExt2, _supportedExt2, _enabledExt2 = (peek(PortInfo, f"linkSpeedExt{which}2") for which in _WHICH)
_activeOwn, _supportedOwn, _enabledOwn = (peek(ExtendedPortInfo, f"linkSpeed{which}") for which in _WHICH)


def has(mask: int) -> list[str]:
    """Return the names of all speeds in a mask: C{["SDR", "DDR"]}."""
    return [name for speed, name in NAMES.items() if mask & speed]


@lru_cache(_REMEMBERED)
def fastest(mask: int) -> int:
    """Return the fastest speed of a mask; 0 if it contains no known speed."""
    return max((speed for speed in NAMES if mask & speed), default=0)


def activeSpeed(info: bytes, end: bytes, vendors: bytes = b"") -> int:
    """
    Return the active L{LaneSpeed} of a port; 0, or a number that is not a L{LaneSpeed}, if it is unknown.

    @param info: PortInfo of the port.
    @param end: PortInfo that contains the capabilities: for a switch that of port 0.
    @param vendors: ExtendedPortInfo of the port, if it was queried.
    """
    if _capabilities(end) & _EXTENDED:
        second = _activeExt2(info)
        if second and _hasSecond(end):
            return int(second << 8)
        extended = _activeExt(info)
        if extended:
            return int(extended << 4)
    speed: int = _active(info)
    if speed == _QDR and vendors and _activeOwn(vendors) & _VENDORS_FDR10:
        return _FDR10
    return speed


def supportedSpeeds(info: bytes, end: bytes, vendors: bytes = b"") -> int:
    """Return the mask of supported speeds of a port. Parameters are as for L{activeSpeed}."""
    speeds: int = _supported(info)
    if _capabilities(end) & _EXTENDED:
        speeds |= _supportedExt(info) << 4
        if _hasSecond(end):
            speeds |= _supportedExt2(info) << 8
    if vendors and _supportedOwn(vendors) & _VENDORS_FDR10:
        speeds |= _FDR10
    return speeds


def enabledSpeeds(info: bytes, end: bytes, vendors: bytes = b"") -> int:
    """Return the mask of enabled speeds of a port. Parameters are as for L{activeSpeed}."""
    speeds: int = _enabled(info)
    if _capabilities(end) & _EXTENDED:
        extended = _enabledExt(info)
        speeds |= 0 if extended == _NO_EXTENDED else (extended & 15) << 4
        if _hasSecond(end):
            speeds |= (_enabledExt2(info) & 3) << 8
    if vendors and _enabledOwn(vendors) & _VENDORS_FDR10:
        speeds |= _FDR10
    return speeds


def _hasSecond(end: bytes) -> bool:
    return bool(_capabilities(end) & _MASK2 and _capabilities2(end) & HAS_XDR)


# Support of FDR10.

_BULL: Final = 0x119F
_DEVICES: Final = frozenset(
    (
        *range(0xC738, 0xC73C),  # SwitchX and SwitchX-2
        *(0xC839, 0xCB20, 0xCF08, 0xCF09, 0xD2F0),  # Switch-IB, Switch-IB 2, Quantum
        *range(0x1003, 0x101C),  # ConnectX-3 to ConnectX-6
        0xA2D2,  # BlueField
    )
)
_BULLS_DEVICES: Final = frozenset(
    (
        *(0x1B02, 0x1B50, 0x1BA0, *range(0x1BD0, 0x1BD6), 0x1BF0),
        *(0x1B33, 0x1B73, 0x1B40, 0x1B41, 0x1B60, 0x1B61, 0x1B83, 0x1B93, 0x1B94, 0x1BB4, 0x1BB5),
        *range(0x1BC4, 0x1BC7),
    )
)


def mayHaveFDR10(info: NodeInfo) -> bool:
    """Return whether a node has ExtendedPortInfo, which shows FDR10, by the rules of infiniband-diags."""
    device = info.deviceID
    return device in _DEVICES or (info.vendorID == _BULL and device in _BULLS_DEVICES)


@lru_cache(_REMEMBERED)
def wantsAsking(info: bytes, end: bytes) -> bool:
    """
    Return whether to query ExtendedPortInfo, if the node has it: a link that is up with QDR may use FDR10.

    @param end: as for L{activeSpeed}; C{b""} while it is unknown.
    """
    if _physicalState(info) != _LINK_UP or _active(info) != _QDR:
        return False
    if not (_activeExt(info) or _activeExt2(info)):
        return True
    return bool(end) and activeSpeed(info, end) == _QDR
