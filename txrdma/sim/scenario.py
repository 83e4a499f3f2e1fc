"""
What two queue pairs do to each other in one simulation, all of it by a seed, and what must hold.

Each operation has its own slice of memory on both sides, and a model says what every byte of them has to be.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Final

from twisted.internet.task import Clock

from txrdma.iba.types import LKey, MTU, RKey
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    AsyncEvent,
    Capacity,
    Completion,
    CompletionOpcode,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
    Status,
)
from txrdma.interfaces import IMemoryRegion
from txrdma.sim.network import Faults, SimulatedNetwork

GUARD: Final = 64
AREA: Final = 160 * 1024
LONGEST: Final = 16 * 1024
_PATIENCE: Final = 600.0
_MOST_PACKETS: Final = 50_000
_MESSAGES: Final = (Operation.SEND, Operation.SEND_WITH_IMMEDIATE, Operation.RDMA_WRITE_WITH_IMMEDIATE)
_WITH_IMMEDIATE: Final = (Operation.SEND_WITH_IMMEDIATE, Operation.RDMA_WRITE_WITH_IMMEDIATE)
_WRITES: Final = (Operation.RDMA_WRITE, Operation.RDMA_WRITE_WITH_IMMEDIATE)
_SENDS: Final = (Operation.SEND, Operation.SEND_WITH_IMMEDIATE)
_OPERATIONS: Final = (*_WRITES, *_SENDS, Operation.RDMA_WRITE, Operation.SEND, Operation.RDMA_READ)

SPOILT: Final = {
    "wrong rkey": Status.REM_ACCESS_ERR,
    "out of bounds": Status.REM_ACCESS_ERR,
    "no right": Status.REM_ACCESS_ERR,
    "wrong lkey": Status.LOC_PROT_ERR,
    "too long": Status.REM_INV_REQ_ERR,
}
"""What can be wrong with a request, and how it has to end."""


class Violation(AssertionError):
    """A promise was broken."""


def check(holds: bool, what: str) -> None:
    """Say what does not hold."""
    if not holds:
        raise Violation(what)


class Area:
    """A part of a side's memory with its own region, and guards around that no key reaches."""

    def __init__(self, side: Side, number: int, access: Access) -> None:
        self.start = GUARD + number * (AREA + GUARD)
        self.used = 0
        view = memoryview(side.memory)[self.start : self.start + AREA]
        self.region: IMemoryRegion = side.domain.registerMemory(view, access)

    def take(self, length: int) -> int:
        """A slice that nobody else uses: its offset in the memory."""
        offset = self.start + self.used
        self.used += length + 1
        check(self.used <= AREA, "the scenario is too large for its memory")
        return offset

    def address(self, offset: int) -> int:
        """As work requests name it."""
        return self.region.address + offset - self.start

    def segments(self, random: Random, offset: int, length: int) -> list[Segment]:
        """The slice, in one or more pieces."""
        cuts = sorted(random.randint(0, length) for _ in range(random.choice((0, 0, 1, 2))))
        ends = [*cuts, length]
        begins = [0, *cuts]
        return [
            Segment(self.address(offset + begin), end - begin, self.region.lkey)
            for begin, end in zip(begins, ends, strict=True)
        ]


@dataclass(slots=True)
class Planned:
    """
    An operation: what is posted, and what must come of it.

    @ivar where: offset of the slice that changes: in the peer's memory, or in ours for a READ.
    @ivar spoilt: what is wrong with it, if anything.
    """

    request: SendRequest
    data: bytes
    where: int
    spoilt: str = ""
    done: bool = False


@dataclass(slots=True)
class Posted:
    """A receive, with the slice that it fills."""

    identifier: int
    offset: int
    length: int


