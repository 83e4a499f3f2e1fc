"""
Dissected captures of SMC.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support import VECTORS
from txrdma.test.support.smc.dissect import explained, packets, SMC
from txrdma.test.support.tshark import fieldsIn

FIELDS = ("frame.protocols", "tcp.payload", "_ws.col.Info", "infiniband.reth.dmalen", "infiniband.bth.opcode")


@lru_cache
def reference(name: str) -> list[dict[str, str]]:
    """Return the fields of each packet of a capture as tshark decodes them; it takes a second to start."""
    return [dict(zip(FIELDS, row, strict=True)) for row in fieldsIn(VECTORS / f"{name}.pcap", FIELDS)]


class WitnessTests(SynchronousTestCase):
    """The same captures, decoded by tshark."""

    slowBecause = "tshark is started once for each capture, which takes it a second."

    def test_messagesAreAsManyAsTsharks(self) -> None:
        kinds = {"1": "Proposal", "2": "Accept", "3": "Confirm", "4": "Decline"}
        for name in (*(f"smc-{each}" for each in SMC), "smc-decline"):
            counts = explained(packets(name)).conversation.counts
            messages = Counter(
                kinds[f"{int(number[4 * 2 : 4 * 2 + 2], 16)}"]
                for number in (packet["tcp.payload"] for packet in reference(name))
                if number.startswith("e2d4c3d9")
            )
            self.assertEqual(
                messages, Counter({kind: n for kind in kinds.values() if (n := counts[f"clc {kind}"])}), name
            )
            cdc = [
                packet
                for packet in reference(name)
                if "infiniband" in packet["frame.protocols"] and "CDC Message" in packet["_ws.col.Info"]
            ]
            self.assertEqual(counts["cdc"], len(cdc), name)

    def test_writesAndTheirBytesEqualTsharks(self) -> None:
        for name in (f"smc-{each}" for each in SMC):
            counts = explained(packets(name)).conversation.counts
            lengths = [
                int(length) for packet in reference(name) if (length := packet["infiniband.reth.dmalen"])
            ]
            self.assertEqual((counts["RDMA writes"], counts["bytes written"]), (len(lengths), sum(lengths)))

    def test_eachSendIsListedAsCDCOrLLC(self) -> None:
        for name in (f"smc-{each}" for each in SMC):
            counts = explained(packets(name)).conversation.counts
            sends = [packet for packet in reference(name) if packet["infiniband.bth.opcode"] == "4"]
            messages = counts["cdc"] + sum(n for kind, n in counts.items() if kind.startswith("llc "))
            self.assertEqual(messages, len(sends), name)
