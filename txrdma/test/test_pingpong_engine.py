"""
The roles of pingpong measure what they say, in simulated time.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.pingpong.engine import answer, ask
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import LinkSettings, Measure, Test, Transfer
from txrdma.sim.network import Faults
from txrdma.test.pingpongs import SimulatedLinks


class EngineTests(SimulatedLinks, SynchronousTestCase):
    """Over a network of which all delays are known."""

    def run_(self, test: Test, faults: Faults | None = None) -> tuple[Measurement, Measurement]:
        """What both ends have in the end."""
        settings = LinkSettings(
            test.transfer.kind,
            test.size,
            test.depth,
            inline=test.inline,
            check=test.check,
            atomics=test.transfer is Transfer.ATOMIC,
        )
        here, there = self.links(settings, faults)
        answering, asking = answer(there, test), ask(here, test)
        done: list[Measurement] = []
        asking.done.addCallback(done.append)
        self.runUntil(lambda: bool(done))
        self.assertNoResult
        concluded: list[Measurement] = []
        answering.conclude(asking.messages).addCallback(concluded.append)
        self.runUntil(lambda: bool(concluded))
        if test.measure is Measure.BIDIRECTIONAL:
            asking.conclude(answering.messages).addCallback(concluded.append)
            self.runUntil(lambda: len(concluded) == 2)
        return done[0], concluded[0]

    def test_all(self):
        for transfer in Transfer:
            for measure in Measure:
                for check in (False, True):
                    t = Test(
                        transfer,
                        measure,
                        8 if transfer is Transfer.ATOMIC else 600,
                        200,
                        check=check,
                        depth=16,
                    )
                    try:
                        a, b = self.run_(t)
                        print(
                            transfer,
                            measure,
                            check,
                            a.messages,
                            a.nanoseconds,
                            a.wrong,
                            b.wrong,
                            a.peak,
                            a.lost,
                            len(a.samples) and a.samples.summary(),
                        )
                    except Exception:
                        import traceback

                        traceback.print_exc()
