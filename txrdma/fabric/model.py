"""
Model of the discovered part of a fabric: nodes, their ports, and the links between them.

To save memory in large fabrics, attributes are stored as received bytes and decoded on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from txrdma.fabric.linkspeeds import (
    activeSpeed,
    enabledSpeeds,
    mayHaveFDR10,
    NAMES,
    RATES,
    supportedSpeeds,
    wantsAsking,
)
from txrdma.iba.path import IBDRPath
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType, PhysicalState, PortState
from txrdma.kit.rawfields import peek, span
from txrdma.kit.strings import printable
from txrdma.mad.layouts.smp import NodeInfo, PortInfo, SwitchInfo
from txrdma.mad.layouts.values import LANES, PortCapability

PortKey = tuple[GUID, int]
"""Identity of a port in all sweeps: the GUID of its node, and the port number."""

UNNAMED: Final = "a node"
"""Name of a node without a description."""

lidIn, lmcIn = peek(PortInfo, "lid"), peek(PortInfo, "lmc")
_state, _physicalState = peek(PortInfo, "portState"), peek(PortInfo, "portPhysicalState")
_width = peek(PortInfo, "linkWidthActive")
nodeGUIDIn, portGUIDIn = peek(NodeInfo, "nodeGUID"), peek(NodeInfo, "portGUID")
_systemGUID, nodeTypeIn = peek(NodeInfo, "systemImageGUID"), peek(NodeInfo, "nodeType")
numPortsIn, localPortIn = peek(NodeInfo, "numPorts"), peek(NodeInfo, "localPortNum")
_vendorID, _deviceID = peek(NodeInfo, "vendorID"), peek(NodeInfo, "deviceID")
_OF_NODE: Final = (
    span(NodeInfo, "baseVersion", "nodeGUID"),
    span(NodeInfo, "partitionCap", "revision"),
    span(NodeInfo, "vendorID"),
)
"""Parts of a NodeInfo that do not depend on the port through which the node was queried."""

_SWITCH: Final = int(NodeType.SWITCH)
_TYPES: Final = {int(kind): kind for kind in NodeType}
_ORDER: Final = bytes((3, 1, 0, 2)) + bytes([3]) * 252
"""Rank of node types in sorted lists: switches, channel adapters, routers, others."""

_CAPABLE: Final = PortInfo(capabilityMask=PortCapability.EXTENDED_SPEEDS).encode()
"""PortInfo assumed for a switch's port 0 until it is known: extended speeds count as supported."""


class Port:
    """
    A port of a node.

    @ivar raw: encoded PortInfo of the port, 64 bytes; C{b""} while it is unknown.
    @ivar vendors: encoded ExtendedPortInfo (Mellanox) of the port; C{b""} if it was not queried.
    @ivar peer: port at the other end of the link; None if there is no link or it is not known.
    """

    __slots__ = ("node", "number", "peer", "raw", "vendors")

    def __init__(self, node: Node, number: int) -> None:
        self.node = node
        self.number = number
        self.raw = b""
        self.vendors = b""
        self.peer: Port | None = None

    def __repr__(self) -> str:
        return f"<Port {self}>"

    def __str__(self) -> str:
        """Readable name of the port: C{"leaf 3 (0002:c903:0001:0002) port 7"}."""
        return f"{self.node} port {self.number}"

    def setInfo(self, raw: bytes) -> None:
        """
        Store the encoded PortInfo of this port.

        If it equals that of the preceding port, as is frequent in switches, both ports share the bytes.
        """
        number = self.number
        if number:
            before = self.node._ports[number - 1]
            if before is not None and before.raw == raw:
                raw = before.raw
        self.raw = raw

    @property
    def info(self) -> PortInfo:
        """PortInfo of the port, decoded; all zeros while it is unknown."""
        return PortInfo.decode(self.raw) if self.raw else PortInfo()

    @property
    def lid(self) -> LID:
        """LID of the port, for every port of a switch that of port 0; 0 for none."""
        raw = self.end
        return LID(lidIn(raw)) if raw else LID(0)

    @property
    def lmc(self) -> int:
        """LID mask control (LMC) in the port's PortInfo; 0 while that is unknown."""
        return lmcIn(self.raw) if self.raw else 0

    @property
    def lids(self) -> range:
        """All LIDs of the port: 2 to the power of its LMC, from its base LID on; empty if it has none."""
        lid = self.lid
        return range(lid, lid + (1 << self.lmc)) if lid else range(0)

    @property
    def end(self) -> bytes:
        """Encoded PortInfo that contains the LID and the capabilities: for a switch that of port 0."""
        if not self.node.isSwitch:
            return self.raw
        zero = self.node._ports[0]
        return b"" if zero is None else zero.raw

    @property
    def state(self) -> PortState:
        """State of the port (Down, Initialize, Armed, Active); NOP while its PortInfo is unknown."""
        return PortState(_state(self.raw)) if self.raw else PortState.NOP

    @property
    def physicalState(self) -> PhysicalState:
        """Physical state of the port; NOP while its PortInfo is unknown."""
        return PhysicalState(_physicalState(self.raw)) if self.raw else PhysicalState.NOP

    @property
    def guid(self) -> GUID:
        """GUID of the port, for every port of a switch that of port 0; the node's GUID if it is unknown."""
        return self.node.portGUID(self.number) or self.node.guid

    @property
    def mayRunFDR10(self) -> bool:
        """Whether QDR in the port's PortInfo may mean FDR10, which only ExtendedPortInfo shows."""
        return wantsAsking(self.raw, self.end) and mayHaveFDR10(self.node.info)

    @property
    def width(self) -> int:
        """Number of active lanes; 0 if it is unknown."""
        return LANES.get(_width(self.raw), 0) if self.raw else 0

    @property
    def activeSpeed(self) -> int:
        """Active speed of a lane, a L{LaneSpeed<txrdma.fabric.linkspeeds.LaneSpeed>}; 0 if it is unknown."""
        return activeSpeed(self.raw, self.end or _CAPABLE, self.vendors) if self.raw else 0

    @property
    def supportedSpeeds(self) -> int:
        """Mask of the lane speeds that the port supports."""
        return supportedSpeeds(self.raw, self.end or _CAPABLE, self.vendors) if self.raw else 0

    @property
    def enabledSpeeds(self) -> int:
        """Mask of the lane speeds that the port has enabled."""
        return enabledSpeeds(self.raw, self.end or _CAPABLE, self.vendors) if self.raw else 0

    @property
    def speed(self) -> str:
        """Name of the active lane speed, for example C{"HDR"}; C{""} if it is unknown."""
        return NAMES.get(self.activeSpeed, "")

    @property
    def laneGigabits(self) -> float:
        """Active speed of a lane in Gbit/s; 0 if it is unknown."""
        return RATES.get(self.activeSpeed, 0.0)


