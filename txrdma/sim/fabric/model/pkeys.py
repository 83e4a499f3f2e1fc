"""
P_Key tables of a simulated fabric's ports, and matching of P_Keys.

Follows InfiniBand Architecture vol. 1, 10.9 (partitions) and 14.2.5.7 (P_KeyTable).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from txrdma.iba.types import DEFAULT_PKEY
from txrdma.kit.rawfields import peek
from txrdma.mad.layouts.smp import NodeInfo, PKeyTable, SwitchInfo
from txrdma.sim.fabric.model.nodes import SimulatedPort

KEYS_PER_BLOCK: Final = 32
_KEY: Final = Struct(">H")
_FIRST: Final = PKeyTable(pkeys=(DEFAULT_PKEY,) + (0,) * 31).encode()
_EMPTY: Final = bytes(PKeyTable.size)
_partitionCap = peek(NodeInfo, "partitionCap")
_enforcementCap = peek(SwitchInfo, "partitionEnforcementCap")


def block(port: SimulatedPort, number: int) -> bytes:
    """Return a block of a port's P_KeyTable: as it was set, or with the default P_Key only."""
    default = _FIRST if number == 0 else _EMPTY
    return default if port.tables is None else port.tables.get((PKeyTable.attributeID, number), default)


def blocks(port: SimulatedPort) -> int:
    """Return the blocks of a port's P_KeyTable, by PartitionCap or PartitionEnforcementCap."""
    node = port.node
    isExternal = node.isSwitch and port.number
    many: int = _enforcementCap(node.switchInfo) if isExternal else _partitionCap(node.info)
    return -(-many // KEYS_PER_BLOCK)


def keysOf(port: SimulatedPort) -> tuple[int, ...]:
    """Return the valid P_Keys in the P_KeyTable of a port that has a LID."""
    if port.tables is None:
        return (DEFAULT_PKEY,)
    many = -(-_partitionCap(port.node.info) // KEYS_PER_BLOCK)
    found = b"".join(block(port, number) for number in range(many))
    return tuple(key for (key,) in _KEY.iter_unpack(found) if key & 0x7FFF)


def sharesPartition(one: int, other: int) -> bool:
    """Return whether two P_Keys match: same partition, at least one full member (IBA 10.9.1)."""
    return (one ^ other) & 0x7FFF == 0 and (one | other) & 0x8000 != 0
