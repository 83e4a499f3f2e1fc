"""C{txrdma devices}: RDMA devices that can be used on this host."""

from __future__ import annotations

from dataclasses import asdict

from twisted.python import usage

from txrdma.commands.common.devicechoice import deviceChoiceFor, linesOf
from txrdma.commands.common.devicedescriptions import chosen, describeAll, describeDevice
from txrdma.commands.common.options import TableOptions
from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.tables import show
from txrdma.commands.formats.devicetables import devicesTable, deviceTables
from txrdma.error import DeviceUnavailable


class CommandOptions(TableOptions):
    """Options of C{txrdma devices}: one device, all devices, or a host."""

    synopsis = "[options] [DEVICE | --for HOST]"
    longdesc = (
        "List the RDMA devices that can be opened on this host, by their names for device=..., and the "
        "kernel's devices that cannot, with the reason. DEVICE is such a name (soft:192.0.2.1, "
        "pyverbs:mlx5_0), or another name of a kernel device or its port: mlx5_0, mlx5_0/1, a GID, a "
        "GUID, a network interface, a LID. --for shows which device device=auto selects for connections "
        "to a host, and why."
    )
    optFlags = [["verbose", "v", "Show all attributes of each device and its ports."]]
    optParameters = [["for", None, None, "Peer's name or address."]]

    def parseArgs(self, device: str | None = None) -> None:
        self["device"] = device

    def postOptions(self) -> None:
        if self["for"] and (self["device"] is not None or self["verbose"]):
            raise usage.UsageError("--for HOST excludes DEVICE and --verbose")

    @property
    def showsTables(self) -> bool:
        """Whether tables will be printed: neither C{--json} nor C{--for} is given."""
        return super().showsTables and not self["for"]


async def run(reactor: object, options: CommandOptions) -> None:
    """Run C{txrdma devices}; JSON always has all values."""
    if options["for"]:
        choice = deviceChoiceFor(options["for"])
        if options["json"]:
            printJSON(asdict(choice))
        else:
            print(*linesOf(choice), sep="\n")
        return
    if options["device"] is None:
        descriptions = describeAll(reactor)
    else:
        descriptions = [describeDevice(reactor, chosen(options["device"]))]
        if "ports" not in descriptions[0]:
            raise DeviceUnavailable(descriptions[0]["error"])
    if options["json"]:
        printJSON(descriptions)
    elif options["verbose"]:
        for description in descriptions:
            for table in deviceTables(description):
                show(table)
    else:
        show(devicesTable(descriptions))
