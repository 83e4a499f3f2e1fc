"""Datagrams of calls, made from their attributes, keys and paths."""

from __future__ import annotations

from typing import Final

from txrdma.error import InvalidRequest
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.mad.core.frames import frame, managementPacket, performancePacket
from txrdma.mad.core.transactions import Call
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import RMPPHeader, RMPPType

_LONG: Final = RMPPHeader(version=1, type=RMPPType.DATA, responseTime=0x1F, active=True)
_SUBN: Final = ManagementClass.SUBN_LID
_PERFORMANCE: Final = ManagementClass.PERFORMANCE


def datagramOf(call: Call, path: IBPath, identifier: int) -> bytes:
    """
    Make the datagram of a call; if the request is an RMPP transfer, the frame of its segments.

    @raise InvalidRequest: a value does not fit into its field, or the call cannot take this path.
    """
    rpc, keys = call.rpc, call.keys
    if rpc.managementClass is _SUBN:
        return managementPacket(
            rpc.method, identifier, call.kind.attributeID, call.modifier, call.content, path, keys.mkey
        )
    if isinstance(path, IBDRPath):
        raise InvalidRequest(f"{rpc.name} cannot use a directed route")
    if rpc.managementClass is _PERFORMANCE:
        return performancePacket(rpc.method, identifier, call.kind.attributeID, call.modifier, call.content)
    head = rpc.managementClass, rpc.method, identifier, call.kind.attributeID, call.modifier
    if rpc.method is Method.GET_MULTI:  # its content goes in segments
        return frame(*head, b"", keys, call.mask, _LONG)
    return frame(*head, call.content, keys, call.mask)
