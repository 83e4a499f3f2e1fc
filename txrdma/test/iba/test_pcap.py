"""
Tests for L{txrdma.iba.pcap}: against recorded files, tshark and scapy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from io import BytesIO

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.headers import AETH, BTH, ImmDt, Opcode, RETH
from txrdma.iba.pcap import Datagram, LinkType, PcapReader, PcapWriter, Place, RoCECapture
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import MACAddress, QPN, RKey
from txrdma.test.iba.test_roce import rocePackets, scapyRoCE
from txrdma.testing.captures import messages, names, packets, raw, records, segments, streams

HERE = Place("10.0.0.1", 49152, MACAddress.fromString("02:00:0a:00:00:01"))
THERE = Place("10.0.0.2", 4791, MACAddress.fromString("02:00:0a:00:00:02"))
HERE6 = Place("2001:db8::1", 49153, HERE.mac)
THERE6 = Place("2001:db8::2", 5555, THERE.mac)


class FileTests(SynchronousTestCase):
    """Capture files."""

    def test_rewritten(self) -> None:
        """Every recorded file, read and written again, is the same file."""
        for name in names():
            out = BytesIO()
            writer = PcapWriter(out, nanoseconds=False)
            for record in PcapReader(BytesIO(raw(name))):
                writer.write(record.data, record.when)
            again, original = out.getvalue(), raw(name)
            self.assertEqual(again[24:], original[24:], name)
            self.assertEqual((again[:4], again[20:24]), (original[:4], original[20:24]))

    def test_nanoseconds(self) -> None:
        """Times are kept to a microsecond, a second's last one included."""
        out = BytesIO()
        writer = PcapWriter(out, LinkType.RAW_IP)
        for when in (0.0, 1.9999999999, 1700000000.123456):
            writer.write(b"packet", when)
        reader = PcapReader(BytesIO(out.getvalue()))
        found = list(reader)
        self.assertIs(reader.linkType, LinkType.RAW_IP)
        for record, when in zip(found, (0.0, 2.0, 1700000000.123456), strict=True):
            self.assertEqual(record.data, b"packet")
            self.assertAlmostEqual(record.when, when, places=6)

    def test_flushed(self) -> None:
        """What was written is in the file at once: a process that is killed then leaves a valid capture."""
        path = self.mktemp()
        with open(path, "wb") as file:
            writer = PcapWriter(file)
            for count in range(1, 4):
                writer.write(b"x" * count, 1.0)
                with open(path, "rb") as other:
                    self.assertEqual(len(list(PcapReader(other))), count)

    def test_cut(self) -> None:
        """A file that ends in the middle of a record raises WireError, after what is whole."""
        whole = raw("tcp-client")
        for end in (3, 23, 30, 41, len(whole) - 1):
            with self.assertRaises(WireError):
                list(PcapReader(BytesIO(whole[:end])))

    def test_lies(self) -> None:
        """A record that says it is huge is not believed, and a file of another kind is refused."""
        header = raw("tcp-client")[:24]
        self.assertRaises(WireError, list, PcapReader(BytesIO(header + b"\0" * 8 + b"\xff" * 8)))
        self.assertRaises(WireError, PcapReader, BytesIO(b"\x0a\x0d\x0d\x0a" + bytes(40)))

    @given(st.binary(max_size=200))
    def test_anyFile(self, content: bytes) -> None:
        """Any file is read, or is a WireError."""
        try:
            list(PcapReader(BytesIO(raw("tcp-client")[:24] + content)))
        except WireError:
            pass


