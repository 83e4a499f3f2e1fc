"""
How software devices share UDP port 4791 of an address, for tests.
"""

from __future__ import annotations

from txrdma.soft.device import SoftDevice
from txrdma.soft.host.member import PortMember
from txrdma.soft.rc.wellknown import SharingPort, WellKnownPort


def sharingPortOf(device: SoftDevice, number: int = 1) -> SharingPort:
    """Return the RoCE port of one of the device's addresses."""
    (port,) = (each for each in device.ports[number - 1].routes if isinstance(each, SharingPort))
    return port


def wellKnownOf(device: SoftDevice, number: int = 1) -> WellKnownPort:
    """Return port 4791 of the device, which is opened if necessary."""
    return sharingPortOf(device, number)._join()


def memberOf(device: SoftDevice) -> PortMember:
    """Return the device's membership in the shared port 4791."""
    return wellKnownOf(device).member
