"""
Strings of the software device at an IP address of this host: a given one, or the source address to a peer.

A software device has its queue pair 1 at UDP port 4791, and only one process can have that port of an
address. So a client of an address of this host gets a loopback address of its own.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
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


@lru_cache(1)
def ownLoopback(process: int) -> str:
    """The loopback address of a process, at which others ask it for nothing."""
    return someLoopback()


def softDeviceAt(address: str) -> str:
    """The string of the software device at an IP address; a link-local one has a zone."""
    return "soft:" + address.replace(":", "\\:")


def softDeviceTo(host: str) -> str:
    """
    The string of the software device at the address from which this host sends to another one.

    Where C{host} is this host itself, by IPv4, it is at a loopback address that only this process has.

    @raise InvalidRequest: this host has no route to it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            found = socket.getaddrinfo(host, ROCE_PORT, family, flags=socket.AI_NUMERICHOST)
            probe.connect(found[0][-1])  # nothing is sent
        except OSError as error:
            raise InvalidRequest(f"there is no route to {host}: {error}") from error
        source, _, *scoped = probe.getsockname()
    if any(scoped):  # flow and scope of a link-local address
        source += f"%{socket.if_indextoname(scoped[1])}"
    if family == socket.AF_INET and (source == host or source.startswith("127.")):
        source = ownLoopback(os.getpid())
    return softDeviceAt(source)
