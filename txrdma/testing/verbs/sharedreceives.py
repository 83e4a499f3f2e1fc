"""
Promises of every device about shared receive queues.

Follows InfiniBand Architecture vol. 1, 10.2.9 (shared receive queues) and 11.6.3 (their events).
"""

from __future__ import annotations

from txrdma.error import InvalidRequest, QueueFull, RDMAError
from txrdma.iba.verbs import (
    AsyncEventKind,
    CompletionOpcode,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.interfaces import ISharedReceiveQueue
from txrdma.testing.verbs.ends import End, EVERYTHING, QKEY, TwoEnds

_LAST = AsyncEventKind.QP_LAST_WQE_REACHED


class SharedEnds(TwoEnds):
    """A test case with ends that share a receive queue."""

    def hub(self, maxReceive: int = 16, maxSegments: int = 2) -> tuple[End, ISharedReceiveQueue]:
        """Create a shared receive queue of the second device; return an end of its domain, and the queue."""
        hub = self.end(1)
        shared = hub.domain.createSharedReceiveQueue(maxReceive, maxSegments)
        self.addCleanup(shared.close)
        return hub, shared

    def receiver(self, hub: End, shared: ISharedReceiveQueue) -> tuple[End, End]:
        """Return two connected ends, of which the second uses the shared receive queue."""
        alice = self.end(0)
        bob = self.end(1, access=EVERYTHING, shared=shared, beside=hub)
        self.connect(alice, bob)
        return alice, bob

    def offer(self, hub: End, shared: ISharedReceiveQueue, count: int, length: int = 64) -> None:
        """Post receives, each with the part of the hub's memory that its identifier selects."""
        shared.postReceive(
            [ReceiveRequest(index, [hub.segment(index * 1000, length)]) for index in range(count)]
        )


class SharedReceiveContract(SharedEnds):
    """Promises about queue pairs that share a receive queue."""

    def test_sharedCapacity(self) -> None:
        """A shared receive queue has at least the requested capacity, and its limit is not armed."""
        _hub, shared = self.hub(10, 3)
        self.assertTrue(ISharedReceiveQueue.providedBy(shared))
        self.assertGreaterEqual(shared.maxReceive, 10)
        self.assertGreaterEqual(shared.maxSegments, 3)
        self.assertEqual(shared.limit(), 0)
        shared.close()
        shared.close()

    def test_twoTake(self) -> None:
        """Messages of two connections consume receives in order, and complete on their own queue pair."""
        hub, shared = self.hub()
        pairs = [self.receiver(hub, shared) for _ in range(2)]
        self.offer(hub, shared, 6)
        for turn in range(3):
            for which, (alice, bob) in enumerate(pairs):
                alice.send(inline=[b"%d from %d" % (turn, which)])
                self.runUntilBothCompleted(alice, bob, turn + 1)
        for which, (_alice, bob) in enumerate(pairs):
            self.assertEqual([c.identifier for c in bob.received], [which, which + 2, which + 4])
            self.assertEqual({c.qpn for c in bob.received}, {bob.queuePair.number})
            self.assertEqual({c.opcode for c in bob.received}, {CompletionOpcode.RECEIVE})
            for turn, completion in enumerate(bob.received):
                at = completion.identifier * 1000
                self.assertEqual(completion.length, 8)
                self.assertEqual(bytes(hub.memory.view[at : at + 9]), b"%d from %d\0" % (turn, which))

    def test_atOnce(self) -> None:
        """Concurrent long messages of two connections do not mix in their receives."""
        hub, shared = self.hub()
        pairs = [self.receiver(hub, shared) for _ in range(2)]
        shared.postReceive([ReceiveRequest(i, [hub.segment(i * 16_000, 16_000)]) for i in range(4)])
        for turn in range(2):
            for which, (alice, _bob) in enumerate(pairs):
                alice.send(alice.fill(bytes([1 + turn * 2 + which]) * 15_000, turn * 16_000))
        for alice, bob in pairs:
            self.runUntilBothCompleted(alice, bob, 2)
        seen = []
        for which, (_alice, bob) in enumerate(pairs):
            for turn, completion in enumerate(bob.received):
                at = completion.identifier * 16_000
                expected = bytes([1 + turn * 2 + which]) * 15_000 + bytes(1000)
                self.assertEqual(bytes(hub.memory.view[at : at + 16_000]), expected)
                seen.append(completion.identifier)
        self.assertEqual(sorted(seen), [0, 1, 2, 3])

    def test_emptyWaits(self) -> None:
        """Messages wait while the shared receive queue is empty, and arrive when receives are posted."""
        hub, shared = self.hub()
        pairs = [self.receiver(hub, shared) for _ in range(2)]
        for which, (alice, _bob) in enumerate(pairs):
            alice.send(inline=[b"waiting %d" % which])
        self.quiet(*(end for pair in pairs for end in pair))
        self.offer(hub, shared, 2)
        for which, (alice, bob) in enumerate(pairs):
            self.runUntilBothCompleted(alice, bob)
            at = bob.received[0].identifier * 1000
            self.assertEqual(bytes(hub.memory.view[at : at + 9]), b"waiting %d" % which)

    def test_sharedSegments(self) -> None:
        """A message fills the segments of a receive one after the other."""
        hub, shared = self.hub(maxSegments=3)
        alice, bob = self.receiver(hub, shared)
        shared.postReceive([ReceiveRequest(1, [hub.segment(0, 3), hub.segment(100, 2), hub.segment(200, 9)])])
        alice.send(inline=[b"abcdefg"])
        self.runUntilCompleted(bob, receives=1)
        memory = bytes(hub.memory.view)
        self.assertEqual((memory[:4], memory[100:103], memory[200:203]), (b"abc\0", b"de\0", b"fg\0"))

    def test_writeTakesOne(self) -> None:
        """A write with immediate data consumes a receive of the queue; other writes consume none."""
        hub, shared = self.hub()
        alice, bob = self.receiver(hub, shared)
        self.offer(hub, shared, 2)
        alice.rdma(Operation.RDMA_WRITE, bob.memory, inline=[b"silent"])
        alice.rdma(Operation.RDMA_WRITE_WITH_IMMEDIATE, bob.memory, inline=[b"loud"], offset=10, immediate=5)
        alice.send(inline=[b"next"])
        self.runUntilCompleted(bob, receives=2)
        self.assertEqual([c.identifier for c in bob.received], [0, 1])
        self.assertEqual([c.immediate for c in bob.received], [5, None])
        self.assertEqual(bytes(bob.memory.view[:14]), b"silent\0\0\0\0loud")
        self.runUntilCompleted(alice, sends=3)

    def test_datagramsTake(self) -> None:
        """Datagram queue pairs can use a shared receive queue, too."""
        hub, shared = self.hub()
        alice = self.end(0, QPKind.UD)
        bob = self.end(1, QPKind.UD, shared=shared, beside=hub)
        self.connect(alice, bob)
        self.offer(hub, shared, 2, 200)
        handle = alice.domain.createAddressHandle(alice.destinationOf(bob))
        self.addCleanup(handle.close)
        request = SendRequest(1, Operation.SEND, [alice.fill(b"datagram")], address=handle)
        request.remoteQPN, request.remoteQKey = bob.queuePair.number, QKEY
        alice.queuePair.postSend([request])
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual((bob.received[0].identifier, bob.received[0].length), (0, 48))
        self.assertEqual(bytes(hub.memory.view[40:49]), b"datagram\0")
        self.assertRaises(InvalidRequest, bob.receive)


class SharedRefusalContract(SharedEnds):
    """Promises about requests that shared receive queues refuse, and about their events."""

    def test_noReceivesOfItsOwn(self) -> None:
        """A queue pair with a shared receive queue refuses separate receives, in every state."""
        hub, shared = self.hub()
        alice = self.end(0)
        bob = self.end(1, shared=shared, beside=hub)
        self.assertRaises(InvalidRequest, bob.receive)
        self.connect(alice, bob)
        self.assertRaises(InvalidRequest, bob.receive, bob.segment())
        bob.queuePair.modify(QPAttributes(state=QPState.ERR))
        self.assertRaises(InvalidRequest, bob.receive)

    def test_sharedTooManySegments(self) -> None:
        """A receive with too many segments is refused together with those posted with it."""
        hub, shared = self.hub()
        alice, bob = self.receiver(hub, shared)
        wrong = ReceiveRequest(2, [hub.segment(0, 1)] * (shared.maxSegments + 1))
        self.assertRaises(InvalidRequest, shared.postReceive, [ReceiveRequest(1, [hub.segment()]), wrong])
        shared.postReceive([ReceiveRequest(3, [hub.segment()])])
        alice.send(inline=[b"."])
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual(bob.received[0].identifier, 3)

    def test_sharedFull(self) -> None:
        """Receives that exceed a shared queue are refused as a whole; consumed receives free entries."""
        hub, shared = self.hub(maxReceive=4)
        alice, bob = self.receiver(hub, shared)
        most = shared.maxReceive
        shared.postReceive([ReceiveRequest(index, [hub.segment()]) for index in range(most - 1)])
        self.assertRaises(QueueFull, shared.postReceive, [ReceiveRequest(98), ReceiveRequest(99)])
        shared.postReceive([ReceiveRequest(most - 1, [hub.segment()])])
        self.assertRaises(QueueFull, shared.postReceive, [ReceiveRequest(99)])
        alice.send(inline=[b"."])
        self.runUntilCompleted(bob, receives=1)
        shared.postReceive([ReceiveRequest(most, [hub.segment()])])
        for _ in range(most):
            alice.send(inline=[b"."])
            self.runUntilCompleted(bob, receives=len(bob.received) + 1)
        self.assertEqual([c.identifier for c in bob.received], list(range(most + 1)))

    def test_sharedLimits(self) -> None:
        """A shared receive queue beyond the device's limits, or without receives, is refused."""
        domain, limits = self.end(1).domain, self.devices[1].limits
        for maxReceive, maxSegments in (
            (limits.maxSharedReceiveQueueRequests + 1, 1),
            (1, limits.maxSharedReceiveQueueSegments + 1),
            (0, 1),
            (-1, 1),
        ):
            self.assertRaises(InvalidRequest, domain.createSharedReceiveQueue, maxReceive, maxSegments)

    def test_limit(self) -> None:
        """The limit event is raised once when fewer receives than the limit remain, and disarms it."""
        hub, shared = self.hub()
        alice, bob = self.receiver(hub, shared)
        self.offer(hub, shared, 6)
        shared.arm(4)
        self.assertEqual(shared.limit(), 4)
        for index in range(5):
            alice.send(inline=[b"."])
            self.runUntilCompleted(bob, receives=index + 1)
            self.runFor(0.02)
            reported = [event for event in hub.events if event.kind is AsyncEventKind.SRQ_LIMIT_REACHED]
            self.assertEqual(len(reported), 0 if index < 2 else 1, f"{5 - index} left")
        self.assertIs(reported[0].sharedReceiveQueue, shared)
        self.assertEqual(shared.limit(), 0)
        self.runUntilCompleted(alice, sends=5)

    def test_limitTooHigh(self) -> None:
        """A limit greater than the queue's capacity is refused."""
        _hub, shared = self.hub()
        self.assertRaises(InvalidRequest, shared.arm, shared.maxReceive + 1)
        self.assertEqual(shared.limit(), 0)

    def test_errorLeavesTheRest(self) -> None:
        """A queue pair that moves to ERR leaves the receives to others, and raises C{QP_LAST_WQE_REACHED}."""
        hub, shared = self.hub()
        pairs = [self.receiver(hub, shared) for _ in range(2)]
        self.offer(hub, shared, 3)
        (alice, bob), (carol, dave) = pairs
        bob.queuePair.modify(QPAttributes(state=QPState.ERR))
        self.runPolling(lambda: any(event.kind is _LAST for event in hub.events), bob)
        (event,) = (event for event in hub.events if event.kind is _LAST)
        self.assertIs(event.queuePair, bob.queuePair)
        self.quiet(bob)
        self.assertEqual(bob.received, [])
        for index in range(3):
            carol.send(inline=[b"for dave"])
            self.runUntilCompleted(dave, receives=index + 1)
        self.assertEqual([c.identifier for c in dave.received], [0, 1, 2])
        self.assertEqual(set(dave.statuses()[1]), {Status.SUCCESS})
        self.runUntilCompleted(carol, sends=3)
        self.assertEqual(alice.sent, [])

    def test_closedLeavesTheRest(self) -> None:
        """A queue pair that is closed or reset leaves the receives of its shared queue to the others."""
        hub, shared = self.hub()
        pairs = [self.receiver(hub, shared) for _ in range(3)]
        self.offer(hub, shared, 1)
        pairs[0][1].queuePair.close()
        pairs[1][1].queuePair.modify(QPAttributes(state=QPState.RESET))
        carol, dave = pairs[2]
        carol.send(inline=[b"last"])
        self.runUntilCompleted(dave, receives=1)
        self.assertEqual(bytes(hub.memory.view[:4]), b"last")

    def test_othersError(self) -> None:
        """A message too long for its receive ends only its own connection."""
        hub, shared = self.hub()
        (alice, bob), (carol, dave) = self.receiver(hub, shared), self.receiver(hub, shared)
        self.offer(hub, shared, 2)
        alice.send(alice.fill(b"1" * 65))
        self.runUntilBothCompleted(alice, bob)
        self.assertEqual(bob.received[0].identifier, 0)
        self.assertEqual((alice.sent[0].status, bob.received[0].status), self.quirks[1].shortReceive)
        self.assertEqual(bytes(hub.memory.view[64:1000]), bytes(936))
        carol.send(inline=[b"all right"])
        self.runUntilCompleted(dave, receives=1)
        self.assertEqual((dave.received[0].identifier, dave.received[0].status), (1, Status.SUCCESS))

    def test_sharedClosed(self) -> None:
        """A closed shared receive queue moves its queue pairs to ERR, and refuses further receives."""
        hub, shared = self.hub()
        _alice, bob = self.receiver(hub, shared)
        self.offer(hub, shared, 2)
        shared.close()
        self.assertEqual(bob.queuePair.state, QPState.ERR)
        self.assertRaises(RDMAError, self.offer, hub, shared, 1)


__all__ = ["SharedEnds", "SharedReceiveContract", "SharedRefusalContract"]
