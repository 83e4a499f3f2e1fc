"""
The ports of an endpoint's devices, which are the local ends of links.

A device string may name several devices, with C{+} between them: C{pyverbs:rxe0+pyverbs:rxe1}. The subnets of
a port's network interface are read from the system.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Sequence
from contextlib import closing, ExitStack
from functools import lru_cache

from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, WireError
from txrdma.iba.types import GID, MACAddress, MTU
from txrdma.iba.verbs import PortState, usualGID
from txrdma.interfaces import IReactorDevice, IVerbsDevice
from txrdma.kit.logs import errorText
from txrdma.kit.strings import splitString
from txrdma.ports.netlink import NetworkInterface
from txrdma.ports.network import gateways, HostNetwork
from txrdma.smc.group.attachment import DevicePort
from txrdma.smc.terms.offer import Candidate, Subnets, VERSIONS
from txrdma.verbs.devices import sharedDevice

_log = Logger()


@lru_cache(1)
def _instance(pid: int) -> bytes:
    """Return two random bytes that distinguish this process from others with the same MAC address."""
    return secrets.token_bytes(2)


def peerID(mac: MACAddress | None = None) -> bytes:
    """Return the peer ID of this process: instance number and MAC address (RFC 7609, 3.1)."""
    return _instance(os.getpid()) + (bytes(6) if mac is None else mac.toBytes())


def openDevices(reactor: object, description: str) -> list[IVerbsDevice]:
    """
    Open the devices of an endpoint; the caller closes them. Log those that can't be opened, if others can.

    @param description: device strings joined by C{+}.
    @raise ValueError: the description is malformed.
    @raise DeviceUnavailable: none of them can be opened.
    """
    devices: list[IVerbsDevice] = []
    errors: dict[str, DeviceUnavailable] = {}
    with ExitStack() as undo:
        for each in splitString(description, "+"):
            try:
                devices.append(undo.enter_context(closing(sharedDevice(reactor, each))))
            except DeviceUnavailable as error:
                errors[each] = error
        undo.pop_all()
    if not devices:
        raise next(reversed(errors.values()), DeviceUnavailable(f"{description!r} names no device"))
    for each, why in errors.items():
        _log.warn("can't open {each} of {all}: {error}", each=each, all=description, error=errorText(why))
    return devices


def findPorts(devices: Sequence[IVerbsDevice], owner: bytes = b"") -> tuple[DevicePort, ...]:
    """
    Return the ports of devices, with the GID of each that most peers can reach; active ports first.

    Version 2 and subnets are not offered for devices that use shared memory only.

    @param owner: the peer ID of this process, if it already has one.
    """
    ports: list[DevicePort] = []
    interfaces = _Interfaces()
    for device in devices:
        onReactor = IReactorDevice(device, None)
        isLocal = onReactor is not None and onReactor.canRest and not onReactor.isAttended
        versions = frozenset((1,)) if isLocal else VERSIONS
        for number in range(1, device.portCount + 1):
            port = device.portAttributes(number)
            if port.mac is None:
                continue
            owner = owner or peerID(port.mac)  # the process has one peer ID for all ports
            table = device.gidTable(number)
            index = usualGID(table)
            if not table or table[index].gid.ip is None:
                continue
            (gid, type, netdev), mtu = table[index], MTU(port.activeMTU)
            subnets, isRouted = (None, True) if isLocal else interfaces.around(netdev, gid)
            candidate = Candidate(
                owner, gid, type, port.mac, mtu, device.name, number, index, versions, subnets, isRouted
            )
            isActive = port.state is PortState.ACTIVE
            ports.append(DevicePort(device, candidate, device.limits.maxInline, isActive))
    return tuple(sorted(ports, key=lambda port: not port.isActive))


class _Interfaces:
    """The network interfaces of this host, read on first use."""

    def __init__(self) -> None:
        self._known: dict[str, NetworkInterface] | None = None
        self._gateways: frozenset[str] = frozenset()

    def around(self, name: str, gid: GID) -> tuple[Subnets | None, bool]:
        """Return the subnets of an interface (None if unknown), and whether it has a gateway."""
        if not name:
            return None, True
        if self._known is None:
            self._known = self._ask()
        interface = self._known.get(name)
        if interface is None or interface.isLoopback:  # it reaches only this host
            return None, True
        return subnetsOf(interface, gid), name in self._gateways

    def _ask(self) -> dict[str, NetworkInterface]:
        """Read the network interfaces and gateways of this host; return the interfaces by name, or {}."""
        try:
            network = HostNetwork.open()
        except DeviceUnavailable as error:
            _log.debug("can't read the subnets of this host: {error}", error=errorText(error))
            return {}
        try:
            self._gateways = gateways()
            return {each.name: each for each in network.interfaces()}
        except (DeviceUnavailable, WireError) as error:
            _log.debug("can't read the subnets of this host: {error}", error=errorText(error))
            return {}
        finally:
            network.close()


def subnetsOf(interface: NetworkInterface, gid: GID) -> Subnets | None:
    """Return an interface's subnets, None without an address. The IPv4 subnet is C{gid}'s if possible."""
    ipv4: tuple[int, int] | None = None
    ipv6: list[tuple[bytes, int]] = []
    for address in interface.addresses:
        found = ipaddress.ip_interface(f"{address.ip}/{address.prefixLength}")
        if isinstance(found, ipaddress.IPv6Interface):
            if not found.is_link_local:
                ipv6.append((found.network.network_address.packed, address.prefixLength))
        elif ipv4 is None or str(found.ip) == gid.ip:
            ipv4 = int(found.network.network_address), address.prefixLength
    return Subnets(ipv4, tuple(ipv6), interface.name) if ipv4 or ipv6 else None
