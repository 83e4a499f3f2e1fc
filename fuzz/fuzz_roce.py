"""
Fuzz targets of RoCE v2: headers, packets and the invariant CRC (ICRC).
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import decoder, Target

from txrdma.iba.headers import AETH, AtomicETH, BTH, GRH, NAKCode
from txrdma.iba.roce import RoCEPacket, UDPFlow
from txrdma.iba.types import GID, RKey
from txrdma.kit.wire import Layout
from txrdma.test.support.captures import names, packets

_FLOW = UDPFlow("10.77.0.1", 49152, "10.77.0.2", 4791)
_GID = GID.fromIP("10.77.0.1")


class _PacketWithICRC:
    """A packet with its ICRC, which L{RoCEPacket.encode} leaves out."""

    def __init__(self, packet: RoCEPacket) -> None:
        self.packet = packet

    @classmethod
    def decode(cls, raw: bytes) -> _PacketWithICRC:
        return cls(RoCEPacket.decode(raw))

    def encode(self) -> bytes:
        return self.packet.encode() + self.packet.icrc.to_bytes(4, "little")

    def __eq__(self, other: object) -> bool:
        # Encoding sets the padding from the length; both agree whenever decoding succeeds.
        return isinstance(other, _PacketWithICRC) and self.packet == other.packet


def _recorded() -> Iterator[bytes]:
    for name in names():
        for captured in packets(name):
            yield captured.payload


def _icrc(raw: bytes) -> None:
    """The IP identification computed from a packet's ICRC is the one with which the packet has this ICRC."""
    found = _FLOW.identification(raw)
    if found is not None and _FLOW.seal(raw[:-4], found) != raw:
        raise AssertionError(f"with identification {found} the ICRC is another")
    if len(raw) >= BTH.size and _FLOW.identification(_FLOW.seal(raw, 0xBEEF)) != 0xBEEF:
        raise AssertionError("the identification is not found in the ICRC made with it")


def _header(*headers: Layout) -> Target:
    """Return the target of a header without recorded packets, with these headers as seeds."""
    return decoder(type(headers[0]).decode, lambda: (header.encode() for header in headers))


TARGETS = {
    "BTH": decoder(BTH.decode, _recorded),
    "AETH": _header(AETH.ack(1), AETH.rnrNAK(2, 14), AETH.nak(3, NAKCode.REMOTE_ACCESS_ERROR)),
    "AtomicETH": _header(AtomicETH(address=0x1000, rkey=RKey(7), swap=1, compare=2)),
    "GRH": _header(GRH(version=6, payloadLength=24, nextHeader=27, hopLimit=64, sgid=_GID, dgid=_GID)),
    "RoCE packet": decoder(_PacketWithICRC.decode, _recorded),
    "ICRC": Target(_icrc, _recorded),
}
