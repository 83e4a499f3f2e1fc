"""Queue pairs of the software device: transitions, posting, and failure, on a route that sends nothing."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import skipUnless
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest, QueueFull
from txrdma.iba.types import GID, LKey, MTU, QPN
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    AsyncEventKind,
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
from txrdma.interfaces import AsyncEvent, ITrimmable
from txrdma.soft.core.completion import SoftCompletionChannel, SoftCompletionQueue
from txrdma.soft.core.memory import Domain, KeyTable, PAGE
from txrdma.soft.core.queuepair import DeviceCalls, SoftQueuePair
from txrdma.soft.core.transitions import transition
from txrdma.soft.device import SoftAddressHandle

RESET, INIT, RTR, RTS, SQD, SQE, ERR = QPState
RC, UD = QPKind.RC, QPKind.UD

SOME: dict[str, Any] = {
    "currentState": None,
    "pkeyIndex": 0,
    "port": 1,
    "access": Access.REMOTE_READ,
    "qkey": 1,
    "address": AddressVector(GID.fromIP("192.0.2.1")),
    "pathMTU": MTU.MTU_1024,
    "destinationQPN": QPN(3),
    "rqPSN": 4,
    "sqPSN": 5,
    "maxRDAtomic": 1,
    "maxDestRDAtomic": 1,
    "minRNRTimer": 12,
    "timeout": 14,
    "retryCount": 7,
    "rnrRetry": 7,
}
"""A value for each attribute."""

REQUIRED = {
    (RC, RESET, INIT): "pkeyIndex port access",
    (RC, INIT, RTR): "address pathMTU destinationQPN rqPSN maxDestRDAtomic minRNRTimer",
    (RC, RTR, RTS): "sqPSN maxRDAtomic retryCount rnrRetry timeout",
    (UD, RESET, INIT): "pkeyIndex port qkey",
    (UD, INIT, RTR): "",
    (UD, RTR, RTS): "sqPSN",
}
"""Attributes required by ibv_modify_qp(3), by their names here."""


def attributes(state: QPState | None, names: Sequence[str]) -> QPAttributes:
    return QPAttributes(state=state, **{name: SOME[name] for name in names})


def required(kind: QPKind, before: QPState, after: QPState) -> QPAttributes:
    """Return the attributes that ibv_modify_qp(3) requires."""
    return attributes(after, REQUIRED.get((kind, before, after), "").split())


def bring(queuePair: SoftQueuePair, upTo: QPState) -> SoftQueuePair:
    """Modify a new queue pair until it is in this state, and return it."""
    states = (RESET, INIT, RTR, RTS)
    for before, after in pairwise(states[: states.index(upTo) + 1]):
        queuePair.modify(required(queuePair.kind, before, after))
    return queuePair


class TransitionTests(SynchronousTestCase):
    """The table of transitions agrees with the specification and the manual."""

    def test_allowedTransitions(self) -> None:
        always = {(state, RESET) for state in QPState} | {
            (state, ERR) for state in QPState if state is not RESET
        }
        forward = {(RESET, INIT), (INIT, RTR), (RTR, RTS), (RTS, SQD), (SQD, RTS)}
        staying = {(INIT, INIT), (RTS, RTS), (SQD, SQD)}
        for kind, more in ((RC, set()), (UD, {(SQE, RTS)})):
            allowed = set()
            for before in QPState:
                for after in QPState:
                    try:
                        transition(kind, before, required(kind, before, after))
                    except InvalidRequest:
                        continue
                    allowed.add((before, after))
            self.assertEqual(allowed, always | forward | staying | more)

    def test_fractions(self) -> None:
        """A number that is not an integer is refused before anything changes."""
        before = QPState.RTR
        wrong = replace(required(RC, before, RTS), timeout=1.5)  # type: ignore[arg-type]  # what is tested
        self.assertRaises(TypeError, transition, RC, before, wrong)

    def test_optionalAttributes(self) -> None:
        for kind, state, names in (
            (RC, SQD, ["address", "timeout", "retryCount", "rnrRetry", "maxRDAtomic", "port"]),
            (RC, RTS, ["access", "minRNRTimer"]),
            (RC, INIT, ["pkeyIndex", "port", "access"]),
            (UD, RTS, ["qkey"]),
            (UD, INIT, ["qkey", "port"]),
        ):
            self.assertEqual(transition(kind, state, attributes(None, names)), state)
            self.assertEqual(transition(kind, state, attributes(state, names)), state)


class Route:
    """A route that records posted requests."""

    name = "nowhere"
    polled = False
    direct = None
    rewinds = doorbell = 0

    def __init__(self) -> None:
        self.posted: list[SendRequest] = []
        self.calls: list[str] = []
        self.isReceiving = False

    def post(self, requests: Sequence[SendRequest]) -> None:
        self.posted += map(replace, requests)

    def receivesPosted(self) -> None:
        self.calls.append("receivesPosted")

    def poll(self) -> None:
        self.calls.append("poll")

    def arm(self, sends: bool, receives: bool, solicitedOnly: bool) -> None:
        self.calls.append("arm")

    def activity(self) -> int:
        return -1

    def setDormant(self, wake: Callable[[], None] | None) -> None:
        self.calls.append("setDormant")

    def trim(self) -> bool:
        return self.isReceiving

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        self.calls.append("flush")
        return [(request.identifier, CompletionOpcode.SEND) for request in self.posted]

    def attributesChanged(self) -> None:
        self.calls.append("attributesChanged")

    def migrate(self) -> None:
        self.calls.append("migrate")

    def close(self) -> None:
        self.calls.append("close")


class Host:
    """The device of one queue pair."""

    def __init__(self) -> None:
        self.keys = KeyTable()
        self.events: list[AsyncEvent] = []
        self.route: Route | None = Route()
        self.forgotten: list[SoftQueuePair] = []
        self.forbidden = False

    def connect(self, queuePair: SoftQueuePair) -> Route:
        if self.route is None:
            raise DeviceUnavailable("no way")
        return self.route

    def admit(self, asked: QPAttributes, current: QPAttributes) -> None:
        if self.forbidden:
            raise InvalidRequest("we don't have that")

    def notify(self, event: AsyncEvent) -> None:
        self.events.append(event)

    def forget(self, queuePair: SoftQueuePair) -> None:
        self.forgotten.append(queuePair)

    def calls(self) -> DeviceCalls:
        """Return what its queue pair needs."""
        return DeviceCalls(self, self.keys, self.connect, self.admit, self.notify, self.forget)


class QueuePairTests(SynchronousTestCase):
    """Invariants of a queue pair with any route."""

    def setUp(self) -> None:
        self.channel = SoftCompletionChannel()
        self.addCleanup(self.channel.close)
        self.host = Host()
        self.sends = SoftCompletionQueue(100, self.channel, self.host.notify)
        self.receives = SoftCompletionQueue(100, self.channel, self.host.notify)

    def make(self, kind: QPKind = RC, upTo: QPState = RTS) -> SoftQueuePair:
        """Return a queue pair in that state."""
        capacity = Capacity(maxSend=4, maxReceive=4, maxSendSegments=2, maxReceiveSegments=2, maxInline=10)
        queuePair = SoftQueuePair(
            self.host.calls(), Domain(), kind, QPN(9), self.sends, self.receives, capacity
        )
        return bring(queuePair, upTo)

    def route(self) -> Route:
        assert self.host.route is not None
        return self.host.route

    def flushed(self, queue: SoftCompletionQueue) -> list[int]:
        """Assert that exactly these were flushed into that queue."""
        completions = queue.poll(100)
        self.assertEqual({c.status for c in completions} - {Status.WR_FLUSH_ERR}, set())
        return [c.identifier for c in completions]

    def test_malformedRequestsAreRefused(self) -> None:
        piece = Segment(1, 1, LKey(1))
        connected, datagrams = self.make(), self.make(UD)
        elsewhere = AddressVector(GID.fromIP("192.0.2.1"), port=2)
        handle = SoftAddressHandle(datagrams.domain, elsewhere, lambda handle: None)
        for queuePair, wrong in (
            (connected, SendRequest(1, Operation.SEND, [piece] * 3)),
            (connected, SendRequest(1, Operation.FETCH_AND_ADD, [piece])),
            (datagrams, SendRequest(1, Operation.FETCH_AND_ADD, [piece], address=handle)),
            (datagrams, SendRequest(1, Operation.SEND, [piece], address=handle)),
        ):
            self.assertRaises(InvalidRequest, queuePair.postSend, [wrong])

    def test_listThatRaisesTakesNoEntries(self) -> None:
        """A list that the route does not accept, for a field of a wrong type, leaves its entries free."""
        handle = SoftAddressHandle(Domain(), AddressVector(GID.fromIP("192.0.2.1")), lambda handle: None)
        for kind, operation in (
            (RC, Operation.SEND),
            (UD, Operation.SEND),
            (UD, Operation.SEND_WITH_IMMEDIATE),
        ):
            queuePair = self.make(kind)
            handle.domain = queuePair.domain
            request = SendRequest(1, operation, address=handle if kind is UD else None)
            patcher = self.patch(self.route(), "post", Mock(side_effect=TypeError))
            self.assertRaises(TypeError, queuePair.postSend, [request] * 3)
            patcher.restore()
            queuePair.postSend([request] * 4)
            self.assertRaises(QueueFull, queuePair.postSend, [request])
            queuePair.close()

    def test_heldListThatRaisesIsHeld(self) -> None:
        """If the route does not accept requests that were posted in SQD, the queue pair stays there."""
        queuePair = self.make()
        queuePair.modify(QPAttributes(state=SQD))
        queuePair.postSend([SendRequest(1, Operation.SEND), SendRequest(2, Operation.SEND)])
        patcher = self.patch(self.route(), "post", Mock(side_effect=TypeError))
        self.assertRaises(TypeError, queuePair.modify, QPAttributes(state=RTS))
        self.assertEqual((queuePair.query().state, queuePair.free), (SQD, 2))
        patcher.restore()
        queuePair.postSend([SendRequest(3, Operation.SEND)])
        queuePair.modify(QPAttributes(state=RTS))
        self.assertEqual([request.identifier for request in self.route().posted], [1, 2, 3])

    def test_closedCompletionQueuePreventsTransition(self) -> None:
        queuePair = self.make(upTo=RESET)
        self.receives.close()
        self.assertRaises(InvalidRequest, queuePair.modify, required(RC, RESET, INIT))
        self.assertRaises(InvalidRequest, self.make, upTo=RESET)
        self.assertEqual(list(self.sends._members), [queuePair.failed])
        queuePair.close()

    def test_overrunCompletionQueuePreventsTransition(self) -> None:
        """A queue pair whose completions would be lost does not leave RESET."""
        queuePair = self.make()
        for identifier in range(101):
            self.receives.push(Completion(identifier, Status.SUCCESS, CompletionOpcode.RECEIVE, QPN(9)))
        self.assertEqual(queuePair.state, ERR)
        queuePair.modify(QPAttributes(state=RESET))
        self.assertRaises(InvalidRequest, queuePair.modify, required(RC, RESET, INIT))

    def test_SQDrainedAfterLastRetirement(self) -> None:
        queuePair = self.make()
        queuePair.postSend([SendRequest(1, Operation.SEND), SendRequest(2, Operation.SEND)])
        queuePair.modify(QPAttributes(state=SQD))
        queuePair.postSend([SendRequest(3, Operation.SEND, inline=[bytearray(b"x")])])
        queuePair.retired(1)
        self.assertEqual(self.host.events, [])
        queuePair.retired(1)
        self.assertEqual([event.kind for event in self.host.events], [AsyncEventKind.SQ_DRAINED])
        queuePair.modify(QPAttributes(timeout=3))
        self.assertEqual(len(self.host.events), 1)
        self.assertEqual([request.identifier for request in self.route().posted], [1, 2])
        queuePair.modify(QPAttributes(state=RTS))
        self.assertEqual([request.identifier for request in self.route().posted], [1, 2, 3])

    def test_heldRequestsAreFlushedAfterRoute(self) -> None:
        queuePair = self.make()
        queuePair.postReceive([ReceiveRequest(10), ReceiveRequest(11)])
        queuePair.postSend([SendRequest(1, Operation.SEND)])
        queuePair.modify(QPAttributes(state=SQD))
        queuePair.postSend([SendRequest(2, Operation.RDMA_READ), SendRequest(3, Operation.SEND)])
        queuePair.failed(AsyncEventKind.QP_FATAL)
        self.assertEqual((self.flushed(self.sends), self.flushed(self.receives)), ([1, 2, 3], [10, 11]))
        self.assertEqual([event.kind for event in self.host.events], [AsyncEventKind.QP_FATAL])
        self.assertIs(self.host.events[0].queuePair, queuePair)

    def test_secondFailureIsIgnored(self) -> None:
        queuePair = self.make()
        queuePair.postSend([SendRequest(1, Operation.SEND)])
        queuePair.failed()
        queuePair.failed(AsyncEventKind.QP_FATAL)
        queuePair.modify(QPAttributes(state=ERR))
        queuePair.retired(1)
        self.assertEqual((self.flushed(self.sends), self.host.events), ([1], []))
        self.assertEqual(queuePair.query().state, ERR)

    def test_missingRouteLeavesINIT(self) -> None:
        self.host.route = None
        queuePair = self.make(upTo=INIT)
        before = queuePair.query()
        self.assertRaises(DeviceUnavailable, queuePair.modify, required(RC, INIT, RTR))
        self.assertEqual((queuePair.query(), queuePair.route), (before, ""))
        self.host.route = Route()
        queuePair.modify(required(RC, INIT, RTR))
        self.assertEqual((queuePair.state, queuePair.route), (RTR, "nowhere"))

    def test_earlyReceivesReachRoute(self) -> None:
        queuePair = self.make(upTo=INIT)
        queuePair.postReceive([ReceiveRequest(1)])
        queuePair.modify(required(RC, INIT, RTR))
        self.assertEqual(self.route().calls.count("receivesPosted"), 1)
        queuePair.postReceive([ReceiveRequest(2)])
        self.assertEqual(self.route().calls.count("receivesPosted"), 2)
        self.assertEqual([receive.identifier for receive in queuePair.receives], [1, 2])

    @skipUnless(hasattr(mmap, "MADV_REMOVE"), "this system cannot free pages of shared memory")
    def test_trimKeepsWhatMayBeFilled(self) -> None:
        """Memory of receives is released, except that of the oldest one while it is partly filled."""
        queuePair = self.make()
        region, foreign = [
            self.host.keys.allocate(domain, 4 * PAGE, Access.LOCAL_WRITE)
            for domain in (queuePair.domain, Domain())
        ]
        segments = [region.segment(index * PAGE, PAGE) for index in range(2)]
        segments += [foreign.segment(0, PAGE), Segment(0, PAGE, LKey(0))]
        queuePair.postReceive([ReceiveRequest(1, (segment,)) for segment in segments])
        for each in (region, foreign):
            self.addCleanup(each.close)
            each.view[:] = b"x" * (4 * PAGE)
        self.route().isReceiving = True
        ITrimmable(queuePair).trim()
        self.assertEqual(bytes(region.view), b"x" * PAGE + bytes(PAGE) + b"x" * (2 * PAGE))
        self.route().isReceiving = False
        ITrimmable(queuePair).trim()
        self.assertEqual(bytes(region.view), bytes(2 * PAGE) + b"x" * (2 * PAGE))
        self.assertEqual(bytes(foreign.view), b"x" * (4 * PAGE))

    def test_selfReportingRouteIsNotPolled(self) -> None:
        self.make()
        self.sends.arm()
        self.receives.poll(1)
        self.assertEqual({"poll", "arm"} & set(self.route().calls), set())

    def test_closeIsSilentAndFinal(self) -> None:
        queuePair = self.make()
        queuePair.postSend([SendRequest(1, Operation.SEND)])
        queuePair.close()
        queuePair.close()
        queuePair.failed(AsyncEventKind.QP_FATAL)
        self.assertEqual((list(self.sends.poll(9)), self.host.events), ([], []))
        self.assertEqual(self.host.forgotten, [queuePair])


class Honest(Route):
    """A route that completes posted requests in order, on request."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: SoftQueuePair | None = None

    def complete(self, status: Status = Status.SUCCESS) -> None:
        if self.posted and self.owner is not None:
            request = self.posted.pop(0)
            if status or request.signaled:
                opcode = CompletionOpcode.SEND
                self.owner.sendCompleted(Completion(request.identifier, status, opcode, QPN(9)))
            self.owner.retired(1)
            if status:
                self.owner.failed()

    def receive(self) -> None:
        if self.owner is not None and self.owner.receives and self.owner.state in (RTR, RTS, SQD):
            done = self.owner.receives.popleft()
            self.owner.receiveCompleted(
                Completion(done.identifier, Status.SUCCESS, CompletionOpcode.RECEIVE, QPN(9)), False
            )

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        left, self.posted = self.posted, []
        return [(request.identifier, CompletionOpcode.SEND) for request in left]


