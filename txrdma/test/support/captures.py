"""
Packets recorded from the Linux kernel's SMC-R and rxe.

C{txrdma/test/vectors/README.md} documents their origin.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from txrdma.iba import captures
from txrdma.iba.headers import Opcode
from txrdma.iba.internet import Ethernet, IPv4, IPv6, UDP
from txrdma.iba.pcap import CapturedDatagram
from txrdma.iba.roce import RoCEPacket, UDPFlow
from txrdma.iba.types import ROCE_PORT
from txrdma.kit.wire import bits, Layout, wire
from txrdma.test.support import VECTORS

_PROTOCOL_TCP = 6


def names() -> list[str]:
    """Return the names of all captures: C{"smc-first"} and so on."""
    return sorted(path.stem for path in VECTORS.glob("*.pcap"))


def raw(name: str) -> bytes:
    """Return a whole capture file (pcap), by its name without the extension."""
    return (VECTORS / f"{name}.pcap").read_bytes()


def records(name: str) -> list[captures.Captured]:
    """Return every frame of a capture, from its Ethernet header on, in order."""
    return list(captures.captured(BytesIO(raw(name))))


@dataclass(frozen=True)
class Captured:
    """
    A RoCE v2 packet of a capture.

    @ivar payload: the UDP payload: BTH to ICRC.
    """

    when: float
    ip: IPv4 | IPv6
    udp: UDP
    payload: bytes

    @property
    def source(self) -> str:
        """Return the IP address of the packet's sender."""
        return str(ipaddress.ip_address(self.ip.source))

    @property
    def destination(self) -> str:
        """Return the IP address of the packet's receiver."""
        return str(ipaddress.ip_address(self.ip.destination))

    @property
    def flow(self) -> UDPFlow:
        """Return the addresses and ports of the packet, which its invariant CRC (ICRC) covers."""
        return UDPFlow(self.source, self.udp.sourcePort, self.destination, self.udp.destinationPort)

    @property
    def packet(self) -> RoCEPacket:
        """Return the decoded packet: its headers and its payload."""
        return RoCEPacket.decode(self.payload)


def packets(name: str) -> list[Captured]:
    """Return the RoCE v2 packets of a capture, in order."""
    found = []
    for record in records(name):
        datagram = CapturedDatagram.decode(record.data)
        if datagram is not None and datagram.udp.destinationPort == ROCE_PORT:
            found.append(Captured(record.when, datagram.ip, datagram.udp, datagram.payload))
    return found


_SENDS = (Opcode.RC_SEND_ONLY, Opcode.RC_SEND_ONLY_WITH_INVALIDATE, Opcode.RC_SEND_ONLY_WITH_IMMEDIATE)


def messages(name: str) -> list[tuple[Captured, bytes]]:
    """The SENDs of one packet over RC in a capture, with their payloads: LLC and CDC messages of SMC-R."""
    found = ((captured, captured.packet) for captured in packets(name))
    return [(captured, packet.payload) for captured, packet in found if packet.bth.opcode in _SENDS]


@wire(20)
class _TCP(Layout):
    """The fixed part of a TCP header (RFC 9293, 3.1)."""

    sourcePort: int = bits(16)
    destinationPort: int = bits(16)
    sequence: int = bits(32)
    acknowledgment: int = bits(32)
    dataOffset: int = bits(4)
    reserved: int = bits(4)
    flags: int = bits(8)
    window: int = bits(16)
    checksum: int = bits(16)
    urgentPointer: int = bits(16)


@dataclass(frozen=True)
class Segment:
    """A TCP segment over IPv4 of a capture."""

    when: float
    source: tuple[str, int]
    destination: tuple[str, int]
    sequence: int
    flags: int
    options: bytes
    payload: bytes


_SYN = 2


def segments(name: str) -> list[Segment]:
    """Return the TCP segments of a capture, in order."""
    found = []
    for record in records(name):
        ethernet = Ethernet.decode(record.data)
        if ethernet.type != 0x0800:
            continue
        ip = IPv4.decode(record.data, Ethernet.size)
        if ip.protocol != _PROTOCOL_TCP:
            continue
        start = Ethernet.size + ip.headerWords * 4
        tcp = _TCP.decode(record.data, start)
        body = start + tcp.dataOffset * 4
        found.append(
            Segment(
                record.when,
                (str(ipaddress.ip_address(ip.source)), tcp.sourcePort),
                (str(ipaddress.ip_address(ip.destination)), tcp.destinationPort),
                tcp.sequence,
                tcp.flags,
                record.data[start + tcp.size : body],
                record.data[body : Ethernet.size + ip.length],
            )
        )
    return found


def streams(name: str) -> Iterator[tuple[tuple[str, int], tuple[str, int], bytes]]:
    """Return each direction of each TCP connection of a capture: from, to, and its bytes (CLC, for SMC-R)."""
    begun: dict[tuple[tuple[str, int], tuple[str, int]], tuple[int, bytearray]] = {}
    for segment in segments(name):
        key = (segment.source, segment.destination)
        if segment.flags & _SYN or key not in begun:
            first = (segment.sequence + 1) & 0xFFFFFFFF if segment.flags & _SYN else segment.sequence
            begun.setdefault(key, (first, bytearray()))
        if not segment.payload:
            continue
        first, content = begun[key]
        at = (segment.sequence - first) & 0xFFFFFFFF
        if at > len(content):
            raise ValueError(f"{name}: bytes are missing between {key}")
        content[at : at + len(segment.payload)] = segment.payload
    for (source, destination), (_, content) in begun.items():
        yield source, destination, bytes(content)


SMC_GO = {
    "proposal": bytes.fromhex(
        "e2d4c3d901003410b1a098039babcdeffe800000000000009a039bfffeabcdef98039babcdef00007f00000008000000e2d4c3d9"
    ),
    "accept": bytes.fromhex(
        "e2d4c3d902004418b1a098039babcdeffe800000000000009a039bfffeabcdef98039babcdef0000e40000157d010000"
        "0005230000000000f0a600000072f5fee2d4c3d9"
    ),
    "decline": bytes.fromhex("e2d4c3d904001c1025252525252525000303000000000000e2d4c3d9"),
    "cdc": bytes.fromhex("fe2c000100000003000000000000000d").ljust(44, b"\0"),
}
"""
SMC-R of version 1, from the tests of smc-go (https://github.com/hwipl/smc-go), under the MIT licence, by
hwipl.
"""
