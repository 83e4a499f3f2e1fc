"""Strings of the software device at a given IP address of this host, or at the source address to a peer."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from errno import EADDRNOTAVAIL, EINVAL
from functools import lru_cache
from ipaddress import ip_address
from secrets import randbelow
from typing import Final

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.iba.types import ROCE_PORT
from txrdma.ports.network import HostNetwork

_LOOPBACK: Final = 127 << 24
_SPARED: Final = 1 << 16
"""Number of addresses at either end of 127.0.0.0/8 that are not used, since users choose these."""


def someLoopback() -> str:
    """Return a random IPv4 loopback address, which is probably unused."""
    return str(ip_address(_LOOPBACK + _SPARED + randbelow((1 << 24) - 2 * _SPARED)))


@lru_cache(1)
def ownLoopback(process: int) -> str:
    """Return the loopback address of a process, which other processes are unlikely to use."""
    return someLoopback()


def _canShare(address: str) -> bool:
    """Return whether this user can bind port 4791 of an address, which another user may have."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((address, ROCE_PORT))
        except OSError:
            return False
    return True


def unmapped(address: str) -> str:
    """Return an IP address; for a mapped one, such as an IPv4 client's at C{::}, the IPv4 address."""
    return address.rpartition(":")[2] if address.startswith("::ffff:") and "." in address else address


def softDeviceAt(address: str) -> str:
    """Return the string of the software device at an IP address; a link-local one has a zone."""
    address = unmapped(address)
    return "soft:" + address.replace(":", "\\:")


def softDeviceListening(interface: str) -> str:
    """
    Return the string of the software device of a server.

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


def addressAdvice(address: str, error: OSError) -> str:
    """Return what is wrong with an IP address that a system call has refused; C{""} if that is unclear."""
    host, _, zone = address.partition("%")
    if error.errno == EADDRNOTAVAIL:
        return "; this host does not have that address, see `ip address`"
    if isinstance(error, socket.gaierror) and zone:
        return f"; this host does not have the interface {zone}, see `ip link`"
    if error.errno == EINVAL and host.lower().startswith("fe80:"):
        return f"; a link-local address needs its interface, such as {host}%eth0"
    return ""


def softDeviceTo(host: str) -> str:
    """
    Return the string of the software device at the address from which this host sends to another one.

    For an address of this host it is at the same address, or, if another user has port 4791 there, at a
    loopback address of this process (IPv4 only).

    @raise InvalidRequest: there is no route to the host.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # As bytes: for a string, a codec would be imported, perhaps after a change of the root directory.
            found = socket.getaddrinfo(host.encode(), ROCE_PORT, family, flags=socket.AI_NUMERICHOST)
            probe.connect(found[0][-1])  # nothing is sent
            source, _, *scoped = probe.getsockname()
    except OSError as error:
        advice = addressAdvice(host, error)
        raise InvalidRequest(f"there is no route to {host}: {error}{advice}") from error
    if any(scoped):  # flow and scope of a link-local address
        source += f"%{socket.if_indextoname(scoped[1])}"
    if family == socket.AF_INET and (source == host or source.startswith("127.")):
        source = host if _canShare(host) else ownLoopback(os.getpid())
    return softDeviceAt(source)
