"""
Shared memory between real processes: discovery, end, and access.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.verbs import Access as VerbsAccess
from txrdma.iba.verbs import (
    AsyncEventKind,
    Capacity,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.interfaces import IDirectLane
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.device import openSoftDevice
from txrdma.soft.shared import _doorbells, _rendezvous, sharedmemoryport, sharedqueuepair
from txrdma.soft.shared._lane import Lane
from txrdma.soft.shared._rendezvous import AccessReply, RendezvousKind
from txrdma.soft.shared._unopened import UnopenedLane
from txrdma.soft.shared.sharedqueuepair import SharedQueuePair
from txrdma.test.support.soft.neighbours import Added, mappings, RealCase
from txrdma.test.support.soft.pairs import ALL, another, End, INIT, RTR
from txrdma.unix import mapping as _mapping

SMALL = Capacity(4, 4, 1, 1)
"""Capacity of each of many queue pairs."""


def full(*_arguments: object) -> Any:
    """Raise the error of mmap without address space, or with C{vm.max_map_count} mappings."""
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


class ManyTests(RealCase):
    """Many queue pairs between two devices."""

    def sendOnce(self, ends: tuple[End, End], pairs: Sequence[tuple[Any, Any]]) -> None:
        """Post a SEND, and the receive for it, on each pair of queue pairs."""
        one, other = ends
        for here, there in pairs:
            there.postReceive([ReceiveRequest(0, (other.segment(0, 64),))])
            here.postSend([SendRequest(1, Operation.SEND, (one.segment(0, 5),))])

    def test_closedQueuePairReleasesMemoryAndDescriptors(self) -> None:
        self.patch(_mapping, "KEPT_BELOW", 0)
        ends = self.pair()
        one, other = ends
        one.write(other, 1, 0, 64, there=128)
        here, there = another(*ends, SMALL)  # from the second one on, the channels have doorbell pages
        there.postReceive([ReceiveRequest(0, (other.segment(0, 64),))])
        here.postSend([SendRequest(0, Operation.SEND, (one.segment(0, 5),))])
        self.take(other, 1)
        self.take(one, 1)
        added = Added()
        pairs = [another(*ends, SMALL) for _ in range(50)]
        self.assertTrue(added.isNothing())  # until they are used
        self.sendOnce(ends, pairs)
        completions = [*self.take(other, 50), *self.take(one, 50)]
        self.assertEqual({each.status for each in completions}, {Status.SUCCESS})
        self.assertEqual(added.mappings(), 200)  # both rings of each, in both devices
        self.assertEqual(added.descriptors(), 0)
        for here, there in pairs:
            here.close()
            there.close()
        self.runUntil(added.isNothing)

    def test_firstMessagesOfManyQueuePairsUseFewDescriptors(self) -> None:
        """A peer that does not read its socket leaves no descriptor of each queue pair in this process."""
        ends = self.pair()
        one, other = ends
        pairs = [another(*ends, SMALL) for _ in range(600)]
        added = Added()
        self.sendOnce(ends, pairs)
        self.assertLess(added.descriptors(), 4 * sharedmemoryport.MOST_UNANSWERED)
        for end in (other, one):
            completions = self.take(end, 600)
            self.assertEqual({each.status for each in completions}, {Status.SUCCESS})
            self.assertEqual(len({each.qpn for each in completions}), 600)

    def test_queuePairThatWaitsForItsLaneFailsWithItsPeer(self) -> None:
        ends = self.pair()
        one, _ = ends
        pairs = [another(*ends, SMALL) for _ in range(sharedmemoryport.MOST_UNANSWERED + 2)]
        for here, _ in pairs:
            here.postSend([SendRequest(1, Operation.SEND, (one.segment(0, 5),))])
            here.postSend([SendRequest(2, Operation.RDMA_WRITE)])  # an empty one succeeds after the first
        (closed, _), (_, left) = pairs[-2:]
        closed.close()
        left.close()
        completions = self.take(one, 2)
        self.assertEqual(
            [(each.qpn, each.status) for each in completions],
            [(pairs[-1][0].number, status) for status in (Status.RETRY_EXC_ERR, Status.WR_FLUSH_ERR)],
        )
        self.assertIs(pairs[-1][0].state, QPState.ERR)

    def test_queuePairWaitsForNoneWhosePeerHasLeft(self) -> None:
        one, other = ends = self.pair()
        pairs = [another(*ends, SMALL) for _ in range(2 * sharedmemoryport.MOST_UNANSWERED)]
        half = len(pairs) // 2
        left = [cast(Any, here)._route for here, _ in pairs]
        for here, _ in pairs[:half]:
            IDirectLane(here)
        for _, there in pairs:
            there.close()
        self.runUntil(lambda: all(each.hasPeerLeft for each in left[half:]))
        for here, _ in pairs[half:]:
            IDirectLane(here)
        one.rdma(Operation.RDMA_WRITE, other, 1, 0, 64)
        self.assertEqual([each.status for each in self.take(one, 1)], [Status.SUCCESS])

    def test_queuePairThatWaitsForItsLaneFailsWithoutMemory(self) -> None:
        ends = self.pair()
        one, other = ends
        pairs = [another(*ends, SMALL) for _ in range(sharedmemoryport.MOST_UNANSWERED + 1)]
        self.sendOnce(ends, pairs)
        invite, last = SharedQueuePair.invite, pairs[-1][0]
        tries: list[SharedQueuePair] = []

        def full(connection: SharedQueuePair) -> None:
            if connection.owner is last:
                tries.append(connection)
                raise ResourceExhausted("no descriptor")
            invite(connection)

        self.patch(SharedQueuePair, "invite", full)
        self.take(other, len(pairs) - 1)
        failed = [each for each in self.take(one, len(pairs)) if each.status is not Status.SUCCESS]
        self.assertEqual([(each.qpn, each.status) for each in failed], [(last.number, Status.WR_FLUSH_ERR)])
        self.assertIs(last.state, QPState.ERR)
        # After each answer, which may release one.
        self.assertEqual(len(tries), sharedmemoryport.MOST_UNANSWERED)

    def test_queuePairThatWaitsForItsLaneWaitsForDescriptor(self) -> None:
        ends = self.pair()
        one, other = ends
        pairs = [another(*ends, SMALL) for _ in range(sharedmemoryport.MOST_UNANSWERED + 1)]
        self.sendOnce(ends, pairs)
        invite, last = SharedQueuePair.invite, pairs[-1][0]
        tries: list[SharedQueuePair] = []

        def full(connection: SharedQueuePair) -> None:
            if connection.owner is last and not tries:
                tries.append(connection)
                raise ResourceExhausted("no descriptor")
            invite(connection)

        self.patch(SharedQueuePair, "invite", full)
        completions = [*self.take(other, len(pairs)), *self.take(one, len(pairs))]
        self.assertEqual({each.status for each in completions}, {Status.SUCCESS})
        self.assertEqual(len(tries), 1)

    def test_queuePairWithClosedChannelLeavesNothing(self) -> None:
        one, other = self.pair()
        channel = one.device.createChannel()
        queue = one.device.createCompletionQueue(8, channel)
        queuePair = one.domain.createQueuePair(QPKind.RC, queue, queue, SMALL)
        queuePair.modify(INIT)
        channel.close()
        added = Added()
        for _ in range(3):
            self.assertRaises(
                InvalidRequest,
                queuePair.modify,
                replace(RTR, address=other.vector(), destinationQPN=other.qp.number),
            )
        self.assertTrue(added.isNothing())

    def test_channelBeyondLimitOfPeerFailsAlone(self) -> None:
        self.patch(_doorbells, "MOST", 3)
        one, other = self.pair()
        more = [End(one.device) for _ in range(3)]
        for end in more[:2]:
            end.join(other)
        self.assertRaises(ResourceExhausted, more[2].join, other)
        for _ in range(10):
            self.reactor.iterate(0)
        one.write(other, 1, 0, 64, 128)
        self.assertEqual([each.status for each in self.take(one, 1)], [Status.SUCCESS])
        more[0].qp.close()
        more[0].queue.close()
        more[0].channel.close()
        more[2].join(other)
        one.write(other, 2, 0, 64, 128)
        self.assertEqual([each.status for each in self.take(one, 1)], [Status.SUCCESS])

    def test_errorWhileConnectingFailsOnlyThatQueuePair(self) -> None:
        one, other = self.pair()
        here, _there = another(one, other, SMALL)
        attach = Lane.attach

        def failing(lane: Lane, box: memoryview) -> None:
            if lane._owner is here:
                raise TypeError("a defect")
            attach(lane, box)

        self.patch(Lane, "attach", failing)
        here.postSend([SendRequest(1, Operation.SEND, (one.segment(0, 5),))])
        self.assertEqual([each.status for each in self.take(one, 1)], [Status.WR_FLUSH_ERR])
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)
        one.write(other, 2, 0, 64, 128)
        self.assertEqual([each.status for each in self.take(one, 1)], [Status.SUCCESS])

    def test_errorWhileFailingOneQueuePairSparesOthers(self) -> None:
        one, other = self.pair()
        broken, good = ([another(one, other, SMALL) for _ in range(2)] for _ in range(2))
        for pairs in (broken, good):
            pairs[0][0].postSend([SendRequest(1, Operation.SEND, (one.segment(0, 5),))])  # opens the lane
        for route in (UnopenedLane, SharedQueuePair):
            self.patch(route, "peerEnded", self.failing(route, [here for here, _ in broken]))
        good[0][0]._route._services._peer.lost("a test")
        self.assertEqual([here.state for here, _ in good], [QPState.ERR] * 2)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 2)

    def failing(self, route: Any, broken: list[Any]) -> Any:
        """Return a method C{peerEnded} that fails for these queue pairs."""
        peerEnded = route.peerEnded

        def failing(route: Any, event: AsyncEventKind | None) -> None:
            if route.owner in broken:
                raise TypeError("a defect")
            peerEnded(route, event)

        return failing

    def test_receivesPostedBeforePeerTakeMessagesInOrder(self) -> None:
        one, other = self.pair()
        one.region.view[:20] = bytes(range(20))
        receives = [ReceiveRequest(number, (other.segment(100 + number, 1),)) for number in range(20)]
        here, there = another(one, other, Capacity(12, 12, 1, 1), receives[:12])
        sends = [SendRequest(100 + each, Operation.SEND, (one.segment(each, 1),)) for each in range(20)]
        here.postSend(sends[:9])
        self.assertEqual([each.identifier for each in self.take(other, 9)], list(range(9)))
        there.postReceive(receives[12:])
        self.take(one, 9)
        here.postSend(sends[9:])
        self.assertEqual([each.identifier for each in self.take(other, 11)], list(range(9, 20)))
        self.assertEqual(bytes(other.region.view[100:120]), bytes(range(20)))
        self.take(one, 11)
        for pair in (here, there):
            pair.close()

    def test_lostDoorbellFailsOnlyThatQueuePair(self) -> None:
        self.lose(RendezvousKind.DOORBELL)

    def test_lostBoxFailsOnlyThatQueuePair(self) -> None:
        self.lose(RendezvousKind.JOIN)

    def test_boxThatCannotBeMappedFailsOnlyThatQueuePair(self) -> None:
        self.refuseMapping(sharedmemoryport, "mapBox")

    def test_doorbellPageThatCannotBeMappedFailsOnlyThatQueuePair(self) -> None:
        self.refuseMapping(_doorbells, "mapDoorbells")

    def refuseMapping(self, module: Any, name: str) -> None:
        """Use a queue pair while memory of the peer can't be mapped, then an old and a new one."""
        one, other = self.pair()
        self.write(one, other)
        mapIt = getattr(module, name)
        self.patch(module, name, full)
        here, there = another(one, other, SMALL)
        here.postSend([SendRequest(2, Operation.SEND, (one.segment(0, 5),))])
        self.assertEqual([each.status for each in self.take(one, 1)], [Status.RETRY_EXC_ERR])
        self.patch(module, name, mapIt)
        self.write(one, other)
        here, there = another(one, other, SMALL)
        there.postReceive([ReceiveRequest(3, (other.segment(0, 64),))])
        here.postSend([SendRequest(3, Operation.SEND, (one.segment(0, 5),))])
        self.assertEqual([each.status for each in self.take(other, 1)], [Status.SUCCESS])

    def write(self, one: End, other: End) -> None:
        """Write the first bytes of one end to the other."""
        one.write(other, 1, 0, 5)
        self.assertEqual([each.status for each in self.take(one, 1)], [Status.SUCCESS])

    def lose(self, kind: RendezvousKind) -> None:
        """Send a message with the first message of this kind lost, and another one by another queue pair."""
        lost: list[bytes] = []
        messageReceived = sharedmemoryport._Link.messageReceived

        def first(link: Any, message: bytes, passed: list[int]) -> None:
            if message[0] == kind and not lost:
                lost.append(message)
                link.descriptorsLost(message)
            else:
                messageReceived(link, message, passed)

        self.patch(sharedmemoryport._Link, "messageReceived", first)
        one, other = End(self.open()), End(self.open())
        one.join(other, timeout=0)  # without a limit
        other.join(one, timeout=0)
        one.qp.postSend([SendRequest(1, Operation.SEND, (one.segment(0, 5),))])
        self.runUntil(lambda: QPState.ERR in (one.qp.state, other.qp.state))
        self.assertEqual(len(lost), 1)
        here, there = another(one, other, SMALL)
        there.postReceive([ReceiveRequest(2, (other.segment(0, 64),))])
        here.postSend([SendRequest(2, Operation.SEND, (one.segment(0, 5),))])
        found: list[int] = []

        def arrived() -> list[int]:
            found.extend(each.identifier for each in other.queue.poll(5) if each.status is Status.SUCCESS)
            return found

        self.runUntil(arrived)
        self.assertEqual(found, [2])


