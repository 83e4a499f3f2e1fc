"""
Journal of changes: nodes and links that come and go, modes of links, findings that are raised and cleared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

from txrdma.fabric.model import Fabric, Node, Port
from txrdma.iba.types import GUID
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.findinglog import FindingEvent, Raised, Resumed
from txrdma.monitor.diagnosis.presence import Link
from txrdma.monitor.diagnosis.thresholds import Place
from txrdma.monitor.series.exposition import guidText

KINDS: Final = (
    *("node-came", "node-gone", "link-came", "link-gone", "link-changed"),
    *("finding-raised", "finding-cleared"),
)
"""Kinds of changes that a journal knows."""

MOST_CHANGES: Final = 10_000
"""Maximum number of changes in a journal; the oldest are dropped."""


@frozen
class Change:
    """
    Change of a fabric, or of what is known to be wrong with it.

    @ivar at: time at which it was seen, in seconds since 1970.
    @ivar kind: one of L{KINDS}.
    @ivar where: the place, for people; C{guid} and C{port} name it for programs, where it is a node or a
        port.
    """

    at: float
    kind: str
    where: str
    text: str
    guid: GUID | None = None
    port: int | None = None

    def toDict(self) -> dict[str, Any]:
        """Change as JSON can carry it."""
        return {
            "at": self.at,
            "kind": self.kind,
            "where": self.where,
            "text": self.text,
            "guid": None if self.guid is None else guidText(self.guid),
            "port": self.port,
        }


class Journal:
    """
    Journal of one fabric: its last ten thousand changes.

    @ivar changes: changes in order of time, the latest last.
    @ivar number: number of changes so far.
    """

    def __init__(self) -> None:
        self.changes: deque[Change] = deque(maxlen=MOST_CHANGES)
        self.number = 0
        self._nodes: dict[GUID, str] | None = None
        self._links: dict[Link, tuple[int, str]] = {}

    def restore(
        self, changes: Iterable[Change], number: int, nodes: dict[GUID, str], links: Iterable[Link]
    ) -> None:
        """
        Go on where a former process has ended.

        @param number: number of its changes.
        @param nodes: names of the nodes that it has seen last, by GUID.
        """
        self.changes.extend(changes)
        self.number = number
        self._nodes = nodes or None
        self._links = dict.fromkeys(links, (0, ""))

    def _add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self.changes.append(change)
            self.number += 1

    def since(self, at: float) -> list[Change]:
        """Changes from a time on, the latest first."""
        found = []
        for change in reversed(self.changes):
            if change.at < at:
                break
            found.append(change)
        return found

    def findingChanged(self, event: FindingEvent, now: float) -> None:
        """Add a finding that was raised or cleared."""
        if isinstance(event, Resumed):
            return
        finding = event.entry.finding
        kind = "finding-raised" if isinstance(event, Raised) else "finding-cleared"
        text = f"{finding.kind}: {finding.text}"
        self._add([Change(now, kind, finding.where, text, finding.guid, finding.port)])

    def observe(self, fabric: Fabric, now: float) -> None:
        """Add what has come, gone or changed since the last look at the fabric; a first look adds nothing."""
        nodes = {guid: str(node) for guid, node in fabric.nodes.items()}
        links = {(_place(one), _place(other)): (one.width, one.speed) for one, other in fabric.links()}
        before, self._nodes = self._nodes, nodes
        linked, self._links = self._links, links
        if before is not None:
            self._add(_nodeChanges(before, nodes, fabric, now))
            self._add(_linkChanges(linked, links, {**before, **nodes}, nodes, now))


def _place(port: Port) -> Place:
    return port.node.guid, port.number


def _nodeChanges(
    before: dict[GUID, str], nodes: dict[GUID, str], fabric: Fabric, now: float
) -> Iterator[Change]:
    for guid in before.keys() - nodes.keys():
        yield Change(now, "node-gone", before[guid], "it is gone", guid)
    for guid in nodes.keys() - before.keys():
        yield Change(now, "node-came", nodes[guid], f"it is there{_beside(fabric.nodes[guid])}", guid)


def _beside(node: Node) -> str:
    linked = node.linked()
    return f", at {linked[0].peer}" if linked else ""


def _linkChanges(
    before: dict[Link, tuple[int, str]],
    links: dict[Link, tuple[int, str]],
    names: dict[GUID, str],
    present: dict[GUID, str],
    now: float,
) -> Iterator[Change]:
    """Changes of links; not of those that have gone with a node."""

    def change(kind: str, link: Link, text: str) -> Change:
        (guid, number), (peer, peerNumber) = link
        said = text.format(f"{names[peer]} port {peerNumber}")
        return Change(now, kind, f"{names[guid]} port {number}", said, guid, number)

    for link in before.keys() - links.keys():
        if all(guid in present for guid, _number in link):
            yield change("link-gone", link, "its link to {} is gone")
    for link in links.keys() - before.keys():
        width, speed = links[link]
        yield change("link-came", link, f"it is linked to {{}}, {width}x {speed}")
    for link in links.keys() & before.keys():
        if links[link] != before[link] and 0 not in (links[link][0], before[link][0]):
            (width, speed), (was, wasSpeed) = links[link], before[link]
            yield change(
                "link-changed", link, f"its link to {{}} runs at {width}x {speed}, not {was}x {wasSpeed}"
            )
