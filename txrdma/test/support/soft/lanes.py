"""
Two connected lanes in one process, with minimal queue pairs.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import ProtectionError
from txrdma.iba.types import QPN, RKey
from txrdma.iba.verbs import (
    Access,
    AsyncEventKind,
    Completion,
    CompletionOpcode,
    MigrationState,
    Operation,
    QPAttributes,
    QPKind,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.soft.core.memory import Domain, KeyTable, Region
from txrdma.soft.core.pieces import scatter
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.shared import _atomics, _incoming, _outgoing, _rings
from txrdma.soft.shared._lane import Lane
from txrdma.soft.shared._layout import CONSUMED, HEADER_BYTES, RemoteRegion, SEND_QUEUE, STALLED, WAKE

ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC


class Side:
    """
    One end: a stand-in for a lane's queue pair and device.

    @ivar output: messages for the other process, until C{deliver}.
    @ivar mapped: whether the other end can map its memory.
    """

    def __init__(self, number: int, ring: int, shared: deque[ReceiveRequest] | None = None) -> None:
        self.kind = QPKind.RC
        self.number = QPN(number)
        self.attributes = QPAttributes(
            rnrRetry=7,
            retryCount=1,
            timeout=12,
            minRNRTimer=1,
            access=ALL,
            maxRDAtomic=4,
            maxDestRDAtomic=4,
        )
        self.keys = KeyTable()
        self.domain = Domain()
        self.receives: deque[ReceiveRequest] = deque() if shared is None else shared
        self.isShared = shared is not None
        self.sent: list[Completion] = []
        self.received: list[Completion] = []
        self.solicited: list[bool] = []
        self.events: list[AsyncEventKind | None] = []
        self.news: list[AsyncEventKind] = []
        self.flushed: list[tuple[int, CompletionOpcode]] = []
        self.retirements = 0
        self.posted = 0
        self.free = 1 << 20
        self.unread: list[Completion] = []  # in the completion queue
        self.rung: list[str] = []
        self.output: list[Callable[[], None]] = []
        self.watched = 0
        self.gone = False
        self.mapped = True
        self.other: Side
        self.box = memoryview(bytearray(HEADER_BYTES + ring))
        self.memory = self.keys.register(self.domain, memoryview(bytearray(1 << 16)), ALL)
        self.valid: dict[RKey, memoryview] = {}
        self.lane = Lane(cast(SoftQueuePair, self), self, self.box, self.isShared)

    # called by tests

    def meet(self, other: Side) -> None:
        self.other = other
        self.lane.attach(other.box)

    def post(self, *requests: SendRequest) -> None:
        self.posted += len(requests)
        self.lane.post(requests)

    def receive(self, identifier: int, *pieces: tuple[int, int]) -> None:
        """Post a receive for pieces of the local memory: offset and length."""
        segments = [self.memory.segment(offset, length) for offset, length in pieces]
        self.receives.append(ReceiveRequest(identifier, segments))
        self.lane.receivesPosted()

    def deliver(self) -> None:
        output, self.output = self.output, []
        for each in output:
            each()

    def close(self, region: Region) -> None:
        region.close()
        for word in self.valid.values():
            word[0] = 0

    # txrdma.soft.core.queuepair.SoftQueuePair

    def retired(self, count: int) -> None:
        self.retirements += count

    def sendCompleted(self, completion: Completion) -> None:
        self.sent.append(completion)

    def receiveCompleted(self, completion: Completion, solicited: bool) -> None:
        self.received.append(completion)
        self.solicited.append(solicited)

    def failed(self, event: AsyncEventKind | None = None) -> None:
        if not self.events:
            self.events.append(event)
            self.flushed = self.lane.flush()
            if not self.isShared:
                self.receives.clear()

    def raiseEvent(self, event: AsyncEventKind) -> None:
        self.news.append(event)

    def laneOpened(self) -> list[Completion]:
        return self.unread

    def migrationChanged(self, state: MigrationState) -> None:
        raise AssertionError("these queue pairs have no alternate path")

    # txrdma.soft.shared._layout.LaneServices

    def ring(self, which: int) -> None:
        self.rung.append("sends" if which == SEND_QUEUE else "receives")

    def nudge(self) -> None:
        self.output.append(lambda: self.other.lane.nudged())

    def watch(self) -> None:
        self.watched += 1

    def left(self) -> None:
        self.gone = True

    def requestRegion(self, rkey: RKey) -> None:
        access = int(self.other.attributes.access or 0)
        self.output.append(lambda: self.lane.regionKnown(rkey, self.other.grant(rkey), access))

    def offerRegion(self, rkey: RKey) -> None:
        access = int(self.attributes.access or 0)
        self.output.append(lambda: self.other.lane.regionKnown(rkey, self.grant(rkey), access))

    def grant(self, rkey: RKey) -> RemoteRegion | None:
        """Set the other process' access to the local memory."""
        region = self.keys.find(self.domain, rkey)
        if region is None:
            return None
        word = self.valid.setdefault(rkey, memoryview(bytearray(b"\1" + bytes(7))).cast("Q"))
        view = region.view if self.mapped else None
        return RemoteRegion(region.address, region.length, region.rights, view, word)

    def access(self, request: SendRequest, pieces: list[memoryview]) -> None:
        self.output.append(lambda: self._access(request, pieces))

    def _access(self, request: SendRequest, pieces: list[memoryview]) -> None:
        reading = request.operation is Operation.RDMA_READ
        length = sum(map(len, pieces))
        other = self.other
        try:
            memory = other.keys.remote(
                other.domain, request.rkey, request.remoteAddress, length, 4 if reading else 2
            )
        except ProtectionError:
            self.lane.accessed(False)
            return
        if reading:
            scatter(pieces, 0, memory)
        else:
            memory[:] = b"".join(pieces)
        self.lane.accessed(True)


