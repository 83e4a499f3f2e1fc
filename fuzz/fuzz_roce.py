"""
Decoders of RoCE v2: headers, packets, the ICRC.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import decoder, Target

from txrdma.iba.headers import AETH, AtomicETH, BTH, GRH
from txrdma.iba.roce import Flow, RoCEPacket
from txrdma.test.support.captures import names, packets

_FLOW = Flow("10.77.0.1", 49152, "10.77.0.2", 4791)


class _Sealed:
    """A packet as it is sent: with some ICRC."""

    def __init__(self, packet: RoCEPacket) -> None:
        self.packet = packet

    @classmethod
    def decode(cls, raw: bytes) -> _Sealed:
        return cls(RoCEPacket.decode(raw))

    def encode(self) -> bytes:
        return self.packet.encode() + self.packet.icrc.to_bytes(4, "little")

    def __eq__(self, other: object) -> bool:
        # Padding is counted anew, and its count agrees with the length whenever decoding succeeds.
        return isinstance(other, _Sealed) and self.packet == other.packet


def _recorded() -> Iterator[bytes]:
    for name in names():
        for captured in packets(name):
            yield captured.payload


def _icrc(raw: bytes) -> None:
    """What was found to be the identification is the one that gives this ICRC."""
    found = _FLOW.identification(raw)
    if found is not None and _FLOW.seal(raw[:-4], found) != raw:
        raise AssertionError(f"not identification {found}")
    if len(raw) >= 12:
        if _FLOW.identification(_FLOW.seal(raw, 0xBEEF)) != 0xBEEF:
            raise AssertionError("sealed and not found again")


TARGETS = {
    "BTH": decoder(BTH.decode, _recorded),
    "AETH": decoder(AETH.decode),
    "AtomicETH": decoder(AtomicETH.decode),
    "GRH": decoder(GRH.decode),
    "RoCE packet": decoder(_Sealed.decode, _recorded),
    "ICRC": Target(_icrc, _recorded),
}
