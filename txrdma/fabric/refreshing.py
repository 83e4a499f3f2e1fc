"""
Refresh of a known fabric: some nodes are queried again, and the model is updated with their changes.

A sweep queries all nodes; a refresh queries only nodes with signs of a change, and nodes behind them. As in a
sweep, an exception that is raised while a node's answers are processed becomes a problem of the fabric.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, ResourceExhausted
from txrdma.fabric.health import hasLink
from txrdma.fabric.model import (
    Fabric,
    isSame,
    localPortIn,
    Node,
    nodeGUIDIn,
    numPortsIn,
    Port,
    portGUIDIn,
)
from txrdma.fabric.sweepbounds import MOST_HOPS, MOST_PROBLEMS, unprocessed
from txrdma.iba.path import IBDRPath, IBPath, MADEndPort
from txrdma.iba.types import GUID
from txrdma.kit.rawfields import span
from txrdma.mad.errors import MADFailure
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.smp import NodeDescription, NodeInfo, PortInfo
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs

_log = Logger()

_ARRIVAL: Final = span(PortInfo, "localPortNum")

AttributeT = TypeVar("AttributeT", bound=Attribute)


class Refresh:
    """
    Refresh of some nodes of a fabric, which is modified: await L{refresh} for each node, then L{finish}.

    @ivar touched: GUIDs of nodes that were queried, that gained or lost a link, or that were removed.
    @ivar changed: nodes with a changed PortInfo, link or node description.
    @ivar isRelinked: True if a node or a link was added or removed.
    @ivar unclear: reason why the whole fabric has to be swept; C{""} if there is none.
    @ivar isIncomplete: True if answers of a node could not be processed.
    @ivar asked: number of ports whose PortInfo was queried.
    """

    def __init__(
        self, rpcs: RPCs, endPort: MADEndPort, fabric: Fabric, timeoutSeconds: float, retries: int
    ) -> None:
        self.touched: set[GUID] = set()
        self.changed: dict[Node, None] = {}
        self.isRelinked = self.isIncomplete = self._isLogged = False
        self.unclear = ""
        self.asked = 0
        self._known: set[GUID] = set()
        self._rpcs = rpcs
        self._endPort = endPort
        self._fabric = fabric
        self._seconds = timeoutSeconds
        self._retries = retries
        self._loose: list[Port] = []

    async def refresh(self, node: Node, isThorough: bool = False) -> None:
        """
        Query the ports of a node, and the nodes behind ports whose links have come up.

        @param isThorough: also query the node's description, and verify the nodes behind all ports.
        @raise txrdma.error.DeviceUnavailable: the local port is lost.
        @raise txrdma.error.ResourceExhausted: the local port cannot send at present.
        @raise MADFailure: the node does not answer.
        """
        with self._isolated(node):
            await self._refresh(node, isThorough)

    async def _refresh(self, node: Node, isThorough: bool) -> None:
        came = []
        self.touched.add(node.guid)
        for port in [port for port in node.ports.values() if port.raw]:
            hadLink = hasLink(port)
            if not await self._askPort(port):
                return
            if not hasLink(port):
                self._cut(port)
            elif port.number and (not hadLink or (isThorough and _isExit(port))):
                came.append(port)
        if isThorough:
            await self._identify(node, toLID(self._endPort, node.lid))
        for port in came:
            await self._beyond(port)

    async def finish(self) -> None:
        """
        Query ports whose links were removed, and remove nodes that cannot be reached any more.

        @raise txrdma.error.DeviceUnavailable: the local port is lost.
        """
        if not self.isRelinked:
            return
        gone = self._reach()
        if any(node.isSwitch for node in gone):
            self.unclear = "a switch is gone"
        for port in self._loose:
            node = port.node
            if self._fabric.nodes.get(node.guid) is node and port.peer is None and port.raw:
                with self._isolated(node):
                    await self._followLoose(port)

    async def _followLoose(self, port: Port) -> None:
        """Query a port whose link was removed, and the node behind it if it has a link again."""
        try:
            isUnchanged = await self._askPort(port)
        except MADFailure:
            self.unclear = f"{port} does not answer"
            return
        if isUnchanged and hasLink(port):
            await self._beyond(port)

    @contextmanager
    def _isolated(self, node: Node) -> Iterator[None]:
        """Report an exception in the processing of a node's answers as a problem; log one per refresh."""
        try:
            yield
        except (CancelledError, DeviceUnavailable, ResourceExhausted, MADFailure):
            raise
        except Exception as error:
            self.unclear = f"answers of {node} could not be processed"
            problems = self._fabric.problems
            problem = unprocessed(str(node.route or node), str(node), error)
            if problem not in problems:
                if len(problems) < MOST_PROBLEMS:
                    problems.append(problem)
                if not self._isLogged:
                    _log.failure("answers of {node} could not be processed", node=str(node))
                    self._isLogged = True
            self.isIncomplete = True

    async def _ask(self, kind: type[AttributeT], path: IBPath, modifier: int = 0) -> AttributeT:
        answer: AttributeT = await self._rpcs.SubnGet(
            kind, path, modifier, timeoutSeconds=self._seconds, retries=self._retries
        )
        return answer

    async def _askPort(self, port: Port) -> bool:
        """Query a port's PortInfo; return False if another node has answered, as its LID was reassigned."""
        node, path = port.node, toLID(self._endPort, port.lid or port.node.lid)
        raw = (await self._ask(PortInfo, path, port.number)).encode()
        self.asked += 1
        if withoutArrival(raw) == withoutArrival(port.raw):
            return True
        if node.guid not in self._known:
            if not await self._isStill(node, path):
                return False
            self._known.add(node.guid)
        self.changed[node] = None
        port.setInfo(raw)
        return True

    async def _isStill(self, node: Node, path: IBPath) -> bool:
        raw = (await self._ask(NodeInfo, path)).encode()
        if isSame(raw, node.raw):
            return True
        self.unclear = f"{node} has changed"
        return False

    async def _identify(self, node: Node, path: IBPath) -> None:
        """Query the node's description and identity, which may have changed."""
        description = (await self._ask(NodeDescription, path)).text
        if await self._isStill(node, path) and description != node.description:
            node.description = description
            self.changed[node] = None

    def _cut(self, port: Port) -> None:
        """Remove a port's link from the model."""
        peer = port.peer
        if peer is not None:
            port.peer = peer.peer = None
            self._loose.append(peer)
            self._relinked(port, peer)

    async def _beyond(self, port: Port) -> None:
        """Query the node at the other end of a port's link, and store the link."""
        node = port.node
        route = node.route
        if route is None or len(route.drPath) >= MOST_HOPS or not _isExit(port):
            if port.peer is None:  # otherwise the link was found from its other end
                self.unclear = f"{port} cannot be traversed"
            return
        path = route.then(port.number)
        isKnown = port.peer is not None
        try:
            raw = (await self._ask(NodeInfo, path)).encode()
            isKnown = False
            await self._join(port, raw, path)
        except MADFailure as error:
            if not isKnown:
                self.unclear = f"behind {port}: {error}"

    async def _join(self, port: Port, raw: bytes, path: IBDRPath) -> None:
        """Link a port to the node that answers behind it; what it cannot explain makes C{unclear}."""
        guid, number = GUID(nodeGUIDIn(raw)), localPortIn(raw)
        node = self._fabric.nodes.get(guid)
        peer = port.peer
        if peer is not None and (peer.node is node and peer.number == number):
            return
        if node is not None and not isSame(raw, node.raw):
            self.unclear = f"{node} is at two places"
            return
        if not 0 < number <= numPortsIn(raw):
            self.unclear = f"{node or guid} reports that its port {number} is behind {port}"
            return
        if node is None:
            description = (await self._ask(NodeDescription, path)).text
        else:
            description = node.description
        info = (await self._ask(PortInfo, path, number)).encode()
        # Nothing was changed before the answers: meanwhile another refresh may remove nodes without links.
        node, isNew = self._fabric.add(raw, path)
        if isNew:
            node.description = description
            if node.isSwitch:
                self.unclear = f"{node} is new"
        self._cut(port)
        here = node.port(number)
        self._cut(here)
        node.setPortGUID(number, GUID(portGUIDIn(raw)))
        here.setInfo(info)
        self._fabric.link(port, here)
        self._relinked(port, here)

    def _relinked(self, *ports: Port) -> None:
        self.isRelinked = True
        for port in ports:
            self.touched.add(port.node.guid)
            self.changed[port.node] = None

    def _reach(self) -> list[Node]:
        """Recompute the routes to all nodes, and remove unreachable nodes."""
        nodes = self._fabric.nodes
        starts = [node for node in nodes.values() if node.isLocal]
        if not starts:
            self.unclear = "the route from the local port is unknown"
            return []
        seen = set(starts)
        waiting = deque(starts)
        while waiting:
            node = waiting.popleft()
            for port in node.linked():
                assert port.peer is not None  # it is linked
                there = port.peer.node
                if there not in seen and _isExit(port):
                    seen.add(there)
                    waiting.append(there)
                    there.follow(node, port.number)
        gone = [node for node in nodes.values() if node not in seen]
        if len(seen) == len(starts):
            self.unclear = "the local port has no link"  # so the other nodes may still exist
            return []
        for node in gone:
            self.touched.add(node.guid)
            del nodes[node.guid]
        return gone


