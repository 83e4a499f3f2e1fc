"""Blast radius of a node or cable, from the forwarding tables of the last survey."""

from __future__ import annotations

from math import inf
from typing import Any, Final

from txrdma.fabric.blastradius import BlastRadius, Element, Loss
from txrdma.fabric.model import Node
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.web.layout import facts, nodeLink, Part, section, table, tags
from txrdma.monitor.web.searches import Search
from txrdma.monitor.web.tables import COUNT, described, GUID_TEXT, NUMBER, orNull, record, rowsOf, TEXT
from txrdma.monitor.web.watch import PageContext, printable

MOST_HOSTS: Final = 100
"""Maximum number of hosts in each list of an answer; its counts have all."""

_FEW: Final = 10

_HOST: Final = record(guid=GUID_TEXT, name=TEXT)
BLAST_SCHEMA: Final = record(
    hostsCutOff=described(COUNT, "Hosts that cannot reach the largest remaining part of the fabric"),
    switchesCutOff=described(COUNT, "Switches that cannot reach it"),
    lostPaths=described(orNull(COUNT), "Paths between hosts that it carries; null before the first survey"),
    paths=described(orNull(COUNT), "All paths between hosts"),
    switchesWithoutTables=described(COUNT, "Switches whose tables are unknown: their paths do not count"),
    hostsWithLessBandwidth=described(COUNT, "Other hosts that share links of which some are lost"),
    leastBandwidth=described(NUMBER, "Smallest share of these links that remains, 0 to 1"),
    surveyedAt=described(orNull(NUMBER), "Time at which the tables were read, in seconds since 1970"),
    cutOff=described(rowsOf(_HOST), f"The first {MOST_HOSTS} hosts that are cut off"),
    mostAffected=described(
        rowsOf(record(guid=GUID_TEXT, name=TEXT, lostPaths=COUNT)),
        f"The {MOST_HOSTS} hosts with the most lost paths, from and to them",
    ),
)
"""JSON schema of a blast radius."""


async def blastRadius(context: PageContext, element: Element) -> dict[str, Any]:
    """
    Return what would be lost without a node, or without the cable at a port, for JSON.

    Links and tables are prepared once for all requests until the fabric changes or is surveyed again.
    """
    poller, searches, fabric = context.poller, context.watch.searches, context.watch.fabric
    state = (poller.version, poller.surveyedAt, context.knownAt)
    radius = await searches.result(("blast-radius", fabric), state, _prepared(context))
    key = (element.guid, 0) if isinstance(element, Node) else (element.node.guid, element.number)
    if not radius.has(element):
        return _toDict(context, Loss())
    return await searches.result(("blast-radius", fabric, key), state, _found(context, radius, element))


def _prepared(context: PageContext) -> Search[BlastRadius]:
    radius = BlastRadius(context.fabric, context.poller.linear)
    yield from radius.steps()
    return radius


def _found(context: PageContext, radius: BlastRadius, element: Element) -> Search[dict[str, Any]]:
    return _toDict(context, (yield from radius.without([element])))


def _toDict(context: PageContext, loss: Loss) -> dict[str, Any]:
    at = context.poller.surveyedAt
    isKnown = at > -inf
    slower = loss.slower
    return {
        "hostsCutOff": len(loss.cutOff),
        "switchesCutOff": len(loss.switches),
        "lostPaths": loss.paths if isKnown else None,
        "paths": loss.total if isKnown else None,
        "switchesWithoutTables": loss.unread,
        "hostsWithLessBandwidth": len(slower),
        "leastBandwidth": min((one.share for one in loss.reduced), default=1.0),
        "surveyedAt": at if isKnown else None,
        "cutOff": [_host(host) for host in loss.cutOff[:MOST_HOSTS]],
        "mostAffected": [{**_host(host), "lostPaths": paths} for host, paths in loss.byHost[:MOST_HOSTS]],
    }


def _host(node: Node) -> dict[str, Any]:
    return {"guid": guidText(node.guid), "name": printable(node.description)}


async def blastSection(context: PageContext, element: Element) -> Part:
    """Return the section of a page that says what would be lost without a node or cable."""
    what = "cable"
    if isinstance(element, Node):
        what = "switch" if element.isSwitch else "node"
    elif element.peer is None:
        return ""
    found = await blastRadius(context, element)
    paths = "unknown until the tables are read"
    if found["lostPaths"] is not None:
        paths = f"{found['lostPaths']:,} of {found['paths']:,}"
        if found["switchesWithoutTables"]:
            paths += f"; the tables of {found['switchesWithoutTables']} switches are unknown"
    slower = f"{found['hostsWithLessBandwidth']:,}"
    if found["hostsWithLessBandwidth"]:
        slower += f", down to {100 * found['leastBandwidth']:.3g} % of the links that they share"
    shown = facts(
        ("Hosts cut off", f"{found['hostsCutOff']:,}"),
        ("Paths between hosts that are lost", paths),
        ("Hosts with less bandwidth", slower),
    )
    rows = [
        (nodeLink(row["guid"], row["name"]), f"{row['lostPaths']:,}") for row in found["mostAffected"][:_FEW]
    ]
    affected = table("Most affected hosts", ("Host", "Lost paths, from and to"), rows, "") if rows else ""
    off = found["cutOff"][:_FEW]
    links: list[Part] = []
    for row in off:
        links += [nodeLink(row["guid"], row["name"]), ", "]
    more = f" and {found['hostsCutOff'] - len(off)} more" if found["hostsCutOff"] > len(off) else ""
    listed = tags.p("Cut off: ", links[:-1], more) if off else ""
    intro = tags.p("Lost paths are those of the present forwarding tables, until there are others.")
    return section(f"Without this {what}", shown, listed, affected, intro, name="blast-radius", isLive=False)
