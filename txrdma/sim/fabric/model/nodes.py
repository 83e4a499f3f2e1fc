"""
Nodes and ports of a simulated fabric, and the states of their links.

Follows InfiniBand Architecture vol. 1, 7.2.7 (states of a port) and 14.2.5.6 (PortInfo). Initial values of
attributes are those of ibsim. PortInfo is stored encoded, since a fabric of ten thousand hosts has a hundred
thousand ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from txrdma.fabric.linkspeeds import mayHaveFDR10, RATES
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType, PhysicalState, PortState
from txrdma.kit.rawfields import peek, poke
from txrdma.mad.layouts.smp import ExtendedPortInfo, NodeInfo, PortInfo, PortInfoExtended, SwitchInfo
from txrdma.mad.layouts.values import (
    DownDefault,
    FECMode,
    PathMTU,
    PortCapability,
    PortInfoExtendedCapability,
)
from txrdma.sim.fabric.model.counters import SimulatedCounters
from txrdma.sim.nets.netfile import Net, NetLink, NetNode

SUBNET_TIMEOUT: Final = 14
"""SubnetTimeout code of 67 ms, the default for the longest time of a packet in a simulated fabric."""

ALL_WIDTHS: Final = 0x1F
ALL_SPEEDS: Final = 7
DEFAULT_WIDTH: Final = 2
DEFAULT_SPEED: Final = 1
"""Speed of links without one in the net file: SDR, as a mask; C{DEFAULT_WIDTH} is the mask of 4X."""

PKEYS_PER_PORT: Final = 64
PKEYS_PER_SWITCH: Final = 8
FIRST_GUIDS: Final = {
    NodeType.CHANNEL_ADAPTER: 0x100000,
    NodeType.SWITCH: 0x200000,
    NodeType.ROUTER: 0x300000,
}
"""
First GUIDs by node type, for nodes without one in the net file. Each node gets the next GUID; channel
adapters and routers also use one for each port.
"""

LINEAR_CAP: Final = 0x7800
MULTICAST_CAP: Final = 0x0400
_REVISION: Final = 0xA1
_SWITCH_CAPABILITIES: Final = (
    PortCapability.TRAP
    | PortCapability.SL_MAPPING
    | PortCapability.EXTENDED_SPEEDS
    | PortCapability.CAPABILITY_MASK2
)
_CABLED: Final = PortCapability.CAPABILITY_MASK_NOTICE
_CAPABILITIES: Final = _SWITCH_CAPABILITIES | PortCapability.VENDOR_CLASS | _CABLED
_CAPABILITIES2: Final = 0x30
_LEASE: Final = 0xFF9

NO_EXTENDED_SPEED: Final = 30
"""Value of LinkSpeedExtEnabled that enables no extended speed (IBA 14.2.5.6)."""

EXTENDED_PORT_INFO: Final = (ExtendedPortInfo.attributeID, 0)
"""Key of a vendor's ExtendedPortInfo in a port's tables."""

PORT_INFO_EXTENDED: Final = (PortInfoExtended.attributeID, 0)
"""Key of PortInfoExtended in a port's tables."""

_MELLANOX: Final = 0x0002C9
_SWITCHX: Final = 0xC738
_CONNECTX3: Final = 0x1003
_QDR: Final = 4


# Fields of a PortInfo.

_lid, _lmc = peek(PortInfo, "lid"), peek(PortInfo, "lmc")
_setLID, _setLMC = poke(PortInfo, "lid"), poke(PortInfo, "lmc")
_state, _setState = peek(PortInfo, "portState"), poke(PortInfo, "portState")
_physical, _setPhysical = peek(PortInfo, "portPhysicalState"), poke(PortInfo, "portPhysicalState")
_capabilities, _setCapabilities = peek(PortInfo, "capabilityMask"), poke(PortInfo, "capabilityMask")
_smLID, _guidCap = peek(PortInfo, "masterSMLID"), peek(PortInfo, "guidCap")


def guidCap(port: SimulatedPort) -> int:
    """Return the capacity of a port's GUID table (GUIDCap)."""
    return int(_guidCap(port.info))


