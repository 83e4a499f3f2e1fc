"""
Concurrent READs and atomics: L{txrdma.soft.rc._requester} and L{txrdma.soft.rc._responder} together.

Each packet of a small exchange is lost, duplicated or reordered, and each pair of packets.
"""

from __future__ import annotations

import sys
from collections import deque
from itertools import combinations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.verbs import Access, Operation, ReceiveRequest, SendRequest, Status
from txrdma.soft.rc._packets import Incoming, Outgoing
from txrdma.soft.rc._requester import READ_CHUNK
from txrdma.test.support import slow
from txrdma.test.support.soft.cores import arrived, completions, Memory, requester, responder

MTU = 256
PSN = 0xFFFFFC
RIGHTS = int(Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC)
LOST, DOUBLED, OVERTAKEN = "lost", "doubled", "overtaken"


def native(number: int) -> bytes:
    """Return a number in the host's byte order."""
    return number.to_bytes(8, sys.byteorder)


class Exchange:
    """
    A requester, a responder, and the packets between them.

    @ivar faults: the fault of each packet, by number.
    @ivar outstanding: the largest number of outstanding READs and atomics.
    """

    def __init__(self, faults: dict[int, str], most: int = 3) -> None:
        self.here, self.there = Memory(1 << 18), Memory(1 << 18)
        self.faults = faults
        self.sent = 0
        self.now = 0.0
        self.outstanding = 0
        self.wire: deque[tuple[bool, Incoming]] = deque()
        self.receives: deque[ReceiveRequest] = deque()
        self.requester = requester(self.here, psn=PSN, maxRDAtomic=most)
        self.responder = responder(
            self.there, self.receives, psn=PSN, access=RIGHTS, maxDestRDAtomic=most, minRNRTimer=1
        )
        self.ended: list[tuple[int, Status]] = []

    def request(
        self, identifier: int, operation: Operation, here: int, there: int, length: int
    ) -> SendRequest:
        """Return a request whose answer is stored at C{here}."""
        return SendRequest(
            identifier,
            operation,
            [self.here.segment(here, length)],
            remoteAddress=self.there.region.address + there,
            rkey=self.there.region.rkey,
        )

    def put(self, toResponder: bool, runs: list[Outgoing]) -> None:
        """Put each packet in flight separately."""
        for run in runs:
            whole = arrived(run)
            for number in range(whole.packets):
                begin = number * whole.stride
                packet = whole._replace(data=whole.data[begin : begin + whole.stride], packets=1)
                fault = self.faults.get(self.sent)
                self.sent += 1
                if fault != LOST:
                    self.wire.append((toResponder, packet))
                if fault == DOUBLED:
                    self.wire.append((toResponder, packet))
        for place in range(len(self.wire) - 1):
            if self.faults.get(self.sent - len(self.wire) + place) == OVERTAKEN:
                self.wire[place], self.wire[place + 1] = self.wire[place + 1], self.wire[place]

    def run(self) -> None:
        """Run until nothing is in flight and no timer is set."""
        for _ in range(5000):
            self.put(True, self.requester.outgoing(self.now))
            self.outstanding = max(self.outstanding, len(self.requester._reads))
            self.ended += [(c.identifier, c.status) for c in completions(self.requester.events())]
            if self.wire:
                toResponder, packet = self.wire.popleft()
                if toResponder:
                    self.responder.received(packet, self.now)
                else:
                    self.requester.received(packet, self.now)
                self.put(False, self.responder.outgoing(self.now))
            elif self.responder.pending:
                self.put(False, self.responder.outgoing(self.now))
            else:
                deadline = self.requester.deadline()
                if deadline is None:
                    return
                self.now = deadline
                self.requester.expired(deadline)
        raise AssertionError(f"the exchange does not end: {self.faults}")


