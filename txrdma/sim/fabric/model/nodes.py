"""
The nodes and ports of a simulated fabric, and what becomes of their links.

Follows InfiniBand Architecture vol. 1, 7.2.7 (states of a port) and 14.2.5.6 (PortInfo). What nodes are like
when nobody has set anything is as ibsim has it. A port's PortInfo is kept as its bytes: a fabric of ten
thousand hosts has a hundred thousand ports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TYPE_CHECKING

from txrdma.fabric.linkspeeds import mayHaveFDR10
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType, PhysicalState, PortState
from txrdma.mad.smp import NodeInfo, PortInfo, SwitchInfo
from txrdma.mad.values import DownDefault, PathMTU, PortCapability
from txrdma.sim.fabric.model.counters import Counters
from txrdma.sim.nets.netfile import Net, NetLink, NetNode

if TYPE_CHECKING:
    from txrdma.sim.fabric.sm.routing import Routing
    from txrdma.sim.fabric.wire.madport import SimulatedMADPort

ALL_WIDTHS: Final = 0x1F
ALL_SPEEDS: Final = 7
DEFAULT_WIDTH: Final = 2
DEFAULT_SPEED: Final = 1
"""4X and SDR, where a net file says nothing."""

PKEYS_PER_PORT: Final = 64
PKEYS_PER_SWITCH: Final = 8
FIRST_GUIDS: Final = {
    NodeType.CHANNEL_ADAPTER: 0x100000,
    NodeType.SWITCH: 0x200000,
    NodeType.ROUTER: 0x300000,
}
"""
Of nodes whose net file says none: they go on from the one before; those of channel adapters and routers have
one more for each port.
"""

LINEAR_CAP: Final = 0x7800
MULTICAST_CAP: Final = 0x0400
_REVISION: Final = 0xA1
_CAPABILITIES: Final = (
    PortCapability.TRAP
    | PortCapability.SL_MAPPING
    | PortCapability.EXTENDED_SPEEDS
    | PortCapability.CAPABILITY_MASK2
    | PortCapability.VENDOR_CLASS
    | PortCapability.CAPABILITY_MASK_NOTICE
)
_SWITCH_CAPABILITIES: Final = (
    PortCapability.TRAP
    | PortCapability.SL_MAPPING
    | PortCapability.EXTENDED_SPEEDS
    | PortCapability.CAPABILITY_MASK2
)
_CAPABILITIES2: Final = 0x30
_LEASE: Final = 0xFF9
_CABLED: Final = PortCapability.CAPABILITY_MASK_NOTICE

NO_EXTENDED_SPEED: Final = 30
"""LinkSpeedExtEnabled of a port that is to use none (IBA 14.2.5.6)."""

STATE: Final = 32
"""Byte of a PortInfo with the port's state, in its low half; C{PHYSICAL} in its high half."""

PHYSICAL: Final = 33
_WIDTH, _SPEED, _EXTENDED = 29, 35, 62

EXTENDED_PORT_INFO: Final = (0xFF90, 0)
"""Where a port keeps its vendor's ExtendedPortInfo, among its tables."""

_FDR10_SUPPORTED, _FDR10_ENABLED, _FDR10_ACTIVE = 7, 11, 15
_NO_FDR10: Final = bytes(64)
_MELLANOX: Final = b"\x00\x02\xc9"
_SWITCHX: Final = 0xC738
_CONNECTX3: Final = 0x1003
_QDR: Final = 4