def pair(ring: int = 4096) -> tuple[Side, Side]:
    """Return two connected ends."""
    one, other = Side(2, ring), Side(3, ring)
    one.meet(other)
    other.meet(one)
    return one, other


def turn(*sides: Side) -> None:
    """Poll ends and deliver messages until nothing changes."""
    for _ in range(60):
        for side in sides:
            side.deliver()
            side.lane.poll()


class LanesTestCase(SynchronousTestCase):
    """Two connected lanes, C{one} and C{other}."""

    def setUp(self) -> None:
        self.one, self.other = pair()

    def turn(self) -> None:
        """Poll both ends and deliver messages until nothing changes."""
        turn(self.one, self.other)

    def request(
        self,
        identifier: int,
        operation: Operation,
        at: int = 0,
        length: int = 8,
        offset: int = 0,
        **more: Any,
    ) -> SendRequest:
        """Return a request for the other end's memory; C{at} is the offset of the local buffer."""
        return SendRequest(
            identifier,
            operation,
            segments=[self.one.memory.segment(at, length)],
            remoteAddress=self.other.memory.address + offset,
            rkey=self.other.memory.rkey,
            **more,
        )


class WeaklyOrderedMixin(SynchronousTestCase):
    """Use the memory fences of weakly ordered machines."""

    def setUp(self) -> None:
        for module in (_atomics, _rings, _incoming, _outgoing):
            self.patch(module, "ORDERED", False)
        super().setUp()


def send(identifier: int, data: bytes, immediate: int | None = None, solicited: bool = False) -> SendRequest:
    """Return a SEND of inline bytes."""
    operation = Operation.SEND if immediate is None else Operation.SEND_WITH_IMMEDIATE
    return SendRequest(identifier, operation, inline=[data], immediate=immediate or 0, solicited=solicited)


def ok(completions: list[Completion]) -> list[int]:
    """Return the identifiers if all completions are successful."""
    assert all(completion.status is Status.SUCCESS for completion in completions), completions
    return [completion.identifier for completion in completions]


def spoil(chance: random.Random, box: memoryview) -> None:
    """Write invalid values into a box, at random and at critical offsets."""
    words = box.cast("Q")
    for _ in range(chance.choice((1, 1, 10))):
        chosen = chance.random()
        if chosen < 0.3:
            words[chance.choice((CONSUMED, WAKE, STALLED))] = chance.choice(
                (0, 1, 64, 1 << 56, 2**64 - 1, chance.getrandbits(64))
            )
        elif chosen < 0.7:
            kind, flags = chance.randrange(8), chance.choice((0, 8, 16, 32, 48, 192))
            length = chance.choice((0, 1, 8, 44, 56, 60, 4000, 4088, 1 << 23))
            index = (HEADER_BYTES + 64 * chance.randrange((len(box) - HEADER_BYTES) // 64)) // 8
            words[index] = chance.getrandbits(32) << 32 | (kind | flags) << 24 | length
        else:
            words[chance.randrange(len(words))] = chance.getrandbits(64)
