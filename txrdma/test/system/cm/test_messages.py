"""
Messages of communication management, as tshark decodes them.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from itertools import chain

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.cm.layouts.ipcm import IPAddresses, PortSpace, serviceIDOf
from txrdma.cm.layouts.messages import (
    REQ,
)
from txrdma.cm.layouts.paths import pathFor
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID, QPN
from txrdma.test.support.cm.messages import datagramOf, KINDS
from txrdma.test.support.mad.oracles import packetOf

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
        return tsharkFields([packetOf(datagram) for datagram in datagrams], "_ws.col.Info", *fields)

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


def tsharkFields(frames: list[bytes], *fields: str) -> list[list[str]]:
    """
    Return the values of fields that tshark finds in Ethernet frames.

    @raise SkipTest: tshark is not installed.
    """
    program = shutil.which("tshark")
    if program is None:
        raise SkipTest("tshark is not installed")
    with tempfile.NamedTemporaryFile(suffix=".pcap") as capture:
        capture.write(bytes.fromhex("d4c3b2a1020004000000000000000000ffff000001000000"))
        for each in frames:
            capture.write(bytes(8) + len(each).to_bytes(4, "little") * 2 + each)
        capture.flush()
        wanted = list(chain.from_iterable(("-e", field) for field in fields))
        done = subprocess.run(
            [program, "-r", capture.name, "-T", "fields", *wanted],
            capture_output=True,
            text=True,
            check=False,
        )
    return [line.split("\t") for line in done.stdout.rstrip("\n").split("\n")]
