"""
Plan of a fabric's cables, and its differences from the actual cables.

A plan is read from a topology file, in the format that C{ibnetdiscover} prints and simulators read::

    Switch 36 "leaf 1"
    [1] "host1"[1]
    [19] "spine 1"[1]

Names such as C{"S-0002c90300010002"} are GUIDs; other names are node descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.fabric.health import Finding, hasLink
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.texts import readText
from txrdma.kit.values import frozen

_NODE: Final = re.compile(r'(?:Switch|Ca|Hca|Rt|Router)\s+\d+\s+"([^"]+)".*', re.IGNORECASE)
_CABLE: Final = re.compile(
    r'\[(\d{1,3})\](?:\[ext \d+\])?(?:\([0-9a-f]+\))?\s+"([^"]+)"\[(\d{1,3})\].*', re.IGNORECASE
)
"""A cable; C{[ext 7]} is the number of the port on the enclosure, which C{ibnetdiscover -g} prints."""
_IDENTIFIER: Final = re.compile(r"(?:S|SW|H|HCA|R)-([0-9a-f]{16})$", re.IGNORECASE)

End = tuple[str, int]
"""End of a cable: the name of a node, or its GUID in 16 hexadecimal digits, and the port number."""


@frozen
class CablePlan:
    """
    Planned links between ports.

    @ivar cables: the other end of each end; each cable is listed in both directions.
    """

    cables: dict[End, End]

    @property
    def nodes(self) -> set[str]:
        """Names of all nodes with cables."""
        return {name for name, _number in self.cables}


def parseCables(text: str, name: str = "topology") -> CablePlan:
    """
    Parse the text of a topology file, which may list a cable at one of its ends only.

    @raise InvalidRequest: a line is invalid, a port has two cables, or there are no cables. The message
        contains the line number.
    """
    cables: dict[End, End] = {}
    node = ""
    for number, line in enumerate(text.splitlines(), 1):
        line_ = line.strip()
        owner, cable = _NODE.match(line_), _CABLE.match(line_)
        if owner is not None:
            node = _plain(owner[1])
        elif cable is not None and node:
            one, other = (node, int(cable[1])), (_plain(cable[2]), int(cable[3]))
            for here, there in ((one, other), (other, one)):
                if cables.setdefault(here, there) != there:
                    raise InvalidRequest(f"{name}, line {number}: {here[0]!r} port {here[1]} has two cables")
        elif line_.startswith("["):
            raise InvalidRequest(f'{name}, line {number}: a cable of a node, as [1] "leaf 1"[7]')
    if not cables:
        raise InvalidRequest(f"{name}: there are no cables in it")
    return CablePlan(cables)


def readCables(path: str) -> CablePlan:
    """
    Read a plan from a topology file.

    @raise InvalidRequest: the file cannot be read or is invalid.
    """
    return parseCables(readText("topology", path), path)


def _plain(name: str) -> str:
    match = _IDENTIFIER.match(name)
    return name if match is None else match[1].lower()


def cableFindings(fabric: Fabric, plan: CablePlan) -> Iterator[Finding]:
    """
    Return findings for cables that are at a wrong port, missing, or not in the plan.

    Nodes with ambiguous names are ignored, and a missing node is reported once, not for each of its cables.
    Cables to nodes outside the plan are ignored if the plan has no node of their type: it may list switches
    only, without hosts. A sweep that found only the local node shows nothing about the others.
    """
    if fabric.isLocalOnly:
        return
    nodes = _named(fabric, plan)
    for name in sorted(plan.nodes - nodes.keys()):
        if not any(node.description == name for node in fabric.nodes.values()):
            yield Finding("node-missing", name, "the topology has this node, and the fabric has not")
    ends = {(id(node), number): name for name, node in nodes.items() for number in node.ports}
    kinds = {node.type for node in nodes.values()}
    listed: set[End] = set()
    for one, other in plan.cables.items():
        node, beyond = nodes.get(one[0]), nodes.get(other[0])
        if node is None or beyond is None or one in listed:
            continue
        listed |= {one, other}
        here, there = node.known(one[1]), beyond.known(other[1])
        yield from _compared(node, one, here, beyond, other, there)
    for port, peer in fabric.links():
        if (id(port.node), port.number) not in ends:
            port, peer = peer, port  # begin at the end that is in the plan
        one, other = ((ends.get((id(end.node), end.number), ""), end.number) for end in (port, peer))
        isMeant = other[0] or (peer.node.type in kinds and peer.node.description not in plan.nodes)
        if one[0] and isMeant and one not in plan.cables and other not in plan.cables:
            text = f"the topology has no cable to {peer}"
            yield Finding("cable-extra", str(port), text, port.node.guid, port.number)


def _compared(
    node: Node, one: End, here: Port | None, beyond: Node, other: End, there: Port | None
) -> Iterator[Finding]:
    if here is not None and here.peer is not None and here.peer is there:
        return
    wanted = f"{beyond} port {other[1]}"
    where = f"{node} port {one[1]}"
    for port in (here, there):
        if port is not None and port.peer is not None:
            ours, far = (f"{port}", wanted) if port is here else (f"{port}", where)
            text = f"its cable leads to {port.peer}, and should lead to {far}"
            yield Finding("cable-wrong", ours, text, port.node.guid, port.number)
            return
    if here is None or there is None or not (hasLink(here) and hasLink(there)):
        yield Finding("cable-missing", where, f"there is no link to {wanted}", node.guid, one[1])


def _named(fabric: Fabric, plan: CablePlan) -> dict[str, Node]:
    """Return the nodes of the plan that are in the fabric, by their names in the plan."""
    wanted = plan.nodes
    found: dict[str, Node] = {}
    several: set[str] = set()
    for node in fabric.nodes.values():
        guid = node.guid.raw.hex()
        if guid in wanted:
            found[guid] = node
        elif node.description in found:
            several.add(node.description)
        elif node.description in wanted:
            found[node.description] = node
    for name in several:
        del found[name]
    return found
