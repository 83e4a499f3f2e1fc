"""
Whole packets of the reliable multi-packet protocol (RMPP), by type.

Follows InfiniBand Architecture vol. 1, 13.6.2.3 to 13.6.2.6 and 15.2.1.1. Agents use L{RMPPHeader
<txrdma.mad.layouts.messages.RMPPHeader>}; these are for programs that decode packets.
"""

from __future__ import annotations

from txrdma.kit.wire import bits, data, Layout, nested, wire
from txrdma.mad.layouts.attributes import key
from txrdma.mad.layouts.messages import MADHeader, RMPPHeader, RMPPStatus, RMPPType


@wire(4)
class RMPPShortHeader(Layout):
    """Common part of the headers of all RMPP packets (IBA 13.6.2.1)."""

    version: int = bits(8)
    type: RMPPType = bits(8)
    responseTime: int = bits(5)
    last: bool = bits(1)
    first: bool = bits(1)
    active: bool = bits(1)
    status: RMPPStatus = bits(8)


@wire(256)
class RMPPData(Layout):
    """A segment (IBA 13.6.2.3). In the first one C{payloadLength} is that of the whole message."""

    header: MADHeader = nested()
    rmpp: RMPPShortHeader = nested()
    segmentNumber: int = bits(32)
    payloadLength: int = bits(32)
    content: bytes = data(220)


@wire(256)
class RMPPAck(Layout):
    """Acknowledgement of segments up to this one, with the last that may be sent now (IBA 13.6.2.4)."""

    header: MADHeader = nested()
    rmpp: RMPPShortHeader = nested()
    segmentNumber: int = bits(32)
    newWindowLast: int = bits(32)
    reserved: bytes = data(220)


@wire(256)
class RMPPStop(Layout):
    """End of a transfer for lack of resources (IBA 13.6.2.5)."""

    header: MADHeader = nested()
    rmpp: RMPPShortHeader = nested()
    reserved: int = bits(32)
    reserved2: int = bits(32)
    errorData: bytes = data(220)


@wire(256)
class RMPPAbort(Layout):
    """End of a transfer after an error (IBA 13.6.2.6)."""

    header: MADHeader = nested()
    rmpp: RMPPShortHeader = nested()
    reserved: int = bits(32)
    reserved2: int = bits(32)
    errorData: bytes = data(220)


@wire(56)
class SAHeader(Layout):
    """All headers of a datagram of subnet administration (IBA 15.2.1.1)."""

    header: MADHeader = nested()
    rmpp: RMPPHeader = nested()
    smKey: int = key(64)
    attributeOffset: int = bits(16)
    reserved: int = bits(16)
    componentMask: int = key(64)
