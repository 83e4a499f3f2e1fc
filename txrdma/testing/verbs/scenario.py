"""
A simulation of two queue pairs, all of it by a seed, and the promises that must hold in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

from txrdma.iba.types import MTU
from txrdma.iba.verbs import Operation, Status
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.network import SimulatedNetwork
from txrdma.testing.outcome import check, Outcome
from txrdma.testing.verbs.clients import ClientsScenario
from txrdma.testing.verbs.faultprofile import faultProfile
from txrdma.testing.verbs.pathchanges import PathChanges
from txrdma.testing.verbs.peers import MESSAGES, Peer, SENDS

_LONGEST_NAP: Final = 0.05
"""Less than connections of these simulations take for a failure."""

_PATIENCE: Final = 600.0
_MOST_PACKETS: Final = 200_000
"""A READ of 64 KiB whose answers come in disorder may cost a quarter of that: all the rest at each gap."""
_CLIENTS: Final = 5
"""One of so many simulations has more than two sides."""


class Scenario:
    """A simulation of two peers, connected through a bad network."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"scenario {seed}")
        self.clock = SimulatedClock()
        faults, self.fair = faultProfile(self.random)
        self.network = SimulatedNetwork(self.clock, seed, faults)
        code = self.random.choice((MTU.MTU_256, MTU.MTU_512, MTU.MTU_1024))
        self.mtu = code.bytes
        self.paths = self.random.choice((1, 1, 2))
        self.alice, self.bob = (
            Peer(
                self.network,
                self.random,
                tuple(f"10.0.{path}.{host}" for path in range(1, self.paths + 1)),
                code,
                self.random.random() < 0.3,
            )
            for host in (1, 2)
        )
        psns = self._psn(), self._psn()
        reads = self.random.choice((1, 1, 2, 4, 16))
        self.alice.join(self.bob, code, psns, reads, 7)
        self.bob.join(self.alice, code, psns[::-1], reads, 7)
        self.changes = PathChanges(self.clock, self.random, self.network, self.alice, self.bob)

    def _psn(self) -> int:
        """Often just before it wraps."""
        return self.random.choice((self.random.randrange(1 << 24), (1 << 24) - self.random.randrange(1, 40)))

    def run(self) -> Outcome:
        """
        Play the simulation to its end.

        @raise txrdma.testing.outcome.Violation: a promise was broken.
        """
        spoil = self.random.random() < 0.2
        if self.random.random() < 0.1:
            self.fair = False
            self.clock.callLater(self.random.random() * 0.02, self.cut, range(1, self.paths + 1))
            if self.random.random() < 0.7:
                self.clock.callLater(self.random.random() * 0.5, self.network.heal)
        self.alice.plan(self.bob, self.random.randrange(1, 12), self.mtu, spoil)
        self.bob.plan(self.alice, self.random.randrange(0, 8), self.mtu, False)
        for side, peer in ((self.alice, self.bob), (self.bob, self.alice)):
            self._schedule(side, peer)
        if self.paths > 1:
            self.changes.begin()
        self._planNaps()
        self._settle()
        if self.alice.broken or self.bob.broken:
            self._breakUp(spoil)
        else:
            for side in (self.alice, self.bob):
                check(
                    not side.posted or not any(p.request.signaled for p in side.posted), "requests are left"
                )
                check(not side.messages, "messages are left")
                peer = self.bob if side is self.alice else self.alice
                while side.posted:  # unsignaled ones at the end
                    side._done(side.posted.popleft(), peer)
        self.alice.checkMemory(self.bob)
        self.bob.checkMemory(self.alice)
        return self._close()

    def cut(self, paths: Iterable[int]) -> None:
        """Let nothing pass by these paths any more."""
        for path in paths:
            self.network.partition(f"10.0.{path}.1", f"10.0.{path}.2")

    def _planNaps(self) -> None:
        """Now and then a process is busy with something else."""
        random = Random(f"naps {self.seed}")
        for host in (1, 2):
            for _ in range(random.choice((0, 0, 1, 3))):
                begin = random.random() * 0.1
                end = begin + random.random() * _LONGEST_NAP
                for path in range(1, self.paths + 1):
                    address = f"10.0.{path}.{host}"
                    self.clock.callLater(begin, self.network.sleep, address)
                    self.clock.callLater(end, self.network.wake, address)

    def _schedule(self, side: Peer, peer: Peer) -> None:
        """Spread what a side does over some milliseconds."""
        random = self.random
        left = len(side.planned)
        for planned in side.planned:
            if planned.request.operation not in MESSAGES:
                continue
            length = len(planned.data)
            room = length - 1 if planned.spoilt == "too long" else length + random.choice((0, 0, 7))
            if planned.request.operation not in SENDS:
                room = random.choice((0, 16))
            when = random.choice((0.0, random.random() * 0.02))
            peer.rooms.append(room)
            self.clock.callLater(when, peer.receiveNext)
        while left > 0:
            count = random.randint(1, left)
            left -= count
            self.clock.callLater(random.random() * 0.02, side.post, peer, count)

    def _settle(self) -> None:
        """Let time pass until nothing more would happen."""
        clock = self.clock
        end = clock.seconds() + _PATIENCE
        while clock.calls:
            clock.advance(max(0.0, clock.calls[0].getTime() - clock.seconds()))
            self.alice.poll(self.bob)
            self.bob.poll(self.alice)
            check(clock.seconds() < end and self.network.sent < _MOST_PACKETS, "it never ends")

    def _breakUp(self, spoil: bool) -> None:
        """When one side is gone, the other one must learn it as soon as it sends."""
        check(spoil or not self.fair, f"a connection broke in fair weather: {self._failures()}")
        for side, peer in ((self.alice, self.bob), (self.bob, self.alice)):
            if not side.broken:
                side.planned.append(side._operation(peer, 1000, Operation.RDMA_WRITE, 1, ""))
                side.planned[-1].request.signaled = True
                side.post(peer, len(side.planned))
                self._settle()
            check(side.broken, "the peer is gone, but sending to it succeeds")
            left = 0 if side.shared is None else len(side.shared.receives)
            check(len(side.receives) == left, "a queue pair failed, but its receives were not flushed")

    def _failures(self) -> list[Status]:
        return [side.failure for side in (self.alice, self.bob) if side.failure is not None]

    def _close(self) -> Outcome:
        outcome = Outcome(
            self.seed,
            self.alice.completed + self.bob.completed,
            sum(planned.done for side in (self.alice, self.bob) for planned in side.atomics),
            self._failures(),
            self.network.sent,
            self.network.dropped,
            self.alice.migrations + self.bob.migrations,
            self.clock.seconds(),
        )
        for side in (self.alice, self.bob):
            side.device.close()
        self._settle()
        return outcome


def simulate(seed: int) -> Outcome:
    """
    Play the simulation with this seed.

    @raise txrdma.testing.outcome.Violation: a promise was broken.
    """
    return (ClientsScenario(seed) if seed % _CLIENTS == _CLIENTS - 1 else Scenario(seed)).run()
