"""
The software device keeps the promises of verbs devices, on every route.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast, TYPE_CHECKING

from twisted.internet.task import Clock
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.headers import Opcode
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.verbs import Operation, QPAttributes, QPState, Status
from txrdma.interfaces import IVerbsDevice
from txrdma.sim.network import Faults, SimulatedNetwork
from txrdma.soft.device import openSoftDevice, SoftDevice
from txrdma.testing.contracts import MigrationContract, PortContract, VerbsDeviceContract
from txrdma.testing.verbs.atomics import wordAt
from txrdma.testing.verbs.ends import PATIENT, WITH_ATOMICS

if TYPE_CHECKING:
    _Case = SynchronousTestCase
else:
    _Case = object

REACTORS = ("_Select", "_EPoll", "_Asyncio")
"""Those that differ; the others are like one of them."""


class Commanded(_Case):
    """Ports of software devices, which go down and up by command."""

    devices: tuple[IVerbsDevice, IVerbsDevice]

    def setPort(self, which: int, isUp: bool) -> None:
        """By command."""
        self.commandPort(which, 1, isUp)

    def commandPort(self, which: int, number: int, isUp: bool) -> None:
        """Any port."""
        cast(SoftDevice, self.devices[which]).setPortEnabled(number, isUp)


class SimulatedTime(_Case):
    """Devices on a simulated network, in simulated time."""

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


class SimulatedContractTests(
    SimulatedTime, Commanded, PortContract, VerbsDeviceContract, SynchronousTestCase
):
    """Over a simulated network, in simulated time."""

    def outstanding(self, most: int) -> int:
        """How many requests of reads and atomics were at most under way, where that many may be."""
        alice, bob = self.pair(access=WITH_ATOMICS, say=replace(PATIENT, maxRDAtomic=most, maxDestRDAtomic=8))
        region = self.words(bob)
        under = [0]

        def count(packet: RoCEPacket) -> bool:
            opcode = packet.bth.opcode
            if opcode in (Opcode.RC_RDMA_READ_REQUEST, Opcode.RC_FETCH_ADD):
                under.append(under[-1] + 1)
            elif opcode in (Opcode.RC_RDMA_READ_RESPONSE_ONLY, Opcode.RC_ATOMIC_ACKNOWLEDGE):
                under.append(under[-1] - 1)
            return False

        self.network.drop(count)
        for index in range(10):
            alice.queuePair.postSend([self.atomic(Operation.FETCH_AND_ADD, alice, region, 1)])
            alice.rdma(Operation.RDMA_READ, region, alice.segment(100 + index * 8, 8))
        self.runUntilCompleted(alice, sends=20)
        self.assertEqual((len(under), under[-1]), (41, 0))
        return max(under)

    def test_readsAreOutstanding(self) -> None:
        """As many reads and atomics are under way at once as both ends agreed on, and not one more."""
        self.assertEqual([self.outstanding(most) for most in (1, 3, 8)], [1, 3, 8])

    def test_atomicsHappenOnce(self) -> None:
        """Whatever is lost, doubled or late, each atomic happens once, and its result is its own."""
        self.network.faults = Faults(loss=0.1, duplication=0.1, late=0.05, jitterSeconds=1e-4)
        alice, bob, region = self.atomicPair()
        for index in range(60):
            place = alice.segment(index * 8, 8)
            alice.queuePair.postSend(
                [self.atomic(Operation.FETCH_AND_ADD, alice, region, 1, place=place, identifier=index)]
            )
        self.runUntilCompleted(alice, sends=60)
        self.assertGreater(self.network.dropped, 5)
        self.assertEqual([wordAt(alice.memory, index * 8) for index in range(60)], list(range(60)))
        self.assertEqual(wordAt(region), 60)

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


class SimulatedMigrationTests(SimulatedTime, Commanded, MigrationContract, SynchronousTestCase):
    """Alternate paths over a simulated network."""

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Two hosts, of two addresses each."""
        self.clock = Clock()
        self.network = SimulatedNetwork(self.clock)
        devices = [self.network.device(f"192.0.2.{host}", f"198.51.100.{host}") for host in (1, 2)]
        for device in devices:
            self.addCleanup(device.close)
        return devices[0], devices[1]

    def breakPath(self, number: int) -> None:
        """By a partition."""
        net = ("192.0.2", "198.51.100")[number - 1]
        self.network.partition(f"{net}.1", f"{net}.2")

    def mendPath(self, number: int) -> None:
        """Both."""
        self.network.heal()


class SimulatedPortsMigrationTests(SimulatedMigrationTests):
    """The same where a path breaks because a port goes down."""

    def breakPath(self, number: int) -> None:
        """By command."""
        self.commandPort(1, number, False)

    def mendPath(self, number: int) -> None:
        """By command."""
        self.commandPort(1, number, True)


class RealTime(Commanded):
    """Devices on a real reactor of the test's own, which runs as long as the test says."""

    route = "auto"
    addresses: tuple[str, ...] = ("127.0.0.1",)
    buildReactor: Callable[[], Any]

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Two, at free ports of the loopback interface."""
        self.reactor = self.buildReactor()
        one, other = self.open(), self.open()
        return one, other

    def open(self) -> SoftDevice:
        """Another one."""
        device = openSoftDevice(self.reactor, self.addresses, port=0, route=self.route)
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


class RoCEContractTests(RealTime, PortContract, VerbsDeviceContract, ReactorBuilder):
    """Over UDP on the loopback interface."""

    route = "rocev2"


class RoCEMigrationTests(RealTime, MigrationContract, ReactorBuilder):
    """Alternate paths over UDP: two addresses of the loopback interface."""

    route = "rocev2"
    addresses = ("127.0.0.1", "127.0.0.2")

    def breakPath(self, number: int) -> None:
        """A port goes down, by command."""
        self.commandPort(1, number, False)

    def mendPath(self, number: int) -> None:
        """And up."""
        self.commandPort(1, number, True)


class IPv6ContractTests(RealTime, PortContract, VerbsDeviceContract, ReactorBuilder):
    """Over UDP on IPv6."""

    route = "rocev2"
    addresses = ("::1",)

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Two, where the host has IPv6."""
        try:
            return super().makeDevices()
        except DeviceUnavailable as error:
            raise SkipTest(f"no IPv6 here: {error}") from error


class SharedMemoryContractTests(RealTime, PortContract, VerbsDeviceContract, ReactorBuilder):
    """Over shared memory, though within one process."""

    route = "shared-memory"


for _suite in (RoCEContractTests, SharedMemoryContractTests, RoCEMigrationTests):
    _cases = _suite.makeTestCaseClasses()
    globals().update(
        {name: case for name, case in _cases.items() if any(reactor in name for reactor in REACTORS)}
    )
globals().update(
    {name: case for name, case in IPv6ContractTests.makeTestCaseClasses().items() if "_Select" in name}
)
