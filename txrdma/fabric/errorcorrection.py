"""
Counters of forward error correction (FEC): the ports that have them, their two formats, and findings.

Follows InfiniBand Architecture vol. 1, 16.1.4.13 (PortExtendedSpeedsCounters) and 14.2.5.19
(PortInfoExtended). Lanes of HDR and faster use four voltage levels (PAM4), and have symbol errors at all
times: corrected errors are not a fault. An uncorrectable block is one: its packets are lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from txrdma.fabric.errorcounters import countingPorts, shownName, Thresholds, UNCORRECTABLE
from txrdma.fabric.health import Finding, hasLink
from txrdma.fabric.linkspeeds import LaneSpeed, mayHaveFDR10
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.iba.path import IBPath, MADEndPort
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.messages import ClassPortInfo, MADStatus
from txrdma.mad.layouts.pma import (
    PerformanceCapability,
    PortExtendedSpeedsCounters,
    PortExtendedSpeedsCountersRSFEC,
)
from txrdma.mad.layouts.smp import PortInfoExtended
from txrdma.mad.layouts.values import FECMode
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule

LANES: Final = 12
"""Number of lanes in both formats of the counters."""

CORRECTED: Final = "portFECCorrectableBlockCtr"
SYMBOLS: Final = "portFECCorrectedSymbolCtr"

_CODING: Final = ("syncHeaderErrorCounter", "unknownBlockCounter")
_FULL: Final = 0xFFFF_FFFF
_SLOWEST: Final = int(LaneSpeed.FDR)
_PAM4: Final = int(LaneSpeed.HDR)
_FEWEST_WRONG: Final = 8
REED_SOLOMON: Final = frozenset((FECMode.RS_FEC, FECMode.LOW_LATENCY_RS_FEC))
"""Modes of error correction by Reed-Solomon codes."""


def wrongBits(port: Port, blocks: int) -> int:
    """
    Return the smallest number of wrong bits in uncorrectable blocks: one more than can be corrected.

    The Reed-Solomon codes of HDR and faster correct 15 symbols of a block, RS(544,514), or 7 for low latency.
    The code of slower links is not known here, so one wrong bit is assumed.
    """
    return blocks * (_FEWEST_WRONG if port.activeSpeed >= _PAM4 else 1)


def correctingPorts(node: Node) -> Iterator[Port]:
    """Return the ports of a node whose links are fast enough for error correction: FDR or faster."""
    for port in countingPorts(node):
        if port.raw and port.lid and hasLink(port) and port.activeSpeed >= _SLOWEST:
            yield port


async def formOf(
    rpcs: RPCs, port: Port, path: IBPath, capabilities: int, **options: Any
) -> type[PortExtendedSpeedsCounters] | type[PortExtendedSpeedsCountersRSFEC] | None:
    """
    Return the format of a port's error correction counters; None for a port that must not be queried.

    No capability announces the older format. Only devices that are known to support it are queried: ibsim
    forwards the unknown attribute to the OpenSM at that port, which then terminates.

    @param capabilities: CapabilityMask of the ClassPortInfo of its performance management agent.
    @param options: options of the call, such as C{timeoutSeconds}.
    @raise MADFailure: the port did not answer. If it refuses the query, its speed determines the format.
    """
    if not capabilities & PerformanceCapability.RS_FEC:
        return PortExtendedSpeedsCounters if mayHaveFDR10(port.node.info) else None
    try:
        answer = await rpcs.SubnGet(PortInfoExtended, path, port.number, **options)
    except MADError:  # PAM4 lanes have no other code
        isReedSolomon = port.activeSpeed >= _PAM4
    else:
        isReedSolomon = answer.fecModeActive in REED_SOLOMON
    return PortExtendedSpeedsCountersRSFEC if isReedSolomon else PortExtendedSpeedsCounters


def namesOf(kind: type[Attribute], lanes: int) -> dict[str, int]:
    """
    Return the names of a format's counters and their widths in bits, in the order of L{valuesOf}.

    Names of per-lane counters end with the lane number: C{fecCorrectableSymbolCtrLanes0}.

    @param lanes: number of active lanes.
    """
    widths = {UNCORRECTABLE: 32, CORRECTED: 32}
    if kind is PortExtendedSpeedsCountersRSFEC:
        widths[SYMBOLS] = 32
    widths.update(dict.fromkeys(_CODING, 16))
    for field in kind.fields:
        if field.count is not None:
            widths.update({f"{field.name}{lane}": field.width for lane in range(lanes)})
    return widths


def valuesOf(answer: Any, lanes: int) -> tuple[int, ...]:
    """
    Return the counters in an answer. In the older format, which counts only by lane, the first are sums.

    @param lanes: number of active lanes.
    """
    coding = (answer.syncHeaderErrorCounter, answer.unknownBlockCounter)
    if isinstance(answer, PortExtendedSpeedsCountersRSFEC):
        whole = (answer.portFECUncorrectableBlockCtr, answer.portFECCorrectableBlockCtr)
        return (
            *whole,
            answer.portFECCorrectedSymbolCtr,
            *coding,
            *answer.fecCorrectableSymbolCtrLanes[:lanes],
        )
    corrected = answer.fecCorrectableBlockCounterLanes[:lanes]
    lost = answer.fecUncorrectableBlockCounterLanes[:lanes]
    detected = answer.errorDetectionCounterLanes[:lanes]
    return (_sum(lost), _sum(corrected), *coding, *detected, *corrected, *lost)


def _sum(lanes: tuple[int, ...]) -> int:
    """Return the sum of the lanes' counters; it is saturated if one of them is, or if it overflows."""
    return _FULL if _FULL in lanes else min(_FULL, sum(lanes))


# Query of all ports.


async def correctionFindings(
    rpcs: RPCs, endPort: MADEndPort, fabric: Fabric, thresholds: Thresholds, maxOutstanding: int
) -> list[Finding]:
    """
    Query the error correction counters, and return findings for ports with uncorrectable blocks.

    Agents that do not have these counters or do not answer are ignored, and so are ports that refuse. An
    agent that has answered but does not return the counters is a finding.
    """
    found: list[Finding] = []
    if UNCORRECTABLE in thresholds.suppressed:
        return found
    most = thresholds.limits.get(UNCORRECTABLE, 0)
    schedule = MADSchedule(rpcs, maxOutstanding)

    async def readPort(port: Port, capabilities: int) -> bool:
        path = toLID(endPort, port.lid)
        kind: Any = await formOf(schedule, port, path, capabilities)
        if kind is None:
            return False
        try:
            counted = await schedule.PerformanceGet(kind(portSelect=port.number), path)
        except MADError as error:  # other ports may have error correction, unless the attribute is unknown
            return error.status != MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE
        count = valuesOf(counted, LANES)[0]
        if count > most:
            text = f"{shownName(UNCORRECTABLE)} {count}"
            found.append(Finding("fec-uncorrectable", str(port), text, port.node.guid, port.number))
        return True

    async def read(ports: list[Port]) -> None:
        try:
            answer = await schedule.PerformanceGet(ClassPortInfo, toLID(endPort, ports[0].lid))
        except MADFailure:  # silent nodes are reported by the other counters
            return
        for port in ports:
            try:
                if not await readPort(port, answer.capabilityMask):
                    return
            except MADFailure as error:
                text = f"those of error correction: {error}"
                found.append(Finding("counters-silent", str(port), text, port.node.guid, port.number))
                return

    several = (list(correctingPorts(node)) for node in fabric.nodes.values())
    await schedule.run(mqueue=(read(ports) for ports in several if ports))
    return found
