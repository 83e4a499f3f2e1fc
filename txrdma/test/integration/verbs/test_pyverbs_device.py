"""The logic of pyverbs devices, tested with a fake pyverbs."""

from __future__ import annotations

import errno
import gc
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pickle import PickleBuffer
from typing import Any
from unittest.mock import Mock

from zope.interface import alsoProvides
from zope.interface.verify import verifyClass, verifyObject

from twisted.internet.interfaces import IReactorFromThreads
from twisted.internet.testing import MemoryReactorClock
from twisted.python import threadable

from txrdma.error import DeviceUnavailable, InvalidRequest, QueueFull, RDMAError
from txrdma.iba.types import GID, LKey, RKey
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    AsyncEventKind,
    Capacity,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
    Status,
)
from txrdma.interfaces import (
    AsyncEvent,
    IAddressHandle,
    ICompletionChannel,
    ICompletionQueue,
    IMemoryRegion,
    IProtectionDomain,
    IQueuePair,
    ISharedReceiveQueue,
    IVerbsDevice,
)
from txrdma.test.support.verbs.fakepyverbs import FAKE, FakeError, Record, Thing, WR
from txrdma.test.support.verbs.pyverbs_device import _inside, FakeDevice
from txrdma.verbs.pyverbs import device as _pyverbs_device
from txrdma.verbs.pyverbs import queues, requests
from txrdma.verbs.pyverbs.device import PyverbsDevice
from txrdma.verbs.pyverbs.events import EventReader, Notification, read
from txrdma.verbs.pyverbs.resourcetracker import openContext

_FLUSHED = Status.WR_FLUSH_ERR


