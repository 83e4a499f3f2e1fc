"""
Simulations of SMC-R connections between two processes of one host, which share memory.

L{txrdma.testing.smc.scenario} checks the promises. No messages are lost, but doorbells are late, processes
are not found or run out of descriptors, ports go down, and unused link groups are suspended.
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
from txrdma.smc.stream.tcpmonitor import GRACE
from txrdma.soft.device import SoftDevice
from txrdma.soft.shared.sharedqueuepair import SharingReactor
from txrdma.testing.outcome import check, Outcome
from txrdma.testing.smc.hosts import Host, PollingHost
from txrdma.testing.smc.plans import drawStreams, EventPlan, StreamPlan
from txrdma.testing.smc.scenario import PATIENCE, playScenario, StreamScenario
from txrdma.testing.smc.versions import commonVersion
from txrdma.verbs import completions as completionsModule

_EVENTS: Final = (
    *("killed", "killed", "killed", "stopped", "reset", "frozen", "fatal", "deleted", "cancelled"),
    *("busy", "down"),
)
"""Events that may happen: to a process, a port, a link, or a TCP connection."""


class SleepyHost(PollingHost):
    """A process whose reactor polls completion queues by itself, and sleeps while they are empty."""

    def poll(self) -> bool:
        """Poll descriptors and pollables; without work, arm the pollables' doorbells, and poll once more."""
        busy = super().poll()
        if not busy:
            for pollable in list(self.pollables):
                pollable.arm()
            busy = super().poll()
        return busy


@dataclass(frozen=True)
class MemoryPlan(StreamPlan):
    """
    The plan of a simulation.

    @ivar memory: faults of shared memory, instead of the network's.
    @ivar ringBytes: size of the ring of each queue pair, in bytes.
    @ivar isHeld: whether a listener exists all the time, so that unused link groups are not suspended.
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
    connections = streams.connections
    if any(event.kind == "clock" and event.seconds > 0 for event in events):
        # A kernel delivers a FIN to its own host at once: the clock does not step forward before it arrives.
        connections = tuple(replace(each, latency=min(each.latency, 1e-5)) for each in connections)
    # Over shared memory programs always acknowledge.
    return MemoryPlan(
        **{**vars(streams), "isPatient": True, "events": events, "connections": connections},
        memory=faults,
        ringBytes=random.choice((4096, 16384, 1 << 18)),
        isHeld=random.random() < 0.5,
    )


class MemoryScenario(StreamScenario):
    """A simulation of SMC-R connections between two processes of one host, according to its plan."""

    plan: MemoryPlan
    pollingHost = SleepyHost
    endBound = GRACE + 0.5

    def __init__(self, plan: MemoryPlan) -> None:
        super().__init__(plan)
        self.version = commonVersion(self.options.values(), known=(1,))  # shared memory uses version 1 only
        self.memory = SimulatedMemory(self.world.clock, plan.seed, plan.memory)
        self.isHeld = plan.isHeld
        if not self.isHeld:  # no permanent listener: link groups are suspended
            for use in self.uses.values():
                use.release()

    def openDevice(self, address: str) -> SoftDevice:
        host = cast(SharingReactor, self.hostAt(address))
        return self.memory.device(host, address, self.plan.mtu, self.plan.ringBytes)

    def happen(self, event: EventPlan) -> None:
        """Trigger an event: a port that goes down and up again, or an event of L{StreamScenario}."""
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
        super().die(host, silently)
        self.memory.kill(host)

    def bury(self, host: Host) -> None:
        """Leave the memory of a dead process unchanged, as systems do; L{judge} releases it."""

    def judge(self) -> None:
        """Check the promises after all connections have ended, then close resources of dead processes."""
        super().judge()
        for host in self.hosts:
            if host.isDead:
                super().bury(host)
        if not self.isHeld:
            self.wait(PATIENCE)
            for host in self.hosts:
                isAway = host.isDead or not (host.readers or host.writers)
                check(isAway, f"SMC is not in use, but {host!r} watches {[*host.readers, *host.writers]}")
            calls = [call for call in self.calls() if getattr(call, "func", None) != self._goUp]
            check(not calls, f"SMC is not in use, but calls are scheduled: {[str(call) for call in calls]}")
            # The next use detects what peers have done meanwhile.
            self.uses = {host: reactorUse(host).hold() for host in self.hosts}

    def carried(self) -> tuple[int, int]:
        """Return the numbers of messages that were sent and of processes that were not found."""
        return self.memory.sent, self.memory.refused


@contextmanager
def ticking() -> Iterator[None]:
    """Make busy-polling deterministic: a fresh spin budget, and a clock that advances by 5 us per reading."""
    ticks = 0

    def perfCounter() -> float:
        nonlocal ticks
        ticks += 1
        return ticks * 5e-6

    with (
        mock.patch.object(completionsModule, "perf_counter", perfCounter),
        mock.patch.object(completionsModule, "_budget", type(completionsModule._budget)()),
    ):
        yield


def openDescriptors() -> Counter[str]:
    """Count the open descriptors of this process, by their targets."""
    found: Counter[str] = Counter()
    for each in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{each}")] += 1
        except OSError:
            pass  # the descriptor of the listing itself
    return found


def playMemory(plan: MemoryPlan) -> Outcome:
    """
    Run the simulation of a plan.

    @raise Violation: a promise was violated.
    """
    before = openDescriptors()
    with ticking():
        outcome = playScenario(MemoryScenario, plan)
    left = openDescriptors() - before
    if left:
        gc.collect()
        left = openDescriptors() - before
    if {"killed", "stopped"}.isdisjoint(outcome.counts):  # otherwise the system closes them
        check(not left, f"descriptors are still open: {left}")
    return outcome
