"""
Tables of a fabric's nodes: forwarding tables, P_Keys, virtual lanes, firmware versions, cables.

Follows InfiniBand Architecture vol. 1, 10.9 (partitions), 14.2.5.7 (P_KeyTable), 14.2.5.8
(SLtoVLMappingTable). Tables that a node does not return are not judged; L{unreadFindings} reports the nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from twisted.internet.defer import Deferred

from txrdma.fabric.adaptive import AdaptiveTable, adaptiveTable, MELLANOX, UNKNOWN_ROUTES
from txrdma.fabric.cables import Cable, moduleFindings, plain, readCables
from txrdma.fabric.health import Finding, hasLink
from txrdma.fabric.model import Fabric, isSame, Node, Port, PortKey
from txrdma.fabric.routing import linearTable
from txrdma.fabric.texts import listed
from txrdma.iba.path import MADEndPort
from txrdma.iba.types import GUID, LID
from txrdma.kit.rawfields import peek
from txrdma.kit.strings import escapedText
from txrdma.mad.errors import MADError, MADFailure, MADTimeoutError
from txrdma.mad.layouts.smp import NodeInfo, PKeyTable, PortInfo, SLtoVLMappingTable
from txrdma.mad.paths import toLID
from txrdma.mad.registers import readRegister, REFUSALS, REGISTERS, SYSTEM, SystemInfo
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule, MAX_OUTSTANDING
from txrdma.mad.vendor import MlxGeneralInfoExtended

_INFINISCALE_3: Final = 47396
"""Device ID of InfiniScale III switches."""

_PIECE: Final = 1000
"""Number of links, and of cables, that are checked between two pauses."""

_MOST_FAILURES: Final = 3
"""Number of consecutive requests without an answer after which a node is only asked once a day."""

_RESTED_SURVEYS: Final = 96
"""Number of surveys that leave out such a node before it is asked once more: those of a day by default."""

_REFUSED: Final = 1 << 30
"""Stored in place of the number of missing answers after a refusal: the node is not asked again."""

_FIRMWARE: Final = "firmware"
_CABLES: Final = "cables"
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
    @ivar hasRegisters: whether the device lets registers be read. C{serial} and C{partNumber} are from them,
        and C{""} if unknown.
    """

    board: str
    version: tuple[int, int, int]
    built: str = ""
    hardware: int = 0
    uptimeSeconds: int = 0
    hasRegisters: bool = False
    serial: str = ""
    partNumber: str = ""

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


@dataclass(slots=True)
class Tables:
    """
    Tables that nodes have returned.

    @ivar linear: linear forwarding tables by switch GUID.
    @ivar adaptive: groups of ports of switches that route adaptively; C{unknownAdaptive}: why those of others
        are unknown.
    @ivar pkeys: P_Keys of ports, without the membership bit.
    @ivar lanes: virtual lane of each service level, by output port.
    @ivar firmware: firmware by the GUID of the node.
    @ivar cables: cables and optical modules by port, where they are known.
    @ivar unread: the first reason why a table of a node that has it was not read, by the GUID of the node.
    """

    linear: dict[GUID, bytes] = field(default_factory=dict)
    adaptive: dict[GUID, AdaptiveTable] = field(default_factory=dict)
    unknownAdaptive: dict[GUID, str] = field(default_factory=dict)
    pkeys: dict[PortKey, frozenset[int]] = field(default_factory=dict)
    lanes: dict[PortKey, tuple[int, ...]] = field(default_factory=dict)
    firmware: dict[GUID, Firmware] = field(default_factory=dict)
    cables: dict[PortKey, Cable] = field(default_factory=dict)
    unread: dict[GUID, str] = field(default_factory=dict)


