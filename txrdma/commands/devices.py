"""
C{txrdma devices}: the RDMA devices that could be used here.
"""

from __future__ import annotations

import json

from txrdma.commands.devicedescriptions import chosen, describeAll, describeDevice
from txrdma.commands.devicetables import devicesTable, deviceTables
from txrdma.commands.options import TellingOptions
from txrdma.commands.tables import show
from txrdma.error import DeviceUnavailable


class CommandOptions(TellingOptions):
    """Which device, and how much of it."""

    synopsis = "[options] [DEVICE]"
    longdesc = (
        "Tell the RDMA devices that could be opened here, by the name to use in device=..., and those of the "
        "kernel that could not, with the reason. DEVICE is such a name (soft:192.0.2.1, pyverbs:mlx5_0), or "
        "what the kernel's device or one of its ports goes by: mlx5_0, mlx5_0/1, a GID, a GUID, a network "
        "interface, a LID."
    )
    optFlags = [["verbose", "v", "Everything that is known of each device and its ports."]]

    def parseArgs(self, device: str | None = None) -> None:
        self["device"] = device


async def carryOut(reactor: object, options: CommandOptions) -> None:
    """C{txrdma devices}; JSON always has everything."""
    if options["device"] is None:
        descriptions = describeAll(reactor)
    else:
        descriptions = [describeDevice(reactor, chosen(options["device"]))]
        if "ports" not in descriptions[0]:
            raise DeviceUnavailable(descriptions[0]["error"])
    if options["json"]:
        print(json.dumps(descriptions, indent=2))
    elif options["verbose"]:
        for description in descriptions:
            for table in deviceTables(description):
                show(table)
    else:
        show(devicesTable(descriptions))
