"""
Several clients of one server in a simulation, which share its receives and its words for atomic operations.

Messages must arrive once and in each client's order, regardless of the receives that they consume. All
results of atomic operations must be consistent with one sequential history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from txrdma.iba.types import QPN
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    Capacity,
    Completion,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
    Status,
)
from txrdma.interfaces import IQueuePair
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.network import SimulatedNetwork
from txrdma.soft.core.sharedreceives import SoftSharedReceiveQueue
from txrdma.soft.device import SoftDevice
from txrdma.testing.outcome import check, Outcome
from txrdma.testing.verbs.plans import ClientsPlan, RequestPlan

WORDS: Final = 2
_64_BITS: Final = (1 << 64) - 1
_SERVER: Final = "10.0.0.1"
_LENGTH: Final = 600
_MOST_PACKETS: Final = 50_000
_RIGHTS: Final = Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC


@dataclass(slots=True)
class Atomic:
    """An atomic operation of a client, with its result once that is known."""

    request: SendRequest
    word: int
    original: int | None = None

    def after(self, before: int) -> int:
        """Return the value that the operation leaves in a word with the value C{before}."""
        request = self.request
        if request.operation is Operation.FETCH_AND_ADD:
            return before + request.operand & _64_BITS
        return request.operand if before == request.compare else before


@dataclass
class History:
    """
    Known values of one word of memory over time.

    @ivar operations: operations of each client, in order. Those without a known result come last; any number
        of the first of these may have been executed.
    """

    first: int
    operations: list[list[Atomic]]

    def explains(self, last: int) -> bool:
        """
        Return whether some order of all operations leads from the first value to C{last}, with these results.

        Values are long random numbers and occur at most once, so the next operation is nearly always known.
        """
        begin = self.first, (0,) * len(self.operations)
        seen = {begin}
        stack = [begin]
        while stack:
            value, places = stack.pop()
            nexts = [
                (client, operations[place])
                for client, (place, operations) in enumerate(zip(places, self.operations, strict=True))
                if place < len(operations)
            ]
            if value == last and all(operation.original is None for _, operation in nexts):
                return True
            for client, operation in nexts:
                if operation.original is None or operation.original == value:
                    further = (*places[:client], places[client] + 1, *places[client + 1 :])
                    state = operation.after(value), further
                    if state not in seen:
                        seen.add(state)
                        stack.append(state)
                    if operation.original == value == operation.after(value):
                        break  # it changes nothing, so its position does not matter
        return False


class Client:
    """A client that sends to the server, and modifies its words."""

    def __init__(self, scenario: ClientsScenario, number: int) -> None:
        self.scenario = scenario
        self.number = number
        self.plan = scenario.plan.clients[number]
        self._noise = Random(f"client {number} {scenario.plan.seed}")
        self.device = scenario.network.device(f"10.0.0.{2 + number}", mtu=scenario.plan.mtu)
        self.domain = self.device.createProtectionDomain()
        self.queue = self.device.createCompletionQueue(256, self.device.createChannel())
        self.qp = self.domain.createQueuePair(
            QPKind.RC, self.queue, self.queue, Capacity(64, 0, 1, 1, _LENGTH)
        )
        self.region = self.domain.allocateMemory(8 * 256, Access.LOCAL_WRITE)
        self.results = self.region.view.cast("Q")
        self.there = scenario.acceptFor(self)
        self.last = list(scenario.plan.words)  # as far as the client knows
        self.posted: dict[int, Atomic | bytes] = {}  # not completed
        self.atomics: list[Atomic] = []
        self.sent: list[bytes] = []
        self.acknowledged = 0
        self.received: list[bytes] = []  # by the server
        self.failure: Status | None = None

    @property
    def broken(self) -> bool:
        """Whether one of the two queue pairs has failed."""
        return QPState.ERR in (self.qp.state, self.there.state)

    def post(self, plans: Sequence[RequestPlan]) -> None:
        """Post some of the client's requests together, if it is connected."""
        if self.qp.state is not QPState.RTS:
            return
        requests = []
        for plan in plans:
            identifier = len(self.sent) + len(self.atomics)
            if plan.operation is Operation.SEND:
                data = bytes((self.number, len(self.sent))) + self._noise.randbytes(plan.length - 2)
                self.sent.append(data)
                self.posted[identifier] = data
                request = SendRequest(identifier, Operation.SEND, inline=[data])
            else:
                request = self._atomic(identifier, plan)
            request.fence = plan.fence
            requests.append(request)
        self.qp.postSend(requests)

    def _atomic(self, identifier: int, plan: RequestPlan) -> SendRequest:
        request = SendRequest(
            identifier,
            plan.operation,
            [Segment(self.region.address + 8 * identifier, 8, self.region.lkey)],
            remoteAddress=self.scenario.counters.address + 8 * plan.word,
            rkey=self.scenario.counters.rkey,
            operand=plan.operand,
            compare=self.last[plan.word],
        )
        atomic = Atomic(request, plan.word)
        self.atomics.append(atomic)
        self.posted[identifier] = atomic
        return request

    def poll(self) -> None:
        """Poll and check the completions of the client."""
        for completion in self.queue.poll(256):
            what = self.posted.get(completion.identifier)
            check(what is not None, f"{completion} for no posted request")
            if completion.status is not Status.SUCCESS:
                check(self.broken, f"{completion}, but the connection continues")
                self.failure = self.failure or completion.status
                continue
            del self.posted[completion.identifier]
            if isinstance(what, Atomic):
                what.original = self.results[completion.identifier]
                self.last[what.word] = what.after(what.original)
            else:
                self.acknowledged += 1

    def checkMessages(self) -> None:
        """Check that messages arrived once and in order, and all of them unless the connection broke."""
        count = len(self.received)
        check(
            self.received == self.sent[:count], f"client {self.number}'s messages arrived with wrong content"
        )
        check(count >= self.acknowledged, f"client {self.number}'s messages completed, but did not arrive")
        if not self.broken:
            check(count == len(self.sent) and not self.posted, f"client {self.number} still waits")


