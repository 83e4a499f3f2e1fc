"""
Devices of pyverbs of which one call fails, each call once: other queue pairs of the device are not affected,
callers get an L{RDMAError}, and nothing is left.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isfunction
from typing import Any

from twisted.internet.testing import MemoryReactorClock

from txrdma.error import DeviceUnavailable, RDMAError
from txrdma.iba.types import GID
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    Capacity,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
)
from txrdma.test.support.verbs import fakepyverbs
from txrdma.test.support.verbs.fakepyverbs import FakeError, Thing
from txrdma.test.support.verbs.pyverbs_device import FakeDevice
from txrdma.verbs.pyverbs.device import openPyverbsDevice

CLASSES: tuple[type[Thing], ...] = (
    *(fakepyverbs.Context, fakepyverbs.PD, fakepyverbs.MR, fakepyverbs.AH, fakepyverbs.CompChannel),
    *(fakepyverbs.CQ, fakepyverbs.QP, fakepyverbs.SRQ),
)
"""The classes of objects in the kernel, whose calls can fail."""

ADDRESS = AddressVector(GID.fromString("fe80::1"))


class Calls:
    """
    Counts calls of pyverbs, and lets one of them fail.

    @ivar names: the calls since L{begin}.
    @ivar made: all objects that were created since then.
    """

    def __init__(self, patch: Callable[[Any, str, Any], object]) -> None:
        self.begin(None, 0)
        for each in CLASSES:
            for name in dir(each):
                function = getattr(each, name)
                if isfunction(function) and (name == "__init__" or not name.startswith("_")):
                    if not (each is fakepyverbs.QP and name == "complete"):  # which tests call
                        patch(each, name, self._replacement(each, name, function))

    def begin(self, failing: int | None, code: int) -> None:
        """Count from now on; C{failing} is the number of the call that fails with this C{errno}."""
        self.isArmed = False
        self.names: list[str] = []
        self.made: list[Any] = []
        self._failing, self._code = failing, code

    @property
    def failed(self) -> str:
        """The name of the call that has failed; empty if none has."""
        number = self._failing
        return self.names[number] if number is not None and number < len(self.names) else ""

    def _replacement(self, kind: type, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(thing: Any, *arguments: Any, **named: Any) -> Any:
            if self.isArmed:
                self.names.append(f"{kind.__name__}.{name}")
                if len(self.names) - 1 == self._failing:
                    raise FakeError(self._code)
            result = function(thing, *arguments, **named)
            if name == "__init__":
                self.made.append(thing)
            return result

        return replacement


class InterruptionTests(FakeDevice):
    """One call after the other fails."""

    def setUp(self) -> None:
        self.calls = Calls(self.patch)
        super().setUp()

    def do(self, function: Callable[..., Any] | None, *arguments: Any) -> Any:
        """Call a function unless what it needs is missing; return None if it fails, as it may."""
        if function is None or None in arguments:
            return None
        try:
            return function(*arguments)
        except RDMAError:
            return None

    @contextmanager
    def closing(self) -> Iterator[Callable[..., Any]]:
        """Create objects with the yielded function, and close them at the end, the latest first."""
        created: list[Any] = []

        def create(function: Callable[..., Any] | None, *arguments: Any) -> Any:
            thing = self.do(function, *arguments)
            if thing is not None:
                created.append(thing)
            return thing

        yield create
        for each in reversed(created):
            each.close()

    def work(self) -> None:
        """Use a device as a program does."""
        with self.closing() as create:
            domain = create(self.device.createProtectionDomain)
            channel = create(self.device.createChannel)
            queues = [create(self.device.createCompletionQueue, 8, channel) for _ in range(2)]
            region = create(domain and domain.allocateMemory, 64, Access.LOCAL_WRITE)
            shared = create(domain and domain.createSharedReceiveQueue, 4, 2)
            handle = create(domain and domain.createAddressHandle, ADDRESS)
            makePair, capacity = domain and domain.createQueuePair, Capacity(8, 8, 2, 2, 100)
            connected = create(makePair, QPKind.RC, *queues, capacity)
            served = create(makePair, QPKind.RC, *queues, capacity, shared)
            datagrams = create(makePair, QPKind.UD, *queues, capacity)
            for pair in (connected, served, datagrams):
                for state in (QPState.INIT, QPState.RTR, QPState.RTS):
                    self.do(pair and pair.modify, QPAttributes(state=state))
                self.do(pair and pair.query)
            if None not in (region, handle, shared, *queues):
                self.exchange(connected, region, queues)
                self.exchange(datagrams, region, queues, address=handle)
                self.do(shared.postReceive, [ReceiveRequest(9)])
                self.do(channel.takeEvents)

    def exchange(self, pair: Any, region: Any, queues: Any, **more: Any) -> None:
        """Post requests, complete them, and poll."""
        if pair is None:
            return
        segment = Segment(region.address, 8, region.lkey)
        operation = Operation.SEND
        self.do(pair.postReceive, [ReceiveRequest(each, [segment]) for each in (1, 2)])
        self.do(pair.postSend, [SendRequest(3, operation, [segment], **more)])
        self.do(pair.postSend, [SendRequest(4, operation, [segment, segment], **more)])
        for each in queues:
            self.do(each.arm)
        if pair._raw is not None and pair._raw.sends:
            pair._raw.complete(queues[0].raw)
        for each in queues:
            self.do(each.poll, 8)
        assert pair.state is not None  # which is read from the device

    def play(self, failing: int | None, code: int) -> None:
        """Work beside another queue pair, while one call fails; check that one, and what is left."""
        self.calls.begin(failing, code)
        before = set(os.listdir("/proc/self/fd"))
        self.calls.isArmed = True
        self.work()
        self.calls.isArmed = False
        left = [each for each in self.calls.made if not each.isClosed]
        # What cannot be closed stays, with the descriptor that it may have.
        stuck = int(self.calls.failed.endswith(".close"))
        self.assertLessEqual(len(left), stuck, self.calls.failed)
        opened = set(os.listdir("/proc/self/fd")) - before
        self.assertLessEqual(len(opened), stuck, self.calls.failed)
        self.send(1)
        self.raw.complete(self.rawSends)
        self.assertEqual([each.identifier for each in self.sends.poll(8)], [1], self.calls.failed)

    def test_each(self) -> None:
        """Each call of the objects of a device fails once, in two ways."""
        self.play(None, 0)
        names = self.calls.names
        self.assertEqual({each.partition(".")[0] for each in names}, {each.__name__ for each in CLASSES[1:]})
        for number in range(len(names)):
            for code in (errno.EIO, errno.ENOMEM):
                self.play(number, code)
                self.assertEqual(self.calls.failed, names[number])

    def test_opening(self) -> None:
        """Each call fails while a device is opened and closed."""
        self.calls.begin(None, 0)
        self.calls.isArmed = True
        openPyverbsDevice(MemoryReactorClock(), "fake0").close()
        names = self.calls.names
        self.assertGreater(len(names), 3)
        for number in range(len(names)):
            self.calls.begin(number, errno.EIO)
            self.calls.isArmed = True
            try:
                openPyverbsDevice(MemoryReactorClock(), "fake0").close()
            except DeviceUnavailable:
                self.assertNotEqual(self.calls.failed, "Context.close")
            left = [each for each in self.calls.made if not each.isClosed]
            self.assertLessEqual(len(left), self.calls.failed == "Context.close", self.calls.failed)
