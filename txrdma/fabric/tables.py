"""
Tables of a fabric's nodes: forwarding tables, P_Keys, virtual lanes, firmware versions.

Follows InfiniBand Architecture vol. 1, 10.9 (partitions), 14.2.5.7 (P_KeyTable), 14.2.5.8
(SLtoVLMappingTable). Tables that a node does not return are not judged; other checks report silent nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from twisted.internet.defer import Deferred

from txrdma.fabric.health import Finding, hasLink
from txrdma.fabric.model import Fabric, Node, Port, PortKey
from txrdma.fabric.routing import linearTable
from txrdma.iba.path import MADEndPort
from txrdma.iba.types import GUID
from txrdma.kit.rawfields import peek
from txrdma.kit.strings import escapedText
from txrdma.mad.errors import MADFailure
from txrdma.mad.layouts.smp import PKeyTable, PortInfo, SLtoVLMappingTable
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule, MAX_OUTSTANDING
from txrdma.mad.vendor import MlxGeneralInfoExtended

MELLANOX: Final = 0x0002C9
"""Vendor ID of Mellanox, and of NVIDIA's InfiniBand devices."""

_INFINISCALE_3: Final = 47396
"""Device ID of InfiniScale III switches."""

_KEYS_IN_BLOCK: Final = 32
_BASE: Final = 0x7FFF
_lanes = peek(PortInfo, "operationalVLs")
_inbound = peek(PortInfo, "partitionEnforcementInbound")
_outbound = peek(PortInfo, "partitionEnforcementOutbound")


@dataclass(frozen=True, slots=True)
class Firmware:
    """
    Firmware of a node, as reported by its vendor-specific agent.

    @ivar board: name of the board and its configuration (PSID).
    @ivar built: day of its build, as C{"2024-01-31"}.
    @ivar hardware: revision of the device. C{uptimeSeconds}: time since its start.
    """

    board: str
    version: tuple[int, int, int]
    built: str = ""
    hardware: int = 0
    uptimeSeconds: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


@dataclass(slots=True)
class Tables:
    """
    Tables that nodes have returned.

    @ivar linear: linear forwarding tables by switch GUID.
    @ivar pkeys: P_Keys of ports, without the membership bit.
    @ivar lanes: virtual lane of each service level, by output port.
    @ivar firmware: firmware by the GUID of the node.
    """

    linear: dict[GUID, bytes] = field(default_factory=dict)
    pkeys: dict[PortKey, frozenset[int]] = field(default_factory=dict)
    lanes: dict[PortKey, tuple[int, ...]] = field(default_factory=dict)
    firmware: dict[GUID, Firmware] = field(default_factory=dict)


async def firmwareOf(rpcs: RPCs, endPort: MADEndPort, node: Node) -> Firmware:
    """
    Query the firmware of a Mellanox or NVIDIA device.

    InfiniScale III has 8 bits for each part of the version, all later devices have 32.

    @raise MADFailure: the device does not answer, like most hosts without the vendor's kernel module.
    """
    answer = await rpcs.VendGet(MlxGeneralInfoExtended, toLID(endPort, node.lid), retries=0)
    board = escapedText(answer.fwPSID.partition(b"\0")[0])
    version = (answer.extMajor, answer.extMinor, answer.extSubMinor)
    if answer.deviceID == _INFINISCALE_3:
        version = (answer.fwMajor, answer.fwMinor, answer.fwSubMinor)
    built = f"{answer.fwYear:04x}-{answer.fwMonth:02x}-{answer.fwDay:02x}"
    return Firmware(board, version, built, answer.hwRevision, answer.uptime)


