"""
Plans of simulated SMC-R connections between two hosts, which L{txrdma.testing.smc.scenario} plays.
"""

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
"""Seconds without an answer after which TCP gives a connection up."""

EVENTS: Final = (
    *("partition", "partition", "apart", "gap", "gap"),
    *("killed", "vanished", "stopped", "reset", "frozen", "fatal", "deleted", "cancelled", "busy"),
)
"""Events that may happen besides: to the link, to a process, to a TCP connection."""

_FOREVER: Final = 1e6
_JITTERS: Final = 12


@dataclass(frozen=True)
class HostPlan:
    """
    The plan of one host.

    @ivar isPolling: its reactor polls completion queues, and no event channel wakes it.
    @ivar segments: datagrams of one send.
    @ivar ringSizes: bytes of its rings in the order in which they are needed, then from the first again.
    @ivar versions: versions of SMC-R that it speaks; C{ueids}: its enterprises, which version 2 needs.
    @ivar ports: ports of its devices; C{links}: the most links of its link groups, as L{Options} takes them.
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

    @ivar at: when it begins, in seconds.
    @ivar isReversed: the second host is its client.
    @ivar latency: seconds that TCP takes from end to end, about; C{jitter}: parts of it that are added to a
        half of it for what TCP carries, one after the other. Noise decides on what comes behind these.
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

    @ivar isPort: a port goes down, that of a host by its number; otherwise all packets are lost.
    @ivar seconds: until it works again.
    """

    isPort: bool
    host: int
    seconds: float


@dataclass(frozen=True)
class EventPlan:
    """
    The plan of an event, which is one of L{EVENTS} or of another scenario's.

    @ivar host: number of the host to which it happens.
    @ivar pick: number of the connection or link to which it happens, among those that there are then,
        modulo their number.
    @ivar seconds: how long it lasts.
    @ivar isFinal: it never ends well: a partition stays, a frozen connection is lost.
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

    @ivar seed: of the noise: faults of packets, keys, what programs do while they talk.
    @ivar isPatient: devices are acknowledged by programs, so that queue pairs wait for 18 minutes.
    @ivar isFair: the network has no faults; C{isBad}: so many that connections may fail.
    @ivar isReversed: the second host's reactor turns before the first one's.
    @ivar isRested: at the end, time passes until link groups that nobody uses have ended.
    @ivar elements: the most rings in one buffer.
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
        events=tuple(drawEvent(random, each) for each in events),
    )


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
    """Draw the plan of one event."""
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
