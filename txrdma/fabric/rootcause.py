"""
Root causes: the finding that explains others, so that one fault is one event.

A missing switch explains the nodes that only it led to. A bad link has several symptoms at both of its ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from txrdma.fabric.health import Finding
from txrdma.fabric.model import Fabric, PortKey
from txrdma.iba.types import GUID
from txrdma.kit.graphs import origins

OF_LINK: Final = (
    *("flapping", "fec-uncorrectable", "symbol-ber", "symbol-errors", "link-recoveries"),
    *("integrity-errors", "receive-errors"),
)
"""Kinds of findings that one bad link has at both of its ends, the most informative first."""


def causesOfLoss(missing: Collection[GUID], links: Iterable[tuple[PortKey, PortKey]]) -> dict[GUID, GUID]:
    """
    Return the nodes that are missing because another one is missing, each with that node.

    A node is missing by itself if it had a link to a present node, or no link. The nearest of these
    nodes is the cause of others.

    @param missing: all nodes that are missing.
    @param links: links that are missing, each by its two ports.
    """
    neighbours: dict[GUID, list[GUID]] = defaultdict(list)
    roots: dict[GUID, None] = {}
    for (one, _port), (other, _peerPort) in links:
        for guid, peer in ((one, other), (other, one)):
            if guid in missing:
                neighbours[guid].append(peer)
                if peer not in missing:
                    roots[guid] = None
    causes = origins(roots, lambda guid: [peer for peer in neighbours[guid] if peer in missing])
    return {guid: cause for guid, cause in causes.items() if guid != cause}


def groupedByLink(fabric: Fabric, found: Iterable[Finding]) -> list[Finding]:
    """Return findings; of several findings about one bad link, one is the cause of the others."""
    findings = list(found)
    several: dict[PortKey, list[Finding]] = defaultdict(list)
    for one in findings:
        if one.kind in OF_LINK and one.guid is not None and one.port is not None:
            several[_linkOf(fabric, (one.guid, one.port))].append(one)
    causes: Mapping[PortKey, Finding] = {
        link: min(ones, key=lambda one: OF_LINK.index(one.kind)) for link, ones in several.items()
    }
    grouped = []
    for one in findings:
        cause = None
        if one.kind in OF_LINK and one.guid is not None and one.port is not None:
            cause = causes[_linkOf(fabric, (one.guid, one.port))]
        grouped.append(one if cause is None or cause is one else replace(one, cause=causeText(cause)))
    return grouped


def causeText(cause: Finding) -> str:
    """Return the name of a finding for those that it explains."""
    return f"{cause.kind} at {cause.where}"


def _linkOf(fabric: Fabric, portKey: PortKey) -> PortKey:
    """Return the port that represents both ends of a link: that with the lower GUID and number."""
    node = fabric.nodes.get(portKey[0])
    port = None if node is None else node.known(portKey[1])
    if port is None or port.peer is None:
        return portKey
    return min(portKey, (port.peer.node.guid, port.peer.number))
