"""
C{txrdma perfquery}, C{decode}, and arithmetic with counters.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.command import Options
from txrdma.commands.counters import added, changed, counterNames, Rates
from txrdma.commands.decode import inPacket, stripped
from txrdma.commands.perfquery import KINDS, portNumbers
from txrdma.error import InvalidRequest
from txrdma.iba.headers import BTH, DETH, Opcode
from txrdma.iba.pcap import LinkType, PcapWriter, Place, RoCECapture
from txrdma.iba.types import LID, MACAddress, QPN
from txrdma.mad._frames import managementPacket
from txrdma.mad.attributes import Method
from txrdma.mad.pma import PortCounters, PortCountersExtended, PortXmitDataSL
from txrdma.mad.ports import openMADPort
from txrdma.sim.strings import _held
from txrdma.test.mad.commanding import CommandTestCase
from txrdma.test.mad.simulated import gmp

QUESTION = managementPacket(Method.GET, 0x1234, 0x0011, 0, b"", gmp(7), 0)
"""What is the node at LID 7?"""


class PerfQueryTests(CommandTestCase):
    """What ports have counted."""

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(openMADPort(self.clock, self.device).close)  # keeps the fabric
        [holding] = [held for (reactor, _), held in _held.items() if reactor is self.clock]
        self.fabric: Any = holding.fabric

    def test_own(self) -> None:
        """Without a target it is our own port."""
        said = self.said("perfquery")
        self.assertIn("# PortCounters: lid 1 port 1\n", said.out)
        self.assertEqual(said.fields["portSelect"], "1")

    def test_ports(self) -> None:
        """Ports are given as numbers and ranges; or all of the node's, one after the other."""
        for arguments, ports in (
            (("9", "2"), [2]),
            (("9", "1,4-6"), [1, 4, 5, 6]),
            (("9", "--loop-ports"), list(range(37))),
            (("2", "--loop-ports"), [1]),
            (("9",), [255]),
            (("9", "--all-ports"), [255]),
            (("2", "--all-ports"), [255]),
        ):
            told = self.said("perfquery", *arguments, "--json").json["ports"]
            self.assertEqual([each["portSelect"] for each in told], ports, arguments)

    def test_kinds(self) -> None:
        """All kinds of counters are asked for by name; what the port has not, it says."""
        for name, kind in KINDS.items():
            said = self.said("perfquery", "9", "1", "--kind", name, "--json")
            if said.status is None:
                self.assertEqual(said.json["attribute"], kind.__name__)
            else:
                self.assertIn("not supported", str(said.status), name)
        told = self.said("perfquery", "9", "1", "-x", "--json").json
        self.assertEqual(told["attribute"], "PortCountersExtended")

    def test_reset(self) -> None:
        """Counters are cleared when that is confirmed."""
        self.fabric.traffic(1000.0, 10.0)
        self.clock.advance(5)
        before = int(self.said("perfquery", "2").fields["portXmitData"])
        self.assertGreater(before, 0)
        self.patch(sys, "stdin", io.StringIO())
        self.assertIn("--yes", str(self.said("perfquery", "2", "--reset").status))
        said = self.said("perfquery", "2", "--reset", "--yes")
        self.assertGreaterEqual(int(said.fields["portXmitData"]), before)
        self.assertLess(int(self.said("perfquery", "2").fields["portXmitData"]), before)
        self.assertEqual(self.said("perfquery", "2", "--reset-only", "--yes").out, "cleared\n")

    def test_mask(self) -> None:
        """Only what the mask names is cleared."""
        self.fabric.traffic(1000.0, 10.0)
        self.clock.advance(5)
        said = self.said("perfquery", "2", "-R", "--yes", "--mask", "0x1000", "--debug", "--debug")
        self.assertIn("PortCounters.counterSelect 0x1000", said.errors)

    def test_watch(self) -> None:
        """Rates are those of the traffic that there is."""
        counters = self.fabric.port("h00001").count()
        counters.grow(self.clock.seconds(), portXmitData=250_000.0, portRcvPkts=1000.0)
        said = self.said("perfquery", "2", "--watch", "2", "--count", "3", "--json")
        told = [json.loads(line) for line in said.out.splitlines()]
        self.assertEqual(len(told), 3)
        for [port] in told:
            self.assertAlmostEqual(port["seconds"], 2, places=3)
            self.assertAlmostEqual(port["xmitBytesPerSecond"], 1e6, delta=1e4)
            self.assertAlmostEqual(port["rcvPktsPerSecond"], 1e3, delta=10)
        self.assertIn("1.000", self.said("perfquery", "2", "-w", "2", "-c", "1").out)

    def test_mistakes(self) -> None:
        """What makes no sense is refused."""
        for arguments, words in (
            (["1", "x"], "1,4-7"),
            (["1", "9-3"], "from 0 to 255"),
            (["1", "300"], "from 0 to 255"),
            (["--kind", "foo"], "vlwait"),
            (["--watch", "1", "--reset"], "don't go together"),
        ):
            error = self.assertRaises(UsageError, Options().parseOptions, ["perfquery", *arguments])
            self.assertIn(words, str(error))
        self.assertEqual(portNumbers("1,4-6"), [1, 4, 5, 6])


