"""
Tests for L{txrdma.iba.headers}: against scapy's RoCE layer, recorded packets, and the specification's tables.
"""

from __future__ import annotations

import math

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.headers import (
    AETH,
    AETHKind,
    creditCode,
    creditCount,
    NAKCode,
    Opcode,
    RETH,
)
from txrdma.iba.times import ackTimeoutSeconds, rnrTimerCode, rnrTimerSeconds
from txrdma.test.support.captures import packets


class RecordedTests(SynchronousTestCase):
    """What the kernel said, in words."""

    def test_verbs(self) -> None:
        """The recording of pyverbs holds what its README says: requests of each kind, and a refusal."""
        found = [captured.packet for captured in packets("verbs")]
        kinds = {packet.bth.opcode for packet in found}
        self.assertLessEqual(
            {
                Opcode.RC_RDMA_WRITE_ONLY,
                Opcode.RC_SEND_ONLY,
                Opcode.RC_RDMA_READ_REQUEST,
                Opcode.RC_FETCH_ADD,
                Opcode.RC_ATOMIC_ACKNOWLEDGE,
            },
            kinds,
        )
        answers = [aeth for packet in found if (aeth := packet.get(AETH)) is not None]
        refused = [aeth for aeth in answers if aeth.kind is AETHKind.NAK]
        self.assertEqual([aeth.syndrome for aeth in refused], [0x62])
        self.assertEqual(NAKCode(refused[0].value), NAKCode.REMOTE_ACCESS_ERROR)

    def test_readAnswers(self) -> None:
        """A read of rping asks for as many bytes as its answer carries."""
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
    """Times and counts by their codes."""

    def test_syndromes(self) -> None:
        """A syndrome says what it was made to say."""
        self.assertEqual(AETH.ack(5).syndrome, 0x1F)
        self.assertEqual((AETH.ack(5, 3).kind, AETH.ack(5, 3).value), (AETHKind.ACK, 3))
        busy = AETH.rnrNAK(1, 12)
        self.assertEqual((busy.syndrome, busy.kind, busy.value), (0x2C, AETHKind.RNR_NAK, 12))
        refused = AETH.nak(1, NAKCode.REMOTE_ACCESS_ERROR)
        self.assertEqual((refused.syndrome, refused.kind, refused.value), (0x62, AETHKind.NAK, 2))
        self.assertIs(AETH(syndrome=0x40).kind, AETHKind.RESERVED)

    def test_rnrTimers(self) -> None:
        """Places of the specification's table, in milliseconds; 0 is the longest."""
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
        self.assertEqual([rnrTimerCode(rnrTimerSeconds(code)) for code in range(32)], list(range(32)))
        self.assertEqual((rnrTimerCode(0.0005), rnrTimerCode(99)), (12, 0))

    def test_credits(self) -> None:
        """Places of the specification's table; 31 does not count."""
        for code, count in {0: 0, 4: 4, 5: 6, 10: 32, 15: 192, 20: 1024, 30: 32768}.items():
            self.assertEqual(creditCount(code), count)
        self.assertIsNone(creditCount(31))
        self.assertEqual([creditCode(creditCount(code)) for code in range(32)], list(range(32)))
        self.assertEqual((creditCode(5), creditCode(1 << 20), creditCode(-1)), (4, 30, 0))

    def test_timeouts(self) -> None:
        """The code 14 is the usual 67 milliseconds; 0 is for ever."""
        self.assertAlmostEqual(ackTimeoutSeconds(14), 0.0671, places=4)
        self.assertEqual(ackTimeoutSeconds(0), math.inf)
