"""
Credit loops: cycles of links each of which waits for buffers of the next one, so that packets can deadlock.

Follows W. J. Dally and C. L. Seitz, 1987: a routing is free of deadlocks if the dependencies of its channels
have no cycle. A channel is a virtual lane of a link in one direction; each lane has buffers of its own. The
lane of a packet at an output port follows from its service level and the switch's SLtoVLMappingTable, which
may differ by input port (IBA 7.6.6). Service levels are those of the SA's PathRecords.

Forwarding tables alone decide most fabrics: L{txrdma.fabric.routechecks} finds the links that wait for others
by these tables, and if links without lanes have no cycle (L{cyclic}), there is none. Only otherwise service
levels and lanes are queried, for paths through links in cycles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from txrdma.fabric.adaptive import Adaptive, STATIC
from txrdma.fabric.health import Finding
from txrdma.fabric.model import Fabric, Port
from txrdma.fabric.routeuse import Linear
from txrdma.fabric.routing import NO_PORT
from txrdma.iba.path import MADEndPort
from txrdma.iba.types import GUID
from txrdma.mad.errors import MADFailure
from txrdma.mad.layouts.sa import PathRecord
from txrdma.mad.layouts.smp import SLtoVLMappingTable
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule, MAX_OUTSTANDING

Link = tuple[GUID, int]
"""A link in one direction: the GUID of a switch and its output port."""

Crossing = tuple[GUID, int, int]
"""Passage of a switch: its GUID, input port and output port."""

Channel = tuple[Link, int]
"""A virtual lane of a link in one direction."""

MOST_SOURCES: Final = 128
"""Largest number of hosts whose paths are followed; in larger fabrics those of one host of each switch."""

MOST_PATHS: Final = 1_000_000
"""Largest number of paths that are followed."""

_PIECE: Final = 1000
"""Number of items of a graph that are processed between two pauses."""

_SA_OUTSTANDING: Final = 4

Item = TypeVar("Item", bound=Hashable)


# Cycles.


def cyclic(after: Mapping[Item, Iterable[Item]]) -> Generator[None, None, dict[Item, set[Item]]]:
    """
    Compute, with pauses, the part of a graph that is in cycles, or between two of them; empty if it has none.

    @param after: successors of each item.
    """
    graph: dict[Item, set[Item]] = {}
    for number, (item, items) in enumerate(after.items(), 1):
        graph[item] = set(items)
        if not number % _PIECE:
            yield
    for _direction in range(2):  # remove what has no successor, then what has no predecessor
        before = yield from _reversed(graph)
        free = [item for item in before if item not in graph]
        while free:
            removed = free.pop()
            if not len(before) % _PIECE:
                yield
            for item in before.pop(removed, ()):
                graph[item].discard(removed)
                if not graph[item]:
                    del graph[item]
                    free.append(item)
        graph = dict((yield from _reversed(graph)))
    return graph


def _reversed(graph: Mapping[Item, Iterable[Item]]) -> Generator[None, None, dict[Item, set[Item]]]:
    before: dict[Item, set[Item]] = defaultdict(set)
    for number, (item, items) in enumerate(graph.items(), 1):
        for each in items:
            before[each].add(item)
        if not number % _PIECE:
            yield
    return before


def cycle(graph: Mapping[Item, Iterable[Any]]) -> list[Any]:
    """Return a cycle of a graph in which each item has a successor; empty if the graph is."""
    if not graph:
        return []
    items: Mapping[Any, Iterable[Any]] = graph
    found = [min(items)]
    while True:
        following = min(items[found[-1]])
        if following in found:
            return found[found.index(following) :]
        found.append(following)


# Paths and their lanes.


@dataclass(slots=True)
class Lanes:
    """
    Service levels of paths, and virtual lanes of service levels.

    @ivar levels: service level by the source port and the destination LID.
    @ivar mappings: virtual lane of each service level, by crossing of a switch.
    @ivar isTruncated: whether there were more than L{MOST_PATHS} paths, of which others are unknown.
    """

    levels: dict[tuple[Port, int], int] = field(default_factory=dict)
    mappings: dict[Crossing, tuple[int, ...]] = field(default_factory=dict)
    isTruncated: bool = False


def crossings(
    linear: Linear, source: Port, lid: int, adaptive: Adaptive = STATIC
) -> Iterator[tuple[Crossing | None, Crossing]]:
    """
    Return the passages of switches by which packets from a host's port to a LID may get to another switch,
    each with the passage before it.
    """
    waiting: list[tuple[Port | None, Crossing | None]] = [(source.peer, None)]
    seen: set[Crossing] = set()
    while waiting:
        entry, before = waiting.pop()
        if entry is None or not entry.node.isSwitch:
            continue
        node = entry.node
        table, groups = linear.get(node.guid, b""), adaptive.get(node.guid)
        static = table[lid] if lid < len(table) else NO_PORT
        for out in (static,) if groups is None else groups.exits(lid, static):
            port = node.known(out) if 0 < out < NO_PORT else None
            peer = None if port is None else port.peer
            if peer is None or not peer.node.isSwitch:
                continue
            crossing = (node.guid, entry.number, out)
            yield before, crossing
            if crossing not in seen:
                seen.add(crossing)
                waiting.append((peer, crossing))


def findLaneCycle(
    linear: Linear,
    lanes: Lanes,
    within: Iterable[Link],
    found: list[Channel],
    adaptive: Adaptive = STATIC,
) -> Iterator[None]:
    """
    Find a cycle of channels that wait for each other, and yield after each path.

    @param within: links that are in cycles without regard to lanes.
    @param found: receives the cycle.
    """
    links = frozenset(within)
    after: dict[Channel, set[Channel]] = defaultdict(set)

    def channelOf(crossing: Crossing, level: int) -> Channel:
        mapping = lanes.mappings.get(crossing)
        return (crossing[0], crossing[2]), 0 if mapping is None else mapping[level]

    for (source, lid), level in lanes.levels.items():
        for before, crossing in crossings(linear, source, lid, adaptive):
            # A packet in the buffer of one channel waits for a credit of the next one on its path. A
            # dependency on a link outside of all cycles closes none.
            if before is not None and (before[0], before[2]) in links and (crossing[0], crossing[2]) in links:
                after[channelOf(before, level)].add(channelOf(crossing, level))
        yield
    found += cycle((yield from cyclic(after)))


# Queries.


class LaneSurvey:
    """
    Queries the service levels and lanes of paths through some links.

    @ivar lids: LIDs of hosts and routers; paths to others are ignored.
    """

    def __init__(
        self,
        rpcs: RPCs,
        endPort: MADEndPort,
        fabric: Fabric,
        linear: Linear,
        within: Iterable[Link],
        adaptive: Adaptive = STATIC,
    ) -> None:
        """@param within: links that are in cycles without regard to lanes."""
        self._rpcs = rpcs
        self._endPort = endPort
        self._fabric = fabric
        self._linear = linear
        self._adaptive = adaptive
        self._links = frozenset(within)
        self.lids = {lid for port in fabric.endPorts() if not port.node.isSwitch for lid in port.lids}
        self._lanes = Lanes()
        self._crossings: dict[Crossing, None] = {}

    async def run(self) -> Lanes:
        """
        Query the lanes.

        @raise MADFailure: the SA does not return paths, or a switch does not return its mapping.
        """
        schedule = MADSchedule(self._rpcs, _SA_OUTSTANDING)
        await schedule.run(mqueue=(self.pathsOf(schedule, source) for source in self._sources()))
        schedule = MADSchedule(self._rpcs, MAX_OUTSTANDING)
        await schedule.run(mqueue=(self._mappingOf(schedule, crossing) for crossing in self._crossings))
        return self._lanes

    def _sources(self) -> list[Port]:
        """Return the ports of all hosts, or of one host at each switch if there are many."""
        ports = [
            port
            for node in self._fabric.nodes.values()
            if not node.isSwitch
            for port in node.linked()
            if port.lid and port.peer is not None and port.peer.node.guid in self._linear
        ]
        if len(ports) <= MOST_SOURCES:
            return ports
        # Hosts of one switch differ in their first link only, and that is in no cycle.
        chosen: dict[GUID, Port] = {}
        for port in ports:
            assert port.peer is not None
            chosen.setdefault(port.peer.node.guid, port)
        return list(chosen.values())

    async def pathsOf(self, rpcs: RPCs, source: Port) -> None:
        """Query the service levels of all paths from a port."""
        if len(self._lanes.levels) >= MOST_PATHS:
            self._lanes.isTruncated = True
            return
        query = PathRecord.query(slid=source.lid, reversible=True, numbPath=1 << source.lmc)
        for record in await rpcs.SubnAdmGetTable(query):
            self.add(source, record)

    def add(self, source: Port, record: PathRecord) -> None:
        """Add a path from a port."""
        if record.dlid not in self.lids:
            return
        self._lanes.levels[source, record.dlid] = record.serviceLevel
        for _before, crossing in crossings(self._linear, source, record.dlid, self._adaptive):
            if (crossing[0], crossing[2]) in self._links:
                self._crossings[crossing] = None

    async def _mappingOf(self, rpcs: RPCs, crossing: Crossing) -> None:
        guid, entry, out = crossing
        path = toLID(self._endPort, self._fabric.nodes[guid].lid)
        answer = await rpcs.SubnGet(SLtoVLMappingTable, path, SLtoVLMappingTable.modifier(entry, out))
        self._lanes.mappings[crossing] = answer.vls


async def exhaust(steps: Iterator[None]) -> None:
    """Run all steps at once."""
    for _ in steps:
        pass


async def loopFindings(
    rpcs: RPCs,
    endPort: MADEndPort,
    fabric: Fabric,
    linear: Linear,
    graph: Mapping[Link, Iterable[Link]],
    cooperate: Callable[[Iterator[None]], Awaitable[object]] = exhaust,
    adaptive: Adaptive = STATIC,
) -> list[Finding]:
    """
    Return a finding if packets can deadlock: if virtual lanes of links wait for each other in a cycle.

    @param graph: links that wait for others in cycles by the forwarding tables, without regard to lanes.
    @param cooperate: runs steps of milliseconds.
    """
    if not graph:
        return []
    channels: list[Channel] = []
    try:
        lanes = await LaneSurvey(rpcs, endPort, fabric, linear, graph, adaptive).run()
    except MADFailure as error:
        unknown = str(error)
    else:
        unknown = f"the fabric has more than {MOST_PATHS} paths" if lanes.isTruncated else ""
        await cooperate(findLaneCycle(linear, lanes, graph, channels, adaptive))
    if channels:
        shown = " -> ".join(f"{_named(fabric, link)} VL {lane}" for link, lane in channels)
        text = f"{len(channels)} links wait for each other on these virtual lanes: {shown}"
    elif unknown:
        links = cycle(graph)
        shown = " -> ".join(_named(fabric, link) for link in links)
        but = f"unless their virtual lanes differ ({unknown})"
        text = f"{len(links)} links wait for each other, {but}: {shown}"
    else:
        return []
    return [Finding("credit-loop", "forwarding tables", text)]


def _named(fabric: Fabric, link: Link) -> str:
    node = fabric.nodes.get(link[0])
    return f"{link[0] if node is None else node} port {link[1]}"
