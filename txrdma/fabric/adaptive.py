"""
Adaptive routing: switches that choose among several output ports for a LID, by their load.

Switches of NVIDIA and Mellanox have a second forwarding table, whose entry for a LID names a group of ports.
The headers of OpenSM, which L{txrdma.mad.layouts.adaptive} follows, do not say everything, so groups with
subgroups, and tables that contradict the fabric, count as unknown. Of several private tables of a switch only
the first one is read.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from txrdma.error import RDMAError
from txrdma.fabric.model import Node
from txrdma.iba.path import IBPath
from txrdma.iba.types import GUID
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.adaptive import (
    AdaptiveEntry,
    AdaptiveForwardingTable,
    AdaptiveGroupTable,
    AdaptiveRoutingInfo,
    LIDState,
)
from txrdma.mad.layouts.messages import MADStatus
from txrdma.mad.rpcs import RPCs

MELLANOX: Final = 0x0002C9
"""Vendor ID of Mellanox, and of NVIDIA's InfiniBand devices."""

_GROUPS_IN_BLOCK: Final = 2
_LIDS_IN_BLOCK: Final = 16
_NO_ATTRIBUTE: Final = frozenset((MADStatus.UNSUPPORTED_METHOD, MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE))

NO_GROUP: Final = 0xFFFF
"""Number that stands for no group."""

_NOWHERE: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class AdaptiveTable:
    """
    Groups of output ports of a switch.

    @ivar groups: number of the group of each LID, which takes two octets for each.
    @ivar ports: output ports of each group.
    """

    groups: array[int]
    ports: Mapping[int, frozenset[int]]

    def members(self, lid: int) -> frozenset[int]:
        """Return the output ports among which the switch chooses for a LID; none if its port is static."""
        return self.ports.get(self.groups[lid], _NOWHERE) if lid < len(self.groups) else _NOWHERE

    def counted(self, lids: Iterable[int]) -> list[tuple[frozenset[int], int]]:
        """Return the output ports of the groups of LIDs, each with the number of LIDs that have the group."""
        last = len(self.groups)
        several = Counter([self.groups[lid] for lid in lids if lid < last])
        return [(self.ports[group], many) for group, many in several.items() if self.ports.get(group)]

    def exits(self, lid: int, static: int) -> frozenset[int]:
        """
        Return all output ports that packets for a LID may take.

        @param static: the port in the linear forwarding table, which packets without adaptive routing take.
        """
        return self.members(lid) | {static}


NO_GROUPS: Final = AdaptiveTable(array("H"), {})
"""Groups of a switch that does not route adaptively."""

Adaptive = Mapping[GUID, AdaptiveTable]
"""Groups by the GUID of the switch; switches without adaptive routing are missing."""

STATIC: Final[Adaptive] = {}
"""No adaptive routing."""


class Contradiction(RDMAError):
    """The tables of a switch contradict the fabric, or have subgroups, so that they are not understood."""


async def adaptiveInfo(rpcs: RPCs, path: IBPath) -> AdaptiveRoutingInfo | None:
    """
    Query whether a switch routes adaptively; None if it does not.

    @raise MADFailure: the switch does not answer.
    """
    try:
        info: AdaptiveRoutingInfo = await rpcs.SubnGet(AdaptiveRoutingInfo, path)
    except MADError as error:
        if error.status in _NO_ATTRIBUTE:
            return None
        raise
    return info if info.isEnabled else None


class AdaptiveGroups:
    """
    Reader of the groups of one switch that routes adaptively. Each block of a table is queried once.
    """

    def __init__(self, rpcs: RPCs, path: IBPath, info: AdaptiveRoutingInfo, numPorts: int) -> None:
        self._rpcs, self._path, self._info, self._numPorts = rpcs, path, info, numPorts
        self._entries: dict[int, tuple[AdaptiveEntry, ...]] = {}
        self._masks: dict[int, tuple[bytes, ...]] = {}

    async def groupOf(self, lid: int) -> int | None:
        """Return the group of a LID; None if its port is static."""
        block, offset = divmod(lid, _LIDS_IN_BLOCK)
        if block not in self._entries:
            answer = await self._rpcs.SubnGet(AdaptiveForwardingTable, self._path, block)
            self._entries[block] = answer.entries
        entry = self._entries[block][offset]
        if entry.state is LIDState.STATIC:
            return None
        if entry.group > self._info.groupTop:
            last = self._info.groupTop
            raise Contradiction(f"LID {lid} has group {entry.group}, and {last} is the last one")
        return entry.group

    async def portsOf(self, group: int) -> frozenset[int]:
        """Return the output ports of a group."""
        if self._info.subgroupsActive:
            raise Contradiction("its groups have subgroups, which public sources do not describe")
        block, offset = divmod(group, _GROUPS_IN_BLOCK)
        if block not in self._masks:
            answer = await self._rpcs.SubnGet(AdaptiveGroupTable, self._path, block)
            self._masks[block] = answer.masks
        ports = _ports(self._masks[block][offset])
        if max(ports, default=0) > self._numPorts:
            raise Contradiction(f"group {group} has port {max(ports)}, and {self._numPorts} is the last one")
        return frozenset(ports)


async def adaptiveTable(rpcs: RPCs, path: IBPath, node: Node, top: int) -> AdaptiveTable | None:
    """
    Query the groups of a switch; None if it does not route adaptively.

    @param top: highest LID of the linear forwarding table.
    @raise MADFailure: the switch does not answer.
    @raise Contradiction: the tables are not understood.
    """
    info = await adaptiveInfo(rpcs, path)
    if info is None:
        return None
    groups = AdaptiveGroups(rpcs, path, info, node.numPorts)
    linked = {port.number for port in node.linked()}
    ports: dict[int, frozenset[int]] = {}
    table = AdaptiveTable(array("H", [NO_GROUP]) * (top + 1), ports)
    for lid in range(1, top + 1):
        group = await groups.groupOf(lid)
        if group is not None:
            table.groups[lid] = group
            if group not in ports:
                # A switch does not send to ports whose link is down.
                ports[group] = await groups.portsOf(group) & linked
    return table


def _ports(mask: bytes) -> set[int]:
    """Return the ports of a mask, whose last bit is that of port 0."""
    number = int.from_bytes(mask, "big")
    return {port for port in range(1, number.bit_length()) if number >> port & 1}


UNKNOWN_ROUTES: Final = (Contradiction, MADFailure)
"""Errors after which the adaptive routes of a switch are unknown."""
