"""
The packets of the reliable multi-packet protocol as wholes, by what their last two words mean.

Follows InfiniBand Architecture vol. 1, 13.6.2.3 to 13.6.2.6 and 15.2.1.1. Agents use
L{RMPPHeader <txrdma.mad.layouts.messages.RMPPHeader>}; these are for those who look at packets.
"""

from __future__ import annotations

from typing import Final

from txrdma.mad.layouts.attributes import key
from txrdma.mad.layouts.messages import MADHeader, RMPPHeader, RMPPStatus, RMPPType
from txrdma.wire import bits, data, Layout, nested, wire


@wire(4)
class RMPPShortHeader(Layout):
    """What all of them have in common (IBA 13.6.2.1)."""

    version: int = bits(8)
    type: RMPPType = bits(8)
    responseTime: int = bits(5)
    last: bool = bits(1)
    first: bool = bits(1)
    active: bool = bits(1)
    status: RMPPStatus = bits(8)


@wire(256)
class RMPPData(Layout):
    """A segment (IBA 13.6.2.3). Of the first C{payloadLength} is that of the whole message."""

    header: MADHeader = nested()
    rmpp: RMPPShortHeader = nested()
    segmentNumber: int = bits(32)
    payloadLength: int = bits(32)
    content: bytes = data(220)


@wire(256)
class RMPPAck(Layout):
    """All segments up to this one came; those up to the new window's last may be sent (IBA 13.6.2.4)."""

    header: MADHeader = nested()
    rmpp: RMPPShortHeader = nested()
    segmentNumber: int = bits(32)
    newWindowLast: int = bits(32)
    reserved: bytes = data(220)


@wire(256)
class RMPPStop(Layout):
    """The message ends here: there is no room for it (IBA 13.6.2.5)."""

    header: MADHeader = nested()
    rmpp: RMPPShortHeader = nested()
    reserved: int = bits(32)
    reserved2: int = bits(32)
    errorData: bytes = data(220)


@wire(256)
class RMPPAbort(Layout):
    """The message ends here: something is wrong with it (IBA 13.6.2.6)."""

    header: MADHeader = nested()
    rmpp: RMPPShortHeader = nested()
    reserved: int = bits(32)
    reserved2: int = bits(32)
    errorData: bytes = data(220)


PACKETS: Final[dict[int, type[Layout]]] = {
    RMPPType.DATA: RMPPData,
    RMPPType.ACK: RMPPAck,
    RMPPType.STOP: RMPPStop,
    RMPPType.ABORT: RMPPAbort,
}
"""Which one a packet is, by its type."""


@wire(56)
class SAHeader(Layout):
    """All headers of a datagram of subnet administration (IBA 15.2.1.1)."""

    header: MADHeader = nested()
    rmpp: RMPPHeader = nested()
    smKey: int = key(64)
    attributeOffset: int = bits(16)
    reserved: int = bits(16)
    componentMask: int = key(64)
