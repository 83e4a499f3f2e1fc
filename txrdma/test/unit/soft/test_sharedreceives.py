"""
Shared receive queues of the software device, and their queue pairs.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.iba.types import QPN
from txrdma.iba.verbs import (
    AsyncEventKind,
    Capacity,
    Completion,
    CompletionOpcode,
    QPKind,
    QPState,
    ReceiveRequest,
    Status,
)
from txrdma.soft.core.completion import SoftCompletionChannel, SoftCompletionQueue
from txrdma.soft.core.memory import Domain
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.sharedreceives import SoftSharedReceiveQueue
from txrdma.test.unit.soft.test_queuepair import bring, Host, required, Route

RESET, INIT, RTR, RTS, SQD, SQE, ERR = QPState
LIMIT, LAST = AsyncEventKind.SRQ_LIMIT_REACHED, AsyncEventKind.QP_LAST_WQE_REACHED


class SharedReceiveTests(SynchronousTestCase):
    """Invariants of a shared receive queue with any routes."""

    def setUp(self) -> None:
        self.channel = SoftCompletionChannel()
        self.addCleanup(self.channel.close)
        self.host = Host()
        self.domain = Domain()
        self.receives = SoftCompletionQueue(100, self.channel, self.host.notify)
        self.closed: list[SoftSharedReceiveQueue] = []
        self.shared = SoftSharedReceiveQueue(self.domain, 8, 2, self.host.notify, self.closed.append)

    def make(self, number: int, kind: QPKind = QPKind.RC, upTo: QPState = RTR) -> SoftQueuePair:
        """Return a queue pair that uses it."""
        capacity = Capacity(4, 0, 2, 0)
        queue = self.receives
        calls = self.host.calls()
        made = SoftQueuePair(calls, self.domain, kind, QPN(number), queue, queue, capacity, self.shared)
        return bring(made, upTo)

    def post(self, *identifiers: int) -> None:
        self.shared.postReceive([ReceiveRequest(identifier) for identifier in identifiers])

    def reported(self) -> list[AsyncEventKind]:
        """Return the events since the last call."""
        events, self.host.events = self.host.events, []
        return [event.kind for event in events]

    def left(self) -> list[int]:
        """Return the remaining receives of the queue."""
        return [receive.identifier for receive in self.shared.receives]

    def test_limitAboveCountReportsAtOnce(self) -> None:
        queuePair = self.make(2)
        self.post(1, 2)
        self.shared.arm(3)
        self.assertEqual(self.reported(), [LIMIT])
        self.shared.arm(2)
        self.shared.arm(0)
        queuePair.receives.popleft()
        self.assertEqual(self.reported(), [])
        for wrong in (-1, 9):
            self.assertRaises(InvalidRequest, self.shared.arm, wrong)

    def test_begunReceiveIsFlushedBeforeLastEvent(self) -> None:
        queuePair = self.make(2)
        self.post(1, 2)
        begun = queuePair.receives.popleft()

        class Busy(Route):
            def flush(self) -> list[tuple[int, CompletionOpcode]]:
                completion = Completion(
                    begun.identifier, Status.WR_FLUSH_ERR, CompletionOpcode.RECEIVE, queuePair.number
                )
                queuePair.receiveCompleted(completion, True)
                return super().flush()

        queuePair._route = Busy()
        queuePair.failed()
        found = [(c.identifier, c.status) for c in self.receives.poll(10)]
        self.assertEqual(found, [(1, Status.WR_FLUSH_ERR)])
        self.assertEqual((self.reported(), self.left()), ([LAST], [2]))

    def test_closeFailsQueuePairs(self) -> None:
        one, other, unused = self.make(2), self.make(3), self.make(4, upTo=RESET)
        other.close()
        self.post(1, 2)
        self.shared.arm(1)
        self.shared.close()
        self.shared.close()
        self.assertEqual((one.state, unused.state), (ERR, RESET))
        self.assertEqual((self.left(), self.closed), ([], [self.shared]))
        self.assertEqual(self.reported(), [LAST])
        for attempt in (
            lambda: self.post(3),
            lambda: self.shared.arm(1),
            lambda: self.make(5),
            lambda: unused.modify(required(QPKind.RC, RESET, INIT)),
        ):
            self.assertRaises(InvalidRequest, attempt)
        one.close()

    def test_receivesTakenWhilePosting(self) -> None:
        queuePair = self.make(2)
        taken: list[int] = []

        class Hungry(Route):
            def receivesPosted(self) -> None:
                while queuePair.receives:
                    taken.append(queuePair.receives.popleft().identifier)

        queuePair._route = Hungry()
        self.post(*range(8))
        self.post(*range(8, 16))
        self.assertEqual(taken, list(range(16)))
