"""
RDMA connections by IP address and port, on top of communication management.

Follows InfiniBand Architecture vol. 1, annex A11 (RDMA IP CM service). A listener's port is part of its
service ID; the addresses of both ends precede the user's private data in a REQ or a SIDR_REQ.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from operator import index

from txrdma.error import WireError
from txrdma.kit.strings import checkPort
from txrdma.kit.values import frozen
from txrdma.kit.wire import bits, Code, data, Layout, wire


class PortSpace(Code):
    """A space of ports, by librdmacm's numbers: the low byte is an IP protocol number."""

    IPOIB = 0x0002
    TCP = 0x0106
    UDP = 0x0111
    IB = 0x013F


def serviceIDOf(space: PortSpace, port: int) -> int:
    """
    Return the service ID on which an IP CM service listens.

    @raise ValueError: the port is not from 0 to 65535.
    """
    checkPort(port)
    return space << 16 | index(port)  # integers of NumPy have few bits


def portOf(serviceID: int) -> tuple[PortSpace, int] | None:
    """Return the port space and the port of a service ID; None if it is not of the IP CM service."""
    space = PortSpace(serviceID >> 16)
    return (space, serviceID & 0xFFFF) if space.known else None


@wire(36)
class IPCMHeader(Layout):
    """The beginning of the private data of a REQ or a SIDR_REQ (IBA A11.3). IPv4 fills the last 4 bytes."""

    majorVersion: int = bits(4)
    minorVersion: int = bits(4)
    ipVersion: int = bits(4)
    reserved: int = bits(4)
    sourcePort: int = bits(16)
    source: bytes = data(16)
    destination: bytes = data(16)


@frozen
class IPAddresses:
    """
    The addresses of both ends, as an active end states them in its REQ.

    @ivar sourcePort: the active end's port; the passive end's is part of the service ID.
    """

    source: str
    sourcePort: int
    destination: str

    @classmethod
    def fromPrivateData(cls, privateData: bytes) -> IPAddresses:
        """
        Decode the addresses before a user's private data.

        @raise WireError: the header is of another version, or has no IP addresses.
        """
        header = IPCMHeader.decode(privateData)
        if header.majorVersion:
            raise WireError("IPCMHeader", 0, f"its version is {header.majorVersion}, not 0")
        if header.ipVersion not in (4, 6):
            raise WireError("IPCMHeader", 1, f"IP version {header.ipVersion}, not 4 or 6")
        begin = 12 if header.ipVersion == 4 else 0
        return cls(_text(header.source[begin:]), header.sourcePort, _text(header.destination[begin:]))

    def toPrivateData(self, userData: bytes = b"") -> bytes:
        """
        Encode the header, followed by the user's private data.

        @raise ValueError: an address is invalid, or the versions of the addresses differ.
        """
        source, destination = _packed(self.source), _packed(self.destination)
        if len(source) != len(destination):
            raise ValueError(f"{self.source} and {self.destination} are of different versions of IP")
        header = IPCMHeader(
            ipVersion=4 if len(source) == 4 else 6,
            sourcePort=self.sourcePort,
            source=source.rjust(16, b"\0"),
            destination=destination.rjust(16, b"\0"),
        )
        return header.encode() + userData


@lru_cache(maxsize=256)
def _text(packed: bytes) -> str:
    """The text of an IP address, cached, since addresses repeat."""
    return str(ipaddress.ip_address(packed))


@lru_cache(maxsize=256)
def _packed(text: str) -> bytes:
    """The bytes of an IP address, whatever its version."""
    return ipaddress.ip_address(text).packed
