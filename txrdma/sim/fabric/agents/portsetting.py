"""
Set of PortInfo at a simulated port: fields that change, values that are refused, and the effect on the link.

Follows InfiniBand Architecture vol. 1, 14.2.5.6 (settable fields, and the meaning of 0) and 7.2.7
(the states of a port).
"""

from __future__ import annotations

from typing import Final

from txrdma.iba.verbs import PhysicalState, PortState
from txrdma.mad.errors import MADRefusal
from txrdma.mad.layouts.messages import MADStatus
from txrdma.mad.layouts.smp import PortInfo
from txrdma.sim.fabric.model.nodes import bringDown, bringUp, NO_EXTENDED_SPEED, SimulatedPort

_ENABLE_ALL: Final = 0xFF
_ENABLE_ALL_SPEEDS: Final = 0x0F
_ENABLE_ALL_EXTENDED: Final = 0x1F
_HIGHEST_LID: Final = 0xBFFF

_OF_ENDS: Final = (
    *("mkey", "gidPrefix", "lid", "masterSMLID", "mkeyLeasePeriod", "mkeyProtectBits", "lmc"),
    *("multicastPKeyTrapSuppressionEnabled", "subnetTimeOut"),
)
"""Fields of PortInfo that only ports with a LID have."""

_COPIED: Final = (
    *("masterSMSL", "vlHighLimit", "vlStallCount", "hoqLife", "partitionEnforcementInbound"),
    *("partitionEnforcementOutbound", "filterRawInbound", "filterRawOutbound"),
    *("localPhyErrors", "overrunErrors"),
)
_UNLESS_ZERO: Final = ("linkDownDefaultState", "neighborMTU", "operationalVLs")
_ENABLED: Final = (
    ("linkWidthEnabled", "linkWidthSupported", _ENABLE_ALL),
    ("linkSpeedEnabled", "linkSpeedSupported", _ENABLE_ALL_SPEEDS),
    ("linkSpeedExtEnabled", "linkSpeedExtSupported", _ENABLE_ALL_EXTENDED),
)
"""For link widths and speeds: the field that enables them, the supported ones, and the value for all."""


def setPortInfo(port: SimulatedPort, content: bytes) -> bool:
    """
    Set the fields of a port's PortInfo that can be set.

    @return: whether the state of the port's link has changed.
    @raise MADRefusal: a value is invalid; nothing has changed.
    """
    now, request = PortInfo.decode(port.info), PortInfo.decode(content)
    if not _isPossible(port, now, request):
        raise MADRefusal(MADStatus.INVALID_FIELD)
    names = [*_COPIED, *(name for name in _UNLESS_ZERO if getattr(request, name))]
    cleared = ["pkeyViolations", "qkeyViolations"]
    if port is port.end:
        names += _OF_ENDS
        cleared.append("mkeyViolations")
    changes = {name: getattr(request, name) for name in names}
    for enabled, supported, everything in _ENABLED:
        wanted = getattr(request, enabled)
        if wanted:
            changes[enabled] = getattr(now, supported) if wanted == everything else wanted
    # a count of violations can be set to 0 only
    changes |= {name: 0 for name in cleared if not getattr(request, name)}
    port.info[:] = now.replace(**changes).encode()
    return _setState(port, request.portState, request.portPhysicalState)


def _isPossible(port: SimulatedPort, now: PortInfo, request: PortInfo) -> bool:
    if port is port.end and request.lid > _HIGHEST_LID:
        return False
    for enabled, supported, everything in _ENABLED:
        wanted = getattr(request, enabled)
        isNone = everything == _ENABLE_ALL_EXTENDED and wanted == NO_EXTENDED_SPEED
        if wanted not in (0, everything) and not isNone and wanted & ~getattr(now, supported):
            return False
    if request.operationalVLs > now.vlCap or request.neighborMTU > now.mtuCap:
        return False
    return _mayBecome(port, request.portState, request.portPhysicalState)


def _mayBecome(port: SimulatedPort, state: int, physical: int) -> bool:
    """Return whether the port may change from its current states to these."""
    now = port.state
    if state > PortState.ACTIVE or state == PortState.INIT and now != PortState.INIT:
        return False
    if physical > PhysicalState.DISABLED:
        return False
    if physical and state not in (PortState.NOP, PortState.DOWN):
        return False
    if state == PortState.ARMED:
        return now in (PortState.INIT, PortState.ARMED)
    if state == PortState.ACTIVE:
        return now in (PortState.ARMED, PortState.ACTIVE)
    return True


def _setState(port: SimulatedPort, state: int, physical: int) -> bool:
    if port.number == 0:
        return False
    if physical == PhysicalState.DISABLED or physical == PhysicalState.SLEEP:
        if port.neighbor is not None:
            bringDown(port, physical)
            return True
        port.become(PortState.DOWN, physical)
        return False
    if physical == PhysicalState.POLLING or state == PortState.DOWN:
        wasUp = port.neighbor is not None
        if wasUp:
            bringDown(port)
        else:
            if state == PortState.DOWN and not physical:
                return False
            port.become(PortState.DOWN, PhysicalState.POLLING)
        return bringUp(port) or wasUp
    if state in (PortState.ARMED, PortState.ACTIVE):
        port.become(state, port.physicalState)
    return False
