"""C{txrdma nodes}: nodes of a fabric, with their types, GUIDs and LIDs."""

from __future__ import annotations

from typing import Any, Final

from twisted.python import usage

from txrdma.commands.common.rows import hexGUID, printJSON, printRows, showRows
from txrdma.commands.common.session import opened, TARGET
from txrdma.commands.common.sweeping import dropMoved, endWith, fabricOf, PartOptions, swept
from txrdma.fabric.inventory import firmwares, INVENTORY, inventoryRow
from txrdma.fabric.model import Fabric, Node
from txrdma.fabric.snapshots import nodeDict
from txrdma.iba.verbs import NodeType

_KINDS: Final = {"hosts": NodeType.CHANNEL_ADAPTER, "switches": NodeType.SWITCH, "routers": NodeType.ROUTER}
_WORDS: Final = {NodeType.CHANNEL_ADAPTER: "host", NodeType.SWITCH: "switch", NodeType.ROUTER: "router"}
_OMITTED: Final = {"ports", "nodeInfo", "switchInfo"}
"""Keys of a snapshot's nodes that only C{discover} prints."""


class CommandOptions(PartOptions):
    """Options of C{txrdma nodes}: the sweep, and the types of nodes to print."""

    longdesc = (
        "List the nodes of a fabric, each with its type, GUID, number of ports, LIDs and name. If "
        "something could not be discovered or read, an error is printed and the exit status is 1. With a "
        "TARGET, only the target and the nodes at most --hops links away are queried and listed. "
        f"{TARGET}."
    )
    optFlags = [
        ["hosts", None, "Only channel adapters."],
        ["switches", None, "Only switches."],
        ["routers", None, "Only routers."],
        ["inventory", None, "Also query devices for firmware, board (PSID), uptime and serial number."],
        ["csv", None, "Print the inventory as comma-separated values."],
    ]

    def postOptions(self) -> None:
        super().postOptions()
        if self["load"] and (self["inventory"] or self["csv"]):
            raise usage.UsageError("--inventory queries the nodes, and a snapshot cannot be queried")


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma nodes}: print a row for each node."""
    if options["inventory"] or options["csv"]:
        await _inventory(reactor, options)
        return
    fabric, names = await fabricOf(reactor, options, withLinks=False)
    nodes = chosen(fabric, options)
    if options["json"]:
        shown = [nodeDict(node, names) for node in nodes]
        printJSON([{key: value for key, value in node.items() if key not in _OMITTED} for node in shown])
    else:
        rows = [
            (
                _WORDS.get(node.type, f"type {int(node.type)}"),
                hexGUID(node.guid),
                node.numPorts,
                _lids(node) or "-",
                names.name(node.guid, node.description),
            )
            for node in nodes
        ]
        showRows(("Type", "GUID", "Ports", "LIDs", "Name"), rows)
    endWith(fabric)


async def _inventory(reactor: Any, options: CommandOptions) -> None:
    """Query the nodes for their firmware, and print a row for each."""
    with opened(reactor, options) as session:
        fabric = session.names.put(await swept(session, withLinks=False))
        nodes = chosen(fabric, options)
        firmware = await firmwares(
            *(session.agent, session.endPort, nodes, options["outstanding"], fabric.problems)
        )
        await dropMoved(session, fabric, firmware)  # LIDs may have been assigned anew since the sweep
    rows = [inventoryRow(node, firmware.get(node.guid)) for node in nodes]
    printRows(INVENTORY, rows, options)
    endWith(fabric)


def chosen(fabric: Fabric, options: Any) -> list[Node]:
    """Return the nodes of the selected types, by default all nodes."""
    kinds = [kind for word, kind in _KINDS.items() if options[word]]
    return [node for node in fabric.ordered() if not kinds or node.type in kinds]


def _lids(node: Node) -> str:
    if node.isSwitch:
        return str(node.lid or "")
    return " ".join(str(port.lid) for port in node.ports.values() if port.lid)
