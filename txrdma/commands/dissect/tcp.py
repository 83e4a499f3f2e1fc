"""
TCP segments in IP packets, and their options.

Follows RFC 9293, 3.1 and 3.2 (TCP), RFC 791 and RFC 8200 (IP).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from txrdma.error import WireError
from txrdma.iba.internet import IPv4, IPv6
from txrdma.kit.wire import bits, Layout, wire

_TCP: Final = 6
_EXTENSION_HEADERS: Final = frozenset((0, 43, 60))
"""Extension headers that may precede TCP in an unfragmented packet: hop-by-hop, routing, destination."""

_END_OF_OPTIONS, _NO_OPERATION = 0, 1

OPTION: Final = bytes.fromhex("fe06e2d4c3d9")
"""SMC's TCP option: kind 254, 6 bytes, the identifier "SMCR" in EBCDIC (RFC 7609, appendix A; RFC 6994)."""


@wire(20)
class TCPHeader(Layout):
    """The fixed part of the TCP header (RFC 9293, 3.1)."""

    source: int = bits(16)
    destination: int = bits(16)
    sequence: int = bits(32)
    acknowledgement: int = bits(32)
    words: int = bits(4)
    reserved: int = bits(4)
    flags: int = bits(8)
    window: int = bits(16)
    checksum: int = bits(16)
    urgent: int = bits(16)


@wire(2)
class _Extension(Layout):
    """The start of an IPv6 extension header (RFC 8200, 4.2); the length is in units of 8 bytes, less one."""

    next: int = bits(8)
    length: int = bits(8)


def segmentIn(packet: bytes) -> bytes:
    """
    Return the TCP segment of an IP packet.

    @raise WireError: the packet is truncated, or its protocol is not TCP.
    """
    if not packet or packet[0] >> 4 not in (4, 6):
        raise WireError("IP", 0, "neither version 4 nor 6")
    if packet[0] >> 4 == 4:
        ipv4 = IPv4.decode(packet)
        protocol, offset = ipv4.protocol, 4 * ipv4.headerWords
    else:
        protocol, offset = IPv6.decode(packet).nextHeader, IPv6.size
        while protocol in _EXTENSION_HEADERS:
            extension = _Extension.decode(packet, offset)
            protocol, offset = extension.next, offset + 8 * (extension.length + 1)
    if protocol != _TCP:
        raise WireError("IP", offset, f"protocol {protocol}, which is not TCP")
    return packet[offset:]


def optionsOf(segment: bytes) -> Iterator[bytes]:
    """
    Iterate over the options of a TCP segment, including kind and length; padding is skipped.

    Like in the kernel, the first option with an invalid length ends the list.

    @raise WireError: the header is truncated.
    """
    header = TCPHeader.decode(segment)
    end = 4 * header.words
    if end < TCPHeader.size or end > len(segment):
        raise WireError("TCPHeader", 12, f"{end} bytes of header in {len(segment)}")
    at = TCPHeader.size
    while at < end and segment[at] != _END_OF_OPTIONS:
        if segment[at] == _NO_OPERATION:
            at += 1
            continue
        length = segment[at + 1] if at + 1 < end else 0
        if length < 2 or at + length > end:
            return
        yield segment[at : at + length]
        at += length
