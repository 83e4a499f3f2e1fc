"""
The objects of a software device, closed in any order, more than once, or not at all.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import RDMAError
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    Capacity,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    SendRequest,
)
from txrdma.soft.device import openSoftDevice
from txrdma.test.support.soft.neighbours import Added
from txrdma.test.support.soft.pairs import INIT, RTR, RTS

PARTS = (
    "device",
    "domain",
    "channel",
    "sends",
    "receives",
    "shared",
    "one",
    "other",
    "idle",
    "datagrams",
    "memory",
    "handle",
)
"""Everything that has a close method."""


class World:
    """A device with a connection to itself, whose ends have outstanding requests."""

    def __init__(self, route: str) -> None:
        self.reactor = MemoryReactorClock()
        self.device = openSoftDevice(self.reactor, port=0, route=route)
        self.device.subscribe(lambda event: None)
        self.domain = self.device.createProtectionDomain()
        self.channel = self.device.createChannel()
        self.sends = self.device.createCompletionQueue(64, self.channel)
        self.receives = self.device.createCompletionQueue(64, self.channel)
        self.shared = self.domain.createSharedReceiveQueue(8, 1)
        self.memory: Any = self.domain.allocateMemory(4096, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        self.handle = self.domain.createAddressHandle(self.vector)
        self.one, self.other, self.idle = (
            self.domain.createQueuePair(QPKind.RC, self.sends, self.receives, Capacity(), self.shared)
            for _ in range(3)
        )
        self.datagrams = self.domain.createQueuePair(QPKind.UD, self.sends, self.receives, Capacity())
        for queuePair, peer in ((self.one, self.other), (self.other, self.one)):
            queuePair.modify(INIT)
            queuePair.modify(replace(RTR, address=self.vector, destinationQPN=peer.number))
            queuePair.modify(RTS)
        self.datagrams.modify(QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1, qkey=1))
        self.datagrams.modify(QPAttributes(state=QPState.RTR))
        self.datagrams.modify(QPAttributes(state=QPState.RTS, sqPSN=1))

    @property
    def vector(self) -> AddressVector:
        """Return the path to the device itself."""
        return AddressVector(self.device.gids(1)[0], dmac=self.device.mac)

    def use(self) -> None:
        """Use everything; only documented errors may be raised."""
        send = SendRequest(1, Operation.SEND, [self.memory.segment(0, 64)])
        datagram = SendRequest(2, Operation.SEND, inline=(), address=self.handle, remoteQPN=self.one.number)
        attempts: tuple[Callable[[], object], ...] = (
            lambda: self.shared.postReceive([ReceiveRequest(1, [self.memory.segment(64, 64)])]),
            lambda: self.shared.arm(2),
            lambda: self.one.postSend([send]),
            lambda: self.other.postSend([send]),
            lambda: self.idle.modify(INIT),
            lambda: self.idle.modify(QPAttributes(state=QPState.RESET)),
            lambda: self.datagrams.postSend([datagram]),
            lambda: self.datagrams.postReceive([ReceiveRequest(3)]),
            lambda: self.one.query(),
            lambda: self.sends.arm(),
            lambda: self.receives.arm(True),
            lambda: self.sends.poll(4),
            lambda: self.receives.poll(4),
            lambda: self.channel.takeEvents(),
            lambda: self.channel.fileno(),
            lambda: self.device.setPortEnabled(1, True),
            lambda: self.device.portAttributes(1),
            lambda: self.domain.createSharedReceiveQueue(1, 1).close(),
            lambda: self.domain.createQueuePair(QPKind.RC, self.sends, self.receives, Capacity()).close(),
            lambda: self.device.createCompletionQueue(1, self.channel).close(),
        )
        for attempt in attempts:
            try:
                attempt()
            except RDMAError:
                pass
        self.reactor.advance(0.001)


def collect() -> None:
    """Collect what earlier tests have left. What is freed may release further cycles, hence the loop."""
    while gc.collect():
        pass


class ClosingTests(SynchronousTestCase):
    """Real sockets on the loopback interface, on a reactor that never runs."""

    slowBecause = "each example opens and closes devices with real sockets"

    def setUp(self) -> None:
        """Leave what other tests have made out of the many collections."""
        collect()
        gc.freeze()
        self.addCleanup(gc.unfreeze)

    @settings(max_examples=12, deadline=None)
    @given(
        order=st.permutations(PARTS),
        route=st.sampled_from(["rocev2", "shared-memory"]),
        twice=st.booleans(),
    )
    def test_nothingIsOpenWhateverIsClosedFirst(self, order: list[str], route: str, twice: bool) -> None:
        collect()
        added = Added()
        world = World(route)
        world.use()
        for name in order:
            getattr(world, name).close()
            if twice:
                getattr(world, name).close()
            world.use()
        self.assertTrue(added.isNothing())
        self.assertEqual((world.reactor.getReaders(), world.reactor.getWriters()), ([], []))
        self.assertEqual(world.reactor.getDelayedCalls(), [])

    def test_unclosedObjectsCanBeCollectedOnceDeviceIsClosed(self) -> None:
        collect()
        added = Added()
        for route in ("rocev2", "shared-memory"):
            world = World(route)
            world.use()
            world.device.close()
            del world
        gc.collect()
        self.assertTrue(added.isNothing())
