"""Plans of programs that use C{rdma:} and C{rsocket:}, which L{txrdma.testing.cm.users} runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from txrdma.iba.types import MTU
from txrdma.sim.network import Faults
from txrdma.testing.programs import drawFaults


class When(Enum):
    """When a program acts: at a time, or in a callback."""

    TIME = "at a time"
    BUILD = "buildProtocol"
    MADE = "connectionMade"
    RECEIVED = "dataReceived or messageReceived"
    READ_LOST = "readConnectionLost"
    WRITE_LOST = "writeConnectionLost"
    LOST = "connectionLost"
    RESUME = "resumeProducing"
    PAUSE = "pauseProducing"
    STOP = "stopProducing"
    RESULT = "the callback of a Deferred"
    START_FACTORY = "startFactory"
    STOP_FACTORY = "stopFactory"


class Act(Enum):
    """An act of the program at one end of a connection, or an event."""

    WRITE = "write, or send a message"
    SEND = "write a sequence, or send a message with a Deferred"
    MANY = "write several times"
    TRICKLE = "write in several iterations of the reactor"
    PUSH = "register a push producer"
    PULL = "register a pull producer"
    SECOND = "register a second producer"
    SWITCH = "replace the producer by one of the other kind"
    UNREGISTER = "unregister the producer"
    PAUSE = "pause, and resume later"
    RESUME = "resume"
    SHARE = "share memory"
    UNSHARE = "close shared memory"
    READ = "read from memory of the peer"
    PUT = "write into memory of the peer"
    ADD = "add to a number in memory of the peer"
    SWAP = "compare and swap a number in memory of the peer"
    MAP = "map memory of a stream"
    UNMAP = "unmap memory of a stream"
    PUT_MAPPED = "write into memory that the peer has mapped"
    WAIT_MAPPED = "wait until the peer has mapped memory"
    KEEPALIVE = "start or stop probes of a stream"
    ALTERNATE = "load an alternate path"
    MIGRATE = "load an alternate path, and then cut the other one for a long time"
    CANCEL = "cancel one of the last results, or all"
    CLOSE = "close the connection"
    HALF = "close the write side"
    QUIT = "stop producing, as the consumer of received data"
    ABORT = "abort the connection"
    RAISE = "raise an exception"
    REFUSE = "refuse the connection"
    CANCEL_CONNECT = "cancel the attempt to connect"
    CONNECT = "begin a spare connection"
    STOP_LISTENING = "stop listening"
    LISTEN = "listen again"
    FAIL = "let the queue pair fail"
    STOP = "stop the reactor"
    KILL = "kill the process"
    CLOCK = "set the clock of the host"
    SLEEP = "be busy for some time"
    PARTITION = "lose all packets for some time"
    PORT_DOWN = "disable the port of the device for some time"


EVENTS: Final = frozenset((Act.CLOCK, Act.SLEEP, Act.PARTITION, Act.PORT_DOWN, Act.KILL))
"""Those that are not acts of a program."""

CONTROLS: Final = frozenset((Act.REFUSE, Act.CANCEL_CONNECT, Act.CONNECT, Act.STOP_LISTENING, Act.LISTEN))
"""Those that need no connection."""

_USUAL: Final = (
    *(Act.WRITE,) * 6,
    *(Act.SEND,) * 6,
    *(Act.MANY,) * 3,
    *(Act.TRICKLE,) * 3,
    *(Act.PUSH,) * 3,
    *(Act.PULL,) * 2,
    *(Act.PAUSE,) * 3,
    *(Act.CANCEL,) * 3,
    *(Act.READ, Act.READ, Act.PUT, Act.PUT, Act.ADD, Act.ADD, Act.SWAP, Act.SWAP, Act.SHARE, Act.SHARE),
    *(Act.MAP, Act.MAP, Act.PUT_MAPPED, Act.PUT_MAPPED, Act.WAIT_MAPPED),
    *(
        Act.SECOND,
        Act.SWITCH,
        Act.SWITCH,
        Act.UNREGISTER,
        Act.RESUME,
        Act.KEEPALIVE,
        Act.ALTERNATE,
        Act.MIGRATE,
    ),
)
_RARE: Final = (
    *(Act.CONNECT, Act.CONNECT, Act.STOP_LISTENING, Act.LISTEN, Act.LISTEN),
    *(Act.CLOCK, Act.CLOCK, Act.SLEEP, Act.PARTITION, Act.PORT_DOWN),
)
_FATAL: Final = (
    *(Act.CLOSE, Act.CLOSE, Act.HALF, Act.HALF, Act.QUIT, Act.ABORT, Act.RAISE, Act.RAISE, Act.RAISE),
    *(Act.REFUSE, Act.CANCEL_CONNECT, Act.UNSHARE, Act.UNMAP, Act.FAIL, Act.STOP, Act.KILL),
)
_SEQUENCES: Final[tuple[tuple[tuple[int, Act], ...], ...]] = (
    ((1, Act.PAUSE), (0, Act.MANY), (0, Act.CLOSE), (1, Act.CLOSE)),
    ((1, Act.PAUSE), (0, Act.MANY), (1, Act.CLOSE), (0, Act.CLOSE)),
    ((1, Act.PAUSE), (0, Act.MANY), (0, Act.HALF), (1, Act.HALF), (1, Act.CLOSE)),
    ((1, Act.PAUSE), (0, Act.CLOSE), (1, Act.SEND), (1, Act.MANY), (1, Act.RESUME)),
    *(((1, Act.PAUSE), *((0, Act.SEND),) * 7, (0, Act.CLOSE), (0, Act.CANCEL)),) * 3,
    ((1, Act.PAUSE), *((0, Act.SEND),) * 5, (0, Act.SHARE), (1, Act.PUT), (0, Act.CANCEL)),
    ((1, Act.PAUSE), (0, Act.PUSH), (0, Act.SWITCH), (0, Act.CANCEL), (1, Act.RESUME)),
    ((1, Act.PAUSE), (0, Act.TRICKLE), (0, Act.SEND), (1, Act.RESUME)),
    ((0, Act.MAP), (1, Act.WAIT_MAPPED), (1, Act.PUT_MAPPED), (1, Act.CANCEL), (0, Act.UNMAP)),
    ((0, Act.MAP), (0, Act.PAUSE), (1, Act.MANY), (1, Act.PUT_MAPPED), (1, Act.SEND), (0, Act.RESUME)),
    ((0, Act.MIGRATE), (1, Act.MIGRATE), (0, Act.SEND), (1, Act.MANY)),
    ((0, Act.ALTERNATE), (1, Act.ALTERNATE), (0, Act.PUSH), (1, Act.CANCEL), (0, Act.CANCEL)),
    ((0, Act.SHARE), (1, Act.READ), (1, Act.PUT), (1, Act.ADD), (1, Act.CANCEL), (0, Act.UNSHARE)),
)
"""Acts that follow each other: 0 is an act of one end, 1 of the other."""

_CALLBACKS: Final = tuple(when for when in When if when is not When.TIME)


@dataclass(frozen=True)
class ActPlan:
    """
    The plan of an act.

    @ivar when: C{TIME}, or the callback in which it is made; C{nth}: in which call of that, from 0 on.
    @ivar at: seconds after the end is connected, or for events and acts without a connection after the
        begin of the simulation; C{seconds}: duration, or change of a clock.
    @ivar connection: number of the connection; C{end}: 0 for the client, 1 for the server.
    @ivar size: bytes of one write or message; C{number}: of these, or of the result to cancel.
    """

    when: When
    nth: int
    at: float
    connection: int
    end: int
    act: Act
    size: int
    number: int
    seconds: float


@dataclass(frozen=True)
class EndPlan:
    """
    The terms of an end; those of a service apply to all its connections.

    @ivar messageBytes: the length of receives of C{rdma:}; C{longest}: of the longest message.
    @ivar receives: their number; C{sends}: number of outstanding requests; C{reads}: of outstanding reads.
    @ivar usesCredits: whether it limits messages by credits.
    @ivar buffer: bytes of each buffer of C{rsocket:}; C{mappings}: number of mappings.
    @ivar private: number of bytes of private data, if so many are possible.
    @ivar isHalfCloseable: whether its protocols provide C{IHalfCloseableProtocol}.
    """

    messageBytes: int
    longest: int
    receives: int
    sends: int
    reads: int
    usesCredits: bool
    buffer: int
    mappings: int
    private: int
    isHalfCloseable: bool


@dataclass(frozen=True)
class ServicePlan:
    """
    The plan of a service.

    @ivar host: number of its host.
    @ivar isStream: whether it is one of C{rsocket:}.
    @ivar backlog: limit of its connections that are not yet established; 0 for the default.
    """

    host: int
    isStream: bool
    terms: EndPlan
    backlog: int = 0


@dataclass(frozen=True)
class ConnectionPlan:
    """
    The plan of a connection.

    @ivar at: seconds until the client begins to connect; None for a spare connection.
    @ivar service: number of the service; C{host}: of the client's host; C{terms}: of the client.
    @ivar ending: the end that closes it at last: 0, 1, 2 for both, or 3 for both by halves.
    @ivar timeout: seconds until the attempt of a client of C{rdma:} fails; 0 for the default.
    @ivar isSecured: whether a stream of C{rsocket:} begins TLS.
    """

    at: float | None
    service: int
    host: int
    terms: EndPlan
    ending: int
    timeout: float = 0.0
    isSecured: bool = False


@dataclass(frozen=True)
class DatagramPlan:
    """
    The plan of a service of datagrams, and of its client.

    @ivar at: seconds until the client begins to connect; C{timeout}: until that fails, or 0 for the default;
        C{cancelled}: until it is cancelled, 0 for in C{startProtocol}, or below 0.
    @ivar isRefused: whether there is no such service.
    @ivar private: bytes of private data.
    @ivar count: number of datagrams; C{size}: bytes of each, beside its number; C{interval}: seconds between.
    @ivar seconds: seconds from the begin until one end closes.
    @ivar isServerFirst: whether the service closes first.
    """

    at: float
    client: int
    server: int
    timeout: float
    cancelled: float
    isRefused: bool
    private: int
    count: int
    size: int
    interval: float
    seconds: float
    isServerFirst: bool


@dataclass(frozen=True)
class UsersPlan:
    """
    The plan of a simulation.

    @ivar inline: most bytes that a device sends inline; 0 for any number.
    @ivar regions: largest number of memory regions of a device; 0 for any number.
    @ivar ports: number of ports of each device.
    """

    seed: int
    hosts: int
    mtu: MTU
    inline: int
    regions: int
    faults: Faults
    services: tuple[ServicePlan, ...]
    connections: tuple[ConnectionPlan, ...]
    acts: tuple[ActPlan, ...]
    ports: int = 1
    datagrams: tuple[DatagramPlan, ...] = ()


def drawUsers(seed: int) -> UsersPlan:
    """Draw the plan of a simulation."""
    random = Random(f"cm users {seed}")
    hosts = random.choice((2, 2, 3))
    services = tuple(
        ServicePlan(
            random.randrange(hosts),
            random.random() < 0.5,
            _drawTerms(random),
            random.choice((0, 0, 0, 1, 2)),
        )
        for _ in range(random.choice((1, 1, 2, 3)))
    )
    hurry = random.choice((0.0, 0.001, 0.1, 2.0))
    count = random.choice((1, 1, 2, 3, 6))
    connections = []
    for _ in range(count):
        service = random.randrange(len(services))
        at = random.random() * hurry * random.choice((0, 1)) if random.random() < 0.85 else None
        host = random.choice([host for host in range(hosts) if host != services[service].host])
        timeout = random.choice((0.0,) * 6 + (0.001, 0.1, 1.0, 30.0))
        connections.append(
            ConnectionPlan(
                at, service, host, _drawTerms(random), random.randrange(4), timeout, random.random() < 0.2
            )
        )
    return UsersPlan(
        seed=seed,
        hosts=hosts,
        mtu=random.choice((MTU.MTU_256, MTU.MTU_1024, MTU.MTU_4096)),
        inline=random.choice((0, 0, 64, 1000)),
        regions=random.choice((0, 0, 0, 0, 0, 0, 4, 6, 10, 20)),
        faults=drawFaults(random, 0.4, (0.0, 0.02, 0.1)),
        services=services,
        connections=tuple(connections),
        acts=_drawActs(random, count, hurry),
        ports=random.choice((1, 2, 2)),
        datagrams=tuple(_drawDatagrams(random, hosts) for _ in range(random.choice((0, 0, 1, 3)))),
    )


def _drawDatagrams(random: Random, hosts: int) -> DatagramPlan:
    client, server = random.sample(range(hosts), 2)
    return DatagramPlan(
        at=random.choice((0.0, 0.001, 1.0)),
        client=client,
        server=server,
        timeout=random.choice((0.0, 0.0, 0.0, 1e-5, 0.1, 10.0)),
        cancelled=random.choice((-1.0, -1.0, -1.0, 0.0, 1e-5, 0.01)),
        isRefused=random.random() < 0.1,
        private=random.choice((0, 1, 136)),
        count=random.choice((0, 1, 5, 40)),
        size=random.choice((0, 1, 100, 252, 1000, 4092, 5000)),
        interval=random.choice((0.0, 1e-6, 0.001, 0.1)),
        seconds=random.choice((0.0, 0.001, 1.0, 10.0)),
        isServerFirst=random.random() < 0.3,
    )


def _drawTerms(random: Random) -> EndPlan:
    return EndPlan(
        messageBytes=random.choice((16, 100, 1000, 4096)),
        longest=random.choice((3000, 1 << 24)),
        receives=random.choice((1, 2, 5, 32)),
        sends=random.choice((1, 2, 8, 32)),
        reads=random.choice((0, 1, 4, 4)),
        usesCredits=random.random() < 0.8,
        buffer=random.choice((4096, 10_000, 1 << 18)),
        mappings=random.choice((0, 1, 8)),
        private=random.choice((0, 1, 40, 1000)),
        isHalfCloseable=random.random() < 0.6,
    )


def _drawActs(random: Random, connections: int, hurry: float) -> tuple[ActPlan, ...]:
    count = random.choice((3, 10, 40, 100))
    fatal = random.choice((0.0, 1 / count, 3 / count, 0.2))
    rare = random.choice((0.0, 0.05, 0.2))
    reacting = random.choice((0.0, 0.2, 0.6))
    acts, at = [], 0.0
    for _ in range(count):
        chance = random.random()
        choices = _FATAL if chance < fatal else _RARE if chance < fatal + rare else _USUAL
        if random.random() < 0.4:
            at = random.random() * (hurry + 0.01)
        act = random.choice(choices)
        isReaction = act not in EVENTS - {Act.CLOCK} and (
            act in (Act.RAISE, Act.REFUSE) or random.random() < reacting
        )
        acts.append(
            ActPlan(
                when=When.BUILD
                if act is Act.REFUSE
                else random.choice(_CALLBACKS)
                if isReaction
                else When.TIME,
                nth=random.choice((0, 0, 0, 1, 2, 5)),
                at=at,
                connection=random.randrange(connections),
                end=random.randrange(2),
                act=act,
                size=random.choice((0, 1, 8, 16, 60, 300, 1000, 3000, 12_000, 40_000)),
                number=random.choice((0, 0, 1, 2, 5, 40)),
                seconds=random.choice((0.001, 0.05, 1.0, 30.0, -0.001, -0.05, -1.0, -3600.0)),
            )
        )
    for _ in range(random.choice((0, 1, 2, 4))):
        acts += _drawSequence(random, random.randrange(connections), random.random() * (hurry + 0.01))
    return tuple(acts)


def _drawSequence(random: Random, connection: int, at: float) -> Iterator[ActPlan]:
    actor = random.randrange(2)
    size = random.choice((1, 1, 1, 300, 3000, 12_000, 40_000))
    for end, act in random.choice(_SEQUENCES):
        yield ActPlan(
            when=When.TIME,
            nth=0,
            at=at,
            connection=connection,
            end=end ^ actor,
            act=act,
            size=size,
            number=random.choice((0, 40, 40) if act in (Act.CANCEL, Act.MAP) else (5, 40)),
            seconds=2.0,
        )
        at += random.choice((0.0, 1e-6, 0.001, 0.05))
