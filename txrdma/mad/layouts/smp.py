"""
Attributes of subnet management, which SMPs query and set at nodes and ports.

Follows InfiniBand Architecture vol. 1, 14.2.5.
"""

from __future__ import annotations

from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType, PhysicalState, PortState
from txrdma.kit.wire import array, bits, data, Layout, wire
from txrdma.mad.layouts.attributes import Attribute, attribute, key, mask
from txrdma.mad.layouts.values import (
    DownDefault,
    enabledSpeedText,
    extendedSpeed2Text,
    extendedSpeedText,
    FECMode,
    lanesText,
    LinkSpeed,
    LinkSpeedExtended,
    LinkSpeedExtended2,
    LinkWidth,
    PathMTU,
    PortCapability,
    PortCapability2,
    PortInfoExtendedCapability,
    SMState,
    speedText,
    text,
    VendorLinkSpeed,
    vendorSpeedText,
    widthText,
)


@attribute(0x0010, "SubnGet", "SubnSet", size=64)
class NodeDescription(Attribute):
    """Name of a node, given by its owner: UTF-8, padded with zeros (IBA 14.2.5.2)."""

    nodeString: bytes = data(64, shown=text)

    @property
    def text(self) -> str:
        """Name of the node as text; bytes that are not UTF-8 are replaced."""
        return text(self.nodeString)


@attribute(0x0011, "SubnGet", size=40)
class NodeInfo(Attribute):
    """A node (IBA 14.2.5.3). C{portGUID} and C{localPortNum} are those of the queried port."""

    baseVersion: int = bits(8)
    classVersion: int = bits(8)
    nodeType: NodeType = bits(8)
    numPorts: int = bits(8)
    systemImageGUID: GUID = data(8)
    nodeGUID: GUID = data(8)
    portGUID: GUID = data(8)
    partitionCap: int = bits(16)
    deviceID: int = key(16)
    revision: int = key(32)
    localPortNum: int = bits(8)
    vendorID: int = key(24)


@attribute(0x0012, "SubnGet", "SubnSet", size=20)
class SwitchInfo(Attribute):
    """Forwarding capabilities of a switch (IBA 14.2.5.4). C{lifeTimeValue} is an encoded time."""

    linearFDBCap: int = bits(16)
    randomFDBCap: int = bits(16)
    multicastFDBCap: int = bits(16)
    linearFDBTop: LID = bits(16)
    defaultPort: int = bits(8)
    defaultMulticastPrimaryPort: int = bits(8)
    defaultMulticastNotPrimaryPort: int = bits(8)
    lifeTimeValue: int = bits(5)
    portStateChange: bool = bits(1)
    optimizedSLtoVLMappingProgramming: int = bits(2)
    lidsPerPort: int = bits(16)
    partitionEnforcementCap: int = bits(16)
    inboundEnforcementCap: bool = bits(1)
    outboundEnforcementCap: bool = bits(1)
    filterRawInboundCap: bool = bits(1)
    filterRawOutboundCap: bool = bits(1)
    enhancedPort0: bool = bits(1)
    reserved: int = bits(3)
    reserved2: int = bits(8)
    multicastFDBTop: LID = key(16)


@attribute(0x0014, "SubnGet", "SubnSet", size=64)
class GUIDInfo(Attribute):
    """Eight of a port's GUIDs (IBA 14.2.5.5); the modifier is the block of eight."""

    guids: tuple[GUID, ...] = array(8, data(8))


