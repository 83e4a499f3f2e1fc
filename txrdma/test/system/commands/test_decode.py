"""C{txrdma decode}."""

from __future__ import annotations

from pathlib import Path

from txrdma.mad.layouts.attributes import Method
from txrdma.test.support.captures import raw
from txrdma.test.support.mad.command_decode import CaptureTestCase
from txrdma.test.support.tshark import fieldsIn, runTshark


class WiresharkTests(CaptureTestCase):
    slowBecause = "starts tshark"

    def test_recorded(self) -> None:
        """Recorded captures, as pcap and as pcapng written by tshark, are decoded as by tshark."""
        names = (
            "frame.number infiniband.mad.method infiniband.mad.attributeid infiniband.mad.transactionid "
            "infiniband.mad.attributemodifier frame.time_epoch"
        )
        for recorded, many in (("mad-multi", 24), ("mad-rmpp", 9), ("rping", 5), ("rc-pingpong", 0)):
            path = self.put(raw(recorded))
            rows = fieldsIn(path, names.split(), "-Y", "infiniband.mad")
            reference = [[*(int(text, 0) for text in row[:5]), round(float(row[5]), 6)] for row in rows]
            self.assertEqual(len(reference), many)
            if not many:
                self.assertIn("neither management datagrams", str(self.output("decode", path).status))
                continue
            other: str = self.mktemp()
            runTshark(path, "-w", other, "-F", "pcapng")
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
