"""
C{txrdma decode}.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from twisted.trial.unittest import SkipTest

from txrdma.iba.types import LID
from txrdma.mad.core.frames import managementPacket
from txrdma.mad.layouts.attributes import Method
from txrdma.test.support.captures import raw
from txrdma.test.support.mad.command_decode import CaptureTestCase, TRANSPORT
from txrdma.test.support.mad.simulated import gmp


class WiresharkTests(CaptureTestCase):
    slowBecause = "starts tshark"

    def test_recorded(self) -> None:
        program = shutil.which("tshark")
        if program is None:
            raise SkipTest("tshark is not installed")
        names = "frame.number infiniband.mad.method infiniband.mad.attributeid infiniband.mad.transactionid"
        words = [word for name in names.split() for word in ("-e", name)]
        for recorded, many in (("mad-multi", 24), ("mad-rmpp", 9), ("rping", 5), ("rc-pingpong", 0)):
            path = self.put(raw(recorded))
            done = subprocess.run(
                [program, "-r", path, "-Y", "infiniband.mad", "-T", "fields", *words],
                check=True,
                capture_output=True,
                text=True,
            )
            theirs = [[int(text, 0) for text in line.split()] for line in done.stdout.splitlines()]
            self.assertEqual(len(theirs), many)
            if not many:
                self.assertIn("no management datagram", str(self.said("decode", path).status))
                continue
            ours = []
            for each in self.said("decode", path, "--json").json:
                header = each["frame"]["header"]
                number = int(each["where"].split()[1])
                method = Method[header["method"]] if header["method"] in Method.__members__ else 0
                ours.append([number, int(method), header["attributeID"], header["transactionID"]])
            self.assertEqual(ours, theirs, recorded)

    def test_same(self) -> None:
        """A capture that tshark has written as pcapng is read as tshark reads it."""
        program = shutil.which("tshark")
        if program is None:
            raise SkipTest("tshark is not installed")
        from txrdma.iba.types import GUID
        from txrdma.mad.layouts.smp import NodeInfo, PortInfo

        attributes = [NodeInfo(nodeGUID=GUID.fromInt(0x123456), numPorts=36), PortInfo(lid=LID(77), lmc=3)]
        sent = [
            managementPacket(
                Method.GET_RESP, 0x1111 * (1 + number), kind.attributeID, 5, kind.encode(), gmp(7), 0
            )
            for number, kind in enumerate(attributes)
        ]
        classic = self.roce(TRANSPORT + each for each in sent)
        path: str = self.mktemp()
        subprocess.run([program, "-r", classic, "-w", path, "-F", "pcapng"], check=True, capture_output=True)
        self.assertEqual(Path(path).read_bytes()[:4], bytes.fromhex("0a0d0d0a"))
        names = (
            "frame.time_epoch infiniband.mad.method infiniband.mad.attributeid infiniband.mad.transactionid "
            "infiniband.mad.attributemodifier infiniband.nodeinfo.nodeguid infiniband.portinfo.lid "
            "infiniband.portinfo.lmc ip.src"
        ).split()
        done = subprocess.run(
            [program, "-r", path, "-T", "json", *(word for name in names for word in ("-e", name))],
            check=True,
            capture_output=True,
        )
        theirs = [packet["_source"]["layers"] for packet in json.loads(done.stdout)]
        ours = self.said("decode", path, "--json").json
        self.assertEqual(len(ours), 2)
        for mine, other in zip(ours, theirs, strict=True):
            header = mine["frame"]["header"]
            self.assertEqual(float(mine["where"].split()[-1]), float(other["frame.time_epoch"][0]))
            self.assertIn(other["ip.src"][0], mine["front"][0])
            for name, number in (
                ("method", Method[header["method"]]),
                ("attributeid", header["attributeID"]),
                ("transactionid", header["transactionID"]),
                ("attributemodifier", header["attributeModifier"]),
            ):
                self.assertEqual(int(other[f"infiniband.mad.{name}"][0], 0), number, name)
        self.assertEqual(theirs[0]["infiniband.nodeinfo.nodeguid"], ["0x0000000000123456"])
        self.assertEqual(ours[0]["fields"]["nodeGUID"], "0000:0000:0012:3456")
        lid = int(theirs[1]["infiniband.portinfo.lid"][0], 0)
        self.assertEqual((ours[1]["fields"]["lid"], ours[1]["fields"]["lmc"]), (lid, 3))
