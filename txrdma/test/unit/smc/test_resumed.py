"""
Steps of a negotiation that wait while other events arrive.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.handshake.negotiation import _resumed


class ResumedTests(SynchronousTestCase):
    """Suspended steps of a negotiation end with their caller."""

    def setUp(self) -> None:
        self.waited: Deferred[None] = Deferred()
        self.ended: list[str] = []
        self.steps = self.wait()
        self.rest = _resumed(self.steps, self.steps.send(None))
        next(self.rest)

    async def wait(self) -> None:
        try:
            await self.waited
        finally:
            self.ended.append("ended")

    def test_abandonedWaiterEndsSteps(self) -> None:
        self.rest.close()
        self.assertEqual(self.ended, ["ended"])

    def test_collectedStepsAreNoError(self) -> None:
        self.steps.close()
        self.rest.close()
        self.assertEqual(self.ended, ["ended"])
