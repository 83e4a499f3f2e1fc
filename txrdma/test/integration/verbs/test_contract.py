"""The contract of verbs devices with the software device, on every route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.trial.unittest import SkipTest

from txrdma.error import DeviceUnavailable
from txrdma.iba.verbs import Status
from txrdma.interfaces import IVerbsDevice
from txrdma.soft.device import openSoftDevice, SoftDevice
from txrdma.test.support.verbs.contract import Commanded
from txrdma.testing.contracts import MigrationContract, PortContract, PortEventContract, VerbsDeviceContract
from txrdma.testing.reactors import RealTime


class LoopbackDevices(RealTime, Commanded):
    """Devices on a new real reactor, which runs on demand."""

    route = "auto"
    addresses: tuple[str, ...] = ("127.0.0.1",)
    buildReactor: Callable[[], Any]

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Return two devices at free ports of the loopback interface."""
        self.reactor = self.buildReactor()
        one, other = self.open(), self.open()
        return one, other

    def open(self) -> SoftDevice:
        device = openSoftDevice(self.reactor, self.addresses, port=0, route=self.route)
        self.addCleanup(device.close)
        return device


class RoCEContractTests(LoopbackDevices, PortContract, VerbsDeviceContract, ReactorBuilder):
    """Over UDP on the loopback interface."""

    route = "rocev2"


class RoCEMigrationTests(LoopbackDevices, MigrationContract, ReactorBuilder):
    """Alternate paths over UDP: two addresses of the loopback interface."""

    route = "rocev2"
    addresses = ("127.0.0.1", "127.0.0.2")

    def breakPath(self, number: int) -> None:
        """Take a port down."""
        self.commandPort(1, number, False)


class IPv6ContractTests(LoopbackDevices, PortContract, VerbsDeviceContract, ReactorBuilder):
    route = "rocev2"
    addresses = ("::1",)

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Return two devices, if the host has IPv6."""
        try:
            return super().makeDevices()
        except DeviceUnavailable as error:
            raise SkipTest(f"no IPv6 here: {error}") from error


class SharedMemoryContractTests(LoopbackDevices, PortEventContract, VerbsDeviceContract, ReactorBuilder):
    """Over shared memory, within one process."""

    route = "shared-memory"

    def test_requestsAreExecutedWhilePortIsDown(self) -> None:
        alice, bob = self.pair()
        bob.receive(bob.segment())
        self.down(0)
        self.down(1)
        alice.send(inline=[b"hello"])
        self.runUntilCompleted(bob, receives=1)
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.statuses()[0], [Status.SUCCESS])


# on the default reactor; txrdma.test.soak.verbs.test_contract has the others
for _suite in (RoCEContractTests, SharedMemoryContractTests, RoCEMigrationTests, IPv6ContractTests):
    globals().update({name: case for name, case in _suite.makeTestCaseClasses().items() if "_EPoll" in name})
