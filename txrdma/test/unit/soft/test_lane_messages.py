"""
Messages without work requests, by L{IDirectLane <txrdma.interfaces.IDirectLane>}, between two connected
lanes.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.verbs import Operation, QPState, ReceiveRequest, SendRequest, Status
from txrdma.soft.shared._layout import HEADER_BYTES, WAKE
from txrdma.test.support.soft.lanes import ok, pair, send, Side

_LENGTH = 44
_LAYOUT = struct.Struct(">HHI36x")
_FIRST = 0xFE2C


def message(number: int) -> bytes:
    """Return a message as laid out in the ring."""
    return _LAYOUT.pack(_FIRST, number & 0xFFFF, number)


def turn(side: Side, state: QPState) -> None:
    """Set the state of its queue pair."""
    side.attributes = replace(side.attributes, state=state)
    side.lane.attributesChanged()


class MessageTests(SynchronousTestCase):
    """Messages are taken in order with all posted requests."""

    def setUp(self) -> None:
        self.one, self.other = self.meet(pair())
        for at in range(32):
            self.other.receive(100 + at, (at * 64, 64))

    def meet(self, sides: tuple[Side, Side]) -> tuple[Side, Side]:
        for side in sides:
            turn(side, QPState.RTS)
            side.lane.openLane(_LENGTH, _FIRST, _LAYOUT.unpack_from)
        return sides

    def put(self, number: int, signaled: bool = True) -> bool:
        return self.one.lane.putMessage(number, signaled, message(number))

    def take(self, limit: int = 64) -> list[int]:
        return [each[2] for each in self.other.lane.takeMessages(limit)]

    def test_messagesUseNoReceivesAndKeepOrder(self) -> None:
        self.assertTrue(all(self.put(number) for number in range(1, 11)))
        self.assertEqual(self.take(4), [1, 2, 3, 4])
        self.assertEqual(self.take(), [5, 6, 7, 8, 9, 10])
        self.assertEqual(self.take(), [])
        self.assertEqual((self.other.received, len(self.other.receives)), ([], 32))

    def test_signaledMessagesCompleteWhenTaken(self) -> None:
        free = self.one.free
        for number in range(1, 9):
            self.put(number, signaled=number == 8)
        self.assertEqual(self.one.free, free - 8)
        self.one.lane.poll()
        self.assertEqual(self.one.sent, [])
        self.take()
        for _ in range(20):
            self.one.lane.takeMessages(64)  # the lane checks consumed messages at intervals
        self.assertEqual(ok(self.one.sent), [8])
        self.assertEqual(self.one.retirements, 8)

    def test_fullSendQueueRefuses(self) -> None:
        self.one.free = 1
        self.assertTrue(self.put(1))
        self.assertFalse(self.put(2))
        self.assertEqual(self.take(), [1])

    def test_fullRingRefusesWithoutLoss(self) -> None:
        chance = random.Random(7)
        sent: list[int] = []
        got: list[int] = []
        for number in range(1, 2000):
            if not self.put(number):
                self.one.post(send(number, message(number), solicited=True))
            sent.append(number)
            if chance.random() < 0.5:
                got += self.takeAll(chance.randrange(1, 40))
        while len(got) < len(sent):
            got += self.takeAll(64)
            self.one.lane.takeMessages(1)
        self.assertEqual(got, sent)
        self.assertEqual(self.one.events + self.other.events, [])

    def takeAll(self, limit: int) -> list[int]:
        """Take messages from the lane and by receives, as a reader does."""
        found = [each[2] for each in self.other.lane.takeMessages(limit)]
        for completion in self.other.received:
            at = (completion.identifier - 100) * 64
            found.append(_LAYOUT.unpack_from(self.other.memory.view, at)[2])
            self.other.receive(completion.identifier, (at, 64))
        self.other.received.clear()
        return found

    def test_messagesWaitBehindOrdinarySends(self) -> None:
        self.put(1)
        self.one.post(send(2, b"\1" + bytes(43), solicited=True), send(3, b"short"))
        self.put(4)
        self.put(5)
        self.assertEqual(self.take(), [1])
        self.assertEqual(self.take(), [])
        # all that had arrived by then has been received in order
        self.assertEqual(ok(self.other.received), [100, 101, 102, 103])
        self.other.unread += self.other.received
        self.put(6)
        self.assertEqual(self.take(), [])
        self.other.unread.clear()
        self.assertEqual(self.take(), [6])

    def test_targetIsBoundedAndRevocable(self) -> None:
        memory = self.other.memory
        self.assertIsNone(self.one.lane.targetOf(memory.rkey, memory.address, 64))
        self.one.lane.prepare(memory.rkey, lambda: None)
        self.one.deliver()
        found = self.one.lane.targetOf(memory.rkey, memory.address + 100, 50)
        assert found is not None
        view, valid = found
        self.assertEqual((len(view), valid[0]), (50, 1))
        view[:5] = b"hello"
        self.assertEqual(memory.view[100:105], b"hello")
        for address, length in ((memory.address - 1, 5), (memory.address + memory.length - 4, 5)):
            self.assertIsNone(self.one.lane.targetOf(memory.rkey, address, length))
        self.other.close(memory)
        self.assertEqual(valid[0], 0)

    def test_offeredMemoryIsWrittenWithoutRequest(self) -> None:
        memory = self.other.memory
        write = SendRequest(
            1, Operation.RDMA_WRITE, inline=[b"x"], remoteAddress=memory.address, rkey=memory.rkey
        )
        self.other.lane.offer(memory.rkey)
        self.other.deliver()
        self.one.post(write)
        self.assertEqual(self.one.output, [])
        self.assertEqual(memory.view[:1], b"x")

    def test_unmappableMemoryHasNoTarget(self) -> None:
        self.other.mapped = False
        self.one.lane.prepare(self.other.memory.rkey, lambda: None)
        self.one.deliver()
        self.assertIsNone(self.one.lane.targetOf(self.other.memory.rkey, self.other.memory.address, 1))

    def test_messagesDoNotOvertakeQueuedRequests(self) -> None:
        memory = self.other.memory
        write = SendRequest(
            1, Operation.RDMA_WRITE, inline=[b"x"], remoteAddress=memory.address, rkey=memory.rkey
        )
        self.one.post(write)  # that memory is not mapped yet
        self.assertFalse(self.put(2))
        self.one.deliver()
        self.assertTrue(self.put(2))
        self.assertEqual(self.take(), [2])
        self.assertEqual(memory.view[:1], b"x")

    def test_refusedOutsideRTS(self) -> None:
        turn(self.one, QPState.SQD)
        self.assertFalse(self.put(1))
        turn(self.one, QPState.RTS)
        self.assertTrue(self.put(1))

    def test_sleepingPeerIsRungOnce(self) -> None:
        self.other.lane.arm(False, True, False)
        self.assertNotEqual(self.other.box.cast("Q")[WAKE], 0)
        self.put(1)
        self.put(2)
        self.assertEqual(self.one.rung, ["receives"])

    def test_peerDeathCompletesTakenAndFlushesRest(self) -> None:
        for number in range(1, 6):
            self.put(number)
        self.assertEqual(self.take(3), [1, 2, 3])
        self.other.lane.putMessage(1, False, message(1))
        for at in range(4):
            self.one.receive(at, (at * 64, 64))
        self.one.lane.peerEnded(None)
        self.assertEqual([each.identifier for each in self.one.sent], [1, 2, 3, 4])
        self.assertEqual(
            [each.status for each in self.one.sent],
            [Status.SUCCESS] * 3 + [Status.RETRY_EXC_ERR],
        )
        self.assertEqual([identifier for identifier, _ in self.one.flushed], [5])
        self.assertEqual([each.length for each in self.one.received], [_LENGTH])
        self.assertFalse(self.put(6))
        self.assertEqual(self.one.lane.takeMessages(64), ())

    def test_isConsumedSignalsLatestRequest(self) -> None:
        """After a call of C{isConsumed}, unsignaled requests report one completion when they are consumed."""
        lane = self.one.lane
        self.assertTrue(lane.isConsumed())
        for number in (1, 2):
            self.put(number, signaled=False)
        self.assertFalse(lane.isConsumed())
        self.assertEqual(self.take(), [1, 2])
        self.assertTrue(lane.isConsumed())
        self.assertEqual(ok(self.one.sent), [2])
        lane.flush()
        self.assertFalse(lane.isConsumed())

    def test_isConsumedSignalsRequestThatWaitsForMemory(self) -> None:
        memory = self.other.memory
        write = SendRequest(5, Operation.RDMA_WRITE, inline=[b"x"], signaled=False)
        write.remoteAddress, write.rkey = memory.address, memory.rkey
        self.one.post(write)
        self.assertFalse(self.one.lane.isConsumed())
        self.one.deliver()
        self.assertEqual(ok(self.one.sent), [5])
        self.assertFalse(write.signaled)

    def test_writesWithImmediateKeepOrderAmongMessages(self) -> None:
        """Writes with immediate data use receives in order with SENDs, wherever the ring wraps."""
        chance = random.Random(3)
        memory = self.other.memory
        self.other.receives.clear()
        expected: list[tuple[int | None, int]] = []
        found: list[tuple[int | None, int]] = []
        used: list[int] = []
        for number in range(3000):
            self.other.receives.append(ReceiveRequest(number, (memory.segment(0, 64),)))
            self.other.lane.receivesPosted()
            length = chance.randrange(1, 60)
            if chance.random() < 0.7:
                write = SendRequest(number, Operation.RDMA_WRITE_WITH_IMMEDIATE, immediate=number)
                write.inline = (bytes([number & 0xFF]) * length,)
                write.remoteAddress, write.rkey = memory.address + 100, memory.rkey
                write.solicited = chance.random() < 0.1
                expected.append((number, length))
                self.one.post(write)
            else:
                expected.append((None, length))
                self.one.post(send(number, bytes(length)))
            self.one.deliver()
            if chance.random() < 0.2:
                self.other.lane.poll()
                used += [each.identifier for each in self.other.received]
                found += [(each.immediate, each.length) for each in self.other.received]
                self.other.received.clear()
            self.one.lane.poll()
        self.other.lane.poll()
        found += [(each.immediate, each.length) for each in self.other.received]
        used += [each.identifier for each in self.other.received]
        self.assertEqual(found, expected)
        self.assertEqual(used, list(range(3000)))
        self.assertEqual(self.one.events + self.other.events, [])

    def test_impossibleLengthEndsOnlyThisQueuePair(self) -> None:
        self.put(1)
        words = self.one.box.cast("Q")
        words[HEADER_BYTES // 8] = 1 << 24 | 1 << 23
        self.assertEqual(self.take(), [])
        self.assertEqual(len(self.other.events), 1)
