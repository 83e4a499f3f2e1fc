"""
Measurements of pingpong's roles in simulated time.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.pingpong.engine import answer, asking
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import LinkSettings, Measure, Test, Transfer
from txrdma.sim.network import Faults
from txrdma.test.support.pingpongs import SimulatedLinks

DELAY = 10_000
"""Nanoseconds from one end to the other."""


def settingsFor(test: Test) -> LinkSettings:
    return LinkSettings(
        test.transfer.kind,
        test.size,
        test.depth,
        inline=test.inline,
        check=test.check,
        atomics=test.transfer is Transfer.ATOMIC,
    )


class EngineTests(SimulatedLinks, SynchronousTestCase):
    """Measurements over a network with known delays."""

    def play(self, test: Test, faults: Faults | None = None) -> tuple[Measurement, Measurement]:
        """Return the results of both ends."""
        here, there = self.links(settingsFor(test), faults)
        far, near = answer(there, test), asking(here, test)
        near.start()
        done: list[Measurement] = []
        near.done.addCallback(done.append)
        self.runUntil(lambda: bool(done))
        far.conclude(near.messages).addCallback(done.append)
        self.runUntil(lambda: len(done) == 2)
        if test.measure is Measure.BIDIRECTIONAL:
            near.conclude(far.messages).addCallback(done.append)
            self.runUntil(lambda: len(done) == 3)
        return done[0], done[1]

    def test_sendLatency(self) -> None:
        """A message's latency is half of its round trip."""
        mine, _peers = self.play(Test(Transfer.SEND, iterations=50))
        summary = mine.samples.summary()
        self.assertEqual((summary.count, summary.minimum, summary.maximum), (50, DELAY, DELAY))
        self.assertEqual((mine.messages, mine.nanoseconds), (50, 50 * 2 * DELAY))
