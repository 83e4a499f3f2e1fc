"""
Forwarding tables, and the paths of packets through a fabric that follow from them, hop by hop.

Follows InfiniBand Architecture vol. 1, 14.2.5.10 and 14.2.5.12 (the tables), 18.2.4 (their use by switches).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Union

from txrdma.error import InvalidRequest, RDMAError
from txrdma.fabric.adaptive import (
    Adaptive,
    AdaptiveGroups,
    adaptiveInfo,
    MELLANOX,
    NO_GROUPS,
    STATIC,
    UNKNOWN_ROUTES,
)
from txrdma.fabric.model import Fabric, lmcIn, Port
from txrdma.fabric.sweepbounds import MOST_HOPS
from txrdma.iba.path import IBDRPath, IBPath, MADEndPort
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType, PhysicalState
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts import sa
from txrdma.mad.layouts.smp import (
    LinearForwardingTable,
    MulticastForwardingTable,
    NodeDescription,
    NodeInfo,
    PortInfo,
    SwitchInfo,
)
from txrdma.mad.layouts.values import SAStatus
from txrdma.mad.rpcs import RPCs
from txrdma.mad.satransactor import SATransactor

NO_PORT: Final = 0xFF
"""Entry of a linear forwarding table: packets for this LID are dropped."""

FIRST_MULTICAST: Final = 0xC000

_LIDS_IN_BLOCK: Final = 64
_GROUPS_IN_BLOCK: Final = 32
_PORTS_IN_POSITION: Final = 16


@dataclass(frozen=True, slots=True)
class Stop:
    """
    A node on a packet's path, as queried through the port by which the packet enters it.

    @ivar route: path of SMPs to the node; if the SA is queried, a path with the node's LID.
    @ivar entry: input port of the packet; at the source the node's port, which is 0 for a switch.
    @ivar lid: base LID of the port, for a switch of port 0; the port has 2**C{lmc} LIDs.
    """

    route: IBPath
    info: NodeInfo
    description: str
    lid: LID
    lmc: int
    entry: int

    @property
    def isSwitch(self) -> bool:
        """Whether the node is a switch."""
        return self.info.nodeType is NodeType.SWITCH

    @property
    def portGUID(self) -> GUID:
        """GUID of the port that was queried; for a switch that of port 0."""
        return self.info.portGUID

    def owns(self, lid: int) -> bool:
        """Return whether the LID is one of the port's LIDs."""
        return bool(self.lid) and self.lid <= lid < self.lid + (1 << self.lmc)


@dataclass(frozen=True, slots=True)
class Hop:
    """
    Hop of a packet's path.

    @ivar exit: output port of the packet; 0 at the end of the path.
    @ivar others: further output ports among which a switch with adaptive routing chooses.
    @ivar depth: number of hops from the source.
    @ivar parent: index of the previous hop, which is needed where multicast paths fork; -1 at the source.
    """

    stop: Stop
    exit: int = 0
    depth: int = 0
    parent: int = -1
    others: tuple[int, ...] = ()


class NoRoute(RDMAError):
    """
    The forwarding tables do not lead to the LID, or the path cannot be followed to it.

    @ivar hops: the path up to the node where it fails.
    """

    def __init__(self, message: str, hops: list[Hop]) -> None:
        super().__init__(message)
        self.hops = hops


class Unread(RDMAError):
    """A forwarding table, or the node behind a port, was not read."""


# Paths.


async def trace(view: View, target: int, source: int | None = None) -> list[Hop]:
    """
    Return the path of a packet to the LID C{target}.

    @param source: LID of the source; by default that of the local port.
    @raise NoRoute: the forwarding tables do not lead to the target, or a node on the path does not answer.
    """
    stop = await view.begin(source)
    hops: list[Hop] = []
    while not stop.owns(target):
        if len(hops) >= MOST_HOPS:
            raise NoRoute(f"a packet for LID {target} loops", hops)
        if hops and not stop.isSwitch:
            raise NoRoute(f"a packet for LID {target} ends at {_named(stop)}, which is not a switch", hops)
        last = Hop(stop, 0, len(hops), len(hops) - 1)
        try:
            port = await view.exitFor(stop, target) if stop.isSwitch else stop.info.localPortNum
        except (MADFailure, Unread) as error:
            raise NoRoute(
                f"the forwarding table of {_named(stop)} is unknown: {error}", [*hops, last]
            ) from error
        if port in (NO_PORT, 0):
            raise NoRoute(f"{_named(stop)} has no port for LID {target}", [*hops, last])
        if port > stop.info.numPorts:
            why = f"{_named(stop)} has {stop.info.numPorts} ports, and port {port} for LID {target}"
            raise NoRoute(why, [*hops, last])
        others = await view.othersFor(stop, target) if stop.isSwitch else ()
        hops.append(replace(last, exit=port, others=tuple(each for each in others if each != port)))
        try:
            there = await view.beyond(stop, port)
        except (MADFailure, Unread) as error:
            raise NoRoute(
                f"what is behind port {port} of {_named(stop)} is unknown: {error}", hops
            ) from error
        if there is None:
            raise NoRoute(f"port {port} of {_named(stop)}, for LID {target}, has no link", hops)
        stop = there
    return [*hops, Hop(stop, 0, len(hops), len(hops) - 1)]