class SimulatedPort:
    """
    A port.

    @ivar info: its PortInfo.
    @ivar peer: the port that its cable leads to; C{way} is the same while the link is up.
    @ivar attachments: who sends and receives here.
    """

    __slots__ = ("attachments", "counters", "info", "isCut", "node", "number", "peer", "tables", "way")

    def __init__(self, node: SimulatedNode, number: int, info: bytes) -> None:
        self.node = node
        self.number = number
        self.info = bytearray(info)
        self.peer: SimulatedPort | None = None
        self.way: SimulatedPort | None = None
        self.isCut = False
        self.counters: Counters | None = None
        self.tables: dict[tuple[int, int], bytes] | None = None
        self.attachments: tuple[SimulatedMADPort, ...] = ()

    def __repr__(self) -> str:
        return f"<SimulatedPort {self}>"

    def __str__(self) -> str:
        return f"{self.node.identifier}[{self.number}]"

    @property
    def guid(self) -> GUID:
        """A switch has one for all its ports."""
        node = self.node
        if node.portGUIDs and self.number in node.portGUIDs:
            return node.portGUIDs[self.number]
        return node.guid if node.isSwitch else GUID.fromInt(int(node.guid) + self.number & (1 << 64) - 1)

    @property
    def end(self) -> SimulatedPort:
        """The port with the LID: port 0 of a switch, else this one."""
        return self.node.ports[0] if self.node.isSwitch else self

    @property
    def lid(self) -> LID:
        return LID(self.info[16] << 8 | self.info[17])

    @property
    def lmc(self) -> int:
        return self.info[34] & 7

    @property
    def state(self) -> int:
        """By the numbers of L{PortState}."""
        return self.info[STATE] & 15

    @property
    def physicalState(self) -> int:
        """By the numbers of L{PhysicalState}."""
        return self.info[PHYSICAL] >> 4

    def become(self, state: int, physical: int) -> None:
        """Take these states."""
        self.info[STATE] = self.info[STATE] & 0xF0 | state
        self.info[PHYSICAL] = self.info[PHYSICAL] & 0x0F | physical << 4

    def count(self) -> Counters:
        """The counters, made when somebody wants them."""
        if self.counters is None:
            self.counters = Counters()
        return self.counters


class SimulatedNode:
    """
    A switch, a host's channel adapter, a router.

    @ivar info: its NodeInfo; the fields of a port are the asked one's.
    @ivar ports: by number; that of 0 is only a switch's.
    @ivar isDead: it answers nothing, and forwards no directed routes.
    @ivar delaySeconds: how much longer than others it takes for an answer.
    @ivar busyFor: to how many requests more it answers BUSY.
    @ivar redirects: by class, to whose LID its GMPs are sent instead.
    @ivar linear: a switch's forwarding table; None until somebody looks at it.
    @ivar random: the entries of one that has a random table.
    @ivar routing: what makes its table.
    @ivar multicast: by position and block.
    """

    __slots__ = (
        *("busyFor", "delaySeconds", "description", "guid", "identifier", "index", "info"),
        *("isDead", "isSwitch", "kind", "linear", "multicast", "portGUIDs", "ports", "random"),
        *("redirects", "routing", "switchInfo"),
    )

    def __init__(self, kind: NodeType, identifier: str, description: str, info: NodeInfo) -> None:
        self.kind = kind
        self.isSwitch = kind is NodeType.SWITCH
        self.identifier = identifier
        self.description = description
        self.info = info.encode()
        self.guid = info.nodeGUID
        self.portGUIDs: dict[int, GUID] | None = None
        self.ports: list[SimulatedPort] = []
        self.isDead = False
        self.delaySeconds = 0.0
        self.busyFor = 0
        self.redirects: dict[int, LID] | None = None
        self.index = -1
        self.switchInfo = bytearray()
        self.linear: bytearray | None = None
        self.random: bytearray | None = None
        self.routing: Routing | None = None
        self.multicast: dict[tuple[int, int], bytes] | None = None

    def __repr__(self) -> str:
        return f"<SimulatedNode {self.identifier!r}>"

    @property
    def numPorts(self) -> int:
        return len(self.ports) - 1

    @property
    def external(self) -> list[SimulatedPort]:
        """All ports that can have a link."""
        return self.ports[1:]

    def call(self, guid: GUID) -> None:
        """Give it this GUID, whoever else may have it."""
        self.info = self.info[:12] + guid.raw + self.info[20:]
        self.guid = guid


def buildNodes(net: Net) -> dict[str, SimulatedNode]:
    """The nodes of a net, with all links up that it has."""
    builder = _Builder(net)
    nodes = {name: builder.node(node) for name, node in net.nodes.items()}
    for name, netNode in net.nodes.items():
        ports = nodes[name].ports
        for number, link in netNode.links.items():
            here, there = ports[number], nodes[link.peer].ports[link.peerPort]
            if here.peer is None:
                here.peer, there.peer = there, here
                bringUp(here)
    return nodes


