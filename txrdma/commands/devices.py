"""
C{txrdma devices}: the RDMA devices that could be used here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TYPE_CHECKING

from txrdma.commands.options import IReactor, TellingOptions
from txrdma.commands.tables import lines, makeTable, show
from txrdma.error import RDMAError
from txrdma.verbs.devices import availableDevices, openDevice

if TYPE_CHECKING:
    from rich.table import Table


class CommandOptions(TellingOptions):
    """Table or JSON."""

    longdesc = "Tell the RDMA devices that could be opened here, by the name to use in device=..."


def describeDevice(reactor: object, name: str) -> dict[str, object]:
    """What a device of that name has, or why it can't be opened."""
    try:
        device = openDevice(reactor, name)
    except (RDMAError, ValueError, OSError) as error:
        return {"device": name, "error": str(error)}
    try:
        ports = []
        for number in range(1, device.portCount + 1):
            port = device.portAttributes(number)
            ports.append(
                {
                    "port": number,
                    "state": port.state.name,
                    "netdev": port.netdev,
                    "mac": None if port.mac is None else str(port.mac),
                    "maxMTU": port.maxMTU.bytes,
                    "activeMTU": port.activeMTU.bytes,
                    "rate": port.rate,
                    "gids": [str(gid) for gid in device.gids(number)],
                }
            )
        return {"device": name, "ports": ports, "limits": asdict(device.limits)}
    finally:
        device.close()


def devicesTable(entries: Sequence[dict[str, Any]]) -> Table:
    """What L{describeDevice} gives, as a table."""
    from rich.markup import escape

    table = makeTable("device", "port", "state", "interface", "MAC", "MTU", "GIDs")
    for entry in entries:
        name = escape(entry["device"])
        if "error" in entry:
            table.add_row(name, "", escape(entry["error"]))
            continue
        for port in entry["ports"]:
            table.add_row(
                *(name, str(port["port"]), port["state"], escape(port["netdev"]), port["mac"] or ""),
                *(str(port["activeMTU"]), lines(*port["gids"])),
            )
    return table


async def carryOut(reactor: IReactor, options: CommandOptions) -> None:
    """C{txrdma devices}."""
    entries = [describeDevice(reactor, name) for name in availableDevices()]
    if options["json"]:
        print(json.dumps(entries, indent=2))
    else:
        show(devicesTable(entries))
