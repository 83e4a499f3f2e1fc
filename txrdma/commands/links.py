"""C{txrdma links}: links of a fabric, and whether they could be wider or faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from txrdma.commands.common.rows import hexGUID, printJSON, showRows
from txrdma.commands.common.session import TARGET
from txrdma.commands.common.sweeping import endWith, fabricOf, PartOptions
from txrdma.fabric.health import belowBest, hasLink
from txrdma.fabric.model import Fabric, isFirstEnd, Port
from txrdma.fabric.nodenames import NodeNames
from txrdma.iba.verbs import PhysicalState, PortState


class CommandOptions(PartOptions):
    """Options of C{txrdma links}: the sweep, and which links to print."""

    longdesc = (
        "List the links of a fabric with width, speed and states, and what both ends support if that is "
        "better. If something could not be discovered, an error is printed and the exit status is 1. "
        "With a TARGET, only links of the target and of nodes at most --hops links away are queried and "
        f"listed. {TARGET}."
    )
    optFlags = [
        ["all", "a", "List every port of every node, also those without a link; each link appears twice."],
        ["below", None, "Only links below their capability, or not active."],
        ["enabled", None, "Compare with what both ends have enabled, not with what they support."],
        ["down", None, "Only ports without a link."],
        ["switches", None, "Only links between switches."],
        ["line", "l", "One line for every port of every node, as iblinkinfo -l."],
    ]


_WELL: Final = (PortState.ACTIVE.name, PortState.NOP.name)
"""States of links that are not reported as inactive: active, and not read."""


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma links}: print each link once, or each port."""
    fabric, names = await fabricOf(reactor, options)
    ports = chosen(fabric, {**options, "all": options["all"] or options["line"]})
    if options["line"] and not options["json"]:
        for port in ports:
            print(iblinkinfoLine(port, names))
        endWith(fabric)
        return
    links = [linkDict(port, names, options["enabled"]) for port in ports]
    if options["below"]:
        links = [link for link in links if link["to"] and (link["couldBe"] or link["state"] not in _WELL)]
    if options["json"]:
        printJSON(links)
    else:
        columns = ("LID", "Port", "Name", "Width", "Speed", "State", "To LID", "Port", "Name", "")
        showRows(columns, [_row(link) for link in links])
    endWith(fabric)


def chosen(fabric: Fabric, options: Any) -> Iterator[Port]:
    """Yield the ports to print: one end of each link, or every port."""
    for node in fabric.ordered():
        for number, port in node.ports.items():
            peer = port.peer
            if options["switches"] and not (node.isSwitch and peer is not None and peer.node.isSwitch):
                continue
            if options["down"] and (hasLink(port) or not number or not port.raw):
                continue  # a port that was not read may have a link
            if options["all"] or options["down"]:
                if number or not node.isSwitch:
                    yield port
            elif peer is not None and (peer.node.guid not in fabric.nodes or isFirstEnd(port, peer)):
                yield port


def linkDict(port: Port, names: NodeNames, asEnabled: bool = False) -> dict[str, Any]:
    """Return a link, or a port without a link, for JSON."""
    peer = port.peer
    return {
        "from": _endDict(port, names),
        "to": None if peer is None else _endDict(peer, names),
        "width": port.width,
        "speed": port.speed,
        "gigabitsPerLane": port.laneGigabits,
        "state": port.state.name,
        "physicalState": port.physicalState.name,
        "couldBe": belowBest(port, asEnabled) if peer is not None else [],
    }


def _endDict(port: Port, names: NodeNames) -> dict[str, Any]:
    node = port.node
    return {
        "guid": str(node.guid),
        "portGUID": str(port.guid),
        "name": names.name(node.guid, node.description),
        "lid": port.lid,
        "port": port.number,
    }


def _row(link: dict[str, Any]) -> tuple[object, ...]:
    one, other = link["from"], link["to"]
    isUp = link["physicalState"] == "LINK_UP"
    return (
        *(one["lid"], one["port"], one["name"]),
        f"{link['width']}X" if isUp else "",
        link["speed"] if isUp else "",
        link["state"] if isUp else f"{link['state']}, {link['physicalState']}",
        *((other["lid"], other["port"], other["name"]) if other else ("", "", "")),
        f"could be {' '.join(link['couldBe'])}" if link["couldBe"] else "",
    )


# Output as in infiniband-diags.

_STATES: Final = {"INIT": "Initialize"}
_PHYSICAL: Final = {
    PhysicalState.LINK_UP: "LinkUp",
    PhysicalState.ERROR_RECOVERY: "LinkErrorRecovery",
    PhysicalState.PHY_TEST: "PhyTest",
    PhysicalState.TRAINING: "PortConfigurationTraining",
}


def iblinkinfoLine(port: Port, names: NodeNames) -> str:
    """Return the line of C{iblinkinfo -l} about a port."""
    name = names.name(port.node.guid, port.node.description)
    return f'{hexGUID(port.guid)} "{name:>30}" {linkText(port, names, " ")}'


def linkText(port: Port, names: NodeNames, gap: str = "") -> str:
    """Return a line about a port and its link: LID, number, width and speed, states, and the peer."""
    state = _STATES.get(port.state.name, port.state.name.capitalize())
    physical = _PHYSICAL.get(port.physicalState, port.physicalState.name.capitalize())
    carries = " " * 14 if port.state is PortState.DOWN else f"{f'{port.width}X':>3} {_speed(port):>18} "
    peer = port.peer
    there = '           [  ] "" ( )'
    if peer is not None:
        best = [f"Could be {each}" for each in belowBest(port)]
        width = "".join(each for each in best if each.endswith("X"))
        faster = "".join(each for each in best if not each.endswith("X"))
        name = names.name(peer.node.guid, peer.node.description)
        there = f'{hexGUID(peer.guid)} {peer.lid:6} {peer.number:4}[  ] "{name}" ({width} {faster})'
    return f"{port.lid:6}{gap}{port.number:4}[  ] ==({carries}{state:>6}/{physical:>8})==>  {there}"


def _speed(port: Port) -> str:
    return "10.0 Gbps (FDR10)" if port.speed == "FDR10" else f"{port.laneGigabits} Gbps"
