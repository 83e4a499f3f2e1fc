"""Plans of simulated modules of the byte transfer layer, which L{txrdma.testing.btl.scenario} runs."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

FOREVER: Final = 1e9
"""Time in seconds that no simulation reaches."""


@dataclass(frozen=True)
class ModulePlan:
    """
    The plan of one host's module.

    @ivar budget: largest number of bytes of incomplete messages.
    @ivar keepAlive: seconds after which it probes a silent peer; 0 disables probes.
    """

    budget: int
    keepAlive: float


@dataclass(frozen=True)
class ReceiveBufferPlan:
    """
    The plan of a receive buffer of C{receiver} into which C{sender} writes.

    @ivar size: bytes.
    @ivar begin: seconds after which it can be written; C{end}: after which it cannot be written any more.
    @ivar misses: fraction of the writes that fail.
    """

    sender: int
    receiver: int
    size: int
    begin: float
    end: float
    misses: float


@dataclass(frozen=True)
class PartitionPlan:
    """The plan of a period, in seconds, in which two hosts receive nothing from each other."""

    begin: float
    end: float
    one: int
    other: int


@dataclass(frozen=True)
class PausePlan:
    """The plan of a period, in seconds, in which a host does nothing; it may be endless."""

    host: int
    at: float
    seconds: float


@dataclass(frozen=True)
class OrderPlan:
    """
    The plan of one message or put.

    @ivar mayWait: whether the receiver queues it until everything that was sent before has arrived.
    @ivar isStale: whether it is a put that must be refused; C{fault}: number of its invalid destination.
    """

    size: int
    isUrgent: bool
    mayWait: bool
    isPut: bool
    isStale: bool
    fault: int


@dataclass(frozen=True)
class BurstPlan:
    """The plan of messages from one host to another in one iteration, C{at} seconds after the start."""

    at: float
    sender: int
    receiver: int
    orders: tuple[OrderPlan, ...]


@dataclass(frozen=True)
class ModulesPlan:
    """
    The plan of a simulation.

    @ivar seed: seed of the noise: fate of each packet, content of messages, altered packets.
    @ivar loss: fraction of lost packets; C{duplication}: of duplicates; C{forgery}: of packets with copies
        from wrong addresses.
    @ivar delays: minimum seconds on the command and data channels; C{jitter}: largest addition.
    @ivar death: when a host stops forever; C{pause}: when one is busy.
    @ivar liar: number of the host that alters its packets.
    """

    seed: int
    mtu: int
    loss: float
    duplication: float
    forgery: float
    delays: tuple[float, float]
    jitter: float
    partitions: tuple[PartitionPlan, ...]
    modules: tuple[ModulePlan, ...]
    landings: tuple[ReceiveBufferPlan, ...]
    death: PausePlan | None
    pause: PausePlan | None
    liar: int | None
    bursts: tuple[BurstPlan, ...]


def drawModules(seed: int) -> ModulesPlan:
    """Draw the plan of a simulation."""
    random = Random(seed)
    count = random.choice((2, 2, 3, 5))
    return ModulesPlan(
        seed=seed,
        mtu=random.choice((64, 256, 1024, 4096)),
        loss=random.choice((0.0, 0.0, 0.01, 0.05, 0.2, 0.3)),
        duplication=random.choice((0.0, 0.0, 0.02, 0.2)),
        forgery=random.choice((0.0, 0.0, 0.1)),
        delays=(random.choice((0.00005, 0.001, 0.02)), random.choice((0.00005, 0.001, 0.02))),
        jitter=random.choice((0.0, 0.0002, 0.005, 0.05)),
        partitions=_drawPartitions(random, count),
        modules=tuple(
            ModulePlan(random.choice((40_000, 100_000, 1 << 20)), random.choice((0.0, 3.0)))
            for _ in range(count)
        ),
        landings=tuple(
            _drawReceiveBuffer(random, sender, receiver)
            for sender in range(count)
            for receiver in range(count)
            if sender != receiver and random.random() < 0.5
        ),
        death=PausePlan(random.randrange(count), random.random() * 2, FOREVER)
        if random.random() < 0.15
        else None,
        pause=PausePlan(random.randrange(count), random.random(), random.choice((0.1, 3.0)))
        if random.random() < 0.2
        else None,
        liar=random.randrange(count) if random.random() < 0.15 else None,
        bursts=_drawBursts(random, count),
    )


def _drawPartitions(random: Random, count: int) -> tuple[PartitionPlan, ...]:
    partitions = []
    for _ in range(random.choice((0, 0, 1, 2))):
        begin = random.random() * 3
        end = begin + random.choice((0.01, 0.5, 4.0))
        partitions.append(PartitionPlan(begin, end, *random.sample(range(count), 2)))
    if random.random() < 0.1:
        partitions.append(PartitionPlan(random.random(), FOREVER, *random.sample(range(count), 2)))
    return tuple(partitions)


def _drawReceiveBuffer(random: Random, sender: int, receiver: int) -> ReceiveBufferPlan:
    begin = random.choice((0.0, 0.0, random.random()))
    return ReceiveBufferPlan(
        sender=sender,
        receiver=receiver,
        size=random.choice((16_384, 40_000, 100_000)),
        begin=begin,
        end=random.choice((FOREVER, begin + random.random())),
        misses=random.choice((0.0, 0.0, 0.3)),
    )


def _drawBursts(random: Random, count: int) -> tuple[BurstPlan, ...]:
    bursts = []
    hurry = random.choice((0.001, 1.0))
    left = random.choice((5, 30, 120))
    while left > 0:
        sender, receiver = random.sample(range(count), 2)
        orders = tuple(_drawOrder(random) for _ in range(random.choice((1, 1, 1, 5, 40))))
        left -= len(orders)
        bursts.append(BurstPlan(random.random() * hurry, sender, receiver, orders))
    return tuple(bursts)


def _drawOrder(random: Random) -> OrderPlan:
    return OrderPlan(
        size=random.choice((4, 4, 10, 10, 60, 60, 200, 700, 1000, 5000, 30_000)),
        isUrgent=random.random() < 0.1,
        mayWait=random.random() < 0.3,
        isPut=random.random() < 0.2,
        isStale=random.random() < 0.2,
        fault=random.randrange(3),
    )
