"""
Headers of InfiniBand links, and of transport services that no Ethernet port offers.

Follows InfiniBand Architecture vol. 1, 5.3 (raw packets), 7.7 (LRH), 7.9.4 (flow control), 9.3.1 (reliable
datagrams) and annex A14 (extended reliable connections).
"""

from __future__ import annotations

from txrdma.iba.types import LID
from txrdma.kit.wire import bits, Code, Layout, wire


class LinkNextHeader(Code):
    """Type of the header that follows a local route header (IBA 7.7.5)."""

    RAW = 0
    IP = 1
    BTH = 2
    GRH = 3


@wire(8)
class LRH(Layout):
    """Local route header (IBA 7.7). C{packetLength} counts words of four bytes, from here to the ICRC."""

    virtualLane: int = bits(4)
    linkVersion: int = bits(4)
    serviceLevel: int = bits(4)
    reserved: int = bits(2)
    linkNextHeader: LinkNextHeader = bits(2)
    dlid: LID = bits(16)
    reserved2: int = bits(5)
    packetLength: int = bits(11)
    slid: LID = bits(16)


@wire(4)
class RWH(Layout):
    """Raw header: the EtherType of the payload (IBA 5.3)."""

    reserved: int = bits(16)
    etherType: int = bits(16)


@wire(4)
class RDETH(Layout):
    """Reliable datagram extended transport header (IBA 9.3.1)."""

    reserved: int = bits(8)
    eeContext: int = bits(24)


class FlowControlOperation(Code):
    """Operation of a flow control packet: normal, or initialization of the counters (IBA 7.9.4.1)."""

    NORMAL = 0
    INITIALIZE = 1


@wire(6)
class FlowControl(Layout):
    """
    A flow control packet, of one virtual lane (IBA 7.9.4).

    @ivar totalBlocksSent: FCTBS, in units of 64 bytes, modulo 4096.
    @ivar creditLimit: FCCL, likewise.
    @ivar crc: LPCRC, over the four bytes before it (IBA 7.8.2).
    """

    operation: FlowControlOperation = bits(4)
    totalBlocksSent: int = bits(12)
    virtualLane: int = bits(4)
    creditLimit: int = bits(12)
    crc: int = bits(16)
