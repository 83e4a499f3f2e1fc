"""
Shared memory between real devices: atomics by another process, shared receives, ports that go down.
"""

from __future__ import annotations

from functools import partial

from txrdma.iba.verbs import (
    Access,
    AsyncEventKind,
    Capacity,
    CompletionOpcode,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Status,
)
from txrdma.test.support.soft.neighbours import RealCase
from txrdma.test.support.soft.pairs import End

RECEIVE = CompletionOpcode.RECEIVE


class SharedTests(RealCase):
    """Receives that several queue pairs share."""

    def test_messageOfAnySenderWakesReceiverAndFillsFirstReceive(self) -> None:
        device = self.open()
        hub = End(device)
        shared = hub.domain.createSharedReceiveQueue(16, 1)
        ends = []
        for _ in range(2):
            here = End(self.open())
            there = End(device)
            there.qp.close()
            capacity = Capacity(16, 0, 1, 0)
            there.qp = hub.domain.createQueuePair(QPKind.RC, there.queue, there.queue, capacity, shared)
            here.join(there)
            there.join(here)
            ends.append((here, there))
        for identifier in range(4):
            shared.postReceive([ReceiveRequest(identifier, [hub.segment(100 * identifier, 100)])])
        for turn, which in enumerate((1, 0, 0, 1)):
            here, there = ends[which]
            there.queue.arm()
            here.post(10 + turn, Operation.SEND, inline=[b"message %d" % turn])
            self.runUntil(partial(self.wakes, there))
            (completion,) = there.poll()
            self.assertEqual(completion[:4], (turn, Status.SUCCESS, RECEIVE, there.qp.number))
            self.assertEqual(bytes(hub.region.view[100 * turn : 100 * turn + 9]), b"message %d" % turn)
        for here, _ in ends:
            self.assertEqual(len(self.take(here, 2)), 2)

    def wakes(self, end: End) -> bool:
        """Return whether the channel has an event."""
        return end.queue in end.channel.takeEvents()


class RightsTests(RealCase):
    """Access rights of queue pairs."""

    def test_readsWithoutRightAreInvalidRequests(self) -> None:
        for changes in ({"maxDestRDAtomic": 0}, {}):
            one, other = End(self.open()), End(self.open())
            one.join(other)
            other.join(one, **changes)
            if not changes:
                other.qp.modify(QPAttributes(state=QPState.RTS, access=Access.REMOTE_WRITE))
            where = {"remoteAddress": other.region.address, "rkey": other.region.rkey}
            one.post(1, Operation.RDMA_WRITE, [one.segment(0, 8)], **where)
            self.assertEqual(self.take(one, 1)[0].status, Status.SUCCESS)
            one.post(2, Operation.RDMA_READ, [one.segment(0, 8)], **where)
            self.refused(one, other)

    def refused(self, one: End, other: End) -> None:
        """Assert that both ends have failed."""
        self.runUntil(lambda: (other.poll(), other.qp.state is QPState.ERR)[1])
        self.assertEqual(self.take(one, 1)[0].status, Status.REM_INV_REQ_ERR)
        self.runUntil(lambda: other.events)
        self.assertEqual(other.events[0].kind, AsyncEventKind.QP_REQUEST_ERROR)
