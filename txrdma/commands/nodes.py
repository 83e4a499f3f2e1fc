"""
C{txrdma nodes}: the nodes of a fabric.
"""

from __future__ import annotations

from typing import Any, Final

from txrdma.commands.fabrics import tellJSON
from txrdma.commands.nodenames import readNodeNames
from txrdma.commands.rows import hexGUID, showRows
from txrdma.commands.sweeping import fabricOf, SweepOptions, tellProblems
from txrdma.commands.topologies import nodeDict, ordered
from txrdma.iba.verbs import NodeType
from txrdma.mad.fabric import Fabric, Node

_KINDS: Final = {
    "hosts": NodeType.CHANNEL_ADAPTER,
    "switches": NodeType.SWITCH,
    "routers": NodeType.ROUTER,
}
_WORDS: Final = {
    NodeType.CHANNEL_ADAPTER: "host",
    NodeType.SWITCH: "switch",
    NodeType.ROUTER: "router",
}


class CommandOptions(SweepOptions):
    """Which nodes."""

    longdesc = (
        "Tell the nodes of a fabric, each with its type, GUID, number of ports, LIDs and name. What could "
        "not be found out is told on standard error, and then the exit status is 1."
    )
    optFlags = [
        ["hosts", None, "Only channel adapters."],
        ["switches", None, "Only switches."],
        ["routers", None, "Only routers."],
    ]


async def carryOut(reactor: Any, options: CommandOptions) -> None:
    """C{txrdma nodes}."""
    names = readNodeNames(options["node-names"])
    fabric = await fabricOf(reactor, options)
    nodes = chosen(fabric, options)
    if options["json"]:
        told = [nodeDict(node, names) for node in nodes]
        tellJSON([{key: value for key, value in node.items() if key != "ports"} for node in told])
    else:
        rows = [
            (
                _WORDS.get(node.type, f"type {int(node.type)}"),
                hexGUID(node.guid),
                node.info.numPorts,
                _lids(node) or "-",
                names.name(node.guid, node.description),
            )
            for node in nodes
        ]
        showRows(("Type", "GUID", "Ports", "LIDs", "Name"), rows)
    tellProblems(fabric)
    if fabric.problems:
        raise SystemExit(1)


def chosen(fabric: Fabric, options: Any) -> list[Node]:
    """The nodes of the kinds that were asked for; all, when none was."""
    kinds = [kind for word, kind in _KINDS.items() if options[word]]
    return [node for node in ordered(fabric) if not kinds or node.type in kinds]


def _lids(node: Node) -> str:
    if node.isSwitch:
        return str(node.lid or "")
    return " ".join(str(node.ports[number].lid) for number in sorted(node.ports) if node.ports[number].lid)