class CountersTests(SynchronousTestCase):
    """Sums, differences, rates."""

    def test_added(self) -> None:
        """A sum stops at the highest value, as a counter does; arrays are added one by one."""
        one = PortCounters(portSelect=1, portRcvErrors=65000, linkDownedCounter=3)
        told = added([one, one], 255)
        self.assertEqual((told.portSelect, told.portRcvErrors, told.linkDownedCounter), (255, 65535, 6))
        lanes = PortXmitDataSL(portXmitDataSL=tuple(range(16)))
        self.assertEqual(added([lanes, lanes], 255).portXmitDataSL, tuple(range(0, 32, 2)))

    def test_changed(self) -> None:
        """A difference of two looks; a counter that was cleared began at zero again."""
        before = PortCounters(portXmitPkts=10, portRcvPkts=10)
        after = PortCounters(portXmitPkts=15, portRcvPkts=4)
        told = changed(before, after, ["portXmitPkts", "portRcvPkts"])
        self.assertEqual(told, {"portXmitPkts": 5, "portRcvPkts": 4})

    def test_rates(self) -> None:
        """Data is counted in words of four bytes; in no time nothing happens."""
        rates = Rates(1, 2.0, {"portXmitData": 100, "portXmitPkts": 8})
        told = rates.toDict()
        self.assertEqual((told["xmitBytesPerSecond"], told["xmitPktsPerSecond"]), (200.0, 4.0))
        self.assertEqual(told["rcvBytesPerSecond"], 0.0)
        self.assertEqual(Rates(1, 0.0, {"portXmitData": 1}).perSecond("portXmitData"), 0.0)

    def test_names(self) -> None:
        """What selects is no counter."""
        names = counterNames(PortCountersExtended)
        self.assertEqual(names[0], "portXmitData")
        self.assertFalse({"portSelect", "counterSelect", "counterSelect2"} & set(names))


