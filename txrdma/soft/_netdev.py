"""
What a software device takes from the network interface that its IP address belongs to, and what it makes up.
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import socket
import struct
import sys
from typing import Final, NamedTuple

from txrdma.iba.roce import ROCE_PORT
from txrdma.iba.types import MACAddress, MTU
from txrdma.iba.verbs import AddressVector

_OUR_MAC: Final = 0x02
_SIOCGIFADDR: Final = 0x8915
_SIOCGIFMTU: Final = 0x8921
_SIOCGIFFLAGS: Final = 0x8913
_IFF_UP: Final = 1
_GIGA: Final = 1_000_000_000

# BTH, RETH, immediate data and ICRC, on UDP.
_OVERHEAD: Final = 12 + 16 + 4 + 4 + 8


_SMALLEST: Final = 576


class NetworkInterface(NamedTuple):
    """An interface of this host. C{mtu} is that of IP, C{rate} in bits per second, 0 where nobody knows."""

    name: str
    mtu: int
    isUp: bool
    rate: int = 0


def interfaceOf(address: str) -> NetworkInterface | None:
    """The interface with this IP address; None when no one has it, or when the system can't tell."""
    if sys.platform != "linux":
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            wanted = ipaddress.ip_address(address)
            for _index, name in socket.if_nameindex():
                if _has(asking, name, wanted):
                    (mtu,) = struct.unpack_from("=i", _ask(asking, _SIOCGIFMTU, name), 16)
                    (flags,) = struct.unpack_from("=H", _ask(asking, _SIOCGIFFLAGS, name), 16)
                    return NetworkInterface(name, mtu, bool(flags & _IFF_UP), _rate(name))
    except OSError:
        pass  # nothing to ask, or the interface went away meanwhile
    return None


def pathMTU(interfaceMTU: int, isIPv6: bool) -> MTU:
    """
    The largest payload whose packets pass through unfragmented.

    @raise ValueError: there is none.
    """
    return MTU.fitting(interfaceMTU - _OVERHEAD - (40 if isIPv6 else 20))


def activeMTU(address: str, most: MTU | None) -> MTU:
    """What a device at this address can send at present, if it is not to send even less."""
    interface = interfaceOf(address)
    lengthBytes = 1500 if interface is None else max(interface.mtu, _SMALLEST)
    return min(pathMTU(lengthBytes, ":" in address), MTU.MTU_4096 if most is None else most)


def laneCount(rate: int) -> int:
    """How many lanes a link of that rate is taken to have, as Linux counts them for RoCE; 0 for no rate."""
    if rate <= 0:
        return 0
    return 1 if rate <= 10 * _GIGA or 20 * _GIGA < rate <= 25 * _GIGA else 4


def _rate(name: str) -> int:
    try:
        with open(f"/sys/class/net/{name}/speed") as speed:
            return max(0, int(speed.read())) * 1_000_000
    except (OSError, ValueError):
        return 0  # a link without one, such as the loopback's


def softMAC(address: str, port: int) -> MACAddress:
    """
    The MAC address of a software device: locally administered, and it names the UDP port.

    So a peer that learns it knows how to reach us where several processes of a host share one IP address.
    """
    packed = ipaddress.ip_address(address).packed
    middle = packed[1:] if len(packed) == 4 else hashlib.sha256(packed).digest()[:3]
    return MACAddress(bytes((_OUR_MAC,)) + middle + port.to_bytes(2, "big"))


def udpPort(address: AddressVector) -> int:
    """The UDP port at the end of this way: that in the MAC address if it is of our making, else RoCE's."""
    destination = address.dgid.ip
    if address.dmac is not None and destination is not None:
        port = int.from_bytes(address.dmac.raw[4:], "big")
        if port and address.dmac == softMAC(destination, port):
            return port
    return ROCE_PORT


def _has(asking: socket.socket, name: str, wanted: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if wanted.version == 6:
        with open("/proc/net/if_inet6") as table:
            rows = [line.split() for line in table]
        return any(row[5] == name and bytes.fromhex(row[0]) == wanted.packed for row in rows)
    if wanted.is_loopback:
        return name == "lo"  # the whole of 127.0.0.0/8 is ours
    try:
        return _ask(asking, _SIOCGIFADDR, name)[20:24] == wanted.packed
    except OSError:
        return False  # it has no IPv4 address


def _ask(asking: socket.socket, what: int, name: str) -> bytes:
    """One of the SIOCGIF... questions (netdevice(7)), about the interface's first address."""
    return fcntl.ioctl(asking, what, struct.pack("=16s24x", name.encode()))
