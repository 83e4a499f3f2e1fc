"""The properties of a software device's port: from the network interface of its IP address, or generated."""

from __future__ import annotations

import hashlib
import ipaddress
from functools import lru_cache
from typing import Final

from txrdma.iba.types import MACAddress, MTU, ROCE_PORT
from txrdma.iba.verbs import AddressVector

_OUR_MAC: Final = 0x02
_GIGA: Final = 1_000_000_000

# BTH, RETH, immediate data and ICRC, on UDP.
_OVERHEAD: Final = 12 + 16 + 4 + 4 + 8

LONGEST_DATAGRAM: Final = 8936
"""
Bytes of the longest datagram between software devices: with jumbo frames of 9000 bytes, and on loopback.

Longer ones would save little processor time on loopback, but a socket's buffer of the usual size holds only
six of 64 KiB, and queues of received datagrams are limited by number.
"""

_SMALLEST: Final = 576
_USUAL: Final = 1500


def pathMTU(interfaceMTU: int, isIPv6: bool) -> MTU:
    """Return the largest payload whose packets need no fragmentation; raises ValueError."""
    return MTU.fitting(interfaceMTU - _OVERHEAD - (40 if isIPv6 else 20))


def activeMTU(interfaceMTU: int | None, isIPv6: bool, most: MTU | None) -> MTU:
    """Return the active MTU of a port on an interface with this MTU (None: unknown), at most C{most}."""
    if interfaceMTU is None:
        return pathMTU(_USUAL, isIPv6) if most is None else most
    fitting = pathMTU(max(interfaceMTU, _SMALLEST), isIPv6)
    return fitting if most is None else min(fitting, most)


def longestDatagram(interfaceMTU: int | None, isIPv6: bool, most: MTU | None) -> int:
    """
    Return the length in bytes of the longest datagram between two software devices.

    It fills a packet of the interfaces, which can be longer than the largest path MTU of IBA that fits.

    @param interfaceMTU: the MTU of the interfaces; None: unknown, so that the path MTU is the limit.
    @param most: the path MTU that a device string requests by C{mtu=}, which is then the limit; or None.
    """
    usual = activeMTU(interfaceMTU, isIPv6, most).bytes
    if interfaceMTU is None or most is not None:
        return usual
    room = interfaceMTU - _OVERHEAD - (40 if isIPv6 else 20)
    return max(usual, min(room & ~3, LONGEST_DATAGRAM))


def laneCount(rate: int) -> int:
    """Return the number of lanes of a link with this rate, as Linux reports it for RoCE; 0 without a rate."""
    if rate <= 0:
        return 0
    return 1 if rate <= 10 * _GIGA or 20 * _GIGA < rate <= 25 * _GIGA else 4


SHARES: Final = 254
"""The number of software devices that can share RoCE's port at an address."""

_BEFORE_SHARES: Final = 24791


def shareOf(port: int) -> int | None:
    """Return the share of a device with this UDP port, from 1 to L{SHARES}; None if it has none."""
    share = port - _BEFORE_SHARES
    return share if 0 < share <= SHARES else None


def isRoCE(port: int) -> bool:
    """Return whether UDP datagrams to this port are usually RoCE v2, of software devices or others."""
    return port == ROCE_PORT or shareOf(port) is not None


def portOfShare(share: int) -> int:
    """Return the UDP port of the device with a share."""
    return _BEFORE_SHARES + share


def portOfQueuePair(number: int) -> int | None:
    """Return the UDP port of the device whose share is in a queue pair number; None without a share."""
    share = number >> 16
    return portOfShare(share) if 0 < share <= SHARES else None


@lru_cache(maxsize=256)
def softMAC(address: str, port: int) -> MACAddress:
    """Return the locally administered MAC address of a software device, which contains the UDP port."""
    packed = ipaddress.ip_address(address).packed
    middle = packed[1:] if len(packed) == 4 else hashlib.sha256(packed).digest()[:3]
    return MACAddress(bytes((_OUR_MAC,)) + middle + port.to_bytes(2, "big"))


def udpPort(address: AddressVector) -> int:
    """Return the UDP port at this address: from the MAC address if a software device made it, else RoCE's."""
    destination = address.dgid.ip
    if address.dmac is not None and destination is not None:
        port = int.from_bytes(address.dmac.raw[4:], "big")
        if port and address.dmac == softMAC(destination, port):
            return port
    return ROCE_PORT
