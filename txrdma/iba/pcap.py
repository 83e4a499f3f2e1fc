"""
Writer of capture files for tcpdump and Wireshark, and of RoCE v2 packets in them; L{txrdma.iba.captures}
reads them.

Follows draft-ietf-opsawg-pcap: the classic format, with micro- or nanoseconds.
"""

from __future__ import annotations

from typing import BinaryIO, NamedTuple, Union

from txrdma.error import WireError
from txrdma.iba.internet import (
    checksummed,
    Ethernet,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ipHeaders,
    IPv4,
    IPv6,
    packedIP,
    PROTOCOL_UDP,
    UDP,
)
from txrdma.iba.roce import UDPFlow
from txrdma.iba.types import MACAddress, ROCE_PORT
from txrdma.kit.values import frozen
from txrdma.kit.wire import bits, Code, Layout, wire

Buffer = Union[bytes, bytearray, memoryview]


class LinkType(Code):
    """Header of a record of a capture file."""

    ETHERNET = 1
    RAW_IP = 101


_MICROSECONDS = 0xA1B2C3D4
_NANOSECONDS = 0xA1B23C4D
_SNAP_LENGTH = 262144


@wire(24, little=True)
class FileHeader(Layout):
    """The beginning of a capture file, as little-endian machines write it."""

    magic: int = bits(32)
    major: int = bits(16)
    minor: int = bits(16)
    reserved: int = bits(64)
    snapLength: int = bits(32)
    linkType: LinkType = bits(32)


@wire(16, little=True)
class RecordHeader(Layout):
    """Header of each packet of a little-endian capture file."""

    seconds: int = bits(32)
    fraction: int = bits(32)
    length: int = bits(32)
    originalLength: int = bits(32)


class PcapWriter:
    """
    Writer of a capture file. Each record is written at once, so a killed process leaves a valid file.

    @param file: open for binary writing; its owner closes it.
    """

    def __init__(
        self, file: BinaryIO, linkType: LinkType = LinkType.ETHERNET, nanoseconds: bool = True
    ) -> None:
        self._file = file
        self._units = 1_000_000_000 if nanoseconds else 1_000_000
        magic = _NANOSECONDS if nanoseconds else _MICROSECONDS
        header = FileHeader(magic=magic, major=2, minor=4, snapLength=_SNAP_LENGTH, linkType=linkType)
        self._put(header.encode())

    def write(self, data: bytes, when: float) -> None:
        """Append one packet, whose first header has the file's link type."""
        seconds, fraction = divmod(round(when * self._units), self._units)
        length = min(len(data), _SNAP_LENGTH)
        header = RecordHeader(seconds=seconds, fraction=fraction, length=length, originalLength=len(data))
        self._put(header.encode() + data[:length])

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()


class CapturePosition(NamedTuple):
    """One end of a RoCE v2 packet."""

    ip: str
    port: int
    mac: MACAddress


@frozen
class CapturedDatagram:
    """
    A UDP datagram of a capture, with its headers.

    @ivar payload: payload, with the length of the UDP header.
    """

    ip: IPv4 | IPv6
    udp: UDP
    payload: bytes

    @classmethod
    def decode(cls, data: bytes, linkType: LinkType = LinkType.ETHERNET) -> CapturedDatagram | None:
        """
        Decode a record; None unless it is an unfragmented UDP datagram.

        @raise WireError: its lengths are inconsistent.
        """
        offset = 0
        if linkType is LinkType.ETHERNET:
            if Ethernet.decode(data).type not in (ETHERTYPE_IPV4, ETHERTYPE_IPV6):
                return None
            offset = Ethernet.size
        if len(data) <= offset:
            raise WireError("CapturedDatagram", offset, "no IP header")
        ip: IPv4 | IPv6
        if data[offset] >> 4 == 4:
            ip = IPv4.decode(data, offset)
            if ip.protocol != PROTOCOL_UDP or ip.headerWords != 5 or ip.fragmentOffset or ip.flags & 1:
                return None
        elif data[offset] >> 4 == 6:
            ip = IPv6.decode(data, offset)
            if ip.nextHeader != PROTOCOL_UDP:
                return None
        else:
            return None
        offset += ip.size
        udp = UDP.decode(data, offset)
        if udp.length < UDP.size or offset + udp.length > len(data):
            raise WireError("UDP", offset + 4, f"{udp.length} bytes in {len(data) - offset}")
        return cls(ip, udp, data[offset + UDP.size : offset + udp.length])


class RoCECapture:
    """
    Records packets as RoCE v2, whatever their real transport, so that Wireshark can dissect them.

    @param file: open for binary writing; its owner closes it.
    """

    _FLOWS = 1024

    def __init__(self, file: BinaryIO) -> None:
        self._writer = PcapWriter(file)
        self._flows: dict[tuple[str, int, str], UDPFlow] = {}

    def packet(
        self,
        source: tuple[str, int, MACAddress],
        destination: tuple[str, int, MACAddress],
        bthToPayload: Buffer,
        when: float,
    ) -> None:
        """
        Record one packet, from a L{CapturePosition} to a L{CapturePosition}.

        The ICRC is computed here. The recorded destination port is 4791, by which RoCE v2 is recognized.

        @param bthToPayload: from BTH to pad.
        @param when: seconds since 1970.
        """
        key = (source[0], source[1], destination[0])
        flow = self._flows.get(key)
        if flow is None:
            if len(self._flows) >= self._FLOWS:
                self._flows.clear()
            flow = self._flows[key] = UDPFlow(*key, ROCE_PORT)
        datagram = flow.seal(bthToPayload)
        here, there = packedIP(source[0]), packedIP(destination[0])
        ip, udp = ipHeaders(here, there, (source[1], ROCE_PORT), len(datagram))
        kind = ETHERTYPE_IPV4 if isinstance(ip, IPv4) else ETHERTYPE_IPV6
        ethernet = Ethernet(destination=destination[2], source=source[2], type=kind)
        self._writer.write(ethernet.encode() + checksummed(ip, udp, datagram), when)
