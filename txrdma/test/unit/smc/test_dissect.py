"""
Dissected captures of SMC.
"""

from __future__ import annotations

import tracemalloc
from collections import Counter
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.dissect.conversation import Reassembly
from txrdma.commands.dissect.words import describeCLC, describeLLC
from txrdma.iba.headers import BTH, Opcode
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import GID, QPN
from txrdma.smc.wire import clc, llc
from txrdma.test.support import VECTORS
from txrdma.test.support.mad.commanding import CommandTestCase
from txrdma.test.support.smc.dissect import explained, packets, reported, SMC


class RecordedTests(SynchronousTestCase):
    def test_firstContactFromOptionToLastKey(self) -> None:
        text = reported("smc-first")
        for words in (
            "# connection 1: 10.77.0.1:15001 to 10.77.0.2:5001",
            "1   0.000000 [1] the client sends a SYN with the SMC option",
            "the server sends a SYN-ACK with the SMC option",
            "the client proposes SMC-R version 2.1 by ::ffff:10.77.0.1, EIDs TXRDMA, up to 255 connections",
            "the server accepts: SMC-R version 2.1, EID TXRDMA, first contact, queue pair 0x11 of",
            "the client confirms: SMC-R version 2.1",
            "[-] (link 1) the server confirms link 1: queue pair 0x11 of ::ffff:10.77.0.2",
            "[-] (link 1) the server adds link 2",
            "[-] (link 1) the client rejects another link",
            "[1] (link 1) the client has written 3,000 bytes (3,005 in total), has read 5 bytes (5 in total)",
            "the client has read 3,000 bytes (3,005 in total), has closed",
            "# connection 1: SMC-R; the client wrote 3,005 bytes; the server wrote 3,005 bytes",
            "; the client: closed; the server: closed",
        ):
            self.assertIn(words, text)

    def test_twoLinksThroughFailover(self) -> None:
        text = reported("smc-two-links")
        for words in (
            "(link 1) the client accepts link 2: queue pair 0x11 of ::ffff:10.77.0.3",
            "(link 2) the client confirms link 2 (response)",
            "the server announces a buffer: key 0x420 at 0xff29218087830000, 0x436 on link 1",
            "[2] the server accepts: SMC-R version 2, EID TXRDMA, existing link group",
            "[1] (link 1) the client has written 6 bytes (12 in total)",
            "[2] (link 2) the client has written 6 bytes (12 in total)",
            "[1] (link 2) the client fails over to this link: message 1 must have been received",
            "the client deletes link 1, orderly: LOST_PATH",
            "[1] (link 2) the client has written 5 bytes (17 in total)",
            "# connection 2: SMC-R; the client wrote 17 bytes; the server wrote 4 bytes",
        ):
            self.assertIn(words, text)

    def test_ownStackWithKernel(self) -> None:
        ours, kernels = "ring of 4,194,304 bytes", "ring of 65,536 bytes"
        for name, client, server in (
            ("smc-ours-client", ours, kernels),
            ("smc-ours-server", kernels, ours),
        ):
            lines = reported(name).splitlines()
            self.assertEqual(
                [client in line for line in lines if "the client confirms: " in line], [True] * 2
            )
            self.assertEqual([server in line for line in lines if "the server accepts: " in line], [True] * 2)
            place = 0
            for words in (
                "[1] the client sends a SYN with the SMC option",
                "[1] the server sends a SYN-ACK with the SMC option",
                "[1] the client proposes SMC-R version 2.1 by ::ffff:10.77.0.",
                "[1] the server accepts: SMC-R version 2.1, EID TXRDMA, first contact, queue pair",
                "[1] the client confirms: SMC-R version 2.1, EID TXRDMA, first contact, queue pair",
                "[-] (link 1) the server confirms link 1: queue pair",
                "[-] (link 1) the client confirms link 1 (response): queue pair",
                "[-] (link 1) the server adds link 2: queue pair",
                "[-] (link 1) the client accepts link 2: queue pair",
                "[-] (link 2) the server confirms link 2: queue pair",
                "[-] (link 2) the client confirms link 2 (response): queue pair",
                " has written 13 bytes (13 in total)",
                "[2] the client sends a SYN with the SMC option",
                "[2] the client proposes SMC-R version 2.1",
                "[2] the client confirms: SMC-R version 2, EID TXRDMA, existing link group",
                "[2] (link 2) the client has written 1,000 bytes (1,000 in total)",
                "deletes 1 buffer",
                "confirms that the keys are deleted",
                "deletes all links, orderly: PROGRAM_ENDING",
                "# connection 1: SMC-R; the client wrote 13 bytes; the server wrote 13 bytes;",
                "# connection 2: SMC-R; the client wrote 1,000 bytes; the server wrote 1,000 bytes;",
            ):
                found = [at for at, line in enumerate(lines) if at >= place and words in line]
                self.assertTrue(found, f"{name} has not, where it should be: {words}")
                place = found[0] + 1

    def test_wrappedRings(self) -> None:
        text = reported("smc-wrap")
        self.assertIn("(62,000 in total)", text)
        self.assertIn("is blocked: the ring is full", text)
        self.assertIn("# connection 1: SMC-R; the client wrote 62,000 bytes", text)

    def test_endsAndUrgentData(self) -> None:
        for name, words in (
            ("smc-halfclose", ["the client has written", "has finished writing", "the client: done writing"]),
            ("smc-abort", ["aborts the connection", "abnormal close"]),
            ("smc-urgent", ["the last byte is urgent"]),
            ("smc-test-link", ["tests the link", "the client responds to the test"]),
        ):
            text = reported(name)
            for each in words:
                self.assertIn(each, text, name)

    def test_declineAndServerWithoutSMC(self) -> None:
        text = reported("smc-decline")
        self.assertIn("the server declines: NOSMCRDEV (0x03030002): no device for SMC-R", text)
        self.assertIn("# connection 1: TCP, because the server declined: NOSMCRDEV", text)
        self.assertIn(
            "# connection 1: TCP, because the server's SYN-ACK has no SMC option", reported("tcp-server")
        )
        self.assertEqual(explained(packets("tcp-client")).events, [])

    def test_detailLevels(self) -> None:
        one, two, three = (reported("smc-first", level) for level in (1, 2, 3))
        self.assertNotIn("has written", one)
        self.assertIn("has closed", one)
        self.assertNotIn("key 0x33c: ", two)
        self.assertIn("the client writes 3,000 bytes at 0xff153e77c4af0005, key 0x33c: 5 into the", three)

    def test_otherRDMAIsNotSMC(self) -> None:
        for name in ("rc-pingpong", "ud-pingpong", "rping", "verbs", "mad-rmpp", "mad-perf-get", "cm-reject"):
            self.assertEqual(explained(packets(name)).events, [], name)

    def test_captureBeginningInTheMiddle(self) -> None:
        text = "\n".join(explained(packets("smc-first")[12:]).lines(2))
        self.assertIn("::ffff:10.77.0.2 adds link 2", text)
        self.assertIn("::ffff:10.77.0.1 token 0x1: producer cursor 0:5, consumer cursor 0:0", text)

    def test_retransmissionsAreShownOnce(self) -> None:
        many = packets("smc-two-links")
        twice = [each for packet in many for each in (packet, packet)]
        once, again = explained(many), explained(twice)
        counts = Counter(again.conversation.counts)
        self.assertGreater(counts.pop("repeated packets"), 0)
        self.assertEqual(counts, once.conversation.counts)

    def test_tooLongMessageIsNotStored(self) -> None:
        conversation = explained(packets("smc-first")).conversation
        destination, number = next(iter(conversation._ends))
        tracemalloc.start()
        try:
            for psn in range(1000):
                opcode = Opcode.RC_SEND_MIDDLE if psn else Opcode.RC_SEND_FIRST
                bth = BTH(opcode=opcode, destination=QPN(number), psn=(1 << 23) + psn)
                conversation.packet(GID(bytes(16)), GID(destination), RoCEPacket(bth, payload=bytes(4096)))
            _now, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLess(most, 1 << 20)

    def test_damagedCapturesRaiseNothing(self) -> None:
        random = Random(7)
        for name in (*SMC, "smc-decline"):
            for _ in range(20):
                damaged = []
                for packet in packets(f"smc-{name}" if name in SMC else name):
                    raw = bytearray(packet.data)
                    if random.random() < 0.3:
                        raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
                    if random.random() < 0.05:
                        del raw[random.randrange(len(raw)) :]
                    damaged.append(packet._replace(data=bytes(raw)))
                explanation = explained(damaged)
                "\n".join(explanation.lines(3))
                explanation.toDict()


