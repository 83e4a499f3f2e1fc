"""
Nodes and links of a fabric over time: their appearance, disappearance and changes, with times.

L{Presence.follow} is the only place where the fabric is compared with its former state. It returns events,
from which the journal, the findings and the pages are made, and from which L{Presence.restore} restores the
state.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from typing import Any, Final

from txrdma.fabric.health import Finding
from txrdma.fabric.model import Fabric, Node, Port, PortKey
from txrdma.fabric.rootcause import causesOfLoss
from txrdma.fabric.texts import listed
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.kit.values import record
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.monitor.diagnosis.journal import FabricEvent, isPort, readValid
from txrdma.monitor.diagnosis.thresholds import forget

FORGET_SECONDS: Final = 7 * 86400.0
"""Seconds until a missing node or link is forgotten."""

MOST_GONE: Final = 20_000
"""
Maximum number of missing nodes, and of missing links: a broken node may have a new GUID each minute.
Beyond it, those that were present for the shortest time are forgotten first.
"""

_PIECE: Final = 1000
"""Number of nodes or links that are compared between two pauses."""

_FEWEST: Final = 2
"""Minimum number of common nodes for which two models count as the same fabric."""

_MOST_HOST_PORTS: Final = 2
"""A node with more links counts as a switch: the events do not have its type."""

Link = tuple[PortKey, PortKey]
"""A link, by its two ports."""

STATES: Final = ("node-came", "node-gone", "link-came", "link-changed", "link-gone")
"""Kinds of the events that are the state of a node or link."""


@record
class Absence:
    """
    A node or a link that was in the fabric and is missing.

    @ivar where: name of the node, or of the link's first port.
    @ivar beyond: name of the port that led to the node, or of the link's other port; C{""} without one.
    @ivar since: time of the first sweep that did not find it.
    """

    where: str
    beyond: str
    since: float


class Presence:
    """
    Record of the nodes and links of all sweeps.

    @ivar nodes: missing nodes, by GUID, and C{links} that are missing between present nodes.
    @ivar present: names of the present nodes, each with that of the port that leads to it; C{linked} names of
        both ports of the links.
    @ivar changes: number of times that nodes or links have changed.
    @ivar lost: links that the latest fabric does not have, and the one before had; C{came}: the reverse. Both
        are empty for the first fabric.
    @ivar remembered: fabric of a former process, until the first sweep; None without.
    @ivar rememberedAt: time of its last event.
    """

    def __init__(self, mostGone: int = MOST_GONE) -> None:
        self._mostGone = mostGone
        self._appeared: dict[Any, float] = {}
        self.present: Mapping[GUID, tuple[str, str]] = {}
        self.linked: Mapping[Link, tuple[str, str]] = {}
        self.nodes: dict[GUID, Absence] = {}
        self.links: dict[Link, Absence] = {}
        self.lost: set[Link] = set()
        self.came: set[Link] = set()
        self.changes = 0
        self._modes: dict[Link, tuple[int, str]] = {}
        self.remembered: Fabric | None = None
        self.rememberedAt = 0.0

    def restore(self, states: Sequence[FabricEvent]) -> None:
        """
        Set the state that a previous process has stored, before the first sweep.

        @param states: last events of nodes and links; without effect if fewer than two of the nodes are
            present. Invalid ones are logged and ignored.
        """
        present, linked, nodes, links = dict[Any, Any](), dict[Any, Any](), dict[Any, Any](), dict[Any, Any]()
        for key, one in readValid(states, _stateOf):
            isNode = isinstance(key, GUID)
            if one.kind.endswith("-gone"):
                (nodes if isNode else links)[key] = Absence(one.where, one.detail, one.at)
            else:
                (present if isNode else linked)[key] = one.where, one.detail
        if len(present) >= _FEWEST:
            self.remembered = _rememberedFabric(present, linked)
            self.rememberedAt = max(one.at for one in states)
            self.present, self.linked, self.nodes, self.links = present, linked, nodes, links

    def _elsewhere(self, fabric: Fabric, now: float) -> Iterator[FabricEvent]:
        """Forget the state of a process that watched another fabric: the local node may be in both."""
        if len(self.present) >= _FEWEST and sum(guid in self.present for guid in fabric.nodes) < _FEWEST:
            known: list[GUID | Link] = [*self.present, *self.nodes, *self.linked, *self.links]
            for key in known:
                yield _event(now, "forgotten", key)
            self.present, self.linked = {}, {}
            self.nodes.clear()
            self.links.clear()

    def follow(self, fabric: Fabric, now: float) -> Iterator[FabricEvent | None]:
        """
        Compare a fabric with its previous state, and store it as the new one at the end. Then yield events;
        those of the first fabric have no text. Before, yield None for pauses between pieces of some
        milliseconds.
        """
        events: list[FabricEvent] = []
        if self.remembered is not None:
            self.remembered = None
            events += self._elsewhere(fabric, now)
        nodes: dict[GUID, tuple[str, str]] = {}
        for number, (guid, node) in enumerate(list(fabric.nodes.items()), 1):
            nodes[guid] = str(node), _attachment(node)
            if not number % _PIECE:
                yield None
        links: dict[Link, tuple[str, str]] = {}
        modes: dict[Link, tuple[int, str]] = {}
        came: set[Link] = set()
        for number, (one, other) in enumerate(fabric.links(), 1):
            link = (one.node.guid, one.number), (other.node.guid, other.number)
            links[link], modes[link] = (str(one), str(other)), (one.width, one.speed)
            if link not in self.linked:
                came.add(link)
            if not number % _PIECE:
                yield None
        lost: list[Link] = []
        ofNodes = self._nodeEvents(nodes, fabric, now)
        for number, event in enumerate(chain(ofNodes, self._linkEvents(links, modes, nodes, lost, now)), 1):
            if event is not None:
                events.append(event)
            if not number % _PIECE:
                yield None
        appeared = yield from self._times(nodes, links, now)
        # No pauses from here on: pages show either the former state or the new one.
        for guid, (name, beyond) in self.present.items():
            if guid not in nodes:
                self.nodes[guid] = Absence(name, beyond, now)
        for link in lost:
            self.links[link] = Absence(*self.linked[link], now)
        # With those that are missing from now on: a bounded table may forget them at once.
        tables: list[tuple[dict[Any, Absence], Collection[Any]]] = [(self.nodes, nodes), (self.links, links)]
        former = [list(gone) for gone, _present in tables]
        forget(self.nodes, lambda guid, _: guid in nodes)
        ends = {end for link in self.links for end in link}
        taken = ends and {end for link in came for end in link if end in ends}
        # A link is back, or a port of it is linked elsewhere.
        forget(self.links, lambda link, _: link in links or not taken.isdisjoint(link))
        # Missing ones keep their times, by which C{_bound} chooses those to forget.
        appeared.update((key, self._appeared.get(key, -inf)) for key in chain(self.nodes, self.links))
        self.changes += any(event.kind != "link-changed" for event in events)
        self.lost, self.came = (set(lost), came) if self.present else (set(), set())
        self.present, self.linked, self._modes, self._appeared = nodes, links, modes, appeared
        for (gone, present), before in zip(tables, former, strict=True):
            forget(gone, lambda _key, one: one.since <= now - FORGET_SECONDS)
            self._bound(gone)
            forgotten = [key for key in before if key not in gone and key not in present]
            events += [_event(now, "forgotten", key) for key in forgotten]
        yield from events

    def _nodeEvents(
        self, nodes: Mapping[GUID, tuple[str, str]], fabric: Fabric, now: float
    ) -> Iterator[FabricEvent | None]:
        """Yield the events of nodes; None is a node without an event."""
        isFirst = not self.present
        for guid, names in self.present.items():
            yield None if guid in nodes else _event(now, "gone", guid, names, "it is gone")
        for guid, names in nodes.items():
            if guid not in self.present:
                node = fabric.nodes.get(guid)
                linked = [] if node is None else node.linked()
                text = f"it is there, at {linked[0].peer}" if linked else "it is there"
                yield _event(now, "came", guid, names, "" if isFirst else text)
            else:
                yield None if names == self.present[guid] else _event(now, "came", guid, names)

    def _linkEvents(
        self,
        links: Mapping[Link, tuple[str, str]],
        modes: Mapping[Link, tuple[int, str]],
        nodes: Collection[GUID],
        lost: list[Link],
        now: float,
    ) -> Iterator[FabricEvent | None]:
        """
        Yield events of links, or None; links that are missing with their node have no text.

        @param lost: list to which missing links are added.
        """
        isFirst = not self.present
        for link, names in self.linked.items():
            if link in links:
                yield None
                continue
            lost.append(link)
            isSeen = all(guid in nodes for guid, _number in link)
            text = f"its link to {names[1]} is gone" if isSeen else ""
            yield _event(now, "gone", link, names, text)
        for link, names in links.items():
            (width, speed), (oldWidth, oldSpeed) = modes[link], self._modes.get(link, (0, ""))
            before = self.linked.get(link)
            if before is None:
                text = f"it is linked to {names[1]}, {width}x {speed}"
                yield _event(now, "came", link, names, "" if isFirst else text)
            elif (width, speed) != (oldWidth, oldSpeed) and width and oldWidth:
                text = f"its link to {names[1]} runs at {width}x {speed}, not {oldWidth}x {oldSpeed}"
                yield _event(now, "changed", link, names, text)
            elif names != before:
                yield _event(now, "came", link, names)
            else:
                yield None

    def _times(
        self, nodes: Collection[GUID], links: Collection[Link], now: float
    ) -> Generator[None, None, dict[Any, float]]:
        """Return when nodes and links appeared; those of the first sweep count as always present."""
        appeared: dict[Any, float] = {}
        tables: tuple[tuple[Collection[Any], Collection[Any]], ...]
        tables = (self.present, nodes), (self.linked, links)
        for before, present in tables:
            for number, key in enumerate(present, 1):
                isNew = before and key not in before
                appeared[key] = self._appeared.get(key, now if isNew else -inf)
                if not number % _PIECE:
                    yield None
        return appeared

    def _bound(self, gone: dict[Any, Absence]) -> None:
        """Remove the missing entries that were present for the shortest time while there are too many."""
        excess = len(gone) - self._mostGone
        if excess > 0:
            shortest = sorted(gone, key=lambda key: gone[key].since - self._appeared.get(key, -inf))
            for key in shortest[:excess]:
                del gone[key]

    def findings(self) -> list[Finding]:
        """
        Return findings about missing nodes and links; links of a missing node are not reported, and nodes
        that only a missing switch led to have that as their cause.
        """
        causes = causesOfLoss(self.nodes, self.links)
        behind: dict[GUID, list[str]] = {}
        for guid in causes:
            behind.setdefault(causes[guid], []).append(self.nodes[guid].where)
        found = []
        for guid, gone in self.nodes.items():
            text, names = _seenAt(gone.beyond), behind.get(guid)
            if names:
                text += f", and with it {len(names)} nodes behind it: {listed(names)}"
            one = Finding("node-gone", gone.where, text, guid)
            cause = causes.get(guid)
            if cause is not None:
                one = replace(one, cause=f"node-gone at {self.nodes[cause].where}")
            found.append(one)
        return found + [
            Finding("link-gone", gone.where, f"its link to {gone.beyond} is gone", *link[0])
            for link, gone in self.links.items()
            if not any(guid in self.nodes for guid, _number in link)
        ]


def _attachment(node: Node) -> str:
    """Return the name of the switch port that leads to a host; C{""} for a switch, which has many."""
    linked: list[Port] = [] if node.isSwitch else node.linked()
    return str(linked[0].peer) if linked else ""


def _seenAt(beyond: str) -> str:
    return f"it is gone; {beyond} led to it" if beyond else "it is gone"


def _event(
    now: float, change: str, key: GUID | Link, names: tuple[str, str] = ("", ""), text: str = ""
) -> FabricEvent:
    """Return an event of a node, or of a link at its first port."""
    if isinstance(key, GUID):
        return FabricEvent(now, f"node-{change}", names[0], text, key, None, str(key), names[1])
    (guid, port), (peer, peerPort) = key
    subject = json.dumps([str(guid), port, str(peer), peerPort])
    return FabricEvent(now, f"link-{change}", names[0], text, guid, port, subject, names[1])


def _stateOf(event: FabricEvent) -> tuple[GUID | Link, FabricEvent]:
    """Return the node or link of an event that is its state, or raise C{ValueError}."""
    if isinstance(event.detail, str):
        if event.kind.startswith("node"):
            return GUID.fromString(event.subject), event
        match json.loads(event.subject):
            case [str(guid), port, str(peer), peerPort] if isPort(port) and isPort(peerPort):
                return ((GUID.fromString(guid), port), (GUID.fromString(peer), peerPort)), event
    raise ValueError(f"{event!r} is not the state of a node or link")


def _rememberedFabric(nodes: Mapping[GUID, tuple[str, str]], links: Iterable[Link]) -> Fabric:
    """
    Return a fabric of these nodes and links, for pages before the first sweep.

    Events have names, GUIDs and port numbers; LIDs, states, widths and speeds are unknown.

    @param nodes: name of each node, and of the port that leads to it.
    """
    links = [link for link in links if link[0][0] in nodes and link[1][0] in nodes]
    numbers: defaultdict[GUID, list[int]] = defaultdict(list)
    for guid, number in (end for link in links for end in link):
        numbers[guid].append(number)
    fabric = Fabric()
    for guid, (name, _beyond) in nodes.items():
        linked = numbers[guid]
        kind = NodeType.SWITCH if len(linked) > _MOST_HOST_PORTS else NodeType.CHANNEL_ADAPTER
        info = NodeInfo(nodeType=kind, nodeGUID=guid, portGUID=guid, numPorts=max(linked, default=1))
        node, _isNew = fabric.add(info)
        node.description = name.removesuffix(f" ({guid})")
    for (one, number), (other, peer) in links:
        fabric.link(fabric.nodes[one].port(number), fabric.nodes[other].port(peer))
    return fabric
