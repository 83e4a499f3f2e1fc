"""A test case with pyverbs devices on the fake library."""

from __future__ import annotations

from typing import Any

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.verbs import (
    Access,
    Capacity,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
)
from txrdma.test.support.verbs.fakepyverbs import FAKE, Thing, WR
from txrdma.verbs.pyverbs import bindings as _pyverbs
from txrdma.verbs.pyverbs import device as _pyverbs_device
from txrdma.verbs.pyverbs import requests


def _inside(thing: Any, name: str) -> Any:
    """Return the fake object inside a wrapper."""
    return getattr(thing, name)


class FakeDevice(SynchronousTestCase):
    """A device of the fake, a queue pair in RTS, and its other objects."""

    def setUp(self) -> None:
        self.patch(Thing, "log", [])
        self.patch(WR, "made", [])
        self.patch(requests, "_idle", {})
        self.patch(requests, "_bad", {})
        self.patch(_pyverbs, "_loaded", FAKE)
        self.patch(_pyverbs_device, "openContext", lambda verbs, name: (verbs.Context(name), None))
        self.device = _pyverbs_device.openPyverbsDevice(MemoryReactorClock(), "fake0")
        self.addCleanup(self.device.close)
        self.domain: Any = self.device.createProtectionDomain()
        self.channel = self.device.createChannel()
        self.sends: Any = self.device.createCompletionQueue(64, self.channel)
        self.receives: Any = self.device.createCompletionQueue(64, self.channel)
        self.queuePair: Any = self.domain.createQueuePair(
            QPKind.RC, self.sends, self.receives, Capacity(8, 8, 2, 2, 100)
        )
        self.raw = _inside(self.queuePair, "_raw")
        for state in (QPState.INIT, QPState.RTR, QPState.RTS):
            self.queuePair.modify(QPAttributes(state=state))
        self.rawSends = _inside(self.sends, "raw")
        self.rawReceives = _inside(self.receives, "raw")
        self.region = self.domain.allocateMemory(4096, Access.LOCAL_WRITE)

    def send(self, *identifiers: int, signaled: bool = True) -> None:
        """Post sends as one list."""
        segment = Segment(self.region.address, 10, self.region.lkey)
        self.queuePair.postSend(
            [SendRequest(each, Operation.SEND, [segment], signaled=signaled) for each in identifiers]
        )

    def receive(self, *identifiers: int) -> None:
        """Post receives as one list."""
        self.queuePair.postReceive([ReceiveRequest(each) for each in identifiers])