class FaultTests(SynchronousTestCase):
    """A READ of three packets, an addition, a READ of its result, a SEND, a swap, and a fenced READ."""

    def play(self, faults: dict[int, str]) -> int:
        """
        Run the exchange, and assert that every request ends once, in order, and has been executed.

        @return: the number of packets.
        """
        exchange = Exchange(faults)
        exchange.there.put(0, native(1000) + bytes(range(256)) * 4)
        exchange.receives.append(ReceiveRequest(1, [exchange.there.segment(5000, 300)]))
        exchange.here.put(4000, b"s" * 300)
        requests = [
            exchange.request(0, Operation.RDMA_READ, 0, 8, 2 * MTU + 5),
            exchange.request(1, Operation.FETCH_AND_ADD, 1000, 0, 8),
            exchange.request(2, Operation.RDMA_READ, 2000, 0, 8),
            exchange.request(3, Operation.SEND, 4000, 0, 300),
            exchange.request(4, Operation.COMPARE_AND_SWAP, 1008, 0, 8),
            exchange.request(5, Operation.RDMA_READ, 3000, 0, 8),
        ]
        requests[1].operand = 23
        requests[4].compare, requests[4].operand = 1023, 5
        requests[5].fence = True
        exchange.requester.post(requests, 0.0)
        exchange.run()
        self.assertEqual(exchange.ended, [(number, Status.SUCCESS) for number in range(6)])
        here, there = exchange.here, exchange.there
        self.assertEqual(here.get(0, 2 * MTU + 5), (bytes(range(256)) * 4)[: 2 * MTU + 5])
        self.assertEqual(here.get(1000, 16), native(1000) + native(1023))
        # without a fence, a later request may be executed before the READ has its data: both are valid
        self.assertIn(here.get(2000, 8), (native(1023), native(5)))
        self.assertEqual((here.get(3000, 8), there.get(0, 8)), (native(5), native(5)))
        self.assertEqual(there.get(5000, 300), b"s" * 300)
        self.assertEqual(len(exchange.receives), 0)
        self.assertLessEqual(exchange.outstanding, 3)
        return exchange.sent

    @slow("every pair of packets is lost, duplicated or reordered once")
    def test_twoFaults(self) -> None:
        for first, second in combinations(range(16), 2):
            for one in (LOST, DOUBLED, OVERTAKEN):
                for other in (LOST, DOUBLED, OVERTAKEN):
                    with self.subTest(packets=(first, second), faults=(one, other)):
                        self.play({first: one, second: other})

    def test_consecutiveLosses(self) -> None:
        for first in range(24):
            for last in range(first + 3, first + 8):
                with self.subTest(lost=(first, last)):
                    self.play(dict.fromkeys(range(first, last), LOST))


class OutstandingTests(SynchronousTestCase):
    def test_exactlyAsManyAsAllowed(self) -> None:
        for most in (1, 2, 4, 16):
            with self.subTest(most=most):
                exchange = Exchange({}, most)
                operations = [Operation.RDMA_READ, Operation.FETCH_AND_ADD, Operation.COMPARE_AND_SWAP] * 10
                exchange.requester.post(
                    [exchange.request(n, operation, 8 * n, 0, 8) for n, operation in enumerate(operations)],
                    0.0,
                )
                self.assertEqual(len(exchange.requester.outgoing(0.0)), most)
                exchange.put(True, [])
                self.assertEqual(len(exchange.requester._reads), most)

    def test_requestsOfLongReadsAreOutstandingTogether(self) -> None:
        exchange = Exchange({}, 4)
        length = READ_CHUNK + 10
        exchange.there.put(0, data := bytes(range(256)) * (-(-2 * length // 256)))
        exchange.requester.window.size = 1 << 20
        exchange.requester.post(
            [exchange.request(n, Operation.RDMA_READ, n * length, n * length, length) for n in range(3)], 0.0
        )
        exchange.run()
        self.assertEqual(exchange.outstanding, 4)
        self.assertEqual(exchange.ended, [(n, Status.SUCCESS) for n in range(3)])
        self.assertEqual(exchange.here.get(0, 2 * length), data[: 2 * length])
