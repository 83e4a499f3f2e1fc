"""
Strings of the software device at an IP address of this host: a given one, or the source address to a peer.
"""

from __future__ import annotations

import socket
from contextlib import closing
from ipaddress import ip_address
from secrets import randbelow
from typing import Final

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.iba.types import ROCE_PORT
from txrdma.ports.network import HostNetwork

_LOOPBACK: Final = 127 << 24
_SPARED: Final = 1 << 16
"""Addresses at either end of 127.0.0.0/8 that people choose by hand."""


def someLoopback() -> str:
    """Return a random IPv4 loopback address, which is probably unused."""
    return str(ip_address(_LOOPBACK + _SPARED + randbelow((1 << 24) - 2 * _SPARED)))


def softDeviceAt(address: str) -> str:
    """The string of the software device at an IP address; the zone of an IPv6 address is left out."""
    return "soft:" + address.partition("%")[0].replace(":", "\\:")


def softDeviceListening(interface: str) -> str:
    """
    The string of the software device of a server.

    @param interface: an IP address of this host; C{0.0.0.0} is all of its IPv4 addresses, and C{::} all
        addresses, except for link-local ones.
    """
    address = ip_address(interface.partition("%")[0])
    if not address.is_unspecified:
        return softDeviceAt(interface)
    try:
        with closing(HostNetwork.open()) as network:
            found = [
                each.ip
                for interfaceFound in network.interfaces()
                for each in interfaceFound.addresses
                if interfaceFound.isUp and each.isUsable and not ip_address(each.ip).is_link_local
            ]
    except DeviceUnavailable:
        found = []
    wanted = [each for each in found if address.version == 6 or ":" not in each]
    return softDeviceAt(",".join(dict.fromkeys(wanted)) or "127.0.0.1")


def softDeviceTo(host: str) -> str:
    """
    The string of the software device at the address from which this host sends to another one.

    @raise InvalidRequest: this host has no route to it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, ROCE_PORT))  # nothing is sent
        except OSError as error:
            raise InvalidRequest(f"there is no route to {host}: {error}") from error
        source: str = probe.getsockname()[0]
    return softDeviceAt(source)
