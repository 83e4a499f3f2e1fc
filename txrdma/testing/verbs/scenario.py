"""A simulation of two queue pairs according to a plan, and the promises that must hold in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Final

from txrdma.iba.verbs import Operation, Status
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.network import SimulatedNetwork
from txrdma.testing.outcome import check, Outcome
from txrdma.testing.verbs.pathchanges import PathChanges
from txrdma.testing.verbs.peers import Peer
from txrdma.testing.verbs.plans import OperationPlan, PairPlan

_PATIENCE: Final = 600.0
_MOST_PACKETS: Final = 200_000
"""Limit of packets: a reordered READ of 64 KiB may cost a quarter, since each gap repeats the rest."""


class Scenario:
    """A simulation of two peers, connected through a bad network, according to its plan."""

    def __init__(self, plan: PairPlan) -> None:
        self.plan = plan
        self.clock = SimulatedClock()
        self.network = SimulatedNetwork(self.clock, plan.seed, plan.faults)
        self.alice, self.bob = (
            Peer(
                self.network,
                Random(f"peer {host} {plan.seed}"),
                tuple(f"10.0.{path}.{host}" for path in range(1, plan.paths + 1)),
                plan.mtu,
                each,
            )
            for host, each in enumerate(plan.peers, 1)
        )
        self.alice.join(self.bob, plan.mtu, plan.reads, 7)
        self.bob.join(self.alice, plan.mtu, plan.reads, 7)
        self.changes = PathChanges(self.clock, plan, self.network, self.alice, self.bob)

    def run(self) -> Outcome:
        """
        Run the simulation to its end.

        @raise txrdma.testing.outcome.Violation: a promise was violated.
        """
        plan = self.plan
        if plan.cut is not None:
            self.clock.callLater(plan.cut.begin, self.cut, range(1, plan.paths + 1))
            if plan.cut.end is not None:
                self.clock.callLater(plan.cut.end, self.network.heal)
        self.alice.prepare(self.bob)
        self.bob.prepare(self.alice)
        for side, peer in ((self.alice, self.bob), (self.bob, self.alice)):
            self._schedule(side, peer)
        if plan.paths > 1:
            self.changes.begin()
        self._planNaps()
        self._settle()
        if self.alice.broken or self.bob.broken:
            self._breakUp(any(each.spoilt for side in plan.peers for each in side.operations))
        else:
            for side in (self.alice, self.bob):
                check(
                    not side.posted or not any(p.request.signaled for p in side.posted),
                    "requests have not completed",
                )
                check(not side.messages, "messages have not arrived")
                peer = self.bob if side is self.alice else self.alice
                while side.posted:  # unsignaled requests at the end
                    side._done(side.posted.popleft(), peer)
        self.alice.checkMemory(self.bob)
        self.bob.checkMemory(self.alice)
        return self._close()

    def cut(self, paths: Iterable[int]) -> None:
        """Drop all packets on these paths."""
        for path in paths:
            self.network.partition(f"10.0.{path}.1", f"10.0.{path}.2")

    def _planNaps(self) -> None:
        """Schedule the periods in which processes are busy."""
        for host, peer in enumerate(self.plan.peers, 1):
            for nap in peer.naps:
                for path in range(1, self.plan.paths + 1):
                    address = f"10.0.{path}.{host}"
                    self.clock.callLater(nap.begin, self.network.sleep, address)
                    if nap.end is not None:
                        self.clock.callLater(nap.end, self.network.wake, address)

    def _schedule(self, side: Peer, peer: Peer) -> None:
        for receive in side.plan.receives:
            self.clock.callLater(receive.at, side.receiveNext)
        for batch in side.plan.batches:
            self.clock.callLater(batch.at, side.post, peer, batch.count)

    def _settle(self) -> None:
        """Let time pass until nothing more is scheduled."""
        clock = self.clock
        end = clock.seconds() + _PATIENCE
        while clock.calls:
            clock.advance(max(0.0, clock.calls[0].getTime() - clock.seconds()))
            self.alice.poll(self.bob)
            self.bob.poll(self.alice)
            check(clock.seconds() < end and self.network.sent < _MOST_PACKETS, "the simulation does not end")

    def _breakUp(self, spoil: bool) -> None:
        """Check that after the failure of one side the other one fails as soon as it sends."""
        check(spoil or not self.plan.isFair, f"a connection broke without faults: {self._failures()}")
        for side, peer in ((self.alice, self.bob), (self.bob, self.alice)):
            if not side.broken:
                side.planned.append(side.operation(peer, 1000, OperationPlan(Operation.RDMA_WRITE, 1)))
                side.post(peer, len(side.planned))
                self._settle()
            check(side.broken, "the peer has failed, but sending to it succeeds")
            left = 0 if side.shared is None else len(side.shared.receives)
            check(len(side.receives) == left, "a queue pair failed, but its receives were not flushed")

    def _failures(self) -> list[Status]:
        return [side.failure for side in (self.alice, self.bob) if side.failure is not None]

    def _close(self) -> Outcome:
        counts = Counter(
            completed=self.alice.completed + self.bob.completed,
            atomics=sum(planned.done for side in (self.alice, self.bob) for planned in side.atomics),
            packets=self.network.sent,
            dropped=self.network.dropped,
            migrations=self.alice.migrations + self.bob.migrations,
            failures=len(self._failures()),
        ) + Counter(status.name for status in self._failures())
        outcome = Outcome(counts, self.clock.seconds())
        for side in (self.alice, self.bob):
            side.device.close()
        self._settle()
        return outcome


def playPair(plan: PairPlan) -> Outcome:
    """
    Run the simulation of a plan.

    @raise txrdma.testing.outcome.Violation: a promise was violated.
    """
    return Scenario(plan).run()