def _isExit(port: Port) -> bool:
    """Return whether a directed route can leave its node by a port: any of a switch, or the local one."""
    node = port.node
    return node.isSwitch or (node.isLocal and port.number == localPortIn(node.raw))


def withoutArrival(raw: bytes) -> bytes:
    """Return PortInfo without LocalPortNum, which depends on the path of the request."""
    return raw[: _ARRIVAL.start] + raw[_ARRIVAL.stop :]


def leadingTo(found: Node | Port | None) -> Node | None:
    """Return the node to query about changes of C{found}: for a host the switch to which it is linked."""
    if isinstance(found, Node):
        linked = found.linked()
        found = linked[0] if linked and not found.isSwitch else found
    if isinstance(found, Port):
        return found.node if found.peer is None else found.peer.node
    return found


async def hasOtherLID(rpcs: RPCs, node: Node, timeoutSeconds: float, retries: int) -> bool:
    """
    Query a node by its directed route, and return whether its LID has changed; False without an answer.

    @raise txrdma.error.DeviceUnavailable: the local port is lost.
    """
    if node.route is None:
        return False
    try:
        info = await rpcs.SubnGet(PortInfo, node.route, timeoutSeconds=timeoutSeconds, retries=retries)
    except MADFailure:
        return False
    port = node.known(0 if node.isSwitch else info.localPortNum)
    return port is not None and info.lid != port.lid