class PortAttachment:
    """
    A receiver of management datagrams, attached to a port of the fabric: the base class of management ports.

    @ivar port: the simulated port to which it is attached.
    """

    def __init__(self, port: SimulatedPort) -> None:
        self.port = port
        self._served: dict[tuple[int, int], int] = {}
        port.attachments = (*port.attachments, self)

    def serves(self, managementClass: int, method: int) -> bool:
        """Return whether this, not the node's agent, receives requests of this class and method."""
        return (managementClass, method) in self._served

    def detach(self) -> None:
        """Stop receiving datagrams."""
        self._served.clear()
        self.port.attachments = tuple(other for other in self.port.attachments if other is not self)

    def deliver(self, datagram: bytes, envelope: object) -> None:
        """Receive a datagram that has arrived at the port."""

    def changed(self, mustRegister: bool) -> None:
        """Note that the PortInfo of the port was set."""


class SimulatedPort:
    """
    A port of a simulated node.

    @ivar info: PortInfo of the port, encoded.
    @ivar peer: the port at the other end of the cable, if there is one.
    @ivar neighbor: the peer while the link is up, else None.
    @ivar attachments: management ports attached to the port.
    @ivar module: encoded ModuleInfo of the cable's end at the port; C{b""} if none can be read.
    """

    __slots__ = (
        *("attachments", "counters", "info", "isCut", "module", "node", "number", "peer", "tables"),
        "neighbor",
    )

    def __init__(self, node: SimulatedNode, number: int, info: bytes) -> None:
        self.node = node
        self.number = number
        self.info = bytearray(info)
        self.peer: SimulatedPort | None = None
        self.neighbor: SimulatedPort | None = None
        self.isCut = False
        self.module = b""
        self.counters: SimulatedCounters | None = None
        self.tables: dict[tuple[int, int], bytes] | None = None
        self.attachments: tuple[PortAttachment, ...] = ()

    def __repr__(self) -> str:
        return f"<SimulatedPort {self}>"

    def __str__(self) -> str:
        return f"{self.node.identifier}[{self.number}]"

    @property
    def guid(self) -> GUID:
        """GUID of the port; a switch has one for all its ports."""
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
        """The base LID of the port; 0 is none."""
        return LID(_lid(self.info))

    @lid.setter
    def lid(self, lid: int) -> None:
        _setLID(self.info, lid)

    @property
    def lmc(self) -> int:
        """LID mask control of the port, which has two to the power of LMC LIDs."""
        return int(_lmc(self.info))

    @lmc.setter
    def lmc(self, lmc: int) -> None:
        _setLMC(self.info, lmc)

    def owns(self, lid: int) -> bool:
        """Return whether a LID is one of the port's LIDs."""
        base: int = _lid(self.info)
        return base != 0 and base <= lid < base + (1 << _lmc(self.info))

    @property
    def smLID(self) -> LID:
        """LID of the master SM in the port's PortInfo; 0 is none."""
        return LID(_smLID(self.info))

    @property
    def capabilities(self) -> int:
        """The CapabilityMask of the port, with the bits of L{PortCapability}."""
        return int(_capabilities(self.info))

    @capabilities.setter
    def capabilities(self, capabilities: int) -> None:
        _setCapabilities(self.info, capabilities)

    @property
    def state(self) -> int:
        """The state of the port, a number of L{PortState}."""
        return int(_state(self.info))

    @property
    def physicalState(self) -> int:
        """The physical state of the port, a number of L{PhysicalState}."""
        return int(_physical(self.info))

    def become(self, state: int, physical: int) -> None:
        """Set the state and the physical state of the port."""
        _setState(self.info, state)
        _setPhysical(self.info, physical)

    def count(self) -> SimulatedCounters:
        """Return the counters of the port, which are created on first use."""
        if self.counters is None:
            self.counters = SimulatedCounters()
        return self.counters


