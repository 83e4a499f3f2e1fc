"""
How fast the lanes of a link are, and could be: one scale for what ports tell in four places.

Follows InfiniBand Architecture vol. 1, 14.2.5.6 (PortInfo). XDR stands where infiniband-diags reads it, and
FDR10 in an attribute of Mellanox': a port that has it says QDR in its PortInfo.
"""

from __future__ import annotations

from enum import IntFlag
from typing import Final

from txrdma.iba.verbs import PhysicalState
from txrdma.mad.layouts.smp import NodeInfo


class LaneSpeed(IntFlag):
    """What a lane carries, slowest first."""

    SDR = 1
    DDR = 2
    QDR = 4
    FDR10 = 8
    FDR = 16
    EDR = 32
    HDR = 64
    NDR = 128
    XDR = 256


LANE_GIGABITS: Final = {
    LaneSpeed.SDR: 2.5,
    LaneSpeed.DDR: 5.0,
    LaneSpeed.QDR: 10.0,
    LaneSpeed.FDR10: 10.3125,
    LaneSpeed.FDR: 14.0625,
    LaneSpeed.EDR: 25.78125,
    LaneSpeed.HDR: 53.125,
    LaneSpeed.NDR: 106.25,
    LaneSpeed.XDR: 212.5,
}
"""A lane's signalling rate in Gbit/s."""

NAMES: Final = {int(speed): str(speed.name) for speed in LANE_GIGABITS}
RATES: Final = {int(speed): rate for speed, rate in LANE_GIGABITS.items()}

_LINK_UP: Final = int(PhysicalState.LINK_UP)
_QDR: Final = int(LaneSpeed.QDR)
_FDR10: Final = int(LaneSpeed.FDR10)
_VENDORS_FDR10: Final = 1
_NO_EXTENDED: Final = 30
"""LinkSpeedExtEnabled: only speeds up to QDR are wanted."""

_EXTENDED: Final = 0x40
_MASK2: Final = 0x80
_EXTENDED2: Final = 0x08
"""Bits of CapabilityMask and CapabilityMask2, in bytes 22 and 60 of a PortInfo."""

_SUPPORTED, _ENABLED, _ACTIVE = 7, 11, 15
"""Last bytes of the fields of an ExtendedPortInfo."""


def has(mask: int) -> list[str]:
    """The names of all speeds in a mask: C{["SDR", "DDR"]}."""
    return [name for speed, name in NAMES.items() if mask & speed]


def fastest(mask: int) -> int:
    """The fastest of them; 0 of none that is known."""
    return max((speed for speed in NAMES if mask & speed), default=0)


def activeSpeed(info: bytes, end: bytes, vendors: bytes = b"") -> int:
    """
    What a lane carries at present, as a L{LaneSpeed}; 0, or a number that is none, where nobody knows.

    @param info: the port's PortInfo.
    @param end: that of the port with the capabilities: of a switch port 0.
    @param vendors: the port's ExtendedPortInfo, if it was asked for.
    """
    if end[22] & _EXTENDED:
        if _hasSecond(end) and info[56] & 0x60:
            return (info[56] >> 5 & 3) << 8
        if info[62] >> 4:
            return info[62] & 0xF0
    speed = info[35] >> 4
    if speed == _QDR and vendors and vendors[_ACTIVE] & _VENDORS_FDR10:
        return _FDR10
    return speed


def supportedSpeeds(info: bytes, end: bytes, vendors: bytes = b"") -> int:
    """All that it can do. Parameters are as for L{activeSpeed}."""
    speeds = info[32] >> 4
    if end[22] & _EXTENDED:
        speeds |= (info[62] & 15) << 4
        if _hasSecond(end):
            speeds |= (info[56] >> 3 & 3) << 8
    if vendors and vendors[_SUPPORTED] & _VENDORS_FDR10:
        speeds |= _FDR10
    return speeds


def enabledSpeeds(info: bytes, end: bytes, vendors: bytes = b"") -> int:
    """All that it may do. Parameters are as for L{activeSpeed}."""
    speeds = info[35] & 15
    if end[22] & _EXTENDED:
        extended = info[63] & 31
        speeds |= 0 if extended == _NO_EXTENDED else (extended & 15) << 4
        if _hasSecond(end):
            speeds |= (info[56] & 3) << 8
    if vendors and vendors[_ENABLED] & _VENDORS_FDR10:
        speeds |= _FDR10
    return speeds


def _hasSecond(end: bytes) -> bool:
    return bool(end[22] & _MASK2 and end[60] & _EXTENDED2)


# Who has FDR10.

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
    """Whether a node knows the attribute that tells of FDR10: those that infiniband-diags asks for it."""
    device = info.deviceID
    return device in _DEVICES or (info.vendorID == _BULL and device in _BULLS_DEVICES)


def wantsAsking(info: bytes, end: bytes) -> bool:
    """
    Whether a port, of a node that may have FDR10, is to be asked: its link is up, and QDR by what it says.

    @param end: as for L{activeSpeed}; C{b""} while nobody knows.
    """
    if info[33] >> 4 != _LINK_UP or info[35] >> 4 != _QDR:
        return False
    if not (info[62] & 0xF0 or info[56] & 0x60):
        return True
    return bool(end) and activeSpeed(info, end) == _QDR