@attribute(0x0015, "SubnGet", "SubnSet", size=64)
class PortInfo(Attribute):
    """
    LID, state, capabilities and link of a port (IBA 14.2.5.6).

    Speeds from FDR on are C{linkSpeedExt...}, XDR is in C{linkSpeedExt...2}.
    """

    mkey: int = key(64)
    gidPrefix: int = key(64)
    lid: LID = bits(16)
    masterSMLID: LID = bits(16)
    capabilityMask: int = mask(32, PortCapability)
    diagCode: int = key(16)
    mkeyLeasePeriod: int = bits(16)
    localPortNum: int = bits(8)
    linkWidthEnabled: int = bits(8, shown=widthText, flags=LinkWidth)
    linkWidthSupported: int = bits(8, shown=widthText, flags=LinkWidth)
    linkWidthActive: int = bits(8, shown=widthText, flags=LinkWidth)
    linkSpeedSupported: int = bits(4, shown=speedText, flags=LinkSpeed)
    portState: PortState = bits(4)
    portPhysicalState: PhysicalState = bits(4)
    linkDownDefaultState: DownDefault = bits(4)
    mkeyProtectBits: int = bits(2)
    reserved: int = bits(3)
    lmc: int = bits(3)
    linkSpeedActive: int = bits(4, shown=speedText, flags=LinkSpeed)
    linkSpeedEnabled: int = bits(4, shown=speedText, flags=LinkSpeed)
    neighborMTU: PathMTU = bits(4)
    masterSMSL: int = bits(4)
    vlCap: int = bits(4, shown=lanesText)
    initType: int = key(4)
    vlHighLimit: int = bits(8)
    vlArbitrationHighCap: int = bits(8)
    vlArbitrationLowCap: int = bits(8)
    initTypeReply: int = key(4)
    mtuCap: PathMTU = bits(4)
    vlStallCount: int = bits(3)
    hoqLife: int = bits(5)
    operationalVLs: int = bits(4, shown=lanesText)
    partitionEnforcementInbound: bool = bits(1)
    partitionEnforcementOutbound: bool = bits(1)
    filterRawInbound: bool = bits(1)
    filterRawOutbound: bool = bits(1)
    mkeyViolations: int = bits(16)
    pkeyViolations: int = bits(16)
    qkeyViolations: int = bits(16)
    guidCap: int = bits(8)
    clientReregister: bool = bits(1)
    multicastPKeyTrapSuppressionEnabled: int = bits(2)
    subnetTimeOut: int = bits(5)
    reserved2: int = bits(3)
    responseTimeValue: int = bits(5)
    localPhyErrors: int = bits(4)
    overrunErrors: int = bits(4)
    maxCreditHint: int = bits(16)
    reserved3: int = bits(1)
    linkSpeedExtActive2: int = bits(2, shown=extendedSpeed2Text, flags=LinkSpeedExtended2)
    linkSpeedExtSupported2: int = bits(2, shown=extendedSpeed2Text, flags=LinkSpeedExtended2)
    linkSpeedExtEnabled2: int = bits(3, shown=extendedSpeed2Text, flags=LinkSpeedExtended2)
    linkRoundTripLatency: int = bits(24)
    capabilityMask2: int = mask(16, PortCapability2)
    linkSpeedExtActive: int = bits(4, shown=extendedSpeedText, flags=LinkSpeedExtended)
    linkSpeedExtSupported: int = bits(4, shown=extendedSpeedText, flags=LinkSpeedExtended)
    reserved4: int = bits(3)
    linkSpeedExtEnabled: int = bits(5, shown=enabledSpeedText, flags=LinkSpeedExtended)

    @staticmethod
    def modifier(port: int, extended: bool = False) -> int:
        """
        Compute the attribute modifier of PortInfo.

        @param extended: also request the speeds from FDR on, if the node knows them.
        """
        return extended << 31 | port

    @staticmethod
    def partsOf(modifier: int) -> tuple[int, bool]:
        """Decode a L{modifier}: port, and True if speeds from FDR on are requested."""
        return modifier & 0xFF, bool(modifier >> 31)


@attribute(0x0016, "SubnGet", "SubnSet", size=64)
class PKeyTable(Attribute):
    """32 P_Keys of a port (IBA 14.2.5.7)."""

    pkeys: tuple[int, ...] = array(32, key(16))

    @staticmethod
    def modifier(block: int = 0, port: int = 0) -> int:
        """
        Compute the attribute modifier of P_KeyTable.

        @param block: number of the block of 32 P_Keys.
        @param port: port number of a switch; 0 on other nodes.
        """
        return port << 16 | block

    @staticmethod
    def partsOf(modifier: int) -> tuple[int, int]:
        """Take a L{modifier} apart: block and port."""
        return modifier & 0xFFFF, modifier >> 16


@attribute(0x0017, "SubnGet", "SubnSet", size=8)
class SLtoVLMappingTable(Attribute):
    """The virtual lane of each service level (IBA 14.2.5.8)."""

    vls: tuple[int, ...] = array(16, bits(4))

    @staticmethod
    def modifier(inPort: int = 0, outPort: int = 0) -> int:
        """Compute the attribute modifier of packets from one port of a switch to another; else 0."""
        return inPort << 8 | outPort

    @staticmethod
    def partsOf(modifier: int) -> tuple[int, int]:
        """Decode a L{modifier}: the input port and the output port of a switch."""
        return modifier >> 8 & 0xFF, modifier & 0xFF


@wire(2)
class VLWeight(Layout):
    """Entry of a virtual lane in the arbitration: its weight in units of 64 bytes."""

    reserved: int = bits(4)
    vl: int = bits(4)
    weight: int = bits(8)


@attribute(0x0018, "SubnGet", "SubnSet", size=64)
class VLArbitrationTable(Attribute):
    """Half of the low or of the high table of a port (IBA 14.2.5.9)."""

    entries: tuple[VLWeight, ...] = array(32)

    @staticmethod
    def modifier(port: int = 0, block: int = 1) -> int:
        """
        Compute the attribute modifier of VLArbitrationTable.

        @param port: port number of a switch; 0 on other nodes.
        @param block: 1 and 2 are the halves of the low table, 3 and 4 of the high one.
        """
        return block << 16 | port

    @staticmethod
    def partsOf(modifier: int) -> tuple[int, int]:
        """Take a L{modifier} apart: port and block."""
        return modifier & 0xFFFF, modifier >> 16


@attribute(0x0019, "SubnGet", "SubnSet", size=64)
class LinearForwardingTable(Attribute):
    """Output ports of 64 LIDs in a switch; 255 is none (IBA 14.2.5.10)."""

    ports: bytes = data(64)


