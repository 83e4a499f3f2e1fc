"""
Choices of a sender of MADs: entries of its port's GID and P_Key tables.

Follows InfiniBand Architecture vol. 1, 8.3 (GRH) and 10.9.1 (partitions), and annex A17 (RoCE v2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txrdma.iba.path import IBPath, PERMISSIVE_LID
from txrdma.iba.types import GID, PKey
from txrdma.iba.verbs import GIDEntry, GIDType

HOPS: Final = 64
"""HopLimit of a GRH whose path has none, if there are no LIDs."""

_FULL: Final = 0x8000
_MULTICAST: Final = 0xFF
_FIRST_MULTICAST_LID: Final = 0xC000


def sourceIndex(table: Sequence[GIDEntry], path: IBPath) -> int:
    """
    Index of the GID to send from: that of the path, else a GID of the destination's kind.

    If the table has a GID twice, for RoCE v1 and v2, the entry for RoCE v2 is used.
    """
    if path.dgid is None:
        return 0
    best, found = 0, 0
    for index, entry in enumerate(table):
        if not any(entry.gid.raw):
            continue
        fit = 1 + (entry.type is not GIDType.ROCE_V1)
        if path.sgid is not None:
            fit += 16 * (entry.gid == path.sgid)
        fit += 8 * (entry.gid.isMapped == path.dgid.isMapped)
        fit += 4 * (entry.gid.isLinkLocal == path.dgid.isLinkLocal)
        if fit > best:
            best, found = fit, index
    return found


def mayBeFrom(path: IBPath, slid: int, sgid: GID | None, lidMask: int) -> bool:
    """
    True if a datagram from this source can answer one that was sent by this path.

    @param slid: 0, as C{sgid} is None, if the port does not report it.
    @param lidMask: LID mask control (LMC) of ports in this subnet: an answer may come from another LID of the
        same port (IBA 7.11.1).
    """
    if path.dgid is not None and sgid is not None:
        return sgid == path.dgid or path.dgid.raw[0] == _MULTICAST
    dlid = path.dlid
    if not dlid or not slid or dlid >= _FIRST_MULTICAST_LID or slid == PERMISSIVE_LID:
        return True
    return (dlid ^ slid) >> lidMask == 0


def partitionIndex(table: Sequence[PKey], pkey: PKey) -> int | None:
    """Index of a partition in the P_Key table, with either membership; None if the port is not a member."""
    if pkey in table:
        return table.index(pkey)
    other = PKey(pkey ^ _FULL)
    return table.index(other) if other in table else None
