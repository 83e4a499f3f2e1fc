"""
Tests for L{txrdma.iba.pcap}: against recorded files, tshark and scapy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from io import BytesIO

from hypothesis import given

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.iba.headers import AETH, BTH, ImmDt, Opcode, RETH
from txrdma.iba.pcap import CapturedDatagram, CapturePosition, PcapReader, RoCECapture
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import MACAddress, QPN, RKey
from txrdma.test.support.captures import packets, raw
from txrdma.test.support.iba.scapyroce import scapyRoCE
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


class RoCECaptureTests(SynchronousTestCase):
    """L{RoCECapture}."""

    slowBecause = "starts tshark"

    def tshark(self, content: bytes, *fields: str) -> list[list[str]]:
        """Return the fields of each packet of a capture file, decoded by tshark."""
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
        """Captured packets are read back with a valid ICRC, for both IP versions."""
        body = packet.encode()
        content = recorded((HERE, THERE, body), (THERE6, HERE6, body))
        found = [CapturedDatagram.decode(record.data) for record in PcapReader(BytesIO(content))]
        for datagram, sender in zip(found, (HERE, THERE6), strict=True):
            assert datagram is not None
            self.assertEqual(datagram.payload[:-4], body)
            self.assertEqual((datagram.udp.sourcePort, datagram.udp.destinationPort), (sender.port, 4791))

    def test_asRecorded(self) -> None:
        """
        A packet of the kernel is captured as the kernel's frame, except identification, checksums and ICRC.
        """
        for captured in packets("rc-pingpong"):
            source = CapturePosition(captured.source, captured.udp.sourcePort, HERE.mac)
            destination = CapturePosition(captured.destination, captured.udp.destinationPort, THERE.mac)
            frame = next(
                iter(PcapReader(BytesIO(recorded((source, destination, captured.payload[:-4])))))
            ).data
            ours = CapturedDatagram.decode(frame)
            assert ours is not None
            same = {"identification": 0, "checksum": 0}
            self.assertEqual(ours.ip.replace(**same), captured.ip.replace(**same))
            self.assertEqual(ours.udp.replace(checksum=0), captured.udp.replace(checksum=0))
            self.assertEqual(ours.payload[:-4], captured.payload[:-4])

    def test_scapy(self) -> None:
        """Scapy builds the same frame: checksums, lengths and ICRC are correct."""
        reference = scapyRoCE()
        body = RoCEPacket(BTH(opcode=Opcode.RC_SEND_ONLY, psn=9), (), b"hello").encode()
        for record in PcapReader(BytesIO(recorded((HERE, THERE, body), (HERE6, THERE6, body)))):
            packet = reference.Ether(record.data)
            for layer, names_ in ((reference.UDP, ("len", "chksum")), (reference.BTH, ("icrc",))):
                for name in names_:
                    delattr(packet[layer], name)
            if reference.IP in packet:
                del packet[reference.IP].chksum, packet[reference.IP].len
            self.assertEqual(bytes(packet), record.data)

    def test_tshark(self) -> None:
        """Tshark decodes captured packets to the same fields without warnings."""
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
        """Tshark decodes the kernel's packets and our captures of them identically."""
        for name in ("verbs", "rc-pingpong", "ud-pingpong"):
            sent = [
                (
                    CapturePosition(one.source, one.udp.sourcePort, HERE.mac),
                    CapturePosition(one.destination, one.udp.destinationPort, THERE.mac),
                    one.payload[:-4],
                )
                for one in packets(name)
            ]
            fields = ["infiniband.bth.opcode", "infiniband.bth.psn", "_ws.col.Info", "_ws.expert.message"]
            reference = [row for row in self.tshark(raw(name), *fields) if row[0]]
            self.assertEqual(self.tshark(recorded(*sent), *fields), reference)
            self.assertTrue(reference)

    def test_manyFlows(self) -> None:
        """New source ports do not use memory."""
        capture = RoCECapture(BytesIO())
        body = RoCEPacket(BTH()).encode()
        for port in range(3000):
            capture.packet(HERE._replace(port=port), THERE, body, 0.0)
        self.assertLess(len(capture._flows), 1100)