class QueuePairTests(FakeDevice):
    """Functions that a queue pair adds to those of pyverbs."""

    def test_allPartsProvideInterfaces(self) -> None:
        handle = self.domain.createAddressHandle(AddressVector(GID.fromIP("192.0.2.1")))
        shared = self.domain.createSharedReceiveQueue(4, 1)
        for thing, interface in (
            (self.device, IVerbsDevice),
            (self.domain, IProtectionDomain),
            (self.channel, ICompletionChannel),
            (self.sends, ICompletionQueue),
            (self.queuePair, IQueuePair),
            (self.region, IMemoryRegion),
            (handle, IAddressHandle),
            (shared, ISharedReceiveQueue),
        ):
            verifyObject(interface, thing)
        verifyClass(IVerbsDevice, PyverbsDevice)

    def test_kernelAcknowledgesWithoutApplication(self) -> None:
        attributes = self.device.attributes
        self.assertFalse(attributes.acknowledgesByProgram)
        self.assertEqual((attributes.ackDelay, attributes.canMigrate), (15, True))

    def test_requestsArePostedInOrderWithFields(self) -> None:
        self.send(5, 6)
        atomic = SendRequest(7, Operation.COMPARE_AND_SWAP, [Segment(self.region.address, 8, LKey(7))])
        atomic.remoteAddress, atomic.compare, atomic.operand, atomic.fence = 64, 2, 3, True
        self.queuePair.postSend([atomic, SendRequest(8, Operation.SEND_WITH_IMMEDIATE, immediate=0x01020304)])
        first, _second, third, fourth = self.raw.sends
        self.assertEqual((first.opcode, first.send_flags), (2, 2))
        self.assertEqual((first.sg[0].addr, first.sg[0].length), (self.region.address, 10))
        self.assertEqual((third.opcode, third.send_flags), (5, 3))
        self.assertEqual(third.kinds["atomic"], (0, 64, 2, 3))
        self.assertEqual(fourth.imm_data.to_bytes(4, sys.byteorder), b"\1\2\3\4")
        self.assertEqual(fourth.sg, [])
        for _ in range(4):
            self.raw.complete(self.rawSends)
        self.assertEqual([c.identifier for c in self.sends.poll(10)], [5, 6, 7, 8])

    def test_inlineDataIsThatOfItsRequest(self) -> None:
        lists: list[list[bytes | memoryview]] = [
            [b"one", b"two"],
            [b"x" * 100],
            [b""],
            [b"three", memoryview(b"four")],
        ]
        for pieces in lists:
            self.queuePair.postSend(
                [SendRequest(1, Operation.SEND, inline=pieces), SendRequest(2, Operation.SEND)]
            )
            first, second = self.raw.sends
            self.assertEqual((first.inline, second.inline), (b"".join(pieces), b""))
            self.assertEqual((first.send_flags & 8, second.send_flags & 8, second.sg), (8, 0, []))
            for _ in range(2):
                self.raw.complete(self.rawSends)
            self.assertEqual(len(self.sends.poll(10)), 2)

    def made(self) -> tuple[int, int]:
        """Return the number of work requests and segments created so far."""
        return len(WR.made), FAKE.SGE.made

    def test_noObjectIsCreatedForRequest(self) -> None:
        segments = [Segment(self.region.address + at, 10, self.region.lkey) for at in range(0, 400, 100)]
        receives = [ReceiveRequest(at, (segment,)) for at, segment in enumerate(segments)]
        write = SendRequest(1, Operation.RDMA_WRITE)
        write.rkey, write.remoteAddress = RKey(5), 4096
        atomic = SendRequest(2, Operation.FETCH_AND_ADD, [Segment(self.region.address, 8, LKey(7))])
        inline = SendRequest(3, Operation.SEND, inline=[b"inline"])
        made = None
        for turn in range(20):
            write.segments = [segments[turn % 4]]
            lists = [[write, atomic, inline], [inline], [atomic, write]]
            for many in lists:
                self.queuePair.postSend(many)
                for request in many:
                    posted = self.raw.sends[0]
                    self.assertEqual(posted.opcode, int(request.operation))
                    if request is write:
                        self.assertEqual(posted.kinds["rdma"], (5, 4096))
                        self.assertEqual(posted.sg[0].addr, segments[turn % 4].address)
                    self.raw.complete(self.rawSends)
                self.assertEqual(
                    [each.identifier for each in self.sends.poll(10)], [each.identifier for each in many]
                )
            self.queuePair.postReceive(receives[turn % 4 :] + receives[: turn % 4])
            self.assertEqual(
                [each.sg[0].addr for each in self.raw.receives],
                [segments[(turn + at) % 4].address for at in range(4)],
            )
            for _ in receives:
                self.raw.complete(self.rawReceives, receive=True)
            self.assertEqual(len(self.receives.poll(10)), 4)
            if made is None:
                made = self.made()
            self.assertEqual(self.made(), made)

    def test_workRequestsOfClosedQueuePairAreReused(self) -> None:
        self.send(1, 2, 3)
        made = self.made()
        self.queuePair.close()
        self.queuePair = self.domain.createQueuePair(
            QPKind.RC, self.sends, self.receives, Capacity(8, 8, 2, 2, 100)
        )
        for state in (QPState.INIT, QPState.RTR, QPState.RTS):
            self.queuePair.modify(QPAttributes(state=state))
        self.send(4, 5, 6)
        self.assertEqual([each.sg[0].length for each in _inside(self.queuePair, "_raw").sends], [10] * 3)
        self.assertEqual(self.made(), made)

    def test_requestsWithSeveralSegmentsAreClosedAfterUse(self) -> None:
        self.send(0)
        self.raw.complete(self.rawSends)
        before = self.made()
        several = [Segment(self.region.address + at, 8, self.region.lkey) for at in (0, 64)]
        self.queuePair.postSend(
            [
                SendRequest(1, Operation.SEND, several),
                SendRequest(2, Operation.SEND, inline=[b"in", b"line"]),
                SendRequest(3, Operation.SEND),
            ]
        )
        first, second, third = self.raw.sends
        self.assertEqual([each.addr for each in first.sg], [each.address for each in several])
        self.assertEqual((second.inline, third.sg), (b"inline", []))
        made = [after - each for after, each in zip(self.made(), before, strict=True)]
        closed = [each for each in Thing.log if isinstance(each, (FAKE.SendWR, FAKE.SGE))]
        self.assertEqual(len(closed), sum(made))

    def test_receivesIntoChangingMemoryAccumulateNothing(self) -> None:
        for turn in range(200):
            self.queuePair.postReceive(
                [ReceiveRequest(turn, [Segment(self.region.address + turn, 8, self.region.lkey)])]
            )
            self.raw.complete(self.rawReceives, receive=True)
            self.assertEqual([each.identifier for each in self.receives.poll(10)], [turn])
        bad = requests._bad.values()
        receives = [each for each in WR.made if isinstance(each, FAKE.RecvWR) and each not in bad]
        self.assertLessEqual(sum(not each.isClosed for each in receives), 2 * 8)
        self.queuePair.close()
        self.assertTrue(all(each.isClosed for each in receives))

    def test_completionsArePolledInBatches(self) -> None:
        for _ in range(50):
            self.receive(1)
            self.raw.complete(self.rawReceives, receive=True)
        before = self.rawReceives.polls
        found = 0
        while batch := self.receives.poll(64):
            found += len(batch)
        self.assertEqual((found, self.rawReceives.polls - before), (50, 2))

    def test_immediateDataIsInNetworkByteOrder(self) -> None:
        self.receive(1)
        data = int.from_bytes(b"\1\2\3\4", sys.byteorder)
        self.raw.complete(self.rawReceives, receive=True, imm_data=data, wc_flags=2, byte_len=5)
        (completion,) = self.receives.poll(10)
        self.assertEqual((completion.immediate, completion.length), (0x01020304, 5))

    def test_onlyDatagramReportsSourcePath(self) -> None:
        pair: Any = self.domain.createQueuePair(QPKind.UD, self.sends, self.receives, Capacity(8, 8, 2, 2))
        pair.modify(QPAttributes(state=QPState.INIT))
        pair.postReceive([ReceiveRequest(1)])
        self.receive(2)
        way = {"wc_flags": 1, "src_qp": 77, "slid": 9, "sl": 3, "byte_len": 50}
        for raw in (_inside(pair, "_raw"), self.raw):
            raw.complete(self.rawReceives, receive=True, **way)
        datagram, message = self.receives.poll(10)
        self.assertEqual((datagram.sourceQPN, datagram.hasGRH), (77, True))
        self.assertEqual((datagram.sourceLID, datagram.serviceLevel), (9, 3))
        self.assertEqual((message.hasGRH, message.sourceLID, message.serviceLevel), (False, 0, 0))

    def test_listThatDoesNotFitIsNotPosted(self) -> None:
        self.send(*range(7))
        self.assertRaises(QueueFull, self.send, 7, 8)
        self.assertEqual(len(self.raw.sends), 7)
        self.send(7)
        self.assertRaises(QueueFull, self.send, 8)
        self.raw.complete(self.rawSends)
        self.send(8)
        self.assertEqual([c.identifier for c in self.sends.poll(10)], [0])
        self.receive(*range(8))
        self.assertRaises(QueueFull, self.receive, 9)
        self.assertEqual(len(self.raw.receives), 8)

    def test_invalidRequestPostsNone(self) -> None:
        good = SendRequest(1, Operation.SEND)
        segment = Segment(self.region.address, 8, self.region.lkey)
        for bad in (
            SendRequest(2, Operation.SEND, [segment] * 3),
            SendRequest(2, Operation.SEND, inline=[b"x" * 101]),
            SendRequest(2, Operation.SEND, [segment], inline=[b"x"]),
            SendRequest(2, Operation.RDMA_READ, inline=[b"x"]),
            SendRequest(2, Operation.FETCH_AND_ADD, [Segment(segment.address, 7, segment.lkey)]),
            SendRequest(2, Operation.SEND, [Segment(segment.address, 1 << 32, segment.lkey)]),
        ):
            self.assertRaises(InvalidRequest, self.queuePair.postSend, [good, bad])
            self.assertEqual(len(self.raw.sends), 0, bad)

    def test_unsignaledRequestsFreeEntriesWithoutCompletion(self) -> None:
        for index in range(50):
            self.send(index, signaled=False)
            self.raw.complete(self.rawSends)
        self.assertEqual(list(self.sends.poll(100)), [])
        self.send(50)
        self.raw.complete(self.rawSends)
        self.assertEqual([c.identifier for c in self.sends.poll(100)], [50])

    def test_pollSkipsUnreportedCompletions(self) -> None:
        self.send(*range(7), signaled=False)
        self.send(7)
        for _ in range(8):
            self.raw.complete(self.rawSends)
        self.assertEqual([c.identifier for c in self.sends.poll(1)], [7])

    def test_postedRequestsAreFlushedAfterFailure(self) -> None:
        self.send(1, 2)
        self.receive(3)
        self.raw.complete(self.rawSends, Status.RETRY_EXC_ERR)
        self.assertEqual([(c.identifier, c.status) for c in self.sends.poll(10)], [(1, Status.RETRY_EXC_ERR)])
        self.assertIs(self.queuePair.state, QPState.ERR)
        self.assertEqual(self.raw.modified[-1][1], 1)  # the device is polled again
        self.send(*range(10, 30), signaled=False)
        self.receive(*range(30, 50))
        self.assertEqual(list(self.sends.poll(10)), [])
        self.assertEqual(len(self.raw.sends), 1)
        self.raw.complete(self.rawSends, _FLUSHED)
        self.raw.complete(self.rawReceives, _FLUSHED, receive=True)
        self.assertEqual([c.identifier for c in self.sends.poll(100)], [2])
        self.assertEqual([c.identifier for c in self.sends.poll(100)], list(range(10, 30)))
        self.assertEqual([c.identifier for c in self.receives.poll(100)], [3])
        flushed = self.receives.poll(100)
        self.assertEqual([c.identifier for c in flushed], list(range(30, 50)))
        self.assertEqual({c.status for c in flushed}, {_FLUSHED})

    def test_listAcceptedByHalfIsFlushed(self) -> None:
        self.raw.room = 2
        self.send(*range(4))
        self.assertIs(self.queuePair.state, QPState.ERR)
        for _ in range(2):
            self.raw.complete(self.rawSends)
        found = [*self.sends.poll(10), *self.sends.poll(10)]
        self.assertEqual(
            [(c.identifier, c.status) for c in found],
            [(0, Status.SUCCESS), (1, Status.SUCCESS), (2, _FLUSHED), (3, _FLUSHED)],
        )

    def test_unexpectedlyFullDevicePostsNothing(self) -> None:
        self.raw.room = 0
        self.assertRaises(QueueFull, self.send, 1)
        self.assertIs(self.queuePair._state, QPState.RTS)

    def test_requestsBeforeResetAreNeverReported(self) -> None:
        self.send(1, 2)
        self.raw.complete(self.rawSends)
        self.queuePair.modify(QPAttributes(state=QPState.RESET))
        self.raw.complete(self.rawSends, _FLUSHED)
        self.assertEqual(list(self.sends.poll(10)), [])
        self.assertIs(self.queuePair.state, QPState.RESET)

    def test_receivesOfSharedQueueAreReportedByIdentifier(self) -> None:
        shared: Any = self.domain.createSharedReceiveQueue(4, 1)
        taker: Any = self.domain.createQueuePair(QPKind.RC, self.sends, self.receives, Capacity(), shared)
        shared.postReceive([ReceiveRequest(each) for each in (5, 6, 7)])
        self.assertRaises(QueueFull, shared.postReceive, [ReceiveRequest(8)] * 2)
        self.assertRaises(InvalidRequest, taker.postReceive, [ReceiveRequest(1)])
        wr = shared.raw.receives[1]
        self.rawReceives.found.append(Record(wr_id=wr.wr_id, qp_num=taker._raw.qp_num, opcode=128))
        self.assertEqual([(c.identifier, c.qpn) for c in self.receives.poll(10)], [(6, taker.number)])
        shared.arm(3)
        self.assertEqual(shared.limit(), 3)
        self.assertRaises(InvalidRequest, shared.arm, 5)
        shared.close()
        self.assertIs(taker.state, QPState.ERR)


