"""
Physical networks: the RDMA ports of network interfaces, by a table or by the hardware.

Follows the Linux kernel's rules for SMC, see smc_pnet(8): an interface with the name of a physical network
(its PNET ID) uses the ports with the same name only; any other one uses the ports on it.

The table is a text. Each line has the name of a network, and its members::

    # network  interfaces, and ports as DEVICE/PORT
    NET1  eth0 mlx5_0/1
    NET1  eth1
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from txrdma.error import WireError
from txrdma.kit.values import frozen
from txrdma.ports.netlink import attributesOf, NetlinkMessage

_NETWORK: Final = re.compile(r"[A-Z0-9]{1,16}")
_INTERFACE: Final = re.compile(r"[^/\s#]{1,15}")
_PORT: Final = re.compile(r"([^/\s#]{1,63})/([1-9]\d{0,2})")

_GENERIC: Final = struct.Struct("=BBH")  # struct genlmsghdr: command, version, reserved
_GET_FAMILY: Final = 3
_FAMILY_ID: Final = 1
_FAMILY_NAME: Final = 2
_PNETID_GET: Final = 1
_PNETID_NAME: Final = 1
_PNETID_INTERFACE: Final = 2
_PNETID_DEVICE: Final = 3
_PNETID_PORT: Final = 4

CONTROLLER: Final = 16
"""The message type of requests for generic netlink families."""


@frozen
class PNETEntry:
    """
    A member of a physical network.

    @ivar network: the PNET ID.
    @ivar member: a network interface, or an RDMA port as C{DEVICE/PORT}.
    """

    network: str
    member: str

    @classmethod
    def of(cls, network: str, member: str) -> PNETEntry:
        """
        Return the entry for these names; the network's is converted to upper case, as in the kernel.

        @raise ValueError: a name is invalid.
        """
        if not _NETWORK.fullmatch(network.upper()) or not network.isascii():
            raise ValueError(f"{network!r} is not a network name: 1 to 16 letters and digits")
        if not _INTERFACE.fullmatch(member) and not _PORT.fullmatch(member):
            raise ValueError(f"{member!r} is neither an interface nor an RDMA port, as in mlx5_0/1")
        return cls(network.upper(), member)


Table = tuple[PNETEntry, ...]


# The text


def parseTable(text: str) -> Table:
    """
    Parse the text of a table, and return its entries in order.

    @raise ValueError: a line is malformed, or a member is in two networks; the message has its number.
    """
    entries: dict[str, PNETEntry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        try:
            if len(words) == 1:
                raise ValueError(f"there are no members of {words[0]}")
            for member in words[1:]:
                entry = PNETEntry.of(words[0], member)
                before = entries.setdefault(member, entry)
                if before.network != entry.network:
                    raise ValueError(f"{member} is in {before.network} and in {entry.network}")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return tuple(entries.values())


def withEntry(text: str, entry: PNETEntry) -> str:
    """
    Return the text of a table with an entry appended, unless it has this entry already.

    @raise ValueError: the member is in another network, or the text is malformed.
    """
    if entry in parseTable(text):
        return text
    if text and not text.endswith("\n"):
        text += "\n"
    text += f"{entry.network} {entry.member}\n"
    parseTable(text)
    return text


def withoutEntries(text: str, network: str, members: Iterable[str] = ()) -> str:
    """
    Return the text of a table without some members of a network, by default without the network.

    Comments are retained.

    @raise ValueError: the table has no such network or member, or is malformed.
    """
    table, wanted = parseTable(text), set(members)
    network = network.upper()
    known = {entry.member for entry in table if entry.network == network}
    if not known:
        raise ValueError(f"the table has no network {network}")
    for member in sorted(wanted - known):
        raise ValueError(f"{member} does not belong to {network}")
    lines = []
    for line in text.splitlines(keepends=True):
        words = line.partition("#")[0].split()
        if not words or words[0].upper() != network:
            lines.append(line)
            continue
        remaining = [word for word in words[1:] if wanted and word not in wanted]
        if remaining == words[1:]:
            lines.append(line)
        elif remaining or "#" in line:
            comment = line.rstrip("\n").partition("#")[1:]
            setting = " ".join([words[0], *remaining]) if remaining else ""
            lines.append(f"{setting} {''.join(comment)}".strip() + "\n")
    return "".join(lines)


# Generic netlink


def familyRequest(name: str) -> bytes:
    """Return the payload of a request for a generic netlink family, which has the type L{CONTROLLER}."""
    value = name.encode("ascii") + b"\0"
    attribute = struct.pack("=HH", 4 + len(value), _FAMILY_NAME) + value + bytes(-len(value) % 4)
    return _GENERIC.pack(_GET_FAMILY, 1, 0) + attribute


def familyOf(message: NetlinkMessage) -> int:
    """
    Return the message type of the requested generic netlink family.

    @raise WireError: the answer does not contain it.
    """
    value = attributesOf(message.payload, _GENERIC.size, "genlmsghdr").get(_FAMILY_ID, b"")
    if len(value) != 2:
        raise WireError("genlmsghdr", _GENERIC.size, "it does not contain the family")
    return int(struct.unpack("=H", value)[0])


def tableRequest() -> bytes:
    """Return the payload of a request for the kernel's table: a dump of the family SMC_PNETID."""
    return _GENERIC.pack(_PNETID_GET, 1, 0)


