"""
Bounds of a sweep, and the branch of a fabric that is left out where a sweep comes to them.

An agent may invent a switch behind each port of a switch that it has invented before: such a fabric has no
end. What is behind the port that leads to most nodes is left out then, and the rest is swept as ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from txrdma.fabric.model import Fabric, Node, Port, Problem

MOST_NODES: Final = 49_151
"""Most nodes of a fabric: a subnet has as many unicast LIDs (IBA 4.1.3), and each node takes one of them."""

_MOST_PORTS: Final = 500_000
"""Most ports of a fabric that has no more nodes than that; one of 10,368 hosts has 65,000 ports."""

_PORTS_OF_NODE: Final = 10
"""Ports for each node where more nodes are admitted."""

MOST_HOPS: Final = 63
"""Most hops of a directed route (IBA 14.2.2)."""

MOST_PROBLEMS: Final = 10_000
"""Most problems that a sweep lists; more of them are counted."""

LEFT_OUT: Final = "left-out"
"""Kind of the problem that a sweep reports when it reaches its bounds."""

_MOST_CUTS: Final = 4
"""Most branches that a sweep leaves out; it ends after that many."""

_FEWEST_HOPS: Final = 2
"""Fewest hops to a branch: all of a fabric is behind our own port."""


def heaviest(routes: Iterable[bytes]) -> tuple[bytes, int]:
    """
    Find the furthest port that leads to more than half of the nodes.

    @param routes: hops of the directed routes to all nodes.
    @return: hops of the route to what is behind that port, and the number of nodes there.
    """
    among = list(routes)
    half = len(among) / 2
    head, number = b"", len(among)
    while True:
        depth = len(head) + 1
        counts = Counter(route[:depth] for route in among if len(route) >= depth)
        found = counts.most_common(1)
        if not found or found[0][1] <= half:
            return head, number
        head, number = found[0]
        among = [route for route in among if route.startswith(head)]


class Bounds:
    """
    Bounds of one sweep: how many nodes and ports it has entered, and which branches it has left out.

    @ivar cuts: hops of the routes to the branches that are left out.
    @ivar isFull: True if something was left out that no branch stands for.
    """

    def __init__(self, mostNodes: int = MOST_NODES) -> None:
        self.cuts: list[bytes] = []
        self.isFull = False
        self._mostNodes = mostNodes
        self._mostPorts = max(_MOST_PORTS, mostNodes * _PORTS_OF_NODE)
        self._ports = 0

    def isCut(self, hops: Iterable[int]) -> bool:
        """True of a route to a branch that is left out."""
        route = bytes(hops)
        return any(route.startswith(cut) for cut in self.cuts)

    def admits(self, fabric: Fabric, numPorts: int) -> bool:
        """Count the ports of another node; False where there is no room for it."""
        if len(fabric.nodes) >= self._mostNodes or self._ports + numPorts >= self._mostPorts:
            return False
        self._ports += numPorts + 1
        return True

    def cut(self, fabric: Fabric) -> tuple[set[Node], list[Port]] | None:
        """
        Remove the heaviest branch of a fabric that has come to its bounds.

        @return: nodes that were removed, and ports whose links led to them; None where no branch is heavier
            than the others, or several were removed already: then nothing has changed, but C{isFull}.
        """
        routes = {node: bytes(node.route.drPath) for node in fabric.nodes.values() if node.route is not None}
        head, number = heaviest(routes.values())
        if len(head) < _FEWEST_HOPS or len(self.cuts) >= _MOST_CUTS:
            self.fill(fabric)
            return None
        by = next((node for node, route in routes.items() if route == head[:-1]), None)
        place = "a port" if by is None else f"port {head[-1]} of {by}"
        text = f"{self._size(fabric)}, {number} of them behind {place}: what is behind it is left out"
        fabric.problems.append(Problem(LEFT_OUT, "DR " + ",".join(map(str, (0, *head))), text))
        self.cuts.append(head)
        removed = {node for node, route in routes.items() if route.startswith(head)}
        return removed, self._remove(fabric, removed)

    def fill(self, fabric: Fabric) -> None:
        """Note, once, that a node was not admitted."""
        if not self.isFull:
            self.isFull = True
            text = f"{self._size(fabric)}: others are left out"
            fabric.problems.append(Problem(LEFT_OUT, "the sweep", text))

    def _size(self, fabric: Fabric) -> str:
        return f"more nodes or ports answer than may: {len(fabric.nodes)} nodes with {self._ports} ports"

    def _remove(self, fabric: Fabric, removed: set[Node]) -> list[Port]:
        loose = []
        for node in removed:
            del fabric.nodes[node.guid]
            self._ports -= node.numPorts + 1
            for port in node.linked():
                peer = port.peer
                if peer is not None and peer.node not in removed:
                    peer.peer = None
                    loose.append(peer)
        return loose