class EndTests(FakeDevice):
    def kinds(self) -> list[str]:
        """Return what was closed, in order, except for work requests."""
        return [
            name for each in Thing.log if (name := type(each).__name__) not in ("SendWR", "RecvWR", "SGE")
        ]

    def test_childrenAreClosedFirst(self) -> None:
        self.domain.createAddressHandle(AddressVector(GID.fromIP("192.0.2.1")))
        shared = self.domain.createSharedReceiveQueue(4, 1)
        self.domain.createQueuePair(QPKind.RC, self.sends, self.receives, Capacity(), shared)
        del Thing.log[:]
        self.device.close()
        self.assertEqual(
            self.kinds(),
            [*["QP"] * 2, "SRQ", "AH", "MR", "PD", "CQ", "CompChannel", "CQ", "CompChannel", "Context"],
        )

    def test_collectorClosesInSameOrder(self) -> None:
        del Thing.log[:]
        self.device.__del__()
        self.assertEqual(
            self.kinds(), ["QP", "MR", "PD", "CQ", "CompChannel", "CQ", "CompChannel", "Context"]
        )

    def test_deviceCollectedInThreadIsClosedInReactors(self) -> None:
        calls: list[Callable[[], None]] = []
        reactor: Any = MemoryReactorClock()
        reactor.callFromThread = calls.append
        alsoProvides(reactor, IReactorFromThreads)
        self.addCleanup(gc.enable)
        gc.disable()  # in this thread
        abandoned = _pyverbs_device.openPyverbsDevice(reactor, "fake0")
        abandoned.createProtectionDomain()  # a cycle of references
        self.patch(threadable, "ioThread", threading.get_ident())
        del Thing.log[:]
        del abandoned
        collecting = threading.Thread(target=gc.collect)
        collecting.start()
        collecting.join()
        self.assertEqual((self.kinds(), bool(reactor.getReaders())), ([], True))
        (close,) = calls
        close()
        self.assertEqual((self.kinds(), reactor.getReaders()), (["PD", "Context"], []))

    def test_stuck(self) -> None:
        """An object that cannot be closed keeps its parents open: pyverbs would close freed memory."""
        self.raw.stuck = True
        references = sys.getrefcount(self.raw)
        self.device.close()
        self.assertNotIn("Context", self.kinds())
        self.assertNotIn(self.raw, Thing.log)
        self.assertGreaterEqual(sys.getrefcount(self.raw), references)
        self.assertRaises(DeviceUnavailable, self.device.createChannel)

    def test_stuckMemory(self) -> None:
        """Memory that cannot be deregistered is not freed, because the adapter may still write to it."""
        _inside(self.region, "_raw").stuck = True
        anchor = _inside(self.region, "_anchor")
        references = sys.getrefcount(anchor)
        self.region.close()
        self.assertEqual(sys.getrefcount(anchor), references)

    def test_completionAfterCloseIsDropped(self) -> None:
        self.receive(1)
        self.queuePair.close()
        self.rawReceives.found.append(Record(wr_id=1, qp_num=self.raw.qp_num))
        self.assertEqual(list(self.receives.poll(9)), [])

    def test_queuePairThatCannotBeQueriedIsInERR(self) -> None:
        self.patch(self.raw, "query", Mock(side_effect=FakeError(errno.EIO)))
        self.assertIs(self.queuePair.state, QPState.ERR)

    def test_endOfPredecessorWithSameNumberDisturbsNothing(self) -> None:
        self.sends.close()
        self.patch(FAKE.QP, "numbers", iter([self.raw.qp_num]))
        sends = self.device.createCompletionQueue(8, self.channel)
        pair: Any = self.domain.createQueuePair(QPKind.RC, sends, self.receives, Capacity(8, 8, 2, 2))
        pair.modify(QPAttributes(state=QPState.INIT))
        self.queuePair.close()
        pair.postReceive([ReceiveRequest(5)])
        _inside(pair, "_raw").complete(self.rawReceives, receive=True)
        self.assertEqual([each.identifier for each in self.receives.poll(9)], [5])
        events: list[AsyncEvent] = []
        self.device.subscribe(events.append)
        self.device._notified(Notification(AsyncEventKind.QP_FATAL, pair.number))
        self.assertEqual([each.queuePair for each in events], [pair])

    def test_forkedProcessClosesNothingOfParent(self) -> None:
        del Thing.log[:]
        pid = os.getpid()
        self.patch(os, "getpid", lambda: pid + 1)
        self.device.close()
        self.assertEqual(self.kinds(), [])

    def test_environmentIsSetOnlyWhileOpening(self) -> None:
        seen: list[str | None] = []

        def context(name: str) -> None:
            seen.append(os.environ.get("RDMAV_ALLOW_DISASSOC_DESTROY"))

        openContext(replace(FAKE, Context=context), "fake0")
        self.assertEqual(seen, ["1"])
        self.assertNotIn("RDMAV_ALLOW_DISASSOC_DESTROY", os.environ)
        os.environ["RDMAV_ALLOW_DISASSOC_DESTROY"] = "0"
        self.addCleanup(os.environ.pop, "RDMAV_ALLOW_DISASSOC_DESTROY")
        openContext(replace(FAKE, Context=context), "fake0")
        self.assertEqual((seen[1], os.environ["RDMAV_ALLOW_DISASSOC_DESTROY"]), ("0", "0"))

    def test_pollThatFailsLosesCompletions(self) -> None:
        """So the queue pairs of the queue go to ERR, and what was taken before is returned."""
        self.patch(queues, "_BATCH", 3)
        self.send(*range(8))
        for _ in range(8):
            self.raw.complete(self.rawSends)
        usual, polls = self.rawSends.poll, list[int]()

        def poll(limit: int) -> tuple[int, list[Any]]:
            polls.append(limit)
            if len(polls) == 2:
                raise FakeError(errno.EIO)
            found: tuple[int, list[Any]] = usual(limit)
            return found

        self.patch(self.rawSends, "poll", poll)
        self.assertEqual([each.identifier for each in self.sends.poll(64)], [0, 1, 2])
        self.assertIs(self.queuePair.state, QPState.ERR)

    def test_closedCompletionQueueClosesQueuePairs(self) -> None:
        self.send(1)
        self.receive(2, 3, 4)
        self.raw.complete(self.rawReceives, receive=True, byte_len=5, wc_flags=0)
        self.sends.close()
        self.assertIs(self.queuePair.state, QPState.ERR)
        self.assertTrue(self.raw.isClosed)
        self.assertEqual(
            [(c.identifier, c.status) for c in self.receives.poll(9)],
            [(2, Status.SUCCESS), (3, _FLUSHED), (4, _FLUSHED)],
        )
        self.assertEqual(list(self.sends.poll(9)), [])
        self.assertRaises(RDMAError, self.send, 4)
        self.queuePair.close()

    def test_removedDeviceReleasesEverythingAndWakesReaders(self) -> None:
        received: list[AsyncEvent] = []
        self.device.subscribe(received.append)
        self.send(1)
        self.send(2, signaled=False)
        self.receive(3)
        self.raw.complete(self.rawSends)
        self.receives.arm()
        self.device._notified(Notification(AsyncEventKind.DEVICE_FATAL, None))
        self.assertEqual([event.kind for event in received], [AsyncEventKind.DEVICE_FATAL])
        self.assertEqual(self.kinds()[-1], "Context")
        self.assertEqual(self.channel.takeEvents(), [self.receives])
        self.sends.arm()
        self.assertEqual(
            [(c.identifier, c.status) for c in self.sends.poll(9)], [(1, Status.SUCCESS), (2, _FLUSHED)]
        )
        self.assertEqual([(c.identifier, c.status) for c in self.receives.poll(9)], [(3, _FLUSHED)])
        calls: tuple[Callable[[], object], ...] = (
            lambda: self.send(4),
            lambda: self.receive(5),
            self.queuePair.query,
            self.device.createChannel,
            lambda: self.domain.allocateMemory(1, Access.NONE),
        )
        for call in calls:
            self.assertRaises(DeviceUnavailable, call)
        self.region.view[:5] = b"alive"
        used = PickleBuffer(self.region.view)  # as a NumPy array uses it
        self.addCleanup(used.release)
        closed = len(Thing.log)
        for thing in (self.queuePair, self.region, self.sends, self.receives, self.domain, self.device):
            thing.close()
            thing.close()
        self.assertEqual(len(Thing.log), closed)
        self.assertEqual(bytes(used)[:5], b"alive")

    def test_readerIsWokenIfDeviceIsRemovedMeanwhile(self) -> None:
        self.receive(3)
        self.receives.arm()
        self.raw.complete(self.rawReceives, receive=True)
        self.device._notified(Notification(AsyncEventKind.DEVICE_FATAL, None))
        self.assertEqual(self.channel.takeEvents(), [self.receives])
        self.assertEqual([(c.identifier, c.status) for c in self.receives.poll(9)], [(3, Status.SUCCESS)])

    def test_missingDeviceIsNamed(self) -> None:
        error = self.assertRaises(
            DeviceUnavailable, _pyverbs_device.openPyverbsDevice, MemoryReactorClock(), "fake9"
        )
        self.assertIn("fake9", str(error))


