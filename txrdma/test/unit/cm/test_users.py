"""Simulations of programs that use C{rdma:} and C{rsocket:}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.cm.scenario import playUsers
from txrdma.testing.cm.userplans import drawUsers
from txrdma.testing.plantests import playingStored
from txrdma.testing.programs import ProgramError


@playingStored("cm-users")
class UserScenarioTests(SynchronousTestCase):
    """Programs that use the API at random get everything once; C{make simulate} has more."""

    def test_same(self) -> None:
        """A plan reproduces its simulation, packet by packet."""
        plan = drawUsers(11)
        self.assertEqual(playUsers(plan), playUsers(plan))
        self.flushLoggedErrors(ProgramError)
