"""Finds the end port with a name."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GID, GUID
from txrdma.iba.verbs import LinkLayer, PhysicalState, PortState
from txrdma.ports.sysfs import devices, EndPort, RDMADevice, SYS

_FIRST_MULTICAST_LID: Final = 0xC000


def getEndPort(spelling: str | None = None, root: str | Path = SYS) -> EndPort:
    """
    Return the end port with a name:

      - nothing: the first active port, else the first that has a link
      - C{"mlx5_0/1"} or C{"mlx5_0:1"}: device and port
      - C{"mlx5_0"}: the only port of a device, else its first active one
      - a GID of the port, or an IP address that is one: C{"fe80::1"}, C{"10.0.0.1"}; if several ports have
        it, followed by C{"%mlx5_0/1"} or C{"%mlx5_0"}
      - a port GUID or a node GUID: C{"0002:c903:0012:3456"}, C{"0x0002c90300123456"}
      - the name of its network interface: C{"eth0"}
      - its LID: C{"7"}, C{"0x7"}

    @param root: path at which sysfs is mounted.
    @raise DeviceUnavailable: no port matches, or several do; the message lists the available ports.
    """
    known = devices(root)
    if not spelling:
        return _firstOf([port for device in known for port in portsOf(device)], root)
    named = _byName(spelling, known)
    if named is not None:
        return named
    return _only(spelling, known, root)


def _byName(spelling: str, known: list[RDMADevice]) -> EndPort | None:
    for device in known:
        if spelling == device.name:
            best = _best(device)
            if best is None:
                raise DeviceUnavailable(f"{device.name} has no ports")
            return best
        if spelling.startswith((f"{device.name}/", f"{device.name}:")):
            number = spelling[len(device.name) + 1 :]
            if number.isdecimal():
                return device.port(int(number))
    return None


def _only(spelling: str, known: list[RDMADevice], root: str | Path) -> EndPort:
    """Return the only port with this GID, GUID, interface or LID."""
    text, _, zone = spelling.partition("%")
    ports = [port for device in known for port in portsOf(device)]
    if zone:
        ports = [port for port in ports if zone in (port.name, port.device.name)]
    for condition in _meanings(text):
        found = _matching(condition, ports)
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(port.name for port in found)
            raise DeviceUnavailable(f"{spelling!r} names several RDMA ports: {several}; name one of them")
    raise DeviceUnavailable(f"{spelling!r} names no RDMA port; {_inventory(root)}")


def _meanings(text: str) -> Iterable[Callable[[EndPort], bool]]:
    """Yield the possible meanings of a text, each as a condition on a port."""
    gid = _gid(text)
    if gid is not None:
        yield lambda port: gid in port.gids()
    number = _integer(text)
    if number is not None and 0 < number < _FIRST_MULTICAST_LID:
        yield lambda port: _hasLID(port, number)
    guid = _guid(text)
    if guid is not None:
        yield lambda port: port.guid == guid
        yield lambda port: port.device.nodeGUID == guid and port == _best(port.device)
    yield lambda port: any(entry.netdev == text for entry in port.gidTable()) or port.netdev == text


def _matching(condition: Callable[[EndPort], bool], ports: list[EndPort]) -> list[EndPort]:
    found = []
    for port in ports:
        try:
            if condition(port):
                found.append(port)
        except DeviceUnavailable:
            continue  # removed meanwhile
    return found


def portsOf(device: RDMADevice) -> list[EndPort]:
    """Return the ports of a device; none if it was just removed."""
    try:
        return device.ports
    except DeviceUnavailable:
        return []


def _best(device: RDMADevice) -> EndPort | None:
    """Return the first active port of a device, or else its first port; None if it has none."""
    ports = device.ports
    return next((port for port in ports if port.state == PortState.ACTIVE), ports[0] if ports else None)


def _firstOf(ports: list[EndPort], root: str | Path) -> EndPort:
    for found in (
        _matching(lambda port: port.state == PortState.ACTIVE, ports),
        _matching(lambda port: port.physicalState == PhysicalState.LINK_UP, ports),
    ):
        if found:
            return found[0]
    raise DeviceUnavailable(f"no RDMA port has a link; {_inventory(root)}")


def _hasLID(port: EndPort, lid: int) -> bool:
    base = port.lid
    return base != 0 and base <= lid < base + (1 << port.lidMask)


def _gid(text: str) -> GID | None:
    try:
        return GID.fromIP(str(ipaddress.ip_address(text)))
    except ValueError:
        return None


def _guid(text: str) -> GUID | None:
    try:
        return GUID.fromString(text) if ":" in text or text.startswith("0x") else None
    except ValueError:
        return None


def _integer(text: str) -> int | None:
    try:
        return int(text, 0)
    except ValueError:
        return None


def _inventory(root: str | Path) -> str:
    """Return a list of devices and ports, for the message of an error."""
    described = []
    for device in devices(root):
        for port in portsOf(device):
            try:
                described.append(_described(port))
            except DeviceUnavailable:
                continue
    if described:
        return "there are " + "; ".join(described)
    return f"there is none at all in {Path(root) / 'class' / 'infiniband'}"


def _described(port: EndPort) -> str:
    words = [port.name, port.state.name]
    if port.linkLayer == LinkLayer.INFINIBAND:
        words.append(f"LID {port.lid}")
    if port.guid is not None:
        words.append(f"GUID {port.guid}")
    if port.netdev:
        words.append(f"on {port.netdev}")
    return " ".join(words)
