"""
Traces computed by the SA, if it supports TraceRecords.

Follows InfiniBand Architecture vol. 1, 15.2.5.19: the request contains a PathRecord, and the answer the hops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from txrdma.fabric.routing import Hop, NoRoute, View
from txrdma.iba.types import GUID, LID
from txrdma.mad.errors import MADError
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.sa import NodeRecord, PathRecord, Query, TraceRecord
from txrdma.mad.rpcs import RPCs

_HAS_OPTIONAL_RECORDS: Final = 1 << 8
"""Bit of CapabilityMask in the SA's ClassPortInfo (IBA 15.2.5.1): the SA supports the optional records."""


class _TraceOf(TraceRecord):
    """Request for the trace of a path: the attribute ID of a TraceRecord, the content of a PathRecord."""

    __slots__ = ("wanted",)

    wanted: PathRecord

    def encode(self) -> bytes:
        return self.wanted.encode()


def traceOf(path: Query[PathRecord]) -> Query[TraceRecord]:
    """Return the query for the trace of a path."""
    asked = _TraceOf()
    asked.wanted = path.record
    return Query(asked, path.mask)


async def tracedBySA(agent: RPCs, view: View, source: int, target: int) -> list[Hop] | None:
    """
    Query the SA for the path of packets between two LIDs.

    @return: the hops; None if the SA has no TraceRecords, or if their node IDs, which the SA may choose
        freely, are not node GUIDs.
    @raise NoRoute: the records do not lead from one LID to the other.
    """
    can = await agent.call("SubnAdmGet", ClassPortInfo)
    if not can.capabilityMask & _HAS_OPTIONAL_RECORDS:
        return None
    query = traceOf(PathRecord.query(slid=LID(source), dlid=LID(target), reversible=True, numbPath=1))
    try:
        records = await agent.SubnAdmGetTraceTable(query)
    except MADError:
        return None
    hops: list[Hop] = []
    for depth, record in enumerate(records):
        nodes = NodeRecord.query(nodeGUID=GUID.fromInt(record.nodeID))
        known = await agent.SubnAdmGetTable(nodes)
        lids = [each.lid for each in known]
        if not lids:
            return None
        # Of a node with several ports, the one at an end of the path has the base LID of that end.
        end = source if not depth else target if record is records[-1] else lids[0]
        lid = max((each for each in lids if each <= end), default=lids[0])
        stop = await view.begin(lid)
        if record.entryPort:
            stop = replace(stop, entry=record.entryPort)
        hops.append(Hop(stop, record.exitPort, depth, depth - 1))
    if hops and not (hops[0].stop.owns(source) and hops[-1].stop.owns(target)):
        ends = f"from LID {hops[0].stop.lid} to LID {hops[-1].stop.lid}"
        raise NoRoute(f"the SA's trace from LID {source} to LID {target} leads {ends}", hops)
    return hops or None
