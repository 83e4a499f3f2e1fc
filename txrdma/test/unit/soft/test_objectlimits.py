"""
Limits of the software device, and other reasons for refusing to create objects.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest, ResourceExhausted
from txrdma.iba.types import DEFAULT_PKEY, GID
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    AtomicCapability,
    Capacity,
    DeviceLimits,
    NodeType,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
)
from txrdma.soft.core.memory import KeyTable
from txrdma.soft.device import SoftDevice
from txrdma.soft.objectlimits import LIMITS
from txrdma.soft.ports import SoftPort

THERE = AddressVector(GID.fromIP("192.0.2.1"))
INIT = QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1, access=Access.NONE)


def little(**changes: int) -> DeviceLimits:
    """Return limits that are low enough for a test to reach."""
    return replace(LIMITS, **changes)


class LimitTests(SynchronousTestCase):
    """The number and size of objects are limited as reported; closing frees resources."""

    def setUp(self) -> None:
        self.device = SoftDevice(Clock(), [SoftPort("127.0.0.1", 4791, [])])
        self.addCleanup(self.device.close)
        self.domain = self.device.createProtectionDomain()
        self.channel = self.device.createChannel()
        self.queue = self.device.createCompletionQueue(16, self.channel)

    def queuePair(self) -> Any:
        return self.domain.createQueuePair(QPKind.RC, self.queue, self.queue, Capacity())

    def test_closingMakesSpaceForAnother(self) -> None:
        self.domain.close()
        self.queue.close()
        makers: dict[str, Callable[[], Any]] = {
            "maxProtectionDomains": self.device.createProtectionDomain,
            "maxCompletionQueues": lambda: self.device.createCompletionQueue(1, self.channel),
        }
        self.counts(makers)
        self.domain = self.device.createProtectionDomain()
        self.queue = self.device.createCompletionQueue(1, self.channel)
        self.device.keys = KeyTable(2)
        self.counts(
            {
                "maxQueuePairs": self.queuePair,
                "maxMemoryRegions": lambda: self.domain.allocateMemory(1, Access.NONE),
                "maxAddressHandles": lambda: self.domain.createAddressHandle(THERE),
                "maxSharedReceiveQueues": lambda: self.domain.createSharedReceiveQueue(1, 1),
            }
        )

    def counts(self, makers: dict[str, Callable[[], Any]]) -> None:
        for name, make in makers.items():
            self.device.limits = little(**{name: 2})
            one, other = make(), make()
            self.assertRaises(ResourceExhausted, make)
            one.close()
            one.close()
            third = make()
            self.assertRaises(ResourceExhausted, make)
            third.close()
            other.close()
            make().close()

    def test_closedDomainReleasesItsObjects(self) -> None:
        self.device.limits = little(maxAddressHandles=1, maxSharedReceiveQueues=1)
        for _ in range(2):
            domain = self.device.createProtectionDomain()
            domain.createAddressHandle(THERE)
            shared = domain.createSharedReceiveQueue(1, 1)
            capacity = Capacity()
            taker = domain.createQueuePair(QPKind.RC, self.queue, self.queue, capacity, shared)
            domain.close()
            self.assertRaises(InvalidRequest, taker.modify, INIT)
            self.assertRaises(InvalidRequest, shared.postReceive, [ReceiveRequest(1)])
            for attempt in (
                lambda domain=domain: domain.createSharedReceiveQueue(1, 1),
                lambda domain=domain: domain.createAddressHandle(THERE),
            ):
                self.assertRaises(InvalidRequest, attempt)

    def test_invalidSizesAreRefused(self) -> None:
        self.device.limits = little(maxMemoryRegionLength=4096)
        refused: tuple[Callable[[], object], ...] = (
            lambda: self.domain.allocateMemory(4097, Access.NONE),
            lambda: self.domain.allocateMemory(0, Access.NONE),
            lambda: self.domain.registerMemory(memoryview(bytearray(4097)), Access.NONE),
            lambda: self.domain.registerMemory(memoryview(bytearray()), Access.NONE),
            lambda: self.domain.createSharedReceiveQueue(8, -1),
        )
        for attempt in refused:
            self.assertRaises(InvalidRequest, attempt)
        self.domain.allocateMemory(4096, Access.NONE)

    def test_sharedQueuePairHasNoReceives(self) -> None:
        shared = self.domain.createSharedReceiveQueue(4, 2)
        wanted = Capacity(maxReceive=1 << 30, maxReceiveSegments=1 << 30)
        made = self.domain.createQueuePair(QPKind.UD, self.queue, self.queue, wanted, shared)
        self.assertEqual((made.capacity.maxReceive, made.capacity.maxReceiveSegments), (0, 0))
        made.modify(replace(INIT, access=None, qkey=1))
        self.assertRaises(InvalidRequest, made.postReceive, [ReceiveRequest(1)])
        shared.postReceive([ReceiveRequest(1, [Segment(1, 1, self.memory())] * 2)])

    def memory(self) -> Any:
        return self.domain.allocateMemory(8, Access.LOCAL_WRITE).lkey

    def test_foreignAndClosedObjectsAreRefused(self) -> None:
        beside = self.device.createProtectionDomain().createSharedReceiveQueue(1, 1)
        closed = self.device.createCompletionQueue(4, self.channel)
        closed.close()
        shut = self.device.createChannel()
        shut.close()
        gone = self.domain.createSharedReceiveQueue(1, 1)
        gone.close()
        self.assertRaises(InvalidRequest, self.device.createCompletionQueue, 4, shut)
        make, own, capacity = self.domain.createQueuePair, self.queue, Capacity()
        for send, receive, shared in (
            (own, closed, None),
            (closed, own, None),
            (own, own, beside),
            (own, own, gone),
        ):
            self.assertRaises(InvalidRequest, make, QPKind.RC, send, receive, capacity, shared)
        self.assertRaises(InvalidRequest, make, QPKind.UC, own, own, capacity)

    def test_deviceAttributes(self) -> None:
        known = self.device.attributes
        self.assertTrue(known.acknowledgesByProgram)
        self.assertEqual((known.nodeType, known.atomics), (NodeType.CHANNEL_ADAPTER, AtomicCapability.HCA))
        self.assertEqual(known.nodeGUID, known.systemImageGUID)
        other = SoftDevice(Clock(), [SoftPort("127.0.0.1", 4792, [])])
        self.addCleanup(other.close)
        self.assertNotEqual(known.nodeGUID, other.attributes.nodeGUID)
        self.assertRegex(known.firmware, r"^(\d+\..*)?$")
        self.assertEqual(self.device.pkeys(1), (DEFAULT_PKEY,))

    def test_closedObjectsAreCollected(self) -> None:
        alive: WeakSet[Any] = WeakSet()
        shared = self.domain.createSharedReceiveQueue(4, 2)
        for _ in range(3):
            made = self.domain.createQueuePair(QPKind.RC, self.queue, self.queue, Capacity(), shared)
            handle = self.domain.createAddressHandle(THERE)
            alive.add(made)
            alive.add(handle)
            made.close()
            handle.close()
        del made, handle
        gc.collect()
        self.assertEqual(len(alive), 0)
