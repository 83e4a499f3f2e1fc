"""
The options of a TCP segment that the kernel has saved: was SMC's among them?

Follows RFC 9293, 3.1 and 3.2 (TCP), RFC 791 and 8200 (what stands before it), and tcp(7), C{TCP_SAVED_SYN}.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from txrdma.error import WireError
from txrdma.iba.internet import IPv4, IPv6
from txrdma.kit.wire import bits, Layout, wire
from txrdma.smc.signalling.option._program import OPTION

_TCP: Final = 6
_HEADERS_BEFORE: Final = frozenset((0, 43, 60))
"""Extension headers of IPv6 that may stand before TCP in a whole packet: hop-by-hop, routing, destination."""

_END, _NOTHING = 0, 1


@wire(20)
class TCPHeader(Layout):
    """The header of a TCP segment, without options (RFC 9293, 3.1)."""

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
    """The beginning of an extension header of IPv6 (RFC 8200, 4.2), whose length does not count 8 bytes."""

    next: int = bits(8)
    length: int = bits(8)


def segmentIn(packet: bytes) -> bytes:
    """
    The TCP segment in an IP packet, from its header on.

    @raise WireError: the packet is too short, or has no TCP.
    """
    if not packet or packet[0] >> 4 not in (4, 6):
        raise WireError("IP", 0, "neither version 4 nor 6")
    if packet[0] >> 4 == 4:
        ipv4 = IPv4.decode(packet)
        protocol, offset = ipv4.protocol, 4 * ipv4.headerWords
    else:
        protocol, offset = IPv6.decode(packet).nextHeader, IPv6.size
        while protocol in _HEADERS_BEFORE:
            extension = _Extension.decode(packet, offset)
            protocol, offset = extension.next, offset + 8 * (extension.length + 1)
    if protocol != _TCP:
        raise WireError("IP", offset, f"protocol {protocol}, which is not TCP")
    return packet[offset:]


def optionsOf(segment: bytes) -> Iterator[bytes]:
    """
    The options of a TCP segment, each with its kind and length; those without a length are left out.

    The list ends where an option contradicts the header's length, as it does for the kernel.

    @raise WireError: the header is not whole.
    """
    header = TCPHeader.decode(segment)
    end = 4 * header.words
    if end < TCPHeader.size or end > len(segment):
        raise WireError("TCPHeader", 12, f"{end} bytes of header in {len(segment)}")
    at = TCPHeader.size
    while at < end and segment[at] != _END:
        if segment[at] == _NOTHING:
            at += 1
            continue
        length = segment[at + 1] if at + 1 < end else 0
        if length < 2 or at + length > end:
            return
        yield segment[at : at + length]
        at += length


def hasOption(packet: bytes) -> bool:
    """
    Whether an IP packet is a TCP segment with SMC's option. False for whatever is malformed.

    @param packet: from its IP header on, as C{TCP_SAVED_SYN} has it.
    """
    try:
        return OPTION in optionsOf(segmentIn(packet))
    except WireError:
        return False