class DatagramTests(SynchronousTestCase):
    """UDP out of frames."""

    @given(st.data(), st.sampled_from([LinkType.ETHERNET, LinkType.RAW_IP]))
    def test_anyFrame(self, draw: st.DataObject, link: LinkType) -> None:
        """Any frame is a datagram, something else, or a WireError; also one that is nearly right."""
        frame = bytearray(records("ud-pingpong")[-1].data)
        for _ in range(draw.draw(st.integers(0, 3))):
            frame[draw.draw(st.integers(0, 50))] = draw.draw(st.integers(0, 255))
        content = bytes(frame[: draw.draw(st.integers(0, len(frame)))])
        try:
            found = Datagram.decode(content, link)
        except WireError:
            return
        if found is not None:
            self.assertIn(found.payload, content)
            self.assertEqual(found.udp.length, 8 + len(found.payload))

    def test_rawIP(self) -> None:
        """Without Ethernet the same is found."""
        data = records("verbs")[0].data
        self.assertEqual(Datagram.decode(data[14:], LinkType.RAW_IP), Datagram.decode(data))

    def test_other(self) -> None:
        """TCP, fragments and ARP are none."""
        tcp = segments("tcp-client")
        self.assertTrue(tcp)
        self.assertEqual(
            [Datagram.decode(record.data) for record in records("tcp-client")], [None] * len(tcp)
        )
        fragment = bytearray(records("verbs")[0].data)
        fragment[20] = 0x20
        self.assertIsNone(Datagram.decode(bytes(fragment)))
        self.assertIsNone(Datagram.decode(b"\xff" * 12 + b"\x08\x06" + bytes(28)))


def recorded(*sent: tuple[Place, Place, bytes]) -> bytes:
    """A capture file of these packets, a millisecond apart."""
    out = BytesIO()
    capture = RoCECapture(out)
    for number, (source, destination, packet) in enumerate(sent):
        capture.packet(source, destination, packet, 1700000000 + number / 1000)
    return out.getvalue()