def tableOf(answers: Iterable[NetlinkMessage]) -> Table:
    """
    Return the kernel's table from its answers, without entries whose names are invalid.

    @raise WireError: an answer is truncated.
    """
    return tuple(entry for message in answers for entry in _entriesOf(message))


def _entriesOf(message: NetlinkMessage) -> Iterator[PNETEntry]:
    values = attributesOf(message.payload, _GENERIC.size, "smc_pnetid")
    network = _text(values.get(_PNETID_NAME, b""))
    interface, device = _text(values.get(_PNETID_INTERFACE, b"")), _text(values.get(_PNETID_DEVICE, b""))
    number = values.get(_PNETID_PORT, b"")[:1]
    members = []
    if interface and interface != "n/a":
        members.append(interface)
    if device and device != "n/a" and number:
        members.append(f"{device}/{number[0]}")
    for member in members:
        try:
            yield PNETEntry.of(network, member)
        except ValueError:
            continue


def _text(value: bytes) -> str:
    return value.partition(b"\0")[0].decode("ascii", "replace").strip()


# The choice


@frozen
class RDMAPort:
    """
    An RDMA port that connections may use.

    @ivar interfaces: network interfaces of the same hardware.
    @ivar isActive: whether the port is in state Active.
    """

    device: str
    number: int
    interfaces: frozenset[str]
    isActive: bool

    @property
    def name(self) -> str:
        """The port as C{DEVICE/PORT}."""
        return f"{self.device}/{self.number}"


@frozen
class PNETFinding:
    """
    The RDMA port for an interface, or the reason why there is none.

    @ivar port: the RDMA port; None if there is none.
    @ivar reason: why this port was chosen, or why there is none, without a full stop.
    @ivar network: the PNET ID of the interface; empty if it has none.
    """

    port: RDMAPort | None
    reason: str
    network: str = ""


def networkOf(member: str, tables: Iterable[Table]) -> str:
    """Return the network of a member, by the first table that names it; empty if none does."""
    return next((each.network for table in tables for each in table if each.member == member), "")


def portFor(interfaces: Sequence[str], ports: Sequence[RDMAPort], tables: Sequence[Table]) -> PNETFinding:
    """
    Return the RDMA port for connections by an interface: the first active one that belongs to it.

    @param interfaces: the interface, followed by its lower interfaces if it is a VLAN or a bond.
    @param ports: all RDMA ports of the host.
    @param tables: tables of physical networks; the first one that names an interface or a port is used.
    """
    named = ((each, networkOf(each, tables)) for each in interfaces)
    interface, network = next(((each, found) for each, found in named if found), (interfaces[0], ""))
    if network:
        fitting = [port for port in ports if networkOf(port.name, tables) == network]
        why = f"{interface} belongs to the network {network}"
    else:
        fitting = [port for port in ports if port.interfaces.intersection(interfaces)]
        why = f"no table names {interface}"
    active = next((port for port in fitting if port.isActive), None)
    if active is not None:
        detail = f"as {active.name} does" if network else f"and {active.name} is on it"
        return PNETFinding(active, f"{why}, {detail}", network)
    if fitting:
        down = ", ".join(port.name for port in fitting)
        return PNETFinding(None, f"{why}, and of its RDMA ports none is active: {down}", network)
    return PNETFinding(
        None, f"{why}, {'which has no RDMA port' if network else 'and no RDMA port is on it'}", network
    )