class SharedReceivesTests(FakeDevice):
    """Shared receive queues that are full."""

    def test_receivesBeyondPartlyAcceptedAreNotPosted(self) -> None:
        shared: Any = self.domain.createSharedReceiveQueue(4, 1)
        tokens: list[int] = []

        def post(request: Any, bad: Any) -> None:
            tokens.append(request.wr_id)
            if len(tokens) > 1:
                raise FakeError(errno.ENOMEM)

        self.patch(shared.raw, "post_recv", post)
        self.assertRaises(QueueFull, shared.postReceive, [ReceiveRequest(1), ReceiveRequest(2)])
        self.assertEqual([shared.ended(token) for token in tokens], [1, None])

    def test_unpolledReceivesLeaveEntriesToOthers(self) -> None:
        shared: Any = self.domain.createSharedReceiveQueue(1, 1)
        pair: Any = self.domain.createQueuePair(QPKind.RC, self.sends, self.receives, Capacity(), shared)
        shared.postReceive([ReceiveRequest(1)])
        token = shared.raw.receives[0].wr_id
        self.rawReceives.found.append(Record(wr_id=token, qp_num=pair.number, opcode=128))
        shared.postReceive([ReceiveRequest(2)])
        self.assertEqual([each.identifier for each in self.receives.poll(9)], [1])

    def test_queueThatCannotBeQueriedIsClosed(self) -> None:
        self.patch(FAKE.SRQ, "query", Mock(side_effect=FakeError(errno.EIO)))
        del Thing.log[:]
        self.assertRaises(RDMAError, self.domain.createSharedReceiveQueue, 1, 1)
        self.assertEqual([type(each).__name__ for each in Thing.log], ["SRQ"])