class UnableNodes:
    """
    Nodes that do not answer a query of their vendor: they have refused it once, or ignored it several times.
    The latter are queried again rarely, since their answers may have been lost.
    """

    def __init__(self) -> None:
        self._failures: Counter[tuple[GUID, str]] = Counter()

    def isUnable(self, guid: GUID, query: str) -> bool:
        """Return whether a node is not to be queried again."""
        return self._failures[guid, query] >= _MOST_FAILURES

    def failed(self, guid: GUID, query: str, error: MADFailure) -> None:
        """Record that a node did not answer a query, or refused it."""
        self._failures[guid, query] += _REFUSED if _isRefusal(error) else 1

    def answered(self, guid: GUID, query: str) -> None:
        """Record that a node answered."""
        self._failures.pop((guid, query), None)

    def retain(self, known: Collection[GUID]) -> None:
        """
        End a survey: forget nodes that are no longer in the fabric, since they may return with other
        firmware.
        """
        for key, times in list(self._failures.items()):
            if key[0] not in known:
                del self._failures[key]
            elif _MOST_FAILURES + _RESTED_SURVEYS <= times < _REFUSED:
                self._failures[key] = _MOST_FAILURES - 1
            elif times >= _MOST_FAILURES:
                self._failures[key] += 1


async def firmwareOf(rpcs: RPCs, endPort: MADEndPort, node: Node) -> Firmware:
    """
    Query the firmware of a Mellanox or NVIDIA device.

    InfiniScale III has 8 bits for each part of the version, all later devices have 32.

    @raise MADFailure: the device does not answer, like most hosts without the vendor's kernel module.
    """
    path = toLID(endPort, node.lid)
    answer = await rpcs.VendGet(MlxGeneralInfoExtended, path, retries=0)
    board = escapedText(answer.fwPSID.partition(b"\0")[0])
    version = (answer.extMajor, answer.extMinor, answer.extSubMinor)
    if answer.deviceID == _INFINISCALE_3:
        version = (answer.fwMajor, answer.fwMinor, answer.fwSubMinor)
    built = f"{answer.fwYear:04x}-{answer.fwMonth:02x}-{answer.fwDay:02x}"
    hasRegisters = answer.deviceID != _INFINISCALE_3 and bool(answer.capabilityMask & REGISTERS)
    serial = partNumber = ""
    if hasRegisters:
        with suppress(MADFailure):
            system = SystemInfo.decode((await readRegister(rpcs, path, SYSTEM))[: SystemInfo.size])
            serial, partNumber = plain(system.serialNumber), plain(system.partNumber)
    return Firmware(
        *(board, version, built, answer.hwRevision, answer.uptime, hasRegisters, serial, partNumber)
    )


def isLost(node: Node, error: MADFailure, hasAnswered: bool = False) -> bool:
    """
    Return whether a node has what a failed query of its vendor should return: the answer was lost.

    Nodes refuse a query that they do not know, and most hosts ignore it.

    @param hasAnswered: whether the node has answered an earlier query of its vendor.
    """
    return not _isRefusal(error) and (hasAnswered or node.isSwitch)


def _isRefusal(error: MADFailure) -> bool:
    return isinstance(error, MADError) and error.status in REFUSALS


async def ignoringFailure(query: Awaitable[object]) -> None:
    """Await a query that the node may refuse or not answer."""
    with suppress(MADFailure):
        await query


