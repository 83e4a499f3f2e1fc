"""
Two monitors with one history: many random suspensions, kills and jumps of the database's clock, and one of
them at each step of a short scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred

from txrdma.kit.lease import LEASE_SECONDS
from txrdma.monitor.diagnosis.journal import entryOf
from txrdma.sim.clock import SimulatedClock
from txrdma.tap.duty import Threads
from txrdma.test.unit.monitor import test_standby


class RandomTests(test_standby.PlanTests):
    """Plans of many seeds."""

    def plans(self) -> Iterator[test_standby.Plan]:
        """Draw plans."""
        for seed in range(60):
            yield tuple(self.drawn(Random(seed)))

    def drawn(self, random: Random) -> Iterator[tuple[str, float, float]]:
        """Draw steps until all hosts have failed."""
        left = len(self.HOSTS)
        while left:
            what = random.choice(("suspend", "suspend", "kill", "jump", "cut", "cut"))
            left -= what == "cut"
            value = random.choice((-3600.0, -2.0, 2.0, 3600.0)) if what == "jump" else random.randrange(2)
            yield what, value, random.choice((test_standby.STEP, 2.0, 4.0, 10.0))


class SteppedClock(SimulatedClock):
    """
    A clock whose calls can be interrupted.

    @ivar stops: called before each delayed call; returns True to leave it, and all later ones, for later.
    """

    stops: Callable[[], bool] = staticmethod(lambda: False)

    def advance(self, amount: float) -> None:
        self.rightNow += amount
        while self.calls and self.calls[0].getTime() <= self.rightNow and not self.stops():
            call = self.calls.pop(0)
            call.called = 1
            call.func(*call.args, **call.kw)


class StepTests(test_standby.StandbyTestCase):
    """The active monitor is suspended or killed before some of its delayed calls and results of threads."""

    slowBecause = "simulates minutes of two monitors some hundred times"
    GONE, BACK = "h00004", "h00005"
    STRIDE = 4

    def setUp(self) -> None:
        super().setUp()
        self.patch(test_standby, "SimulatedClock", SteppedClock)
        self.patch(Threads, "named", lambda threads, name: lambda *call: self.later(threads._reactor, *call))

    @staticmethod
    def later(clock: SimulatedClock, *call: Any) -> Deferred[Any]:
        """Call a function as in a thread: in a step of its own, before that of the result."""
        done: Deferred[Any] = Deferred()

        def ended(result: Any) -> None:
            if not done.called:
                done.callback(result)

        def worked() -> None:
            maybeDeferred(*call).addBoth(lambda result: clock.callLater(0.0, ended, result))

        clock.callLater(0.0, worked)
        return done

    def played(self, step: int, isKilled: bool) -> bool:
        """Play a scenario; return whether it has this step."""
        self.world = test_standby.World(self)
        world, first, second = self.pair()
        left = step

        def stops() -> bool:
            nonlocal left
            left -= 1
            if left < 0 and not first.isSuspended:
                first.isSuspended = True
                if isKilled:
                    first.kill()
            return left < 0

        first.clock.stops = stops  # type: ignore[attr-defined]  # a SteppedClock
        world.fabric.cut(self.BACK)
        world.run(2.0)
        world.fabric.cut(self.GONE)
        world.run(18.0)
        world.fabric.heal(self.BACK)
        world.run(4.0)
        isPlayed = left < 0
        world.run(2 * LEASE_SECONDS)
        first.clock.stops = SteppedClock.stops  # type: ignore[attr-defined]  # a SteppedClock
        first.isSuspended = isPlayed and isKilled
        world.run(40.0)
        (active,) = (one for one in world.processes if one.isActive and not one.isSuspended)
        where = step, isKilled
        sent = [one for one in world.sent() if one["kind"] == "node-gone"]
        for host, expected in ((self.GONE, {"firing"}), (self.BACK, {"firing", "resolved"})):
            alerts = [one for one in sent if one["where"].startswith(host)]
            statuses = [one["status"] for one in alerts]
            self.assertEqual(set(statuses), expected, where)
            self.assertEqual(sorted(statuses), statuses, where)
            self.assertEqual(len({(one["firstSeen"], one["times"]) for one in alerts}), 1, where)
        assert active.service._duty is not None and active.service._duty.writer is not None
        states = active.service._duty.writer._store.states("finding-raised")
        stored = {one.key: (one.firstSeen, one.times) for one in map(entryOf, states)}
        found = active.service.poller.findings.log.open
        self.assertEqual(stored, {key: (one.firstSeen, one.times) for key, one in found.items()}, where)
        return isPlayed

    def test_steps(self) -> None:
        """Wherever the active monitor stops, each failure has one identity, and ends after it began."""
        self.withRows()
        for isKilled in (False, True):
            step = 2 * isKilled
            while self.played(step, isKilled):
                step += self.STRIDE
                self.ended()
            self.assertGreater(step, 100)
