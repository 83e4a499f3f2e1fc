"""L{txrdma.messages.keepalive}: when idle peers are probed."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.forwardclock import sharedForwardClock
from txrdma.messages.keepalive import Keepalive


class KeepaliveTests(SynchronousTestCase):
    def test_clockIsSetBackAgainAndAgain(self) -> None:
        """Probes are in time although the system time is set back before each of them."""
        clock, probed = Clock(), list[None]()
        keepalive = Keepalive(clock, 2.0, lambda: probed.append(None))
        time = sharedForwardClock(clock)
        for _ in range(12):
            clock.advance(1.0)
            time.seconds()
            clock.rightNow -= 0.1
            time.seconds()
        self.assertEqual(len(probed), 6)
        keepalive.stop()
        self.assertEqual(clock.getDelayedCalls(), [])
