"""Tables of a simulated switch with adaptive routing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txrdma.mad.layouts.adaptive import (
    AdaptiveEntry,
    AdaptiveForwardingTable,
    AdaptiveGroupTable,
    AdaptiveRoutingInfo,
    LIDState,
)


def adaptiveTables(choices: Mapping[int, Iterable[int]]) -> dict[tuple[int, int], bytes]:
    """
    Return attributes of adaptive routing, by attribute ID and block number.

    @param choices: output ports by LID; each other LID has a static port.
    """
    groups: dict[frozenset[int], int] = {}
    entries = [AdaptiveEntry(state=LIDState.STATIC)] * (max(choices, default=0) // 16 + 1) * 16
    for lid, ports in choices.items():
        group = groups.setdefault(frozenset(ports), len(groups))
        entries[lid] = AdaptiveEntry(state=LIDState.FREE, group=group)
    masks = [sum(1 << port for port in ports).to_bytes(32, "big") for ports in groups]
    masks += [bytes(32)] * (len(masks) % 2)
    info = AdaptiveRoutingInfo(isEnabled=True, groupCap=2048, groupTop=max(0, len(groups) - 1))
    tables = {(AdaptiveRoutingInfo.attributeID, 0): info.encode()}
    for number in range(0, len(entries), 16):
        block = AdaptiveForwardingTable(entries=tuple(entries[number : number + 16]))
        tables[AdaptiveForwardingTable.attributeID, number // 16] = block.encode()
    for number in range(0, len(masks), 2):
        pair = AdaptiveGroupTable(masks=tuple(masks[number : number + 2]))
        tables[AdaptiveGroupTable.attributeID, number // 2] = pair.encode()
    return tables
