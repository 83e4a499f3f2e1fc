"""Paths of packets between two nodes by the tables of the last survey, with the load of each hop."""

from __future__ import annotations

from math import inf
from typing import Any, Final

from txrdma.fabric.model import Node
from txrdma.fabric.routing import Hop, NoRoute, SurveyView, trace
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.web.tables import COUNT, described, GUID_TEXT, NUMBER, orNull, record, rowsOf, TEXT, TRUTH
from txrdma.monitor.web.watch import PageContext, printable

_HOP: Final = record(
    guid=GUID_TEXT,
    name=TEXT,
    isSwitch=TRUTH,
    lid=COUNT,
    entry=described(orNull(COUNT), "Input port of the packets"),
    exit=described(orNull(COUNT), "Port that they leave by"),
    others=described(rowsOf(COUNT), "Further ports among which adaptive routing chooses"),
    rate=described(orNull(NUMBER), "Octets each second sent by that port"),
    load=described(orNull(NUMBER), "Share of its link, 0 to 1"),
    errorRate=described(orNull(NUMBER), "Errors each second at that port"),
)
TRACE_SCHEMA: Final = record(
    isReached=described(TRUTH, "The path leads to its end"),
    reason=described(TEXT, "Reason for which it does not"),
    surveyedAt=described(orNull(NUMBER), "Time at which the tables were read; null if not yet"),
    hops=rowsOf(_HOP),
)
"""JSON schema of a path."""


async def traced(context: PageContext, begin: Node, end: Node) -> dict[str, Any]:
    """Return the path from one node to another by the tables of the last survey, for JSON."""
    reason, poller = "", context.poller
    hops: list[Hop] = []
    isSurveyed = poller.surveyedAt > -inf
    if not isSurveyed:
        reason = "the forwarding tables have not been read yet; with poll.survey = 0 they are not read"
    elif not begin.lid or not end.lid:
        reason = f"{printable(str(end if begin.lid else begin))} has no LID"
    else:
        try:
            view = SurveyView(context.fabric, poller.linear, poller.adaptive)
            hops = await trace(view, end.lid, begin.lid)
        except NoRoute as error:
            hops, reason = error.hops, printable(str(error))
    return {
        "isReached": not reason,
        "reason": reason,
        "surveyedAt": poller.surveyedAt if isSurveyed else None,
        "hops": [_hop(context, hop) for hop in hops],
    }


def _hop(context: PageContext, hop: Hop) -> dict[str, Any]:
    stop = hop.stop
    guid = stop.info.nodeGUID
    node = context.fabric.nodes.get(guid)
    port = node.known(hop.exit) if node is not None and hop.exit else None
    return {
        "guid": guidText(guid),
        "name": printable(stop.description),
        "isSwitch": stop.isSwitch,
        "lid": int(stop.lid),
        "entry": stop.entry if hop.depth else None,
        "exit": hop.exit or None,
        "others": list(hop.others),
        "rate": None if port is None else context.rate(port, "portXmitData"),
        "load": None if port is None else context.load(port),
        "errorRate": None if port is None else context.errorRate(port),
    }
