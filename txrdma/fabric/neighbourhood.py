"""
Discovery of a node and its neighbourhood without a sweep of the whole fabric.

Follows InfiniBand Architecture vol. 1, 14.2.2 (directed routes) and 15.2.5.13 (LinkRecord).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from twisted.internet.defer import Deferred

from txrdma.fabric.asking import Asker
from txrdma.fabric.health import hasLink
from txrdma.fabric.model import Fabric, isSame, Node, Port
from txrdma.fabric.sweepbounds import Bounds, MOST_HOPS, MOST_NODES
from txrdma.iba.path import IBDRPath, IBPath, MADEndPort, PERMISSIVE_LID
from txrdma.kit.graphs import distances
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.sa import LinkRecord
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule, MAX_OUTSTANDING


def around(first: Node, hops: int) -> list[Node]:
    """Return the nodes of a known fabric at most C{hops} links away from the first, nearest first."""
    return list(distances([first], Node.peers, hops))


@dataclass(frozen=True, slots=True)
class _Reached:
    """
    A node of the neighbourhood, and the path by which it was reached.

    @ivar route: path to the node.
    @ivar number: number of the node's port at the end of the path.
    """

    node: Node
    route: IBPath
    number: int


@dataclass(frozen=True, slots=True)
class _Exit:
    """
    A link to follow, from one of its ports.

    @ivar number: number of the port at the other end, if it is known without a query.
    """

    port: Port
    route: IBPath
    number: int | None = None


class Neighbourhood:
    """
    Sweep of a node and of all nodes within a number of links.

    Links of a switch at the end of a directed route are followed by longer routes. The peer of a host at the
    end of a directed route is one hop back. Without a directed route, the SA is queried for links.

    Nodes are added in the order of their distance, regardless of the order of answers.

    @ivar fabric: nodes discovered so far. Of nodes beyond the distance, if links are queried, it has the
        NodeInfo and the ports at which these links end.
    @ivar first: the central node; None until it has answered.
    @ivar progress: called after answers with the numbers of queried and of known nodes.
    """

    def __init__(
        self,
        rpcs: RPCs,
        endPort: MADEndPort,
        hops: int = 0,
        withLinks: bool = True,
        byLIDs: bool = False,
        maxOutstanding: int = MAX_OUTSTANDING,
        mostNodes: int = MOST_NODES,
    ) -> None:
        """
        @param rpcs: sends the queries; the sweep does not close it.
        @param hops: largest distance from the first node, in links.
        @param withLinks: also query the links of the outermost nodes.
        @param byLIDs: query by LIDs along the SA's links instead of directed routes.
        @param mostNodes: limit of nodes; see L{Bounds}. Omitted nodes are reported as a problem.
        """
        self.fabric = Fabric()
        self.first: Node | None = None
        self.progress: Callable[[int, int], None] | None = None
        self._schedule = MADSchedule(rpcs, maxOutstanding)
        self._asker = Asker(self.fabric, self._schedule)
        self._endPort = endPort
        self._hops = hops
        self._withLinks = withLinks
        self._byLIDs = byLIDs
        self._bounds = Bounds(mostNodes)
        self._done = self._known = 0

    def run(self, start: IBPath) -> Deferred[Fabric]:
        """
        Sweep the neighbourhood of one node.

        @param start: path to the central node.
        @return: fires with the fabric, even if it has problems. Cancelling it cancels outstanding queries.
        """
        return self._schedule.run(self._run(self._plain(start)))

    def _plain(self, start: IBPath) -> IBPath:
        """Return the path, or the empty directed route if the path leads to a local LID."""
        end = self._endPort
        isLocal = end.lid and 0 <= start.dlid - end.lid < 1 << end.lidMask
        return IBDRPath() if isLocal and not isinstance(start, IBDRPath) and not self._byLIDs else start

    async def _run(self, start: IBPath) -> Fabric:
        """Query all nodes at one distance, then those behind them, up to the limit of hops."""
        reached: list[_Reached] = []
        await self._meet(start, None, None, reached)
        if not reached:
            return self.fabric
        self.first = reached[0].node
        for distance in range(self._hops + 1):
            isLast = distance == self._hops
            if isLast and not self._withLinks:
                await self._each(self._switch(there) for there in reached)
                break
            await self._each(self._whole(there) for there in reached)
            exits: list[_Exit] = []
            await self._each(self._leave(there, exits) for there in reached)
            reached = []
            self._known += len(exits)
            await self._each(self._meet(exit_.route, exit_.port, exit_.number, reached) for exit_ in exits)
            if not reached:
                break
        return self.fabric

    async def _each(self, works: Iterable[Any]) -> None:
        await self._schedule.mqueue(works)

    # A node.

    async def _meet(
        self, route: IBPath, arrival: Port | None, number: int | None, reached: list[_Reached]
    ) -> None:
        """Query NodeInfo and PortInfo at the end of a route, and add a new node to C{reached}."""
        if not self._bounds.isFull and (arrival is None or arrival.peer is None):
            info = await self._asker.node(route)
            if info is not None:
                await self._met(info, route, arrival, number or info.localPortNum, reached)
        self._done += 1
        if self.progress is not None:
            self.progress(self._done, max(self._done, self._known + 1))

    async def _met(
        self, info: NodeInfo, route: IBPath, arrival: Port | None, number: int, reached: list[_Reached]
    ) -> None:
        """Add the node at the end of a route and its link, or report why it cannot be there."""
        if info.nodeGUID not in self.fabric.nodes and not self._bounds.admits(self.fabric, info.numPorts):
            self._bounds.fill(self.fabric)
            return
        node, isNew = self.fabric.add(info, route if isinstance(route, IBDRPath) else None)
        if not isSame(info.encode(), node.raw):
            self._asker.problem("duplicate-guid", route, f"another one has the GUID of {node}")
            return
        if number > node.numPorts or (number == 0 and not node.isSwitch):
            self._asker.problem("contradiction", route, f"{node} reports that its port {number} is here")
            return
        here = node.port(number)
        if arrival is not None and not self.fabric.link(arrival, here):
            text = f"{here} is at {arrival}, and is linked to {here.peer or arrival.peer}"
            self._asker.problem("duplicate-guid", route, text)
        # Only the first answer about a node continues from it: others reach it by other links.
        if isNew:
            reached.append(_Reached(node, route, number))
            await self._asker.description(node, route)
            if node.isSwitch:
                await self._asker.port(node.port(0), route)
        # The port of the link, also of a node that is not queried further: its state belongs to the link.
        if not here.raw and (arrival is not None or not node.isSwitch):
            await self._asker.port(here, route)

    async def _switch(self, there: _Reached) -> None:
        if there.node.isSwitch:
            await self._asker.switch(there.node, there.route)

    async def _whole(self, there: _Reached) -> None:
        """Query the remaining attributes of a node: for a switch SwitchInfo and all ports."""
        await self._switch(there)
        node = there.node
        if node.isSwitch:
            ports = [node.port(number) for number in range(1, node.numPorts + 1)]
            await self._each(self._asker.port(port, there.route) for port in ports if not port.raw)

    # Links of a node.

    async def _leave(self, there: _Reached, exits: list[_Exit]) -> None:
        """Find the links of a node that are up and not known yet, and add them to C{exits}."""
        node, route = there.node, there.route
        ports = node.ports.values() if node.isSwitch else [node.port(there.number)]
        open_ = {port.number: port for port in ports if port.number and port.peer is None and hasLink(port)}
        if not open_:
            return
        if self._byLIDs or not isinstance(route, IBDRPath):
            await self._linksBySA(list(open_.values()), route, exits)
        elif node.isSwitch or _isHere(route):
            if len(route.drPath) < MOST_HOPS:
                exits += [_Exit(port, route.then(number)) for number, port in open_.items()]
        elif route.drPath:
            exits.append(_Exit(open_[there.number], self._before(route), route.drPath[-1]))

    def _before(self, route: IBDRPath) -> IBPath:
        """Return the path to the last switch before the end of a directed route."""
        hops = route.drPath[:-1]
        if not hops and route.dlid != PERMISSIVE_LID:
            return toLID(self._endPort, route.dlid)
        return replace(route, drPath=hops)

    async def _linksBySA(self, ports: list[Port], route: IBPath, exits: list[_Exit]) -> None:
        """
        Query the SA for the links of these ports, one by one.

        These are few links, and some SAs that answer single queries fail to deliver whole tables.
        """
        first, *others = ports
        if not (first.lid and self._endPort.smLID):
            what = "the local port knows no subnet manager" if first.lid else f"{first.node} has no LID"
            self._asker.problem("incomplete", route, f"{what}, so that its links are unknown")
        elif await self._linked(first, route, exits):  # a silent node gets no further requests
            await self._each(self._linked(port, route, exits) for port in others)

    async def _linked(self, port: Port, route: IBPath, exits: list[_Exit]) -> bool:
        """Query the SA for the link of a port. Return False if it did not answer."""
        query = LinkRecord.query(fromLID=port.lid, fromPort=port.number)
        try:
            link = await self._schedule.SubnAdmGet(query)
        except MADError as error:
            self._asker.problem("incomplete", route, f"the SA has no link of {port}: {error}")
            return True
        except MADFailure as error:
            sa = toLID(self._endPort, self._endPort.smLID)
            self._asker.problem("unreachable", sa, f"LinkRecord of {port}: {error}")
            return False
        exits.append(_Exit(port, toLID(self._endPort, link.toLID), link.toPort))
        return True


def _isHere(route: IBDRPath) -> bool:
    """Return whether a directed route leads to the local port."""
    return not route.drPath and route.dlid == PERMISSIVE_LID
