"""Tests for L{txrdma.iba.pcap}: against recorded files."""

from __future__ import annotations

import struct
from io import BytesIO

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.captures import captured
from txrdma.iba.headers import BTH
from txrdma.iba.pcap import (
    CapturedDatagram,
    CapturePosition,
    LinkType,
    PcapWriter,
    RoCECapture,
)
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import MACAddress
from txrdma.test.support.captures import names, packets, raw, records, segments
from txrdma.test.unit.iba.test_roce import rocePackets

HERE = CapturePosition("10.0.0.1", 49152, MACAddress.fromString("02:00:0a:00:00:01"))
THERE = CapturePosition("10.0.0.2", 4791, MACAddress.fromString("02:00:0a:00:00:02"))
HERE6 = CapturePosition("2001:db8::1", 49153, HERE.mac)
THERE6 = CapturePosition("2001:db8::2", 5555, THERE.mac)


def recorded(*sent: tuple[CapturePosition, CapturePosition, bytes]) -> bytes:
    """Return a capture file of these packets, a millisecond apart."""
    out = BytesIO()
    capture = RoCECapture(out)
    for number, (source, destination, packet) in enumerate(sent):
        capture.packet(source, destination, packet, 1700000000 + number / 1000)
    return out.getvalue()


class FileTests(SynchronousTestCase):
    def test_rewritten(self) -> None:
        """Every recorded file that is read and written again is unchanged."""
        for name in names():
            out = BytesIO()
            writer = PcapWriter(out, nanoseconds=False)
            for record in captured(BytesIO(raw(name))):
                writer.write(record.data, record.when)
            again, original = out.getvalue(), raw(name)
            self.assertEqual(again[24:], original[24:], name)
            self.assertEqual((again[:4], again[20:24]), (original[:4], original[20:24]))

    def test_nanoseconds(self) -> None:
        """Times are stored in microseconds, including the last one of a second."""
        out = BytesIO()
        writer = PcapWriter(out, LinkType.RAW_IP)
        for when in (0.0, 1.9999999999, 1700000000.123456):
            writer.write(b"packet", when)
        found = list(captured(BytesIO(out.getvalue())))
        self.assertEqual({record.linkType for record in found}, {LinkType.RAW_IP})
        for record, when in zip(found, (0.0, 2.0, 1700000000.123456), strict=True):
            self.assertEqual(record.data, b"packet")
            self.assertAlmostEqual(record.when, when, places=6)

    def test_flushed(self) -> None:
        """Packets are written to the file immediately, so that a killed process leaves a valid capture."""
        path = self.mktemp()
        with open(path, "wb") as file:
            writer = PcapWriter(file)
            for count in range(1, 4):
                writer.write(b"x" * count, 1.0)
                with open(path, "rb") as other:
                    self.assertEqual(len(list(captured(other))), count)

    def test_cut(self) -> None:
        """A file that ends within a record raises WireError after the complete records."""
        whole = raw("tcp-client")
        for end in (3, 23, 30, 41, len(whole) - 1):
            with self.assertRaises(WireError):
                list(captured(BytesIO(whole[:end])))

    def test_simplePackets(self) -> None:
        """A simple packet block of pcapng has as many bytes as the interface stores, and padding."""
        section = b"\x0a\x0d\x0d\x0a" + struct.pack("<IIHHqI", 28, 0x1A2B3C4D, 1, 0, -1, 28)
        for snapLength, stored, expected in ((5, b"12345\0\0\0", b"12345"), (0, b"1234567\0", b"1234567")):
            interface = struct.pack("<IIHHII", 1, 20, 1, 0, snapLength, 20)
            packet = struct.pack("<III8sI", 3, 24, 7, stored, 24)
            (found,) = captured(BytesIO(section + interface + packet))
            self.assertEqual(found.data, expected)

    def test_lies(self) -> None:
        """A record with an excessive length, and a file of another format, are refused."""
        header = raw("tcp-client")[:24]
        self.assertRaises(WireError, list, captured(BytesIO(header + b"\0" * 8 + b"\xff" * 8)))
        self.assertRaises(WireError, list, captured(BytesIO(b"\x0a\x0d\x0d\x0a" + bytes(40))))

    @given(st.binary(max_size=200))
    def test_anyFile(self, content: bytes) -> None:
        """Any file is read or raises WireError."""
        try:
            list(captured(BytesIO(raw("tcp-client")[:24] + content)))
        except WireError:
            pass


