"""
Descriptions of RDMA devices for JSON: from the device if it can be opened, and from sysfs.

The keys are those of L{txrdma.iba.verbs}, and are stable; None stands for unknown values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any, Final

from txrdma.error import DeviceUnavailable, RDMAError
from txrdma.iba.types import GUID, MACAddress, MTU, PKey
from txrdma.iba.verbs import GIDEntry, PortAttributes
from txrdma.interfaces import IVerbsDevice
from txrdma.ports import devices, EndPort, getEndPort, RDMADevice
from txrdma.ports.sysfs import EndPortAttributes, SYS
from txrdma.verbs.devices import availableDevices, deviceKinds, openDevice
from txrdma.verify.subject import kernelDevice, KERNELS

Description = dict[str, Any]
"""Values of a device by name, for JSON."""

_DEVICE: Final = "nodeType nodeGUID systemImageGUID firmware vendorID vendorPartID hardwareVersion atomics"
_PORT: Final = (
    "state physicalState linkLayer netdev mac maxMTU activeMTU rate width lid lidMask smLID smServiceLevel "
    "capabilities maxMessageLength badPKeys badQKeys"
)
_KERNELS: Final = "name driver description hardwareType boardID parent"


def describeAll(reactor: object, root: str | Path = SYS) -> list[Description]:
    """Return descriptions of all available devices, and of kernel devices that are not, with the reason."""
    names = availableDevices()
    names += [f"{KERNELS}{each.name}" for each in devices(root) if f"{KERNELS}{each.name}" not in names]
    return [describeDevice(reactor, name, root) for name in names]


def chosen(spelling: str, root: str | Path = SYS) -> str:
    """
    Return the device string for a device string, a kernel device, or one of its ports.

    @raise DeviceUnavailable: the text does not name a device; the message lists available devices.
    """
    if spelling.partition(":")[0] in deviceKinds():
        return spelling
    try:
        return f"{KERNELS}{getEndPort(spelling, root).device.name}"
    except DeviceUnavailable as error:
        known = ", ".join(availableDevices())
        raise DeviceUnavailable(f"{error}; device strings that could be opened: {known}") from None


def describeDevice(reactor: object, name: str, root: str | Path = SYS) -> Description:
    """Return the description of a device; if it cannot be opened, C{error} and the values of sysfs."""
    description: Description = {"device": name}
    try:
        device = openDevice(reactor, name)
    except (RDMAError, ValueError, OSError) as error:
        description["error"] = str(error)
    else:
        try:
            description.update(_opened(device))
        except RDMAError as error:  # removed since it was opened
            description["error"] = str(error)
        finally:
            device.close()
    kernels = kernelDevice(name, root)
    if kernels is not None:
        try:
            _addKernels(description, kernels)
        except DeviceUnavailable as error:
            description.setdefault("error", str(error))
    return description


def _opened(device: IVerbsDevice) -> Description:
    return {
        "attributes": _values(device.attributes, _DEVICE),
        "limits": asdict(device.limits),
        "kernel": None,
        "ports": [
            _port(number, device.portAttributes(number), device.gidTable(number), device.pkeys(number))
            for number in range(1, device.portCount + 1)
        ],
    }


def _values(source: object, names: str) -> Description:
    """Return attributes by their names, for JSON; sysfs does not have all of them."""
    return {name: _plain(getattr(source, name, None)) for name in names.split()}


def _plain(value: object) -> object:
    if isinstance(value, MTU):
        return value.bytes
    if isinstance(value, Enum):
        return value.name
    return str(value) if isinstance(value, (GUID, MACAddress)) else value


def _port(
    number: int, port: PortAttributes | EndPortAttributes, gidTable: Sequence[GIDEntry], pkeys: Sequence[PKey]
) -> Description:
    taken = [(index, entry) for index, entry in enumerate(gidTable) if any(entry.gid.raw)]
    return {
        "port": number,
        **_values(port, _PORT),
        "gids": [str(entry.gid) for _index, entry in taken],
        "gidTable": [
            {"index": index, "gid": str(entry.gid), "type": entry.type.value, "netdev": entry.netdev}
            for index, entry in taken
        ],
        "pkeys": [{"index": index, "pkey": pkey} for index, pkey in enumerate(pkeys) if pkey],
        "kernel": None,
    }


def _addKernels(description: Description, device: RDMADevice) -> None:
    """Add values of sysfs to a description; if the device could not be opened, all of them."""
    if "ports" not in description:
        description["attributes"] = _values(device, _DEVICE)
        description["limits"] = None
        description["ports"] = [_kernelsPort(port) for port in device.ports]
    for port in description["ports"]:
        _addKernelsPort(port, device.port(port["port"]))
    description["kernel"] = {**_values(device, _KERNELS), "verbs": device.verbsName}


def _kernelsPort(port: EndPort) -> Description:
    """Return the description of a port by sysfs only."""
    now = port.attributes()
    rate = {"rate": now.rate.bitsPerSecond, "width": now.rate.width}
    return {**_port(port.number, now, now.gidTable, now.pkeys), **rate}


def _addKernelsPort(description: Description, port: EndPort) -> None:
    description["kernel"] = {
        "name": port.name,
        "guid": _plain(port.guid),
        "speed": port.rate.speed,
        "gidTableLength": port.gidTableLength,
        "pkeyTableLength": port.pkeyTableLength,
        "mad": port.madName,
        "sm": port.smName,
    }
