"""The contract of verbs devices with the software device, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.headers import Opcode
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.verbs import Operation, QPAttributes, QPState, Status
from txrdma.sim.network import Faults, SimulatedNetwork
from txrdma.soft.device import SoftDevice
from txrdma.test.support.verbs.contract import Commanded
from txrdma.testing.contracts import MigrationContract, PortContract, VerbsDeviceContract
from txrdma.testing.reactors import Base
from txrdma.testing.verbs.atomics import wordAt
from txrdma.testing.verbs.ends import PATIENT, WITH_ATOMICS
from txrdma.testing.verbs.refusals import TransitionContract
from txrdma.testing.verbs.transfers import DatagramContract, RDMAContract, SendContract


class SimulatedTime(Base):
    """
    Devices on a simulated network, in simulated time.

    @cvar nets: the networks of which each host has an address.
    """

    nets: tuple[str, ...] = ("192.0.2",)

    def makeDevices(self) -> tuple[SoftDevice, SoftDevice]:
        """Return the devices of two hosts."""
        self.clock = Clock()
        self.network = SimulatedNetwork(self.clock)
        one, other = (self.network.device(*(f"{net}.{host}" for net in self.nets)) for host in (1, 2))
        for device in (one, other):
            self.addCleanup(device.close)
        return one, other

    def runUntil(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Advance to the next event."""
        deadline = self.clock.seconds() + seconds
        while not condition():
            now = self.clock.seconds()
            if now > deadline:
                self.fail(f"{condition} does not hold after {seconds} seconds")
            following = min((call.getTime() for call in self.clock.getDelayedCalls()), default=now + 0.01)
            self.clock.advance(max(0.0, following - now))

    def runFor(self, seconds: float) -> None:
        """Advance in small steps."""
        for _ in range(100):
            self.clock.advance(seconds / 100)


class SimulatedContractTests(
    SimulatedTime, Commanded, PortContract, VerbsDeviceContract, SynchronousTestCase
):
    """The contract over a simulated network, in simulated time."""

    def outstanding(self, most: int) -> int:
        """Return the largest number of outstanding reads and atomics with this limit."""
        alice, bob = self.pair(
            access=WITH_ATOMICS, settings=replace(PATIENT, maxRDAtomic=most, maxDestRDAtomic=8)
        )
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

    def test_outstandingReadsReachAndRespectLimit(self) -> None:
        self.assertEqual([self.outstanding(most) for most in (1, 3, 8)], [1, 3, 8])

    def test_atomicsAreExecutedOnceDespiteFaults(self) -> None:
        self.network.faults = Faults(loss=0.1, duplication=0.1, late=0.05, jitterSeconds=1e-4)
        alice, bob, region = self.atomicPair()
        for index in range(60):
            place = alice.segment(index * 8, 8)
            alice.queuePair.postSend(
                [self.atomic(Operation.FETCH_AND_ADD, alice, region, 1, result=place, identifier=index)]
            )
        self.runUntilCompleted(alice, sends=60)
        self.assertGreater(self.network.dropped, 5)
        self.assertEqual([wordAt(alice.memory, index * 8) for index in range(60)], list(range(60)))
        self.assertEqual(wordAt(region), 60)

    def test_partlyFilledReceiveIsFlushedFirst(self) -> None:
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

    nets = ("192.0.2", "198.51.100")

    def breakPath(self, number: int) -> None:
        net = self.nets[number - 1]
        self.network.partition(f"{net}.1", f"{net}.2")


class SimulatedPortsMigrationTests(SimulatedMigrationTests):
    """The tests of L{SimulatedMigrationTests} with a port that goes down."""

    def breakPath(self, number: int) -> None:
        """Take the port down."""
        self.commandPort(1, number, False)


class SecondPortTests(
    SimulatedTime, SendContract, RDMAContract, DatagramContract, TransitionContract, SynchronousTestCase
):
    """The contract at the second ports of two devices, of which the first are down."""

    nets = ("192.0.2", "198.51.100")
    ports = (2, 2)

    def makeDevices(self) -> tuple[SoftDevice, SoftDevice]:
        """Return the devices, with their first ports down."""
        devices = super().makeDevices()
        for device in devices:
            device.setPortEnabled(1, False)
        return devices