class DirectionTests(SynchronousTestCase):
    """Reassembly of TCP segments."""

    @given(st.binary(min_size=1, max_size=200), st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
    def test_segmentsAreReassembled(self, data: bytes, begin: int, random: Any) -> None:
        direction = Reassembly(begin)
        cuts = sorted({0, len(data), *(random.randrange(len(data) + 1) for _ in range(8))})
        pieces = [(at, data[at:end]) for at, end in zip(cuts, cuts[1:], strict=False)]
        pieces += [(at, data[at : at + random.randrange(1, 50)]) for at in cuts[:-1] if random.random() < 0.5]
        random.shuffle(pieces)
        for at, piece in pieces:
            direction.add((begin + at) % (1 << 32), piece)
        self.assertEqual(direction.data, data)

    def test_missing(self) -> None:
        """The missing segment is accepted although as many later ones wait as are stored at most."""
        direction = Reassembly(0)
        for at in range(1, 300):
            direction.add(at, b"x")
        self.assertEqual((direction.data, len(direction.waiting)), (b"", 256))
        direction.add(0, b"a")
        self.assertEqual((direction.data, direction.waiting), (b"a" + 256 * b"x", {}))


class WordTests(SynchronousTestCase):
    """Formatting of messages that no capture contains."""

    def test_versionOne(self) -> None:
        proposal = clc.decode(
            bytes.fromhex(
                "e2d4c3d901003410b1a098039babcdeffe800000000000009a039bfffeabcdef98039babcdef00007f00000008000000"
                "e2d4c3d9"
            )
        )
        self.assertEqual(
            describeCLC(proposal),
            "proposes SMC-R version 1 by fe80::9a03:9bff:feab:cdef (98:03:9b:ab:cd:ef), subnet 127.0.0.0/8; "
            "peer ID b1a098039babcdef",
        )
        decline = clc.Decline(bytes(8), clc.Diagnosis.SYNCERR, outOfSync=True)
        self.assertIn("declines, out of sync: SYNCERR", describeCLC(decline))

    def test_unknownCodesAreShownAsNumbers(self) -> None:
        self.assertIn("0x12345678", describeCLC(clc.Decline(bytes(8), clc.Diagnosis(0x12345678))))
        unknown = llc.decode(bytes((0x0F, 44)).ljust(44, b"\0"))
        self.assertIn("type 15", describeLLC(unknown))

    @given(
        st.sampled_from(list(llc._BODIES.values())), st.binary(min_size=40, max_size=40), st.integers(0, 255)
    )
    def test_everyLLCMessageIsDescribed(self, kind: type[llc.Body], raw: bytes, flags: int) -> None:
        body = kind.decode(raw)
        if isinstance(body, llc.DeleteRKey):
            body = body.replace(count=body.count % 9)
        message = llc.LLC(kind.TYPE, llc.LLCHeader(llc.LLCFlags(flags)), body)
        self.assertTrue(describeLLC(message))


class CommandTests(CommandTestCase):
    def test_captureAsTextAndJSON(self) -> None:
        path = str(VECTORS / "smc-first.pcap")
        self.assertIn("the client proposes SMC-R", self.output("decode", path).out)
        output = self.output("decode", path, "--json").json
        self.assertEqual(output["datagrams"], [])
        [connection] = output["smc"]["connections"]
        self.assertEqual((connection["mode"], connection["bytesFromClient"]), ("SMC-R", 3005))
        accept = next(each for each in output["smc"]["events"] if each["message"] == "Accept")
        self.assertEqual((accept["packet"], accept["fields"]["qpn"]), (6, 17))
        cdc = next(each for each in output["smc"]["events"] if each["message"] == "CDC")
        self.assertEqual((cdc["link"], cdc["fields"]["producerCount"]), (1, 5))

    def test_hexadecimalMessage(self) -> None:
        digits = clc.Decline(bytes(8), clc.Diagnosis.NOUEID).encode().hex()
        self.assertIn("declines: NOUEID", self.output("decode", digits).out)
        self.assertIn("27 of 28 bytes", str(self.output("decode", digits[:-2]).status))
