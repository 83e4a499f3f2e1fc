"""Simulations of the byte transfer layer."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.btl.plans import drawModules
from txrdma.testing.btl.scenario import playModules
from txrdma.testing.btl.userplans import drawUsers
from txrdma.testing.btl.users import playUsers
from txrdma.testing.plantests import playingStored
from txrdma.testing.programs import ProgramError


@playingStored("btl")
class ScenarioTests(SynchronousTestCase):
    """Every message is delivered once, or reported to its sender as failed; C{make simulate} has more."""

    def test_same(self) -> None:
        """A plan reproduces its simulation, packet by packet."""
        plan = drawModules(11)
        self.assertEqual(playModules(plan), playModules(plan))


@playingStored("btl-users")
class UserScenarioTests(SynchronousTestCase):
    """Programs that call the API at random get every result, and every message once."""

    def test_same(self) -> None:
        """A plan reproduces its simulation, packet by packet."""
        plan = drawUsers(11)
        self.assertEqual(playUsers(plan), playUsers(plan))
        self.flushLoggedErrors(ProgramError)
