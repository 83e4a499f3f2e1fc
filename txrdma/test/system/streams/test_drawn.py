"""
A conversation that is drawn by a seed is played by processes.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.streams.stages import theStage
from txrdma.testing.streams.drawn import Drawn
from txrdma.testing.streams.matrix import USUAL_REACTOR, Verdict
from txrdma.testing.streams.provider import BTL, SHARED_MEMORY
from txrdma.testing.streams.report import failure


class PlayTests(SynchronousTestCase):
    """A play."""

    slowBecause = "Three plays, one after the other, start processes and wait until all has arrived."

    def test_play(self) -> None:
        """A seed is played over TCP, and then by each route that it is for."""
        reported: list[Verdict] = []
        matrix = Drawn(range(80, 81), (SHARED_MEMORY, BTL), [USUAL_REACTOR])
        matrix.play(theStage(), reported.append, 1)
        self.assertEqual((matrix.count, [each.provider for each in reported]), (2, [SHARED_MEMORY, BTL]))
        self.assertEqual([failure(each) for each in reported if not each.passed], [])
