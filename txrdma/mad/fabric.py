"""
A fabric, as far as it is known: nodes, their ports, and the links between them.

Made for large ones: what a port told is kept as the 64 bytes that it sent, and read when somebody asks
(about 300 bytes a port, all told).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from txrdma.iba.path import IBDRPath
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType, PhysicalState, PortState
from txrdma.mad.smp import NodeInfo, PortInfo, SwitchInfo
from txrdma.mad.values import EXTENDED_GIGABITS, GIGABITS, LANES

_LID: Final = Struct(">16xH")
_STATES: Final = Struct(">32xBB")


class Port:
    """
    A port of a node.

    @ivar raw: its PortInfo, 64 bytes; C{b""} where it has told nothing.
    @ivar peer: the port at the other end of its link; None where there is none, or it is not known.
    """

    __slots__ = ("node", "number", "peer", "raw")

    def __init__(self, node: Node, number: int) -> None:
        self.node = node
        self.number = number
        self.raw = b""
        self.peer: Port | None = None

    def __repr__(self) -> str:
        return f"<Port {self.node.guid} {self.number}>"

    @property
    def info(self) -> PortInfo:
        """What it told; all zeros when that is nothing."""
        return PortInfo.decode(self.raw) if self.raw else PortInfo()

    @property
    def lid(self) -> LID:
        """Its LID: of switches that of port 0 for all of them; 0 is none."""
        raw = self.raw
        if self.node.isSwitch:
            zero = self.node.ports.get(0)
            raw = zero.raw if zero is not None else b""
        return LID(_LID.unpack_from(raw)[0]) if raw else LID(0)

    @property
    def state(self) -> PortState:
        """Whether it carries traffic; NOP when it has told nothing."""
        return PortState(_STATES.unpack_from(self.raw)[0] & 15) if self.raw else PortState.NOP

    @property
    def physicalState(self) -> PhysicalState:
        """What its link does; NOP when it has told nothing."""
        return PhysicalState(_STATES.unpack_from(self.raw)[1] >> 4) if self.raw else PhysicalState.NOP

    @property
    def guid(self) -> GUID:
        """Of a host's port its own, as far as we have asked it, of a switch's the switch's."""
        return self.node.portGUIDs.get(self.number if not self.node.isSwitch else 0, self.node.guid)

    @property
    def width(self) -> int:
        """Lanes in use; 0 where nobody knows."""
        return LANES.get(self.raw[31], 0) if self.raw else 0  # type: ignore[call-overload]  # flags are numbers

    @property
    def laneGigabits(self) -> float:
        """What a lane carries at present, in Gbit/s; 0 where nobody knows."""
        if not self.raw:
            return 0.0
        extended = self.raw[62] >> 4
        if extended:
            return next((rate for flag, rate in EXTENDED_GIGABITS.items() if flag == extended), 0.0)
        active = self.raw[35] >> 4
        return next((rate for flag, rate in GIGABITS.items() if flag == active), 0.0)


class Node:
    """
    A node.

    @ivar route: a directed route to it; None when it was found otherwise.
    @ivar ports: those that it was asked about or that links lead to, by number; of switches 0 is its own.
    @ivar portGUIDs: those of its ports that we have heard, by number; of switches by 0.
    @ivar switchInfo: of switches that have told.
    """

    __slots__ = ("description", "guid", "info", "portGUIDs", "ports", "route", "switchInfo")

    def __init__(self, info: NodeInfo, route: IBDRPath | None = None) -> None:
        self.guid = info.nodeGUID
        self.info = info
        self.description = ""
        self.route = route
        self.ports: dict[int, Port] = {}
        self.portGUIDs: dict[int, GUID] = {}
        self.switchInfo: SwitchInfo | None = None

    def __repr__(self) -> str:
        return f"<Node {self.type.name} {self.guid} {self.description!r}>"

    @property
    def type(self) -> NodeType:
        return self.info.nodeType

    @property
    def isSwitch(self) -> bool:
        return self.info.nodeType is NodeType.SWITCH

    @property
    def lid(self) -> LID:
        """Of a switch its LID, of others that of the first port that has one."""
        if self.isSwitch:
            return self.ports[0].lid if 0 in self.ports else LID(0)
        lids = (self.ports[number].lid for number in sorted(self.ports))
        return next((lid for lid in lids if lid), LID(0))

    def port(self, number: int) -> Port:
        """The port of that number, made when it was not known."""
        port = self.ports.get(number)
        if port is None:
            port = self.ports[number] = Port(self, number)
        return port


@dataclass(frozen=True, slots=True)
class Problem:
    """
    Something that a sweep could not find out, or that should not be.

    @ivar kind: C{unreachable}, C{refused}, C{duplicate-guid}, C{contradiction}.
    @ivar where: a directed route, a LID, or what else names the place.
    """

    kind: str
    where: str
    text: str


