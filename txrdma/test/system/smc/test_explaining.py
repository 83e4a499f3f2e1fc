"""
Conversations of SMC in captures, explained.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.support import VECTORS
from txrdma.test.support.smc.explaining import explained, packets, SMC


def theirs(name: str, fields: str, filter: str = "") -> list[list[str]]:
    """Fields of packets, as tshark reads them."""
    program = shutil.which("tshark")
    if program is None:
        raise SkipTest("tshark is not installed")
    command = [program, "-r", str(VECTORS / f"{name}.pcap"), "-T", "fields", "-Y", filter]
    command += [word for field in fields.split() for word in ("-e", field)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


class WitnessTests(SynchronousTestCase):
    """The same captures, as tshark reads them."""

    def test_messages(self) -> None:
        """CLC and CDC messages are as many as tshark finds."""
        kinds = {"1": "Proposal", "2": "Accept", "3": "Confirm", "4": "Decline"}
        for name in (*(f"smc-{each}" for each in SMC), "smc-decline"):
            counts = explained(packets(name)).conversation.counts
            messages = Counter(
                kinds[f"{int(number[4 * 2 : 4 * 2 + 2], 16)}"]
                for [number] in theirs(name, "tcp.payload", "tcp.payload")
                if number.startswith("e2d4c3d9")
            )
            self.assertEqual(
                messages, Counter({kind: n for kind in kinds.values() if (n := counts[f"clc {kind}"])}), name
            )
            cdc = [info for [info] in theirs(name, "_ws.col.Info", "infiniband") if "CDC Message" in info]
            self.assertEqual(counts["cdc"], len(cdc), name)

    def test_writes(self) -> None:
        """RDMA writes and their bytes are those that tshark finds."""
        for name in (f"smc-{each}" for each in SMC):
            counts = explained(packets(name)).conversation.counts
            lengths = [int(length) for [length] in theirs(name, "infiniband.reth.dmalen", "infiniband.reth")]
            self.assertEqual((counts["RDMA writes"], counts["bytes written"]), (len(lengths), sum(lengths)))

    def test_all(self) -> None:
        """Each SEND of a conversation is told as CDC or LLC."""
        for name in (f"smc-{each}" for each in SMC):
            counts = explained(packets(name)).conversation.counts
            sends = theirs(name, "frame.number", "infiniband.bth.opcode == 4")
            messages = counts["cdc"] + sum(n for kind, n in counts.items() if kind.startswith("llc "))
            self.assertEqual(messages, len(sends), name)
