"""
Nodes and links of a fabric over time: their appearance, disappearance and changes, with times.

L{TopologyWatch.follow} is the only place where the fabric is compared with its former state. It returns
events, from which the journal, the findings and the pages are made, and from which L{TopologyWatch.restore}
restores the state.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any, Final

from txrdma.fabric.health import Finding, hasLink
from txrdma.fabric.model import Fabric, Node, Port, PortKey
from txrdma.fabric.rootcause import causesOfLoss, explained, OF_ENDS
from txrdma.fabric.texts import listed
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.kit.values import record
from txrdma.monitor.diagnosis.fabricstate import (
    fabricOf,
    hasOtherRate,
    Link,
    LinkState,
    NodeState,
    stateEvent,
    stateOf,
)
from txrdma.monitor.diagnosis.journal import FabricEvent, readValid
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


@record
class Absence:
    """
    A node or a link that was in the fabric and is missing.

    @ivar where: name of the node, or of the link's first port.
    @ivar beyond: name of the port that led to the node, or of the link's other port; C{""} without one.
    @ivar since: time of the first sweep that did not find it.
    @ivar type: L{NodeType} of a node; 0 if it is unknown, and for a link.
    """

    where: str
    beyond: str
    since: float
    type: int = 0


class TopologyWatch:
    """
    Record of the nodes and links of all sweeps.

    @ivar missingNodes: missing nodes, by GUID; C{missingLinks} are missing between present nodes.
    @ivar present: states of the present nodes; C{linked} those of the links.
    @ivar changes: number of times that nodes or links have changed.
    @ivar lost: links that the latest fabric does not have, and the one before had; C{came}: the reverse. Both
        are empty for the first fabric.
    @ivar remembered: fabric of a former process, until the first sweep; None without.
    @ivar rememberedAt: time of its last event.
    """

    def __init__(self) -> None:
        self._appeared: dict[Any, float] = {}
        self.present: Mapping[GUID, NodeState] = {}
        self.linked: Mapping[Link, LinkState] = {}
        self.missingNodes: dict[GUID, Absence] = {}
        self.missingLinks: dict[Link, Absence] = {}
        self._hung: dict[GUID, list[Port]] = {}
        self._unreached: set[GUID] = set()
        self.lost: set[Link] = set()
        self.came: set[Link] = set()
        self.changes = 0
        self.remembered: Fabric | None = None
        self.rememberedAt = 0.0

    def restore(self, states: Sequence[FabricEvent]) -> None:
        """
        Set the state that a previous process has stored, before the first sweep.

        @param states: last events of nodes and links; without effect if fewer than two of the nodes are
            present. Invalid ones are logged and ignored.
        """
        present, linked, nodes, links = dict[Any, Any](), dict[Any, Any](), dict[Any, Any](), dict[Any, Any]()
        for key, state, one in readValid(states, stateOf):
            isNode = isinstance(key, GUID)
            if one.kind.endswith("-gone"):
                kind = state.type if isNode else 0
                (nodes if isNode else links)[key] = Absence(state.name, state.beyond, one.at, kind)
            else:
                (present if isNode else linked)[key] = state
        if len(present) >= _FEWEST:
            self.remembered = fabricOf(present, linked)
            self.rememberedAt = max(one.at for one in states)
            self.present, self.linked, self.missingNodes, self.missingLinks = present, linked, nodes, links

    def _elsewhere(self, fabric: Fabric, now: float) -> Iterator[FabricEvent]:
        """Forget the state of a process that watched another fabric: the local node may be in both."""
        if len(self.present) >= _FEWEST and sum(guid in self.present for guid in fabric.nodes) < _FEWEST:
            known: list[GUID | Link] = [*self.present, *self.missingNodes, *self.linked, *self.missingLinks]
            for key in known:
                yield stateEvent(now, "forgotten", key)
            self.present, self.linked = {}, {}
            self.missingNodes.clear()
            self.missingLinks.clear()

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
        nodes: dict[GUID, NodeState] = {}
        for number, (guid, node) in enumerate(list(fabric.nodes.items()), 1):
            nodes[guid] = NodeState(str(node), _attachment(node), int(node.type))
            if not number % _PIECE:
                yield None
        links: dict[Link, LinkState] = {}
        came: set[Link] = set()
        for number, (one, other) in enumerate(fabric.links(), 1):
            link = (one.node.guid, one.number), (other.node.guid, other.number)
            known = self.linked.get(link)
            rate = (one.width, one.speed) if known is None or one.width else known[2:]
            links[link] = LinkState(str(one), str(other), *rate)
            if known is None:
                came.add(link)
            if not number % _PIECE:
                yield None
        lost: list[Link] = []
        ofNodes = self._nodeEvents(nodes, fabric, now)
        for number, event in enumerate(chain(ofNodes, self._linkEvents(links, nodes, lost, now)), 1):
            if event is not None:
                events.append(event)
            if not number % _PIECE:
                yield None
        appeared = yield from self._times(nodes, links, now)
        # No pauses from here on: pages show either the former state or the new one.
        for guid, state in self.present.items():
            if guid not in nodes:
                self.missingNodes[guid] = Absence(*state[:2], now, state.type)
        for link in lost:
            self.missingLinks[link] = Absence(*self.linked[link][:2], now)
        # With those that are missing from now on: a bounded table may forget them at once.
        tables: list[tuple[dict[Any, Absence], Collection[Any]]] = [
            (self.missingNodes, nodes),
            (self.missingLinks, links),
        ]
        former = [list(gone) for gone, _present in tables]
        forget(self.missingNodes, lambda guid, _: guid in nodes)
        ends = {end for link in self.missingLinks for end in link}
        taken = ends and {end for link in came for end in link if end in ends}
        # A link is back, or a port of it is linked elsewhere.
        forget(self.missingLinks, lambda link, _: link in links or not taken.isdisjoint(link))
        # Missing ones keep their times, by which C{_bound} chooses those to forget.
        appeared.update(
            (key, self._appeared.get(key, -inf)) for key in chain(self.missingNodes, self.missingLinks)
        )
        self.changes += any(event.kind != "link-changed" for event in events)
        self.lost, self.came = (set(lost), came) if self.present else (set(), set())
        self.present, self.linked, self._appeared = nodes, links, appeared
        for (gone, present), before in zip(tables, former, strict=True):
            forget(gone, lambda _key, one: one.since <= now - FORGET_SECONDS)
            self._bound(gone)
            forgotten = [key for key in before if key not in gone and key not in present]
            events += [stateEvent(now, "forgotten", key) for key in forgotten]
        yield from events

    def _nodeEvents(
        self, nodes: Mapping[GUID, NodeState], fabric: Fabric, now: float
    ) -> Iterator[FabricEvent | None]:
        """Yield the events of nodes; None is a node without an event."""
        isFirst = not self.present
        for guid, state in self.present.items():
            yield None if guid in nodes else stateEvent(now, "gone", guid, state, "it is gone")
        for guid, state in nodes.items():
            if guid not in self.present:
                node = fabric.nodes.get(guid)
                linked = [] if node is None else node.linked()
                text = f"it is there, at {linked[0].peer}" if linked else "it is there"
                yield stateEvent(now, "came", guid, state, "" if isFirst else text)
            else:
                yield None if state == self.present[guid] else stateEvent(now, "came", guid, state)

    def _linkEvents(
        self, links: Mapping[Link, LinkState], nodes: Collection[GUID], lost: list[Link], now: float
    ) -> Iterator[FabricEvent | None]:
        """
        Yield events of links, or None; links that are missing with their node have no text.

        @param lost: list to which missing links are added.
        """
        isFirst = not self.present
        for link, state in self.linked.items():
            if link in links:
                yield None
                continue
            lost.append(link)
            isSeen = all(guid in nodes for guid, _number in link)
            text = f"its link to {state.beyond} is gone" if isSeen else ""
            yield stateEvent(now, "gone", link, state, text)
        for link, state in links.items():
            before = self.linked.get(link)
            if before is None:
                yield stateEvent(now, "came", link, state, "" if isFirst else f"it is {state.linkedTo}")
            elif hasOtherRate(before, state):
                text = f"its link to {state.beyond} runs at {state.rate}, not {before.rate}"
                yield stateEvent(now, "changed", link, state, text)
            else:
                yield None if state == before else stateEvent(now, "came", link, state)

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
        excess = len(gone) - MOST_GONE
        if excess > 0:
            shortest = sorted(gone, key=lambda key: gone[key].since - self._appeared.get(key, -inf))
            for key in shortest[:excess]:
                del gone[key]

    def swept(self, fabric: Fabric, silent: Collection[str] = ()) -> None:
        """
        Record which missing nodes have links in the fabric of two whole sweeps, which did not reach them: the
        local link may have been down during a part of one.

        Until the next one, a link that comes up is that of a node which is not asked yet.

        @param silent: GUIDs of nodes that are reported as silent, as text: one sweep is enough for these.
        """
        hung: dict[GUID, list[Port]] = {}
        for link in self.missingLinks:
            for (guid, _number), (peer, number) in (link, link[::-1]):
                port = fabric.portAt(peer, number)
                if guid in self.missingNodes and port is not None and port.peer is None and hasLink(port):
                    hung.setdefault(guid, []).append(port)
        before, self._unreached = self._unreached, set(hung)
        self._hung = {guid: ports for guid, ports in hung.items() if guid in before or str(guid) in silent}

    def hasLostSilentNode(self) -> bool:
        """Return whether a node that did not answer two sweeps has lost a link since, and may be gone."""
        return any(not hasLink(port) for ports in self._hung.values() for port in ports)

    def missingAt(self) -> dict[PortKey, Link]:
        """Return the missing links by each of their two ports."""
        return {end: link for link in self.missingLinks for end in link}

    def linkedSince(self, port: Port, peer: Port) -> float:
        """
        Return when two ports were linked: minus infinity if that was so in the first sweep. A link that was
        missing meanwhile is the same one, unless a port of it was linked elsewhere.
        """
        ends = (port.node.guid, port.number), (peer.node.guid, peer.number)
        return max(self._appeared.get(link, -inf) for link in (ends, ends[::-1]))

    def isAdapter(self, guid: GUID) -> bool:
        """Return whether a node is a channel adapter; one of unknown type is, unless it was a switch."""
        state = self.missingNodes.get(guid) or self.present.get(guid)
        if state is None:
            return False
        return state.type == NodeType.CHANNEL_ADAPTER or (not state.type and bool(state.beyond))

    def silent(self) -> list[Finding]:
        """Return findings about nodes that two sweeps did not reach, although they have links."""
        hung = {guid: ports for guid, ports in self._hung.items() if guid in self.missingNodes}
        behind = _behind(causesOfLoss(self.missingNodes, self.missingLinks)) if hung else {}
        found = []
        for guid, ports in hung.items():
            text = f"it does not answer, and has links at {listed(ports)}{self._withIt(behind, guid)}"
            found.append(Finding("node-silent", self.missingNodes[guid].where, text, guid))
        return found

    def findings(
        self,
        checked: Iterable[Finding] = (),
        flapping: Iterable[Finding] = (),
        ignored: Collection[str] = (),
    ) -> list[Finding]:
        """
        Return findings about missing nodes and links; links of a missing node are not reported, and nodes
        that only a missing switch led to have that as their cause. Those of L{silent} are left out.

        @param checked: other findings about the fabric, which are returned, too; what a silent node causes
            has it as its cause.
        @param flapping: findings of links that flap, which are the causes of missing ones.
        @param ignored: kinds of findings that explain no others.
        """
        silent = self.silent()
        hung = {one.guid for one in silent}
        causes: dict[Any, GUID] = {**causesOfLoss(self.missingNodes, self.missingLinks)}
        behind = _behind(causes)
        causes |= {(port.node.guid, port.number): guid for guid in self._hung for port in self._hung[guid]}
        found = [*checked]
        found += (
            Finding("node-gone", gone.where, _seenAt(gone.beyond) + self._withIt(behind, guid), guid)
            for guid, gone in self.missingNodes.items()
            if guid not in hung
        )
        found += (
            Finding("link-gone", gone.where, f"its link to {gone.beyond} is gone", *link[0])
            for link, gone in self.missingLinks.items()
            if not any(guid in self.missingNodes for guid, _number in link)
        )
        links: dict[Any, Link] = self.missingAt()

        def causeAt(one: Finding) -> object:
            at = one.guid if one.port is None else (one.guid, one.port)
            return (links if one.kind in OF_ENDS else causes).get(at)

        return explained(found, causeAt, [*silent, *flapping], ignored)

    def _withIt(self, behind: Mapping[GUID, list[GUID]], guid: GUID) -> str:
        names = [self.missingNodes[one].where for one in behind.get(guid, ())]
        return f", and with it {len(names)} nodes behind it: {listed(names)}" if names else ""


def _behind(causes: Mapping[GUID, GUID]) -> dict[GUID, list[GUID]]:
    """Return the nodes that are missing because of each cause."""
    found: dict[GUID, list[GUID]] = {}
    for guid, cause in causes.items():
        found.setdefault(cause, []).append(guid)
    return found


def _attachment(node: Node) -> str:
    """Return the name of the switch port that leads to a host; C{""} for a switch, which has many."""
    linked: list[Port] = [] if node.isSwitch else node.linked()
    return str(linked[0].peer) if linked else ""


def _seenAt(beyond: str) -> str:
    return f"it is gone; {beyond} led to it" if beyond else "it is gone"
