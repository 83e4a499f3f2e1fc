"""
Messages of communication management, as tshark decodes them.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.layouts.ipcm import IPAddresses, PortSpace, serviceIDOf
from txrdma.cm.layouts.messages import REQ
from txrdma.cm.layouts.paths import pathFor
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID, QPN
from txrdma.test.support.cm.messages import datagramOf, KINDS
from txrdma.test.support.mad.oracles import packetOf
from txrdma.test.support.tshark import captureOf, fieldsIn

TSHARK_NAMES = [
    *("ConnectRequest", "MsgRcptAck", "ConnectReject", "ConnectReply", "ReadyToUse", "DisconnectRequest"),
    *("DisconnectReply", "ServiceIDResReq", "ServiceIDResReqResp"),
    *("LoadAlternatePath", "AlternatePathResponse"),
]


class TsharkTests(SynchronousTestCase):
    """Messages of txrdma and of the kernel, as tshark decodes them."""

    slowBecause = "starts tshark"

    def shown(self, datagrams: list[bytes], *fields: str) -> list[list[str]]:
        """
        Return the values of fields that tshark finds in datagrams, after its name for each datagram.

        @raise SkipTest: tshark is not installed.
        """
        with captureOf(map(packetOf, datagrams)) as capture:
            return fieldsIn(capture, ("_ws.col.Info", *fields))

    def test_names(self) -> None:
        """tshark decodes each of the eleven messages with its name."""
        names = [row[0].removeprefix("CM: ") for row in self.shown([datagramOf(kind()) for kind in KINDS])]
        self.assertEqual(names, TSHARK_NAMES)

    def test_request(self) -> None:
        """The fields of a REQ are at the offsets that tshark uses."""
        request = REQ(
            localCommID=0x11223344,
            serviceID=serviceIDOf(PortSpace.TCP, 7174),
            localCAGUID=GUID.fromInt(0xA1B2C3D4E5F60718),
            localQPN=QPN(0x1234),
            responderResources=3,
            initiatorDepth=4,
            startingPSN=0xABCDE,
            primary=pathFor(IBPath(sgid=GID.fromIP("10.0.0.1"), dgid=GID.fromIP("10.0.0.2"), hopLimit=64)),
            privateData=IPAddresses("10.0.0.1", 4000, "10.0.0.2").toPrivateData(b"hello").ljust(92, b"\0"),
        )
        ((_, *found),) = self.shown(
            [datagramOf(request)],
            *(f"infiniband.cm.req{name}" for name in ("", ".serviceid.dport", ".localqpn", ".responderres")),
            *(f"infiniband.cm.req.{name}" for name in ("initdepth", "startpsn", "ip_cm.sport")),
            *(f"infiniband.cm.req.{name}" for name in ("ip_cm.sip4", "ip_cm.dip4")),
        )
        wanted = [0x11223344, 7174, 0x1234, 3, 4, 0xABCDE, 4000]
        self.assertEqual([int(text, 0) for text in found[:7]], wanted)
        self.assertEqual(found[7:], ["10.0.0.1", "10.0.0.2"])
