"""
The software device keeps the promises of verbs devices, on every route.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TYPE_CHECKING

from twisted.internet.task import Clock
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.headers import Opcode
from txrdma.iba.verbs import QPAttributes, QPState, Status
from txrdma.interfaces import IVerbsDevice
from txrdma.sim.network import SimulatedNetwork
from txrdma.soft.device import openSoftDevice, SoftDevice
from txrdma.testing.contracts import VerbsDeviceContract

if TYPE_CHECKING:
    _Case = SynchronousTestCase
else:
    _Case = object

REACTORS = ("_Select", "_EPoll", "_Asyncio")
"""Those that differ; the others are like one of them."""


class SimulatedContractTests(VerbsDeviceContract, SynchronousTestCase):
    """Over a simulated network, in simulated time."""

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Two hosts."""
        self.clock = Clock()
        self.network = SimulatedNetwork(self.clock)
        one, other = self.network.device("192.0.2.1"), self.network.device("192.0.2.2")
        for device in (one, other):
            self.addCleanup(device.close)
        return one, other

    def runUntil(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """From one thing that happens to the next."""
        deadline = self.clock.seconds() + seconds
        while not condition():
            now = self.clock.seconds()
            if now > deadline:
                self.fail(f"{condition} does not hold after {seconds} seconds")
            following = min((call.getTime() for call in self.clock.getDelayedCalls()), default=now + 0.01)
            self.clock.advance(max(0.0, following - now))

    def runFor(self, seconds: float) -> None:
        """In small steps."""
        for _ in range(100):
            self.clock.advance(seconds / 100)

    def test_halfReceived(self) -> None:
        """A receive of which only the beginning has come is flushed, too, before those behind it."""
        alice, bob = self.pair()
        self.network.drop(lambda packet: packet.bth.opcode is Opcode.RC_SEND_LAST, times=1000)
        for identifier in (4, 5):
            bob.receive(bob.segment(0, 50_000), identifier=identifier)
        alice.send(alice.fill(b"1" * 40_000))
        self.runUntil(lambda: bob.memory.view[30_000] == ord("1"))
        bob.queuePair.modify(QPAttributes(state=QPState.ERR))
        self.runUntilCompleted(bob, receives=2)
        self.assertEqual([c.identifier for c in bob.received], [4, 5])
        self.assertEqual(bob.statuses()[1], [Status.WR_FLUSH_ERR] * 2)


class RealTime(_Case):
    """Devices on a real reactor of the test's own, which runs as long as the test says."""

    route = "auto"
    address = "127.0.0.1"
    buildReactor: Callable[[], Any]

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Two, at free ports of the loopback interface."""
        self.reactor = self.buildReactor()
        one, other = self.open(), self.open()
        return one, other

    def open(self) -> SoftDevice:
        """Another one."""
        device = openSoftDevice(self.reactor, self.address, port=0, route=self.route)
        self.addCleanup(device.close)
        return device

    def runUntil(self, condition: Callable[[], bool], seconds: float = 3.0) -> None:
        """Turn the reactor until then."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"{condition} does not hold after {seconds} seconds")
            self.reactor.iterate(0.001)

    def runFor(self, seconds: float) -> None:
        """Turn the reactor for a while."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.reactor.iterate(0.001)


class RoCEContractTests(RealTime, VerbsDeviceContract, ReactorBuilder):
    """Over UDP on the loopback interface."""

    route = "rocev2"


class IPv6ContractTests(RealTime, VerbsDeviceContract, ReactorBuilder):
    """Over UDP on IPv6."""

    route = "rocev2"
    address = "::1"

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Two, where the host has IPv6."""
        try:
            return super().makeDevices()
        except DeviceUnavailable as error:
            raise SkipTest(f"no IPv6 here: {error}") from error


class SharedMemoryContractTests(RealTime, VerbsDeviceContract, ReactorBuilder):
    """Over shared memory, though within one process."""

    route = "shared-memory"


for _cases in (RoCEContractTests.makeTestCaseClasses(), SharedMemoryContractTests.makeTestCaseClasses()):
    globals().update(
        {name: case for name, case in _cases.items() if any(reactor in name for reactor in REACTORS)}
    )
globals().update(
    {name: case for name, case in IPv6ContractTests.makeTestCaseClasses().items() if "_Select" in name}
)
