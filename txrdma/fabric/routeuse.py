"""Use of links by unicast forwarding tables: the LIDs routed over a link, and how evenly links are used."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from txrdma.fabric.adaptive import Adaptive, NO_GROUPS, STATIC
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.pace import Pace
from txrdma.fabric.routing import NO_PORT
from txrdma.iba.types import GUID
from txrdma.kit.graphs import distances

Linear = Mapping[GUID, bytes]
"""Linear forwarding tables by switch GUID; a table contains the output port number of each LID."""


@dataclass(frozen=True, slots=True)
class RouteUse:
    """One direction of a link, and the LIDs (with their ports) that are routed over it."""

    port: Port
    ends: list[tuple[int, Port]]

    def text(self, names: NodeNames) -> Iterator[str]:
        """Return readable lines: the link, then each LID that is routed over it."""
        peer = self.port.peer
        there = "" if peer is None else f" to {_name(peer.node, names)} port {peer.number}"
        here = f"{_name(self.port.node, names)} port {self.port.number}"
        yield f"Over {here}{there}: {len(self.ends)} LIDs"
        for lid, end in self.ends:
            yield f"  {lid:#06x} {_name(end.node, names)} port {end.number}"

    def toDict(self, names: NodeNames) -> dict[str, Any]:
        """Return the direction and its LIDs as a JSON-serializable dictionary."""
        return {
            "from": _end(self.port, names),
            "to": None if self.port.peer is None else _end(self.port.peer, names),
            "reached": [{"lid": lid, **_end(end, names)} for lid, end in self.ends],
        }


def usesOf(fabric: Fabric, port: Port, linear: Linear, adaptive: Adaptive = STATIC) -> Iterator[RouteUse]:
    """
    Return the LIDs of end nodes routed over a port's link, always or at times, for each direction with a
    known table.
    """
    owners = _owners(fabric)
    for each in (port, port.peer):
        if each is not None and each.node.guid in linear:
            table = linear[each.node.guid]
            groups = adaptive.get(each.node.guid, NO_GROUPS)
            lids = (
                lid
                for lid, out in enumerate(table)
                if lid in owners and (out == each.number or each.number in groups.members(lid))
            )
            yield RouteUse(each, [(lid, owners[lid]) for lid in lids])


@dataclass(frozen=True, slots=True)
class Balance:
    """
    Evenness of a switch's use of its links to other switches.

    @ivar groups: groups of equivalent links, which lead to the same hosts by the fewest hops: the number of
        LIDs by output port. A LID for which a switch chooses among several counts in equal parts.
    @ivar longer: number of LIDs that are routed over a link that is on no shortest path.
    """

    node: Node
    groups: list[dict[int, float]]
    longer: int = 0

    @property
    def isEven(self) -> bool:
        """Whether the numbers of LIDs of links in one group differ by at most one."""
        return all(_spread(group) <= 1 for group in self.groups)

    def row(self, names: NodeNames) -> list[object]:
        """Return a table row for L{BALANCE_COLUMNS}; its numbers are of the most uneven group."""
        worst = max(self.groups, key=_spread, default={})
        least, most = (min(worst.values()), max(worst.values())) if worst else ("", "")
        text = "" if self.isEven else "uneven: " + ", ".join(f"{p}:{n:g}" for p, n in sorted(worst.items()))
        return [self.node.lid, _name(self.node, names), len(worst), least, most, self.longer, text]

    def toDict(self, names: NodeNames) -> dict[str, Any]:
        """Return the balance of the switch as a JSON-serializable dictionary."""
        return {
            "guid": str(self.node.guid),
            "name": _name(self.node, names),
            "lid": self.node.lid,
            "isEven": self.isEven,
            "groups": [
                [{"port": port, "lids": many} for port, many in sorted(group.items())]
                for group in self.groups
            ],
            "longer": self.longer,
        }


BALANCE_COLUMNS = ("LID", "Switch", "Links", "Least LIDs", "Most LIDs", "Longer", "")


def _spread(group: dict[int, float]) -> float:
    return max(group.values()) - min(group.values())


def balances(fabric: Fabric, linear: Linear, adaptive: Adaptive = STATIC) -> Iterator[Balance | None]:
    """
    Yield None for pauses after milliseconds of work, then the balance of each switch whose forwarding table
    is known, with pauses as well.

    Only links that lead to the same hosts by the fewest hops are compared: all uplinks of a leaf switch, or
    the links from a spine switch to one leaf switch.
    """
    pace = Pace()
    links: dict[Node, list[tuple[int, Node]]] = {}
    edges: dict[Node, list[int]] = {}
    for node in list(fabric.switches()):
        linked = [port for port in node.linked() if port.number]
        if pace.isDue(len(linked)):
            yield None
        peers = [(port.number, port.peer) for port in linked if port.peer is not None]
        links[node] = [(number, peer.node) for number, peer in peers if peer.node.isSwitch]
        lids = [lid for _number, peer in peers if not peer.node.isSwitch for lid in peer.lids]
        if lids:
            edges[node] = lids
    beside = defaultdict(list, {node: [peer for _port, peer in several] for node, several in links.items()})
    tables = {node: linear[node.guid] for node in links if node.guid in linear}
    groups: dict[Node, dict[tuple[int, ...], dict[int, float]]] = {node: {} for node in links}
    longer: Counter[Node] = Counter()
    for edge, lids in edges.items():
        yield None
        hops = distances([edge], beside.__getitem__)
        for node, away in hops.items():
            table = tables.get(node)
            if not away or table is None:
                continue
            if pace.isDue(len(links[node]) + len(lids)):
                yield None
            shortest = tuple([port for port, peer in links[node] if hops.get(peer) == away - 1])
            used = groups[node].get(shortest)
            if used is None:
                used = groups[node][shortest] = dict.fromkeys(shortest, 0)
            choices = adaptive.get(node.guid, NO_GROUPS)
            chosen = choices.counted(lids) if choices.ports else []
            for members, many in chosen:
                for out in members.intersection(shortest):
                    used[out] += many / len(members)
                longer[node] += many * (not members.issubset(shortest))
            if chosen:
                many = sum([many for _members, many in chosen])
                static = [] if many == len(lids) else [lid for lid in lids if not choices.members(lid)]
            else:
                static = lids
            for lid in static:
                out = table[lid] if lid < len(table) else NO_PORT
                if out in shortest:
                    used[out] += 1
                elif out != NO_PORT:
                    longer[node] += 1
    for node in sorted(tables, key=lambda node: node.guid.raw):
        if pace.isDue(len(links[node])):
            yield None
        rounded = [{port: round(many, 1) for port, many in group.items()} for group in groups[node].values()]
        yield Balance(node, rounded, longer[node])


def _owners(fabric: Fabric) -> dict[int, Port]:
    """Return the ports of hosts and routers by each of their LIDs."""
    owners: dict[int, Port] = {}
    for port in fabric.endPorts():
        if not port.node.isSwitch:
            owners.update(dict.fromkeys(port.lids, port))
    return owners


def _name(node: Node, names: NodeNames) -> str:
    return names.name(node.guid, node.description)


def _end(port: Port, names: NodeNames) -> dict[str, Any]:
    return {"guid": str(port.node.guid), "name": _name(port.node, names), "port": port.number}