async def traceMulticast(view: QueryView, mlid: int, source: int | None = None) -> list[Hop]:
    """
    Return all hops of a packet to a multicast LID; each hop follows the one that leads to it.

    @raise InvalidRequest: the LID is not a multicast LID.
    @raise NoRoute: a packet reaches a switch twice; or a node does not answer, after all other branches.
    """
    if not FIRST_MULTICAST <= mlid < 0xFFFF:
        raise InvalidRequest(f"{mlid:#06x} is not a multicast LID: they are from 0xc000 to 0xfffe")
    first = await view.begin(source)
    hops: list[Hop] = []
    seen: set[GUID] = set()
    waiting = deque([(first, -1, 0)])
    unknown: MADFailure | Unread | None = None
    while waiting:
        stop, parent, depth = waiting.popleft()
        if stop.isSwitch:
            if stop.info.nodeGUID in seen:
                raise NoRoute(f"a packet for {mlid:#06x} passes {_named(stop)} twice", hops)
            seen.add(stop.info.nodeGUID)
            try:
                exits = [port for port in await view.exitsFor(stop, mlid) if port != stop.entry]
            except (MADFailure, Unread) as error:
                exits, unknown = [], unknown or error
        else:
            exits = [] if hops else [stop.info.localPortNum]
        here = len(hops)
        hops += [Hop(stop, port, depth, parent) for port in exits if port] or [Hop(stop, 0, depth, parent)]
        for index, port in enumerate(port for port in exits if port):
            try:
                there = await view.beyond(stop, port)
            except (MADFailure, Unread) as error:
                there, unknown = None, unknown or error
            if there is not None:
                waiting.append((there, here + index, depth + 1))
    if unknown is not None:
        raise NoRoute(f"a branch of {mlid:#06x} is unknown: {unknown}", hops) from unknown
    return hops


def _named(stop: Stop) -> str:
    return f"{stop.description or stop.info.nodeGUID} (LID {stop.lid})"


# Queries of the nodes.


