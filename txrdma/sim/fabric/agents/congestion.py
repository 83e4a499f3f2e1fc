"""
Congestion control agents of a simulated fabric, which store settings and log no events.

Follows InfiniBand Architecture vol. 1, annex A10. No packets are marked, since no data packets are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from txrdma.kit.rawfields import poke
from txrdma.mad.layouts import congestion
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, Method
from txrdma.mad.layouts.messages import ClassPortInfo, MADHeader, MADStatus
from txrdma.sim.fabric.model.nodes import SimulatedPort

CONGESTION: Final = int(ManagementClass.CONG_MGT)
CLASS_VERSION: Final = 2
TABLE_BLOCKS: Final = 2
"""Number of blocks of 64 entries in a channel adapter's congestion control table."""

PORTS_PER_BLOCK: Final = 32
TICK_SECONDS: Final = 1.024e-6

_HEAD: Final = Struct(">2xBB12xH2xIQ")
_DATA: Final = 64
_LENGTH: Final = 256
_CLASS_PORT_INFO: Final = 0x0001
_KEY_INFO: Final = congestion.CongestionKeyInfo.attributeID
_OF_SWITCHES: Final = {
    kind.attributeID: kind.size
    for kind in (congestion.SwitchCongestionSetting, congestion.SwitchPortCongestionSetting)
}
_OF_ADAPTERS: Final = {
    kind.attributeID: kind.size
    for kind in (congestion.CACongestionSetting, congestion.CongestionControlTable)
}
"""Attributes that Set stores and Get returns unchanged on channel adapters, with their sizes in bytes."""

_setMethod = poke(MADHeader, "method")
_setStatus = poke(MADHeader, "status")
_STORED: Final = CONGESTION << 16
"""Added to an attribute ID to make a key of a port's tables that no other management class uses."""


class CongestionAgents:
    """Congestion control agents of all nodes of a simulated fabric."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """@param seconds: returns the current time, for time stamps."""
        self._seconds = seconds

    def answer(self, port: SimulatedPort, datagram: bytes) -> bytearray | None:
        """Return the answer to a request received by a port; None to drop it."""
        version, method, attribute, modifier, key = _HEAD.unpack_from(datagram)
        end = port.end
        reply = bytearray(datagram)
        _setMethod(reply, Method.GET_RESP)
        status: int = 0
        if version != CLASS_VERSION:
            status = MADStatus.UNSUPPORTED_VERSION
        elif method == Method.GET:
            status = self._get(end, attribute, modifier, key, reply)
        elif method == Method.SET:
            if not _permits(end, key):
                return None
            status = self._set(end, attribute, modifier, reply)
        else:
            status = MADStatus.UNSUPPORTED_METHOD
        _setStatus(reply, status)
        return reply

    def _get(self, end: SimulatedPort, attribute: int, modifier: int, key: int, reply: bytearray) -> int:
        answer = self._answer(end, attribute, key)
        if answer is not None:
            at = answer.dataOffset or _DATA
            reply[at:] = answer.encode().ljust(_LENGTH - at, b"\0")
            return 0
        settings = _OF_SWITCHES if end.node.isSwitch else _OF_ADAPTERS
        status = _status(end, attribute, modifier)
        if not status:
            content = (end.tables or {}).get((_STORED | attribute, modifier), bytes(settings[attribute]))
            reply[_DATA:] = content.ljust(_LENGTH - _DATA, b"\0")
        return status

    def _answer(self, end: SimulatedPort, attribute: int, key: int) -> Attribute | None:
        """Return a computed attribute, such as ClassPortInfo or CongestionInfo; None for others."""
        isSwitch = end.node.isSwitch
        if attribute == _CLASS_PORT_INFO:
            return ClassPortInfo(baseVersion=1, classVersion=CLASS_VERSION, responseTimeValue=18)
        if attribute == congestion.CongestionInfo.attributeID:
            return congestion.CongestionInfo(controlTableCap=0 if isSwitch else TABLE_BLOCKS)
        if attribute == _KEY_INFO:
            mine = _keyInfo(end)
            isHidden = mine.ccKeyProtectBit and key != mine.ccKey
            return mine.replace(ccKey=0) if isHidden else mine
        if attribute == congestion.SwitchCongestionLog.attributeID:
            log = congestion.SwitchCongestionLog if isSwitch else congestion.CACongestionLog
            kind = congestion.CongestionLogType.SWITCH if isSwitch else congestion.CongestionLogType.CA
            return log(logType=kind, currentTimeStamp=self._now())
        if attribute == congestion.TimeStamp.attributeID:
            return congestion.TimeStamp(timestamp=self._now())
        return None

    @staticmethod
    def _set(end: SimulatedPort, attribute: int, modifier: int, reply: bytearray) -> int:
        if attribute == _KEY_INFO:
            request = congestion.CongestionKeyInfo.decode(reply, _DATA)
            # violations can be set to 0 only
            violations = request.ccKeyViolations and _keyInfo(end).ccKeyViolations
            request = request.replace(reserved=0, ccKeyViolations=violations)
            _keepKeyInfo(end, request)
            reply[_DATA:] = request.encode().ljust(_LENGTH - _DATA, b"\0")
            return 0
        status = _status(end, attribute, modifier)
        if not status:
            size = (_OF_SWITCHES if end.node.isSwitch else _OF_ADAPTERS)[attribute]
            end.tables = end.tables or {}
            end.tables[_STORED | attribute, modifier] = bytes(reply[_DATA : _DATA + size])
        return status

    def _now(self) -> int:
        return int(self._seconds() / TICK_SECONDS) & 0xFFFFFFFF


def _keyInfo(end: SimulatedPort) -> congestion.CongestionKeyInfo:
    stored = (end.tables or {}).get((_STORED | _KEY_INFO, 0))
    return congestion.CongestionKeyInfo() if stored is None else congestion.CongestionKeyInfo.decode(stored)


def _keepKeyInfo(end: SimulatedPort, info: congestion.CongestionKeyInfo) -> None:
    end.tables = end.tables or {}
    end.tables[_STORED | _KEY_INFO, 0] = info.encode()


def _permits(end: SimulatedPort, key: int) -> bool:
    """Return whether the CC_Key of a Set is right; count a wrong one as a violation (annex A10.4.1)."""
    info = _keyInfo(end)
    if info.ccKey in (0, key):
        return True
    _keepKeyInfo(end, info.replace(ccKeyViolations=min(info.ccKeyViolations + 1, 0xFFFF)))
    return False


def _status(end: SimulatedPort, attribute: int, modifier: int) -> int:
    """Return the MAD status for a setting: zero if a node of this type has that attribute and block."""
    if attribute not in (_OF_SWITCHES if end.node.isSwitch else _OF_ADAPTERS):
        return MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE
    most = {
        congestion.SwitchPortCongestionSetting.attributeID: end.node.numPorts // PORTS_PER_BLOCK + 1,
        congestion.CongestionControlTable.attributeID: TABLE_BLOCKS,
    }.get(attribute, 1)
    return 0 if modifier < most else MADStatus.INVALID_FIELD
