"""
The contract of verbs between the software device and the kernel's rxe.

The contract that each fulfils with itself, with the software device at one end of a wire and rxe at the
other, in both orders.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.interfaces import IVerbsDevice
from txrdma.test.system.kernel import Box, Witness
from txrdma.test.system.kernel.world import InTheBox, MTU_1024, MTU_4096
from txrdma.testing.contracts import VerbsDeviceContract
from txrdma.testing.verbs.atomics import AtomicContract
from txrdma.testing.verbs.quirks import OURS, RXE
from txrdma.testing.verbs.transfers import DatagramContract, RDMAContract, SendContract

BOXES = (Box(rxe=False, timeout=420),)


class SoftFirst(InTheBox):
    """The software device is the first end."""

    quirks = (OURS, RXE)

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Return the software device and rxe."""
        self.reactor = self.makeReactor()
        soft, rxe = self.world.openSoft(self.reactor), self.world.openRXE(self.reactor)
        for device in (soft, rxe):
            self.addCleanup(device.close)
        return soft, rxe


class RXEFirst(SoftFirst):
    quirks = (RXE, OURS)

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Return rxe and the software device."""
        soft, rxe = super().makeDevices()
        return rxe, soft


class TransferContract(SendContract, RDMAContract, AtomicContract, DatagramContract):
    """The part of the contract that depends on the packet size."""


class SoftToRXETests(SoftFirst, VerbsDeviceContract, SynchronousTestCase):
    """From the software device to rxe, with packets of up to 4 KiB."""

    mtu = MTU_4096
    witness = Witness(
        "software device", "rxe", "the contract of verbs: the software device requests, 4 KiB MTU"
    )


class RXEToSoftTests(RXEFirst, VerbsDeviceContract, SynchronousTestCase):
    """From rxe to the software device, with packets of up to 4 KiB."""

    mtu = MTU_4096
    witness = Witness("software device", "rxe", "the contract of verbs: the kernel requests, 4 KiB MTU")


class SoftToRXESmallTests(SoftFirst, TransferContract, SynchronousTestCase):
    """From the software device to rxe, with packets of up to 1 KiB."""

    mtu = MTU_1024
    witness = Witness(
        "software device", "rxe", "SEND, WRITE, READ, atomics, UD: the software device requests, 1 KiB MTU"
    )


class RXEToSoftSmallTests(RXEFirst, TransferContract, SynchronousTestCase):
    """From rxe to the software device, with packets of up to 1 KiB."""

    mtu = MTU_1024
    witness = Witness(
        "software device", "rxe", "SEND, WRITE, READ, atomics, UD: the kernel requests, 1 KiB MTU"
    )