class Ports(Mapping[int, Port]):
    """Known ports of a node by port number, in ascending order."""

    __slots__ = ("_ports",)

    def __init__(self, ports: list[Port | None]) -> None:
        self._ports = ports

    def __getitem__(self, number: int) -> Port:
        port = self._ports[number] if 0 <= number < len(self._ports) else None
        if port is None:
            raise KeyError(number)
        return port

    def __iter__(self) -> Iterator[int]:
        return (port.number for port in self._ports if port is not None)

    def __len__(self) -> int:
        return len(self._ports) - self._ports.count(None)


class Node:
    """
    A node of a fabric: a switch, a channel adapter or a router.

    @ivar isSwitch: whether the node is a switch.
    @ivar raw: encoded NodeInfo, as received through the port of the node that answered first.
    @ivar switchInfo: SwitchInfo of a switch; None while it is unknown.
    """

    __slots__ = ("_guids", "_ports", "_route", "_switchInfo", "description", "guid", "isSwitch", "raw")

    def __init__(self, info: NodeInfo | bytes, route: IBDRPath | bytes | None = None) -> None:
        """@param route: directed route to the node, or only its hops if others have default values."""
        self.raw = info if isinstance(info, bytes) else info.encode()
        self.guid = GUID(nodeGUIDIn(self.raw))
        self.isSwitch: bool = nodeTypeIn(self.raw) == _SWITCH
        self.description = ""
        self._route = _packed(route) if isinstance(route, IBDRPath) else route
        self._ports: list[Port | None] = [None] * (numPortsIn(self.raw) + 1)
        self._guids: dict[int, GUID] | None = None
        self._switchInfo = b""

    def __repr__(self) -> str:
        return f"<Node {self.type.name} {self.guid} {self.description!r}>"

    def __str__(self) -> str:
        """Name of the node: C{"leaf 3 (0002:c903:0001:0002)"}, with spaces for unprintable characters."""
        return f"{printable(self.description) or UNNAMED} ({self.guid})"

    @property
    def info(self) -> NodeInfo:
        """NodeInfo of the node; its port-specific fields are those of the port that answered first."""
        return NodeInfo.decode(self.raw)

    @property
    def type(self) -> NodeType:
        """Type of the node: switch, channel adapter or router."""
        number = nodeTypeIn(self.raw)
        return _TYPES.get(number) or NodeType(number)

    @property
    def numPorts(self) -> int:
        """Number of ports of the node, without port 0 of a switch."""
        return int(numPortsIn(self.raw))

    @property
    def systemImageGUID(self) -> GUID:
        """System image GUID, which all nodes of one enclosure share."""
        return GUID(_systemGUID(self.raw))

    @property
    def vendorID(self) -> int:
        """Vendor ID of the node, an OUI."""
        return int(_vendorID(self.raw))

    @property
    def deviceID(self) -> int:
        """Device ID of the node, assigned by its vendor."""
        return int(_deviceID(self.raw))

    @property
    def route(self) -> IBDRPath | None:
        """Directed route to the node; None if the node was not discovered by a directed route."""
        route = self._route
        return IBDRPath(drPath=tuple(route)) if isinstance(route, bytes) else route

    @route.setter
    def route(self, route: IBDRPath) -> None:
        self._route = _packed(route)

    def follow(self, before: Node, number: int) -> None:
        """Set the route to that of another node and one hop more, by this port of it."""
        route = before._route
        assert route is not None  # it was reached
        self._route = route + bytes((number,)) if isinstance(route, bytes) else route.then(number)

    @property
    def isLocal(self) -> bool:
        """Whether the directed route to the node has no hops."""
        route = self._route
        return route is not None and not (route if isinstance(route, bytes) else route.drPath)

    @property
    def switchInfo(self) -> SwitchInfo | None:
        """Decoded SwitchInfo of the node; None while it is unknown, or if the node is not a switch."""
        return SwitchInfo.decode(self._switchInfo) if self._switchInfo else None

    @switchInfo.setter
    def switchInfo(self, info: SwitchInfo | None) -> None:
        self._switchInfo = b"" if info is None else info.encode()

    @property
    def lid(self) -> LID:
        """LID of a switch, or of the first port of another node that has one; 0 for none."""
        for port in self._ports[:1] if self.isSwitch else self._ports:
            if port is not None and port.raw and (lid := lidIn(port.raw)):
                return LID(lid)
        return LID(0)

    # Ports.

    @property
    def ports(self) -> Ports:
        """Ports of the node that were queried or that links lead to; port 0 is a switch's management port."""
        return Ports(self._ports)

    def known(self, number: int) -> Port | None:
        """Return the port with this number, or None if it is not known."""
        ports = self._ports
        return ports[number] if number < len(ports) else None

    def port(self, number: int) -> Port:
        """Return the port with this number, and create it if necessary."""
        ports = self._ports
        if len(ports) <= number:
            ports.extend([None] * (number + 1 - len(ports)))
        port = ports[number]
        if port is None:
            port = ports[number] = Port(self, number)
        return port

    def linked(self) -> list[Port]:
        """Ports of the node whose peer is known, ordered by number."""
        return [port for port in self._ports if port is not None and port.peer is not None]

    def peers(self) -> list[Node]:
        """Nodes at the other ends of the links of the node, one for each link, ordered by port number."""
        return [port.peer.node for port in self._ports if port is not None and port.peer is not None]

    def setPortGUID(self, number: int, guid: GUID) -> None:
        """Store the GUID of one port; all ports of a switch share one GUID."""
        if self.portGUID(number) != guid:
            if self._guids is None:
                self._guids = {}
            self._guids[0 if self.isSwitch else number] = guid

    def portGUID(self, number: int) -> GUID | None:
        """Return the GUID of a port, or None while it is unknown."""
        if self.isSwitch:
            number = 0
        if self._guids is not None and number in self._guids:
            return self._guids[number]
        return GUID(portGUIDIn(self.raw)) if self.isSwitch or number == localPortIn(self.raw) else None

    @property
    def portGUIDs(self) -> dict[int, GUID]:
        """Known port GUIDs of the node by port number; a switch has only port 0."""
        first = 0 if self.isSwitch else localPortIn(self.raw)
        return {first: GUID(portGUIDIn(self.raw)), **(self._guids or {})}


