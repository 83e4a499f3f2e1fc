"""L{txrdma.iba.headers} against scapy's RoCE layer, recorded packets, and the specification's tables."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.headers import (
    AETH,
    AETHKind,
    AtomicAckETH,
    AtomicETH,
    BTH,
    DETH,
    EXTENSIONS,
    GRH,
    IETH,
    ImmDt,
    NAKCode,
    Opcode,
    RETH,
)
from txrdma.iba.times import ackTimeoutSeconds, rnrTimerSeconds
from txrdma.iba.types import GID
from txrdma.kit.wire import Layout
from txrdma.test.support.captures import packets
from txrdma.test.support.iba.scapyroce import scapyRoCE
from txrdma.testing.strategies import layouts

LAYOUTS: tuple[type[Layout], ...] = (AETH, BTH, DETH, GRH, IETH, RETH, AtomicAckETH, AtomicETH, ImmDt)


class HeaderTests(SynchronousTestCase):
    @given(st.data())
    def test_roundTrip(self, draw: st.DataObject) -> None:
        """Encoded headers are decoded to the same values."""
        for layout in LAYOUTS:
            header = draw.draw(layouts(layout))
            self.assertEqual(layout.decode(header.encode()), header)

    @given(st.binary(max_size=48))
    def test_anyBytes(self, raw: bytes) -> None:
        """Any bytes are decoded to a header that is encoded to the same bytes, or raise WireError."""
        for layout in LAYOUTS:
            try:
                header = layout.decode(raw)
            except WireError:
                self.assertLess(len(raw), layout.size)
            else:
                self.assertEqual(header.encode(), raw[: layout.size])

    @given(layouts(BTH))
    def test_scapyBTH(self, bth: BTH) -> None:
        """Scapy encodes the same fields to the same bytes."""
        reference = scapyRoCE().BTH(
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
        self.assertEqual(bytes(reference)[:12], bth.encode())

    @given(layouts(AETH), layouts(GRH))
    def test_scapyOthers(self, aeth: AETH, grh: GRH) -> None:
        """Scapy decodes the same fields in AETH and GRH."""
        reference = scapyRoCE().AETH(aeth.encode())
        self.assertEqual((reference.syndrome, reference.msn), (aeth.syndrome, aeth.msn))
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
        reference = {
            number: name for number, name in scapyRoCE()._bth_opcodes.items() if not name.startswith("RD_")
        }
        local = {int(opcode): opcode.name for opcode in Opcode if "INVALIDATE" not in opcode.name}
        self.assertEqual(local, reference)

    def test_extensions(self) -> None:
        """The extension headers of every opcode correspond to its name."""
        self.assertEqual(set(EXTENSIONS), set(Opcode))
        for opcode, headers in EXTENSIONS.items():
            self.assertEqual("WITH_IMMEDIATE" in opcode.name, ImmDt in headers, opcode)
            self.assertEqual("INVALIDATE" in opcode.name, IETH in headers, opcode)
            self.assertEqual(opcode.name.startswith("UD"), DETH in headers, opcode)
            begins = (
                "WRITE_FIRST" in opcode.name or "WRITE_ONLY" in opcode.name or "READ_REQUEST" in opcode.name
            )
            self.assertEqual(begins, RETH in headers, opcode)


class RecordedTests(SynchronousTestCase):
    def test_readAnswers(self) -> None:
        """An RDMA READ of rping requests as many bytes as its response carries."""
        asked = answered = 0
        for captured in packets("rping"):
            packet = captured.packet
            reth = packet.get(RETH)
            if packet.bth.opcode is Opcode.RC_RDMA_READ_REQUEST and reth is not None:
                asked += reth.length
            if "READ_RESPONSE" in packet.bth.opcode.name:
                answered += len(packet.payload)
        self.assertGreater(asked, 0)
        self.assertEqual(asked, answered)


class CodeTests(SynchronousTestCase):
    def test_syndromes(self) -> None:
        """A syndrome is decoded to the encoded values."""
        self.assertEqual(AETH.ack(5).syndrome, 0x1F)
        self.assertEqual((AETH.ack(5, 3).kind, AETH.ack(5, 3).value), (AETHKind.ACK, 3))
        busy = AETH.rnrNAK(1, 12)
        self.assertEqual((busy.syndrome, busy.kind, busy.value), (0x2C, AETHKind.RNR_NAK, 12))
        refused = AETH.nak(1, NAKCode.REMOTE_ACCESS_ERROR)
        self.assertEqual((refused.syndrome, refused.kind, refused.value), (0x62, AETHKind.NAK, 2))
        self.assertIs(AETH(syndrome=0x40).kind, AETHKind.RESERVED)

    def test_rnrTimers(self) -> None:
        """Codes of RNR timers correspond to the specification's table, in milliseconds; 0 is the longest."""
        for code, milliseconds in {
            0: 655.36,
            1: 0.01,
            4: 0.04,
            5: 0.06,
            12: 0.64,
            14: 1.28,
            24: 40.96,
            31: 491.52,
        }.items():
            self.assertAlmostEqual(rnrTimerSeconds(code) * 1000, milliseconds)
        times = [rnrTimerSeconds(code) for code in [*range(1, 32), 0]]
        self.assertEqual(times, sorted(times))
        self.assertEqual(len(times), 32)

    def test_timeouts(self) -> None:
        """The timeout code 14 is 67 milliseconds; 0 is infinite."""
        self.assertAlmostEqual(ackTimeoutSeconds(14), 0.0671, places=4)
        self.assertEqual(ackTimeoutSeconds(0), math.inf)
