"""
The headers under RoCE v2: Ethernet, IPv4, IPv6 and UDP, and their checksum.

Follows RFC 791, 8200, 768 and 1071, and annex A17 of the InfiniBand Architecture for the values that RoCE v2
uses.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from txrdma.iba.types import MACAddress
from txrdma.kit.wire import bits, data, Layout, wire

ETHERTYPE_IPV4 = 0x0800
ETHERTYPE_IPV6 = 0x86DD
PROTOCOL_UDP = 17
DONT_FRAGMENT = 2


@wire(14)
class Ethernet(Layout):
    """The header of an Ethernet frame."""

    destination: MACAddress = data(6)
    source: MACAddress = data(6)
    type: int = bits(16)


@wire(20)
class IPv4(Layout):
    """The header of an IPv4 packet without options (RFC 791, 3.1)."""

    version: int = bits(4)
    headerWords: int = bits(4)
    typeOfService: int = bits(8)
    length: int = bits(16)
    identification: int = bits(16)
    flags: int = bits(3)
    fragmentOffset: int = bits(13)
    timeToLive: int = bits(8)
    protocol: int = bits(8)
    checksum: int = bits(16)
    source: bytes = data(4)
    destination: bytes = data(4)


@wire(40)
class IPv6(Layout):
    """The header of an IPv6 packet (RFC 8200, 3)."""

    version: int = bits(4)
    trafficClass: int = bits(8)
    flowLabel: int = bits(20)
    payloadLength: int = bits(16)
    nextHeader: int = bits(8)
    hopLimit: int = bits(8)
    source: bytes = data(16)
    destination: bytes = data(16)


@wire(8)
class UDP(Layout):
    """The header of a UDP datagram (RFC 768)."""

    sourcePort: int = bits(16)
    destinationPort: int = bits(16)
    length: int = bits(16)
    checksum: int = bits(16)


@lru_cache(maxsize=256)
def packedIP(text: str) -> bytes:
    """
    The 4 or 16 bytes of an IP address; a zone is omitted, and a mapped IPv4 address counts as IPv4.

    @raise ValueError: it is not an IP address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed


def checksum(*parts: bytes) -> int:
    """The internet checksum (RFC 1071) of the parts, one after the other; all but the last of even length."""
    total = 0
    for part in parts:
        total += int.from_bytes(part if len(part) % 2 == 0 else part + b"\0", "big") % 0xFFFF
    # In ones' complement a multiple of 0xFFFF is all ones, unless everything was zero: no header is.
    return 0xFFFF - (total % 0xFFFF or 0xFFFF)


def ipHeaders(
    source: bytes, destination: bytes, ports: tuple[int, int], lengthBytes: int, identification: int = 0
) -> tuple[IPv4 | IPv6, UDP]:
    """IP and UDP headers of a RoCE v2 packet with a payload of this length; checksums are zero."""
    udp = UDP(sourcePort=ports[0], destinationPort=ports[1], length=8 + lengthBytes)
    if len(source) == 4:
        return IPv4(
            version=4,
            headerWords=5,
            length=28 + lengthBytes,
            identification=identification,
            flags=DONT_FRAGMENT,
            timeToLive=64,
            protocol=PROTOCOL_UDP,
            source=source,
            destination=destination,
        ), udp
    return IPv6(
        version=6,
        payloadLength=8 + lengthBytes,
        nextHeader=PROTOCOL_UDP,
        hopLimit=64,
        source=source,
        destination=destination,
    ), udp


def checksummed(ip: IPv4 | IPv6, udp: UDP, payload: bytes) -> bytes:
    """The whole packet with its checksums."""
    pseudo = ip.source + ip.destination + bytes((0, PROTOCOL_UDP)) + udp.length.to_bytes(2, "big")
    total = checksum(pseudo, udp.replace(checksum=0).encode(), payload)
    if isinstance(ip, IPv4):
        ip = ip.replace(checksum=checksum(ip.replace(checksum=0).encode()))
    return ip.encode() + udp.replace(checksum=total or 0xFFFF).encode() + payload
