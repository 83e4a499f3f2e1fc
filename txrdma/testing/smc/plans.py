"""Plans of simulated SMC-R connections between two hosts, which L{txrdma.testing.smc.scenario} runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from txrdma.iba.types import MTU
from txrdma.sim.network import Faults
from txrdma.testing.smc.randomprotocols import drawEnd, EndPlan
from txrdma.testing.smc.versions import drawVersions

FREEZE: Final = 90.0
"""Seconds without an answer after which TCP gives up a connection."""

EVENTS: Final = (
    *("partition", "partition", "apart", "gap", "gap"),
    *("killed", "vanished", "stopped", "reset", "frozen", "fatal", "deleted", "cancelled", "busy"),
)
"""
Events that may happen: to the network, to a process, to a link or to a TCP connection. Another one, C{clock},
sets the system time of a host.
"""

_FOREVER: Final = 1e6
_JITTERS: Final = 12


@dataclass(frozen=True)
class HostPlan:
    """
    The plan of one host.

    @ivar isPolling: whether its reactor polls completion queues, instead of waiting for event channels.
    @ivar segments: largest number of datagrams of one send.
    @ivar ringSizes: sizes of its rings in bytes, in the order of allocation; they repeat.
    @ivar versions: SMC-R versions that it supports; C{ueids}: its UEIDs, which version 2 requires.
    @ivar ports: number of ports of its devices; C{links}: largest number of links, as in
        L{txrdma.smc.terms.options.Options}.
    """

    isPolling: bool
    segments: int
    ringSizes: tuple[int, ...]
    versions: tuple[int, ...]
    ueids: tuple[str, ...]
    ports: int = 1
    links: int | None = None


@dataclass(frozen=True)
class ConnectionPlan:
    """
    The plan of one connection.

    @ivar at: time of its beginning, in seconds.
    @ivar isReversed: whether the second host is its client.
    @ivar latency: approximate delay of TCP in one direction, in seconds; C{jitter}: fractions of it that are
        added to half of it for each transmission in turn. Further fractions are drawn from the noise.
    @ivar delays: seconds after which client and server have their TCP connection.
    """

    at: float
    isReversed: bool
    client: EndPlan
    server: EndPlan
    latency: float
    delays: tuple[float, float]
    jitter: tuple[float, ...]


@dataclass(frozen=True)
class FailurePlan:
    """
    The plan of one failure of a network.

    @ivar isPort: whether the port of host number C{host} goes down; otherwise the network loses all packets.
    @ivar seconds: duration of the failure.
    """

    isPort: bool
    host: int
    seconds: float


@dataclass(frozen=True)
class EventPlan:
    """
    The plan of an event, which is one of L{EVENTS} or of another scenario's.

    @ivar host: number of the host that it affects.
    @ivar pick: number of the connection or link that it affects, modulo the number that exist then.
    @ivar seconds: duration of the event, or the seconds by which a clock is set forward.
    @ivar isFinal: whether it is permanent: a partition is not healed, a frozen connection is lost.
    @ivar failures: failures of networks, one after the other.
    """

    kind: str
    at: float
    host: int = 0
    pick: int = 0
    seconds: float = 0.0
    isFinal: bool = False
    failures: tuple[FailurePlan, ...] = ()


@dataclass(frozen=True)
class StreamPlan:
    """
    The plan of a simulation.

    @ivar seed: seed of the noise: faults of packets, delays of TCP, keys and tokens.
    @ivar isPatient: whether programs acknowledge for devices, so that queue pairs retry for 18 minutes.
    @ivar isFair: whether the network has no faults; C{isBad}: whether so many that connections may fail.
    @ivar isReversed: whether the second host's reactor runs before the first one's.
    @ivar isRested: whether time passes at the end until unused link groups have ended.
    @ivar elements: largest number of rings in one buffer.
    """

    seed: int
    isPatient: bool
    mtu: MTU
    isFair: bool
    isBad: bool
    faults: Faults
    isReversed: bool
    isRested: bool
    elements: int
    hosts: tuple[HostPlan, HostPlan]
    connections: tuple[ConnectionPlan, ...]
    events: tuple[EventPlan, ...]


def drawStreams(seed: int, possible: Sequence[str] = EVENTS) -> StreamPlan:
    """
    Draw the plan of a simulation.

    @param possible: kinds of the events that may happen.
    """
    random = Random(f"streams {seed}")
    kind = random.randrange(20)
    isFair, isBad = kind < 4, kind in (4, 5)
    events: list[str] = []
    if kind > 12:
        events = random.choices(possible, k=random.choice((1, 1, 2)))
    elif random.random() < 0.15:
        events = ["retired"]
    clocks = Random(f"clocks {seed}")
    steps = [_drawStep(clocks)] if clocks.random() < 0.15 else []
    faults = Faults(delaySeconds=random.choice((1e-6, 1e-5, 1e-3)))
    span = random.choice((0.0, 0.05, 1.0))
    return StreamPlan(
        seed=seed,
        isPatient=random.random() < 0.25,
        mtu=random.choice((MTU.MTU_1024, MTU.MTU_1024, MTU.MTU_512, MTU.MTU_256)),
        isFair=isFair,
        isBad=isBad,
        faults=faults if isFair else _drawFaults(random, isBad),
        isReversed=random.random() < 0.5,
        isRested=random.random() < 0.25,
        elements=random.choice((1, 2, 4)),
        hosts=_drawHosts(random),
        connections=tuple(_drawConnection(random, span) for _ in range(random.choice((1, 2, 3, 3, 5, 8)))),
        events=(*(drawEvent(random, each) for each in events), *steps),
    )


def _drawStep(random: Random) -> EventPlan:
    """Draw an event that sets the system time of one host."""
    at = random.choice((0.02, 0.3, 1.0, 40.0)) * random.random()
    return EventPlan("clock", at, random.randrange(2), seconds=random.choice((-3600.0, -3600.0, 7200.0, 0.5)))


def _drawFaults(random: Random, isBad: bool) -> Faults:
    worst = 0.25 if isBad else 0.02
    delay = random.choice((1e-6, 1e-5, 1e-3))
    return Faults(
        loss=random.choice((0.0, worst * random.random())),
        duplication=random.choice((0.0, 0.05 * random.random())),
        corruption=random.choice((0.0, worst * random.random())),
        late=random.choice((0.0, 0.02)),
        delaySeconds=delay,
        jitterSeconds=random.choice((0.0, delay, 10 * delay)),
        lateSeconds=0.3,
        merging=random.choice((0.0, 0.5, 1.0)),
        congestion=random.choice((0.0, 0.0, 0.1)),
    )


def _drawHosts(random: Random) -> tuple[HostPlan, HostPlan]:
    rings = random.choice(((16384,), (16384,), (16384, 32768, 65536)))
    one, other = (
        HostPlan(
            isPolling=random.random() < 0.5,
            segments=random.choice((1, 16)),
            ringSizes=tuple(random.choices(rings, k=8)),
            versions=versions,
            ueids=ueids,
        )
        for versions, ueids in drawVersions(random, 2)
    )
    return one, other


def _drawConnection(random: Random, span: float) -> ConnectionPlan:
    longest = random.choice((2000, 50_000, 50_000, 150_000))
    client, server = drawEnd(random, longest), drawEnd(random, longest)
    if client.ending == server.ending == "wait":
        client = drawEnd(random, longest, ("lose",))
    latency = random.choice((1e-5, 1e-3, 0.02))
    return ConnectionPlan(
        at=span * random.random(),
        isReversed=random.random() < 0.2,
        client=client,
        server=server,
        latency=latency,
        delays=(latency * random.random(), latency * random.random()),
        jitter=tuple(round(random.random(), 3) for _ in range(_JITTERS)),
    )


def drawEvent(random: Random, kind: str) -> EventPlan:
    seconds, isFinal = 0.0, False
    if kind == "gap":
        seconds = 0.2 * random.random()
    elif kind in ("partition", "apart"):
        longest = random.choice((0.5, 3.0, 50.0, _FOREVER))
        seconds, isFinal = longest * random.random(), longest == _FOREVER
    elif kind == "busy":
        seconds = random.choice((0.05, 0.5, 5.0, 120.0)) * random.random()
    elif kind == "frozen":
        isFinal = random.random() < 0.5
        seconds = FREEZE if isFinal else FREEZE * random.random()
    return EventPlan(
        kind=kind,
        at=random.choice((0.02, 0.3, 1.0)) * random.random(),
        host=random.randrange(2),
        pick=random.randrange(1000),
        seconds=seconds,
        isFinal=isFinal,
    )