class Fabric:
    """
    All nodes that were found, and what was not found out.

    @ivar nodes: by node GUID.
    @ivar problems: in the order in which they were met.
    """

    def __init__(self) -> None:
        self.nodes: dict[GUID, Node] = {}
        self.problems: list[Problem] = []

    def __repr__(self) -> str:
        return f"<Fabric of {len(self.nodes)} nodes, {len(self.problems)} problems>"

    def switches(self) -> Iterator[Node]:
        """All switches."""
        return (node for node in self.nodes.values() if node.isSwitch)

    def hosts(self) -> Iterator[Node]:
        """All channel adapters."""
        return (node for node in self.nodes.values() if node.type is NodeType.CHANNEL_ADAPTER)

    def ports(self) -> Iterator[Port]:
        """All ports that are known."""
        return (port for node in self.nodes.values() for port in node.ports.values())

    def links(self) -> Iterator[tuple[Port, Port]]:
        """Each link once: from the end with the lower GUID, or port."""
        for port in self.ports():
            peer = port.peer
            if peer is not None and (port.node.guid, port.number) <= (peer.node.guid, peer.number):
                yield port, peer

    def byLID(self, lid: int) -> Port | None:
        """The port that has this LID, its low bits that are the port's own included."""
        for port in self.ports():
            if port.raw and (port.number == 0 or not port.node.isSwitch):
                mask = port.raw[34] & 7
                base = _LID.unpack_from(port.raw)[0]
                if base and base <= lid < base + (1 << mask):
                    return port
        return None

    def byGUID(self, guid: GUID) -> Port | Node | None:
        """The node, or the port, of this GUID."""
        node = self.nodes.get(guid)
        if node is not None:
            return node
        for node in self.nodes.values():
            for number, own in node.portGUIDs.items():
                if own == guid:
                    return node.port(number)
        return None

    def add(self, info: NodeInfo, route: IBDRPath | None = None) -> tuple[Node, bool]:
        """A node has said what it is; tell whether it is a new one."""
        node = self.nodes.get(info.nodeGUID)
        isNew = node is None
        if node is None:
            node = self.nodes[info.nodeGUID] = Node(info, route)
        node.portGUIDs[0 if node.isSwitch else info.localPortNum] = info.portGUID
        return node, isNew

    def link(self, one: Port, other: Port) -> bool:
        """Two ports are joined; False when one of them was joined to another before: something is wrong."""
        if (one.peer is not None and one.peer is not other) or (
            other.peer is not None and other.peer is not one
        ):
            return False
        one.peer, other.peer = other, one
        return True

    # As JSON has it.

    def toDict(self) -> dict[str, Any]:
        """All of it, as JSON can carry it: L{fromDict} makes the same again."""
        return {
            "nodes": [_nodeDict(node) for node in self.nodes.values()],
            "links": [[_end(one), _end(other)] for one, other in self.links()],
            "problems": [
                {"kind": problem.kind, "where": problem.where, "text": problem.text}
                for problem in self.problems
            ],
        }

    @classmethod
    def fromDict(cls, told: dict[str, Any]) -> Fabric:
        """
        What L{toDict} has made.

        @raise ValueError: it is something else.
        """
        fabric = cls()
        try:
            for one in told["nodes"]:
                _readNode(fabric, one)
            for (guid, number), (otherGUID, otherNumber) in told["links"]:
                fabric.link(
                    fabric.nodes[GUID.fromString(guid)].port(number),
                    fabric.nodes[GUID.fromString(otherGUID)].port(otherNumber),
                )
            fabric.problems = [Problem(**problem) for problem in told["problems"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no fabric: {error!r}") from error
        return fabric


def _end(port: Port) -> list[object]:
    return [str(port.node.guid), port.number]


def _nodeDict(node: Node) -> dict[str, object]:
    return {
        "guid": str(node.guid),
        "type": node.type.name,
        "description": node.description,
        "info": node.info.encode().hex(),
        "switchInfo": None if node.switchInfo is None else node.switchInfo.encode().hex(),
        "route": None if node.route is None else list(node.route.drPath),
        "portGUIDs": {str(number): str(guid) for number, guid in node.portGUIDs.items()},
        "ports": [
            {"number": port.number, "lid": port.lid, "state": port.state.name, "info": port.raw.hex()}
            for port in node.ports.values()
        ],
    }


def _readNode(fabric: Fabric, told: dict[str, Any]) -> None:
    route = None if told["route"] is None else IBDRPath(drPath=tuple(told["route"]))
    node, _ = fabric.add(NodeInfo.decode(bytes.fromhex(told["info"])), route)
    node.description = told["description"]
    if told["switchInfo"] is not None:
        node.switchInfo = SwitchInfo.decode(bytes.fromhex(told["switchInfo"]))
    node.portGUIDs = {int(number): GUID.fromString(guid) for number, guid in told["portGUIDs"].items()}
    for port in told["ports"]:
        node.port(port["number"]).raw = bytes.fromhex(port["info"])


def described(problems: Iterable[Problem]) -> Iterator[str]:
    """Problems as lines for people."""
    return (f"{problem.kind} at {problem.where}: {problem.text}" for problem in problems)
