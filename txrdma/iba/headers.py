"""
The headers of packets between base transport header and payload, and the codes in them.

Follows InfiniBand Architecture vol. 1, chapters 8 (GRH) and 9 (transport).
"""

from __future__ import annotations

from enum import IntEnum

from txrdma.iba.types import GID, PKey, QPN, RKey
from txrdma.kit.wire import bits, Code, data, Layout, wire


class Opcode(Code):
    """OpCode of the BTH: the service in the upper three bits, the operation in the lower five (IBA 9.2.1)."""

    RC_SEND_FIRST = 0x00
    RC_SEND_MIDDLE = 0x01
    RC_SEND_LAST = 0x02
    RC_SEND_LAST_WITH_IMMEDIATE = 0x03
    RC_SEND_ONLY = 0x04
    RC_SEND_ONLY_WITH_IMMEDIATE = 0x05
    RC_RDMA_WRITE_FIRST = 0x06
    RC_RDMA_WRITE_MIDDLE = 0x07
    RC_RDMA_WRITE_LAST = 0x08
    RC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x09
    RC_RDMA_WRITE_ONLY = 0x0A
    RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x0B
    RC_RDMA_READ_REQUEST = 0x0C
    RC_RDMA_READ_RESPONSE_FIRST = 0x0D
    RC_RDMA_READ_RESPONSE_MIDDLE = 0x0E
    RC_RDMA_READ_RESPONSE_LAST = 0x0F
    RC_RDMA_READ_RESPONSE_ONLY = 0x10
    RC_ACKNOWLEDGE = 0x11
    RC_ATOMIC_ACKNOWLEDGE = 0x12
    RC_COMPARE_SWAP = 0x13
    RC_FETCH_ADD = 0x14
    RC_SEND_LAST_WITH_INVALIDATE = 0x16
    RC_SEND_ONLY_WITH_INVALIDATE = 0x17

    UC_SEND_FIRST = 0x20
    UC_SEND_MIDDLE = 0x21
    UC_SEND_LAST = 0x22
    UC_SEND_LAST_WITH_IMMEDIATE = 0x23
    UC_SEND_ONLY = 0x24
    UC_SEND_ONLY_WITH_IMMEDIATE = 0x25
    UC_RDMA_WRITE_FIRST = 0x26
    UC_RDMA_WRITE_MIDDLE = 0x27
    UC_RDMA_WRITE_LAST = 0x28
    UC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x29
    UC_RDMA_WRITE_ONLY = 0x2A
    UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x2B

    UD_SEND_ONLY = 0x64
    UD_SEND_ONLY_WITH_IMMEDIATE = 0x65

    CNP = 0x81
    """Congestion notification (annex A17)."""


@wire(12)
class BTH(Layout):
    """
    Base transport header (IBA 9.2).

    @ivar pad: bytes after the payload that fill it to a multiple of four.
    @ivar reserved8: its two upper bits are FECN and BECN on RoCE; outside the ICRC.
    """

    opcode: Opcode = bits(8)
    solicited: bool = bits(1)
    migration: bool = bits(1)
    pad: int = bits(2)
    version: int = bits(4)
    pkey: PKey = bits(16)
    reserved8: int = bits(8)
    destination: QPN = bits(24)
    acknowledge: bool = bits(1)
    reserved7: int = bits(7)
    psn: int = bits(24)


@wire(8)
class DETH(Layout):
    """Datagram extended transport header (IBA 9.3.2)."""

    qkey: int = bits(32)
    reserved: int = bits(8)
    source: QPN = bits(24)


@wire(16)
class RETH(Layout):
    """RDMA extended transport header (IBA 9.3.3)."""

    address: int = bits(64)
    rkey: RKey = bits(32)
    length: int = bits(32)


@wire(28)
class AtomicETH(Layout):
    """Atomic extended transport header (IBA 9.3.4)."""

    address: int = bits(64)
    rkey: RKey = bits(32)
    swap: int = bits(64)
    """The number to swap in, or to add."""
    compare: int = bits(64)


class AETHKind(IntEnum):
    """Type of an AETH syndrome: its bits 6 and 5 (IBA 9.7.5.2.1)."""

    ACK = 0
    RNR_NAK = 1
    RESERVED = 2
    NAK = 3


class NAKCode(Code):
    """Reason for which a responder rejects a request (IBA 9.7.5.2)."""

    PSN_SEQUENCE_ERROR = 0
    INVALID_REQUEST = 1
    REMOTE_ACCESS_ERROR = 2
    REMOTE_OPERATIONAL_ERROR = 3
    INVALID_RD_REQUEST = 4


