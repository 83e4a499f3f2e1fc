"""
Tests for L{txrdma.iba.pcap}: against recorded files.
"""

from __future__ import annotations

from io import BytesIO
from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.pcap import (
    CapturedDatagram,
    CapturePosition,
    LinkType,
    PcapReader,
    PcapWriter,
    RoCECapture,
)
from txrdma.iba.roce import UDPFlow
from txrdma.iba.types import MACAddress
from txrdma.test.support.captures import names, raw, records, segments


class FileTests(SynchronousTestCase):
    """Capture files."""

    def test_rewritten(self) -> None:
        """Every recorded file that is read and written again is unchanged."""
        for name in names():
            out = BytesIO()
            writer = PcapWriter(out, nanoseconds=False)
            for record in PcapReader(BytesIO(raw(name))):
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
        reader = PcapReader(BytesIO(out.getvalue()))
        found = list(reader)
        self.assertIs(reader.linkType, LinkType.RAW_IP)
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
                    self.assertEqual(len(list(PcapReader(other))), count)

    def test_cut(self) -> None:
        """A file that ends within a record raises WireError after the complete records."""
        whole = raw("tcp-client")
        for end in (3, 23, 30, 41, len(whole) - 1):
            with self.assertRaises(WireError):
                list(PcapReader(BytesIO(whole[:end])))

    def test_lies(self) -> None:
        """A record with an excessive length, and a file of another format, are refused."""
        header = raw("tcp-client")[:24]
        self.assertRaises(WireError, list, PcapReader(BytesIO(header + b"\0" * 8 + b"\xff" * 8)))
        self.assertRaises(WireError, PcapReader, BytesIO(b"\x0a\x0d\x0d\x0a" + bytes(40)))

    @given(st.binary(max_size=200))
    def test_anyFile(self, content: bytes) -> None:
        """Any file is read or raises WireError."""
        try:
            list(PcapReader(BytesIO(raw("tcp-client")[:24] + content)))
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
        fragment[14] = 0x50  # there is no version 5 of IP
        self.assertIsNone(CapturedDatagram.decode(bytes(fragment)))

    def test_capture(self) -> None:
        """Packets are recorded with their addresses, at RoCE's port, and with an ICRC that holds."""
        for one, other in (("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")):
            out = BytesIO()
            capture = RoCECapture(out)
            here, there = (CapturePosition(each, 50_000, MACAddress(bytes(6))) for each in (one, other))
            capture.packet(here, there, bytes(16), 1.0)
            capture.packet(there, here, bytes(20), 2.0)
            found = [CapturedDatagram.decode(each.data) for each in PcapReader(BytesIO(out.getvalue()))]
            flows = []
            for datagram in found:
                assert datagram is not None
                addresses = (str(ip_address(raw)) for raw in (datagram.ip.source, datagram.ip.destination))
                source, destination = addresses
                flow = UDPFlow(source, datagram.udp.sourcePort, destination, datagram.udp.destinationPort)
                self.assertEqual(flow.identification(datagram.payload), 0)
                flows.append((source, destination, datagram.udp.destinationPort, len(datagram.payload)))
            self.assertEqual(flows, [(one, other, 4791, 20), (other, one, 4791, 24)])
        self.assertIsNone(CapturedDatagram.decode(b"\xff" * 12 + b"\x08\x06" + bytes(28)))
