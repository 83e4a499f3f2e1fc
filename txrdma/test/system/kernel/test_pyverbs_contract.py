"""
The contract of verbs devices with the kernel's devices, through pyverbs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.iba.verbs import MigrationState, QPAttributes, QPState
from txrdma.interfaces import IVerbsDevice
from txrdma.test.system.kernel import Box, OUTSIDE, Witness
from txrdma.testing.contracts import VerbsDeviceContract
from txrdma.testing.reactors import RealTime
from txrdma.testing.verbs.ends import PATIENT, TwoEnds
from txrdma.testing.verbs.quirks import RXE
from txrdma.verbs.devices import openDevice

BOXES = (Box(mtu=4200, timeout=500),)


class InTheKernel(RealTime):
    """Two kernel devices on a new real reactor."""

    buildReactor: Callable[[], Any]
    slowness = 10.0  # the guest is slower than native code

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Return the devices at the two ends of a wire."""
        self.reactor = self.buildReactor()
        return self.open("pyverbs:rxe0"), self.open("pyverbs:rxe1")

    def open(self, name: str) -> IVerbsDevice:
        """Open a device, until the end of the test."""
        device = openDevice(self.reactor, name)
        self.addCleanup(device.close)
        return device


class PyverbsContractTests(InTheKernel, VerbsDeviceContract, ReactorBuilder):
    """rxe at both ends."""

    skip = OUTSIDE
    witness = Witness("pyverbs", "rxe", "the whole contract of verbs devices")
    quirks = (RXE, RXE)


class AlternatePathTests(InTheKernel, TwoEnds, SynchronousTestCase):
    skip = OUTSIDE
    witness = Witness("pyverbs", "rxe", "alternate paths are refused on RoCE")
    quirks = (RXE, RXE)
    buildReactor = EPollReactor

    def test_refused(self) -> None:
        """Linux supports them on InfiniBand only: they are refused, and the connection continues."""
        alice, bob = self.end(0), self.end(1)
        for end in (alice, bob):
            end.toInit()
        alice.toRTR(bob)
        bob.toRTR(alice)
        way = alice.destinationOf(bob)
        attributes = QPAttributes(
            state=QPState.RTS, sqPSN=PATIENT.sqPSN, timeout=14, retryCount=7, rnrRetry=7, maxRDAtomic=1
        )
        alternate = replace(
            attributes, alternateAddress=way, alternateTimeout=14, migrationState=MigrationState.REARM
        )
        self.assertRaises(InvalidRequest, alice.queuePair.modify, alternate)
        self.assertEqual(alice.queuePair.state, QPState.RTR)
        alice.queuePair.modify(attributes)
        bob.receive(bob.segment())
        alice.send(alice.fill(b"by the first way"))
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual(bytes(bob.memory.view[:16]), b"by the first way")


globals().update(
    {
        name: case
        for name, case in PyverbsContractTests.makeTestCaseClasses().items()
        if "_EPoll" in name  # one is enough in a slow guest: readers are also tested with select
    }
)
