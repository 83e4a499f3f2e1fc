"""
Chassis of a fabric: nodes that are boards of one machine, as far as their attributes show it.

Nodes of one system have the same SystemImageGUID (InfiniBand Architecture vol. 1, 14.2.5.3), but that of some
vendors differs between boards: Cisco, InfiniCon, Xsigo and Voltaire are treated as in infiniband-diags.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from txrdma.fabric.model import Fabric, Node
from txrdma.iba.types import GUID

_CISCO: Final = 0x0005AD
_INFINICON: Final = 0x00066A
_VOLTAIRE: Final = 0x0008F1
_XSIGO: Final = 0x001397
_SLOT: Final = ~(0xFF << 24)
"""Mask that clears the slot number in a system image GUID."""

_SPINES: Final = frozenset((0x5A08, 0x5A0B, 0x5A32, 0x5A33, 0x5A37, 0x5A40, 0x5A5C, 0x5A5D, 0x5A60))
_LINES: Final = frozenset((0x5A09, 0x5A0D, 0x5A34, 0x5A38, 0x5A42, 0x5A5B))
"""Device IDs of Voltaire's line boards: each line board of a chassis is linked to all its spine boards."""

_POSITION: Final = re.compile(r"MF0;[^:]*:(?P<kind>[^/]+)/(?P<board>[LS])(?P<slot>\d+)/U(?P<chip>\d+)")
_BOARDS: Final = {"L": "line", "S": "spine"}


@dataclass(frozen=True, slots=True)
class Chassis:
    """
    Several nodes of one machine.

    @ivar guid: system image GUID of the chassis; None if its boards are recognized only by their links.
    @ivar kind: vendor's name of the chassis; C{""} if it is unknown.
    """

    number: int
    guid: GUID | None
    kind: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ChassisPosition:
    """
    Position of a node in its chassis according to its description: C{"line"} or C{"spine"} board, slot, chip.
    """

    kind: str
    board: str
    slot: int
    chip: int


def positionOf(node: Node) -> ChassisPosition | None:
    """Parse the position from a Mellanox node description (C{"MF0;core1:SX6536/L02/U1"}); None for others."""
    match = _POSITION.match(node.description)
    if match is None:
        return None
    return ChassisPosition(match["kind"], _BOARDS[match["board"]], int(match["slot"]), int(match["chip"]))


def chassis(fabric: Fabric) -> list[Chassis]:
    """
    Return all chassis of a fabric, ordered by GUID. A node that is alone in its system is not a chassis.
    """
    groups: dict[int, list[Node]] = defaultdict(list)
    boards: list[list[Node]] = []
    seen: set[GUID] = set()
    for node in sorted(fabric.nodes.values(), key=lambda node: node.guid.raw):
        if node.vendorID == _VOLTAIRE and node.deviceID in _SPINES | _LINES:
            if node.guid not in seen:
                boards.append(_boards(node, seen))
        elif guid := _systemOf(node):
            groups[guid].append(node)
    found = [(GUID.fromInt(guid), nodes) for guid, nodes in sorted(groups.items())]
    every = [*found, *((None, nodes) for nodes in boards)]
    several = [(guid, nodes) for guid, nodes in every if len(nodes) > 1]
    return [
        Chassis(number, guid, _kind(nodes), tuple(nodes)) for number, (guid, nodes) in enumerate(several, 1)
    ]


def _systemOf(node: Node) -> int:
    """Return a number that all nodes of a system share; 0 if there is none."""
    own, vendor = int(node.systemImageGUID), node.vendorID
    if vendor in (_CISCO, _INFINICON):
        return own & _SLOT
    if vendor == _XSIGO or own >> 40 == _XSIGO:
        return _xsigo(node, own)
    return own


def _xsigo(node: Node, own: int) -> int:
    """Return the system of an Xsigo node: a switch's GUID has the slot, an adapter belongs to its leaf."""
    kind = own >> 32
    if kind == _XSIGO << 8 | 1:
        return own & _SLOT
    if kind in (_XSIGO << 8 | 2, _XSIGO << 8 | 3):
        port = node.known(1)
        there = int(port.peer.node.systemImageGUID) if port is not None and port.peer is not None else 0
        if there >> 24 == _XSIGO << 16 | 0x0102:
            return there & _SLOT
    return own


def _boards(first: Node, seen: set[GUID]) -> list[Node]:
    """Return all Voltaire boards of a chassis, which links between spine and line boards connect."""
    found, waiting = [], [first]
    seen.add(first.guid)
    while waiting:
        node = waiting.pop()
        found.append(node)
        wanted = _LINES if node.deviceID in _SPINES else _SPINES
        for port in node.ports.values():
            other = None if port.peer is None else port.peer.node
            if other is None or other.guid in seen or other.vendorID != _VOLTAIRE:
                continue
            if other.deviceID in wanted:
                seen.add(other.guid)
                waiting.append(other)
    return sorted(found, key=lambda node: node.guid.raw)


def _kind(nodes: list[Node]) -> str:
    return next((known.kind for known in map(positionOf, nodes) if known is not None), "")
