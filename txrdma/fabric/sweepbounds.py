"""
Bounds of a sweep, and the choice of the branch that a sweep leaves out when it reaches them.

A faulty agent may invent a switch behind each port of an invented switch: such a fabric is infinite. The
sweep then leaves out all nodes behind the port that leads to most nodes, and completes the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from txrdma.fabric.model import Fabric, Node, Port, Problem
from txrdma.kit.logs import errorText

MOST_NODES: Final = 49_151
"""Largest number of nodes: a subnet has as many unicast LIDs (IBA 4.1.3), and each node needs one."""

_MOST_PORTS: Final = 500_000
"""Largest number of ports with the default limit of nodes; a fabric of 10,368 hosts has 65,000 ports."""

_PORTS_OF_NODE: Final = 10
"""Ports allowed per node if that is more than C{_MOST_PORTS}."""

MOST_HOPS: Final = 63
"""Largest number of hops of a directed route (IBA 14.2.2)."""

MOST_PROBLEMS: Final = 10_000
"""Largest number of problems that a sweep lists; further problems are only counted."""

UNPROCESSED: Final = "unprocessed"
"""Kind of problems that are exceptions raised while an answer was processed."""

LEFT_OUT: Final = "left-out"
"""Kind of the problem that a sweep reports when it reaches its bounds."""

_MOST_CUTS: Final = 4
"""Largest number of branches that a sweep leaves out; after that it admits no more nodes."""

_FEWEST_HOPS: Final = 2
"""Smallest number of hops to a branch: one hop leads to the whole fabric behind the local port."""


def unprocessed(where: str, what: str, error: Exception) -> Problem:
    """Return the problem of an answer that could not be processed; C{what} names its attribute."""
    return Problem(UNPROCESSED, where, f"{what}: {type(error).__name__}: {errorText(error)}")


def heaviest(routes: Iterable[bytes]) -> tuple[bytes, int]:
    """
    Find the most distant port that leads to more than half of the nodes.

    @param routes: hops of the directed routes to all nodes.
    @return: hops of the route through that port, and the number of nodes behind it.
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
    Bounds of one sweep, and the branches that it leaves out.

    @ivar cuts: hops of the routes to omitted branches.
    @ivar isFull: True if a node was rejected that is not in an omitted branch.
    """

    def __init__(self, mostNodes: int = MOST_NODES) -> None:
        self.cuts: list[bytes] = []
        self.isFull = False
        self._mostNodes = mostNodes
        self._mostPorts = max(_MOST_PORTS, mostNodes * _PORTS_OF_NODE)
        self._ports = 0

    def isCut(self, hops: Iterable[int]) -> bool:
        """Return whether a route leads into an omitted branch."""
        route = bytes(hops)
        return any(route.startswith(cut) for cut in self.cuts)

    def admits(self, fabric: Fabric, numPorts: int) -> bool:
        """Admit another node and count its ports. Return False if it exceeds the bounds."""
        if len(fabric.nodes) >= self._mostNodes or self._ports + numPorts >= self._mostPorts:
            return False
        self._ports += numPorts + 1
        return True

    def cut(self, fabric: Fabric) -> tuple[set[Node], list[Port]] | None:
        """
        Remove the branch with most nodes from a fabric that has reached its bounds.

        @return: removed nodes, and ports whose links led to them. None if no branch prevails, or if the limit
            of branches is reached: then nothing is removed, and L{fill} is called.
        """
        routes = {node: bytes(node.route.drPath) for node in fabric.nodes.values() if node.route is not None}
        head, number = heaviest(routes.values())
        if len(head) < _FEWEST_HOPS or len(self.cuts) >= _MOST_CUTS:
            self.fill(fabric)
            return None
        by = next((node for node, route in routes.items() if route == head[:-1]), None)
        where = "a port" if by is None else f"port {head[-1]} of {by}"
        text = f"{self._size(fabric)}, {number} of them behind {where}: what is behind it is left out"
        fabric.problems.append(Problem(LEFT_OUT, "DR " + ",".join(map(str, (0, *head))), text))
        self.cuts.append(head)
        removed = {node for node, route in routes.items() if route.startswith(head)}
        return removed, self._remove(fabric, removed)

    def fill(self, fabric: Fabric) -> None:
        """Record once, as a problem of the fabric, that a node was not admitted."""
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
