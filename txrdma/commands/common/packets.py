"""
Finds management datagrams in packets: a MAD, and the headers before it.

Follows InfiniBand Architecture vol. 1, 7.7 (LRH), chapters 8 and 9, annexes A16 and A17 (RoCE), and the
kernel's C{ib_user_mad.h}.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

from txrdma.error import InvalidRequest, WireError
from txrdma.iba.headers import BTH, DETH, GRH, Opcode
from txrdma.iba.internet import ETHERTYPE_IPV4, ETHERTYPE_IPV6
from txrdma.iba.linkheaders import LinkNextHeader, LRH
from txrdma.iba.path import GMP_QKEY
from txrdma.iba.pcap import CapturedDatagram, LinkType
from txrdma.iba.types import GID
from txrdma.soft.core.netdev import isRoCE

LENGTH: Final = 256

ETHERNET: Final = 1
RAW_IP: Final = (12, 14, 101, 228, 229)
COOKED: Final = 113
ERF: Final = 197
INFINIBAND: Final = 247
COOKED2: Final = 276
"""Link types of captures that can contain management datagrams, from L{ETHERNET} on."""

_ETHERTYPE_ROCE: Final = 0x8915
_TAGS: Final = (0x8100, 0x88A8, 0x9100)
_ERF_INFINIBAND: Final = 21
_UMAD: Final = (64, 56)


class Inside(NamedTuple):
    """A MAD, and a line of text for each header before it."""

    datagram: bytes
    front: tuple[str, ...] = ()

    def behind(self, *front: str) -> Inside:
        """Return a copy of this MAD with more headers before it."""
        return Inside(self.datagram, (*front, *self.front))


def inBytes(data: bytes) -> Inside:
    """
    Return the MAD in bytes that begin with it, or with headers before it.

    @raise InvalidRequest: the bytes do not contain a MAD.
    """
    for length in _UMAD:
        if len(data) == length + LENGTH and _isMAD(data[length:]):
            return Inside(data[length:], (_umadLine(data[:length]),))
    if _isMAD(data):
        return Inside(data[:LENGTH])
    for read in (_inInfiniBand, _inTransport, _inGlobal):
        try:
            found = read(data)
        except WireError:
            continue
        if found is not None:
            return found
    for length in _UMAD:  # umad data may be longer, or the start of an unanswered request
        if _isMAD(data[length:]):
            return Inside(data[length:], (_umadLine(data[:length]),))
    raise InvalidRequest(f"these {len(data)} bytes are not a management datagram")


def inPacket(data: bytes, linkType: int) -> Inside | None:
    """
    Return the MAD in a packet of a capture, or None if the packet contains no MAD.

    @raise WireError: the packet is malformed.
    """
    if linkType == INFINIBAND:
        return _inInfiniBand(data)
    if linkType == ERF:
        return _inERF(data)
    kind, packet = networkPacket(data, linkType)
    if kind == _ETHERTYPE_ROCE:
        return _inGlobal(packet)
    return _inIP(packet) if kind in (ETHERTYPE_IPV4, ETHERTYPE_IPV6) else None


def networkPacket(data: bytes, linkType: int) -> tuple[int | None, bytes]:
    """
    Remove the link header of an IP packet, or of a RoCE v1 packet, which then begins with its GRH.

    @return: the EtherType, which is None for other protocols and links, and the packet.
    """
    if linkType in RAW_IP:
        return (ETHERTYPE_IPV6 if data[:1] >= b"\x60" else ETHERTYPE_IPV4), data
    layouts = {ETHERNET: (12, 14), COOKED: (14, 16), COOKED2: (0, 20)}
    if linkType not in layouts:
        return None, data
    at, offset = layouts[linkType]
    kind = int.from_bytes(data[at : at + 2], "big")
    while kind in _TAGS and linkType == ETHERNET and len(data) > offset + 4:
        kind = int.from_bytes(data[offset + 2 : offset + 4], "big")
        offset += 4
    known = (_ETHERTYPE_ROCE, ETHERTYPE_IPV4, ETHERTYPE_IPV6)
    return (kind if kind in known else None), data[offset:]


def _isMAD(data: bytes) -> bool:
    """Return whether bytes begin with base version 1, class version 1 or 2, and a management class."""
    return len(data) >= 24 and data[0] == 1 and data[2] in (1, 2) and data[1] != 0


def _inIP(data: bytes) -> Inside | None:
    datagram = CapturedDatagram.decode(data, LinkType.RAW_IP)
    if datagram is None or not isRoCE(datagram.udp.destinationPort):
        return None
    found = _inTransport(datagram.payload)
    source, destination = (ipaddress.ip_address(raw) for raw in (datagram.ip.source, datagram.ip.destination))
    return None if found is None else found.behind(f"IP {source} to {destination}")


def _inERF(data: bytes) -> Inside | None:
    """Return the MAD in a record: 16 bytes, and 8 bytes more while the highest bit of a type is set."""
    if len(data) < 16 or data[8] & 0x7F != _ERF_INFINIBAND:
        return None
    offset, more = 16, data[8] & 0x80
    while more and offset + 8 <= len(data):
        more = data[offset] & 0x80
        offset += 8
    return _inInfiniBand(data[offset:])


def _inInfiniBand(data: bytes) -> Inside | None:
    """Return the MAD in a packet that begins with its LRH (IBA 7.7)."""
    header = LRH.decode(data)
    readers = {LinkNextHeader.BTH: _inTransport, LinkNextHeader.GRH: _inGlobal}
    read = readers.get(header.linkNextHeader)
    found = None if read is None else read(data[LRH.size :])
    text = f"LRH LID {header.slid} to {header.dlid}, SL {header.serviceLevel}, VL {header.virtualLane}"
    return None if found is None else found.behind(text)


def _inGlobal(data: bytes) -> Inside | None:
    """Return the MAD in a packet that begins with its GRH."""
    header = GRH.decode(data)
    found = _inTransport(data[GRH.size :])
    return None if found is None else found.behind(f"GRH {header.sgid} to {header.dgid}")


def _inTransport(data: bytes) -> Inside | None:
    """Return the MAD in a packet that begins with its BTH: for queue pair 0 or 1, or with its Q_Key."""
    bth = BTH.decode(data)
    if bth.opcode is not Opcode.UD_SEND_ONLY:
        return None
    deth = DETH.decode(data, BTH.size)
    datagram = data[BTH.size + DETH.size :][:LENGTH]
    if bth.destination > 1 and deth.qkey != GMP_QKEY or not _isMAD(datagram):
        return None
    text = f"UD QP {deth.source} to {bth.destination}, P_Key {bth.pkey:#06x}, Q_Key {deth.qkey:#010x}"
    return Inside(datagram, (text,))


def _umadLine(header: bytes) -> str:
    """Return a line about the kernel's umad header: little-endian fields, then big-endian ones."""
    status, milliseconds = (int.from_bytes(header[at : at + 4], "little") for at in (4, 8))
    qpn, qkey = (int.from_bytes(header[at : at + 4], "big") for at in (20, 24))
    lid, level, hasGRH = int.from_bytes(header[28:30], "big"), header[30], header[32]
    text = f"umad LID {lid}, SL {level}, QP {qpn}, Q_Key {qkey:#010x}, {milliseconds} ms, status {status}"
    return text + (f", GID {GID(header[36:52])}" if hasGRH else "")