class UnusedTests(RealCase):
    """A queue pair has no lane before it or its peer has sent something."""

    def statuses(self, end: End, number: int = 1) -> list[Status]:
        return [each.status for each in self.take(end, number)]

    def exchange(self, one: End, other: End) -> None:
        """Send a message from one end to the other."""
        other.receive(1, 0, 64)
        one.post(2, Operation.SEND, [one.segment(0, 5)])
        self.assertEqual(self.statuses(other), [Status.SUCCESS])
        self.assertEqual(self.statuses(one), [Status.SUCCESS])

    def test_emptyWriteSucceedsWithoutLaneWhilePeerExists(self) -> None:
        one, other = self.pair()
        added = Added()
        for number in range(1000):  # more than fits into the send queue
            one.post(number, Operation.RDMA_WRITE)
            self.assertEqual([each.identifier for each in self.take(one, 1)], [number])
        self.assertTrue(added.isNothing())
        one.post(1, Operation.RDMA_WRITE, signaled=False)
        self.assertEqual(list(one.queue.poll(2)), [])
        self.exchange(one, other)

    def test_bothEndsCanSendFirst(self) -> None:
        one, other = self.pair()
        for end in (one, other):
            end.receive(1, 100, 64)
        for end in (one, other):
            end.post(2, Operation.SEND, [end.segment(0, 5)])
        for end in (one, other):
            self.assertEqual(self.statuses(end, 2), [Status.SUCCESS] * 2)

    def receiveNow(self, end: End) -> None:
        """Process messages of other devices, without the reactor."""
        for line in tuple(cast(Any, end.device.routes[0])._links):
            line.receiveNow()

    def test_messageWakesReceiverThatHandledRingBeforeBox(self) -> None:
        one, other = self.pair()
        for _ in range(10):
            self.reactor.iterate(0)
        other.receive(1, 100, 64)
        other.queue.arm()
        for end in (one, other):
            end.post(2, Operation.SEND, [end.segment(0, 5)])
        for end in (one, other):
            self.assertEqual(list(other.channel.takeEvents()), [])
            self.receiveNow(end)
        self.assertEqual(list(other.channel.takeEvents()), [other.queue])

    def test_messageWakesReceiverThatWasBeingConnected(self) -> None:
        one, other = End(self.open()), End(self.open())
        one.join(other)
        one.post(2, Operation.SEND, [one.segment(0, 5)])
        peers = cast(Any, other.device.routes[0])._peers
        self.runUntil(lambda: any(peer._invitations for peer in peers.values()))
        invite = SharedQueuePair.invite

        def promptly(connection: SharedQueuePair) -> None:
            invite(connection)
            self.receiveNow(one)

        self.patch(SharedQueuePair, "invite", promptly)
        other.queue.arm()
        other.qp.modify(INIT)
        other.receive(1, 0, 64)
        other.qp.modify(replace(RTR, address=one.vector(), destinationQPN=one.qp.number))
        self.runUntil(other.channel.takeEvents)

    def test_messageIsDelayedUntilPeerIsInRTR(self) -> None:
        one, other = End(self.open()), End(self.open())
        one.join(other)
        one.post(2, Operation.SEND, [one.segment(0, 5)])
        invitations: list[object] = []
        joinReceived = sharedmemoryport._ConnectedDevice.joinReceived

        def record(process: Any, parsed: object, descriptors: list[int]) -> None:
            joinReceived(process, parsed, descriptors)  # type: ignore[arg-type]  # only passed on
            invitations.append(parsed)

        self.patch(sharedmemoryport._ConnectedDevice, "joinReceived", record)
        self.runUntil(lambda: invitations)
        other.join(one)
        other.receive(1, 0, 64)
        self.assertEqual(self.statuses(other), [Status.SUCCESS])

    def test_firstMessageToEndedQueuePairFails(self) -> None:
        one, other = self.pair()
        other.qp.close()
        one.post(1, Operation.SEND, [one.segment(0, 5)])
        self.assertEqual(self.statuses(one), [Status.RETRY_EXC_ERR])
        self.assertIs(one.qp.state, QPState.ERR)

    def test_probeOfEndedQueuePairFails(self) -> None:
        one, other = self.pair()
        other.qp.close()
        found: list[Status] = []

        def failed() -> bool:
            one.post(1, Operation.RDMA_WRITE)
            found.extend(self.statuses(one))
            return found[-1] is not Status.SUCCESS

        self.runUntil(failed)
        self.assertEqual(found[-1], Status.RETRY_EXC_ERR)
        self.assertIs(one.qp.state, QPState.ERR)

    def test_endOfPeersProcessFailsUnusedQueuePair(self) -> None:
        one, other = self.pair()
        other.device.close()
        self.runUntil(lambda: one.events)
        self.assertEqual([each.kind for each in one.events], [AsyncEventKind.QP_FATAL])
        self.assertIs(one.qp.state, QPState.ERR)

    def test_connectingToClosedDeviceFailsBeforeItIsNoticed(self) -> None:
        one, other = self.pair()
        other.device.close()
        self.assertRaises(DeviceUnavailable, End(one.device).join, other)
        self.runUntil(lambda: one.events)

    def test_connectingToSuccessorBeforeEndIsNoticed(self) -> None:
        one, other = self.pair()
        port = other.device.port
        for _ in range(10):
            self.reactor.iterate(0)
        other.device.close()
        device = openSoftDevice(self.reactor, port=port)
        self.addCleanup(device.close)
        successor = End(device)
        here, there = another(one, successor, SMALL)
        there.postReceive([ReceiveRequest(0, (successor.segment(0, 64),))])
        here.postSend([SendRequest(1, Operation.SEND, (one.segment(0, 5),))])
        for end in (successor, one):
            self.assertEqual(self.statuses(end), [Status.SUCCESS])
        self.assertIs(one.qp.state, QPState.ERR)

    def test_firstMessagesToClosedDeviceFail(self) -> None:
        one, other = self.pair()
        added = Added()
        other.device.close()
        one.post(1, Operation.SEND, [one.segment(0, 5)])
        one.post(2, Operation.SEND, [one.segment(0, 5)])
        self.assertEqual(self.statuses(one, 2), [Status.RETRY_EXC_ERR, Status.WR_FLUSH_ERR])
        one.qp.close()
        self.assertTrue(added.isNothing())

    def test_postWithoutMemoryForLaneFailsAndLaterOneSucceeds(self) -> None:
        one, other = self.pair()
        makeBox = _rendezvous.makeBox
        added = Added()

        def full(ring: int) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        self.patch(sharedqueuepair, "makeBox", full)
        for _ in range(1000):  # more than fits into the send queue
            self.assertRaises(ResourceExhausted, one.post, 1, Operation.SEND, [one.segment(0, 5)])
        self.assertEqual(cast(SoftQueuePair, one.qp).free, one.qp.capacity.maxSend)
        self.assertTrue(added.isNothing())
        self.patch(sharedqueuepair, "makeBox", makeBox)
        self.exchange(one, other)

    def test_drainedQueuePairWithoutMemoryForLaneStaysInSQD(self) -> None:
        """Requests that were posted in SQD are sent when there is memory, as no others preceded them."""
        one, other = self.pair()
        makeBox = _rendezvous.makeBox

        def full(ring: int) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        one.qp.modify(QPAttributes(state=QPState.SQD))
        one.post(1, Operation.SEND, [one.segment(0, 5)])
        self.patch(sharedqueuepair, "makeBox", full)
        self.assertRaises(ResourceExhausted, one.qp.modify, QPAttributes(state=QPState.RTS))
        self.assertEqual((one.qp.state, one.qp.query().state), (QPState.SQD, QPState.SQD))
        self.patch(sharedqueuepair, "makeBox", makeBox)
        other.receive(2, 0, 5)
        one.qp.modify(QPAttributes(state=QPState.RTS))
        self.assertEqual([self.statuses(end) for end in (other, one)], [[Status.SUCCESS]] * 2)
        self.assertEqual(cast(SoftQueuePair, one.qp).free, one.qp.capacity.maxSend)

    def test_firstMessageToPeerWithoutMemoryFailsAndLeavesNothing(self) -> None:
        added = Added()
        one, other = self.pair()
        makeBox = _rendezvous.makeBox
        made: list[int] = []

        def second(ring: int) -> Any:
            made.append(ring)
            if len(made) == 2:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
            return makeBox(ring)

        self.patch(sharedqueuepair, "makeBox", second)
        one.post(1, Operation.SEND, [one.segment(0, 5)])
        self.assertEqual(self.statuses(one), [Status.RETRY_EXC_ERR])
        self.assertEqual(len(made), 2)
        one.device.close()
        self.runUntil(lambda: other.events)
        other.device.close()
        self.assertTrue(added.isNothing())


