"""
CLC messages of version 2, as tshark decodes them.
"""

from __future__ import annotations

import struct
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import GID, MACAddress
from txrdma.smc.wire import clc
from txrdma.test.support.captures import SMC_GO
from txrdma.test.support.smc.clc import ends
from txrdma.test.support.tshark import captureOf, fieldsIn


class TsharkTests(SynchronousTestCase):
    """txrdma's messages of version 2, as tshark decodes them."""

    gid = GID.fromIP("10.77.0.1")
    mac = MACAddress(b"client")
    eid = clc.enterpriseID("EXAMPLE.COM")

    def shown(self, message: clc.Message, *fields: str) -> list[str]:
        """
        Return the values of fields that tshark finds in a message.

        @raise SkipTest: tshark is not installed.
        """
        content = message.encode()
        tcp = struct.pack(">HHIIBBHHH", 40000, 5001, 1, 1, 0x50, 0x18, 1000, 0, 0) + content
        ip = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, 0x0A4D0001, 0x0A4D0002)
        packet = bytes.fromhex("0200000000010200000000020800") + ip + tcp
        with captureOf([packet]) as capture:
            ((malformed, *found),) = fieldsIn(capture, ("_ws.malformed", *fields))
        self.assertEqual(malformed, "")
        return found

    def test_proposalHasBothVersionsPrefixAndEIDs(self) -> None:
        extension = clc.ProposalV2(
            self.gid, (self.eid, clc.enterpriseID("B")), 1, maxConnections=255, maxLinks=1
        )
        prefix = clc.IPv6Prefix(prefix=GID.fromIP("2001:db8::").raw, length=64)
        proposal = clc.Proposal(b"12345678", self.gid, self.mac, ipv6Prefixes=(prefix,), version=2,
                                smcd=clc.SMCDArea(), v2=extension)  # fmt: skip
        found = self.shown(
            proposal,
            *("smc.length", "smc.proposal.smc.version", "smc.proposal.smc.type", "smc.proposal.smcv2.type"),
            *("smc.proposal.sender.client.peer.id", "smc.proposal.client.preferred.gid"),
            *("smc.proposal.smcv1_subnet_ext_offset", "smc.proposal.smcv2_ext_offset"),
            *("smc.proposal.ipv6.prefix.value", "smc.proposal.ipv6.prefix.length"),
            *("smc.proposal.smc.version.relnum", "smc.proposal.rocev2.gid.ipv4", "smc.proposal.eid"),
        )
        expected = [str(len(proposal.encode())), "2", "0", "0", "0x3132333435363738", "::ffff:10.77.0.1"]
        expected += ["0x0028", "0x0035", "2001:db8::", "64", "1", "10.77.0.1"]
        self.assertEqual(found[:-1], expected)
        self.assertEqual([each.rstrip() for each in found[-1].split(",")], ["EXAMPLE.COM", "B"])

    def test_proposalOfVersion2HasNoSubnet(self) -> None:
        proposal = clc.Proposal(b"12345678", GID(bytes(16)), MACAddress(bytes(6)), version=2,
                                typeV1=clc.SMCKind.NONE, smcd=clc.SMCDArea(),
                                v2=clc.ProposalV2(self.gid, (self.eid,), 1))  # fmt: skip
        fields = ("smc.proposal.smc.type", "smc.proposal.smcv2_ext_offset", "smc.proposal.rocev2.gid.ipv4")
        self.assertEqual(self.shown(proposal, *fields), ["2", "0x001c", "10.77.0.1"])

    def test_answersOfFirstContactHaveExtensionAndClientsGID(self) -> None:
        end: dict[str, Any] = {name: getattr(clc.decode(SMC_GO["accept"]), name) for name in ends}
        end |= {"gid": self.gid, "mac": self.mac, "firstContact": True, "version": 2}
        contact = clc.FirstContact(
            True, clc.OSType.LINUX, 1, b"host", clc.FirstContactV21(maxConnections=255, maxLinks=1)
        )
        accept = clc.Accept(**end, v2=clc.AnswerV2(self.eid, contact))
        names = ("first.contact", "eid", "v2_lg.type", "os.type", "smc.version.relnum", "peer.host.name")
        common = ["2", "1", "host"]
        found = [each.rstrip() for each in self.shown(
            accept, "smc.length", "smc.accept.server.qp.number", "smc.accept.initial.psn",
            *(f"smc.accept.{name}" for name in names[1:]))]  # fmt: skip
        self.assertEqual(found, ["160", "0x0000e4", "0x72f5fe", "EXAMPLE.COM", "1", *common])
        confirm = clc.Confirm(**end, v2=clc.AnswerV2(self.eid, contact, (self.gid,)))
        found = [each.rstrip() for each in self.shown(
            confirm, "smc.length", "smc.confirm.client.qp.number", "smc.initial.psn",
            "smc.confirm.gid.list.entry",
            *(f"smc.confirm.{name}" for name in (*names[:2], *names[3:])))]  # fmt: skip
        expected = ["180", "0x0000e4", "0x72f5fe", "::ffff:10.77.0.1", "1", "EXAMPLE.COM", *common]
        self.assertEqual(found, expected)

    def test_declineHasDiagnosisOfItsVersion(self) -> None:
        fields = ("smc.length", "smc.decline.smc.version", "smc.decline.osync", "smc.peer.diag.info")
        found = self.shown(clc.Decline.inVersion(2, b"12345678", clc.Diagnosis.SYNCERR), *fields)
        self.assertEqual(found, ["44", "2", "1", ",".join(["0x04000000"] + 4 * ["0x00000000"])])
        found = self.shown(clc.Decline.inVersion(1, b"12345678", clc.Diagnosis.NOUEID), *fields)
        self.assertEqual(found, ["28", "1", "0", "0x03030008"])