class _Builder:
    """Makes nodes; ports that are alike are encoded once."""

    def __init__(self, net: Net) -> None:
        self._width = net.width or DEFAULT_WIDTH
        self._speed = net.speed or DEFAULT_SPEED
        self._extended = net.extendedSpeed
        self._next = dict(FIRST_GUIDS)
        self._templates: dict[tuple[bool, bool, int, int, int], bytes] = {}

    def node(self, said: NetNode) -> SimulatedNode:
        """One of them, its ports without links."""
        guid = said.guid
        if guid is None:
            guid = GUID.fromInt(self._next[said.kind])
        self._next[said.kind] = int(guid) + (1 if said.kind is NodeType.SWITCH else said.ports + 1)
        isSwitch = said.kind is NodeType.SWITCH
        info = NodeInfo(
            baseVersion=1,
            classVersion=1,
            nodeType=said.kind,
            numPorts=said.ports,
            systemImageGUID=said.systemImageGUID or guid,
            nodeGUID=guid,
            partitionCap=PKEYS_PER_SWITCH if isSwitch else PKEYS_PER_PORT,
            deviceID=said.deviceID,
            revision=_REVISION,
            vendorID=said.vendorID,
        )
        node = SimulatedNode(said.kind, said.identifier, said.description, info)
        node.ports = [
            SimulatedPort(node, number, self._portInfo(isSwitch, said.links.get(number), number))
            for number in range(said.ports + 1)
        ]
        if isSwitch:
            node.switchInfo[:] = _switchInfo().encode()
        ends = node.ports[:1] if isSwitch else node.ports[1:]
        if said.lid:
            for end in ends[:1]:
                end.info[16:18] = said.lid.to_bytes(2, "big")
                end.info[34] |= said.lmc & 7
        return node

    def _portInfo(self, isSwitch: bool, link: NetLink | None, number: int) -> bytes:
        if number == 0:
            return _switchPort(self._width, self._speed).encode() if isSwitch else b""
        width = (link.width if link else 0) or self._width
        speed = (link.speed if link else 0) or self._speed
        extended = (link.extendedSpeed if link else 0) or self._extended
        key = (isSwitch, link is not None, width, speed, extended)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = _portInfo(*key).encode()
        return template


def _portInfo(isSwitch: bool, isCabled: bool, width: int, speed: int, extended: int) -> PortInfo:
    """Of a port that is no switch's port 0, without a link; one that never had one knows less, as ibsim's."""
    if not isCabled:
        extended = 0
    return PortInfo(
        capabilityMask=0 if isSwitch else _CAPABILITIES if isCabled else _CAPABILITIES & ~_CABLED,
        mkeyLeasePeriod=0 if isSwitch else _LEASE,
        linkWidthEnabled=width,
        linkWidthSupported=ALL_WIDTHS,
        linkWidthActive=2,
        linkSpeedSupported=ALL_SPEEDS,
        portState=PortState.DOWN,
        portPhysicalState=PhysicalState.POLLING,
        linkDownDefaultState=DownDefault.POLLING,
        linkSpeedActive=1,
        linkSpeedEnabled=speed,
        neighborMTU=PathMTU.MTU_2048,
        vlCap=4,
        vlArbitrationHighCap=8,
        vlArbitrationLowCap=8,
        mtuCap=PathMTU.MTU_2048,
        vlStallCount=7,
        operationalVLs=4,
        guidCap=0 if isSwitch else 32,
        subnetTimeOut=0 if isSwitch else 31,
        localPhyErrors=4 if isSwitch and not isCabled else 0,
        capabilityMask2=0 if isSwitch else _CAPABILITIES2,
        linkSpeedExtSupported=ALL_SPEEDS if extended else 0,
        linkSpeedExtEnabled=extended,
    )


def _switchPort(width: int, speed: int) -> PortInfo:
    """A switch's port 0."""
    return PortInfo(
        capabilityMask=_SWITCH_CAPABILITIES,
        mkeyLeasePeriod=_LEASE,
        linkWidthEnabled=width,
        linkWidthSupported=ALL_WIDTHS,
        linkWidthActive=2,
        linkSpeedSupported=ALL_SPEEDS,
        portState=PortState.ACTIVE,
        portPhysicalState=PhysicalState.LINK_UP,
        linkDownDefaultState=DownDefault.POLLING,
        linkSpeedActive=1,
        linkSpeedEnabled=speed,
        neighborMTU=PathMTU.MTU_256,
        vlCap=4,
        vlArbitrationHighCap=8,
        vlArbitrationLowCap=8,
        mtuCap=PathMTU.MTU_1024,
        operationalVLs=4,
        guidCap=1,
        subnetTimeOut=31,
        responseTimeValue=8,
        capabilityMask2=_CAPABILITIES2,
    )


