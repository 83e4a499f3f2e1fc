"""Ports of software devices that commands take down and up, for the contract of verbs devices."""

from __future__ import annotations

from typing import cast

from txrdma.interfaces import IVerbsDevice
from txrdma.soft.device import SoftDevice
from txrdma.testing.reactors import Base


class Commanded(Base):
    """Ports of software devices, controlled by commands."""

    devices: tuple[IVerbsDevice, IVerbsDevice]

    def setPort(self, which: int, isUp: bool) -> None:
        """Set a port's state by a command."""
        self.commandPort(which, 1, isUp)

    def commandPort(self, which: int, number: int, isUp: bool) -> None:
        cast(SoftDevice, self.devices[which]).setPortEnabled(number, isUp)
