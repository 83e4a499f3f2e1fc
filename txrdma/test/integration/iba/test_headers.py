"""
Tests for L{txrdma.iba.headers}: against scapy's RoCE layer, recorded packets, and the specification's tables.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.headers import (
    AETH,
    AtomicAckETH,
    AtomicETH,
    BTH,
    DETH,
    EXTENSIONS,
    GRH,
    IETH,
    ImmDt,
    Opcode,
    RETH,
)
from txrdma.iba.types import GID
from txrdma.test.support.iba.roce import scapyRoCE
from txrdma.testing.strategies import layouts
from txrdma.wire import Layout

LAYOUTS: tuple[type[Layout], ...] = (AETH, BTH, DETH, GRH, IETH, RETH, AtomicAckETH, AtomicETH, ImmDt)


class HeaderTests(SynchronousTestCase):
    """Transport headers."""

    @given(st.data())
    def test_roundTrip(self, draw: st.DataObject) -> None:
        """What is written is read again."""
        for layout in LAYOUTS:
            header = draw.draw(layouts(layout))
            self.assertEqual(layout.decode(header.encode()), header)

    @given(st.binary(max_size=48))
    def test_anyBytes(self, raw: bytes) -> None:
        """Any bytes are a header that is written as it came, or a WireError."""
        for layout in LAYOUTS:
            try:
                header = layout.decode(raw)
            except WireError:
                self.assertLess(len(raw), layout.size)
            else:
                self.assertEqual(header.encode(), raw[: layout.size])

    @given(layouts(BTH))
    def test_scapyBTH(self, bth: BTH) -> None:
        """Scapy makes the same bytes of the same fields."""
        theirs = scapyRoCE().BTH(
            opcode=int(bth.opcode),
            solicited=int(bth.solicited),
            migreq=int(bth.migration),
            padcount=bth.pad,
            version=bth.version,
            pkey=bth.pkey,
            fecn=bth.reserved8 >> 7,
            becn=bth.reserved8 >> 6 & 1,
            resv6=bth.reserved8 & 63,
            dqpn=bth.destination,
            ackreq=int(bth.acknowledge),
            resv7=bth.reserved7,
            psn=bth.psn,
            icrc=0,
        )
        self.assertEqual(bytes(theirs)[:12], bth.encode())

    @given(layouts(AETH), layouts(GRH))
    def test_scapyOthers(self, aeth: AETH, grh: GRH) -> None:
        """Scapy reads the same fields in AETH and GRH."""
        theirs = scapyRoCE().AETH(aeth.encode())
        self.assertEqual((theirs.syndrome, theirs.msn), (aeth.syndrome, aeth.msn))
        route = scapyRoCE().GRH(grh.encode())
        self.assertEqual(
            (route.ipver, route.tclass, route.flowlabel), (grh.version, grh.trafficClass, grh.flowLabel)
        )
        self.assertEqual(
            (route.paylen, route.nexthdr, route.hoplmt), (grh.payloadLength, grh.nextHeader, grh.hopLimit)
        )
        self.assertEqual(GID(route.sgid.to_bytes(16, "big")), grh.sgid)
        self.assertEqual(GID(route.dgid.to_bytes(16, "big")), grh.dgid)

    def test_scapyOpcodes(self) -> None:
        """Scapy has the same numbers for the same opcodes."""
        theirs = {
            number: name for number, name in scapyRoCE()._bth_opcodes.items() if not name.startswith("RD_")
        }
        ours = {int(opcode): opcode.name for opcode in Opcode if "INVALIDATE" not in opcode.name}
        self.assertEqual(ours, theirs)

    def test_extensions(self) -> None:
        """Every opcode says which headers follow, as their names have it."""
        self.assertEqual(set(EXTENSIONS), set(Opcode))
        for opcode, headers in EXTENSIONS.items():
            self.assertEqual("WITH_IMMEDIATE" in opcode.name, ImmDt in headers, opcode)
            self.assertEqual("INVALIDATE" in opcode.name, IETH in headers, opcode)
            self.assertEqual(opcode.name.startswith("UD"), DETH in headers, opcode)
            begins = (
                "WRITE_FIRST" in opcode.name or "WRITE_ONLY" in opcode.name or "READ_REQUEST" in opcode.name
            )
            self.assertEqual(begins, RETH in headers, opcode)