def _switchInfo() -> SwitchInfo:
    return SwitchInfo(
        linearFDBCap=LINEAR_CAP,
        multicastFDBCap=MULTICAST_CAP,
        portStateChange=True,
        partitionEnforcementCap=64,
        filterRawInboundCap=True,
        filterRawOutboundCap=True,
    )


def learnFDR10(port: SimulatedPort) -> None:
    """Let a port be a vendor's that knows FDR10, and has it enabled in place of the extended speeds."""
    node = port.node
    if not mayHaveFDR10(NodeInfo.decode(node.info)):  # else nobody asks for the vendor's attribute
        device = (_SWITCHX if node.isSwitch else _CONNECTX3).to_bytes(2, "big")
        node.info = node.info[:30] + device + node.info[32:37] + _MELLANOX + node.info[40:]
    port.tables = port.tables or {}
    port.tables[EXTENDED_PORT_INFO] = bytes((0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1)).ljust(64, b"\0")
    port.info[_SPEED] |= port.info[32] >> 4
    port.info[_EXTENDED] = port.info[_EXTENDED + 1] = 0


# Links.


def bringUp(port: SimulatedPort) -> bool:
    """Join a port with its peer, if both are ready; tell whether they were."""
    peer = port.peer
    if peer is None or port.isCut or port.way is not None:
        return False
    if port.physicalState != PhysicalState.POLLING or peer.physicalState != PhysicalState.POLLING:
        return False
    negotiate(port, peer)
    for one, other in ((port, peer), (peer, port)):
        one.become(PortState.INIT, PhysicalState.LINK_UP)
        one.way = other
        _changed(one)
    return True


def bringDown(port: SimulatedPort, physical: int = PhysicalState.POLLING) -> None:
    """End a port's link; its own end goes to this physical state, the other one polls."""
    peer = port.way
    port.way = None
    port.become(PortState.DOWN, physical)
    _changed(port)
    if peer is not None:
        peer.way = None
        peer.become(PortState.DOWN, PhysicalState.POLLING)
        _changed(peer)
        for end in (port, peer):
            end.count().add(linkDownedCounter=1)


def _changed(port: SimulatedPort) -> None:
    """A switch remembers that one of its ports has changed."""
    if port.node.isSwitch:
        port.node.switchInfo[11] |= 4


def negotiate(port: SimulatedPort, peer: SimulatedPort) -> None:
    """What is active is the best that both have enabled (IBA 14.2.5.6)."""
    one, other = port.info, peer.info
    widths = one[_WIDTH] & other[_WIDTH]
    speeds = one[_SPEED] & other[_SPEED] & 15
    extended = _extendedOf(one) & _extendedOf(other)
    for info in (one, other):
        info[31] = _best(widths, _BY_LANES) or 1
        info[_SPEED] = (_highest(speeds) or 1) << 4 | info[_SPEED] & 15
        info[_EXTENDED] = _highest(extended) << 4 | info[_EXTENDED] & 15
    if port.tables is not None or peer.tables is not None:
        _negotiateFDR10(port, peer)


def _negotiateFDR10(port: SimulatedPort, peer: SimulatedPort) -> None:
    """A link at QDR, with no extended speed, runs at FDR10 if both ends know it and have it enabled."""
    known = [(end.tables or {}).get(EXTENDED_PORT_INFO, _NO_FDR10) for end in (port, peer)]
    isPlain = port.info[_SPEED] >> 4 == _QDR and not port.info[_EXTENDED] >> 4
    both = all(info[_FDR10_SUPPORTED] & info[_FDR10_ENABLED] & 1 for info in known)
    for end, info in zip((port, peer), known, strict=True):
        if end.tables is not None and info[_FDR10_SUPPORTED]:
            end.tables[EXTENDED_PORT_INFO] = info[:_FDR10_ACTIVE] + bytes((isPlain and both,)) + info[16:]


def _extendedOf(info: bytearray) -> int:
    """The extended speeds that a port has enabled."""
    enabled = info[_EXTENDED + 1] & 31
    return 0 if enabled == NO_EXTENDED_SPEED else enabled


_BY_LANES: Final = (8, 4, 2, 16, 1)


def _best(mask: int, order: tuple[int, ...]) -> int:
    return next((flag for flag in order if mask & flag), 0)


def _highest(mask: int) -> int:
    return 1 << mask.bit_length() - 1 if mask else 0


def endPorts(node: SimulatedNode) -> Iterator[SimulatedPort]:
    """The ports that have LIDs of their own: a switch's port 0, all of the others."""
    return iter(node.ports[:1] if node.isSwitch else node.ports[1:])