def isFirstEnd(port: Port, peer: Port) -> bool:
    """Return whether a link is shown at this end: the only switch, else the lower GUID and port number."""
    if port.node.isSwitch != peer.node.isSwitch:
        return port.node.isSwitch
    return (port.node.guid.raw, port.number) <= (peer.node.guid.raw, peer.number)


def isSame(one: bytes, other: bytes) -> bool:
    """Return whether two encoded NodeInfos can belong to one node: only port-specific fields differ."""
    return all(one[part] == other[part] for part in _OF_NODE)


def _packed(route: IBDRPath) -> bytes | IBDRPath:
    """Return only the hops, as bytes, if other fields of the route have default values; this saves memory."""
    return bytes(route.drPath) if route == IBDRPath(drPath=route.drPath) else route


@dataclass(frozen=True, slots=True)
class Problem:
    """
    Error or contradiction that a sweep encountered at one point of the fabric.

    @ivar kind: C{unreachable}, C{refused}, C{unprocessed}, C{duplicate-guid}, C{duplicate-lid},
        C{contradiction}, C{incomplete}, C{interrupted}, C{left-out}.
    @ivar where: a directed route, a LID, or another description of the location.
    """

    kind: str
    where: str
    text: str


class Fabric:
    """
    Discovered nodes of a fabric, and problems of the discovery.

    @ivar nodes: nodes by node GUID.
    @ivar problems: problems in the order in which they occurred.
    """

    def __init__(self) -> None:
        self.nodes: dict[GUID, Node] = {}
        self.problems: list[Problem] = []

    def __repr__(self) -> str:
        return f"<Fabric of {len(self.nodes)} nodes, {len(self.problems)} problems>"

    @property
    def isLocalOnly(self) -> bool:
        """Whether nothing but the local node was found: its port may have no link, and others be there."""
        return len(self.nodes) < 2

    def switches(self) -> Iterator[Node]:
        """All switches of the fabric."""
        return (node for node in self.nodes.values() if node.isSwitch)

    def hosts(self) -> Iterator[Node]:
        """All channel adapters of the fabric."""
        return (node for node in self.nodes.values() if node.type is NodeType.CHANNEL_ADAPTER)

    def ordered(self) -> list[Node]:
        """Nodes in the order switches, channel adapters, routers, others; nodes of one type by GUID."""
        return sorted(self.nodes.values(), key=lambda node: (_ORDER[nodeTypeIn(node.raw)], node.guid.raw))

    def ports(self) -> Iterator[Port]:
        """All known ports of the fabric; nodes that are added meanwhile are left out."""
        for node in list(self.nodes.values()):
            for port in node._ports:
                if port is not None:
                    yield port

    def endPorts(self) -> Iterator[Port]:
        """Ports that can have LIDs: port 0 of switches, and ports of other nodes, if PortInfo is known."""
        return (port for port in self.ports() if port.raw and (port.number == 0) == port.node.isSwitch)

    def links(self) -> Iterator[tuple[Port, Port]]:
        """Links of the fabric, each once; the port with the lower node GUID and port number is first."""
        for port in self.ports():
            peer = port.peer
            if peer is None:
                continue
            one, other = port.node, peer.node
            if port.number <= peer.number if one is other else one.guid.raw < other.guid.raw:
                yield port, peer

    def byLID(self, lid: int) -> Port | None:
        """Return the port to which this LID belongs, including the LIDs of its LMC range."""
        return next((port for port in self.endPorts() if lid in port.lids), None)

    def byLIDs(self) -> dict[int, Port]:
        """Return the ports by each of their LIDs; for a duplicate LID, the first port."""
        found: dict[int, Port] = {}
        for port in self.endPorts():
            for lid in port.lids:
                found.setdefault(lid, port)
        return found

    def portAt(self, guid: GUID | None, number: int | None) -> Port | None:
        """Return a port of a node, or None if it is unknown."""
        node = None if guid is None else self.nodes.get(guid)
        return None if node is None or number is None else node.known(number)

    def byGUID(self, guid: GUID) -> Port | Node | None:
        """Return the node or port with this GUID, or None if there is none."""
        node = self.nodes.get(guid)
        if node is not None:
            return node
        for node in self.nodes.values():
            for number, own in node.portGUIDs.items():
                if own == guid:
                    return node.port(number)
        return None

    def add(self, info: NodeInfo | bytes, route: IBDRPath | bytes | None = None) -> tuple[Node, bool]:
        """
        Add the node of a NodeInfo, and return the node and whether it is new.

        @param info: NodeInfo, decoded or as 40 bytes.
        @param route: directed route to the node, or only its hops if all other fields have default values.
        """
        raw = info if isinstance(info, bytes) else info.encode()
        guid = GUID(nodeGUIDIn(raw))
        node = self.nodes.get(guid)
        if node is None:
            node = Node(raw, route)
            self.nodes[node.guid] = node
            return node, True
        node.setPortGUID(localPortIn(raw), GUID(portGUIDIn(raw)))
        return node, False

    def link(self, one: Port, other: Port) -> bool:
        """Link two ports. Return False, and change nothing, if one of them is linked to another port."""
        if (one.peer is not None and one.peer is not other) or (
            other.peer is not None and other.peer is not one
        ):
            return False
        one.peer, other.peer = other, one
        return True


def breakUp(nodes: Iterable[Node]) -> None:
    """Break the reference cycles of unused nodes and ports: they are freed without a garbage collection."""
    for node in nodes:
        for port in node._ports:
            if port is not None:
                port.peer = None
        node._ports.clear()


def described(problems: Iterable[Problem]) -> Iterator[str]:
    """Return readable lines for problems; equal problems are reported in one line with their number."""
    counts: dict[Problem, int] = {}
    for problem in problems:
        counts[problem] = counts.get(problem, 0) + 1
    for problem, times in counts.items():
        line = f"{problem.kind} at {problem.where}: {problem.text}"
        yield line if times == 1 else f"{line} ({times} times)"
