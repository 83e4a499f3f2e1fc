"""
Components by which SA records that contain another attribute can be queried, with the types of their values.

Follows InfiniBand Architecture vol. 1, 15.2.5. Components of the inner attribute (C{NodeInfo} within
C{NodeRecord}) have the names that it gives them. Each class is named after its record; components of other
records are their fields.
"""

# Annotations are values here: a TypedDict is made faster of types than of their names.

from typing_extensions import TypedDict

from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.iba.verbs import NodeType, PhysicalState, PortState
from txrdma.mad.layouts.values import DownDefault, PathMTU, Rate, Selector, SMState


class PathQualityComponents(TypedDict, total=False):
    """Components that limit the properties of paths, of single ones and of paths between several ports."""

    rawTraffic: bool
    flowLabel: int
    hopLimit: int
    trafficClass: int
    reversible: bool
    numbPath: int
    pkey: int
    qosClass: int
    serviceLevel: int
    mtuSelector: Selector
    mtu: PathMTU
    rateSelector: Selector
    rate: Rate
    packetLifeTimeSelector: Selector
    packetLifeTime: int


class NodeComponents(TypedDict, total=False):
    lid: LID
    baseVersion: int
    classVersion: int
    nodeType: NodeType
    numPorts: int
    systemImageGUID: GUID
    nodeGUID: GUID
    portGUID: GUID
    partitionCap: int
    deviceID: int
    revision: int
    localPortNum: int
    vendorID: int
    nodeString: bytes


class PortInfoComponents(TypedDict, total=False):
    endPortLID: LID
    portNum: int
    options: int
    mkey: int
    gidPrefix: int
    lid: LID
    masterSMLID: LID
    capabilityMask: int
    diagCode: int
    mkeyLeasePeriod: int
    localPortNum: int
    linkWidthEnabled: int
    linkWidthSupported: int
    linkWidthActive: int
    linkSpeedSupported: int
    portState: PortState
    portPhysicalState: PhysicalState
    linkDownDefaultState: DownDefault
    mkeyProtectBits: int
    lmc: int
    linkSpeedActive: int
    linkSpeedEnabled: int
    neighborMTU: PathMTU
    masterSMSL: int
    vlCap: int
    initType: int
    vlHighLimit: int
    vlArbitrationHighCap: int
    vlArbitrationLowCap: int
    initTypeReply: int
    mtuCap: PathMTU
    vlStallCount: int
    hoqLife: int
    operationalVLs: int
    partitionEnforcementInbound: bool
    partitionEnforcementOutbound: bool
    filterRawInbound: bool
    filterRawOutbound: bool
    mkeyViolations: int
    pkeyViolations: int
    qkeyViolations: int
    guidCap: int
    clientReregister: bool
    multicastPKeyTrapSuppressionEnabled: int
    subnetTimeOut: int
    responseTimeValue: int
    localPhyErrors: int
    overrunErrors: int
    maxCreditHint: int
    linkRoundTripLatency: int
    capabilityMask2: int
    linkSpeedExtActive: int
    linkSpeedExtSupported: int
    linkSpeedExtEnabled: int


class SwitchInfoComponents(TypedDict, total=False):
    lid: LID
    linearFDBCap: int
    randomFDBCap: int
    multicastFDBCap: int
    linearFDBTop: LID
    defaultPort: int
    defaultMulticastPrimaryPort: int
    defaultMulticastNotPrimaryPort: int
    lifeTimeValue: int
    portStateChange: bool
    optimizedSLtoVLMappingProgramming: int
    lidsPerPort: int
    partitionEnforcementCap: int
    inboundEnforcementCap: bool
    outboundEnforcementCap: bool
    filterRawInboundCap: bool
    filterRawOutboundCap: bool
    enhancedPort0: bool


class SMInfoComponents(TypedDict, total=False):
    lid: LID
    guid: GUID
    smKey: int
    actCount: int
    priority: int
    smState: SMState


class GUIDInfoComponents(TypedDict, total=False):
    lid: LID
    blockNum: int
    guids: tuple[GUID, ...]


class InformInfoComponents(TypedDict, total=False):
    subscriberGID: GID
    enum: int
    gid: GID
    lidRangeBegin: LID
    lidRangeEnd: LID
    isGeneric: int
    subscribe: int
    type: int
    trapNumber: int
    qpn: QPN
    responseTimeValue: int
    producerType: int
