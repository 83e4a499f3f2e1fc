"""
Simulations of SMC-R connections between two processes of one host, which share memory.

The promises are those that L{txrdma.testing.smc.scenario} checks; here nothing is lost on the way, but bells
ring late, processes are not found or have no descriptors left, ports go down, and link groups rest when
nobody uses them.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import cast, Final
from unittest import mock

from txrdma.sim.sharedmemory import MemoryFaults, SimulatedMemory
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.soft.device import SoftDevice
from txrdma.soft.shared.sharedqueuepair import SharingReactor
from txrdma.testing.outcome import check
from txrdma.testing.smc.hosts import Host, PollingHost
from txrdma.testing.smc.plans import drawStreams, EventPlan, StreamPlan
from txrdma.testing.smc.scenario import Outcome, PATIENCE, playScenario, StreamScenario
from txrdma.testing.smc.versions import commonVersion
from txrdma.verbs import completions as completionsModule
from txrdma.verbs._busypoll import SpinBudget

_EVENTS: Final = (
    *("killed", "killed", "killed", "stopped", "reset", "frozen", "fatal", "deleted", "cancelled"),
    *("busy", "down"),
)
"""Events that may happen besides: to a process, a port, a link, or a TCP connection."""


class SleepyHost(PollingHost):
    """A process whose reactor looks at completion queues by itself, and sleeps when it finds nothing."""

    def look(self) -> bool:
        """Look at descriptors and pollables; without work, have peers ring, and look once more."""
        busy = super().look()
        if not busy:
            for pollable in list(self.pollables):
                pollable.arm()
            busy = super().look()
        return busy


@dataclass(frozen=True)
class MemoryPlan(StreamPlan):
    """
    The plan of a simulation.

    @ivar memory: faults of shared memory, in the place of the network's.
    @ivar ringBytes: bytes of the ring of each queue pair.
    @ivar isHeld: somebody listens all the time, so that link groups do not rest between connections.
    """

    memory: MemoryFaults
    ringBytes: int
    isHeld: bool


def drawMemory(seed: int) -> MemoryPlan:
    """Draw the plan of a simulation."""
    streams = drawStreams(seed, _EVENTS)
    random = Random(f"memory plan {seed}")
    delay = random.choice((1e-6, 1e-5, 1e-3))
    faults = MemoryFaults(delaySeconds=delay, bellSeconds=random.choice((0.0, 1e-5, 1e-3)))
    if streams.isBad:
        faults = MemoryFaults(
            delaySeconds=delay,
            bellSeconds=random.choice((0.0, 1e-3, 0.1)),
            refusal=random.choice((0.0, 0.3)),
            starving=random.choice((0.0, 0.1)),
        )
    events = tuple(
        replace(event, seconds=random.choice((0.01, 1.0, 20.0, PATIENCE)) * random.random())
        if event.kind == "down"
        else event
        for event in streams.events
    )
    # Whoever acknowledges here is always a program.
    return MemoryPlan(
        **{**vars(streams), "isPatient": True, "events": events},
        memory=faults,
        ringBytes=random.choice((4096, 16384, 1 << 18)),
        isHeld=random.random() < 0.5,
    )


class MemoryScenario(StreamScenario):
    """A simulation of SMC-R connections between two processes of one host, as its plan says."""

    plan: MemoryPlan
    pollingHost = SleepyHost

    def __init__(self, plan: MemoryPlan) -> None:
        super().__init__(plan)
        self.version = commonVersion(self.options.values(), known=(1,))  # memory has no use for version 2
        self.memory = SimulatedMemory(self.world.clock, plan.seed, plan.memory)
        self.isHeld = plan.isHeld
        if not self.isHeld:  # nobody listens for long: link groups rest between connections
            for use in self.uses.values():
                use.release()

    def openDevice(self, address: str) -> SoftDevice:
        """A new device of the process with that address."""
        host = cast(SharingReactor, self.hostAt(address))
        return self.memory.device(host, address, self.plan.mtu, self.plan.ringBytes)

    def happen(self, event: EventPlan) -> None:
        """Let an event happen: that a port goes down, and up again, here, others as elsewhere."""
        if event.kind != "down":
            super().happen(event)
            return
        self.kinds.append(event.kind)
        host = self.hosts[event.host]
        if not host.isDead and host.device is not None:
            host.device.setPortEnabled(1, False)
            self.world.clock.callLater(event.seconds, self._goUp, host.device)

    def _goUp(self, device: SoftDevice) -> None:
        if not device._closed:
            device.setPortEnabled(1, True)

    def die(self, host: Host, silently: bool) -> None:
        """The host's process is gone."""
        super().die(host, silently)
        self.memory.kill(host)

    def bury(self, host: Host) -> None:
        """Leave all memory as it was in the moment of death, as systems do; see C{judge}."""

    def judge(self) -> None:
        """Check what must hold when all connections have ended, then close what dead processes had open."""
        super().judge()
        for host in self.hosts:
            if host.isDead:
                super().bury(host)
        if not self.isHeld:
            self.wait(PATIENCE)
            for host in self.hosts:
                isAway = host.isDead or not (host.readers or host.writers)
                check(isAway, f"nobody uses SMC, and {host!r} watches {[*host.readers, *host.writers]}")
            calls = self.world.clock.calls
            check(not calls, f"nobody uses SMC, and there are calls: {[str(call) for call in calls]}")
            # What peers have done meanwhile is seen by the next use.
            self.uses = {host: reactorUse(host).hold() for host in self.hosts}

    def carried(self) -> tuple[int, int]:
        """Messages that were sent, and processes that were not found."""
        return self.memory.sent, self.memory.refused


@contextmanager
def ticking() -> Iterator[None]:
    """Readers that look on for a while see time go by as often as they look at the clock, and owe none."""
    ticks = 0

    def perfCounter() -> float:
        nonlocal ticks
        ticks += 1
        return ticks * 5e-6

    with (
        mock.patch.object(completionsModule, "perf_counter", perfCounter),
        mock.patch.object(completionsModule, "_budget", SpinBudget()),
        mock.patch.object(completionsModule, "sched_yield", lambda: None),
    ):
        yield


def _descriptors() -> Counter[str]:
    """Count the open descriptors of this process, by what they lead to."""
    found: Counter[str] = Counter()
    for each in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{each}")] += 1
        except OSError:
            pass  # that of the listing itself
    return found


def playMemory(plan: MemoryPlan) -> Outcome:
    """
    Play the plan of a simulation.

    @raise Violation: a promise was broken.
    """
    before = _descriptors()
    with ticking():
        outcome = playScenario(MemoryScenario, plan)
    left = _descriptors() - before
    if left:
        gc.collect()
        left = _descriptors() - before
    if {"killed", "stopped"}.isdisjoint(outcome.kinds):  # otherwise the system closes them
        check(not left, f"descriptors stay open: {left}")
    return outcome
