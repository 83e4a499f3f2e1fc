"""
What forwarding tables make of links: who is reached over one, and how evenly they are used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from txrdma.commands.nodenames import NodeNames
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.mad.fabric import Fabric, Node, Port
from txrdma.mad.health import endPorts
from txrdma.mad.routing import NO_PORT

Linear = Mapping[GUID, bytes]
"""Of each switch the port for each LID."""


@dataclass(frozen=True, slots=True)
class Use:
    """One direction of a link: whoever is reached by it, as LIDs with their ports."""

    port: Port
    ends: list[tuple[int, Port]]

    def text(self, names: NodeNames) -> Iterator[str]:
        """For people."""
        peer = self.port.peer
        there = "" if peer is None else f" to {_name(peer.node, names)} port {peer.number}"
        here = f"{_name(self.port.node, names)} port {self.port.number}"
        yield f"Over {here}{there} {len(self.ends)} LIDs are reached:"
        for lid, end in self.ends:
            yield f"  {lid:#06x} {_name(end.node, names)} port {end.number}"

    def toDict(self, names: NodeNames) -> dict[str, Any]:
        """For programs."""
        return {
            "from": _end(self.port, names),
            "to": None if self.port.peer is None else _end(self.port.peer, names),
            "reached": [{"lid": lid, **_end(end, names)} for lid, end in self.ends],
        }


def usesOf(fabric: Fabric, port: Port, linear: Linear) -> Iterator[Use]:
    """Both directions of a port's link, as far as switches decide on them: which hosts and routers."""
    owners = _owners(fabric)
    for each in (port, port.peer):
        if each is not None and each.node.guid in linear:
            table = linear[each.node.guid]
            lids = (lid for lid, out in enumerate(table) if out == each.number and lid in owners)
            yield Use(each, [(lid, owners[lid]) for lid in lids])


@dataclass(frozen=True, slots=True)
class Balance:
    """
    How many LIDs of hosts and routers a switch sends by each of its ports to other switches.

    @ivar counts: by port.
    """

    node: Node
    counts: dict[int, int]

    @property
    def isEven(self) -> bool:
        """Whether no port has more than one more than another."""
        values = self.counts.values()
        return not values or max(values) - min(values) <= 1

    def row(self, names: NodeNames) -> list[object]:
        """For people."""
        values = self.counts.values()
        most, least = (max(values), min(values)) if values else ("", "")
        said = "" if self.isEven else "uneven: " + ", ".join(f"{p}:{n}" for p, n in self.counts.items())
        return [self.node.lid, _name(self.node, names), len(values), least, most, said]

    def toDict(self, names: NodeNames) -> dict[str, Any]:
        """For programs."""
        return {
            "guid": str(self.node.guid),
            "name": _name(self.node, names),
            "lid": self.node.lid,
            "isEven": self.isEven,
            "ports": [{"port": port, "lids": many} for port, many in self.counts.items()],
        }


BALANCE_COLUMNS = ("LID", "Switch", "Ports", "Least LIDs", "Most LIDs", "")


def balances(fabric: Fabric, linear: Linear) -> Iterator[Balance]:
    """Of each switch that has told its table."""
    owners = _owners(fabric)
    for node in sorted(fabric.switches(), key=lambda node: node.guid.raw):
        if node.guid not in linear:
            continue
        used = Counter(port for lid, port in enumerate(linear[node.guid]) if lid in owners)
        ports = [
            number
            for number, port in sorted(node.ports.items())
            if number and number != NO_PORT and port.peer is not None and port.peer.node.isSwitch
        ]
        yield Balance(node, {number: used[number] for number in ports})


def _owners(fabric: Fabric) -> dict[int, Port]:
    """Whose a LID is, of hosts and routers."""
    owners: dict[int, Port] = {}
    for port in endPorts(fabric):
        if port.lid and port.node.type is not NodeType.SWITCH:
            owners.update(dict.fromkeys(range(port.lid, port.lid + (1 << port.info.lmc)), port))
    return owners


def _name(node: Node, names: NodeNames) -> str:
    return names.name(node.guid, node.description)


def _end(port: Port, names: NodeNames) -> dict[str, Any]:
    return {"guid": str(port.node.guid), "name": _name(port.node, names), "port": port.number}
