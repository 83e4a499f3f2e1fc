"""The ends of a connection: the devices that carry its messages, and the TCP endpoint of a listener."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Union

from twisted.internet.abstract import isIPv6Address
from twisted.internet.endpoints import HostnameEndpoint, TCP6ClientEndpoint
from twisted.internet.interfaces import IStreamClientEndpoint

from txrdma.btl.core.matching import MOST_INTERFACES
from txrdma.error import InvalidRequest
from txrdma.kit.strings import checkAddress
from txrdma.ports.softdevices import softDeviceAt, unmapped
from txrdma.verbs.devices import checkSpec, DeviceSpec

DeviceSpecs = Union[DeviceSpec, Sequence[DeviceSpec], None]
"""
A device, or the string that names one; several, which all carry messages, where one that occurs again stands
for its next port; or None, which is the software device at the address of the TCP connection.
"""


def tcpEndpointTo(
    reactor: Any, host: str, port: int, timeout: float, source: str = ""
) -> IStreamClientEndpoint:
    """
    Return the TCP endpoint for the exchange with a listener.

    @param host: a name or an IP address. C{HostnameEndpoint} would lose the zone of a link-local address.
    @param source: the local address; empty if the system chooses it.
    """
    checkAddress(host, port)
    kind = TCP6ClientEndpoint if isIPv6Address(host) else HostnameEndpoint
    return kind(reactor, host, port, timeout, (source, 0) if source else None)


def _listOf(specs: DeviceSpecs) -> list[Any]:
    return list(specs) if isinstance(specs, (list, tuple)) else [specs]


def checkSpecs(specs: DeviceSpecs) -> None:
    """Raise C{TypeError} for what is neither a device nor a string."""
    for each in _listOf(specs):
        if each is not None:
            checkSpec(each)


def severalDevices(specs: DeviceSpecs) -> list[Any]:
    """
    Return devices as a list.

    @raise InvalidRequest: there are none, or too many.
    """
    several = _listOf(specs)
    if not 1 <= len(several) <= MOST_INTERFACES:
        raise InvalidRequest(f"a connection has from 1 to {MOST_INTERFACES} interfaces")
    return several


def deviceAt(host: str) -> str:
    """
    Return the device string of the software device at an IP address.

    On loopback it does not use UDP port 4791, which other programs may need. The introduction contains the
    port.
    """
    isLoopback = ip_address(unmapped(host).partition("%")[0]).is_loopback
    return softDeviceAt(host) + (":port=0" if isLoopback else "")