class LifeTests(SynchronousTestCase):
    """Every request ends once, in order, after any events of a queue pair."""

    ACTIONS = (
        *("send", "receive") * 4,
        "quiet",
        "complete",
        "fill",
        "spoil",
        "SQD",
        "RTS",
        "ERR",
        "reset",
        "poll",
    )

    @given(st.lists(st.sampled_from(ACTIONS), max_size=60))
    def test_everyRequestEndsOnce(self, actions: list[str]) -> None:
        """Signaled requests complete once, in order; after ERR nothing remains, and all entries are free."""
        case = QueuePairTests()
        case.setUp()
        route = case.host.route = Honest()
        queuePair = route.owner = case.make()
        sent: list[int] = []
        received: list[int] = []
        done: list[int] = []
        filled: list[int] = []
        quiet: set[int] = set()

        def poll() -> None:
            done.extend(c.identifier for c in case.sends.poll(1000))
            filled.extend(c.identifier for c in case.receives.poll(1000))

        for number, action in enumerate(actions):
            try:
                if action in ("send", "quiet"):
                    queuePair.postSend([SendRequest(number, Operation.SEND, signaled=action == "send")])
                    sent.append(number)
                    if action == "quiet":
                        quiet.add(number)
                elif action == "receive":
                    queuePair.postReceive([ReceiveRequest(number)])
                    received.append(number)
                elif action == "complete":
                    route.complete()
                elif action == "spoil":
                    route.complete(Status.REM_ACCESS_ERR)
                elif action == "fill":
                    route.receive()
                elif action == "poll":
                    poll()
                elif action == "reset":
                    poll()
                    queuePair.modify(QPAttributes(state=RESET))
                    route = case.host.route = Honest()
                    route.owner = queuePair
                    self.assertEqual(bring(queuePair, RTS).query().state, RTS)
                    sent, received, done, filled = [], [], [], []
                else:
                    queuePair.modify(QPAttributes(state=QPState[action]))
            except (InvalidRequest, QueueFull):
                pass
            self.assertLessEqual(len(route.posted), queuePair.capacity.maxSend)
        queuePair.failed()
        poll()
        case.channel.close()
        self.assertEqual(
            [number for number in done if number not in quiet], [n for n in sent if n not in quiet]
        )
        self.assertEqual(sorted(set(done)), sorted(done))
        self.assertEqual(filled, received)