class TableSurvey:
    """Survey of the tables of all nodes, with many Gets outstanding at a time."""

    def __init__(
        self, rpcs: RPCs, endPort: MADEndPort, fabric: Fabric, maxOutstanding: int = MAX_OUTSTANDING
    ) -> None:
        self._rpcs = MADSchedule(rpcs, maxOutstanding)
        self._endPort = endPort
        self._fabric = fabric
        self._tables = Tables()

    def run(self) -> Deferred[Tables]:
        """Query all nodes. The Deferred fires with their tables; cancelling it ends the survey."""
        return Deferred.fromCoroutine(self._run())

    async def _run(self) -> Tables:
        nodes = [node for node in self._fabric.nodes.values() if node.lid]
        await self._rpcs.run(mqueue=(work for node in nodes for work in self._worksOf(node)))
        return self._tables

    def _worksOf(self, node: Node) -> Iterator[Any]:
        if node.isSwitch:
            yield self._willing(self._linear(node))
        if node.vendorID == MELLANOX:
            yield self._willing(self._firmware(node))
        for port in node.linked():
            peer = port.peer
            if port.lid and port.raw and peer is not None and peer.raw:
                yield self._willing(self._lanesOf(port))
                ends = sorted((port, peer), key=lambda end: end.node.isSwitch)
                if not ends[0].node.isSwitch and ends[1].node.isSwitch and _enforces(ends[1]):
                    yield self._willing(self._pkeysOf(port))

    @staticmethod
    async def _willing(work: Awaitable[None]) -> None:
        """Await a query that the node may refuse or not answer."""
        try:
            await work
        except MADFailure:
            return

    async def _linear(self, node: Node) -> None:
        path = toLID(self._endPort, node.lid)
        self._tables.linear[node.guid] = await linearTable(self._rpcs, path, node.switchInfo)

    async def _firmware(self, node: Node) -> None:
        self._tables.firmware[node.guid] = await firmwareOf(self._rpcs, self._endPort, node)

    async def _lanesOf(self, port: Port) -> None:
        node, modifier = port.node, 0
        if node.isSwitch:
            others = [each.number for each in node.linked() if each is not port]
            modifier = SLtoVLMappingTable.modifier(others[0] if others else 0, port.number)
        answer = await self._rpcs.SubnGet(SLtoVLMappingTable, toLID(self._endPort, port.lid), modifier)
        self._tables.lanes[node.guid, port.number] = answer.vls

    async def _pkeysOf(self, port: Port) -> None:
        node = port.node
        path = toLID(self._endPort, port.lid)
        info = node.switchInfo
        many = node.info.partitionCap
        if node.isSwitch:
            many = 0 if info is None else info.partitionEnforcementCap
        keys: set[int] = set()
        for block in range(-(-many // _KEYS_IN_BLOCK)):
            number = port.number if node.isSwitch else 0
            answer = await self._rpcs.SubnGet(PKeyTable, path, PKeyTable.modifier(block, number))
            here = {key & _BASE for key in answer.pkeys} - {0}
            if not here:
                break
            keys |= here
        self._tables.pkeys[node.guid, port.number] = frozenset(keys)


def _enforces(port: Port) -> bool:
    return bool(_inbound(port.raw) or _outbound(port.raw))


# Findings.


def tableFindings(fabric: Fabric, tables: Tables) -> list[Finding]:
    """Return findings for tables that disagree with those of a neighbour, and for outdated firmware."""
    found: list[Finding] = []
    for one, other in fabric.links():
        if one.raw and other.raw and hasLink(one) and hasLink(other):
            found += _partitions(one, other, tables)
            found += _lanesDiffer(one, other, tables)
    return found + list(_older(fabric, tables))


def _partitions(one: Port, other: Port, tables: Tables) -> Iterator[Finding]:
    for port, switch in ((one, other), (other, one)):
        if port.node.isSwitch or not switch.node.isSwitch:
            continue
        keys = tables.pkeys.get((port.node.guid, port.number))
        passed = tables.pkeys.get((switch.node.guid, switch.number))
        if keys is not None and passed is not None and _enforces(switch) and keys - passed:
            listed = ", ".join(f"{key:#06x}" for key in sorted(keys - passed))
            text = f"it does not let through P_Keys that {port} has: {listed}"
            yield Finding("pkeys", str(switch), text, switch.node.guid, switch.number)


def _lanesDiffer(one: Port, other: Port, tables: Tables) -> Iterator[Finding]:
    here, there = _lanes(one.raw), _lanes(other.raw)
    if here != there:
        text = f"it and {other} have different operational VLs: codes {here} and {there}"
        yield Finding("vls", str(one), text, one.node.guid, one.number)
    ours = tables.lanes.get((one.node.guid, one.number))
    neighbour = tables.lanes.get((other.node.guid, other.number))
    if ours is not None and neighbour is not None and ours != neighbour:
        differing = [str(level) for level in range(len(ours)) if ours[level] != neighbour[level]]
        text = f"it and {other} have different virtual lanes for service levels {', '.join(differing)}"
        yield Finding("sl-to-vl", str(one), text, one.node.guid, one.number)


def _older(fabric: Fabric, tables: Tables) -> Iterator[Finding]:
    groups: dict[tuple[int, int, str], list[Node]] = defaultdict(list)
    for guid, firmware in tables.firmware.items():
        node = fabric.nodes.get(guid)
        if node is not None:
            groups[node.vendorID, node.deviceID, firmware.board].append(node)
    for nodes in groups.values():
        newest = max((tables.firmware[node.guid] for node in nodes), key=lambda each: each.version)
        for node in nodes:
            firmware = tables.firmware[node.guid]
            if firmware.version != newest.version:
                text = f"its firmware is {firmware}, others of its kind ({firmware.board}) have {newest}"
                yield Finding("firmware", str(node), text, node.guid)
