"""
Netlink messages about network interfaces and devices.

Follows netlink(7), rtnetlink(7) and, for kobject events, udev(7). Numbers are in this host's byte order.
L{txrdma.ports.network} opens the sockets.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from txrdma.error import WireError
from txrdma.iba.types import MACAddress
from txrdma.kit.values import frozen

_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, type
_LINK: Final = struct.Struct("=BxHiII")  # family, type, index, flags, which of them changed
_ADDRESS: Final = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_NUMBER: Final = struct.Struct("=I")
_ERROR: Final = struct.Struct("=i")

ERROR: Final = 2
DONE: Final = 3
NEWLINK: Final = 16
GETLINK: Final = 18
NEWADDR: Final = 20
GETADDR: Final = 22

_REQUEST: Final = 0x001
DUMP: Final = 0x300
INTERRUPTED: Final = 0x010
"""The flag of an answer that mixes states before and after a change: repeat the request."""

_TYPE_MASK: Final = 0x3FFF
_LOOPBACK_INDEX: Final = 1

_LINK_ADDRESS: Final = 1
_LINK_NAME: Final = 3
_LINK_MTU: Final = 4

_ADDRESS_ADDRESS: Final = 1
_ADDRESS_LOCAL: Final = 2
_ADDRESS_FLAGS: Final = 8

_IS_UP: Final = 0x1
_IS_LOOPBACK: Final = 0x8
_HAS_CARRIER: Final = 0x10000
_IS_TENTATIVE: Final = 0x40
_IS_DUPLICATE: Final = 0x08

_INET: Final = 2
_INET6: Final = 10


@frozen
class NetlinkMessage:
    """A netlink message without its header."""

    type: int
    flags: int
    sequence: int
    payload: bytes


@frozen
class InterfaceAddress:
    """
    An IP address of an interface.

    @ivar ip: the address, without a zone.
    @ivar isUsable: whether IPv6's duplicate address detection has finished without finding a duplicate.
    """

    ip: str
    prefixLength: int
    isUsable: bool = True


@frozen
class NetworkInterface:
    """
    A network interface of this host at the time of the query.

    @ivar mtu: MTU of IP packets in bytes.
    @ivar isUp: whether the administrator has brought the interface up.
    @ivar hasCarrier: whether the interface has a link.
    @ivar hardwareAddress: 6 bytes on Ethernet, 20 on IP over InfiniBand.
    """

    index: int
    name: str
    mtu: int
    isUp: bool
    hasCarrier: bool
    isLoopback: bool
    hardwareAddress: bytes = b""
    addresses: tuple[InterfaceAddress, ...] = ()

    @property
    def mac(self) -> MACAddress | None:
        """Ethernet address of the interface; None for other types of interfaces."""
        return MACAddress(self.hardwareAddress) if len(self.hardwareAddress) == 6 else None

    @property
    def isRunning(self) -> bool:
        """Whether the interface is up and has a link."""
        return self.isUp and self.hasCarrier


def dumpRequest(kind: int, sequence: int) -> bytes:
    """Return a request for all links (C{GETLINK}) or all addresses (C{GETADDR})."""
    payload = _LINK.pack(0, 0, 0, 0, 0) if kind == GETLINK else _ADDRESS.pack(0, 0, 0, 0, 0)
    return request(kind, payload, sequence, DUMP)


def request(kind: int, payload: bytes, sequence: int = 0, flags: int = 0) -> bytes:
    """Return a request of this type with its netlink header."""
    return _HEADER.pack(_HEADER.size + len(payload), kind, _REQUEST | flags, sequence, 0) + payload


def messages(datagram: bytes) -> Iterator[NetlinkMessage]:
    """
    Yield the messages in a datagram.

    @raise WireError: a message is truncated, or its length is invalid.
    """
    offset = 0
    while offset < len(datagram):
        if len(datagram) - offset < _HEADER.size:
            raise WireError("netlink message", offset, "its header is cut off")
        length, kind, flags, sequence, _port = _HEADER.unpack_from(datagram, offset)
        if not _HEADER.size <= length <= len(datagram) - offset:
            raise WireError("netlink message", offset, f"its length is {length}")
        yield NetlinkMessage(kind, flags, sequence, datagram[offset + _HEADER.size : offset + length])
        offset += _aligned(length)


def errorOf(message: NetlinkMessage) -> int:
    """Return the errno of an C{ERROR} or C{DONE} message; 0 for success."""
    return -int(_ERROR.unpack_from(message.payload)[0]) if len(message.payload) >= _ERROR.size else 0


def interfacesFrom(
    links: Sequence[NetlinkMessage], addresses: Sequence[NetlinkMessage]
) -> list[NetworkInterface]:
    """
    Return the interfaces, ordered by index, from the dumps of links and addresses.

    @raise WireError: a message is too short for its type.
    """
    perIndex: dict[int, list[InterfaceAddress]] = {}
    for message in addresses:
        if message.type == NEWADDR and (found := _address(message.payload)) is not None:
            perIndex.setdefault(found[0], []).append(found[1])
    made = (_interface(message.payload, perIndex) for message in links if message.type == NEWLINK)
    return sorted(made, key=lambda interface: interface.index)


def interfaceOf(
    address: str, links: Sequence[NetlinkMessage], addresses: Sequence[NetlinkMessage]
) -> NetworkInterface | None:
    """
    Return the interface with this IP address, as L{interfaceWith}, from the dumps of links and addresses.

    Only messages that may concern the address are decoded, since a host may have hundreds of interfaces.

    @raise ValueError: the text is not an IP address.
    @raise WireError: a message is too short for its type.
    """
    raw = _ipOf(address).packed
    near = {_index(m, _ADDRESS) for m in addresses if raw in m.payload} | {_LOOPBACK_INDEX, None}
    return interfaceWith(
        address,
        interfacesFrom(
            [m for m in links if _index(m, _LINK) in near],
            [m for m in addresses if _index(m, _ADDRESS) in near],
        ),
    )


def interfaceWith(address: str, interfaces: Sequence[NetworkInterface]) -> NetworkInterface | None:
    """
    Return the interface with this IP address; None without one. All addresses of the loopback interface's
    IPv4 network belong to it.

    @param address: IP address, with a zone if it is link-local: C{"fe80::1%eth0"}.
    @raise ValueError: the text is not an IP address.
    """
    wanted, zone = _ipOf(address), address.partition("%")[2]
    for interface in interfaces:
        if zone not in ("", interface.name, str(interface.index)):
            continue
        for own in interface.addresses:
            if ipaddress.ip_address(own.ip) == wanted:
                return interface
            if interface.isLoopback and wanted.version == 4 and ":" not in own.ip:
                if wanted in ipaddress.ip_network((own.ip, own.prefixLength), strict=False):
                    return interface
    return None


def parseEvent(datagram: bytes) -> dict[str, str]:
    """
    Return the variables of a kobject event, such as C{ACTION}, C{DEVPATH} and C{SUBSYSTEM}.

    They are empty for other messages of the same family, such as those of udev.
    """
    head, *variables = datagram.split(b"\0")
    if b"@" not in head:
        return {}
    pairs = (variable.decode("utf-8", "replace").partition("=") for variable in variables if b"=" in variable)
    return {key: value for key, _, value in pairs}


def _ipOf(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def _index(message: NetlinkMessage, layout: struct.Struct) -> int | None:
    """Return the index of a message's interface; None if it is truncated or concerns no interface."""
    if len(message.payload) < layout.size or message.type not in (NEWLINK, NEWADDR):
        return None
    index: int = layout.unpack_from(message.payload)[2 if layout is _LINK else 4]
    return index


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def attributesOf(payload: bytes, offset: int, layout: str) -> dict[int, bytes]:
    """Return the values of the attributes after the fixed part of a message, by type."""
    found: dict[int, bytes] = {}
    while len(payload) - offset >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(payload, offset)
        if not _ATTRIBUTE.size <= length <= len(payload) - offset:
            raise WireError(layout, offset, f"an attribute's length is {length}")
        found[kind & _TYPE_MASK] = payload[offset + _ATTRIBUTE.size : offset + length]
        offset += _aligned(length)
    return found


