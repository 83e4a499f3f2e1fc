"""
Local TCP connections and the owners of their sockets, as reported by the kernel.

The kernel is queried by sock_diag(7). If that is not available, C{/proc/net/tcp} is read, which has nearly
the same information, but takes longer the more sockets there are.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress
from twisted.logger import Logger

from txrdma.error import WireError
from txrdma.kit.logs import errorText
from txrdma.kit.values import frozen
from txrdma.ports.netlink import attributesOf, DUMP, NetlinkMessage
from txrdma.ports.netlinkqueries import diagnose

_log = Logger()

_LISTENING: Final = "0A"
"""TCP_LISTEN, in the state column of C{/proc/net/tcp}."""

_ESTABLISHED: Final = 1
"""TCP_ESTABLISHED, the first byte of struct tcp_info."""

TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
"""The files in which the kernel lists TCP sockets and their owners."""

_LOOPBACKS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Destinations of connections to the unspecified addresses."""

_LISTEN_STATE: Final = 1 << 10
_ANY_STATE: Final = 0xFFFFFFFF
_NO_COOKIE: Final = b"\xff" * 8
# struct inet_diag_req_v2: family, protocol, extensions, states, ...
_REQUEST: Final = struct.Struct("=BBBxI")
# struct inet_diag_msg: family, address, interface, user
_ANSWER: Final = struct.Struct("=Bxxx2x2x16s16xI8x12xII")
_ONLY_IPV6: Final = 11  # INET_DIAG_SKV6ONLY


@lru_cache(1024)
def _hostOf(host: str) -> str:
    """Return the canonical form of an IP address."""
    bare, _, scope = host.partition("%")
    address = ipaddress.ip_address(bare)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    if mapped is not None:
        return str(mapped)
    return f"{address}%{scope}" if scope else str(address)


@lru_cache(1024)
def _packed(host: str) -> bytes:
    return ipaddress.ip_address(host.partition("%")[0]).packed.ljust(16, b"\0")


class TCPAddress(NamedTuple):
    """The address of one end of a TCP connection; an IPv4 address is never in its IPv6 form."""

    host: str
    port: int

    @classmethod
    def of(cls, host: str, port: int) -> TCPAddress:
        """Create an address with the canonical form of an IP address."""
        return cls(_hostOf(host), port)

    @property
    def isIPv6(self) -> bool:
        """Whether the address is IPv6, and not IPv4-mapped."""
        return ":" in self.host

    @property
    def zone(self) -> str:
        """The interface of a link-local address, or C{""}."""
        return self.host.partition("%")[2]

    @property
    def packed(self) -> bytes:
        """The address in 16 bytes; an IPv4 address is followed by zeros."""
        return _packed(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.isIPv6 else f"{self.host}:{self.port}"


def isEstablished(connection: socket.socket) -> bool:
    """Return whether neither end of an accepted connection has closed yet."""
    try:
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return False
    return state == _ESTABLISHED


def tcpAddressOf(address: IAddress) -> TCPAddress | None:
    """Return the address of a transport as L{TCPAddress}; None if it is not a TCP address."""
    if isinstance(address, (IPv4Address, IPv6Address)):
        return TCPAddress.of(address.host, address.port)
    return None


# Queries by sock_diag


def _query(family: int, states: int, identity: bytes, flags: int = 0) -> Iterator[NetlinkMessage]:
    """Query sockets; raises OSError if there are none, or L{WireError}."""
    asked = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, states) + identity + _NO_COOKIE
    return diagnose(asked, flags)


def _diagnosedListeners(port: int) -> list[_Listener]:
    found = []
    identity = struct.pack(">HH", port, 0) + bytes(36)
    for family in (socket.AF_INET, socket.AF_INET6):
        for message in _query(family, _LISTEN_STATE, identity, DUMP):
            _family, address, _interface, user, _inode = _ANSWER.unpack_from(message.payload)
            attributes = attributesOf(message.payload, _ANSWER.size, "inet_diag_msg")
            onlyIPv6 = attributes.get(_ONLY_IPV6, b"\0") != b"\0"
            packed = address if family == socket.AF_INET6 else address[:4]
            host = TCPAddress.of(str(ipaddress.ip_address(packed)), port).host
            found.append(_Listener(host, user, onlyIPv6))
    return found


