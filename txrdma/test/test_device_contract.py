"""
The software device keeps the promises of verbs devices, on every route.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TYPE_CHECKING

from twisted.internet.test.reactormixins import ReactorBuilder

from txrdma.interfaces import IVerbsDevice
from txrdma.soft.device import openSoftDevice, SoftDevice
from txrdma.testing.contracts import VerbsDeviceContract

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase as _Case
else:
    _Case = object


class RealTime(_Case):
    """Devices on a real reactor of the test's own, which runs as long as the test says."""

    route = "auto"
    buildReactor: Callable[[], Any]

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Two, at free ports of the loopback interface."""
        self.reactor = self.buildReactor()
        one, other = self.open(), self.open()
        return one, other

    def open(self) -> SoftDevice:
        """Another one."""
        device = openSoftDevice(self.reactor, port=0, route=self.route)
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


class SharedMemoryContractTests(RealTime, VerbsDeviceContract, ReactorBuilder):
    """Over shared memory, though within one process."""

    route = "shared-memory"


globals().update(RoCEContractTests.makeTestCaseClasses())
globals().update(SharedMemoryContractTests.makeTestCaseClasses())