class TableSurvey:
    """Survey of the tables of all nodes, with many Gets outstanding at a time."""

    def __init__(
        self,
        rpcs: RPCs,
        endPort: MADEndPort,
        fabric: Fabric,
        maxOutstanding: int = MAX_OUTSTANDING,
        unable: UnableNodes | None = None,
    ) -> None:
        """@param unable: nodes that did not answer earlier surveys."""
        self._unable = UnableNodes() if unable is None else unable
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
        lids = ((node, lid) for node in nodes for lid in {node.lid, *(end.lid for end in node.linked())})
        works = (self._read(node, "NodeInfo", self._verify(node, lid)) for node, lid in lids if lid)
        await self._rpcs.run(mqueue=works)
        return self._tables

    async def _read(self, node: Node, what: str, query: Awaitable[object]) -> None:
        """Await a query of a node, and record a failure unless the node refuses the attribute."""
        try:
            await query
        except MADFailure as error:
            if not _isRefusal(error):
                self._lost(node, what, error)

    def _lost(self, node: Node, what: str, error: MADFailure) -> None:
        why = "no answer" if isinstance(error, MADTimeoutError) else error
        self._tables.unread.setdefault(node.guid, f"{what}: {why}")

    async def _verify(self, node: Node, lid: LID) -> None:
        """Drop the tables of a node if another one has its LID now: they may be those of the other one."""
        info = await self._rpcs.SubnGet(NodeInfo, toLID(self._endPort, lid))
        if not isSame(info.encode(), node.raw):
            tables = self._tables
            tables.unread.setdefault(node.guid, f"node {info.nodeGUID} has LID {lid} now")
            for ofNodes in (tables.linear, tables.adaptive, tables.unknownAdaptive, tables.firmware):
                ofNodes.pop(node.guid, None)
            for ofPorts in (tables.pkeys, tables.lanes, tables.cables):
                for number in range(node.numPorts + 1):
                    ofPorts.pop((node.guid, number), None)

    def _worksOf(self, node: Node) -> Iterator[Any]:
        if node.isSwitch:
            yield self._read(node, "forwarding table", self._linear(node))
        if node.vendorID == MELLANOX and not self._unable.isUnable(node.guid, _FIRMWARE):
            yield self._vendor(node)
        for port in node.linked():
            peer = port.peer
            if port.lid and port.raw and peer is not None and peer.raw:
                yield self._read(node, f"virtual lanes of port {port.number}", self._lanesOf(port))
                ends = sorted((port, peer), key=lambda end: end.node.isSwitch)
                if not ends[0].node.isSwitch and ends[1].node.isSwitch and _enforces(ends[1]):
                    yield self._read(node, f"P_Keys of port {port.number}", self._pkeysOf(port))

    async def _linear(self, node: Node) -> None:
        path = toLID(self._endPort, node.lid)
        table = self._tables.linear[node.guid] = await linearTable(self._rpcs, path, node.switchInfo)
        if node.vendorID != MELLANOX:
            return
        try:
            groups = await adaptiveTable(self._rpcs, path, node, len(table) - 1)
        except UNKNOWN_ROUTES as error:
            self._tables.unknownAdaptive[node.guid] = str(error)
        else:
            if groups is not None:
                self._tables.adaptive[node.guid] = groups

    async def _vendor(self, node: Node) -> None:
        """Query a node for its firmware, and then for its cables if it can read them."""
        guid, query = node.guid, _FIRMWARE
        try:
            known = self._tables.firmware[guid] = await firmwareOf(self._rpcs, self._endPort, node)
            self._unable.answered(guid, query)
            query = _CABLES
            if known.hasRegisters and not self._unable.isUnable(guid, query):
                await readCables(self._rpcs, self._endPort, node, self._tables.cables)
                self._unable.answered(guid, query)
        except MADFailure as error:
            self._unable.failed(guid, query, error)
            if isLost(node, error, query == _CABLES):
                self._lost(node, query, error)

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


def tableFindings(fabric: Fabric, tables: Tables) -> Iterator[Finding | None]:
    """
    Return findings for tables that disagree with those of a neighbour, for outdated firmware, and for cables.

    None is a pause between pieces of some milliseconds.
    """
    for number, (one, other) in enumerate(fabric.links(), 1):
        if one.raw and other.raw and hasLink(one) and hasLink(other):
            yield from _partitions(one, other, tables)
            yield from _lanesDiffer(one, other, tables)
        if not number % _PIECE:
            yield None
    yield from _older(fabric, tables)
    left = iter(tables.cables.items())
    while some := dict(islice(left, _PIECE)):
        yield None
        yield from moduleFindings(fabric, some)
    yield from _unknownRoutes(fabric, tables)


def unreadFindings(fabric: Fabric, tables: Tables) -> Iterator[Finding]:
    """Return a finding for each node of which tables were not read, and so not judged."""
    for guid, why in tables.unread.items():
        node = fabric.nodes.get(guid)
        if node is not None:
            yield Finding("incomplete", str(node), f"tables of it were not read and checked: {why}", guid)


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


def _unknownRoutes(fabric: Fabric, tables: Tables) -> Iterator[Finding]:
    unknown = [node for guid in tables.unknownAdaptive if (node := fabric.nodes.get(guid)) is not None]
    if unknown:
        why = tables.unknownAdaptive[unknown[0].guid]
        which = f"the adaptive routes of {listed(unknown)} are unknown ({why})"
        text = f"{which}: checks hold for static routing only"
        yield Finding("adaptive-unknown", "forwarding tables", text)


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