class EventTests(FakeDevice):
    def setUp(self) -> None:
        super().setUp()
        self.received: list[AsyncEvent] = []
        self.device.subscribe(self.received.append)

    def test_unknownEventIsIgnored(self) -> None:
        self.assertIsNone(read(Record(event_type=77)))
        self.assertEqual(read(Record(event_type=9)), Notification(AsyncEventKind.PORT_ACTIVE, None))

    def test_overrunQueueIsFoundAndItsQueuePairsFail(self) -> None:
        self.device._notified(Notification(AsyncEventKind.CQ_ERROR, self.rawReceives.token))
        self.assertEqual(self.received, [AsyncEvent(AsyncEventKind.CQ_ERROR, completionQueue=self.receives)])
        self.assertIs(self.queuePair.state, QPState.ERR)

    def test_queuePairsErrorNamesItAndMovesItToERR(self) -> None:
        self.device._notified(Notification(AsyncEventKind.QP_ACCESS_ERROR, self.raw.qp_num))
        self.assertEqual(
            self.received, [AsyncEvent(AsyncEventKind.QP_ACCESS_ERROR, queuePair=self.queuePair)]
        )
        self.assertIs(self.queuePair.state, QPState.ERR)
        self.queuePair.close()
        self.device._notified(Notification(AsyncEventKind.QP_FATAL, self.raw.qp_num))
        self.assertEqual(len(self.received), 1)

    def test_disarmedLimitsAreReported(self) -> None:
        one: Any = self.domain.createSharedReceiveQueue(4, 1)
        other: Any = self.domain.createSharedReceiveQueue(4, 1)
        for queue in (one, other):
            queue.arm(2)
        other.raw.attributes = Record(srq_limit=0)
        self.device._notified(Notification(AsyncEventKind.SRQ_LIMIT_REACHED, None))
        self.assertEqual(
            self.received, [AsyncEvent(AsyncEventKind.SRQ_LIMIT_REACHED, sharedReceiveQueue=other)]
        )

    def test_eventNamesEachQueueAtItsLimit(self) -> None:
        queues: list[Any] = [self.domain.createSharedReceiveQueue(4, 1) for _ in range(3)]
        for queue in queues:
            queue.arm(2)
            queue.raw.attributes = Record(srq_limit=0)
        self.device._notified(Notification(AsyncEventKind.SRQ_LIMIT_REACHED, None))
        self.assertEqual([event.sharedReceiveQueue for event in self.received], queues)

    def test_readerOfRemovedDeviceLeavesReactor(self) -> None:
        reactor = MemoryReactorClock()

        class Listener:
            received = 0

            def ready(self) -> None:
                self.received += 1

        listener: Listener | None = Listener()
        assert listener is not None
        reader = EventReader(reactor, 0, listener.ready)
        reader.doRead()
        self.assertEqual((listener.received, reactor.getReaders()), (1, [reader]))
        listener = None
        reader.doRead()
        self.assertEqual(reactor.getReaders(), [])
