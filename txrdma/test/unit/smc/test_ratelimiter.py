"""
The rate limit of new link groups.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.group.ratelimiter import AT_ONCE, GroupRateLimiter, SPAN


class PassingClock(Clock):
    """A clock whose time passes during each call, and which refuses negative delays, as reactors do."""

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kw: object
    ) -> IDelayedCall:
        assert delay >= 0
        self.rightNow += 1e-6
        return super().callLater(delay, callable, *args, **kw)


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

    def test_longIteration(self) -> None:
        """Callers in an iteration of the reactor that takes longer than an interval wait for the next one."""
        clock = PassingClock()
        limiter = GroupRateLimiter(clock)
        for _ in range(AT_ONCE):
            limiter.wait()
        first = limiter.wait()
        clock.rightNow += 2 * SPAN
        second = limiter.wait()
        assert first is not None and second is not None
        clock.advance(0)
        self.assertEqual((self.successResultOf(first), self.successResultOf(second)), (None, None))

    def test_callersAreAdmittedAfterClockWasSetBack(self) -> None:
        """After a step of the clock to the past, callers wait no longer than an interval."""
        clock = Clock()
        clock.advance(3600)
        limiter = GroupRateLimiter(clock)
        for _ in range(AT_ONCE):
            self.assertIs(limiter.wait(), None)
        clock.advance(-3600)
        for _ in range(AT_ONCE):
            self.assertIs(limiter.wait(), None)
        late = limiter.wait()
        assert late is not None
        clock.advance(SPAN)
        self.assertTrue(late.called)