class DecodeTests(CommandTestCase):
    """Datagrams explained."""

    def test_hexadecimal(self) -> None:
        """Blanks, colons, C{0x} and offsets of dumps don't matter."""
        digits = QUESTION.hex()
        dump = "\n".join(f"0x{at:04x}  {QUESTION[at : at + 16].hex(' ', 4)}" for at in range(0, 256, 16))
        for text in (digits, "0x" + digits, QUESTION.hex(":"), QUESTION.hex(" "), dump, digits[:48]):
            said = self.said("decode", text)
            self.assertIn("SUBN_LID GET NodeInfo modifier 0x0 TID 0x1234", said.out)

    def test_input(self) -> None:
        """Standard input, or a file with hexadecimal."""
        self.patch(sys, "stdin", io.StringIO(QUESTION.hex()))
        self.assertIn("GET NodeInfo", self.said("decode").out)
        path = self.mktemp()
        Path(path).write_text(QUESTION.hex())
        self.assertIn("GET NodeInfo", self.said("decode", path).out)

    def test_levels(self) -> None:
        """One line, fields, bytes."""
        said = [self.said("decode", QUESTION.hex(), "--level", level).out for level in "123"]
        sizes = [len(text.splitlines()) for text in said]
        self.assertEqual(sizes[0], 1)
        self.assertTrue(sizes[0] < sizes[1] < sizes[2])

    def test_json(self) -> None:
        """For programs: frame, attribute, fields."""
        [told] = self.said("decode", QUESTION.hex(), "--json").json
        self.assertEqual(list(told), ["where", "frame", "attribute", "fields"])
        self.assertEqual((told["attribute"], told["fields"]["numPorts"]), ("NodeInfo", 0))
        self.assertEqual(told["frame"]["header"]["transactionID"], 0x1234)

    def test_headers(self) -> None:
        """Headers in front are found and skipped."""
        transport = BTH(opcode=Opcode.UD_SEND_ONLY, destination=QPN(1)).encode()
        transport += DETH(qkey=0x80010000, source=QPN(1)).encode()
        local = bytes.fromhex("0002000700000001")
        for front in (b"", bytes(64), bytes(56), transport, local + transport):
            self.assertEqual(stripped(front + QUESTION), QUESTION, len(front))
        withGRH = bytes.fromhex("0003000700000001") + bytes(40) + transport
        self.assertEqual(stripped(withGRH + QUESTION), QUESTION)

    def test_capture(self) -> None:
        """All datagrams of a capture, whatever else is in it."""
        path = self.mktemp()
        transport = BTH(opcode=Opcode.UD_SEND_ONLY, destination=QPN(1)).encode()
        transport += DETH(qkey=0x80010000, source=QPN(1)).encode()
        here = Place("192.0.2.1", 50000, MACAddress.fromString("02:00:00:00:00:01"))
        there = Place("192.0.2.2", 4791, MACAddress.fromString("02:00:00:00:00:02"))
        with open(path, "wb") as file:
            capture = RoCECapture(file)
            capture.packet(here, there, transport + QUESTION, 1.0)
            other = BTH(opcode=Opcode.RC_ACKNOWLEDGE, destination=QPN(17)).encode()
            capture.packet(here, there, other + bytes(4), 2.0)
            capture.packet(there, here, transport + QUESTION, 3.5)
        said = self.said("decode", path)
        self.assertEqual(
            [line for line in said.out.splitlines() if line.startswith("#")],
            [
                "# packet 1 at 1.000000",
                "# packet 3 at 3.500000",
            ],
        )
        self.assertEqual(said.out.count("GET NodeInfo"), 2)

    def test_links(self) -> None:
        """Captures of InfiniBand, and those in the extensible record format, begin with other headers."""
        transport = BTH(opcode=Opcode.UD_SEND_ONLY).encode() + DETH().encode()
        packet = bytes.fromhex("f002ffff0048ffff") + transport + QUESTION + bytes(6)
        self.assertEqual(inPacket(packet, 247), QUESTION)
        for head in (bytes(8) + bytes([21]) + bytes(7), bytes(8) + bytes([0x95]) + bytes(7) + bytes(8)):
            self.assertEqual(inPacket(head + packet, 197), QUESTION)
        path = self.mktemp()
        with open(path, "wb") as file:
            PcapWriter(file, LinkType(247)).write(packet, 9.0)
        self.assertIn("GET NodeInfo", self.said("decode", path).out)

    def test_nonsense(self) -> None:
        """What is no datagram is refused in one line."""
        for text in ("hello", "00" * 256, "01", "ff" * 300):
            self.assertIn("txrdma decode: ", str(self.said("decode", text).status))
        self.assertRaises(InvalidRequest, stripped, b"")
        for length in range(0, 300, 7):  # whatever it is, it does not end in a traceback
            try:
                stripped(bytes(range(256))[:length] * 2)
            except InvalidRequest:
                pass
        self.assertIsNone(inPacket(b"\0" * 30, 247))
        self.assertIsNone(inPacket(b"\0" * 30, 197))
        self.assertEqual(LID(7), gmp(7).dlid)