def _number(attributes: dict[int, bytes], kind: int, default: int) -> int:
    value = attributes.get(kind, b"")
    return int(_NUMBER.unpack(value)[0]) if len(value) == _NUMBER.size else default


def _interface(payload: bytes, addresses: dict[int, list[InterfaceAddress]]) -> NetworkInterface:
    if len(payload) < _LINK.size:
        raise WireError("ifinfomsg", len(payload), f"{_LINK.size} bytes are needed")
    _family, _type, index, flags, _change = _LINK.unpack_from(payload)
    attributes = attributesOf(payload, _LINK.size, "ifinfomsg")
    return NetworkInterface(
        index=index,
        name=attributes.get(_LINK_NAME, b"").rstrip(b"\0").decode("utf-8", "replace"),
        mtu=_number(attributes, _LINK_MTU, 0),
        isUp=bool(flags & _IS_UP),
        hasCarrier=bool(flags & _HAS_CARRIER),
        isLoopback=bool(flags & _IS_LOOPBACK),
        hardwareAddress=attributes.get(_LINK_ADDRESS, b""),
        addresses=tuple(addresses.get(index, ())),
    )


def _address(payload: bytes) -> tuple[int, InterfaceAddress] | None:
    """Return an interface's index and its address; None for families other than IP."""
    if len(payload) < _ADDRESS.size:
        raise WireError("ifaddrmsg", len(payload), f"{_ADDRESS.size} bytes are needed")
    family, prefixLength, shortFlags, _scope, index = _ADDRESS.unpack_from(payload)
    attributes = attributesOf(payload, _ADDRESS.size, "ifaddrmsg")
    # On a point-to-point link, LOCAL is the address of this host, and ADDRESS that of the peer.
    raw = attributes.get(_ADDRESS_LOCAL, attributes.get(_ADDRESS_ADDRESS, b""))
    if (family, len(raw)) not in ((_INET, 4), (_INET6, 16)):
        return None
    flags = _number(attributes, _ADDRESS_FLAGS, shortFlags)
    isUsable = not flags & (_IS_TENTATIVE | _IS_DUPLICATE)
    return index, InterfaceAddress(str(ipaddress.ip_address(raw)), prefixLength, isUsable)
