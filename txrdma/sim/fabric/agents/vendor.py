"""
Answers of simulated hosts to C{ping} and C{sysstat}, as if each ran the servers of infiniband-diags, and of
devices with the vendor-specific agent of Mellanox: their firmware, serial numbers and cables.
"""

from __future__ import annotations

from typing import Final

from txrdma.iba.verbs import NodeType
from txrdma.kit.rawfields import peek, poke
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import formatOf, MADHeader, MADStatus
from txrdma.mad.registers import AccessRegister, MODULE, ModuleInfo, NO_REGISTER, REGISTERS, SYSTEM
from txrdma.mad.vendor import (
    filled,
    MlxGeneralInfoExtended,
    OPENIB_OUI,
    OpenIBCPUInfo,
    OpenIBHostInfo,
    OpenIBPing,
    OpenIBSystemPing,
)
from txrdma.sim.fabric.model.nodes import SimulatedNode, SimulatedPort

CLASSES: Final = frozenset(
    (ManagementClass.VENDOR_OPENIB_PING, ManagementClass.VENDOR_OPENIB_SYSSTAT, ManagementClass.VENDOR_0A)
)

_OUI: Final = slice(37, 40)
_DATA: Final = formatOf(ManagementClass.VENDOR_OPENIB_PING).dataOffset
_GENERAL: Final = formatOf(ManagementClass.VENDOR_0A).dataOffset
_REGISTER: Final = _GENERAL + AccessRegister.size - 220
"""Offset of a register's content."""

_UNPLUGGED: Final = ModuleInfo(kind=4).encode()
_class = peek(MADHeader, "managementClass")
_method, _setMethod = peek(MADHeader, "method"), poke(MADHeader, "method")
_attribute, _setStatus = peek(MADHeader, "attributeID"), poke(MADHeader, "status")
_modifier = peek(MADHeader, "attributeModifier")
_ATTRIBUTES: Final = {
    ManagementClass.VENDOR_OPENIB_PING: (OpenIBPing,),
    ManagementClass.VENDOR_OPENIB_SYSSTAT: (OpenIBSystemPing, OpenIBHostInfo, OpenIBCPUInfo),
}


def _mellanox(node: SimulatedNode, datagram: bytes) -> bytearray | None:
    """Return the answer of a Mellanox device with its revisions, or with a register; None from others."""
    if not node.generalInfo or _method(datagram) != Method.GET:
        return None
    reply = bytearray(datagram)
    _setMethod(reply, Method.GET_RESP)
    offset, content = _GENERAL, node.generalInfo
    if _attribute(datagram) == AccessRegister.attributeID:
        offset, content = _REGISTER, _register(node, _modifier(datagram), datagram[_REGISTER:])
    elif _attribute(datagram) != MlxGeneralInfoExtended.attributeID:
        return None
    if not content:
        _setStatus(reply, NO_REGISTER)
    reply[offset : offset + len(content)] = content
    return reply


def _register(node: SimulatedNode, number: int, chosen: bytes) -> bytes:
    """Return a register of a device; C{b""} if the device does not have it."""
    if not MlxGeneralInfoExtended.decode(node.generalInfo).capabilityMask & REGISTERS:
        return b""
    if number != MODULE:
        return node.systemInfo if number == SYSTEM else b""
    if not any(port.module for port in node.external):
        return b""
    number = ModuleInfo.decode(chosen[: ModuleInfo.size]).localPort
    port = node.ports[number] if 0 < number < len(node.ports) else None
    return _UNPLUGGED if port is None or not port.module else port.module


def answerVendor(port: SimulatedPort, datagram: bytes) -> bytearray | None:
    """Return the answer of a host to a vendor-class MAD; None if the node has no server for it."""
    node = port.node
    if _class(datagram) == ManagementClass.VENDOR_0A:
        return _mellanox(node, datagram)
    if (
        node.kind is not NodeType.CHANNEL_ADAPTER
        or datagram[_OUI] != OPENIB_OUI.to_bytes(3, "big")
        or _method(datagram) & 0x80
    ):
        return None
    reply = bytearray(datagram)
    _setMethod(reply, Method.GET_RESP)
    asked = _attribute(datagram)
    known = {kind.attributeID: kind for kind in _ATTRIBUTES[ManagementClass(_class(datagram))]}
    status: int = 0
    if _method(datagram) != Method.GET:
        status = MADStatus.UNSUPPORTED_METHOD
    elif asked not in known:
        status = MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE
    else:
        reply[_DATA:] = filled(_answer(node, known[asked]))
    _setStatus(reply, status)
    return reply


def _answer(node: SimulatedNode, kind: type) -> str:
    if kind is OpenIBCPUInfo:
        return "cpu 0: model simulated MHZ 1000\n"
    return "" if kind is OpenIBSystemPing else node.description
