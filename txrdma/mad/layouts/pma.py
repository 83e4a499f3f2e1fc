"""
Attributes of performance management: counters of ports.

Follows InfiniBand Architecture vol. 1, 16.1.3 and 16.1.4; C{portSelect} 0xFF means all ports of a switch.
Data is counted in units of four bytes. A counter stops at its maximum.
"""

from __future__ import annotations

from enum import IntFlag

from txrdma.kit.wire import array, bits, data, wire
from txrdma.mad.layouts.attributes import Attribute, attribute, key


class PerformanceCapability(IntFlag):
    """Capabilities of a performance management agent: bits 8 to 15 of its ClassPortInfo (IBA 16.1.3.1)."""

    ALL_PORT_SELECT = 1 << 8
    EXTENDED_WIDTH = 1 << 9
    EXTENDED_WIDTH_NO_IETF = 1 << 10
    SAMPLES_ONLY = 1 << 11
    XMIT_WAIT = 1 << 12
    INHIBIT_LIMITED_PKEY = 1 << 13
    RS_FEC = 1 << 14
    QP1_DROP = 1 << 15


@wire(4)
class _PortCounters(Attribute):
    """The beginning of most attributes with counters of a port."""

    reserved: int = bits(8)
    portSelect: int = bits(8)
    counterSelect: int = key(16)


@wire(4)
class _OpcodeCounters(Attribute):
    """The beginning of attributes with counters of one opcode at a port."""

    opCode: int = key(8)
    portSelect: int = bits(8)
    counterSelect: int = key(16)


@attribute(0x0012, "PerformanceGet", "PerformanceSet", size=44)
class PortCounters(_PortCounters):
    """Counters of a port (IBA 16.1.3.5). C{counterSelect}: a bit for each that a Set writes."""

    symbolErrorCounter: int = bits(16)
    linkErrorRecoveryCounter: int = bits(8)
    linkDownedCounter: int = bits(8)
    portRcvErrors: int = bits(16)
    portRcvRemotePhysicalErrors: int = bits(16)
    portRcvSwitchRelayErrors: int = bits(16)
    portXmitDiscards: int = bits(16)
    portXmitConstraintErrors: int = bits(8)
    portRcvConstraintErrors: int = bits(8)
    counterSelect2: int = key(8)
    localLinkIntegrityErrors: int = bits(4)
    excessiveBufferOverrunErrors: int = bits(4)
    qp1Dropped: int = bits(16)
    vl15Dropped: int = bits(16)
    portXmitData: int = bits(32)
    portRcvData: int = bits(32)
    portXmitPkts: int = bits(32)
    portRcvPkts: int = bits(32)
    portXmitWait: int = bits(32)


@attribute(0x001D, "PerformanceGet", "PerformanceSet", size=184)
class PortCountersExtended(_PortCounters):
    """Counters of 64 bits (IBA 16.1.4.11); not all ports have those from C{symbolErrorCounter} on."""

    counterSelect2: int = key(32)
    portXmitData: int = bits(64)
    portRcvData: int = bits(64)
    portXmitPkts: int = bits(64)
    portRcvPkts: int = bits(64)
    portUnicastXmitPkts: int = bits(64)
    portUnicastRcvPkts: int = bits(64)
    portMulticastXmitPkts: int = bits(64)
    portMulticastRcvPkts: int = bits(64)
    symbolErrorCounter: int = bits(64)
    linkErrorRecoveryCounter: int = bits(64)
    linkDownedCounter: int = bits(64)
    portRcvErrors: int = bits(64)
    portRcvRemotePhysicalErrors: int = bits(64)
    portRcvSwitchRelayErrors: int = bits(64)
    portXmitDiscards: int = bits(64)
    portXmitConstraintErrors: int = bits(64)
    portRcvConstraintErrors: int = bits(64)
    localLinkIntegrityErrors: int = bits(64)
    excessiveBufferOverrunErrors: int = bits(64)
    vl15Dropped: int = bits(64)
    portXmitWait: int = bits(64)
    qp1Dropped: int = bits(64)


