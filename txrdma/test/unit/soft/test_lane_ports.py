"""
Lanes of shared memory: the first message, access rights, and shared receives.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.iba.verbs import (
    AsyncEventKind,
    CompletionOpcode,
    Operation,
    QPState,
    ReceiveRequest,
    Status,
)
from txrdma.soft.shared import _lane
from txrdma.soft.shared._incoming import LaneReceiver
from txrdma.soft.shared._layout import HEADER_BYTES
from txrdma.test.support.soft.lanes import LanesTestCase, ok, send, Side, turn


class PathTests(LanesTestCase):
    def test_noOtherPath(self) -> None:
        self.assertRaises(InvalidRequest, self.one.lane.migrate)


class EstablishedTests(LanesTestCase):
    """An end that is not ready to send is notified of its peer."""

    def test_atomicInRTRIsReported(self) -> None:
        self.other.attributes = replace(self.other.attributes, state=QPState.RTR)
        self.one.post(self.request(1, Operation.FETCH_AND_ADD, operand=1))
        self.turn()
        self.assertEqual(self.other.news, [AsyncEventKind.COMMUNICATION_ESTABLISHED])

    def test_messageWithoutReceiveIsNotReported(self) -> None:
        self.other.attributes = replace(self.other.attributes, state=QPState.RTR)
        self.one.post(send(1, b"."))
        self.turn()
        self.assertEqual(self.other.news, [])


class SharedTests(SynchronousTestCase):
    """Two lanes that share receives."""

    def setUp(self) -> None:
        receives: deque[ReceiveRequest] = deque()
        self.hubs = [Side(2 + number, 4096, receives) for number in range(2)]
        self.senders = [Side(12 + number, 4096) for number in range(2)]
        for hub, sender in zip(self.hubs, self.senders, strict=True):
            hub.meet(sender)
            sender.meet(hub)
            hub.keys, hub.domain, hub.memory = self.hubs[0].keys, self.hubs[0].domain, self.hubs[0].memory
            incoming = hub.lane._incoming
            incoming._domain, incoming._lookup = hub.domain, hub.keys.lookup
        self.receives = receives

    def offer(self, *identifiers: int, length: int = 3000) -> None:
        """Post receives, each with its own memory, and notify both lanes."""
        memory = self.hubs[0].memory
        for identifier in identifiers:
            self.receives.append(ReceiveRequest(identifier, [memory.segment(identifier * 4000, length)]))
        for hub in self.hubs:
            hub.lane.receivesPosted()

    def taken(self, identifier: int, length: int) -> bytes:
        """Return the bytes of the receive with this number."""
        return bytes(self.hubs[0].memory.view[identifier * 4000 : identifier * 4000 + length])

    def turn(self) -> None:
        turn(*self.hubs, *self.senders)

    def test_firstMessageTakesFirstReceive(self) -> None:
        self.offer(0, 1, 2, 3)
        for number, which in enumerate((0, 1, 1, 0)):
            self.senders[which].post(send(number, b"%d from %d" % (number, which)))
            self.hubs[which].lane.poll()
        self.assertEqual([ok(hub.received) for hub in self.hubs], [[0, 3], [1, 2]])
        self.assertEqual(
            [self.taken(i, 8) for i in range(4)], [b"0 from 0", b"1 from 1", b"2 from 1", b"3 from 0"]
        )
        self.assertEqual([c.qpn for hub in self.hubs for c in hub.received], [2, 2, 3, 3])
        self.assertEqual([c.length for hub in self.hubs for c in hub.received], [8] * 4)
        self.turn()
        self.assertEqual([ok(sender.sent) for sender in self.senders], [[0, 3], [1, 2]])

    def test_emptyQueueResumesWhenFilled(self) -> None:
        self.offer(0)
        for index, sender in enumerate(self.senders):
            sender.post(send(index, b"first"), send(index + 10, b"second"))
        self.turn()
        self.assertEqual(sum(len(hub.received) for hub in self.hubs), 1)
        self.offer(1)
        self.turn()
        self.assertEqual(sum(len(hub.received) for hub in self.hubs), 2)
        self.offer(2, 3)
        self.turn()
        self.assertEqual([ok(sender.sent) for sender in self.senders], [[0, 10], [1, 11]])
        self.assertEqual(sorted(ok(self.hubs[0].received) + ok(self.hubs[1].received)), [0, 1, 2, 3])

    def test_RNRLimitWithSharedReceives(self) -> None:
        sender, other = self.senders
        sender.attributes = replace(sender.attributes, rnrRetry=1)
        sender.lane.attributesChanged()
        sender.post(send(1, b"."))
        other.post(send(2, b"."))
        self.hubs[0].lane.poll()
        self.hubs[1].lane.poll()
        sender.lane.expired(5.0)
        self.receives.append(ReceiveRequest(0, [self.hubs[0].memory.segment(0, 100)]))
        self.hubs[1].lane.receivesPosted()
        self.hubs[0].lane.receivesPosted()
        sender.lane.expired(6.0)
        self.assertEqual([c.status for c in sender.sent], [Status.RNR_RETRY_EXC_ERR])
        self.assertEqual(ok(self.hubs[1].received), [0])

    def test_longMessageKeepsItsReceive(self) -> None:
        self.offer(0, 1, 2)
        self.senders[0].post(send(1, b"a" * 2500))
        self.hubs[0].lane.poll()
        self.assertEqual([len(hub.received) for hub in self.hubs], [1, 0])
        ring = self.senders[0].lane._rings.ring
        self.assertGreater(2500, ring >> 2)
        box = self.senders[1].box.cast("Q")
        begin = HEADER_BYTES // 8
        # the first part of a message, without the rest
        self.senders[1].box[HEADER_BYTES + 8 : HEADER_BYTES + 108] = b"b" * 100
        box[begin] = (1 | 16) << 24 | 100
        self.hubs[1].lane.poll()
        self.senders[0].post(send(2, b"c" * 50))
        self.hubs[0].lane.poll()
        self.assertEqual(ok(self.hubs[0].received), [0, 2])
        self.senders[1].box[HEADER_BYTES + 136 : HEADER_BYTES + 146] = b"d" * 10
        box[begin + 16] = (1 | 32) << 24 | 10
        self.hubs[1].lane.poll()
        self.assertEqual([c[:2] + (c.length,) for c in self.hubs[1].received], [(1, Status.SUCCESS, 110)])
        self.assertEqual(self.taken(1, 111), b"b" * 100 + b"d" * 10 + b"\0")
        self.assertEqual(self.taken(2, 51), b"c" * 50 + b"\0")

    def test_failedLaneFlushesOnlyItsReceive(self) -> None:
        self.offer(0, 1)
        box = self.senders[1].box.cast("Q")
        box[HEADER_BYTES // 8] = (1 | 16) << 24 | 56
        box[HEADER_BYTES // 8 + 8] = 0xFF << 24
        self.hubs[1].lane.poll()
        self.assertEqual(self.hubs[1].events, [AsyncEventKind.QP_REQUEST_ERROR])
        self.assertEqual(
            [c[:3] for c in self.hubs[1].received], [(0, Status.WR_FLUSH_ERR, CompletionOpcode.RECEIVE)]
        )
        self.senders[0].post(send(1, b"."))
        self.turn()
        self.assertEqual(ok(self.hubs[0].received), [1])

    def test_tooLongMessageSpoilsOneReceive(self) -> None:
        self.offer(0, length=4)
        self.offer(1)
        self.senders[0].post(send(1, b"too long"))
        self.senders[1].post(send(2, b"short"))
        self.turn()
        self.assertEqual([c[:2] for c in self.hubs[0].received], [(0, Status.LOC_LEN_ERR)])
        self.assertEqual(ok(self.hubs[1].received), [1])
        self.assertEqual([c.status for c in self.senders[0].sent], [Status.REM_INV_REQ_ERR])

    def test_vanishingRecordReturnsItsReceive(self) -> None:
        self.offer(0, 1)
        for sender in self.senders:
            sender.post(send(1, b"first"))
        self.turn()
        self.offer(2, 3)
        if not (_lane.__file__ or "").endswith(".py"):
            raise SkipTest("compiled classes can't be patched")
        peeked = LaneReceiver._prepareOldest

        def vanish(incoming: LaneReceiver) -> bool:
            found = peeked(incoming)
            self.senders[0].box.cast("Q")[incoming._rings.readIndex] = 0
            return found

        self.senders[0].post(send(2, b"vanishes"))
        self.senders[1].post(send(2, b"stays"))
        self.patch(LaneReceiver, "_prepareOldest", vanish)
        self.hubs[0].lane.poll()
        self.patch(LaneReceiver, "_prepareOldest", peeked)
        self.hubs[1].lane.poll()
        self.senders[0].box.cast("Q")[self.hubs[0].lane._rings.readIndex] = 1 << 24 | 8
        self.hubs[0].lane.poll()
        self.assertEqual([ok(hub.received) for hub in self.hubs], [[0, 3], [1, 2]])
        self.assertEqual(self.taken(3, 9), b"vanishes\0")
