"""
Attributes of congestion control: marking of packets by switches, and injection rates of channel adapters.

Follows InfiniBand Architecture vol. 1, annex A10.4.3.
"""

from __future__ import annotations

from enum import IntFlag
from typing import ClassVar

from txrdma.iba.types import LID, QPN
from txrdma.kit.wire import array, bits, Code, data, Layout, wire
from txrdma.mad.layouts.attributes import Attribute, attribute, key, mask


class CongestionCapability(IntFlag):
    """Congestion control capabilities of a node (IBA annex A10.4.3.3)."""

    CREDIT_STARVATION = 1 << 0


class CongestionLogType(Code):
    """Type of the node of a congestion log (IBA annex A10.4.3.5)."""

    SWITCH = 1
    CA = 2


@attribute(0x0011, "CongMgtGet", size=3)
class CongestionInfo(Attribute):
    """Congestion control of a node (IBA annex A10.4.3.3). C{controlTableCap} counts blocks of 64 entries."""

    congestionInfo: int = mask(16, CongestionCapability)
    controlTableCap: int = bits(8)


@attribute(0x0012, "CongMgtGet", "CongMgtSet", size=14)
class CongestionKeyInfo(Attribute):
    """The key that protects a node's congestion control (IBA annex A10.4.3.4)."""

    ccKey: int = key(64)
    ccKeyProtectBit: bool = bits(1)
    reserved: int = bits(15)
    ccKeyLeasePeriod: int = bits(16)
    ccKeyViolations: int = bits(16)


@wire(12)
class SwitchCongestionLogEvent(Layout):
    """A packet that a switch marked. The time counts in units of 1.024 microseconds."""

    slid: LID = bits(16)
    dlid: LID = bits(16)
    sl: int = bits(4)
    reserved: int = bits(28)
    timestamp: int = bits(32)


class CongestionLog(Attribute):
    """Base of the congestion logs of switches and of channel adapters."""

    __slots__ = ()

    dataOffset: ClassVar[int | None] = 32
    """Offset in a datagram, which is before the data of other attributes (IBA annex A10.4.1)."""


@attribute(0x0013, "CongMgtGet", size=220)
class SwitchCongestionLog(CongestionLog):
    """Congestion log of a switch (IBA annex A10.4.3.5); C{portMap} has a bit for each marking port."""

    logType: CongestionLogType = bits(8)
    congestionFlags: int = key(8)
    logEventsCounter: int = bits(16)
    currentTimeStamp: int = bits(32)
    portMap: bytes = data(32)
    events: tuple[SwitchCongestionLogEvent, ...] = array(15)


@wire(16)
class CACongestionLogEvent(Layout):
    """A queue pair that had to reduce its injection rate. The time counts in units of 1.024 microseconds."""

    localQP: QPN = bits(24)
    sl: int = bits(4)
    serviceType: int = bits(4)
    remoteQPNumber: QPN = bits(24)
    reserved: int = bits(8)
    localLID: LID = bits(16)
    remoteLID: LID = bits(16)
    timestamp: int = bits(32)


@attribute(0x0013, "CongMgtGet", size=220)
class CACongestionLog(CongestionLog):
    """Congestion log of a channel adapter (IBA annex A10.4.3.5). Query channel adapters with this class."""

    logType: CongestionLogType = bits(8)
    congestionFlags: int = key(8)
    thresholdEventCounter: int = bits(16)
    thresholdCongestionEventMap: int = key(16)
    reserved: int = bits(16)
    currentTimeStamp: int = bits(32)
    events: tuple[CACongestionLogEvent, ...] = array(13)


@attribute(0x0014, "CongMgtGet", "CongMgtSet", size=76)
class SwitchCongestionSetting(Attribute):
    """Marking by a switch (IBA annex A10.4.3.6). C{controlMap} has a bit for each field to set."""

    controlMap: int = key(32)
    victimMask: bytes = data(32)
    creditMask: bytes = data(32)
    threshold: int = bits(4)
    reserved: int = bits(4)
    packetSize: int = bits(8)
    csThreshold: int = bits(4)
    reserved2: int = bits(12)
    csReturnDelay: int = key(16)
    markingRate: int = bits(16)


@wire(4)
class SwitchPortCongestionSettingElement(Layout):
    """Settings for marking packets at one port of a switch."""

    valid: bool = bits(1)
    controlType: int = bits(1)
    reserved: int = bits(2)
    threshold: int = bits(4)
    packetSize: int = bits(8)
    congParmMarkingRate: int = bits(16)


@attribute(0x0015, "CongMgtGet", "CongMgtSet", size=128)
class SwitchPortCongestionSetting(Attribute):
    """32 ports of a switch; the modifier is the block (IBA annex A10.4.3.7)."""

    elements: tuple[SwitchPortCongestionSettingElement, ...] = array(32)


@wire(8)
class CACongestionEntry(Layout):
    """Settings for an adapter's injection rate at one service level; the timer's unit is 1.024 us."""

    cctiTimer: int = bits(16)
    cctiIncrease: int = bits(8)
    triggerThreshold: int = bits(8)
    cctiMin: int = bits(8)
    reserved: int = bits(24)


@attribute(0x0016, "CongMgtGet", "CongMgtSet", size=132)
class CACongestionSetting(Attribute):
    """
    Settings for the injection rate of a channel adapter (IBA annex A10.4.3.8).

    @ivar portControl: bit 0 is set for control by service level and port, rather than by queue pair.
    @ivar controlMap: bit mask of the service levels whose entries are to be set.
    """

    portControl: int = key(16)
    controlMap: int = key(16)
    entries: tuple[CACongestionEntry, ...] = array(16)


@wire(2)
class CongestionControlTableEntry(Layout):
    """Delay between packets: C{cctMultiplier} shifted right by C{cctShift}."""

    cctShift: int = bits(2)
    cctMultiplier: int = bits(14)


@attribute(0x0017, "CongMgtGet", "CongMgtSet", size=132)
class CongestionControlTable(Attribute):
    """64 entries of a channel adapter's table; the modifier is the block (IBA annex A10.4.3.9)."""

    cctiLimit: int = bits(16)
    reserved: int = bits(16)
    entries: tuple[CongestionControlTableEntry, ...] = array(64)


@attribute(0x0018, "CongMgtGet", size=4)
class TimeStamp(Attribute):
    """A node's clock, in units of 1.024 microseconds (IBA annex A10.4.3.10)."""

    timestamp: int = bits(32)