@attribute(0x0010, "PerformanceGet", "PerformanceSet", size=80)
class PortSamplesControl(Attribute):
    """Settings and status of a port's sampling of counters (IBA 16.1.3.2)."""

    opCode: int = key(8)
    portSelect: int = bits(8)
    tick: int = bits(8)
    reserved: int = bits(5)
    counterWidth: int = bits(3)
    reserved2: int = bits(2)
    counterMasks0: tuple[int, ...] = array(10, bits(3))
    reserved3: int = bits(1)
    counterMask10To14: int = key(15)
    sampleMechanisms: int = key(8)
    reserved4: int = bits(6)
    sampleStatus: int = bits(2)
    optionMask: int = key(64)
    vendorMask: int = key(64)
    sampleStart: int = bits(32)
    sampleInterval: int = bits(32)
    tag: int = key(16)
    counterSelects: tuple[int, ...] = array(15, key(16))
    reserved5: int = bits(32)
    samplesOnlyOptionMask: int = key(64)


@attribute(0x0011, "PerformanceGet", size=64)
class PortSamplesResult(Attribute):
    """Results of a port's sampling of counters (IBA 16.1.3.4)."""

    tag: int = key(16)
    reserved: int = bits(14)
    sampleStatus: int = bits(2)
    counters: tuple[int, ...] = array(15, bits(32))


@attribute(0x001E, "PerformanceGet", size=128)
class PortSamplesResultExtended(Attribute):
    """Results of a port's sampling of counters, in 64 bits (IBA 16.1.4.12)."""

    tag: int = key(16)
    reserved: int = bits(14)
    sampleStatus: int = bits(2)
    extendedWidth: int = bits(2)
    reserved2: int = bits(30)
    counters: tuple[int, ...] = array(15, bits(64))


@attribute(0x0015, "PerformanceGet", "PerformanceSet", size=16)
class PortRcvErrorDetails(_PortCounters):
    """Causes of errors by which received packets were dropped (IBA 16.1.4.1)."""

    portLocalPhysicalErrors: int = bits(16)
    portMalformedPacketErrors: int = bits(16)
    portBufferOverrunErrors: int = bits(16)
    portDLIDMappingErrors: int = bits(16)
    portVLMappingErrors: int = bits(16)
    portLoopingErrors: int = bits(16)


@attribute(0x0016, "PerformanceGet", "PerformanceSet", size=12)
class PortXmitDiscardDetails(_PortCounters):
    """Causes for which packets to send were discarded (IBA 16.1.4.2)."""

    portInactiveDiscards: int = bits(16)
    portNeighborMTUDiscards: int = bits(16)
    portSwLifetimeLimitDiscards: int = bits(16)
    portSwHOQLifetimeLimitDiscards: int = bits(16)


@attribute(0x0017, "PerformanceGet", "PerformanceSet", size=12)
class PortOpRcvCounters(_OpcodeCounters):
    """Packets and data of one opcode (IBA 16.1.4.3)."""

    portOpRcvPkts: int = bits(32)
    portOpRcvData: int = bits(32)


@attribute(0x0018, "PerformanceGet", "PerformanceSet", size=12)
class PortFlowCtlCounters(_PortCounters):
    """Flow control packets (IBA 16.1.4.4)."""

    portXmitFlowPkts: int = bits(32)
    portRcvFlowPkts: int = bits(32)


@attribute(0x0019, "PerformanceGet", "PerformanceSet", size=36)
class PortVLOpPackets(_OpcodeCounters):
    """Packets of one opcode, by virtual lane (IBA 16.1.4.5)."""

    portVLOpPackets: tuple[int, ...] = array(16, bits(16))


@attribute(0x001A, "PerformanceGet", "PerformanceSet", size=68)
class PortVLOpData(_OpcodeCounters):
    """Data of one opcode, by virtual lane (IBA 16.1.4.6)."""

    portVLOpData: tuple[int, ...] = array(16, bits(32))


@attribute(0x001B, "PerformanceGet", "PerformanceSet", size=8)
class PortVLXmitFlowCtlUpdateErrors(_PortCounters):
    """Missing flow control updates, by virtual lane (IBA 16.1.4.7)."""

    portVLXmitFlowCtlUpdateErrors: tuple[int, ...] = array(16, bits(2))


@attribute(0x001C, "PerformanceGet", "PerformanceSet", size=36)
class PortVLXmitWaitCounters(_PortCounters):
    """Ticks of waiting, by virtual lane (IBA 16.1.4.8)."""

    portVLXmitWait: tuple[int, ...] = array(16, bits(16))


