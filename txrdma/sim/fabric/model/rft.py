"""
Random forwarding tables (RFT) of simulated switches, whose entries are in any order.

Follows InfiniBand Architecture vol. 1, 14.2.5.11 and 18.2.4.3. A linear table is made from the entries, by
which the switch forwards.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from txrdma.kit.rawfields import peek
from txrdma.mad.layouts.smp import SwitchInfo
from txrdma.sim.fabric.model.nodes import SimulatedNode

ENTRIES_PER_BLOCK: Final = 16
BLOCK: Final = 64
_ENTRY: Final = Struct(">HBB")
_VALID: Final = 0x80
_NO_PORT: Final = 0xFF
_LIDS: Final = 0xC000


_linearCap, _randomCap = peek(SwitchInfo, "linearFDBCap"), peek(SwitchInfo, "randomFDBCap")
_defaultPort = peek(SwitchInfo, "defaultPort")


def defaultPort(switch: SimulatedNode) -> int:
    """Return the output port for LIDs without an entry in a switch's random table (DefaultPort)."""
    return int(_defaultPort(switch.switchInfo))


def isRandom(switch: SimulatedNode) -> bool:
    """Return whether a switch has a random forwarding table instead of a linear one."""
    return not _linearCap(switch.switchInfo) and _randomCap(switch.switchInfo) != 0


def capacity(switch: SimulatedNode) -> int:
    """Return the capacity of a switch's random forwarding table in entries (RandomFDBCap)."""
    return int(_randomCap(switch.switchInfo))


def entriesOf(linear: bytes | bytearray, most: int) -> bytearray:
    """Return the entries of a random table that forwards like a linear one, at most C{most} of them."""
    entries = bytearray()
    for lid, port in enumerate(linear):
        if lid and port != _NO_PORT and len(entries) < most * _ENTRY.size:
            entries += _ENTRY.pack(lid, _VALID, port)
    return entries


def linearOf(entries: bytes | bytearray, default: int) -> bytearray:
    """
    Return a linear table that forwards like the entries of a random one.

    @param default: the output port for LIDs without an entry (IBA 14.2.5.4, DefaultPort); 0 drops them.
    """
    whole = len(entries) - len(entries) % _ENTRY.size
    routes = [
        (lid, min(lid + (1 << (flags >> 4 & 7)), _LIDS), port)
        for lid, flags, port in _ENTRY.iter_unpack(entries[:whole])
        if flags & _VALID and lid < _LIDS
    ]
    table = bytearray(bytes((default or _NO_PORT,)) * _LIDS)
    for lid, last, port in routes:
        table[lid:last] = bytes((port,)) * (last - lid)
    return table


def block(switch: SimulatedNode, number: int) -> bytes:
    """Return a block of a switch's random forwarding table: 64 bytes, which are 16 entries."""
    entries = switch.random or b""
    return bytes(entries[number * BLOCK : (number + 1) * BLOCK]).ljust(BLOCK, b"\0")


def setBlock(switch: SimulatedNode, number: int, content: bytes) -> None:
    """Write a block of 16 entries into a switch's random table, and update its linear table."""
    entries = switch.random = switch.random if switch.random is not None else bytearray()
    entries.extend(bytes(max(0, (number + 1) * BLOCK - len(entries))))
    entries[number * BLOCK : (number + 1) * BLOCK] = content
    switch.linear = linearOf(entries, defaultPort(switch))
