"""
Strings of the software device at an IP address of this host: a given one, or the source address to a peer.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from secrets import randbelow
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.iba.types import ROCE_PORT

_LOOPBACK: Final = 127 << 24
_SPARED: Final = 1 << 16
"""Addresses at either end of 127.0.0.0/8 that people choose by hand."""


def someLoopback() -> str:
    """Return a random IPv4 loopback address, which is probably unused."""
    return str(ip_address(_LOOPBACK + _SPARED + randbelow((1 << 24) - 2 * _SPARED)))


def softDeviceAt(address: str) -> str:
    """The string of the software device at an IP address; the zone of an IPv6 address is left out."""
    return "soft:" + address.partition("%")[0].replace(":", "\\:")


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
