"""
Root causes: the finding that explains others, so that one fault is one event.

A missing switch explains the nodes that only it led to. A bad link has several symptoms at both of its ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from txrdma.fabric.health import Cause, Finding
from txrdma.fabric.model import Fabric, PortKey
from txrdma.iba.types import GUID
from txrdma.kit.graphs import origins

OF_LINK: Final = (
    *("flapping", "fec-uncorrectable", "symbol-ber", "symbol-errors", "link-recoveries"),
    *("integrity-errors", "receive-errors"),
)
"""Kinds of findings that one bad link has at both of its ends, the most informative first."""

OF_ENDS: Final = frozenset((*OF_LINK, "link-gone"))
"""Kinds of findings about a link, each reported at one of its two ports."""

_CAUSES: Final[Mapping[str, tuple[str, ...]]] = {
    # of the same link, at either end
    "link-gone": ("flapping",),
    **{kind: OF_LINK[: index + 1] for index, kind in enumerate(OF_LINK)},
    # of the node to which the port leads
    "unreachable": ("node-silent",),
    # of the nearest node that leads to the node
    "node-gone": ("node-silent", "node-gone"),
}
"""Kinds of the findings that explain one of a kind, the most informative first."""


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


def explained(
    found: Iterable[Finding],
    causeAt: Callable[[Finding], object],
    others: Iterable[Finding] = (),
    ignored: Collection[str] = (),
) -> list[Finding]:
    """
    Return findings, each with the finding that explains it as its cause.

    @param causeAt: returns where the cause of a finding would be: L{linkOf} or a GUID; None if unknown.
    @param others: further findings, which may explain these.
    @param ignored: kinds of findings that explain no others.
    """
    findings, known = list(found), dict[tuple[object, str], Finding]()
    for one in chain(findings, others):
        if one.kind not in ignored:
            known.setdefault((causeAt(one) if one.kind in OF_ENDS else one.guid, one.kind), one)
    for index, one in enumerate(findings):
        at = causeAt(one)
        causes = (known.get((at, kind)) for kind in _CAUSES.get(one.kind, ()) if at is not None)
        cause = next(filter(None, causes), one)
        if cause is not one:
            findings[index] = replace(one, cause=Cause(cause.kind, cause.where, cause.guid, cause.port))
    return findings


def linkOf(fabric: Fabric, one: Finding) -> PortKey | None:
    """Return the port that represents both ends of a finding's link: that with the lower GUID and number."""
    if one.guid is None or one.port is None:
        return None
    port, end = fabric.portAt(one.guid, one.port), (one.guid, one.port)
    peer = None if port is None else port.peer
    return end if peer is None else min(end, (peer.node.guid, peer.number))
