"""
Dormant queue pairs in shared memory, and processes that break the rules of doorbell pages.
"""

from __future__ import annotations

import os
from select import select
from typing import Any, cast

from txrdma.iba.types import QPN
from txrdma.iba.verbs import Capacity, Operation, ReceiveRequest, SendRequest, Status
from txrdma.interfaces import IQueuePair
from txrdma.soft.core.doorbellpage import DOORBELL_BYTES
from txrdma.soft.shared import peerdevice
from txrdma.soft.shared._rendezvous import Join, makeBox, RendezvousKind
from txrdma.test.support.soft.neighbours import Added, RealCase
from txrdma.test.support.soft.pairs import another, End
from txrdma.test.support.soft.strangers import connectedTo, doorbell, hello, isClosed, sendTo
from txrdma.unix.mapping import sealedMemory


class DormantCase(RealCase):
    """Two devices with several connections, all of them used."""

    def setUp(self) -> None:
        super().setUp()
        self.one, self.other = self.pair()
        self.pairs = [self.more() for _ in range(4)]
        for number in range(len(self.pairs)):
            self.exchange(number)
        self.sleep()

    def more(self) -> tuple[IQueuePair, IQueuePair]:
        """Connect two further queue pairs of the same completion queues, with receives."""
        pairs = another(self.one, self.other, Capacity(8, 8, 1, 1, 64))
        for pair, end in zip(pairs, (self.one, self.other), strict=True):
            pair.postReceive([ReceiveRequest(each, (end.segment(64 * each, 64),)) for each in range(8)])
        return pairs

    def exchange(self, number: int) -> None:
        """Send a message to the other device."""
        self.pairs[number][0].postSend([SendRequest(number, Operation.SEND, inline=(b"message",))])
        for end in (self.other, self.one):
            found = self.take(end, 1)[0]
            self.assertEqual(found.status, Status.SUCCESS)
            self.assertIn(found.qpn, [pair.number for pair in self.pairs[number]])

    def dormant(self, end: End) -> int:
        """The number of dormant routes."""
        return len(cast(Any, end.queue)._dormant)

    def sleep(self) -> None:
        """Arm the queues, until the quiet queue pairs of both are dormant."""
        for _ in range(8):
            for end in (self.one, self.other):
                end.queue.arm()
                self.assertEqual(list(end.queue.poll(10)), [])
                end.channel.takeEvents()

    def isWoken(self, end: End) -> bool:
        """Whether the channel of an end has an event."""
        if select([end.channel.fileno()], [], [], 0)[0]:
            return end.queue in end.channel.takeEvents()
        return False


class DormantTests(DormantCase):
    """Used and idle connections are not polled until their peers send something."""

    def test_messageWakesOnlyItsDormantConnection(self) -> None:
        self.assertEqual(self.dormant(self.other), 3)
        for number in (3, 1, 0, 2):
            self.pairs[number][0].postSend([SendRequest(number, Operation.SEND, inline=(b"wake",))])
            self.runUntil(lambda: self.isWoken(self.other))
            received = self.take(self.other, 1)[0]
            self.assertEqual(received.qpn, self.pairs[number][1].number)
            self.assertEqual(self.dormant(self.other), 3 - (number > 0))
            self.assertEqual([each.identifier for each in self.take(self.one, 1)], [number])
            self.sleep()
            self.assertEqual((self.dormant(self.one), self.dormant(self.other)), (3, 3))

    def test_pollFindsMessagesOfDormantConnections(self) -> None:
        self.other.queue.disarm()
        self.exchange(2)

    def test_endsAreDetectedAndDoorbellBytesReused(self) -> None:
        for here, there in self.pairs[1:]:
            here.close()
            self.runUntil(cast(Any, there)._route.hasPeerEnded)
            there.close()
        self.assertEqual((self.dormant(self.one), self.dormant(self.other)), (0, 0))
        self.pairs[1:] = [self.more() for _ in range(3)]
        for number in range(4):
            self.exchange(number)
        self.sleep()
        self.assertEqual((self.dormant(self.one), self.dormant(self.other)), (3, 3))
        self.assertEqual(cast(Any, self.one.channel).page._end, 4)

    def test_allConnectionsArePolledWithoutChannel(self) -> None:
        self.other.channel.close()
        self.assertEqual(self.dormant(self.other), 0)
        self.exchange(2)


class OtherUserTests(DormantCase):
    """Processes of different users have no pages of each other; their messages wake dormant connections."""

    def setUp(self) -> None:
        self.patch(peerdevice, "isSameUser", lambda user: False)
        super().setUp()

    def test_messageWakesReader(self) -> None:
        self.assertEqual(self.dormant(self.other), 3)
        for number in (3, 1):
            self.pairs[number][0].postSend([SendRequest(number, Operation.SEND, inline=(b"wake",))])
            self.runUntil(lambda: self.isWoken(self.other))
            self.assertEqual(self.take(self.other, 1)[0].qpn, self.pairs[number][1].number)
            self.take(self.one, 1)
            self.sleep()
            self.assertEqual(self.dormant(self.other), 3)


class StrangerTests(DormantCase):
    """Processes that break the rules of doorbell pages are disconnected; others are not disturbed."""

    def refused(self, page: int, doorbellByte: int) -> None:
        """Assert that a process with this page, which invites a queue pair, is disconnected."""
        added = Added()
        sock = connectedTo(self.other.device, hello())
        self.addCleanup(sock.close)
        bell = os.eventfd(0)
        box, mapping = makeBox(4096)
        mapping.close()
        sendTo(sock, doorbell(1), [bell, page])
        join = Join(
            kind=RendezvousKind.JOIN,
            source=QPN(5),
            destination=QPN(6),
            receives=1,
            sends=1,
            doorbellByte=doorbellByte,
        )
        sendTo(sock, join.encode(), [box])
        for each in (bell, box):
            os.close(each)
        self.runUntil(lambda: isClosed(sock))
        sock.close()
        self.assertTrue(added.isNothing())
        self.exchange(2)

    def test_pageOfOtherLength(self) -> None:
        descriptor, mapping = sealedMemory("txrdma-test", 4096)
        mapping.close()
        self.addCleanup(os.close, descriptor)
        self.refused(descriptor, 1)

    def test_pageThatCanShrink(self) -> None:
        descriptor = os.memfd_create("txrdma-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, descriptor)
        os.ftruncate(descriptor, DOORBELL_BYTES)
        self.refused(descriptor, 1)

    def test_byteOutsidePage(self) -> None:
        descriptor, mapping = sealedMemory("txrdma-test", DOORBELL_BYTES)
        mapping.close()
        self.addCleanup(os.close, descriptor)
        self.refused(descriptor, DOORBELL_BYTES)