class RegionTests(RealCase):
    """Memory mapped by peers."""

    def test_regionThatCannotBeMappedIsAccessedByMessages(self) -> None:
        self.patch(sharedqueuepair, "mapRegion", full)
        one, other = self.pair()
        region = other.domain.allocateMemory(4096, ALL)
        one.region.view[:5] = b"there"
        where = {"remoteAddress": region.address, "rkey": region.rkey}
        one.post(1, Operation.RDMA_WRITE, [one.segment(0, 5)], **where)
        one.post(2, Operation.RDMA_READ, [one.segment(10, 5)], **where)
        self.assertEqual([each.status for each in self.take(one, 2)], [Status.SUCCESS] * 2)
        self.assertEqual([bytes(region.view[:5]), bytes(one.region.view[10:15])], [b"there"] * 2)

    def test_deregisteredMemoryIsUnmappedWithNextMapping(self) -> None:
        one, other = self.pair()
        before = 0
        for number in range(10):
            region = other.domain.allocateMemory(4096, ALL)
            one.region.view[:5] = b"%05d" % number
            where = {"remoteAddress": region.address, "rkey": region.rkey}
            one.post(1, Operation.RDMA_WRITE, [one.segment(0, 5)], **where)
            self.assertEqual([c.status for c in self.take(one, 1)], [Status.SUCCESS])
            self.assertEqual(region.view[:5], b"%05d" % number)
            region.close()
            before = before or mappings()
        self.assertEqual(mappings(), before)

    def test_oldestRegionBeyondLimitIsUnmappedUntilUsed(self) -> None:
        self.patch(sharedqueuepair, "MOST_REGIONS", 3)
        one, other = self.pair()
        regions = [other.domain.allocateMemory(4096, ALL) for _ in range(6)]
        found = []
        for number, region in enumerate((*regions, *regions)):
            one.region.view[:5] = b"%05d" % number
            where = {"remoteAddress": region.address, "rkey": region.rkey}
            one.post(1, Operation.RDMA_WRITE, [one.segment(0, 5)], **where)
            self.assertEqual([c.status for c in self.take(one, 1)], [Status.SUCCESS])
            self.assertEqual(region.view[:5], b"%05d" % number)
            found.append(mappings())
        self.assertGreater(found[2], found[0])
        self.assertEqual(found[2:], [found[2]] * 10)

    def test_regionsBeyondMostBytesAreAccessedByMessages(self) -> None:
        one, other = self.pair()
        regions = [other.domain.allocateMemory(8192, ALL) for _ in range(5)]
        self.patch(sharedqueuepair, "MOST_MAPPED_BYTES", 3 * 8192 + 3 * 4096)
        found = []
        for number, region in enumerate((*regions, *regions)):
            one.region.view[:5] = b"%05d" % number
            where = {"remoteAddress": region.address, "rkey": region.rkey}
            one.post(1, Operation.RDMA_WRITE, [one.segment(0, 5)], **where)
            self.assertEqual([c.status for c in self.take(one, 1)], [Status.SUCCESS])
            self.assertEqual(region.view[:5], b"%05d" % number)
            found.append(cast(Any, one.qp)._route._services._peer.mappedBytes)
        self.assertEqual(found, [12288 * (number + 1) for number in range(3)] + [3 * 12288] * 7)

    def test_readAccessMapsMemoryReadOnly(self) -> None:
        one, other = self.pair()
        region = other.domain.allocateMemory(4096, VerbsAccess.LOCAL_WRITE | VerbsAccess.REMOTE_READ)
        region.view[:5] = b"there"
        where = {"remoteAddress": region.address, "rkey": region.rkey}
        one.post(1, Operation.RDMA_READ, [one.segment(0, 5)], **where)
        self.assertEqual([c.status for c in self.take(one, 1)], [Status.SUCCESS])
        self.assertEqual(one.region.view[:5], b"there")
        with open("/proc/self/maps") as maps:
            rights = [line.split()[1] for line in maps if "memfd:txrdma " in line]
        self.assertIn("r--s", rights)
        one.post(2, Operation.RDMA_WRITE, [one.segment(0, 5)], **where)
        self.assertEqual([c.status for c in self.take(one, 1)], [Status.REM_ACCESS_ERR])

    def test_replyWithTooFewBytesEndsConnection(self) -> None:
        one, other = self.pair()
        region = other.domain.registerMemory(memoryview(bytearray(100)), ALL)

        def short(process: Any, parsed: Any, content: memoryview, answer: Any) -> None:
            names = {"source": parsed.destination, "destination": parsed.source}
            reply = AccessReply(kind=RendezvousKind.ACCESS_REPLY, allowed=True, length=3, **names)
            answer(reply.encode() + b"abc", ())

        self.patch(sharedmemoryport._ConnectedDevice, "accessRequested", short)
        where = {"remoteAddress": region.address, "rkey": region.rkey}
        one.post(1, Operation.RDMA_READ, [one.segment(0, 5)], **where)
        self.assertEqual([c.status for c in self.take(one, 1)], [Status.RETRY_EXC_ERR])
