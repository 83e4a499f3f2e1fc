"""
Descriptions of RDMA devices for JSON: from the device if it can be opened, and from sysfs.

The keys are those of L{txrdma.iba.verbs}, and are stable; None stands for unknown values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from txrdma.error import DeviceUnavailable, RDMAError
from txrdma.iba.types import MTU, PKey
from txrdma.iba.verbs import DeviceAttributes, GIDEntry, PortAttributes
from txrdma.interfaces import IVerbsDevice
from txrdma.ports import devices, EndPort, getEndPort, RDMADevice
from txrdma.ports.sysfs import EndPortAttributes, SYS
from txrdma.verbs.devices import availableDevices, deviceKinds, openDevice
from txrdma.verify.subject import kernelDevice, KERNELS

Description = dict[str, Any]
"""Values of a device by name, for JSON."""


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
        "attributes": _attributes(device.attributes),
        "limits": asdict(device.limits),
        "kernel": None,
        "ports": [
            _port(number, port, port.rate, port.width, device.gidTable(number), device.pkeys(number))
            for number in range(1, device.portCount + 1)
            for port in (device.portAttributes(number),)
        ],
    }


def _attributes(attributes: DeviceAttributes | RDMADevice) -> Description:
    """Return the attributes of a device; sysfs does not have all of them."""
    atomics = getattr(attributes, "atomics", None)
    return {
        "nodeType": attributes.nodeType.name,
        "nodeGUID": _text(attributes.nodeGUID),
        "systemImageGUID": _text(attributes.systemImageGUID),
        "firmware": attributes.firmware,
        "vendorID": getattr(attributes, "vendorID", None),
        "vendorPartID": getattr(attributes, "vendorPartID", None),
        "hardwareVersion": attributes.hardwareVersion,
        "atomics": None if atomics is None else atomics.name,
    }


def _port(
    number: int,
    port: PortAttributes | EndPortAttributes,
    rate: int,
    width: int,
    gidTable: Sequence[GIDEntry],
    pkeys: Sequence[PKey],
) -> Description:
    """Return the attributes of a port; sysfs does not have all of them."""

    def bytesOf(mtu: MTU | None) -> int | None:
        return None if mtu is None else mtu.bytes

    return {
        "port": number,
        "state": port.state.name,
        "physicalState": port.physicalState.name,
        "linkLayer": port.linkLayer.name,
        "netdev": port.netdev,
        "mac": _text(port.mac),
        "maxMTU": bytesOf(getattr(port, "maxMTU", None)),
        "activeMTU": bytesOf(port.activeMTU),
        "rate": rate,
        "width": width,
        "lid": port.lid,
        "lidMask": port.lidMask,
        "smLID": port.smLID,
        "smServiceLevel": port.smServiceLevel,
        "capabilities": port.capabilities,
        "maxMessageLength": getattr(port, "maxMessageLength", None),
        "badPKeys": getattr(port, "badPKeys", None),
        "badQKeys": getattr(port, "badQKeys", None),
        **_tables(gidTable, pkeys),
        "kernel": None,
    }


def _tables(gidTable: Sequence[GIDEntry], pkeys: Sequence[PKey]) -> Description:
    """Return the GID and P_Key tables of a port without empty entries."""
    taken = [(index, entry) for index, entry in enumerate(gidTable) if any(entry.gid.raw)]
    return {
        "gids": [str(entry.gid) for _index, entry in taken],
        "gidTable": [
            {"index": index, "gid": str(entry.gid), "type": entry.type.value, "netdev": entry.netdev}
            for index, entry in taken
        ],
        "pkeys": [{"index": index, "pkey": pkey} for index, pkey in enumerate(pkeys) if pkey],
    }


def _addKernels(description: Description, device: RDMADevice) -> None:
    """Add values of sysfs to a description; if the device could not be opened, all of them."""
    if "ports" not in description:
        description["attributes"] = _attributes(device)
        description["limits"] = None
        description["ports"] = [_kernelsPort(port) for port in device.ports]
    for port in description["ports"]:
        _addKernelsPort(port, device.port(port["port"]))
    description["kernel"] = {
        "name": device.name,
        "driver": device.driver,
        "description": device.description,
        "hardwareType": device.hardwareType,
        "boardID": device.boardID,
        "parent": device.parent,
        "verbs": device.verbsName,
    }


def _kernelsPort(port: EndPort) -> Description:
    """Return the description of a port by sysfs only."""
    now = port.attributes()
    return _port(port.number, now, now.rate.bitsPerSecond, now.rate.width, now.gidTable, now.pkeys)


def _addKernelsPort(description: Description, port: EndPort) -> None:
    description["kernel"] = {
        "name": port.name,
        "guid": _text(port.guid),
        "speed": port.rate.speed,
        "gidTableLength": port.gidTableLength,
        "pkeyTableLength": port.pkeyTableLength,
        "mad": port.madName,
        "sm": port.smName,
    }


def _text(value: object | None) -> str | None:
    return None if value is None else str(value)
