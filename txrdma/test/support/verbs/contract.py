"""Ports of software devices that commands take down and up, for the contract of verbs devices."""

from __future__ import annotations

from typing import cast, TYPE_CHECKING

from twisted.trial.unittest import SynchronousTestCase

from txrdma.interfaces import IVerbsDevice
from txrdma.soft.device import SoftDevice

if TYPE_CHECKING:
    Case = SynchronousTestCase
else:
    Case = object


class Commanded(Case):
    """Ports of software devices, controlled by commands."""

    devices: tuple[IVerbsDevice, IVerbsDevice]

    def setPort(self, which: int, isUp: bool) -> None:
        """Set a port's state by a command."""
        self.commandPort(which, 1, isUp)

    def commandPort(self, which: int, number: int, isUp: bool) -> None:
        cast(SoftDevice, self.devices[which]).setPortEnabled(number, isUp)
