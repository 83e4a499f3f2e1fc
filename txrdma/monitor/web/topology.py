"""
Topology of a fabric for a drawing: switches with numbers of hosts, and bundles of links.

Switches of a fat tree have levels: those with hosts are the lowest, and no link joins two of one level. Other
fabrics have no levels, and are drawn by adjacency.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf
from typing import Any, Final

from txrdma.fabric.model import Fabric, Node, Port
from txrdma.iba.types import GUID
from txrdma.iba.verbs import PortState
from txrdma.kit.graphs import distances
from txrdma.kit.strings import naturalKey
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.web.searches import Search
from txrdma.monitor.web.tables import (
    choice,
    COUNT,
    described,
    GUID_TEXT,
    linkErrors,
    NUMBER,
    orNull,
    record,
    rowsOf,
    Schema,
    SEVERITIES,
    TEXT,
    TRUTH,
)
from txrdma.monitor.web.watch import PageContext, printable

_LINKS_AT_A_TIME: Final = 1000
_SWITCHES_AT_A_TIME: Final = 100
_EDGES_AT_A_TIME: Final = 200

WORST: Final[Schema] = {"type": ["string", "null"], "enum": [*SEVERITIES, None]}
SWITCH: Final[dict[str, Schema]] = {
    "guid": GUID_TEXT,
    "name": TEXT,
    "level": described(orNull(COUNT), "Level in a fat tree, from 0 for switches with hosts"),
    "place": described(orNull(NUMBER), "Place in its level, from 0 to 1"),
    "hosts": described(COUNT, "Hosts and routers at the switch"),
    "isSilent": TRUTH,
    "worst": described(WORST, "Worst finding at the switch"),
    "hostsWorst": described(WORST, "Worst finding at its hosts"),
}
"""Properties of a switch in JSON."""

BUNDLE: Final[dict[str, Schema]] = {
    "id": described(TEXT, "Name of the bundle, for events"),
    "from": GUID_TEXT,
    "to": GUID_TEXT,
    "links": described(COUNT, "Links of the bundle"),
    "down": described(COUNT, "Links that are not active"),
    "load": described(orNull(NUMBER), "Load of the busiest direction of a link, 0 to 1"),
    "errorRate": described(orNull(NUMBER), "Errors each second, all ends together"),
}
"""Properties of the links between two switches in JSON."""

TOPOLOGY_SCHEMA: Final = record(
    version=described(COUNT, "Number that grows with each change of nodes or links"),
    shape=choice("levels", "free"),
    nodes=rowsOf(record(**SWITCH)),
    edges=rowsOf(record(**BUNDLE)),
)
"""JSON schema of a topology."""

Bundles = dict[tuple[GUID, GUID], list[Port]]


def bundles(fabric: Fabric) -> Search[Bundles]:
    """Find, in pieces, links between switches, each by its end at the lower GUID."""
    found: Bundles = {}
    for number, (one, other) in enumerate(fabric.links(), 1):
        if not number % _LINKS_AT_A_TIME:
            yield
        if one.node.isSwitch and other.node.isSwitch and one.node is not other.node:
            found.setdefault((one.node.guid, other.node.guid), []).append(one)
    return found


def bundleName(ends: tuple[GUID, GUID]) -> str:
    """Name of the links between two switches."""
    return f"{guidText(ends[0])}-{guidText(ends[1])}"


def bundleEnds(ends: tuple[GUID, GUID]) -> dict[str, str]:
    """Return the name of the links between two switches, and the switches, for JSON."""
    return {"id": bundleName(ends), "from": guidText(ends[0]), "to": guidText(ends[1])}


def levels(fabric: Fabric, joined: Iterable[tuple[GUID, GUID]]) -> dict[GUID, int] | None:
    """Level of each switch; None if the fabric is not a fat tree."""
    beside: dict[GUID, list[GUID]] = {node.guid: [] for node in fabric.switches()}
    for one, other in joined:
        if one in beside and other in beside:  # one may have been removed during a pause
            beside[one].append(other)
            beside[other].append(one)
    level = distances((node.guid for node in fabric.switches() if _hosts(node)), beside.__getitem__)
    if len(level) < len(beside):
        return None
    isTree = all(level[guid] != level[peer] for guid, peers in beside.items() for peer in peers)
    return level if isTree else None


def _hosts(node: Node) -> list[Node]:
    return [peer for peer in node.peers() if not peer.isSwitch]


def _natural(node: Node) -> tuple[list[tuple[int, str]], bytes]:
    """Order of names in which 10 comes after 9."""
    return naturalKey(node.description[:64]), node.guid.raw


def positions(
    fabric: Fabric, level: dict[GUID, int], joined: Iterable[tuple[GUID, GUID]]
) -> Search[dict[GUID, float]]:
    """
    Compute the position of each switch in its level, from 0 to 1, with pauses in a large fabric: above the
    lower switches linked to it, such as its pod, and among its peers by name. A missing link moves no switch.
    """
    rows: dict[int, list[GUID]] = {}
    for node in sorted(fabric.switches(), key=_natural):
        if node.guid in level:  # it may have been added during a pause
            rows.setdefault(level[node.guid], []).append(node.guid)
    below: dict[GUID, list[GUID]] = {}
    for one, other in joined:
        if one in level and other in level:
            upper, lower = (one, other) if level[one] > level[other] else (other, one)
            below.setdefault(upper, []).append(lower)
    found: dict[GUID, float] = {}
    first: dict[GUID, GUID] = {}  # leads to the first switch of a part that hangs together, in some steps

    def firstOf(guid: GUID) -> GUID:
        while first.setdefault(guid, guid) != guid:
            first[guid] = guid = first[first[guid]]
        return guid

    for number in sorted(rows):
        row = rows[number]
        for guid in row:
            for lower in below.get(guid, ()):
                one, other = sorted((firstOf(guid), firstOf(lower)), key=lambda each: found.get(each, inf))
                first[other] = one
        row.sort(key=lambda guid: found.get(firstOf(guid), inf))  # stable: names decide within a part
        found.update((guid, (at + 0.5) / len(row)) for at, guid in enumerate(row))
        if len(level) > _SWITCHES_AT_A_TIME:
            yield
    return found


def edge(context: PageContext, ports: list[Port]) -> dict[str, Any]:
    """Return the variable state of the links between two switches for JSON."""
    ends = [end for port in ports for end in (port, port.peer) if end is not None]
    loads = [load for load in map(context.load, ends) if load is not None]
    errors = [rate for rate in (linkErrors(context, port) for port in ports) if rate is not None]
    return {
        "links": len(ports),
        "down": sum(port.state is not PortState.ACTIVE for port in ports),
        "load": round(max(loads), 3) if loads else None,
        "errorRate": round(sum(errors), 3) if errors else None,
    }


def topology(context: PageContext) -> Search[list[bytes]]:
    """Make, with pauses, the JSON of switches, their hosts and their links: in pieces of some kilobytes."""
    fabric, version = context.fabric, context.poller.version
    found = yield from bundles(fabric)
    level = levels(fabric, found)
    if len(found) > _EDGES_AT_A_TIME:
        yield
    position = {} if level is None else (yield from positions(fabric, level, found))
    nodes = (row for _guid, row in nodeRows(context, level, position))
    edges = ({**bundleEnds(ends), **edge(context, ports)} for ends, ports in found.items())
    shape = "free" if level is None else "levels"
    pieces = yield from encoded({"version": version, "shape": shape}, nodes, edges)
    return pieces


def encoded(
    head: dict[str, Any], nodes: Iterator[dict[str, Any]], edges: Iterator[dict[str, Any]]
) -> Search[list[bytes]]:
    """Make, with pauses, the JSON of a topology, in pieces of some kilobytes."""
    several = yield from _encoded(nodes, _SWITCHES_AT_A_TIME)
    others = yield from _encoded(edges, _EDGES_AT_A_TIME)
    start = json.dumps(head)[:-1].encode() + b', "nodes": ['
    pieces = [start, *several, b'], "edges": [', *others, b"]}"]
    return pieces if len(several) > 1 or len(others) > 1 else [b"".join(pieces)]


def _encoded(rows: Iterator[dict[str, Any]], size: int) -> Search[list[bytes]]:
    """Encode rows, in pieces of C{size} rows; that of a list without its brackets."""
    pieces: list[bytes] = []
    while piece := list(islice(rows, size)):
        if pieces:
            yield
        pieces.append(b", " * bool(pieces) + json.dumps(piece)[1:-1].encode())
    return pieces


def nodeRows(
    context: PageContext, level: dict[GUID, int] | None, position: dict[GUID, float]
) -> Iterator[tuple[GUID, dict[str, Any]]]:
    """Yield the switches, each with its row for JSON."""
    for node in sorted(context.fabric.switches(), key=_natural):
        hosts = _hosts(node)
        yield (
            node.guid,
            {
                "guid": guidText(node.guid),
                "name": printable(node.description),
                "level": None if level is None else level.get(node.guid, 0),
                "place": position.get(node.guid),
                "hosts": len(hosts),
                "isSilent": context.isSilent(node),
                "worst": _worst(context, [node]),
                "hostsWorst": _worst(context, hosts),
            },
        )


def _worst(context: PageContext, nodes: Iterable[Node]) -> str | None:
    known = [found[0].severity for node in nodes if (found := context.findingsAt(node.guid))]
    return max(known).name.lower() if known else None
