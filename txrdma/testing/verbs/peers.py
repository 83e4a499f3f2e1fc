"""
A peer of a simulated connection: its requests, and a model of the expected content of its memory.

Each operation has its own slice of memory on both sides. Atomic operations share a few words and are executed
in the order in which they were posted, so their results are known in advance.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Final

from txrdma.iba.types import LKey, MTU, RKey
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    AsyncEventKind,
    Capacity,
    Completion,
    CompletionOpcode,
    MigrationState,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
    Status,
)
from txrdma.interfaces import AsyncEvent, IMemoryRegion
from txrdma.sim.network import SimulatedNetwork
from txrdma.soft.core.sharedreceives import SoftSharedReceiveQueue
from txrdma.testing.outcome import check, Violation
from txrdma.testing.verbs.plans import (
    ATOMICS,
    MESSAGES,
    OperationPlan,
    PeerPlan,
    SENDS,
    SPOILT,
    WITH_IMMEDIATE,
    WORDS,
    WRITES,
)

GUARD: Final = 64
AREA: Final = 240 * 1024
LONGEST: Final = 16 * 1024
_64_BITS: Final = (1 << 64) - 1


class Area:
    """A part of a side's memory with its own region, between guard bytes that no key covers."""

    def __init__(self, side: Peer, number: int, access: Access) -> None:
        self.start = GUARD + number * (AREA + GUARD)
        self.used = 0
        view = memoryview(side.memory)[self.start : self.start + AREA]
        self.region: IMemoryRegion = side.domain.registerMemory(view, access)

    def take(self, length: int) -> int:
        """Allocate a slice, and return its offset in the memory."""
        offset = self.start + self.used
        self.used += length + 1
        check(self.used <= AREA, "the scenario is too large for its memory")
        return offset

    def address(self, offset: int) -> int:
        """Return the address of an offset, for work requests."""
        return self.region.address + offset - self.start

    def segments(self, cuts: tuple[int, ...], offset: int, length: int) -> list[Segment]:
        """Return a slice as one or more segments, cut at these offsets in it."""
        ends = [*cuts, length]
        begins = [0, *cuts]
        return [
            Segment(self.address(offset + begin), end - begin, self.region.lkey)
            for begin, end in zip(begins, ends, strict=True)
        ]


@dataclass(slots=True)
class Planned:
    """
    An operation: its request, and its expected result.

    @ivar plan: its part of the simulation's plan.
    @ivar where: offset of the slice that changes: in the peer's memory, or in the local one for a READ or an
        atomic.
    @ivar words: values of the peer's words after an atomic operation.
    """

    plan: OperationPlan
    request: SendRequest
    data: bytes
    where: int
    done: bool = False
    words: tuple[int, ...] = ()

    @property
    def spoilt(self) -> str:
        """Fault of the request, one of L{SPOILT}; empty for a valid one."""
        return self.plan.spoilt


@dataclass(slots=True)
class Posted:
    """A posted receive, with the slice that it fills."""

    identifier: int
    offset: int
    length: int