@wire(4)
class LIDPort(Layout):
    """An entry of a random forwarding table (IBA 14.2.5.11)."""

    lid: LID = bits(16)
    valid: bool = bits(1)
    lmc: int = bits(3)
    reserved: int = bits(4)
    port: int = bits(8)


@attribute(0x001A, "SubnGet", "SubnSet", size=64)
class RandomForwardingTable(Attribute):
    """16 entries of a random forwarding table (IBA 14.2.5.11)."""

    entries: tuple[LIDPort, ...] = array(16)


@attribute(0x001B, "SubnGet", "SubnSet", size=64)
class MulticastForwardingTable(Attribute):
    """16 ports' bits for 32 multicast LIDs (IBA 14.2.5.12)."""

    portMasks: tuple[int, ...] = array(32, key(16))

    @staticmethod
    def modifier(block: int, position: int = 0) -> int:
        """
        Compute the attribute modifier of MulticastForwardingTable.

        @param block: number of the block of 32 LIDs, from 0xC000 on.
        @param position: number of the group of 16 ports.
        """
        return position << 28 | block

    @staticmethod
    def partsOf(modifier: int) -> tuple[int, int]:
        """Take a L{modifier} apart: block and position."""
        return modifier & 0x1FF, modifier >> 28


@attribute(0x001C, "SubnGet", "SubnSet", size=36)
class LinkSpeedWidthPairsTable(Attribute):
    """
    Link widths that a port can have at each speed (IBA 14.2.5.16).

    @ivar portMask: a bit for each port to which the table applies.
    @ivar speedTwoPtFive: the widths at 2.5 Gbit/s a lane, as in C{linkWidthSupported} of a L{PortInfo}.
    """

    numTables: int = bits(8)
    portMask: bytes = data(32)
    speedTwoPtFive: int = bits(8, shown=widthText, flags=LinkWidth)
    speedFive: int = bits(8, shown=widthText, flags=LinkWidth)
    speedTen: int = bits(8, shown=widthText, flags=LinkWidth)


@attribute(0x001D, "SubnGet", "SubnSet", size=64)
class VendorMADsTable(Attribute):
    """Vendors' attributes that a port knows (IBA 14.2.5.17): bytes, as no public source takes it apart."""

    content: bytes = data(64)


@attribute(0x001E, "SubnGet", size=64)
class HierarchyInfo(Attribute):
    """Position of a port in chassis and room (IBA 14.2.5.18), as bytes: no public source specifies it."""

    content: bytes = data(64)


@attribute(0x0020, "SubnGet", "SubnSet", size=21)
class SMInfo(Attribute):
    """State and priority of a subnet manager (IBA 14.2.5.13)."""

    guid: GUID = data(8)
    smKey: int = key(64)
    actCount: int = bits(32)
    priority: int = bits(4)
    smState: SMState = bits(4)


@attribute(0x0030, "SubnGet", size=64)
class VendorDiag(Attribute):
    """A vendor's diagnosis; C{nextIndex} is the modifier of the next, 0 after the last (IBA 14.2.5.14)."""

    nextIndex: int = bits(16)
    diagData: bytes = data(62)


@attribute(0x0031, "SubnGet", "SubnSet", size=4)
class LedInfo(Attribute):
    """Mask of a port's LED, for locating the port (IBA 14.2.5.15)."""

    ledMask: bool = bits(1)
    reserved: int = bits(31)


@attribute(0x0032, "SubnGet", "SubnSet", size=64)
class CableInfo(Attribute):
    """Contents of a cable's own memory (IBA 14.2.5.20): bytes, as no public source takes it apart."""

    content: bytes = data(64)


@attribute(0x0033, "SubnGet", "SubnSet", size=64)
class PortInfoExtended(Attribute):
    """A port's forward error correction, at each speed; the modifier is the port (IBA 14.2.5.19)."""

    capMask: int = mask(32, PortInfoExtendedCapability)
    fecModeActive: FECMode = bits(16)
    fdrFECModeSupported: int = key(16)
    fdrFECModeEnabled: int = key(16)
    edrFECModeSupported: int = key(16)
    edrFECModeEnabled: int = key(16)
    hdrFECModeSupported: int = key(16)
    hdrFECModeEnabled: int = key(16)
    ndrFECModeSupported: int = key(16)
    ndrFECModeEnabled: int = key(16)
    reserved: bytes = data(42)


@attribute(0xFF90, "SubnGet", "SubnSet", size=64)
class ExtendedPortInfo(Attribute):
    """
    Speeds at a port that are specific to Mellanox: FDR10, 10.3125 Gbit/s per lane with the coding of FDR.

    @ivar stateChangeEnable: mask of the fields that a Set changes.
    """

    reserved: int = bits(24)
    stateChangeEnable: int = key(8)
    reserved2: int = bits(24)
    linkSpeedSupported: int = bits(8, shown=vendorSpeedText, flags=VendorLinkSpeed)
    reserved3: int = bits(24)
    linkSpeedEnabled: int = bits(8, shown=vendorSpeedText, flags=VendorLinkSpeed)
    reserved4: int = bits(24)
    linkSpeedActive: int = bits(8, shown=vendorSpeedText, flags=VendorLinkSpeed)
    reserved5: bytes = data(48)
