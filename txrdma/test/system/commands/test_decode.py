"""C{txrdma decode}."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from twisted.trial.unittest import SkipTest

from txrdma.mad.layouts.attributes import Method
from txrdma.test.support.captures import raw
from txrdma.test.support.mad.command_decode import CaptureTestCase


class WiresharkTests(CaptureTestCase):
    slowBecause = "starts tshark"

    def test_recorded(self) -> None:
        """Recorded captures, as pcap and as pcapng written by tshark, are decoded as by tshark."""
        program = shutil.which("tshark")
        if program is None:
            raise SkipTest("tshark is not installed")
        names = (
            "frame.number infiniband.mad.method infiniband.mad.attributeid infiniband.mad.transactionid "
            "infiniband.mad.attributemodifier frame.time_epoch"
        )
        words = [word for name in names.split() for word in ("-e", name)]
        for recorded, many in (("mad-multi", 24), ("mad-rmpp", 9), ("rping", 5), ("rc-pingpong", 0)):
            path = self.put(raw(recorded))
            listing = [program, "-r", path, "-Y", "infiniband.mad", "-T", "fields", *words]
            done = subprocess.run(listing, check=True, capture_output=True, text=True)
            rows = [line.split() for line in done.stdout.splitlines()]
            reference = [[*(int(text, 0) for text in row[:5]), round(float(row[5]), 6)] for row in rows]
            self.assertEqual(len(reference), many)
            if not many:
                self.assertIn("neither management datagrams", str(self.output("decode", path).status))
                continue
            other: str = self.mktemp()
            subprocess.run(
                [program, "-r", path, "-w", other, "-F", "pcapng"], check=True, capture_output=True
            )
            self.assertEqual(Path(other).read_bytes()[:4], bytes.fromhex("0a0d0d0a"))
            for capture in (path, other):
                actual = []
                for each in self.output("decode", capture, "--json").json:
                    header = each["frame"]["header"]
                    _, number, _, when = each["where"].split()
                    method = Method[header["method"]] if header["method"] in Method.__members__ else 0
                    fields = (header[name] for name in ("attributeID", "transactionID", "attributeModifier"))
                    actual.append([int(number), int(method), *fields, float(when)])
                self.assertEqual(actual, reference, recorded)
