"""Changes of a connection's paths in a simulation: cuts, migrations by command, and rearming."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Final

from twisted.internet.task import Clock

from txrdma.iba.verbs import MigrationState, QPAttributes, QPState
from txrdma.sim.network import SimulatedNetwork
from txrdma.testing.outcome import check
from txrdma.testing.verbs.peers import Peer
from txrdma.testing.verbs.plans import DeparturePlan, PairPlan

_STEP: Final = 0.001
_MOST_STEPS: Final = 300


class PathChanges:
    """
    Changes of paths between two sides with two paths.

    Each change waits until both sides are ready for it, or until the end of the simulation.

    @ivar cuts: number of paths that were cut while both sides could migrate.
    """

    def __init__(
        self, clock: Clock, plan: PairPlan, network: SimulatedNetwork, alice: Peer, bob: Peer
    ) -> None:
        self._clock = clock
        self._plan = plan
        self._noise = Random(f"paths {plan.seed}")
        self._network = network
        self._sides = alice, bob
        self._left = deque(plan.departures)
        self._steps = _MOST_STEPS
        self.cuts = 0

    def begin(self) -> None:
        """Schedule the first change."""
        self._clock.callLater(self._plan.changesAt, self._step)

    def _step(self) -> None:
        """Make the next change if both sides are ready, and schedule another attempt."""
        self._steps -= 1
        sides = self._sides
        if not self._left or self._steps == 0 or any(side.qp.state is not QPState.RTS for side in sides):
            return
        states = {side.qp.query().migrationState for side in sides}
        if states == {MigrationState.ARMED}:
            self._leave(self._left.popleft())
        elif states == {MigrationState.MIGRATED}:
            self._rearm()
        self._clock.callLater(_STEP * self._noise.randrange(1, 10), self._step)

    def _path(self) -> int | None:
        """Return the path that both sides use, or None if they differ."""
        here, there = (side.qp.query().port for side in self._sides)
        return here if here == there else None

    def _leave(self, plan: DeparturePlan) -> None:
        """Request that the sides migrate to the other path."""
        path = self._path()
        if path is not None and plan.isCut:
            self.cuts += 1
            self._network.partition(f"10.0.{path}.1", f"10.0.{path}.2")
        else:
            for number in plan.sides:
                side = self._sides[number]
                side.qp.modify(QPAttributes(migrationState=MigrationState.MIGRATED))

    def _rearm(self) -> None:
        """Heal the network after a migration, and arm the former path as the alternate one."""
        check(self._path() is not None, "both sides have migrated, but to different paths")
        self._network.heal()
        here, there = self._sides
        for side, peer in ((here, there), (there, here)):
            port = side.qp.query().port
            assert port is not None
            address = peer.addressOf(3 - port)
            side.qp.modify(QPAttributes(alternateAddress=address, migrationState=MigrationState.REARM))