NO_CREDITS = 31
"""The credit count of a responder that does not count."""


@wire(4)
class AETH(Layout):
    """ACK extended transport header (IBA 9.3.5)."""

    syndrome: int = bits(8)
    msn: int = bits(24)

    @classmethod
    def ack(cls, msn: int, credits: int = NO_CREDITS) -> AETH:
        """Create an ACK of all packets so far; C{credits} is encoded (IBA 9.7.7.2)."""
        return cls(syndrome=credits & 31, msn=msn)

    @classmethod
    def rnrNAK(cls, msn: int, timer: int) -> AETH:
        """Create an RNR NAK; L{rnrTimerSeconds<txrdma.iba.times.rnrTimerSeconds>} decodes the timer."""
        return cls(syndrome=AETHKind.RNR_NAK << 5 | timer & 31, msn=msn)

    @classmethod
    def nak(cls, msn: int, code: NAKCode) -> AETH:
        """Create a NAK with this code."""
        return cls(syndrome=AETHKind.NAK << 5 | code & 31, msn=msn)

    @property
    def kind(self) -> AETHKind:
        return AETHKind(self.syndrome >> 5 & 3)

    @property
    def value(self) -> int:
        """The lower five bits: an encoded credit count, an encoded timer, or a L{NAKCode}."""
        return self.syndrome & 31


@wire(8)
class AtomicAckETH(Layout):
    """Atomic ACK extended transport header (IBA 9.5.3)."""

    original: int = bits(64)
    """Atomic ACK extended header: the previous value in memory."""


@wire(4)
class ImmDt(Layout):
    """Immediate data extended transport header (IBA 9.3.6)."""

    immediate: int = bits(32)


@wire(4)
class IETH(Layout):
    """Invalidate extended transport header (IBA 9.3.7)."""

    rkey: RKey = bits(32)


@wire(40)
class GRH(Layout):
    """Global route header (IBA 8.3), which precedes a received datagram."""

    version: int = bits(4)
    trafficClass: int = bits(8)
    flowLabel: int = bits(20)
    payloadLength: int = bits(16)
    nextHeader: int = bits(8)
    hopLimit: int = bits(8)
    sgid: GID = data(16)
    dgid: GID = data(16)


_Extensions = tuple[type[Layout], ...]


def _extensions() -> dict[Opcode, _Extensions]:
    ends: list[tuple[str, _Extensions]] = [
        ("SEND_LAST_WITH_IMMEDIATE", (ImmDt,)),
        ("SEND_ONLY_WITH_IMMEDIATE", (ImmDt,)),
        ("RDMA_WRITE_FIRST", (RETH,)),
        ("RDMA_WRITE_ONLY", (RETH,)),
        ("RDMA_WRITE_LAST_WITH_IMMEDIATE", (ImmDt,)),
        ("RDMA_WRITE_ONLY_WITH_IMMEDIATE", (RETH, ImmDt)),
    ]
    table: dict[Opcode, _Extensions] = dict.fromkeys(Opcode, ())
    for name, headers in ends:
        table[Opcode[f"RC_{name}"]] = table[Opcode[f"UC_{name}"]] = headers
    table |= {
        Opcode.RC_RDMA_READ_REQUEST: (RETH,),
        Opcode.RC_RDMA_READ_RESPONSE_FIRST: (AETH,),
        Opcode.RC_RDMA_READ_RESPONSE_LAST: (AETH,),
        Opcode.RC_RDMA_READ_RESPONSE_ONLY: (AETH,),
        Opcode.RC_ACKNOWLEDGE: (AETH,),
        Opcode.RC_ATOMIC_ACKNOWLEDGE: (AETH, AtomicAckETH),
        Opcode.RC_COMPARE_SWAP: (AtomicETH,),
        Opcode.RC_FETCH_ADD: (AtomicETH,),
        Opcode.RC_SEND_LAST_WITH_INVALIDATE: (IETH,),
        Opcode.RC_SEND_ONLY_WITH_INVALIDATE: (IETH,),
        Opcode.UD_SEND_ONLY: (DETH,),
        Opcode.UD_SEND_ONLY_WITH_IMMEDIATE: (DETH, ImmDt),
    }
    return table


EXTENSIONS: dict[Opcode, _Extensions] = _extensions()
"""The headers that follow a BTH, in order, for every known opcode (IBA 9.2.1 and 9.4)."""