class Side:
    """
    One of the two ends.

    @ivar model: what C{memory} has to be, but for operations that are under way.
    """

    def __init__(self, network: SimulatedNetwork, random: Random, address: str, mtu: MTU) -> None:
        self.random = random
        self.device = network.device(address, mtu=mtu, segments=random.choice((1, 16)))
        self.domain = self.device.createProtectionDomain()
        size = 4 * (AREA + GUARD) + GUARD
        self.memory = bytearray(random.randbytes(64) * (size // 64 + 1))[:size]
        self.model = bytearray(self.memory)
        both = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
        self.target = Area(self, 0, both)
        self.source = Area(self, 1, Access.REMOTE_READ)
        self.sink = Area(self, 2, Access.LOCAL_WRITE)
        self.inbox = Area(self, 3, Access.LOCAL_WRITE)
        channel = self.device.createChannel()
        self.sendQueue = self.device.createCompletionQueue(256, channel)
        self.receiveQueue = self.device.createCompletionQueue(256, channel)
        self.qp = self.domain.createQueuePair(
            QPKind.RC, self.sendQueue, self.receiveQueue, Capacity(128, 128, 8, 8, LONGEST)
        )
        self.planned: list[Planned] = []
        self.posted: deque[Planned] = deque()
        self.unfinished: dict[int, Planned] = {}
        self.rooms: deque[int] = deque()  # of the receives that are still to be posted
        self.receives: deque[Posted] = deque()
        self.messages: deque[Planned] = deque()  # of the peer, posted, not received
        self.failure: Status | None = None
        self.events: list[AsyncEvent] = []
        self.device.subscribe(self.events.append)
        self.completed = 0

    @property
    def broken(self) -> bool:
        return self.qp.state is QPState.ERR

    def join(self, peer: Side, mtu: MTU, psns: tuple[int, int], reads: int, rnrRetry: int) -> None:
        """Bring the queue pair to RTS."""
        rights = Access.REMOTE_WRITE | Access.REMOTE_READ
        way = AddressVector(peer.device.gids(1)[0], dmac=peer.device.mac)
        self.qp.modify(QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1, access=rights))
        self.qp.modify(
            QPAttributes(
                state=QPState.RTR,
                address=way,
                pathMTU=mtu,
                destinationQPN=peer.qp.number,
                rqPSN=psns[1],
                maxDestRDAtomic=reads,
                minRNRTimer=self.random.choice((1, 5, 12)),
            )
        )
        self.qp.modify(
            QPAttributes(
                state=QPState.RTS,
                timeout=self.random.choice((12, 13, 14)),
                retryCount=7,
                rnrRetry=rnrRetry,
                sqPSN=psns[0],
                maxRDAtomic=reads,
            )
        )

    # What it does.

    def plan(self, peer: Side, count: int, mtu: int, spoil: bool) -> None:
        """Think up operations."""
        for number in range(count):
            operation = self.random.choice(_OPERATIONS)
            spoilt = ""
            if spoil and number == count // 2:
                spoilt = self.random.choice(list(SPOILT))
                operation = {"too long": Operation.SEND, "no right": Operation.RDMA_WRITE}.get(
                    spoilt, self.random.choice(_WRITES)
                )
            self.planned.append(self._operation(peer, number, operation, self._length(mtu), spoilt))

    def _length(self, mtu: int) -> int:
        random = self.random
        kind = random.randrange(10)
        if kind == 0:
            return 0
        if kind < 4:
            return random.randrange(1, 64)
        if kind < 7:
            return max(0, random.randrange(1, 5) * mtu + random.choice((-1, 0, 1)))
        return random.randrange(1, 6 * mtu if kind < 9 else 12 * mtu)

    def _operation(self, peer: Side, number: int, operation: Operation, length: int, spoilt: str) -> Planned:
        random = self.random
        if spoilt:
            length = max(length, 1)
        request = SendRequest(
            number,
            operation,
            signaled=random.random() < 0.8,
            solicited=random.random() < 0.2,
            fence=random.random() < 0.2,
            immediate=random.randrange(1 << 32) if operation in _WITH_IMMEDIATE else 0,
        )
        if operation is Operation.RDMA_READ:
            there, here = peer.source.take(length), self.sink.take(length)
            data = bytes(peer.model[there : there + length])
            request.segments = self.sink.segments(random, here, length)
            request.remoteAddress, request.rkey = peer.source.address(there), peer.source.region.rkey
            return Planned(request, data, here, spoilt)
        data = random.randbytes(length)
        if random.random() < 0.3 and spoilt != "wrong lkey":
            half = random.randint(0, length)
            request.inline = (data[:half], data[half:])
        else:
            here = self.source.take(length)
            self.memory[here : here + length] = self.model[here : here + length] = data
            request.segments = self.source.segments(random, here, length)
        where = 0
        if operation in _WRITES:
            where = peer.target.take(length)
            request.remoteAddress, request.rkey = peer.target.address(where), peer.target.region.rkey
        self._spoil(peer, request, length, spoilt)
        return Planned(request, data, where, spoilt)

    def _spoil(self, peer: Side, request: SendRequest, length: int, spoilt: str) -> None:
        if spoilt == "wrong rkey":
            request.rkey = RKey(request.rkey ^ 1 << self.random.randrange(32))
        elif spoilt == "out of bounds":
            end = peer.target.region.address + peer.target.region.length
            request.remoteAddress = end - self.random.randrange(length)
        elif spoilt == "no right":
            request.rkey, request.remoteAddress = peer.source.region.rkey, peer.source.region.address
        elif spoilt == "wrong lkey":
            request.segments = [piece._replace(lkey=LKey(piece.lkey ^ 1)) for piece in request.segments]

    def post(self, peer: Side, count: int) -> None:
        """Post the next operations, together."""
        batch, self.planned = self.planned[:count], self.planned[count:]
        if not batch:
            return
        self.posted.extend(batch)
        self.unfinished.update((planned.request.identifier, planned) for planned in batch)
        peer.messages.extend(planned for planned in batch if planned.request.operation in _MESSAGES)
        self.qp.postSend([planned.request for planned in batch])

    def receiveNext(self) -> None:
        """Post the next receive."""
        length = self.rooms.popleft()
        identifier = 100 + len(self.rooms)
        offset = self.inbox.take(length)
        self.receives.append(Posted(identifier, offset, length))
        self.qp.postReceive([ReceiveRequest(identifier, self.inbox.segments(self.random, offset, length))])

    # What comes of it.

    def poll(self, peer: Side) -> None:
        """Look at all completions."""
        for completion in self.receiveQueue.poll(256):
            self._received(completion)
        for completion in self.sendQueue.poll(256):
            self._sent(completion, peer)

    def _sent(self, completion: Completion, peer: Side) -> None:
        check(completion.qpn == self.qp.number, "a completion names the wrong queue pair")
        while True:
            check(bool(self.posted), f"{completion} for nothing that was posted")
            planned = self.posted.popleft()
            if planned.request.identifier == completion.identifier:
                break
            check(
                not planned.request.signaled and self.failure is None,
                f"{completion} came before that of request {planned.request.identifier}",
            )
            self._done(planned, peer)
        if completion.status is Status.SUCCESS:
            check(planned.request.signaled, f"{completion} for an unsignaled request")
            check(self.failure is None, f"{completion} after {self.failure!r}")
            check(not planned.spoilt, f"{completion} though the request had a {planned.spoilt}")
            self._done(planned, peer)
        elif self.failure is None:
            check(completion.status is not Status.WR_FLUSH_ERR or self.broken, f"{completion} for no reason")
            self.failure = completion.status
            self._failed(planned, completion.status, peer)
        else:
            check(completion.status is Status.WR_FLUSH_ERR, f"{completion} after {self.failure!r}")

    def _failed(self, planned: Planned, status: Status, peer: Side) -> None:
        expected = {Status.RETRY_EXC_ERR, Status.RNR_RETRY_EXC_ERR, Status.WR_FLUSH_ERR}
        if planned.spoilt:
            expected.add(SPOILT[planned.spoilt])
        check(status in expected, f"{status!r} for {planned}")
        if status is Status.REM_ACCESS_ERR or status is Status.REM_INV_REQ_ERR:
            check(peer.broken, f"{status!r}, but the peer goes on")

    def _done(self, planned: Planned, peer: Side) -> None:
        """A request has succeeded: its effect is there, and will not come a second time."""
        check(not planned.done, f"{planned} ended twice")
        planned.done = True
        del self.unfinished[planned.request.identifier]
        self.completed += 1
        start, end = planned.where, planned.where + len(planned.data)
        operation = planned.request.operation
        if operation in _SENDS:
            return
        changed = self if operation is Operation.RDMA_READ else peer
        check(changed.memory[start:end] == planned.data, f"{operation!r} did something else")
        changed.model[start:end] = planned.data
        if operation in _WRITES and self.random.random() < 0.5:
            other = self.random.randbytes(len(planned.data))
            changed.memory[start:end] = changed.model[start:end] = other

    def _received(self, completion: Completion) -> None:
        check(bool(self.receives), f"{completion} for no receive")
        posted = self.receives.popleft()
        check(posted.identifier == completion.identifier, f"{completion} out of order")
        if completion.status is not Status.SUCCESS:
            allowed = (Status.WR_FLUSH_ERR, Status.LOC_LEN_ERR)
            check(completion.status in allowed and self.broken, f"{completion} though nothing is wrong")
            # What it held of a message that was never finished may be there.
            end = posted.offset + posted.length
            self.model[posted.offset : end] = self.memory[posted.offset : end]
            return
        check(bool(self.messages), f"{completion} though no message was sent")
        planned = self.messages.popleft()
        request, data = planned.request, planned.data
        immediate = request.immediate if request.operation in _WITH_IMMEDIATE else None
        kind = CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE
        if request.operation in _SENDS:
            kind = CompletionOpcode.RECEIVE
            self.model[posted.offset : posted.offset + len(data)] = data
            got = self.memory[posted.offset : posted.offset + len(data)]
            check(got == data, f"message {request.identifier} arrived as something else")
        else:
            got = self.memory[planned.where : planned.where + len(data)]
            check(got == data, f"{request.operation!r} {request.identifier} was told before it was there")
        check(
            (completion.opcode, completion.immediate, completion.length) == (kind, immediate, len(data)),
            f"{completion} for {request}",
        )

    def checkMemory(self, peer: Side) -> None:
        """Nothing but what the operations say has changed; what is under way is half old, half new."""
        writes = [p for p in peer.unfinished.values() if p.request.operation in _WRITES and not p.spoilt]
        reads = [p for p in self.unfinished.values() if p.request.operation is Operation.RDMA_READ]
        for planned in (*writes, *reads):
            for number, new in enumerate(planned.data, planned.where):
                if self.memory[number] == new:
                    self.model[number] = new
        if self.memory != self.model:
            where = next(n for n, (a, b) in enumerate(zip(self.memory, self.model, strict=True)) if a != b)
            raise Violation(f"byte {where} of {len(self.memory)} was written, but not by any request")


@dataclass
class Outcome:
    """How a simulation ended; for statistics."""

    seed: int
    completed: int = 0
    failures: list[Status] = field(default_factory=list)
    packets: int = 0
    dropped: int = 0
    seconds: float = 0.0


class Scenario:
    """One simulation."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"scenario {seed}")
        self.clock = Clock()
        self.fair = True
        self.network = SimulatedNetwork(self.clock, seed, self._faults())
        code = self.random.choice((MTU.MTU_256, MTU.MTU_512, MTU.MTU_1024))
        self.mtu = code.bytes
        self.alice, self.bob = (
            Side(self.network, self.random, address, code) for address in ("10.0.0.1", "10.0.0.2")
        )
        psns = self._psn(), self._psn()
        reads = self.random.choice((1, 1, 2, 4))
        self.alice.join(self.bob, code, psns, reads, 7)
        self.bob.join(self.alice, code, psns[::-1], reads, 7)

    def _psn(self) -> int:
        """Often just before it wraps."""
        return self.random.choice((self.random.randrange(1 << 24), (1 << 24) - self.random.randrange(1, 40)))

    def _faults(self) -> Faults:
        random = self.random
        kind = random.randrange(4)
        merging, congestion = random.random(), random.choice((0.0, 0.1))
        if kind == 0:
            return Faults(merging=merging, congestion=congestion)
        if kind == 1:  # bad, but every operation must get through
            return Faults(
                loss=0.02,
                duplication=0.05,
                corruption=0.01,
                late=0.01,
                jitterSeconds=random.choice((0.0, 1e-3)),
                merging=merging,
                congestion=congestion,
            )
        self.fair = False
        return Faults(
            loss=random.uniform(0, 0.3),
            duplication=random.uniform(0, 0.3),
            corruption=random.uniform(0, 0.1),
            late=random.uniform(0, 0.1),
            jitterSeconds=random.choice((0.0, 1e-4, 1e-2)),
            lateSeconds=random.choice((0.01, 0.3, 2.0)),
            merging=merging,
            congestion=congestion,
        )

    def run(self) -> Outcome:
        """
        Play it.

        @raise Violation: a promise was broken.
        """
        spoil = self.random.random() < 0.2
        if self.random.random() < 0.1:
            self.fair = False
            self.clock.callLater(self.random.random() * 0.02, self.network.partition, "10.0.0.1", "10.0.0.2")
            if self.random.random() < 0.7:
                self.clock.callLater(self.random.random() * 0.5, self.network.heal)
        self.alice.plan(self.bob, self.random.randrange(1, 12), self.mtu, spoil)
        self.bob.plan(self.alice, self.random.randrange(0, 8), self.mtu, False)
        for side, peer in ((self.alice, self.bob), (self.bob, self.alice)):
            self._schedule(side, peer)
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

    def _schedule(self, side: Side, peer: Side) -> None:
        """Spread what a side does over some milliseconds."""
        random = self.random
        left = len(side.planned)
        for planned in side.planned:
            if planned.request.operation not in _MESSAGES:
                continue
            length = len(planned.data)
            room = length - 1 if planned.spoilt == "too long" else length + random.choice((0, 0, 7))
            if planned.request.operation not in _SENDS:
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
            check(not side.receives, "a queue pair failed, but its receives were not flushed")

    def _failures(self) -> list[Status]:
        return [side.failure for side in (self.alice, self.bob) if side.failure is not None]

    def _close(self) -> Outcome:
        outcome = Outcome(
            self.seed,
            self.alice.completed + self.bob.completed,
            self._failures(),
            self.network.sent,
            self.network.dropped,
            self.clock.seconds(),
        )
        for side in (self.alice, self.bob):
            side.device.close()
        self._settle()
        return outcome


def simulate(seed: int) -> Outcome:
    """
    Play the simulation with this seed.

    @raise Violation: a promise was broken.
    """
    return Scenario(seed).run()