class DatagramTests(SynchronousTestCase):
    """Extraction of UDP datagrams from frames."""

    @given(st.data(), st.sampled_from([LinkType.ETHERNET, LinkType.RAW_IP]))
    def test_anyFrame(self, draw: st.DataObject, link: LinkType) -> None:
        """Any frame, also an almost valid one, yields a datagram, nothing or a WireError."""
        frame = bytearray(records("ud-pingpong")[-1].data)
        for _ in range(draw.draw(st.integers(0, 3))):
            frame[draw.draw(st.integers(0, 50))] = draw.draw(st.integers(0, 255))
        content = bytes(frame[: draw.draw(st.integers(0, len(frame)))])
        try:
            found = CapturedDatagram.decode(content, link)
        except WireError:
            return
        if found is not None:
            self.assertIn(found.payload, content)
            self.assertEqual(found.udp.length, 8 + len(found.payload))

    def test_rawIP(self) -> None:
        """Datagrams are found without Ethernet headers, too."""
        data = records("verbs")[0].data
        self.assertEqual(CapturedDatagram.decode(data[14:], LinkType.RAW_IP), CapturedDatagram.decode(data))

    def test_other(self) -> None:
        """TCP, fragments and ARP yield nothing."""
        tcp = segments("tcp-client")
        self.assertTrue(tcp)
        self.assertEqual(
            [CapturedDatagram.decode(record.data) for record in records("tcp-client")], [None] * len(tcp)
        )
        fragment = bytearray(records("verbs")[0].data)
        fragment[20] = 0x20
        self.assertIsNone(CapturedDatagram.decode(bytes(fragment)))
        fragment[14] = 0x50  # IP version 5 is invalid
        self.assertIsNone(CapturedDatagram.decode(bytes(fragment)))


class RoCECaptureTests(SynchronousTestCase):
    @given(rocePackets())
    def test_readBack(self, packet: RoCEPacket) -> None:
        """Captured packets are read back with a valid ICRC, for both IP versions."""
        body = packet.encode()
        content = recorded((HERE, THERE, body), (THERE6, HERE6, body))
        found = [CapturedDatagram.decode(record.data) for record in captured(BytesIO(content))]
        for datagram, sender in zip(found, (HERE, THERE6), strict=True):
            assert datagram is not None
            self.assertEqual(datagram.payload[:-4], body)
            self.assertEqual((datagram.udp.sourcePort, datagram.udp.destinationPort), (sender.port, 4791))

    def test_asRecorded(self) -> None:
        """A kernel's packet is captured as its frame, except identification, checksums and ICRC."""
        for sent in packets("rc-pingpong"):
            source = CapturePosition(sent.source, sent.udp.sourcePort, HERE.mac)
            destination = CapturePosition(sent.destination, sent.udp.destinationPort, THERE.mac)
            frame = next(iter(captured(BytesIO(recorded((source, destination, sent.payload[:-4])))))).data
            ours = CapturedDatagram.decode(frame)
            assert ours is not None
            same = {"identification": 0, "checksum": 0}
            self.assertEqual(ours.ip.replace(**same), sent.ip.replace(**same))
            self.assertEqual(ours.udp.replace(checksum=0), sent.udp.replace(checksum=0))
            self.assertEqual(ours.payload[:-4], sent.payload[:-4])

    def test_manyFlows(self) -> None:
        """New source ports do not use memory."""
        capture = RoCECapture(BytesIO())
        body = RoCEPacket(BTH()).encode()
        for port in range(3000):
            capture.packet(HERE._replace(port=port), THERE, body, 0.0)
        self.assertLess(len(capture._flows), 1100)