class RoCECaptureTests(SynchronousTestCase):
    """L{RoCECapture}."""

    def tshark(self, content: bytes, *fields: str) -> list[list[str]]:
        """What tshark finds in a capture file: the fields of each packet."""
        program = shutil.which("tshark")
        if program is None:
            raise SkipTest("tshark is not installed")
        path = self.mktemp()
        with open(path, "wb") as file:
            file.write(content)
        command = [program, "-n", "-r", path, "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]
        command += ["-T", "fields", *(part for field in fields for part in ("-e", field))]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return [line.split("\t") for line in done.stdout.splitlines()]

    @given(rocePackets())
    def test_readBack(self, packet: RoCEPacket) -> None:
        """What was recorded is read back, with an ICRC that fits, over both IP versions."""
        body = packet.encode()
        content = recorded((HERE, THERE, body), (THERE6, HERE6, body))
        found = [Datagram.decode(record.data) for record in PcapReader(BytesIO(content))]
        for datagram, sender in zip(found, (HERE, THERE6), strict=True):
            assert datagram is not None
            self.assertEqual(datagram.payload[:-4], body)
            self.assertEqual((datagram.udp.sourcePort, datagram.udp.destinationPort), (sender.port, 4791))

    def test_asRecorded(self) -> None:
        """A packet of the kernel's becomes its frame, but for identification, checksums and ICRC."""
        for captured in packets("rc-pingpong"):
            source = Place(captured.source, captured.udp.sourcePort, HERE.mac)
            destination = Place(captured.destination, captured.udp.destinationPort, THERE.mac)
            frame = next(
                iter(PcapReader(BytesIO(recorded((source, destination, captured.payload[:-4])))))
            ).data
            ours = Datagram.decode(frame)
            assert ours is not None
            same = {"identification": 0, "checksum": 0}
            self.assertEqual(ours.ip.replace(**same), captured.ip.replace(**same))
            self.assertEqual(ours.udp.replace(checksum=0), captured.udp.replace(checksum=0))
            self.assertEqual(ours.payload[:-4], captured.payload[:-4])

    def test_scapy(self) -> None:
        """Scapy makes the same frame anew: checksums, lengths and ICRC are right."""
        theirs = scapyRoCE()
        body = RoCEPacket(BTH(opcode=Opcode.RC_SEND_ONLY, psn=9), (), b"hello").encode()
        for record in PcapReader(BytesIO(recorded((HERE, THERE, body), (HERE6, THERE6, body)))):
            packet = theirs.Ether(record.data)
            for layer, names_ in ((theirs.UDP, ("len", "chksum")), (theirs.BTH, ("icrc",))):
                for name in names_:
                    delattr(packet[layer], name)
            if theirs.IP in packet:
                del packet[theirs.IP].chksum, packet[theirs.IP].len
            self.assertEqual(bytes(packet), record.data)

    def test_tshark(self) -> None:
        """Tshark takes our packets apart, finds what we put there, and complains of nothing."""
        write = RoCEPacket(
            BTH(opcode=Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, destination=QPN(0x123456), psn=7),
            (RETH(address=0xABCDEF0123456789, rkey=RKey(0x11223344), length=5), ImmDt(immediate=0xFEEDBEEF)),
            b"hello",
        )
        answer = RoCEPacket(BTH(opcode=Opcode.RC_ACKNOWLEDGE, destination=QPN(5), psn=7), (AETH.ack(3),))
        content = recorded(
            (HERE, THERE, write.encode()),
            (THERE, HERE, answer.encode()),
            (HERE6, THERE6, write.encode()),
            (THERE6, HERE6, answer.encode()),
        )
        found = self.tshark(
            content,
            "infiniband.bth.opcode",
            "infiniband.bth.destqp",
            "infiniband.bth.psn",
            "infiniband.reth.va",
            "infiniband.aeth.msn",
            "infiniband.immdt",
            "udp.checksum.status",
            "ip.checksum.status",
            "_ws.expert.message",
            "_ws.malformed",
        )
        asked = ["11", "0x123456", "7", "0xabcdef0123456789", ""]
        acknowledged = ["17", "0x000005", "7", "", "3"]
        self.assertEqual([row[:5] for row in found], [asked, acknowledged] * 2)
        self.assertEqual(["feedbeef" in row[5].replace(":", "") for row in found], [True, False] * 2)
        self.assertEqual([row[6:] for row in found], [["1", "1", "", ""]] * 2 + [["1", "", "", ""]] * 2)

    def test_tsharkRecorded(self) -> None:
        """Tshark says the same of the kernel's packets and of the same ones recorded by us."""
        for name in ("verbs", "rc-pingpong", "ud-pingpong"):
            sent = [
                (
                    Place(one.source, one.udp.sourcePort, HERE.mac),
                    Place(one.destination, one.udp.destinationPort, THERE.mac),
                    one.payload[:-4],
                )
                for one in packets(name)
            ]
            fields = ["infiniband.bth.opcode", "infiniband.bth.psn", "_ws.col.Info", "_ws.expert.message"]
            theirs = [row for row in self.tshark(raw(name), *fields) if row[0]]
            self.assertEqual(self.tshark(recorded(*sent), *fields), theirs)
            self.assertTrue(theirs)

    def test_manyFlows(self) -> None:
        """Ever new source ports cost no memory."""
        capture = RoCECapture(BytesIO())
        body = RoCEPacket(BTH()).encode()
        for port in range(3000):
            capture.packet(HERE._replace(port=port), THERE, body, 0.0)
        self.assertLess(len(capture._flows), 1100)


class CapturesTests(SynchronousTestCase):
    """L{txrdma.testing.captures}."""

    def test_streams(self) -> None:
        """CLC of the first contact is there: proposal and confirm from the client, accept from the server."""
        (client, server) = ((s, d, b) for s, d, b in streams("smc-first"))
        self.assertEqual((client[0], client[1]), (server[1], server[0]))
        self.assertEqual((len(client[2]), len(server[2])), (156 + 180, 160))
        for content in (client[2], server[2]):
            self.assertEqual((content[:4], content[-4:]), (b"\xe2\xd4\xc3\xd9",) * 2)

    def test_messages(self) -> None:
        """LLC and CDC messages of SMC-R have 44 bytes; ADD LINK of version 2 has more."""
        found = messages("smc-first")
        self.assertEqual({len(message) for _, message in found}, {44, 88})
        self.assertGreater(sum(1 for _, message in found if message[0] == 0xFE), 3)

    def test_option(self) -> None:
        """The first two segments carry the SMC option."""
        self.assertTrue(all(b"\xfe\x06\xe2\xd4\xc3\xd9" in one.options for one in segments("smc-first")[:2]))
