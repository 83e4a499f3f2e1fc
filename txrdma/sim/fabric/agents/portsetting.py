"""
Setting a simulated port's PortInfo: what takes, what is refused, and what that does to its link.

Follows InfiniBand Architecture vol. 1, 14.2.5.6 (which fields can be set, and what 0 means in them) and 7.2.7
(the states of a port).
"""

from __future__ import annotations

from typing import Final

from txrdma.iba.verbs import PhysicalState, PortState
from txrdma.mad.messages import MADStatus
from txrdma.sim.fabric.model.nodes import bringDown, bringUp, NO_EXTENDED_SPEED, SimulatedPort

_REFUSED: Final = (MADStatus.INVALID_FIELD, False)
_WIDTHS: Final = 0x1F
_ENABLE_ALL: Final = 0xFF
_ENABLE_ALL_SPEEDS: Final = 0x0F
_ENABLE_ALL_EXTENDED: Final = 0x1F
_HIGHEST_LID: Final = 0xBFFF


def setPortInfo(port: SimulatedPort, content: bytes) -> tuple[int, bool]:
    """
    Set what can be set.

    @return: the status, and whether the state of the port's link has changed. What is refused sets nothing.
    """
    state, physical = content[32] & 15, content[33] >> 4
    if not _isPossible(port, content, state, physical):
        return _REFUSED
    info = port.info
    if port is port.end:
        info[0:20] = content[0:20]
        info[26:28] = content[26:28]
        info[34] = content[34]
        info[51] = content[51] & 0x7F
        _clear(info, content, 44)
    _setLink(info, content)
    for violations in (46, 48):
        _clear(info, content, violations)
    return 0, _setState(port, state, physical)


def _isPossible(port: SimulatedPort, content: bytes, state: int, physical: int) -> bool:
    info = port.info
    if port is port.end and int.from_bytes(content[16:18], "big") > _HIGHEST_LID:
        return False
    width, speed, extended = content[29], content[35] & 15, content[63] & 31
    if width not in (0, _ENABLE_ALL) and width & ~info[30] & 0xFF:
        return False
    if speed not in (0, _ENABLE_ALL_SPEEDS) and speed & ~(info[32] >> 4):
        return False
    if extended not in (0, NO_EXTENDED_SPEED, _ENABLE_ALL_EXTENDED) and extended & ~(info[62] & 15):
        return False
    if (content[43] >> 4) > (info[37] >> 4) or content[36] >> 4 > (info[41] & 15):
        return False
    return _mayBecome(port, state, physical)


def _mayBecome(port: SimulatedPort, state: int, physical: int) -> bool:
    """Whether the states may be asked for, from those that are."""
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


def _setLink(info: bytearray, content: bytes) -> None:
    """What both kinds of ports have; in most fields 0 changes nothing."""
    if content[29]:
        info[29] = info[30] if content[29] == _ENABLE_ALL else content[29]
    if content[33] & 15:
        info[33] = info[33] & 0xF0 | content[33] & 15
    speed = content[35] & 15
    if speed:
        info[35] = info[35] & 0xF0 | (info[32] >> 4 if speed == _ENABLE_ALL_SPEEDS else speed)
    extended = content[63] & 31
    if extended:
        info[63] = info[62] & 15 if extended == _ENABLE_ALL_EXTENDED else extended
    info[36] = (content[36] & 0xF0 or info[36] & 0xF0) | content[36] & 15
    info[38] = content[38]
    info[42] = content[42]
    info[43] = (content[43] & 0xF0 or info[43] & 0xF0) | content[43] & 15
    info[53] = content[53]


def _clear(info: bytearray, content: bytes, at: int) -> None:
    """A count of violations can be set to 0 only."""
    if not any(content[at : at + 2]):
        info[at : at + 2] = b"\0\0"


def _setState(port: SimulatedPort, state: int, physical: int) -> bool:
    if port.number == 0:
        return False
    if physical == PhysicalState.DISABLED or physical == PhysicalState.SLEEP:
        if port.way is not None:
            bringDown(port, physical)
            return True
        port.become(PortState.DOWN, physical)
        return False
    if physical == PhysicalState.POLLING or state == PortState.DOWN:
        wasUp = port.way is not None
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
