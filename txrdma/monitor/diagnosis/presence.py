"""
Nodes and links of a fabric over time: which have appeared, disappeared or changed, and when.

L{Presence.follow} is the only place where the fabric is compared with its former state. It returns changes,
which the journal, the findings and the pages are made of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import inf
from typing import Any, Final, TypeVar

from txrdma.fabric.health import Finding
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.iba.types import GUID
from txrdma.kit.values import record
from txrdma.monitor.diagnosis.journal import Change
from txrdma.monitor.diagnosis.thresholds import PortKey

FORGET_SECONDS: Final = 7 * 86400.0
"""Seconds until a missing node or link is forgotten."""

MOST_GONE: Final = 20_000
"""
Maximum number of missing nodes, and of missing links: a broken node may have a new GUID each minute.
Beyond it, those that were present for the shortest time are forgotten first.
"""

_FEWEST: Final = 2
"""Minimum number of common nodes by which two models are taken for the same fabric."""

Link = tuple[PortKey, PortKey]
"""A link, by its two ports."""

Key = TypeVar("Key")


@record
class Gone:
    """
    A node or a link that was in the fabric and is missing.

    @ivar where: name of the node, or of the link's first port.
    @ivar beyond: name of the port that led to the node, or of the link's other port; C{""} without one.
    @ivar since: time of the first sweep that did not find it.
    @ivar port: number of the link's first port; None for a node.
    """

    where: str
    beyond: str
    since: float
    guid: GUID
    port: int | None = None


class Presence:
    """
    Record of the nodes and links of all sweeps.

    @ivar nodes: nodes that are gone, by GUID, and C{links} that are gone while both of their nodes are there.
    @ivar present: names of the nodes that are there, each with that of the port which leads to it; C{linked}
        names of both ports of the links.
    @ivar changes: number of times that nodes or links were others than before.
    """

    def __init__(self, forgetSeconds: float = FORGET_SECONDS, mostGone: int = MOST_GONE) -> None:
        self._forgetSeconds = forgetSeconds
        self._mostGone = mostGone
        self._appeared: dict[Any, float] = {}
        self.present: Mapping[GUID, tuple[str, str]] = {}
        self.linked: Mapping[Link, tuple[str, str]] = {}
        self.nodes: dict[GUID, Gone] = {}
        self.links: dict[Link, Gone] = {}
        self.changes = 0
        self._modes: dict[Link, tuple[int, str]] = {}
        self._isRestored = False

    def restore(
        self,
        present: Mapping[GUID, tuple[str, str]],
        linked: Mapping[Link, tuple[str, str]],
        nodes: Mapping[GUID, Gone],
        links: Mapping[Link, Gone],
    ) -> None:
        """Set the state that a previous process has stored, before the first sweep."""
        self.present, self.linked = present, linked
        self.nodes.update(nodes)
        self.links.update(links)
        self._isRestored = True

    def _compare(self, fabric: Fabric) -> None:
        """Forget the state of a process that watched another fabric: the local node may be in both."""
        self._isRestored = False
        if len(self.present) >= _FEWEST and sum(guid in self.present for guid in fabric.nodes) < _FEWEST:
            self.present, self.linked = {}, {}
            self.nodes.clear()
            self.links.clear()

    def follow(self, fabric: Fabric, now: float) -> list[Change]:
        """
        Compare a fabric with its previous state, and store it as the new one.

        @return: changes; none for the first fabric.
        """
        if self._isRestored:
            self._compare(fabric)
        nodes = {guid: (str(node), _attachment(node)) for guid, node in fabric.nodes.items()}
        for guid, (name, beyond) in self.present.items():
            if guid not in nodes:
                self.nodes[guid] = Gone(name, beyond, now, guid)
        for guid in [guid for guid in self.nodes if guid in nodes]:
            del self.nodes[guid]
        links: dict[Link, tuple[str, str]] = {}
        modes: dict[Link, tuple[int, str]] = {}
        for one, other in fabric.links():
            link = (one.node.guid, one.number), (other.node.guid, other.number)
            links[link], modes[link] = (str(one), str(other)), (one.width, one.speed)
        for link, (name, beyond) in self.linked.items():
            if link not in links:
                self.links[link] = Gone(name, beyond, now, *link[0])
        taken = {end for link in links for end in link}
        for link in [link for link in self.links if link in links or taken.intersection(link)]:
            del self.links[link]  # it is back, or a port of it is linked elsewhere
        changes: list[Change] = []
        if self.present:
            changes += self._nodeChanges(fabric, now)
            changes += self._linkChanges(links, modes, nodes, now)
        self.changes += nodes != self.present or links != self.linked
        self._noteTimes(nodes, links, now)
        self.present, self.linked, self._modes = nodes, links, modes
        several: tuple[dict[Any, Gone], ...] = (self.nodes, self.links)
        for gone in several:
            _forget(gone, now - self._forgetSeconds)
            self._bound(gone)
        return changes

    def _nodeChanges(self, fabric: Fabric, now: float) -> Iterator[Change]:
        for guid in self.present.keys() - fabric.nodes.keys():
            yield Change(now, "node-gone", self.present[guid][0], "it is gone", guid)
        for guid in fabric.nodes.keys() - self.present.keys():
            node = fabric.nodes[guid]
            linked = node.linked()
            text = f"it is there, at {linked[0].peer}" if linked else "it is there"
            yield Change(now, "node-came", str(node), text, guid)

    def _linkChanges(
        self,
        links: Mapping[Link, tuple[str, str]],
        modes: Mapping[Link, tuple[int, str]],
        nodes: Collection[GUID],
        now: float,
    ) -> Iterator[Change]:
        """Return the changes of links, except those that are missing because their node is."""
        for link in self.linked.keys() - links.keys():
            if all(guid in nodes for guid, _number in link):
                name, beyond = self.linked[link]
                yield Change(now, "link-gone", name, f"its link to {beyond} is gone", *link[0])
        for link, (name, beyond) in links.items():
            (width, speed), (oldWidth, oldSpeed) = modes[link], self._modes.get(link, (0, ""))
            if link not in self.linked:
                text = f"it is linked to {beyond}, {width}x {speed}"
                yield Change(now, "link-came", name, text, *link[0])
            elif (width, speed) != (oldWidth, oldSpeed) and width and oldWidth:
                text = f"its link to {beyond} runs at {width}x {speed}, not {oldWidth}x {oldSpeed}"
                yield Change(now, "link-changed", name, text, *link[0])

    def _noteTimes(self, nodes: Collection[GUID], links: Collection[Link], now: float) -> None:
        """Record when nodes and links appeared; those of the first sweep count as always present."""
        known: dict[Any, float] = self._appeared
        appeared = self._appeared = {}
        several: tuple[tuple[Any, Any, Any], ...] = (
            (nodes, self.present, self.nodes),
            (links, self.linked, self.links),
        )
        for present, before, gone in several:
            for key in present:
                appeared[key] = known.get(key, now if before and key not in before else -inf)
            for key in gone:
                appeared[key] = known.get(key, -inf)

    def _bound(self, gone: dict[Any, Gone]) -> None:
        """Remove the missing entries that were present for the shortest time while there are too many."""
        excess = len(gone) - self._mostGone
        if excess > 0:
            shortest = sorted(gone, key=lambda key: gone[key].since - self._appeared.get(key, -inf))
            for key in shortest[:excess]:
                del gone[key]

    def findings(self) -> list[Finding]:
        """Return findings about missing nodes and links; links of a missing node are not reported."""
        found = [
            Finding("node-gone", gone.where, _seenAt(gone.beyond), gone.guid) for gone in self.nodes.values()
        ]
        return found + [
            Finding("link-gone", gone.where, f"its link to {gone.beyond} is gone", gone.guid, gone.port)
            for link, gone in self.links.items()
            if not any(guid in self.nodes for guid, _number in link)
        ]


def _forget(known: dict[Key, Gone], before: float) -> None:
    for key in [key for key, gone in known.items() if gone.since <= before]:
        del known[key]


def _attachment(node: Node) -> str:
    """Return the name of the switch port that leads to a host; C{""} for a switch, which has many."""
    linked: list[Port] = [] if node.isSwitch else node.linked()
    return str(linked[0].peer) if linked else ""


def _seenAt(beyond: str) -> str:
    return f"it is gone; {beyond} led to it" if beyond else "it is gone"
