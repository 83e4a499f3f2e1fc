"""
Answers of simulated hosts to C{ping} and C{sysstat}, as if each ran the servers of infiniband-diags, and of
devices with the vendor-specific agent of Mellanox.
"""

from __future__ import annotations

from typing import Final

from txrdma.iba.verbs import NodeType
from txrdma.kit.rawfields import peek, poke
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import formatOf, MADHeader, MADStatus
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
_class = peek(MADHeader, "managementClass")
_method, _setMethod = peek(MADHeader, "method"), poke(MADHeader, "method")
_attribute, _setStatus = peek(MADHeader, "attributeID"), poke(MADHeader, "status")
_ATTRIBUTES: Final = {
    ManagementClass.VENDOR_OPENIB_PING: (OpenIBPing,),
    ManagementClass.VENDOR_OPENIB_SYSSTAT: (OpenIBSystemPing, OpenIBHostInfo, OpenIBCPUInfo),
}


def _generalInfo(node: SimulatedNode, datagram: bytes) -> bytearray | None:
    """Return the answer of a Mellanox device with its revisions; None from others."""
    asked = (_method(datagram), _attribute(datagram))
    if not node.generalInfo or asked != (Method.GET, MlxGeneralInfoExtended.attributeID):
        return None
    reply = bytearray(datagram)
    _setMethod(reply, Method.GET_RESP)
    reply[_GENERAL : _GENERAL + len(node.generalInfo)] = node.generalInfo
    return reply


def answerVendor(port: SimulatedPort, datagram: bytes) -> bytearray | None:
    """Return the answer of a host to a vendor-class MAD; None if the node has no server for it."""
    node = port.node
    if _class(datagram) == ManagementClass.VENDOR_0A:
        return _generalInfo(node, datagram)
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
