"""
RoCE v2 packets, the payload of datagrams to UDP port 4791, and their ICRC.

Follows annex A17 of the InfiniBand Architecture vol. 1. The ICRC is the CRC-32 of Ethernet over eight bytes
of ones, the IP and UDP headers and the packet, with ones in place of the fields that routers may change.

Linear algebra makes it cheap. CRC-32 is affine: a change of the input changes the result by an amount that
depends on its position only. So the ones for byte 4 of the BTH are part of a flow's initial state; the stored
ICRC is right if the CRC over everything, including the ICRC, is L{RESIDUE}; and the identification of an IPv4
header, which the ICRC covers but a UDP socket does not see, can be computed from the difference to
L{RESIDUE}.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar, Union

from txrdma.error import WireError
from txrdma.iba.headers import BTH, EXTENSIONS
from txrdma.iba.internet import ipHeaders, IPv4, packedIP
from txrdma.kit.values import frozen
from txrdma.kit.wire import Layout

if TYPE_CHECKING:
    from zlib import crc32
else:
    try:
        from zlib_ng.zlib_ng import crc32  # ten times as fast where it is installed
    except ImportError:
        from zlib import crc32

__all__ = [
    "ICRC_LENGTH",
    "IDENTIFICATION_CHANGES",
    "LARGEST",
    "RESIDUE",
    "RoCEPacket",
    "UDPFlow",
    "crc32",
]

Buffer = Union[bytes, bytearray, memoryview]
T = TypeVar("T", bound=Layout)

ICRC_LENGTH = 4

LARGEST = 65507
"""Maximum payload of a UDP datagram over IPv4, in bytes."""

RESIDUE = 0x2144DF1C
"""The CRC-32 of anything that is followed by its own CRC-32."""

_ONES = 0xFFFFFFFF


# The register of the CRC, one byte forth and back.

_STEPS = [crc32(bytes((byte,)), _ONES) ^ _ONES for byte in range(256)]
_BACK = {step >> 24: byte for byte, step in enumerate(_STEPS)}


def _before(register: int, zeros: int) -> int:
    """State of the CRC register before this number of zero bytes."""
    for _ in range(zeros):
        byte = _BACK[register >> 24]
        register = (register ^ _STEPS[byte]) << 8 & _ONES | byte
    return register


_BTH_ONES = _before(0xFF, 4)
"""Change of the state for which zero in byte 4 of the BTH counts as ones."""


def _identificationChange(identification: int) -> int:
    """Difference of the state after IPv4 and UDP header from the state for identification 0."""
    changed = bytearray(28)
    changed[4:6] = identification.to_bytes(2, "big")
    return crc32(changed, 0) ^ crc32(bytes(28), 0)


IDENTIFICATION_CHANGES = tuple(_identificationChange(number) for number in range(128))
"""
Values to XOR with a state of L{UDPFlow.states} for an IPv4 identification that is not zero.