class ClientsScenario:
    """A simulation of several clients with one server."""

    def __init__(self, plan: ClientsPlan) -> None:
        self.plan = plan
        self.clock = SimulatedClock()
        self.network = network = SimulatedNetwork(self.clock, plan.seed, plan.faults)
        self.server: SoftDevice = network.device(_SERVER, mtu=plan.mtu)
        self.domain = self.server.createProtectionDomain()
        self.queue = self.server.createCompletionQueue(1024, self.server.createChannel())
        receives = self.domain.createSharedReceiveQueue(256, 1)
        assert isinstance(receives, SoftSharedReceiveQueue)
        self.receives = receives
        self.counters = self.domain.allocateMemory(8 * WORDS, Access.LOCAL_WRITE | Access.REMOTE_ATOMIC)
        self.numbers = self.counters.view.cast("Q")
        for word, number in enumerate(plan.words):
            self.numbers[word] = number
        self.inbox = self.domain.allocateMemory(256 * _LENGTH, Access.LOCAL_WRITE)
        self.rooms = 0
        self.filled: set[int] = set()
        self.flushed: list[QPN] = []
        self.clients: list[Client] = []
        for number in range(len(plan.clients)):
            self.clients.append(Client(self, number))
        self.byNumber = {client.there.number: client for client in self.clients}

    def acceptFor(self, client: Client) -> IQueuePair:
        """Create a queue pair of the server, and connect a client to it."""
        there = self.domain.createQueuePair(
            QPKind.RC, self.queue, self.queue, Capacity(1, 0, 1, 1), self.receives
        )
        plan = client.plan
        for one, device, other, rnrTimer in (
            (client.qp, self.server, there, plan.rnrTimers[0]),
            (there, client.device, client.qp, plan.rnrTimers[1]),
        ):
            one.modify(QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1, access=_RIGHTS))
            one.modify(
                QPAttributes(
                    state=QPState.RTR,
                    address=AddressVector(device.gids(1)[0], dmac=device.mac),
                    pathMTU=self.plan.mtu,
                    destinationQPN=other.number,
                    rqPSN=0xFFFFF8,
                    maxDestRDAtomic=plan.reads,
                    minRNRTimer=rnrTimer,
                )
            )
            one.modify(
                QPAttributes(
                    state=QPState.RTS,
                    timeout=13,
                    retryCount=7,
                    rnrRetry=7,
                    sqPSN=0xFFFFF8,
                    maxRDAtomic=plan.reads,
                )
            )
        return there

    def run(self) -> Outcome:
        """
        Run the simulation to its end.

        @raise txrdma.testing.outcome.Violation: a promise was violated.
        """
        plan, clock = self.plan, self.clock
        for client in self.clients:
            for post in client.plan.posts:
                clock.callLater(post.at, client.post, post.requests)
        for room in plan.rooms:
            clock.callLater(room.at, self.postReceives, room.count)
        if plan.failing is not None:
            there = self.clients[plan.failing].there
            clock.callLater(plan.failingAt, there.modify, QPAttributes(state=QPState.ERR))
        self._settle()
        self._poll()
        outcome = self._outcome()
        for device in (self.server, *(client.device for client in self.clients)):
            device.close()
        self._settle()
        return outcome

    def _settle(self) -> None:
        """Let time pass until nothing more is scheduled."""
        while self.clock.calls:
            self.clock.advance(max(0.0, self.clock.calls[0].getTime() - self.clock.seconds()))
            self.poll()
            check(self.network.sent < _MOST_PACKETS, "the simulation does not end")

    def postReceives(self, count: int) -> None:
        """Post this many receives to the shared queue."""
        for number in range(self.rooms, self.rooms + count):
            segment = Segment(self.inbox.address + _LENGTH * number, _LENGTH, self.inbox.lkey)
            self.receives.postReceive([ReceiveRequest(number, [segment])])
        self.rooms += count

    def poll(self) -> None:
        """Poll and check all completions of the clients and the server."""
        for client in self.clients:
            client.poll()
        for completion in self.queue.poll(1024):
            self._received(completion)

    def _received(self, completion: Completion) -> None:
        number, client = completion.identifier, self.byNumber[completion.qpn]
        check(number not in self.filled and number < self.rooms, f"{completion} for no receive")
        self.filled.add(number)
        if completion.status is Status.SUCCESS:
            start = number * _LENGTH
            client.received.append(bytes(self.inbox.view[start : start + completion.length]))
            return
        check(completion.status is Status.WR_FLUSH_ERR and client.broken, f"{completion} for no reason")
        check(completion.qpn not in self.flushed, "more than one receive had begun")
        self.flushed.append(completion.qpn)

    def _poll(self) -> None:
        """Check the results of the simulation."""
        for client in self.clients:
            check(not client.broken or not self.plan.isFair, "a connection broke without faults")
            client.checkMessages()
        for client in self.clients:  # this flushes receives that have begun
            client.there.modify(QPAttributes(state=QPState.ERR))
        self.poll()
        check(len(self.receives.receives) == self.rooms - len(self.filled), "receives were lost")
        for word in range(WORDS):
            history = History(
                self.plan.words[word],
                [[atomic for atomic in client.atomics if atomic.word == word] for client in self.clients],
            )
            check(history.explains(self.numbers[word]), f"no order of operations explains word {word}")

    def _outcome(self) -> Outcome:
        completed = sum(len(c.sent) + len(c.atomics) - len(c.posted) for c in self.clients)
        atomics = sum(a.original is not None for c in self.clients for a in c.atomics)
        failures = [client.failure for client in self.clients if client.failure is not None]
        network = self.network
        counts = Counter(
            completed=completed,
            atomics=atomics,
            packets=network.sent,
            dropped=network.dropped,
            failures=len(failures),
        ) + Counter(status.name for status in failures)
        return Outcome(counts, self.clock.seconds())


def playClients(plan: ClientsPlan) -> Outcome:
    """
    Run the simulation of a plan.

    @raise txrdma.testing.outcome.Violation: a promise was violated.
    """
    return ClientsScenario(plan).run()
