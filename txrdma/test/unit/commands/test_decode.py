"""C{txrdma decode}."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from twisted.python.usage import UsageError

from txrdma.command import TxrdmaOptions
from txrdma.commands.common.packets import inBytes, inPacket
from txrdma.commands.decode import DecodedTables
from txrdma.error import InvalidRequest, WireError
from txrdma.iba.captures import captured
from txrdma.iba.headers import BTH, GRH, Opcode
from txrdma.iba.path import IBDRPath
from txrdma.iba.pcap import LinkType, PcapWriter, RoCECapture
from txrdma.iba.types import QPN
from txrdma.mad.core.frames import managementPacket
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import MADHeader, RMPPHeader, RMPPType, SAFormat
from txrdma.test.support.captures import raw
from txrdma.test.support.mad.command_decode import (
    block,
    CaptureTestCase,
    HERE,
    packet,
    QUESTION,
    THERE,
    TRANSPORT,
)
from txrdma.test.support.mad.commanding import CommandTestCase


class HexTests(CommandTestCase):
    def test_hexadecimal(self) -> None:
        digits = QUESTION.hex()
        dump = "\n".join(f"0x{at:04x}  {QUESTION[at : at + 16].hex(' ', 4)}" for at in range(0, 256, 16))
        for text in (digits, "0x" + digits, QUESTION.hex(":"), QUESTION.hex(" "), dump, digits[:48]):
            output = self.output("decode", text)
            self.assertIn("SUBN_LID GET NodeInfo modifier 0x0 TID 0x1234", output.out)

    def test_input(self) -> None:
        self.patch(sys, "stdin", io.StringIO(QUESTION.hex()))
        self.assertIn("GET NodeInfo", self.output("decode").out)
        path: str = self.mktemp()
        Path(path).write_text(QUESTION.hex())
        self.assertIn("GET NodeInfo", self.output("decode", path).out)
        Path(path).write_text("no digits")
        self.assertIn(f"{path} contains neither", str(self.output("decode", path).status))

    def test_endless(self) -> None:
        """Of a file or a pipe that does not end only the beginning is read."""

        class Endless(io.BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                assert size is not None and size > 0
                return b"0" * size

        self.patch(sys, "stdin", io.TextIOWrapper(Endless()))
        for arguments, name in (((), "standard input"), (("/dev/zero",), "/dev/zero")):
            output = self.output("decode", *arguments)
            self.assertIn(f"{name} contains neither packets nor hexadecimal", str(output.status))

    def test_json(self) -> None:
        [reported] = self.output("decode", QUESTION.hex(), "--json").json
        self.assertEqual(list(reported), ["where", "front", "frame", "attribute", "fields", "records"])
        self.assertEqual((reported["attribute"], reported["fields"]["numPorts"]), ("NodeInfo", 0))
        self.assertEqual(reported["frame"]["header"]["transactionID"], 0x1234)

    def test_jsonOfDirectedRoute(self) -> None:
        """An SMP on a directed route is decoded to JSON, too, with the ports of its route."""
        request = managementPacket(Method.GET, 0x1234, 0x0011, 0, b"", IBDRPath(drPath=(1, 3)), 0)
        [reported] = self.output("decode", request.hex(), "--json").json
        self.assertEqual(reported["attribute"], "NodeInfo")
        self.assertEqual(reported["frame"]["header"]["hopCount"], 2)
        self.assertTrue(reported["frame"]["initialPath"].startswith("000103"))

    def test_headers(self) -> None:
        local = bytes.fromhex("0002000700000001")
        gids = GRH(version=6, nextHeader=0x1B).encode()
        umad = struct.pack("=IIIII", 0, 0, 1000, 3, 320) + struct.pack(">IIHBBB", 1, 0x80010000, 7, 0, 0, 0)
        for front, words in (
            (b"", []),
            (umad.ljust(64, b"\0"), ["umad LID 7, SL 0, QP 1, Q_Key 0x80010000, 1000 ms, status 0"]),
            (umad.ljust(56, b"\0"), ["umad LID 7, SL 0, QP 1, Q_Key 0x80010000, 1000 ms, status 0"]),
            (TRANSPORT, ["UD QP 1 to 1, P_Key 0x0000, Q_Key 0x80010000"]),
            (local + TRANSPORT, ["LRH LID 1 to 7, SL 0, VL 0", "UD QP 1 to 1"]),
            (gids + TRANSPORT, ["GRH :: to ::", "UD QP 1 to 1"]),
            (bytes.fromhex("0003000700000001") + gids + TRANSPORT, ["LRH LID 1 to 7", "GRH ::", "UD QP"]),
        ):
            found = inBytes(front + QUESTION)
            self.assertEqual(found.datagram, QUESTION, len(front))
            self.assertEqual(len(found.front), len(words))
            for line, word in zip(found.front, words, strict=True):
                self.assertTrue(line.startswith(word), line)
        output = self.output("decode", (local + TRANSPORT + QUESTION).hex())
        self.assertTrue(output.out.startswith("# LRH LID 1 to 7, SL 0, VL 0\n# UD QP 1 to 1, "), output.out)

    def test_late(self) -> None:
        umad = struct.pack("=IIIII", 3, 110, 1000, 3, 88).ljust(64, b"\0")
        found = inBytes(umad + QUESTION[:24])
        self.assertEqual(found.datagram, QUESTION[:24])
        self.assertIn("status 110", found.front[0])

    def test_nonsense(self) -> None:
        for text in ("hello", "00" * 256, "01", "ff" * 300):
            self.assertIn("txrdma decode: ", str(self.output("decode", text).status))
        self.assertRaises(InvalidRequest, inBytes, b"")
        for length in range(0, 300, 7):  # any input ends without a traceback
            try:
                inBytes(bytes(range(256))[:length] * 2)
            except InvalidRequest:
                pass
        self.assertIsNone(inPacket(b"\0" * 30, 247))
        self.assertIsNone(inPacket(b"\0" * 30, 197))
        error = self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["decode", "--level", "4"])
        self.assertIn("expected 1, 2 or 3", str(error))


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(linkType: int, options: bytes = b"", order: str = "<") -> bytes:
    return block(1, struct.pack(order + "HHI", linkType, 0, 0) + options, order)


ETHERNET = bytes.fromhex("020000000002020000000001")


class CaptureTests(CaptureTestCase):
    def test_roce(self) -> None:
        other = BTH(opcode=Opcode.RC_ACKNOWLEDGE, destination=QPN(17)).encode() + bytes(4)
        output = self.output("decode", self.roce([TRANSPORT + QUESTION, other, TRANSPORT + QUESTION]))
        self.assertEqual(
            [line for line in output.out.splitlines() if line.startswith("# packet")],
            ["# packet 1 at 1.000000", "# packet 3 at 3.000000"],
        )
        self.assertEqual(output.out.count("# IP 192.0.2.1 to 192.0.2.2\n"), 2)
        self.assertEqual(output.out.count("GET NodeInfo"), 2)
        [line] = self.output("decode", self.roce(), "--level", "1").out.splitlines()
        self.assertTrue(line.startswith("packet 1 at 1.000000: IP 192.0.2.1 to 192.0.2.2: UD QP 1 to 1"))
        self.assertTrue(line.endswith(": SUBN_LID GET NodeInfo modifier 0x0 TID 0x1234"))

    def test_links(self) -> None:
        """Captures of InfiniBand, and in the extensible record format, are read with their headers."""
        local = bytes.fromhex("f002ffff0048ffff") + TRANSPORT + QUESTION + bytes(6)
        tagged = bytes.fromhex("8100 0005 8915")
        for linkType, data in (
            (247, local),
            (197, bytes(8) + bytes([21]) + bytes(7) + local),
            (197, bytes(8) + bytes([0x95]) + bytes(7) + bytes(8) + local),
            (1, ETHERNET + bytes.fromhex("8915") + GRH().encode() + TRANSPORT + QUESTION),
            (1, ETHERNET + tagged + GRH().encode() + TRANSPORT + QUESTION),
            (113, bytes(14) + bytes.fromhex("8915") + GRH().encode() + TRANSPORT + QUESTION),
            (276, bytes.fromhex("8915") + bytes(18) + GRH().encode() + TRANSPORT + QUESTION),
        ):
            found = inPacket(data, linkType)
            self.assertIsNotNone(found, linkType)
            assert found is not None
            self.assertEqual(found.datagram, QUESTION)
            path: str = self.mktemp()
            with open(path, "wb") as file:
                PcapWriter(file, LinkType(linkType)).write(data, 9.0)
            self.assertIn("GET NodeInfo", self.output("decode", path).out)
        self.assertIsNone(inPacket(local, 105))

    def test_pcapng(self) -> None:
        """Sections of either byte order, several interfaces with their time units, skipped blocks."""
        rare = bytes.fromhex("f002ffff0048ffff") + TRANSPORT + QUESTION + bytes(6)
        parts = b""
        for order in "<>":
            nano = struct.pack(order + "HHB3xHHq", 9, 1, 9, 14, 8, 100)
            parts += section(order) + interface(1, order=order) + interface(247, nano, order)
            parts += block(0x0BAD, b"whatever", order)
            parts += packet(b"no datagram", order=order)
            parts += packet(rare, 2_500_000_000, 1, order)
        reported = self.output("decode", self.put(parts), "--json").json
        self.assertEqual(
            [each["where"] for each in reported], ["packet 2 at 102.500000", "packet 4 at 102.500000"]
        )
        simple = block(3, struct.pack("<I", len(rare)) + rare)
        old = block(2, struct.pack("<HHIIII", 0, 0, 0, 7_000_000, len(rare), len(rare)) + rare)
        reported = self.output("decode", self.put(section(), interface(247), simple, old), "--json").json
        self.assertEqual(
            [each["where"] for each in reported], ["packet 1 at 0.000000", "packet 2 at 7.000000"]
        )

    def test_cut(self) -> None:
        whole = Path(self.roce([TRANSPORT + QUESTION] * 2)).read_bytes()
        output = self.output("decode", self.put(whole[:-5]))
        self.assertEqual(output.out.count("GET NodeInfo"), 1)
        self.assertIn("packet 2: ", output.errors)
        broken = self.put(section(), packet(b"x"))
        self.assertIn("was not described", self.output("decode", broken).errors)

    def test_bigEndian(self) -> None:
        rare = bytes.fromhex("f002ffff0048ffff") + TRANSPORT + QUESTION + bytes(6)
        head = struct.pack(">IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 247)
        path = self.put(head, struct.pack(">IIII", 5, 250000, len(rare), len(rare)), rare)
        self.assertIn("# packet 1 at 5.250000\n", self.output("decode", path).out)

    def test_input(self) -> None:
        raw = Path(self.roce()).read_bytes()
        self.patch(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        self.assertIn("GET NodeInfo", self.output("decode").out)

    def test_truncatedOption(self) -> None:
        """An option of an interface that exceeds its block raises L{WireError}."""
        for options in (b"\x09\x00\x01\x00", b"\x0e\x00\x08\x00" + bytes(4)):
            with self.assertRaisesRegex(WireError, "an option of . bytes"):
                list(captured(io.BytesIO(section() + interface(1, options))))

    @given(st.binary(max_size=200))
    def test_anything(self, data: bytes) -> None:
        for start in (section(), section() + interface(1), bytes.fromhex("d4c3b2a1")):
            try:
                list(captured(io.BytesIO(start + data)))
            except WireError:
                pass


class RecordsTests(CommandTestCase):
    def capture(self, leaveOut: int = 0) -> str:
        """
        Return the packets of a table query, as C{--debug} shows them.

        @param leaveOut: the packet that is missing.
        """
        output = self.output("saquery", "NR", "--debug", "--debug", "--debug").errors
        path: str = self.mktemp()
        with open(path, "wb") as file:
            capture = RoCECapture(file)
            for number, text in enumerate(output.split("\n<- ")):
                lines = [line.strip() for line in text.splitlines() if line.strip().startswith("0x")]
                raw = bytes.fromhex("".join(line.partition("  ")[2] for line in lines))
                if number and number != leaveOut:
                    capture.packet(HERE, THERE, TRANSPORT + raw[:256], float(number))
        return path

    def test_records(self) -> None:
        reported = self.output("decode", self.capture(), "--json").json
        [last] = [each for each in reported if each["records"] is not None]
        names = [record["nodeDescription"]["nodeString"] for record in last["records"]]
        self.assertEqual(names, [*(f"h0000{number}" for number in range(8)), "leaf0000"])
        middle = [each for each in reported if each["frame"]["rmpp"]["data1"] == 2]
        self.assertIsNone(middle[0]["fields"])
        text = self.output("decode", self.capture()).out
        self.assertEqual(text.count("# NodeRecord\n"), 9)

    def test_recorded(self) -> None:
        path = self.mktemp()
        Path(path).write_bytes(raw("mad-rmpp"))
        lines = self.output("decode", path, "-l", "1").out.splitlines()
        parts = [line.partition("TID 0x1100000099")[2] for line in lines]
        self.assertEqual(parts[1:3], [" part 1", " ACK 1, up to 65 may come"])
        self.assertEqual((len(parts), [part for part in parts if "(last)" in part]), (9, [" part 5 (last)"]))

    def test_misnumbered(self) -> None:
        """A table is not shown if a packet has a number beyond that of the last one."""
        tables = DecodedTables()
        for number in (1, 9, 3):
            rmpp = RMPPHeader(version=1, type=RMPPType.DATA, active=True, last=number == 3, data1=number)
            header = MADHeader(managementClass=ManagementClass.SUBN_ADM)
            self.assertIsNone(tables.records(SAFormat(header=header, rmpp=rmpp).encode()))

    def test_incomplete(self) -> None:
        reported = self.output("decode", self.capture(leaveOut=3), "--json").json
        self.assertEqual([each for each in reported if each["records"]], [])