class SimulatedNode:
    """
    A simulated switch, channel adapter or router.

    @ivar info: NodeInfo, encoded; answers have the fields of the port that received the request.
    @ivar ports: ports by number; number 0 is used only by switches.
    @ivar countsWide: whether the ports count errors in 64 bits.
    @ivar generalInfo: encoded GeneralInfo of a Mellanox device; C{b""} for others.
    @ivar systemInfo: encoded SystemInfo with its serial number; C{b""} if none can be read.
    @ivar isDead: whether the node's agents answer nothing and forward no directed routes.
    @ivar hasCounters: whether the node answers requests for counters.
    @ivar delaySeconds: additional time until the node answers.
    @ivar busyFor: number of requests that are still to be answered with BUSY.
    @ivar redirects: LID to which GMPs are redirected, by management class.
    @ivar linear: linear forwarding table of a switch; None until it is first read.
    @ivar routing: computes the forwarding table of a switch.
    @ivar adaptive: attributes of adaptive routing of a switch, by attribute ID and block number; None if the
        switch has none.
    @ivar multicast: blocks of a switch's multicast forwarding table, by position and block number.
    """

    __slots__ = (
        *("busyFor", "delaySeconds", "description", "generalInfo", "guid", "identifier", "index", "info"),
        *("countsWide", "isDead", "isSwitch", "kind", "linear", "multicast", "portGUIDs", "ports"),
        *("adaptive", "hasCounters", "redirects", "routing", "switchInfo", "systemInfo"),
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
        self.countsWide = False
        self.generalInfo = b""
        self.systemInfo = b""
        self.isDead = False
        self.hasCounters = True
        self.delaySeconds = 0.0
        self.busyFor = 0
        self.redirects: dict[int, LID] | None = None
        self.index = -1
        self.switchInfo = bytearray()
        self.linear: bytearray | None = None
        self.routing: Callable[[SimulatedNode], bytearray] | None = None
        self.adaptive: dict[tuple[int, int], bytes] | None = None
        self.multicast: dict[tuple[int, int], bytes] | None = None

    def __repr__(self) -> str:
        return f"<SimulatedNode {self.identifier!r}>"

    @property
    def numPorts(self) -> int:
        return len(self.ports) - 1

    @property
    def external(self) -> list[SimulatedPort]:
        """Ports of the node that can have a link: all except port 0."""
        return self.ports[1:]

    def setGUID(self, guid: GUID) -> None:
        """Give the node this GUID, even if another node has it."""
        self.info = NodeInfo.decode(self.info).replace(nodeGUID=guid).encode()
        self.guid = guid


def buildNodes(net: Net) -> dict[str, SimulatedNode]:
    """Return the nodes of a net by identifier, with all links up."""
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
    """Makes nodes; equal PortInfos are encoded once."""

    def __init__(self, net: Net) -> None:
        self._width = net.width or DEFAULT_WIDTH
        self._speed = net.speed or DEFAULT_SPEED
        self._extended = net.extendedSpeed
        self._next = dict(FIRST_GUIDS)
        self._templates: dict[tuple[bool, bool, int, int, int], bytes] = {}

    def node(self, declared: NetNode) -> SimulatedNode:
        """Return a node of the net file, with ports without links."""
        isSwitch = declared.kind is NodeType.SWITCH
        guid = GUID.fromInt(self._next[declared.kind]) if declared.guid is None else declared.guid
        self._next[declared.kind] = int(guid) + (1 if isSwitch else declared.ports + 1)
        info = NodeInfo(
            baseVersion=1,
            classVersion=1,
            nodeType=declared.kind,
            numPorts=declared.ports,
            systemImageGUID=declared.systemImageGUID or guid,
            nodeGUID=guid,
            partitionCap=PKEYS_PER_SWITCH if isSwitch else PKEYS_PER_PORT,
            deviceID=declared.deviceID,
            revision=_REVISION,
            vendorID=declared.vendorID,
        )
        node = SimulatedNode(declared.kind, declared.identifier, declared.description, info)
        node.ports = [
            SimulatedPort(node, number, self._portInfo(isSwitch, declared.links.get(number), number))
            for number in range(declared.ports + 1)
        ]
        if isSwitch:
            node.switchInfo[:] = _switchInfo().encode()
        ends = node.ports[:1] if isSwitch else node.ports[1:]
        if declared.lid:
            for end in ends[:1]:
                end.lid, end.lmc = declared.lid, declared.lmc & 7
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


_PORT: Final = PortInfo(
    linkWidthSupported=ALL_WIDTHS,
    linkWidthActive=2,
    linkSpeedSupported=ALL_SPEEDS,
    linkDownDefaultState=DownDefault.POLLING,
    linkSpeedActive=1,
    vlCap=4,
    vlArbitrationHighCap=8,
    vlArbitrationLowCap=8,
    operationalVLs=4,
)
"""The common fields of all ports' PortInfos."""


def _portInfo(isSwitch: bool, isCabled: bool, width: int, speed: int, extended: int) -> PortInfo:
    """Return the PortInfo of a port without a link; without a cable it supports less, as in ibsim."""
    if not isCabled:
        extended = 0
    return _PORT.replace(
        capabilityMask=0 if isSwitch else _CAPABILITIES if isCabled else _CAPABILITIES & ~_CABLED,
        mkeyLeasePeriod=0 if isSwitch else _LEASE,
        linkWidthEnabled=width,
        portState=PortState.DOWN,
        portPhysicalState=PhysicalState.POLLING,
        linkSpeedEnabled=speed,
        neighborMTU=PathMTU.MTU_2048,
        mtuCap=PathMTU.MTU_2048,
        vlStallCount=7,
        guidCap=0 if isSwitch else 32,
        subnetTimeOut=0 if isSwitch else 31,
        localPhyErrors=4 if isSwitch and not isCabled else 0,
        capabilityMask2=0 if isSwitch else _CAPABILITIES2,
        linkSpeedExtSupported=ALL_SPEEDS if extended else 0,
        linkSpeedExtEnabled=extended,
    )


def _switchPort(width: int, speed: int) -> PortInfo:
    """Return the PortInfo of a switch's port 0."""
    return _PORT.replace(
        capabilityMask=_SWITCH_CAPABILITIES,
        mkeyLeasePeriod=_LEASE,
        linkWidthEnabled=width,
        portState=PortState.ACTIVE,
        portPhysicalState=PhysicalState.LINK_UP,
        linkSpeedEnabled=speed,
        neighborMTU=PathMTU.MTU_256,
        mtuCap=PathMTU.MTU_1024,
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
    """Give a port the vendor's ExtendedPortInfo, with FDR10 enabled instead of the extended speeds."""
    node = port.node
    info = NodeInfo.decode(node.info)
    if not mayHaveFDR10(info):  # otherwise the vendor's attribute is not read
        device = _SWITCHX if node.isSwitch else _CONNECTX3
        node.info = info.replace(deviceID=device, vendorID=_MELLANOX).encode()
    port.tables = port.tables or {}
    port.tables[EXTENDED_PORT_INFO] = ExtendedPortInfo(linkSpeedSupported=1, linkSpeedEnabled=1).encode()
    known = PortInfo.decode(port.info)
    port.info[:] = known.replace(
        linkSpeedEnabled=known.linkSpeedEnabled | known.linkSpeedSupported,
        linkSpeedExtActive=0,
        linkSpeedExtSupported=0,
        linkSpeedExtEnabled=0,
    ).encode()


def learnCorrection(port: SimulatedPort, mode: FECMode) -> None:
    """Give a port a PortInfoExtended with this FEC mode."""
    stored = PortInfoExtended(capMask=PortInfoExtendedCapability.FEC_MODE, fecModeActive=mode)
    port.tables = {**(port.tables or {}), PORT_INFO_EXTENDED: stored.encode()}


def correctionOf(port: SimulatedPort) -> FECMode | None:
    """Return the FEC mode of a port; None for a port without PortInfoExtended."""
    stored = (port.tables or {}).get(PORT_INFO_EXTENDED)
    return None if stored is None else FECMode(_fecMode(stored))


# Links.

_fecMode: Final = peek(PortInfoExtended, "fecModeActive")
_widthEnabled, _setWidth = peek(PortInfo, "linkWidthEnabled"), poke(PortInfo, "linkWidthActive")
_speedEnabled, _extendedEnabled = peek(PortInfo, "linkSpeedEnabled"), peek(PortInfo, "linkSpeedExtEnabled")
_speedActive, _extendedActive = peek(PortInfo, "linkSpeedActive"), peek(PortInfo, "linkSpeedExtActive")
_setSpeed, _setExtended = poke(PortInfo, "linkSpeedActive"), poke(PortInfo, "linkSpeedExtActive")
setPortStateChange: Final = poke(SwitchInfo, "portStateChange")


def laneGigabits(port: SimulatedPort) -> float:
    """Return the active speed of a lane of a port in Gbit/s; 0 if it is unknown."""
    return RATES.get(_extendedActive(port.info) << 4 or _speedActive(port.info), 0.0)


def bringUp(port: SimulatedPort) -> bool:
    """Bring up the link between a port and its peer; return False if one of them is not ready."""
    peer = port.peer
    if peer is None or port.isCut or port.neighbor is not None:
        return False
    if port.physicalState != PhysicalState.POLLING or peer.physicalState != PhysicalState.POLLING:
        return False
    negotiate(port, peer)
    for one, other in ((port, peer), (peer, port)):
        one.become(PortState.INIT, PhysicalState.LINK_UP)
        one.neighbor = other
        _changed(one)
    return True


def bringDown(port: SimulatedPort, physical: int = PhysicalState.POLLING) -> None:
    """Bring down a port's link. The port enters this physical state; its peer enters Polling."""
    peer = port.neighbor
    port.neighbor = None
    port.become(PortState.DOWN, physical)
    _changed(port)
    if peer is not None:
        peer.neighbor = None
        peer.become(PortState.DOWN, PhysicalState.POLLING)
        _changed(peer)
        for end in (port, peer):
            end.count().add(linkDownedCounter=1)


def _changed(port: SimulatedPort) -> None:
    """Set PortStateChange if the port is one of a switch."""
    if port.node.isSwitch:
        setPortStateChange(port.node.switchInfo, True)


def negotiate(port: SimulatedPort, peer: SimulatedPort) -> None:
    """Set width and speed of a link to the best that both ends have enabled (IBA 14.2.5.6)."""
    one, other = port.info, peer.info
    widths = _widthEnabled(one) & _widthEnabled(other)
    speeds = _speedEnabled(one) & _speedEnabled(other)
    extended = _extendedOf(one) & _extendedOf(other)
    for info in (one, other):
        _setWidth(info, _best(widths, _BY_LANES) or 1)
        _setSpeed(info, _highest(speeds) or 1)
        _setExtended(info, _highest(extended))
    if port.tables is not None or peer.tables is not None:
        _negotiateFDR10(port, peer)


def _negotiateFDR10(port: SimulatedPort, peer: SimulatedPort) -> None:
    """Run a link of QDR speed without an extended speed at FDR10, if both ends have that enabled."""
    known = [
        ExtendedPortInfo.decode((end.tables or {}).get(EXTENDED_PORT_INFO, bytes(ExtendedPortInfo.size)))
        for end in (port, peer)
    ]
    isPlain = _speedActive(port.info) == _QDR and not _extendedActive(port.info)
    both = all(info.linkSpeedSupported & info.linkSpeedEnabled & 1 for info in known)
    for end, info in zip((port, peer), known, strict=True):
        if end.tables is not None and info.linkSpeedSupported:
            end.tables[EXTENDED_PORT_INFO] = info.replace(linkSpeedActive=int(isPlain and both)).encode()


def _extendedOf(info: bytearray) -> int:
    """Return the extended speeds that a port has enabled."""
    enabled: int = _extendedEnabled(info)
    return 0 if enabled == NO_EXTENDED_SPEED else enabled


_BY_LANES: Final = (8, 4, 2, 16, 1)


def _best(mask: int, order: tuple[int, ...]) -> int:
    return next((flag for flag in order if mask & flag), 0)


def _highest(mask: int) -> int:
    return 1 << mask.bit_length() - 1 if mask else 0


def endPorts(node: SimulatedNode) -> Iterator[SimulatedPort]:
    """Return the ports of a node that have LIDs: port 0 of a switch, all ports of other nodes."""
    return iter(node.ports[:1] if node.isSwitch else node.ports[1:])
