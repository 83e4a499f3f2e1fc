"""
Simulations of the byte transfer layer, by seeds that the clock draws.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.btl.scenario import simulate
from txrdma.testing.btl.simulate import run
from txrdma.testing.verbs.simulate import drawSeed

_SEEDS = 40


class ScenarioTests(SynchronousTestCase):
    """Every message is delivered once, or its sender is told."""

    def test_seeds(self) -> None:
        """Simulations by seeds that nobody has chosen keep all promises."""
        first = drawSeed()
        self.assertEqual(run(first, _SEEDS, quiet=True), 0)

    def test_same(self) -> None:
        """A seed repeats what it did, packet by packet."""
        self.assertEqual(simulate(11), simulate(11))
