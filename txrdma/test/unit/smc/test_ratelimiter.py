"""
The rate limit of new link groups.
"""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.group.ratelimiter import AT_ONCE, GroupRateLimiter, SPAN


class GroupRateLimiterTests(SynchronousTestCase):
    """L{GroupRateLimiter}."""

    def test_callersAreAdmittedInOrderDespiteCancelledCalls(self) -> None:
        clock = Clock()
        limiter = GroupRateLimiter(clock)
        self.assertEqual([limiter.wait() for _ in range(AT_ONCE)], [None] * AT_ONCE)
        first = limiter.wait()
        for call in clock.getDelayedCalls():
            call.cancel()
        second = limiter.wait()
        assert first is not None and second is not None
        admitted: list[int] = []
        first.addCallback(lambda _: admitted.append(1))
        second.addCallback(lambda _: admitted.append(2))
        clock.advance(SPAN)
        self.assertEqual(admitted, [1, 2])
        self.assertIs(limiter.wait(), None)