Linux counts up from zero in the segments of one UDP_SEGMENT send.
"""

_IDENTIFICATION_BITS = [_identificationChange(1 << bit) for bit in range(16)]


@lru_cache(maxsize=64)
def _identifier(lengthBytes: int) -> tuple[array[int], ...]:
    """
    Four tables, one for each byte of the difference of the CRC over a datagram of this length from
    L{RESIDUE}.

    The XOR of their entries is the identification that causes this difference, or at least 65536 if none
    does.
    """
    zeros = bytes(lengthBytes)
    base = crc32(zeros, 0)
    reduced: list[tuple[int, int]] = []  # vectors; each one's highest bit is in no other
    for bit, change in enumerate(_IDENTIFICATION_BITS):
        vector, mask = crc32(zeros, change) ^ base, 1 << bit
        for other, otherMask in reduced:
            if vector >> other.bit_length() - 1 & 1:
                vector, mask = vector ^ other, mask ^ otherMask
        top = vector.bit_length() - 1
        reduced = [(v ^ vector, m ^ mask) if v >> top & 1 else (v, m) for v, m in reduced]
        reduced.append((vector, mask))
    images = {1 << bit: 1 << bit + 16 for bit in range(32)}
    for vector, mask in reduced:
        top = 1 << vector.bit_length() - 1
        images[top] = (top ^ vector) << 16 | mask
    tables = []
    for shift in (0, 8, 16, 24):
        table = array("Q", bytes(8 * 256))
        for byte in range(1, 256):
            low = byte & -byte
            table[byte] = table[byte ^ low] ^ images[low << shift]
        tables.append(table)
    return tuple(tables)


class _States(dict[int, int]):
    """State of the CRC after the headers, by the length of the datagram."""

    _LIMIT = 2048

    def __init__(self, source: bytes, destination: bytes, ports: tuple[int, int]) -> None:
        super().__init__()
        self._flow = source, destination, ports

    def __missing__(self, lengthBytes: int) -> int:
        ip, udp = ipHeaders(*self._flow, lengthBytes)
        if isinstance(ip, IPv4):
            masked = ip.replace(typeOfService=0xFF, timeToLive=0xFF, checksum=0xFFFF).encode()
        else:
            masked = ip.replace(trafficClass=0xFF, flowLabel=0xFFFFF, hopLimit=0xFF).encode()
        state = crc32(b"\xff" * 8 + masked + udp.replace(checksum=0xFFFF).encode(), 0) ^ _BTH_ONES
        if len(self) < self._LIMIT:
            self[lengthBytes] = state
        return state


class UDPFlow:
    """
    The ICRC of packets from one address and port to another, with Don't Fragment set, as RoCE v2 requires.

    In a hot loop, for packets whose BTH has zero in byte 4 (all sent ones; received ones without congestion
    marks), C{crc32(packet, flow.states[len(packet) + 4])} is the ICRC, to be stored little-endian, and
    C{crc32(datagram, flow.states[len(datagram)]) == RESIDUE} shows that it is right.

    @ivar states: length of the whole UDP payload, the ICRC included, to the state that L{crc32} starts from,
        for IPv4 identification 0.
    """

    __slots__ = ("_isIPv4", "states")

    states: dict[int, int]

    def __init__(self, source: str, sourcePort: int, destination: str, destinationPort: int) -> None:
        local, remote = packedIP(source), packedIP(destination)
        if len(local) != len(remote):
            raise ValueError(f"{source} and {destination} are not of the same IP version")
        self._isIPv4 = len(local) == 4
        self.states = _States(local, remote, (sourcePort, destinationPort))

    def icrc(self, packet: Buffer, identification: int = 0) -> int:
        """The ICRC of the bytes from BTH to pad."""
        state = self.states[len(packet) + ICRC_LENGTH]
        if identification:
            state ^= _identificationChange(identification)
        if packet[4]:
            state ^= _before(packet[4], 4)  # its bits cancel: ones are there whatever it is
        return crc32(packet, state)

    def seal(self, packet: Buffer, identification: int = 0) -> bytes:
        """The packet with its ICRC."""
        return bytes(packet) + self.icrc(packet, identification).to_bytes(4, "little")

    def identification(self, datagram: Buffer) -> int | None:
        """
        The identification of the IP header for which the ICRC is right, 0 on IPv6; None if the ICRC is wrong.

        When the identification has to be found, only 16 of the 32 bits are checked.
        """
        length = len(datagram)
        if length < BTH.size + ICRC_LENGTH or length > LARGEST:
            return None
        state = self.states[length]
        if datagram[4]:
            state ^= _before(datagram[4], 4)
        difference = crc32(datagram, state) ^ RESIDUE
        if not difference:
            return 0
        if not self._isIPv4:
            return None
        first, second, third, fourth = _identifier(length)
        found = (
            first[difference & 255]
            ^ second[difference >> 8 & 255]
            ^ third[difference >> 16 & 255]
            ^ fourth[difference >> 24]
        )
        return found if found < 65536 else None


@frozen
class RoCEPacket:
    """
    A whole packet, from BTH to payload.

    @ivar bth: its C{pad} is the received one; encoding computes it.
    @ivar extensions: the extended headers of its opcode, in order.
    @ivar icrc: the received value, unchecked; 0 in new packets.
    """

    bth: BTH
    extensions: tuple[Layout, ...] = ()
    payload: bytes = b""
    icrc: int = 0

    @classmethod
    def decode(cls, datagram: Buffer) -> RoCEPacket:
        """
        Decode a UDP payload with its ICRC, which L{UDPFlow.identification} checks.

        Unknown opcodes have no extension headers.

        @raise WireError: the payload is too short for its headers or padding.
        """
        end = len(datagram) - ICRC_LENGTH
        if end > LARGEST - ICRC_LENGTH or end % 4:
            raise WireError("RoCEPacket", 0, f"{len(datagram)} bytes is not a valid packet length")
        view = memoryview(datagram)[: max(end, 0)]
        bth = BTH.decode(view)
        offset = BTH.size
        extensions = []
        for layout in EXTENSIONS.get(bth.opcode, ()):
            extensions.append(layout.decode(view, offset))
            offset += layout.size
        if end - offset < bth.pad:
            raise WireError("RoCEPacket", offset, f"{bth.pad} bytes of padding in {end - offset}")
        icrc = int.from_bytes(datagram[end:], "little")
        return cls(bth, tuple(extensions), bytes(view[offset : end - bth.pad]), icrc)

    def encode(self) -> bytes:
        """Encode the packet from BTH to pad, for L{UDPFlow.seal}."""
        pad = -len(self.payload) % 4
        bth = self.bth if self.bth.pad == pad else self.bth.replace(pad=pad)
        parts = [bth.encode(), *(header.encode() for header in self.extensions), self.payload, bytes(pad)]
        return b"".join(parts)

    def get(self, layout: type[T]) -> T | None:
        """The extension header of this layout, if there is one."""
        for header in self.extensions:
            if isinstance(header, layout):
                return header
        return None
