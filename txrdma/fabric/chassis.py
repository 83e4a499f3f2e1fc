"""
Chassis of a fabric: nodes that are boards of one machine, as far as their attributes show it.

Nodes of one system have the same SystemImageGUID (InfiniBand Architecture vol. 1, 14.2.5.3), but that of some
vendors has the slot of the board: Cisco and InfiniCon are treated as in infiniband-diags.
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
_SLOT: Final = ~(0xFF << 24)
"""Mask that clears the slot number in a system image GUID."""

_POSITION: Final = re.compile(r"MF0;[^:]*:(?P<kind>[^/]+)/(?P<board>[LS])(?P<slot>\d+)/U(?P<chip>\d+)")
_BOARDS: Final = {"L": "line", "S": "spine"}


@dataclass(frozen=True, slots=True)
class Chassis:
    """
    Several nodes of one machine.

    @ivar guid: system image GUID of the chassis.
    @ivar kind: vendor's name of the chassis; C{""} if it is unknown.
    """

    number: int
    guid: GUID
    kind: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ChassisPosition:
    """Position of a node in its chassis by its description: C{"line"} or C{"spine"} board, slot, chip."""

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
    """Return all chassis of a fabric, ordered by GUID; a node alone in its system is not a chassis."""
    groups: dict[int, list[Node]] = defaultdict(list)
    for node in sorted(fabric.nodes.values(), key=lambda node: node.guid.raw):
        if guid := _systemOf(node):
            groups[guid].append(node)
    several = [(guid, nodes) for guid, nodes in sorted(groups.items()) if len(nodes) > 1]
    return [
        Chassis(number, GUID.fromInt(guid), _kind(nodes), tuple(nodes))
        for number, (guid, nodes) in enumerate(several, 1)
    ]


def _systemOf(node: Node) -> int:
    """Return a number that all nodes of a system share; 0 if there is none."""
    own = int(node.systemImageGUID)
    return own & _SLOT if node.vendorID in (_CISCO, _INFINICON) else own


def _kind(nodes: list[Node]) -> str:
    return next((known.kind for known in map(positionOf, nodes) if known is not None), "")