class _TableView:
    """Base of views: the entries of forwarding tables, by C{SubnGet} to the paths of stops."""

    def __init__(self, rpcs: RPCs) -> None:
        self._rpcs = rpcs
        self._switches: dict[GUID, SwitchInfo] = {}
        self._groups: dict[GUID, AdaptiveGroups | None] = {}

    async def exitFor(self, stop: Stop, lid: int) -> int:
        if lid > (await self._switch(stop)).linearFDBTop:
            return NO_PORT
        block = await self._rpcs.SubnGet(LinearForwardingTable, stop.route, lid // _LIDS_IN_BLOCK)
        return block.ports[lid % _LIDS_IN_BLOCK]

    async def exitsFor(self, stop: Stop, mlid: int) -> list[int]:
        info = await self._switch(stop)
        if mlid - FIRST_MULTICAST >= _groupsOf(info):
            return []
        block, offset = divmod(mlid - FIRST_MULTICAST, _GROUPS_IN_BLOCK)
        exits: list[int] = []
        for position in range(positions(stop.info.numPorts)):
            answer = await self._rpcs.SubnGet(MulticastForwardingTable, stop.route, position << 28 | block)
            exits += ports(answer.portMasks[offset], position)
        return exits

    async def othersFor(self, stop: Stop, lid: int) -> Iterable[int]:
        """Return the ports among which a switch chooses for a LID; none if that is unknown."""
        guid = stop.info.nodeGUID
        if stop.info.vendorID != MELLANOX:
            return ()
        try:
            if guid not in self._groups:
                info = await adaptiveInfo(self._rpcs, stop.route)
                numPorts = stop.info.numPorts
                groups = None if info is None else AdaptiveGroups(self._rpcs, stop.route, info, numPorts)
                self._groups[guid] = groups
            reader = self._groups[guid]
            group = None if reader is None else await reader.groupOf(lid)
            return () if reader is None or group is None else sorted(await reader.portsOf(group))
        except UNKNOWN_ROUTES:
            self._groups[guid] = None
            return ()

    async def _switch(self, stop: Stop) -> SwitchInfo:
        known = self._switches.get(stop.info.nodeGUID)
        if known is None:
            known = await self._rpcs.SubnGet(SwitchInfo, stop.route)
            self._switches[stop.info.nodeGUID] = known
        return known


class DirectView(_TableView):
    """
    View that queries the nodes by directed-route SMPs: each step crosses the link in question without LIDs.

    The port of a LID that is not local is found by following the tables from the local port.
    """

    async def begin(self, lid: int | None) -> Stop:
        """Return the stop at the local port, or at the port to which the tables lead for this LID."""
        ours = await self._stopAt(IBDRPath())
        if lid is None or ours.owns(lid):
            return ours
        hops = await trace(self, lid)
        return hops[-1].stop

    async def beyond(self, stop: Stop, port: int) -> Stop | None:
        """Return the stop one hop further; from a host at the end of a route, one hop back."""
        route = stop.route
        assert isinstance(route, IBDRPath)
        if not stop.isSwitch and route.drPath:
            return await self._stopAt(IBDRPath(drPath=route.drPath[:-1]), route.drPath[-1])
        number = port if stop.isSwitch else 0
        answer = await self._rpcs.SubnGet(PortInfo, route, number)
        if answer.portPhysicalState is not PhysicalState.LINK_UP:
            return None
        return await self._stopAt(route.then(port))

    async def _stopAt(self, route: IBDRPath, entry: int | None = None) -> Stop:
        info = await self._rpcs.SubnGet(NodeInfo, route)
        description = await self._rpcs.SubnGet(NodeDescription, route)
        isSwitch = info.nodeType is NodeType.SWITCH
        own = await self._rpcs.SubnGet(PortInfo, route, 0 if isSwitch else info.localPortNum)
        if entry is None:
            entry = 0 if isSwitch and not route.drPath else info.localPortNum
        return Stop(route, info, description.text, own.lid, own.lmc, entry)


# Queries of the SA.


class SAView(_TableView):
    """View that queries the SA for tables and links, one record at a time."""

    def __init__(self, agent: RPCs, endPort: MADEndPort) -> None:
        super().__init__(SATransactor(agent, endPort))
        self._agent = agent
        self._endPort = endPort

    async def begin(self, lid: int | None) -> Stop:
        return await self._stopAt(self._endPort.lid if lid is None else LID(lid), 0)

    async def othersFor(self, stop: Stop, lid: int) -> Iterable[int]:
        return ()  # the SA has no tables of adaptive routing

    async def exitsFor(self, stop: Stop, mlid: int) -> list[int]:
        block, offset = divmod(mlid - FIRST_MULTICAST, _GROUPS_IN_BLOCK)
        exits: list[int] = []
        for position in range(positions(stop.info.numPorts)):
            query = sa.MulticastForwardingTableRecord.query(lid=stop.lid, position=position, blockNum=block)
            record = await self._recordOf(query)
            if record is None:
                continue  # empty blocks have no record
            exits += ports(record.table.portMasks[offset], position)
        return exits

    async def beyond(self, stop: Stop, port: int) -> Stop | None:
        """Return the stop at the other end of the SA's LinkRecord, or None if there is no such record."""
        query = sa.LinkRecord.query(fromLID=stop.lid, fromPort=port)
        link = await self._recordOf(query)
        return None if link is None else await self._stopAt(link.toLID, link.toPort)

    async def _recordOf(self, query: sa.Query[Any]) -> Any:
        """Return the record of a query, or None if there is none; other errors do not mean its absence."""
        try:
            return await self._agent.SubnAdmGet(query)
        except MADError as error:
            if SAStatus.of(error.status) is SAStatus.NO_RECORDS:
                return None
            raise

    async def _stopAt(self, lid: LID, entry: int) -> Stop:
        record = await self._agent.SubnAdmGet(sa.NodeRecord.query(lid=lid))
        info = record.nodeInfo
        number = 0 if info.nodeType is NodeType.SWITCH else info.localPortNum
        query = sa.PortInfoRecord.query(endPortLID=record.lid, portNum=number)
        port = (await self._agent.SubnAdmGet(query)).portInfo
        return Stop(
            *(IBPath(dlid=record.lid), info, record.nodeDescription.text, record.lid, port.lmc),
            entry or number,
        )


# Fabrics that are known.


class _FabricView:
    """Base of views of a fabric as it was swept before."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric

    async def begin(self, lid: int | None) -> Stop:
        """Return the stop at the port with a LID."""
        port = None if lid is None else self._fabric.byLID(lid)
        if port is None:
            raise InvalidRequest(f"no port has LID {lid}")
        return self._stopAt(port)

    async def beyond(self, stop: Stop, port: int) -> Stop | None:
        here = self._fabric.portAt(stop.info.nodeGUID, port)
        if here is not None and here.peer is None and _isUp(here):
            raise Unread("it was not read")
        return None if here is None or here.peer is None else self._stopAt(here.peer)

    @staticmethod
    def _stopAt(port: Port) -> Stop:
        info = port.node.info.replace(portGUID=port.guid, localPortNum=port.number)
        lmc = lmcIn(port.end) if port.end else 0
        return Stop(IBPath(dlid=port.lid), info, port.node.description, port.lid, lmc, port.number)


class SurveyView(_FabricView):
    """View of a fabric and its forwarding tables as they were read before: nothing is queried."""

    def __init__(self, fabric: Fabric, linear: Mapping[GUID, bytes], adaptive: Adaptive = STATIC) -> None:
        super().__init__(fabric)
        self._linear = linear
        self._adaptive = adaptive

    async def exitFor(self, stop: Stop, lid: int) -> int:
        table = self._linear.get(stop.info.nodeGUID)
        if table is None:
            raise Unread("it was not read")
        return table[lid] if lid < len(table) else NO_PORT

    async def othersFor(self, stop: Stop, lid: int) -> Iterable[int]:
        """Return the ports among which a switch chooses for a LID."""
        return sorted(self._adaptive.get(stop.info.nodeGUID, NO_GROUPS).members(lid))


class RecordedView(_FabricView, _TableView):
    """View of a recorded fabric, whose tables are queried by the LIDs of its switches."""

    def __init__(self, rpcs: RPCs, fabric: Fabric, lid: LID) -> None:
        """
        @param rpcs: answers from the recording.
        @param lid: LID of the local port.
        """
        _FabricView.__init__(self, fabric)
        _TableView.__init__(self, rpcs)
        self._lid = lid

    async def begin(self, lid: int | None) -> Stop:
        """Return the stop at the port with a LID, by default at the local port."""
        return await super().begin(lid or self._lid)

    async def _switch(self, stop: Stop) -> SwitchInfo:
        info = self._fabric.nodes[stop.info.nodeGUID].switchInfo
        if info is None:
            raise Unread("its SwitchInfo was not read")
        return info


def _isUp(port: Port) -> bool:
    return port.physicalState is PhysicalState.LINK_UP


# Whole tables.


def positions(numPorts: int) -> int:
    """Return the number of positions of a multicast forwarding table; each covers 16 ports, from port 0."""
    return numPorts // _PORTS_IN_POSITION + 1


def ports(mask: int, position: int = 0) -> list[int]:
    """Return the port numbers in a mask of a multicast forwarding table."""
    first = position * _PORTS_IN_POSITION
    return [first + bit for bit in range(_PORTS_IN_POSITION) if mask >> bit & 1]


def blocksOf(info: SwitchInfo) -> int:
    """Return the number of blocks of a switch's linear forwarding table."""
    return int(info.linearFDBTop // _LIDS_IN_BLOCK + 1)


async def linearTable(rpcs: RPCs, path: IBPath, info: SwitchInfo | None = None) -> bytes:
    """Query the linear forwarding table of a switch: an output port for each LID from 0 to LinearFDBTop."""
    if info is None:
        info = await rpcs.SubnGet(SwitchInfo, path)
    blocks = [
        (await rpcs.SubnGet(LinearForwardingTable, path, number)).ports for number in range(blocksOf(info))
    ]
    return b"".join(blocks)[: info.linearFDBTop + 1]


async def multicastTable(
    rpcs: RPCs, path: IBPath, numPorts: int, info: SwitchInfo | None = None
) -> dict[int, list[int]]:
    """Query a switch's multicast forwarding table: the output ports of each multicast LID that has any."""
    if info is None:
        info = await rpcs.SubnGet(SwitchInfo, path)
    table: dict[int, list[int]] = {}
    for block in range(-(-_groupsOf(info) // _GROUPS_IN_BLOCK)):
        for position in range(positions(numPorts)):
            modifier = MulticastForwardingTable.modifier(block, position)
            answer = await rpcs.SubnGet(MulticastForwardingTable, path, modifier)
            for offset, mask in enumerate(answer.portMasks):
                if mask:
                    mlid = FIRST_MULTICAST + block * _GROUPS_IN_BLOCK + offset
                    table.setdefault(mlid, []).extend(ports(mask, position))
    return dict(sorted(table.items()))


def _groupsOf(info: SwitchInfo) -> int:
    """Return the number of multicast LIDs from the first one to the last one in use."""
    top = info.multicastFDBTop  # 0xBFFF if none is in use; 0 if the switch does not support it
    used = top - FIRST_MULTICAST + 1 if top else info.multicastFDBCap
    return min(info.multicastFDBCap, max(0, used))


QueryView = Union[DirectView, SAView, RecordedView]
"""View that queries the fabric or a recording, also for multicast tables."""

View = Union[QueryView, SurveyView]
"""Source of the nodes, links and forwarding table entries that a trace needs."""