@attribute(0x001F, "PerformanceGet", "PerformanceSet", size=140)
class PortExtendedSpeedsCounters(Attribute):
    """Errors of lanes at FDR, EDR and faster (IBA 16.1.4.13)."""

    reserved: int = bits(8)
    portSelect: int = bits(8)
    reserved2: int = bits(48)
    counterSelect: int = key(64)
    syncHeaderErrorCounter: int = bits(16)
    unknownBlockCounter: int = bits(16)
    errorDetectionCounterLanes: tuple[int, ...] = array(12, bits(16))
    fecCorrectableBlockCounterLanes: tuple[int, ...] = array(12, bits(32))
    fecUncorrectableBlockCounterLanes: tuple[int, ...] = array(12, bits(32))


@attribute(0x001F, "PerformanceGet", "PerformanceSet", size=152)
class PortExtendedSpeedsCountersRSFEC(Attribute):
    """
    Errors of lanes at FDR, EDR and faster, at a port with Reed-Solomon error correction.

    The attribute ID is that of L{PortExtendedSpeedsCounters}. An answer does not show which of the two it is:
    C{fecModeActive} of the port's PortInfoExtended does, and the agent's C{PerformanceCapability.RS_FEC}.
    Pass the class to decode.
    """

    reserved: int = bits(8)
    portSelect: int = bits(8)
    reserved2: int = bits(48)
    counterSelect: int = key(64)
    syncHeaderErrorCounter: int = bits(16)
    unknownBlockCounter: int = bits(16)
    reserved3: bytes = data(24)
    fecCorrectableSymbolCtrLanes: tuple[int, ...] = array(12, bits(32))
    reserved4: bytes = data(48)
    portFECCorrectableBlockCtr: int = bits(32)
    portFECUncorrectableBlockCtr: int = bits(32)
    portFECCorrectedSymbolCtr: int = bits(32)


@attribute(0x0030, "PerformanceGet", "PerformanceSet", size=36)
class SwPortVLCongestion(_PortCounters):
    """Packets that encountered congestion in a switch, by virtual lane (IBA 16.1.4.9)."""

    swPortVLCongestion: tuple[int, ...] = array(16, bits(16))


@attribute(0x0031, "PerformanceGet", "PerformanceSet", size=12)
class PortRcvConCtrl(_PortCounters):
    """Received packets with congestion marks (IBA annex A10.6.1)."""

    portPktRcvFECN: int = bits(32)
    portPktRcvBECN: int = bits(32)


@attribute(0x0032, "PerformanceGet", "PerformanceSet", size=68)
class PortSLRcvFECN(_PortCounters):
    """Received packets with FECN, by service level (IBA annex A10.6.2)."""

    portSLRcvFECN: tuple[int, ...] = array(16, bits(32))


@attribute(0x0033, "PerformanceGet", "PerformanceSet", size=68)
class PortSLRcvBECN(_PortCounters):
    """Received packets with BECN, by service level (IBA annex A10.6.3)."""

    portSLRcvBECN: tuple[int, ...] = array(16, bits(32))


@attribute(0x0034, "PerformanceGet", "PerformanceSet", size=8)
class PortXmitConCtrl(_PortCounters):
    """Ticks for which congestion held packets of a port (IBA annex A10.6.4)."""

    portXmitTimeCong: int = bits(32)


@attribute(0x0035, "PerformanceGet", "PerformanceSet", size=64)
class PortVLXmitTimeCong(_PortCounters):
    """Ticks for which congestion held packets, by virtual lane; there are 15 for data (IBA annex A10.6.5)."""

    portVLXmitTimeCong: tuple[int, ...] = array(15, bits(32))


@attribute(0x0036, "PerformanceGet", "PerformanceSet", size=68)
class PortXmitDataSL(_PortCounters):
    """Transmitted data, by service level (IBA annex A13)."""

    portXmitDataSL: tuple[int, ...] = array(16, bits(32))


@attribute(0x0037, "PerformanceGet", "PerformanceSet", size=68)
class PortRcvDataSL(_PortCounters):
    """Received data, by service level (IBA annex A13)."""

    portRcvDataSL: tuple[int, ...] = array(16, bits(32))
