"""Captures of L{txrdma.iba.pcap} against tshark and scapy."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.captures import captured
from txrdma.iba.headers import AETH, BTH, ImmDt, Opcode, RETH
from txrdma.iba.pcap import CapturePosition
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import QPN, RKey
from txrdma.test.support.captures import packets, raw
from txrdma.test.support.iba.scapyroce import scapyRoCE
from txrdma.test.support.tshark import fieldsIn
from txrdma.test.unit.iba.test_pcap import HERE, HERE6, recorded, THERE, THERE6


class RoCECaptureTests(SynchronousTestCase):
    slowBecause = "starts tshark"

    def tshark(self, content: bytes, *fields: str) -> list[list[str]]:
        """Return the fields of each packet of a capture file, decoded by tshark."""
        path = Path(self.mktemp())
        path.write_bytes(content)
        options = ("-n", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE")
        return fieldsIn(path, fields, *options)

    def test_scapy(self) -> None:
        """Scapy builds the same frame: checksums, lengths and ICRC are correct."""
        reference = scapyRoCE()
        body = RoCEPacket(BTH(opcode=Opcode.RC_SEND_ONLY, psn=9), (), b"hello").encode()
        for record in captured(BytesIO(recorded((HERE, THERE, body), (HERE6, THERE6, body)))):
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
        """Tshark decodes the kernel's packets and txrdma's captures of them identically."""
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