class Peer:
    """
    A peer of the simulated connection, with its queue pair, its memory and its plan.

    @ivar noise: generator of everything that is not part of a plan: content of messages and memory.
    @ivar model: expected content of C{memory}, except for operations in progress.
    @ivar shared: the shared receive queue, if any.
    @ivar words: values of the words for atomic operations after all planned operations.
    @ivar atomics: atomic operations posted to the peer's words.
    """

    def __init__(
        self, network: SimulatedNetwork, noise: Random, addresses: tuple[str, ...], mtu: MTU, plan: PeerPlan
    ) -> None:
        self.noise, self.plan = noise, plan
        self.device = network.device(*addresses, mtu=mtu, segments=plan.segments)
        self.domain = self.device.createProtectionDomain()
        size = 5 * (AREA + GUARD) + GUARD
        self.memory = bytearray(noise.randbytes(64) * (size // 64 + 1))[:size]
        self.model = bytearray(self.memory)
        both = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
        self.target = Area(self, 0, both)
        self.source = Area(self, 1, Access.REMOTE_READ)
        self.sink = Area(self, 2, Access.LOCAL_WRITE)
        self.inbox = Area(self, 3, Access.LOCAL_WRITE)
        self.counters = Area(self, 4, Access.LOCAL_WRITE | Access.REMOTE_ATOMIC)
        self.words = plan.words
        self.setWords(self.memory, self.words)
        self.setWords(self.model, self.words)
        channel = self.device.createChannel()
        self.sendQueue = self.device.createCompletionQueue(256, channel)
        self.receiveQueue = self.device.createCompletionQueue(256, channel)
        self.shared: SoftSharedReceiveQueue | None = None
        if plan.isSharing:
            shared = self.domain.createSharedReceiveQueue(128, 8)
            assert isinstance(shared, SoftSharedReceiveQueue)
            self.shared = shared
        capacity = Capacity(128, 0 if plan.isSharing else 128, 8, 8, LONGEST)
        self.qp = self.domain.createQueuePair(
            QPKind.RC, self.sendQueue, self.receiveQueue, capacity, self.shared
        )
        self.planned: list[Planned] = []
        self.posted: deque[Planned] = deque()
        self.atomics: list[Planned] = []
        self.unfinished: dict[int, Planned] = {}
        self.rooms = deque(plan.receives)  # not posted yet
        self.receives: deque[Posted] = deque()
        self.messages: deque[Planned] = deque()  # posted by the peer, not received yet
        self.failure: Status | None = None
        self.events: list[AsyncEvent] = []
        self.device.subscribe(self.events.append)
        self.completed = 0

    @property
    def broken(self) -> bool:
        return self.qp.state is QPState.ERR

    @property
    def migrations(self) -> int:
        """Number of times that the queue pair has migrated to its alternate path."""
        return sum(event.kind is AsyncEventKind.PATH_MIGRATED for event in self.events)

    @property
    def paths(self) -> int:
        """Number of the peer's ports."""
        return self.device.portCount

    def addressOf(self, number: int) -> AddressVector:
        """Return the address vector to this peer's port, for the other peer's port of the same number."""
        return AddressVector(self.device.gids(number)[0], port=number, dmac=self.device.ports[number - 1].mac)

    def join(self, peer: Peer, mtu: MTU, reads: int, rnrRetry: int) -> None:
        """Bring the queue pair to RTS, with an alternate path if there are two."""
        rights = Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
        migrates = self.paths > 1
        self.qp.modify(QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1, access=rights))
        self.qp.modify(
            QPAttributes(
                state=QPState.RTR,
                address=peer.addressOf(1),
                alternateAddress=peer.addressOf(2) if migrates else None,
                pathMTU=mtu,
                destinationQPN=peer.qp.number,
                rqPSN=peer.plan.psn,
                maxDestRDAtomic=reads,
                minRNRTimer=self.plan.rnrTimer,
            )
        )
        self.qp.modify(
            QPAttributes(
                state=QPState.RTS,
                timeout=self.plan.timeout,
                retryCount=7,
                rnrRetry=rnrRetry,
                sqPSN=self.plan.psn,
                maxRDAtomic=reads,
                migrationState=MigrationState.REARM if migrates else None,
            )
        )

    # Requests.

    def prepare(self, peer: Peer) -> None:
        """Prepare the operations of the plan, to be posted later."""
        for number, plan in enumerate(self.plan.operations):
            self.planned.append(self.operation(peer, number, plan))

    def operation(self, peer: Peer, number: int, plan: OperationPlan) -> Planned:
        """Prepare the operation with that number."""
        operation, length = plan.operation, plan.length
        request = SendRequest(
            number,
            operation,
            signaled=plan.signaled,
            solicited=plan.solicited,
            fence=plan.fence,
            immediate=plan.immediate,
        )
        if operation in ATOMICS:
            return self._atomic(peer, request, plan)
        if operation is Operation.RDMA_READ:
            there, here = peer.source.take(length), self.sink.take(length)
            data = bytes(peer.model[there : there + length])
            request.segments = self.sink.segments(plan.cuts, here, length)
            request.remoteAddress, request.rkey = peer.source.address(there), peer.source.region.rkey
            return Planned(plan, request, data, here)
        data = self.noise.randbytes(length)
        if plan.inline is not None:
            request.inline = (data[: plan.inline], data[plan.inline :])
        else:
            here = self.source.take(length)
            self.memory[here : here + length] = self.model[here : here + length] = data
            request.segments = self.source.segments(plan.cuts, here, length)
        where = 0
        if operation in WRITES:
            where = peer.target.take(length)
            request.remoteAddress, request.rkey = peer.target.address(where), peer.target.region.rkey
        self._spoil(peer, request, plan)
        return Planned(plan, request, data, where)

    def _atomic(self, peer: Peer, request: SendRequest, plan: OperationPlan) -> Planned:
        """Prepare an atomic operation; its results follow from those planned before."""
        original = peer.words[plan.word]
        request.operand = plan.operand
        after = original + request.operand & _64_BITS
        if request.operation is Operation.COMPARE_AND_SWAP:
            request.compare = original if plan.compare is None else plan.compare
            after = request.operand & _64_BITS if request.compare == original else original
        room = self.sink.take(8 + plan.gap)
        request.segments = [Segment(self.sink.address(room), 8, self.sink.region.lkey)]
        request.remoteAddress = peer.counters.region.address + 8 * plan.word
        request.rkey = peer.counters.region.rkey
        if plan.spoilt:
            request.rkey, request.remoteAddress = peer.target.region.rkey, peer.target.region.address
        else:
            peer.words = (*peer.words[: plan.word], after, *peer.words[plan.word + 1 :])
        return Planned(plan, request, original.to_bytes(8, sys.byteorder), room, words=peer.words)

    def setWords(self, memory: bytearray, words: tuple[int, ...]) -> None:
        """Write the values of the words into C{memory} or C{model}."""
        start = self.counters.start
        memory[start : start + 8 * WORDS] = b"".join(word.to_bytes(8, sys.byteorder) for word in words)

    def _spoil(self, peer: Peer, request: SendRequest, plan: OperationPlan) -> None:
        spoilt = plan.spoilt
        if spoilt == "wrong rkey":
            request.rkey = RKey(request.rkey ^ 1 << plan.spoilAt)
        elif spoilt == "out of bounds":
            end = peer.target.region.address + peer.target.region.length
            request.remoteAddress = end - plan.spoilAt
        elif spoilt == "no right":
            request.rkey, request.remoteAddress = peer.source.region.rkey, peer.source.region.address
        elif spoilt == "wrong lkey":
            request.segments = [piece._replace(lkey=LKey(piece.lkey ^ 1)) for piece in request.segments]

    def post(self, peer: Peer, count: int) -> None:
        """Post the next operations together."""
        batch, self.planned = self.planned[:count], self.planned[count:]
        if not batch:
            return
        self.posted.extend(batch)
        self.unfinished.update((planned.request.identifier, planned) for planned in batch)
        self.atomics += [planned for planned in batch if planned.request.operation in ATOMICS]
        peer.messages.extend(planned for planned in batch if planned.request.operation in MESSAGES)
        self.qp.postSend([planned.request for planned in batch])

    def receiveNext(self) -> None:
        """Post the next receive of the plan."""
        plan = self.rooms.popleft()
        identifier = 100 + len(self.rooms)
        offset = self.inbox.take(plan.room)
        self.receives.append(Posted(identifier, offset, plan.room))
        receive = ReceiveRequest(identifier, self.inbox.segments(plan.cuts, offset, plan.room))
        (self.shared or self.qp).postReceive([receive])

    # Completions.

    def poll(self, peer: Peer) -> None:
        """Poll and check all completions of the peer."""
        for completion in self.receiveQueue.poll(256):
            self._received(completion)
        for completion in self.sendQueue.poll(256):
            self._sent(completion, peer)

    def _sent(self, completion: Completion, peer: Peer) -> None:
        check(completion.qpn == self.qp.number, "a completion names the wrong queue pair")
        while True:
            check(bool(self.posted), f"{completion} for no posted request")
            planned = self.posted.popleft()
            if planned.request.identifier == completion.identifier:
                break
            check(
                not planned.request.signaled and self.failure is None,
                f"{completion} precedes that of request {planned.request.identifier}",
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

    def _failed(self, planned: Planned, status: Status, peer: Peer) -> None:
        expected = {Status.RETRY_EXC_ERR, Status.RNR_RETRY_EXC_ERR, Status.WR_FLUSH_ERR}
        if planned.spoilt:
            expected.add(SPOILT[planned.spoilt])
        check(status in expected, f"{status!r} for {planned}")
        if status is Status.REM_ACCESS_ERR or status is Status.REM_INV_REQ_ERR:
            check(peer.broken, f"{status!r}, but the peer continues")

    def _done(self, planned: Planned, peer: Peer) -> None:
        """Check the effect of a request that has succeeded, and record that it must not occur again."""
        check(not planned.done, f"{planned} ended twice")
        planned.done = True
        del self.unfinished[planned.request.identifier]
        self.completed += 1
        start, end = planned.where, planned.where + len(planned.data)
        operation = planned.request.operation
        if operation in SENDS:
            return
        if operation in ATOMICS:
            peer.setWords(peer.model, planned.words)
        changed = self if operation is Operation.RDMA_READ or operation in ATOMICS else peer
        check(changed.memory[start:end] == planned.data, f"{operation!r} had a wrong effect")
        changed.model[start:end] = planned.data
        if planned.plan.isOverwritten:
            other = self.noise.randbytes(len(planned.data))
            changed.memory[start:end] = changed.model[start:end] = other

    def _received(self, completion: Completion) -> None:
        check(bool(self.receives), f"{completion} for no receive")
        posted = self.receives.popleft()
        check(posted.identifier == completion.identifier, f"{completion} out of order")
        if completion.status is not Status.SUCCESS:
            allowed = (Status.WR_FLUSH_ERR, Status.LOC_LEN_ERR)
            check(completion.status in allowed and self.broken, f"{completion} without a failure")
            # It may contain a part of a message that was not completed.
            end = posted.offset + posted.length
            self.model[posted.offset : end] = self.memory[posted.offset : end]
            return
        check(bool(self.messages), f"{completion} though no message was sent")
        planned = self.messages.popleft()
        request, data = planned.request, planned.data
        immediate = request.immediate if request.operation in WITH_IMMEDIATE else None
        kind = CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE
        if request.operation in SENDS:
            kind = CompletionOpcode.RECEIVE
            self.model[posted.offset : posted.offset + len(data)] = data
            got = self.memory[posted.offset : posted.offset + len(data)]
            check(got == data, f"message {request.identifier} arrived with wrong content")
        else:
            got = self.memory[planned.where : planned.where + len(data)]
            check(got == data, f"{request.operation!r} {request.identifier} completed before its data")
        check(
            (completion.opcode, completion.immediate, completion.length) == (kind, immediate, len(data)),
            f"{completion} for {request}",
        )

    def checkMemory(self, peer: Peer) -> None:
        """Check that only operations have changed the memory; those in progress may be done in part."""
        writes = [p for p in peer.unfinished.values() if p.request.operation in WRITES and not p.spoilt]
        answered = (Operation.RDMA_READ, *ATOMICS)
        reads = [p for p in self.unfinished.values() if p.request.operation in answered]
        self._checkWords(peer)
        for planned in (*writes, *reads):
            for number, new in enumerate(planned.data, planned.where):
                if self.memory[number] == new:
                    self.model[number] = new
        if self.memory != self.model:
            where = next(n for n, (a, b) in enumerate(zip(self.memory, self.model, strict=True)) if a != b)
            raise Violation(f"byte {where} of {len(self.memory)} was written, but not by any request")

    def _checkWords(self, peer: Peer) -> None:
        """
        Check that each atomic operation was executed once, in order.

        Of those that are not known to be complete, any number of the first may have been executed.
        """
        start, end = self.counters.start, self.counters.start + 8 * WORDS
        done = [planned.done for planned in peer.atomics]
        check(done == sorted(done, reverse=True), "atomic operations ended out of order")
        for planned in peer.atomics:
            if self.memory[start:end] == self.model[start:end]:
                return
            if not planned.done and not planned.spoilt:
                self.setWords(self.model, planned.words)
        check(self.memory[start:end] == self.model[start:end], "an atomic operation had a wrong effect")
