"""The verified devices and ports, and their identification in a report."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GID, LID
from txrdma.iba.verbs import AtomicCapability, DeviceAttributes, LinkLayer, NodeType, usualGID
from txrdma.kit.values import frozen
from txrdma.ports import devices, RDMADevice
from txrdma.ports.network import HostNetwork
from txrdma.ports.sysfs import SYS
from txrdma.verbs.devices import openDevice

KERNELS: Final = "pyverbs:"
"""Prefix of device strings of the kernel's devices."""

SOFTWARE_ROCE: Final = "rxe"


@frozen
class TestedPort:
    """
    A port of a device.

    @ivar device: its device string.
    @ivar driver: name of the kernel's driver, C{rxe}, or C{soft}.
    @ivar address: an IP address of the port or of its network interface; empty if it has none.
    @ivar gid6: a GID of the port that is not an IPv4 address, preferably link-local; None if it has none.
    """

    device: str
    port: int
    driver: str
    gid: GID
    gidIndex: int
    lid: LID
    address: str
    linkLayer: LinkLayer
    attributes: DeviceAttributes
    facts: dict[str, Any]
    gid6: GID | None = None

    @classmethod
    def read(cls, reactor: object, device: str, port: int) -> TestedPort:
        """
        Open a device, and read its attributes and those of one of its ports.

        @raise txrdma.error.RDMAError: the device cannot be opened, or has no such port.
        """
        opened = openDevice(reactor, device)
        try:
            if not 1 <= port <= opened.portCount:
                raise DeviceUnavailable(f"{device} has ports 1 to {opened.portCount}, not {port}")
            now, table = opened.portAttributes(port), opened.gidTable(port)
            attributes, limits = opened.attributes, opened.limits
        finally:
            opened.close()
        if not table:
            raise DeviceUnavailable(f"port {port} of {device} has no GID: see txrdma doctor")
        index = usualGID(table)
        entry = table[index]
        kernels = kernelDevice(device)
        driver = "soft" if kernels is None else kernels.driver or kernels.description or "unknown"
        facts = {
            "driver": driver,
            "vendor": f"0x{attributes.vendorID:04x}",
            "part": attributes.vendorPartID,
            "hardwareVersion": attributes.hardwareVersion,
            "firmware": attributes.firmware,
            "board": "" if kernels is None else kernels.boardID,
            "nodeType": attributes.nodeType.name,
            "atomics": attributes.atomics.name,
            "linkLayer": now.linkLayer.name,
            "state": now.state.name,
            "netdev": entry.netdev or now.netdev,
            "activeMTU": now.activeMTU.bytes,
            "rate": now.rate,
            "gidType": entry.type.value,
            "maxInline": limits.maxInline,
        }
        isIP = now.linkLayer is LinkLayer.ETHERNET and not entry.gid.isLinkLocal
        address = str(entry.gid.ip) if isIP else _addressOf(entry.netdev or now.netdev)
        gids6 = [each.gid for each in table if each.gid.ip and not each.gid.isMapped]
        gid6 = next((gid for gid in gids6 if gid.isLinkLocal), gids6[0] if gids6 else None)
        return cls(
            device, port, driver, entry.gid, index, now.lid, address, now.linkLayer, attributes, facts, gid6
        )

    @property
    def kernelName(self) -> str:
        """Name of the device in the kernel; empty for others."""
        return kernelName(self.device)

    @property
    def hasAtomics(self) -> bool:
        return self.attributes.atomics is not AtomicCapability.NONE

    @property
    def isIWARP(self) -> bool:
        return self.attributes.nodeType is NodeType.RNIC


def kernelName(device: str) -> str:
    """Return the name in the kernel of a device string's device; empty for other devices."""
    return device.removeprefix(KERNELS).removeprefix("name=") if device.startswith(KERNELS) else ""


def kernelDevice(device: str, root: str | Path = SYS) -> RDMADevice | None:
    """Return the kernel's device of a device string; None for other or missing devices."""
    return next((each for each in devices(root) if each.name == kernelName(device)), None)


def _addressOf(netdev: str) -> str:
    """Return an IP address of a network interface that is not link-local; empty if there is none."""
    try:
        network = HostNetwork.open()
    except DeviceUnavailable:
        return ""
    try:
        interface = network.interface(netdev) if netdev else None
    finally:
        network.close()
    addresses = [] if interface is None else [ip_address(each.ip) for each in interface.addresses]
    return next((str(each) for each in addresses if not each.is_link_local), "")


Subject = tuple[TestedPort, TestedPort]
"""Both ends: the client's, and the server's, which may be the same port."""
