"""Plans of simulated queue pairs, which L{txrdma.testing.verbs.scenario} and C{clients} run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from txrdma.iba.types import MTU
from txrdma.iba.verbs import Operation, Status
from txrdma.sim.network import Faults
from txrdma.testing.verbs.faultprofile import faultProfile

MESSAGES: Final = (Operation.SEND, Operation.SEND_WITH_IMMEDIATE, Operation.RDMA_WRITE_WITH_IMMEDIATE)
WITH_IMMEDIATE: Final = (Operation.SEND_WITH_IMMEDIATE, Operation.RDMA_WRITE_WITH_IMMEDIATE)
WRITES: Final = (Operation.RDMA_WRITE, Operation.RDMA_WRITE_WITH_IMMEDIATE)
SENDS: Final = (Operation.SEND, Operation.SEND_WITH_IMMEDIATE)
ATOMICS: Final = (Operation.COMPARE_AND_SWAP, Operation.FETCH_AND_ADD)
_OPERATIONS: Final = (
    *WRITES,
    *SENDS,
    Operation.RDMA_WRITE,
    Operation.SEND,
    Operation.RDMA_READ,
    Operation.RDMA_READ,
    *ATOMICS,
)
WORDS: Final = 3
"""Number of words for atomic operations of the peer."""

SPOILT: Final = {
    "wrong rkey": Status.REM_ACCESS_ERR,
    "out of bounds": Status.REM_ACCESS_ERR,
    "no right": Status.REM_ACCESS_ERR,
    "wrong lkey": Status.LOC_PROT_ERR,
    "too long": Status.REM_INV_REQ_ERR,
    "no atomics": Status.REM_ACCESS_ERR,
}
"""Faults of requests, and the status with which each must end."""

_LONGEST_NAP: Final = 0.05
"""Seconds of the longest nap, which connections of these simulations do not treat as a failure."""


@dataclass(frozen=True)
class OperationPlan:
    """
    The plan of one request.

    @ivar length: bytes of the message; atomic operations have none.
    @ivar spoilt: fault of the request, one of L{SPOILT}; C{spoilAt}: bit of a key, or bytes before an end.
    @ivar cuts: offsets at which its memory is split into segments.
    @ivar inline: bytes of the first of two inline pieces; None if the data is in registered memory.
    @ivar word: number of the peer's word that it changes, with C{operand}; C{compare}: expected value, where
        None is the word's value; C{gap}: unused bytes behind its result.
    @ivar isOverwritten: whether the memory that a write has changed is changed again once it is complete.
    """

    operation: Operation
    length: int
    spoilt: str = ""
    spoilAt: int = 0
    signaled: bool = True
    solicited: bool = False
    fence: bool = False
    immediate: int = 0
    cuts: tuple[int, ...] = ()
    inline: int | None = None
    word: int = 0
    operand: int = 0
    compare: int | None = None
    gap: int = 0
    isOverwritten: bool = False


@dataclass(frozen=True)
class ReceivePlan:
    """The plan of a receive of C{room} bytes, posted C{at} seconds after the start, cut into segments."""

    at: float
    room: int
    cuts: tuple[int, ...]


@dataclass(frozen=True)
class BatchPlan:
    """The plan of the time at which a number of requests or receives is posted."""

    at: float
    count: int


@dataclass(frozen=True)
class SpanPlan:
    """The plan of a period in seconds; it never ends if C{end} is None."""

    begin: float
    end: float | None


@dataclass(frozen=True)
class PeerPlan:
    """
    The plan of one side.

    @ivar segments: largest number of datagrams of one send.
    @ivar isSharing: whether its queue pair uses a shared receive queue.
    @ivar words: initial values of its words for atomic operations.
    @ivar rnrTimer: C{minRNRTimer} of its queue pair; C{timeout}: its timeout; C{psn}: its first PSN.
    @ivar batches: times at which it posts operations, and their numbers.
    @ivar naps: periods in which its process is busy.
    """

    segments: int
    isSharing: bool
    words: tuple[int, ...]
    rnrTimer: int
    timeout: int
    psn: int
    operations: tuple[OperationPlan, ...]
    receives: tuple[ReceivePlan, ...]
    batches: tuple[BatchPlan, ...]
    naps: tuple[SpanPlan, ...]


@dataclass(frozen=True)
class DeparturePlan:
    """The plan of one change of paths: the path is cut, or the sides migrate by command, in this order."""

    isCut: bool
    sides: tuple[int, ...]


@dataclass(frozen=True)
class PairPlan:
    """
    The plan of a simulation of two queue pairs.

    @ivar seed: seed of the noise: faults of packets, content of messages, times at which paths are checked.
    @ivar isFair: whether the network's faults must not end a connection.
    @ivar paths: number of ports of each side.
    @ivar reads: largest number of outstanding READs and atomics.
    @ivar cut: period in which all paths are cut.
    @ivar changesAt: time of the first change of paths; C{departures}: the changes.
    """

    seed: int
    faults: Faults
    isFair: bool
    mtu: MTU
    paths: int
    reads: int
    peers: tuple[PeerPlan, PeerPlan]
    cut: SpanPlan | None
    changesAt: float
    departures: tuple[DeparturePlan, ...]


@dataclass(frozen=True)
class RequestPlan:
    """
    The plan of one request of a client.

    @ivar length: bytes of a message.
    @ivar word: number of the word that an atomic operation changes, with C{operand}.
    """

    operation: Operation
    fence: bool
    length: int = 0
    word: int = 0
    operand: int = 0


@dataclass(frozen=True)
class PostPlan:
    """The plan of requests that a client posts together, C{at} seconds after the start."""

    at: float
    requests: tuple[RequestPlan, ...]


@dataclass(frozen=True)
class ClientPlan:
    """
    The plan of a client.

    @ivar reads: largest number of outstanding READs and atomics.
    @ivar rnrTimers: C{minRNRTimer} of its queue pair, and of the server's.
    """

    reads: int
    rnrTimers: tuple[int, int]
    posts: tuple[PostPlan, ...]


@dataclass(frozen=True)
class ClientsPlan:
    """
    The plan of a simulation of several clients.

    @ivar seed: seed of the noise: faults of packets, content of messages.
    @ivar isFair: whether the network's faults must not end a connection.
    @ivar words: initial values of the server's words.
    @ivar rooms: times at which the server posts receives, and their numbers.
    @ivar failing: number of the client whose connection fails, or None; C{failingAt}: when it fails.
    """

    seed: int
    faults: Faults
    isFair: bool
    mtu: MTU
    words: tuple[int, ...]
    clients: tuple[ClientPlan, ...]
    rooms: tuple[BatchPlan, ...]
    failing: int | None
    failingAt: float


def drawPair(seed: int) -> PairPlan:
    """Draw the plan of a simulation of two queue pairs."""
    random = Random(f"pair {seed}")
    faults, isFair = faultProfile(random)
    mtu = random.choice((MTU.MTU_256, MTU.MTU_512, MTU.MTU_1024))
    isSpoilt = random.random() < 0.2
    first = _drawOperations(random, random.randrange(1, 12), mtu.bytes, isSpoilt)
    second = _drawOperations(random, random.randrange(8), mtu.bytes, False)
    cut = None
    if random.random() < 0.1:
        begin = random.random() * 0.02
        cut = SpanPlan(begin, random.random() * 0.5 if random.random() < 0.7 else None)
    return PairPlan(
        seed=seed,
        faults=faults,
        isFair=isFair and cut is None,
        mtu=mtu,
        paths=random.choice((1, 1, 2)),
        reads=random.choice((1, 1, 2, 4, 16)),
        peers=(_drawPeer(random, first, second), _drawPeer(random, second, first)),
        cut=cut,
        changesAt=random.random() * 0.02,
        departures=tuple(
            DeparturePlan(random.random() < 0.6, tuple(random.sample((0, 1), random.choice((1, 1, 2)))))
            for _ in range(random.randrange(4))
        ),
    )


def _drawPeer(
    random: Random, operations: tuple[OperationPlan, ...], others: tuple[OperationPlan, ...]
) -> PeerPlan:
    """Draw the plan of a side with these operations, and with receives for messages of the other side."""
    batches, left = [], len(operations)
    while left > 0:
        count = random.randint(1, left)
        left -= count
        batches.append(BatchPlan(random.random() * 0.02, count))
    # Many PSNs are about to wrap.
    psn = random.choice((random.randrange(1 << 24), (1 << 24) - random.randrange(1, 40)))
    return PeerPlan(
        segments=random.choice((1, 16)),
        isSharing=random.random() < 0.3,
        words=tuple(random.randrange(1 << 64) for _ in range(WORDS)),
        rnrTimer=random.choice((1, 5, 12)),
        timeout=random.choice((12, 13, 14)),
        psn=psn,
        operations=operations,
        receives=tuple(_drawReceive(random, each) for each in others if each.operation in MESSAGES),
        batches=tuple(batches),
        naps=tuple(_drawNap(random) for _ in range(random.choice((0, 0, 1, 3)))),
    )


def _drawNap(random: Random) -> SpanPlan:
    begin = random.random() * 0.1
    return SpanPlan(begin, begin + random.random() * _LONGEST_NAP)


def _drawReceive(random: Random, message: OperationPlan) -> ReceivePlan:
    length = message.length
    room = length - 1 if message.spoilt == "too long" else length + random.choice((0, 0, 7))
    if message.operation not in SENDS:
        room = random.choice((0, 16))
    return ReceivePlan(random.choice((0.0, random.random() * 0.02)), room, _drawCuts(random, room))


def _drawCuts(random: Random, length: int) -> tuple[int, ...]:
    return tuple(sorted(random.randint(0, length) for _ in range(random.choice((0, 0, 1, 2)))))


def _drawLength(random: Random, mtu: int) -> int:
    kind = random.randrange(10)
    if kind == 0:
        return 0
    if kind < 4:
        return random.randrange(1, 64)
    if kind < 7:
        return max(0, random.randrange(1, 5) * mtu + random.choice((-1, 0, 1)))
    return random.randrange(1, 6 * mtu if kind < 9 else 12 * mtu)


def _drawOperations(random: Random, count: int, mtu: int, isSpoilt: bool) -> tuple[OperationPlan, ...]:
    operations = []
    for number in range(count):
        operation, spoilt = random.choice(_OPERATIONS), ""
        length = _drawLength(random, mtu)
        if isSpoilt and number == count // 2:
            spoilt = random.choice(list(SPOILT))
            operation = {
                "too long": Operation.SEND,
                "no right": Operation.RDMA_WRITE,
                "no atomics": Operation.FETCH_AND_ADD,
            }.get(spoilt, random.choice(WRITES))
            length = max(length, 1)
        elif operation is Operation.RDMA_READ and number == 0 and random.random() < 0.15:
            length = random.randrange(64 * 1024, 80 * 1024)  # needs more than one READ request
        operations.append(_drawOperation(random, operation, length, spoilt))
    return tuple(operations)


def _drawOperation(random: Random, operation: Operation, length: int, spoilt: str) -> OperationPlan:
    plan = OperationPlan(
        operation,
        0 if operation in ATOMICS else length,
        spoilt,
        spoilAt=random.randrange(length) if spoilt == "out of bounds" else random.randrange(32),
        signaled=random.random() < 0.8,
        solicited=random.random() < 0.2,
        fence=random.random() < 0.2,
        immediate=random.randrange(1 << 32) if operation in WITH_IMMEDIATE else 0,
    )
    if operation in ATOMICS:
        return replace(
            plan,
            word=random.randrange(WORDS),
            operand=random.choice((random.randrange(1 << 64), 1, -1)),
            compare=random.choice((None, None, random.randrange(1 << 64))),
            gap=random.choice((0, 0, 5)),
        )
    isInline = operation is not Operation.RDMA_READ and random.random() < 0.3 and spoilt != "wrong lkey"
    return replace(
        plan,
        cuts=() if isInline else _drawCuts(random, length),
        inline=random.randint(0, length) if isInline else None,
        isOverwritten=operation in WRITES and random.random() < 0.5,
    )


def drawClients(seed: int) -> ClientsPlan:
    """Draw the plan of a simulation of several clients."""
    random = Random(f"clients {seed}")
    faults, isFair = faultProfile(random)
    count = random.randrange(2, 5)
    failing = random.randrange(count) if random.random() < 0.4 else None
    return ClientsPlan(
        seed=seed,
        faults=faults,
        isFair=isFair and failing is None,
        mtu=random.choice((MTU.MTU_256, MTU.MTU_1024)),
        words=(random.randrange(1 << 64), random.randrange(1 << 64)),
        clients=tuple(_drawClient(random) for _ in range(count)),
        rooms=(
            *(BatchPlan(random.random() * 0.03, random.randrange(1, 5)) for _ in range(10)),
            BatchPlan(0.031, 120),
        ),
        failing=failing,
        failingAt=random.random() * 0.03,
    )


def _drawClient(random: Random) -> ClientPlan:
    return ClientPlan(
        reads=random.choice((1, 2, 4, 16)),
        rnrTimers=(random.choice((1, 12)), random.choice((1, 12))),
        posts=tuple(
            PostPlan(
                random.random() * 0.03, tuple(_drawRequest(random) for _ in range(random.randrange(1, 5)))
            )
            for _ in range(random.randrange(1, 6))
        ),
    )


def _drawRequest(random: Random) -> RequestPlan:
    fence = random.random() < 0.2
    if random.random() < 0.4:
        return RequestPlan(Operation.SEND, fence, length=random.choice((2, 9, 600)))
    return RequestPlan(
        random.choice((Operation.FETCH_AND_ADD, Operation.COMPARE_AND_SWAP)),
        fence,
        word=random.randrange(2),
        operand=random.randrange(1, 1 << 64),
    )