def _diagnosedUser(local: TCPAddress, remote: TCPAddress) -> int:
    family = socket.AF_INET6 if local.isIPv6 else socket.AF_INET
    zone = local.zone or remote.zone
    identity = struct.pack(">HH", local.port, remote.port) + local.packed + remote.packed
    identity += struct.pack("=I", socket.if_nametoindex(zone) if zone else 0)
    [message] = _query(family, _ANY_STATE, identity)
    user: int = _ANSWER.unpack_from(message.payload)[3]
    return user


# Tables in /proc/net


@frozen
class _Entry:
    """A line of C{/proc/net/tcp}: both ends of a socket, its state and the user that owns it."""

    local: TCPAddress
    remote: TCPAddress
    state: str
    user: int


def _parseAddress(text: str) -> TCPAddress:
    """Parse an address of those tables: 32-bit words in the byte order of the host."""
    host, _, port = text.partition(":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return TCPAddress.of(str(ipaddress.ip_address(packed)), int(port, 16))


def _entries(table: str) -> Iterator[_Entry]:
    """Yield the sockets in one of the tables; listening sockets come first."""
    try:
        with open(table) as lines:
            next(lines, None)
            for line in lines:
                parts = line.split()
                yield _Entry(_parseAddress(parts[1]), _parseAddress(parts[2]), parts[3], int(parts[7]))
    except OSError as error:
        _log.debug("can't read {table}: {error}", table=table, error=errorText(error))


def _tabledListeners(port: int) -> list[_Listener]:
    found = []
    for table in TABLES:
        for entry in _entries(table):
            if entry.state != _LISTENING:
                break
            if entry.local.port == port:
                found.append(_Listener(entry.local.host, entry.user, False))
    return found


def _tabledUser(local: TCPAddress, remote: TCPAddress) -> int | None:
    for table in TABLES:
        for entry in _entries(table):
            if entry.local == local and entry.remote == remote and entry.state != _LISTENING:
                return entry.user
    return None


# Owners


@frozen
class _Listener:
    """A listening TCP socket of this host, and its owner; C{onlyIPv6} is False if unknown."""

    host: str
    user: int
    onlyIPv6: bool


def acceptingUsers(target: TCPAddress) -> set[int]:
    """
    Return the users whose sockets would accept a connection to an address of this host.

    The kernel prefers a listener at that address, then one at all IPv4 addresses, then one at all addresses.
    """
    try:
        listeners = _diagnosedListeners(target.port)
    except (OSError, WireError, struct.error) as error:
        _log.debug("can't list listening sockets: {error}", error=errorText(error))
        listeners = _tabledListeners(target.port)
    host = _LOOPBACKS.get(target.host, target.host).partition("%")[0]
    for address in (host, "::") if target.isIPv6 else (host, "0.0.0.0", "::"):
        users = {
            each.user for each in listeners if each.host == address and (target.isIPv6 or not each.onlyIPv6)
        }
        if users:
            return users
    return set()


def isOwned(user: int, target: TCPAddress) -> bool | None:
    """
    Return whether only this user, or root, can accept connections to an address of this host.

    @return: None if no listener was found.
    """
    users = {0} if user == 0 else acceptingUsers(target)
    return users == {user} if users else None


def socketUser(local: TCPAddress, remote: TCPAddress) -> int | None:
    """Return the user that owns the socket at one end of a connection on this host; None without one."""
    try:
        return _diagnosedUser(local, remote)
    except (OSError, WireError, struct.error) as error:
        if getattr(error, "errno", None) != errno.ENOENT:
            _log.debug("can't find the owner of a socket: {error}", error=errorText(error))
        return _tabledUser(local, remote)  # a kernel without sock_diag may also return ENOENT


def peerUserByTCP(local: TCPAddress, peer: TCPAddress, weListen: bool) -> int | None:
    """Return the user at the other end of a TCP connection; None on other hosts, or if it is ambiguous."""
    if sourceFor(peer) is None:
        return None
    if weListen:
        return socketUser(peer, local)
    users = acceptingUsers(peer)  # the peer may not have accepted yet
    return users.pop() if len(users) == 1 else None


def sourceFor(target: TCPAddress) -> TCPAddress | None:
    """Return the local address of a connection to an address of this host; None for other hosts."""
    family = socket.AF_INET6 if target.isIPv6 else socket.AF_INET
    try:
        numeric = target.host.encode("ascii")  # a str would import the IDNA codec
        found = socket.getaddrinfo(numeric, target.port, family, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)
        sockaddr = found[0][4]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((sockaddr[0], 0, *sockaddr[2:]))
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(sockaddr)
            name = probe.getsockname()
        host = socket.getnameinfo(name, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
        return TCPAddress.of(host, 0)
    except OSError:
        return None
